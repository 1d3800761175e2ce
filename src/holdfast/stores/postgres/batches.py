"""Batches in tables of the schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.core.batches import Batch
from holdfast.core.machine import State
from holdfast.core.records import Job, NewJob
from holdfast.failpoints import point
from holdfast.stores import row_json
from holdfast.stores.postgres import statements
from holdfast.stores.postgres.connection import Connections, Cursor
from holdfast.stores.protocol import Added


class PostgresBatches:
    """See `stores/protocol.py: Batches`. `before`, `after`: what the store does around each enqueue."""

    def __init__(
        self,
        db: Connections,
        wall: Callable[[], float | None],
        before: Callable[[Sequence[NewJob]], None],
        after: Callable[[Sequence[NewJob]], None],
    ) -> None:
        self._db = db
        self._wall = wall
        self._before = before
        self._after = after

    def open(self, batch: Batch) -> Batch:
        values = {"id": batch.id, "then_job": batch.then, "abandon_s": batch.abandon_s, "wall": self._wall()}
        self._changed("open_batch", values)
        return self.get([batch.id])[0]

    def add(self, batch_id: str, jobs: Sequence[NewJob]) -> list[Added] | None:
        self._before(jobs)
        wall = self._wall()
        added = self._db.run(lambda db: statements.add_to_batch(self._db, db, jobs, wall, batch_id))
        if added:
            self._after(jobs)
        return added

    def close(self, batch_id: str, *, complete: bool, unless_added_since: float | None = None) -> bool:
        values = {"id": batch_id, "complete": complete, "added_since": unless_added_since, "wall": self._wall()}
        return self._changed("close_batch", values) == 1

    def get(self, ids: Sequence[str]) -> list[Batch]:
        return self._read("get_batches", {"ids": list(ids)})

    def find(self, after: str = "", limit: int = 100, *, unended: bool = False) -> list[Batch]:
        query = "find_unended_batches" if unended else "find_batches"
        return self._read(query, {"after": after, "limit": limit})

    def newest(self, limit: int = 100) -> list[Batch]:
        return self._read("newest_batches", {"limit": limit})

    def counts(self, batch_id: str) -> dict[str, int]:
        return row_json.counts_from(self._db.one("batch_counts", {"id": batch_id})[0])

    def jobs(self, batch_id: str, states: Sequence[State], limit: int) -> list[Job]:
        wanted = [state.value for state in states] or None
        return row_json.jobs_from(self._db.one("batch_jobs", {"id": batch_id, "states": wanted, "limit": limit})[0])

    def end(self, batch_id: str, counts: Mapping[str, int], job: NewJob | None) -> bool:
        wall = self._wall()
        values = {"id": batch_id, "counts": row_json.encode(counts).decode(), "wall": wall}

        def end(db: Cursor) -> bool:
            with db.connection.transaction():
                db.execute(self._db["batch_lock"], values, prepare=False)
                if db.execute(self._db["end_batch"], values, prepare=False).rowcount == 0:
                    return False
                if job is not None:
                    statements.add(self._db, db, [job], wall)
                return True

        point("end_batch.before")
        ended = self._db.run(end)
        point("end_batch.after")
        if ended and job is not None:
            self._after([job])
        return ended

    def purge(self, before: float, limit: int) -> int:
        return self._changed("batches_purged", {"before": before, "limit": limit})

    def _read(self, query: str, values: dict[str, Any]) -> list[Batch]:
        return row_json.batches_from(self._db.one(query, values)[0])

    def _changed(self, query: str, values: dict[str, Any]) -> int:
        return self._db.run(lambda db: db.execute(self._db[query], values, prepare=False).rowcount)
