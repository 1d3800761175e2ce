"""The heartbeat: one call for all leases, only for those that need it; hears of cancellations and of its own death."""

import threading
import time
from typing import Any

import pytest

from holdfast import App
from holdfast.continuity import WORKER, Continuity
from holdfast.core import acts
from holdfast.core.machine import State
from holdfast.core.records import Job, Pulse
from holdfast.core.verdict import Succeeded
from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import Cancelled, LeaseLost, StoreUnavailable
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from holdfast.worker.activity import TOLD_MAX
from holdfast.worker.attempt import Attempt
from holdfast.worker.heartbeat import Heartbeat
from tests.factory import EXPIRED, add, claim, enrol, move, row, settle, start
from tests.worker.house import House, until
from tests.worker.meddler import Meddler


class Desk:
    """A heartbeat without its thread, and the attempts that it keeps, on a clock that stands still."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.store = Meddler(store)
        self.clock = clock
        self.gone: list[str] = []
        self.begun: list[Attempt] = []
        continuity = Continuity(store, clock, "w", WORKER)
        self.heartbeat = Heartbeat(self.store, clock, 10.0, self.gone.append, continuity, self.begun.extend)  # type: ignore[arg-type]
        self.heartbeat.worker_id = enrol(store)

        @App("memory://").task(name="t")
        def task() -> None: ...

        self._task = task

    def keep(self, **given: Any) -> Attempt:
        """Claim a job and keep it."""
        sent_at = self.clock.lease()
        attempt = Attempt(start(self.store.real, self.heartbeat.worker_id, **given), self._task, sent_at)
        attempt.start(sent_at)
        self.heartbeat.keep([attempt])
        return attempt

    def beat(self) -> list[list[Pulse]]:
        """Let the heartbeat look once; return what it sent."""
        before = len(self.store.arguments_of("beat"))
        self.heartbeat._beat()
        return [list(arguments[1]) for arguments in self.store.arguments_of("beat")[before:]]

    def row(self, attempt: Attempt) -> Job:
        return row(self.store.real, attempt.job.id)


@pytest.fixture
def desk(store: Store, clock: FakeClock) -> Desk:
    return Desk(store, clock)


def test_a_third_of_a_lease_passes_before_it_is_renewed(desk: Desk) -> None:
    desk.beat()
    attempt = desk.keep(lease_s=30.0)
    desk.clock.advance(9.9)
    assert desk.beat() == []
    desk.clock.advance(0.2)
    [[pulse]] = desk.beat()
    assert pulse.lease == attempt.lease
    assert desk.row(attempt).lease_until == desk.clock.lease() + 30.0
    assert desk.beat() == []


def test_a_worker_whose_lock_may_be_free_beats_at_every_look(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others see the lock free, and would take it for dead."""
    desk.keep(lease_s=30.0)
    desk.beat()
    assert desk.beat() == []
    holds = [False]
    monkeypatch.setattr(desk.store.real, "holds_lock", lambda worker_id: holds[0], raising=False)
    assert [desk.beat(), desk.beat()] == [[[]], [[]]], "and renews no lease before its time"
    holds[0] = True
    assert desk.beat() == []


def test_all_leases_that_need_it_are_renewed_in_one_call_and_no_others(desk: Desk) -> None:
    due = [desk.keep(lease_s=30.0) for _ in range(5)]
    long = [desk.keep(lease_s=600.0) for _ in range(5)]
    desk.clock.advance(10.1)
    [pulses] = desk.beat()
    assert {pulse.lease for pulse in pulses} == {attempt.lease for attempt in due}
    assert all(desk.row(attempt).lease_until == 1000.0 + 600.0 for attempt in long)


def test_an_idle_worker_beats_for_itself(desk: Desk) -> None:
    assert desk.beat() == [[]]
    desk.clock.advance(9)
    assert desk.beat() == []
    desk.clock.advance(1)
    assert desk.beat() == [[]]


def test_what_is_settled_is_renewed_no_more(desk: Desk) -> None:
    kept, done = desk.keep(), desk.keep()
    desk.heartbeat.forget([done])
    desk.clock.advance(10.1)
    [[pulse]] = desk.beat()
    assert pulse.lease == kept.lease


def test_trust_counts_from_before_the_beat_was_sent(desk: Desk) -> None:
    """A slow answer must not stretch it."""
    attempt = desk.keep(lease_s=30.0)
    desk.clock.advance(10.1)
    sent_at = desk.clock.lease()
    with desk.store.after("beat", lambda _: desk.clock.advance(7)):
        desk.beat()
    assert attempt.window.stop_at == sent_at + 25.0


def test_a_beat_that_failed_renews_no_trust(desk: Desk) -> None:
    attempt = desk.keep(lease_s=30.0)
    window = attempt.window
    desk.clock.advance(10.1)
    with desk.store.after("beat", _lose_the_answer), pytest.raises(StoreUnavailable):
        desk.beat()
    assert attempt.window == window
    assert len(desk.beat()) == 1, "it is tried again at once"


def test_a_lost_lease_stops_its_handler_and_only_that(desk: Desk) -> None:
    lost, kept = desk.keep(), desk.keep()
    settle(desk.store.real, desk.row(lost), EXPIRED)
    desk.clock.advance(10.1)
    desk.beat()
    assert isinstance(lost.handler.interrupt, LeaseLost)
    assert kept.handler.interrupt is None
    assert kept.window.renew_at > desk.clock.lease()


def test_an_attempt_that_settled_itself_meanwhile_is_not_lost(desk: Desk) -> None:
    attempt = desk.keep()
    settle(desk.store.real, desk.row(attempt), Succeeded())
    desk.clock.advance(10.1)
    desk.beat()
    assert attempt.handler.interrupt is None


def test_a_cancellation_comes_with_the_beat(desk: Desk) -> None:
    attempt, other = desk.keep(), desk.keep()
    _ask_to_stop(desk, attempt)
    desk.clock.advance(10.1)
    desk.beat()
    assert isinstance(attempt.handler.interrupt, Cancelled)
    assert attempt.job.cancel_requested
    assert other.handler.interrupt is None


def test_a_cancellation_is_looked_for_between_beats(desk: Desk) -> None:
    attempt = desk.keep(lease_s=600.0)
    _ask_to_stop(desk, attempt)
    desk.heartbeat._look_for_cancellations()
    assert isinstance(attempt.handler.interrupt, Cancelled)


def test_it_hears_that_it_was_declared_dead(desk: Desk) -> None:
    attempt = desk.keep()
    lease_until = desk.row(attempt).lease_until
    desk.store.real.retire(desk.heartbeat.worker_id, "a mistake", how=WorkerExit("vanished"))
    desk.clock.advance(10.1)
    window = attempt.window
    desk.beat()
    assert desk.gone == [desk.heartbeat.worker_id]
    assert (attempt.window, desk.row(attempt).lease_until) == (window, lease_until)


def test_progress_goes_with_the_next_beat_within_a_second(desk: Desk) -> None:
    attempt = desk.keep(lease_s=600.0)
    desk.beat()
    attempt.move(desk.clock.lease(), 0.5, "half way")
    desk.clock.advance(1.0)
    [[pulse]] = desk.beat()
    assert (pulse.progress, pulse.note) == (0.5, "half way")
    assert (desk.row(attempt).progress, desk.row(attempt).note) == (0.5, "half way")
    desk.clock.advance(1.0)
    assert desk.beat() == [], "nothing new to tell"


def test_every_beat_says_how_long_the_handler_has_been_still(desk: Desk) -> None:
    attempt = desk.keep(lease_s=600.0)
    attempt.start(desk.clock.lease())
    desk.clock.advance(250.0)
    [[pulse]] = desk.beat()
    assert (pulse.still_s, desk.row(attempt).moved_at) == (None, None), "it has not said that it moves"
    attempt.move(desk.clock.lease(), None, None)
    moved_at = desk.clock.wall()
    for seconds in (1.0, 251.0):
        desk.clock.advance(seconds - (desk.clock.wall() - moved_at))
        [[pulse]] = desk.beat()
        assert (pulse.still_s, desk.row(attempt).moved_at) == (seconds, moved_at)


def test_a_step_is_told_once_it_is_no_short_one_and_again_when_it_is_over(desk: Desk) -> None:
    attempt = desk.keep(lease_s=600.0, workflow=True)
    desk.beat()
    with attempt.inside("1", "reserve"), attempt.inside("2.1.1", "mail it"):
        desk.clock.advance(1.0)
        assert desk.beat() == [], "it was not there when the heartbeat looked before"
        desk.clock.advance(1.0)
        [[pulse]] = desk.beat()
        assert pulse.in_steps == desk.row(attempt).in_steps == (("1", "reserve"), ("2.1.1", "mail it"))
        desk.clock.advance(1.0)
        assert desk.beat() == [], "nothing new to tell"
        desk.clock.advance(250.0)
        [[pulse]] = desk.beat()
        assert pulse.in_steps is None, "a beat that is due anyway"
    for _ in range(2):
        desk.clock.advance(1.0)
        sent = desk.beat()
    assert [pulse.in_steps for [pulse] in sent] == [()]
    assert desk.row(attempt).in_steps == ()


def test_short_steps_go_with_a_beat_that_is_due_anyway(desk: Desk) -> None:
    attempt = desk.keep(lease_s=600.0, workflow=True)
    desk.beat()
    for number in range(5):
        with attempt.inside(str(number), "short"):
            desk.clock.advance(1.0)
            assert desk.beat() == []
    with attempt.inside("6", "short"):
        desk.clock.advance(250.0)
        [[pulse]] = desk.beat()
    assert pulse.in_steps == (("6", "short"),)


def test_of_very_many_steps_side_by_side_a_few_are_told(desk: Desk) -> None:
    attempt = desk.keep(workflow=True)
    attempt.begin_workflow().steps = {f"1.{number}.1": "mail" for number in range(1, 1000)}
    assert len(attempt.begin_workflow().in_steps()) == TOLD_MAX


def test_a_step_that_did_not_get_through_is_told_again(desk: Desk) -> None:
    attempt = desk.keep(lease_s=600.0, workflow=True)
    with attempt.inside("1", "reserve"):
        desk.clock.advance(250.0)
        with desk.store.down("beat"), pytest.raises(StoreUnavailable):
            desk.beat()
        [[pulse]] = desk.beat()
        assert pulse.in_steps == (("1", "reserve"),)


def test_progress_that_did_not_get_through_is_told_again(desk: Desk) -> None:
    attempt = desk.keep(lease_s=600.0)
    desk.beat()
    attempt.move(desk.clock.lease(), 0.5, None)
    desk.clock.advance(1.0)
    with desk.store.down("beat"), pytest.raises(StoreUnavailable):
        desk.beat()
    desk.clock.advance(1.0)
    desk.beat()
    assert desk.row(attempt).progress == 0.5


@pytest.mark.slow  # the time of a lease, which is long enough for a busy machine to renew in time
def test_a_job_with_a_shorter_lease_than_its_task_declares_is_renewed_in_time(file_house: House) -> None:
    house = file_house

    @house.app.task(lease_s=600)
    def slow() -> str:
        end = time.monotonic() + 7.0
        while time.monotonic() < end:
            time.sleep(0.005)
        return "alive"

    house.start()
    job = slow.using(lease_s=6).enqueue()
    assert job.result(60) == "alive"
    row = house.row(job.id)
    assert (row.attempt, row.zombies) == (1, 0)


def test_a_worker_beats_while_it_recovers_what_others_left(house: House) -> None:
    """Before its first claim. With very many orphans that takes longer than a worker may be silent."""
    over = threading.Event()
    with house.store.before("vanished", lambda *_: over.wait(60)):
        house.start()
        try:
            until(lambda: house.store.calls["vanished"], "it looks for orphans")
            until(lambda: house.store.calls["beat"], "it beats", 50)
        finally:
            over.set()


def test_short_jobs_cost_no_beat_at_all(house: House) -> None:
    @house.app.task
    def quick(n: int) -> int:
        return n

    house.start(slots=4)
    jobs = house.app.enqueue_many([quick.job(n) for n in range(50)])
    for job in jobs:
        job.result(60)
    assert sum(len(arguments[1]) for arguments in house.store.arguments_of("beat")) == 0
    assert house.store.calls["beat"] <= 2


# ------------------------------------------------------------------------------------- claimed ahead


def claimed_ahead(desk: Desk, zombies: int = 0) -> Attempt:
    """Claim a job ahead of a free slot; one that was lost so often before."""
    add(desk.store.real, crashes_max=99, base_s=0.0, cap_s=0.0)
    for _ in range(zombies):
        [job] = claim(desk.store.real, desk.heartbeat.worker_id, limit=1)
        settle(desk.store.real, job, EXPIRED)
    [job] = claim(desk.store.real, desk.heartbeat.worker_id, limit=0, ahead=1)
    attempt = Attempt(job, desk._task, desk.clock.lease())
    desk.heartbeat.keep([attempt])
    return attempt


def test_the_store_hears_within_a_second_that_a_job_claimed_ahead_has_begun(desk: Desk) -> None:
    desk.beat()
    attempt = claimed_ahead(desk)
    assert not attempt.must_announce
    desk.clock.advance(1.0)
    attempt.start(desk.clock.lease())
    desk.clock.advance(0.9)
    assert desk.beat() == [], "a short job costs no beat"
    desk.clock.advance(1.0)
    assert len(desk.beat()) == 1
    assert desk.row(attempt).started
    desk.clock.advance(1.1)
    assert desk.beat() == [], "it knows"


def test_a_job_that_was_lost_before_begins_only_when_the_store_knows(desk: Desk) -> None:
    attempt = claimed_ahead(desk, zombies=1)
    assert attempt.must_announce
    with desk.store.after("beat", lambda _: desk.begun.append("told")):  # type: ignore[arg-type]
        desk.heartbeat.announce([attempt])
        [[pulse]] = desk.beat()
    assert desk.begun == ["told", attempt]
    assert pulse.started
    assert desk.row(attempt).started
    desk.clock.advance(1.1)
    assert desk.beat() == []
    assert desk.begun == ["told", attempt], "it begins once"


def test_it_does_not_begin_while_the_store_cannot_be_told(desk: Desk) -> None:
    attempt = claimed_ahead(desk, zombies=1)
    desk.heartbeat.announce([attempt])
    with desk.store.after("beat", _lose_the_answer), pytest.raises(StoreUnavailable):
        desk.beat()
    assert desk.begun == []
    desk.beat()
    assert desk.begun == [attempt]


@pytest.mark.parametrize("how", ["lost", "gone", "overtaken", "stopped"])
def test_one_that_is_stopped_before_the_store_knows_gives_its_slot_back(desk: Desk, how: str) -> None:
    """Its start is reported all the same: it ends before its handler is called."""
    attempt = claimed_ahead(desk, zombies=1)
    desk.heartbeat.announce([attempt])
    if how == "lost":
        settle(desk.store.real, desk.row(attempt), EXPIRED)
        desk.beat()
    elif how == "gone":
        desk.store.real.retire(desk.heartbeat.worker_id, "by the test")
        desk.heartbeat._gone = lambda _: attempt.handler.stop(LeaseLost("gone"))
        desk.beat()
    elif how == "overtaken":
        settle(desk.store.real, desk.row(attempt), EXPIRED)
        [job] = claim(desk.store.real, desk.heartbeat.worker_id, limit=1)
        desk.heartbeat.keep([Attempt(job, desk._task, desk.clock.lease())])
        desk.beat()
    else:
        attempt.handler.stop(LeaseLost("the worker stopped"))
        with desk.store.down("beat"), pytest.raises(StoreUnavailable):
            desk.beat()
    assert desk.begun == [attempt]
    assert attempt.handler.interrupt is not None


@pytest.mark.slow  # the time of a lease, which is long enough for a busy machine to renew in time
def test_a_handler_that_blocks_the_event_loop_or_its_thread_does_not_stop_the_beat(file_house: House) -> None:
    """Must be shown, 4 (here in one process; tests/crash has it with real ones)."""
    house = file_house

    @house.app.task(lease_s=6)
    async def blocks_the_loop() -> str:
        time.sleep(7)
        return "alive"

    @house.app.task(lease_s=6)
    def blocks_its_thread() -> str:
        time.sleep(7)
        return "alive"

    house.start()
    jobs = [blocks_the_loop.enqueue(), blocks_its_thread.enqueue()]
    until(lambda: all(house.row(job.id).state is State.DONE for job in jobs))
    for job in jobs:
        row = house.row(job.id)
        assert (row.attempt, row.zombies) == (1, 0)
        assert house.kinds(job.id) == ["succeeded"]


def _lose_the_answer(_: Any) -> None:
    raise StoreUnavailable("the answer was lost")


def _ask_to_stop(desk: Desk, attempt: Attempt) -> None:
    job = desk.row(attempt)
    assert move(desk.store.real, job.id, State.RUNNING, job.fence, acts.cancel(job, actor="ann"))
