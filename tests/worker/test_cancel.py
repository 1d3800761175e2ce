"""Cancelling a running job: it reaches the handler within a second, and every later ending but success is a
cancellation (DESIGN 15.11)."""

import asyncio
import threading
import time
from typing import Any

import pytest

from holdfast import Context, JobCancelled, Retry, Snooze
from holdfast.core.settlement import Settlement
from holdfast.errors import Cancelled
from tests.timing import assert_within
from tests.worker.house import House, on_every_store, until


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.slow  # a cancellation of up to a second
def test_a_running_handler_is_stopped_within_a_second(shared_house: House, is_async: bool) -> None:
    house = shared_house
    running, stopped_at = threading.Event(), [0.0]

    def spin() -> None:
        try:
            running.set()
            while True:
                time.sleep(0.005)
        finally:
            stopped_at[0] = time.monotonic()

    async def aspin() -> None:
        try:
            running.set()
            await asyncio.sleep(600)
        finally:
            stopped_at[0] = time.monotonic()

    task = house.app.task(name="spin")(aspin if is_async else spin)
    house.start()

    def took() -> float:
        running.clear()
        job = task.enqueue()
        running.wait(60)
        asked_at = time.monotonic()
        house.app.cancel(job.id, by="ann", note="enough")
        with pytest.raises(JobCancelled):
            job.result(60)
        row = house.row(job.id)
        assert (row.attempt, row.failures, row.crashes) == (1, 0, 0)
        assert house.kinds(job.id).count("cancelled") == 1
        return stopped_at[0] - asked_at

    assert_within(1.0, took)


def test_the_handler_sees_it_in_its_context_and_may_clean_up(house: House) -> None:
    seen: list[Any] = []
    entered = threading.Event()

    @house.app.task
    def tidy(ctx: Context) -> None:
        try:
            while True:
                entered.set()
                ctx.progress(0.5)
                time.sleep(0.005)
        except Cancelled:
            seen.append(ctx.cancelled)
            raise

    house.start()
    job = tidy.enqueue()
    assert entered.wait(60)
    house.app.cancel(job.id)
    with pytest.raises(JobCancelled):
        job.result(60)
    assert seen == [True]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_handler_that_fails_while_it_is_being_stopped_is_cancelled_all_the_same(house: House, is_async: bool) -> None:
    running = threading.Event()

    def stubborn() -> None:
        try:
            running.set()
            while True:
                time.sleep(0.005)
        finally:
            raise ValueError("not like this")

    async def astubborn() -> None:
        try:
            running.set()
            await asyncio.sleep(600)
        finally:
            raise ValueError("not like this")

    task = house.app.task(name="stubborn")(astubborn if is_async else stubborn)
    house.start()
    job = task.enqueue()
    running.wait(60)
    house.app.cancel(job.id)
    with pytest.raises(JobCancelled):
        job.result(60)


def test_a_handler_that_returns_all_the_same_has_succeeded(house: House) -> None:
    """A cancellation is a request; what was finished is finished."""
    running = threading.Event()

    @house.app.task
    def finishes() -> str:
        try:
            running.set()
            while True:
                time.sleep(0.005)
        except Cancelled:
            return "done anyway"

    house.start()
    job = finishes.enqueue()
    running.wait(60)
    house.app.cancel(job.id)
    assert job.result(60) == "done anyway"
    assert "cancelled" not in house.kinds(job.id)[1:]


def fail() -> None:
    raise ValueError("at the same moment")


def snooze() -> None:
    raise Snooze(60)


@pytest.mark.parametrize("ending", [fail, snooze], ids=["failure", "snooze"])
def test_a_cancel_between_the_verdict_and_the_settle_is_judged_again(house: House, ending: Any) -> None:
    """15.11: the judge did not know of it. The store says "again", and the ending becomes a cancellation."""

    @house.app.task(retry=Retry(attempts_max=5, base_s=60, jitter=False))
    def race() -> None:
        ending()

    answers: list[str] = []
    cancelled: list[str] = []

    def cancel_first(settlements: list[Settlement], *_: Any) -> None:
        if not cancelled:
            cancelled.append(settlements[0].lease.job_id)
            house.app.cancel(cancelled[0], by="ann")

    house.start()
    with (
        house.store.before("settle", cancel_first),
        house.store.after("settle", lambda answer: answers.extend(map(str, answer))),
    ):
        job = race.enqueue()
        with pytest.raises(JobCancelled):
            job.result(60)
        until(lambda: len(answers) == 2)
    assert answers == ["again", "accepted"]
    row = house.row(job.id)
    assert (row.state, row.attempt, row.failures) == ("cancelled", 1, 0)


@on_every_store
def test_a_cancel_between_the_verdict_and_the_settle_does_not_undo_a_success(house: House) -> None:
    @house.app.task
    def race() -> str:
        return "fine"

    house.start()
    with house.store.before("settle", lambda batch, *_: house.app.cancel(batch[0].lease.job_id)):
        job = race.enqueue()
        assert job.result(60) == "fine"


@on_every_store
def test_a_whole_batch_with_one_cancelled_in_between_is_settled(house: House) -> None:
    meeting = threading.Barrier(8)

    @house.app.task(retry=Retry(attempts_max=2, base_s=60))
    def meet(n: int) -> int:
        meeting.wait(60)
        if n % 2:
            raise ValueError(n)
        return n

    drafts = [meet.job(n) for n in range(8)]
    asked: list[str] = []

    def cancel_one(batch: list[Settlement], *_: Any) -> None:
        if not asked and any(each.lease.job_id == drafts[3].new.id for each in batch):
            asked.append(drafts[3].new.id)
            house.app.cancel(asked[0])

    house.start(slots=8)
    with house.store.before("settle", cancel_one):
        jobs = house.app.enqueue_many(drafts)
        until(lambda: all(house.row(job.id).state != "running" for job in jobs) and asked)
    states = [house.row(job.id).state.value for job in jobs]
    assert states == ["done", "ready", "done", "cancelled", "done", "ready", "done", "ready"]


def test_cancelling_one_job_leaves_its_neighbours_alone(house: House) -> None:
    running = threading.Barrier(4)
    go_on = threading.Event()

    @house.app.task
    async def neighbour(n: int) -> int:
        await asyncio.to_thread(running.wait, 60)
        while not go_on.is_set():
            await asyncio.sleep(0.005)
        return n

    house.start()
    jobs = house.app.enqueue_many([neighbour.job(n) for n in range(3)])
    running.wait(60)
    house.app.cancel(jobs[1].id)
    with pytest.raises(JobCancelled):
        jobs[1].result(60)
    go_on.set()
    assert [jobs[n].result(60) for n in (0, 2)] == [0, 2]
