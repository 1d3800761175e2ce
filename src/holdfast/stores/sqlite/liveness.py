"""A lock that the kernel drops when its process dies, whatever killed it.

Each worker holds a POSIX record lock on a private file beside the database. Peers only ask who holds it
(`F_GETLK`) and never take it. Three things about record locks decide the shape of this file:

- they belong to the process, not to the descriptor: a forked child does not keep its parent's lock;
- a process that asks about its own lock is told "free", and *closing any descriptor* of the file drops the lock; so a
  process never opens a lock file of its own again, and answers for itself from `_mine`;
- the file could be deleted and made anew: another inode, or none, means *unknown*, never dead.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from enum import StrEnum
from pathlib import Path

_mine: dict[Path, int] = {}  # lock file -> descriptor, of this process
os.register_at_fork(after_in_child=_mine.clear)  # the locks stayed with the parent

_DARWIN = sys.platform == "darwin"
_FLOCK = "qqihh" if _DARWIN else "hhqqi4x"  # struct flock of macOS and of 64-bit Linux


class Life(StrEnum):
    """What a look at a liveness lock says."""

    ALIVE = "alive"
    FREE = "free"  # nobody holds it: its process has ended
    UNKNOWN = "unknown"


def take(path: Path) -> int:
    """Make the lock file, lock it, and return its inode. The lock lasts as long as this process."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _mine[path] = descriptor
    return os.fstat(descriptor).st_ino


def drop(path: Path) -> None:
    """Give up a lock of this process and remove its file; of another process: only remove the file."""
    path.unlink(missing_ok=True)
    descriptor = _mine.pop(path, None)
    if descriptor is not None:
        os.close(descriptor)


def look(path: Path, inode: int | None) -> Life:
    """Ask whether the process that took this lock is still there."""
    if path in _mine:
        return Life.ALIVE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return Life.UNKNOWN
    try:
        if os.fstat(descriptor).st_ino != inode:
            return Life.UNKNOWN
        return Life.FREE if _is_free(descriptor) else Life.ALIVE
    except OSError:
        return Life.UNKNOWN
    finally:
        os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    if _DARWIN:
        question = struct.pack(_FLOCK, 0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
    else:
        question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    answer = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    return bool((answer[3] if _DARWIN else answer[0]) == fcntl.F_UNLCK)
