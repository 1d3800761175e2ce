"""The attempts of a job as a picture shows them."""

from __future__ import annotations

from holdfast import insight
from holdfast.core.machine import State
from holdfast.core.verdict import Failed, Lost, Succeeded
from holdfast.server.pages.job import lanes
from holdfast.stores.memory import MemoryStore
from holdfast.testing import FakeClock
from tests.factory import add, again, job_in, row, settle, start


def attempts(store: MemoryStore, job_id: str) -> list[insight.AttemptView]:
    return insight.attempts_of(row(store, job_id), store.journal(job_id), store.now())


def test_a_job_that_nobody_has_claimed_has_no_attempt(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    assert attempts(store, add(store).id) == []


def test_each_attempt_is_there_once_and_a_success_without_an_event_too(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    job = start(store, attempts_max=5, base_s=1.0, cap_s=1.0)
    began = store.now().wall
    clock.advance(2)
    settle(store, job, Failed("no luck"))
    clock.advance(5)
    job = again(store, row(store, job.id))
    clock.advance(3)
    settle(store, job, Succeeded())
    failed, done = attempts(store, job.id)
    assert (failed.outcome, failed.number, failed.ended_at) == ("failed", 1, began + 2)
    assert (done.outcome, done.number, done.waited_from) == ("succeeded", 2, began + 2)
    assert (done.began_at, done.ended_at) == (began + 7, began + 10)


def test_a_running_attempt_has_its_lease_and_no_end(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    job = start(store, lease_s=30.0)
    clock.advance(4)
    [running] = attempts(store, job.id)
    assert (running.outcome, running.ended_at) == ("running", None)
    assert running.lease_until == store.now().wall + 26


def test_a_report_after_its_attempt_was_taken_for_dead_is_marked(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    job = start(store, on_crash="hold")
    clock.advance(10)
    settle(store, job, Lost("expired", "the lease ran out"))
    clock.advance(40)
    settle(store, job, Succeeded())
    [lost] = attempts(store, job.id)
    assert lost.outcome == "zombie"
    assert lost.refused_at is not None
    assert lost.ended_at is not None
    assert lost.refused_at - lost.ended_at == 40
    [lane] = lanes([lost], row(store, job.id), store.now().wall)
    assert lane["refused"] == 1000.0
    assert 0 <= lane["left"] < lane["stop"] < lane["refused"]


def test_marks_stay_inside_the_picture_when_the_clock_is_set_back(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    job = job_in(store, State.DEAD)
    shown = list(lanes(attempts(store, job.id), job, store.now().wall - 3_600))
    for lane in shown:
        assert 0 <= lane["left"] <= 1000
        assert lane["took_s"] is None or lane["took_s"] >= 0
