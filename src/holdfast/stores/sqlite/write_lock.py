"""One writer of this process at a time, before anybody asks SQLite.

The place belongs to a token, not to a thread: it can be given back from another thread, twice, or by a caller that
never got it, and nothing else happens.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from holdfast.interrupts import raise_pending

_SLICE_S = 0.05  # how often a waiting thread looks whether it was interrupted


class WriteLock:
    """The turn to write."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        self._holder: object = None
        self._thread: int | None = None  # that has it,
        self._task: asyncio.Task[Any] | None = None  # and the task of its event loop, if it runs one

    def take(self, token: object, timeout_s: float) -> bool:
        """Take the place, waiting for it; False when the time was up first, or at once when this thread has it."""
        left_s = timeout_s
        while True:
            with self._condition:
                if self.is_of_this_thread:  # it would wait for itself, or block the event loop that the holder needs
                    return False
                if self._holder is None or self._condition.wait_for(self._is_free, max(0.0, min(_SLICE_S, left_s))):
                    self._holder, self._thread, self._task = token, threading.get_ident(), _current_task()
                    return True
            left_s -= _SLICE_S
            if left_s <= 0:
                return False
            raise_pending()

    def _is_free(self) -> bool:
        return self._holder is None

    @property
    def is_of_this_thread(self) -> bool:
        """Say whether this thread has the place, perhaps for another task of its event loop."""
        return self._holder is not None and self._thread == threading.get_ident()

    @property
    def is_mine(self) -> bool:
        """Say whether the caller itself has the place, so that waiting for it would never end."""
        return self.is_of_this_thread and self._task is _current_task()

    def hand_over(self, token: object) -> None:
        """Let another thread give the place back: from now on the thread that took it may wait for it."""
        with self._condition:
            if self._holder == token:
                self._thread = self._task = None

    def give(self, token: object) -> None:
        """Give the place back, if the token has it."""
        with self._condition:
            if self._holder is not None and self._holder == token:
                self._holder = self._task = None
                self._condition.notify()


def _current_task() -> asyncio.Task[Any] | None:
    loop = asyncio._get_running_loop()  # the public one raises where none runs, which costs more than the lock
    return None if loop is None else asyncio.current_task(loop)
