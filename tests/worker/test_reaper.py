"""The reaper: a pass that reads, judges and settles; patient where it must be, stopped by nothing (DESIGN 5, 15)."""

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

from holdfast.core import acts
from holdfast.core.machine import State
from holdfast.core.records import Job, Pulse, Worker
from holdfast.core.recovery import RENEW_S, SECOND_LOOK_S, STORM, STORM_SPREAD_S
from holdfast.core.settlement import Settlement
from holdfast.core.verdict import Succeeded
from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import StoreLocked, StoreUnavailable, WorkerGone
from holdfast.runtime.hooks import Hooks
from holdfast.stores.memory import MemoryStore
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from holdfast.upkeep.reaper import PAGE, Reaper, reap, suspected
from holdfast.upkeep.reaper_service import until_next_look
from tests.conftest import SERVERS, open_store
from tests.factory import (
    a_step,
    add_many,
    again,
    claim,
    enrol,
    make_job,
    move,
    picture,
    record,
    row,
    settlement,
    stale_reports,
    start,
    start_flow,
)
from tests.worker.house import until
from tests.worker.meddler import DURABLE_PING, Meddler
from tests.worker.test_settler import damage

LEASE_S = 30.0
BEAT_S = 10.0
A_MOMENT_S = SECOND_LOOK_S + 0.01


@pytest.fixture
def reaper(store: Store, clock: FakeClock) -> Reaper:
    return Reaper(store, clock)


def twice(reaper: Reaper, clock: FakeClock) -> int:
    """Two looks, a moment apart, as a resident reaper makes them; return how many were recovered."""
    recovered = reaper.once().recovered
    clock.advance(A_MOMENT_S)
    return recovered + reaper.once().recovered


def many(store: Store, number: int, worker: str, **given: Any) -> list[Job]:
    add_many(store, [make_job(**given) for _ in range(number)])
    return claim(store, worker, limit=number)


def beat(store: Store, job: Job) -> None:
    assert job.worker is not None
    store.beat(job.worker, [Pulse(job.lease)])


def wait_idle(reaper: Reaper, clock: FakeClock, seconds: float, step_s: float = 0.25) -> int:
    """Let time pass as it does for a resident reaper: a pass every quarter of a second. Return the recovered."""
    recovered = 0
    end = clock.lease() + seconds
    while clock.lease() < end:
        recovered += reaper.once().recovered
        clock.advance(min(step_s, max(0.0, end - clock.lease())) or step_s)
    return recovered


# --------------------------------------------------------------------------------------------- expired


def test_a_lease_that_ran_out_is_settled_at_the_second_look(store: Store, clock: FakeClock, reaper: Reaper) -> None:
    job = start(store)
    clock.advance(LEASE_S)
    assert reaper.once().recovered == 0
    assert row(store, job.id).state is State.RUNNING
    clock.advance(A_MOMENT_S)
    report = reaper.once()
    assert report.recovered == 1
    assert report.zombies[0].detector == "expired"
    after = row(store, job.id)
    assert (after.state, after.crashes, after.zombies, after.fence) == (State.READY, 1, 1, job.fence + 1)
    assert after.run_at == job.run_at  # a first crash is ready at once, and in its place


def test_a_lease_that_has_not_run_out_is_left_alone(store: Store, clock: FakeClock, reaper: Reaper) -> None:
    """P9"""
    job = start(store)
    clock.advance(LEASE_S - 0.5)
    assert twice(reaper, clock) == 0
    assert row(store, job.id).state is State.RUNNING


def test_grace_is_added_to_the_lease(store: Store, clock: FakeClock) -> None:
    reaper = Reaper(store, clock, grace_s=5.0)
    start(store)
    assert wait_idle(reaper, clock, LEASE_S + 4.9) == 0
    assert wait_idle(reaper, clock, 0.6) == 1


def test_a_lease_that_is_being_renewed_is_never_taken(store: Store, clock: FakeClock, reaper: Reaper) -> None:
    """P9: ten leases long, with a reaper that looks all the time."""
    job = start(store)
    for _ in range(30):
        assert wait_idle(reaper, clock, BEAT_S) == 0
        beat(store, job)
    assert row(store, job.id).zombies == 0


def test_a_beat_that_comes_in_between_wins(store: Store, clock: FakeClock) -> None:
    """P9, DESIGN 5: the reaper has read the lease as over; before it settles, the worker beats."""
    meddler = Meddler(store)
    reaper = Reaper(meddler, clock)  # type: ignore[arg-type]
    job = start(store)
    clock.advance(LEASE_S)
    reaper.once()
    clock.advance(A_MOMENT_S)
    with meddler.before("settle", lambda *_: beat(store, job)):
        assert reaper.once().recovered == 0
    after = row(store, job.id)
    assert (after.state, after.fence, after.zombies) == (State.RUNNING, job.fence, 0)
    assert stale_reports(store, job.id) == [], "a reaper that comes too late is no zombie"
    assert twice(reaper, clock) == 0


def test_a_settle_that_comes_in_between_wins(store: Store, clock: FakeClock) -> None:
    """A job may be late: until it is reaped, its own worker may still end it."""
    meddler = Meddler(store)
    reaper = Reaper(meddler, clock)  # type: ignore[arg-type]
    job = start(store)
    clock.advance(LEASE_S)
    reaper.once()
    clock.advance(A_MOMENT_S)

    def finish(batch: list[Settlement], *_: Any) -> None:
        if batch:
            store.settle([settlement(job, Succeeded('"late"'))])

    with meddler.before("settle", finish):
        assert reaper.once().recovered == 0
    after = row(store, job.id)
    assert (after.state, after.result, after.zombies) == (State.DONE, '"late"', 0)
    assert stale_reports(store, job.id) == []


def test_any_number_of_reapers_settle_each_zombie_once(store: Store, clock: FakeClock) -> None:
    """P4: several look at the same moment, and act one after the other."""
    jobs = many(store, 20, enrol(store))
    reapers = [Reaper(store, clock) for _ in range(5)]
    clock.advance(LEASE_S)
    for reaper in reapers:
        reaper.once()
    clock.advance(A_MOMENT_S)
    assert sum(reaper.once().recovered for reaper in reapers) == 20
    for job in jobs:
        after = row(store, job.id)
        assert (after.crashes, after.zombies, after.fence) == (1, 1, 2)
        assert [event.kind for event in store.journal(job.id)] == ["zombie"]


def test_two_reapers_that_read_before_either_wrote(store: Store, clock: FakeClock) -> None:
    """The second one's settle is refused by the fence, and leaves nothing behind."""
    meddler = Meddler(store)
    slow, quick = Reaper(meddler, clock), Reaper(store, clock)  # type: ignore[arg-type]
    job = start(store)
    clock.advance(LEASE_S)
    slow.once()
    quick.once()
    clock.advance(A_MOMENT_S)
    with meddler.before("settle", lambda *_: quick.once()):
        assert slow.once().recovered == 0
    assert row(store, job.id).zombies == 1
    assert stale_reports(store, job.id) == []


def begins(store: Store, job: Job) -> Callable[..., None]:
    """Its worker, which was late and not dead, begins a step that must not be repeated; once."""
    steps = [a_step(1, "started", repeatable=False, has_undo=True)]

    def step(*_: Any) -> None:
        if steps:
            assert record(store, job, steps.pop(), open_step="charge", undoable=True) is Reply.ACCEPTED

    return step


def test_a_step_that_begins_in_between_is_held_at_the_next_look(store: Store, clock: FakeClock) -> None:
    """P13: the verdict was made of a row on which nothing was open."""
    meddler = Meddler(store)
    reaper = Reaper(meddler, clock)  # type: ignore[arg-type]
    job = start_flow(store)
    clock.advance(LEASE_S)
    reaper.once()
    clock.advance(A_MOMENT_S)
    with meddler.before("settle", begins(store, job)):
        assert reaper.once().recovered == 0
        assert row(store, job.id).state is State.RUNNING
        assert reaper.once().recovered == 1
    after = row(store, job.id)
    assert (after.state, after.open_step, after.zombies) == (State.HELD, "charge", 1)
    assert [event.kind for event in store.journal(job.id)] == ["zombie", "held"]


@pytest.mark.parametrize("released", [False, True], ids=["dead", "told to stop"])
def test_a_step_that_begins_while_a_dead_workers_jobs_are_settled_is_held_at_once(
    store: Store, clock: FakeClock, released: bool
) -> None:
    """Its last record was on the wire when it died; nobody may come by again for a while."""
    meddler = Meddler(store)
    reaper = Reaper(meddler, clock)  # type: ignore[arg-type]
    worker = enrol(store)
    job = start_flow(store, worker)
    known = next(each for each in store.workers() if each.id == worker)
    with meddler.before("settle", begins(store, job)):
        if released:
            assert reaper.release_worker(known, "it was told to stop") == 1
        else:
            [zombie] = reaper.recover_worker(known, "it was killed", WorkerExit("exit")).zombies
            assert (zombie.recovered, zombie.verdict.state) == (True, State.HELD)
    assert (row(store, job.id).state, row(store, job.id).suspects) == (State.HELD, 0)


@pytest.mark.parametrize("released", [False, True], ids=["dead", "told to stop"])
def test_a_workflow_that_was_claimed_ahead_and_has_an_open_step_had_begun(
    store: Store, reaper: Reaper, released: bool
) -> None:
    """P13: the record of the step arrived, and no beat told of the start any more."""
    store.add([make_job(workflow=True)])
    [job] = claim(store, worker := enrol(store), limit=0, ahead=1)
    begins(store, job)()
    assert not row(store, job.id).started
    [known] = [each for each in store.workers() if each.id == worker]
    if released:
        reaper.release_worker(known, "it was told to stop")
    else:
        reaper.recover_worker(known, "it was killed", WorkerExit("exit"))
    after = row(store, job.id)
    assert (after.state, after.open_step, after.crashes) == (State.HELD, "charge", 0 if released else 1)
    [event] = store.journal(job.id, ["released" if released else "zombie"])
    assert event.detail["started"] is True


def test_the_crash_of_a_job_that_was_asked_to_stop_is_its_cancellation(
    store: Store, clock: FakeClock, reaper: Reaper
) -> None:
    """15.11"""
    job = start(store)
    move(store, job.id, State.RUNNING, job.fence, acts.cancel(job, actor="ann"))
    clock.advance(LEASE_S)
    assert twice(reaper, clock) == 1
    assert row(store, job.id).state is State.CANCELLED


def test_what_on_crash_says_is_done(store: Store, clock: FakeClock, reaper: Reaper) -> None:
    jobs = {word: start(store, on_crash=word) for word in ("retry", "hold", "fail")}
    clock.advance(LEASE_S)
    assert twice(reaper, clock) == 3
    states = {word: row(store, job.id).state for word, job in jobs.items()}
    assert states == {"retry": State.READY, "hold": State.HELD, "fail": State.DEAD}


def test_a_crash_loop_ends(store: Store, clock: FakeClock, reaper: Reaper) -> None:
    job = start(store, crashes_max=3)
    for _ in range(2):
        assert wait_idle(reaper, clock, LEASE_S + 1) == 1
        wait_idle(reaper, clock, 10)  # the backoff after a second crash
        job = again(store, job)
    assert wait_idle(reaper, clock, LEASE_S + 1) == 1
    after = row(store, job.id)
    assert (after.state, after.crashes, after.zombies) == (State.DEAD, 3, 3)
    assert after.stop_reason == "crashes_max"


# --------------------------------------------------------------------------------------- many and bad rows


def test_more_than_a_page_of_zombies_is_recovered_in_one_go(store: Store, clock: FakeClock, reaper: Reaper) -> None:
    many(store, 2 * PAGE + 37, enrol(store))
    clock.advance(LEASE_S)
    assert twice(reaper, clock) == 2 * PAGE + 37
    assert store.counts() == {"default": {State.READY: 2 * PAGE + 37}}


def test_the_workers_of_a_page_are_asked_for_once_though_none_of_them_has_a_row(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(store, 30, enrol(store), on_crash="retry")
    clock.advance(LEASE_S)
    asked = [0]

    def nobody(gone: bool = False) -> list[Worker]:
        asked[0] += gone
        return []

    monkeypatch.setattr(store, "workers", nobody)
    assert twice(Reaper(store, clock), clock) == 30
    assert asked[0] < 5, "once, and by stores for themselves"


def test_more_than_a_page_of_one_dead_worker_is_recovered_in_one_pass(
    store: Store, clock: FakeClock, reaper: Reaper
) -> None:
    many(store, PAGE + 3, worker := enrol(store))
    [known] = [each for each in store.workers() if each.id == worker]
    assert reaper.recover_worker(known, "it was killed", WorkerExit("exit")).recovered == PAGE + 3


@pytest.mark.parametrize("found_by", ["expired", "exit", "gone"])
@pytest.mark.parametrize("number", [STORM, STORM + 1])
def test_a_storm_comes_back_spread_over_a_few_seconds(
    store: Store, clock: FakeClock, reaper: Reaper, number: int, found_by: str
) -> None:
    """15.15"""
    jobs = many(store, number, worker := enrol(store))
    if found_by == "expired":
        clock.advance(LEASE_S)
        twice(reaper, clock)
    elif found_by == "exit":
        [known] = [each for each in store.workers() if each.id == worker]
        reaper.recover_worker(known, "it was killed", WorkerExit("exit"))
    else:
        store.retire(worker, "it was killed", how=WorkerExit("exit"))
        reaper.once()
    delays = [row(store, job.id).run_at - clock.wall() for job in jobs]
    assert all(row(store, job.id).state is State.READY for job in jobs)
    if number <= STORM:
        assert {row(store, job.id).run_at for job in jobs} == {job.run_at for job in jobs}, "each in its place"
    else:
        assert min(delays) >= 0
        assert 1.0 < max(delays) <= STORM_SPREAD_S
        assert len(set(delays)) > STORM / 2


@pytest.mark.parametrize("found_by", ["expired", "exit", "gone"])
@pytest.mark.parametrize("begun", [STORM, STORM + 1])
def test_only_jobs_that_had_begun_make_a_storm(
    store: Store, clock: FakeClock, reaper: Reaper, begun: int, found_by: str
) -> None:
    """15.15: those that were claimed ahead come back in their places, at no cost, in a storm as well."""
    ahead = 3 * STORM
    store.add([make_job() for _ in range(begun + ahead)])
    jobs = claim(store, worker := enrol(store), limit=begun, ahead=ahead)
    clock.advance(LEASE_S if found_by == "expired" else 1.0)
    if found_by == "expired":
        twice(reaper, clock)
    elif found_by == "exit":
        [known] = [each for each in store.workers() if each.id == worker]
        reaper.recover_worker(known, "it was killed", WorkerExit("exit"))
    else:
        store.retire(worker, "it was killed", how=WorkerExit("exit"))
        reaper.once()
    rows = [row(store, job.id) for job in jobs]
    assert {each.state for each in rows} == {State.READY}
    kept = [each for each in rows if each.run_at <= clock.wall() - 1.0]
    assert len(kept) == (begun + ahead if begun <= STORM else ahead)
    assert sorted(each.crashes for each in rows) == [0] * ahead + [1] * begun
    assert {each.id for each in rows if not each.crashes} == {job.id for job in jobs if not job.started}


def test_jobs_of_a_worker_that_was_told_to_stop_come_back_in_their_places(
    store: Store, clock: FakeClock, reaper: Reaper
) -> None:
    store.add([make_job() for _ in range(6)])
    jobs = claim(store, worker := enrol(store), limit=3, ahead=3)
    clock.advance(1.0)
    [known] = [each for each in store.workers() if each.id == worker]
    assert reaper.release_worker(known, "the worker stopped") == 6
    for job in jobs:
        after = row(store, job.id)
        assert (after.state, after.run_at, after.crashes) == (State.READY, job.run_at, 0)
        assert after.releases == (1 if job.started else 0)
        [event] = store.journal(job.id, ["released"])
        assert event.detail["started"] is job.started


def test_a_storm_that_comes_back_lets_fresh_jobs_in(store: Store, clock: FakeClock) -> None:
    """15.15: who is spread over five seconds does not stand before a job that comes after the first."""
    number = 4 * STORM
    turns = iter(range(number))
    reaper = Reaper(store, clock, lots=lambda: next(turns) / number)
    jobs = many(store, number, worker := enrol(store))
    [known] = [each for each in store.workers() if each.id == worker]
    reaper.recover_worker(known, "it was killed", WorkerExit("exit"))
    clock.advance(1.0)
    fresh = make_job()
    store.add([fresh])
    before = claim(store, limit=number)
    assert before[-1].id == fresh.id, "it is the last of those that are due"
    assert len(before) - 1 == number / STORM_SPREAD_S + 1, "a fifth of them, and the one that is due just now"
    clock.advance(STORM_SPREAD_S)
    after = claim(store, limit=number)
    assert {job.id for job in (*before, *after)} == {fresh.id, *(job.id for job in jobs)}


@pytest.fixture
def file_store(clock: FakeClock, tmp_path: Path) -> Iterator[Store]:
    opened = open_store("sqlite", clock, tmp_path)
    opened.migrate()
    yield opened
    opened.close()


DAMAGES = {
    "it breaks a rule of its table": "attempt = 99",
    "a policy that contradicts itself": "backoff_base_s = 100.0, backoff_cap_s = 1.0, crashes = 1",
    "it cannot be read": "on_crash = 'whatever'",
    "a flag that is neither yes nor no": "started = 7",
}


@pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES.keys())
@pytest.mark.parametrize("found_by", ["expired", "exit", "gone", "released"])
@pytest.mark.parametrize("alone", [True, False], ids=["alone with its worker", "among others"])
def test_a_damaged_row_stops_nobody(
    file_store: Store, clock: FakeClock, tmp_path: Path, change: str, found_by: str, alone: bool
) -> None:
    """P10. The damaged one is found first; the others, of its own worker and of another, must still be recovered."""
    store, reaper = file_store, Reaper(file_store, clock)
    doomed = enrol(store)
    bad = start(store, doomed)
    if not alone:
        many(store, 3, doomed)
    other = enrol(store)
    others = many(store, 4, other)
    damage(tmp_path / "jobs.db", bad.id, change)
    if found_by == "expired":
        clock.advance(LEASE_S)
    elif found_by == "exit":
        [known] = [each for each in store.workers() if each.id == doomed]
        reaper.recover_worker(known, "it was killed", WorkerExit("exit"))
    elif found_by == "gone":
        store.retire(doomed, "it was killed", how=WorkerExit("exit"))
    else:
        store.retire(doomed, "the worker stopped", how=WorkerExit("released"))
    store.retire(other, "it was killed", how=WorkerExit("exit"))
    twice(reaper, clock)
    twice(reaper, clock)
    assert all(row(store, job.id).state is State.READY for job in others)
    assert store.counts()["default"][State.READY] >= (4 if alone else 7)


def test_a_damaged_row_is_complained_about_once_a_minute(
    file_store: Store, clock: FakeClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reaper = Reaper(file_store, clock)
    bad = start(file_store)
    damage(tmp_path / "jobs.db", bad.id, "attempt = 99")
    clock.advance(LEASE_S)
    wait_idle(reaper, clock, 90)
    said = [record for record in caplog.records if "cannot be settled, and a person must look" in record.getMessage()]
    assert len(said) == 2
    assert said[0].levelno == logging.ERROR


@pytest.mark.parametrize("fix", [True, False], ids=["fix", "dry run"])
def test_pages_of_rows_that_cannot_be_read_hide_nothing_behind_them(
    file_store: Store, clock: FakeClock, tmp_path: Path, fix: bool
) -> None:
    many(file_store, PAGE + 10, enrol(file_store), lease_s=10.0)
    with sqlite3.connect(tmp_path / "jobs.db") as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE holdfast_job SET id = CAST(CAST(id AS BLOB) || x'ff' AS TEXT)")
    connection.close()
    jobs = many(file_store, 5, enrol(file_store), lease_s=20.0)
    clock.advance(LEASE_S)
    reaper = Reaper(file_store, clock)
    zombies = reaper.once(fix=fix).zombies
    clock.advance(A_MOMENT_S)
    zombies += reaper.once(fix=fix).zombies
    assert sorted(zombie.job.id for zombie in zombies) == sorted(job.id for job in jobs)
    assert all(zombie.recovered is fix for zombie in zombies)


def test_rows_that_stay_are_looked_at_once_in_a_pass(file_store: Store, clock: FakeClock, tmp_path: Path) -> None:
    """One that cannot be read is not counted by the store; it must not make a pass read the others again."""
    for _ in range(20):
        damage(tmp_path / "jobs.db", start(file_store, lease_s=10.0).id, "id = CAST(CAST(id AS BLOB) || x'ff' AS TEXT)")
    start(file_store, lease_s=20.0)
    clock.advance(LEASE_S)
    meddler = Meddler(file_store)
    Reaper(meddler, clock).once()  # type: ignore[arg-type]
    assert meddler.calls["overdue"] == 2


def test_after_a_storm_there_is_a_second_look_again(store: Store, clock: FakeClock, reaper: Reaper) -> None:
    many(store, PAGE + 1, enrol(store))
    clock.advance(LEASE_S)
    assert twice(reaper, clock) == PAGE + 1
    job = start(store)
    assert wait_idle(reaper, clock, LEASE_S) == 0
    clock.advance(LEASE_S + 0.01 - 30.0)
    assert reaper.once().recovered == 0
    clock.advance(A_MOMENT_S)
    assert reaper.once().recovered == 1
    assert row(store, job.id).zombies == 1


def test_the_memory_of_complaints_does_not_grow(file_store: Store, clock: FakeClock, tmp_path: Path) -> None:
    reaper = Reaper(file_store, clock)
    for _ in range(3):
        damage(tmp_path / "jobs.db", (job := start(file_store)).id, "attempt = 99")
        wait_idle(reaper, clock, LEASE_S + 1)
        assert list(reaper._complained) == [job.id]
        damage(tmp_path / "jobs.db", job.id, "attempt = 1")
        wait_idle(reaper, clock, 100)
    assert reaper._complained == {}
    assert reaper._unwritable == {}


def test_the_whole_stores_trouble_is_not_a_rows(store: Store, clock: FakeClock) -> None:
    """A store that cannot be reached ends the pass; it does not try a thousand rows one by one."""
    meddler = Meddler(store)
    reaper = Reaper(meddler, clock)  # type: ignore[arg-type]
    many(store, 10, enrol(store))
    clock.advance(LEASE_S)
    reaper.once()
    clock.advance(A_MOMENT_S)
    calls = meddler.calls["settle"]
    with meddler.down("settle"), pytest.raises(StoreUnavailable):
        reaper.once()
    assert meddler.calls["settle"] == calls + 1
    assert reaper.once().recovered == 10


def test_hooks_that_raise_stop_neither_each_other_nor_the_recovery(store: Store, clock: FakeClock) -> None:
    hooks, heard = Hooks(), []

    def loud(_: Any) -> None:
        raise RuntimeError("a hook with a bug")

    hooks.on("zombie", loud)
    hooks.on("zombie", heard.append)
    hooks.on("held", loud)
    hooks.on("held", heard.append)
    reaper = Reaper(store, clock, hooks=hooks)
    jobs = [start(store, on_crash="hold") for _ in range(3)]
    clock.advance(LEASE_S)
    assert twice(reaper, clock) == 3
    assert hooks.flush()
    until(lambda: len(heard) == 6, "every hook is told of everything")
    assert sorted((each["kind"], each["id"]) for each in heard) == sorted(
        (kind, job.id) for job in jobs for kind in ("held", "zombie")
    )


def test_hooks_hear_of_a_dangerous_job_that_had_to_stop_with_its_worker(store: Store, clock: FakeClock) -> None:
    hooks = Hooks()
    heard: list[tuple[str, str]] = []
    hooks.on("held", lambda event: heard.append((event["kind"], event["id"])))
    job = start(store, on_crash="hold")
    [worker] = store.workers()
    assert Reaper(store, clock, hooks=hooks).release_worker(worker, "the worker stopped") == 1
    assert hooks.flush()
    assert heard == [("held", job.id)]


def test_a_slow_hook_does_not_hold_the_recovery_up(store: Store, clock: FakeClock) -> None:
    hooks, may_go_on = Hooks(), threading.Event()
    hooks.on("zombie", lambda _: may_go_on.wait(60))
    reaper = Reaper(store, clock, hooks=hooks)
    for _ in range(3):
        start(store)
    clock.advance(LEASE_S)
    assert twice(reaper, clock) == 3  # although the hook has not returned from the first
    may_go_on.set()
    assert hooks.flush()


def test_a_reaper_with_long_pauses_does_not_take_them_for_gaps(store: Store, clock: FakeClock) -> None:
    reaper = Reaper(store, clock, pace_s=60.0)
    reaper.once()
    job = start(store)
    clock.advance(60.0)
    reaper.once()
    clock.advance(60.0)
    reaper.once()
    assert row(store, job.id).crashes == 1


# --------------------------------------------------------------------------------------------- dry runs


def test_a_dry_run_changes_nothing(store: Store, clock: FakeClock) -> None:
    heard: list[Any] = []
    hooks = Hooks()
    hooks.on("zombie", heard.append)
    expired = start(store, on_crash="hold")
    gone = start(store, worker := enrol(store), lease_s=600.0)
    store.retire(worker, "it was killed", how=WorkerExit("exit"))
    clock.advance(LEASE_S)
    before = picture(store)
    reaper = Reaper(store, clock, hooks=hooks)
    reaper.once(fix=False)
    clock.advance(A_MOMENT_S)
    report = reaper.once(fix=False)
    assert picture(store) == before
    assert heard == []
    assert {(each.job.id, each.detector, each.verdict.state, each.recovered) for each in report.zombies} == {
        (expired.id, "expired", State.HELD, False),
        (gone.id, "exit", State.READY, False),
    }
    assert report.recovered == 0


def test_a_dry_run_counts_more_than_a_page(store: Store, clock: FakeClock) -> None:
    """Of each kind: overdue, and held by one worker that is gone."""
    many(store, 2 * PAGE + 7, enrol(store))
    gone = many(store, PAGE + 3, worker := enrol(store), lease_s=600.0)
    store.retire(worker, "its process was killed by SIGKILL", how=WorkerExit("exit", -9))
    clock.advance(LEASE_S)
    reaper = Reaper(store, clock)
    reaper.once(fix=False)
    clock.advance(A_MOMENT_S)
    zombies = reaper.once(fix=False).zombies
    assert len(zombies) == len({zombie.job.id for zombie in zombies}) == 3 * PAGE + 10
    assert {zombie.job.id for zombie in zombies if zombie.detector == "exit"} == {job.id for job in gone}


def test_what_is_only_given_back_is_no_zombie_in_a_dry_run(store: Store, clock: FakeClock) -> None:
    """Not even when its lease has run out as well."""
    start(store, worker := enrol(store))
    store.retire(worker, "the worker stopped", how=WorkerExit("released"))
    clock.advance(LEASE_S)
    before = picture(store)
    reaper = Reaper(store, clock)
    reaper.once(fix=False)
    clock.advance(A_MOMENT_S)
    assert reaper.once(fix=False).zombies == []
    assert picture(store) == before


def test_one_call_makes_a_complete_pass(store: Store, clock: FakeClock) -> None:
    start(store)
    clock.advance(LEASE_S)
    assert reap(store, Ticking(clock)).recovered == 1
    assert reap(store, Ticking(clock)).recovered == 0


@pytest.mark.parametrize("store", ["memory", "sqlite"], indirect=True)
def test_where_no_row_can_be_locked_a_worker_that_beats_gets_no_further_beat(store: Store, clock: FakeClock) -> None:
    """It has forgotten the job: nothing can have kept it from renewing the lease."""
    worker = enrol(store)
    start(store, worker)
    clock.advance(LEASE_S)
    store.beat(worker, [])
    assert twice(Reaper(store, clock), clock) == 1


def test_a_caller_that_waits_hears_of_every_page(store: Store, clock: FakeClock) -> None:
    gone = enrol(store)
    start(store, gone)
    start(store)
    store.retire(gone, "it was told to stop", how=WorkerExit("released"))
    clock.advance(LEASE_S)
    for _ in range(PAGE):
        start(store)
    assert suspected(store) == 2, "what was begun just now has its lease"
    clock.advance(LEASE_S)
    assert suspected(store) == PAGE + 2
    assert suspected(store, grace_s=LEASE_S) == 2, "a dead worker needs no patience"
    heard: list[int] = []
    assert reap(store, Ticking(clock), on_settled=heard.append).recovered == PAGE + 1, "what is given back is no zombie"
    assert (heard[0], sum(heard)) == (1, PAGE + 2)
    assert all(heard)
    assert suspected(store) == 0


class Ticking:
    """The clock of the store, moving on a little whenever somebody looks: `reap` pauses between its two looks."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def lease(self) -> float:
        self._clock.advance(A_MOMENT_S)
        return self._clock.lease()


# ----------------------------------------------------------------------------------- vanished, exit and gone


def test_a_death_that_was_seen_does_not_wait_for_the_lease(store: Store, clock: FakeClock, reaper: Reaper) -> None:
    """15.2: exit, vanished and restart settle by the fence alone, however long the lease still is."""
    job = start(store, worker := enrol(store), lease_s=600.0)
    [known] = [each for each in store.workers() if each.id == worker]
    clock.advance(1)
    beat(store, job)
    report = reaper.recover_worker(known, "its process was killed by SIGKILL", WorkerExit("exit", -9))
    assert report.recovered == 1
    [event] = store.journal(job.id)
    assert event.detail["detector"] == "exit"
    assert event.detail["cause"] == "its process was killed by SIGKILL"


def test_a_claim_in_flight_when_its_worker_is_declared_dead_gets_nothing(
    store: Store, clock: FakeClock, reaper: Reaper
) -> None:
    """15.2: the row is marked gone before the leases are settled, so no lease can slip in behind the reaper."""
    worker = enrol(store)
    start(store, worker)
    store.add([make_job()])
    [known] = [each for each in store.workers() if each.id == worker]
    reaper.recover_worker(known, "its process died", WorkerExit())
    with pytest.raises(WorkerGone):
        claim(store, worker)
    assert store.beat(worker, []).gone
    assert store.counts() == {"default": {State.READY: 2}}


def test_a_reaper_that_died_between_the_mark_and_the_settling_is_finished_by_the_next(
    store: Store, clock: FakeClock, reaper: Reaper
) -> None:
    jobs = many(store, 3, worker := enrol(store), lease_s=600.0)
    store.retire(worker, "its process died (pid 1 on h)", how=WorkerExit("vanished"))
    assert reaper.once().recovered == 3
    [event] = store.journal(jobs[0].id)
    assert (event.detail["detector"], event.detail["cause"]) == (
        "vanished",
        "its process died (pid 1 on h)",
    )
    assert row(store, jobs[0].id).suspects == 3


def test_what_a_stopped_worker_left_is_released_and_not_crashed(store: Store, clock: FakeClock, reaper: Reaper) -> None:
    """The supervisor knew that it was told to stop, and died before it could give the jobs back."""
    plain, careful = start(store, worker := enrol(store)), start(store, worker, on_crash="hold")
    store.retire(worker, "the worker stopped", how=WorkerExit("released"))
    reaper.once()
    after = row(store, plain.id)
    assert (after.state, after.crashes, after.zombies) == (State.READY, 0, 0)
    assert row(store, careful.id).state is State.HELD
    assert [event.kind for event in store.journal(plain.id)] == ["released"]


def test_the_first_reaper_settles_as_the_row_says(store: Store, clock: FakeClock) -> None:
    """The supervisor marked its child gone and then could not reach the store: its peers take it from there."""
    meddler = Meddler(store)
    job = start(store, worker := enrol(store), lease_s=600.0)
    [known] = [each for each in store.workers() if each.id == worker]
    parent = Reaper(meddler, clock)  # type: ignore[arg-type]
    with meddler.down("settle"), pytest.raises(StoreUnavailable):
        parent.recover_worker(known, "its process exited with code 76", WorkerExit("exit", 76, excused=True))
    [zombie] = Reaper(store, clock).once().zombies
    assert (zombie.detector, zombie.recovered) == ("exit", True)
    after = row(store, job.id)
    assert (after.state, after.crashes, after.zombies) == (State.READY, 0, 1)
    [event] = store.journal(job.id)
    assert (event.detail["detector"], event.detail["exit_code"]) == ("exit", 76)


def test_the_autopsy_says_what_is_known(store: Store, clock: FakeClock, reaper: Reaper) -> None:
    worker = enrol(store, name="ann", host="node-1", pid=4711)
    job = start(store, worker)
    clock.advance(4)
    store.beat(worker, [Pulse(job.lease, True, 0.5, "half way", "one\ntwo")], rss_mb=12.5)
    clock.advance(LEASE_S + 0.5)
    assert twice(reaper, clock) == 1
    [event] = store.journal(job.id)
    detail = event.detail
    assert (event.kind, event.fence) == ("zombie", job.fence)
    told = {name: detail[name] for name in ("detector", "worker", "host", "pid", "progress", "note", "rss_mb", "log")}
    assert told == {
        "detector": "expired",
        "worker": "ann",
        "host": "node-1",
        "pid": 4711,
        "progress": 0.5,
        "note": "half way",
        "rss_mb": 12.5,
        "log": ["one", "two"],
    }
    assert (detail["fence_before"], detail["fence_after"], detail["decision"]) == (1, 2, "retry")
    assert detail["seconds_overdue"] == pytest.approx(0.61)
    assert detail["seconds_since_beat"] == pytest.approx(30.61)


# -------------------------------------------------------------------------------- gaps of the store (15.5)


def test_after_an_outage_the_living_renew_first(store: Store, clock: FakeClock) -> None:
    """15.5: every lease ran out while nobody could reach the store. The worker beats as soon as it can."""
    meddler = Meddler(store)
    reaper = Reaper(meddler, clock)  # type: ignore[arg-type]
    job = start(store)
    wait_idle(reaper, clock, 5)
    with meddler.down():
        for _ in range(20):
            with pytest.raises(StoreUnavailable):
                reaper.once()
            clock.advance(2)
    assert wait_idle(reaper, clock, BEAT_S - 0.5) == 0
    beat(store, job)
    assert wait_idle(reaper, clock, LEASE_S - 1) == 0
    assert row(store, job.id).zombies == 0


def test_after_an_outage_the_dead_are_found_one_beat_later_and_it_costs_no_crash(
    store: Store, clock: FakeClock
) -> None:
    """15.5"""
    meddler = Meddler(store)
    reaper = Reaper(meddler, clock)  # type: ignore[arg-type]
    retried, careful = start(store), start(store, on_crash="hold")
    wait_idle(reaper, clock, 5)
    with meddler.down():
        clock.advance(40)
    assert wait_idle(reaper, clock, BEAT_S - 0.5) == 0
    assert wait_idle(reaper, clock, 1.5) == 2
    after = row(store, retried.id)
    assert (after.state, after.crashes, after.zombies) == (State.READY, 0, 1)
    assert row(store, careful.id).state is State.HELD


def test_an_outage_is_told_from_leases_by_the_clock_of_the_store(store: Store, clock: FakeClock) -> None:
    """A server has a clock of its own, which began elsewhere."""
    meddler, mine = Meddler(store), Behind(clock)
    reaper = Reaper(meddler, mine)  # type: ignore[arg-type]
    job = start(store)
    wait_idle(reaper, clock, 5)
    with meddler.down():
        clock.advance(40)
    assert wait_idle(reaper, clock, BEAT_S - 0.5) == 0
    assert wait_idle(reaper, clock, 1.5) == 1
    assert row(store, job.id).crashes == 0


class Behind:
    """The clock of a machine that was started long after the server."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def lease(self) -> float:
        return self._clock.lease() - 1e6


def many_overdue(store: Store, clock: FakeClock, number: int) -> str:
    """Let the leases of so many jobs end, and return the first of them."""
    add_many(store, [make_job(task="t", lease_s=3.0) for _ in range(number)])
    claimed = claim(store, enrol(store), tasks=["t"], limit=number)
    assert len(claimed) == number
    clock.advance(3.0)
    return claimed[0].id


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "redis"])
def test_leases_that_end_because_the_clock_of_the_store_is_set_ahead_may_be_renewed_first(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, clock: FakeClock
) -> None:
    theirs = FakeClock()
    url = request.getfixturevalue(kind) if kind in SERVERS else ""
    with closing(open_store(kind, theirs, tmp_path, url)) as store:
        store.migrate()
        living, lost = (start(store, enrol(store, beat_s=BEAT_S), lease_s=LEASE_S) for _ in range(2))
        reaper = Reaper(store, clock)
        reaper.once()
        theirs.advance(3600)

        def look(seconds: int) -> list[str]:
            found = []
            for _ in range(seconds):
                found += [zombie.job.id for zombie in reaper.once().zombies]
                for each in (theirs, clock):
                    each.advance(1.0)
            return found

        assert look(5) == []
        beat(store, living)
        assert look(10) == [lost.id]
        assert look(10) == []
        assert (row(store, living.id).state, row(store, living.id).fence) == ("running", 1)
        assert row(store, lost.id).crashes == 0, "nobody is to blame"


def test_a_pass_over_very_many_is_no_gap(store: Store, clock: FakeClock) -> None:
    """It takes longer than a beat, page by page; who was passed over at first is found by the second look."""
    meddler, number = Meddler(store), 3 * PAGE
    first = many_overdue(store, clock, number)
    reaper = Reaper(meddler, clock)  # type: ignore[arg-type]
    with meddler.before("settle", lambda *_: clock.advance(1.5)):
        assert twice(reaper, clock) == number
    assert row(store, first).crashes == 1


def test_a_silence_within_a_pass_is_a_gap(store: Store, clock: FakeClock) -> None:
    """15.5: nobody could write for a while, the living neither; who was seen before that gets a beat to renew."""
    meddler, number = Meddler(store), 3 * PAGE
    many_overdue(store, clock, number)
    reaper = Reaper(meddler, clock)  # type: ignore[arg-type]
    with meddler.before("overdue", lambda *_: clock.advance(8.0 if meddler.calls["overdue"] == 2 else 0.0)):
        assert twice(reaper, clock) == number - PAGE
    clock.advance(1.0)
    assert reaper.once().recovered == PAGE


def freeze(clock: FakeClock, until: float, busy_s: float = 10.0) -> Callable[..., None]:
    """A writer that holds the file until then: whoever wants to write waits, and is told after `busy_s`."""

    def wait(*_: Any) -> None:
        left = until - clock.lease()
        clock.advance(max(0.0, min(left, busy_s)))
        if left > busy_s:
            raise StoreUnavailable("stayed locked")

    return wait


@pytest.mark.parametrize("thaw", [12.0, 22.0, 26.0, 30.5, 31.0, 33.0, 38.0, 45.0, 70.0])
def test_a_frozen_writer_is_a_gap_although_reads_work(store: Store, clock: FakeClock, thaw: float) -> None:
    """15.5: nobody can renew while the file is locked, from just before a beat was due until `thaw` seconds later.
    However little of that a reaper sees after the lease has ended, the living come first."""
    meddler = Meddler(store)
    reaper = Reaper(meddler, clock)  # type: ignore[arg-type]
    job = start(store)
    began = clock.lease()
    wait_idle(reaper, clock, BEAT_S - 0.5)
    recovered = 0
    with meddler.before("ping", freeze(clock, began + thaw)):
        while clock.lease() < began + thaw:
            try:
                recovered += reaper.once().recovered
            except StoreUnavailable:
                clock.advance(2)
            clock.advance(0.25)
    recovered += wait_idle(reaper, clock, 4)  # by then the heartbeat, which waits two seconds at most, has beaten
    assert recovered == 0
    beat(store, job)
    assert wait_idle(reaper, clock, LEASE_S - 1) == 0
    assert row(store, job.id).zombies == 0


@pytest.fixture
def hanging(store: Store) -> Meddler:
    """A store of which only a write of the reaper's own shows whether commits end."""
    store.commits_may_hang = True
    return Meddler(store)


def watch_idle(reaper: Reaper, store: Meddler, clock: FakeClock, seconds: float) -> int:
    """Let time pass as it does for the reaper of a worker; return the recovered."""
    recovered = 0
    end = clock.lease() + seconds
    while clock.lease() < end:
        try:
            recovered += reaper.once().recovered
            until_next_look(reaper, store, 0.0)  # type: ignore[arg-type]
        except StoreUnavailable:
            clock.advance(0.25)
        clock.advance(0.25)
    return recovered


def test_where_commits_work_a_lease_is_judged_as_soon_as_it_ends(hanging: Meddler, clock: FakeClock) -> None:
    """P8. Nothing is written before a lease is late."""
    reaper = Reaper(hanging, clock)  # type: ignore[arg-type]
    start(hanging.real)
    assert watch_idle(reaper, hanging, clock, LEASE_S - RENEW_S) == 0
    assert hanging.calls["ping"] > 0
    assert hanging.calls[DURABLE_PING] == 0
    assert watch_idle(reaper, hanging, clock, RENEW_S + 0.75) == 1
    assert 3 <= hanging.calls[DURABLE_PING] <= 5


def test_nothing_is_committed_for_short_leases_that_are_renewed_in_time(hanging: Meddler, clock: FakeClock) -> None:
    """P16: they always end soon, and a look at them is all."""
    reaper = Reaper(hanging, clock)  # type: ignore[arg-type]
    job = start(hanging.real, lease_s=3.0)
    for _ in range(10):
        assert watch_idle(reaper, hanging, clock, 1.0) == 0
        beat(hanging.real, job)
    assert hanging.calls[DURABLE_PING] == 0


@pytest.mark.parametrize("back", [12.0, 22.0, 27.5, 28.5, 30.0, 30.5, 33.0, 45.0, 70.0])
def test_when_commits_work_again_the_living_renew_first(hanging: Meddler, clock: FakeClock, back: float) -> None:
    """15.5: reads work all the time, and so does a ping that writes nothing. However little of it a reaper sees after
    the lease has ended, the living come first."""
    reaper = Reaper(hanging, clock)  # type: ignore[arg-type]
    job = start(hanging.real)
    began = clock.lease()
    watch_idle(reaper, hanging, clock, BEAT_S - 0.5)

    def fail() -> None:
        if clock.lease() < began + back:
            clock.advance(min(5.0, began + back - clock.lease()))
            raise StoreUnavailable("no answer within 5 s")

    with hanging.before(DURABLE_PING, fail):
        recovered = watch_idle(reaper, hanging, clock, began + back - clock.lease())
    recovered += watch_idle(reaper, hanging, clock, 2.0)  # by then the heartbeat, which waits that long, has beaten
    assert recovered == 0
    beat(hanging.real, job)
    assert watch_idle(reaper, hanging, clock, LEASE_S - 1) == 0
    assert row(hanging.real, job.id).zombies == 0


def test_a_lease_that_ended_while_no_commit_did_costs_no_crash(hanging: Meddler, clock: FakeClock) -> None:
    reaper = Reaper(hanging, clock)  # type: ignore[arg-type]
    job = start(hanging.real)

    def fail() -> None:
        raise StoreUnavailable("no commit ends")

    watch_idle(reaper, hanging, clock, 5)
    with hanging.before(DURABLE_PING, fail):
        assert watch_idle(reaper, hanging, clock, LEASE_S) == 0
    assert watch_idle(reaper, hanging, clock, BEAT_S - 0.5) == 0
    assert watch_idle(reaper, hanging, clock, 1.5) == 1
    assert (row(hanging.real, job.id).crashes, row(hanging.real, job.id).zombies) == (0, 1)


def test_one_call_gives_the_living_time_to_renew_and_says_when_no_commit_ends(
    hanging: Meddler, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot know whether commits work again since a moment ago."""
    monkeypatch.setattr("holdfast.upkeep.reaper.pause", clock.advance)
    job = start(hanging.real)
    clock.advance(LEASE_S)
    asked_at = clock.lease()
    assert reap(hanging, clock).recovered == 1  # type: ignore[arg-type]
    assert RENEW_S <= clock.lease() - asked_at <= RENEW_S + 2 * SECOND_LOOK_S

    def fail() -> None:
        raise StoreUnavailable("no commit ends")

    job = start(hanging.real)
    clock.advance(LEASE_S)
    with hanging.before(DURABLE_PING, fail):
        assert reap(hanging, clock, fix=False).latest != [], "a dry run writes nothing"  # type: ignore[arg-type]
    with hanging.before(DURABLE_PING, fail), pytest.raises(StoreUnavailable, match="no commit ends"):
        reap(hanging, clock)  # type: ignore[arg-type]
    assert row(hanging.real, job.id).state is State.RUNNING


def test_a_damaged_row_that_stays_costs_one_commit_a_minute(
    file_store: Store, clock: FakeClock, tmp_path: Path
) -> None:
    file_store.commits_may_hang = True
    hanging = Meddler(file_store)
    reaper = Reaper(hanging, clock)  # type: ignore[arg-type]
    job = start(file_store)
    damage(tmp_path / "jobs.db", job.id, "attempt = 99")
    clock.advance(LEASE_S)
    watch_idle(reaper, hanging, clock, RENEW_S + 1)
    before = hanging.calls[DURABLE_PING]
    watch_idle(reaper, hanging, clock, 50)
    assert 0 < before == hanging.calls[DURABLE_PING]


@pytest.mark.parametrize("gaps", [(22.0, 3.0), (7.0, 7.0, 7.0)])
def test_the_living_come_first_after_several_gaps_in_a_row(
    store: Store, clock: FakeClock, gaps: tuple[float, ...]
) -> None:
    """15.5: a short gap does not end the patience after a long one, and several short ones count as one."""
    reaper = Reaper(store, clock)
    job = start(store)
    wait_idle(reaper, clock, BEAT_S - 0.5)
    for gap_s in gaps:
        clock.advance(gap_s)
        assert wait_idle(reaper, clock, 0.5) == 0
    assert wait_idle(reaper, clock, BEAT_S - 1) == 0
    beat(store, job)
    assert wait_idle(reaper, clock, LEASE_S - 1) == 0
    assert wait_idle(reaper, clock, 2) == 1


def test_a_loss_long_after_a_gap_is_an_ordinary_crash(store: Store, clock: FakeClock) -> None:
    reaper = Reaper(store, clock)
    reaper.once()
    clock.advance(40)  # a gap with nothing running
    reaper.once()
    clock.advance(1)
    job = start(store)
    assert wait_idle(reaper, clock, LEASE_S + 1) == 1
    assert row(store, job.id).crashes == 1


def test_a_reaper_that_looks_all_the_time_is_not_patient_for_nothing(store: Store, clock: FakeClock) -> None:
    """P8: without a gap a lost lease is settled within a second of its end."""
    reaper = Reaper(store, clock)
    start(store)
    assert wait_idle(reaper, clock, LEASE_S - 0.25) == 0
    assert wait_idle(reaper, clock, 1.0) == 1


def test_an_attempt_that_its_own_process_gave_up_is_excused(store: Store, clock: FakeClock, reaper: Reaper) -> None:
    """15.5: a process that ended itself because no beat got through (exit code 76)."""
    job = start(store, worker := enrol(store))
    [known] = [each for each in store.workers() if each.id == worker]
    reaper.recover_worker(known, "its process exited with code 76", WorkerExit("exit", 76, excused=True))
    after = row(store, job.id)
    assert (after.state, after.crashes, after.zombies) == (State.READY, 0, 1)


def test_sqlite_damage_is_what_it_claims_to_be(file_store: Store, clock: FakeClock, tmp_path: Path) -> None:
    """The net above is worth nothing if the damaged row could be settled after all."""
    job = start(file_store)
    damage(tmp_path / "jobs.db", job.id, "attempt = 99")
    with sqlite3.connect(tmp_path / "jobs.db") as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute("UPDATE holdfast_job SET fence = fence + 1 WHERE id = ?", (job.id,))
    connection.close()


@pytest.mark.parametrize("error", [StoreLocked("its row is locked"), StoreUnavailable("the server is gone")])
def test_a_silent_worker_that_cannot_be_marked_gone_does_not_hide_what_was_recovered(
    store: Store, clock: FakeClock, error: StoreUnavailable
) -> None:
    silent, other = enrol(store, name="silent"), enrol(store, name="other")
    clock.advance(2 * 86_400)
    job = start(store, worker := enrol(store))
    store.retire(worker, "its process died")
    meddler = Meddler(store)

    def refuse(worker_id: str, *_: Any) -> None:
        if worker_id == silent:
            raise error

    reaper = Reaper(meddler, clock)  # type: ignore[arg-type]
    with meddler.before("retire", refuse):
        assert [zombie.job.id for zombie in reaper.once().zombies] == [job.id]
    left = {silent} if isinstance(error, StoreLocked) else {silent, other}
    assert {each.id for each in store.workers()} == left


def test_a_worker_that_was_silent_for_a_day_and_holds_nothing_is_marked_gone(store: Store, clock: FakeClock) -> None:
    silent, busy = enrol(store, name="silent"), enrol(store, name="busy")
    start(store, busy, lease_s=200_000.0)
    clock.advance(86_399)
    Reaper(store, clock).once()
    assert {worker.name for worker in store.workers()} == {"silent", "busy"}
    clock.advance(2)
    alive = enrol(store, name="alive")
    Reaper(store, clock).once()
    assert {worker.id for worker in store.workers()} == {busy, alive}
    assert store.beat(silent, []).gone


NO_PID = 2**22 + 7  # no process has such a number: systems give smaller ones


@pytest.mark.parametrize(
    ("given", "gone"),
    [
        ({}, True),
        ({"name": "another"}, False),
        ({"host": "elsewhere"}, False),
        ({"boot_id": "another boot"}, False),
        ({"pid": os.getpid()}, False),
        ({"pid": 1}, False),
    ],
    ids=["ended", "another name", "another host", "another boot", "the same process", "somebody's process"],
)
def test_an_earlier_process_of_a_worker_that_is_seen_to_be_gone_is_not_waited_for_a_day(
    clock: FakeClock, given: dict[str, Any], gone: bool
) -> None:
    store = MemoryStore(clock=clock)
    here: dict[str, Any] = {"name": "box", "host": gethostname(), "boot_id": clock.boot_id, "pid": NO_PID}
    silent = enrol(store, **here | given)
    Reaper(store, clock, name="box").once()
    assert [worker.id for worker in store.workers()] == [silent], "it may have written its row a moment ago"
    clock.advance(60)
    Reaper(store, clock).once()
    assert [worker.id for worker in store.workers()] == [silent]
    Reaper(store, clock, name="box").once()
    assert [worker.id for worker in store.workers()] == ([] if gone else [silent])


def test_an_earlier_process_of_a_worker_that_still_holds_jobs_is_left_to_their_leases(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    busy = enrol(store, name="box", host=gethostname(), boot_id=clock.boot_id, pid=NO_PID)
    start(store, busy, lease_s=200_000.0)
    clock.advance(60)
    Reaper(store, clock, name="box").once()
    assert [worker.id for worker in store.workers()] == [busy]


def test_a_lost_attempt_carries_the_release_of_the_worker_that_had_it(store: Store, clock: FakeClock) -> None:
    job = start(store, enrol(store, release="2.4.1"))
    store.retire(str(job.worker), "its process has ended", how=WorkerExit("exit", -9))
    Reaper(store, clock).complete()
    [zombie] = store.journal(job.id, kinds=["zombie"])
    assert zombie.detail["release"] == "2.4.1"
