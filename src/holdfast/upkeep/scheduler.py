"""The scheduler: enqueues the jobs of schedules when their instants come, each exactly once.

Every worker has one. While there are schedules, one of the fleet holds the duty and fires, for all programs on the
store, since a schedule's row has all that its jobs need. The others sleep until the same instants, so that one of
them takes the duty in time when it is free. Between instants they only ask for the duty, and more rarely.

An instant is fired in one transaction: the duty's term is the current one, the schedule's mark rises to the instant,
the job is stored under an id made of key and instant.

Instants that come together are fired in batches. A batch that meets another transaction's lock is fired one by one, and
only the schedule that needs the lock waits for the next look.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from msgspec.structs import replace

from holdfast.core.dependencies import check_no_after
from holdfast.core.keys import check_no_key_rule
from holdfast.core.records import Firing, Schedule
from holdfast.core.schedule import Missed, checked, checked_jitter, due, missed_by, next_instant, run_at
from holdfast.core.text import check_storable
from holdfast.core.transitions import RENEW_S, is_declared
from holdfast.errors import Refused, StoreError, UsageError, is_passing
from holdfast.ids import fired_job_id, new_id
from holdfast.runtime.duties import DutyHolder
from holdfast.runtime.service import Service
from holdfast.stores.protocol import Added, Reply, Store
from holdfast.tasks import Draft, Sender, check_name

if TYPE_CHECKING:
    from holdfast.app import App

log = logging.getLogger("holdfast.scheduler")

DUTY = "scheduler"
TTL_S = 10.0  # of the duty
LOOK_S = TTL_S / 3  # about how long the holder sleeps at most
STANDBY_S = TTL_S  # and the others, while nothing is late
DECLARE_S = RENEW_S  # how often a program says what it declares
BATCH = 100  # instants that are fired by one call
LOCKED_S = 0.5  # how soon to look again when a schedule could not be fired because of another transaction's lock
LEAVE_S = 5.0  # how long the end waits for the store
_Coming = tuple[tuple[str, str, str, float], float]  # what it was computed from (with the mark), the next instant
SOON_S = 0.001  # clocks differ a little: look this much late rather than once too often


class ScheduleOptions(TypedDict):
    """The options that `app.cron` and `app.schedule` have in common."""

    tz: str
    missed: Missed
    jitter_s: float


def declaration(app: App, key: str | None, spec: str, task: Any, **options: Unpack[ScheduleOptions]) -> Schedule:
    """Return what `app.cron(…)` declares, if everything about it is right."""
    made = schedule_of(app, key, spec, task, (), {}, **options)
    if made.key in app.schedules:
        raise UsageError(f"this app has a schedule {made.key!r} already; give one of them another key=")
    return made


def schedule_of(
    app: App,
    key: str | None,
    spec: str,
    task: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    **options: Unpack[ScheduleOptions],
) -> Schedule:
    """Return a schedule, if everything about it is right."""
    spec, tz = checked(spec, options["tz"], app.clock.wall())
    if (args or kwargs) and isinstance(task, Draft):
        raise UsageError("task.job(…) has its arguments already; leave args and kwargs out, or give the task itself")
    draft = task.job(*args, **kwargs) if isinstance(task, Sender) else task
    if not isinstance(draft, Draft) or draft.task.app is not app:
        raise UsageError(f"{task!r} is not a task of this app; give one, or task.using(…), or task.job(…)")
    if draft.connection is not None or draft.new.run_at is not None or draft.new.delay_s or draft.has_own_id:
        raise UsageError("id, connection, run_at and run_after have no meaning in a schedule; leave them out")
    check_no_key_rule(draft.new, "a schedule's job")
    check_no_after(draft.new.awaits, "a schedule's job")
    missed, most = missed_by(options["missed"])
    name = check_name("the schedule's key", key if key is not None else draft.task.name)
    jitter_s, job = checked_jitter(options["jitter_s"]), replace(draft.new, id="")
    return Schedule(key=name, spec=spec, tz=tz, missed=missed, missed_max=most, jitter_s=jitter_s, job=job)


def make_schedule(
    app: App,
    key: str,
    spec: str,
    task: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    **options: Unpack[ScheduleOptions],
) -> None:
    """Store a schedule as `app.schedule(…)` asks for it, or change the one of this key."""
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise UsageError(f"args={args!r} must be a list of the task's positional arguments, such as [42]")
    made = schedule_of(app, key, spec, task, args, kwargs or {}, **options)
    [answer] = app.store.schedule([made])
    if answer is not Reply.ACCEPTED:
        raise Refused(f"a running program declares the schedule {key!r}: change it in its code, or choose another key")


def drop_schedule(store: Store, key: str) -> bool:
    """Remove a schedule that was made at run time; say whether there was one."""
    check_storable(key=key)
    for found in store.schedules([key]):
        if not found.kept and is_declared(found, store.now().wall):
            raise Refused(f"a running program declares the schedule {key!r}: remove it from its code, or pause it")
    return store.forget_schedule(key)


class Scheduler:
    """The schedules of one program. A context manager: it fires while the block runs.

    fires_for_others: it also serves a program that declares none.
    """

    def __init__(self, app: App, *, name: str, fires_for_others: bool = False) -> None:
        self._app = app
        self._serves = fires_for_others
        self._clock = app.clock
        self._holder = f"{name}:{new_id()}"
        self._declared_at: float | None = None  # on the lease clock
        self._said: set[tuple[str, str]] = set()
        self._next_at: float | None = None  # the next instant, as this program knew it at its last full look
        self._full_look_at = float("-inf")
        self._is_late = False  # another program has the duty, and an instant is due that it has not fired
        self._locked: set[str] = set()  # the schedules that could not be fired because of another transaction's lock
        self._has_others = False  # whether there was a schedule that this program fires, and does not declare
        self._coming: dict[str, _Coming] = {}
        self._service = Service(
            "holdfast-scheduler",
            self._turn,
            app.clock,
            log,
            STANDBY_S,
            "schedules wait until it is back",
            lost=lambda: self._post.refused(),
            leave=self._leave,
        )

    @property
    def _store(self) -> Store:
        return self._app.store  # opened at the first look

    @functools.cached_property
    def _post(self) -> DutyHolder:
        return DutyHolder(self._store, self._clock, DUTY, self._holder, TTL_S, self._app.hooks)

    def __enter__(self) -> Scheduler:
        self._service.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._service.stop(LEAVE_S)

    def look(self, until: float = float("inf")) -> tuple[int, float]:
        """Fire what is due, if the duty is ours; return how many that were, and the seconds to the next instant.

        No batch begins after `until`, on the lease clock: the next look fires the rest.
        Raises `StoreError` when the store does, and `DutyLost` when another process took the duty meanwhile.
        """
        if not self._is_needed():
            return 0, STANDBY_S
        self._declare()
        duty = self._post.duty()  # taken or renewed, whether or not something is due
        local = self._clock.lease()
        if duty is None and not self._is_late and local - self._full_look_at < DECLARE_S:
            left_s = LOOK_S if self._next_at is None else self._next_at - local
            if left_s > 0:
                return 0, left_s
        now = self._store.now().wall
        schedules = self._store.schedules()
        firings, coming_at = self._plan(schedules, now)
        coming_s = coming_at - now if coming_at is not None else None
        self._full_look_at, self._is_late = local, duty is None and bool(firings)
        self._next_at = local + coming_s if coming_s is not None else None
        fired, left_s = self._fire_all(firings, until), LOOK_S if coming_s is None else coming_s
        self._has_others = any(map(self._is_ours, schedules))
        return fired, min(left_s, LOCKED_S) if self._locked else left_s

    def _is_needed(self) -> bool:
        """Say whether this program has anything to do with schedules; most stores have none."""
        if not self._app.schedules and not self._has_others:
            self._has_others = any(map(self._is_ours, self._store.schedules()))
            if not self._has_others:
                self._post.resign()
        return bool(self._app.schedules) or self._has_others

    def _is_ours(self, schedule: Schedule) -> bool:
        return self._serves or schedule.kept

    def _plan(self, schedules: Sequence[Schedule], now: float) -> tuple[list[Firing], float | None]:
        """Return what is due, and the next instant after it. The next instant of a row holds until its mark rises."""
        firings: list[Firing] = []
        coming: dict[str, _Coming] = {}
        for each in schedules:
            if each.paused or not is_declared(each, now):
                continue
            key, spec, tz = each.key, each.spec, each.tz
            if each.kept and key in self._app.schedules:
                self._complain(key, "it was made at run time, and what this program declares does not count")
            known = self._coming.get(key)
            if known is not None and known[0] == (spec, tz, each.missed, each.mark) and now < known[1]:
                coming[key] = known
                continue
            try:
                instants, following = due(each, now), next_instant(spec, tz, now)
            except UsageError as error:
                self._complain(key, f"it cannot be fired here: {error}")  # the other schedules are still fired
                continue
            for instant in instants:
                job = replace(each.job, id=fired_job_id(key, instant), run_at=run_at(each, instant))
                firings.append(Firing(key, instant, job))
            if following is not None:
                coming[key] = ((spec, tz, each.missed, instants[-1] if instants else each.mark), following)
        self._coming = coming
        firings.sort(key=lambda each: each.instant)  # one statement fires one instant of a schedule
        return firings, min((instant for _, instant in coming.values()), default=None)

    def _turn(self) -> float:
        left_s = self.look()[1] + SOON_S
        return min(left_s, LOOK_S) if self._is_late or self._post.is_held else left_s

    def resign(self) -> None:
        """Give the duty back, if it is ours; never raises."""
        self._post.resign()

    def _declare(self) -> None:
        now = self._clock.lease()
        if self._app.schedules and (self._declared_at is None or now - self._declared_at >= DECLARE_S):
            self._store.declare(list(self._app.schedules.values()), again=self._app.declared)
            self._app.declared = True
            self._declared_at = now

    def _fire_all(self, firings: list[Firing], until: float) -> int:
        """Fire in batches; last, and one by one, what was locked the last time."""
        alone = [each for each in firings if each.schedule in self._locked]
        together = [each for each in firings if each.schedule not in self._locked]
        self._locked.clear()
        batches = [together[start : start + BATCH] for start in range(0, len(together), BATCH)]
        fired = 0
        for batch in (*batches, *([each] for each in alone)):
            if self._clock.lease() >= until:
                break
            fired += self._fire(batch)
        return fired

    def _fire(self, firings: list[Firing]) -> int:
        duty = self._post.duty()
        if duty is None:
            return 0
        try:
            answers = self._store.fire(firings, duty)
        except StoreError as error:
            if is_passing(error):
                raise
            if len(firings) > 1:
                return sum(self._fire([each]) for each in firings)
            self._complain(firings[0].schedule, f"it cannot be fired here: {error}")
            return 0
        fired, locked = 0, []
        for each, answer in zip(firings, answers, strict=True):
            if isinstance(answer, Added):
                fired += 1
                there = " is there already" if answer.existed else ""
                log.info("fired %r: job %s%s", each.schedule, answer.id, there)
            elif answer is Reply.LOCKED:
                locked.append(each)
        if fired:
            self._store.wake()
        if len(firings) > 1:
            return fired + sum(self._fire([each]) for each in locked)
        self._locked.update(each.schedule for each in locked)
        return fired

    def _complain(self, key: str, what: str) -> None:
        """Say once what is wrong; another program may know a time zone that is not known here."""
        if (key, what) not in self._said:
            self._said.add((key, what))
            log.error("schedule %r: %s", key, what)

    def _leave(self) -> None:
        self.resign()
        self._app.hooks.flush(LEAVE_S / 2)
