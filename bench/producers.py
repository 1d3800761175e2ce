"""Many producers at once on PostgreSQL: enqueues a second, beside the bare insert by the same driver, in one run.

    .venv/bin/python bench/producers.py [--producers 1,4,16] [--seconds 3] [--rounds 3] [--worker]

Each producer is a process with one connection that stores one job after the other. `bare` inserts into a table that has
our columns and only the primary key. `notify` is the same insert with NOTIFY in its transaction. `holdfast` is
`task.enqueue()`. With --worker an idle worker sleeps on another queue meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import psycopg
from ground import QUICK, Ground, worker
from stores import PostgresBed
from tasks import make_app

from holdfast.clock import SystemClock
from holdfast.ids import new_job_id

WAYS = ("bare", "notify", "holdfast")
BARE = (
    "INSERT INTO bare (id, task, queue, payload, priority, run_at, created_at, attempts_max, backoff_base_s,"
    " backoff_cap_s, backoff_jitter, crashes_max, on_crash, lease_s, beat_s) VALUES (%s, 'raw', 'raw', '{}', 0, %s, %s,"
    " 3, 1.0, 60.0, true, 3, 'retry', 30.0, 10.0)"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--producers", default="1,4,16", help="how many processes, one figure for each")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", action="store_true", help="an idle worker sleeps on another queue")
    parser.add_argument("--produce", nargs=3, metavar=("WAY", "URL", "SECONDS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.produce:
        return produce(*given.produce)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(PostgresBed, QUICK, Path(folder))
        for _ in range(given.rounds):
            for many in map(int, given.producers.split(",")):
                for way in WAYS:
                    rate = measure(ground, way, many, given.seconds, idle=given.worker)
                    found.setdefault(f"{way} x {many}", []).append(rate)
    for many in given.producers.split(","):
        bare = found[f"bare x {many}"]
        for way in WAYS:
            rates = found[f"{way} x {many}"]
            ratio = median(rate / each for rate, each in zip(rates, bare, strict=True))
            print(f"{many:>3} producers  {way:9} {median(rates):8,.0f}/s  {ratio:.2f} of the bare insert")
    return 0


def measure(ground: Ground, way: str, many: int, seconds: float, *, idle: bool = False) -> float:
    """Let so many processes store jobs for so long; return how many a second all of them stored."""
    with ground.fresh() as bed, worker(bed, "--queues", "aside", ready=True) if idle else nullcontext():
        with psycopg.connect(bed.base, autocommit=True) as db:
            db.execute(f"SET search_path = {bed.schema}")
            db.execute("CREATE TABLE bare (LIKE job INCLUDING DEFAULTS INCLUDING IDENTITY, PRIMARY KEY (id))")
        command = [sys.executable, __file__, "--produce", way, bed.url, str(seconds)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        processes = [subprocess.Popen(command, env=os.environ, text=True, **pipes) for _ in range(many)]
        for process in processes:
            process.stdout.readline()  # it is connected
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        return sum(json.loads(process.communicate()[0]) for process in processes)


def produce(way: str, url: str, seconds: str) -> int:
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
    return 0


def _raw(url: str, way: str) -> Callable[[], object]:
    base, _, schema = url.partition("?schema=")
    db = psycopg.connect(base, autocommit=True, options=f"-c search_path={schema}")
    told = f"WITH told AS MATERIALIZED (SELECT pg_notify('{schema}', '')) {BARE} RETURNING (SELECT count(*) FROM told)"
    clock, query = SystemClock(), BARE if way == "bare" else told
    return lambda: db.execute(query, (new_job_id(clock), now := time.time(), now))


def _ours(url: str) -> Callable[[], object]:
    return make_app(url).named("async_noop").enqueue


if __name__ == "__main__":
    sys.exit(main())
