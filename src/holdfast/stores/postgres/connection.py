"""Connections to one PostgreSQL database: how they are opened, lent, explained and never carried over a fork.

Every verb is one statement on a connection of the pool, in autocommit: whatever happens to this process, the server
is never left waiting inside a transaction for it.

Settings of the role, the database, the address or PGOPTIONS can change what a statement means. Those that matter are
pinned when a connection is made (`session` in queries.sql). Behind a pooler no session belongs to us, so there each
verb is a transaction that carries them (`begin`), and no statement is prepared. Every connection is asked: a pooler may
be put behind an address that was the server's own, and be taken away again.

The server itself ends what takes too long (`Limits`): a statement that waits for another transaction's lock, or that no
client waits for any more, does not stay behind. A session keeps its limits, so they cost a verb no round trip.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit

import psycopg
from psycopg import errors, generators, pq, sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq.abc import PGconn, PGresult
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from holdfast.clock import SystemClock, pause
from holdfast.core.policy import Policy
from holdfast.errors import (
    BadURL,
    OutcomeUnknown,
    StoreDamaged,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreMissing,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
    StoreUnsupported,
)
from holdfast.interrupts import shielded
from holdfast.stores import rounds
from holdfast.stores.sql import load_queries
from holdfast.stores.urls import shown_url

OLDEST_SERVER = 14
BEAT_S = Policy().beat_every_s  # of workers that have not said otherwise
ANSWER_S = 60.0  # a statement that has no answer by then is given up, and its connection with it
CONFLICT_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # pauses before a verb that met a deadlock is tried again
_LONG_S = 30.0  # a statement that may take longer than this is waited for longer than ANSWER_S
_SLICE_S = 0.5  # how long the pool may try before its error is asked for
_POOL = "holdfast"
T = TypeVar("T")
N = TypeVar("N", int, float)
C = TypeVar("C", bound=psycopg.Connection[Any])
Connection = psycopg.Connection[Any]
Cursor = psycopg.Cursor[Any]
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}")
SESSION_GRACE_S = 1.5  # longer than a session takes to come back after it was cut
_OWN = ("schema", "pool_max", "wait_s", "session_grace_s", "direct")
IDLE_S = 15.0  # a connection of the pool that nobody has needed for this long is given back to the server
# A refused connection comes without a code.
_DENIED = re.compile(r'password authentication failed|no password supplied|role ".*" does not exist|no pg_hba\.conf')
_NO_DATABASE = re.compile(r'database ".*" does not exist')
log = logging.getLogger("holdfast.stores")
_QUERIES = load_queries("holdfast.stores.postgres")
_CLOCK = SystemClock()

# Pools that a forked child inherited. Closing one of their connections would end the parent's session on the server,
# so they are kept here, untouched, for as long as the child lives.
_inherited: list[Any] = []


@dataclass(frozen=True, slots=True)
class Options:
    """The parts of the URL: a PostgreSQL address as libpq knows it, and five options of our own."""

    conninfo: str = field(repr=False)
    shown: str  # without the password
    schema: str = "holdfast"
    pool_max: int = 10  # connections that one process may use at once, beside those of `ctx.transaction()`
    wait_s: float = 10.0  # how long a call waits for a connection
    session_grace_s: float = SESSION_GRACE_S  # how long the session of a worker may be away before that is a death
    direct: str | None = field(default=None, repr=False)  # where the server itself answers, if `conninfo` is a pooler

    @classmethod
    def parse(cls, url: str) -> Options:
        shown = shown_url(url)
        unreadable = BadURL(f"{shown!r} cannot be read; write %XX for special characters in names and passwords")
        try:
            parts = urlsplit(url)
        except ValueError:
            raise unreadable from None
        if parts.scheme not in ("postgresql", "postgres"):
            raise BadURL(f"{shown!r} is not a PostgreSQL address; write postgresql://user@host/database")
        own = {name: value for name, value in parse_qsl(parts.query, keep_blank_values=True) if name in _OWN}
        # The others are passed on as they were written: libpq decodes them itself, and knows no + for a space.
        rest = "&".join(each for each in parts.query.split("&") if each.partition("=")[0] not in _OWN)
        conninfo = f"postgresql://{parts.netloc}{parts.path}" + (f"?{rest}" if rest else "")
        schema = own.get("schema", "holdfast")
        if not _NAME.fullmatch(schema) or schema.startswith("pg_"):
            raise BadURL(f"{shown!r}: schema={schema!r} is not a plain name; use small letters, digits and _")
        known = {each.keyword.decode() for each in pq.Conninfo.get_defaults()} | {*_OWN}
        for name in dict(parse_qsl(rest, keep_blank_values=True)):
            if name not in known:
                raise BadURL(f"{shown!r}: there is no option {name!r}{_perhaps(name, known)}")
        try:
            ports = str(conninfo_to_dict(conninfo).get("port", ""))
        except psycopg.ProgrammingError:  # its words quote what it could not read, which may be the password
            raise unreadable from None
        # As libpq reads a password with a slash in it, and one with an @.
        if not re.fullmatch(r"[0-9,]*", ports) or parts.netloc.count("@") > 1:
            raise unreadable
        pool_max, wait_s = _number(own, "pool_max", int, 10), _number(own, "wait_s", float, 10.0)
        if pool_max is None or pool_max < 2:
            raise BadURL(f"{shown!r}: pool_max is a whole number of at least 2")
        if wait_s is None or not 0 < wait_s < 3600:
            raise BadURL(f"{shown!r}: wait_s is a number of seconds, more than 0 and less than 3600")
        session_grace_s = _number(own, "session_grace_s", float, SESSION_GRACE_S)
        if session_grace_s is None or not SESSION_GRACE_S <= session_grace_s <= 86_400:
            words = f"session_grace_s is a number of seconds, at least {SESSION_GRACE_S:g} and at most a day"
            raise BadURL(f"{shown!r}: {words}")
        direct = _direct(parts.netloc, parts.path, rest, own["direct"]) if "direct" in own else None
        if "direct" in own and direct is None:
            raise BadURL(f"{shown!r}: direct is the address of the server behind the pooler: host or host:port")
        return cls(conninfo, shown, schema, pool_max, wait_s, session_grace_s, direct)

    def to_server(self) -> Options:
        """Return the options of sessions that no pooler may lend to others."""
        return self if self.direct is None else replace(self, conninfo=self.direct, direct=None)


def _direct(netloc: str, path: str, rest: str, place: str) -> str | None:
    """Return the address with another host and port in it; None if they cannot be read."""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d{1,5})?", place, re.ASCII)
    if found is None:
        return None
    user = netloc.rpartition("@")[0]
    kept = "&".join(each for each in rest.split("&") if each.partition("=")[0] not in ("host", "hostaddr", "port"))
    return f"postgresql://{user}{'@' if user else ''}{place}{path}" + (f"?{kept}" if kept else "")


def _number(own: dict[str, str], name: str, kind: Callable[[str], N], usual: N) -> N | None:
    try:
        return kind(own[name]) if name in own else usual
    except ValueError:
        return None


def _perhaps(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; perhaps {near[0]!r}" if near else ""


@dataclass(frozen=True, slots=True)
class Limits:
    """The server's time limits for another transaction's lock and for one statement."""

    lock_s: float
    statement_s: float
    answer_s: float | None = None  # how long we wait for the server, which does not limit a commit; None: ANSWER_S

    @classmethod
    def hot(cls, beat_s: float) -> Limits:
        """Return those of the verbs that a worker lives by: no lock may keep it from its next beat."""
        return cls(min(1.0, beat_s / 3), max(1.0, beat_s))

    @classmethod
    def patient(cls, wait_s: float) -> Limits:
        """Return the limits of calls that a caller waits for. The limit on locks comes first, so that the error names
        the cause."""
        return cls(0.8 * wait_s, wait_s)

    @property
    def values(self) -> dict[str, str]:
        """Return them as the server takes them; 0 would mean no limit."""
        return {
            "lock_ms": str(max(1, round(self.lock_s * 1000))),
            "statement_ms": str(max(1, round(self.statement_s * 1000))),
        }


BULK = Limits(1.0, 60.0)  # for pages of work that is allowed to take long
PROOF = Limits(1.0, 4.0, answer_s=5.0)  # for a write that only shows whether others would succeed


class Session(psycopg.Connection[Any]):
    """A connection that does not wait for ever: a server, or a proxy in between, may take a statement and never
    answer, on a network that looks healthy. No answer in time counts as a cut."""

    answer_s: float | None = None  # None: ANSWER_S
    limits: Limits | None = None  # None: none of ours yet
    pooled = False  # a pooler lends it to many: nothing stays on it

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn)
        self._statements: set[bytes] = set()

    def first_row(self, name: bytes, query: bytes, values: list[bytes | None]) -> list[bytes | None] | None:
        """Run a statement that this session prepares once; return its first row, or None if there is none.

        Values and row are texts as the server writes them. The driver's own handling of a
        statement and its values would take as long as storing a job.
        """
        if name not in self._statements:
            self.pgconn.send_prepare(name, query)
            self._result()
            self._statements.add(name)
        self.pgconn.send_query_prepared(name, values)
        try:
            found = self._result()
        except errors.InvalidSqlStatementName:  # the driver forgets all of them after a migration
            self._statements.clear()
            return self.first_row(name, query, values)
        return [found.get_value(0, column) for column in range(found.nfields)] if found.ntuples else None

    def _result(self) -> PGresult:
        found: PGresult = self.wait(generators.execute(self.pgconn))[-1]
        if found.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            raise errors.error_from_result(found, self.info.encoding)
        return found

    def answers(self) -> None:
        """Wait for a sign of life of the server. It begins no transaction for that: it only says that it is ready."""
        with self.pipeline():
            pass

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """Every operation of the driver passes here."""
        limit_s = ANSWER_S if self.answer_s is None else self.answer_s
        if self.limits is not None and self.limits.answer_s is not None:
            limit_s = self.limits.answer_s
        elif self.limits is not None and self.limits.statement_s > _LONG_S:
            limit_s += self.limits.statement_s  # the server gives up first
        return super().wait(_bounded(gen, limit_s), *arguments, **options)


@contextmanager
def in_its_own_time(db: Cursor) -> Iterator[None]:
    """Let this connection work for as long as it takes: to change a large table takes minutes."""
    session = cast(Session, db.connection)
    session.answer_s = float("inf")
    try:
        yield
    finally:
        session.answer_s = None


def _bounded(work: Any, limit_s: float) -> Generator[Any, Any, Any]:
    """Pass the driver's waits on; it looks up from each of them several times a second."""
    give_up_at = _CLOCK.lease() + limit_s
    try:
        wish = next(work)
        while True:
            ready = yield wish
            if not ready and _CLOCK.lease() > give_up_at:
                raise NoAnswer(f"no answer within {limit_s:g} s")
            wish = work.send(ready)
    except StopIteration as end:
        return end.value


class NoAnswer(psycopg.OperationalError):
    """The connection is not used any more; what was asked for may have been done."""


class Connections:
    """A pool of connections to one database, and the statements of the store with its schema's name in them."""

    def __init__(self, options: Options, *, often: bool = False) -> None:
        self.options = options
        self._hot = often  # the same few statements all the time: they are prepared, and planned once
        self.limits = Limits.hot(BEAT_S) if often else Limits.patient(options.wait_s)
        self.twin: Connections | None = None  # another pool to the same server: what is cut here may be cut there
        self.channel = options.schema  # what NOTIFY is sent to
        names = {"schema": sql.Identifier(options.schema), "channel": sql.Identifier(self.channel)}
        self._sql = {name: self._written(_without_notes(text), names) for name, text in _QUERIES.items()}
        self.add_one = _numbered(self._sql["add_one"])
        self._names = names
        self._lock = threading.Lock()
        self._pool: ConnectionPool[Session] | None = None
        self._closed = False
        self._dropped_at = float("-inf")
        self._failures = 0  # of the pool to connect, that were looked into
        self.made = 0  # connections, over all time
        self.pooled = False  # whether the newest connection goes through a pooler
        self._shared = False  # a pooler was noticed by what it did to prepared statements
        _forks.add(self)

    def __getitem__(self, query: str) -> bytes:
        """Return a statement of queries.sql."""
        return self._sql[query]

    def script(self, text: str) -> bytes:
        """Return a migration with the schema's name in it."""
        return self._written(text, self._names)

    @staticmethod
    def _written(text: str, names: dict[str, sql.Identifier]) -> bytes:
        # It wants text that stands in the program; ours stands in the package's .sql files, which no other program
        # writes.
        return sql.SQL(text).format(**names).as_bytes(None)  # pyright: ignore[reportArgumentType]

    # ------------------------------------------------------------------------------------------- verbs

    def one(self, query: str, values: dict[str, Any] | None = None, limits: Limits | None = None) -> Any:
        """Run a statement and return its only row."""
        if limits is None:
            is_there, row = rounds.row_of(self.twin if self._hot and self.twin else self, query, values)
            if is_there:
                return row
        return self.run(lambda db: db.execute(self[query], values, prepare=self._hot).fetchone(), limits)

    def rows(self, asked: Sequence[tuple[str, Mapping[str, Any] | None]]) -> list[Any]:
        """Run statements that only read, in one round trip, and return the only row of each."""

        def ask(db: Cursor) -> list[Any]:
            if cast(Session, db.connection).pooled:  # not every pooler passes on several statements at once
                return [db.execute(self[query], values).fetchone() for query, values in asked]
            with db.connection.pipeline():
                cursors = [db.connection.execute(self[query], values, prepare=False) for query, values in asked]
            return [cursor.fetchone() for cursor in cursors]

        return self.run(ask)

    @staticmethod
    def row(cursor: Cursor) -> Any:
        """Return the only row of a statement that always has one."""
        return cursor.fetchone()

    def run(self, work: Callable[[Cursor], T], limits: Limits | None = None) -> T:
        """Do the work with a cursor. It must be safe to repeat: if the connection turns out to be dead, as all are
        after a restart of the server, it is done once more on a new one. If it meets a deadlock or a conflict with
        another transaction, the server has undone it, and it is tried again after a pause. Raises `OutcomeUnknown` when
        an answer was lost, and the work could not be repeated."""
        lost = False
        allowed = limits or self.limits

        def noting(db: Cursor) -> T:
            nonlocal lost
            try:
                is_pooled = cast(Session, db.connection).pooled
                return self._carrying_settings(db, work, allowed) if is_pooled else work(db)
            except psycopg.OperationalError as error:
                lost = lost or isinstance(error, NoAnswer) or _is_cut(error)
                raise

        with shielded():
            try:
                for pause_s in CONFLICT_S:
                    try:
                        return self._connected(noting, allowed)
                    except _CONFLICTS:
                        pause(pause_s)
                return self._connected(noting, allowed)
            except psycopg.Error as error:
                explained = self.explain(error)
                if lost and isinstance(explained, StoreUnavailable):
                    explained = OutcomeUnknown(str(explained))
                raise explained from error

    def _connected(self, work: Callable[[Cursor], T], limits: Limits) -> T:
        """Do the work, once more on a new connection if the first one was dead, or was not ours alone."""
        began = _CLOCK.lease()
        try:
            return self._attempt(work, limits)
        except _NOT_AS_PREPARED as error:
            self._share(error)
            self._drop_the_dead(began)
        except psycopg.OperationalError as error:
            if isinstance(error, NoAnswer) or _is_cut(error):
                self._drop_the_dead(began)
            if not _is_cut(error):
                raise
        return self._attempt(work, limits)

    def open(self, kind: type[C], **settings: Any) -> C:
        """Open a connection of its own, outside the pool. Nothing is pinned on it but the encoding."""
        self._check_open()
        connection = kind.connect(self.options.conninfo, **(self._settings() | settings))
        try:
            _check_server(connection, self.options.shown)
        except StoreUnsupported:
            connection.close()
            raise
        return connection

    def open_pinned(self) -> Session:
        """Open a session for statements of our own, outside the pool."""
        session = self.open(Session)
        try:
            self._pin(session)
        except BaseException:
            session.close()
            raise
        return session

    def _pin(self, session: Session) -> None:
        """Pin the settings of a session, unless a pooler owns it: then each verb carries them."""
        pooled: bool = self.row(session.execute(self["session"], {"told": session.info.backend_pid}))[0]
        session.pooled = pooled or self._shared
        if session.pooled:
            session.prepare_threshold = None  # never: the next session does not know what this one has prepared
        for pool in (self, self.twin):
            if pool is not None:
                pool.pooled = session.pooled

    def _configure(self, session: Session) -> None:
        """Prepare a session for the pool."""
        with self._lock:
            self.made += 1
        self._pin(session)
        if self._hot and not session.pooled:
            session.execute(PLAN_ONCE)

    def _share(self, error: psycopg.Error) -> None:
        """Take every session from now on for one that others use too: only they can have changed what we prepared. A
        pooler that gives the numbers of the server's own processes is noticed by nothing else."""
        is_news = not self._shared
        for pool in (self, self.twin):
            if pool is not None:
                pool._shared = True
        if is_news:
            log.warning(
                "%s: statements that this process has prepared are gone or were replaced (%s): a pooler shares its "
                "sessions; from now on each call is a transaction with settings of its own, and nothing is prepared",
                self.options.shown,
                _one_line(error),
            )

    def close(self) -> None:
        """Close the pool; what is lent is closed when it comes back."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close(timeout=2.0)

    def _attempt(self, work: Callable[[Cursor], T], limits: Limits) -> T:
        pool = self._open_pool()
        connection = self._lend(pool)
        try:
            with connection.cursor() as db:
                if not connection.pooled and connection.limits != limits:
                    db.execute(self["limits"], limits.values, prepare=False)
                    connection.limits = limits
                return work(db)
        except (NoAnswer, *_NOT_AS_PREPARED):
            connection.close()
            raise
        finally:
            pool.putconn(connection)

    def _carrying_settings(self, db: Cursor, work: Callable[[Cursor], T], limits: Limits) -> T:
        """Do the work in one transaction that carries the settings: the next one may run in another session."""
        with psycopg.ClientCursor(db.connection) as first:  # several statements in one message cannot have parameters
            first.execute(self["begin"], limits.values)
        cast(Session, db.connection).limits = limits
        try:
            answer = work(db)
        except NoAnswer:
            raise
        except BaseException:
            with suppress(psycopg.Error):  # the connection may be lost, which the first error says better
                db.connection.rollback()
            raise
        db.connection.commit()
        return answer

    def _lend(self, pool: ConnectionPool[Session]) -> Session:
        """Take a connection out of the pool. While the pool cannot connect it only lets us wait: then we try ourselves,
        to know why at once, and to be there when the server is back."""
        give_up_at = _CLOCK.lease() + self.options.wait_s
        while (left_s := give_up_at - _CLOCK.lease()) > _SLICE_S:
            try:
                return pool.getconn(timeout=_SLICE_S)
            except PoolTimeout:
                failures = pool.get_stats().get("connections_errors", 0)
                if failures > self._failures:
                    self.open_pinned().close()
                    self._failures = failures
        return pool.getconn(timeout=max(left_s, 0.001))

    def _open_pool(self) -> ConnectionPool[Session]:
        with self._lock:
            self._check_open()
            if self._pool is None:
                self._pool = self._new_pool()
            return self._pool

    def _new_pool(self) -> ConnectionPool[Session]:
        try:
            # The first connection is made here, because the pool itself tells nothing of why it cannot have any.
            with self.open(Session) as session:
                self._pin(session)
        except psycopg.Error as error:
            raise self.explain(error) from error
        return ConnectionPool(
            self.options.conninfo,
            connection_class=Session,
            kwargs=self._settings(),
            configure=self._configure,
            min_size=0,
            max_size=self.options.pool_max,
            timeout=self.options.wait_s,
            max_idle=IDLE_S,
            reconnect_timeout=2.0,  # short, so that after an outage nobody is asleep for long
            name=_POOL,
            open=True,
        )

    def _drop_the_dead(self, began: float) -> None:
        """Make all connections again, because one was cut and the others may be too. Once for all whose work began
        before that."""
        for pool in (self, self.twin):
            if pool is not None:
                pool._drain(began)

    def _drain(self, began: float) -> None:
        with self._lock:
            if self._pool is not None and self._dropped_at < began:
                self._dropped_at = _CLOCK.lease()
                self._pool.drain()

    def _settings(self) -> dict[str, Any]:
        # A statement that was prepared in one session of a pooler is not known in the next.
        return _SETTINGS | {"prepare_threshold": None} if self.pooled else _SETTINGS

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable(f"the store {self.options.shown} is closed")

    def _after_fork(self) -> None:
        _inherited.append(self._pool)
        self._pool, self._lock, self._failures = None, threading.Lock(), 0

    # ------------------------------------------------------------------------------------------ errors

    def explain(self, error: psycopg.Error) -> StoreError:
        """Turn an error of the driver into one of ours, with words that say what to do."""
        where, words = self.options.shown, _one_line(error)
        match error:
            case PoolTimeout():
                return StoreUnavailable(
                    f"{where}: no connection within {self.options.wait_s:g} s: the server is not reachable, or all "
                    f"{self.options.pool_max} connections of this process are in use (pool_max)"
                )
            case psycopg.Error() if _NO_TRANSACTIONS in words:
                return StoreUnsupported(
                    f"{where}: the pooler is in statement mode, which allows no transactions; Holdfast needs "
                    "pool_mode = transaction or session"
                )
            case errors.LockNotAvailable():
                return StoreLocked(
                    f"{where}: another transaction holds a lock that this needs. The statement changed nothing, and "
                    "will not later. Repeat the call when that transaction has ended; pg_stat_activity lists it"
                )
            case errors.QueryCanceled():
                return StoreTimeout(
                    f"{where}: the server stopped a statement at its time limit, because it took too long or because "
                    "another transaction holds a lock that it needs; what the statement did was undone. Repeat the "
                    "call, in smaller pieces if it was a large one"
                )
            case PoolClosed():
                return StoreUnavailable(f"the store {where} is closed")
            case errors.DiskFull() | errors.OutOfMemory() | errors.ConfigurationLimitExceeded():
                return StoreFull(f"{where}: no room left ({words}); nothing was written")
            case errors.ReadOnlySqlTransaction():
                return StoreReadOnly(f"{where} takes no writes ({words}): is it a standby?")
            case errors.InsufficientPrivilege():
                return StoreReadOnly(
                    f"{where}: this user may not do that ({words}). After a migration the owner must grant the rights "
                    f"on new tables as well: GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "
                    f"{self.options.schema} TO <this user>"
                )
            case errors.InvalidPassword() | errors.InvalidAuthorizationSpecification():
                return StoreDenied(f"{where}: the server refused this user ({words})")
            case psycopg.OperationalError() if error.sqlstate is None and _DENIED.search(words):
                return StoreDenied(f"{where}: the server refused this user ({words})")
            case errors.InvalidCatalogName():
                return StoreMissing(f"{where}: {words}; create the database first")
            case errors.UndefinedTable() | errors.InvalidSchemaName():
                return StoreMissing(f"{where}: there are no tables of Holdfast in schema {self.options.schema}")
            case errors.DataCorrupted() | errors.IndexCorrupted():
                return StoreDamaged(f"{where}: the server reports damage ({words}); restore it from a backup")
            case psycopg.OperationalError() if error.sqlstate is None and _NO_DATABASE.search(words):
                return StoreMissing(f"{where}: {words}; create the database first")
            case psycopg.OperationalError() | psycopg.InterfaceError():
                return StoreUnavailable(f"{where}: {words}")
            case errors.InternalError_():
                return StoreUnavailable(f"{where}: {words}")
            case errors.InvalidSqlStatementName() | errors.DuplicatePreparedStatement():  # of no row's making
                return StoreUnavailable(f"{where}: a pooler shares its sessions ({words})")
            case _:
                return StoreError(f"{where}: {words}")


_SETTINGS: dict[str, Any] = {
    "autocommit": True,
    "client_encoding": "UTF8",
    "connect_timeout": 5,
    "application_name": "holdfast",
    # A server that is gone without a word is noticed by then, also while an answer is awaited.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


def _numbered(query: bytes) -> bytes:
    """Return a statement with the parameters of the driver, one after the other, as the server knows them."""
    texts = query.split(b"%s")
    return b"".join([texts[0], *(b"$%d%s" % (number, text) for number, text in enumerate(texts[1:], 1))])


# To plan a claim takes longer than to claim a job. But a plan for all cases is made without knowing how few jobs are
# wanted, maybe while the table is still empty: left alone it would read and sort all there are.
PLAN_ONCE = (
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off; "
    "SET jit = off"  # a scan that is off and still used counts as so dear that it would be compiled
)


def _check_server(db: Connection, shown: str) -> None:
    if db.info.server_version < OLDEST_SERVER * 10_000:
        raise StoreUnsupported(
            f"the server is PostgreSQL {db.info.server_version // 10_000}; Holdfast needs {OLDEST_SERVER} or newer"
        )
    encoding = db.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreUnsupported(
            f"{shown}: the database's encoding is {encoding}, which cannot hold every text; Holdfast needs UTF8: "
            "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        )


_NO_TRANSACTIONS = "transaction blocks not allowed in statement pooling mode"  # of pgbouncer

# The server has undone the transaction: it met another one, and doing it again is safe.
_CONFLICTS = (errors.DeadlockDetected, errors.SerializationFailure)


# Another client of the same session has deallocated what we have prepared, or has prepared its own by that name. The
# statement was not begun.
_NOT_AS_PREPARED = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)


def _is_cut(error: psycopg.OperationalError) -> bool:
    """Say whether the connection was lost, not the statement refused: such an error has no code of the server, or one
    that says that the server is going."""
    state = error.sqlstate
    return not isinstance(error, PoolTimeout | NoAnswer) and (state is None or state[:2] == "08" or state in _GOING)


_GOING = ("57P01", "57P02", "57P03", "57P05", "25P03")  # shut down, crashed, starting, idle sessions ended


def is_outage(error: psycopg.Error) -> bool:
    """Say whether the server could not be reached, or cannot do anybody's work: out of room, out of connections,
    read-only. A session that was ended for its own idleness is not among them, nor is a statement that needed more
    memory or more of a limit than there is: it would each time."""
    if not isinstance(error, psycopg.OperationalError | errors.ReadOnlySqlTransaction) or error.sqlstate == "25P03":
        return False
    state = error.sqlstate or ""
    no_room = state[:2] in ("53", "58") and state not in ("53200", "53400")
    return no_room or isinstance(error, NoAnswer | PoolTimeout | errors.ReadOnlySqlTransaction) or _is_cut(error)


class _Quiet(logging.Filter):
    """Suppress the pool's own messages: the caller that needed the connection reports the failure."""

    def filter(self, record: logging.LogRecord) -> bool:
        about = record.args if isinstance(record.args, tuple) else ()
        return not any(each == _POOL or isinstance(each, Session) for each in about)


logging.getLogger("psycopg.pool").addFilter(_Quiet())


def _without_notes(query: str) -> str:
    """Leave out comments and indentation: the driver keeps only short statements in mind, up to 4,096 bytes, and would
    take a claim apart again each time, which takes the client longer than all else of it."""
    lines = (line.strip() for line in query.splitlines())
    return "\n".join(line for line in lines if not line.startswith("--"))


def _one_line(error: Exception) -> str:
    """Join the lines of libpq, which end without a full stop, to sentences."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return " ".join([*(line if line[-1] in ".:;,?!" else f"{line}." for line in lines[:-1]), *lines[-1:]])


_forks: weakref.WeakSet[Connections] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for connections in _forks:
        connections._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
