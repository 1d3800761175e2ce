"""Apply each verb to one row: the specification that every store follows in its own way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter

from msgspec.structs import replace

from holdfast.core.labels import meta_of, tags_of
from holdfast.core.machine import ENDED, State
from holdfast.core.records import Filter, Job, Lease, Moment, NewJob, Pulse, Schedule, Step, Worker
from holdfast.core.row_text import Awaited, Awaits, texts_of
from holdfast.core.verdict import Verdict

RENEW_S = 30.0  # how often the declaration of a schedule is renewed while a program that made it lives
ABANDONED_S = 4 * RENEW_S  # one that no program has renewed for this long gives way to another program's
DECLARED_S = ABANDONED_S + 2 * RENEW_S  # one that no program has renewed for this long is not fired


def first_row(new: NewJob, wall: float) -> Job:
    """Return the row of a job that was just stored."""
    policy, retry = new.policy, new.policy.retry
    run_at = new.run_at if new.run_at is not None else wall + new.delay_s
    return Job(
        id=new.id, task=new.task, queue=new.queue, payload=new.payload, key=new.key, priority=new.priority,
        state=State.WAITING if new.awaits else State.READY, run_at=run_at, created_at=wall,
        attempt=0, fence=0, claim_id=None, worker=None, lease_until=None, claimed_at=None, started=False,
        failures=0, crashes=0, zombies=0, suspects=0, cancel_requested=False, rolling_back=False,
        attempts_max=retry.attempts_max, backoff_base_s=retry.base_s, backoff_cap_s=retry.cap_s,
        backoff_jitter=retry.jitter != "none", backoff_full=retry.jitter == "full",
        crashes_max=policy.crashes_max, on_crash=policy.on_crash,
        lease_s=policy.lease_s, beat_s=policy.beat_every_s,
        timeout_s=policy.timeout_s, stall_s=policy.stall_s, error=None, result=None,
        progress=None, note=None, ended_at=None, log=None, moved_at=None, workflow=new.workflow, parent=new.parent,
        group=new.group, callbacks=new.callbacks,
        expires_at=None if new.expires_s is None else wall + new.expires_s, tags=new.tags, meta=new.meta,
        awaits=Awaits(new.awaits) if new.awaits else None,
    )  # fmt: skip


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """Return jobs, given in the order in which they came, in the order in which they are claimed."""
    return sorted(sorted(jobs, key=_BY_RUN_AT), key=_BY_PRIORITY, reverse=True)  # stable: first come stays first


_BY_RUN_AT, _BY_PRIORITY = attrgetter("run_at"), attrgetter("priority")


def shares(queues: Sequence[str], limit: int) -> list[tuple[str, int]]:
    """Return how many jobs to take from each queue: an even share first, and then what is left, in their order."""
    even, odd = divmod(limit, max(1, len(queues)))
    return [(queue, even + (place < odd)) for place, queue in enumerate(queues)] + [(queue, limit) for queue in queues]


def apply_claim(job: Job, worker_id: str, claim_id: str, now: Moment, started: bool) -> Job:
    """Return the job as a claim makes it."""
    return replace(
        job, state=State.RUNNING, worker=worker_id, claim_id=claim_id, started=started,
        fence=job.fence + 1, attempt=job.attempt + 1, in_steps=None,
        lease_until=now.lease + job.lease_s, claimed_at=now.wall, progress=None, note=None, moved_at=None,
    )  # fmt: skip


def owns(job: Job, lease: Lease) -> bool:
    """Return whether the lease is the newest of the job; a job that is not running keeps its last one."""
    return job.fence == lease.fence and job.claim_id == lease.claim_id


def apply_beat(worker: Worker, wall: float, rss_mb: float | None, stopping: bool) -> Worker:
    """Return the worker after a beat."""
    rss_mb = rss_mb if rss_mb is not None else worker.rss_mb
    return replace(worker, beat_at=wall, beats=worker.beats + 1, rss_mb=rss_mb, stopping=stopping)


def apply_pulse(job: Job, pulse: Pulse, now: Moment) -> Job:
    """Return the job after a beat of its current attempt; a lease never gets shorter."""
    return replace(
        job,
        lease_until=max(lease_end(job), now.lease + job.lease_s),
        started=job.started or pulse.started,
        progress=pulse.progress if pulse.progress is not None else job.progress,
        note=pulse.note if pulse.note is not None else job.note,
        log=pulse.log if pulse.log is not None else job.log,
        moved_at=now.wall - pulse.still_s if pulse.still_s is not None else job.moved_at,
        in_steps=pulse.in_steps if pulse.in_steps is not None else job.in_steps,
        beat_data=pulse.beat_data if pulse.beat_data is not None else job.beat_data,
    )


def apply_verdict(job: Job, verdict: Verdict, wall: float) -> Job:
    """Return the job as the verdict makes it: numbers are added, None leaves what is there."""
    said = {name: value for name, value in zip(_SAID, _SAID_BY(verdict), strict=True) if value is not None}
    for name in _CLEARED:
        if name in said:
            said[name] = said[name] or None  # an empty one takes back what is there
    runs_on = verdict.state is State.RUNNING  # a cancel that only asks
    waits = verdict.state is State.WAITING
    return replace(
        job, state=verdict.state,
        wake_at=verdict.wake_at if waits else None, awaits=Awaits(verdict.awaits) if waits else None,
        question=verdict.question if waits else None,
        error_kind=job.error_kind if verdict.error is None else verdict.error_kind,
        failures=(0 if verdict.fresh_budgets else job.failures) + verdict.failures,
        crashes=(0 if verdict.fresh_budgets else job.crashes) + verdict.crashes,
        zombies=job.zombies + verdict.zombies, releases=verdict.releases,
        fence=job.fence + verdict.raises_fence,
        claim_id=None if verdict.raises_fence else job.claim_id,
        worker=job.worker if runs_on else None,
        lease_until=job.lease_until if runs_on else None,
        started=job.started and runs_on,
        ended_at=wall if verdict.state in ENDED else None,
        log=job.log if runs_on else None, beat_data=job.beat_data if runs_on else None,
        fingerprint=job.fingerprint if verdict.fault is None else verdict.fault.fingerprint,
        release=job.release if verdict.fault is None else verdict.release,
        erred_at=job.erred_at if verdict.fault is None else wall, **said,
    )  # fmt: skip


_CLEARED = ("open_step", "error", "stop_reason")
_SAID = (
    *_CLEARED, "undo_requested", "run_at", "rollback_cause", "result", "suspects", "rolling_back", "cancel_requested",
    "priority", "queue", "progress", "note",
)  # fmt: skip
_SAID_BY = attrgetter(*_SAID)


def wake_on(job: Job, what: Awaited, wall: float) -> Job:
    """Return the job after a signal or the end of a child arrived; wake it if it waits for that."""
    job = replace(job, inbox=job.inbox + 1)
    return woken(job, wall) if what in (job.awaits or ()) else job


def woken(job: Job, wall: float) -> Job:
    """Return a waiting job as it is when it waits no more."""
    return replace(job, state=State.READY, run_at=wall, wake_at=None, awaits=None, question=None)


def merge_step(known: Step | None, new: Step) -> Step:
    """Return what is on record after `new` was written: a recorded step changes no more, unless it is undone."""
    if known is None:
        return new
    if known.state == "started":  # the next attempt may have other code: with an undo, or without
        said = {name: getattr(new, name) for name in _SAID_ANEW}
    elif known.state == "recorded" and new.state == "undone":
        said = {}
    else:
        return known
    ends = {"ended_at": new.ended_at, "undone_at": new.undone_at}
    return replace(known, state=new.state, attempt=new.attempt, fence=new.fence, **ends, **said)


_SAID_ANEW = ("has_undo", "repeatable", "arguments", "result", "error", "error_kind", "started_at", "tries", "retry_at")


_COMPARED = ("queue", "task", "worker", "key", "cancel_requested", "workflow", "group", "fingerprint", "release")


def matches(job: Job, where: Filter) -> bool:
    """Return whether the job is one that the filter asks for."""
    if where.states and job.state not in where.states:
        return False
    wanted = {name: getattr(where, name) for name in _COMPARED}
    same = all(value is None or getattr(job, name) == value for name, value in wanted.items())
    named = where.ids is None or job.id in where.ids
    named = named and (where.asking is None or (job.question is not None) is where.asking)
    if job.state is State.READY:
        tried = bool(job.failures or job.crashes)
        named = named and (where.later is None or job.run_at > where.later) and where.tried in (None, tried)
    named = named and (where.prefix is None or job.id.startswith(where.prefix))
    return same and named and _is_within(job, where) and _has_labels(job, where)


def _has_labels(job: Job, where: Filter) -> bool:
    """Return whether the job has the tags and the metadata that the filter asks for."""
    if where.tags and not set(where.tags) <= set(tags_of(job.tags)):
        return False
    return not where.meta or set(where.meta) <= set(meta_of(job.meta).items())


def _is_within(job: Job, where: Filter) -> bool:
    """Return whether the job falls into the time that the filter asks for."""
    if where.since is None and where.until is None:
        return True
    at = where.instant_of(job)
    return at is not None and (where.since is None or at >= where.since) and (where.until is None or at < where.until)


def merge_schedule(there: Schedule | None, new: Schedule, wall: float, again: bool) -> Schedule:
    """Return the schedule as the declaration of a program makes it; `again`: of one that has said it before.

    The declaration of the program that was started last holds while a program renews it. If none does, it is gone, as
    a canary may be, and one that lives on takes the schedule over. Another expression counts from when the old one was
    last declared: from now on would lose the instants since then, and all of them where two versions declare in turn.
    """
    if there is None:
        return replace(new, mark=wall, fired_at=None, job_id=None, paused=False, declared_at=wall)
    if there.kept:
        return there
    same = all(getattr(there, name) == getattr(new, name) for name in _DECLARED)
    if again and there.declared_at >= wall - (RENEW_S if same else ABANDONED_S):
        return there
    same_instants = (there.spec, there.tz) == (new.spec, new.tz)
    mark = there.mark if same_instants else max(there.mark, min(there.declared_at, wall))
    return _declared(there, new, mark, wall)


def keep_schedule(there: Schedule | None, new: Schedule, wall: float) -> Schedule | None:
    """Return the schedule as `app.schedule` makes or changes it at run time; None when a living program declares it.

    Another expression counts from now on, and so does one that takes over from a program that is gone.
    """
    if there is None:
        return replace(new, mark=wall, fired_at=None, job_id=None, paused=False, declared_at=wall, kept=True)
    if not there.kept and is_declared(there, wall):
        return None
    same_instants = there.kept and (there.spec, there.tz) == (new.spec, new.tz)
    return replace(_declared(there, new, there.mark if same_instants else max(there.mark, wall), wall), kept=True)


_DECLARED = ("spec", "tz", "missed", "job", "missed_max", "jitter_s")


def _declared(there: Schedule, new: Schedule, mark: float, wall: float) -> Schedule:
    return replace(there, mark=mark, declared_at=wall, **{name: getattr(new, name) for name in _DECLARED})


def is_declared(schedule: Schedule, now: float) -> bool:
    """Say whether a schedule is to be fired: a program that lives declares it, or it was made at run time."""
    return schedule.kept or now - schedule.declared_at < DECLARED_S


def lease_end(job: Job) -> float:
    """Return the end of a running job's lease; a running job always has one."""
    return job.lease_until if job.lease_until is not None else math.inf


def violations(job: Job) -> Iterable[str]:
    """Say, in words, which rule of the schema the row breaks."""
    running = job.state is State.RUNNING
    if running != (job.lease_until is not None) or running != (job.worker is not None):
        yield f"is {job.state.value} with lease end {job.lease_until} and worker {job.worker}"
    if running and job.claim_id is None:
        yield "is running without a claim_id"
    if (job.state in ENDED) != (job.ended_at is not None):
        yield f"is {job.state.value} and ended at {job.ended_at}"
    if job.state is not State.WAITING and (job.wake_at, job.awaits, job.question) != (None, None, None):
        yield f"is {job.state.value} and waits until {job.wake_at} for {', '.join(texts_of(job.awaits or ()))}"
    if job.fence < job.attempt:
        yield f"was started {job.attempt} times with a fence of only {job.fence}"
