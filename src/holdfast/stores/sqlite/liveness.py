"""A lock that the kernel drops when its process dies, whatever killed it.

Each worker holds a POSIX record lock on a private file beside the database. Peers only ask who holds it
(`F_GETLK`) and never take it. Three things about record locks decide the shape of this file:

- they belong to the process, not to the descriptor: a forked child does not keep its parent's lock;
- a process that asks about its own lock gets "free", and *closing any descriptor* of the file drops the lock; so a
  process never opens a lock file of its own again, and answers for itself from `_mine`;
- the file could be deleted and made again: another inode, or none, means *unknown*, never dead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path

from holdfast.errors import StoreUnsupported
from holdfast.stores.sqlite import locks, protected


@dataclass(slots=True)
class _Lock:
    """A lock of this process."""

    descriptor: int
    file: locks.File
    is_listed: bool  # the kernel's list has had it: if it is missing there later, it is lost


_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_mine: dict[Path, _Lock] = {}
os.register_at_fork(after_in_child=_mine.clear)  # the locks stayed with the parent


def path_of(database: Path, worker_id: str) -> Path:
    """Return the file of a worker's lock. An id may come from a client of a server: no id names a file elsewhere."""
    name = worker_id if _PLAIN.fullmatch(worker_id) else sha256(worker_id.encode("utf-8", "surrogatepass")).hexdigest()
    return database.with_name(database.name + "-workers") / f"{name}.lock"


class LockState(StrEnum):
    """The result of a look at a liveness lock."""

    ALIVE = "alive"
    FREE = "free"  # nobody holds it: its process has ended
    UNKNOWN = "unknown"


def take(path: Path) -> int:
    """Make the lock file, lock it, and return its inode. The lock lasts as long as this process."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    _check(path.parent, path.parent.stat(), path.parent.parent.stat().st_uid)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    file = locks.file_of(descriptor)
    _mine[path] = _Lock(descriptor, file, locks.is_listed(file) is True)
    protected.protect(str(path))
    return file[1]


def _check(folder: Path, found: os.stat_result, owner_above: int) -> None:
    """Refuse a folder that other users may write to. The owner of the folder above it can replace it anyway."""
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreUnsupported(
            f"other users may write to {folder} (mode {stat.S_IMODE(found.st_mode):o}) and make a living worker look "
            f"dead; run `chmod go-w {folder}`"
        )
    if found.st_uid not in (0, os.geteuid(), owner_above):
        raise StoreUnsupported(
            f"another user (uid {found.st_uid}) owns {folder} and may make a living worker look dead; "
            f"run `chown {os.geteuid()} {folder}` as root"
        )


def renew(path: Path) -> bool:
    """Take a lock of this process again if it was lost; return whether it was still there.

    Code in this process loses it by closing another descriptor of the file, or all descriptors that it finds. Where the
    kernel has no list of locks, a loss of the first kind is repaired but not noticed.
    """
    lock = _mine.get(path)
    if lock is None:
        return True
    is_listed = locks.is_listed(lock.file)
    was_held = is_listed is not False or not lock.is_listed
    lock.is_listed = lock.is_listed or is_listed is True
    with contextlib.suppress(OSError):
        if _file(lock.descriptor) != lock.file:  # it was closed, and its number may mean another file by now
            was_held = False
            lock.descriptor = os.open(protected.OwnPath(path), os.O_RDWR | os.O_CLOEXEC)
            lock.file = locks.file_of(lock.descriptor)
        fcntl.lockf(lock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return was_held


def drop(path: Path) -> None:
    """Give up a lock of this process and remove its file; of another process: only remove the file."""
    path.unlink(missing_ok=True)
    lock = _mine.pop(path, None)
    if lock is not None:
        protected.release(str(path))
        if _file(lock.descriptor) == lock.file:
            os.close(lock.descriptor)


def look(path: Path, inode: int | None) -> LockState:
    """Ask whether the process that took this lock is still there."""
    if path in _mine:
        return LockState.ALIVE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return LockState.UNKNOWN
    try:
        if os.fstat(descriptor).st_ino != inode:
            return LockState.UNKNOWN
        return LockState.FREE if locks.other_holder(descriptor) is None else LockState.ALIVE
    except OSError:
        return LockState.UNKNOWN
    finally:
        os.close(descriptor)


def _file(descriptor: int) -> locks.File | None:
    with contextlib.suppress(OSError):
        return locks.file_of(descriptor)
    return None
