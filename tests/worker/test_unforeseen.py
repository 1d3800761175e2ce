"""A job that nobody has foreseen comes before the reaper: it is named and left, and all others are recovered (P15)."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from holdfast.core.machine import State
from holdfast.core.records import Job
from holdfast.core.settlement import Settlement
from holdfast.errors import StoreDamaged
from holdfast.runtime.hooks import Hooks
from holdfast.stores.memory import MemoryStore
from holdfast.stores.protocol import Reply, Store
from holdfast.stores.sqlite import statements
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import FakeClock
from holdfast.upkeep import reaper as reaper_module
from holdfast.upkeep.reaper import Reaper
from tests.conftest import open_store
from tests.factory import add, claim, enrol, make_job, row, start
from tests.servers import RedisServer

JOBS = 5  # the third one is odd


@pytest.fixture
def lost(store: Store, clock: FakeClock) -> list[Job]:
    """Running jobs whose leases have run out."""
    worker = enrol(store)
    jobs = [start(store, worker, lease_s=5.0) for _ in range(JOBS)]
    clock.advance(6)
    return jobs


def passes(store: Store, clock: FakeClock, hooks: Hooks | None = None) -> int:
    """Make the two passes that it takes to believe a death; return how many jobs were recovered."""
    reaper = Reaper(store, clock, hooks=hooks)
    reaper.once()
    clock.advance(0.2)
    return reaper.once().recovered


def recovered(store: Store, jobs: Sequence[Job]) -> list[bool]:
    return [row(store, job.id).state is State.READY for job in jobs]


ALL_BUT_THE_THIRD = [True, True, False, True, True]


def test_a_job_that_cannot_be_judged_is_named_and_left_for_the_next_pass(
    store: Store, clock: FakeClock, lost: list[Job], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    odd, judge = lost[2].id, reaper_module.judge

    def judge_or_fail(outcome: Any, job: Job, *rest: Any, **more: Any) -> Any:
        if job.id == odd:
            raise ZeroDivisionError("a case that nobody has foreseen")
        return judge(outcome, job, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(reaper_module, "judge", judge_or_fail)
        assert passes(store, clock) == JOBS - 1
    assert recovered(store, lost) == ALL_BUT_THE_THIRD
    [told] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert f"job {odd} cannot be settled" in told.getMessage()
    assert told.exc_info is not None, "the log has the traceback"
    assert passes(store, clock) == 1
    assert recovered(store, lost) == [True] * JOBS


def test_a_job_that_cannot_be_settled_is_named_and_left_for_the_next_pass(
    store: Store, clock: FakeClock, lost: list[Job], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    odd, settle = lost[2].id, store.settle

    def settle_or_fail(batch: Sequence[Settlement], *rest: Any, **more: Any) -> list[Reply]:
        if any(each.lease.job_id == odd for each in batch):
            raise OverflowError("a number that nobody has foreseen")
        return settle(batch, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(store, "settle", settle_or_fail)
        assert passes(store, clock) == JOBS - 1
    assert recovered(store, lost) == ALL_BUT_THE_THIRD
    assert f"job {odd} cannot be settled" in caplog.text
    assert passes(store, clock) == 1
    assert recovered(store, lost) == [True] * JOBS


def test_a_job_of_which_nobody_can_be_told_is_recovered_with_all_others(
    store: Store, clock: FakeClock, lost: list[Job], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    odd, tell, told = lost[2].id, Hooks.tell, list[str]()

    def tell_or_fail(hooks: Hooks, job: Job, *rest: Any) -> None:
        if job.id == odd:
            raise KeyError("nobody has foreseen it")
        told.append(job.id)
        tell(hooks, job, *rest)

    monkeypatch.setattr(Hooks, "tell", tell_or_fail)
    assert passes(store, clock, Hooks()) == JOBS
    assert sorted(told) == sorted(job.id for job in lost if job.id != odd)
    assert f"job {odd} was settled" in caplog.text


def test_a_worker_whose_death_cannot_be_judged_does_not_stop_the_recovery_of_others(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    odd, other = enrol(store, name="odd"), enrol(store, name="other")
    jobs = [start(store, worker) for worker in (odd, other)]
    for worker in (odd, other):
        store.retire(worker, "killed")
    death_of = reaper_module.recovery.death_of

    def death_or_fail(vanished: Any, *rest: Any) -> Any:
        if vanished.worker.id == odd:
            raise ZeroDivisionError("a case that nobody has foreseen")
        return death_of(vanished, *rest)

    monkeypatch.setattr(reaper_module.recovery, "death_of", death_or_fail)
    passes(store, clock)
    assert recovered(store, jobs) == [False, True]
    assert caplog.text.count("worker odd cannot be recovered") == 1, "a pass every half second says it once a minute"


# ------------------------------------------------------------------------- a row that no decoder accepts


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def damaged(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> Any:
    """A store, and a function that makes the row of a running job unreadable. Its own check would complain."""
    kind = request.param
    url = request.getfixturevalue(kind) if kind in ("postgres", "redis") else ""
    with closing(open_store(kind, clock, tmp_path, url)) as store:
        store.migrate()

        def spoil(job: Job) -> None:
            if isinstance(store, MemoryStore):
                store._jobs[job.id] = msgspec.structs.replace(job, lease_s="x", attempts_max=None)  # type: ignore[arg-type]
            elif kind == "sqlite":
                change(tmp_path / "jobs.db", "UPDATE holdfast_job SET id = CAST(x'6aff' AS TEXT) WHERE id = ?", job.id)
            elif kind == "postgres":
                with psycopg.connect(url, autocommit=True) as db:
                    db.execute(
                        "UPDATE holdfast.job SET lease_s = 'NaN', backoff_base_s = '-inf' WHERE id = %s", (job.id,)
                    )
            else:
                server: RedisServer = request.getfixturevalue("redis_server")
                with closing(server.client()) as client:
                    client.set(f"{{holdfast}}:j:{job.id}", b"\xff\xfe no row")

        yield store, spoil
        for worker in store.workers():
            store.retire(worker.id, "the test is over")


def change(path: Path, statement: str, *values: object) -> None:
    """Write to a SQLite store what no program of ours would."""
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(statement, values)


def test_a_running_row_that_no_decoder_accepts_leaves_all_others_to_be_recovered(
    damaged: Any, clock: FakeClock
) -> None:
    store, damage = damaged
    worker = enrol(store)
    jobs = [start(store, worker, lease_s=5.0) for _ in range(JOBS)]
    damage(jobs[2])
    clock.advance(6)
    passes(store, clock)
    others = [job for job in jobs if job is not jobs[2]]
    assert recovered(store, others) == [True] * (JOBS - 1)
    assert start(store).state is State.RUNNING


# ---------------------------------------------------------------- a row that contradicts a CHECK, on SQLite

CONTRADICTIONS = ["fence = -1", "attempt = 4611686018427387904", "ended_at = 5", "wake_at = 5", "question = 'x'"]


@pytest.fixture
def file(tmp_path: Path, clock: FakeClock) -> Any:
    with closing(SqliteStore(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal", clock=clock)) as store:
        store.migrate()
        yield store, tmp_path / "jobs.db"


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("change_of", CONTRADICTIONS)
def test_a_ready_row_that_contradicts_itself_is_held_and_stops_no_claim(
    file: Any, caplog: pytest.LogCaptureFixture, change_of: str, group: str | None
) -> None:
    store, path = file
    bad, *others = [add(store, group=group) for _ in range(4)]
    change(path, f"UPDATE holdfast_job SET {change_of} WHERE id = ?", bad.id)
    got = [job.id for _ in range(3) for job in claim(store, limit=1)]
    assert got == [job.id for job in others]
    held = row(store, bad.id)
    assert held.state is State.HELD
    assert (held.error or "").startswith("its row was damaged by another program (CHECK constraint failed")
    assert f"job {bad.id} cannot be claimed" in caplog.text
    assert store.journal(bad.id, kinds=["held"])[0].detail["reason"] == held.error
    assert store.delete([held.seen]) == [Reply.ACCEPTED]
    assert claim(store, limit=10) == []


def test_many_rows_that_contradict_themselves_stop_no_claim(file: Any) -> None:
    store, path = file
    store.add([make_job() for _ in range(40)])
    change(path, "UPDATE holdfast_job SET fence = -1 WHERE seq % 2 = 1")
    assert len(claim(store, limit=15)) == 15
    assert len(claim(store, limit=15)) == 5
    assert store.counts()["default"] == {State.RUNNING: 20, State.HELD: 20}


def test_a_claim_ends_when_such_a_row_cannot_be_held_either(file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store, path = file
    job = add(store)
    change(path, "UPDATE holdfast_job SET fence = -1 WHERE id = ?", job.id)
    with monkeypatch.context() as patch:
        patch.setattr(statements, "move", lambda db, moves, wall: [Reply.REFUSED for _ in moves])
        with pytest.raises(StoreDamaged, match=f"job {job.id} can be neither claimed nor held"):
            claim(store, limit=1)
    assert claim(store, limit=1) == []
    assert row(store, job.id).state is State.HELD


def test_a_running_row_without_a_lease_hides_no_lease_that_has_run_out(file: Any, clock: FakeClock) -> None:
    store, path = file
    jobs = [start(store, lease_s=5.0) for _ in range(3)]
    change(path, "UPDATE holdfast_job SET lease_until = NULL WHERE id = ?", jobs[1].id)
    clock.advance(6)
    passes(store, clock)
    assert recovered(store, jobs) == [True, False, True]
