"""The report of an incident as plain data: what died, how it was found, what was held, which errors, and who did what.

It has names, ids, reasons and numbers. It never has a payload, an argument or a result. Passwords in texts are hidden.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from holdfast.core.durations import iso
from holdfast.core.records import Event, Job, Worker
from holdfast.core.text import hide_secrets
from holdfast.insight.audit import act_view, acts_of_people
from holdfast.insight.errors import error_views
from holdfast.insight.health import vanished_ids
from holdfast.insight.status import status_view
from holdfast.insight.tasks import task_views
from holdfast.insight.views import limits_view, worker_view
from holdfast.insight.zombies import Lookback, look_back, lost_views, zombies_view
from holdfast.stores.protocol import Store, rows_of
from holdfast.stores.rounds import together
from holdfast.version import __version__

LINES_MAX = 20_000  # lines of the journal that are counted: the newest
SHOWN_MAX = 200  # rows of each list
TASKS_MAX = 50
BARS = 48  # of the chart of errors, about
FAILURES = {"failed": "failed", "timed_out": "stopped", "stalled": "stopped", "zombie": "lost"}
_STOPPED = ("held", "asked", "dead")
_KINDS = (*FAILURES, *_STOPPED)
_PAGE = 10_000
_JOBS = 200
_STEPS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10_800, 21_600, 86_400)
_REASONS = ("reason", "cause", "question", "note")


def incident_view(store: Store, begins: Callable[[float], float]) -> dict[str, Any]:
    """Show everything about the time since an instant that a team attaches to an incident.

    begins: returns that instant, given the store's clock.
    """
    schema = store.schema()

    def from_() -> float:
        return begins(store.now().wall)

    def failures() -> tuple[list[Event], dict[str, Job]]:
        events = list(_events(store, from_()))
        return events, _jobs(store, [event.job_id for event in events if event.kind in _STOPPED])

    now, (events, jobs), errors, look, tasks, workers, vanished, status, acts, queues = together(
        store.now,
        failures,
        lambda: error_views(store, from_(), limit=SHOWN_MAX),
        lambda: look_back(store, store.now().wall - from_()),
        lambda: task_views(store),
        lambda: store.workers(gone=True),
        lambda: vanished_ids(store),
        lambda: status_view(store, store.now().wall - from_()),
        lambda: acts_of_people(store, from_(), None, SHOWN_MAX),
        store.queues,
    )
    since = begins(now.wall)
    stopped = [event for event in events if event.kind in _STOPPED]
    workers = [worker for worker in workers if (worker.gone_at or now.wall) >= since]
    return {
        "store": status["store"],
        "since": iso(since),
        "until": iso(now.wall),
        "seconds": round(now.wall - since, 3),
        "version": __version__,
        "schema": schema.found,
        "healthy": status["healthy"],
        "summary": status["summary"],
        "troubles": status["troubles"],
        "lost": _lost(look),
        "failures": _over_time(events, since, now.wall),
        "is_cut": len(events) >= LINES_MAX,
        "errors": [{**each, "message": _told(each["message"])} for each in errors],
        "held": [_stopped(event, jobs, now.wall) for event in stopped if event.kind != "dead"][:SHOWN_MAX],
        "dead": [_stopped(event, jobs, now.wall) for event in stopped if event.kind == "dead"][:SHOWN_MAX],
        "held_total": sum(event.kind != "dead" for event in stopped),
        "dead_total": sum(event.kind == "dead" for event in stopped),
        "held_now": status["jobs"]["held"],
        "acts": [act_view(act) for act in acts],
        "workers": [worker_view(worker, now, vanished) for worker in _newest(workers)],
        "workers_total": len(workers),
        "queues": [{"queue": queue.name, **limits_view(queue, now.wall)} for queue in queues][:SHOWN_MAX],
        "tasks": _of_interest(tasks, errors, look),
    }


def _events(store: Store, since: float) -> Iterator[Event]:
    """Yield what went wrong, the newest first."""
    before, found = None, 0
    while found < LINES_MAX and (page := store.journal(kinds=_KINDS, since=since, before=before, limit=_PAGE)):
        yield from reversed(page)
        found, before = found + len(page), page[0].seq
        if len(page) < _PAGE:
            return


def _jobs(store: Store, ids: Sequence[str]) -> dict[str, Job]:
    wanted = list(dict.fromkeys(ids))[: 2 * SHOWN_MAX]
    return {job.id: job for job in rows_of(store, wanted, _JOBS)}


def _stopped(event: Event, jobs: dict[str, Job], now: float) -> dict[str, Any]:
    """Show a job that stopped: when and why, and its state by now."""
    job = jobs.get(event.job_id)
    why = next((str(event.detail[name]) for name in _REASONS if event.detail.get(name)), None)
    return {
        "at": iso(event.at),
        "kind": event.kind,
        "by": event.actor,
        "id": event.job_id,
        "task": None if job is None else job.task,
        "queue": None if job is None else job.queue,
        "why": _told(why or (job.error if job is not None else None)),
        "now": "deleted" if job is None else job.shown_state(now),
    }


def _lost(look: Lookback) -> dict[str, Any]:
    """Show the lost attempts: a summary as `holdfast zombies` has it, and each of the newest."""
    view, found = zombies_view(look), lost_views(look, limit=SHOWN_MAX)
    moments = [[each.at, each.silent_s, each.detector] for each in look.found if each.silent_s is not None]
    return {
        **{name: view[name] for name in ("zombies", "jobs", "detectors", "decisions", "now", "false_positives")},
        "found": found,
        "moments": moments,
    }


def _over_time(events: Sequence[Event], since: float, until: float) -> dict[str, Any]:
    """Count failures by the time at which they came."""
    step = next((size for size in _STEPS_S if (until - since) / size <= BARS), _STEPS_S[-1])
    first = since // step * step
    bars = [Counter[str]() for _ in range(int((until - first) // step) + 1)]
    for event in events:
        if event.kind in FAILURES and first <= event.at <= until:
            bars[int((event.at - first) // step)][FAILURES[event.kind]] += 1
    shown = [{"at": first + number * step, **bar} for number, bar in enumerate(bars)]
    total = sum((Counter(bar) for bar in bars), Counter[str]())
    return {"step_s": step, "total": dict(total), "bars": shown}


def _newest(workers: Sequence[Worker]) -> list[Worker]:
    return sorted(workers, key=lambda worker: -worker.started_at)[:SHOWN_MAX]


def _of_interest(
    tasks: Sequence[dict[str, Any]], errors: Sequence[dict[str, Any]], look: Lookback
) -> list[dict[str, Any]]:
    """Return the tasks that failed or lost their worker, with their settings."""
    names = [*(each["task"] for each in errors), *(each.task for each in look.victims.values() if each.task)]
    wanted = set(list(dict.fromkeys(names))[:TASKS_MAX])
    return [task for task in tasks if task["task"] in wanted]


def _told(text: str | None) -> str | None:
    return None if text is None else hide_secrets(text)
