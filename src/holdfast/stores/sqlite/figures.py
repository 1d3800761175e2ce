"""Figures of the file: bounded reads for lists, rates and counters."""

from __future__ import annotations

from typing import Any

from holdfast.clock import Clock
from holdfast.core.error_fingerprint import slot_of
from holdfast.core.figures import FLOW_MAX, LINES_MAX, SAMPLE, Backlog, Counters, Flow, Lost, backlogs
from holdfast.stores import row_json
from holdfast.stores.sqlite.connection import Connections
from holdfast.stores.sqlite.rows import row_of


class SqliteFigures:
    """See `stores/protocol.py: Figures`."""

    def __init__(self, db: Connections, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def backlog(self, sample: int = SAMPLE) -> dict[str, Backlog]:
        [found] = self._row("backlog", {"wall": self._clock.wall(), "sample": sample})
        return backlogs(row_json.due_tasks_from(found), sample)

    def flow(self, since: float, sample: int = FLOW_MAX) -> list[Flow]:
        return row_json.flows_from(self._row("flow", {"since": since, "sample": sample})[0])

    def lost(self, since: float, limit: int = LINES_MAX) -> Lost:
        return row_json.lost_from(*self._row("lost", {"since": since, "limit": limit, "slot": slot_of(since)}))

    def counters(self) -> Counters:
        return row_json.counters_from(*self._row("counters", {}))

    def _row(self, query: str, values: dict[str, Any]) -> Any:
        with self._db.reading() as db:
            return row_of(db, query, values)
