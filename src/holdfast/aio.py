"""The verbs of `App` for `await`: `await app.aio.get(id)`. A test holds names, signatures and docstrings together.

Everything below is synchronous and runs in a thread meanwhile; there is no second implementation.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

from holdfast.app import App
from holdfast.enqueueing import ADD_AT_ONCE, EnqueueStream, OnProgress, StreamProgress
from holdfast.jobs import Job
from holdfast.stores.caller_connection import lend
from holdfast.tasks import Draft

P = ParamSpec("P")
R = TypeVar("R")


def _awaited(
    verb: Callable[Concatenate[App, P], R],
) -> Callable[Concatenate[AsyncApp, P], Coroutine[Any, Any, R]]:
    """Return the verb with its signature and docstring, run in a thread and awaited."""

    @functools.wraps(verb)
    async def awaited(self: AsyncApp, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(verb, self._app, *args, **kwargs)

    return awaited


class AsyncApp:
    """The app's verbs, each awaited; see `App`. Use it as `app.aio`."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def enqueue_many(self, drafts: Iterable[Draft[R]]) -> list[Job[R]]:
        wanted = list(drafts)
        connections = {id(draft.connection): draft.connection for draft in wanted if isinstance(draft, Draft)}
        connection = connections.popitem()[1] if len(connections) == 1 else None
        if connection is None:
            return await asyncio.to_thread(self._app.enqueue_many, wanted)

        def store(lent: object) -> list[Job[R]]:
            return self._app.enqueue_many([dataclasses.replace(draft, connection=lent) for draft in wanted])

        return await lend(connection, store)

    enqueue_many.__doc__ = App.enqueue_many.__doc__

    async def enqueue_stream(
        self,
        drafts: Iterable[Draft[Any]] | AsyncIterable[Draft[Any]],
        *,
        chunk: int = ADD_AT_ONCE,
        on_progress: OnProgress | None = None,
    ) -> AsyncIterator[StreamProgress]:
        if isinstance(drafts, AsyncIterable):
            stream = EnqueueStream(self._app, (), chunk, on_progress)
            async for draft in drafts:
                stream.take(draft)
                if stream.is_full:
                    yield await asyncio.to_thread(stream.store)
            if not stream.is_empty:
                yield await asyncio.to_thread(stream.store)
        else:
            stream = EnqueueStream(self._app, drafts, chunk, on_progress)
            while (progress := await asyncio.to_thread(next, stream, None)) is not None:
                yield progress

    enqueue_stream.__doc__ = App.enqueue_stream.__doc__

    get = _awaited(App.get)
    find = _awaited(App.find)
    counts = _awaited(App.counts)
    cancel = _awaited(App.cancel)
    revive = _awaited(App.revive)
    resolve = _awaited(App.resolve)
    signal = _awaited(App.signal)
    approve = _awaited(App.approve)
    rollback = _awaited(App.rollback)
    retry_from = _awaited(App.retry_from)
    fork = _awaited(App.fork)
    steps = _awaited(App.steps)
    pause = _awaited(App.pause)
    resume = _awaited(App.resume)
    reap = _awaited(App.reap)
    tick = _awaited(App.tick)
    close = _awaited(App.close)

    async def __aenter__(self) -> AsyncApp:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
