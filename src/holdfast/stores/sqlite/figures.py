"""Figures of the file: bounded reads for lists, rates, charts and counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.clock import Clock
from holdfast.core.error_fingerprint import slot_of
from holdfast.core.figures import FLOW_MAX, LINES_MAX, SAMPLE, Backlog, Counters, Flow, Lost, backlogs
from holdfast.core.records import Duty
from holdfast.core.rollups import FOLD_MAX, KEPT_S, Rollup, folded, oldest_slot, touched, with_deltas
from holdfast.core.rollups import slot_of as slot_in
from holdfast.stores import row_json
from holdfast.stores.sqlite.connection import Connections
from holdfast.stores.sqlite.rows import Q, row_of, text_of
from holdfast.stores.sqlite.statements import check_duty


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

    def rollups(self, span: int, since: float) -> list[Rollup]:
        first = slot_in(since, span)
        stored, deltas = self._row("rollups", {"span": span, "slot": first})
        found = with_deltas(row_json.rollups_from(stored), row_json.deltas_from(deltas), span)
        return [each for each in found if each.slot >= first]

    def fold(self, came: Mapping[str, int], limit: int = FOLD_MAX, under: Duty | None = None) -> int:
        with self._db.writing() as db:
            check_duty(db, under)
            wall = self._clock.wall()
            found = row_json.rows_from(text_of(db, "fold", {"limit": limit}))
            deltas = row_json.deltas_from(row_json.encode([each[1:] for each in found]).decode())
            places = row_json.encode(sorted(touched(deltas, came, wall))).decode()
            stored = row_json.rollups_from(text_of(db, "fold_stored", {"places": places}))
            if changed := folded(stored, deltas, came, wall):
                db.execute(Q["fold_write"], {"rollups": row_json.encode(changed).decode()})
            if found:
                db.execute(Q["fold_done"], {"last": found[-1][0]})
            for span in KEPT_S:
                db.execute(Q["fold_old"], {"span": span, "oldest": oldest_slot(span, wall)})
            return len(deltas)

    def _row(self, query: str, values: dict[str, Any]) -> Any:
        with self._db.reading() as db:
            return row_of(db, query, values)
