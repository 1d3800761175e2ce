"""The caller's own connection: what is below one of SQLAlchemy's or Django's, and how one that is awaited is used.

None of these packages is imported here: an object of theirs is known by where its class comes from.

A store may want to know when the caller has committed. Django has a hook for that. SQLAlchemy tells when a connection
comes back to its pool, which is right after the commit of a session and at the end of a `with engine.begin()`. A plain
connection of a driver does not tell.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import contextvars
import functools
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.errors import StoreUnavailable, UsageError

T = TypeVar("T")
Tell = Callable[[set[str]], object]  # of jobs in these queues that are committed

_STOP_S = 5.0  # how long a cancelled enqueue waits for a server to stop its statement
_STOP_AGAIN_S = 0.1  # a request to stop is lost if the statement has not begun


class LoopConnection(abc.ABC):
    """A driver's connection that belongs to an event loop, and how code that does not await uses it.

    The caller may be cancelled at any moment. No step is cancelled with it, because a driver that is interrupted may
    leave a transaction half begun or half ended. The server is asked to stop a statement, the steps that clean up
    follow, and only then does the caller hear of its cancellation.
    """

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._cancelled = False
        self._has_statement = False  # under way, which may be stopped
        self._stopping = asyncio.Lock()

    @abc.abstractmethod
    def wait(self, step: Coroutine[Any, Any, T]) -> T:
        """Run a statement; once the caller is cancelled, it is stopped or does not begin."""

    @abc.abstractmethod
    def finish(self, step: Coroutine[Any, Any, T]) -> T:
        """Run the step to its end, also if the caller is cancelled: it begins or ends a transaction."""

    def check(self) -> None:
        """Raise CancelledError if the caller was cancelled: what was done is to be undone."""
        if self._cancelled:
            raise asyncio.CancelledError

    async def outlast(self, working: asyncio.Future[Any]) -> None:
        """Stop the statement that is under way, and return when nobody uses the connection any more.

        If that takes longer than `_STOP_S`, the connection is cut: the server does not answer.
        """
        self._cancelled = True
        now = asyncio.get_running_loop().time
        give_up_at = now() + _STOP_S
        stopping: asyncio.Future[None] | None = None
        while not working.done():
            if self._has_statement and (stopping is None or stopping.done()):
                stopping = asyncio.ensure_future(self._stop_statement())
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([working], timeout=_STOP_AGAIN_S)
            if now() >= give_up_at:
                self._cut()

    def ended(self) -> None:
        """Raise CancelledError if the caller was cancelled, when what was done can no longer be undone: the caller must
        not commit it."""
        is_open = self.connection.info.transaction_status.name != "IDLE"
        if self._cancelled and is_open:
            self._cut()
        self.check()

    async def _stop_statement(self) -> None:
        async with self._stopping:
            if self._has_statement:
                with contextlib.suppress(Exception):  # the server cannot be reached: the connection is cut in the end
                    await self.connection.cancel_safe(timeout=_STOP_S)

    async def _statement(self, step: Coroutine[Any, Any, T]) -> T:
        if self._cancelled:
            step.close()
            raise asyncio.CancelledError
        self._has_statement = True
        try:
            return await self._uninterrupted(step)
        finally:
            self._has_statement = False

    async def _ending(self, step: Coroutine[Any, Any, T]) -> T:
        async with self._stopping:  # a request to stop that is on its way would stop this step
            return await self._uninterrupted(step)

    async def _uninterrupted(self, step: Coroutine[Any, Any, T]) -> T:
        try:
            return await step
        except asyncio.CancelledError:  # by a loop that shuts down, which cancels every task
            self._cut()
            raise

    def _cut(self) -> None:
        """Make the connection fail from now on, also for code that waits for it: nobody knows its state."""
        with contextlib.suppress(Exception), socket.socket(fileno=os.dup(self.connection.fileno())) as ours:
            ours.shutdown(socket.SHUT_RDWR)


def after_commit(connection: object, tell: Tell, queues: set[str]) -> None:
    """Call `tell` with these queues after the commit of the transaction that is open on this connection of a driver, if
    it was found below one of SQLAlchemy's or Django's. It may be called after a rollback too, in any thread, and once
    for several transactions."""
    with _lock, contextlib.suppress(TypeError):
        if connection in _calls:
            _calls[connection].setdefault(tell, set()).update(queues)


def driver_connection(given: object) -> object:
    """Return the driver's own connection below one of SQLAlchemy's or Django's, inside the transaction that is open on
    it; anything else as it is."""
    if _comes_from(given, "sqlalchemy.ext.asyncio"):
        raise UsageError(
            f"connection={type(given).__name__} is used by awaiting: "
            "call `await task.using(connection=…).aenqueue(…)`, or `await app.aio.enqueue_many(…)`"
        )
    if _comes_from(given, "sqlalchemy"):
        with _refusing(given):
            found = getattr(given, "driver_connection", None)  # of `engine.raw_connection()`: used as the driver's own
            if found is None:
                found = _below_sqlalchemy(given)
                _watch_pool(given, found)
        # Inside SQLAlchemy's run_sync: below the plain session is a driver that is awaited.
        return _Inline(found) if _is_awaited(found) else found
    if _comes_from(given, "django"):
        with _refusing(given):
            return _below_django(given)
    return given


async def lend(given: object, work: Callable[[object], T]) -> T:
    """Do the work in a thread, with the driver's connection below `given`; the event loop goes on meanwhile.

    Returns, or raises, when the thread has done with the connection, also when we are cancelled: then the statement
    that is under way is stopped, its savepoint is rolled back, and nobody uses the connection any more. If the server
    does not answer, or the savepoint is gone already, the connection is made to fail instead.
    """
    with _refusing(given):
        found = await _below_async(given)
    if _comes_from(found, "aiosqlite"):
        return await _in_its_thread(found, work)
    loop = asyncio.get_running_loop()
    loan = _Loan(found, loop) if _is_awaited(found) else None
    # Not a task: a loop that shuts down cancels all of them, and the thread would go on.
    context = contextvars.copy_context()
    working = loop.run_in_executor(None, lambda: context.run(work, found if loan is None else loan))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        if loan is not None:
            await loan.outlast(working)
        while not working.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        if not working.cancelled() and working.exception() is None and loan is not None:
            loan.ended()
        raise


async def _in_its_thread(found: Any, work: Callable[[object], T]) -> T:
    """Do the work in the thread of a connection of aiosqlite, which runs one call after the other.

    If the caller is cancelled before it has the answer, the work is taken back, with the transaction if it began here,
    and nobody uses the connection any more. A cancellation during the commit of a connection in autocommit mode does
    not take it back: the caller hears of it when the commit has ended.
    """
    began = commits = False

    def inside(db: Any) -> T:
        nonlocal began, commits
        began = not db.in_transaction
        commits = began and (db.isolation_level is None or getattr(db, "autocommit", None) is True)
        if began:
            db.execute("BEGIN IMMEDIATE")
        try:
            db.execute("SAVEPOINT holdfast_enqueue")
            return work(db)
        except BaseException:
            undo(db)
            raise

    def keep(db: Any) -> None:
        db.execute("RELEASE holdfast_enqueue")

    def commit(db: Any) -> None:
        try:
            db.execute("COMMIT")
        except BaseException:  # a full disk, say: the transaction is still open, with the write lock
            undo(db)
            raise

    def undo(db: Any) -> None:
        if db.in_transaction and began:
            db.execute("ROLLBACK")
        elif db.in_transaction:
            db.execute("ROLLBACK TO holdfast_enqueue")
            db.execute("RELEASE holdfast_enqueue")

    working: asyncio.Future[T] = asyncio.ensure_future(found._execute(inside, found._conn))
    try:
        done = await asyncio.shield(working)
    except asyncio.CancelledError:
        await _ended(working)
        if not working.cancelled() and working.exception() is None:
            await _ended(asyncio.ensure_future(found._execute(undo, found._conn)))
        raise
    if commits:
        committing = asyncio.ensure_future(found._execute(commit, found._conn))
        try:
            await asyncio.shield(committing)
        except asyncio.CancelledError:
            await _ended(committing)
            raise
    else:  # not awaited, so that no cancellation comes in between; it runs before what the caller does next
        found._tx.put_nowait((asyncio.get_running_loop().create_future(), functools.partial(keep, found._conn)))
    return done


async def _ended(working: asyncio.Future[Any]) -> None:
    """Wait for the end, although we are cancelled."""
    while not working.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([working])


class _Loan(LoopConnection):
    """The use of an event loop's connection by one thread, step by step."""

    def __init__(self, connection: Any, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(connection)
        self._loop = loop

    def wait(self, step: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(self._statement(step), self._loop).result()

    def finish(self, step: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(self._ending(step), self._loop).result()


class _Inline(LoopConnection):
    """The use of such a connection inside SQLAlchemy's `run_sync`, by the caller's own task."""

    def wait(self, step: Coroutine[Any, Any, T]) -> T:
        found: T = sys.modules["sqlalchemy"].util.await_only(self._shielded(self._statement(step)))
        self.check()
        return found

    def finish(self, step: Coroutine[Any, Any, T]) -> T:
        found: T = sys.modules["sqlalchemy"].util.await_only(self._shielded(self._ending(step)))
        return found

    async def _shielded(self, step: Coroutine[Any, Any, T]) -> T:
        running = asyncio.ensure_future(step)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await self.outlast(running)
        return running.result()


def _below_sqlalchemy(given: Any) -> object:
    found = getattr(given, "connection", None)
    if callable(found):  # a session: it begins by itself
        found = given.connection().connection
    elif found is not None and not given.in_transaction():
        given.begin()  # otherwise a commit of SQLAlchemy's would not reach the driver
    return given if found is None else found.driver_connection


async def _below_async(given: Any) -> Any:
    bind = getattr(getattr(given, "sync_session", None), "bind", None)
    if bind is not None and not bind.dialect.is_async:  # of ctx.asession(): a plain connection is below it
        given = given.sync_session
    if not _comes_from(given, "sqlalchemy.ext.asyncio") or not hasattr(given, "in_transaction"):
        return driver_connection(given)  # here, not in the thread: Django's connections belong to theirs
    if not hasattr(given, "get_raw_connection"):  # a session: it begins by itself
        given = await given.connection()
    elif not given.in_transaction():
        await given.begin()
    found = (await given.get_raw_connection()).driver_connection
    _watch_pool(given.sync_connection, found)
    return found


def _below_django(given: Any) -> object:
    if not hasattr(given, "ensure_connection"):
        return given
    given.validate_thread_sharing()
    given.validate_no_broken_transaction()
    given.ensure_connection()
    if given.in_atomic_block and not getattr(given, "is_lent", False):  # lent inside a task: Holdfast commits it
        _expect(given.connection)
        given.on_commit(functools.partial(_committed, given.connection))
    return given.connection


_calls: weakref.WeakKeyDictionary[Any, dict[Tell, set[str]]] = weakref.WeakKeyDictionary()
_pools: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.Lock()


def _watch_pool(given: Any, connection: object) -> None:
    """Hear when this connection comes back to the pool of the engine that it is from."""
    owner = given.connection() if callable(getattr(given, "connection", None)) else given
    pool = getattr(getattr(owner, "engine", None), "pool", None)
    if pool is None:
        return
    _expect(connection)
    with _lock:
        is_new = pool not in _pools
        _pools.add(pool)
    if is_new:
        sys.modules["sqlalchemy"].event.listen(pool, "checkin", _checked_in)


def _checked_in(_: object, record: Any) -> None:
    _committed(record.driver_connection)


def _expect(connection: Any) -> None:
    with _lock, contextlib.suppress(TypeError):  # a driver whose connections cannot be referred to weakly
        _calls.setdefault(connection, {})


def _committed(connection: Any) -> None:
    calls: dict[Tell, set[str]] = {}
    with _lock, contextlib.suppress(TypeError):
        calls = _calls.pop(connection, {})
    for tell, queues in calls.items():
        tell(queues)


def _is_awaited(connection: object) -> bool:
    psycopg = sys.modules.get("psycopg")
    return psycopg is not None and isinstance(connection, psycopg.AsyncConnection)


def _comes_from(given: object, package: str) -> bool:
    return any(f"{kind.__module__}.".startswith(f"{package}.") for kind in type(given).__mro__)


@contextlib.contextmanager
def _refusing(given: object) -> Any:
    """Turn what SQLAlchemy or Django says about its own connection into one error of ours."""
    try:
        yield
    except Exception as error:
        if not _comes_from(error, "sqlalchemy") and not _comes_from(error, "django"):
            raise
        words = " ".join(str(error).split())
        if type(error).__name__ in ("OperationalError", "TimeoutError"):  # of its pool, or of the server
            raise StoreUnavailable(f"connection={type(given).__name__} cannot be opened: {words}") from error
        raise UsageError(f"connection={type(given).__name__} cannot be used: {words}") from error
