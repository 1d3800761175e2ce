"""One writer of this process at a time, before anybody asks SQLite.

The place belongs to a token, not to a thread: it can be given back from another thread, twice, or by a caller that
never got it, and nothing else happens.
"""

from __future__ import annotations

import threading

from holdfast.interrupts import raise_pending

_SLICE_S = 0.05  # how often a waiting thread looks whether it was interrupted


class WriteLock:
    """The turn to write."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        self._holder: object = None
        self._thread: int | None = None  # that has it, and does not wait for itself

    def take(self, token: object, timeout_s: float) -> bool:
        """Take the place, waiting for it; False when the time was up first, or at once when this thread has it."""
        left_s = timeout_s
        while True:
            with self._condition:
                if self.is_mine:
                    return False
                if self._condition.wait_for(lambda: self._holder is None, max(0.0, min(_SLICE_S, left_s))):
                    self._holder, self._thread = token, threading.get_ident()
                    return True
            left_s -= _SLICE_S
            if left_s <= 0:
                return False
            raise_pending()

    @property
    def is_mine(self) -> bool:
        """Say whether this very thread has the place, so that waiting for it would never end."""
        return self._holder is not None and self._thread == threading.get_ident()

    def hand_over(self, token: object) -> None:
        """Let another thread give the place back: from now on the thread that took it may wait for it."""
        with self._condition:
            if self._holder == token:
                self._thread = None

    def give(self, token: object) -> None:
        """Give the place back, if the token has it."""
        with self._condition:
            if self._holder is not None and self._holder == token:
                self._holder = None
                self._condition.notify()
