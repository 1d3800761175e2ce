"""The verbs of schedules over PostgreSQL: a part of `store.py: PostgresStore`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from holdfast.core.records import Duty, Firing, Schedule
from holdfast.core.transitions import ABANDONED_S, RENEW_S
from holdfast.errors import StoreLocked, StoreTimeout
from holdfast.failpoints import point
from holdfast.stores import row_json
from holdfast.stores.postgres import statements
from holdfast.stores.postgres.connection import Connections
from holdfast.stores.protocol import Added, Answer, Fired, duty_lost


class Schedules(ABC):
    """See `stores/protocol.py: Store` for every promise."""

    _db: Connections
    _hot: Connections

    def declare(self, schedules: Sequence[Schedule], again: bool = False) -> None:
        rows = row_json.encode([row_json.declared(schedule) for schedule in schedules]).decode()
        values = {"schedules": rows, "wall": self._wall(), "renew_s": RENEW_S, "abandoned_s": ABANDONED_S}
        query = self._db["declare_again" if again else "declare"]
        self._db.run(lambda db: db.execute(query, values, prepare=False))

    def schedules(self) -> list[Schedule]:
        return list(row_json.schedules_from(self._db.one("schedules")[0]))

    def fire(self, firings: Sequence[Firing], under: Duty) -> list[Fired]:
        point("fire.before")
        answers: list[Fired] = [answer for part in _parts(firings) for answer in self._fire(part, under)]
        point("fire.after")
        self.wake()
        return answers

    def _fire(self, firings: list[Firing], under: Duty) -> list[Fired]:
        rows = [[each.schedule, each.instant, row_json.new_job(each.job)] for each in firings]
        values = {
            "firings": row_json.encode(rows).decode(),
            "wall": self._wall(),
            "lock_ms": statements.KEY_LOCK_MS,
            "channel": self._hot.channel,
            **statements.duty_token(under),
        }
        try:
            allowed, found, _ = self._hot.one("fire", values)
        except (StoreLocked, StoreTimeout):
            return [Answer.LOCKED for _ in firings]
        if not allowed:
            raise duty_lost(under)
        return [
            Answer.LOCKED if locked else Added(job_id, not stored) if job_id is not None else None
            for job_id, stored, locked in row_json.rows_from(found)
        ]

    def pause_schedule(self, key: str, paused: bool) -> bool:
        values = {"key": key, "paused": paused, "wall": self._wall()}
        return self._db.run(lambda db: db.execute(self._db["pause_schedule"], values, prepare=False).rowcount == 1)

    @abstractmethod
    def _wall(self) -> float | None: ...

    @abstractmethod
    def wake(self) -> None: ...


def _parts(firings: Sequence[Firing]) -> Iterator[list[Firing]]:
    """Split where a schedule or a job's key comes again: one statement would not see what it has just stored."""
    part: list[Firing] = []
    names: set[tuple[str, str]] = set()
    for each in firings:
        own = {("schedule", each.schedule)} | ({("key", each.job.key)} if each.job.key is not None else set())
        if not names.isdisjoint(own):
            yield part
            part, names = [], set()
        part.append(each)
        names |= own
    if part:
        yield part
