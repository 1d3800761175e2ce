"""Long runs of the nets that the suite casts briefly: a simulated fleet, an exhaustive model, the two stores compared.

    .venv/bin/python bench/verify.py --seeds 10000            the fleet, on every core
    .venv/bin/python bench/verify.py --first 17 --seeds 1     one seed again, with its last calls if it fails
    .venv/bin/python bench/verify.py --seeds 200 --sqlite     over SQLite instead of memory
    .venv/bin/python bench/verify.py --model                  the small worlds of the suite and the larger ones
    .venv/bin/python bench/verify.py --agree 5000             memory and SQLite, that many drawn runs

Exit code 1 when a promise is broken. A seed tells everything: it fails again wherever it is played.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.simulation.checker import Violation
from tests.simulation.model_check import explore
from tests.simulation.simulation import Simulated, simulate

from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import FakeClock

ROOT = Path(__file__).resolve().parent.parent


def play(seed: int, sqlite: bool) -> Simulated | str:
    """Play one seed; return what it saw, or what went wrong in words."""
    logging.disable(logging.CRITICAL)
    clock = FakeClock()
    try:
        if not sqlite:
            return simulate(Random(seed), MemoryStore(clock=clock), clock)
        with tempfile.TemporaryDirectory(prefix="simulate-") as folder:
            store = SqliteStore(f"sqlite:///{folder}/jobs.db?synchronous=normal", clock=clock)
            store.migrate()
            run = simulate(Random(seed), store, clock)
            for worker in store.workers():
                store.retire(worker.id, "the run is over")
            store.close()
            return run
    except Violation:
        return f"seed {seed} broke a promise\n{traceback.format_exc()}"


def play_all(first: int, seeds: int, sqlite: bool, processes: int) -> int:
    began = time.perf_counter()
    seen: Counter[str] = Counter()
    broken = jobs = turns = 0
    with ProcessPoolExecutor(processes) as pool:
        runs = pool.map(partial(play, sqlite=sqlite), range(first, first + seeds), chunksize=10)
        for number, run in enumerate(runs, 1):
            if isinstance(run, str):
                broken += 1
                print(run, flush=True)
                continue
            seen += run.sometimes
            jobs, turns = jobs + run.jobs, turns + run.turns
            if number % 1000 == 0:
                print(f"{number} seeds, {time.perf_counter() - began:.0f} s", flush=True)
    for what, times in sorted(seen.items()):
        print(f"{times:9}  {what}")
    took_s = time.perf_counter() - began
    print(f"{seeds} seeds from {first}: {jobs} jobs, {turns} turns, {took_s:.0f} s, {broken} broke a promise")
    return min(broken, 1)


def explore_one(name: str) -> str:
    from tests.simulation.worlds import LARGE, WORLDS

    logging.disable(logging.CRITICAL)
    began = time.perf_counter()
    found = explore({**WORLDS, **LARGE}[name], states_max=10_000_000)
    took_s = time.perf_counter() - began
    return f"{name:40} {found.states:9} states {found.transitions:9} transitions {found.ends:9} ends {took_s:6.0f} s"


def explore_all(processes: int) -> int:
    from tests.simulation.worlds import LARGE, WORLDS

    with ProcessPoolExecutor(processes) as pool:
        for line in pool.map(explore_one, [*WORLDS, *LARGE]):
            print(line, flush=True)
    return 0


def agree(examples: int) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "--timeout=0", "tests/agreement"]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "HOLDFAST_EXAMPLES": str(examples)}).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=0, help="how many fleets to simulate")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--sqlite", action="store_true", help="simulate over SQLite")
    parser.add_argument("--model", action="store_true", help="explore the small worlds and the larger ones")
    parser.add_argument("--agree", type=int, default=0, metavar="RUNS", help="compare memory and SQLite")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if not (given.seeds or given.model or given.agree):
        given.seeds = 10_000
    code = 0
    if given.seeds:
        code |= play_all(given.first, given.seeds, given.sqlite, given.processes)
    if given.model:
        code |= explore_all(given.processes)
    if given.agree:
        code |= agree(given.agree)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
