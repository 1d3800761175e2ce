"""The tables of the file as rows; see `stores/copying.py`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from holdfast.errors import StoreDamaged
from holdfast.failpoints import point
from holdfast.stores.copying import Key, Row, Table, check_open, for_sql, json_columns, neutral, one_form
from holdfast.stores.sql import load_migrations, load_queries
from holdfast.stores.sqlite.connection import Connections

_Q = load_queries("holdfast.stores.sqlite", "copying.sql")
_PREFIX = "holdfast_"
# Columns of this store alone that have no default, or one that is refused.
_NEEDED: dict[str, Row] = {
    "duty": {"boot_id": ""},
    "worker": {"schema": len(load_migrations("holdfast.stores.sqlite"))},
}


class SqliteTables:
    """See `stores/copying.py: Tables`."""

    def __init__(self, db: Connections) -> None:
        self._db = db

    def columns(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        with self._db.reading() as db:
            for table, column, _ in db.execute(_Q["tables"]):
                found.setdefault(table.removeprefix(_PREFIX), []).append(column)
        return found

    def count(self, table: Table) -> int:
        with self._db.reading() as db:
            return int(db.execute(_statement("count", table)).fetchone()[0])

    def rows(
        self, table: Table, after: Key | None = None, upto: Key | None = None, limit: int | None = None
    ) -> list[Row]:
        if not table.in_pages:
            name = "all"
        elif after is None:
            name = "first" if upto is None else "upto"
        else:
            name = "after" if upto is None else "between"
        values = _named("after", after) | _named("upto", upto) | {"limit": -1 if limit is None else limit}
        with self._db.reading() as db:
            cursor = db.execute(_statement(name, table), values)
            columns = [each[0] for each in cursor.description]
            return [_read(table.name, dict(zip(columns, row, strict=True))) for row in cursor]

    def write(self, table: Table, gone: Sequence[Key], rows: Sequence[Row], source: str) -> None:
        with self._db.writing() as db:
            check_open(bool(db.execute(_Q["copy_open"], {"source": source}).fetchone()[0]))
            db.executemany(_statement("delete", table), [_named("after", key) for key in gone])
            if rows:
                _insert(db, table, rows)
            point("copy.page")

    def finish(self) -> None:
        """Nothing: the file gives the next number by itself, and a claim reads limits as they are written."""


def _read(table: str, row: Row) -> Row:
    for name in json_columns(table):
        if row[name] is not None:
            try:
                row[name] = one_form(json.loads(row[name]))
            except ValueError as error:
                whose = row["id"] if "id" in row else row["seq"]
                raise StoreDamaged(
                    f"{table} {whose} cannot be copied: another program has damaged its {name} ({error}); "
                    "holdfast db check names all such rows"
                ) from error
    return neutral(table, row)


def _insert(db: sqlite3.Connection, table: Table, rows: Sequence[Row]) -> None:
    needed = _NEEDED.get(table.name, {})
    written = [for_sql(table.name, row) | needed for row in rows]
    columns = list(written[0])
    marks = ", ".join(f":{column}" for column in columns)
    named = ", ".join(f'"{column}"' for column in columns)
    query = _statement("insert", table).replace("COLUMNS", named).replace("VALUES (MARKS)", f"VALUES ({marks})")
    db.executemany(query, written)


def _statement(name: str, table: Table) -> str:
    """Return a statement about a table. Names come from `TABLES` and from the file, never from its rows."""
    query = _Q[name].replace("TABLE", _PREFIX + table.name)
    if name == "insert":
        return query
    keys = ", ".join(f'"{column}"' for column in table.key)
    query = query.replace("(KEYS)", f"({keys})").replace("KEYS", keys)
    return query.replace("MARKS", _marks("after", table.key)).replace("UPTO", _marks("upto", table.key))


def _marks(name: str, key: Sequence[Any]) -> str:
    return ", ".join(f":{name}{place}" for place in range(len(key)))


def _named(name: str, key: Key | None) -> dict[str, Any]:
    return {f"{name}{place}": value for place, value in enumerate(key or ())}
