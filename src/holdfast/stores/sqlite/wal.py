"""The `-wal` and `-shm` files of a store, and what a process does when another program removes them.

All connections of a process share one wal-index, the `-shm` file, for as long as any of them is open, and each keeps
the `-wal` file that it has opened. If another program removes one of the two, programs that open the store later make
new ones. Nothing coordinates them with those that have the old ones: each overwrites what the others have committed. A
process gets rid of the old files only by closing every connection, and some of them may belong to the user. So it never
uses the store again; a new process does.

Closing a connection does not help: the last one copies its `-wal` into the database, and then deletes the files that
have the names of its own. `keep_open` prevents that.
"""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.core.continuity import Doubt
from holdfast.stores.sqlite import locks, protected

DELETED = "deleted"  # what a note has found instead of a file that was in use
_SHARED = 0x40000000 + 2  # the first of the bytes that SQLite locks as long as a connection is open

_kept: list[int] = []  # descriptors that are never closed: that would drop SQLite's own locks


class Files(NamedTuple):
    """The `-wal` and `-shm` files next to the database; None where there is none."""

    wal: locks.File | None
    shm: locks.File | None


def beside(database: str) -> Files:
    """Look which files are there now."""
    return Files(_file(f"{database}-wal"), _file(f"{database}-shm"))


def is_beside(database: str, files: Files) -> bool:
    """Say whether these files are still there. Every call of the store asks, so it costs two `stat` and little more."""
    try:
        wal, shm = os.stat(database + "-wal"), os.stat(database + "-shm")
    except OSError:
        return False
    return (wal.st_dev, wal.st_ino) == files.wal and (shm.st_dev, shm.st_ino) == files.shm


def is_empty(database: str) -> bool:
    """Say whether the database was truncated. One in WAL mode has a page at least."""
    try:
        return os.stat(database).st_size == 0
    except OSError:
        return False


def _file(path: str) -> locks.File | None:
    try:
        return locks.file_of(path)
    except OSError:
        return None


def deleted_ones(database: str) -> set[str]:
    """Return which of `-wal` and `-shm` this process has open although they were deleted. Only Linux tells.

    If it has a deleted database of that name open as well, they may belong to that one, and are not returned.
    """
    names = {f"{database}{end} (deleted)": end for end in ("", "-wal", "-shm")}
    found = set()
    with suppress(OSError):
        for each in os.listdir("/proc/self/fd"):
            with suppress(OSError, KeyError):  # the descriptor of the list itself is closed by now
                found.add(names[os.readlink(f"/proc/self/fd/{each}")])
    return found if "" not in found else set()


def keep_open(database: Path, file: locks.File) -> None:
    """Make SQLite believe, until this process ends, that the database has one more user. Then no connection of this
    process, be it ours or the user's, is the last one, and to close it changes no file.

    Only Linux has locks that belong to a descriptor. Elsewhere nobody but the user's own code may close a connection.
    """
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return
    with suppress(OSError):
        descriptor = os.open(protected.OwnPath(database), os.O_RDONLY | os.O_CLOEXEC)
        _kept.append(descriptor)
        if locks.file_of(descriptor) == file:
            fcntl.fcntl(
                descriptor, fcntl.F_OFD_SETLK, struct.pack(locks.FLOCK, fcntl.F_RDLCK, os.SEEK_SET, _SHARED, 1, 0)
            )


# A process that may not use the store leaves a note next to it. The next process that opens the store writes it down.


def leave_note(database: Path, doubt: Doubt) -> None:
    """Note a finding. `doubt.at`: when this process has last seen the store as it was."""
    note = _note(database)
    draft = note.with_name(f"{note.name}.{os.getpid()}")
    with suppress(OSError):
        draft.write_bytes(msgspec.json.encode(doubt))
        draft.replace(note)


def read_note(database: Path) -> Doubt | None:
    """Return what a process has noted; None: nothing."""
    try:
        return msgspec.json.decode(_note(database).read_bytes(), type=Doubt)
    except (OSError, msgspec.DecodeError):
        return None


def was_deleted(database: Path) -> bool:
    """Say whether the database is gone, and a process has noted that it was deleted while in use."""
    noted = read_note(database)
    return noted is not None and (noted.evidence, noted.found) == ("file", DELETED) and not database.exists()


def remove_note(database: Path) -> None:
    """Remove the note: the store has it."""
    _note(database).unlink(missing_ok=True)


def _note(database: Path) -> Path:
    return database.with_name(database.name + "-doubt")
