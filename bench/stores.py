"""The stores that Holdfast is measured on: for each a bed, which is one fresh database and its raw statements.

A new store is a new class here and a line in `STORES`; figures.py does not change.
"""

from __future__ import annotations

import atexit
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import noise
import psycopg
import redis

from holdfast.clock import SystemClock
from holdfast.core.records import Job
from holdfast.ids import new_id
from holdfast.stores import row_json
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.redis.store import RedisStore
from holdfast.stores.sqlite.statements import Q
from holdfast.stores.sqlite.store import SqliteStore

BATCH = 500
CLOCK = SystemClock()
_AT = {name: number for number, name in enumerate(Job.__struct_fields__)}


class Bed(Protocol):
    """One fresh database with Holdfast's schema."""

    url: str

    def __init__(self, folder: Path) -> None: ...

    @staticmethod
    def engine() -> dict[str, str]:
        """Return the database's name and its version."""
        ...

    def done(self) -> int:
        """Count the jobs that the store says are done; cheap enough to be asked a hundred times a second."""
        ...

    def raw_insert(self, ids: list[str]) -> None:
        """Insert and commit one small row at a time, as cheaply as this database can with full durability."""
        ...

    def raw_insert_job(self, ids: list[str]) -> None:
        """The same with the columns and the indexes of a job."""
        ...

    def raw_loop(self, task: str, batch: int = BATCH) -> int:
        """Claim and settle every job with the store's own statements in batches, and nothing around them."""
        ...

    def expire_all(self, at: float) -> None:
        """Let every lease end at one instant of the lease clock, each as if it were the only one of its worker: jobs
        that were in one process run again in processes of their own, which is measured elsewhere."""
        ...

    def holds(self, worker: str) -> bool:
        """Say whether this worker holds any lease."""
        ...

    def close(self) -> None: ...


class SqliteBed:
    """A file, with the settings of Holdfast's own connections."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{new_id()}.db"
        self.url = f"sqlite:///{self.path}"
        store = SqliteStore(self.url)
        store.migrate()
        store.close()
        self._db = sqlite3.connect(self.path, isolation_level=None, timeout=30)
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("PRAGMA temp_store=memory")

    @staticmethod
    def engine() -> dict[str, str]:
        return {"SQLite": sqlite3.sqlite_version}

    def done(self) -> int:
        row = self._db.execute("SELECT sum(jobs) FROM holdfast_tally WHERE state = 'done'").fetchone()
        return row[0] or 0

    def raw_insert(self, ids: list[str]) -> None:
        self._db.execute("CREATE TABLE IF NOT EXISTS raw (id TEXT NOT NULL PRIMARY KEY, payload TEXT) STRICT")
        for id in ids:
            self._db.execute("INSERT INTO raw (id, payload) VALUES (?, '{}')", (id,))

    def raw_insert_job(self, ids: list[str]) -> None:
        for id in ids:
            self._db.execute(
                "INSERT INTO holdfast_job (id, task, queue, payload, run_at, created_at, attempts_max, backoff_base_s,"
                " backoff_cap_s, backoff_jitter, crashes_max, on_crash, lease_s, beat_s)"
                " VALUES (?, 'raw', 'raw', '{}', ?, ?, 3, 1.0, 60.0, 1, 3, 'retry', 30.0, 10.0)",
                (id, now := time.time(), now),
            )

    def raw_loop(self, task: str, batch: int = BATCH) -> int:
        run, jobs = self._db.execute, 0
        known = row_json.encode([task]).decode()
        while True:
            token = {"worker": "raw", "claim_id": new_id()}
            lane = {"queue": "default", "priority": 0, "tasks": known, "started": 1, "limit": batch}
            run("BEGIN IMMEDIATE")
            run(Q["claim"], {**token, **lane, "wall": CLOCK.wall(), "lease": CLOCK.lease()})
            rows = row_json.rows_from(run(Q["claim_answers"], token).fetchone()[0])
            run("COMMIT")
            if not rows:
                return jobs
            endings = [[row[_AT["id"]], row[_AT["fence"]], row[_AT["claim_id"]], "null"] for row in rows]
            run("BEGIN IMMEDIATE")
            run(Q["settle_done"], {"endings": row_json.encode(endings).decode(), "wall": CLOCK.wall()})
            run(Q["settle_tally"], {"tallies": row_json.encode([("default", "done", len(rows))]).decode()})
            run("COMMIT")
            jobs += len(rows)

    def expire_all(self, at: float) -> None:
        self._db.execute(
            "UPDATE holdfast_job SET lease_until = ?, worker = worker || id WHERE state = 'running'", (at,)
        )

    def holds(self, worker: str) -> bool:
        held = "SELECT 1 FROM holdfast_job WHERE state = 'running' AND worker LIKE ? || '%' LIMIT 1"
        return self._db.execute(held, (worker,)).fetchone() is not None

    def close(self) -> None:
        self._db.close()


class PostgresBed:
    """A schema of a server of our own, with the server's default settings: every commit is synced."""

    base = ""  # the address without the schema

    def __init__(self, folder: Path, database: str = "postgres") -> None:
        self.schema = f"bench_{new_id()}"
        self.base = server().removesuffix("postgres") + database
        self.url = f"{self.base}?schema={self.schema}"
        self._store = PostgresStore(self.url)
        self._store.migrate()
        self._db = psycopg.connect(self.base, autocommit=True, options=f"-c search_path={self.schema}")

    @staticmethod
    def engine() -> dict[str, str]:
        with psycopg.connect(server()) as db:
            version = db.info.server_version
        return {"PostgreSQL": f"{version // 10_000}.{version % 10_000}"}

    def done(self) -> int:
        row = self._db.execute("SELECT sum(jobs)::bigint FROM tally WHERE state = 'done'").fetchone()
        return (row and row[0]) or 0

    def raw_insert(self, ids: list[str]) -> None:
        self._db.execute("CREATE TABLE IF NOT EXISTS raw (id text PRIMARY KEY, payload text)")
        for id in ids:
            self._db.execute("INSERT INTO raw (id, payload) VALUES (%s, '{}')", (id,))

    def raw_insert_job(self, ids: list[str]) -> None:
        for id in ids:
            self._db.execute(
                "INSERT INTO job (id, task, queue, payload, run_at, created_at, attempts_max, backoff_base_s,"
                " backoff_cap_s, backoff_jitter, crashes_max, on_crash, lease_s, beat_s)"
                " VALUES (%s, 'raw', 'raw', '{}', %s, %s, 3, 1.0, 60.0, true, 3, 'retry', 30.0, 10.0)",
                (id, now := time.time(), now),
            )

    def raw_loop(self, task: str, batch: int = BATCH) -> int:
        q, run, jobs, me = self._store._db, self._db.execute, 0, new_id()
        run("INSERT INTO worker VALUES (%s, 'raw', 'h', 1, 'b', NULL, '[]', 1, 1, '', 0, 0)", (me,))
        asked = {"queues": ["default"], "tasks": [task], "limit": batch, "most": batch, "even": True, "first": True}
        asked |= {"worker": me, "try": 0, "lanes": None, "row_locked": False, "wall": None, "lease": None}
        while True:
            claimed = run(q["claim"], {**asked, "claim_id": new_id()}, prepare=False).fetchone()
            rows = row_json.rows_from(claimed[-1] if claimed else "[]")
            if not rows:
                return jobs
            endings = [[row[_AT["id"]], row[_AT["fence"]], row[_AT["claim_id"]], "null"] for row in rows]
            values = {"endings": row_json.encode(endings).decode(), "many": len(rows), "wall": None}
            run(q["settle_done"], values, prepare=False)
            jobs += len(rows)

    def expire_all(self, at: float) -> None:
        self._db.execute("UPDATE job SET lease_until = %s, worker = worker || id WHERE state = 'running'", (at,))

    def holds(self, worker: str) -> bool:
        held = "SELECT 1 FROM job WHERE state = 'running' AND worker LIKE %s || '%%' LIMIT 1"
        return self._db.execute(held, (worker,)).fetchone() is not None

    def close(self) -> None:
        self._store.close()
        self._db.execute(f"DROP SCHEMA {self.schema} CASCADE")
        self._db.close()


class RedisBed:
    """A database of a Valkey server of our own, with an append-only file that is written each second."""

    def __init__(self, folder: Path) -> None:
        self._number = next(_numbers)
        self.url = f"{redis_server()}/{self._number}"
        self._db = redis.Redis.from_url(self.url)
        self._db.flushdb()
        self._store = RedisStore(self.url)
        self._store.migrate()

    @staticmethod
    def engine() -> dict[str, str]:
        found: dict[str, Any] = redis.Redis.from_url(redis_server()).info("server")  # type: ignore[assignment]
        return {"Valkey": found.get("valkey_version") or found["redis_version"]}

    def done(self) -> int:
        return int(self._db.hget("{holdfast}:ended", "default\0done") or 0)  # type: ignore[arg-type]

    def raw_insert(self, ids: list[str]) -> None:
        for id in ids:
            self._db.set(f"raw:{id}", "{}")

    def raw_insert_job(self, ids: list[str]) -> None:
        for id in ids:
            self._db.set(f"raw:{id}", "{}" * 100)

    def raw_loop(self, task: str, batch: int = BATCH) -> int:
        raise NotImplementedError

    def expire_all(self, at: float) -> None:
        raise NotImplementedError

    def holds(self, worker: str) -> bool:
        raise NotImplementedError

    def close(self) -> None:
        self._store.close()
        self._db.flushdb()
        self._db.close()


_numbers = count(1)


@lru_cache(maxsize=1)
def redis_server() -> str:
    """Start the Valkey server that all beds and peers share; it ends with this program."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.servers import RedisServer

    usual, tempfile.tempdir = tempfile.tempdir, os.environ.get("BENCH_HOME", tempfile.gettempdir())
    try:
        started = RedisServer("--appendonly", "yes", "--appendfsync", "everysec", "--databases", "10000")
    finally:
        tempfile.tempdir = usual
    atexit.register(started.close)
    assert started._process is not None
    noise.servers.append(started._process.pid)
    return started.url


@lru_cache(maxsize=1)
def server() -> str:
    """Start the server that all beds and peers share; it ends with this program. Its data are in $BENCH_HOME."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.servers import PostgresServer

    home = Path(os.environ.get("BENCH_HOME", tempfile.gettempdir())).resolve()
    if os.geteuid() == 0 and not all(folder.stat().st_mode & 0o001 for folder in (home, *home.parents)):
        print(f"{home} is root's alone, and the server is not root: its data are elsewhere", file=sys.stderr)
        home = Path(tempfile.gettempdir())
    usual, tempfile.tempdir = tempfile.tempdir, str(home)
    try:
        started = PostgresServer(settings=())
    finally:
        tempfile.tempdir = usual
    atexit.register(started.close)
    assert started._process is not None
    noise.servers.append(started._process.pid)
    return started.url


@contextmanager
def database() -> Iterator[str]:
    """Lend an empty database of that server, and remove it afterwards; yield its address."""
    name = f"peer_{new_id()}"
    with psycopg.connect(server(), autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}")
        try:
            yield server().removesuffix("postgres") + name
        finally:
            db.execute(f"DROP DATABASE {name} WITH (FORCE)")


def sync(url: str, *, on: bool) -> None:
    """Let the sessions to come wait for the disk at each commit, or not."""
    name = url.rpartition("/")[2]
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"ALTER DATABASE {name} SET synchronous_commit = {'on' if on else 'off'}")


STORES: dict[str, type[Bed]] = {"sqlite": SqliteBed, "postgres": PostgresBed, "redis": RedisBed}
