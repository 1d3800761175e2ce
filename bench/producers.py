"""Many producers at once on PostgreSQL: enqueues a second, compared with the bare insert by the same driver.

Each producer is a process with one connection that stores one job after the other. `bare` inserts into a table that has
our columns and only the primary key. `notify` is the same insert with NOTIFY in its transaction. `holdfast` is
`task.enqueue()`. Run as a program it is one producer:  python producers.py WAY URL SECONDS
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import psycopg
from ground import Ground
from tasks import make_app

from holdfast.clock import SystemClock
from holdfast.ids import new_job_id

WAYS = ("bare", "notify", "holdfast")
BARE = (
    "INSERT INTO bare (id, task, queue, payload, priority, run_at, created_at, attempts_max, backoff_base_s,"
    " backoff_cap_s, backoff_jitter, crashes_max, on_crash, lease_s, beat_s) VALUES (%s, 'raw', 'raw', '{}', 0, %s, %s,"
    " 3, 1.0, 60.0, true, 3, 'retry', 30.0, 10.0)"
)


def measure(ground: Ground, way: str, many: int, seconds: float) -> float:
    """Let so many processes store jobs for so long; return how many a second all of them stored."""
    with ground.fresh() as bed:
        with psycopg.connect(bed.base, autocommit=True) as db:
            db.execute(f"SET search_path = {bed.schema}")
            db.execute("CREATE TABLE bare (LIKE job INCLUDING DEFAULTS INCLUDING IDENTITY, PRIMARY KEY (id))")
        command = [sys.executable, __file__, way, bed.url, str(seconds)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        processes = [subprocess.Popen(command, env=os.environ, text=True, **pipes) for _ in range(many)]
        for process in processes:
            process.stdout.readline()  # it is connected
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        return sum(json.loads(process.communicate()[0]) for process in processes)


def main(way: str, url: str, seconds: str) -> None:
    """Store jobs for so long, and print how many a second."""
    put = _ours(url) if way == "holdfast" else _raw(url, way)
    put()
    print("ready", flush=True)
    sys.stdin.readline()
    many, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < float(seconds):
        put()
        many += 1
    print(many / took)


def _raw(url: str, way: str) -> Callable[[], object]:
    base, _, schema = url.partition("?schema=")
    db = psycopg.connect(base, autocommit=True, options=f"-c search_path={schema}")
    told = f"WITH told AS MATERIALIZED (SELECT pg_notify('{schema}', '')) {BARE} RETURNING (SELECT count(*) FROM told)"
    clock, query = SystemClock(), BARE if way == "bare" else told
    return lambda: db.execute(query, (new_job_id(clock), now := time.time(), now))


def _ours(url: str) -> Callable[[], object]:
    return make_app(url).named("async_noop").enqueue


if __name__ == "__main__":
    main(*sys.argv[1:])
