"""Find out which process holds a record lock.

A process cannot ask about its own locks, and closing a descriptor of a locked file drops them. So this process reads
the kernel's list, `/proc/locks`. Where there is no list, or it does not number our files as `stat` does, a child
process asks (this file as a program): it has no locks to lose.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_LIST = Path("/proc/locks")
_WRITER = 120  # the byte of the `-shm` file that the one writer locks in WAL mode (SQLite's WALINDEX_LOCK_OFFSET)
_USER = 128  # the byte of the `-shm` file that every connection locks as long as it is open (UNIX_SHM_DMS)
_ANSWER_S = 10.0
_LOOKS = 4
_DARWIN = sys.platform == "darwin"
FLOCK = "qqihh" if _DARWIN else "hhqqi4x"  # struct flock of macOS and of 64-bit Linux


File = tuple[int, int]  # device and inode


class RecordLock(NamedTuple):
    """One line of the kernel's list."""

    pid: int
    is_exclusive: bool
    file: File
    first: int
    last: int | None  # None: to the end of the file


def writer_of(database: Path) -> int | None:
    """Return the process that holds the write lock of a database in WAL mode; None: nobody, or it is not known."""
    shm = f"{database}-shm"
    try:
        file = file_of(shm)
    except OSError:
        return None
    locks = [lock for lock in record_locks() if lock.file == file]
    if not any(lock.pid == os.getpid() for lock in locks):  # every open connection has a lock of some kind
        return _ask_in_a_child(shm, _WRITER)
    for lock in locks:
        if lock.is_exclusive and lock.first <= _WRITER and (lock.last is None or lock.last >= _WRITER):
            return lock.pid
    return None


def is_used(database: Path) -> bool:
    """Say whether any process, this one included, uses the `-shm` file that this name of a database has."""
    shm = f"{database}-shm"
    try:
        file = file_of(shm)
    except OSError:
        return False
    return any(lock.file == file for lock in record_locks()) or _ask_in_a_child(shm, _USER) is not None


def file_of(place: str | int) -> File:
    """Return which file a path or a descriptor means. Raises `OSError`."""
    found = os.stat(place)
    return found.st_dev, found.st_ino


def is_listed(file: File) -> bool | None:
    """Say whether the kernel's list has a lock of this process on the file; None: the list cannot be read.

    The kernel hands its list out page by page: when another program drops a lock meanwhile, a line between two pages is
    missing. So a lock counts as missing only when several looks in a row do not find it.
    """
    wanted = (file, os.getpid())
    for _ in range(_LOOKS):
        locks = _listed_locks()
        if locks is None:  # the system has no such list, or this process may open no more files
            return None
        if wanted in [(lock.file, lock.pid) for lock in locks]:
            return True
    return False


def record_locks() -> list[RecordLock]:
    """Return the record locks that are held on this machine, with our own pid as `os.getpid` has it."""
    return _listed_locks() or []


def _listed_locks() -> list[RecordLock] | None:
    try:
        ours = int(os.readlink("/proc/self"))  # /proc may belong to another pid namespace
        locks = _parsed(_LIST.read_text("ascii", "replace"))
    except (OSError, ValueError):
        return None
    return [lock._replace(pid=os.getpid()) if lock.pid == ours else lock for lock in locks]


def _parsed(text: str) -> Iterator[RecordLock]:
    """Read lines such as `4: POSIX  ADVISORY  WRITE 1234 fe:00:5242 120 120`; one that waits has `->` before POSIX."""
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            _, kind, _, mode, pid, place, first, last = line.split()
            if kind == "POSIX":
                major, minor, inode = place.split(":")
                file = os.makedev(int(major, 16), int(minor, 16)), int(inode)
                yield RecordLock(int(pid), mode == "WRITE", file, int(first), None if last == "EOF" else int(last))


def _ask_in_a_child(shm: str, byte: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        command = [sys.executable, "-I", "-S", __file__, shm, str(byte)]
        return int(subprocess.run(command, capture_output=True, timeout=_ANSWER_S, check=True).stdout) or None
    return None


def other_holder(descriptor: int, first: int = 0, length: int = 0) -> int | None:
    """Return which *other* process keeps us from locking these bytes, or the whole file; None: nobody does."""
    if _DARWIN:
        question = struct.pack(FLOCK, first, length, 0, fcntl.F_WRLCK, os.SEEK_SET)
        _, _, pid, kind, _ = struct.unpack(FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    else:
        question = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, first, length, 0)
        kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    return None if kind == fcntl.F_UNLCK else pid


if __name__ == "__main__":
    sys.stdout.write(str(other_holder(os.open(sys.argv[1], os.O_RDWR | os.O_CLOEXEC), int(sys.argv[2]), 1) or 0))
