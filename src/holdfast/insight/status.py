"""The state of a store on one screen: what is broken now, in the order of harm, and what changed in the last hour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from shlex import quote
from typing import Any, Literal, get_args

import msgspec

from holdfast.core.durations import duration, iso
from holdfast.core.figures import Flow, looked_back, successes
from holdfast.core.machine import State
from holdfast.core.records import Event, Filter, Moment, Worker
from holdfast.core.text import counted, listed
from holdfast.core.transitions import is_declared
from holdfast.insight.errors import error_view
from holdfast.insight.health import vanished_ids, worker_state
from holdfast.insight.schedules import late_now
from holdfast.insight.views import queue_views
from holdfast.stores.protocol import Store, in_words
from holdfast.stores.rounds import together
from holdfast.stores.urls import shown_url

HOUR_S = 3600.0
BEHIND_S = 600.0  # a job that was due for this long waits for too long
PAUSED_LONG_S = 3600.0
OVERDUE_S = 5.0  # a lease that ran out this long ago should have been settled
ERRORS_SHOWN = 5
QUEUES_SHOWN = 3  # of those that are behind, and of those that nobody serves
TASKS_SHOWN = 3
FAILED_S = 600.0  # how far back the share of failed attempts is taken
FAILED_LEAST = 20  # of fewer failed attempts no share is taken
FAILED_MAX = 0.5  # a larger share of failed attempts is trouble
CHANGES_MAX = 500
_SAMPLE = 200

Harm = Literal["lost", "stopped", "late", "failing", "waiting"]  # the worst first
HARMS: tuple[Harm, ...] = get_args(Harm)
# lost: work may be lost or hang. stopped: jobs do not run at all. late: they run too late. failing: they end badly.
# waiting: a person is asked.


class Trouble(msgspec.Struct, frozen=True):
    """Something that is broken now."""

    harm: Harm
    text: str
    command: str  # shows more, or repairs it


def status_view(
    store: Store, window_s: float = HOUR_S, known: Sequence[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Show what is broken now, the worst first, with what changed in the last `window_s` seconds.

    known: the views of all queues, if the caller has them.
    """

    def since() -> float:
        return store.now().wall - window_s

    now, queues, workers, vanished, errors, lost, recent, asking, changes, *found = together(
        store.now,
        lambda: queue_views(store) if known is None else known,
        store.workers,
        lambda: vanished_ids(store),
        lambda: store.errors(since()),
        lambda: store.figures.lost(since(), 1),
        lambda: store.figures.flow(since()),
        lambda: store.find(Filter(states=(State.WAITING,), asking=True, limit=_SAMPLE)),
        lambda: store.journal(kinds=_CHANGES, since=since(), limit=CHANGES_MAX),
        lambda: list(_of_the_store(store)),
        lambda: list(_of_leases(store)),
        lambda: list(_of_schedules(store)),
        lambda: list(_of_errors(store)),
    )
    states = {worker.id: worker_state(worker, now, vanished) for worker in workers}
    troubles: list[Trouble] = [
        *chain.from_iterable(found),
        *_of_workers(workers, states, queues, now),
        *_of_queues(queues, any(queue["served"] for queue in queues)),
        *_of_the_dead(recent, now.wall - window_s, now.wall),
        *_of_false_alarms(lost.late, lost.total),
        *_of_people(sum(queue["held"] for queue in queues), len(asking)),
    ]
    troubles.sort(key=lambda trouble: HARMS.index(trouble.harm))
    return {
        "store": shown_url(store.url),
        "at": iso(now.wall),
        "healthy": not troubles,
        "summary": _summary(troubles, queues),
        "troubles": [msgspec.structs.asdict(each) for each in troubles],
        "jobs": {state.value: sum(queue[state.value] for queue in queues) for state in State},
        "in_per_s": round(sum(queue["in_per_s"] for queue in queues), 3),
        "out_per_s": round(sum(queue["out_per_s"] for queue in queues), 3),
        "workers": dict(Counter(states.values())),
        "errors": [error_view(each) for each in errors[:ERRORS_SHOWN]],
        "window_s": window_s,
        "lost": lost.total,
        "changes": _changes(changes, workers, now.wall - window_s),
    }


def _summary(troubles: Sequence[Trouble], queues: Sequence[dict[str, Any]]) -> str:
    speed = sum(queue["out_per_s"] for queue in queues)
    work = f"{speed:.3g} jobs/s end" if speed >= 0.01 else "no job has ended lately"
    if not troubles:
        return f"Healthy: {work}, and nothing is late"
    worst = {
        "lost": "Work is at risk",
        "stopped": "Jobs do not run",
        "late": "Jobs are late",
        "failing": "Jobs fail for good",
        "waiting": "A person is asked",
    }
    return f"Unhealthy: {worst[troubles[0].harm].lower()}; {work}"


def _of_the_store(store: Store) -> Iterator[Trouble]:
    if doubts := store.doubts():
        evidence = "; ".join(dict.fromkeys(in_words(doubt) for doubt in doubts))
        yield Trouble("lost", evidence, "holdfast doctor")


def _of_leases(store: Store) -> Iterator[Trouble]:
    overdue, now = together(lambda: store.overdue(OVERDUE_S, _SAMPLE), store.now)
    if overdue:
        longest = max(now.lease - job.lease_until for job in overdue if job.lease_until is not None)
        number = counted(len(overdue), "lease") if len(overdue) < _SAMPLE else f"{_SAMPLE} or more leases"
        text = f"{number} ran out up to {duration(longest)} ago, and no reaper has settled the jobs"
        yield Trouble("lost", text, "holdfast scan --fix")


def _of_workers(
    workers: Sequence[Worker], states: dict[str, str], queues: Sequence[dict[str, Any]], now: Moment
) -> Iterator[Trouble]:
    due = [queue["queue"] for queue in queues if queue["oldest_due_s"] is not None and not queue["paused"]]
    if due and not any(queue["served"] for queue in queues):
        yield Trouble("stopped", f"no worker claims jobs, and some are due in {listed(due)}", "holdfast workers list")
    for word, text in (("silent", "does not beat"), ("vanished", "has vanished")):
        found = [worker for worker in workers if states[worker.id] == word]
        if found:
            first = min(found, key=lambda worker: worker.beat_at)
            text = f"{first.name} {text}; its last beat was {duration(now.wall - first.beat_at)} ago"
            more = f" ({len(found) - 1} more like it)" if len(found) > 1 else ""
            yield Trouble("late", f"worker {text}{more}", f"holdfast workers show {quote(first.name)}")


def _of_queues(queues: Sequence[dict[str, Any]], someone_works: bool) -> Iterator[Trouble]:
    stopped: list[Trouble] = []
    behind: list[Trouble] = []
    for queue in sorted(queues, key=lambda queue: -(queue["oldest_due_s"] or 0.0)):
        name, waited = queue["queue"], queue["oldest_due_s"]
        if waited is None:
            continue
        show = f"holdfast jobs list --queue {quote(name)} --state ready"
        if queue["paused"]:
            if waited > PAUSED_LONG_S:
                text = f"queue {name} is paused, and its oldest job has been due for {duration(waited)}"
                behind.append(Trouble("late", text, f"holdfast queues resume {quote(name)}"))
            continue
        if someone_works and not queue["served"]:
            text = f"no worker serves queue {name}; its oldest job has been due for {duration(waited)}"
            stopped.append(Trouble("stopped", text, show))
        elif queue["missing"]:
            text = f"no worker has {listed(sorted(queue['missing']))}, which are due in queue {name}"
            stopped.append(Trouble("stopped", text, show))
        served = queue["oldest_served_s"]
        if served is not None and served > BEHIND_S:
            text = f"queue {name} is {duration(served)} behind with {queue['ready']:,} ready jobs; it {_drains(queue)}"
            behind.append(Trouble("late", text, "holdfast queues list"))
    for found, words in ((stopped, "without a worker for their jobs"), (behind, "behind")):
        yield from found[:QUEUES_SHOWN]
        if more := found[QUEUES_SHOWN:]:
            text = f"{counted(len(more), 'more queue is', 'more queues are')} {words}"
            yield Trouble(found[0].harm, text, "holdfast queues list")


def _drains(queue: dict[str, Any]) -> str:
    if queue["drain_s"] is not None:
        return f"drains in {duration(queue['drain_s'])}"
    return "does not drain" if queue["lasts_s"] is None else "grows: more come than end"


def _of_schedules(store: Store) -> Iterator[Trouble]:
    schedules, now = together(store.schedules, store.now)
    for schedule in schedules:
        if (late := late_now(schedule, now.wall)) is not None:
            who = "" if schedule.kept or is_declared(schedule, now.wall) else ", and no program declares it"
            missed = counted(late.instants, "instant")
            text = f"schedule {schedule.key} is {duration(now.wall - late.since)} late: {missed} not fired{who}"
            yield Trouble("late", text, f"holdfast schedules show {quote(schedule.key)}")


def _of_errors(store: Store) -> Iterator[Trouble]:
    """Find tasks of which most attempts fail. Their jobs are retried, and may die only much later."""
    failed, now = Counter[str](), store.now().wall
    since = now - FAILED_S
    errors, recent = together(lambda: store.errors(since), lambda: store.figures.flow(since))
    for group in errors:
        failed[group.task] += group.attempts
    succeeded = successes(recent, failed, since, now)
    for task, attempts in failed.most_common():
        number = attempts + succeeded[task]
        if attempts >= FAILED_LEAST and attempts > FAILED_MAX * number:
            text = f"{attempts:,} of about {number:,} attempts of {task} failed in {_the_last(FAILED_S)}"
            yield Trouble("failing", text, f"holdfast errors --since 1h --task {quote(task)}")


def _of_the_dead(recent: Sequence[Flow], since: float, now: float) -> Iterator[Trouble]:
    if dead := [each for each in recent if each.state == State.DEAD.value]:
        tasks = Counter[str]()
        for each in dead:
            tasks[each.task] += each.jobs
        named = ", ".join(f"{jobs:,} {task}" for task, jobs in tasks.most_common(TASKS_SHOWN))
        more = f" and {len(tasks) - TASKS_SHOWN} more tasks" if len(tasks) > TASKS_SHOWN else ""
        looked = looked_back(dead, since)  # of very many only the last are counted
        text = f"{counted(tasks.total(), 'job')} died in {_the_last(now - looked)}: {named}{more}"
        yield Trouble("failing", text, "holdfast errors --since 1h")


def _the_last(seconds: float) -> str:
    return "the last hour" if round(seconds) == HOUR_S else f"the last {duration(seconds)}"


def _of_false_alarms(false: int, lost: int) -> Iterator[Trouble]:
    if false and false > 0.05 * lost:
        text = f"{false} of {counted(lost, 'lost attempt')} reported later: leases are too short, or hosts overloaded"
        yield Trouble("failing", text, "holdfast zombies --since 1h")


def _of_people(held: int, asking: int) -> Iterator[Trouble]:
    if held:
        number = counted(held, "job is", "jobs are")
        yield Trouble("waiting", f"{number} held, and a person must decide", "holdfast held list")
    if asking:
        number = counted(asking, "workflow asks", "workflows ask")
        yield Trouble("waiting", f"{number} a person", "holdfast held list")


def _changes(events: Sequence[Event], workers: Sequence[Worker], since: float) -> list[dict[str, Any]]:
    """Return what changed lately, oldest first: acts of people, and releases that were not there before."""
    found: list[tuple[float, str]] = []
    acts = Counter[tuple[str, str]]()
    last: dict[tuple[str, str], float] = {}
    for event in events:
        who = event.actor or "a program"
        if event.job_id:
            if event.actor is not None:
                acts[event.kind, who] += 1
                last[event.kind, who] = event.at
            continue
        what = event.detail.get("queue") or event.detail.get("worker") or ""
        word = event.detail.get("order") if event.kind == "ordered" else event.kind
        note = f": {event.detail['note']}" if event.detail.get("note") else ""
        found.append((event.at, f"{who} {_ACTS.get(str(word), word)} {what}{note}"))
    for (kind, who), number in acts.items():
        found.append((last[kind, who], f"{who} {kind} {counted(number, 'job')}"))
    known = {worker.release for worker in workers if worker.started_at < since}
    for release in {worker.release for worker in workers if worker.release} - known:
        began = [worker.started_at for worker in workers if worker.release == release]
        found.append((min(began), f"release {release} started on {counted(len(began), 'worker')}"))
    return [{"at": iso(at), "text": text} for at, text in sorted(found)]


_CHANGES = ("paused", "resumed", "limited", "ordered", "revived", "resolved", "cancelled", "moved")
_ACTS = {"drain": "asked to drain", "stop": "asked to stop", "resume": "resumed", "limited": "set the limits of"}
