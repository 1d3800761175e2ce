"""The recovery that a worker runs before its first claim, and when lost attempts hold the places that it needs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from holdfast.clock import Clock
from holdfast.core.recovery import SECOND_LOOK_S
from holdfast.stores.protocol import Store
from holdfast.upkeep.reaper import LOOK_S, Reaper

log = logging.getLogger("holdfast.worker")

GHOSTS_S = 0.5  # how often to look for lost attempts that hold places, while nothing can be claimed


class Sweep:
    """`only_pass`: no reaper runs after it, as in a tick. The sweep then looks again while a death is in doubt.
    `another`: makes a reaper like the first one, which the worker's own thread uses by then.
    """

    def __init__(
        self, reaper: Reaper, store: Store, clock: Clock, another: Callable[[], Reaper], *, only_pass: bool
    ) -> None:
        self._reaper = reaper
        self._another = another
        self._ghost_reaper: Reaper | None = None  # kept: it believes a loss only after it has watched for a while
        self._ghosts_at = float("-inf")
        self._store = store
        self._clock = clock
        self._only_pass = only_pass
        self._look_at: float | None = None  # when to look again
        self._give_up_at = 0.0
        self.recovered = 0

    @property
    def has_unconfirmed(self) -> bool:
        """Say whether a worker may be dead that the sweep has not judged yet."""
        return self._look_at is not None

    def begin(self) -> None:
        """Settle what dead workers left, an earlier process of this worker's name first of all."""
        if self._store.is_served:
            return
        self.recovered = self._reaper.complete(within_s=max(self._store.confirm_s, SECOND_LOOK_S)).recovered
        if self._only_pass and self._reaper.observed.recheck_s:
            self._give_up_at = self._clock.lease() + self._reaper.observed.patience_s + SECOND_LOOK_S
            self._look_at = self._clock.lease() + min(self._reaper.observed.recheck_s, LOOK_S)
        level = logging.WARNING if self.recovered else logging.INFO
        log.log(level, "recovered %d orphaned jobs at start", self.recovered)

    def look_again(self) -> None:
        """If it is time to, go on until nothing is in doubt, or the time is up."""
        now = self._clock.lease()
        if self._look_at is None or now < self._look_at:
            return
        self.recovered += self._reaper.once().recovered
        now, recheck_s = self._clock.lease(), self._reaper.observed.recheck_s
        self._look_at = now + min(recheck_s, LOOK_S) if recheck_s and now < self._give_up_at else None

    def settle_ghosts(self, queues: Sequence[str]) -> bool:
        """Settle the lost attempts that hold places of these queues, if there are any; say whether one was settled.

        A resident reaper of the fleet does so as well. This worker needs the places now, and the fleet may have none.
        """
        now = self._clock.lease()
        if self._store.is_served or now - self._ghosts_at < GHOSTS_S:
            return False
        self._ghosts_at = now
        if not self._store.ghosts(queues):
            return False
        if self._ghost_reaper is None:
            self._ghost_reaper = self._another()
        recovered = self._ghost_reaper.complete(within_s=3 * SECOND_LOOK_S).recovered
        self.recovered += recovered
        return recovered > 0
