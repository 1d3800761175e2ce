"""A jobs table in SQLite or PostgreSQL: reads, and the one write. Decides nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from holdfast.clock import SystemClock
from holdfast.core.durations import iso
from holdfast.errors import StoreError, StoreUnavailable, UsageError
from holdfast.failpoints import point
from holdfast.rescue.judging import Rescue, Row
from holdfast.rescue.map import Map
from holdfast.rescue.quoting import named, quoted, quoted_table, statements

if TYPE_CHECKING:
    import psycopg

Answer = Literal["rescued", "moved", "locked"]
LOCK_S = 2.0  # how long a pass waits for the first row that another transaction has locked; for others it does not wait

OPEN_TRANSACTION = "this connection has an open transaction: commit it first, each rescue is a transaction of its own"


class Column(NamedTuple):
    """A column of a table, as the database describes it."""

    name: str
    type: str
    not_null: bool
    is_key: bool


class Table(Protocol):
    """The operations that a rescue needs of a database. Each is one transaction."""

    def now(self) -> float:
        """Return the wall time of the clock that the rows are compared with."""
        ...

    def columns(self, table: str) -> list[Column]:
        """Return the columns of a table; none if there is no such table."""
        ...

    def definitions(self, table: str) -> list[str]:
        """Return the checks and types that name values."""
        ...

    def statuses(self, table: str, column: str) -> list[tuple[Any, int]]:
        """Return the values of a column and how often each occurs."""
        ...

    def running(self, table: Map, limit: int) -> list[Row]:
        """Return the running rows, those that began first first."""
        ...

    def make_journal(self, table: Map) -> None:
        """Create the journal if it is not there."""
        ...

    def rescue(self, table: Map, row: Row, rescue: Rescue, now: float, actor: str, wait_s: float = LOCK_S) -> Answer:
        """Write the decision and a line of the journal, if the row is still as it was read.

        `wait_s`: how long to wait for a lock. Raises `StoreError` and writes nothing if the id names several rows.
        """
        ...


def moved(row: Row, count: int) -> Answer | None:
    """Return the answer if an update changed no row; raise `StoreError`, to roll back, if it changed several."""
    if count > 1:
        raise StoreError(f"{count} rows have the id {row.id!r}: the id in the map must be a column that names one row")
    return None if count == 1 else "moved"


def values_of(table: Map, row: Row, rescue: Rescue, now: float, actor: str) -> dict[str, Any]:
    """Return the parameters of a rescue and its line in the journal."""
    return {
        **row._asdict(),
        "to_status": rescue.status,
        "to_attempts": rescue.attempts,
        "why": rescue.why,
        "at": iso(now),
        "table_name": table.table,
        "job_id": str(row.id),
        "decision": rescue.state,
        "from_status": str(row.status),
        "worker_name": None if row.worker is None else str(row.worker),
        "last_sign": iso(rescue.seen_at),
        "actor": actor,
    }


def check(opened: Table, table: Map) -> None:
    """Raise `UsageError` unless the table has every column that the map names."""
    there = [column.name for column in opened.columns(table.table)]
    if not there:
        raise UsageError(f"there is no table {table.table!r} at this address, or its owner does not let you see it")
    for key, name in [*table.columns.items(), *(("clear", name) for name in table.clear)]:
        if name not in there:
            raise UsageError(f"the map says {key} = {name!r}, but {table.table} has the columns {', '.join(there)}")


def _names(table: Map, null: str) -> dict[str, str]:
    """Return what stands in statements for the words in braces; `null` for a column that is not there."""
    absent = dict.fromkeys(("updated", "worker", "attempts_max"), null)
    columns = {key: quoted(name) for key, name in table.columns.items()}
    cleared = "".join(f", {quoted(name)} = NULL" for name in table.clear)
    tables = {"table": quoted_table(table.table), "journal": quoted_table(table.journal)}
    return {**absent, **columns, **tables, "cleared": cleared}


class SqliteTable:
    """A jobs table in a SQLite file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._clock = SystemClock()
        if connection.in_transaction:
            raise UsageError(OPEN_TRANSACTION)

    def now(self) -> float:
        return self._clock.wall()

    def columns(self, table: str) -> list[Column]:
        found = self._ask(_SQLITE["columns"], {"table": table})
        return [Column(name, kind, bool(not_null), bool(key)) for name, kind, not_null, key in found]

    def definitions(self, table: str) -> list[str]:
        return [text for (text,) in self._ask(_SQLITE["definitions"], {"table": table})]

    def statuses(self, table: str, column: str) -> list[tuple[Any, int]]:
        return self._ask(named(_SQLITE["statuses"], {"table": quoted_table(table), "status": quoted(column)}), {})

    def running(self, table: Map, limit: int) -> list[Row]:
        values = {"running": table.running, "limit": limit}
        return [Row(*found) for found in self._ask(named(_SQLITE["running"], _names(table, "NULL")), values)]

    def make_journal(self, table: Map) -> None:
        if not self.columns(table.journal):  # the statement below waits for the write lock even if it is there
            self._ask(named(_SQLITE["journal_make"], _names(table, "NULL")), {})

    def rescue(self, table: Map, row: Row, rescue: Rescue, now: float, actor: str, wait_s: float = LOCK_S) -> Answer:
        names, values = _names(table, "NULL"), values_of(table, row, rescue, now, actor)
        try:
            with self._writing(wait_s) as cursor:
                if answer := moved(row, cursor.execute(named(_SQLITE["rescue"], names), values).rowcount):
                    return answer
                point("rescue.middle")
                cursor.execute(named(_SQLITE["journal_add"], names), values)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                return "locked"
            raise
        return "rescued"

    def _ask(self, statement: str, values: dict[str, Any]) -> list[Any]:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        usual, self._connection.text_factory = self._connection.text_factory, _text
        try:
            return cursor.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            raise StoreUnavailable(f"SQLite says: {error}") from error
        except sqlite3.DatabaseError as error:
            raise StoreError(f"SQLite says: {error}") from error
        finally:
            self._connection.text_factory = usual

    @contextmanager
    def _writing(self, wait_s: float) -> Iterator[sqlite3.Cursor]:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        [usual_ms] = cursor.execute("PRAGMA busy_timeout").fetchone()
        cursor.execute(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
        try:
            cursor.execute("BEGIN IMMEDIATE")
            yield cursor
            cursor.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                cursor.execute("ROLLBACK")
            cursor.execute(f"PRAGMA busy_timeout = {usual_ms}")


_SQLITE = statements("sqlite.sql")


def _text(data: bytes) -> str | bytes:
    """Return a text, or its bytes if it is not UTF-8: such a row must not hide the others."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


class PostgresTable:
    """A jobs table in a PostgreSQL database."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        if connection.info.transaction_status.name != "IDLE":
            raise UsageError(OPEN_TRANSACTION)

    def now(self) -> float:
        return float(self._ask("now", {}, {})[0][0])

    def columns(self, table: str) -> list[Column]:
        return [Column(*found) for found in self._ask("columns", {}, {"table": quoted_table(table)})]

    def definitions(self, table: str) -> list[str]:
        return [text for (text,) in self._ask("definitions", {}, {"table": quoted_table(table)})]

    def statuses(self, table: str, column: str) -> list[tuple[Any, int]]:
        return self._ask("statuses", {"table": quoted_table(table), "status": quoted(column)}, {})

    def running(self, table: Map, limit: int) -> list[Row]:
        return [
            Row(*found)
            for found in self._ask("running", _names(table, "NULL::text"), {"running": table.running, "limit": limit})
        ]

    def make_journal(self, table: Map) -> None:
        import psycopg.errors as errors

        if self._ask("journal_is_there", {}, {"journal": quoted_table(table.journal)}) == [(True,)]:
            return  # a role that may not make tables can write to it
        try:
            with self._connection.transaction(), self._cursor() as cursor:
                cursor.execute(_postgres("journal_make", _names(table, "NULL::text")))
        except (errors.UniqueViolation, errors.DuplicateTable):
            pass  # another rescuer was making it, and has
        except errors.InsufficientPrivilege as error:
            raise UsageError(f"the journal {table.journal} cannot be made: {error}; see docs/rescue.md") from None

    def rescue(self, table: Map, row: Row, rescue: Rescue, now: float, actor: str, wait_s: float = LOCK_S) -> Answer:
        import psycopg
        import psycopg.errors as errors

        names, values = _names(table, "NULL::text"), values_of(table, row, rescue, now, actor)
        try:
            with self._connection.transaction(), self._cursor() as cursor:
                cursor.execute(_settings(wait_s))
                if answer := moved(row, cursor.execute(_postgres("rescue", names), values).rowcount):
                    return answer
                point("rescue.middle")
                cursor.execute(_postgres("journal_add", names), values)
        except errors.LockNotAvailable:
            return "locked"
        except (errors.SerializationFailure, errors.DeadlockDetected):
            return "moved"
        except psycopg.Error as error:
            if self._connection.closed:
                raise StoreUnavailable(f"PostgreSQL says: {error}") from error
            raise
        return "rescued"

    def _ask(self, name: str, names: dict[str, str], values: dict[str, Any]) -> list[Any]:
        import psycopg

        try:
            with self._connection.transaction(), self._cursor() as cursor:
                cursor.execute(_settings(LOCK_S))
                return list(cursor.execute(_postgres(name, names), values).fetchall())
        except psycopg.OperationalError as error:
            raise StoreUnavailable(f"PostgreSQL says: {error}") from error
        except psycopg.Error as error:
            raise StoreError(f"PostgreSQL says: {error}") from error

    def _cursor(self) -> Any:
        from psycopg.rows import tuple_row

        cursor = self._connection.cursor(row_factory=tuple_row)
        for name, loader in _loaders().items():
            cursor.adapters.register_loader(name, loader)
        return cursor


_POSTGRES = statements("postgres.sql")


def _settings(wait_s: float) -> str:
    """Return what holds for one transaction: how long it waits for a lock, and how times are written."""
    return f"SET LOCAL lock_timeout = '{max(1, int(wait_s * 1000))}ms'; SET LOCAL DateStyle = 'ISO'"


@cache
def _loaders() -> dict[str, Any]:
    """Return loaders that give infinity, and other times that Python does not have, as text."""
    from psycopg import DataError
    from psycopg.types.datetime import TimestampLoader, TimestamptzLoader

    def tolerant(kind: Any) -> Any:
        class Tolerant(kind):  # type: ignore[misc]
            def load(self, data: Any) -> Any:
                try:
                    return super().load(data)
                except DataError:
                    return bytes(data).decode()

        return Tolerant

    return {"timestamp": tolerant(TimestampLoader), "timestamptz": tolerant(TimestamptzLoader)}


def _postgres(name: str, names: dict[str, str]) -> bytes:
    """Return a statement for psycopg, which reads a % in a name as the beginning of a parameter."""
    return named(_POSTGRES[name], {key: text.replace("%", "%%") for key, text in names.items()}).encode()
