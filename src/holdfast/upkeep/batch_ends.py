"""The end of batches: a batch whose jobs have all ended stores its last job.

    settle of one of its jobs ─▶ BatchEnder (a thread of the worker) ─┐
    a reaper's pass, about once a second ─▶ BatchSweep ───────────────┴─▶ conclusion() (pure) ─▶ store.batches.end()

A settlement of a job never waits for the settlement of another one: the look at the batch comes after the commit, so
the last of them sees all others. If a worker dies in between, the next sweep of any reaper ends the batch. `end`
compares and sets, so any number of programs may look at once, and the last job is stored once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdfast.clock import Clock
from holdfast.core.batches import Batch, conclusion
from holdfast.errors import is_passing
from holdfast.stores.protocol import Store
from holdfast.stores.row_json import log_once
from holdfast.upkeep.after_settle import AfterSettle

log = logging.getLogger("holdfast.batches")

SWEEP_S = 1.0  # how often a reaper looks at batches that have not ended
PAGE = 200  # batches of one look


def end_batches(store: Store, batches: Sequence[Batch]) -> int:
    """End the batches that are over, and close those that their producers have left; return how many ended.

    A batch whose last job cannot be stored stops no other. Raises `StoreError` when the whole store is in trouble.
    """
    ended = 0
    for batch in batches:
        try:
            ended += _end(store, batch)
        except Exception as error:  # its last job cannot be read, or no store can hold it
            if is_passing(error):
                raise
            log_once(f"batch {batch.id} cannot end, because its last job cannot be stored: {error}")
    return ended


def _end(store: Store, batch: Batch) -> bool:
    if batch.is_abandoned(store.now().wall):
        batch = _closed(store, batch)
    if not batch.is_over:
        return False
    counts = store.batches.counts(batch.id)
    if not store.batches.end(batch.id, counts, conclusion(batch, counts)):
        return False
    log.info("batch %s ended: %s", batch.id, ", ".join(f"{number} {state}" for state, number in counts.items()))
    return True


def _closed(store: Store, batch: Batch) -> Batch:
    if store.batches.close(batch.id, complete=False, unless_added_since=batch.added_at):
        log.warning(
            "batch %s is closed: nobody has added to it for %.0f s, and its producer has not closed it; its last job "
            "gets complete=False",
            *(batch.id, batch.abandon_s),
        )
    return store.batches.get([batch.id])[0]


class BatchSweep:
    """Looks at the batches that have not ended, page by page, and starts again after the last one."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._after = ""
        self._at = float("-inf")

    def once(self) -> None:
        """Look at one page if it is time to. Raises `StoreError` when the store does."""
        if self._clock.lease() - self._at < SWEEP_S:
            return
        self._at = self._clock.lease()
        page = self._store.batches.find(self._after, PAGE, unended=True)
        self._after = page[-1].id if len(page) == PAGE else ""
        end_batches(self._store, page)


class BatchEnder(AfterSettle):
    """Ends batches as soon as their last job is settled by this worker."""

    name = "holdfast-batches"
    what = "batches"

    def look(self, ids: set[str]) -> None:
        end_batches(self._store, self._store.batches.get(sorted(ids)))
