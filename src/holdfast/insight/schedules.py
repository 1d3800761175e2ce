"""Schedules as plain data: when each was fired last and what became of it, when it will be fired next, and which
instants came and were not fired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.durations import iso
from holdfast.core.records import Filter, Schedule
from holdfast.core.schedule import Late, in_words, late, local_time, next_instant, upcoming
from holdfast.core.transitions import is_declared
from holdfast.errors import NotFound, UsageError
from holdfast.insight.format import near
from holdfast.insight.views import job_view
from holdfast.stores.protocol import Store, rows_of
from holdfast.stores.rounds import together

_AT_ONCE = 100
JOBS_SHOWN = 10


def schedule_views(store: Store, keys: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Show every schedule, or those with these keys; by key."""
    schedules, moment = together(lambda: store.schedules(keys), store.now)
    now = moment.wall
    ids = [schedule.job_id for schedule in schedules if schedule.job_id is not None]
    states = {job.id: job.shown_state(now) for job in rows_of(store, ids, _AT_ONCE)}
    return [_view(schedule, states, now) for schedule in schedules]


def _view(schedule: Schedule, states: dict[str, str], now: float) -> dict[str, Any]:
    declared = is_declared(schedule, now)
    coming = None if schedule.paused or not declared else _next(schedule, max(now, schedule.mark))
    overdue = late_now(schedule, now)
    return {
        "key": schedule.key,
        "spec": schedule.spec,
        "tz": schedule.tz,
        "missed": "all" if schedule.missed_max > 1 else schedule.missed,
        "missed_max": schedule.missed_max,
        "jitter_s": schedule.jitter_s,
        "task": schedule.job.task,
        "queue": schedule.job.queue,
        "paused": schedule.paused,
        "declared": declared and not schedule.kept,
        "kept": schedule.kept,
        "next": iso(coming),
        "next_s": None if coming is None else round(coming - now, 3),
        "late_s": None if overdue is None else round(now - overdue.since, 3),
        "late_instants": 0 if overdue is None else overdue.instants,
        "last": iso(schedule.fired_at),
        "last_s": None if schedule.fired_at is None else round(now - schedule.fired_at, 3),
        "job": schedule.job_id,
        "job_state": None if schedule.job_id is None else states.get(schedule.job_id, "deleted"),
    }


def schedule_jobs(store: Store, view: dict[str, Any]) -> list[dict[str, Any]]:
    """Show the newest jobs of the task and queue of a schedule; other programs may have enqueued some of them."""
    where = Filter(task=view["task"], queue=view["queue"], limit=JOBS_SHOWN)
    found, now = together(lambda: store.find(where), store.now)
    return [job_view(job, now) for job in found]


def next_runs(view: dict[str, Any], now: float, most: int = 5) -> list[tuple[float, str]]:
    """Return the next instants of a schedule that is shown, each with its time in the schedule's zone."""
    if view["next"] is None:
        return []
    return [(each, local_time(each, view["tz"])) for each in upcoming(view["spec"], view["tz"], now, most)]


def when(view: dict[str, Any]) -> str:
    """Say in words when a schedule fires."""
    return in_words(view["spec"], view["tz"])


def late_now(schedule: Schedule, now: float) -> Late | None:
    """Return the instants that have come and were not fired, as far as they are known here."""
    try:
        return late(schedule, now)
    except UsageError:
        return None  # a time zone that is not known here


def _next(schedule: Schedule, after: float) -> float | None:
    try:
        return next_instant(schedule.spec, schedule.tz, after)
    except UsageError:
        return None  # a time zone that is not known here


def schedules_named(store: Store, keys: Sequence[str]) -> list[Schedule]:
    """Return the schedules with these keys. Raises `NotFound` with the keys that may have been meant."""
    schedules = {each.key: each for each in store.schedules()}
    for key in keys:
        if key not in schedules:
            guesses = " or ".join(near(key, schedules))
            raise NotFound(f"there is no schedule {key!r}" + (f"; did you mean {guesses}?" if guesses else ""))
    return [schedules[key] for key in dict.fromkeys(keys)]
