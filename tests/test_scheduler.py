"""app.cron and the scheduler: each instant once, by one of many, whatever happens to whoever has the duty (P12)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import All, App, Retry
from holdfast.clock import SystemClock
from holdfast.core.machine import State
from holdfast.core.records import Duty, Filter, Job, Schedule
from holdfast.core.schedule import next_instant
from holdfast.core.transitions import DECLARED_S, is_declared
from holdfast.errors import DutyLost, PayloadError, Refused, UsageError
from holdfast.ids import fired_job_id
from holdfast.stores.memory.store import MemoryStore
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from holdfast.testing.faults import AFTER, BEFORE, FaultyStore, scripted
from holdfast.upkeep.scheduler import DECLARE_S, DUTY, LOCKED_S, LOOK_S, STANDBY_S, TTL_S, Scheduler
from tests.factory import delete, picture
from tests.timing import assert_within

NOON = 1_700_049_600.0  # 2023-11-15 12:00 UTC


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(wall=NOON)


def an_app(store: Store, clock: FakeClock, **schedules: str) -> App:
    """An app with a task and with these schedules of it, by key."""
    app = App("memory://", clock=clock)
    app._store = store

    @app.task(name="report")
    def report(kind: str = "daily") -> None: ...

    for key, spec in schedules.items():
        app.cron(spec, report, key=key)
    return app


def every_minute(store: Store, clock: FakeClock) -> App:
    return an_app(store, clock, minutely="* * * * *")


def jobs(store: Store) -> list[Job]:
    return store.find(Filter(limit=1000))[::-1]


def minutes(store: Store) -> list[float]:
    """The instants that were fired, as minutes after noon."""
    return [(job.run_at - NOON) / 60 for job in jobs(store)]


def everything(store: Store) -> Any:
    return picture(store), store.schedules()


# --- Declaring -------------------------------------------------------------------------------------------


def test_a_declaration_says_all_that_a_job_needs(store: Store, clock: FakeClock) -> None:
    app = an_app(store, clock)
    report = app.tasks["report"]
    app.cron(" 0 3  * * * ", report)
    app.cron("0 4 * * *", report.using(queue="slow", key="one-at-a-time", priority=5), key="b", missed="skip")
    app.cron("0 5 * * *", report.using(on_crash="hold").job("weekly"), key="c", tz="Europe/Berlin")
    first, second, third = app.schedules.values()
    assert (first.key, first.spec, first.tz, first.missed) == ("report", "0 3 * * *", "UTC", "last")
    assert (first.job.task, first.job.queue, first.job.id) == ("report", "default", "")
    assert (second.key, second.missed, second.job.queue, second.job.priority) == ("b", "skip", "slow", 5)
    assert second.job.key == "one-at-a-time"
    assert (third.tz, third.job.policy.on_crash) == ("Europe/Berlin", "hold")
    assert report.decode(third.job.payload) == ((), {"kind": "weekly"})


def test_a_schedule_of_a_task_that_retries_by_exception_is_stored_and_fired(store: Store, clock: FakeClock) -> None:
    app = an_app(store, clock)

    @app.task(name="picky", retry=Retry(attempts_max=3, on=(OSError,), never=(KeyError,), backoff=lambda _: 1.0))
    def picky() -> None: ...

    app.cron("* * * * *", picky)
    scheduler = Scheduler(app, name="s")
    scheduler.look()
    [known] = store.schedules()
    assert known.job.policy.retry == Retry(attempts_max=3), "code is read from the declaration of the task"
    clock.advance(60)
    scheduler.look()
    assert [(job.task, job.attempts_max) for job in jobs(store)] == [("picky", 3)]


def test_a_period_is_declared_and_fired_as_an_expression_is(store: Store, clock: FakeClock) -> None:
    app = an_app(store, clock)
    app.every(seconds=2.5, task=app.tasks["report"], key="poll", missed="skip")
    [poll] = app.schedules.values()
    assert (poll.key, poll.spec, poll.tz, poll.missed) == ("poll", "@every 2.5s", "UTC", "skip")
    scheduler = Scheduler(app, name="a")
    assert scheduler.look() == (0, 2.5)
    fired = []
    for _ in range(4):
        clock.advance(1.25)
        fired.append(scheduler.look()[0])
    assert fired == [0, 1, 0, 1]
    with pytest.raises(UsageError, match="seconds=0"):
        app.every(seconds=0, task=app.tasks["report"], key="other")


def test_a_wrong_declaration_is_refused_where_it_stands(store: Store, clock: FakeClock) -> None:
    app, other = every_minute(store, clock), an_app(store, clock)
    report = app.tasks["report"]

    @app.task(name="needy")
    def needy(order: int) -> None: ...

    def declare(*args: Any, error: type[UsageError] = UsageError, match: str, **given: Any) -> None:
        with pytest.raises(error, match=match):
            app.cron(*args, **given)

    declare("every day", report, match="is not a cron expression")
    declare("* * * * *", report, tz="Berlin", match="is not a time zone")
    declare("* * * * *", report, missed="all", match='choose "last", "skip" or All')
    declare("* * * * *", report, jitter_s=-1, match="jitter_s=-1")
    declare("* * * * *", report, key="minutely", match="has a schedule 'minutely' already")
    declare("* * * * *", report, key="", match="the schedule's key")
    declare("* * * * *", report, key="a\nb", match="the schedule's key")
    declare("* * * * *", needy, error=PayloadError, match="order")
    declare("61 * * * *", needy, match="61")  # what stands first is said first
    declare("* * * * *", other.tasks["report"], match="is not a task of this app")
    declare("* * * * *", print, match="is not a task of this app")
    declare("* * * * *", report.using(run_after=5), match="run_after have no meaning")
    declare("* * * * *", report.using(id="x"), match="id, connection, run_at and run_after have no meaning")
    declare("* * * * *", report.using(id="x").job(), match="id, connection, run_at and run_after have no meaning")
    declare("* * * * *", report.using(connection=object()), match="connection, run_at")
    assert list(app.schedules) == ["minutely"]


def test_the_id_of_a_firing_is_made_of_key_and_instant_alone() -> None:
    assert fired_job_id("k", NOON) == fired_job_id("k", NOON)
    others = [fired_job_id("k", NOON + 60), fired_job_id("K", NOON), fired_job_id("é", NOON), fired_job_id("k", NOON)]
    assert len({*others}) == 4
    assert fired_job_id("k", NOON) < fired_job_id("a", NOON + 60)
    assert fired_job_id("k", NOON)[14] == "8"


# --- Firing ----------------------------------------------------------------------------------------------


def test_each_instant_is_fired_once_in_time(store: Store, clock: FakeClock) -> None:
    scheduler = Scheduler(every_minute(store, clock), name="a")
    assert scheduler.look() == (0, 60.0)
    clock.advance(59.75)
    assert scheduler.look() == (0, 0.25)
    clock.advance(0.25)
    assert scheduler.look() == (1, 60.0)
    assert scheduler.look() == (0, 60.0)
    clock.advance(60)
    assert scheduler.look()[0] == 1
    assert minutes(store) == [1, 2]
    assert [job.id for job in jobs(store)] == [fired_job_id("minutely", NOON + 60 * number) for number in (1, 2)]
    [schedule] = store.schedules()
    assert (schedule.mark, schedule.fired_at, schedule.job_id) == (NOON + 120, NOON + 120, jobs(store)[-1].id)


def test_it_sleeps_until_the_earliest_of_several(store: Store, clock: FakeClock) -> None:
    app = an_app(store, clock, late="30 12 * * *", soon="10 12 * * *", paused="1 12 * * *")
    scheduler = Scheduler(app, name="a")
    scheduler.look()
    store.pause_schedule("paused", True)
    assert scheduler.look() == (0, 600.0)


def test_of_two_one_fires_and_the_other_stands_by(store: Store, clock: FakeClock) -> None:
    first, second = (Scheduler(every_minute(store, clock), name=name) for name in "ab")
    first.look()
    second.look()
    clock.advance(60)
    assert second.look()[0] == 1, "the first did not renew: its duty has run out"
    assert first.look()[0] == 0
    clock.advance(60)
    first.look()
    assert minutes(store) == [1, 2]


def test_a_scheduler_without_the_duty_fires_nothing(store: Store, clock: FakeClock) -> None:
    standby = Scheduler(every_minute(store, clock), name="a")
    assert store.acquire(DUTY, "another", 600.0) is not None
    standby.look()
    clock.advance(60)
    assert standby.look() == (0, 60.0)
    assert jobs(store) == []


def test_a_scheduler_that_stops_lets_the_next_one_fire_at_the_very_next_instant(store: Store, clock: FakeClock) -> None:
    first, second = (Scheduler(every_minute(store, clock), name=name) for name in "ab")
    clock.advance(59)
    first.look()
    first.resign()
    clock.advance(1)
    assert second.look()[0] == 1


def test_the_act_of_a_paused_holder_is_refused_and_stores_nothing(store: Store, clock: FakeClock) -> None:
    """It looked, was frozen before it fired, and wakes after another one took the duty, before that one fires."""
    app = every_minute(store, clock)
    before = []

    class Freezes:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def fire(self, *args: Any) -> Any:
            clock.advance(TTL_S)
            assert store.acquire(DUTY, "another", TTL_S) is not None
            before.append((picture(store), store.schedules()))
            return store.fire(*args)

    old = Scheduler(app, name="old")
    old.look()
    clock.advance(60)
    app._store = Freezes()  # type: ignore[assignment]
    with pytest.raises(DutyLost, match="term 1"):
        old.look()
    assert [(picture(store), store.schedules())] == before
    assert jobs(store) == []


def test_an_instant_is_not_fired_again_when_its_job_was_deleted_and_the_duty_moved(
    store: Store, clock: FakeClock
) -> None:
    first, second = (Scheduler(every_minute(store, clock), name=name) for name in "ab")
    first.look()
    clock.advance(60)
    assert first.look()[0] == 1
    [job] = jobs(store)
    assert delete(store, job.id, job.state, job.fence)
    clock.advance(TTL_S)
    assert second.look()[0] == 0
    assert jobs(store) == []


def test_a_clock_that_is_set_back_fires_nothing_twice(store: Store, clock: FakeClock) -> None:
    scheduler = Scheduler(every_minute(store, clock), name="a")
    scheduler.look()
    clock.advance(120)
    assert scheduler.look()[0] == 1
    clock.set_wall(NOON)
    for _ in range(120):
        clock.advance(1)
        assert scheduler.look()[0] == 0
    clock.advance(60)
    assert scheduler.look()[0] == 1
    assert minutes(store) == [2, 3]


def test_of_what_was_missed_the_last_is_made_up_for(store: Store, clock: FakeClock) -> None:
    Scheduler(every_minute(store, clock), name="a").look()
    clock.advance(3600 + 5)
    assert Scheduler(every_minute(store, clock), name="b").look()[0] == 1
    assert minutes(store) == [60]


def test_instants_before_the_first_declaration_count_for_nothing(store: Store, clock: FakeClock) -> None:
    clock.advance(30)
    assert Scheduler(an_app(store, clock, noon="0 12 * * *"), name="a").look()[0] == 0


def test_a_lost_answer_fires_nothing_twice(store: Store, clock: FakeClock) -> None:
    app = every_minute(store, clock)
    scheduler = Scheduler(app, name="a")
    scheduler.look()
    clock.advance(60)
    app._store = FaultyStore(store, scripted([BEFORE, AFTER], ["fire"]))  # type: ignore[assignment]
    for _ in range(2):
        with pytest.raises(Exception, match="fault on purpose"):
            scheduler.look()
    assert scheduler.look()[0] == 0
    assert minutes(store) == [1]


def test_a_job_that_still_has_the_key_is_not_overtaken(store: Store, clock: FakeClock) -> None:
    app = an_app(store, clock)
    app.cron("* * * * *", app.tasks["report"].using(key="one-at-a-time"))
    scheduler = Scheduler(app, name="a")
    scheduler.look()
    for _ in range(3):
        clock.advance(60)
        scheduler.look()
    assert minutes(store) == [1]
    [schedule] = store.schedules()
    assert (schedule.mark, schedule.job_id) == (NOON + 180, jobs(store)[0].id)


class Guarded:
    """A store in which somebody else holds locks that some schedules need: a batch with one of them fires nothing."""

    def __init__(self, store: Store, *locked: str) -> None:
        self.store = store
        self.locked = set(locked)
        self.batches: list[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def fire(self, firings: Any, under: Duty) -> Any:
        keys = [each.schedule for each in firings]
        self.batches.append(keys)
        return self.store.fire(firings, under) if self.locked.isdisjoint(keys) else [Reply.LOCKED] * len(keys)


def test_one_locked_schedule_waits_for_the_next_look_and_the_others_are_fired(store: Store, clock: FakeClock) -> None:
    app = an_app(store, clock, **dict.fromkeys("abc", "* * * * *"))
    scheduler = Scheduler(app, name="x")
    scheduler.look()
    guarded = app._store = Guarded(store, "b")  # type: ignore[assignment]
    clock.advance(60)
    assert scheduler.look() == (2, LOCKED_S)
    assert guarded.batches == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    clock.advance(60)
    assert scheduler.look() == (2, LOCKED_S)
    assert guarded.batches[4:] == [["a", "c"], ["b"]], "what was locked before holds up no batch"
    guarded.locked.clear()
    assert scheduler.look() == (1, 60.0)
    assert [schedule.mark for schedule in store.schedules()] == [NOON + 120] * 3


def test_many_that_are_due_at_once_are_fired_in_batches(store: Store, clock: FakeClock) -> None:
    app = an_app(store, clock, **{f"s{number:03}": "* * * * *" for number in range(250)})
    scheduler = Scheduler(app, name="x")
    scheduler.look()
    guarded = app._store = Guarded(store)  # type: ignore[assignment]
    clock.advance(60)
    assert scheduler.look()[0] == 250
    assert [len(batch) for batch in guarded.batches] == [100, 100, 50]
    assert len({job.id for job in jobs(store)}) == 250


# --- Declared, paused, unreadable ------------------------------------------------------------------------


def test_a_holder_fires_for_other_programs_on_the_store(store: Store, clock: FakeClock) -> None:
    holder = Scheduler(an_app(store, clock, a="0 13 * * *"), name="a")
    other = Scheduler(an_app(store, clock, b="* * * * *"), name="b")
    holder.look()
    other.look()
    clock.advance(60)
    holder.look()
    assert minutes(store) == [1]


def test_what_no_living_program_declares_is_kept_and_not_fired(store: Store, clock: FakeClock) -> None:
    Scheduler(an_app(store, clock, old="* * * * *"), name="a").look()
    new = Scheduler(an_app(store, clock, new="0 0 * * *"), name="b")
    for _ in range(5):
        new.look()
        clock.advance(DECLARE_S)
    fired_before = len(jobs(store))
    assert fired_before <= DECLARED_S / 60
    for _ in range(5):
        new.look()
        clock.advance(DECLARE_S)
    assert len(jobs(store)) == fired_before
    assert [schedule.key for schedule in store.schedules()] == ["new", "old"]


def test_what_a_living_program_declares_stays_declared(store: Store, clock: FakeClock) -> None:
    scheduler = Scheduler(every_minute(store, clock), name="a")
    for _ in range(30):
        scheduler.look()
        clock.advance(60)
    assert minutes(store) == list(range(1, 30))


def test_an_older_program_does_not_take_back_what_a_newer_one_declares(store: Store, clock: FakeClock) -> None:
    old = Scheduler(an_app(store, clock, k="* * * * *"), name="old")
    old.look()
    new = Scheduler(an_app(store, clock, k="0 13 * * *"), name="new")
    new.look()
    for _ in range(10):
        clock.advance(DECLARE_S)
        new.look()
        old.look()
    [schedule] = store.schedules()
    assert schedule.spec == "0 13 * * *"
    assert jobs(store) == []


def test_a_canary_that_came_and_went_leaves_the_schedule_to_the_program_that_stays(
    store: Store, clock: FakeClock
) -> None:
    """The canary declares the same schedule with another option, and stops."""
    stays, canary = (every_minute(store, clock), an_app(store, clock))
    canary.cron("* * * * *", canary.tasks["report"].using(queue="slow"), key="minutely")
    scheduler = Scheduler(stays, name="a")
    scheduler.look()
    with_canary = Scheduler(canary, name="b")
    with_canary.look()
    with_canary.resign()
    for _ in range(600):
        clock.advance(1)
        scheduler.look()
        assert is_declared(store.schedules()[0], clock.wall())
    assert minutes(store) == list(range(1, 11))
    assert {job.queue for job in jobs(store)[:2]} == {"slow"}
    assert {job.queue for job in jobs(store)[3:]} == {"default"}


@pytest.mark.parametrize("every_s", [25, 500])
def test_two_versions_that_declare_in_turn_fire_each_instant_once(store: Store, clock: FakeClock, every_s: int) -> None:
    """Each tick is that of a program that has just started, as in a serverless function."""
    for number in range(3 * 3600 // every_s + 2):
        spec = ("0 * * * *", "0 */1 * * *")[number % 2]
        ticking = Scheduler(an_app(store, clock, k=spec), name="tick")
        ticking.look()
        ticking.resign()
        clock.advance(every_s)
    assert minutes(store) == [60, 120, 180]


def test_of_two_programs_that_tick_side_by_side_the_one_that_was_started_last_holds(
    store: Store, clock: FakeClock
) -> None:
    old, new = an_app(store, clock, k="0 * * * *"), an_app(store, clock, k="30 * * * *")
    for number in range(3 * 120):
        ticking = Scheduler((old, new)[number % 2], name="tick")
        ticking.look()
        ticking.resign()
        clock.advance(30)
    assert minutes(store) == [30, 90, 150]


def test_a_new_expression_neither_repeats_what_was_fired_nor_makes_up_for_what_is_long_past(
    store: Store, clock: FakeClock
) -> None:
    """At noon the old one was fired; at 14:00 a deploy changes it to 13:00, and says so while old workers live."""
    old = Scheduler(an_app(store, clock, k="30 12 * * *"), name="old")
    for _ in range(120):
        old.look()
        clock.advance(60)
    old.resign()
    new = Scheduler(an_app(store, clock, k="0 13 * * *"), name="new")
    new.look()
    assert minutes(store) == [30]


def test_a_new_expression_makes_up_for_an_instant_at_which_nobody_ran(store: Store, clock: FakeClock) -> None:
    old = Scheduler(an_app(store, clock, k="0 13 * * *"), name="old")
    old.look()
    old.resign()
    clock.advance(3600 + 600)
    assert Scheduler(an_app(store, clock, k="0 13 * * MON-FRI"), name="new").look()[0] == 1
    assert minutes(store) == [60]


def test_a_schedule_that_is_paused_waits_and_then_goes_on(store: Store, clock: FakeClock) -> None:
    scheduler = Scheduler(every_minute(store, clock), name="a")
    scheduler.look()
    store.pause_schedule("minutely", True)
    clock.advance(600)
    assert scheduler.look() == (0, LOOK_S)
    store.pause_schedule("minutely", False)
    assert scheduler.look() == (0, 60.0)
    clock.advance(60)
    assert scheduler.look()[0] == 1
    assert minutes(store) == [11]


@pytest.mark.parametrize("wrong", [{"tz": "Mars/Olympus"}, {"spec": "? ? ? ? ?"}])
def test_one_that_cannot_be_understood_does_not_stop_the_others(
    store: Store, clock: FakeClock, wrong: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    app = every_minute(store, clock)
    job = app.schedules["minutely"].job
    store.declare([Schedule(**{"key": "foreign", "spec": "* * * * *", "tz": "UTC", "job": job} | wrong)])
    scheduler = Scheduler(app, name="a")
    for _ in range(3):
        scheduler.look()
        clock.advance(60)
    assert minutes(store) == [1, 2]
    assert caplog.text.count("'foreign': it cannot be fired here") == 1


# --- The thread ------------------------------------------------------------------------------------------


def until(condition: Callable[[], bool]) -> None:
    give_up_at = SystemClock().lease() + 60
    while not condition():
        assert SystemClock().lease() < give_up_at, "it did not happen in a minute"
        threading.Event().wait(0.001)


def test_the_thread_fires_within_a_second_and_gives_its_duty_back(store: Store, clock: FakeClock) -> None:
    app = every_minute(store, clock)
    heard: list[tuple[str, str, int]] = []
    for kind in ("duty_acquired", "duty_lost"):
        app.on(kind, lambda event: heard.append((event["kind"], event["duty"], event["term"])))  # type: ignore[call-overload]
    with Scheduler(app, name="a"):  # its waiting advances the fake clock
        until(lambda: len(jobs(store)) >= 3)
    found = jobs(store)
    assert minutes(store)[:3] == [1, 2, 3]
    assert all(job.created_at - job.run_at < 1 for job in found)
    assert app.hooks.flush()
    assert heard == [("duty_acquired", DUTY, 1), ("duty_lost", DUTY, 1)]
    assert store.acquire(DUTY, "next", TTL_S) is not None


def test_the_thread_outlives_a_store_that_fails_and_a_duty_that_is_lost(
    store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    app = every_minute(store, clock)

    class Troubled:
        turns = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def fire(self, firings: Any, under: Duty) -> Any:
            self.turns += 1
            if self.turns == 1:
                raise DutyLost("the duty 'scheduler' of term 1 has passed to another process")
            if self.turns == 2:
                raise ZeroDivisionError
            return store.fire(firings, under)

    lost: list[str] = []
    app.on("duty_lost", lambda event: lost.append(event["reason"]))
    app._store = FaultyStore(Troubled(), scripted([BEFORE] * 20, ["acquire", "schedules", "declare"]))  # type: ignore[arg-type,assignment]
    with Scheduler(app, name="a"):
        until(lambda: len(jobs(store)) >= 3)
    assert app.hooks.flush()
    assert lost[0] == "the store refused its term"
    said = caplog.text
    for words in ("schedules wait until it is back", "an act was refused", "holdfast-scheduler failed; it tries again"):
        assert words in said


def test_without_schedules_a_worker_takes_no_duty_and_writes_nothing(store: Store, clock: FakeClock) -> None:
    class ReadOnly:
        def __getattr__(self, name: str) -> Any:
            assert name in ("schedules", "now"), name
            return getattr(store, name)

    app = an_app(ReadOnly(), clock)  # type: ignore[arg-type]
    scheduler = Scheduler(app, name="a")
    assert [scheduler.look() for _ in range(3)] == [(0, STANDBY_S)] * 3
    scheduler.resign()


# --- Made at run time ------------------------------------------------------------------------------------


def test_a_schedule_that_is_made_at_run_time_is_fired_by_any_worker(store: Store, clock: FakeClock) -> None:
    maker, worker = an_app(store, clock), App("memory://", clock=clock)
    worker._store = store
    scheduler = Scheduler(worker, name="w")
    assert scheduler.look() == (0, STANDBY_S)
    maker.schedule("tenant-7", "*/5 * * * *", maker.tasks["report"], ["weekly"])
    assert scheduler.look() == (0, 300.0)
    clock.advance(DECLARED_S)
    assert scheduler.look() == (0, 300 - DECLARED_S)
    clock.advance(300 - DECLARED_S)
    assert scheduler.look() == (1, 300.0)
    [job] = jobs(store)
    assert (job.id, job.task, job.payload) == (fired_job_id("tenant-7", NOON + 300), "report", '{"kind":"weekly"}')
    assert maker.unschedule("tenant-7") is True
    assert maker.unschedule("tenant-7") is False
    clock.advance(300)
    assert scheduler.look()[0] == 0
    assert scheduler.look() == (0, STANDBY_S)
    assert store.acquire(DUTY, "next", TTL_S) is not None, "without schedules nobody keeps the duty"


def test_a_change_at_run_time_counts_from_now_and_a_repetition_changes_nothing(store: Store, clock: FakeClock) -> None:
    app = an_app(store, clock)
    scheduler = Scheduler(app, name="a")
    app.schedule("k", "*/5 * * * *", app.tasks["report"])
    scheduler.look()
    clock.advance(600)
    app.schedule("k", "*/5 * * * *", app.tasks["report"], missed=All(3))
    assert scheduler.look()[0] == 2, "the same expression: what was missed is made up for"
    clock.advance(600)
    app.schedule("k", "*/10 * * * *", app.tasks["report"], missed=All(3))
    assert scheduler.look() == (0, 600.0)
    clock.advance(600)
    assert scheduler.look() == (1, 600.0)
    assert minutes(store) == [5, 10, 30]


def test_what_a_running_program_declares_is_not_changed_at_run_time(store: Store, clock: FakeClock) -> None:
    app = every_minute(store, clock)
    Scheduler(app, name="a").look()
    before = everything(store)
    with pytest.raises(Refused, match="a running program declares the schedule 'minutely': change it in its code"):
        app.schedule("minutely", "@hourly", app.tasks["report"])
    with pytest.raises(Refused, match="a running program declares the schedule 'minutely': remove it from its code"):
        app.unschedule("minutely")
    assert everything(store) == before
    clock.advance(DECLARED_S)
    app.schedule("minutely", "@hourly", app.tasks["report"])
    [taken] = store.schedules()
    assert (taken.kept, taken.spec, taken.mark) == (True, "0 * * * *", clock.wall())


def test_a_declaration_leaves_what_was_made_at_run_time_and_says_so_once(
    store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    app = an_app(store, clock)
    app.schedule("minutely", "0 13 * * *", app.tasks["report"])
    before = store.schedules()
    scheduler = Scheduler(every_minute(store, clock), name="a")
    for _ in range(3):
        scheduler.look()
        clock.advance(DECLARE_S)
    assert store.schedules() == before
    assert caplog.text.count("schedule 'minutely': it was made at run time") == 1


def test_what_cannot_work_is_refused_and_stores_nothing(store: Store, clock: FakeClock) -> None:
    app, other = an_app(store, clock), an_app(store, clock)
    report = app.tasks["report"]

    def make(*args: Any, error: type[UsageError] = UsageError, match: str, **given: Any) -> None:
        with pytest.raises(error, match=match):
            app.schedule(*args, **given)

    make("k", "every day", report, match="is not a cron expression")
    make("", "* * * * *", report, match="the schedule's key")
    make("k", "* * * * *", report, "weekly", match="args='weekly' must be a list")
    make("k", "* * * * *", report, [1], error=PayloadError, match="kind")
    make("k", "* * * * *", report, kwargs={"what": 1}, error=PayloadError, match="what")
    make("k", "* * * * *", report.job(), ["weekly"], match="has its arguments already")
    make("k", "* * * * *", other.tasks["report"], match="is not a task of this app")
    make("k", "* * * * *", report, missed="all", match='choose "last", "skip" or All')
    make("k", "* * * * *", report, jitter_s="5", match="jitter_s='5'")
    make("k", "* * * * *", report.using(run_after=5), match="run_after have no meaning")
    assert store.schedules() == []


# --- Several missed instants, jitter ---------------------------------------------------------------------


def test_all_missed_instants_are_made_up_for_each_once_and_in_order(store: Store, clock: FakeClock) -> None:
    app = an_app(store, clock)
    for key, missed in (("all", All(1000)), ("some", All(2)), ("last", "last"), ("skip", "skip")):
        app.cron("*/5 * * * *", app.tasks["report"], key=key, missed=missed)  # type: ignore[arg-type]
    scheduler = Scheduler(app, name="a")
    scheduler.look()
    clock.advance(3600 + 150)
    assert scheduler.look()[0] == 12 + 2 + 1
    assert scheduler.look()[0] == 0
    found = {key: {fired_job_id(key, NOON + 60 * minute) for minute in range(5, 65, 5)} for key in ("all", "some")}
    ids = {job.id for job in jobs(store)}
    assert found["all"] <= ids
    assert found["some"] & ids == {fired_job_id("some", NOON + 60 * minute) for minute in (55, 60)}
    assert fired_job_id("last", NOON + 3600) in ids
    assert {each.mark for each in store.schedules()} == {NOON, NOON + 3600}


def test_a_short_period_with_all_loses_no_instant_while_the_duty_moves(store: Store, clock: FakeClock) -> None:
    app = an_app(store, clock)
    app.every(seconds=2, task=app.tasks["report"], key="poll", missed=All(20))
    killed, other = (Scheduler(app, name=name) for name in "ab")
    killed.look()
    other.look()
    clock.advance(TTL_S + 1)
    assert other.look()[0] == 5
    assert {job.id for job in jobs(store)} == {fired_job_id("poll", NOON + second) for second in (2, 4, 6, 8, 10)}


def test_a_holder_that_loses_its_answer_while_it_makes_up_fires_nothing_twice(store: Store, clock: FakeClock) -> None:
    app = an_app(store, clock)
    app.cron("*/5 * * * *", app.tasks["report"], missed=All(12))
    scheduler = Scheduler(app, name="a")
    scheduler.look()
    clock.advance(3600)
    app._store = FaultyStore(store, scripted([AFTER], ["fire"]))  # type: ignore[assignment]
    with pytest.raises(Exception, match="fault on purpose"):
        scheduler.look()
    scheduler.look()
    assert minutes(store) == list(range(5, 65, 5))


def test_jitter_moves_the_job_and_not_the_instant(store: Store, clock: FakeClock) -> None:
    app = an_app(store, clock)
    for number in range(20):
        app.schedule(f"tenant-{number}", "*/5 * * * *", app.tasks["report"], jitter_s=240)
    scheduler = Scheduler(app, name="a")
    scheduler.look()
    clock.advance(300)
    assert scheduler.look() == (20, 300.0)
    assert {each.mark for each in store.schedules()} == {NOON + 300}
    found = {job.id: job.run_at for job in jobs(store)}
    assert set(found) == {fired_job_id(f"tenant-{number}", NOON + 300) for number in range(20)}
    assert all(NOON + 300 <= at <= NOON + 540 for at in found.values())
    assert len(set(found.values())) == 20


# --- Many ------------------------------------------------------------------------------------------------


@pytest.mark.slow  # a year
def test_a_year_of_one_schedule_passes_in_five_seconds(clock: FakeClock) -> None:
    """Each of the 105,120 instants is looked for, fired and stored as a worker does it. About three seconds."""

    def a_year() -> float:
        app = an_app(MemoryStore(clock=clock), clock)
        app.cron("*/5 * * * *", app.tasks["report"])
        scheduler = Scheduler(app, name="a")
        scheduler.look()
        fired, began = 0, time.process_time()
        for _ in range(365 * 288):
            clock.advance(300)
            fired += scheduler.look()[0]
        assert fired == 365 * 288
        return time.process_time() - began

    assert_within(5.0, a_year)


def test_a_row_is_computed_anew_only_when_its_mark_or_expression_changes(store: Store, clock: FakeClock) -> None:
    app = an_app(store, clock, **{f"t{number}": f"{number} 13 * * *" for number in range(20)})
    scheduler = Scheduler(app, name="a")
    scheduler.look()
    before = next_instant.cache_info().misses
    for _ in range(10):
        clock.advance(1)
        assert scheduler.look()[0] == 0
    assert next_instant.cache_info().misses == before


# --- tick ------------------------------------------------------------------------------------------------


def test_a_tick_fires_what_is_due_and_runs_it(tmp_path: Any) -> None:
    clock = FakeClock(wall=NOON)
    url = f"sqlite:///{tmp_path}/jobs.db"
    with App(url, clock=clock) as before:
        before.task(print, name="report")
        Scheduler(an_app(before.store, clock, minutely="* * * * *"), name="a").look()
    with App(url) as app:  # three years later
        ran: list[str] = []

        @app.task(name="report")
        def report(kind: str = "daily") -> None:
            ran.append(kind)

        app.cron("* * * * *", report, key="minutely")
        report_of_tick = app.tick(budget_s=60)
        assert (report_of_tick.fired, report_of_tick.settled, ran) == (1, 1, ["daily"])
        assert app.find(State.DONE)[0].id == app.store.schedules()[0].job_id
        assert app.store.acquire(DUTY, "next", TTL_S) is not None, "it was given back"


def test_a_tick_leaves_the_instants_to_the_holder_of_the_duty(tmp_path: Any) -> None:
    with App(f"sqlite:///{tmp_path}/jobs.db") as app:

        @app.task(name="report")
        def report() -> None: ...

        app.cron("* * * * *", report)
        assert app.store.acquire(DUTY, "a worker", 600.0) is not None
        assert app.tick(budget_s=5).fired == 0
