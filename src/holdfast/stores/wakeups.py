"""Hints between threads of one process: something may have changed. For stores that are notified and do not poll."""

from __future__ import annotations

import threading
import weakref

from holdfast.clock import Clock


class Wakeups:
    """A hint for each waiting thread, so that none takes another's. One that comes between two waits is not missed, nor
    is
    one that came before a thread's first wait: that one returns at once, and the thread looks once more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mine = threading.local()  # the hint of each thread goes with the thread
        self._hints: weakref.WeakSet[threading.Event] = weakref.WeakSet()

    def wait(self, clock: Clock, timeout_s: float) -> bool:
        """Return early, with True, when there is a hint that this thread has not had."""
        hint: threading.Event | None = getattr(self._mine, "hint", None)
        if hint is None:
            self._mine.hint = hint = threading.Event()
            with self._lock:
                self._hints.add(hint)
            return True
        woken = clock.wait(hint, timeout_s)
        if woken:  # else one may have come this very moment
            hint.clear()
        return woken

    def wake(self) -> None:
        """Give every thread a hint."""
        with self._lock:
            for hint in self._hints:
                hint.set()
