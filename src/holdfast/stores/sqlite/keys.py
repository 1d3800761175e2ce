"""Keys with rules, in a table of the file."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.acts import Move
from holdfast.core.keys import KeyHold
from holdfast.core.records import Job, NewJob
from holdfast.stores import keyed_jobs, row_json
from holdfast.stores.protocol import Added, Reply
from holdfast.stores.sqlite import statements
from holdfast.stores.sqlite.rows import Executes, Q


def add(db: Executes, jobs: Sequence[NewJob], wall: float) -> list[Added]:
    """Store jobs, some of whose keys have rules."""
    return keyed_jobs.add(SqliteKeys(db, wall), jobs)


class SqliteKeys:
    """See `stores/keyed_jobs.py: KeyRows`. The transaction has the write lock already."""

    def __init__(self, db: Executes, wall: float) -> None:
        self._db = db
        self._wall = wall

    def now(self) -> float:
        return self._wall

    def knows(self, job_id: str) -> bool:
        return self._db.execute(Q["key_knows"], {"id": job_id}).fetchone() is not None

    def live(self, key: str) -> Job | None:
        return self._job("key_live", {"key": key})

    def held(self, key: str, new_id: str) -> KeyHold | None:
        row = self._db.execute(Q["key_held"], {"key": key}).fetchone()
        return None if row is None else KeyHold(*row)

    def row(self, job_id: str) -> Job | None:
        return self._job("get", {"id": job_id})

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        return statements.add(self._db, jobs, self._wall)

    def take(self, key: str, hold: KeyHold) -> None:
        values = {"key": key, **hold._asdict()}
        self._db.execute(Q["key_take"], values)
        self._db.execute(Q["key_write"], values)

    def pass_on(self, job_id: str) -> None:
        self._db.execute(Q["key_pass"], {"id": job_id})

    def move(self, move: Move) -> Reply:
        return statements.move(self._db, [move], self._wall)[0]

    def rewrite(self, job_id: str, payload: str, expires_at: float | None) -> None:
        self._db.execute(Q["key_rewrite"], {"id": job_id, "payload": payload, "expires_at": expires_at})

    def _job(self, query: str, values: dict[str, str]) -> Job | None:
        found = row_json.jobs_from(self._db.execute(Q[query], values).fetchone()[0])
        return found[0] if found else None
