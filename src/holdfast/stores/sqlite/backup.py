"""Copy a live store to a new file, by SQLite's own online backup."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from holdfast.errors import UsageError
from holdfast.stores.sqlite import names
from holdfast.stores.sqlite.connection import Connections

_PIECE = 256  # pages; a megabyte as a rule


def check_target(database: Path, target: Path) -> None:
    """Raise `UsageError` where something has that name already, or the store itself would use the file."""
    if os.path.lexists(target):
        raise UsageError(f"{target} exists; name a new file")
    if names.owns(database, target):
        raise UsageError(f"{target} is a name of the store's own files; choose another")


def backup(db: Connections, target: Path, copied: Callable[[int], None]) -> int:
    """Write the store, as it is now, to a file that must not exist yet; return its size in bytes.

    The copy is one snapshot. Nobody waits for it, but the WAL grows until it is complete. `copied` gets the bytes of
    each piece. The file takes its name only when it is complete and on the disk; only its owner may read it.
    """
    check_target(db.options.path, target)
    try:
        descriptor, part = tempfile.mkstemp(prefix=f"{target.name}.", suffix=".part", dir=target.parent)
        os.close(descriptor)
    except OSError as error:
        raise UsageError(f"cannot write in {target.parent}: {error.strerror}") from error
    try:
        with (
            closing(db.open(sqlite3.Connection)) as source,
            closing(sqlite3.connect(part, isolation_level=None)) as copy,
        ):
            _copy(source, copy, copied)
        give_name(Path(part), target)
    except FileExistsError as error:
        raise UsageError(f"{target} exists; name a new file") from error
    except sqlite3.Error as error:
        raise db.explain(error) from error
    finally:
        Path(part).unlink(missing_ok=True)
    _sync(target.parent)
    return target.stat().st_size


def give_name(part: Path, target: Path) -> None:
    """Give a complete file its name. Raises `FileExistsError` instead of taking another file's place."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        target.touch(mode=0o600, exist_ok=False)
        part.replace(target)


def _copy(source: sqlite3.Connection, copy: sqlite3.Connection, copied: Callable[[int], None]) -> None:
    source.execute("BEGIN")  # hold one snapshot: otherwise each commit of others makes the backup begin again
    page_bytes = int(source.execute("PRAGMA page_size").fetchone()[0])
    left = int(source.execute("PRAGMA page_count").fetchone()[0])

    def tell(_: int, remaining: int, __: int) -> None:
        nonlocal left
        copied((left - remaining) * page_bytes)
        left = remaining

    source.backup(copy, pages=_PIECE, progress=tell, sleep=0)
    source.execute("ROLLBACK")


def _sync(folder: Path) -> None:
    """Make the new name survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
