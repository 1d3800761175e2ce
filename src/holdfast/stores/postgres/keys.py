"""Keys with rules, in a table of the schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.acts import Move
from holdfast.core.keys import KeyHold
from holdfast.core.records import Job, NewJob
from holdfast.stores import keyed_jobs, row_json
from holdfast.stores.postgres import acts, statements
from holdfast.stores.postgres.connection import Connections, Cursor
from holdfast.stores.protocol import Added, Reply


def add(q: Connections, db: Cursor, jobs: Sequence[NewJob], wall: float | None) -> list[Added]:
    """Store jobs, some of whose keys have rules, in one commit."""

    def add_plain(plain: Sequence[NewJob]) -> list[Added]:
        return statements.add_now(q, db, plain, wall)

    for _ in range(statements.KEY_TRIES):
        try:
            with db.connection.transaction():
                statements.check_path(q.row(db.execute(q["add_path"]))[0])
                return keyed_jobs.add(PostgresKeys(q, db, wall, add_plain), jobs)
        except statements.KeyFreed:
            continue
    raise statements.key_changed(q)


class PostgresKeys:
    """See `stores/keyed_jobs.py: KeyRows`. Every row that is read is locked, and then cannot change."""

    def __init__(
        self, q: Connections, db: Cursor, wall: float | None, add: Callable[[Sequence[NewJob]], list[Added]]
    ) -> None:
        self._q = q
        self._db = db
        self._wall = wall
        self.add = add

    def now(self) -> float:
        if self._wall is not None:
            return self._wall
        now: float = self._one("now")[0] / 1e6
        return now

    def knows(self, job_id: str) -> bool:
        return bool(self._one("key_knows", {"id": job_id})[0])

    def live(self, key: str) -> Job | None:
        return self._job("key_live", {"key": key})

    def held(self, key: str, new_id: str) -> KeyHold | None:
        hold = KeyHold(*self._one("key_held", {"key": key, "id": new_id}))
        return None if hold.job_id == new_id else hold  # it was free, and is locked now

    def row(self, job_id: str) -> Job | None:
        return self._job("key_row", {"id": job_id})

    def take(self, key: str, hold: KeyHold) -> None:
        values = {"key": key, **hold._asdict()}
        self._db.execute(self._q["key_take"], values, prepare=False)
        self._db.execute(self._q["key_write"], values, prepare=False)

    def pass_on(self, job_id: str) -> None:
        self._db.execute(self._q["key_pass"], {"id": job_id}, prepare=False)

    def move(self, move: Move) -> Reply:
        return acts.move(self._q, self._db, [move], self._wall)[0]

    def rewrite(self, job_id: str, payload: str, expires_at: float | None) -> None:
        values = {"id": job_id, "payload": payload, "expires_at": expires_at}
        self._db.execute(self._q["key_rewrite"], values, prepare=False)

    def _job(self, query: str, values: dict[str, str]) -> Job | None:
        found = row_json.jobs_from(self._one(query, values)[0])
        return found[0] if found else None

    def _one(self, query: str, values: dict[str, Any] | None = None) -> Any:
        return self._q.row(self._db.execute(self._q[query], values, prepare=False))
