"""app.tick(): claims, runs and reaps within its budget; gives back, or holds, what it cannot finish."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Context, Retry
from holdfast.clock import SystemClock
from holdfast.core.records import OnCrash, Pulse, Worker
from holdfast.errors import StoreUnavailable, StoreUnsupported, UsageError
from holdfast.testing import ShiftedClock
from holdfast.upkeep.scheduler import BATCH
from holdfast.worker.options import WorkerOptions
from holdfast.worker.tick import tick
from tests.worker.house import until


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db?synchronous=normal"
    with App(url) as app:
        yield app


def double(number: int) -> int:
    return 2 * number


def test_everything_due_is_run_and_it_returns_before_its_budget_ends(app: App) -> None:
    task = app.task(double)
    jobs = [task.enqueue(number) for number in range(50)]
    began = SystemClock().lease()
    report = app.tick(budget_s=240)
    assert SystemClock().lease() - began < 120
    assert (report.settled, report.finished) == (50, True)
    assert [job.result(timeout=0) for job in jobs] == [2 * number for number in range(50)]
    assert app.store.workers() == []


def test_the_time_for_firing_schedules_is_part_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, limits = [0.0], []
    real, timer = SystemClock(), threading.Timer

    def fire(_: App, until: float) -> int:
        ahead[0] = 5.0
        return 0

    def limit(seconds: float, stop: Callable[[], None]) -> threading.Timer:
        limits.append(seconds)
        return timer(seconds, stop)

    with App("memory://") as app:
        monkeypatch.setattr(app.clock, "lease", lambda: real.lease() + ahead[0])
        monkeypatch.setattr("holdfast.worker.tick._fire", fire)
        monkeypatch.setattr("holdfast.worker.tick.threading.Timer", limit)
        app.task(double)
        app.tick(budget_s=60)
    assert limits[0] <= 54


def test_with_nothing_to_do_it_returns_soon(app: App) -> None:
    app.task(double)
    began = SystemClock().lease()
    assert app.tick(budget_s=240).finished
    assert SystemClock().lease() - began < 120


def test_a_lock_folder_that_others_may_write_is_refused_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "jobs.db-workers"
    folder.mkdir()
    folder.chmod(0o777)
    with App(f"sqlite:///{tmp_path}/jobs.db") as app:
        job = app.task(double).enqueue(1)
        with pytest.raises(StoreUnsupported, match="chmod go-w"):
            app.tick(budget_s=3600)
        assert job.refresh().row.attempt == 0


def test_what_is_due_later_is_left_for_a_later_tick(app: App) -> None:
    job = app.task(double).using(run_after=3600).enqueue(1)
    assert app.tick(budget_s=5).settled == 0
    assert job.refresh().state == "ready"


def test_a_job_that_its_own_ending_makes_due_again_is_run_in_the_same_tick(app: App) -> None:
    @app.task(retry=Retry(attempts_max=3, base_s=0.0, cap_s=0.0))
    def fails_twice(ctx: Context) -> str:
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return "fine"

    for _ in range(10):
        job = fails_twice.enqueue()
        assert app.tick(budget_s=60).finished
        assert job.result(timeout=0) == "fine"


def test_a_job_that_the_sweep_of_a_tick_holds_is_told_to_hooks_and_alerts(app: App, tmp_path: Path) -> None:
    told, heard = tmp_path / "told", []
    app.alert(command=["sh", "-c", f"cat > {told}"], on=["held"])
    app.on("held", heard.append)
    task = app.task(on_crash="hold")(double)
    job = task.enqueue(4)
    app.store.enroll(Worker(id="dead", name="old", host="here", pid=1, boot_id=SystemClock().boot_id))
    app.store.claim("dead", "claim", ["default"], [task.name], 1)
    app.store.beat("dead", [Pulse(job.refresh().row.lease, started=True)])
    app.store.retire("dead", "the runtime took it")
    assert app.tick(budget_s=60).recovered == 1
    assert job.refresh().state == "held"
    assert [event["id"] for event in heard] == [job.id]
    message = json.loads(told.read_text())
    assert (message["kind"], message["jobs"][0]["id"]) == ("held", job.id)


@pytest.mark.slow  # it waits until the budget is spent: that is what it is about
def test_what_cannot_be_finished_is_given_back_without_cost_and_a_dangerous_one_is_held(app: App) -> None:
    async def long() -> None:
        await asyncio.sleep(60)

    def long_in_a_thread() -> None:
        for _ in range(6000):
            time.sleep(0.01)

    safe, threaded = app.task(long).enqueue(), app.task(long_in_a_thread).enqueue()
    dangerous = app.task(name="dangerous", on_crash="hold")(long).enqueue()
    began = SystemClock().lease()
    report = app.tick(budget_s=4)
    assert SystemClock().lease() - began < 50, "it does not wait for the handlers"
    assert report.finished is False
    for job in (safe, threaded):
        row = job.refresh().row
        assert (row.state, row.attempt, row.failures, row.crashes) == ("ready", 1, 0, 0)
    assert dangerous.refresh().state == "held"


@pytest.mark.parametrize(("on_crash", "then"), [("retry", "ready"), ("hold", "held")])
def test_a_handler_that_does_not_stop_keeps_its_lease_after_its_tick_ended_in_time(
    app: App, on_crash: OnCrash, then: str
) -> None:
    """It is given back, or held, when it has come to its end: before that it would run twice at once."""
    gate, runs = threading.Event(), []

    @app.task(on_crash=on_crash, lease_s=9)
    def deaf() -> None:
        runs.append(1)
        gate.wait(60)

    job = deaf.enqueue()
    began = SystemClock().lease()
    report = app.tick(budget_s=4)
    assert SystemClock().lease() - began < 50, "it does not wait for the handler"
    assert (report.finished, job.refresh().state) == (False, "running")
    first = job.row.lease_until or 0.0
    until(lambda: (job.refresh().row.lease_until or 0.0) > first + 1.0, "the lease is renewed")
    assert app.tick(budget_s=5).settled == 0
    assert (job.refresh().state, runs) == ("running", [1])
    gate.set()
    until(lambda: job.refresh().state == then, "it has stopped")
    assert (job.row.crashes, job.row.failures, job.row.zombies) == (0, 0, 0)
    until(lambda: app.store.workers() == [], "nobody lingers")


def test_a_closed_store_lets_lingering_handlers_go(app: App) -> None:
    gate = threading.Event()
    deaf = app.task(name="deaf", lease_s=2.0)(lambda: gate.wait(60))
    deaf.enqueue()
    assert app.tick(budget_s=0.4).finished is False
    app.close()
    gate.set()
    until(lambda: not [each for each in threading.enumerate() if each.name == "holdfast-linger"], "nobody lingers")


@pytest.mark.slow  # it waits for a good part of the budget: that is what it is about
def test_a_short_budget_is_used_for_work(app: App) -> None:
    @app.task
    async def takes_most_of_it() -> str:
        await asyncio.sleep(5)  # half of the budget would not do
        return "done"

    job = takes_most_of_it.enqueue()
    assert app.tick(budget_s=9.5).finished
    assert job.result(timeout=0) == "done"


def test_a_tick_settles_what_an_earlier_one_left_behind(app: App) -> None:
    task = app.task(double)
    job = task.enqueue(4)
    clock = SystemClock()
    app.store.enroll(Worker(id="dead", name="old", host="here", pid=1, boot_id=clock.boot_id))
    app.store.claim("dead", "claim", ["default"], [task.name], 1)
    app.store.retire("dead", "the runtime took it")
    report = app.tick(budget_s=60)
    assert report.recovered == 1
    assert job.result(timeout=0) == 8
    assert job.refresh().row.zombies == 1


def test_only_the_named_queues_are_served(app: App) -> None:
    here, there = app.task(name="here", queue="here")(double), app.task(name="there", queue="there")(double)
    first, second = here.enqueue(1), there.enqueue(1)
    app.tick(budget_s=60, queues=["here"])
    assert (first.refresh().state, second.refresh().state) == ("done", "ready")


def test_a_budget_that_makes_no_sense_is_refused(app: App) -> None:
    for budget_s in (0, -1, float("nan"), 1e9, None, "x", "25", True):
        with pytest.raises(UsageError, match="budget_s"):
            app.tick(budget_s=budget_s)  # type: ignore[arg-type]


def test_it_can_be_awaited(app: App) -> None:
    job = app.task(double).enqueue(21)
    report = asyncio.run(app.aio.tick(budget_s=60))
    assert report.settled == 1
    assert job.result(timeout=0) == 42


def test_a_job_that_tick_gave_up_is_told_to_hooks_and_alerts(app: App, tmp_path: Path) -> None:
    told, heard = tmp_path / "told", []
    app.alert(command=["sh", "-c", f"cat > {told}"], on=["dead"])
    app.on("dead", heard.append)

    @app.task(retry=Retry(attempts_max=1))
    def fail() -> None:
        raise ValueError("no luck")

    job = fail.enqueue()
    assert app.tick(budget_s=60).finished
    assert [event["id"] for event in heard] == [job.id]
    message = json.loads(told.read_text())
    assert (message["kind"], message["status"], message["jobs"][0]["id"]) == ("dead", "new", job.id)


@pytest.mark.slow  # it waits until the budget is spent: that is what it is about
def test_a_job_longer_than_the_budget_does_not_stop_a_hundred_short_ones(app: App) -> None:
    """It is given back behind them, however often; a worker that is stopped gives it back in its place."""

    def long() -> None:
        for _ in range(6000):
            time.sleep(0.01)

    endless = app.task(long).enqueue()
    ran: list[int] = []
    short = app.task(ran.append, name="short")
    for number in range(100):
        short.enqueue(number)
    one_slot = WorkerOptions(slots=1)
    assert not tick(app, 4.0, one_slot).finished
    assert ran == []
    first = app.store.get(endless.id)
    assert first is not None
    assert (first.state, first.crashes, first.failures) == ("ready", 0, 0)
    assert first.run_at > first.claimed_at, "it gave its place up"
    while len(ran) < 100:
        tick(app, 4.0, one_slot)
    again = app.store.get(endless.id)
    assert again is not None
    assert ran == list(range(100))
    assert again.attempt <= 3, "it came last"
    [event, *_] = app.store.journal(endless.id, ["released"])
    assert event.detail["cause"] == "the budget of the tick is spent"


def test_a_slow_hook_does_not_keep_a_tick_beyond_its_budget(app: App) -> None:
    release = threading.Event()

    @app.on("dead")
    def slow(event: object) -> None:
        release.wait(60)

    @app.task(retry=Retry(attempts_max=1))
    def fails() -> None:
        raise ValueError("no")

    fails.enqueue()
    began_at = time.monotonic()
    try:
        report = app.tick(2)
        assert time.monotonic() - began_at < 5.0  # it waited five seconds for hooks alone
    finally:
        release.set()
    assert report.settled == 1


class HurriedClock(ShiftedClock):
    """Its lease clock can be set ahead, too: a budget is spent without waiting."""

    _hurried_s = 0.0

    def lease(self) -> float:
        return super().lease() + self._hurried_s

    def spend(self, seconds: float) -> None:
        self._hurried_s += seconds


def test_a_schedule_that_was_made_at_run_time_is_fired_by_an_app_that_declares_none() -> None:
    clock = ShiftedClock()
    with App("memory://", clock=clock) as app:
        task = app.task(double)
        app.schedule("tenant-7", "0 3 * * *", task, [21])
        clock.advance(25 * 3600)
        report = app.tick(budget_s=60)
        assert (report.fired, report.settled) == (1, 1)
        [job] = app.find(task=task.name)
        assert job.result(timeout=0) == 42
        assert app.tick(budget_s=60).fired == 0


def test_what_cannot_be_fired_within_half_of_the_budget_is_fired_by_the_next_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = HurriedClock()
    with App("memory://", clock=clock) as app:
        task = app.task(double)
        for number in range(BATCH + 5):
            app.schedule(f"tenant-{number}", "0 3 * * *", task, [number])
        clock.advance(25 * 3600)
        fire = app.store.fire

        def slow(firings: Any, duty: Any) -> Any:
            answers = fire(firings, duty)
            clock.spend(6)
            return answers

        monkeypatch.setattr(app.store, "fire", slow)
        assert app.tick(budget_s=10).fired == BATCH
        monkeypatch.undo()
        assert app.tick(budget_s=60).fired == 5


def test_what_is_not_kept_any_more_is_deleted_and_the_duty_is_given_back() -> None:
    clock = ShiftedClock()
    with App("memory://", clock=clock, keep={"done": "1h"}) as app:
        task = app.task(double)
        old = [task.enqueue(number) for number in range(3)]
        assert (app.tick(budget_s=60).pruned, old[0].refresh().state) == (0, "done")
        clock.advance(3700)
        new = task.enqueue(1)
        report = app.tick(budget_s=60)
        assert (report.pruned, report.settled) == (3, 1)
        assert [job.id for job in app.find()] == [new.id]
        assert app.store.acquire("pruner", "a resident", 30.0) is not None, "a tick does not keep the duty"


def test_a_tick_leaves_pruning_to_the_program_that_has_the_duty() -> None:
    clock = ShiftedClock()
    with App("memory://", clock=clock, keep={"done": "1h"}) as app:
        app.task(double).enqueue(1)
        app.tick(budget_s=60)
        clock.advance(3700)
        assert app.store.acquire("pruner", "a resident", 3600.0) is not None
        assert app.tick(budget_s=60).pruned == 0


def test_a_tick_stops_deleting_when_its_budget_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HurriedClock()
    with App("memory://", clock=clock, keep={"done": "1h"}) as app:
        task = app.task(double)
        for number in range(4):
            task.enqueue(number)
        app.tick(budget_s=60)
        clock.advance(3700)
        purge = app.store.purge

        def slow(*arguments: Any, **named: Any) -> int:
            deleted = purge(*arguments, **named)
            clock.spend(21)
            return deleted

        monkeypatch.setattr("holdfast.upkeep.pruner.BATCH", 1)
        monkeypatch.setattr(app.store, "purge", slow)
        assert app.tick(budget_s=20).pruned == 1
        monkeypatch.undo()
        assert app.tick(budget_s=60).pruned == 3


@pytest.mark.slow  # it waits until the budget is spent: that is what it is about
def test_a_tick_deletes_also_when_the_jobs_use_up_the_budget() -> None:
    clock = ShiftedClock()
    with App("memory://", clock=clock, keep={"done": "1h"}) as app:

        async def long() -> None:
            await asyncio.sleep(60)

        app.task(double).enqueue(1)
        app.tick(budget_s=60)
        clock.advance(3700)
        app.task(long).enqueue()
        began = SystemClock().lease()
        report = app.tick(budget_s=3)
        assert (report.pruned, report.finished) == (1, False)
        assert SystemClock().lease() - began < 50


def test_a_store_that_fails_while_a_tick_deletes_does_not_hide_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ShiftedClock()
    with App("memory://", clock=clock, keep={"done": "1h"}) as app:
        task = app.task(double)

        def fails(*_: Any, **__: Any) -> int:
            raise StoreUnavailable("gone")

        task.enqueue(1)
        monkeypatch.setattr(app.store, "purge", fails)
        report = app.tick(budget_s=60)
        assert (report.settled, report.pruned, report.finished) == (1, 0, True)
