"""What a choice of jobs costs.  .venv/bin/python bench/chosen.py [sqlite|postgres] [finished] [live] [rounds]

500,000 finished and 100,000 live jobs by default. One finished job in 50 is dead; one in 20 had an error once, of five
kinds and two releases. 500 jobs are held. 20,000 attempts of the last day lost their worker; people acted 2,000 times.
Asks what `jobs list`, a dry run of an act, `audit` and a shortened id ask, in this process, warm, and prints the median
in ms, and the CPU time of this process, which a busy machine does not change. Exits with 1 when one of them takes
longer than a second.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ground import home
from stores import PostgresBed

from holdfast import insight
from holdfast.acts.mass import MassAct, list_for
from holdfast.clock import SystemClock
from holdfast.insight import Selection
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore

CLOCK = SystemClock()
HELD, LOST, ACTS = 500, 20_000, 2_000
LIMIT_MS = 1_000.0
HOUR_S = 3600.0

# One statement for both: {numbers} yields n from 1 to the number of jobs, {id} makes an id of a name and n.
JOBS = """
INSERT INTO {job} (
    id, task, queue, payload, state, run_at, created_at, attempt, fence, claim_id, claimed_at, failures, error,
    ended_at, attempts_max, backoff_base_s, backoff_cap_s, backoff_jitter, crashes_max, on_crash, lease_s, beat_s,
    fingerprint, release, erred_at
)
SELECT {id}, 'shop.task_' || (n % 20), 'queue-' || (n % 10), '{{"args":[' || n || ']}}', {state},
    {wall} - 90000 + n * 0.15, {wall} - 90000 + n * 0.15, {attempt}, {attempt},
    CASE WHEN {attempt} > 0 THEN 'claim' END, CASE WHEN {attempt} > 0 THEN {wall} - 5000 END, 0,
    CASE WHEN {state} = 'dead' THEN 'ValueError: no' END, CASE WHEN {ended} THEN {wall} - 89000 + n * 0.15 END,
    3, 1.0, 60.0, {true}, 3, 'retry', 30.0, 10.0,
    CASE WHEN {erred} THEN 'fingerprint-' || (n % 3) END, CASE WHEN {erred} THEN '1.' || (n % 2) END,
    CASE WHEN {erred} THEN {wall} - 89000 + n * 0.15 END
FROM {numbers}
"""
TALLY = """
INSERT INTO {tally} (queue, state, jobs)
SELECT queue, state, count(*) FROM {job} WHERE ended_at IS NOT NULL GROUP BY queue, state
"""
LINES = """
INSERT INTO {journal} (job_id, at, kind, fence, worker, actor, detail)
SELECT {id}, {wall} - 80000 + n * {every}, {kind}, 1, {worker}, {actor}, '{{"detector":"vanished","note":"so"}}'
FROM {numbers}
"""


def statements(finished: int, live: int, *, postgres: bool) -> list[str]:
    """Return what fills a store."""
    if postgres:
        names = {"job": "job", "tally": "tally", "journal": "journal", "true": "true"}
        numbers = "generate_series(1, {}) AS n"
        id_of = "'{}-' || lpad(n::text, 12, '0')"
    else:
        names = {"job": "holdfast_job", "tally": "holdfast_tally", "journal": "holdfast_journal", "true": "1"}
        upto = "(WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < {})"
        numbers = f"{upto} SELECT n FROM number)"
        id_of = "printf('{}-%012d', n)"
    always: dict[str, Any] = {**names, "wall": CLOCK.wall()}

    def jobs(name: str, many: int, state: str, attempt: int, ended: str, erred: str) -> str:
        given = {"id": id_of.format(name), "numbers": numbers.format(many), "attempt": attempt}
        return JOBS.format(**always, **given, state=state, ended=ended, erred=erred)

    def lines(name: str, many: int, **given: Any) -> str:
        return LINES.format(**always, **given, id=id_of.format(name), numbers=numbers.format(many))

    dead = "CASE WHEN n % 50 = 0 THEN 'dead' ELSE 'done' END"
    return [
        jobs("finished", finished, dead, 1, "true", "n % 20 = 0 OR n % 50 = 0"),
        jobs("ready", live - HELD, "'ready'", 0, "false", "false"),
        jobs("held", HELD, "'held'", 1, "false", "true"),
        TALLY.format(**always),
        lines("finished", LOST, kind="'zombie'", worker="'w'", actor="NULL", every=4),
        lines("finished", finished, kind="'succeeded'", worker="'w'", actor="NULL", every=0.1),
        lines("finished", ACTS, kind="'revived'", worker="NULL", actor="'person-' || (n % 7)", every=40),
    ]


def questions(store: Store) -> dict[str, Callable[[], object]]:
    """Return what is asked."""
    now = CLOCK.wall()

    def first(**chosen: Any) -> Callable[[], object]:
        return lambda: insight.first_selected(store, Selection(**chosen), 50)

    def plan(name: Any, **chosen: Any) -> Callable[[], object]:
        act = MassAct(name=name, actor="ann", queue="slow" if name == "move" else None)
        return lambda: list_for(store, act, Selection(**chosen))

    return {
        "list --error": first(error="fingerprint-1"),
        "list --error, one that no job has": first(error="unknown"),
        "list --error --since --task": first(error="fingerprint-1", since=now - HOUR_S, task="shop.task_10"),
        "list --release": first(release="1.1"),
        "list --release, one that no job has": first(release="unknown"),
        "list --since": first(since=now - HOUR_S),
        "list --since, when nothing happened": first(since=now + HOUR_S),
        "list --state done --since": first(states=("done",), since=now - HOUR_S),
        "list --state done --until, long ago": first(states=("done",), until=now - 88_990),
        "list --crashed": first(crashed=True, since=now - 86_400),
        "list --crashed --detector, none": first(detector="exit", since=now - 86_400),
        "revive --error --since, dry": plan("revive", error="fingerprint-1", since=now - HOUR_S * 10),
        "revive --all, dry": plan("revive"),
        "held approve --all, dry": plan("approve"),
        "cancel --task, dry": plan("cancel", task="shop.task_3"),
        "move --queue, dry": plan("move", queue="queue-3"),
        "id in short": lambda: insight.full_id(store, "0193bbbb"),
        "task in short": lambda: insight.task_named(store, "task_3"),
        "audit": lambda: insight.acts_of_people(store, None, None, 50),
        "audit --by --since": lambda: insight.acts_of_people(store, now - HOUR_S, "person-3", 50),
    }


def ask(store: Store, rounds: int) -> int:
    slow = 0
    for name, question in questions(store).items():
        question()
        times, used = [], []
        for _ in range(rounds):
            began, cpu = time.perf_counter(), time.process_time()
            question()
            times.append((time.perf_counter() - began) * 1000)
            used.append((time.process_time() - cpu) * 1000)
        took = statistics.median(times)
        slow += took > LIMIT_MS
        late = "  TOO SLOW" if took > LIMIT_MS else ""
        print(f"{name:<40} {took:>9.1f} ms, {statistics.median(used):>8.1f} of this process{late}", flush=True)
    return 1 if slow else 0


def main(kind: str = "sqlite", finished: int = 500_000, live: int = 100_000, rounds: int = 7) -> int:
    filling = statements(finished, live, postgres=kind == "postgres")
    if kind == "postgres":
        bed = PostgresBed(Path())
        store = PostgresStore(bed.url)
        store.migrate()
        with store._db.connection() as db:
            for statement in [*filling, "ANALYZE job", "ANALYZE journal"]:
                db.execute(statement.encode())
        return ask(store, rounds)
    with tempfile.TemporaryDirectory(dir=home()) as folder:
        file = SqliteStore(f"sqlite:///{folder}/chosen.db")
        file.migrate()
        with file._db.writing(busy_s=60) as db:
            for statement in filling:
                db.execute(statement)
        with file._db.reading() as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return ask(file, rounds)


if __name__ == "__main__":
    kind, *numbers = sys.argv[1:] or ["sqlite"]
    sys.exit(main(kind, *map(int, numbers)))
