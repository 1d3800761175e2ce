"""The pruner deletes ended jobs, with their history, when their retention is over.

One of the programs on a store that have a retention holds the duty and prunes, on a thread of its own. It deletes in
batches and pauses after each, so that claims and settles come in between. Every batch carries the term, so a pruner
that was paused deletes nothing after another has taken over.
"""

from __future__ import annotations

import logging

from holdfast.clock import Clock
from holdfast.core.retention import Retention
from holdfast.errors import DutyLost
from holdfast.failpoints import point
from holdfast.ids import new_id
from holdfast.runtime.duties import DutyHolder
from holdfast.runtime.hooks import Hooks
from holdfast.runtime.service import Service
from holdfast.stores.protocol import Store

log = logging.getLogger("holdfast.pruner")

DUTY = "pruner"
LOOK_S = 10.0  # how often to look
TTL_INTERVALS = 3  # the duty outlives one failed renewal, and passes on soon after its holder died
BATCH = 1_000
REST = 4  # it rests this many times as long as a batch took: a fifth of the time of SQLite's one writer, at the most
REST_MIN_S = 0.05
LEAVE_S = 5.0  # how long the end waits for the store


class Pruner:
    """The retention of one program. A context manager: it prunes while the block runs, whenever the duty is its own."""

    def __init__(
        self, store: Store, clock: Clock, keep: Retention, *, hooks: Hooks, name: str, interval_s: float = LOOK_S
    ) -> None:
        self._store = store
        self._clock = clock
        self._keep = keep
        self._hooks = hooks
        self._interval_s = interval_s
        self._key = ""  # the last one that was looked at
        self._post = DutyHolder(store, clock, DUTY, f"{name}:{new_id()}", TTL_INTERVALS * interval_s, hooks)
        self._service = Service(
            "holdfast-pruner",
            self._turn,
            clock,
            log,
            interval_s,
            "nothing is deleted meanwhile",
            leave=self._post.resign,
        )

    def __enter__(self) -> Pruner:
        if self._keep:
            log.info("ended jobs are kept: %s; others for ever", self._keep)
            self._service.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop after the batch that is under way, and give the duty back."""
        self._service.stop(LEAVE_S)
        if self._keep:
            self._hooks.flush()

    def once(self, until: float = float("inf")) -> int:
        """Delete all that is due, if the duty is ours; return how many. Raises `StoreError` when the store does.

        No batch begins after `until`, on the lease clock.
        """
        deleted = 0
        try:
            for states, age_s in self._keep.rules:
                while not self._is_over(until) and (duty := self._post.duty()) is not None:
                    before = self._store.now().wall - age_s
                    point("prune.before")
                    began = self._clock.lease()
                    batch = self._store.purge(states, before, BATCH, under=duty)
                    deleted += batch
                    if batch < BATCH:
                        break
                    self._rest(self._clock.lease() - began, until)
            if not self._is_over(until):
                self._purge_keys()
            if deleted:
                self._store.batches.purge(self._store.now().wall - max(age_s for _, age_s in self._keep.rules), BATCH)
        except DutyLost:
            self._post.refused()
        finally:
            if deleted:
                log.info("deleted %d jobs that ended long ago", deleted)
        return deleted

    def resign(self) -> None:
        """Give the duty back, if it is ours; never raises."""
        self._post.resign()

    def _is_over(self, until: float) -> bool:
        return self._service.stopping.is_set() or self._clock.lease() >= until

    def _rest(self, took_s: float, until: float) -> None:
        rest_s = min(max(REST_MIN_S, REST * took_s), self._interval_s, max(0.0, until - self._clock.lease()))
        self._clock.wait(self._service.stopping, rest_s)

    def _purge_keys(self) -> None:
        """Look at one page of keys with rules, the one after that of the turn before. Nobody waits for that."""
        if self._post.duty() is not None:
            self._key = self._store.purge_keys(self._key, BATCH) or ""

    def _turn(self) -> None:
        self.once()
