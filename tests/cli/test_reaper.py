"""holdfast reaper as real processes: one active replica, a handover at SIGTERM and after kill -9, exit 0."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.clock import SystemClock, pause
from holdfast.core.continuity import Doubt
from holdfast.core.machine import State
from holdfast.core.records import Worker
from holdfast.stores.sqlite.store import SqliteStore
from tests.factory import make_job

Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal")
    store.migrate()
    yield store
    store.close()


@pytest.fixture
def start(store: SqliteStore, tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "holdfast", "--db", store.url, "reaper", "--name", name, "--interval", "200ms"]
        with (tmp_path / name).open("w") as log:
            started.append(subprocess.Popen(command, stderr=log, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def until(condition: Callable[[], bool], what: str) -> None:
    clock = SystemClock()
    give_up_at = clock.lease() + 60
    while not condition():
        assert clock.lease() < give_up_at, f"not in 60 s: {what}"
        pause(0.02)


def says(tmp_path: Path, name: str, words: str) -> Callable[[], bool]:
    return lambda: words in (tmp_path / name).read_text()


@pytest.mark.slow  # real processes that start, stop and are killed
def test_replicas_hand_over_when_one_stops_and_when_one_is_killed(
    store: SqliteStore, start: Start, tmp_path: Path
) -> None:
    first = start("first")
    until(says(tmp_path, "first", "took the duty 'reaper'"), "the first replica is active")
    second = start("second")
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    until(says(tmp_path, "second", "took the duty 'reaper'"), "the second took over")
    third = start("third")
    second.kill()
    until(says(tmp_path, "third", "took the duty 'reaper'"), "the third took over after the death of the second")
    clock = SystemClock()
    store.enroll(Worker(id="w", name="w", host="here", pid=os.getpid(), boot_id=clock.boot_id))
    store.add([make_job(id="job", lease_s=0.3)])
    store.claim("w", "c", ["default"], ["t"], 1)
    until(lambda: _state(store) is State.READY, "the third recovered an expired lease")
    third.send_signal(signal.SIGTERM)
    assert third.wait(60) == 0
    assert "settled 1 lost attempts" in (tmp_path / "third").read_text()


@pytest.mark.slow  # a real process
def test_it_says_that_the_store_is_not_what_it_was(store: SqliteStore, start: Start, tmp_path: Path) -> None:
    store.doubt(1, Doubt("emptied", "truncate", "job", "ann"))
    reaper = start("first")
    until(says(tmp_path, "first", "Workers claim no jobs; this reaper continues. Check the jobs"), "it says so")
    reaper.send_signal(signal.SIGTERM)
    assert reaper.wait(60) == 0


def _state(store: SqliteStore) -> State | None:
    job = store.get("job")
    return job.state if job is not None else None


@pytest.mark.parametrize("flag", ["--keep", "--keep-dead"])
def test_a_retention_that_cannot_be_meant_ends_it_with_2(store: SqliteStore, flag: str) -> None:
    command = [sys.executable, "-m", "holdfast", "reaper", "--db", store.url, flag, "7s"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "is not between 1 min and 11574 d" in ran.stderr


def test_without_a_store_it_ends_with_3_and_makes_none(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/none.db"
    command = [sys.executable, "-m", "holdfast", "reaper", "--db", url]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 3
    assert list(tmp_path.iterdir()) == []
