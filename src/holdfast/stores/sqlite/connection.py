"""Connections to one SQLite file: how they are opened, lent, guarded and never carried over a fork.

Every write is one short `BEGIN IMMEDIATE` transaction. Threads of this process queue on a lock of their own before
they go to SQLite's, because SQLite lets waiters sleep and does not keep a queue.

Every call looks once whether the files are still the ones that this process has open. A read looks before it begins. A
write looks right before it commits, because an open transaction has changed nothing that others use, and looks again if
it fails, because the files may be the reason.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import resource
import sqlite3
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from holdfast.clock import Clock, pause
from holdfast.core.continuity import Doubt, Evidence
from holdfast.errors import (
    BadURL,
    FileLocked,
    FileReplaced,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreLost,
    StoreMissing,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnsupported,
    UsageError,
)
from holdfast.interrupts import raise_pending, shielded
from holdfast.stores.caller_connection import driver_connection
from holdfast.stores.sqlite import locks, names, protected, wal
from holdfast.stores.sqlite.checkpoint import CheckpointLock, has_the_defect
from holdfast.stores.sqlite.write_lock import WriteLock

log = logging.getLogger("holdfast.stores")

OLDEST_SQLITE = (3, 38, 0)  # STRICT tables, UPDATE … FROM, the ->> operator
C = TypeVar("C", bound=sqlite3.Connection)
_LOOK_S = 0.5  # after this time the only thread of a process looks whether it waits for itself
_LEAST_ROOM = 65_536  # bytes; a new `-shm` file has half of them
_LITTLE_ROOM = 10_000_000  # bytes
_SPARE = 8  # connections kept open for the next caller

# Connections that a forked child inherited. Closing one would run SQLite's clean-up on the parent's files, so they
# are kept here, untouched, for as long as the child lives.
_inherited: list[Any] = []


@dataclass(frozen=True, slots=True)
class Options:
    """The parts of the URL: `sqlite:///relative.db`, `sqlite:////absolute.db`, and the options after `?`."""

    path: Path
    synchronous: str = "full"  # full: an acknowledged job survives power loss; normal: it survives kill -9
    busy_s: float = 10.0  # how long a call waits for the write lock
    max_mb: float | None = None  # refuse to let the file grow beyond this

    @classmethod
    def parse(cls, url: str) -> Options:
        parts = urlsplit(url)
        if parts.scheme != "sqlite" or parts.netloc or not parts.path.startswith("/") or len(parts.path) < 2:
            raise BadURL(f"{url!r} is not a SQLite address; write sqlite:///jobs.db or sqlite:////absolute/jobs.db")
        if "#" in url:
            raise BadURL(f"{url!r}: a # in an address does not belong to the path; write %23 for one in a file's name")
        path = Path(unquote(parts.path[1:], errors="surrogateescape"))  # a folder may have any bytes
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        unknown = set(given) - {"synchronous", "busy_s", "max_mb"}
        if unknown:
            raise BadURL(f"{url!r}: unknown option {', '.join(sorted(unknown))}; known: synchronous, busy_s, max_mb")
        synchronous = given.get("synchronous", "full").lower()
        if synchronous not in ("full", "normal"):
            raise BadURL(f"{url!r}: synchronous={synchronous!r} is not full or normal")
        try:
            busy_s = float(given.get("busy_s", 10.0))
            max_mb = float(given["max_mb"]) if "max_mb" in given else None
        except ValueError:
            raise BadURL(f"{url!r}: busy_s and max_mb are numbers") from None
        return cls(path.resolve(), synchronous, busy_s, max_mb)


class WriteConnection(sqlite3.Connection):
    """A connection that writes. It never waits inside SQLite, whose naps grow too long: `begin` waits for it."""


class Connections:
    """A small stock of connections to one file."""

    def __init__(self, options: Options, clock: Clock, *, create: bool) -> None:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            oldest = ".".join(map(str, OLDEST_SQLITE))
            raise StoreUnsupported(
                f"this Python brings SQLite {sqlite3.sqlite_version}; Holdfast needs {oldest} or newer: "
                "use a newer Python"
            )
        self.options = options
        self._name = os.fspath(options.path)
        self._clock = clock
        self._spare = _no_spare()
        self._lock = threading.Lock()
        self._write_lock = WriteLock()
        self._inside: sqlite3.Connection | None = None  # whose write transaction is open
        self._watching = threading.Lock()
        self._watch: sqlite3.Connection | None = None
        self._anchor: sqlite3.Connection | None = None  # as long as it is open, SQLite keeps the WAL that is there
        self._beside: wal.Files | None = None  # the files that it has opened
        self._sound_at = clock.lease()  # when all files were last seen to be ours
        self._closed = False
        self._refusal: str | None = None
        self._links = 1  # names of the file, when it was last looked at
        self._patience = f"PRAGMA busy_timeout={int(options.busy_s * 1000)}"
        self._identity = self._make_file(create)
        self._noted = str(self._identity[1])  # the last inode at our path that a note was left about, or DELETED
        self._turn = CheckpointLock(options.path) if has_the_defect() else None
        files = tuple(f"{options.path}{end}" for end in ("", "-wal", "-shm"))
        protected.protect(*files)
        self._unprotect = weakref.finalize(self, protected.release, *files)
        _forks.add(self)

    # ------------------------------------------------------------------------------------ transactions

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection for reading; each statement sees one consistent state."""
        self._check_identity()
        connection = self._borrow()
        try:
            yield connection
        except sqlite3.Error as error:
            raise self.explain(error) from error
        finally:
            self._give_back(connection)

    @contextmanager
    def writing(self, busy_s: float | None = None) -> Iterator[sqlite3.Connection]:
        """Lend a connection inside a write transaction; commit at the end, roll back on any exception."""
        with shielded():
            connection = self.begin(busy_s)
            try:
                yield connection
                self.commit(connection)
            except BaseException as error:
                self.undo(connection)
                if isinstance(error, Exception) and not isinstance(error, FileReplaced):
                    self._check_identity()
                if isinstance(error, sqlite3.Error):
                    raise self.explain(error) from error
                raise
            finally:
                self.end(connection)

    @contextmanager
    def joining(self, connection: object) -> Iterator[sqlite3.Cursor]:
        """Lend a cursor of the caller's own connection, inside the caller's own transaction; begin one if none is open.

        A connection in autocommit mode commits by itself, as it does for every other statement of the caller.
        """
        self._check_identity()
        connection = driver_connection(connection)
        if not isinstance(connection, sqlite3.Connection):
            raise UsageError(f"connection={connection!r} is not a sqlite3.Connection, which this store needs")
        try:
            cursor = connection.cursor()
        except sqlite3.ProgrammingError as error:  # it is closed, or bound to the thread that opened it
            if "closed" in str(error):
                raise UsageError("the connection is closed; pass one that is open") from error
            ways = "open it with check_same_thread=False, which aenqueue needs, or use it in the thread that opened it"
            raise UsageError(f"the connection cannot be used here ({error}); {ways}") from error
        cursor.row_factory = None  # the caller may have set another
        databases = cursor.execute("PRAGMA database_list").fetchall()
        files = [row[2] for row in databases if row[1] in ("main", b"main")]
        if files[0] != self._name and not (files[0] and os.path.samefile(files[0], self._name)):
            raise UsageError(f"the connection is open on {files[0]!r}, not on {self.options.path}")
        has_temporary = any(row[1] in ("temp", b"temp") for row in databases)
        if has_temporary and cursor.execute("PRAGMA temp.table_info(holdfast_job)").fetchone() is not None:
            raise UsageError("the connection has a temporary table holdfast_job, which would swallow the job; drop it")
        alone = not connection.in_transaction
        try:
            if alone:
                cursor.execute("BEGIN IMMEDIATE")
            yield cursor
            if alone and _commits_by_itself(connection):
                cursor.execute("COMMIT")
        except BaseException as error:
            if alone and connection.in_transaction:
                cursor.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise self.explain(error) from error
            raise
        finally:
            cursor.close()

    def begin(self, busy_s: float | None = None, connection: sqlite3.Connection | None = None) -> sqlite3.Connection:
        """Open a write transaction, waiting for our turn; pair with `end`, and call it under a shield."""
        busy_s = self.options.busy_s if busy_s is None else busy_s
        began_at = self._clock.lease()
        look_at = began_at + _LOOK_S
        db = connection or self._borrow(WriteConnection)
        try:
            if not self._write_lock.take(db, began_at + busy_s - self._clock.lease()):
                raise self._busy_here() if self._write_lock.is_of_this_thread else self._busy(busy_s)
            nap_s = 0.0005
            while not self._begins(db):
                now = self._clock.lease()
                if now >= began_at + busy_s:
                    raise self._busy(busy_s)
                if now >= look_at:
                    look_at = float("inf")
                    if threading.active_count() == 1 and locks.writer_of(self.options.path) == os.getpid():
                        raise self._busy(now - began_at)  # nobody but this very thread could let go of it
                raise_pending()
                pause(nap_s)
                nap_s = min(nap_s * 1.5, 0.01)
            self._inside = db
            return db
        except BaseException as error:
            self._write_lock.give(db)
            if connection is None:
                self._give_back(db)
            if isinstance(error, Exception):
                self._check_identity()
            if isinstance(error, sqlite3.Error):
                raise self.explain(error) from error
            raise

    def _begins(self, db: sqlite3.Connection) -> bool:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if _code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            return False
        return True

    def commit(self, connection: sqlite3.Connection) -> None:
        """Commit what `begin` has opened, unless that would be lost, or destroy the files of others."""
        self._check_identity(connection)
        if self._turn is None:
            connection.execute("COMMIT")
        else:
            self._turn.commit(connection)

    def undo(self, connection: sqlite3.Connection) -> None:
        """Roll back what is open; never raises."""
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            sqlite3.Connection.close(connection)

    def end(self, connection: sqlite3.Connection) -> None:
        """Give the connection of a write transaction back and let the next writer in."""
        try:
            self._give_back(connection)
        finally:
            self.let_the_next_writer_in(connection)

    def hand_over(self, connection: sqlite3.Connection) -> None:
        """Let another thread end the transaction of this connection."""
        self._write_lock.hand_over(connection)

    def let_the_next_writer_in(self, connection: sqlite3.Connection) -> None:
        """End the turn that `begin` has taken for this connection; it stays with its user. Safe to repeat."""
        if self._inside is connection:
            self._inside = None
        self._write_lock.give(connection)

    def version(self) -> int:
        """Return a number that changes whenever any other connection, of any process, has committed."""
        with self._watching:
            try:
                if self._watch is None:
                    self._watch = self._borrow()
                return int(self._watch.execute("PRAGMA data_version").fetchone()[0])
            except sqlite3.Error as error:
                raise self.explain(error) from error

    def close(self) -> None:
        """Close what is spare; what is lent is closed when it comes back."""
        self.look_before_closing()
        with self._lock:
            self._closed = True
            spare = [connection for stock in self._spare.values() for connection in stock]
            self._spare = _no_spare()
        with self._watching:
            spare += [each for each in (self._watch, self._anchor) if each is not None]
            self._watch = self._anchor = None
        for connection in spare:
            connection.close()
        self._unprotect()

    # ------------------------------------------------------------------------------------ one connection

    def open(self, factory: type[C] = sqlite3.Connection) -> C:  # type: ignore[assignment]
        """Open a connection with our settings. Never creates a file."""
        self._check_identity()
        uri = f"file:{quote(bytes(self.options.path))}?mode=rw"
        connection: C | None = None
        try:
            connection = sqlite3.connect(
                uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False, factory=factory
            )
            # Reads wait too: for the process that recovers the file after a crash, or makes it.
            connection.execute(self._patience)
            connection.execute(f"PRAGMA synchronous={self.options.synchronous}")
            connection.execute("PRAGMA temp_store=memory")
            if self.options.max_mb is not None:
                page = connection.execute("PRAGMA page_size").fetchone()[0]
                connection.execute(f"PRAGMA max_page_count={int(self.options.max_mb * 1_048_576 // page)}")
            if issubclass(factory, WriteConnection):
                connection.execute("PRAGMA busy_timeout=0")
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise self.explain(error) from error
        protected.refresh()  # the first connection makes a new `-wal` file
        return connection

    def _borrow(self, kind: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
        if self._anchor is None and not self._closed:
            self._hold_wal()
        with self._lock:
            if self._closed:
                raise StoreUnavailable(f"the store {self.options.path} is closed")
            connection = self._spare[kind].pop() if self._spare[kind] else None
        if connection is None:
            connection = self.open(kind)
        return connection

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            stock = self._spare.get(type(connection))
            if stock is not None and not self._closed and len(stock) < _SPARE and _is_clean(connection):
                stock.append(connection)
                return
        connection.close()

    # ------------------------------------------------------------------------------------- the file

    def _make_file(self, create: bool) -> tuple[int, int]:
        path = self.options.path
        if not path.parent.is_dir():
            raise StoreMissing(f"the folder {path.parent} does not exist; create it first")
        if path.is_dir():
            raise StoreMissing(f"{path} is a folder; name a file inside it")
        if create:
            if wal.was_deleted(path):  # in its place an empty store would look sound
                raise StoreMissing(
                    f"{path} was deleted while in use; restore it, or remove {path}-doubt to begin with an empty store"
                )
            try:
                with _creating:
                    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            except FileExistsError:
                pass
            except OSError as error:
                raise (out_of_files() or StoreReadOnly(f"cannot create {path}: {error.strerror}")) from error
        try:
            found = path.stat()
        except FileNotFoundError:
            raise StoreMissing(f"there is no store at {path}") from None
        names.check(path, found.st_nlink)
        if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK):
            raise StoreReadOnly(f"{path} or its folder cannot be written by this user")
        return found.st_dev, found.st_ino

    def refuse(self, why: str) -> NoReturn:
        """Use this file no more: it is not safe. Every later call raises `StoreLost` too."""
        self._refusal = why
        raise StoreLost(why)

    def _check_identity(self, inside: sqlite3.Connection | None = None) -> None:
        """Raise unless the database and its `-wal` and `-shm` files are the ones that this process has open. `inside`:
        whose write transaction is open."""
        if self._refusal is not None:
            raise StoreLost(self._refusal)
        if self._identity in _lost:
            raise FileReplaced(_lost[self._identity])
        try:
            found = os.stat(self._name)
        except FileNotFoundError:
            self._note_replaced(wal.DELETED)
            raise FileReplaced(f"{self._name} was deleted while in use; restore it, then start again") from None
        except OSError as error:
            raise StoreUnavailable(f"{self._name} cannot be reached ({error.strerror})") from error
        if (found.st_dev, found.st_ino) != self._identity:
            self._note_replaced(str(found.st_ino))
            raise FileReplaced(f"{self.options.path} was replaced while in use; start again to use the new file")
        if self._beside is not None and (found.st_size == 0 or not wal.is_beside(self._name, self._beside)):
            if inside is not None:
                self.undo(inside)  # it would keep us from saving the WAL
            self._lose()
        if found.st_nlink != self._links:
            self._note_links(found.st_nlink)
        self._sound_at = self._clock.lease()

    def _note_links(self, links: int) -> None:
        """Log, once, that the file has another name. This process continues: its own name is the one in use."""
        self._links = links
        if links > 1:
            log.error(
                "%s; this process continues, but a program that starts later may be refused",
                names.too_many_names(self._name, links),
            )

    def _note_replaced(self, by: str) -> None:
        """Leave a note, once, that a file in use is gone or has another in its place: nobody who comes now can know.
        `by`: the inode of the new file, or `DELETED`."""
        with self._lock:
            if by == self._noted:
                return
            self._noted = by
        self._note(Doubt("replaced", "file", str(self._identity[1]), by))

    def _note(self, doubt: Doubt) -> None:
        who = f"process {os.getpid()}"
        at = self._clock.wall() - (self._clock.lease() - self._sound_at)
        wal.leave_note(self.options.path, msgspec.structs.replace(doubt, worker=who, at=at))

    # -------------------------------------------------------------------------------------- the WAL

    def _hold_wal(self) -> None:
        """Keep a connection open, and remember which files it has opened: only others can take them away then."""
        anchor: sqlite3.Connection = self.open()
        try:
            mode = anchor.execute("PRAGMA journal_mode").fetchone()[0]
            anchor.execute("PRAGMA schema_version").fetchone()  # now it has opened the WAL
        except sqlite3.Error as error:
            anchor.close()
            raise self.explain(error) from error
        with self._lock:
            beside = wal.beside(self._name)
            is_kept = mode == "wal" and self._anchor is None and not self._closed and None not in beside
            if is_kept:
                self._anchor, self._beside = anchor, self._beside or beside
        if not is_kept:
            anchor.close()
        elif wal.deleted_ones(self._name):  # a connection of the user's is older than the files that are there
            self._lose()

    def _lose(self) -> NoReturn:
        """Stop using the store: another program has removed its `-wal` or `-shm` file.

        Commits in a `-wal` that was deleted are only in the file that we have open. As long as the `-shm` is there,
        SQLite's locks are good, and these commits can be saved into the database.
        """
        with shielded(), _losing:
            if self._identity not in _lost:
                wal.keep_open(self.options.path, self._identity)
                now, before = wal.beside(self._name), self._beside
                has_shm = before is not None and now.shm == before.shm and "-shm" not in wal.deleted_ones(self._name)
                if wal.is_empty(self._name):  # then SQLite deletes the WAL, and its pages alone are not a database
                    doubt = Doubt("emptied", "file", "in use", "0 bytes")
                    what, became = f"{self._name} was truncated to 0 bytes while in use", "restore it from a backup"
                else:
                    evidence: Evidence = "wal" if has_shm else "shm"
                    doubt = Doubt("rewound", evidence, "in use", "deleted")
                    what = f"{self._name}-{evidence} was deleted or replaced while in use"
                    became = (
                        "everything that was committed into it was copied into the database"
                        if has_shm and now.wal is None and self._save_wal()
                        else "what was committed since the last checkpoint may be lost"
                    )
                _lost[self._identity] = f"{what}; start again to use the new file"
                self._note(doubt)
                log.error("%s; %s; this process does not use the store any more: start it again", what, became)
        raise FileReplaced(_lost[self._identity])

    def _save_wal(self) -> bool:
        with suppress(sqlite3.Error):
            if self._anchor is not None:
                return bool(self._anchor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)
        return False

    def look_before_closing(self) -> None:
        """If the files are not ours any more, see to it that closing our connections does not change the new ones."""
        if self._beside is not None and not self._closed and os.path.exists(self._name):
            with suppress(StoreError):
                self._check_identity()

    def _before_fork(self) -> None:
        """Let another thread's write end first: what SQLite remembers of its lock would stay with the child."""
        self._write_lock.take(("fork", threading.get_ident()), 1.0)

    def _after_fork_in_parent(self) -> None:
        self._write_lock.give(("fork", threading.get_ident()))

    def _after_fork(self) -> None:
        _inherited.append((self._spare, self._watch, self._anchor))
        self._spare, self._watch, self._anchor = _no_spare(), None, None  # SQLite still has the same `-shm` open here
        self._lock, self._write_lock, self._watching = threading.Lock(), WriteLock(), threading.Lock()
        self._inside = None
        if self._turn is not None:
            self._turn.forget()

    # -------------------------------------------------------------------------------------- errors

    def _busy_here(self) -> StoreLocked:
        path = self.options.path
        if self._write_lock.is_mine:
            return StoreLocked(
                f"{path}: a transaction of yours is open, and this would wait for it. Pass its connection on: "
                "task.using(connection=db).enqueue(…)"
            )
        return StoreLocked(
            f"{path}: another async job of this worker has ctx.transaction() open and awaits something, and to wait "
            "for it here would block the event loop that it needs. Await nothing between ctx.transaction() and the end "
            "of a task",
            neighbour=True,
        )

    def _busy(self, waited_s: float) -> FileLocked:
        """Say who has kept us from writing."""
        ours = self._inside is not None
        holder = None if ours else locks.writer_of(self.options.path)
        who = f"another writer, process {holder}," if holder is not None else "another writer"
        advice = "is a process stopped inside a transaction?"
        if ours or holder == os.getpid():
            who = "another transaction of this process"
            advice = "inside a transaction, pass its connection on: task.using(connection=db).enqueue(…)"
        return FileLocked(f"{self.options.path} stayed locked by {who} for {waited_s:.3g} s; {advice}", holder)

    def explain(self, error: sqlite3.Error) -> StoreError:
        """Turn an error of the driver into one of ours, with words that say what to do."""
        path = self.options.path
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY_SNAPSHOT:
            return StoreLocked(
                f"{path}: your transaction has read what another one has changed since, and can no longer write; roll "
                "it back and repeat it, or open it with BEGIN IMMEDIATE"
            )
        match _code(error):
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return self._busy(self.options.busy_s)
            case sqlite3.SQLITE_FULL:
                return StoreFull(f"{path}: no room left ({error}); nothing was written")
            case sqlite3.SQLITE_READONLY:
                return StoreReadOnly(f"{path} cannot be written ({error})")
            case sqlite3.SQLITE_CANTOPEN:
                return out_of_files() or _out_of_room(path) or StoreMissing(f"{path} cannot be opened ({error})")
            case sqlite3.SQLITE_CORRUPT:
                return StoreDamaged(f"{path} is damaged ({error}); restore it from a backup")
            case sqlite3.SQLITE_NOTADB:
                return StoreLost(f"{path} is damaged or not a SQLite file ({error}); restore it from a backup")
            case sqlite3.SQLITE_IOERR:
                return _out_of_room(path) or StoreUnavailable(f"{path}: the disk reported an error ({error})")
            case sqlite3.SQLITE_ERROR | sqlite3.SQLITE_CONSTRAINT | sqlite3.SQLITE_MISMATCH | sqlite3.SQLITE_TOOBIG:
                return StoreError(f"{path}: {error}")
            case None if "closed" not in str(error):  # the driver's own: a value that it cannot bind
                return StoreError(f"{path}: {error}")
            case _:  # out of memory, interrupted, a protocol error: it may work later
                return StoreUnavailable(f"{path}: {error}")


def _no_spare() -> dict[type[sqlite3.Connection], list[sqlite3.Connection]]:
    return {sqlite3.Connection: [], WriteConnection: []}


def _is_clean(connection: sqlite3.Connection) -> bool:
    try:
        return not connection.in_transaction
    except sqlite3.Error:  # it was closed
        return False


def _commits_by_itself(connection: sqlite3.Connection) -> bool:
    return connection.isolation_level is None or getattr(connection, "autocommit", None) is True


def is_outage(error: sqlite3.Error) -> bool:
    """Say whether the file cannot be written just now, by any process."""
    return _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)


def out_of_files() -> StoreUnavailable | None:
    """Return the error of a process that cannot open one more file; None: it can."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return StoreUnavailable(
                f"no more files can be opened ({error.strerror}): the limit of this process is {most}; raise it "
                "(ulimit -n), or close what handlers leave open"
            )
    return None


def has_little_room(path: Path) -> bool:
    """Say whether the disk is so full that only a write can tell whether one still fits."""
    disk = os.statvfs(path.parent)
    return disk.f_bavail * disk.f_frsize < _LITTLE_ROOM


def _out_of_room(path: Path) -> StoreFull | None:
    """Return the error of a disk that is full, or of a limit that is used up; None: there is room. SQLite calls it an
    I/O error, or cannot open the file, when it is the `-shm` or `-wal` file that does not fit, and every time that a
    limit of the user or the process is to blame."""
    with suppress(OSError):
        disk = os.statvfs(path.parent)
        if disk.f_bavail * disk.f_frsize < _LEAST_ROOM or (disk.f_files and not disk.f_favail):
            return StoreFull(f"{path}: no room left on its disk; nothing was written")
    if (why := _used_up(path)) is not None:
        return StoreFull(f"{path}: no room left ({why}); nothing was written")
    return None


def _used_up(path: Path) -> str | None:
    """Return which limit is used up: of the size of a file, in this process, or of the disk space of this user. The
    system tells only those who write."""
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if largest != resource.RLIM_INFINITY:
        for name in (path, f"{path}-wal"):
            with suppress(OSError):
                if os.stat(name).st_size + _LEAST_ROOM > largest:
                    return f"no file of this process may be larger than {largest} bytes: ulimit -f"
    try:
        with tempfile.TemporaryFile(dir=path.parent, buffering=0) as file:
            file.write(bytes(_LEAST_ROOM))
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno in (errno.EDQUOT, errno.EFBIG, errno.ENOSPC):
            return os.strerror(error.errno)
    return None


def _code(error: sqlite3.Error) -> int | None:
    """Return the primary result code of SQLite, without the extension."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


# Closing the new file drops the locks that another thread may have on it, so nobody else opens it before.
_creating = threading.Lock()
_losing = threading.Lock()
_lost: dict[tuple[int, int], str] = {}  # the databases that this process may not use any more, and why
_forks: weakref.WeakSet[Connections] = weakref.WeakSet()


def _all() -> list[Connections]:
    while True:
        with suppress(RuntimeError):  # another thread has opened a store meanwhile
            return list(_forks)


def _before_fork() -> None:
    for connections in _all():
        connections._before_fork()


def _after_fork_in_parent() -> None:
    for connections in _all():
        connections._after_fork_in_parent()


def _after_fork_in_child() -> None:
    global _creating, _losing
    _creating, _losing = threading.Lock(), threading.Lock()
    for connections in _all():
        connections._after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _look_before_exit() -> None:
    """Python closes every connection when it ends."""
    for connections in _all():
        connections.look_before_closing()


atexit.register(_look_before_exit)
