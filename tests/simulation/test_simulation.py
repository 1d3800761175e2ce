"""A fleet in bad fault_rates, seed by seed, keeps every promise over the real core.

`bench/simulate.py --seeds 10000` goes on where this stops; `--first 17 --seeds 1` plays one seed again.
"""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from holdfast.stores.memory import MemoryStore
from holdfast.testing import FakeClock
from tests.conftest import open_store
from tests.simulation.checker import Violation
from tests.simulation.simulation import Simulated, simulate

SEEDS = 150
SQLITE_SEEDS = 10

# What must have happened at least once over all seeds; otherwise they prove nothing about it.
SOMETIMES = (
    *("kills", "kills in the middle of a call", "pauses past the lease", "outages", "late calls"),
    *(f"answers lost: {verb}" for verb in ("add", "claim", "beat", "settle", "move", "retire", "enroll", "acquire")),
    *(f"calls lost: {verb}" for verb in ("add", "claim", "beat", "settle", "move", "retire", "enroll", "acquire")),
    *("claims repeated", "adds that existed", "settles already accepted", "settles judged again", "acts repeated"),
    *("stale settles", "leases made of two", "beats of the lost", "beats of the gone", "workers that enrolled anew"),
    *("reapers that came second", "reapers that met a beat", "acts under an old term", "acts that came too late"),
    *("locks that looked free once", "living workers declared dead", "leases that ran out under the living"),
    *("handlers that fenced themselves", "processes that fenced themselves", "leases too old to begin with"),
    *(f"found by {detector}" for detector in ("exit", "vanished", "expired", "restart")),
    *(f"lost: {state}" for state in ("ready", "held", "dead", "cancelled")),
    *(f"ended: {state}" for state in ("ready", "held", "dead", "cancelled", "done")),
    *(f"acts: {move}" for move in ("revive", "hold", "cancel", "resolve", "bury", "reschedule")),
    "acts refused for a key",
)


def over_memory(seed: int) -> Simulated:
    clock = FakeClock()
    return simulate(Random(seed), MemoryStore(clock=clock), clock)


def over_sqlite(seed: int, folder: Path) -> Simulated:
    clock = FakeClock()
    folder.mkdir()
    store = open_store("sqlite", clock, folder)
    store.migrate()
    try:
        return simulate(Random(seed), store, clock)
    finally:
        for worker in store.workers():
            store.retire(worker.id, "the test is over")  # drops its liveness lock
        store.close()


@pytest.mark.slow  # many fleets, each of them for minutes of virtual time
def test_every_promise_holds_under_faults() -> None:
    seen: Counter[str] = Counter()
    jobs = turns = 0
    for seed in range(SEEDS):
        try:
            run = over_memory(seed)
        except Violation as broken:
            broken.add_note(f"seed {seed}: bench/simulate.py --first {seed} --seeds 1")
            raise
        seen += run.sometimes
        jobs, turns = jobs + run.jobs, turns + run.turns
    print(f"{SEEDS} seeds, {jobs} jobs, {turns} turns")
    never = [what for what in SOMETIMES if not seen[what]]
    assert never == [], "the seeds prove nothing about these"


@pytest.mark.slow  # SQLite commits every call of it
@pytest.mark.parametrize("seed", range(SQLITE_SEEDS))
def test_the_same_fleet_over_sqlite_ends_in_the_same_rows(seed: int, tmp_path: Path) -> None:
    assert over_sqlite(seed, tmp_path / "store") == over_memory(seed)


def test_a_seed_tells_everything() -> None:
    assert over_memory(3) == over_memory(3)
    assert over_memory(3) != over_memory(4)
