"""timeout_s and stall_s: the attempt ends, its stack is in the journal, the slot is free (DESIGN 4.4, 15.7)."""

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Context, Retry
from holdfast.testing.clock import FakeClock
from holdfast.worker.attempt import Attempt
from holdfast.worker.time_limits import TimeLimits
from tests.factory import a_job
from tests.worker.house import House, until

ONCE = Retry(attempts_max=1)


def spin_here() -> None:
    while True:
        time.sleep(0.005)


def hang_here() -> None:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        time.sleep(0.05)


async def aspin_here() -> None:
    while True:
        await asyncio.sleep(0.005)


SPINNERS = pytest.mark.parametrize("spin", [spin_here, aspin_here], ids=["sync", "async"])
LIMITS = pytest.mark.parametrize(
    ("limit", "kind", "words"),
    [
        ({"timeout_s": 1}, "timed_out", "ran longer than timeout_s=1"),
        ({"stall_s": 1}, "stalled", "no progress for stall_s=1"),
    ],
    ids=["timeout", "stall"],
)


@SPINNERS
@LIMITS
def test_the_attempt_ends_with_its_stack_in_the_journal(
    file_house: House, spin: Any, limit: dict[str, float], kind: str, words: str
) -> None:
    house = file_house
    task = house.app.task(name="spin", retry=ONCE, **limit)(spin)

    @house.app.task
    def fine() -> str:
        return "fine"

    house.start(slots=1)
    job = task.enqueue()
    row = house.until_state(job.id, "dead")
    assert (row.failures, row.crashes) == (1, 0)
    assert row.error is not None
    assert row.error.startswith(words)
    assert house.kinds(job.id) == [kind, "dead"]
    [event] = house.events(job.id, kind)
    assert spin.__name__ in event.detail["stack"]
    assert "test_time_limits.py" in event.detail["stack"]
    assert fine.enqueue().result(60) == "fine"


def test_the_stack_of_a_handler_that_blocks_the_event_loop_shows_where(file_house: House) -> None:
    @file_house.app.task(timeout_s=1, retry=ONCE)
    async def blocks() -> None:
        hang_here()
        await asyncio.sleep(600)

    file_house.start()
    job = blocks.enqueue()
    file_house.until_state(job.id, "dead")
    [event] = file_house.events(job.id, "timed_out")
    assert "in hang_here" in event.detail["stack"]


@SPINNERS
@LIMITS
@pytest.mark.parametrize(("on_crash", "state"), [("hold", "held"), ("fail", "dead")])
def test_an_ending_by_force_passes_through_on_crash(
    file_house: House, spin: Any, limit: dict[str, float], kind: str, words: str, on_crash: Any, state: str
) -> None:
    """15.7"""
    task = file_house.app.task(name="spin", on_crash=on_crash, **limit)(spin)
    file_house.start()
    job = task.enqueue()
    row = file_house.until_state(job.id, state)
    assert (row.attempt, row.failures) == (1, 1)
    assert file_house.kinds(job.id) == [kind, state]


def test_progress_keeps_a_long_job_from_stalling(file_house: House) -> None:
    house = file_house

    @house.app.task(stall_s=3, retry=ONCE)
    def moves(ctx: Context) -> str:
        for step in range(20):
            ctx.progress(step / 20)
            time.sleep(0.2)
        return "arrived"

    house.start()
    assert moves.enqueue().result(60) == "arrived"


def test_a_retry_has_its_whole_time_again(house: House) -> None:
    @house.app.task(timeout_s=3, retry=Retry(attempts_max=2, base_s=0.0, cap_s=0.0))
    def second_time(ctx: Context) -> float:
        while ctx.attempt == 1:
            time.sleep(0.005)
        left = ctx.time_left()
        assert left is not None
        return left

    house.start()
    assert second_time.enqueue().result(60) > 0


def test_a_job_that_is_quick_enough_is_left_alone(house: House) -> None:
    @house.app.task(timeout_s=60, stall_s=60)
    def quick() -> str:
        return "fine"

    house.start()
    assert [quick.enqueue().result(60) for _ in range(3)] == ["fine"] * 3


def test_the_time_limit_of_one_does_not_hit_the_next_in_the_same_thread(file_house: House) -> None:
    """The interrupt is sent to a thread. It must not arrive when the thread already runs another job."""
    house = file_house
    before = threading.active_count()

    @house.app.task(timeout_s=0.15, retry=ONCE)
    def close_call(n: int) -> int:
        end = time.monotonic() + 0.149 + n / 10_000
        while time.monotonic() < end:
            pass
        return n

    @house.app.task(retry=ONCE)
    def innocent(n: int) -> int:
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            pass
        return n

    house.start(slots=1)
    jobs = []
    for n in range(12):
        jobs.append((close_call.enqueue(n), innocent.enqueue(n)))
    for close, harmless in jobs:
        assert harmless.result(60) >= 0
        until(lambda close=close: house.row(close.id).state in ("done", "dead"))  # type: ignore[misc]
    assert threading.active_count() < before + 30


def test_one_attempt_that_cannot_be_stopped_takes_the_limits_from_no_other(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    odd, plain = (Attempt(a_job(), SimpleNamespace(), clock.lease()) for _ in range(2))  # type: ignore[arg-type]
    overran: list[Attempt] = []

    def overrun(attempt: Attempt) -> None:
        overran.append(attempt)
        if attempt is odd:
            raise OSError("it cannot be killed")

    for each in (odd, plain):
        each.activity.started_at = clock.lease()
    limits = TimeLimits(clock, lambda: [odd, plain], overrun, lambda _: None)
    clock.advance(a_job().lease_s * 2)
    limits.look()
    clock.advance(5)
    limits.look()
    assert overran == [odd, plain]
    assert f"job {odd.job.id}: its time limits could not be enforced" in caplog.text


def test_a_handler_whose_stack_cannot_be_read_is_stopped_at_its_limit(
    file_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> None:
        raise ValueError("this loader has no source")

    monkeypatch.setattr("holdfast.worker.handler.stack_text", unreadable)
    task = file_house.app.task(name="spin", retry=ONCE, timeout_s=1)(spin_here)
    file_house.start(slots=1)
    row = file_house.until_state(task.enqueue().id, "dead")
    assert row.error is not None
    assert row.error.startswith("ran longer than timeout_s=1")
