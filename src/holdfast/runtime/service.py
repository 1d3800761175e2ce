"""A thread that calls one function repeatedly until it is stopped, and survives its errors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from holdfast.clock import Clock
from holdfast.errors import DutyLost, HoldfastError
from holdfast.ids import chance
from holdfast.runtime.store_backoff import StoreBackoff
from holdfast.runtime.vital_threads import Died, VitalThread


@dataclass(eq=False)
class Service:
    """Calls `turn` about every `every_s` seconds, or sooner if `turn` returns fewer seconds.

    `jitter`: the share of the pause that is random, to either side. `meanwhile`: what does not happen while the store
    fails, for the log; with it, a failed turn is retried after a growing pause. `lost` is called when another program
    has taken the duty, `failed` after every other error. `leave` is called on the thread at the end.
    """

    name: str
    turn: Callable[[], float | None]
    clock: Clock
    log: logging.Logger
    every_s: float
    meanwhile: str | None = None
    _: KW_ONLY
    jitter: float = 0.1
    lost: Callable[[], None] | None = None
    failed: Callable[[Exception], None] = lambda _: None
    leave: Callable[[], None] = lambda: None
    stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._backoff = None if self.meanwhile is None else StoreBackoff(self.log, self.clock, self.meanwhile)

    def start(self, died: Died | None = None) -> None:
        """Serve on a thread of its own. With `died` the program cannot do without it: see `VitalThread`."""
        if died is None:
            self._thread = threading.Thread(target=self.run, name=self.name, daemon=True)
            self._thread.start()
        else:
            self._thread = vital = VitalThread(self.name, self.run, self.stopping.is_set)
            vital.begin(died)

    def stop(self, timeout_s: float) -> None:
        """Let the turn that is under way be the last, and wait for its end. Does nothing if it was never started."""
        self.stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def run(self) -> None:
        """Serve on this thread until `stopping` is set."""
        while not self.stopping.is_set():
            self.clock.wait(self.stopping, self._take_turn())
        self.leave()

    def _take_turn(self) -> float:
        """Take one turn; return how long to wait for the next."""
        pause_s = self.every_s * (1 - self.jitter + 2 * self.jitter * chance())
        try:
            sooner_s = self.turn()
            if self._backoff is not None:
                self._backoff.recovered()
            return pause_s if sooner_s is None else min(pause_s, sooner_s)
        except Exception as error:
            if isinstance(error, DutyLost) and self.lost is not None:
                self.log.warning("an act was refused: %s", error)
                self.lost()
                return pause_s
            if isinstance(error, HoldfastError) and self._backoff is not None:
                pause_s = self._backoff.failed(error)
            else:
                self.log.exception("%s failed; it tries again in %.1f s", self.name, pause_s)
            self.failed(error)
            return pause_s
