"""Looks for what becomes due without a hint: workflows whose time has come, and jobs that nobody was told of.

Asked by the claim loop, at the instant of the next one. Where another process of the fleet looks, it does nothing
(`Store.is_woken`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import StoreError, StoreLocked, StoreTimeout
from holdfast.stores.protocol import Store
from holdfast.tasks import Task

log = logging.getLogger("holdfast.worker")

LOOK_S = 0.25  # others may park a workflow at any time
REST_S = 0.5  # the same while no workflow waits for its time
SOON_S = 0.001
DUE_S = 1.0  # how often to look for due jobs that nobody was told of
FAILED_S, FAILED_MAX_S = 5.0, 60.0  # the pause after a look that took too long, which doubles each time


class Timers:
    """Used by the claiming thread alone. A worker without workflows looks at timers only on behalf of the fleet.

    `resident`: this program runs for long, so it may look on behalf of others, or rely on them.
    """

    def __init__(self, store: Store, clock: Clock, tasks: Mapping[str, Task[..., Any]], *, resident: bool) -> None:
        self._store = store
        self._clock = clock
        self._asks = resident or store.is_served  # whether another process may look on behalf of this one
        self._used = any(task.is_workflow for task in tasks.values())
        self._stands_by = False  # another process does
        self._leads = False  # this process looks on behalf of the fleet
        self._next_at = self._due_at = float("-inf")
        self._failures = 0  # of the store, one after the other
        self.is_woken = False  # this process hears of all that becomes due, because one looks, maybe itself

    def wake_due(self) -> None:
        """Make the workflows ready whose time has come, if it is time to look.

        A look that takes too long is tried again later, and more and more rarely: it must not keep this worker from its
        own jobs.
        """
        stands_by, now = self._asks and self._store.is_woken(), self._clock.lease()
        looks = self._asks and not stands_by and now >= self._due_at
        try:
            if stands_by or looks:
                self._leads = False
            if looks:
                self._leads = self._store.wake_sleepers()
                self._due_at = now + DUE_S
            self._stands_by, self.is_woken = stands_by, stands_by or self._leads
            wakes = not stands_by and (self._used or self._leads) and now >= self._next_at
            if wakes:
                self._wake_workflows()
            if looks or wakes:
                self._failures = 0
        except (StoreTimeout, StoreLocked) as error:
            self._failed(error)

    def _failed(self, error: StoreError) -> None:
        pause_s = min(FAILED_S * 2.0 ** min(self._failures, 10), FAILED_MAX_S)
        self._failures += 1
        self._due_at = self._next_at = self._clock.lease() + pause_s
        self._stands_by = self.is_woken = False
        log.warning("could not look for what has become due (%s); trying again in %.0f s", error, pause_s)

    def _wake_workflows(self) -> None:
        earliest = self._store.wake_due()
        pause_s, left_s = LOOK_S, LOOK_S
        if earliest is not None:
            left_s = max(0.0, earliest - self._store.now().wall)
        elif self._leads:
            pause_s = left_s = REST_S if self._used else DUE_S
        self._next_at = self._clock.lease() + min(pause_s, left_s)

    @property
    def is_due(self) -> bool:
        """Say whether it is time to look."""
        return self.in_s() <= SOON_S

    def in_s(self) -> float:
        """Return how long until the next look."""
        if self._stands_by or not (self._used or self._leads):
            return float("inf")
        next_at = min(self._next_at, self._due_at) if self._leads else self._next_at
        return max(SOON_S, next_at - self._clock.lease())
