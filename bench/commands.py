"""How long each reading command takes.  .venv/bin/python bench/commands.py [sqlite|postgres] [finished] [live]

500,000 finished and 100,000 live jobs by default, 20,000 lost attempts of the last day, and a few hundred errors. Runs
each command as a person does, with a process of its own, by turns. Prints the median in ms, on the clock and of the
command's processor, without the server's; and how many bytes it printed. Exits with 1 when one takes a second or more.
If even `holdfast --version` takes half a second on the clock, the machine is too busy for clocks, and the processor's
seconds decide.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import reads
from ground import home
from large import COLUMNS, NOW, POLICY
from stores import PostgresBed

from holdfast import insight
from holdfast.clock import SystemClock
from holdfast.core.machine import State
from holdfast.core.records import Filter, Job, NewJob, Schedule, Worker
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Failed, judge
from holdfast.ids import new_id
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore

CLOCK = SystemClock()
LIMIT_S = 1.0
BUSY_S = 0.5
COMMANDS = (
    "--version",
    "status",
    "top --once",
    "errors --since 2h",
    "report --since 2h",
    "audit",
    "zombies",
    "zombies --list",
    "jobs list",
    "jobs list --state ready",
    "jobs list --state running",
    "jobs list --state retrying",
    "jobs list --state scheduled",
    "jobs list --state dead",
    "jobs list --queue queue-3",
    "jobs list --task shop.task_3",
    "jobs list --task shop.rare",
    "jobs list --crashed --since 24h",
    "jobs list --error FINGERPRINT",
    "jobs show JOB",
    "jobs cancel --task shop.rare --dry-run",
    "dead revive --error FINGERPRINT --dry-run",
    "held list",
    "dead list",
    "queues list",
    "tasks list",
    "schedules list",
    "schedules show nightly",
    "workers list",
    "workers show box/1",
    "worker-health --name box/1",
    "batches list",
    "workflows list",
    "scan",
    "doctor",
    "db status",
)
OF_POSTGRES = f"""
INSERT INTO job ({COLUMNS})
SELECT %(state)s || lpad(n::text, 12, '0'), 'shop.task_' || n %% 20, 'queue-' || n %% 10, '{{}}', %(state)s,
    {NOW} - 5000 + n * 1e-3, {NOW} - 6000, %(attempt)s, %(attempt)s, CASE WHEN %(attempt)s > 0 THEN 'claim' END,
    CASE WHEN %(state)s = 'running' THEN 'worker' END, CASE WHEN %(state)s = 'running' THEN {NOW} + 1e6 END,
    CASE WHEN %(attempt)s > 0 THEN {NOW} - 5000 END, CASE WHEN %(state)s = 'dead' THEN 3 ELSE 0 END,
    CASE WHEN %(state)s = 'dead' THEN 'ValueError: no' END, NULL,
    CASE WHEN %(state)s IN ('done', 'dead') THEN {NOW} - 5000 + n * 1e-3 END, {POLICY}
FROM generate_series(%(first)s::bigint, %(jobs)s::bigint) AS n
"""
EVENTS_OF_POSTGRES = f"""
INSERT INTO journal (job_id, at, kind, fence, worker, detail)
SELECT 'done' || lpad(n::text, 12, '0'), {NOW} - 80000 + n, 'zombie', 1, 'worker', '{{"detector":"vanished",
"decision":"retry","seconds_since_beat":0.4,"worker":"box/1","fence_before":1,"fence_after":2}}'
FROM generate_series(1, %(jobs)s::bigint) AS n
"""
TALLY_OF_POSTGRES = (
    "INSERT INTO tally (queue, state, jobs)"
    " SELECT queue, state, count(*) FROM job WHERE ended_at IS NOT NULL GROUP BY queue, state"
)


@contextmanager
def on_sqlite(finished: int, live: int) -> Iterator[Store]:
    with tempfile.TemporaryDirectory(dir=home()) as folder:
        store = SqliteStore(f"sqlite:///{Path(folder) / 'jobs.db'}?synchronous=normal", clock=CLOCK)
        reads.make(store, finished, live)
        yield store
        store.close()


@contextmanager
def on_postgres(finished: int, live: int) -> Iterator[Store]:
    with a_bed() as bed:
        store = PostgresStore(bed.url)
        fill_postgres(store, bed._db, finished, live)
        yield store
        store.close()


@contextmanager
def a_bed() -> Iterator[PostgresBed]:
    """Lend a schema of a server of our own."""
    os.environ.setdefault("BENCH_HOME", str(home()))
    bed = PostgresBed(Path())
    yield bed
    bed.close()


def fill_postgres(store: PostgresStore, db: psycopg.Connection[Any], finished: int, live: int) -> None:
    """Fill the store, each state with one statement. `db`: a connection to its schema."""
    queues = [f"queue-{number}" for number in range(10)]
    store.enroll(Worker(id="worker", name="box/1", host="box", pid=1, boot_id=CLOCK.boot_id, queues=queues, beat_s=1e6))
    first = 1
    for state, jobs in (
        ("dead", reads.DEAD),
        ("ready", live // 2),
        ("done", finished - reads.DEAD),
        ("ready", live),
        ("held", reads.HELD),
        ("running", reads.RUNNING),
    ):
        first = live // 2 + 1 if state == "ready" and jobs == live else 1
        values = {"state": state, "attempt": int(state != "ready"), "first": first, "jobs": jobs}
        db.execute(OF_POSTGRES, values)
    db.execute(EVENTS_OF_POSTGRES, {"jobs": reads.LOST})
    db.execute(TALLY_OF_POSTGRES)
    db.execute("VACUUM (ANALYZE)")


def some_trouble(store: Store) -> Job:
    """Add errors, a schedule, a paused queue and a few jobs of a rare task; return a job that died."""
    store.declare([Schedule(key="nightly", spec="0 3 * * *", tz="UTC", job=NewJob(id="", task="t", payload="{}"))])
    store.pause("queue-9", True, actor="ann", note="the bank is down")
    store.add([NewJob(id=new_id(), task="shop.rare", queue="rare", payload="{}") for _ in range(300)])
    jobs = store.claim("worker", new_id(), ["rare"], ["shop.rare"], 200)
    failed = Failed("ValueError: no luck", error_kind="ValueError", origin="shop.pay")
    store.settle([settlement(job, judge(failed, job, store.now().wall, chance=0.5)) for job in jobs])
    found = store.get(jobs[0].id)
    assert found is not None
    assert found.fingerprint is not None
    return found


def run(store: Store, words: list[str]) -> tuple[float, float, int]:
    """Return the seconds that a command took, those of its processor, and how many bytes it printed."""
    before, began = os.times(), time.perf_counter()
    ended = subprocess.run([sys.executable, "-m", "holdfast", "--db", store.url, *words], capture_output=True)
    took, after = time.perf_counter() - began, os.times()
    assert ended.returncode in (0, 7), (words, ended.stderr.decode())
    busy = after.children_user - before.children_user + after.children_system - before.children_system
    return took, busy, len(ended.stdout)


def main(kind: str = "sqlite", finished: int = 500_000, live: int = 100_000, rounds: int = 3) -> int:
    began = time.perf_counter()
    with (on_postgres if kind == "postgres" else on_sqlite)(finished, live) as store:
        job = some_trouble(store)
        print(f"{kind}, made in {time.perf_counter() - began:.0f} s: {insight.totals(store)}", flush=True)
        assert store.find(Filter(states=(State.RUNNING,)))
        given = {"FINGERPRINT": str(job.fingerprint), "JOB": job.id}
        asked = {command: [given.get(word, word) for word in command.split()] for command in COMMANDS}
        found: dict[str, list[tuple[float, float, int]]] = {command: [] for command in COMMANDS}
        for number in range(rounds + 1):
            for command, words in asked.items():
                took = run(store, words)
                found[command] += [took] if number else []  # the first round warms up
        print(f"{'median of ' + str(rounds) + ', ms':44}{'clock':>8}{'processor':>11}{'bytes':>9}")
        medians = {
            command: [statistics.median(each[place] for each in times) for place in (0, 1)]
            for command, times in found.items()
        }
        is_busy = medians["--version"][0] > BUSY_S
        for command, (took_s, busy_s) in medians.items():
            print(f"{command:44}{took_s * 1000:8.0f}{busy_s * 1000:11.0f}{found[command][-1][2]:9,}")
        slow = [command for command, times in medians.items() if times[is_busy] >= LIMIT_S]
        print("the machine is too busy for clocks: the processor's seconds decide" if is_busy else "", end="\n")
        store.retire("worker", "the measurement is over")
    print(f"a second or more: {', '.join(slow) or 'none'}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2], *map(int, sys.argv[2:])))
