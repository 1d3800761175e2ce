"""A bounded pool of threads for calls of the store, so that none of them blocks the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from holdfast.server.problems import Problem

P = ParamSpec("P")
R = TypeVar("R")


class ThreadPool:
    """Runs calls on up to `threads` threads. `waiting_max` more may wait; others are refused at once."""

    def __init__(self, threads: int, waiting_max: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-http")
        self._most = threads + waiting_max
        self._lock = threading.Lock()
        self.under_way = 0  # the calls that run or wait, also those that no request waits for any more

    async def run(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call and return what it returns."""
        with self._lock:
            if self.under_way >= self._most:
                raise Problem("overloaded", f"{self.under_way} requests are under way; try again later")
            self.under_way += 1
        context = contextvars.copy_context()
        work: Future[R] = self._executor.submit(context.run, partial(call, *args, **kwargs))
        work.add_done_callback(self._ended)
        return await asyncio.wrap_future(work)

    def _ended(self, _: object) -> None:
        with self._lock:
            self.under_way -= 1

    def close(self) -> None:
        """Let running calls end; those that wait are not begun."""
        self._executor.shutdown(wait=False, cancel_futures=True)
