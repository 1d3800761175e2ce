"""Stopping: no new claims, running jobs get the grace period, the rest is given back without cost (DESIGN 14, 15.7)."""

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from holdfast.core.child_exit import EXIT_STUCK
from holdfast.worker.prefetch import Prefetch
from tests.worker.house import House, on_every_store, until


class Handlers:
    """A handler, sync or async, that says when it has begun and ends when it is told to."""

    def __init__(self, is_async: bool) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.is_async = is_async

    @property
    def fn(self) -> Any:
        return self._async if self.is_async else self._sync

    def _sync(self) -> str:
        self.begun.set()
        while not self.go_on.is_set():
            time.sleep(0.005)
        return "finished"

    async def _async(self) -> str:
        self.begun.set()
        while not self.go_on.is_set():
            await asyncio.sleep(0.005)
        return "finished"


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def handler(request: pytest.FixtureRequest) -> Handlers:
    return Handlers(request.param)


def task_of(house: House, handler: Handlers, **options: Any) -> Any:
    if handler.is_async:

        async def wait() -> str:
            return str(await handler._async())
    else:

        def wait() -> str:  # type: ignore[misc]
            return handler._sync()

    return house.app.task(name="wait", **options)(wait)


def test_a_worker_that_stops_leaves_the_search_for_due_jobs_to_others_while_a_job_still_runs(
    house: House, handler: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = threading.Event()
    monkeypatch.setattr(house.app.store, "stop_waking", left.set, raising=False)
    task = task_of(house, handler)
    runner = house.start(grace_period_s=60)
    task.enqueue()
    handler.begun.wait(60)
    assert not left.is_set()
    runner.stop()
    assert left.wait(60)
    handler.go_on.set()


@on_every_store
def test_a_running_job_may_finish_within_the_grace_period(
    house: House, handler: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    task = task_of(house, handler)
    runner = house.start(grace_period_s=20)
    job = task.enqueue()
    handler.begun.wait(60)
    runner.stop()
    until(lambda: "stopping: running jobs (1) may continue for 20 s" in caplog.text, "a claim on its way has ended")
    late = task.enqueue()
    until(lambda: [worker.stopping for worker in house.store.workers()] == [True], "everybody is told at once")
    handler.go_on.set()
    assert house.join(runner) == 0
    assert house.row(job.id).result == '"finished"'
    assert house.row(late.id).attempt == 0, "nothing new is claimed"
    assert house.store.workers() == []


@on_every_store
def test_what_does_not_finish_in_time_is_released_without_cost(house: House, handler: Handlers) -> None:
    task = task_of(house, handler)
    runner = house.start(grace_period_s=0.1)
    job = task.enqueue()
    handler.begun.wait(60)
    assert house.stop(runner) == 0
    row = house.row(job.id)
    assert (row.state, row.attempt, row.failures, row.crashes, row.zombies) == ("ready", 1, 0, 0, 0)
    assert row.run_at <= time.time()
    [event] = house.events(job.id, "released")
    assert event.detail["started"] is True
    assert house.store.workers() == []


def test_a_second_order_releases_at_once(house: House, handler: Handlers) -> None:
    task = task_of(house, handler)
    runner = house.start(grace_period_s=600)
    job = task.enqueue()
    handler.begun.wait(60)
    runner.stop()
    runner.stop_now()
    assert house.join(runner) == 0
    assert house.kinds(job.id) == ["released"]


@on_every_store
@pytest.mark.parametrize(("on_crash", "state"), [("hold", "held"), ("fail", "dead")])
def test_a_started_job_that_is_dangerous_to_repeat_is_not_released(
    house: House, handler: Handlers, on_crash: str, state: str
) -> None:
    """P7, 15.7"""
    task = task_of(house, handler, on_crash=on_crash)
    runner = house.start(grace_period_s=0.0)
    job = task.enqueue()
    handler.begun.wait(60)
    assert house.stop(runner) == 0
    row = house.row(job.id)
    assert (row.state, row.attempt, row.failures, row.crashes) == (state, 1, 0, 0)
    assert house.kinds(job.id) == ["released", state]


@on_every_store
def test_what_was_claimed_ahead_is_released_unstarted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prefetch, "ahead", lambda *_: 5)
    handler = Handlers(is_async=False)
    task = task_of(house, handler)
    jobs = house.app.enqueue_many([task.job() for _ in range(6)])
    runner = house.start(slots=1, grace_period_s=20)
    handler.begun.wait(60)
    until(lambda: len(house.app.find("running")) == 6)
    runner.stop()
    until(lambda: len(house.app.find("running")) == 1, "the five are given back before the one has finished")
    handler.go_on.set()
    assert house.join(runner) == 0
    rows = [house.row(job.id) for job in jobs]
    assert sorted(row.state.value for row in rows) == ["done", *["ready"] * 5]
    assert all((row.failures, row.crashes) == (0, 0) for row in rows)
    released = [event for job in jobs for event in house.events(job.id, "released")]
    assert [event.detail["started"] for event in released] == [False] * 5


@pytest.mark.slow  # it is given two seconds to stop
def test_a_handler_that_will_not_stop_is_left_to_the_supervisor(house: House) -> None:
    """A thread inside C code cannot be interrupted. Its attempt is not released while it may still run (15.7)."""
    begun, go_on = threading.Event(), threading.Event()

    @house.app.task
    def deaf() -> None:
        begun.set()
        go_on.wait(60)

    runner = house.start(grace_period_s=0.0)
    job = deaf.enqueue()
    begun.wait(60)
    try:
        assert house.stop(runner) == EXIT_STUCK
        assert house.row(job.id).state == "running"
        assert [worker.id for worker in house.store.workers()] == [runner.worker_id]
    finally:
        go_on.set()


def test_stopping_an_idle_worker_is_quick_and_may_be_repeated(house: House) -> None:
    runner = house.start(grace_period_s=600)
    runner.stop()
    runner.stop()
    runner.stop_now()
    assert house.join(runner) == 0


def test_a_worker_that_cannot_reach_its_store_can_be_stopped(house: House) -> None:
    with house.store.down():
        runner = house.launch(grace_period_s=600)
        until(lambda: house.store.calls["enroll"] > 1)
        runner.stop()
        assert house.join(runner) == 0
    assert house.store.workers() == []
