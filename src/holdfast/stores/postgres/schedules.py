"""The verbs of schedules over PostgreSQL: a part of `store.py: PostgresStore`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from holdfast.core.records import Duty, NewJob, Schedule
from holdfast.points import point
from holdfast.stores import codec
from holdfast.stores.postgres import batch
from holdfast.stores.postgres.connection import Connections
from holdfast.stores.protocol import DECLARED_EVERY_S, Added, duty_lost


class Schedules(ABC):
    """See `stores/protocol.py: Store` for every promise."""

    _db: Connections
    _often: Connections

    def declare(self, schedules: Sequence[Schedule], again: bool = False) -> None:
        rows = codec.encode([codec.declared(schedule) for schedule in schedules]).decode()
        values = {"schedules": rows, "wall": self._wall(), "every": DECLARED_EVERY_S}
        query = self._db["declare_again" if again else "declare"]
        self._db.run(lambda db: db.execute(query, values, prepare=False))

    def schedules(self) -> list[Schedule]:
        return list(codec.schedules_from(self._db.one("schedules")[0]))

    def fire(self, key: str, instant: float, job: NewJob, under: Duty) -> Added | None:
        values = {
            "key": key,
            "instant": instant,
            "job": codec.encode(codec.new_job(job)).decode(),
            "wall": self._wall(),
            "channel": self._db.channel,
            **batch.duty_token(under),
        }
        point("fire.before")
        allowed, job_id, stored, _ = self._db.one("fire", values)
        point("fire.after")
        if not allowed:
            raise duty_lost(under)
        self.wake()
        return Added(job_id, not stored) if job_id is not None else None

    def pause_schedule(self, key: str, paused: bool) -> bool:
        values = {"key": key, "paused": paused, "wall": self._wall()}
        return self._db.run(lambda db: db.execute(self._db["pause_schedule"], values, prepare=False).rowcount == 1)

    @abstractmethod
    def _wall(self) -> float | None: ...

    @abstractmethod
    def wake(self) -> None: ...
