"""The folder of rollups: it adds up what settlements have counted, and notices how many jobs have arrived.

One of the programs on a store holds the duty and folds, twice a minute. Every fold carries the term, and a
delta counts once, so a folder that was paused changes nothing after another has taken over. While nobody folds,
nothing is lost: readers add what is not folded yet, and jobs that arrived count in the minute of the next fold.
"""

from __future__ import annotations

import logging

from holdfast.clock import Clock
from holdfast.core.machine import ENDED
from holdfast.core.rollups import FOLD_MAX
from holdfast.errors import DutyLost
from holdfast.ids import new_id
from holdfast.runtime.duties import DutyHolder
from holdfast.runtime.hooks import Hooks
from holdfast.runtime.service import Service
from holdfast.stores.protocol import Store

log = logging.getLogger("holdfast.rollups")

DUTY = "rollups"
LOOK_S = 30.0  # how often to fold
TTL_INTERVALS = 3  # the duty outlives one failed renewal
REST_S = 0.05  # between two pieces, so that settles come in between
LEAVE_S = 5.0  # how long the end waits for the store


class RollupFolder:
    """A context manager: it folds while the block runs, whenever the duty is its own."""

    def __init__(self, store: Store, clock: Clock, *, hooks: Hooks, name: str, interval_s: float = LOOK_S) -> None:
        self._store = store
        self._clock = clock
        self._post = DutyHolder(store, clock, DUTY, f"{name}:{new_id()}", TTL_INTERVALS * interval_s, hooks)
        self._service = Service(
            "holdfast-rollups",
            self._turn,
            clock,
            log,
            interval_s,
            "charts count what is not folded yet, and miss jobs that arrive",
            leave=self._post.resign,
        )

    def __enter__(self) -> RollupFolder:
        self._service.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop after the piece that is under way, and give the duty back."""
        self._service.stop(LEAVE_S)

    def once(self, until: float = float("inf")) -> int:
        """Fold all there is, if the duty is ours; return how many deltas. Raises `StoreError` when the store does.

        No piece begins after `until`, on the lease clock.
        """
        number, came = 0, None
        try:
            while not self._is_over(until) and (duty := self._post.duty()) is not None:
                came = {} if came is not None else self._came()
                done = self._store.figures.fold(came, FOLD_MAX, under=duty)
                number += done
                if done < FOLD_MAX:
                    break
                self._clock.wait(self._service.stopping, REST_S)
        except DutyLost:
            self._post.refused()
        return number

    def resign(self) -> None:
        """Give the duty back, if it is ours; never raises."""
        self._post.resign()

    def _came(self) -> dict[str, int]:
        """Return how many jobs there are and have ended in each queue."""
        came: dict[str, int] = {}
        for queue, ended in self._store.figures.counters().ended.items():
            came[queue] = sum(ended.values())
        for queue, counts in self._store.counts().items():
            live = sum(jobs for state, jobs in counts.items() if state not in ENDED)
            came[queue] = came.get(queue, 0) + live
        return came

    def _is_over(self, until: float) -> bool:
        return self._service.stopping.is_set() or self._clock.lease() >= until

    def _turn(self) -> None:
        self.once()
