"""The facts that every page shows: read at most once a second, for all pages of a server together."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.app import App
from holdfast.core.access import User
from holdfast.core.machine import State
from holdfast.core.records import Filter, Moment
from holdfast.stores.rounds import together

FRESH_S = 1.0
STALE_S = 3.0
ASKING_S = 5.0  # how often open questions are counted, at most
ASKING_SHARE = 0.02  # of a core, at most, for counting them
ASKING_MAX = 500
SHARE = 0.05  # of a core, at most, for reading: the facts of a store that takes long are read less often


@dataclass(frozen=True, slots=True)
class Facts:
    """Counts by queue and state, and when they were read by the store's clock."""

    counts: Mapping[str, Mapping[State, int]]
    now: Moment
    newest: int  # the number of the journal's newest event
    asking: Mapping[str, int] = field(default_factory=dict)  # open questions of workflows, by queue; read less often

    def total(self, user: User, *states: State) -> int:
        """Return how many jobs in these states the user may see."""
        seen = (by_state for queue, by_state in self.counts.items() if user.sees(queue))
        return sum(by_state.get(state, 0) for by_state in seen for state in states)

    def questions(self, user: User) -> int:
        """Return how many workflows ask a person something, as far as the user sees them: at most `ASKING_MAX`."""
        return sum(number for queue, number in self.asking.items() if user.sees(queue))


class Snapshot:
    """Reads the facts for all threads of a server."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._facts: Facts | None = None
        self._read_at = float("-inf")
        self._fresh_s = FRESH_S
        self._asking: Mapping[str, int] = {}
        self._ask_at = float("-inf")

    def read(self) -> Facts:
        """Return the facts, usually at most a second old. Raises `StoreError`."""
        with self._lock:
            began = self._app.clock.lease()
            if self._facts is None or began - self._read_at >= self._fresh_s:
                store = self._app.store
                counts, now, newest = together(store.counts, store.now, lambda: store.journal(None, (), 1))
                self._facts = Facts(counts, now, newest[-1].seq if newest else 0, self._questions())
                self._read_at = self._app.clock.lease()
                self._fresh_s = min(max(FRESH_S, (self._read_at - began) / SHARE), STALE_S)
            return self._facts

    def _questions(self) -> Mapping[str, int]:
        """Count the open questions by queue; a store that takes long for it is asked less often."""
        began = self._app.clock.lease()
        if began >= self._ask_at:
            asking = self._app.store.find(Filter(states=(State.WAITING,), asking=True, limit=ASKING_MAX))
            self._asking = Counter(job.queue for job in asking)
            took_s = self._app.clock.lease() - began
            self._ask_at = began + max(ASKING_S, took_s / ASKING_SHARE)
        return self._asking
