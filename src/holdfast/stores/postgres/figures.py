"""Figures of the schema: bounded reads for lists, rates and counters."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.error_fingerprint import slot_of
from holdfast.core.figures import FLOW_MAX, LINES_MAX, SAMPLE, Backlog, Counters, Flow, Lost, backlogs
from holdfast.core.machine import ENDED, State
from holdfast.stores import row_json
from holdfast.stores.postgres.connection import Connections

_STATES = [state.value for state in State]
_ENDED = [state.value for state in ENDED]


class PostgresFigures:
    """See `stores/protocol.py: Figures`."""

    def __init__(self, db: Connections, wall: Callable[[], float | None]) -> None:
        self._db = db
        self._wall = wall

    def backlog(self, sample: int = SAMPLE) -> dict[str, Backlog]:
        found = self._db.one("backlog", {"wall": self._wall(), "sample": sample})[0]
        return backlogs(row_json.due_tasks_from(found), sample)

    def flow(self, since: float, sample: int = FLOW_MAX) -> list[Flow]:
        values = {"since": since, "sample": sample, "states": _STATES, "ended": _ENDED}
        return row_json.flows_from(self._db.one("flow", values)[0])

    def lost(self, since: float, limit: int = LINES_MAX) -> Lost:
        return row_json.lost_from(*self._db.one("lost", {"since": since, "limit": limit, "slot": slot_of(since)}))

    def counters(self) -> Counters:
        return row_json.counters_from(*self._db.one("counters"))
