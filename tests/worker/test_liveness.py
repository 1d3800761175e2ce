"""A worker that lost its liveness lock (DESIGN 15.1)."""

import os
import sys
from pathlib import Path

import pytest

from holdfast.stores.sqlite import liveness, locks
from holdfast.stores.sqlite.store import SqliteStore
from tests.factory import enrol
from tests.worker.house import House, until


@pytest.mark.skipif(sys.platform != "linux", reason="the system has no list of locks")
@pytest.mark.parametrize("how", ["another descriptor was closed", "its descriptor was closed", "its number was reused"])
def test_a_worker_that_lost_its_lock_notices_and_takes_it_again(
    file_house: House, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    file_house.app.task(name="t", lease_s=0.9)(lambda: None)
    runner = file_house.start(reaper=False)
    [(path, lock)] = [(path, lock) for path, lock in liveness._mine.items() if path.stem == runner.worker_id]
    until(lambda: lock.is_listed, "the kernel lists it")
    reused: list[int] = []

    def is_noticed() -> bool:
        if "had lost its liveness lock" in caplog.text:
            return True
        if how == "another descriptor was closed":  # again: a beat that is under way repairs it and does not notice
            path.read_bytes()
        return False

    if how != "another descriptor was closed":
        os.close(lock.descriptor)
    if how == "its number was reused":
        other = os.open(os.devnull, os.O_RDONLY)
        reused.append(os.dup2(other, lock.descriptor))
        if other not in reused:
            os.close(other)
    until(is_noticed, "it notices")
    until(lambda: locks.is_listed(lock.file), "the lock is taken again")
    assert liveness.look(path, lock.file[1]) is liveness.LockState.ALIVE
    for descriptor in reused:
        os.close(descriptor)


def test_a_worker_that_kept_its_lock_says_nothing_of_it(tmp_path: Path) -> None:
    store = SqliteStore(f"sqlite:///{tmp_path}/jobs.db")
    store.migrate()
    worker = enrol(store)
    assert [store.beat(worker, []).lock_lost for _ in range(3)] == [False] * 3
    store.retire(worker, "the test is over")
    store.close()


def test_a_worker_that_cannot_read_the_list_of_locks_does_not_say_that_it_lost_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler may have used up the file descriptors of the process."""
    store = SqliteStore(f"sqlite:///{tmp_path}/jobs.db")
    store.migrate()
    worker = enrol(store)
    [lock] = [lock for path, lock in liveness._mine.items() if path.stem == worker]
    lock.is_listed = True
    monkeypatch.setattr(locks, "_LIST", tmp_path / "missing")
    assert locks.is_listed(lock.file) is None
    assert not store.beat(worker, []).lock_lost
    store.retire(worker, "the test is over")
    store.close()


def test_a_line_that_the_kernel_left_out_once_is_not_a_lost_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel hands out its list page by page, and others take and drop locks meanwhile."""
    lists = iter([[], [], [locks.RecordLock(os.getpid(), True, (1, 7), 0, None)]])
    monkeypatch.setattr(locks, "_listed_locks", lambda: next(lists))
    assert locks.is_listed((1, 7))
    monkeypatch.setattr(locks, "_listed_locks", list)
    assert locks.is_listed((1, 7)) is False


def test_a_lock_on_a_file_of_the_same_number_on_another_device_is_another_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file has its number on its own device only. The kernel writes the device before it, in hexadecimal."""
    shm = tmp_path / "jobs.db-shm"
    shm.touch()
    device, inode = locks.file_of(str(shm))
    here = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    elsewhere = f"{os.major(device) + 1:02x}:{os.minor(device):02x}:{inode}"
    kernel = tmp_path / "locks"
    monkeypatch.setattr(locks, "_LIST", kernel)
    ours = os.readlink("/proc/self")
    kernel.write_text(f"1: POSIX  ADVISORY  WRITE {ours} {elsewhere} 120 120\n")
    assert not locks.is_listed((device, inode))
    kernel.write_text(
        f"1: POSIX  ADVISORY  READ {ours} {here} 123 123\n2: POSIX  ADVISORY  WRITE {ours} {elsewhere} 120 120\n"
    )
    assert locks.is_listed((device, inode))
    assert locks.writer_of(tmp_path / "jobs.db") is None
