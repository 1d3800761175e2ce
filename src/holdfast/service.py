"""A thread that does one thing again and again until it is stopped, whatever goes wrong meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.errors import DutyLost, HoldfastError
from holdfast.ids import chance
from holdfast.store_backoff import StoreBackoff
from holdfast.vital_threads import Died, VitalThread

Turn = Callable[[], float | None]


class Service:
    """Calls `turn` about every `every_s` seconds, or sooner if `turn` returns fewer seconds.

    `jitter`: the share of the pause that is random, to either side. `meanwhile`: what waits while the store fails; with
    it, a turn that the store failed is tried again after a growing pause. `lost` is told that another program took the
    duty that a turn worked under, `failed` of every other error. `leave` is called on the thread at the end.
    """

    def __init__(
        self,
        name: str,
        turn: Turn,
        clock: Clock,
        log: logging.Logger,
        every_s: float,
        meanwhile: str | None = None,
        *,
        jitter: float = 0.1,
        lost: Callable[[], None] | None = None,
        failed: Callable[[Exception], None] = lambda _: None,
        leave: Callable[[], None] = lambda: None,
        stopping: threading.Event | None = None,
    ) -> None:
        self.stopping = stopping or threading.Event()
        self._name = name
        self._turn = turn
        self._clock = clock
        self._log = log
        self._every_s = every_s
        self._jitter = jitter
        self._backoff = None if meanwhile is None else StoreBackoff(log, clock, meanwhile)
        self._lost = lost
        self._failed = failed
        self._leave = leave
        self._thread: threading.Thread | None = None

    def start(self, died: Died | None = None) -> None:
        """Serve on a thread of its own. With `died` the program cannot do without it: see `VitalThread`."""
        if died is None:
            self._thread = threading.Thread(target=self.run, name=self._name, daemon=True)
            self._thread.start()
        else:
            self._thread = vital = VitalThread(self._name, self.run, self.stopping.is_set)
            vital.begin(died)

    def stop(self, timeout_s: float) -> None:
        """Let the turn that is under way be the last, and wait for its end. Does nothing if it was never started."""
        self.stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def run(self) -> None:
        """Serve on this thread until `stopping` is set."""
        while not self.stopping.is_set():
            self._clock.wait(self.stopping, self._take_turn())
        self._leave()

    def _take_turn(self) -> float:
        """Take one turn; return how long to wait for the next."""
        pause_s = self._every_s * (1 - self._jitter + 2 * self._jitter * chance())
        try:
            sooner_s = self._turn()
            if self._backoff is not None:
                self._backoff.over()
            return pause_s if sooner_s is None else min(pause_s, sooner_s)
        except Exception as error:
            if isinstance(error, DutyLost) and self._lost is not None:
                self._log.warning("an act was refused: %s", error)
                self._lost()
                return pause_s
            if isinstance(error, HoldfastError) and self._backoff is not None:
                pause_s = self._backoff.met(error)
            else:
                self._log.exception("%s failed; it tries again in %.1f s", self._name, pause_s)
            self._failed(error)
            return pause_s
