"""The part of each verb that acts on the rows that were read."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core import transitions
from holdfast.core.limits import Queue
from holdfast.core.machine import State
from holdfast.core.records import Duty, NewJob, Pulse, Record
from holdfast.core.rollups import delta
from holdfast.core.settlement import Settlement, is_as_judged, own_event
from holdfast.stores.protocol import Reply
from holdfast.stores.redis import keys
from holdfast.stores.redis.rows import packed
from holdfast.stores.redis.work import Entry, Work, encode


def pulse(worker_id: str, pulses: Sequence[Pulse], work: Work) -> list[str]:
    """Extend leases; return the jobs whose lease is not the current one."""
    work.load(pulse.lease.job_id for pulse in pulses)
    lost = []
    for pulse in pulses:
        job = work.job(pulse.lease.job_id)
        if job is None or not transitions.owns(job, pulse.lease):
            lost.append(pulse.lease.job_id)
            work.report_stale(pulse.lease, worker_id)
        elif job.state is State.RUNNING:
            work.put(transitions.apply_pulse(job, pulse, work.now))
    return lost


def settle(settlements: Sequence[Settlement], under: Duty | None, work: Work) -> list[Reply]:
    work.check_duty(under)
    work.load(each.lease.job_id for each in settlements)
    answers = [_settle_one(work, each) for each in settlements]
    work.load({each.parent for each in settlements if each.parent is not None})
    for each, answer in zip(settlements, answers, strict=True):
        if answer is Reply.ACCEPTED:
            work.tell_parent(each.lease.job_id)
    if accepted := [each for each, answer in zip(settlements, answers, strict=True) if answer is Reply.ACCEPTED]:
        work.do("RPUSH", "deltas", encode(delta(accepted, work.now.wall)))
    return answers


def _settle_one(work: Work, settlement: Settlement) -> Reply:
    job, seen = work.job(settlement.lease.job_id), settlement.seen_lease_until
    if job is None or not transitions.owns(job, settlement.lease):
        if _is_repeat(work, settlement):
            return Reply.ALREADY
        if seen is None and not settlement.verdict.raises_fence:
            work.report_stale(settlement.lease, settlement.worker, settlement.verdict.state)
        return Reply.REFUSED
    if job.state is not State.RUNNING:
        return Reply.ALREADY
    if seen is not None:
        if job.lease_until != seen:
            return Reply.REFUSED  # it beat after the reaper looked: it lives
        work.expect("score", "leases", job.id, seen)
    if not is_as_judged(settlement, job.cancel_requested, job.open_step, job.undoable, job.inbox):
        return Reply.AGAIN
    work.apply(job, settlement.verdict, settlement.worker)
    work.count_error(settlement, job.task)
    return Reply.ACCEPTED


def _is_repeat(work: Work, settlement: Settlement) -> bool:
    own, fence = own_event(settlement.verdict), settlement.lease.fence
    if own is None or work.job(settlement.lease.job_id) is None:
        return False
    same = (each for each in work.history(settlement.lease.job_id) if (each.fence, each.kind) == (fence, own.kind))
    return any(each.detail == own.detail for each in same)


def forget(key: str, name: str, work: Work) -> bool:
    is_there = work.field(key, name) is not None
    if is_there:
        work.set(key, name, None)
    return is_there


def forget_worker(worker_id: str, work: Work) -> None:
    """Delete the row of a worker that is gone, if it holds nothing."""
    if work.db.ask(("SCARD", f"held:{worker_id}"))[0] == 0 and work.field("workers", worker_id) is not None:
        work.set("workers", worker_id, None)
        work.do("ZREM", "gone", worker_id)
        work.do("ZREM", "enrolled", worker_id)
        work.do("HDEL", "recent", worker_id)
        work.removed += 1


def put_queue(queue: Queue, work: Work) -> None:
    """Write what is set for a queue, for people and for the script of a claim."""
    work.field("queues", queue.name)
    work.set("queues", queue.name, queue)
    held = queue.limits
    known = [
        *(queue.paused, queue.paused_until, held.limit, held.group_limit),
        *(None if held.rate is None else held.rate.step_s, held.burst),
        {group: False if ends is None else ends for group, ends in queue.paused_groups.items()},
    ]
    work.do("HSET", "set", queue.name, packed([False if each is None else each for each in known]))


def purge(ids: Sequence[str], state: State, before: float, under: Duty | None, work: Work) -> int:
    work.check_duty(under)
    work.load(ids)
    purged = 0
    for job_id in ids:
        job = work.job(job_id)
        if job is not None and job.state is state and job.ended_at is not None and job.ended_at < before:
            work.remove(job_id)
            purged += 1
    return purged


def purge_keys(names: Sequence[str], work: Work) -> None:
    for name in names:
        if keys.is_free(work, name):
            work.set(keys.HOLDS, name, None)
            work.do("ZREM", keys.NAMES, name)


def wake(ids: Sequence[str], work: Work) -> None:
    work.load(ids)
    for job_id in ids:
        job = work.job(job_id)
        if job is not None and job.wake_at is not None and job.wake_at <= work.now.wall:
            work.put(transitions.woken(job, work.now.wall))
        elif job is None or job.wake_at is None:
            work.do("ZREM", "waits", job_id)


def record(record: Record, work: Work) -> Reply:
    job = work.job(record.lease.job_id)
    if job is None or not transitions.owns(job, record.lease):
        work.report_stale(record.lease, record.worker, step=record.steps[0].name if record.steps else "")
        return Reply.REFUSED
    if job.state is not State.RUNNING:
        return Reply.REFUSED
    if _are_taken(work, record.jobs):
        return Reply.TAKEN
    if not all(work.takes(signal) for signal in record.sent):
        return Reply.GONE
    opened = record.open_step if record.open_step is not None else job.open_step
    changed = replace(job, undoable=job.undoable or record.undoable, open_step=opened or None)
    if changed != job:
        work.put(changed)
    for step in record.steps:
        work.put_step(job.id, step)
    for signal_id in record.taken:
        entry = work.field(f"sg:{job.id}", signal_id, Entry)
        if entry is not None and entry.taken is None:
            work.set(f"sg:{job.id}", signal_id, replace(entry, taken=record.steps[0].position))
    work.add([new for new in record.jobs if work.job(new.id) is None])
    for signal in record.sent:
        work.deliver(signal)
    return Reply.ACCEPTED


def _are_taken(work: Work, jobs: Sequence[NewJob]) -> bool:
    """Say whether one of these cannot be stored because its id or its key belongs to another job."""
    work.load(new.id for new in jobs)
    known = [(new, there) for new in jobs if (there := work.job(new.id)) is not None]
    if any((there.parent, there.task) != (new.parent, new.task) for new, there in known):
        return True
    wanted = [new.key for new in jobs if new.key is not None and work.job(new.id) is None]
    return len(set(wanted)) < len(wanted) or any(work.live(key) is not None for key in wanted)
