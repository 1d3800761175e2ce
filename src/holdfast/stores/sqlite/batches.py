"""Batches in tables of the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.clock import Clock
from holdfast.core.batches import Batch
from holdfast.core.machine import State
from holdfast.core.records import Job, NewJob
from holdfast.failpoints import point
from holdfast.stores import row_json
from holdfast.stores.protocol import Added
from holdfast.stores.sqlite import statements
from holdfast.stores.sqlite.connection import Connections
from holdfast.stores.sqlite.rows import Q, text_of


class SqliteBatches:
    """See `stores/protocol.py: Batches`."""

    def __init__(self, db: Connections, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def open(self, batch: Batch) -> Batch:
        values = {"id": batch.id, "then_job": batch.then, "abandon_s": batch.abandon_s, "wall": self._clock.wall()}
        with self._db.writing() as db:
            db.execute(Q["open_batch"], values)
            return row_json.batches_from(text_of(db, "get_batches", _ids([batch.id])))[0]

    def add(self, batch_id: str, jobs: Sequence[NewJob]) -> list[Added] | None:
        with self._db.writing() as db:
            wall = self._clock.wall()
            if db.execute(Q["batch_add"], {"id": batch_id, "wall": wall}).rowcount == 0:
                return None
            return statements.add(db, jobs, wall, batch_id) if jobs else []

    def close(self, batch_id: str, *, complete: bool, unless_added_since: float | None = None) -> bool:
        values = {"id": batch_id, "complete": complete, "added_since": unless_added_since, "wall": self._clock.wall()}
        with self._db.writing() as db:
            return db.execute(Q["close_batch"], values).rowcount == 1

    def get(self, ids: Sequence[str]) -> list[Batch]:
        return self._read("get_batches", _ids(ids))

    def find(self, after: str = "", limit: int = 100, *, unended: bool = False) -> list[Batch]:
        query = "find_unended_batches" if unended else "find_batches"
        return self._read(query, {"after": after, "limit": limit})

    def newest(self, limit: int = 100) -> list[Batch]:
        return self._read("newest_batches", {"limit": limit})

    def counts(self, batch_id: str) -> dict[str, int]:
        with self._db.reading() as db:
            return row_json.counts_from(text_of(db, "batch_counts", {"id": batch_id}))

    def jobs(self, batch_id: str, states: Sequence[State], limit: int) -> list[Job]:
        wanted = row_json.encode(states).decode() if states else None
        with self._db.reading() as db:
            found = text_of(db, "batch_jobs", {"id": batch_id, "states": wanted, "limit": limit})
            return row_json.jobs_from(found)

    def end(self, batch_id: str, counts: Mapping[str, int], job: NewJob | None) -> bool:
        point("end_batch.before")
        with self._db.writing() as db:
            wall = self._clock.wall()
            values = {"id": batch_id, "counts": row_json.encode(counts).decode(), "wall": wall}
            if db.execute(Q["end_batch"], values).rowcount == 0:
                return False
            if job is not None:
                statements.add(db, [job], wall)
        point("end_batch.after")
        return True

    def purge(self, before: float, limit: int) -> int:
        with self._db.writing() as db:
            if gone := db.execute(Q["batches_purged"], {"before": before, "limit": limit}).rowcount:
                db.execute(Q["batches_removed"])
            return gone

    def _read(self, query: str, values: dict[str, Any]) -> list[Batch]:
        with self._db.reading() as db:
            return row_json.batches_from(text_of(db, query, values))


def _ids(ids: Sequence[str]) -> dict[str, str]:
    return {"ids": row_json.encode(list(ids)).decode()}
