"""The thread that looks for the dead, in every worker: about every quarter second, or at the earliest deadline."""

from __future__ import annotations

import logging
import threading

from holdfast.clock import Clock
from holdfast.hooks import Hooks
from holdfast.reaper import Reaper
from holdfast.reaper_service import until_next_look
from holdfast.service import Service
from holdfast.stores.protocol import Store
from holdfast.vital_threads import Died

log = logging.getLogger("holdfast.worker")

REAP_S = 0.25  # how often to look


class ReaperThread:
    """See the module's docstring. It ends when `stopping` is set."""

    def __init__(
        self, reaper: Reaper, store: Store, clock: Clock, hooks: Hooks, stopping: threading.Event, grace_s: float
    ) -> None:
        self._reaper = reaper
        self._store = store
        self._grace_s = grace_s
        self._service = Service(
            "holdfast-reaper",
            self._turn,
            clock,
            log,
            REAP_S,
            "no zombies are looked for meanwhile",
            jitter=0.25,
            failed=lambda error: hooks.emit("error", {"error": str(error)}),
            stopping=stopping,
        )

    def start(self, died: Died) -> None:
        self._service.start(died)

    def _turn(self) -> float | None:
        self._reaper.once()
        return until_next_look(self._reaper, self._store, self._grace_s)
