"""What isolation costs: no-ops on a full queue, each in a cell.  .venv/bin/python bench/isolated.py [jobs] [rounds]

`holdfast worker --isolate --slots 2` has two cells at work. Beside it the same slots in-process, within the same round.
10,000 jobs and 3 rounds by default; exits non-zero when a median of the isolated ones misses the goal.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from bench import home
from ground import QUICK, Ground, fill, worker
from stores import STORES
from tasks import make_app
from watch import watch

GOAL = 1_500  # jobs a second, with two cells
WAYS = {
    "isolated, async": ("async_noop", "--isolate", "--slots", "2"),
    "isolated, sync": ("sync_noop", "--isolate", "--slots", "2"),
    "in-process, async": ("async_noop", "--slots", "2"),
    "in-process, sync": ("sync_noop", "--slots", "2"),
}


def main(jobs: int, rounds: int, store: str) -> int:
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory(dir=home()) as name:
        os.environ["BENCH_FOLDER"] = name
        ground = Ground(STORES[store], QUICK, Path(name))
        for _ in range(rounds):
            for way, (task, *options) in WAYS.items():
                rates[way].append(drain(ground, jobs, task, *options))
    print(f"{store}: jobs a second, {jobs} no-ops on 2 slots, {rounds} rounds".ljust(58), "lowest  median highest")
    missed = 0
    for way, figures in rates.items():
        median = statistics.median(figures)
        missed += way.startswith("isolated") and median < GOAL
        print(f"{way:58} {min(figures):6,.0f} {median:7,.0f} {max(figures):7,.0f}")
    print(f"the goal of {GOAL:,} isolated jobs a second is " + ("MISSED" if missed else "reached"))
    return 1 if missed else 0


def drain(ground: Ground, jobs: int, task: str, *options: str) -> float:
    with ground.fresh() as bed:
        with make_app(bed.url) as app:
            fill(app, task, jobs)
        with worker(bed, *options):
            return watch(bed.done, jobs).rate


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="what isolation costs")
    parser.add_argument("jobs", type=int, nargs="?", default=10_000)
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("--store", choices=STORES, default="sqlite")
    given = parser.parse_args()
    sys.exit(main(given.jobs, given.rounds, given.store))
