"""What the read side costs on SQLite with a million jobs.  .venv/bin/python bench/reads.py [finished] [rounds]

Makes a store with 1,000,000 finished jobs by default, of which 18,800 are dead, with 42,000 ready, 500 held, 200
waiting and 100 running jobs, and with 20,000 lost attempts of the last day. Asks each question in this process, warm,
and prints the median of 20 in ms next to the limit: seconds on the clock, and of the processor, which other programs
disturb less. Exits with 1 when one of them takes more of the processor than its limit.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ground import home

from holdfast import insight
from holdfast.clock import SystemClock
from holdfast.core.machine import State
from holdfast.core.records import Filter, Worker
from holdfast.insight.diagnosis import diagnose
from holdfast.stores.sqlite.store import SqliteStore

CLOCK = SystemClock()
DEAD, READY, HELD, WAITING, RUNNING, LOST = 18_800, 42_000, 500, 200, 100, 20_000
QUEUES = 10
DAY_S = 86_400.0

JOBS = """
WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :jobs)
INSERT INTO holdfast_job (
    id, task, queue, payload, state, run_at, created_at, attempt, fence, claim_id, worker, lease_until, claimed_at,
    started, failures, error, ended_at, attempts_max, backoff_base_s, backoff_cap_s, backoff_jitter, crashes_max,
    on_crash, lease_s, beat_s
)
SELECT :state || printf('-%012d', n), 'shop.task_' || (n % 20), 'queue-' || (n % :queues), '{"args":[' || n || ']}',
    :state, :wall - 5000 + n * 1e-3, :wall - 6000, :attempt, :attempt, CASE WHEN :attempt THEN 'claim' END,
    CASE WHEN :state = 'running' THEN 'worker' END, CASE WHEN :state = 'running' THEN :lease + 1e6 END,
    CASE WHEN :attempt THEN :wall - 5000 END, :attempt, CASE WHEN :state = 'dead' THEN 3 ELSE 0 END,
    CASE WHEN :state = 'dead' THEN 'ValueError: no' END, CASE WHEN :ended THEN :wall - 5000 + n * 1e-3 END,
    3, 1.0, 60.0, 1, 3, 'retry', 30.0, 10.0
FROM number
"""
TALLY = """
INSERT INTO holdfast_tally (queue, state, jobs, ended)
SELECT queue, state, count(*), count(*) FROM holdfast_job WHERE ended_at IS NOT NULL GROUP BY queue, state
"""
EVENTS = """
WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :jobs)
INSERT INTO holdfast_journal (job_id, at, kind, fence, worker, detail)
SELECT printf('done-%012d', n), :wall - 80000 + n, 'zombie', 1, 'worker',
    '{"detector":"vanished","decision":"ready","seconds_to_detection":0.4,"worker":"box/1","task":"shop.task_1",'
    || '"fence_before":1,"fence_after":2,"cause":"its process ended"}'
FROM number
"""


def make(store: SqliteStore, finished: int, ready: int = READY) -> None:
    """Fill the store, each state with one statement."""
    store.migrate()
    store.enroll(
        Worker(
            id="worker",
            name="box/1",
            host="box",
            pid=1,
            boot_id=CLOCK.boot_id,
            queues=[f"queue-{number}" for number in range(QUEUES)],
            beat_s=1e6,
        )
    )
    with store._db.writing(busy_s=60) as db:
        clock = {"wall": CLOCK.wall(), "lease": CLOCK.lease(), "queues": QUEUES}
        for state, jobs in (
            (State.RUNNING, RUNNING),
            (State.DEAD, DEAD),
            (State.READY, ready // 2),
            (State.DONE, finished - DEAD),
            (State.READY, ready),
            (State.HELD, HELD),
            (State.WAITING, WAITING),
        ):
            done = db.execute("SELECT count(*) FROM holdfast_job WHERE state = ?", [state.value]).fetchone()[0]
            values = {
                "state": state.value,
                "attempt": int(state is not State.READY),
                "ended": state in (State.DONE, State.DEAD),
            }
            if jobs > done:
                statement = JOBS.replace("SELECT 1 UNION ALL", f"SELECT {done + 1} UNION ALL")
                db.execute(statement, {**clock, **values, "jobs": jobs})
        db.execute(TALLY)
        db.execute(EVENTS, {**clock, "jobs": LOST})
    with store._db.reading() as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def main(finished: int = 1_000_000, rounds: int = 20) -> int:
    with tempfile.TemporaryDirectory(dir=home()) as folder:
        store = SqliteStore(f"sqlite:///{Path(folder) / 'jobs.db'}?synchronous=normal", clock=CLOCK)
        began = time.perf_counter()
        make(store, finished)
        print(f"made in {time.perf_counter() - began:.0f} s: {insight.totals(store)}", flush=True)
        questions: dict[str, tuple[float, Callable[[], object]]] = {
            "counts": (10.0, store.counts),
            "find: running": (2.0, lambda: store.find(Filter(states=(State.RUNNING,)))),
            "the retrying list": (2.0, lambda: list(insight.find_jobs(store, ("retrying",), Filter()))),
            "queue_views": (15.0, lambda: insight.queue_views(store)),
            "zombies of a day": (30.0, lambda: insight.look_back(store, DAY_S)),
            "rates of five minutes": (15.0, lambda: store.figures.flow(CLOCK.wall() - 300)),
            "counters": (15.0, store.figures.counters),
            "doctor": (1000.0, lambda: list(diagnose(store, CLOCK))),
        }
        slow = []
        print(f"{'median of ' + str(rounds) + ', ms':28}{'clock':>10}{'processor':>11}{'limit':>8}")
        for name, (limit_ms, question) in questions.items():
            took, worked = [], []
            for _ in range(rounds + 1):
                asked, busy = time.perf_counter(), time.process_time()
                question()
                took.append((time.perf_counter() - asked) * 1000)
                worked.append((time.process_time() - busy) * 1000)
            clock_ms, busy_ms = (statistics.median(each[1:]) for each in (took, worked))  # the first one warms up
            print(f"{name:28}{clock_ms:10.2f}{busy_ms:11.2f}{limit_ms:8.0f}", flush=True)
            slow += [name] if busy_ms > limit_ms else []
        store.retire("worker", "the measurement is over")
        store.close()
    print(f"slower than the limit: {', '.join(slow) or 'none'}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
