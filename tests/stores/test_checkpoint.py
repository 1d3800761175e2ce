"""Turns at the WAL, as every SQLite with the WAL-reset defect has them; here whatever version runs the tests."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.core.machine import State
from holdfast.stores.sqlite import connection
from holdfast.stores.sqlite.checkpoint import CheckpointLock, has_the_defect
from holdfast.stores.sqlite.store import SqliteStore
from tests.factory import make_job

LARGE = '"' + "x" * 100_000 + '"'
FILL = 60  # so many large jobs are more than PAGES pages
HOLD = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); input()"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    monkeypatch.setattr(connection, "has_the_defect", lambda: True)
    opened = SqliteStore(f"sqlite:///{path}?synchronous=normal")
    opened.migrate()
    yield opened
    assert opened.check() == []
    opened.close()


def fill(store: SqliteStore, jobs: int = FILL) -> None:
    for _ in range(jobs):
        store.add([make_job(payload=LARGE)])


def wal_mb(path: Path) -> float:
    return os.stat(f"{path}-wal").st_size / 1_048_576


def times_started_anew(path: Path) -> int:
    """The WAL's header counts how often it was started anew."""
    return int.from_bytes(Path(f"{path}-wal").read_bytes()[12:16], "big")


@pytest.mark.parametrize(
    ("version", "has_it"),
    [
        ((3, 38, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 44, 9), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 0), True),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
        ((4, 0, 0), False),
    ],
)
def test_which_versions_have_the_defect(version: tuple[int, ...], has_it: bool) -> None:
    assert has_the_defect(version) is has_it


@pytest.mark.parametrize("has_it", [True, False])
def test_only_a_sqlite_with_the_defect_needs_turns(path: Path, monkeypatch: pytest.MonkeyPatch, has_it: bool) -> None:
    monkeypatch.setattr(connection, "has_the_defect", lambda: has_it)
    store = SqliteStore(f"sqlite:///{path}")
    assert (store._db._turn is not None) is has_it
    store.close()


def test_a_new_wal_file_is_noticed(store: SqliteStore, path: Path) -> None:
    turn, other = CheckpointLock(path), CheckpointLock(path)
    assert turn.take()
    turn.drop()
    os.rename(f"{path}-wal", f"{path}-old")
    Path(f"{path}-wal").touch()
    assert other.take()
    assert not turn.take(), "it holds the old file open"
    other.drop()
    assert turn.take()
    os.rename(f"{path}-old", f"{path}-wal")


def test_the_wal_stays_short_when_only_one_process_writes(store: SqliteStore, path: Path) -> None:
    peak = 0.0
    for _ in range(5):
        fill(store, FILL // 2)
        peak = max(peak, wal_mb(path))
    assert peak < 6, "150 large jobs are 15 MB"
    assert times_started_anew(path) >= 2


def test_a_commit_without_a_turn_succeeds_and_a_killed_holder_blocks_no_writer(store: SqliteStore, path: Path) -> None:
    fill(store)
    before = times_started_anew(path)
    hold, pipe = [sys.executable, "-c", HOLD, f"{path}-wal"], subprocess.PIPE
    with subprocess.Popen(hold, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        fill(store, 2 * FILL)
        assert times_started_anew(path) <= before + 1
        assert wal_mb(path) > 10, "nobody copied"
        holder.kill()
    held = times_started_anew(path)
    store.add([make_job()])
    store.add([make_job()])
    assert times_started_anew(path) == held + 1, "the first commit copied everything, the second began at the start"


def test_a_commit_that_fails_gives_the_turn_back(store: SqliteStore, path: Path) -> None:
    fill(store)
    with pytest.raises(ZeroDivisionError), store._db.writing():
        _ = 1 / 0
    other = CheckpointLock(path)
    assert other.take()
    other.drop()


def test_a_forked_child_neither_ends_its_parents_turn_nor_has_it(store: SqliteStore, path: Path) -> None:
    fill(store)
    turn = store._db._turn
    assert turn is not None
    assert turn.take()
    child = os.fork()
    if child == 0:
        os._exit(0 if turn._descriptor is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    other = CheckpointLock(path)
    assert not other.take()
    turn.drop()
    assert other.take()
    other.drop()


def test_connections_of_the_users_own_go_on_as_they_do(store: SqliteStore, path: Path) -> None:
    def write() -> None:
        own = sqlite3.connect(path, timeout=60)
        own.execute("CREATE TABLE own (text TEXT)")
        for _ in range(FILL):
            own.execute("INSERT INTO own VALUES (?)", (LARGE,))
            own.commit()
        own.close()

    writer = threading.Thread(target=write)
    writer.start()
    fill(store)
    writer.join()
    with closing(sqlite3.connect(path)) as own:
        assert own.execute("SELECT count(*) FROM own").fetchone() == (FILL,)
    assert store.counts()["default"][State.READY] == FILL
