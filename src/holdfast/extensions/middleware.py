"""Code of the user's around every attempt: `app.middleware`."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.worker.context import Context

Layer = Callable[["Context"], Iterator[None] | AsyncIterator[None]]
L = TypeVar("L", bound=Layer)


class Middleware:
    """The layers around each attempt, the first one outermost.

    A layer may turn an exception into another one. It cannot turn it into a success: a failure that a layer swallowed
    would end as a done job.
    """

    def __init__(self) -> None:
        self._sync: list[Callable[[Context], Any]] = []
        self._all: list[tuple[bool, Callable[[Context], Any]]] = []  # of async tasks: whether it is awaited, the layer

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, layer: L) -> L:
        """Put a layer inside those that are there."""
        if inspect.isgeneratorfunction(layer):
            opened = contextmanager(layer)
            self._sync.append(opened)
            self._all.append((False, opened))
        elif inspect.isasyncgenfunction(layer):
            self._all.append((True, asynccontextmanager(layer)))
        else:
            raise UsageError(f"middleware {layer!r} must be a generator function: its code, one `yield`, its code")
        return layer

    def call(self, context: Context, fn: Callable[[], Any]) -> Any:
        """Call `fn` inside the layers that are not async, and return what it returned."""
        raised: BaseException | None = None
        value: Any = None
        with ExitStack() as stack:
            for layer in self._sync:
                stack.enter_context(layer(context))
            try:
                value = fn()
            except BaseException as error:
                raised = error
                raise
        if raised is not None:
            raise raised
        return value

    async def acall(self, context: Context, fn: Callable[[], Awaitable[Any]]) -> Any:
        """Await `fn()` inside all layers, and return what it returned."""
        raised: BaseException | None = None
        value: Any = None
        async with AsyncExitStack() as stack:
            for is_async, layer in self._all:
                if is_async:
                    await stack.enter_async_context(layer(context))
                else:
                    stack.enter_context(layer(context))
            try:
                value = await fn()
            except BaseException as error:
                raised = error
                raise
        if raised is not None:
            raise raised
        return value
