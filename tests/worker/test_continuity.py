"""P14: a store that was replaced, rewound or emptied under a worker is noticed, and nothing is claimed until a person
has accepted it."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import App
from holdfast.continuity import WORKER, Continuity
from holdfast.core.continuity import Doubt
from holdfast.core.machine import State
from holdfast.errors import StoreUnavailable
from holdfast.testing import FakeClock
from tests.factory import enrol
from tests.worker.house import House, until
from tests.worker.meddler import once

BEAT_S = 0.2
FEWER_REMOVALS = "UPDATE holdfast.meta SET value = (value::bigint - 1)::text WHERE name = 'removals'"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def house(file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr("holdfast.upkeep.reaper.pause", lambda _: None)  # the sweep's second look
    house = House(App(f"sqlite:///{file}"))
    yield house
    house.close()


@pytest.fixture
def postgres_house(postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr("holdfast.upkeep.reaper.pause", lambda _: None)
    house = House(App(postgres))
    yield house
    house.close()


def copy(source: Path, target: Path) -> None:
    """Copy a live file as people restore one in place: the path, the inode and all connections stay."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target, timeout=30)) as new:
        old.backup(new)


def add_task(house: House) -> Any:
    @house.app.task(name="t", lease_s=30, beat_s=BEAT_S)
    def task() -> None: ...

    return task


def watch(house: House) -> Continuity:
    """Return what a worker's heartbeat looks with; here the test says when."""
    continuity = Continuity(house.store, FakeClock(), "w", WORKER)  # type: ignore[arg-type]
    continuity.look("")
    return continuity


def unavailable(*_: object) -> None:
    raise StoreUnavailable("on purpose")


def kinds(house: House) -> list[tuple[str, str]]:
    return [(doubt.kind, doubt.evidence) for doubt in house.store.doubts()]


def accept(house: House) -> None:
    house.store.accept(house.store.standing("", (), None).incarnation, "ann", "looked")


def test_a_file_that_was_restored_from_a_backup_is_noticed_and_not_worked_on_until_accepted(
    house: House, file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = add_task(house)
    runner = house.start(reaper=False)
    until(lambda: house.store.standing(runner.worker_id, (), None).beats, "it beats")
    old = task.enqueue()
    house.until_state(old.id, "done")
    copy(file, tmp_path / "backup.db")
    lost = task.enqueue()
    house.until_state(lost.id, "done")
    beats = house.store.standing(runner.worker_id, (), None).beats
    until(lambda: house.store.standing(runner.worker_id, (), None).beats >= beats + 2, "it beats on")
    with caplog.at_level(logging.ERROR, "holdfast.worker"):
        copy(tmp_path / "backup.db", file)
        until(lambda: kinds(house), "the worker notices")
    assert {kind for kind, _ in kinds(house)} == {"rewound"}
    assert "the store was rewound" in caplog.text
    assert "holdfast db accept --by NAME --note TEXT" in caplog.text
    claims = house.store.calls["claim"]
    waiting = task.enqueue()
    beats = house.store.calls["beat"]
    until(lambda: house.store.calls["beat"] > beats + 3, "it beats on")
    assert house.row(waiting.id).state is State.READY
    assert house.store.calls["claim"] <= claims + 1  # one may have been on its way
    accept(house)
    house.until_state(waiting.id, "done")
    assert kinds(house) == []


def test_a_backup_of_an_earlier_incarnation_is_worked_on_once_it_is_accepted(
    house: House, file: Path, tmp_path: Path
) -> None:
    copy(file, tmp_path / "backup.db")
    accept(house)
    continuity = watch(house)
    copy(tmp_path / "backup.db", file)
    continuity.look("")
    assert (continuity.in_doubt, kinds(house)) == (True, [("rewound", "incarnation")])
    accept(house)
    continuity.look("")
    assert (continuity.in_doubt, kinds(house)) == (False, [])


def test_a_second_restore_is_not_taken_for_an_acceptance(house: House, file: Path, tmp_path: Path) -> None:
    copy(file, tmp_path / "first.db")
    accept(house)
    copy(file, tmp_path / "second.db")
    accept(house)
    continuity = watch(house)
    copy(tmp_path / "first.db", file)
    continuity.look("")
    assert continuity.in_doubt
    copy(tmp_path / "second.db", file)  # of a higher incarnation than the first
    continuity.look("")
    assert (continuity.in_doubt, kinds(house)) == (True, [("rewound", "incarnation")])
    accept(house)
    continuity.look("")
    assert (continuity.in_doubt, kinds(house)) == (False, [])


def test_a_newer_copy_is_noticed_by_programs_that_saw_only_the_older_one(
    house: House, file: Path, tmp_path: Path
) -> None:
    copy(file, tmp_path / "first.db")
    accept(house)
    copy(file, tmp_path / "second.db")
    copy(tmp_path / "first.db", file)  # while nobody was connected
    continuity = watch(house)
    copy(tmp_path / "second.db", file)
    continuity.look("")
    assert (continuity.in_doubt, kinds(house)) == (True, [("rewound", "incarnation")])


def test_another_store_of_a_higher_incarnation_is_worked_on_once_it_is_accepted(
    house: House, file: Path, tmp_path: Path
) -> None:
    with closing(App(f"sqlite:///{tmp_path / 'other.db'}")) as other:
        other.store.accept(1, "ann", "looked")
    continuity = watch(house)
    copy(tmp_path / "other.db", file)
    continuity.look("")
    assert (continuity.in_doubt, kinds(house)) == (True, [("replaced", "identity")])
    continuity.look("")
    assert continuity.in_doubt
    accept(house)
    continuity.look("")
    assert (continuity.in_doubt, kinds(house)) == (False, [])


def test_a_worker_that_may_not_write_its_doubt_down_is_in_doubt_all_the_same(
    house: House, file: Path, tmp_path: Path
) -> None:
    copy(file, tmp_path / "backup.db")
    accept(house)
    continuity = watch(house)
    copy(tmp_path / "backup.db", file)
    with house.store.before("doubt", unavailable), pytest.raises(StoreUnavailable):
        continuity.look("")
    assert continuity.in_doubt


def test_a_store_that_says_nothing_about_itself_does_not_keep_a_job_from_being_cancelled(house: House) -> None:
    begun = threading.Event()

    @house.app.task(name="endless", lease_s=600)
    async def endless() -> None:
        begun.set()
        await asyncio.sleep(600)

    asked: list[object] = []

    def later(*arguments: object) -> None:
        asked.append(arguments)
        if len(asked) > 1:  # the first one is the worker's own, when it starts
            unavailable()

    with house.store.before("standing", later):
        house.start(reaper=False)
        job = endless.enqueue()
        assert begun.wait(60)
        until(lambda: len(asked) > 1, "the heartbeat has looked")
        house.app.cancel(job.id)
        house.until_state(job.id, "cancelled")


def test_a_job_that_runs_while_the_doubt_arises_is_settled(house: House, file: Path, tmp_path: Path) -> None:
    go, begun = threading.Event(), threading.Event()

    @house.app.task(name="slow", lease_s=30, beat_s=BEAT_S)
    def slow() -> str:
        begun.set()
        assert go.wait(60)
        return "fine"

    house.start(reaper=False)
    job = slow.enqueue()
    assert begun.wait(60)
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("UPDATE holdfast_worker SET beats = -5")
    until(lambda: ("rewound", "beats") in kinds(house), "the worker notices")
    go.set()
    assert house.until_state(job.id, "done").result == '"fine"'


def test_jobs_that_were_deleted_by_hand_are_missed(house: House, file: Path) -> None:
    task = add_task(house)
    task.using(run_after=3600).enqueue()
    runner = house.start(reaper=False)
    until(lambda: house.store.standing(runner.worker_id, (), None).beats > 2, "it beats")
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("DELETE FROM holdfast_job")
    until(lambda: kinds(house) == [("emptied", "known job")], "the worker notices")


def test_jobs_that_were_purged_are_not_missed(house: House) -> None:
    task = add_task(house)
    runner = house.start(reaper=False)
    house.until_state(task.enqueue().id, "done")
    until(lambda: house.store.standing(runner.worker_id, (), None).beats > 2, "it beats")
    assert house.store.purge([State.DONE], 2e9) == 1
    beats = house.store.standing(runner.worker_id, (), None).beats
    until(lambda: house.store.standing(runner.worker_id, (), None).beats > beats + 3, "it beats on")
    assert kinds(house) == []


def test_jobs_that_a_worker_of_an_older_version_has_removed_are_not_missed(house: House, file: Path) -> None:
    task = add_task(house)
    task.enqueue()
    older = enrol(house.store.real)
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("UPDATE holdfast_worker SET schema = 10")
        continuity = watch(house)
        db.execute("DELETE FROM holdfast_job")  # as its retention does
        house.store.retire(older, "left")  # it may be gone by the next look
        continuity.look("")
        assert kinds(house) == []
        task.enqueue()
        continuity.look("")
        db.execute("DELETE FROM holdfast_job")
    continuity.look("")
    assert kinds(house) == [("emptied", "known job")]


def test_jobs_that_a_worker_of_an_older_version_has_removed_from_postgres_are_not_missed(
    postgres_house: House, postgres: str
) -> None:
    house = postgres_house
    task = add_task(house)
    task.enqueue()
    older = enrol(house.store.real)
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("UPDATE holdfast.worker SET schema = 12 WHERE id = %s", [older])
        continuity = watch(house)
        db.execute("DELETE FROM holdfast.job")
        house.store.retire(older, "left")
        continuity.look("")
        assert kinds(house) == []
        task.enqueue()
        continuity.look("")
        db.execute("DELETE FROM holdfast.job")
    continuity.look("")
    assert kinds(house) == [("emptied", "known job")]


def test_a_store_without_the_workers_row_is_a_rewound_one(house: House, file: Path) -> None:
    add_task(house)
    runner = house.start(reaper=False)
    first = runner.worker_id
    until(lambda: house.store.standing(first, (), None).beats, "it beats")
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("DELETE FROM holdfast_worker")
    until(lambda: runner.worker_id != first, "it enrols again")
    until(lambda: ("rewound", "worker") in kinds(house), "the worker notices")


def test_a_worker_that_starts_in_doubt_claims_nothing(house: House) -> None:
    task = add_task(house)
    house.store.doubt(1, Doubt("emptied", "truncate", "job", "ann"))
    job = task.enqueue()
    house.start(reaper=False)
    beats = house.store.calls["beat"]
    until(lambda: house.store.calls["beat"] > beats + 2, "it beats")
    assert house.row(job.id).state is State.READY
    accept(house)
    house.until_state(job.id, "done")


def test_a_job_that_was_claimed_while_the_doubt_arose_is_given_back(house: House) -> None:
    started: list[str] = []

    @house.app.task(name="t", lease_s=30, beat_s=BEAT_S)
    def task() -> None:
        started.append("t")

    runner = house.start(reaper=False)

    def doubt(*_: object) -> None:
        if not runner._continuity.in_doubt:
            house.store.real.doubt(1, Doubt("emptied", "truncate", "job", "ann"))
            until(lambda: runner._continuity.in_doubt, "the heartbeat notices")

    with house.store.before("claim", doubt):
        job = task.enqueue()
        until(lambda: house.events(job.id, "released"), "it is given back")
    assert (house.row(job.id).state, started) == (State.READY, [])
    accept(house)
    house.until_state(job.id, "done")


def test_a_table_that_was_truncated_is_noticed_by_the_server_itself(postgres_house: House, postgres: str) -> None:
    house = postgres_house
    task = add_task(house)
    house.start(reaper=False)
    house.until_state(task.enqueue().id, "done")
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("TRUNCATE holdfast.job")
    assert ("emptied", "truncate") in kinds(house)
    until(lambda: house.store.standing("", (), None).doubts, "it is known")
    beats = house.store.calls["beat"]
    until(lambda: house.store.calls["beat"] > beats + 2, "it beats")
    job = task.enqueue()
    beats = house.store.calls["beat"]
    until(lambda: house.store.calls["beat"] > beats + 3, "it beats on")
    assert house.row(job.id).state is State.READY
    accept(house)
    house.until_state(job.id, "done")


def test_rows_that_were_set_back_on_the_server_are_noticed(postgres_house: House, postgres: str) -> None:
    house = postgres_house
    add_task(house)
    runner = house.start(reaper=False)
    until(lambda: house.store.standing(runner.worker_id, (), None).beats > 2, "it beats")
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("UPDATE holdfast.worker SET beats = 1")
    until(lambda: kinds(house) == [("rewound", "beats")], "the worker notices")


@pytest.mark.parametrize("when", ["before the claim", "while it claims", "while it claims, and the note of it fails"])
def test_nothing_is_started_over_a_new_connection_before_the_store_is_compared(
    postgres_house: House, postgres: str, when: str
) -> None:
    """A server that is restarted with an older copy of the data cuts every connection. The next beat is far away."""
    house = postgres_house
    started: list[int] = []
    stored: list[str] = []  # after the restart

    @house.app.task(name="t", lease_s=600, beat_s=10)
    def task(number: int) -> None:
        started.append(number)

    runner = house.start(reaper=False)
    house.until_state(task.enqueue(0).id, "done")
    until(lambda: not runner._continuity.is_outdated, "it has compared once")

    def restore(*_: object) -> None:
        if not stored:
            with psycopg.connect(postgres, autocommit=True) as db:
                db.execute(FEWER_REMOVALS)  # as in an older copy
                db.execute(
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "  # and wait for it
                    "WHERE application_name = 'holdfast' AND datname = current_database() AND pid <> pg_backend_pid()"
                )
            stored.append(task.enqueue(1).id)  # by the thread that is about to claim: no earlier claim can get it

    if when == "before the claim":
        restore()
    note_fails = once(StoreUnavailable("cut again")) if when.endswith("fails") else restore
    with house.store.before("claim", restore), house.store.before("doubt", note_fails):
        first = task.enqueue(0)
        until(lambda: kinds(house), "the worker notices")
    [job] = stored
    until(lambda: house.row(job).state is State.READY, "nobody has it")
    assert (1 not in started, kinds(house)) == (True, [("rewound", "removals")])
    accept(house)
    for each in (first.id, job):
        house.until_state(each, "done")


def test_a_worker_goes_on_when_a_person_has_deleted_the_newest_job(house: House, file: Path) -> None:
    task = add_task(house)
    jobs = sorted(task.using(run_after=3600).enqueue().id for _ in range(3))
    runner = house.start(reaper=False)
    until(lambda: house.store.standing(runner.worker_id, (), None).beats > 2, "it has seen them")
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("DELETE FROM holdfast_job WHERE id = ?", [jobs[-1]])
    looks = house.store.calls["standing"]
    until(lambda: house.store.calls["standing"] > looks + 2, "it looks again")
    house.until_state(task.enqueue().id, "done")
    assert kinds(house) == []


def test_a_result_that_a_rewound_store_refuses_is_journalled_or_at_least_logged(
    house: House, file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The journal has the refusal of a job that is in the backup. Of the other there is only the line of the log."""
    go, begun = threading.Event(), threading.Semaphore(0)

    @house.app.task(name="slow", lease_s=30, beat_s=BEAT_S)
    def slow() -> None:
        begun.release()
        assert go.wait(60)

    older = slow.enqueue()
    copy(file, tmp_path / "backup.db")
    newer = slow.enqueue()
    house.start(reaper=False, slots=2)
    try:
        assert begun.acquire(timeout=60)
        assert begun.acquire(timeout=60)
        copy(tmp_path / "backup.db", file)
        until(lambda: kinds(house), "the worker notices")
    finally:
        go.set()
    for job in (older, newer):
        until(lambda job=job: f"job {job.id}: attempt 1 reported too late and was refused" in caplog.text, "it is said")
    assert [event.detail["fence_now"] for event in house.events(older.id, "stale_report")] == [0]
    assert house.events(newer.id) == []
    assert house.row(older.id).state is State.READY, "nobody claims it before the store is accepted"


def test_a_worker_says_every_minute_that_it_claims_nothing(house: House, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    continuity = Continuity(house.store, clock, "w", WORKER)  # type: ignore[arg-type]
    house.store.doubt(1, Doubt("emptied", "truncate", "job", "ann"))
    said = []
    for _ in range(19):  # a beat every ten seconds, for three minutes
        continuity.look("")
        said.append(caplog.text.count("This worker claims no jobs"))
        clock.advance(10)
    assert said == [1] * 6 + [2] * 6 + [3] * 6 + [4]
