"""A worker that is declared dead while it lives: it stops its jobs, enrols anew and goes on (DESIGN 15.2)."""

import asyncio
import threading
import time
from typing import Any

import pytest

from holdfast import Context
from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import LeaseLost
from holdfast.upkeep.reaper import Reaper
from tests.worker.house import House, on_every_store, until
from tests.worker.meddler import once


@on_every_store
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_it_stops_its_jobs_enrols_again_and_continues(house: House, is_async: bool) -> None:
    begun = threading.Semaphore(0)
    stopped: list[BaseException] = []

    def spin(ctx: Context) -> int:
        try:
            begun.release()
            while ctx.attempt == 1:
                time.sleep(0.005)
        except BaseException as error:
            stopped.append(error)
            raise
        return ctx.fence

    async def aspin(ctx: Context) -> int:
        try:
            begun.release()
            while ctx.attempt == 1:
                await asyncio.sleep(0.005)
        except BaseException as error:
            stopped.append(error)
            raise
        return ctx.fence

    task = house.app.task(name="spin", lease_s=3)(aspin if is_async else spin)
    runner = house.start(reaper=False)
    first_id = runner.worker_id
    job = task.enqueue()
    assert begun.acquire(timeout=60)
    house.store.real.retire(first_id, "a mistake", how=WorkerExit("vanished"))
    until(lambda: runner.worker_id != first_id, "it enrols anew")
    assert job.result(60) in (2, 3)  # released by itself, or reaped and then claimed
    assert len(stopped) == 1
    assert isinstance(stopped[0], asyncio.CancelledError if is_async else LeaseLost)
    assert [worker.id for worker in house.store.workers()] == [runner.worker_id]
    assert house.kinds(job.id).count("succeeded") == 1
    assert house.row(job.id).crashes == 0, "it gave the job back before anybody had settled it"


def test_it_enrols_once_though_both_of_its_threads_are_told(house: House) -> None:
    """Its beat hears of it while a claim in the old name is on its way."""
    runners: list[Any] = []
    gone: list[str] = []

    def lose(worker_id: str, *_: Any) -> None:
        if not gone and runners:
            gone.append(worker_id)
            house.store.real.retire(worker_id, "a mistake", how=WorkerExit("vanished"))
            until(lambda: runners[0].worker_id != worker_id, "its heartbeat enrols anew")

    @house.app.task(lease_s=0.9)
    def fine() -> str:
        return "fine"

    runners.append(house.start(reaper=False))
    with house.store.before("claim", lose):
        job = fine.enqueue()
        assert job.result(60) == "fine"
    assert gone
    assert [worker.id for worker in house.store.workers()] == [runners[0].worker_id]


@on_every_store
def test_what_was_reaped_meanwhile_is_refused_to_the_first_attempt(house: House) -> None:
    """The reaper that declared it dead also settles its leases; the handler is stopped, and its report refused."""
    begun, go_on = threading.Event(), threading.Event()

    @house.app.task(lease_s=600)
    def deaf(ctx: Context) -> int:
        if ctx.attempt == 1:
            begun.set()
            go_on.wait(60)  # C code: the interrupt reaches it only afterwards
        return ctx.fence

    runner = house.start(slots=4, reaper=False)
    job = deaf.enqueue()
    begun.wait(60)
    [worker] = house.store.workers()
    Reaper(house.store.real, house.app.clock).recover_worker(worker, "a mistake", WorkerExit())
    deaf.enqueue()  # makes the worker claim, and learn of it
    assert job.result(60) == 3
    assert runner.worker_id != worker.id
    go_on.set()
    until(lambda: "stale_report" in house.kinds(job.id))
    assert house.kinds(job.id) == ["zombie", "succeeded", "stale_report"]
    assert house.row(job.id).result == "3"


@on_every_store
def test_a_claim_in_flight_gets_nothing_and_the_job_is_claimed_by_the_new_incarnation(house: House) -> None:
    """15.2, played: the worker is declared dead between its decision to claim and the claim."""

    @house.app.task
    def fine(ctx: Context) -> int:
        return ctx.attempt

    runner = house.start()
    first_id = runner.worker_id
    with house.store.before(
        "claim", lambda worker_id, *_: house.store.real.retire(first_id, "a mistake", how=WorkerExit("vanished"))
    ):
        job = fine.enqueue()
        assert job.result(60) == 1
    assert runner.worker_id != first_id
    assert house.kinds(job.id) == ["succeeded"]


@on_every_store
def test_what_it_had_claimed_ahead_comes_back(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.worker.prefetch import Prefetch

    monkeypatch.setattr(Prefetch, "ahead", lambda *_: 4)
    begun, go_on = threading.Event(), threading.Event()
    starts: list[str] = []

    @house.app.task
    def wait(ctx: Context) -> None:
        starts.append(ctx.job.id)
        begun.set()
        while not go_on.is_set():
            time.sleep(0.005)

    jobs = house.app.enqueue_many([wait.job() for _ in range(5)])
    runner = house.start(slots=1)
    begun.wait(60)
    until(lambda: len(house.app.find("running")) == 5)
    first_id = runner.worker_id
    go_on.set()
    house.store.real.retire(first_id, "a mistake", how=WorkerExit("vanished"))
    for job in jobs:
        job.result(60)
    assert all(house.kinds(job.id).count("succeeded") == 1 for job in jobs)


@on_every_store
def test_enrolling_again_is_retried_until_the_store_accepts_it(house: House) -> None:
    @house.app.task
    def fine() -> str:
        return "fine"

    runner = house.start()
    first_id = runner.worker_id
    from holdfast.errors import StoreUnavailable

    step: Any = once(StoreUnavailable("not now"))
    with house.store.before("enroll", step):
        house.store.real.retire(first_id, "a mistake", how=WorkerExit("vanished"))
        assert fine.enqueue().result(60) == "fine"
    assert house.store.calls["enroll"] == 3
    assert runner.worker_id != first_id
