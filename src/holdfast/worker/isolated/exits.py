"""Make the outcome of an attempt whose process has ended."""

from __future__ import annotations

import os
import socket

import msgspec

from holdfast.core.autopsy import LostProcess, autopsy
from holdfast.core.records import Moment
from holdfast.core.verdict import Lost, Outcome, Released, Stalled, TimedOut
from holdfast.core.worker_exit import exit_facts, how_it_ended
from holdfast.errors import Interrupted
from holdfast.worker.attempt import Attempt
from holdfast.worker.executors import interrupted
from holdfast.worker.isolated.process import IsolatedProcess


def stopped_by_force(attempt: Attempt, why: Interrupted, process: IsolatedProcess, code: int | None) -> Outcome:
    """Return the outcome of an attempt that would not stop, and whose process we ended."""
    why.stack = process.stack
    outcome = interrupted(why)
    if isinstance(outcome, TimedOut | Stalled):
        detail = {**outcome.detail, "process": _how(code), "pid": process.pid}
        return msgspec.structs.replace(outcome, detail=detail)
    return outcome


def lost(
    attempt: Attempt,
    process: IsolatedProcess,
    code: int | None,
    worker: str,
    stack: str | None,
    killed_for_memory: bool,
    now: Moment,
) -> Outcome:
    """Return the outcome of an attempt whose process ended by itself. It was alone there: no other job is suspect."""
    cause = f"its process {process.error or _how(code)}"
    facts = {} if process.error else exit_facts(code)
    if killed_for_memory and facts.get("signal") == "SIGKILL":
        cause += f"; out of memory at {_amount(process.peak_mb or 0.0)}"
    victim = _victim(attempt, worker, process.pid, process.peak_mb, now)
    known = autopsy(attempt.as_seen(), victim, now, {"isolated": True, "stack": stack, **facts})
    return Lost("exit", cause, known, suspects=1)


def stranded(attempt: Attempt, cause: str, worker: str, suspects: int, now: Moment) -> Outcome:
    """Return the outcome of an attempt when what ran it has died, an event loop or a pool; the process lives."""
    if attempt.transaction is not None:
        attempt.transaction.roll_back()
    if attempt.activity.started_at is None:
        return Released(started=False, cause=cause)
    known = autopsy(attempt.as_seen(), _victim(attempt, worker, os.getpid(), None, now), now, {})
    return Lost("stuck", cause, known, suspects=suspects)


def _victim(attempt: Attempt, worker: str, pid: int, rss_mb: float | None, now: Moment) -> LostProcess:
    sent_at = attempt.window.sent_at
    return LostProcess(
        worker=worker,
        host=socket.gethostname(),
        pid=pid,
        beat_at=now.wall + sent_at - now.lease,
        lease_until=sent_at + attempt.job.lease_s,
        silent_s=0.0,  # the worker lives, and saw it happen
        rss_mb=rss_mb,
    )


def _how(code: int | None) -> str:
    return "ended, and its exit code is not known" if code is None else how_it_ended(code)


def _amount(mb: float) -> str:
    return f"{mb / 1024:.1f} GiB" if mb >= 1024 else f"{mb:.0f} MiB"
