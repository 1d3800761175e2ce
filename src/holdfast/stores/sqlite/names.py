"""One database under two names: a hard link, or the file alone mounted into a container.

SQLite builds the names of the `-wal` and `-shm` files from the name of the database. Under a second name the same
database has other ones. Nothing coordinates the two groups of programs then: they lose each other's jobs and damage the
file. So a store under two names is refused before anything is written.

One exception: a program may join others that use the store under the same name. An operator may hard-link the files of
a running worker (`cp -al`), and that must not keep the worker from replacing a child. The first program that comes
under the other name is still refused, because nobody uses its `-shm` file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import StoreUnsupported
from holdfast.stores.sqlite import locks

_MOUNTS = Path("/proc/self/mountinfo")
_BESIDE = ("", "-wal", "-shm", "-journal", "-doubt", "-workers")  # what SQLite and we add to the name of a database


def check(path: Path, links: int) -> None:
    """Raise `StoreUnsupported` if the same file may be in use under another name."""
    if any(point == path for point, _ in mounts()):
        raise StoreUnsupported(
            f"{path} is mounted by itself, so its -wal file is not the one that programs outside use: jobs would be "
            f"lost; mount the folder that has the file instead"
        )
    if links > 1 and not locks.is_used(path):
        raise StoreUnsupported(f"{too_many_names(path, links)}; remove the other names, then start again: {find(path)}")


def too_many_names(path: str | Path, links: int) -> str:
    """Say what is wrong with a file that has hard links."""
    return f"{path} has {links} names (hard links), and each has its own -wal file: jobs would be lost"


def find(path: Path) -> str:
    """Return the command that lists all names of a file."""
    return f"find FOLDER -xdev -samefile {path}"


def owns(database: Path, path: Path) -> bool:
    """Say whether a path is one of the store's own files, by any name, or would become one if it does not exist yet."""
    own = [database.with_name(database.name + end) for end in _BESIDE]
    if path.name in (each.name for each in own) and _is_same(path.parent, database.parent):
        return True
    return any(_is_same(found, each) for found in (path, path.parent) for each in own)


def _is_same(path: Path, other: Path) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:  # one of them does not exist, or cannot be looked at
        return False


def mounts() -> Iterator[tuple[Path, str]]:
    """Yield each mount point of this process, with the type of its file system. Only Linux tells."""
    try:
        lines = _MOUNTS.read_bytes().splitlines()
    except OSError:
        return
    for fields in map(bytes.split, lines):
        point = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), fields[4])  # a space is \040
        yield Path(os.fsdecode(point)), os.fsdecode(fields[fields.index(b"-") + 1])
