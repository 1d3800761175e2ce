"""Backoff for threads that use the store: wait, try again, and log one line now and then."""

from __future__ import annotations

import logging

from holdfast.clock import Clock
from holdfast.errors import FileReplaced

LONGEST_S = 2.0
SAY_EVERY_S = 30.0


class StoreBackoff:
    """The backoff of one thread, and its log.

    A store that fails and works in turns, as on a disk that is nearly full, gets a line every 30 s as well.
    """

    def __init__(self, log: logging.Logger, clock: Clock, meanwhile: str) -> None:
        self._log = log
        self._clock = clock
        self._meanwhile = meanwhile
        self._since: float | None = None
        self._said_at = float("-inf")
        self._is_said = False  # of this trouble
        self._pause_s = 0.05

    def failed(self, error: Exception) -> float:
        """Note one more failure; return how long to wait before the next try."""
        now = self._clock.lease()
        if self._since is None:
            self._since, self._is_said, self._pause_s = now, False, 0.05
        if now - self._said_at >= SAY_EVERY_S and not isinstance(error, FileReplaced):  # then the process leaves
            self._log.warning("the store fails (%s); trying again; %s", error, self._meanwhile)
            self._said_at, self._is_said = now, True
        pause, self._pause_s = self._pause_s, min(self._pause_s * 2, LONGEST_S)
        return pause

    def recovered(self) -> None:
        """Note that the store answered."""
        if self._since is not None:
            if self._is_said:
                self._log.warning("the store is back after %.1f s", self._clock.lease() - self._since)
            self._since = None
