"""Ends jobs that were not started before their expiry, in the passes of reapers.

A claim leaves such a job alone from its expiry on. The sweep only gives it its end.
"""

from __future__ import annotations

import logging

from holdfast.clock import Clock
from holdfast.core import acts
from holdfast.core.acts import Move
from holdfast.stores.protocol import Reply, Store

log = logging.getLogger("holdfast.reaper")

SWEEP_S = 1.0  # how often to look
PAGE = 500
PAGES_MAX = 10  # in one pass: the dead come first


class ExpirySweep:
    """The sweep of one reaper. Any number may look at once: each end is compared with the row."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._at = float("-inf")

    def once(self) -> int:
        """Look if it is time to, and return how many jobs have ended. Raises `StoreError` when the store does."""
        if self._clock.lease() - self._at < SWEEP_S:
            return 0
        self._at = self._clock.lease()
        ended = 0
        for _ in range(PAGES_MAX):
            found = self._store.expired(PAGE)
            answers = self._store.move([Move(job.seen, acts.expire(job)) for job in found]) if found else []
            ended += answers.count(Reply.ACCEPTED)
            if len(found) < PAGE or Reply.ACCEPTED not in answers:
                break
        if ended:
            log.info("cancelled %d jobs that were not started before their expiry", ended)
        return ended
