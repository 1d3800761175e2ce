"""Handlers that ignore a request to stop: only the end of their process stops them."""

from __future__ import annotations

import logging
import threading

from holdfast.runtime.log_fields import about
from holdfast.worker.attempt import Attempt

log = logging.getLogger("holdfast.worker")

ABANDONED = "its handler did not stop and was given up"
ABANDONED_MAX = 10  # the process ends when this many handlers do not stop


class StuckHandlers:
    """The stuck handlers of one process. Other jobs get their slots, until there are too many: then the process ends
    its other jobs and exits. `may_end`: a supervisor starts it again; without one it continues with fewer slots."""

    def __init__(self, slots: int, *, may_end: bool) -> None:
        self._limit = min(slots, ABANDONED_MAX)
        self._may_end = may_end
        self._lock = threading.Lock()
        self._number = 0
        self._in_their_slots: set[tuple[str, int]] = set()
        self.must_end = False

    def add(self, attempt: Attempt) -> bool:
        """Note one more; return whether its slot is free."""
        told = (attempt.job.id, attempt.job.task, attempt.handler.interrupt, ABANDONED)
        log.error("job %s (%s): %s; %s", *told, extra=about(attempt.job))
        with self._lock:
            self._number += 1
            too_many = self._number >= self._limit or attempt.handler.is_deaf
            if too_many and not self._may_end:
                self._in_their_slots.add(attempt.key)
                return False
            if too_many and not self.must_end:
                self.must_end = True
                log.critical("%d handlers did not stop; this process ends its other jobs and exits", self._number)
            return True

    def back(self, attempt: Attempt) -> bool:
        """Note that a stuck handler has returned; say whether its slot is free only now."""
        log.warning(
            "job %s: the handler that ignored its stop request has now returned; its result is discarded",
            attempt.job.id,
            extra=about(attempt.job),
        )
        with self._lock:
            self._number -= 1
            if attempt.key not in self._in_their_slots:
                return False
            self._in_their_slots.remove(attempt.key)
            return True
