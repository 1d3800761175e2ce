"""What millions of finished jobs cost.  .venv/bin/python bench/large.py [queued] [finished] [rounds]

1,000,000 queued and 5,000,000 finished by default, on PostgreSQL. Two schemas of one server hold the same queue, the
same held jobs and the same overdue leases; one of them also holds the finished jobs, which came after all of these.
What a worker, a reaper and a person ask is measured in both by turns. Prints medians in ms, and exits non-zero when
one of them is more than twice as slow among the finished ones. Every round takes 520 jobs.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import home
from stores import CLOCK, PostgresBed

from holdfast import insight
from holdfast.core.machine import State
from holdfast.core.records import Filter, Job, Worker
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Succeeded, judge
from holdfast.ids import new_id
from holdfast.stores.postgres.store import PostgresStore
from holdfast.upkeep.reaper import Reaper

TASK = "tasks.async_noop"
HELD, OVERDUE, RARE = 500, 1_000, 200
DEAD_EVERY = 50  # of the finished ones
READS = 5  # of each reading question in one round; claims are asked once
MOST = 2.0
Question = Callable[[], object]

COLUMNS = (
    "id, task, queue, payload, state, run_at, created_at, attempt, fence, claim_id, worker, lease_until, claimed_at,"
    " failures, error, result, ended_at, attempts_max, backoff_base_s, backoff_cap_s, backoff_jitter, crashes_max,"
    " on_crash, lease_s, beat_s"
)
POLICY = "3, 1.0, 60.0, true, 3, 'retry', 30.0, 10.0"
NOW = "extract(epoch FROM now())::float8"
LIVE = f"""
INSERT INTO job ({COLUMNS})
SELECT %(name)s::text || lpad(n::text, 12, '0'), %(task)s, %(queue)s, '{{}}', %(state)s, {NOW} - 10, {NOW} - 10,
    %(attempt)s, %(attempt)s, %(claim)s::text, %(worker)s::text, CASE WHEN %(state)s = 'running' THEN {NOW} - 5 END,
    CASE WHEN %(attempt)s > 0 THEN {NOW} - 35 END, 0, NULL, NULL, NULL, {POLICY}
FROM generate_series(1, %(jobs)s) AS n
"""
FINISHED = f"""
INSERT INTO job ({COLUMNS})
SELECT 'finished-' || lpad(n::text, 12, '0'), %(task)s, 'default', '{{}}',
    CASE WHEN n %% %(dead)s = 0 THEN 'dead' ELSE 'done' END, {NOW} - 3600, {NOW} - 3600,
    CASE WHEN n %% %(dead)s = 0 THEN 3 ELSE 1 END, CASE WHEN n %% %(dead)s = 0 THEN 3 ELSE 1 END, 'claim', NULL, NULL,
    {NOW} - 3599, CASE WHEN n %% %(dead)s = 0 THEN 3 ELSE 0 END, CASE WHEN n %% %(dead)s = 0 THEN 'ValueError: no' END,
    CASE WHEN n %% %(dead)s = 0 THEN NULL ELSE 'null' END, {NOW} - 3600 + n * 1e-4, {POLICY}
FROM generate_series(1, %(jobs)s) AS n
"""
TALLY = (
    "INSERT INTO tally (queue, state, jobs)"
    " SELECT queue, state, count(*) FROM job WHERE ended_at IS NOT NULL GROUP BY queue, state"
)


class Side:
    """One schema with its queue, and a worker that claims from it."""

    def __init__(self, queued: int, finished: int) -> None:
        self.bed = PostgresBed(Path())
        self.store = PostgresStore(self.bed.url)
        self.me, self.silent = new_id(), new_id()
        for id in (self.me, self.silent):
            self.store.enroll(Worker(id=id, name="large", host="here", pid=1, boot_id=CLOCK.boot_id, beat_s=1e6))
        self._live("rare", "rare", "ready", RARE)
        self._live("held", "default", "held", HELD, attempt=1, claim="claim")
        self._live("late", "default", "running", OVERDUE, attempt=1, claim="claim", worker=self.silent)
        self._live("queued", "default", "ready", queued)
        if finished:
            self._run(FINISHED, {"task": TASK, "jobs": finished, "dead": DEAD_EVERY})
            self._run(TALLY, {})
        self._run("VACUUM (ANALYZE) job", {})
        self._run("CHECKPOINT", {})
        self.reaper = Reaper(self.store, CLOCK)

    def questions(self) -> dict[str, Question]:
        store = self.store
        return {
            "claim of 20": lambda: self.claim(20),
            "claim of 500": lambda: self.claim(500),
            "due": lambda: store.due(["default", "rare"], [TASK]),
            "overdue": store.overdue,
            "deadline": store.deadline,
            "a pass of the reaper": lambda: self.reaper.once(fix=False),
            "find: newest": lambda: store.find(Filter()),
            "find: held": lambda: store.find(Filter(states=(State.HELD,))),
            "find: ready": lambda: store.find(Filter(states=(State.READY,))),
            "find: running": lambda: store.find(Filter(states=(State.RUNNING,))),
            "find: a queue": lambda: store.find(Filter(queue="default")),
            "find: a queue, ready": lambda: store.find(Filter(queue="default", states=(State.READY,))),
            "find: a queue of few": lambda: store.find(Filter(queue="rare")),
            "counts": store.counts,
            "queue_views": lambda: insight.queue_views(store),
            "rates": lambda: store.figures.flow(CLOCK.wall() - 300),
            "zombies of a day": lambda: insight.look_back(store, 86_400),
            "counters": store.figures.counters,
            "get": lambda: store.get("queued000000000001"),
        }

    def claim(self, limit: int) -> list[Job]:
        return self.store.claim(self.me, new_id(), ["default"], [TASK], limit)

    def settle(self, jobs: list[Job]) -> None:
        self.store.settle([settlement(job, judge(Succeeded("null"), job, 0.0, chance=0.5)) for job in jobs])

    def close(self) -> None:
        self.store.close()
        self.bed.close()

    def _live(self, name: str, queue: str, state: str, jobs: int, **lease: object) -> None:
        values = {"name": name, "task": TASK, "queue": queue, "state": state, "jobs": jobs}
        self._run(LIVE, {**values, "attempt": 0, "claim": None, "worker": None, **lease})

    def _run(self, statement: str, values: dict[str, object]) -> None:
        self.bed._db.execute(statement, values or None)  # type: ignore[call-overload]


def ask(side: Side, name: str, question: Question) -> float:
    """Return how long an answer takes, in ms."""
    took = []
    for _ in range(1 if name.startswith("claim") else READS):
        began = time.perf_counter()
        answer = question()
        took.append((time.perf_counter() - began) * 1000)
        if name.startswith("claim"):
            assert isinstance(answer, list)
            assert answer, "the queue is empty: too many rounds for so few jobs"
            side.settle(answer)
    return statistics.median(took)


def main(queued: int = 1_000_000, finished: int = 5_000_000, rounds: int = 10) -> int:
    os.environ.setdefault("BENCH_HOME", str(home()))
    began = time.perf_counter()
    sides = [Side(queued, 0), Side(queued, finished)]
    said = ", ".join(f"{jobs:,} {state}" for state, jobs in sides[1].store.counts()["default"].items())
    print(f"made in {time.perf_counter() - began:.0f} s: {said}", flush=True)
    trouble = sides[1].store.check()
    asked = [side.questions() for side in sides]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in asked[0]}
    for number in range(rounds + 1):
        for name, times in found.items():
            one, other = (ask(side, name, questions[name]) for side, questions in zip(sides, asked, strict=True))
            if number:  # the first round warms up
                times.append((one, other))
    slow = []
    print(f"{'median, ms':24}{'without':>10}{'with them':>12}{'times':>8}")
    for name, times in found.items():
        one, other = (statistics.median(each) for each in zip(*times, strict=True))
        ratio = statistics.median(b / a for a, b in times)
        print(f"{name:24}{one:10.2f}{other:12.2f}{ratio:8.2f}")
        if ratio > MOST:
            slow.append(name)
    for side in sides:
        side.close()
    print(f"more than {MOST:g} times: {', '.join(slow) or 'none'}", *trouble, sep="\n")
    return 1 if slow or trouble else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
