"""Copies of the file and its WAL, taken while another process writes, are opened as after a power cut.

With `synchronous=full` what was acknowledged before the copy began is in it; the rest may be there or not, but whole. A
power cut may also take the end of the WAL: the copies are opened again with the WAL cut off at any byte. That is done
only with copies older than the first checkpoint: what a checkpoint relies on was synced, and cannot be lost so.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from holdfast.clock import SystemClock
from holdfast.core.machine import LIVE, State
from holdfast.core.records import Filter
from holdfast.core.verdict import Succeeded
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import FakeClock
from holdfast.upkeep.reaper import Reaper
from tests.factory import enrol, settlement

WRITER = Path(__file__).with_name("power_writer.py")
HEADER, FRAME = 32, 24 + 4096
BEFORE_THE_FIRST_CHECKPOINT = 900 * FRAME  # SQLite's own comes at a thousand pages
COPIES_AFTER = (5, 15, 30, 45, 60, 200, 500, 900, 1400)  # acknowledgements

Acks = dict[str, str]  # job id -> the last that was acknowledged about it: added, done


@dataclass(frozen=True, slots=True)
class Copy:
    """What a power cut would have left, and what had been acknowledged before it."""

    db: bytes
    wal: bytes
    acks: Acks
    marks: list[tuple[int, Acks]]  # how long the WAL was when so much had been acknowledged


class Writer:
    """The writing process, and what it has said so far."""

    def __init__(self, folder: Path) -> None:
        self.db = folder / "jobs.db"
        self.wal = folder / "jobs.db-wal"
        self.acks: Acks = {}
        self.marks: list[tuple[int, Acks]] = []
        command = [sys.executable, str(WRITER), f"sqlite:///{self.db}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            what, job_id = line.split()
            self.acks = {**self.acks, job_id: what}
            self.marks.append((self.wal.stat().st_size, self.acks))

    def wait_for(self, acks: int) -> None:
        give_up_at = time.monotonic() + 240
        while len(self.marks) < acks:
            assert time.monotonic() < give_up_at, f"{len(self.marks)} of {acks} acknowledgements"
            time.sleep(0.002)

    def copy(self, *, frozen: bool) -> Copy:
        """Copy the file, then its WAL. One that is started anew in between makes the two unfit: take another copy."""
        while True:
            acks, marks = self.acks, list(self.marks)
            if frozen:
                os.kill(self.process.pid, signal.SIGSTOP)
                os.waitpid(self.process.pid, os.WUNTRACED)
            salts = self.wal.read_bytes()[16:24]
            db, wal = self.db.read_bytes(), self.wal.read_bytes()
            if frozen:
                os.kill(self.process.pid, signal.SIGCONT)
            if wal[16:24] == salts:
                return Copy(db, wal, acks, marks)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> list[Copy]:
    """Taken in the middle of writes, early and after checkpoints, of a frozen writer and of a running one."""
    writer = Writer(tmp_path_factory.mktemp("writer"))
    taken = []
    try:
        for acks in COPIES_AFTER:
            writer.wait_for(acks)
            taken += [writer.copy(frozen=True), writer.copy(frozen=False)]
    finally:
        writer.close()
    return taken


@pytest.mark.slow  # another process writes, and waits for the disk each time
@pytest.mark.parametrize("number", range(2 * len(COPIES_AFTER)))
def test_a_copy_has_everything_that_was_acknowledged_before_it_began(
    copies: list[Copy], number: int, tmp_path: Path
) -> None:
    copy = copies[number]
    store, clock = reopen(tmp_path, copy.db, copy.wal)
    assert_holds(store, copy.acks)
    assert_drains(store, clock)
    store.close()


def test_the_copies_were_taken_in_the_middle_of_writes(copies: list[Copy]) -> None:
    assert len(copies[0].acks) > 0
    assert len(copies[-1].acks) > 10 * len(copies[0].acks)
    assert any(len(copy.db) > 100_000 for copy in copies), "no checkpoint was met"
    assert {"added", "done"} == set(copies[-1].acks.values())


@pytest.mark.slow  # each cut is opened, repaired and read
@pytest.mark.parametrize("number", range(4))
def test_a_wal_that_lost_its_end_still_has_what_was_acknowledged_before_that(
    copies: list[Copy], number: int, tmp_path: Path
) -> None:
    whole = early(copies)[number]
    dice, end = Random(number), len(whole.wal)
    frames = range(HEADER, end, FRAME)
    cuts = [0, 1, HEADER, end - 1, end - FRAME, *(dice.choice(frames) for _ in range(15))]
    cuts += [dice.choice(frames) + dice.choice([1, 24, 25, 2000, 4119]) for _ in range(15)]
    cuts += [dice.randrange(end) for _ in range(15)]
    held = []
    for cut in sorted(set(cuts)):
        folder = tmp_path / str(cut)
        folder.mkdir()
        store, _ = reopen(folder, whole.db, whole.wal[:cut])
        kept = [acks for size, acks in whole.marks if size <= cut]
        assert_holds(store, kept[-1] if kept else {})
        held.append(len(store.find(Filter(limit=100_000))))
        store.close()
    assert held == sorted(held)
    assert held[0] == 0 < held[-1], "nothing was lost by any cut: the cuts prove nothing"


@pytest.mark.slow
def test_a_wal_with_rubbish_at_its_end_is_read_up_to_there(copies: list[Copy], tmp_path: Path) -> None:
    """The disk may have made room for the end of the WAL, and not yet have written it."""
    whole = early(copies)[-1]
    for number, rubbish in enumerate([bytes(3 * FRAME), Random(1).randbytes(2 * FRAME + 100), whole.wal[-FRAME:]]):
        folder = tmp_path / str(number)
        folder.mkdir()
        store, clock = reopen(folder, whole.db, whole.wal + rubbish)
        assert_holds(store, whole.acks)
        assert_drains(store, clock)
        store.close()


def early(copies: list[Copy]) -> list[Copy]:
    found = [copy for copy in copies if len(copy.wal) < BEFORE_THE_FIRST_CHECKPOINT]
    assert len(found) >= 4, "the first checkpoint came before the copies"
    return found


def reopen(folder: Path, db: bytes, wal: bytes) -> tuple[Store, FakeClock]:
    """Open a copy, an hour after the cut, as the machine's other programs would."""
    path = folder / "jobs.db"
    path.write_bytes(db)
    path.with_name("jobs.db-wal").write_bytes(wal)
    now = SystemClock()
    clock = FakeClock(now.wall() + 3600, now.lease() + 3600, now.boot_id)
    store = SqliteStore(f"sqlite:///{path}", clock=clock)
    store.migrate()
    assert store.check() == []
    raw = sqlite3.connect(path)  # after the store, which is to repair what it finds by itself
    assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    raw.close()
    return store, clock


def assert_holds(store: Store, acks: Acks) -> None:
    found = {job.id: job.state for job in store.find(Filter(limit=100_000))}
    assert set(acks) <= set(found), "an acknowledged job is lost"
    assert [job_id for job_id, what in acks.items() if what == "done" and found[job_id] is not State.DONE] == []


def assert_drains(store: Store, clock: FakeClock) -> None:
    """The reaper settles what the writer held once commits have worked for 3 s, and every job comes to its end."""
    reaper = Reaper(store, clock)
    for _ in range(10):
        reaper.once()
        clock.advance(0.5)
    worker = enrol(store)
    while jobs := store.claim(worker, f"claim-{clock.lease()}", ["default"], ["t"], 5_000):
        store.settle([settlement(job, Succeeded('"late"')) for job in jobs])
        clock.advance(1)
    counts = store.counts()["default"]
    assert [state for state in counts if state in LIVE] == []
    assert counts[State.DONE] == len(store.find(Filter(limit=100_000)))
    store.retire(worker, "the test is over")
