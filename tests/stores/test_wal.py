"""P14 on SQLite: the WAL that somebody deletes under a live store."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import App
from holdfast.errors import StoreUnavailable
from holdfast.stores.sqlite.store import SqliteStore
from tests.factory import add, row
from tests.worker.house import House, until


def evidence(store: Any) -> list[str]:
    """What is in doubt; nothing while the file is being repaired."""
    try:
        return [doubt.evidence for doubt in store.doubts()]
    except StoreUnavailable:
        return []


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(file: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(f"sqlite:///{file}")
    store.migrate()
    yield store
    store.close()


def wal_of(file: Path) -> Path:
    return file.with_name(file.name + "-wal")


def jobs_seen_by_another_process(file: Path) -> int:
    count = "SELECT count(*) FROM holdfast_job"
    code = f"import sqlite3; print(sqlite3.connect({str(file)!r}).execute({count!r}).fetchone()[0])"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def test_what_was_committed_into_a_deleted_wal_is_saved_and_found_by_others(
    file: Path, store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [add(store) for _ in range(10)]
    wal_of(file).unlink()
    with caplog.at_level(logging.ERROR, "holdfast.stores"):
        late = add(store)
    assert "jobs.db-wal was deleted or replaced while in use; all that was committed into it was saved" in caplog.text
    assert store.standing("", (), None).wals_lost == 1
    assert jobs_seen_by_another_process(file) == 11
    assert [row(store, job.id).id for job in [*jobs, late]] == [job.id for job in [*jobs, late]]
    assert store.check() == []


def test_two_programs_go_over_to_the_new_wal(file: Path, store: SqliteStore) -> None:
    other = SqliteStore(f"sqlite:///{file}")
    add(store)
    add(other)
    wal_of(file).unlink()
    for each in (store, other, store, other):
        add(each)
    assert jobs_seen_by_another_process(file) == 6
    assert (store.check(), other.check()) == ([], [])
    assert (store._db.wals_lost, other._db.wals_lost) == (1, 1)
    other.close()


def test_a_wal_that_sqlite_itself_has_emptied_or_made_again_is_not_lost(file: Path, store: SqliteStore) -> None:
    add(store)
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    add(store)
    store.close()
    again = SqliteStore(f"sqlite:///{file}")
    add(again)
    assert again._db.wals_lost == 0
    again.close()


def test_a_worker_notices_within_two_beats_and_claims_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.reaper.pause", lambda _: None)
    house = House(App(f"sqlite:///{file}"))
    try:

        @house.app.task(name="t", lease_s=30, beat_s=0.2)
        def task() -> None: ...

        runner = house.start()
        until(lambda: house.store.standing(runner.worker_id, (), None).beats, "it beats")
        beats = house.store.standing(runner.worker_id, (), None).beats
        wal_of(file).unlink()
        until(lambda: evidence(house.store) == ["wal"], "the worker notices")
        assert house.store.standing(runner.worker_id, (), None).beats <= beats + 3
        with closing(sqlite3.connect(file)) as db:  # and so does whoever opens the file now
            assert db.execute("SELECT evidence FROM holdfast_doubt").fetchall() == [("wal",)]
    finally:
        house.close()
