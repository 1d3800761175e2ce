"""The verbs of `App` for `await`: `await app.aio.get(id)`. A test holds names, signatures and docstrings together.

Everything below is synchronous and runs in a thread meanwhile; there is no second implementation.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack

from holdfast.app import App
from holdfast.core.batches import ABANDON_S
from holdfast.enqueueing.batches import AsyncBatch, ThenTask
from holdfast.enqueueing.by_name import draft_by_name
from holdfast.enqueueing.many import ADD_AT_ONCE, EnqueueStream, OnProgress, StreamProgress, check_draft
from holdfast.errors import UsageError
from holdfast.jobs import Job
from holdfast.stores.caller_connection import lend
from holdfast.tasks import Draft, EnqueueOptions

if TYPE_CHECKING:
    from holdfast.admin import AsyncAdmin

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


class AsyncEnqueueStream(AsyncIterator[StreamProgress]):
    """Stores drafts as it is iterated over; see `App.enqueue_stream`.

    A class, and no async generator: one of these is finished by the first error, and the rest would be lost. A step
    that the caller stops to await goes on in its thread, and the next step returns what became of it.
    """

    def __init__(
        self,
        app: App,
        drafts: Iterable[Draft[Any]] | AsyncIterable[Draft[Any]],
        chunk: int,
        on_progress: OnProgress | None,
    ) -> None:
        self._drafts = aiter(drafts) if isinstance(drafts, AsyncIterable) else None
        plain = () if isinstance(drafts, AsyncIterable) else drafts
        self._app = app
        self._stream = EnqueueStream(app, plain, chunk, on_progress)
        self._step: asyncio.Task[StreamProgress | None] | None = None
        self._is_busy = False
        self._was_cancelled = False  # while the iterable made a draft: a generator is finished by that

    async def __anext__(self) -> StreamProgress:
        if self._is_busy:
            raise UsageError("this enqueue_stream is being iterated over already; give each task a stream of its own")
        self._is_busy = self._stream.began = True
        try:
            progress = await self._next()
        finally:
            self._is_busy = False
        if progress is None:
            raise StopAsyncIteration
        return progress

    async def _next(self) -> StreamProgress | None:
        if self._step is None or self._step.cancelled():
            if self._drafts is not None:
                await self._fill(self._drafts)
            elif self._app.enqueue_layers.has_async:
                self._stream.apply = functools.partial(self._apply_in, asyncio.get_running_loop())
            self._step = asyncio.create_task(asyncio.to_thread(next, self._stream, None))
        try:
            progress = await asyncio.shield(self._step)
        except Exception:  # not if only the caller was cancelled
            self._step = None
            raise
        self._step = None
        return progress

    def _apply_in(self, loop: asyncio.AbstractEventLoop, draft: Draft[Any]) -> Draft[Any]:
        """Let async layers run on the loop of the caller, from the thread that iterates."""
        return asyncio.run_coroutine_threadsafe(self._app.enqueue_layers.aapply(draft), loop).result()

    async def _fill(self, drafts: AsyncIterator[Draft[Any]]) -> None:
        while not self._stream.is_full:
            try:
                draft = await anext(drafts)
            except StopAsyncIteration:
                if self._was_cancelled:
                    raise UsageError(
                        "the iterable of this enqueue_stream was cancelled while it made a draft, and ended: perhaps "
                        f"there was more. {self._stream.total:,} jobs of the stream are stored; repeat it"
                    ) from None
                return
            except asyncio.CancelledError:
                self._was_cancelled = True
                raise
            except Exception as error:
                self._stream.note_failure(error)
                raise
            self._was_cancelled = False
            check_draft(self._app, draft)
            self._stream.keep(await self._app.enqueue_layers.aapply(draft))


class AsyncApp:
    """The app's verbs, each awaited; see `App`. Use it as `app.aio`."""

    def __init__(self, app: App) -> None:
        self._app = app

    @property
    def admin(self) -> AsyncAdmin:
        from holdfast.admin import AsyncAdmin

        return AsyncAdmin(self._app.admin)

    admin.__doc__ = App.admin.__doc__

    async def enqueue_many(self, drafts: Iterable[Draft[R]]) -> list[Job[R]]:
        wanted = list(drafts)
        for draft in wanted:
            check_draft(self._app, draft)
        wanted = [await self._app.enqueue_layers.aapply(draft) for draft in wanted]
        connections = {id(draft.connection): draft.connection for draft in wanted if isinstance(draft, Draft)}
        connection = connections.popitem()[1] if len(connections) == 1 else None
        if connection is None:
            return await asyncio.to_thread(self._app._store_drafts, wanted)

        def store(lent: object) -> list[Job[R]]:
            return self._app._store_drafts([dataclasses.replace(draft, connection=lent) for draft in wanted])

        return await lend(connection, store)

    enqueue_many.__doc__ = App.enqueue_many.__doc__

    def enqueue_stream(
        self,
        drafts: Iterable[Draft[Any]] | AsyncIterable[Draft[Any]],
        *,
        chunk: int = ADD_AT_ONCE,
        on_progress: OnProgress | None = None,
    ) -> AsyncIterator[StreamProgress]:
        return AsyncEnqueueStream(self._app, drafts, chunk, on_progress)

    enqueue_stream.__doc__ = App.enqueue_stream.__doc__

    def batch(self, then: ThenTask = None, *, id: str | None = None, abandon_s: float = ABANDON_S) -> AsyncBatch:
        return AsyncBatch(self._app, self._app.batch(then, id=id, abandon_s=abandon_s))

    batch.__doc__ = App.batch.__doc__

    async def enqueue_by_name(
        self, task: str, arguments: Mapping[str, Any] | Sequence[Any] = (), /, **options: Unpack[EnqueueOptions]
    ) -> Job[Any]:
        draft = await asyncio.to_thread(draft_by_name, self._app, task, arguments, options)
        return (await self.enqueue_many([draft]))[0]

    enqueue_by_name.__doc__ = App.enqueue_by_name.__doc__

    task_named = _awaited(App.task_named)
    get = _awaited(App.get)
    get_batch = _awaited(App.get_batch)
    batch_jobs = _awaited(App.batch_jobs)
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
    schedule = _awaited(App.schedule)
    unschedule = _awaited(App.unschedule)
    pause = _awaited(App.pause)
    resume = _awaited(App.resume)
    reap = _awaited(App.reap)
    tick = _awaited(App.tick)
    close = _awaited(App.close)

    async def __aenter__(self) -> AsyncApp:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
