"""Decide how many jobs to claim ahead of a free slot: about a tenth of a second of work, at the recent rate."""

from __future__ import annotations

AHEAD_S = 0.1
AHEAD_MAX = 2000
_WINDOW_S = 0.02


class Prefetch:
    """A running estimate of how many jobs end in a second."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._settled = 0
        self._at: float | None = None

    def add(self, settled: int, now: float) -> None:
        """Note how many jobs have been settled in all by now."""
        if self._at is None:
            self._settled, self._at = settled, now
            return
        length = now - self._at
        if length < _WINDOW_S:
            return
        rate = (settled - self._settled) / length
        # Up at once, so that a burst is not held back; down within a few windows, so that a slow job strands little.
        self._rate = rate if rate > self._rate else self._rate * 0.5 + rate * 0.5
        self._settled, self._at = settled, now

    def ahead(self, settled: int, now: float) -> int:
        """Return how many jobs may wait in this process for a slot."""
        self.add(settled, now)
        return min(AHEAD_MAX, int(self._rate * AHEAD_S))

    def reset(self) -> None:
        """Forget the estimate: what was claimed ahead did not get its turn."""
        self._rate = 0.0
