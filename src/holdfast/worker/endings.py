"""What is said of an attempt whose process has ended under it."""

from __future__ import annotations

import socket
from typing import Any

import msgspec

from holdfast.core.epitaph import Epitaph, how_it_ended
from holdfast.core.times import iso
from holdfast.core.verdict import Lost, Outcome, Stalled, TimedOut
from holdfast.errors import Interrupted
from holdfast.worker.attempt import Attempt
from holdfast.worker.cell import Cell
from holdfast.worker.executors import interrupted


def stopped_by_force(attempt: Attempt, why: Interrupted, cell: Cell, code: int | None) -> Outcome:
    """Return the outcome of an attempt that would not stop, and whose process we ended."""
    why.stack = cell.stack
    outcome = interrupted(attempt, why)
    if isinstance(outcome, TimedOut | Stalled):
        detail = {**outcome.detail, "process": _how(code), "pid": cell.pid}
        return msgspec.structs.replace(outcome, detail=detail)
    return outcome


def lost(
    attempt: Attempt, cell: Cell, code: int | None, worker: str, stack: str | None, killed_for_memory: bool
) -> Outcome:
    """Return the outcome of an attempt whose process ended by itself. It was alone there: nobody else is suspect."""
    job = attempt.job
    cause = f"its process {cell.error or _how(code)}"
    facts = Epitaph(cause, "exit").facts
    if killed_for_memory and facts.get("signal") == "SIGKILL":
        cause += f"; out of memory at {_amount(cell.peak_mb or 0.0)}"
    known: dict[str, Any] = {
        "worker": worker,
        "host": socket.gethostname(),
        "pid": cell.pid,
        "isolated": True,
        "seconds_since_beat": 0.0,  # the worker lives, and saw it happen
        "claimed_at": iso(job.claimed_at),
        "attempt": job.attempt,
        "started": True,
        "progress": attempt.progress,
        "note": attempt.note,
        "rss_mb": None if cell.peak_mb is None else round(cell.peak_mb, 1),
        "fence_before": job.fence,
        "fence_after": job.fence + 1,
        "stack": stack,
        **facts,
    }
    autopsy = {name: value for name, value in known.items() if value is not None}
    return Lost("exit", cause, autopsy, suspects=1)


def _how(code: int | None) -> str:
    return "ended, and nobody saw how" if code is None else how_it_ended(code)


def _amount(mb: float) -> str:
    return f"{mb / 1024:.1f} GiB" if mb >= 1024 else f"{mb:.0f} MiB"
