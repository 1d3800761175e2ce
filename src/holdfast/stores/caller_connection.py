"""The caller's own connection: what is below one of SQLAlchemy's or Django's, and how one that is awaited is used.

None of these packages is imported here: an object of theirs is known by where its class comes from.

A store may want to know when the caller has committed. Django has a hook for that. SQLAlchemy tells when a connection
comes back to its pool, which is right after the commit of a session and at the end of a `with engine.begin()`. A plain
connection of a driver does not tell.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.errors import StoreUnavailable, UsageError

T = TypeVar("T")
RunCoroutine = Callable[[Coroutine[Any, Any, Any]], Any]


class LoopConnection:
    """A driver's connection that belongs to an event loop, and how code that does not await waits for it."""

    def __init__(self, connection: Any, wait: RunCoroutine) -> None:
        self.connection = connection
        self.wait = wait


def after_commit(connection: object, call: Callable[[], object]) -> None:
    """Have `call` made after the commit of the transaction that is open on this connection of a driver, if it was
    found below one of SQLAlchemy's or Django's. It may be made after a rollback too, and in any thread."""
    with _lock, contextlib.suppress(TypeError):
        if connection in _calls:
            _calls[connection].append(call)


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
            found = _below_sqlalchemy(given)
            _watch_pool(given, found)
        # Inside SQLAlchemy's run_sync: below the plain session is a driver that is awaited.
        return LoopConnection(found, sys.modules["sqlalchemy"].util.await_only) if _is_awaited(found) else found
    if _comes_from(given, "django"):
        with _refusing(given):
            return _below_django(given)
    return given


async def lend(given: object, work: Callable[[object], T]) -> T:
    """Do the work in a thread, with the driver's connection below `given`; the event loop goes on meanwhile.

    Returns, or raises, when the thread has done with the connection, also when we are cancelled: then the statement
    that is under way is stopped, and nobody uses the connection any more.
    """
    with _refusing(given):
        found = await _below_async(given)
    loan = _Loan(asyncio.get_running_loop())
    lent = LoopConnection(found, loan.wait) if _is_awaited(found) else found
    working = asyncio.ensure_future(asyncio.to_thread(work, lent))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        loan.stop()
        while not working.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        if not working.cancelled():
            working.exception()  # it is of no interest any more, and asyncio wants it looked at
        raise


class _Loan:
    """The use of an event loop's connection by one thread, step by step."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._step: concurrent.futures.Future[Any] | None = None
        self._stop = False

    def wait(self, step: Coroutine[Any, Any, Any]) -> Any:
        with self._lock:
            future = self._step = asyncio.run_coroutine_threadsafe(step, self._loop)
            if self._stop:
                self._stop = False
                future.cancel()
        return future.result()

    def stop(self) -> None:
        """Cancel the step that is under way, or else the next. Those after it are let through: they clean up."""
        with self._lock:
            self._stop = self._step is None or not self._step.cancel()


def _below_sqlalchemy(given: Any) -> object:
    found = getattr(given, "connection", None)
    if callable(found):  # a session: it begins by itself
        found = given.connection().connection
    elif found is not None and not given.in_transaction():
        given.begin()  # otherwise a commit of SQLAlchemy's would not reach the driver
    return given if found is None else found.driver_connection


async def _below_async(given: Any) -> Any:
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
    if given.in_atomic_block:
        _expect(given.connection)
        given.on_commit(functools.partial(_committed, given.connection))
    return given.connection


_calls: weakref.WeakKeyDictionary[Any, list[Callable[[], object]]] = weakref.WeakKeyDictionary()
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
        _calls.setdefault(connection, [])


def _committed(connection: Any) -> None:
    calls: list[Callable[[], object]] = []
    with _lock, contextlib.suppress(TypeError):
        calls = _calls.pop(connection, [])
    for call in calls:
        call()


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
