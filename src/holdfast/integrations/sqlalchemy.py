"""A connection or a session of SQLAlchemy inside `ctx.transaction()`: its writes commit with the end of the attempt.

SQLAlchemy's transaction is a savepoint in ours. A rollback of SQLAlchemy's goes back to the savepoint, and the block
can continue. A commit is refused: the writes would not be durable, and the code after it would think that they are.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, NoReturn, TypeVar, overload

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg, PGExecutionContext_psycopg
from sqlalchemy.dialects.sqlite.base import SQLiteExecutionContext
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from holdfast.app import App
from holdfast.errors import HoldfastError, TransactionExpired, UsageError
from holdfast.integrations.lent import kind_of
from holdfast.worker.sessions import Sessions

S = TypeVar("S", bound=Session)
AS = TypeVar("AS", bound=AsyncSession)
TRANSACTION_MAX_S = 5.0

_BEGIN = "SAVEPOINT holdfast_sqlalchemy"
_UNDO = "ROLLBACK TO SAVEPOINT holdfast_sqlalchemy"
_FORGET = "RELEASE SAVEPOINT holdfast_sqlalchemy"
_NO_COMMIT = (
    "Holdfast commits when the attempt ends: remove the commit, or call flush(); "
    "session.begin_nested() makes a part that can be rolled back"
)
_OURS: dict[str, Any] = {"binds": None, "twophase": False, "join_transaction_mode": "rollback_only"}
_lending = threading.local()  # the connection that the engine is to use, while it asks for one
_begun: weakref.WeakSet[Any] = weakref.WeakSet()  # connections with our savepoint


@overload
def session(db: object) -> AbstractContextManager[Session]: ...
@overload
def session(db: object, maker: Callable[..., S]) -> AbstractContextManager[S]: ...
@contextmanager
def session(db: object, maker: Callable[..., Any] = Session) -> Iterator[Any]:
    """Yield a session on the connection that `ctx.transaction()` gives, and flush it at the end of the block.

    maker: the application's `sessionmaker`, or a class of sessions. Its engine is not used. If the block raises, its
    writes are taken back to where it began, and the error goes on to the task.
    """
    with connection(db) as bind:
        made = maker(bind=bind, **_OURS)
        _confine(made, bind)
        try:
            yield made
            made.flush()
        finally:
            made.close()


@overload
def asession(db: object) -> AbstractAsyncContextManager[AsyncSession]: ...
@overload
def asession(db: object, maker: Callable[..., AS]) -> AbstractAsyncContextManager[AS]: ...
@asynccontextmanager
async def asession(db: object, maker: Callable[..., Any] = AsyncSession) -> AsyncIterator[Any]:
    """Do as `session` does with an async session, for code that awaits one. Each statement blocks the event loop."""
    with connection(db) as plain:
        bind = plain.execution_options(holdfast_awaited=True)
        made = maker(bind=None, **_OURS)
        made.sync_session.bind = bind  # SQLAlchemy runs it in a greenlet, which never needs to wait
        _confine(made.sync_session, bind)
        try:
            yield made
            await made.flush()
        finally:
            await made.close()


def install_sessions(app: App, *makers: Callable[..., Session] | Callable[..., AsyncSession]) -> None:
    """Let tasks of this app use `ctx.session()` and `ctx.asession()`.

    makers: the application's `sessionmaker`, its `async_sessionmaker`, or classes of sessions. Without one, the
    sessions are a `Session` and an `AsyncSession` of SQLAlchemy.
    """
    chosen: dict[bool, Callable[..., Any]] = {}
    for maker in makers:
        kind = getattr(maker, "class_", maker)
        if not (isinstance(kind, type) and issubclass(kind, Session | AsyncSession)):
            raise UsageError(f"install_sessions(app, {maker!r}): it must be a sessionmaker or a class of sessions")
        if (is_async := issubclass(kind, AsyncSession)) in chosen:
            raise UsageError("install_sessions(app, …) takes one maker of sessions and one of async sessions")
        chosen[is_async] = maker
    sessions = _AppSessions(chosen.get(False, Session), chosen.get(True, AsyncSession))
    app.resource(Sessions, lambda: sessions)  # type: ignore[type-abstract]


class _AppSessions(Sessions):
    """The sessions of one app."""

    def __init__(self, maker: Callable[..., Any], amaker: Callable[..., Any]) -> None:
        self._maker = maker
        self._amaker = amaker

    def session(self, connection: object) -> AbstractContextManager[Any]:
        return session(connection, self._maker)

    def asession(self, connection: object) -> AbstractAsyncContextManager[Any]:
        return asession(connection, self._amaker)


@contextmanager
def connection(db: object) -> Iterator[Connection]:
    """Yield a `Connection` of SQLAlchemy on the connection that `ctx.transaction()` gives.

    If the block raises, its writes are taken back to where it began, and the error goes on to the task.
    """
    engine = _engine(kind_of(db))
    if db in _begun:
        raise UsageError("SQLAlchemy uses this connection already; open one session or connection at a time")
    _lending.connection = db
    try:
        opened = engine.connect()
    finally:
        _lending.connection = None
    try:
        opened.begin()
        yield opened
        _begun.discard(db)  # from here on there is nothing to roll back
    finally:
        opened.close()


@asynccontextmanager
async def transaction(
    sessions: async_sessionmaker[AS], *, transaction_max_s: float = TRANSACTION_MAX_S
) -> AsyncIterator[AS]:
    """Yield an async session in a transaction, which commits at the end, or rolls back after `transaction_max_s`.

    For requests: a transaction of SQLite holds the only write lock of the file, and others wait for it. Raises
    `TransactionExpired` when the time is over.
    """
    limit = asyncio.timeout(transaction_max_s)
    try:
        async with limit, sessions.begin() as opened:
            yield opened
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise TransactionExpired(
            f"the transaction was open for more than {transaction_max_s:g} s and was rolled back; keep it short"
        ) from error


def _confine(made: Session, bind: Connection) -> None:
    """Keep a session inside Holdfast's transaction, also after a rollback of its own."""
    event.listen(made, "before_commit", _refuse_commit)
    event.listen(made, "after_rollback", lambda _: bind.in_transaction() or bind.begin())


def _refuse_commit(session: Session) -> None:
    if not session.in_nested_transaction():
        raise UsageError(_NO_COMMIT)


class _Lent:
    """A dialect whose transactions are a savepoint in one of Holdfast's."""

    def do_begin(self, dbapi_connection: Any) -> None:
        dbapi_connection.driver_connection.execute(_BEGIN)
        _begun.add(dbapi_connection.driver_connection)

    def do_rollback(self, dbapi_connection: Any) -> None:
        lent = dbapi_connection.driver_connection
        if lent in _begun:
            _begun.discard(lent)
            lent.execute(_UNDO)
            lent.execute(_FORGET)

    def do_commit(self, dbapi_connection: Any) -> NoReturn:
        raise UsageError(_NO_COMMIT)

    def do_close(self, dbapi_connection: Any) -> None:
        pass  # Holdfast closes it

    def do_terminate(self, dbapi_connection: Any) -> None:
        pass


class _AwaitedCursor:
    """A cursor below an async session, which asks every cursor to forget the server once it has the rows."""

    __slots__ = ("_cursor",)

    def __init__(self, cursor: Any) -> None:
        object.__setattr__(self, "_cursor", cursor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._cursor, name, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cursor)

    async def _async_soft_close(self) -> None:
        """Keep the cursor: its rows are read without waiting."""


class _LentContext:
    """An execution whose cursor serves an async session, too."""

    def create_cursor(self: Any) -> Any:
        made = super().create_cursor()  # type: ignore[misc]
        return _AwaitedCursor(made) if self.execution_options.get("holdfast_awaited") else made


class _SqliteContext(_LentContext, SQLiteExecutionContext):
    pass


class _PostgresContext(_LentContext, PGExecutionContext_psycopg):
    pass


class LentSqlite(_Lent, SQLiteDialect_pysqlite):
    """SQLite, on a connection that Holdfast has lent."""

    execution_ctx_cls = _SqliteContext

    supports_statement_cache = True  # SQLAlchemy wants it said in each class


class LentPostgres(_Lent, PGDialect_psycopg):
    """PostgreSQL, on a connection that Holdfast has lent."""

    execution_ctx_cls = _PostgresContext

    supports_statement_cache = True  # SQLAlchemy wants it said in each class


registry.register("sqlite.holdfast", __name__, "LentSqlite")
registry.register("postgresql.holdfast", __name__, "LentPostgres")


@functools.cache
def _engine(kind: str) -> Engine:
    """Return the engine for all transactions of a kind: it keeps what SQLAlchemy has compiled."""
    engine = create_engine(f"{kind}+holdfast://", creator=_lent, poolclass=NullPool, pool_reset_on_return=None)
    event.listen(engine, "handle_error", _raise_ours)
    return engine


def _raise_ours(failure: ExceptionContext) -> None:
    """Let our own errors pass as they are: SQLAlchemy would wrap some of them."""
    if isinstance(failure.original_exception, HoldfastError):
        raise failure.original_exception


def _lent() -> Any:
    found = getattr(_lending, "connection", None)
    if found is None:
        raise UsageError("the transaction that this session or connection belongs to is over")
    return found
