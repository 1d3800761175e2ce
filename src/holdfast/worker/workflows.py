"""The workflows of one worker process: each attempt gets a run, a driver and a flow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.clock import Clock
from holdfast.runtime.vital_threads import Died
from holdfast.stores.protocol import Store
from holdfast.worker.attempt import Attempt
from holdfast.worker.context import Context
from holdfast.workflow import async_driver, sync_driver
from holdfast.workflow.flow import AsyncFlow, Flow
from holdfast.workflow.recorder import Recorder
from holdfast.workflow.run import Run

if TYPE_CHECKING:
    from holdfast.app import App


class WorkflowRuntime:
    """See the module's docstring."""

    def __init__(
        self, app: App, store: Store, clock: Clock, make_context: Callable[[Attempt], Context], died: Died
    ) -> None:
        self._app = app
        self._store = store
        self._clock = clock
        self._make_context = make_context
        self._recorder = Recorder(store, clock, died)
        self._pools: async_driver.ThreadPools | None = None
        self._mailbox: async_driver.Mailbox | None = None

    def play(self, attempt: Attempt) -> Any:
        """Run a workflow in this thread."""
        driver = sync_driver.SyncDriver(Run(attempt, self._store, self._app), self._recorder, self._clock)
        flow = Flow(driver, self._make_context(attempt))
        return sync_driver.play(driver, lambda: _called(attempt, flow))

    async def aplay(self, attempt: Attempt) -> Any:
        """Run an async workflow on this event loop."""
        if self._pools is None:
            self._pools = async_driver.ThreadPools()
        if self._mailbox is None:
            self._mailbox = async_driver.Mailbox(asyncio.get_running_loop())
        run = Run(attempt, self._store, self._app, in_order=False)
        driver = async_driver.AsyncDriver(run, self._recorder, self._pools, self._mailbox)
        flow = AsyncFlow(driver, self._make_context(attempt))
        return await async_driver.play(driver, lambda: _called(attempt, flow))

    def close(self) -> None:
        self._recorder.close()
        if self._pools is not None:
            self._pools.close()


def _called(attempt: Attempt, flow: Flow) -> Any:
    arguments, named = attempt.arguments()
    return attempt.task.fn(flow, *arguments, **named)
