"""A home-grown jobs table on a real database, with ghosts and living rows.

HOLDFAST_TEST_MYSQL is the address of a MySQL or MariaDB database that may be written to, such as
mysql://holdfast@127.0.0.1:3306/test; without it the tests use SQLite and PostgreSQL.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.rescue import Map

MYSQL = os.environ.get("HOLDFAST_TEST_MYSQL")
ENGINES = ["sqlite", "postgres", *(["mysql"] if MYSQL else [])]
AGO_S = 3600
TIMES = {"sqlite": "TEXT", "postgres": "timestamptz", "mysql": "DATETIME(6)"}
THEN = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now', '-' || {} || ' seconds')",
    "postgres": "clock_timestamp() - interval '1 second' * {}",
    "mysql": "utc_timestamp(6) - interval {} second",
}
TABLE = """CREATE TABLE jobs (
    id INTEGER PRIMARY KEY,
    status VARCHAR(20) NOT NULL,
    attempts INTEGER NOT NULL,
    last_error TEXT,
    started_at {time},
    seen_at {time},
    locked_by VARCHAR(100)
)"""
MAP: dict[str, Any] = {
    "table": "jobs",
    "id": "id",
    "status": "status",
    "running": "running",
    "ready": "queued",
    "dead": "failed",
    "started": "started_at",
    "attempts": "attempts",
    "attempts_max": 3,
    "error": "last_error",
    "stale_after_s": 60,
    "updated": "seen_at",
    "worker": "locked_by",
    "concurrency": 5,
    "time_zone": "UTC",
}


class Shop:
    """The database of an application with a table of its own."""

    def __init__(self, engine: str, url: str) -> None:
        self.engine, self.url = engine, url
        with self.connect() as db:
            for table in ("jobs", "holdfast_rescues"):
                run(db, f"DROP TABLE IF EXISTS {table}")
            run(db, TABLE.format(time=TIMES[engine]))

    @contextmanager
    def connect(self) -> Iterator[Any]:
        """Open a connection such as an application has."""
        if self.engine == "sqlite":
            connection: Any = sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None, timeout=60)
        elif self.engine == "postgres":
            connection = psycopg.connect(self.url, autocommit=True)
        else:
            import sqlalchemy

            engine = sqlalchemy.create_engine(
                self.url.replace("mysql:", "mysql+pymysql:"), poolclass=sqlalchemy.NullPool
            )
            connection = engine.connect()
        try:
            yield connection
        finally:
            connection.close()

    def run(self, statement: str) -> list[Any]:
        with self.connect() as db:
            return run(db, statement)

    def add(self, number: int, *, ago_s: int = AGO_S, attempts: int = 0, worker: str = "w1", seen_s: Any = None) -> int:
        """Store a running row that was started this long ago, and seen alive `seen_s` ago."""
        then = THEN[self.engine]
        seen = "NULL" if seen_s is None else then.format(seen_s)
        values = f"{number}, 'running', {attempts}, NULL, {then.format(ago_s)}, {seen}, '{worker}'"
        self.run(f"INSERT INTO jobs VALUES ({values})")
        return number

    def row(self, number: int) -> tuple[Any, ...]:
        """The status, the attempts and the error of a row."""
        [row] = self.run(f"SELECT status, attempts, last_error FROM jobs WHERE id = {number}")
        return tuple(row)

    def whole(self, number: int) -> tuple[Any, ...]:
        [row] = self.run(f"SELECT * FROM jobs WHERE id = {number}")
        return tuple(row)

    def journal(self) -> list[tuple[Any, ...]]:
        return [tuple(line) for line in self.run("SELECT job_id, decision, to_status FROM holdfast_rescues")]

    @property
    def has_journal(self) -> bool:
        try:
            self.journal()
        except Exception as error:
            assert "holdfast_rescues" in str(error)  # noqa: PT017 - each driver has an error of its own
            return False
        return True


def run(db: Any, statement: str) -> list[Any]:
    if isinstance(db, sqlite3.Connection | psycopg.Connection):
        cursor: Any = db.execute(statement)  # type: ignore[arg-type]
        return list(cursor.fetchall()) if cursor.description else []
    found = db.exec_driver_sql(statement.replace("%", "%%"))
    rows = [tuple(row) for row in found] if found.returns_rows else []
    db.commit()
    return rows


@pytest.fixture(scope="session")
def shop_server(postgres_server: str) -> Iterator[str]:
    """The address of a database of the application's own, on the server of the tests."""
    name = f"{postgres_server.rpartition('/')[2]}_shop"
    with psycopg.connect(postgres_server, autocommit=True) as db:
        db.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")  # type: ignore[call-overload]
        db.execute(f"CREATE DATABASE {name}")  # type: ignore[call-overload]
        yield f"{postgres_server.rpartition('/')[0]}/{name}"
        db.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[call-overload]


@pytest.fixture(params=ENGINES)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    if request.param == "sqlite":
        return Shop("sqlite", f"sqlite:///{tmp_path}/shop.db")
    if request.param == "postgres":
        server: str = request.getfixturevalue("shop_server")
        return Shop("postgres", server)
    return Shop("mysql", str(MYSQL))


@pytest.fixture
def table() -> Map:
    return Map(**MAP)


@pytest.fixture
def map_file(tmp_path: Path) -> Path:
    import json

    path = tmp_path / "jobs.toml"
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in MAP.items()))
    return path
