"""The verbs of schedules over SQLite: a part of `store.py: SqliteStore`."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection

from holdfast.clock import Clock
from holdfast.core.records import Duty, Firing, Schedule
from holdfast.core.transitions import ABANDONED_S, RENEW_S
from holdfast.failpoints import point
from holdfast.stores import row_json
from holdfast.stores.protocol import Added, Fired
from holdfast.stores.sqlite import statements
from holdfast.stores.sqlite.connection import Connections
from holdfast.stores.sqlite.statements import Q


class Schedules:
    """See `stores/protocol.py: Store` for every promise."""

    _db: Connections
    _clock: Clock

    def declare(self, schedules: Sequence[Schedule], again: bool = False) -> None:
        rows = row_json.encode([row_json.declared(schedule) for schedule in schedules]).decode()
        limits = {"again": again, "renew_s": RENEW_S, "abandoned_s": ABANDONED_S}
        with self._db.writing() as db:
            db.execute(Q["declare"], {"schedules": rows, "wall": self._clock.wall(), **limits})

    def schedules(self) -> list[Schedule]:
        with self._db.reading() as db:
            return list(row_json.schedules_from(db.execute(Q["schedules"]).fetchone()[0]))

    def fire(self, firings: Sequence[Firing], under: Duty) -> list[Fired]:
        point("fire.before")
        with self._db.writing() as db:
            statements.check_duty(db, under)
            answers: list[Fired] = [self._fire(db, each) for each in firings]
        point("fire.after")
        return answers

    def _fire(self, db: Connection, firing: Firing) -> Added | None:
        if db.execute(Q["fire"], {"key": firing.schedule, "instant": firing.instant}).rowcount == 0:
            return None
        [added] = statements.add(db, [firing.job], self._clock.wall())
        db.execute(Q["fire_job"], {"key": firing.schedule, "job_id": added.id})
        return added

    def pause_schedule(self, key: str, paused: bool) -> bool:
        values = {"key": key, "paused": paused, "wall": self._clock.wall()}
        with self._db.writing() as db:
            return db.execute(Q["pause_schedule"], values).rowcount == 1
