"""app.tick(): claims, runs and reaps within its budget; gives back, or holds, what it cannot finish."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import App, Context, Retry
from holdfast.clock import SystemClock
from holdfast.core.records import Worker
from holdfast.errors import UsageError


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
    report = app.tick(budget_s=25)
    assert SystemClock().lease() - began < 10
    assert (report.settled, report.finished) == (50, True)
    assert [job.result(timeout=0) for job in jobs] == [2 * number for number in range(50)]
    assert app.store.workers() == []


def test_with_nothing_to_do_it_returns_soon(app: App) -> None:
    app.task(double)
    began = SystemClock().lease()
    assert app.tick(budget_s=25).finished
    assert SystemClock().lease() - began < 5


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
        assert app.tick(budget_s=25).finished
        assert job.result(timeout=0) == "fine"


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
    report = app.tick(budget_s=2)
    assert SystemClock().lease() - began < 6
    assert report.finished is False
    for job in (safe, threaded):
        row = job.refresh().row
        assert (row.state, row.attempt, row.failures, row.crashes) == ("ready", 1, 0, 0)
    assert dangerous.refresh().state == "held"


def test_a_tick_settles_what_an_earlier_one_left_behind(app: App) -> None:
    task = app.task(double)
    job = task.enqueue(4)
    clock = SystemClock()
    app.store.enroll(Worker(id="dead", name="old", host="here", pid=1, boot_id=clock.boot_id))
    app.store.claim("dead", "claim", ["default"], [task.name], 1)
    app.store.retire("dead", "vanished: the runtime took it")
    report = app.tick(budget_s=10)
    assert report.recovered == 1
    assert job.result(timeout=0) == 8
    assert job.refresh().row.zombies == 1


def test_only_the_named_queues_are_served(app: App) -> None:
    here, there = app.task(name="here", queue="here")(double), app.task(name="there", queue="there")(double)
    first, second = here.enqueue(1), there.enqueue(1)
    app.tick(budget_s=5, queues=["here"])
    assert (first.refresh().state, second.refresh().state) == ("done", "ready")


def test_a_budget_that_makes_no_sense_is_refused(app: App) -> None:
    for budget_s in (0, -1, float("nan"), 1e9, None, "x", "25", True):
        with pytest.raises(UsageError, match="budget_s"):
            app.tick(budget_s=budget_s)  # type: ignore[arg-type]


def test_it_can_be_awaited(app: App) -> None:
    job = app.task(double).enqueue(21)
    report = asyncio.run(app.aio.tick(budget_s=5))
    assert report.settled == 1
    assert job.result(timeout=0) == 42
