"""How a thread that waits for commits on SQLite is woken: by its own process, by the kernel, by looking."""

from __future__ import annotations

import os
import select
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.core.policy import Policy
from holdfast.core.records import NewJob
from holdfast.stores.sqlite import commit_watch
from holdfast.stores.sqlite.commit_watch import CommitWatch
from holdfast.stores.sqlite.store import SqliteStore

LONG_S = 60.0  # a wait that ends by itself would fail the test
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel does not tell of writes here")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Path]:
    """A file whose WAL is there, as it is while a store has it open."""
    path = tmp_path / "some.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE t (n)")
        yield path


@pytest.fixture
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_watch, "_TICK_S", LONG_S)
    monkeypatch.setattr(commit_watch, "_CALM_TICK_S", LONG_S)


def commit_soon(database: Path) -> threading.Thread:
    def write() -> None:
        with closing(sqlite3.connect(database, isolation_level=None)) as db:
            db.execute("INSERT INTO t VALUES (1)")

    thread = threading.Timer(0.1, write)
    thread.start()
    return thread


def listening(database: Path) -> CommitWatch:
    """Return one that listens. A user has 128 of them, and other tests may have taken them all for a moment."""
    give_up_at = time.monotonic() + LONG_S
    while not (watch := CommitWatch(database)).hears():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    return watch


def poll_of(end: int) -> select.poll:
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return poll


@on_linux
def test_a_write_to_the_file_ends_a_wait(database: Path) -> None:
    ringing = listening(database)
    began = time.monotonic()
    thread = commit_soon(database)
    assert ringing.wait(LONG_S) is False  # it is not set, and yet it is over
    assert ringing.touched
    assert time.monotonic() - began < LONG_S / 2
    thread.join()


@on_linux
def test_a_write_that_was_heard_is_not_heard_again(database: Path) -> None:
    ringing = listening(database)
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        db.execute("INSERT INTO t VALUES (1)")
        ringing.wait(LONG_S)
        assert ringing.touched
        ringing.wait(0.0)
        assert not ringing.touched


@on_linux
def test_a_commit_of_another_program_is_found_without_looking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells of the write, which counts only later: then it looks often, for a while."""
    monkeypatch.setattr(commit_watch, "_CALM_TICK_S", LONG_S)
    store = SqliteStore(f"sqlite:///{tmp_path / 'jobs.db'}")
    store.migrate()
    other = SqliteStore(store.url)
    while store.wait(0):
        pass
    threading.Timer(0.1, other.add, [[NewJob(id="a", task="t", queue="q", payload="{}", policy=Policy())]]).start()
    began = time.monotonic()
    assert store.wait(LONG_S) is True
    assert time.monotonic() - began < LONG_S / 2
    other.close()
    store.close()


def test_a_thread_of_the_same_process_ends_a_wait(database: Path, nobody_looks: None) -> None:
    ringing = CommitWatch(database)
    rung = threading.Event()

    def ring() -> None:
        rung.set()
        ringing.set()

    threading.Timer(0.1, ring).start()
    began = time.monotonic()
    assert ringing.wait_for(rung.is_set, LONG_S, SystemClock()) is True
    assert time.monotonic() - began < LONG_S / 2


def test_it_can_be_set_any_number_of_times(database: Path) -> None:
    ringing = CommitWatch(database)
    for _ in range(100_000):  # more than a pipe holds
        ringing.set()
    assert ringing.wait(0.0) is True
    ringing.clear()
    assert ringing.is_set() is False


def test_a_hint_that_comes_late_ends_one_wait_and_not_all(database: Path) -> None:
    """`set` raises the flag and then writes: another thread may clear the flag in between."""
    watch = CommitWatch(database)
    watch.set()
    watch.clear()
    os.write(watch._hand, b"\0")
    assert watch.wait(LONG_S) is False
    began = time.monotonic()
    assert watch.wait(0.2) is False
    assert time.monotonic() - began >= 0.2


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_sends_its_hints_to_itself(database: Path) -> None:
    watch = CommitWatch(database)
    held = watch._cond  # type: ignore[attr-defined]
    with held:  # as another thread may, at the moment of the fork
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            try:
                watch.set()
                heard = watch.wait(0.0) and watch._ear in {end for end, _ in poll_of(watch._ear).poll(0)}
                os._exit(0 if heard else 1)
            finally:
                os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert poll_of(watch._ear).poll(0) == []


def test_where_nobody_tells_it_looks(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_watch, "_new_watch", lambda: None)
    monkeypatch.setattr(commit_watch, "_CALM_TICK_S", LONG_S)
    ringing = CommitWatch(database)
    assert not ringing.hears()
    looks = iter([False, False, True])
    began = time.monotonic()
    assert ringing.wait_for(lambda: next(looks), LONG_S, SystemClock()) is True
    assert time.monotonic() - began < LONG_S / 2


def test_a_file_that_is_not_there_is_not_listened_to(tmp_path: Path) -> None:
    assert not CommitWatch(tmp_path / "none.db").hears()


@on_linux
def test_a_file_that_was_created_again_is_watched(database: Path) -> None:
    ringing = listening(database)
    wal = database.with_name("some.db-wal")
    wal.unlink()
    assert not ringing.hears()
    wal.touch()
    assert ringing.hears()
    ringing.wait(0.0)  # what became of the old one
    wal.write_bytes(b"new")
    ringing.wait(LONG_S)
    assert ringing.touched
