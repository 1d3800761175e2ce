"""A thread of the worker that looks at what its settlements have ended, soon after their commit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from holdfast.clock import Clock
from holdfast.errors import StoreError
from holdfast.stores.protocol import Store

REST_S = 0.02  # between two looks: settlements that come close together share one,
REST = 9  # and this many times as long as a look took: it takes a tenth of the time of a connection at the most


class AfterSettle:
    """The thread and the ids that it has to look at. It starts with the first id.

    A subclass has `look`. A reaper's pass finds what it misses, because it fails or its process dies.
    """

    name = "holdfast-after"
    what = "ids"

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._ids: set[str] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._log = logging.getLogger(self.name.replace("-", "."))

    def note(self, ids: Iterable[str]) -> None:
        """Look at these soon."""
        with self._lock:
            self._ids.update(ids)
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._serve, name=self.name, daemon=True)
                self._thread.start()
        self._wake.set()

    def close(self, timeout_s: float) -> None:
        """Look at what is noted, for the last time."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def look(self, ids: set[str]) -> None:
        """Look at these once."""
        raise NotImplementedError

    @property
    def rest_s(self) -> float:
        """Return the least pause before the next look."""
        return REST_S

    def _serve(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            began = self._clock.lease()
            self._look()
            if self._closing.is_set() and not self._ids:
                return
            self._clock.wait(self._closing, max(self.rest_s, REST * (self._clock.lease() - began)))

    def _look(self) -> None:
        with self._lock:
            ids, self._ids = self._ids, set()
        try:
            if ids:
                self.look(ids)
        except StoreError as error:
            self._log.info("could not look at %d %s (%s); a reaper does it", len(ids), self.what, error)
        except Exception:  # the thread goes on with the next ones
            self._log.exception("could not look at %d %s; a reaper does it", len(ids), self.what)
