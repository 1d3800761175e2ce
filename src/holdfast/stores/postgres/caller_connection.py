"""`using(connection=…)` on PostgreSQL: the jobs are stored by the caller's own transaction, and by nothing else.

The caller's settings on the connection stay as they are and do not matter: row and cursor factories, autocommit,
prepared statements, isolation, time zone, digits of floats. Where they would matter (an encoding other than UTF-8, a
search_path that hides PostgreSQL's own functions) the connection is refused.

A savepoint undoes an error of ours, so that the caller's transaction can continue.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import psycopg
from psycopg import errors
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from holdfast.core.records import NewJob, has_keyed
from holdfast.errors import HoldfastError, StoreUnavailable, UsageError
from holdfast.stores.caller_connection import LoopConnection, Tell, after_commit, driver_connection
from holdfast.stores.postgres.connection import Connections, Cursor


class Callers:
    """The connections of callers to one store."""

    def __init__(self, db: Connections) -> None:
        self._db = db
        self._identity: str | None = None
        self._checked: weakref.WeakSet[Any] = weakref.WeakSet()
        self._turns: weakref.WeakKeyDictionary[Any, threading.Lock] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    @contextmanager
    def joined(self, given: object, jobs: Sequence[NewJob], tell: Tell) -> Iterator[Cursor]:
        """Lend a cursor of the caller's connection, inside the transaction that is open on it.

        If none is open, one is begun and stays open for the caller to end; in autocommit mode it is ours and ends here.
        Several threads or tasks may enqueue on one connection at once: they take turns, or the savepoint of one would
        take back what another has stored. `tell` is called with the queues of the jobs after the commit, where we learn
        of it.
        """
        found = driver_connection(given)
        below: Any = found.connection if isinstance(found, LoopConnection) else found
        with self._turn(below), self._joined(given, found, many=len(jobs) > 1 or has_keyed(jobs)) as cursor:
            yield cursor
        queues = {job.queue for job in jobs}
        if below.info.transaction_status == TransactionStatus.IDLE:
            tell(queues)
        else:
            after_commit(below, tell, queues)

    @contextmanager
    def _turn(self, connection: object) -> Iterator[None]:
        if not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
            yield  # it is refused next
            return
        with self._lock:
            turn = self._turns.setdefault(connection, threading.Lock())
        if not turn.acquire(timeout=self._db.options.wait_s):
            raise UsageError("another enqueue is under way on this connection; give each thread or task one of its own")
        try:
            yield
        finally:
            turn.release()

    @contextmanager
    def _joined(self, given: object, found: object, *, many: bool) -> Iterator[Cursor]:
        connection, cursor = self._opened(given, found)
        ours = connection.autocommit or connection.info.transaction_status != TransactionStatus.IDLE
        try:
            if ours:  # a savepoint, or in autocommit mode a transaction
                with connection.transaction():
                    self._check_identity(connection, cursor)
                    yield cast(Cursor, cursor)
                return
            try:
                self._check_identity(connection, cursor, begins=many)
                yield cast(Cursor, cursor)
                if isinstance(connection, AwaitedConnection):
                    connection.check()
            except BaseException:
                with suppress(psycopg.Error):  # the connection may be lost, which the first error says better
                    connection.rollback()  # there was nothing in it but what we did
                raise
        except psycopg.Error as error:
            raise self._explain(error) from error

    def _opened(self, given: object, found: object) -> tuple[Any, Any]:
        """Return the connection and a cursor of it, if the two can be used."""
        connection: Any
        if isinstance(found, LoopConnection) and isinstance(found.connection, psycopg.AsyncConnection):
            connection = AwaitedConnection(found)
        elif isinstance(found, psycopg.Connection):
            connection = found
        elif isinstance(found, psycopg.AsyncConnection):
            raise UsageError(
                "connection=AsyncConnection is used by awaiting: call `await task.using(connection=…).aenqueue(…)`, "
                "or `await app.aio.enqueue_many(…)`"
            )
        else:
            raise UsageError(
                f"connection={type(given).__name__} leads to no connection of psycopg 3, which this store needs: pass "
                "one of psycopg's own, or one of SQLAlchemy's (postgresql+psycopg) or Django's that uses psycopg"
            )
        if connection.closed:
            raise UsageError("the connection is closed; pass one that is open")
        if connection.info.transaction_status == TransactionStatus.INERROR:
            raise UsageError("an earlier error has aborted the transaction on this connection; roll it back first")
        if connection.pgconn.pipeline_status != PipelineStatus.OFF:
            raise UsageError("the connection is in pipeline mode; enqueue before the pipeline or after it")
        if connection.info.encoding != "utf-8":
            raise UsageError(f"the connection's client_encoding is {connection.info.encoding}; it must be UTF8")
        return connection, connection.guest() if isinstance(connection, AwaitedConnection) else CallerCursor(connection)

    def _check_identity(self, connection: Any, cursor: Any, *, begins: bool = False) -> None:
        """A caller's connection must lead to this very store, not to one that looks like it. Where it leads to does not
        change, so that is asked once; its search_path may, so each enqueue looks at that by itself (`add`).

        `begins`: ask again, because that opens the caller's transaction. A savepoint on a connection without one would
        be a transaction, and commit.
        """
        key = connection.real if isinstance(connection, AwaitedConnection) else connection
        if key in self._checked and not begins:
            return
        if self._identity is None:
            self._identity = self._db.one("identity")[0]
        try:
            found = cursor.execute(self._db["identity_joined"]).fetchone()
        except (errors.UndefinedTable, errors.InvalidSchemaName):
            found = None
        if found is None or found[0] != self._identity:
            options = self._db.options
            raise UsageError(f"the connection is not open on {options.shown} (schema {options.schema})")
        self._checked.add(key)

    def _explain(self, error: psycopg.Error) -> HoldfastError:
        words, options = " ".join(str(error).split()), self._db.options
        match error:
            case errors.InsufficientPrivilege():
                return UsageError(f"the connection's user may not write to schema {options.schema} ({words}); grant it")
            case errors.ReadOnlySqlTransaction():
                return UsageError(f"the connection's transaction is read-only ({words})")
            case errors.SerializationFailure() | errors.DeadlockDetected():
                return StoreUnavailable(f"{options.shown}: roll your transaction back and do it again ({words})")
            case _:
                return self._db.explain(error)


class CallerCursor(psycopg.Cursor[Any]):
    """A cursor of ours on the caller's connection: plain rows, and no prepared statement left behind."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection, row_factory=tuple_row)

    def execute(self, query: Any, params: Any = None, **_: Any) -> Any:
        return super().execute(query, params, prepare=False)


class AwaitedConnection:
    """A psycopg.AsyncConnection that is used from elsewhere, with as much of a psycopg.Connection as is needed here."""

    def __init__(self, awaited: LoopConnection) -> None:
        self.real: psycopg.AsyncConnection[Any] = awaited.connection
        self.wait = awaited.wait
        self.check = awaited.check
        self._finish = awaited.finish
        self._ended = awaited.ended
        self.closed = self.real.closed
        self.autocommit = self.real.autocommit
        self.info = self.real.info
        self.pgconn = self.real.pgconn

    def guest(self) -> AsyncCallerCursor:
        return AsyncCallerCursor(self)

    def rollback(self) -> None:
        try:
            self._finish(self.real.rollback())
        finally:
            self.check()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        block = self.real.transaction()
        self._finish(_entered(block))
        try:
            self.check()
            yield
            self.check()
        except BaseException as error:
            try:
                self._finish(_left(block, error))
            finally:
                self.check()
            raise
        self._finish(_left(block, None))
        self._ended()


class AsyncCallerCursor:
    """A cursor of ours on such a connection."""

    def __init__(self, connection: AwaitedConnection) -> None:
        self.connection = connection
        self._wait = connection.wait
        self._cursor = psycopg.AsyncCursor(connection.real, row_factory=tuple_row)

    def execute(self, query: Any, params: Any = None, **_: Any) -> AsyncCallerCursor:
        self._wait(self._cursor.execute(query, params, prepare=False))
        return self

    def fetchone(self) -> Any:
        return self._wait(self._cursor.fetchone())

    @contextmanager
    def copy(self, query: Any) -> Iterator[Stream]:
        stream = Stream()
        yield stream
        self._wait(self._send(query, stream))

    async def _send(self, query: Any, parts: Stream) -> None:
        async with self._cursor.copy(query) as stream:
            for part in parts:
                await stream.write(part)


class Stream(list[str]):
    """The jobs to send as one stream."""

    write = list.append


async def _entered(block: Any) -> None:
    await block.__aenter__()


async def _left(block: Any, error: BaseException | None) -> None:
    await block.__aexit__(type(error) if error is not None else None, error, None)
