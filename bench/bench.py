"""First figures for speed on SQLite: enqueue, bulk enqueue, drain; each beside the raw statements of the same file.

    make bench            or: .venv/bin/python bench/bench.py --jobs 20000 --rounds 3

Rates count acknowledged jobs: a drain ends when the store says that the last job is done. Finished rows are kept and
`synchronous` is FULL. Rounds are interleaved and the median is shown with the lowest and the highest, because the machines
that this runs on are noisy: read ratios within one run, not absolute figures across runs.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from holdfast import App
from holdfast.clock import SystemClock
from holdfast.core.records import NewJob, Worker
from holdfast.core.verdict import Succeeded, judge, settlement
from holdfast.identity import new_id, new_job_id
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.worker.options import WorkerOptions
from holdfast.worker.runner import Runner

CLOCK = SystemClock()


async def async_noop() -> None:
    pass


def sync_noop() -> None:
    pass


def fresh_app(folder: Path) -> App:
    return App(f"sqlite:///{folder}/{new_id()}.db")


def raw_commits(folder: Path, jobs: int) -> float:
    """Insert and commit one row at a time, as cheaply as SQLite can with synchronous FULL."""
    db = sqlite3.connect(folder / f"{new_id()}.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE t (id TEXT PRIMARY KEY, payload TEXT)")
    began = time.perf_counter()
    for _ in range(jobs):
        db.execute("INSERT INTO t VALUES (?, ?)", (new_job_id(CLOCK), "{}"))
    return jobs / (time.perf_counter() - began)


def single_enqueue(folder: Path, jobs: int) -> float:
    task = fresh_app(folder).task(async_noop)
    task.enqueue()
    began = time.perf_counter()
    for _ in range(jobs):
        task.enqueue()
    return jobs / (time.perf_counter() - began)


def bulk_enqueue(folder: Path, jobs: int) -> float:
    app = fresh_app(folder)
    task = app.task(async_noop)
    task.enqueue()
    began = time.perf_counter()
    app.enqueue_many([task.job() for _ in range(jobs)])
    return jobs / (time.perf_counter() - began)


def raw_drain(folder: Path, jobs: int) -> float:
    """Claim and settle in batches of 500 with the store's own verbs, without a worker around them."""
    store = SqliteStore(f"sqlite:///{folder}/{new_id()}.db")
    store.migrate()
    store.enroll(Worker(id="raw", name="raw", host="here", pid=os.getpid(), boot_id=CLOCK.boot_id))
    store.add([NewJob(id=new_job_id(CLOCK), task="t", payload="{}") for _ in range(jobs)])
    began = time.perf_counter()
    while claimed := store.claim("raw", new_id(), ["default"], ["t"], 500):
        store.settle([settlement(job, judge(Succeeded("null"), job, 0.0, chance=0.5)) for job in claimed])
    return jobs / (time.perf_counter() - began)


def drain(handler: Callable[[], object]) -> Callable[[Path, int], float]:
    def measure(folder: Path, jobs: int) -> float:
        app = fresh_app(folder)
        task = app.task(handler)
        app.enqueue_many([task.job() for _ in range(jobs)])
        runner = Runner(app, WorkerOptions())
        thread = threading.Thread(target=runner.run)
        first = last = 0.0
        seen = 0
        thread.start()
        while seen < jobs:
            done = app.counts()["done"]
            now = time.perf_counter()
            if done and not first:
                first, begun = now, done
            seen, last = done, now
            time.sleep(0.01)
        runner.stop()
        thread.join()
        return (seen - begun) / (last - first)

    return measure


FIGURES: dict[str, tuple[Callable[[Path, int], float], float]] = {
    # name: (measure, share of --jobs)
    "raw insert + commit": (raw_commits, 0.05),
    "enqueue, one at a time": (single_enqueue, 0.05),
    "enqueue_many": (bulk_enqueue, 1.0),
    "raw claim + settle, batches of 500": (raw_drain, 1.0),
    "drain, async no-op, one process": (drain(async_noop), 1.0),
    "drain, sync no-op, one process": (drain(sync_noop), 1.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="where the database files go; default: a temporary one")
    given = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in FIGURES}
    for number in range(given.rounds):
        for name, (measure, share) in FIGURES.items():
            with tempfile.TemporaryDirectory(dir=given.folder) as folder:
                rates[name].append(measure(Path(folder), max(100, int(given.jobs * share))))
            if sys.stderr.isatty():
                print(f"\rround {number + 1} of {given.rounds}: {name:40}", end="", flush=True, file=sys.stderr)
    print(f"SQLite {sqlite3.sqlite_version}, synchronous FULL, {os.cpu_count()} cores, {given.jobs:,} jobs")
    print(f"{'':38}{'median/s':>10}{'lowest':>10}{'highest':>10}")
    for name, found in rates.items():
        print(f"{name:38}{statistics.median(found):>10,.0f}{min(found):>10,.0f}{max(found):>10,.0f}")


if __name__ == "__main__":
    main()
