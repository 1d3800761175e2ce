"""Findings about a SQLite store: the file, its version, its safety, its room."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.core.text import counted, listed
from holdfast.insight.findings import Finding, long_journal, of_orphans, ok, problem, warning
from holdfast.insight.format import size
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.facts import SqliteFacts
from holdfast.stores.sqlite.names import find, too_many_names

CHECKED_MAX = 50_000_000  # bytes of a file that is checked for damage in passing: more takes longer than a second
FREE_LEAST, FREE_WANTED = 100_000_000, 1_000_000_000
TO_MAKE_ROOM = "make room on the disk: delete other files, or make it larger; to delete jobs takes room too"
WAL_MAX = 64_000_000
EVENTS_MAX = 5_000_000
ROWS_NAMED = 5  # of those that cannot be read
NETWORK = ("nfs", "cifs", "smb", "afs", "ceph", "9p", "fuse.sshfs", "fuse.glusterfs", "lustre", "gfs2")  # and nfs4, …


def of_the_file(store: Store, found: SqliteFacts) -> Iterator[Finding]:
    """Check the file and what surrounds it."""
    yield from _soundness(store, found)
    yield _durability(found)
    yield _defect(found)
    yield _room(found)
    yield from _place(found)
    yield from _growth(found)


def _soundness(store: Any, found: SqliteFacts) -> Iterator[Finding]:
    if found.file_bytes > CHECKED_MAX:
        evidence = f"the file has {size(found.file_bytes)}; holdfast db check reads all of it"
        yield ok("Not checked for damage", evidence)
        return
    if damage := store.damage():
        fix = "stop the workers and restore the file from a backup; see holdfast db check"
        yield problem("The file is damaged", listed(damage, 3), fix)
        return
    wal = f", with {size(found.wal_bytes)} more in {found.path.name}-wal" if found.wal_bytes else ""
    yield ok("The file is sound", f"{found.path}, {size(found.file_bytes)}{wal}")
    yield from of_orphans(store.orphans())
    for row in store.unreadable()[:ROWS_NAMED]:
        yield problem("A row cannot be read", f"{row.row}: {row.cause}; another program wrote it", row.fix)


def _durability(found: SqliteFacts) -> Finding:
    if found.synchronous == "full":
        return ok("Acknowledged jobs survive a power cut", "synchronous=full, in this address")
    evidence = "synchronous=normal, in this address: it survives kill -9; a power cut may take the last moments"
    return ok("Acknowledged jobs survive kill -9", evidence)


def _defect(found: SqliteFacts) -> Finding:
    name = f"SQLite {found.version}"
    if not found.has_the_defect:
        return ok("SQLite is recent enough", f"{name} does not have the WAL-reset defect")
    newer = "a Python with SQLite 3.51.3 or newer (3.50.7 and 3.44.6 are repaired too)"
    turns = f"{name} has the WAL-reset defect; Holdfast's own connections take turns, so that they cannot meet it"
    if not found.other_tables:
        return ok("SQLite has a defect that Holdfast avoids", f"{turns}. Best is {newer}")
    # Each connection has its own setting, and nobody else can see it: whether yours are safe is not known here.
    evidence = (
        f"{turns}. The file has other tables too ({listed(found.other_tables, 3)}): each connection of your own that "
        f"writes them must run PRAGMA wal_autocheckpoint=0, which the doctor cannot see. Best is {newer}"
    )
    return ok("SQLite has a defect that concerns your own connections", evidence)


def _room(found: SqliteFacts) -> Finding:
    free = f"{size(found.free_bytes)} free next to {found.path}"
    fix = (
        "make room, or prune: holdfast db prune --older-than 7d (it frees pages for new jobs; the file stays as large)"
    )
    if found.free_bytes < FREE_LEAST:
        return problem("The disk is full", free, TO_MAKE_ROOM)
    if found.free_bytes < FREE_WANTED:
        return warning("The disk is nearly full", free, fix)
    if found.max_mb is not None and found.file_bytes > 0.9 * found.max_mb * 1_048_576:
        evidence = f"{size(found.file_bytes)} of max_mb={found.max_mb:g} are used"
        return warning("The store is nearly full", evidence, f"raise max_mb in the address, or {fix}")
    return ok("There is room", free)


def _place(found: SqliteFacts) -> Iterator[Finding]:
    """Check the folder, the permissions and the mode of the file."""
    if found.journal_mode != "wal":
        evidence = f"journal_mode is {found.journal_mode}: readers and writers block each other"
        yield problem("The file is not in WAL mode", evidence, "stop everything, then: PRAGMA journal_mode=WAL")
    if (found.filesystem or "").startswith(NETWORK):
        evidence = f"{found.path} is on {found.filesystem}, whose locks SQLite cannot rely on"
        yield problem("The file is on a network drive", evidence, "move it to a local disk")
    if found.links > 1:
        fix = (
            f"remove the other names, or no program can open the store after the last one has ended: {find(found.path)}"
        )
        yield problem("The file has more than one name", too_many_names(found.path, found.links), fix)
    open_to_all = [path for path, mode in found.modes.items() if mode & 0o002 and not mode & 0o1000]
    readable = [path for path, mode in found.modes.items() if mode & 0o077 and path != str(found.path.parent)]
    if open_to_all:
        evidence = f"anybody on this host may write to {listed(open_to_all)}"
        yield problem("Other users may change the store", evidence, f"chmod o-w {' '.join(open_to_all)}")
    elif readable and found.modes.get(str(found.path.parent), 0) & 0o077:
        evidence = f"others than its owner may open {listed(readable)}: arguments and results are readable"
        yield warning("Other users may read the store", evidence, f"chmod go-rwx {' '.join(readable)}")
    else:
        yield ok("Only its owner can open the store", f"permissions of {counted(len(found.modes), 'path')}")


def _growth(found: SqliteFacts) -> Iterator[Finding]:
    if found.wal_bytes > WAL_MAX:
        evidence = f"{found.path}-wal has {size(found.wal_bytes)}, where a few are usual"
        fix = "end what reads without an end: a stopped process, a shell, a backup with an open transaction"
        yield warning("The WAL cannot be copied back", evidence, fix)
    if found.events > EVENTS_MAX:
        yield long_journal(found.events)
