"""How long it takes from a kill -9 until the job runs again; for the tests, and for `bench/recovery.py`.

Each function yields one figure a round, in seconds, from the ledger of the handlers: the clock is the host's own, and
the store that is being measured is not asked. The killed jobs were alone in their process. Where a worker has one slot,
they run again in its own process; where it has more, in a process of their own, which must be started first.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime

from holdfast.core.records import Worker
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Succeeded, judge
from holdfast.ids import new_id
from tests.crash.world import Process, World, now, until


def after_the_death_of_a_group(world: World, rounds: int, *flags: str) -> Iterator[float]:
    """A whole worker, supervisor and all, is killed; another one lives. lease_s=30."""
    flags = ("--slots", "1", *flags)
    groups = {name: world.worker(name, *flags).until_ready() for name in ("ann", "bob")}
    for _ in range(rounds):
        job = world.tasks.first_hangs.using(lease_s=30).enqueue().id
        world.until_started(job)
        name = world.holder(job).name.split("/")[0]
        killed_at = now()
        groups[name].kill()
        yield world.until_started(job, 2).at - killed_at
        world.until_state(job, "done")
        groups[name] = world.worker(name, *flags).until_ready()


def found_by_a_daemon(world: World, rounds: int) -> Iterator[float]:
    """The same, and nobody looks for the dead but `holdfast reaper`, as it comes. lease_s=30."""
    world.store.ping()  # it is there before anybody looks into it
    world.run("reaper", ["-m", "holdfast", "--db", world.url, "reaper"])
    yield from after_the_death_of_a_group(world, rounds, "--no-reaper")


def after_the_death_of_a_child(world: World, rounds: int, slots: int = 1) -> Iterator[float]:
    """One of two children is killed; the supervisor sees it end, and the other one takes over. lease_s=30."""
    worker = world.worker("w", "--slots", str(slots), processes=2).until_ready(2)
    for number in range(1, rounds + 1):
        job = world.tasks.first_hangs.using(lease_s=30).enqueue().id
        pid = world.until_started(job).pid
        assert pid in worker.children()
        killed_at = now()
        os.kill(pid, signal.SIGKILL)
        yield world.until_started(job, 2).at - killed_at
        world.until_state(job, "done")
        worker.until_ready(2 + number)  # the child that was started in its place


def in_a_process_of_its_own(world: World, rounds: int) -> Iterator[float]:
    """The same with workers of many slots. When no isolated process is warm, one is started. lease_s=30."""
    yield from after_the_death_of_a_child(world, rounds, slots=20)


def after_a_restart(world: World, rounds: int) -> Iterator[float]:
    """Nobody is left alive; later the same name is started again. From its readiness. lease_s=600."""
    worker = world.worker("w", "--slots", "1").until_ready()
    for _ in range(rounds):
        job = world.tasks.first_hangs.using(lease_s=600).enqueue().id
        world.until_started(job)
        worker.kill()
        worker = world.worker("w", "--slots", "1")
        again = world.until_started(job, 2)
        world.until_state(job, "done")
        yield max(0.0, again.wall - ready_at(worker))
        assert worker.said("recovered 1 orphaned jobs at start") == 1, "the sweep comes before the first claim"


BACKLOG, BEGUN = 10_000, 40


def behind_a_backlog(world: World, rounds: int) -> Iterator[float]:
    """A worker with forty running jobs is killed while ten thousand short ones wait; another worker lives. From the
    kill until the last of the forty runs again. They keep their places, so they come before the backlog."""
    for number in range(rounds):
        ann = world.worker("ann", "--slots", str(BEGUN)).until_ready()
        jobs = {world.tasks.first_hangs.using(lease_s=30).enqueue().id for _ in range(BEGUN)}
        until(lambda jobs=jobs: jobs <= {entry.job for entry in world.ledger("start")}, "all have begun")  # type: ignore[misc]
        bob = world.worker(f"bob{number}").until_ready()
        world.app.enqueue_many([world.tasks.quick.job(0.05) for _ in range(BACKLOG)])
        killed_at = now()
        ann.kill()

        def again(jobs: set[str] = jobs) -> list[float]:
            starts = {entry.job: entry.at for entry in world.ledger("start") if entry.attempt > 1 and entry.job in jobs}
            return sorted(starts.values()) if len(starts) == BEGUN else []

        yield until(again, "all forty run again")[-1] - killed_at
        assert world.app.counts()["ready"] > 0, "the backlog was done before: this shows nothing"
        bob.kill()
        drain(world)


def behind_a_backlog_under_a_pin(world: World, rounds: int) -> Iterator[float]:
    """The same while an old transaction keeps dead entries, so that claims read from a cursor."""
    with closing(world.connect()) as old:
        old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM pg_class")
        leave_dead_entries(world, DEAD)
        yield from behind_a_backlog(world, rounds)


DEAD = 60_000


def leave_dead_entries(world: World, number: int) -> None:
    """Add and finish so many jobs: while a transaction is older than these, nothing of them is cleared away."""
    world.app.enqueue_many([world.tasks.quick.job() for _ in range(number)])
    drain(world)


def drain(world: World) -> None:
    """Finish the short jobs that wait, without running them."""
    store, me = world.store, new_id()
    store.enroll(Worker(id=me, name="drain", host="here", pid=1, boot_id=world.app.clock.boot_id))
    while jobs := store.claim(me, new_id(), ["default"], ["quick"], 1000):
        store.settle([settlement(job, judge(Succeeded("null"), job, 0.0, chance=0.5)) for job in jobs])
    store.retire(me, "left")


def ready_at(worker: Process) -> float:
    """When it said that it was ready, in wall time, by its own log."""

    def line() -> str | None:
        lines = worker.log.read_text().splitlines()
        return next((line for line in lines if " is ready: " in line), None)

    said = until(line, "it is ready")
    return datetime.strptime(said[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()


STORES = ("sqlite", "postgres", "redis")
FOUND_S = {"sqlite": 1.0, "postgres": 3.0, "redis": 3.0}
SCENES = {  # and how long each may take on each store
    "group killed, another worker alive, lease 30 s": (
        after_the_death_of_a_group,
        FOUND_S,
    ),
    "group killed, only `holdfast reaper` looks, lease 30 s": (
        found_by_a_daemon,
        FOUND_S,
    ),
    "one child killed, seen by its supervisor, lease 30 s": (
        after_the_death_of_a_child,
        dict.fromkeys(STORES, 0.25),
    ),
    "nobody left, same name started again, lease 600 s": (
        after_a_restart,
        dict.fromkeys(STORES, 1.0),
    ),
}
BUSY_SCENES = {
    "one child of many slots killed: in a process of its own": (
        in_a_process_of_its_own,
        dict.fromkeys(STORES, 3.0),
    ),
    "40 jobs of a killed group, 10,000 others wait": (behind_a_backlog, {"sqlite": 1.5, "postgres": 3.5, "redis": 3.5}),
    "the same under a pinned transaction": (behind_a_backlog_under_a_pin, {"postgres": 3.5}),
}
