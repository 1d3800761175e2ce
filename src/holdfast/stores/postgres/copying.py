"""The tables of the schema as rows; see `stores/copying.py`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast.failpoints import point
from holdfast.stores.copying import Key, Row, Table, check_open, for_sql, json_columns, neutral, one_form
from holdfast.stores.postgres.connection import BULK, Connections, Cursor
from holdfast.stores.postgres.turns import Turns
from holdfast.stores.sql import load_migrations, load_queries

_Q = load_queries("holdfast.stores.postgres", "copying.sql")
_NAMES = {"order": "worker_order", "recent": "worker_recent"}
_NUMBERED = (Table("job", ("seq",)), Table("journal", ("seq",)), Table("signal", ("seq",)))
_NEEDED: dict[str, Row] = {"worker": {"schema": len(load_migrations("holdfast.stores.postgres"))}}


class PostgresTables:
    """See `stores/copying.py: Tables`."""

    def __init__(self, db: Connections, turns: Turns, wall: Callable[[], float | None]) -> None:
        self._db = db
        self._turns = turns
        self._wall = wall
        self._kinds: dict[str, dict[str, str]] = {}

    def columns(self) -> dict[str, list[str]]:
        ours = {name: neutral_name for neutral_name, name in _NAMES.items()}
        return {ours.get(table, table): list(columns) for table, columns in self._types().items()}

    def count(self, table: Table) -> int:
        return int(self._run(lambda db: db.execute(self._statement("count", table)).fetchone())[0])

    def rows(
        self, table: Table, after: Key | None = None, upto: Key | None = None, limit: int | None = None
    ) -> list[Row]:
        if not table.in_pages:
            name = f"all_{table.name}" if f"all_{table.name}" in _Q else "all"
        elif after is None:
            name = "first" if upto is None else "upto"
        else:
            name = "after" if upto is None else "between"
        query = self._statement(name, table)
        values = _named("after", after) | _named("upto", upto) | {"limit": limit}
        kinds = self._types()[_own(table)]
        found = self._run(lambda db: db.execute(query, values, prepare=False).fetchall())
        return [_read(table.name, json.loads(row[0]), kinds) for row in found]

    def write(self, table: Table, gone: Sequence[Key], rows: Sequence[Row], source: str) -> None:
        delete = self._statement("delete", table)
        written = [_written(table.name, for_sql(table.name, row)) | _NEEDED.get(table.name, {}) for row in rows]
        columns = ", ".join(f'"{column}"' for column in written[0]) if written else ""
        insert = self._statement("insert", table, columns)

        def write(db: Cursor) -> None:
            with db.connection.transaction():
                is_open = db.execute(self._db.script(_Q["copy_open"]), {"source": source}, prepare=False).fetchone()
                check_open(bool(is_open and is_open[0]))
                if gone:
                    db.executemany(delete, [_named("after", key) for key in gone])
                if written:
                    db.execute(insert, {"rows": one_form(written)}, prepare=False)
                point("copy.page")

        self._run(write)

    def finish(self) -> None:
        for table in _NUMBERED:
            self._run(partial(_execute, query=self._statement("next_number", table)))
        for row in self.rows(Table("queue", ("name",))):
            self._turns.set_queue(row["name"], lambda queue: queue, None, None, self._wall())

    def _types(self) -> dict[str, dict[str, str]]:
        if not self._kinds:
            values = {"schema": self._db.options.schema}
            query = self._db.script(_Q["tables"])
            for table, column, kind in self._run(lambda db: db.execute(query, values, prepare=False).fetchall()):
                self._kinds.setdefault(table, {})[column] = kind
        return self._kinds

    def _run(self, work: Callable[[Cursor], Any]) -> Any:
        return self._db.run(work, BULK)

    def _statement(self, name: str, table: Table, columns: str = "") -> bytes:
        """Return a statement about a table. Names come from `TABLES` and from the schema, never from its rows."""
        query = _Q[name].replace("TABLE", _own(table)).replace("COLUMNS", columns)
        keys = ", ".join(f'"{column}"' for column in table.key)
        query = query.replace("(KEYS)", f"({keys})").replace("KEYS", keys)
        query = query.replace("MARKS", _marks("after", table.key)).replace("UPTO", _marks("upto", table.key))
        return self._db.script(query)


def _execute(db: Cursor, query: bytes) -> None:
    db.execute(query, prepare=False)


def _own(table: Table) -> str:
    return _NAMES.get(table.name, table.name)


def _read(table: str, row: Row, kinds: dict[str, str]) -> Row:
    for name, value in row.items():
        if value is None:
            continue
        if kinds[name] == "json":
            row[name] = one_form(value)
        elif kinds[name] == "double precision":
            row[name] = float(value)
        elif isinstance(value, bool):
            row[name] = int(value)
    return neutral(table, row)


def _written(table: str, row: Row) -> Row:
    """Return a row as the server reads it: JSON as it is, and a float that JSON does not have as a text."""
    values: Row = {}
    for name, value in row.items():
        if name in json_columns(table) and value is not None:
            values[name] = json.loads(value)
        elif isinstance(value, float) and not math.isfinite(value):
            values[name] = str(value)
        else:
            values[name] = value
    return values


def _marks(name: str, key: Sequence[Any]) -> str:
    return ", ".join(f"%({name}{place})s" for place in range(len(key)))


def _named(name: str, key: Key | None) -> dict[str, Any]:
    return {f"{name}{place}": value for place, value in enumerate(key or ())}
