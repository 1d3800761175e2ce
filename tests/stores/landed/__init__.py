"""The stores of commit c86b432, the first that people had: a job in every state, workflows in the middle, old errors.

`sqlite.json` and `postgres.json` hold the rows of every table as that commit wrote them. The tables are made by the
migrations of that time, which never change (`test_migrations.py`).
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Json

from holdfast.stores.sql import load_migrations

FOLDER = Path(__file__).parent
LAST = {"sqlite": 8, "postgres": 9}  # the last migrations of that time


def rows_of(kind: str) -> dict[str, dict[str, list[Any]]]:
    """Return columns and rows by table."""
    found: dict[str, dict[str, list[Any]]] = json.loads((FOLDER / f"{kind}.json").read_text())
    return found


def make_sqlite(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        for migration in load_migrations("holdfast.stores.sqlite")[: LAST["sqlite"]]:
            db.executescript(migration.pieces[0].script)
        db.execute("BEGIN")
        for table, held in rows_of("sqlite").items():
            marks = ", ".join("?" * len(held["columns"]))
            db.execute(f"DELETE FROM {table}")
            db.executemany(f"INSERT INTO {table} ({', '.join(held['columns'])}) VALUES ({marks})", held["rows"])
        db.execute("COMMIT")


def make_postgres(url: str, schema: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        for migration in load_migrations("holdfast.stores.postgres")[: LAST["postgres"]]:
            script = sql.SQL(migration.pieces[0].script)  # type: ignore[arg-type]
            db.execute(script.format(schema=sql.Identifier(schema)))
        for table, held in rows_of("postgres").items():
            name = sql.Identifier(schema, table)
            columns = sql.SQL(", ").join(map(sql.Identifier, held["columns"]))
            db.execute(sql.SQL("DELETE FROM {}").format(name))
            insert = sql.SQL(
                "INSERT INTO {name} ({columns}) OVERRIDING SYSTEM VALUE "
                "SELECT {columns} FROM json_populate_record(NULL::{name}, %s)"
            ).format(name=name, columns=columns)
            for row in held["rows"]:
                db.execute(insert, (Json(dict(zip(held["columns"], row, strict=True))),))
        for table in ("job", "journal"):
            # As if they had been drawn from it.
            db.execute("SELECT setval(pg_get_serial_sequence(%s, 'seq'), 1000)", (f"{schema}.{table}",))
