"""Handlers that were asked to stop and go on: their attempts end all the same, and others get their slots."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Iterator

import pytest

from holdfast import Context, Retry
from holdfast.core.machine import State
from holdfast.errors import Interrupted
from holdfast.worker import time_limits
from holdfast.worker.handler import Handler
from tests.worker.house import House, on_every_store, until

ONCE = Retry(attempts_max=1)
GIVEN_UP = "its handler did not stop and was given up"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "ABANDON_S", 0.2)


class Pipes:
    """Handlers that read from a pipe: a call that no interrupt reaches. `let_go` ends them."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, int]] = []
        self.returned = threading.Event()

    def read(self) -> str:
        pair = os.pipe()
        self.ends.append(pair)
        with contextlib.suppress(Interrupted):
            os.read(pair[0], 1)
        self.returned.set()
        return "too late"

    def let_go(self) -> None:
        for _, write_end in self.ends:
            os.write(write_end, b"x")

    def close(self) -> None:
        self.let_go()
        for pair in self.ends:
            for end in pair:
                os.close(end)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    made.close()


@on_every_store
def test_a_thread_that_cannot_be_stopped_is_given_up_and_its_slot_goes_to_another(house: House, pipes: Pipes) -> None:
    deaf = house.app.task(name="deaf", timeout_s=2, retry=ONCE)(lambda: pipes.read())

    @house.app.task
    def fine() -> str:
        return "fine"

    house.start(slots=2)
    neighbour_first = fine.enqueue()
    job = deaf.enqueue()
    house.until_state(job.id, "dead")
    row = house.row(job.id)
    assert (row.error, row.stop_reason) == (f"ran longer than timeout_s=2; {GIVEN_UP}", "attempts_max")
    [event] = house.events(job.id, "timed_out")
    assert (event.kind, event.detail["error"]) == ("timed_out", f"ran longer than timeout_s=2; {GIVEN_UP}")
    assert "in read" in event.detail["stack"]
    assert [each.enqueue().result(60) for each in (fine, fine)] == ["fine", "fine"]
    assert neighbour_first.result(60) == "fine"
    assert not pipes.returned.is_set(), "it still runs"


@on_every_store
def test_what_a_handler_says_after_it_was_given_up_is_not_heard(
    house: House, pipes: Pipes, caplog: pytest.LogCaptureFixture
) -> None:
    deaf = house.app.task(name="deaf", timeout_s=2, on_crash="hold")(lambda: pipes.read())
    house.start(slots=2)
    job = deaf.enqueue()
    house.until_state(job.id, "held")
    before = house.row(job.id)
    pipes.let_go()
    assert pipes.returned.wait(60)
    until(lambda: "has now returned" in caplog.text, "it is noticed")
    assert house.row(job.id) == before
    assert house.kinds(job.id) == ["timed_out", "held"]


@on_every_store
def test_an_async_handler_that_swallows_its_cancellation_is_given_up(house: House) -> None:
    go_on = threading.Event()

    @house.app.task(stall_s=0.2, retry=ONCE)
    async def stubborn() -> None:
        while not go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    @house.app.task
    async def fine() -> str:
        return "fine"

    house.start(slots=2)
    job = stubborn.enqueue()
    house.until_state(job.id, "dead")
    [event] = house.events(job.id, "stalled")
    assert (event.kind, event.detail["error"]) == ("stalled", f"no progress for stall_s=0.2; {GIVEN_UP}")
    assert [fine.enqueue().result(60) for _ in range(2)] == ["fine"] * 2
    go_on.set()


@on_every_store
def test_a_job_that_is_cancelled_and_does_not_stop_is_cancelled_all_the_same(house: House, pipes: Pipes) -> None:
    begun = threading.Event()

    @house.app.task
    def deaf() -> str:
        begun.set()
        return pipes.read()

    house.start(slots=2)
    job = deaf.enqueue()
    assert begun.wait(60)
    job.cancel()
    house.until_state(job.id, "cancelled")
    assert house.row(job.id).error == f"cancelled while running; {GIVEN_UP}"


def test_where_nobody_starts_the_worker_again_it_goes_on_with_the_slots_that_are_left(
    house: House, pipes: Pipes
) -> None:
    """The last slot stays with the one who is in it, until that one is done after all."""
    deaf = house.app.task(name="deaf", timeout_s=2, retry=ONCE)(lambda: pipes.read())

    @house.app.task
    def fine() -> str:
        return "fine"

    runner = house.start(slots=1)
    job = deaf.enqueue()
    house.until_state(job.id, "dead")
    waiting = fine.enqueue()
    assert runner._slots.running == 1
    assert house.row(waiting.id).state is State.READY
    pipes.let_go()
    assert waiting.result(60) == "fine"


def test_a_handler_that_stops_late_but_by_itself_is_not_given_up(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "ABANDON_S", 20.0)

    @house.app.task(timeout_s=0.1, retry=ONCE)
    def slow(ctx: Context) -> None:
        try:
            while True:
                time.sleep(0.01)
        finally:
            time.sleep(0.3)

    house.start()
    job = slow.enqueue()
    house.until_state(job.id, "dead")
    [event] = house.events(job.id, "timed_out")
    assert event.detail["error"] == "ran longer than timeout_s=0.1"


def test_each_attempt_has_one_outcome_whichever_thread_is_first() -> None:
    def a_handler() -> Handler:
        return Handler(threading.Lock())

    assert not a_handler().abandon(), "it is nowhere"
    given_up = a_handler()
    given_up.enter_thread()
    assert given_up.abandon()
    assert not given_up.end()
    assert not given_up.abandon()
    given_up.leave_thread()
    ended = a_handler()
    ended.enter_thread()
    assert ended.end()
    assert not ended.abandon()
    ended.leave_thread()
