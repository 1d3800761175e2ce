"""A store that fails: the worker waits, says so, keeps what it has, and stops what it may no longer run
(DESIGN 4, 15.5, 15.7)."""

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from holdfast import Context, Retry
from holdfast.errors import StoreError, StoreFull, StoreLost, StoreUnavailable
from holdfast.runtime.store_backoff import StoreBackoff
from holdfast.testing import FakeClock
from tests.worker.house import House, on_every_store, until


@on_every_store
def test_a_store_that_is_away_for_a_while_kills_nobody(house: House, caplog: pytest.LogCaptureFixture) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @house.app.task
    def wait() -> str:
        begun.set()
        go_on.wait(60)
        return "kept"

    @house.app.task
    def fine() -> str:
        return "fine"

    house.start()
    job = wait.enqueue()
    begun.wait(60)
    with house.store.down():
        calls = house.store.calls.total()
        go_on.set()  # it ends while the store is away: its ending is kept
        until(lambda: house.store.calls.total() > calls + 8, "everybody tries again")
    assert fine.enqueue().result(60) == "fine"
    assert job.result(60) == "kept"
    assert house.row(job.id).attempt == 1
    assert "the store fails (the test took it away); trying again" in caplog.text
    until(lambda: "the store is back after" in caplog.text)
    loud = [record for record in caplog.records if "the store fails" in record.getMessage()]
    assert len(loud) <= 4, "one line for each thread, not one for each try"


def test_a_full_disk_that_can_be_read_is_told_once_until_it_takes_a_beat(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """A look that writes nothing works all the while. It must not be taken for the end of the backoff."""
    go_on = threading.Event()

    @house.app.task(lease_s=300)
    def wait(ctx: Context) -> None:
        ctx.log.warning("at it")
        go_on.wait(60)

    def fail(*_: Any) -> None:
        raise StoreFull("no room left")

    def lines(words: str) -> int:
        return sum(words in record.getMessage() for record in caplog.records)

    house.start(reaper=False)
    until(lambda: house.store.calls["beat"] > 0, "it has beaten, and need not soon")
    with house.store.before("beat", fail):
        job = wait.enqueue()
        until(lambda: house.store.calls["beat"] > 4, "it tries again and again to tell what was logged")
        assert (lines("the store fails"), lines("the store is back")) == (1, 0)
    until(lambda: lines("the store is back") == 1, "it says so once")
    go_on.set()
    job.result(60)


def test_a_store_that_fails_and_works_in_turns_gets_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    backoff = StoreBackoff(logging.getLogger("holdfast.test"), clock, "nothing is done meanwhile")
    for _ in range(30):
        backoff.failed(StoreFull("no room left"))
        clock.advance(1)
        backoff.recovered()
        backoff.recovered()
        clock.advance(1)
    lines = [record.getMessage().split(" (")[0] for record in caplog.records]
    assert lines == ["the store fails", "the store is back after 1.0 s"] * 2


VERBS = ("due", "claim", "beat", "vanished", "overdue", "deadline", "find", "ping", "settle")


@pytest.mark.parametrize(
    "error",
    [StoreUnavailable("x"), StoreLost("x"), StoreError("x"), OSError("x")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.slow  # nine verbs fail, one after the other, and each is tried again
def test_no_verb_that_fails_in_any_way_ends_the_worker(file_house: House, error: Exception) -> None:
    house = file_house

    @house.app.task(lease_s=0.9, retry=Retry(base_s=0.0, cap_s=0.0))
    def fine(ctx: Context) -> str:
        ctx.heartbeat()
        time.sleep(0.05)
        return "fine"

    def fail(*_: Any) -> None:
        raise error

    house.start()
    assert fine.enqueue().result(60) == "fine"
    for verb in VERBS:
        with house.store.before(verb, fail):
            job = fine.enqueue()
            if verb not in ("find", "overdue", "deadline"):  # these are not always needed
                until_tried_again(house, verb)
        assert job.result(60) == "fine"


def until_tried_again(house: House, verb: str) -> None:
    calls = house.store.calls[verb]
    until(lambda: house.store.calls[verb] > calls + 1, f"{verb} is tried, and tried again")


def test_a_worker_starts_when_its_store_is_back(house: House) -> None:
    @house.app.task
    def fine() -> str:
        return "fine"

    job = fine.enqueue()
    with house.store.down():
        house.launch()
        until(lambda: house.store.calls["enroll"] > 2)
    assert job.result(60) == "fine"
    assert len(house.store.workers()) == 1


# ------------------------------------------------------------------------------------- self-fencing


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.slow  # a lease has to run out, and is long: a busy machine has a second between the asking and the end
def test_a_handler_whose_beats_do_not_get_through_is_stopped_before_its_lease_ends(
    file_house: House, is_async: bool
) -> None:
    """DESIGN 4: measured from before the last successful beat was sent, by the worker's own clock."""
    house, clock = file_house, file_house.app.clock
    stopped_at: list[float] = []
    beaten, go_on = threading.Event(), threading.Event()

    def spin(ctx: Context) -> str:
        try:
            while not go_on.is_set():
                time.sleep(0.002)
        except BaseException:
            stopped_at.append(clock.lease())
            raise
        return "finished"

    async def aspin(ctx: Context) -> str:
        try:
            while not go_on.is_set():
                await asyncio.sleep(0.002)
        except BaseException:
            stopped_at.append(clock.lease())
            raise
        return "finished"

    task = house.app.task(name="spin", lease_s=9)(aspin if is_async else spin)
    with house.store.after("beat", lambda _: beaten.set()):
        house.start(reaper=False)
        job = task.enqueue()
        house.until_state(job.id, "running")
        beaten.clear()
        until(beaten.is_set, "it beats")
    with house.store.down("beat"):
        lease_until = house.row(job.id).lease_until
        until(lambda: stopped_at, "it is stopped")
        assert lease_until is not None
        assert stopped_at[0] < lease_until
        until(lambda: "released" in house.kinds(job.id))
        go_on.set()
    assert job.result(60) == "finished"
    row = house.row(job.id)
    assert (row.failures, row.crashes, row.zombies) == (0, 0, 0)
    [released, *_] = house.events(job.id, "released")
    assert "no beat got through; stopped before the lease ended" in released.detail["cause"]


@on_every_store
def test_a_careful_job_whose_beats_do_not_get_through_is_held(house: House) -> None:
    """P7, 15.7"""
    starts: list[int] = []

    @house.app.task(on_crash="hold", lease_s=0.9)
    def spin() -> None:
        starts.append(1)
        while True:
            time.sleep(0.002)

    with house.store.down("beat"):
        house.start(reaper=False)
        job = spin.enqueue()
        house.until_state(job.id, "held")
    assert starts == [1]
    assert house.row(job.id).crashes == 0


@pytest.mark.slow  # the time of a lease, which is long enough for a busy machine to renew in time
def test_a_lease_is_renewed_until_the_settle_is_acknowledged(file_house: House) -> None:
    """15.9: the handler has returned, and the store does not take the ending for longer than a lease."""
    house = file_house

    @house.app.task(lease_s=6)
    def quick() -> str:
        return "fine"

    house.start()
    with house.store.down("settle"):
        job = quick.enqueue()
        house.until_state(job.id, "running")
        asked_at = time.monotonic()
        until(lambda: time.monotonic() > asked_at + 7)
        assert house.row(job.id).state == "running"
    assert job.result(60) == "fine"
    row = house.row(job.id)
    assert (row.attempt, row.zombies) == (1, 0)


@pytest.mark.slow  # most of a lease, which is long enough for a busy machine to start the next attempt in time
def test_a_job_that_waited_in_the_buffer_past_its_trust_is_not_started(file_house: House) -> None:
    """It was claimed, the claim's answer took longer than the lease is trusted: starting it would be a second run."""
    house = file_house
    starts: list[int] = []

    @house.app.task(lease_s=6)
    def count(ctx: Context) -> int:
        starts.append(ctx.attempt)
        return ctx.attempt

    slow = [True]

    def late(jobs: Any) -> None:
        if jobs and slow:
            slow.clear()
            claimed_at = time.monotonic()
            until(lambda: time.monotonic() > claimed_at + 5.1)

    with house.store.after("claim", late):
        house.start(reaper=False)
        job = count.enqueue()
        assert job.result(60) == 2
    assert starts == [2]
    assert house.kinds(job.id) == ["released", "succeeded"]
