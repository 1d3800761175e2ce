"""Notices that the store is not what it was: its schema, and whether it was replaced, rewound or emptied.

With every beat the keeper asks the store what it says about itself. In doubt the worker claims nothing, settles what it
runs, and says so every minute, until a person accepts the store as it is (`holdfast db accept`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from holdfast.clock import Clock
from holdfast.core.continuity import Doubt, Standing, compare, is_accepted
from holdfast.core.records import Lease
from holdfast.stores.protocol import Schema, Store, in_words, schema_too_new

log = logging.getLogger("holdfast.worker")

SAY_EVERY_S = 60.0


class Continuity:
    """See the module's docstring. `too_old` is called when the schema is not for this program any more."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        name: str,
        settled: Callable[[], Lease | None],
        too_old: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._name = name
        self._settled = settled
        self._too_old = too_old
        self._lock = threading.Lock()
        self._wanted: int | None = None  # the schema that this program knows
        self._worker_id = ""
        self._beats = 0  # of this incarnation, that were acknowledged
        self._before: Standing | None = None  # the last standing without a doubt
        self._last: Standing | None = None  # the same, or the one that is doubted
        self._schema = 0  # that was last spoken of
        self._found: Doubt | None = None
        self._said_at = float("-inf")
        self.in_doubt = False

    def beaten(self, worker_id: str) -> None:
        """Count a beat that the store has acknowledged."""
        if worker_id != self._worker_id:
            self._worker_id, self._beats = worker_id, 0
        self._beats += 1

    def look(self, worker_id: str) -> None:
        """Ask the store what it says about itself, and compare."""
        with self._lock:
            self._look(worker_id)

    def _look(self, worker_id: str) -> None:
        if worker_id != self._worker_id:
            self._worker_id, self._beats = worker_id, 0
        known = self._before.newest if self._before is not None else None
        beats = self._beats
        now = self._store.standing(worker_id, known, self._settled())
        self._look_at_schema(now)
        if self._last is not None and is_accepted(self._last, now):
            log.warning("the store was accepted as it is (incarnation %d); claiming again", now.incarnation)
            self._found, self._beats = None, now.beats or 0
        elif self._before is not None and (doubt := compare(self._before, beats, now)) is not None:
            self._found = msgspec.structs.replace(doubt, worker=self._name)
        self._last = now  # a restored store may have an older incarnation: accepting it raises that one
        if self._found is None:
            self._before = now
        self.in_doubt = self._found is not None or now.doubts > 0
        self._say()
        if self._found is not None:  # last: the store may refuse the row
            self._store.doubt(
                now.incarnation, self._found
            )  # also when it was written before: a store may be rewound twice

    def _look_at_schema(self, now: Standing) -> None:
        if self._wanted is None:
            self._wanted = self._schema = self._store.schema().wanted
        schema = Schema(now.schema, self._wanted, now.works_with)
        if schema.is_too_new:
            log.error("%s; this worker finishes what it runs, and leaves", schema_too_new(self._store.url, schema))
            self._too_old()
        elif now.schema > self._schema:
            log.warning(
                "the store has schema %d now; this worker knows %d, and goes on: restart it with the new version",
                *(now.schema, self._wanted),
            )
        self._schema = max(self._schema, now.schema)

    def _say(self) -> None:
        if not self.in_doubt:
            self._said_at = float("-inf")
        elif self._clock.lease() - self._said_at >= SAY_EVERY_S:
            self._said_at = self._clock.lease()
            what = in_words(self._found) if self._found is not None else "another program has found this store changed"
            log.error(
                "%s. This worker claims no jobs and will settle the ones it runs. Check the jobs, then run: "
                "holdfast db accept --by NAME --note TEXT",
                what,
            )
