"""Facts about a SQLite store: versions, sizes, permissions, free space. `insight` judges them."""

from __future__ import annotations

import shutil
import sqlite3
import stat
from pathlib import Path

import msgspec

from holdfast.stores import row_json
from holdfast.stores.sqlite.checkpoint import has_the_defect
from holdfast.stores.sqlite.connection import Connections
from holdfast.stores.sqlite.names import mounts
from holdfast.stores.sqlite.rows import Q


class SqliteFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the file and of what surrounds it."""

    path: Path
    version: str  # of SQLite
    has_the_defect: bool  # see checkpoint.py
    synchronous: str  # as our own address has it
    journal_mode: str
    file_bytes: int
    wal_bytes: int
    free_bytes: int  # on the disk
    max_mb: float | None
    modes: dict[str, int]  # permission bits by path: the file, its -wal, -shm and -workers, the folder
    links: int  # names of the file
    filesystem: str | None  # its type; None where it is not known
    other_tables: list[str]  # which are not ours: other programs use the file too
    events: int  # lines of the journal, about


def look(db: Connections) -> SqliteFacts:
    """Look at everything. Changes nothing."""
    path = db.options.path
    beside = [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", "-workers")), path.parent]
    with db.reading() as connection:
        mode = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
        others = row_json.names_from(connection.execute(Q["condition_tables"]).fetchone()[0])
        events = int(connection.execute(Q["condition_events"]).fetchone()[0])
    return SqliteFacts(
        path=path,
        version=sqlite3.sqlite_version,
        has_the_defect=has_the_defect(),
        synchronous=db.options.synchronous,
        journal_mode=mode,
        file_bytes=_size(path),
        wal_bytes=_size(beside[1]),
        free_bytes=shutil.disk_usage(path.parent).free,
        max_mb=db.options.max_mb,
        modes={str(each): stat.S_IMODE(each.stat().st_mode) for each in beside if each.exists()},
        links=path.stat().st_nlink,
        filesystem=_filesystem(path),
        other_tables=others,
        events=events,
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _filesystem(path: Path) -> str | None:
    """Return the type of the file system, from the longest mount point above the path; None where there is no /proc."""
    found = {len(point.parts): kind for point, kind in mounts() if path.is_relative_to(point)}
    return found[max(found)] if found else None


def damage(db: Connections) -> list[str]:
    """Read the whole file; return what is wrong with it, in words. The rows are read by `unreadable.py`."""
    with db.reading() as connection:
        return [row[0] for row in connection.execute("PRAGMA quick_check(20)") if row[0] != "ok"]


def orphans(db: Connections) -> list[str]:
    """Return the running jobs whose worker has no row, in words."""
    with db.reading() as connection:
        if connection.execute(Q["schema_exists"]).fetchone() is None:
            return []
        found = row_json.rows_from(connection.execute(Q["check"]).fetchone()[0])
    return [f"job {job_id} runs under worker {worker}, which has no row" for job_id, worker in found]
