"""A store of the first version with a million jobs, brought up to date while other programs write.

    .venv/bin/python bench/migrate.py [--store postgres] [--jobs 1000000] [--kills 5] [--seed 1]

Shows how long the migration takes, and the longest time that an enqueue had to wait meanwhile. The last migration
changes every row, page by page, so that there is something to do. With `--kills`, the process that migrates is killed
with SIGKILL so many times, at random moments, and started again; then every row must be there, and changed.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.factory import OLD_JOB
from tests.servers import PostgresServer
from tests.stores import landed

from holdfast.stores import open_store
from holdfast.stores.sql import parse_migration

MORE = {
    "sqlite": """
INSERT INTO holdfast_job (id, task, queue, payload, run_at, created_at, attempts_max, backoff_base_s, backoff_cap_s,
    backoff_jitter, crashes_max, on_crash, lease_s, beat_s, state, ended_at, error)
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {jobs})
SELECT 'more-' || i, 't', 'default', '{{"args": [1, 2, 3]}}', 1, 1, 3, 1, 60, 1, 3, 'retry', 30, 10,
    iif(i % 10, 'done', 'ready'), iif(i % 10, 5, NULL), 'ValueError: no luck' FROM n
""",
    "postgres": """
INSERT INTO bench.job (id, task, queue, payload, run_at, created_at, attempts_max, backoff_base_s, backoff_cap_s,
    backoff_jitter, crashes_max, on_crash, lease_s, beat_s, state, ended_at, error)
SELECT 'more-' || i, 't', 'default', '{{"args": [1, 2, 3]}}', 1, 1, 3, 1, 60, true, 3, 'retry', 30, 10,
    CASE WHEN i % 10 > 0 THEN 'done' ELSE 'ready' END, CASE WHEN i % 10 > 0 THEN 5 END, 'ValueError: no luck'
FROM generate_series(1, {jobs}) AS i
""",
}
EVERY_ROW = {
    "sqlite": """-- works with: 8
ALTER TABLE holdfast_job ADD COLUMN kind TEXT;
-- pages of job
UPDATE holdfast_job SET kind = substr(error, 1, 10) WHERE seq > :after AND seq <= :upto;
""",
    "postgres": """-- works with: 9
ALTER TABLE {schema}.job ADD COLUMN kind text;
-- pages of job
UPDATE {schema}.job SET kind = left(error, 10)
WHERE state IN ('ready', 'running', 'waiting', 'held', 'done', 'dead', 'cancelled', 'rolled_back')
    AND seq > %(after)s AND seq <= %(upto)s;
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--migrate", metavar="URL", help=argparse.SUPPRESS)  # what the process that is killed does
    given = parser.parse_args()
    if given.migrate:
        migrate(given.store, given.migrate)
        return
    with tempfile.TemporaryDirectory() as folder:
        server = PostgresServer(()) if given.store == "postgres" else None
        try:
            print(measure(given, Path(folder), server))
        finally:
            if server is not None:
                server.close()


def measure(given: argparse.Namespace, folder: Path, server: PostgresServer | None) -> str:
    kind, jobs = given.store, given.jobs
    more = MORE[kind].format(jobs=jobs)
    if server is not None:
        landed.make_postgres(server.url, "bench")
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute(more)  # type: ignore[call-overload]
            db.execute("ANALYZE bench.job")
        url, connect = f"{server.url}?schema=bench", lambda: psycopg.connect(server.url, autocommit=True)
    else:
        landed.make_sqlite(folder / "jobs.db")
        with closing(sqlite3.connect(folder / "jobs.db", isolation_level=None)) as file:
            file.execute(more)
        url = f"sqlite:///{folder / 'jobs.db'}"
        connect = lambda: sqlite3.connect(folder / "jobs.db", timeout=60, isolation_level=None)  # noqa: E731
    waits: list[float] = []
    over = threading.Event()
    writer = threading.Thread(target=enqueue, args=(connect, waits, over))
    writer.start()
    time.sleep(1.0)
    calm = max(waits)
    waits.clear()
    began = time.monotonic()
    kills = interrupt(kind, url, given.kills, random.Random(given.seed))
    migrate(kind, url)
    took = time.monotonic() - began
    over.set()
    writer.join()
    with closing(connect()) as db:
        table = "bench.job" if kind == "postgres" else "holdfast_job"
        where = "id LIKE 'more-%' AND kind IS NOT NULL AND kind = 'ValueError'"
        [(changed,)] = db.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchall()
    assert changed == jobs, f"{jobs - changed:,} rows are missing or unchanged"
    return (
        f"{kind}, {jobs:,} jobs: migrated in {took:.1f} s, with {kills} kills, and every row changed; "
        f"the longest of {len(waits):,} enqueues meanwhile took {max(waits):.2f} s ({calm:.2f} s before)"
    )


def migrate(kind: str, url: str) -> None:
    with closing(open_store(url)) as store:
        module: Any = sys.modules[f"holdfast.stores.{kind}.store"]
        module._MIGRATIONS.append(parse_migration(len(module._MIGRATIONS) + 1, EVERY_ROW[kind]))
        store.migrate()


def interrupt(kind: str, url: str, kills: int, draw: random.Random) -> int:
    """Start the migration so many times in a process of its own and kill it; return how often it was killed."""
    for done in range(kills):
        command = [sys.executable, __file__, "--store", kind, "--migrate", url]
        with subprocess.Popen(command) as process:
            try:
                process.wait(draw.uniform(0.5, 2.0))
            except subprocess.TimeoutExpired:
                process.kill()
            else:
                assert process.returncode == 0
                return done
    return kills


def enqueue(connect: Callable[[], Any], waits: list[float], over: threading.Event) -> None:
    """Store jobs as a program of that version does that runs."""
    with closing(connect()) as db:
        table = "bench.job" if isinstance(db, psycopg.Connection) else "holdfast_job"
        for number in itertools.count():
            if over.is_set():
                return
            began = time.monotonic()
            values = OLD_JOB[1].replace("'old'", f"'new-{number}'")
            db.execute(f"INSERT INTO {table} ({OLD_JOB[0]}) VALUES ({values})")
            waits.append(time.monotonic() - began)
            time.sleep(0.005)


if __name__ == "__main__":
    main()
