"""The thread that looks for the dead, in every worker: about every quarter second, or at the earliest deadline."""

from __future__ import annotations

import logging
import threading

from holdfast.clock import Clock
from holdfast.core.recovery import SECOND_LOOK_S
from holdfast.errors import HoldfastError
from holdfast.hooks import Hooks
from holdfast.ids import chance
from holdfast.reaper import Reaper
from holdfast.store_backoff import StoreBackoff
from holdfast.stores.protocol import Store
from holdfast.vital_threads import Died, VitalThread

log = logging.getLogger("holdfast.worker")

REAP_S = 0.25  # how often to look


class ReaperThread:
    """See the module's docstring. It ends when `stopping` is set."""

    def __init__(
        self, reaper: Reaper, store: Store, clock: Clock, hooks: Hooks, stopping: threading.Event, grace_s: float
    ) -> None:
        self._thread = VitalThread("holdfast-reaper", self._serve, stopping.is_set)
        self._reaper = reaper
        self._store = store
        self._clock = clock
        self._hooks = hooks
        self._stopping = stopping
        self._grace_s = grace_s

    def start(self, died: Died) -> None:
        self._thread.begin(died)

    def _serve(self) -> None:
        trouble = StoreBackoff(log, self._clock, "no zombies are looked for meanwhile")
        while not self._stopping.is_set():
            pause_s = REAP_S * (0.75 + 0.5 * chance())
            try:
                self._reaper.once()
                deadline = self._store.deadline()
                if deadline is not None:  # wake up for the earliest deadline instead of ticking past it
                    left_s = deadline + self._grace_s - self._store.now().lease
                    pause_s = min(pause_s, left_s if left_s > 0 else SECOND_LOOK_S)
                trouble.over()
            except HoldfastError as error:
                pause_s = trouble.met(error)
                self._hooks.emit("error", {"error": str(error)})
            except Exception as error:
                log.exception("the reaper stumbled; it goes on")
                self._hooks.emit("error", {"error": str(error)})
            self._clock.wait(self._stopping, pause_s)
