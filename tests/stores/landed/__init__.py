"""The stores of commit c86b432, the first that people had: a job in every state, workflows in the middle, old errors.

`sqlite.json` and `postgres.json` hold the rows of every table as that commit wrote them. The tables are made by the
migrations of that time, which never change (`test_migrations.py`). `sqlite_later.json.xz` and `postgres_later.json.xz`
hold the rows of stores of every later version of the schema, each written by the program of the last commit before the
next migration. One number of each is missing: it landed together with
the next one.
"""

from __future__ import annotations

import json
import lzma
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Json

from holdfast.stores.sql import load_migrations

Tables = dict[str, dict[str, list[Any]]]

FOLDER = Path(__file__).parent
LAST = {"sqlite": 8, "postgres": 9}  # the last migrations of that time


def rows_of(kind: str) -> Tables:
    """Return columns and rows by table."""
    found: Tables = json.loads((FOLDER / f"{kind}.json").read_text())
    return found


@cache
def later(kind: str) -> dict[int, Tables]:
    """Return the tables of the later stores by the version of their schema."""
    held = json.loads(lzma.decompress((FOLDER / f"{kind}_later.json.xz").read_bytes()))
    return {int(number): tables for number, tables in held.items()}


def make_sqlite(file: Path, version: int = LAST["sqlite"]) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        for script in _scripts("sqlite", version):
            db.executescript(script)
        db.execute("BEGIN")
        for table, held in _tables("sqlite", version).items():
            marks = ", ".join("?" * len(held["columns"]))
            db.execute(f"DELETE FROM {table}")
            db.executemany(f"INSERT INTO {table} ({', '.join(held['columns'])}) VALUES ({marks})", held["rows"])
        db.execute("COMMIT")


def _tables(kind: str, version: int) -> Tables:
    found = rows_of(kind) if version == LAST[kind] else later(kind)[version]
    # Triggers that count new lines of the journal come before the counts that replace theirs.
    return dict(sorted(found.items(), key=lambda each: not each[0].endswith(("journal", "job"))))


def _scripts(kind: str, version: int) -> list[str]:
    """Return the migrations up to a version, without pieces that only change rows: there are none yet."""
    migrations = load_migrations(f"holdfast.stores.{kind}")[:version]
    return [piece.script for each in migrations for piece in each.pieces if piece.table is None]


def make_postgres(url: str, schema: str, version: int = LAST["postgres"]) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        for script in _scripts("postgres", version):
            text = sql.SQL(script)  # type: ignore[arg-type]
            db.execute(text.format(schema=sql.Identifier(schema)))
        db.execute("SET session_replication_role = replica")  # no trigger counts again
        for table, held in _tables("postgres", version).items():
            name = sql.Identifier(schema, table)
            columns = sql.SQL(", ").join(map(sql.Identifier, held["columns"]))
            db.execute(sql.SQL("DELETE FROM {}").format(name))
            insert = sql.SQL(
                "INSERT INTO {name} ({columns}) OVERRIDING SYSTEM VALUE "
                "SELECT {columns} FROM json_populate_record(NULL::{name}, %s)"
            ).format(name=name, columns=columns)
            for row in held["rows"]:
                db.execute(insert, (Json(dict(zip(held["columns"], row, strict=True))),))
        for table in ("job", "journal", "signal"):
            # As if they had been drawn from it.
            db.execute("SELECT setval(pg_get_serial_sequence(%s, 'seq'), 1000)", (f"{schema}.{table}",))
