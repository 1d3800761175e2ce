"""What a worker does with a result or a record whose row somebody else has locked."""

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import App
from holdfast.clock import SystemClock
from holdfast.core.machine import State
from holdfast.core.records import BeatReply, Pulse, Record, Vanished
from holdfast.core.settlement import Settlement
from holdfast.core.verdict import Failed, Succeeded
from holdfast.errors import StoreDamaged, StoreError, StoreTimeout, StoreUnavailable
from holdfast.runtime.locked_rows import FIRST_S, LONGEST_S, LockedRows
from holdfast.stores.memory import MemoryStore
from holdfast.stores.protocol import Reply
from holdfast.testing import FakeClock
from holdfast.upkeep.reaper import Reaper
from holdfast.worker.attempt import Attempt
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.settler import Settler
from holdfast.workflow.recorder import Recorder
from tests.factory import a_record, a_step, enrol, row, start, start_flow
from tests.worker.house import until
from tests.worker.meddler import Meddler


class Locking:
    """A store in which somebody else has locked the rows of some jobs."""

    def __init__(self) -> None:
        self.real = MemoryStore()
        self.locked: set[str] = set()
        self.asked: list[str] = []
        self.asks_max: int | None = None  # at this call the locks are gone

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def settle(self, settlements: Sequence[Settlement], under: None = None) -> list[Reply]:
        return [self._one(each.lease.job_id, lambda each=each: self.real.settle([each])) for each in settlements]  # type: ignore[misc]

    def record(self, records: Sequence[Record]) -> list[Reply]:
        return [self._one(each.lease.job_id, lambda each=each: self.real.record([each])) for each in records]  # type: ignore[misc]

    def _one(self, job_id: str, act: Any) -> Reply:
        self.asked.append(job_id)
        if len(self.asked) == self.asks_max:
            self.locked.clear()
        return Reply.LOCKED if job_id in self.locked else act()[0]


@pytest.fixture
def settling() -> Any:
    """A store, a settler over it, and what it has forgotten."""
    store, forgotten = Locking(), []
    app = App("memory://")
    settler = Settler(store, SystemClock(), forgotten.extend, app.hooks)  # type: ignore[arg-type]
    settler.start(lambda *_: None)
    yield store, settler, forgotten
    store.locked.clear()
    settler.close()


def attempt(store: Locking | Meddler) -> Attempt:
    return Attempt(start(store.real), SimpleNamespace(), 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("lock_ends", [True, False])
def test_a_settler_whose_thread_has_died_says_whether_a_locked_result_was_saved(lock_ends: bool) -> None:
    store, forgotten = Locking(), []
    store.asks_max = 3 if lock_ends else None
    settler = Settler(store, SystemClock(), forgotten.extend, App("memory://").hooks)  # type: ignore[arg-type]
    mine = attempt(store)
    store.locked.add(mine.job.id)
    settler.put(mine, Succeeded())
    assert settler.flush(30.0 if lock_ends else 0.1) is lock_ends
    assert forgotten == ([mine] if lock_ends else [])


def test_a_settler_whose_thread_has_died_says_that_the_store_was_away() -> None:
    store = Meddler(MemoryStore())
    settler = Settler(store, SystemClock(), lambda _: None, App("memory://").hooks)  # type: ignore[arg-type]
    settler.put(attempt(store), Succeeded())
    with store.down("settle"):
        assert not settler.flush(30.0)


def test_a_result_whose_row_is_locked_is_kept_while_others_are_saved(settling: Any) -> None:
    store, settler, forgotten = settling
    mine, others = attempt(store), [attempt(store) for _ in range(3)]
    store.locked.add(mine.job.id)
    settler.put(mine, Failed("no luck"))
    for each in others:
        settler.put(each, Succeeded())
    until(lambda: len(forgotten) == 3, "the others are saved")
    until(lambda: store.asked.count(mine.job.id) > 3, "it is tried again")
    assert (forgotten, settler.settled, settler.is_idle) == (others, 3, False)
    assert not mine.job.cancel_requested, "a locked row is not a request to cancel"
    store.locked.clear()
    assert settler.flush(30)
    assert (forgotten, row(store.real, mine.job.id).error) == ([*others, mine], "no luck")


def test_a_worker_that_leaves_with_a_locked_row_says_that_a_result_is_not_saved(
    settling: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store, settler, forgotten = settling
    mine = attempt(store)
    store.locked.add(mine.job.id)
    settler.put(mine, Succeeded())
    until(lambda: mine.job.id in store.asked)
    with caplog.at_level(logging.ERROR):
        settler.close()
    assert "shutting down with 1 results not saved: their rows are locked or too slow" in caplog.text
    assert (forgotten, row(store.real, mine.job.id).state) == ([], State.RUNNING)


def test_records_behind_a_locked_row_keep_their_order_and_hold_up_no_other_job() -> None:
    store = Locking()
    recorder = Recorder(store, SystemClock(), lambda *_: None)  # type: ignore[arg-type]
    mine, other = start_flow(store.real), start_flow(store.real)
    answers: list[tuple[int, Reply | Exception]] = []
    store.locked.add(mine.id)
    for number in (1, 2):
        record = a_record(mine, a_step(number))
        recorder.put(record, lambda answer, number=number: answers.append((number, answer)))  # type: ignore[misc]
        until(lambda: mine.id in store.asked)
    recorder.put(a_record(other, a_step(1)), lambda answer: answers.append((0, answer)))
    until(lambda: answers, "the other job's step is recorded")
    store.locked.clear()
    until(lambda: len(answers) == 3)
    recorder.close()
    assert answers == [(0, Reply.ACCEPTED), (1, Reply.ACCEPTED), (2, Reply.ACCEPTED)]


def test_a_recorder_that_closes_tells_the_workflow_of_a_locked_row() -> None:
    store = Locking()
    recorder = Recorder(store, SystemClock(), lambda *_: None)  # type: ignore[arg-type]
    mine = start_flow(store.real)
    store.locked.add(mine.id)
    answers: list[Reply | Exception] = []
    recorder.put(a_record(mine, a_step(1)), answers.append)
    until(lambda: mine.id in store.asked)
    recorder.close()
    until(lambda: answers)
    assert isinstance(answers[0], StoreUnavailable)


def test_a_locked_row_is_tried_again_at_growing_intervals() -> None:
    clock = FakeClock()
    rows: LockedRows[int] = LockedRows(clock)
    assert rows.next_s() is None
    pauses = []
    for _ in range(9):
        rows.put("a", 1)
        rows.put("a", 2)
        pauses.append(rows.next_s() or 0.0)
        assert rows.take_due() == []
        clock.advance(pauses[-1] + 1e-9)
        assert rows.take_due() == [1, 2]
    assert pauses[0] == pytest.approx(FIRST_S)
    assert pauses[1] == pytest.approx(2 * FIRST_S)
    assert pauses[-1] == pytest.approx(LONGEST_S)
    rows.free("a")
    rows.put("a", 1)
    assert rows.next_s() == pytest.approx(FIRST_S)


class Slow(Locking):
    """A store that stops every call about more than two jobs at its time limit."""

    def settle(self, settlements: Sequence[Settlement], under: None = None) -> list[Reply]:
        self._check(settlements)
        return super().settle(settlements)

    def record(self, records: Sequence[Record]) -> list[Reply]:
        self._check(records)
        return super().record(records)

    def beat(self, worker_id: str, pulses: Sequence[Pulse], rss_mb: float | None = None, **given: Any) -> BeatReply:
        self._check(pulses)
        return self.real.beat(worker_id, pulses, rss_mb, **given)

    def _check(self, jobs: Sequence[object]) -> None:
        if len(jobs) > 2:
            raise StoreTimeout("the server stopped a statement at its time limit")


def test_a_batch_of_results_that_takes_too_long_is_saved_in_smaller_pieces() -> None:
    store, app = Slow(), App("memory://")
    attempts = [attempt(store) for _ in range(7)]
    settler = Settler(store, SystemClock(), lambda _: None, app.hooks)  # type: ignore[arg-type]
    for each in attempts:
        settler.put(each, Succeeded())
    settler.start(lambda *_: None)
    assert settler.flush(30)
    settler.close()
    assert {row(store.real, each.job.id).state for each in attempts} == {State.DONE}


def test_a_batch_of_records_that_takes_too_long_is_written_in_smaller_pieces() -> None:
    store = Slow()
    recorder = Recorder(store, SystemClock(), lambda *_: None)  # type: ignore[arg-type]
    flows, answers = [start_flow(store.real) for _ in range(7)], []
    recorder._write([(a_record(flow, a_step(1)), answers.append) for flow in flows])
    assert answers == [Reply.ACCEPTED] * 7


def test_a_beat_that_takes_too_long_renews_the_leases_in_smaller_pieces() -> None:
    store = Slow()
    counted = SimpleNamespace(beaten=lambda _: None, look=lambda _: None)
    heartbeat = Heartbeat(store, SystemClock(), 10.0, lambda _: None, counted, list)  # type: ignore[arg-type]
    heartbeat.worker_id = enrol(store.real)
    jobs = [start(store.real, heartbeat.worker_id) for _ in range(7)]
    attempts = [Attempt(job, SimpleNamespace(), 0.0) for job in jobs]  # type: ignore[arg-type]
    heartbeat.keep(attempts)
    heartbeat.beat_soon()
    heartbeat._beat()
    assert all(each.window.sent_at > 0.0 for each in attempts)


def test_a_reaper_settles_a_page_that_takes_too_long_in_smaller_pieces() -> None:
    store = Slow()
    worker = enrol(store.real)
    jobs = [start(store.real, worker) for _ in range(7)]
    store.real.retire(worker, "its process died")
    assert Reaper(store, SystemClock()).once().recovered == 7  # type: ignore[arg-type]
    assert {row(store.real, job.id).state for job in jobs} == {State.READY}


class Stuck(Locking):
    """A store that fails every call about certain jobs or workers, even if it is about nothing else."""

    def __init__(self, error: StoreError) -> None:
        super().__init__()
        self.error = error
        self.stuck: set[str] = set()
        self.tried: list[list[str]] = []

    def settle(self, settlements: Sequence[Settlement], under: None = None) -> list[Reply]:
        self._check([each.lease.job_id for each in settlements])
        return super().settle(settlements)

    def record(self, records: Sequence[Record]) -> list[Reply]:
        self._check([each.lease.job_id for each in records])
        return super().record(records)

    def beat(self, worker_id: str, pulses: Sequence[Pulse], *args: Any, **given: Any) -> BeatReply:
        self._check([each.lease.job_id for each in pulses])
        return self.real.beat(worker_id, pulses, *args, **given)

    def retire(self, worker_id: str, *args: Any, **given: Any) -> bool:
        self._check([worker_id])
        return self.real.retire(worker_id, *args, **given)

    def _check(self, ids: list[str]) -> None:
        self.tried.append(ids)
        if self.stuck.intersection(ids):
            raise self.error


TOO_SLOW = StoreTimeout("the server stopped a statement at its time limit")
DAMAGED = StoreDamaged("the server reports damage")


def test_a_result_that_always_takes_too_long_holds_up_no_other() -> None:
    store, app, forgotten = Stuck(TOO_SLOW), App("memory://"), []
    attempts = [attempt(store) for _ in range(7)]
    store.stuck.add(attempts[2].job.id)
    settler = Settler(store, SystemClock(), forgotten.extend, app.hooks)  # type: ignore[arg-type]
    settler.start(lambda *_: None)
    for each in attempts:
        settler.put(each, Succeeded())
    until(lambda: len(forgotten) == 6, "the others are saved")
    until(lambda: store.tried.count([attempts[2].job.id]) > 1, "it is tried again by itself")
    late = attempt(store)
    settler.put(late, Succeeded())
    until(lambda: late in forgotten, "a later result is saved")
    assert row(store.real, attempts[2].job.id).state == State.RUNNING
    store.stuck.clear()
    assert settler.flush(60)
    settler.close()
    assert row(store.real, attempts[2].job.id).state == State.DONE


def test_a_result_for_a_damaged_row_holds_up_no_other() -> None:
    store, app, forgotten = Stuck(DAMAGED), App("memory://"), []
    attempts = [attempt(store) for _ in range(7)]
    store.stuck.add(attempts[2].job.id)
    settler = Settler(store, SystemClock(), forgotten.extend, app.hooks)  # type: ignore[arg-type]
    for each in attempts:
        settler.put(each, Succeeded())
    settler.start(lambda *_: None)
    until(lambda: len(forgotten) == 7, "the others are saved, and it is given up")
    settler.close()
    assert [row(store.real, each.job.id).state for each in attempts].count(State.DONE) == 6


def test_a_step_that_always_takes_too_long_holds_up_no_other_workflow() -> None:
    store = Stuck(TOO_SLOW)
    recorder = Recorder(store, SystemClock(), lambda *_: None)  # type: ignore[arg-type]
    mine, other = start_flow(store.real), start_flow(store.real)
    store.stuck.add(mine.id)
    answers: list[tuple[int, Reply | Exception]] = []
    for number in (1, 2):
        record = a_record(mine, a_step(number))
        recorder.put(record, lambda answer, number=number: answers.append((number, answer)))  # type: ignore[misc]
    recorder.put(a_record(other, a_step(1)), lambda answer: answers.append((0, answer)))
    until(lambda: answers, "the other workflow's step is recorded")
    store.stuck.clear()
    until(lambda: len(answers) == 3, "its own steps are recorded in their order")
    recorder.close()
    assert answers == [(0, Reply.ACCEPTED), (1, Reply.ACCEPTED), (2, Reply.ACCEPTED)]


def test_a_workflow_that_no_longer_listens_does_not_end_the_recorder() -> None:
    def closed(_: object) -> None:
        raise RuntimeError("Event loop is closed")

    store = Stuck(StoreError("this record can never be written"))
    mine, other, answers = start_flow(store.real), start_flow(store.real), []
    store.stuck.add(mine.id)
    recorder = Recorder(store, SystemClock(), lambda *_: None)  # type: ignore[arg-type]
    recorder._write([(a_record(mine, a_step(1)), closed), (a_record(other, a_step(1)), answers.append)])
    assert answers == [Reply.ACCEPTED]


def test_a_beat_that_always_takes_too_long_keeps_no_other_lease_from_being_renewed() -> None:
    store = Stuck(TOO_SLOW)
    counted = SimpleNamespace(beaten=lambda _: None, look=lambda _: None)
    heartbeat = Heartbeat(store, SystemClock(), 10.0, lambda _: None, counted, list)  # type: ignore[arg-type]
    heartbeat.worker_id = enrol(store.real)
    jobs = [start(store.real, heartbeat.worker_id) for _ in range(7)]
    attempts = [Attempt(job, SimpleNamespace(), 0.0) for job in jobs]  # type: ignore[arg-type]
    store.stuck.add(jobs[2].id)
    heartbeat.keep(attempts)
    heartbeat.beat_soon()
    with pytest.raises(StoreTimeout):
        heartbeat._beat()
    assert [each.window.sent_at > 0.0 for each in attempts] == [True, True, False, True, True, True, True]


@pytest.mark.parametrize("error", [TOO_SLOW, DAMAGED], ids=["too-slow", "damaged"])
def test_a_row_that_cannot_be_settled_keeps_no_other_job_from_being_recovered(error: StoreError) -> None:
    store = Stuck(error)
    worker = enrol(store.real)
    jobs = [start(store.real, worker) for _ in range(7)]
    store.real.retire(worker, "its process died")
    store.stuck.add(jobs[2].id)
    assert Reaper(store, SystemClock()).once().recovered == 6  # type: ignore[arg-type]
    store.stuck.clear()
    assert Reaper(store, SystemClock()).once().recovered == 1  # type: ignore[arg-type]


def test_a_reaper_gives_up_a_pass_over_a_store_that_is_slow_as_a_whole() -> None:
    store = Stuck(TOO_SLOW)
    worker = enrol(store.real)
    store.stuck.update(start(store.real, worker).id for _ in range(40))
    store.real.retire(worker, "its process died")
    with pytest.raises(StoreTimeout):
        Reaper(store, SystemClock()).once()  # type: ignore[arg-type]


def test_a_worker_that_cannot_be_marked_gone_keeps_no_other_from_being_recovered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Stuck(TOO_SLOW)
    workers = [enrol(store.real) for _ in range(2)]
    for worker in workers:
        start(store.real, worker)
    dead = [Vanished(each, "lock") for each in store.real.workers()]
    monkeypatch.setattr(store, "vanished", lambda: dead, raising=False)
    monkeypatch.setattr(store, "confirm_s", 0.0, raising=False)
    store.stuck.add(dead[0].worker.id)
    reaper = Reaper(store, SystemClock())  # type: ignore[arg-type]
    found = [reaper.once().recovered, reaper.once().recovered]
    assert sum(found) == 1
