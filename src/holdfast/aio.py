"""The verbs of `App` for `await`: `await app.aio.get(id)`. A test holds names, signatures and docstrings together.

Everything below is synchronous and runs in a thread meanwhile; there is no second implementation.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.app import App
from holdfast.core import acts
from holdfast.core.machine import States
from holdfast.core.records import Step
from holdfast.jobs import Job
from holdfast.stores.caller_connection import lend
from holdfast.tasks import Draft

if TYPE_CHECKING:
    from holdfast.reaper import Report
    from holdfast.worker.tick import TickReport

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


def _as(verb: Callable[..., Any]) -> Callable[[F], F]:
    """Give the twin the docstring of the verb that it waits for."""

    def document(fn: F) -> F:
        fn.__doc__ = verb.__doc__
        return fn

    return document


class AsyncApp:
    """The app's verbs, each awaited; see `App`. Use it as `app.aio`."""

    def __init__(self, app: App) -> None:
        self._app = app

    @_as(App.enqueue_many)
    async def enqueue_many(self, drafts: Iterable[Draft[R]]) -> list[Job[R]]:
        wanted = list(drafts)
        connections = {id(draft.connection): draft.connection for draft in wanted if isinstance(draft, Draft)}
        connection = connections.popitem()[1] if len(connections) == 1 else None
        if connection is None:
            return await asyncio.to_thread(self._app.enqueue_many, wanted)

        def store(lent: object) -> list[Job[R]]:
            return self._app.enqueue_many([dataclasses.replace(draft, connection=lent) for draft in wanted])

        return await lend(connection, store)

    @_as(App.get)
    async def get(self, id: str) -> Job[Any]:
        return await asyncio.to_thread(self._app.get, id)

    @_as(App.find)
    async def find(
        self,
        state: States = None,
        *,
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        limit: int = 100,
    ) -> list[Job[Any]]:
        return await asyncio.to_thread(self._app.find, state, queue=queue, task=task, key=key, limit=limit)

    @_as(App.counts)
    async def counts(self) -> dict[str, int]:
        return await asyncio.to_thread(self._app.counts)

    @_as(App.cancel)
    async def cancel(self, id: str, *, by: str = "app", note: str | None = None, fence: int | None = None) -> Job[Any]:
        return await asyncio.to_thread(self._app.cancel, id, by=by, note=note, fence=fence)

    @_as(App.revive)
    async def revive(
        self,
        id: str,
        *,
        by: str = "app",
        note: str | None = None,
        fence: int | None = None,
        repeat_step: bool = False,
    ) -> Job[Any]:
        return await asyncio.to_thread(self._app.revive, id, by=by, note=note, fence=fence, repeat_step=repeat_step)

    @_as(App.resolve)
    async def resolve(
        self,
        id: str,
        answer: acts.Answer,
        *,
        by: str = "app",
        note: str | None = None,
        result: Any = ...,
        fence: int | None = None,
    ) -> Job[Any]:
        return await asyncio.to_thread(self._app.resolve, id, answer, by=by, note=note, result=result, fence=fence)

    @_as(App.signal)
    async def signal(
        self,
        id: str,
        name: str,
        value: Any = None,
        *,
        by: str = "app",
        note: str | None = None,
        signal_id: str | None = None,
    ) -> bool:
        return await asyncio.to_thread(self._app.signal, id, name, value, by=by, note=note, signal_id=signal_id)

    @_as(App.approve)
    async def approve(
        self, id: str, yes: bool = True, *, by: str = "app", note: str | None = None, fence: int | None = None
    ) -> Job[Any]:
        return await asyncio.to_thread(self._app.approve, id, yes, by=by, note=note, fence=fence)

    @_as(App.rollback)
    async def rollback(
        self, id: str, *, by: str = "app", note: str | None = None, fence: int | None = None
    ) -> Job[Any]:
        return await asyncio.to_thread(self._app.rollback, id, by=by, note=note, fence=fence)

    @_as(App.retry_from)
    async def retry_from(
        self,
        id: str,
        step: str,
        *,
        by: str = "app",
        note: str | None = None,
        fence: int | None = None,
        repeat_step: bool = False,
    ) -> Job[Any]:
        return await asyncio.to_thread(
            self._app.retry_from, id, step, by=by, note=note, fence=fence, repeat_step=repeat_step
        )

    @_as(App.fork)
    async def fork(
        self,
        id: str,
        step: str,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        by: str = "app",
        note: str | None = None,
        repeat_step: bool = False,
    ) -> Job[Any]:
        return await asyncio.to_thread(
            self._app.fork, id, step, args=args, kwargs=kwargs, by=by, note=note, repeat_step=repeat_step
        )

    @_as(App.steps)
    async def steps(self, id: str, *, aside: bool = False) -> list[Step]:
        return await asyncio.to_thread(self._app.steps, id, aside=aside)

    @_as(App.reap)
    async def reap(self, *, grace_s: float = 0.0) -> Report:
        return await asyncio.to_thread(self._app.reap, grace_s=grace_s)

    @_as(App.tick)
    async def tick(self, budget_s: float = 25.0, *, queues: Iterable[str] = (), slots: int = 20) -> TickReport:
        return await asyncio.to_thread(self._app.tick, budget_s, queues=tuple(queues), slots=slots)

    @_as(App.close)
    async def close(self) -> None:
        await asyncio.to_thread(self._app.close)

    async def __aenter__(self) -> AsyncApp:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
