"""Views of a store for people and programs: jobs, a scan, workers, queues.

A view is plain data: instants are ISO 8601 in UTC, and a worker goes by its name. A lease is measured on the store's
lease clock, which people cannot read; it is shown as the wall time at which it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.audit import Act
from holdfast.core.autopsy import beat_data, lines_of
from holdfast.core.dependencies import ids_of
from holdfast.core.durations import iso
from holdfast.core.figures import Backlog, Rates, looked_back, rates
from holdfast.core.labels import meta_of, tags_of
from holdfast.core.limits import Queue, is_in_force
from holdfast.core.machine import State, Transition
from holdfast.core.records import DueWaits, Event, Filter, Job, Moment, Order, Worker, nobody_has
from holdfast.errors import StoreError, StoreReadOnly, StoreTimeout
from holdfast.insight.audit import pauses
from holdfast.insight.format import brief, near, parsed
from holdfast.insight.health import Health, ending_view, endings, health, is_late, usual, vanished_ids, worker_state
from holdfast.insight.steps import step_view, steps_of, with_failures
from holdfast.stores.protocol import Store
from holdfast.stores.rounds import together
from holdfast.upkeep.reaper import Report, Zombie

SHOWN_STATES = (*(state.value for state in State), "scheduled", "retrying")
_PARTS = frozenset({"scheduled", "retrying"})  # of those that are ready
_PAGE = 1000
_ROUNDED_S = 0.001  # SQLite writes instants into JSON with 15 digits
_SAMPLE = 200  # jobs to read for a suggestion
EVENTS_MAX = 100_000  # of one job
FLOW_S = 300.0  # how far back the rates of queues look
_FEW_EVENTS = 50  # of one job: read with those of other jobs

Names = Mapping[str, str]  # worker id -> worker name

# ------------------------------------------------------------------------------------------------ jobs


def job_view(job: Job, now: Moment, names: Names | None = None) -> dict[str, Any]:
    """Show a job as `jobs list` does: one flat object."""
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "group": job.group,
        "batch": job.batch,
        "tags": tags_of(job.tags),
        "meta": meta_of(job.meta),
        "after": ids_of(job.awaits),
        "state": job.shown_state(now.wall),
        "attempt": job.attempt,
        "fence": job.fence,
        "failures": job.failures,
        "crashes": job.crashes,
        "created_at": iso(job.created_at),
        "run_at": iso(job.run_at),
        "ended_at": iso(job.ended_at),
        "worker": name_of(job.worker, names),
        "lease_until": iso(lease_end(job, now)),
        "error": job.error,
        "fingerprint": job.fingerprint,
        "release": job.release,
        "stop_reason": job.stop_reason,
        "rollback_cause": job.rollback_cause,
        "result": parsed(job.result),
        "progress": job.progress,
    }


def key_scope(job: Job) -> str | None:
    """Return how long the job has its key; None if it has none."""
    return None if job.key is None else job.key_scope or "live"


def job_story(store: Store, job: Job) -> dict[str, Any]:
    """Show a job with its whole history, as `jobs show` does."""
    names, events, state = together(
        lambda: worker_names(store), lambda: store.journal(job.id), lambda: health_of(store, job)
    )
    return {
        **job_view(job, store.now(), names),
        "health": None if state is None else {"word": state.word, "sentence": state.sentence},
        "log": lines_of(job.log),
        "beat_data": beat_data(job.beat_data),
        "events": [event_view(event, names) for event in events],
        "endings": [ending_view(ending) for ending in endings(job, events)],
        "steps": [step_view(step) for step in with_failures(job, steps_of(store, job, asks=True), events)],
    }


def event_view(event: Event, names: Names | None = None) -> dict[str, Any]:
    return {
        "at": iso(event.at),
        "kind": event.kind,
        "fence": event.fence,
        "worker": name_of(event.worker, names),
        "actor": event.actor,
        "detail": event.detail,
    }


def job_records(store: Store, jobs: Iterator[Job], page: int, *, arguments: bool = False) -> Iterator[dict[str, Any]]:
    """Show each of these jobs with all that is known of it; with `arguments` also those of steps.

    `page`: the events of this number of jobs are read at once.
    """
    now, names = store.now(), worker_names(store)
    for job, events in _with_events(store, jobs, page):
        yield {
            **job_view(job, now, names),
            "log": lines_of(job.log),
            "beat_data": beat_data(job.beat_data),
            "key": job.key,
            "key_scope": key_scope(job),
            "expires_at": iso(job.expires_at),
            "priority": job.priority,
            "arguments": parsed(job.payload),
            "on_crash": job.on_crash,
            "zombies": job.zombies,
            "claimed_at": iso(job.claimed_at),
            "events": [event_view(event, names) for event in events],
            "steps": [
                step_view(step, arguments=arguments) for step in with_failures(job, steps_of(store, job), events)
            ],
        }


def _with_events(store: Store, jobs: Iterator[Job], limit: int) -> Iterator[tuple[Job, list[Event]]]:
    """Read the events of a page of jobs at once; of a job that has many of them, apart from the others."""
    while page := list(islice(jobs, limit)):
        found = store.journals([job.id for job in page], _FEW_EVENTS + 1)
        for job in page:
            events = found.get(job.id, [])
            yield job, events if len(events) <= _FEW_EVENTS else store.journal(job.id, limit=EVENTS_MAX)


def find_jobs(store: Store, shown_states: Sequence[str], where: Filter) -> list[Job]:
    """Find jobs by the words that people see, newest first, at most `where.limit`.

    `scheduled` and `retrying` are part of `ready`; who asks for `ready` gets all three.
    """
    return list(islice(walk_jobs(store, shown_states, replace(where, limit=min(where.limit, _PAGE))), where.limit))


def walk_jobs(store: Store, shown_states: Sequence[str], where: Filter) -> Iterator[Job]:
    """Walk over every job in these states, as people call them; `where.limit` is the size of a page."""
    return all_jobs(store, store_filter(store, shown_states, where))


def store_filter(store: Store, shown_states: Sequence[str], where: Filter) -> Filter:
    """Return the filter narrowed to these states, as people call them."""
    states = tuple(dict.fromkeys(State(word) if word in set(State) else State.READY for word in shown_states))
    parts = _PARTS.intersection(shown_states)
    if parts and "ready" not in shown_states:
        tried = None if parts == _PARTS else "retrying" in parts
        where = replace(where, later=store.now().wall, tried=tried)
    return replace(where, states=states)


def all_jobs(store: Store, where: Filter) -> Iterator[Job]:
    """Walk over every job that matches, newest first, page by page; `where.limit` is the size of a page.

    Jobs may be deleted meanwhile, also the one at which a page ended: then the walk goes on from one before it. Raises
    `StoreError` when none of that page is left, rather than to end as if there were no more.
    """
    page, limit = _page(store, where)
    while page:  # a page may be short because a row in it cannot be read: only an empty one is the last
        yield from page
        page, limit = _page_after(store, replace(where, limit=limit), page)


def _page(store: Store, where: Filter) -> tuple[list[Job], int]:
    """Return a page, and how many jobs it was asked for: fewer if the store could not read them all in time."""
    try:
        return store.find(where), where.limit
    except StoreTimeout:
        if where.limit < 2:
            raise
        return _page(store, replace(where, limit=where.limit // 2))


def _page_after(store: Store, where: Filter, page: list[Job]) -> tuple[list[Job], int]:
    for job in reversed(page):  # what stood behind the first that is still there was deleted
        (found, limit), row = together(partial(_page, store, replace(where, before=job.id)), partial(store.get, job.id))
        if found or row is not None:
            return found, limit
    raise StoreError("the jobs were deleted faster than they could be read; try again when that is over")


def near_tasks(store: Store, task: str, shown_states: Sequence[str] = ()) -> list[str]:
    """Return the tasks that may have been meant by a name that found no job; none if it is a task's own name.

    Known are those of the newest jobs, of the newest in these states, and of some that are due: enough for a guess,
    and never a walk over all jobs.
    """
    known, due = together(lambda: sampled_tasks(store, shown_states), lambda: store.unserved(list(store.counts()), ()))
    known |= due.keys()
    return [] if task in known else near(task, known)


def sampled_tasks(store: Store, shown_states: Sequence[str] = ()) -> set[str]:
    """Return the tasks of the newest jobs, and of the newest in these states."""
    states = tuple(State(word) for word in shown_states if word in set(State))
    newest, of_states = together(
        lambda: store.find(Filter(limit=_SAMPLE)),
        lambda: store.find(Filter(states=states, limit=_SAMPLE)) if states else [],
    )
    return {job.task for job in (*newest, *of_states)}


def lease_end(job: Job, now: Moment) -> float | None:
    """Return the wall time at which the job's lease ends."""
    return None if job.lease_until is None else now.wall + (job.lease_until - now.lease)


def health_of(store: Store, job: Job, workers: Sequence[Worker] | None = None) -> Health | None:
    """Say what is the matter with a running job, with what the store knows of its worker and of its task."""
    if job.state is not State.RUNNING:
        return None
    known, now, vanished, as_usual = together(
        lambda: store.workers(gone=True) if workers is None else workers,
        store.now,
        lambda: vanished_ids(store),
        lambda: usual(store, job.task),
    )
    holder = next((worker for worker in known if worker.id == job.worker), None)
    reaped = any(worker_state(worker, now, vanished) == "alive" for worker in known)
    locked = is_late(job, now) and bool(locked_rows(store, [job]))
    return health(job, holder, now, as_usual, vanished=vanished, reaped=reaped, locked=locked)


def locked_rows(store: Store, jobs: Sequence[Job] | None = None) -> list[Job]:
    """Return those of the jobs whose rows another transaction has locked; by default of those whose lease ran out."""
    if not store.row_locks:
        return []
    jobs = store.overdue(0.0, _PAGE) if jobs is None else jobs
    try:
        ids = set(store.locked([job.id for job in jobs])) if jobs else set[str]()
    except StoreReadOnly:  # a user or a server that may only read cannot tell
        return []
    return [job for job in jobs if job.id in ids]


# ---------------------------------------------------------------------------------------------- a scan


def scan_view(report: Report, now: Moment, *, fixed: bool) -> dict[str, Any]:
    """Show one pass of the reaper: what it settled or, without `fixed`, what it would settle."""
    found = report.latest
    acted = [zombie for zombie in found if zombie.recovered or not fixed]
    return {
        "zombies_found": len(found),
        "zombies_recovered": sum(zombie.recovered for zombie in found),
        "zombies_locked": report.locked,
        "held": sum(zombie.verdict.state is State.HELD for zombie in acted),
        "dead": sum(zombie.verdict.state is State.DEAD for zombie in acted),
        "rolled_back": sum(zombie.verdict.move is Transition.UNDO for zombie in acted),
        "zombies": [zombie_view(zombie, now) for zombie in found],
    }


def zombie_view(zombie: Zombie, now: Moment) -> dict[str, Any]:
    """Show a lost attempt. `crashes` counts this one, if it counts."""
    job, worker = zombie.job, zombie.worker
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "worker": worker.name if worker else job.worker,
        "lease_until": iso(lease_end(job, now)),
        "last_beat": iso(worker.beat_at) if worker else None,
        "detector": zombie.detector,
        "crashes": job.crashes + zombie.verdict.crashes,
        "decision": zombie.verdict.move.value,
        "answer": zombie.answer,
    }


# --------------------------------------------------------------------------------------------- workers


def worker_views(store: Store, *, gone: bool = False) -> list[dict[str, Any]]:
    """Show the workers, oldest first; with `gone` also those that stopped or died."""
    found, vanished, now = together(lambda: store.workers(gone=gone), lambda: vanished_ids(store), store.now)
    return [worker_view(worker, now, vanished) for worker in found]


def worker_view(worker: Worker, now: Moment, vanished: Collection[str] = ()) -> dict[str, Any]:
    return {
        "id": worker.id,
        "name": worker.name,
        "state": worker_state(worker, now, vanished),
        "host": worker.host,
        "pid": worker.pid,
        "queues": worker.queues,
        "tasks": None if worker.tasks is None else sorted(worker.tasks),
        "slots": worker.slots,
        "running": worker.running,
        "rss_mb": worker.rss_mb,
        "version": worker.version,
        "release": worker.release,
        "started_at": iso(worker.started_at),
        "last_beat": iso(worker.beat_at),
        "gone_at": iso(worker.gone_at),
        "gone_cause": gone_cause(worker),
        "exit_kind": worker.exit_kind,
        "exit_code": worker.exit_code,
        "order": None if worker.order is None else order_view(worker.order),
    }


def order_view(order: Order) -> dict[str, Any]:
    """Show what a person has asked of workers."""
    return {"name": order.name, "act": order.act, "by": order.actor, "note": order.note, "at": iso(order.at)}


def gone_cause(worker: Worker) -> str | None:
    """Say who found the end of a worker, and how it ended."""
    words = ("excused" if worker.exit_excused else None, worker.exit_kind, worker.gone_cause)
    return ": ".join(word for word in words if word) or None


def worker_names(store: Store) -> dict[str, str]:
    return {worker.id: worker.name for worker in store.workers(gone=True)}


# ---------------------------------------------------------------------------------------------- queues


def queue_views(store: Store, *, exact: bool = False, window_s: float = FLOW_S) -> list[dict[str, Any]]:
    """Show every queue that has jobs, is paused, or is served by a worker that claims jobs; by name.

    In a long backlog only the jobs that became due first are looked at. With `exact` all of them are, which takes long.
    The rates are those of the last `window_s` seconds.
    """
    counts, due_waits, now, workers, queues, backlog, speed = together(
        store.counts,
        store.due_waits,
        store.now,
        store.workers,
        store.queues,
        store.figures.backlog,
        lambda: _speed(store, store.now().wall, window_s),
    )
    living = [worker for worker in workers if worker.claims(now.wall)]
    served = {queue for worker in living for queue in worker.queues}
    set_for: dict[str, Queue] = {queue.name: queue for queue in queues}
    shown = {name for name, each in set_for.items() if each.limits.any or each.is_paused(now.wall)}
    paused_by = pauses(store) if any(each.is_paused(now.wall) for each in set_for.values()) else {}
    views = []
    names = sorted({*counts, *served, *shown, *speed})
    is_paused = {name: name in set_for and set_for[name].is_paused(now.wall) for name in names}
    looks = together(*(partial(_due, store, it, backlog.get(it), is_paused[it], living, exact) for it in names))
    for name, found in zip(names, looks, strict=True):
        jobs, queue = counts.get(name, {}), set_for.get(name) or Queue(name=name)
        waits = [each for each in due_waits if each.queue == name]
        due, paused = found, is_paused[name]
        due = _with_waits(due, waits, paused, living) if waits else due
        views.append(
            {
                "queue": name,
                "paused": paused,
                "served": name in served,
                "unserved": due.unserved,
                "missing": {task: jobs for task, jobs in due.unserved.items() if nobody_has(living, name, task)},
                "unroused": sum(each.jobs for each in waits),
                **{state.value: jobs.get(state, 0) for state in State},
                "oldest_due_s": _since(due.oldest, now.wall),
                "oldest_served_s": _since(due.oldest_served, now.wall),
                **_flow_view(speed.get(name, Rates()), jobs.get(State.READY, 0), due.oldest is not None),
                **limits_view(queue, now.wall),
                **pause_view(paused_by.get((name, None)) if paused else None),
            }
        )
    return views


def _speed(store: Store, wall: float, window_s: float) -> dict[str, Rates]:
    """Return the rates of the last `window_s` seconds, or of as much of it as the store has looked at on all sides: a
    rate of jobs that come in cannot be compared with an older one of jobs that end."""
    found = store.figures.flow(since := wall - window_s)
    if (later := looked_back(found, since)) > since:
        found = store.figures.flow(later)
    return rates(found, wall)


def _flow_view(speed: Rates, ready: int, is_due: bool) -> dict[str, Any]:
    """Show how fast jobs come and go. `drain_s`: how long the ready jobs last at that speed; None: they do not get
    fewer, or there are none. `lasts_s`: how long they last if no more come; None: none ends, or there are none."""
    gain = speed.ended - speed.added
    return {
        "in_per_s": round(speed.added, 3),
        "out_per_s": round(speed.ended, 3),
        "drain_s": round(ready / gain, 1) if is_due and gain > 0 else None,
        "lasts_s": round(ready / speed.ended, 1) if is_due and speed.ended > 0 else None,
    }


def drains_in(queue: Mapping[str, Any]) -> str | None:
    """Say how long the ready jobs of a queue last: "> 5 min" means that more come than end; None if nothing is due."""
    if queue["oldest_due_s"] is None:
        return None
    if queue["drain_s"] is not None:
        return brief(queue["drain_s"])
    return "never" if queue["lasts_s"] is None else f"> {brief(queue['lasts_s'])}"


def pause_view(act: Act | None) -> dict[str, Any]:
    """Show who has paused a queue, when and why, as far as it is known."""
    if act is None:
        return {"paused_by": None, "paused_at": None, "paused_note": None}
    return {"paused_by": act.actor, "paused_at": iso(act.at), "paused_note": act.note}


def limits_view(queue: Queue, wall: float) -> dict[str, Any]:
    """Show the limits that are in force for a queue, and what is paused."""
    held = queue.limits
    groups = {name: iso(until) for name, until in queue.paused_groups.items() if is_in_force(until, wall)}
    return {
        "limit": held.limit,
        "group_limit": held.group_limit,
        "rate": None if held.rate is None else str(held.rate),
        "burst": held.burst,
        "paused_until": iso(queue.paused_until) if queue.is_paused(wall) else None,
        "paused_groups": groups,
    }


def totals(store: Store) -> dict[str, int]:
    """Return how many jobs are in each state, over all queues."""
    counts = store.counts().values()
    return {state.value: sum(jobs.get(state, 0) for jobs in counts) for state in State}


class _Due(Struct, frozen=True):
    """The due jobs of a queue: when the oldest became due, and the tasks that no living worker would claim there."""

    oldest: float | None = None
    oldest_served: float | None = None  # of those that a living worker would claim
    unserved: dict[str, int] = {}  # how many jobs of each, at most about a thousand


def _due(
    store: Store, queue: str, backlog: Backlog | None, paused: bool, living: Sequence[Worker], exact: bool
) -> _Due:
    """Look at the due jobs of a queue: the oldest, and the tasks that no living worker would claim there."""
    if backlog is None or paused:
        return _Due(None if backlog is None else backlog.oldest)
    known = {task for task in backlog.tasks if any(worker.may_run(queue, task) for worker in living)}
    oldest_served = min((backlog.since[task] for task in known), default=None)
    unserved = {task: jobs for task, jobs in sorted(backlog.tasks.items()) if task not in known}
    if not backlog.is_whole and exact:
        known |= {task for task in _tasks_due(store, queue) if any(worker.may_run(queue, task) for worker in living)}
        unserved = dict(sorted(store.unserved([queue], sorted(known)).items()))
        oldest_served = store.due([queue], sorted(known)) if known and oldest_served is None else oldest_served
    return _Due(backlog.oldest, oldest_served, unserved)


def _tasks_due(store: Store, queue: str) -> set[str]:
    tasks: set[str] = set()
    while more := store.unserved([queue], sorted(tasks)):
        tasks |= set(more)
        if sum(more.values()) < _PAGE:
            break
    return tasks


def _with_waits(due: _Due, waits: Sequence[DueWaits], paused: bool, living: Sequence[Worker]) -> _Due:
    """Count in the waiting workflows of a queue whose time has come: they are due, until a worker takes them up."""
    oldest = _earliest(due.oldest, waits)
    if paused:
        return _Due(oldest)
    served = [each for each in waits if any(worker.may_run(each.queue, each.task) for worker in living)]
    unserved = Counter({each.task: each.jobs for each in waits if each not in served}) + Counter(due.unserved)
    return _Due(oldest, _earliest(due.oldest_served, served), dict(sorted(unserved.items())))


def _earliest(ready: float | None, waits: Sequence[DueWaits]) -> float | None:
    times = [*([] if ready is None else [ready]), *(each.since for each in waits)]
    return min(times, default=None)


def _since(instant: float | None, now: float) -> float | None:
    """Return for how long an instant is past; None when it is not."""
    return None if instant is None or instant > now + _ROUNDED_S else round(max(0.0, now - instant), 3)


# ----------------------------------------------------------------------------------------------- parts


def name_of(worker_id: str | None, names: Names | None) -> str | None:
    return worker_id if worker_id is None or names is None else names.get(worker_id, worker_id)
