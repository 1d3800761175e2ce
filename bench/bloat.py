"""What a claim costs while an old transaction keeps dead entries.  .venv/bin/python bench/bloat.py [dead] [rounds]

A session opens a transaction and does nothing: from then on nothing that dies can be cleared away, as after an hour of
a report or a forgotten session. So many jobs are added, claimed and done. Then the same is measured there and in a
clean database: claims of twenty (p50 in ms, by one client) and a drain through the store's verbs in batches of 500.
Rounds are interleaved; prints medians, and exits non-zero when a claim costs more than twice as much or the rate is
below half. With a third argument, 0, the frontier is off: what it saves.
"""

import statistics
import sys
import time
from pathlib import Path

import psycopg
from ground import fill
from stores import BATCH, CLOCK, PostgresBed, server
from tasks import make_app

from holdfast.core.records import Worker
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Succeeded, judge
from holdfast.ids import new_id
from holdfast.stores.postgres import claim_cursor
from holdfast.stores.postgres.store import PostgresStore

TASK = "tasks.async_noop"
CLAIMS, JOBS = 300, 10_000


def drain(store: PostgresStore, me: str, jobs: int, batch: int) -> list[float]:
    """Claim and settle so many jobs; return how long each claim took, in ms."""
    took = []
    while jobs > 0:
        began = time.perf_counter()
        claimed = store.claim(me, new_id(), ["default"], [TASK], batch)
        took.append((time.perf_counter() - began) * 1000)
        store.settle([settlement(job, judge(Succeeded("null"), job, 0.0, chance=0.5)) for job in claimed])
        jobs -= len(claimed)
    return took


def measure(bed: PostgresBed) -> tuple[float, float, float]:
    """Return the p50 and the longest of small claims in ms, and the rate of a drain."""
    store, me = PostgresStore(bed.url), new_id()
    store.enroll(Worker(id=me, name="bloat", host="here", pid=1, boot_id=CLOCK.boot_id))
    with make_app(bed.url) as app:
        fill(app, "async_noop", CLAIMS * 20 + JOBS)
    claims = drain(store, me, CLAIMS * 20, 20)
    began = time.perf_counter()
    drain(store, me, JOBS, BATCH)
    rate = JOBS / (time.perf_counter() - began)
    store.retire(me, "left")
    store.close()
    return statistics.median(claims), max(claims), rate


def main(dead: int = 300_000, rounds: int = 5, remember: int = 1) -> int:
    if not remember:
        claim_cursor.SURE = sys.maxsize
    with psycopg.connect(server(), autocommit=True) as db:
        db.execute("CREATE DATABASE clean")  # dead rows of one database are not kept for another's transactions
    clean, pinned = PostgresBed(Path(), "clean"), PostgresBed(Path())
    old = psycopg.connect(server())
    old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    old.execute("SELECT count(*) FROM pg_class")
    with make_app(pinned.url) as app:
        fill(app, "async_noop", dead)
    began = time.perf_counter()
    pinned.raw_loop(TASK)
    print(f"{dead:,} jobs done under an old transaction in {time.perf_counter() - began:.1f} s")
    found = [(measure(clean), measure(pinned)) for _ in range(rounds)]
    for name, number, unit in (("claim of 20, p50", 0, "ms"), ("longest", 1, "ms"), ("verbs", 2, "jobs/s")):
        one, other = (statistics.median(each[side][number] for each in found) for side in (0, 1))
        print(
            f"{name:18} clean {one:10,.1f} {unit}   with dead entries {other:10,.1f} {unit}   {other / one:.2f} times"
        )
    p50 = statistics.median(dirty[0] / plain[0] for plain, dirty in found)
    rate = statistics.median(dirty[2] / plain[2] for plain, dirty in found)
    old.close()
    clean.close()
    pinned.close()
    print(f"p50 {p50:.2f} times (goal: at most 2), rate {rate:.2f} times (goal: at least 0.5)")
    return 0 if p50 <= 2 and rate >= 0.5 else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
