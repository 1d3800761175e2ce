"""Handlers that were asked to stop and go on: nothing stops them but the end of their process."""

from __future__ import annotations

import logging
import threading

from holdfast.worker.attempt import Attempt

log = logging.getLogger("holdfast.worker")

ABANDONED = "its handler did not stop and was given up"
ABANDONED_MAX = 10  # so many of them are too many for one process


class StuckHandlers:
    """Those of one process. Somebody else gets their slots, until they are too many: then the process has to end its
    other jobs and make room for another. `may_end`: somebody will start it again; otherwise it goes on with less."""

    def __init__(self, slots: int, *, may_end: bool) -> None:
        self._limit = min(slots, ABANDONED_MAX)
        self._may_end = may_end
        self._lock = threading.Lock()
        self._number = 0
        self._in_their_slots: set[tuple[str, int]] = set()
        self.must_end = False

    def add(self, attempt: Attempt) -> bool:
        """Note one more; return whether its slot is free."""
        log.error("job %s (%s): %s; %s", attempt.job.id, attempt.job.task, attempt.interrupt, ABANDONED)
        with self._lock:
            self._number += 1
            too_many = self._number >= self._limit or attempt.is_deaf
            if too_many and not self._may_end:
                self._in_their_slots.add(attempt.key)
                return False
            if too_many and not self.must_end:
                self.must_end = True
                log.critical("handlers would not stop (%d); this process ends its other jobs and leaves", self._number)
            return True

    def back(self, attempt: Attempt) -> bool:
        """Note that one has come to its end after all; return whether its slot is free only now."""
        log.warning("job %s: its handler, given up before, has come to its end", attempt.job.id)
        with self._lock:
            self._number -= 1
            if attempt.key not in self._in_their_slots:
                return False
            self._in_their_slots.remove(attempt.key)
            return True
