"""One last job for each batch, whatever dies: the worker beside its settle or while it ends the batch, the producer
between two chunks."""

from __future__ import annotations

import signal

import pytest

from tests.crash.test_failpoints import KILLED, on
from tests.crash.world import World, on_every_store, until

pytestmark = pytest.mark.slow  # workers are killed and started again


def ended(world: World, batch: str) -> dict[str, int]:
    """Wait until the batch has ended and its last job has run; return what that got."""
    until(lambda: world.app.get_batch(batch).state == "ended", "the batch has ended")
    until(lambda: len(world.app.find("done", task="added_up")) == 1, "its last job has run")
    [last] = world.app.find(task="added_up")
    counts: dict[str, int] = last.result(timeout=1)
    states = [job.state.value for job in world.app.batch_jobs(batch)]
    assert {state: counts[state] for state in set(states)} == {state: states.count(state) for state in set(states)}
    return counts


def fill(world: World, jobs: int = 12) -> str:
    with world.app.batch(then=world.tasks.added_up) as batch:
        batch.add(*(world.tasks.tells.job(number % 3 == 0) for number in range(jobs)))
    return batch.id


@on({"sqlite": (1, 2), "postgres": (1,), "redis": (1,)}, ["settle.before", "settle.after"])
def test_a_worker_that_dies_beside_its_settle(world: World, point: str, passing: int) -> None:
    batch = fill(world)
    assert world.lone_worker("victim", f"{point}=kill:{passing}").wait() == KILLED
    world.worker("rescue")
    counts = ended(world, batch)  # a job that was running when its worker died is dead: it has one attempt
    assert (counts["done"] + counts["dead"], counts["complete"]) == (12, 1)


@on({"sqlite": (1,), "postgres": (1,), "redis": (1,)}, ["end_batch.before", "end_batch.after"])
def test_a_worker_that_dies_while_it_ends_the_batch(world: World, point: str, passing: int) -> None:
    batch = fill(world)
    assert world.lone_worker("victim", f"{point}=kill:{passing}").wait() == KILLED
    assert len(world.app.find(task="added_up")) == (point == "end_batch.after")
    world.worker("rescue")
    assert ended(world, batch) == {"done": 8, "dead": 4, "cancelled": 0, "rolled_back": 0, "complete": 1}


@on_every_store
def test_the_worker_of_all_its_jobs_dies(world: World) -> None:
    """The settlements of a reaper are the end of these jobs."""
    with world.app.batch(then=world.tasks.added_up) as batch:
        batch.add(*(world.tasks.tells.using(on_crash="fail", lease_s=600).job(False, 600) for _ in range(3)))
    jobs = [job.id for job in world.app.batch_jobs(batch.id)]
    victim = world.lone_worker("victim")
    for job in jobs:
        world.until_started(job)
    victim.signal_group(signal.SIGKILL)
    victim.wait()
    world.worker("rescue")
    assert ended(world, batch.id)["dead"] == 3


@on_every_store
def test_a_producer_that_dies_between_two_chunks(world: World) -> None:
    """Nobody closes the batch: it is closed when nobody has added to it for a while, and its last job is told so."""
    code = """if True:
        import os, signal, crash_tasks
        batch = crash_tasks.app.batch(then=crash_tasks.added_up, id="left", abandon_s=2)
        batch.add(*(crash_tasks.tells.job(False) for _ in range(5)))
        batch.store()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert world.run("producer", ["-c", code]).wait() == KILLED
    world.worker("w")
    assert ended(world, "left") == {"done": 5, "dead": 0, "cancelled": 0, "rolled_back": 0, "complete": 0}


@on_every_store
def test_a_producer_that_is_started_again(world: World) -> None:
    """It repeats its block under the same id, and what was stored before is not doubled."""
    code = """if True:
        import os, signal, sys, crash_tasks
        with crash_tasks.app.batch(then=crash_tasks.added_up, id="again") as batch:
            batch.add(*(crash_tasks.tells.job(False) for _ in range(5)))
            batch.store()
            if sys.argv[1] == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            batch.add(*(crash_tasks.tells.job(False) for _ in range(5)))
    """
    assert world.run("producer", ["-c", code, "dies"]).wait() == KILLED
    world.worker("w")
    assert world.run("producer", ["-c", code, "lives"]).wait() == 0
    assert ended(world, "again") == {"done": 10, "dead": 0, "cancelled": 0, "rolled_back": 0, "complete": 1}
