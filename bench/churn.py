"""The rate of a busy queue while an old transaction keeps dead rows.  .venv/bin/python bench/churn.py [jobs] [slices]

A server of its own with autovacuum off, and three sides, each with a database. On the side `pinned` a session opens a
transaction and does nothing, so that nothing that dies there can be cleared away. `free` is the same without that
transaction. `new` is what the two are compared with: a store that is made for each slice, so nothing has died in it
and nothing lies in it. On all sides jobs are added, claimed and settled in batches of 500 through the store's verbs,
slice by slice in turn, so that the noise of the machine meets all. Prints the rate and what each verb took, slice by
slice, and exits non-zero when the rate under the pin falls below 80 % of that of a new store.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeVar

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.servers import PostgresServer

from holdfast.clock import SystemClock
from holdfast.core.policy import Policy
from holdfast.core.records import NewJob, Worker
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Succeeded, judge
from holdfast.ids import new_id
from holdfast.stores.postgres.store import PostgresStore

T = TypeVar("T")
BATCH = 500
KEPT = 0.8
SIDES = ("new", "free", "pinned")


class Side:
    """One database, and how long each verb took there."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self._url = url
        self._stores = 0
        self.begin()

    def begin(self) -> None:
        """Go on in a new store."""
        if self._stores:
            self.store.close()
        self._stores += 1
        self.store = PostgresStore(f"{self._url}?schema=s{self._stores}")
        self.store.migrate()
        self._me = new_id()
        self.store.enroll(Worker(id=self._me, name="churn", host="here", pid=1, boot_id=SystemClock().boot_id))
        self.took: dict[str, list[float]] = defaultdict(list)

    def churn(self, jobs: int) -> float:
        """Add, claim and settle so many jobs; return how many a second that was."""
        self.took.clear()
        began = time.perf_counter()
        for _ in range(jobs // BATCH):
            new = [NewJob(id=new_id(), task="t", payload="{}", policy=Policy()) for _ in range(BATCH)]
            self._time("add", lambda new=new: self.store.add(new))  # type: ignore[misc]
            claimed = self._time("claim", lambda: self.store.claim(self._me, new_id(), ["default"], ["t"], BATCH))
            endings = [settlement(job, judge(Succeeded("null"), job, 0.0, chance=0.5)) for job in claimed]
            self._time("settle", lambda endings=endings: self.store.settle(endings))  # type: ignore[misc]
        return jobs / (time.perf_counter() - began)

    def _time(self, verb: str, call: Callable[[], T]) -> T:
        began = time.perf_counter()
        try:
            return call()
        finally:
            self.took[verb].append((time.perf_counter() - began) * 1000)

    def told(self) -> Iterator[str]:
        for verb, times in self.took.items():
            yield f"{verb} {sum(times) / len(times):.1f} ({max(times):.0f})"


def main(jobs: int = 200_000, slices: int = 20) -> int:
    with ExitStack() as stack:
        server = PostgresServer(settings=("autovacuum=off",))
        stack.callback(server.close)
        base = server.url.removesuffix("postgres")
        with closing(psycopg.connect(server.url, autocommit=True)) as db:
            for name in SIDES:
                db.execute(f"CREATE DATABASE {name}")
        sides = [Side(name, base + name) for name in SIDES]
        for side in sides:
            stack.callback(lambda side=side: side.store.close())  # type: ignore[misc]
        old = stack.enter_context(closing(psycopg.connect(base + "pinned")))
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM pg_class")
        rates: dict[str, list[float]] = {side.name: [] for side in sides}
        print("each verb for 500 jobs: mean ms (longest)")
        for number in range(slices):
            for side in sides:
                if side.name == "new":
                    side.begin()
                rates[side.name].append(side.churn(jobs // slices))
                done = (number + 1) * (jobs // slices)
                print(
                    f"{done:9,}  {side.name:7} {rates[side.name][-1]:8,.0f} jobs/s   {', '.join(side.told())}",
                    flush=True,
                )
    tail = slices - slices // 4  # by then the dead have piled up
    new, free, pinned = (sum(rates[name][tail:]) / len(rates[name][tail:]) for name in SIDES)
    print(
        f"the last {(slices - tail) * (jobs // slices):,} jobs: a new store {new:,.0f} jobs/s; "
        f"free {free:,.0f}, {free / new:.2f} times; pinned {pinned:,.0f}, {pinned / new:.2f} times (goal {KEPT})"
    )
    return 0 if pinned / new >= KEPT else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
