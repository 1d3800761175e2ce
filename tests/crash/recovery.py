"""How long it takes from a kill -9 until the job runs again; for the tests, and for `bench/recovery.py`.

Each function yields one figure a round, in seconds, from the ledger of the handlers: the clock is the host's own, and
the store that is being measured is not asked.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import datetime

from tests.crash.world import Process, World, now, until


def after_the_death_of_a_group(world: World, rounds: int, *flags: str) -> Iterator[float]:
    """A whole worker, supervisor and all, is killed; another one lives. lease_s=30."""
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


def after_the_death_of_a_child(world: World, rounds: int) -> Iterator[float]:
    """One of two children is killed; the supervisor sees it end, and the other one takes over. lease_s=30."""
    worker = world.worker("w", processes=2).until_ready(2)
    for number in range(1, rounds + 1):
        job = world.tasks.first_hangs.using(lease_s=30).enqueue().id
        pid = world.until_started(job).pid
        assert pid in worker.children()
        killed_at = now()
        os.kill(pid, signal.SIGKILL)
        yield world.until_started(job, 2).at - killed_at
        world.until_state(job, "done")
        worker.until_ready(2 + number)  # the child that was started in its place


def after_a_restart(world: World, rounds: int) -> Iterator[float]:
    """Nobody is left alive; later the same name is started again. From its readiness. lease_s=600."""
    worker = world.worker("w").until_ready()
    for _ in range(rounds):
        job = world.tasks.first_hangs.using(lease_s=600).enqueue().id
        world.until_started(job)
        worker.kill()
        worker = world.worker("w")
        again = world.until_started(job, 2)
        world.until_state(job, "done")
        yield max(0.0, again.wall - ready_at(worker))
        assert worker.said("recovered 1 orphaned jobs at start") == 1, "the sweep comes before the first claim"


def ready_at(worker: Process) -> float:
    """When it said that it was ready, in wall time, by its own log."""

    def line() -> str | None:
        lines = worker.log.read_text().splitlines()
        return next((line for line in lines if " is ready: " in line), None)

    said = until(line, "it is ready")
    return datetime.strptime(said[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()


SCENES = {  # and how long each may take on each store
    "group killed, another worker alive, lease 30 s": (after_the_death_of_a_group, {"sqlite": 1.0, "postgres": 3.0}),
    "group killed, only `holdfast reaper` looks, lease 30 s": (found_by_a_daemon, {"sqlite": 1.0, "postgres": 3.0}),
    "one child killed, seen by its supervisor, lease 30 s": (
        after_the_death_of_a_child,
        {"sqlite": 0.25, "postgres": 0.25},
    ),
    "nobody left, same name started again, lease 600 s": (after_a_restart, {"sqlite": 1.0, "postgres": 1.0}),
}
