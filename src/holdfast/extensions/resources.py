"""Things that the tasks of one process share, such as a pool of connections: `app.resource(Database, open_database)`.

A resource is opened when a task asks for it first, once per process, and closed when the last worker of the process
has stopped. One that is opened with `await` belongs to the event loop on which it was opened.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.errors import UsageError
from holdfast.runtime.tracebacks import FRAMES_MAX, describe, logged, user_frames

T = TypeVar("T")
Opener = Callable[[], T | Awaitable[T] | Iterator[T] | AsyncIterator[T]]

log = logging.getLogger("holdfast.worker")


@dataclass
class _Open:
    """A resource of an event loop, held open by a task of its own: some may only be closed by the task that opened."""

    value: asyncio.Future[Any]
    over: asyncio.Event = field(default_factory=asyncio.Event)
    holder: asyncio.Task[None] | None = None

    @property
    def failed(self) -> bool:
        return self.value.done() and (self.value.cancelled() or self.value.exception() is not None)


class Resources:
    """The resources of one app."""

    def __init__(self) -> None:
        self._openers: dict[type, tuple[bool, Callable[[], Any]]] = {}  # whether it is awaited, how to open it
        self._open: dict[type, tuple[Any, AbstractContextManager[Any] | None]] = {}
        self._locks: dict[type, threading.Lock] = {}
        self._loops: dict[asyncio.AbstractEventLoop, dict[type, _Open]] = {}
        self._users = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._openers)

    def __iter__(self) -> Iterator[type]:
        return iter(self._openers)

    def __contains__(self, kind: object) -> bool:
        return isinstance(kind, type) and kind in self._openers

    def declare(self, kind: type[T], opener: Opener[T]) -> None:
        """Say how a resource is opened. A generator closes it after its `yield`."""
        if not isinstance(kind, type):
            raise UsageError(f"resource {kind!r} must be a class, by which tasks ask for it")
        if kind in self._openers:
            raise UsageError(f"this app has a resource {kind.__name__} already")
        if not callable(opener):
            raise UsageError(f"resource {kind.__name__}: {opener!r} must be a function that opens and returns it")
        if inspect.isgeneratorfunction(opener):
            made: tuple[bool, Callable[[], Any]] = False, contextmanager(opener)
        elif inspect.isasyncgenfunction(opener):
            made = True, asynccontextmanager(opener)
        else:
            made = inspect.iscoroutinefunction(opener), opener
        self._locks[kind] = threading.Lock()
        self._openers[kind] = made

    def is_awaited(self, kind: type) -> bool:
        """Say whether only async tasks can have it."""
        return self._openers[kind][0]

    def get(self, kind: type[T]) -> T:
        """Return the resource, opened if it is not. Raises what opening it raises; the next call tries again."""
        is_awaited, opener = self._opener(kind)
        if is_awaited:
            raise UsageError(f"resource {kind.__name__} is opened with await: only async tasks can have it")
        if (found := self._open.get(kind)) is None:
            with self._locks[kind]:
                if (found := self._open.get(kind)) is None:
                    found = self._open[kind] = Context().run(_opened, opener)
        value: T = found[0]
        return value

    async def aget(self, kind: type[T]) -> T:
        """Do as `get` does, on an event loop; what need not be awaited is opened in a thread."""
        is_awaited, opener = self._opener(kind)
        if not is_awaited:
            return self.get(kind) if kind in self._open else await asyncio.to_thread(self.get, kind)
        loop = asyncio.get_running_loop()
        mine = self._loops.setdefault(loop, {})
        if kind not in mine:
            held = mine[kind] = _Open(loop.create_future())
            # Not in the context of the job that asks first: the resource outlives it.
            name, nobodys = f"holdfast-resource-{kind.__name__}", Context()
            held.holder = loop.create_task(_hold(kind, held, opener), name=name, context=nobodys)
        held = mine[kind]
        try:
            value: T = await asyncio.shield(held.value)
        except BaseException:
            if held.failed and mine.get(kind) is held:  # the next one tries again
                del mine[kind]
            raise
        return value

    def begin(self) -> None:
        """Note that a worker of this process uses them."""
        with self._lock:
            self._users += 1

    def end(self) -> None:
        """Note that a worker has stopped; the last one closes them, the newest first."""
        with self._lock:
            self._users = max(0, self._users - 1)
            if self._users:
                return
            found, self._open = list(self._open.items()), {}
        for kind, (_, manager) in reversed(found):
            if manager is not None:
                try:
                    manager.__exit__(None, None, None)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # an exit of its code must not end the program
                    _say_unclosed(kind, error)

    @property
    def on_a_loop(self) -> bool:
        """Say whether some were opened with `await`."""
        return bool(self._loops)

    async def aend(self) -> None:
        """Close those of the running event loop, the newest first."""
        mine = self._loops.pop(asyncio.get_running_loop(), {})
        for held in reversed(list(mine.values())):
            held.over.set()
            if held.holder is not None:
                await held.holder

    def _opener(self, kind: type) -> tuple[bool, Callable[[], Any]]:
        if kind not in self._openers:
            known = ", ".join(each.__name__ for each in self._openers) or "none"
            name = getattr(kind, "__name__", kind)
            raise UsageError(f"this app has no resource {name}; known: {known}. Declare it with app.resource(…)")
        return self._openers[kind]


def _opened(opener: Callable[[], Any]) -> tuple[Any, AbstractContextManager[Any] | None]:
    opened = opener()
    return (opened.__enter__(), opened) if _is_generated(opener) else (opened, None)


def _is_generated(opener: Callable[[], Any]) -> bool:
    """Say whether it was a generator function, which `contextmanager` or `asynccontextmanager` has wrapped."""
    wrapped = getattr(opener, "__wrapped__", None)
    return inspect.isgeneratorfunction(wrapped) or inspect.isasyncgenfunction(wrapped)


async def _hold(kind: type, held: _Open, opener: Callable[[], Any]) -> None:
    """Open it, keep it until it is over, and close it."""
    try:
        opened = opener()
        manager: AbstractAsyncContextManager[Any] | None = opened if _is_generated(opener) else None
        value = await opened if manager is None else await manager.__aenter__()
    except BaseException as error:  # an exit must not end the event loop
        held.value.set_exception(error if not isinstance(error, StopIteration) else RuntimeError("it was empty"))
        held.value.exception()  # nobody may be waiting for it any more
        return
    held.value.set_result(value)
    await held.over.wait()
    if manager is not None:
        try:
            await manager.__aexit__(None, None, None)
        except BaseException as error:  # as above
            _say_unclosed(kind, error)


def _say_unclosed(kind: type, error: BaseException) -> None:
    what = logged(describe(error), user_frames(error, FRAMES_MAX))
    log.error("resource %s could not be closed; the others are: %s", kind.__name__, what)
