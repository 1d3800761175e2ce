"""A jobs table behind SQLAlchemy: for MySQL and MariaDB, and for the connections of applications that use it."""

from __future__ import annotations

from typing import Any

import sqlalchemy
from sqlalchemy import TIMESTAMP, Connection, Integer, MetaData, String, Text, extract, func, select
from sqlalchemy import Table as SqlTable
from sqlalchemy.exc import NoSuchTableError, OperationalError, SQLAlchemyError

from holdfast.clock import SystemClock
from holdfast.errors import StoreError, StoreUnavailable, UsageError
from holdfast.failpoints import point
from holdfast.rescue.judging import Rescue, Row
from holdfast.rescue.map import Map
from holdfast.rescue.tables import LOCK_S, OPEN_TRANSACTION, Answer, Column, moved, values_of

_LOCKED, _DEADLOCK = (1205, 3572), 1213  # MariaDB and MySQL: the row is locked; a deadlock
_MYSQL = ("mysql", "mariadb")


class AlchemyTable:
    """A jobs table of any dialect that SQLAlchemy knows. It never waits for a row that is locked."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._made: dict[str, SqlTable | None] = {}
        if connection.in_transaction():
            raise UsageError(OPEN_TRANSACTION)

    def now(self) -> float:
        dialect = self._connection.dialect.name
        if dialect in _MYSQL:
            return float(self._all(select(func.unix_timestamp(func.now(6))))[0][0])
        if dialect == "postgresql":
            return float(self._all(select(extract("epoch", func.clock_timestamp())))[0][0])
        return SystemClock().wall()

    def columns(self, table: str) -> list[Column]:
        found = self._table(table)
        if found is None:
            return []
        return [Column(each.name, str(each.type), not each.nullable, bool(each.primary_key)) for each in found.columns]

    def definitions(self, table: str) -> list[str]:
        found = self._table(table)
        columns = [] if found is None else list(found.columns)
        return [f"{each.name} {', '.join(map(repr, getattr(each.type, 'enums', ())))}" for each in columns]

    def statuses(self, table: str, column: str) -> list[tuple[Any, int]]:
        found = self._existing(table)
        number = func.count()
        asked = select(found.c[column], number).group_by(found.c[column]).order_by(number.desc()).limit(20)
        return [(value, count) for value, count in self._all(asked)]

    def running(self, table: Map, limit: int) -> list[Row]:
        found = self._existing(table.table)
        keys = table.columns
        chosen = [self._value(found.c[keys[key]]).label(key) for key in Row._fields if key in keys]
        asked = select(*chosen).where(found.c[table.status] == table.running)
        started = found.c[table.started]
        rows = self._all(asked.order_by(started.is_(None), started).limit(limit))
        return [Row(*(getattr(row, key) if key in keys else None for key in Row._fields)) for row in rows]

    def make_journal(self, table: Map) -> None:
        try:
            self._journal(table).create(self._connection, checkfirst=True)
            self._connection.commit()
        except SQLAlchemyError as error:
            raise _trouble(error) from error

    def _value(self, column: sqlalchemy.Column[Any]) -> Any:
        """Return what is read of a column. MySQL gives a TIMESTAMP in the zone of the session, but not its seconds."""
        if self._connection.dialect.name in _MYSQL and isinstance(column.type, TIMESTAMP):
            return func.unix_timestamp(column)
        return column

    def rescue(self, table: Map, row: Row, rescue: Rescue, now: float, actor: str, wait_s: float = LOCK_S) -> Answer:
        found, keys = self._existing(table.table), table.columns
        values = values_of(table, row, rescue, now, actor)
        asked = sqlalchemy.update(found).where(found.c[table.id] == row.id, found.c[table.status] == row.status)
        for key in ("started", "updated", "worker", "attempts"):
            if key in keys:
                asked = asked.where(self._value(found.c[keys[key]]).is_not_distinct_from(getattr(row, key)))
        changed = {table.status: values["to_status"], table.attempts: values["to_attempts"], table.error: values["why"]}
        cleared = dict.fromkeys(table.clear)
        names = ("table_name", "job_id", "decision", "from_status", "to_status", "why", "actor")
        line = {name: str(values[name]) for name in names}
        instants = {"at": values["at"], "last_sign_of_life": values["last_sign"]}
        line |= {"attempts": values["to_attempts"], "worker": values["worker_name"], **instants}
        try:
            with self._connection.begin():
                mine = select(found.c[table.id]).where(found.c[table.id] == row.id).with_for_update(nowait=True)
                self._connection.execute(mine).all()
                if answer := moved(row, self._connection.execute(asked.values({**changed, **cleared})).rowcount):
                    return answer
                point("rescue.middle")
                self._connection.execute(sqlalchemy.insert(self._journal(table)).values(line))
        except OperationalError as error:
            code = getattr(error.orig, "args", (None,))[0]
            if code in _LOCKED:
                return "locked"
            if code == _DEADLOCK:
                return "moved"
            if error.connection_invalidated:
                raise _trouble(error) from error
            raise
        return "rescued"

    def _journal(self, table: Map) -> SqlTable:
        schema, _, name = table.journal.rpartition(".")
        short, long = String(255), Text()
        kinds: dict[str, Any] = {
            "at": String(40),
            "table_name": short,
            "job_id": short,
            "decision": short,
            "from_status": short,
            "to_status": short,
            "attempts": Integer(),
            "worker": short,
            "last_sign_of_life": String(40),
            "why": long,
            "actor": short,
        }
        columns = [sqlalchemy.Column(key, kind) for key, kind in kinds.items()]
        return SqlTable(name, MetaData(), *columns, schema=schema or None)

    def _existing(self, name: str) -> SqlTable:
        found = self._table(name)
        if found is None:
            raise UsageError(f"there is no table {name!r} at this address")
        return found

    def _table(self, given: str) -> SqlTable | None:
        if given not in self._made:
            schema, _, name = given.rpartition(".")
            try:
                made = SqlTable(name, MetaData(), schema=schema or None, autoload_with=self._connection)
            except NoSuchTableError:
                made = None
            except SQLAlchemyError as error:
                raise _trouble(error) from error
            finally:
                self._connection.rollback()
            self._made[given] = made
        return self._made[given]

    def _all(self, asked: Any) -> list[Any]:
        try:
            found = list(self._connection.execute(asked))
            self._connection.commit()
        except SQLAlchemyError as error:
            raise _trouble(error) from error
        return found


def _trouble(error: SQLAlchemyError) -> StoreError:
    words = " ".join(str(getattr(error, "orig", None) or error).split())
    kind = StoreUnavailable if isinstance(error, OperationalError) else StoreError
    return kind(f"the database says: {words}")
