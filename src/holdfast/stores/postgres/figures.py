"""Figures of the schema: bounded reads for lists, rates, charts and counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.core.error_fingerprint import slot_of
from holdfast.core.figures import FLOW_MAX, LINES_MAX, SAMPLE, Backlog, Counters, Flow, Lost, backlogs
from holdfast.core.machine import ENDED, State
from holdfast.core.records import Duty
from holdfast.core.rollups import FOLD_MAX, KEPT_S, Rollup, folded, oldest_slot, touched, with_deltas
from holdfast.core.rollups import slot_of as slot_in
from holdfast.stores import row_json
from holdfast.stores.postgres.connection import Connections, Cursor
from holdfast.stores.postgres.statements import duty_token
from holdfast.stores.protocol import duty_lost

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

    def rollups(self, span: int, since: float) -> list[Rollup]:
        first = slot_in(since, span)
        stored, deltas = self._db.one("rollups", {"span": span, "slot": first})
        found = with_deltas(row_json.rollups_from(stored), row_json.deltas_from(deltas), span)
        return [each for each in found if each.slot >= first]

    def fold(self, came: Mapping[str, int], limit: int = FOLD_MAX, under: Duty | None = None) -> int:
        return self._db.run(lambda db: self._fold(db, came, limit, under))

    def _fold(self, db: Cursor, came: Mapping[str, int], limit: int, under: Duty | None) -> int:
        q, wall = self._db, self._wall()
        with db.connection.transaction():
            if not q.row(db.execute(q["fold_alone"], prepare=False))[0]:
                return 0
            asked = {"limit": limit, "wall": wall, **duty_token(under)}
            allowed, now, number, small = q.row(db.execute(q["fold"], asked, prepare=False))
            if not allowed:
                raise duty_lost(under)
            deltas = row_json.deltas_from(small)
            places = row_json.encode(sorted(touched(deltas, came, now))).decode()
            stored = row_json.rollups_from(q.row(db.execute(q["fold_stored"], {"places": places}, prepare=False))[0])
            if changed := folded(stored, deltas, came, now):
                rows = row_json.encode(changed).decode()
                db.execute(q["fold_write"], {"rollups": rows}, prepare=False)
            oldest = {"spans": list(KEPT_S), "oldest": [oldest_slot(span, now) for span in KEPT_S]}
            db.execute(q["fold_old"], oldest, prepare=False)
        return int(number)
