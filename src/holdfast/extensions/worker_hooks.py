"""Functions of the user's that each process calls before its first job and after its last: `app.on_worker_start`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.runtime.tracebacks import FRAMES_MAX, describe, logged, user_frames

WorkerHook = Callable[[], object]  # what it returns is awaited on the event loop of the jobs if it can be
Wait = Callable[[Awaitable[Any]], None]

log = logging.getLogger("holdfast.worker")


class WorkerHooks:
    """The functions of one app, in the order of their declaration."""

    def __init__(self) -> None:
        self.on_start: list[WorkerHook] = []
        self.on_stop: list[WorkerHook] = []

    def start(self, wait: Wait) -> None:
        """Call those for the start; raise what one of them raises."""
        for hook in self.on_start:
            _call(hook, wait)

    def stop(self, wait: Wait, name: str) -> None:
        """Call those for the stop of this process; never raises."""
        for hook in self.on_stop:
            try:
                _call(hook, wait)
            except Exception as error:
                what = logged(describe(error), user_frames(error, FRAMES_MAX))
                log.error("a hook for the stop of %s raised; the others continue: %s", name, what)


def _call(hook: WorkerHook, wait: Wait) -> None:
    called = hook()
    if inspect.isawaitable(called):
        wait(called)
