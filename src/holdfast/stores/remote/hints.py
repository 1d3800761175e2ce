"""Hints of due jobs, from a server: a request that it answers when there may be some.

A thread asks only while a worker sleeps, so a busy worker never takes a hint that an idle one could use.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.stores.wakeups import Wakeups

log = logging.getLogger("holdfast.remote")

AGAIN_S, AGAIN_MAX_S = 0.05, 2.0  # the pause before the next try
WAIT_S = 20.0  # proxies end a request after a minute
Ask = Callable[[Sequence[str], Sequence[str], float], bool]  # queues, tasks, seconds: may a job be due?


class Hints:
    """`want` says what this process would claim; `wait` returns when there may be some of it."""

    def __init__(self, clock: Clock, ask: Ask) -> None:
        self._clock = clock
        self._ask = ask
        self._wakeups = Wakeups()
        self._lock = threading.Lock()
        self._wanted: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        self._sleepers = 0
        self._sleeps = threading.Event()  # a thread has begun to sleep since the last hint
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def want(self, queues: Sequence[str], tasks: Sequence[str]) -> None:
        """Note what the caller would claim. It sleeps next."""
        self._wanted = tuple(queues), tuple(tasks)

    def wait(self, timeout_s: float) -> bool:
        """Return early, with True, after a hint."""
        with self._lock:
            self._sleepers += 1
            if self._wanted is not None and timeout_s > 0 and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-hints", daemon=True)
                self._thread.start()
        self._sleeps.set()
        try:
            return self._wakeups.wait(self._clock, timeout_s)
        finally:
            with self._lock:
                self._sleepers -= 1

    def wake(self) -> None:
        """Give every thread of this process a hint."""
        self._wakeups.wake()

    def close(self) -> None:
        """Let everybody return."""
        self._closed.set()
        self._sleeps.set()
        self._wakeups.wake()

    def _run(self) -> None:
        pause_s = AGAIN_S
        while not self._closed.is_set():
            self._sleeps.wait()
            with self._lock:
                wanted, sleepers = self._wanted, self._sleepers
                if not sleepers:
                    self._sleeps.clear()
            if not sleepers or wanted is None:
                continue
            try:
                if self._ask(*wanted, WAIT_S):
                    self._sleeps.clear()  # the next one that sleeps sets it again
                    self._wakeups.wake()
                pause_s = AGAIN_S
            except HoldfastError as error:  # the threads that claim and beat say so in the log
                log.debug("the server gives no hints: %s", error)
                self._closed.wait(pause_s)
                pause_s = min(pause_s * 2, AGAIN_MAX_S)
                self._wakeups.wake()  # the server may be back: look
            except Exception:
                log.exception("asking the server for hints failed unexpectedly; the thread continues")
                self._closed.wait(1.0)
