"""The claim loop: claims ahead, fairness, tasks that it does not know, answers that are lost (DESIGN 15.6)."""

import logging
import threading
import time
from typing import Any

import pytest

from holdfast import App, Context, Retry
from holdfast.clock import SystemClock
from holdfast.core.payload import JsonCodec
from holdfast.core.records import Job, NewJob, Published
from holdfast.errors import StoreUnavailable
from holdfast.worker.prefetch import Prefetch
from tests.factory import enrol, park, start_flow
from tests.worker.house import House, on_every_store, until
from tests.worker.meddler import once


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every worker claim six jobs ahead of a free slot, whatever its pace."""
    monkeypatch.setattr(Prefetch, "ahead", lambda *_: 6)


# ------------------------------------------------------------------------------------------- claims ahead


@pytest.mark.usefixtures("eager")
def test_only_jobs_that_may_be_repeated_are_claimed_ahead(house: House) -> None:
    """15.6"""
    go_on = threading.Event()

    def wait() -> None:
        go_on.wait(60)

    tasks = [house.app.task(name=word, on_crash=word)(wait) for word in ("retry", "hold", "fail")]  # type: ignore[call-overload]
    jobs = house.app.enqueue_many([task.job() for task in tasks for _ in range(4)])
    claimed: list[Job] = []
    with house.store.after("claim", claimed.extend):
        house.start(slots=1)
        until(lambda: len(claimed) >= 4, "one runs, three more may be claimed ahead")
        go_on.set()
        for job in jobs:
            job.result(60)
    assert {job.on_crash for job in claimed if not job.started} == {"retry"}
    assert len(claimed) == 12


@on_every_store
@pytest.mark.usefixtures("eager")
def test_a_hold_job_is_never_claimed_before_there_is_a_slot_for_it(house: House) -> None:
    """P7: a hold job that is claimed counts as started; so it must be started at once."""
    claimed, ended, most = [0], [0], [0]

    @house.app.task(on_crash="hold")
    def careful() -> None:
        time.sleep(0.002)
        ended[0] += 1

    def look(jobs: list[Job]) -> None:
        claimed[0] += len(jobs)
        most[0] = max(most[0], claimed[0] - ended[0])

    house.start(slots=2)
    with house.store.after("claim", look):
        for job in house.app.enqueue_many([careful.job() for _ in range(40)]):
            job.result(60)
    assert 1 <= most[0] <= 2


def test_a_fast_worker_claims_ahead_by_itself(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.claimer.BUFFERED_MAX_S", 3600.0)  # a slow machine would give some back
    claimed: list[Job] = []

    @house.app.task
    async def quick() -> None: ...

    with house.store.after("claim", claimed.extend):
        jobs = house.app.enqueue_many([quick.job() for _ in range(3000)])
        house.start(slots=4)
        jobs[-1].result(60)
        until(lambda: house.store.counts() == {"default": {"done": 3000}})
    assert any(not job.started for job in claimed)
    assert all(job.attempt == 1 for job in claimed)


@pytest.mark.usefixtures("eager")
@pytest.mark.slow  # what is claimed ahead may wait for a second
def test_what_was_claimed_ahead_and_found_no_slot_is_given_back(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(Prefetch, "reset", lambda _: monkeypatch.setattr(Prefetch, "ahead", lambda *_: 0))

    @house.app.task
    def wait() -> None:
        go_on.wait(60)

    jobs = house.app.enqueue_many([wait.job() for _ in range(5)])
    runner = house.start(slots=1)
    try:
        until(lambda: all(house.row(job.id).fence for job in jobs), "all are claimed")
        until(lambda: len(house.app.find("running")) == 1, "they are given back")
    finally:
        runner.stop()
        go_on.set()
    house.join(runner)
    rows = [house.row(job.id) for job in jobs]
    assert [row.state.value for row in rows].count("done") == 1
    assert all((row.failures, row.crashes) == (0, 0) for row in rows)
    causes = {event.detail["cause"] for job in jobs for event in house.events(job.id, "released")}
    assert causes == {"claimed ahead, but no slot became free"}


@pytest.mark.usefixtures("eager")
def test_a_handler_that_blocks_the_event_loop_does_not_keep_a_sync_job_from_a_free_slot(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P15: the slot of an async job that has just ended is filled, although the loop gets to nothing any more."""
    monkeypatch.setattr("holdfast.worker.claimer.BUFFERED_MAX_S", 3600.0)
    blocks, go_on = threading.Event(), threading.Event()

    @house.app.task
    async def quick() -> None: ...

    @house.app.task
    async def block() -> None:
        blocks.set()
        go_on.wait(60)

    @house.app.task
    def sync() -> bool:
        return blocks.is_set() and not go_on.is_set()

    jobs = house.app.enqueue_many([quick.job(), block.job(), sync.job()])
    house.start(slots=2)
    try:
        assert jobs[2].result(60), "it ran while the loop was blocked"
    finally:
        go_on.set()
    jobs[1].result(60)


# --------------------------------------------------------------------------------------- tasks and queues


class Hurry(SystemClock):
    """A clock on which a minute passes in a second."""

    def lease(self) -> float:
        return super().lease() * 60

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return super().wait(event, timeout_s / 60)


@pytest.mark.slow  # two minutes, sixty times as fast
def test_a_task_that_it_does_not_know_is_left_alone_and_named_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House(App("memory://", clock=Hurry()))

    @house.app.task(name="known")
    def known() -> str:
        return "fine"

    stranger = NewJob(id="stranger", task="unknown", payload="{}", priority=9)
    for queue, task in (("default", "asleep"), ("default", "of another worker"), ("elsewhere", "of another queue")):
        starter = enrol(house.store, queues=[], tasks={})
        park(house.store, start_flow(house.store, starter, queue=queue, task=task), wake_at=house.store.now().wall)
    house.store.add([stranger, NewJob(id="elsewhere", task="of another worker", payload="{}")])
    house.store.add(
        [NewJob(id=task, task=task, queue="nobody's", payload="{}") for task in ("removed", "of another worker")]
    )
    house.store.add([NewJob(id="paused", task="of a paused queue", queue="paused", payload="{}")])
    house.store.pause("paused", True)
    enrol(house.store, queues=["default"], tasks={"of another worker": Published("default")}, beat_s=1e9)
    enrol(house.store, queues=["elsewhere"], tasks={"of another queue": Published("elsewhere")}, beat_s=1e9)
    claims = house.store.calls["claim"]
    house.start()
    message = "no living worker has task 'unknown': 1 due jobs wait for one that has it"
    until(lambda: caplog.text.count(message) > 1, "it is named again")
    first, second, *_ = [record.created for record in caplog.records if message in record.getMessage()]
    assert second - first > 0.5, "a second, unless the machine was busy when the first was written"
    assert "no living worker has task 'asleep': 1 due jobs wait for one that has it" in caplog.text
    assert "no living worker has task 'removed': 1 due jobs wait for one that has it" in caplog.text
    assert "of another" not in caplog.text
    assert "of a paused queue" not in caplog.text
    assert {"known": Published("default")} in [worker.tasks for worker in house.store.workers()]
    assert house.store.calls["claim"] == claims
    row = house.row("stranger")
    assert (row.state, row.attempt, row.fence) == ("ready", 0, 0)
    assert known.enqueue().result(60 * 20) == "fine"
    house.close()


@on_every_store
def test_a_worker_publishes_that_its_app_has_a_codec_of_its_own(house: House) -> None:
    class Own(JsonCodec): ...

    house.app.codec = Own()
    house.app.task(name="known")(lambda: None)
    house.start()
    assert {"known": Published("default", own_codec=True)} in [worker.tasks for worker in house.store.workers()]


def test_a_task_that_it_does_not_know_makes_no_hot_loop(house: House) -> None:
    @house.app.task(name="known")
    def known() -> str:
        return "fine"

    house.store.add([NewJob(id="stranger", task="unknown", payload="{}", priority=9)])
    house.start()
    assert known.enqueue().result(60) == "fine"
    looks, from_now = house.store.calls["due"], time.monotonic()
    until(lambda: time.monotonic() > from_now + 0.5)
    assert house.store.calls["due"] - looks < 30
    assert house.store.calls["claim"] <= 2


def test_a_worker_that_knows_the_task_takes_it(file_house: House) -> None:
    """The rolling deployment: the old worker leaves it alone, the new one runs it."""

    @file_house.app.task(name="old")
    def old() -> None: ...

    file_house.start(name="old")
    newer = House(App(file_house.app.url))

    @newer.app.task(name="new")
    def new() -> str:
        return "from the new one"

    looks = file_house.store.calls["due"]
    job = new.enqueue()
    until(lambda: file_house.store.calls["due"] > looks, "the old one has looked")
    newer.start(name="new")
    assert job.result(60) == "from the new one"
    newer.close()


def test_a_flooded_queue_does_not_starve_the_other(house: House) -> None:
    order: list[str] = []

    @house.app.task(queue="flood", name="flood")
    def flood() -> None:
        order.append("flood")
        time.sleep(0.001)

    @house.app.task(queue="calm", name="calm")
    def calm() -> None:
        order.append("calm")
        time.sleep(0.001)

    house.app.enqueue_many([flood.job() for _ in range(400)])
    calm_jobs = house.app.enqueue_many([calm.job() for _ in range(10)])
    house.start(slots=2)
    for job in calm_jobs:
        job.result(60)
    last_calm = len(order) - 1 - order[::-1].index("calm")
    assert last_calm < 200, "the calm queue gets its share while the other is flooded"
    until(lambda: len(order) == 410)


@on_every_store
def test_only_the_named_queues_are_served(house: House) -> None:
    @house.app.task(queue="mine")
    def mine() -> str:
        return "mine"

    @house.app.task(queue="theirs")
    def theirs() -> None: ...

    other = theirs.enqueue()
    house.start(queues=("mine",))
    assert mine.enqueue().result(60) == "mine"
    assert house.row(other.id).state == "ready"


@on_every_store
def test_a_paused_queue_waits_and_goes_on(house: House) -> None:
    @house.app.task
    def fine() -> str:
        return "fine"

    house.store.pause("default", True)
    house.start()
    looks = house.store.calls["due"]
    job = fine.enqueue()
    until(lambda: house.store.calls["due"] > looks, "the worker has looked")
    assert house.row(job.id).state == "ready"
    house.store.pause("default", False)
    assert job.result(60) == "fine"


@on_every_store
def test_an_enqueue_of_this_process_wakes_the_worker_at_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.claimer.POLL_S", 3600.0)

    @house.app.task
    def fine() -> str:
        return "fine"

    house.start()
    for _ in range(9):
        assert fine.enqueue().result(60) == "fine"


# ----------------------------------------------------------------------------------------- answers lost


@on_every_store
def test_a_claim_whose_answer_was_lost_is_asked_for_again(house: House) -> None:
    """15.6: the caller makes the claim_id, so nothing is claimed twice and nothing is forgotten."""
    starts: list[int] = []

    @house.app.task(retry=Retry(attempts_max=1))
    def count(n: int) -> int:
        starts.append(n)
        return n

    jobs = house.app.enqueue_many([count.job(n) for n in range(30)])
    with house.store.after("claim", once(StoreUnavailable("the answer was lost"))):
        house.start(slots=4)
        assert [job.result(60) for job in jobs] == list(range(30))
    assert sorted(starts) == list(range(30))
    assert all(house.row(job.id).attempt == 1 for job in jobs)


def test_trust_in_a_lease_counts_from_when_the_claim_was_first_sent(house: House) -> None:
    """A claim that had to be asked for again was leased by the first call: that is when the lease began."""
    sent_at: list[float] = []
    running, go_on = threading.Event(), threading.Event()

    @house.app.task(lease_s=60)
    def wait() -> None:
        running.set()
        go_on.wait(60)

    def second_time_later(*_: Any) -> None:
        sent_at.append(house.app.clock.lease())
        if len(sent_at) == 2:
            until(lambda: house.app.clock.lease() > sent_at[0] + 0.5)

    job = wait.enqueue()
    with (
        house.store.before("claim", second_time_later),
        house.store.after("claim", once(StoreUnavailable("the answer was lost"))),
    ):
        runner = house.start()
        running.wait(60)
    [attempt] = runner._heartbeat.all()
    assert attempt.window.stop_at <= sent_at[0] + 50.0  # five sixths of the lease
    row = house.row(job.id)
    assert row.lease_until is not None
    assert attempt.window.end_at < row.lease_until
    go_on.set()
    job.result(60)


@on_every_store
def test_a_job_whose_claim_was_answered_late_is_renewed_before_it_starts(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage little may be left of the trust in such a lease, although the store is back."""
    beaten: list[str] = []
    seen: list[bool] = []
    late_s = [0.0]
    clock, lease = house.app.clock, house.app.clock.lease
    monkeypatch.setattr(clock, "lease", lambda: lease() + late_s[0])

    @house.app.task(lease_s=600)
    def look(ctx: Context) -> None:
        seen.append(ctx.job.id in beaten)

    def answer_late(_: object) -> None:
        if not late_s[0]:
            late_s[0] = 450.0  # the handler would be stopped at 500
            raise StoreUnavailable("the answer was lost")

    job = look.enqueue()
    with (
        house.store.before("beat", lambda _, pulses, *_more: beaten.extend(pulse.lease.job_id for pulse in pulses)),
        house.store.after("claim", answer_late),
    ):
        house.start()
        house.until_state(job.id, "done")
    assert seen == [True]
    assert house.kinds(job.id) == ["succeeded"]


def test_a_claim_loop_that_stumbles_goes_on(house: House, caplog: pytest.LogCaptureFixture) -> None:
    @house.app.task
    def fine() -> str:
        return "fine"

    with house.store.before("due", once(ZeroDivisionError("a bug of ours"))):
        house.start()
        assert fine.enqueue().result(60) == "fine"
    assert "the claim loop failed unexpectedly; the thread continues" in caplog.text
    assert caplog.records[0].levelno >= logging.WARNING
