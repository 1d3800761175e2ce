"""Decide what an enqueue does to the job that has its key."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.acts import Move, supersede
from holdfast.core.machine import ENDED, State, Transition
from holdfast.core.records import Job, KeyRule, NewEvent, NewJob
from holdfast.core.verdict import Verdict
from holdfast.errors import UsageError

PASSED = "passed"  # the scope of a key on the row of a job that a newer one has replaced


class KeyHold(NamedTuple):
    """The job that took a key with a scope other than "live", as the store keeps it.

    `until`: wall time; None: for ever, or while the job is queued.
    """

    job_id: str
    scope: str
    until: float | None = None


class Taken(NamedTuple):
    """The effect of an enqueue on the job that has its key: an act, another payload, or the loss of the key.

    `stores`: the new job is stored then; otherwise the answer names the job that has the key.
    """

    move: Move | None = None
    payload: str | None = None
    expires_at: float | None = None
    passes: bool = False
    stores: bool = False


def is_queued(job: Job) -> bool:
    """Say whether no worker has claimed the job yet."""
    return job.state is State.READY and job.attempt == 0


def is_held(hold: KeyHold, job: Job | None, now: float) -> bool:
    """Say whether the key still belongs to the job that took it; `job` is its row, if it was not deleted."""
    if hold.scope == "queued":
        return job is not None and is_queued(job)
    return hold.until is None or now < hold.until


def hold_for(new: NewJob, rule: KeyRule, now: float) -> KeyHold:
    """Return what the store keeps of the key of a new job."""
    if isinstance(rule.scope, str):
        return KeyHold(new.id, rule.scope)
    return KeyHold(new.id, f"{rule.scope:g}", now + rule.scope)


def taken(job: Job | None, new: NewJob, rule: KeyRule, now: float) -> Taken:
    """Decide about the job that has the key; None: it was deleted."""
    if job is None or rule.on_taken == "keep" or job.state in ENDED:
        return Taken()
    if rule.on_taken == "replace":
        return _replaced(job, new, rule, now)
    passes = job.state is State.RUNNING or job.key_scope is not None  # otherwise its end frees the key
    return Taken(Move(job.seen, supersede(job, new.id)), passes=passes, stores=True)


def _replaced(job: Job, new: NewJob, rule: KeyRule, now: float) -> Taken:
    if not is_queued(job) or job.task != new.task:
        return Taken()
    if new.run_at is None and not new.delay_s:
        run_at = min(job.run_at, now)  # it keeps its place
    else:
        run_at = new.run_at if new.run_at is not None else now + new.delay_s
    if rule.wait_max_s is not None:
        run_at = min(run_at, job.created_at + rule.wait_max_s)
    event = NewEvent("moved", {"key": new.key, "arguments": "replaced", "run_at": run_at})
    verdict = Verdict(move=Transition.RESCHEDULE, state=State.READY, run_at=run_at, events=(event,))
    expires_at = None if new.expires_s is None else now + new.expires_s
    return Taken(Move(job.seen, verdict), payload=new.payload, expires_at=expires_at)


def check_no_key_rule(new: NewJob, what: str) -> None:
    """Raise `UsageError` for a job whose key has a rule where only plain keys are possible."""
    if new.is_keyed:
        raise UsageError(
            f"{what} has a plain key or none; for a task that declares more, give "
            'task.using(key_scope="live", on_taken="keep")'
        )
