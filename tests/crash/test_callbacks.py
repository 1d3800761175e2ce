"""One callback for each ending, whatever dies: the worker before or after its settle, the worker in the handler, the
reaper between two settlements."""

from __future__ import annotations

import signal

import pytest

from holdfast.core.machine import State
from tests.crash.test_failpoints import KILLED, on
from tests.crash.world import World, until

pytestmark = pytest.mark.slow  # workers are killed and started again


def endings(world: World, jobs: list[str]) -> None:
    """Wait until all have ended, and each has had exactly one callback."""
    until(lambda: all(world.row(job).ended_at is not None for job in jobs), "all have ended")
    until(lambda: len(world.app.find("done", task="told", limit=1000)) >= len(jobs), "all callbacks have run")
    told = world.app.find(task="told", limit=1000)
    assert sorted(job.id.split(":")[0] for job in told) == sorted(jobs)
    kinds = {State.DONE: "done", State.DEAD: "dead"}
    assert {job.id.split(":")[0]: job.id.split(":")[1] for job in told} == {
        job: kinds[world.row(job).state] for job in jobs
    }


@on({"sqlite": (1, 2), "postgres": (1, 2), "redis": (1,)}, ["settle.before", "settle.after"])
def test_a_worker_that_dies_beside_its_settle(world: World, point: str, passing: int) -> None:
    drafts = [world.tasks.tells.job(number % 3 == 0) for number in range(12)]
    jobs = [job.id for job in world.app.enqueue_many(drafts)]
    assert world.lone_worker("victim", f"{point}=kill:{passing}").wait() == KILLED
    world.worker("rescue")
    endings(world, jobs)


@on({"sqlite": (1, 2), "postgres": (1,), "redis": (1,)}, ["reap.middle"])
def test_a_reaper_that_dies_in_the_middle(world: World, point: str, passing: int) -> None:
    """`on_crash="fail"`: the settlement of the reaper is the end of the job."""
    jobs = [world.tasks.tells.using(on_crash="fail", lease_s=600).enqueue(False, 600).id for _ in range(6)]
    victims = [world.lone_worker("first"), world.lone_worker("second")]
    for job in jobs:
        world.until_started(job)
    for victim in victims:
        victim.signal_group(signal.SIGKILL)
        victim.wait()
    assert world.lone_worker("reaper", f"{point}=kill:{passing}").wait() == KILLED
    world.worker("rescue")
    endings(world, jobs)
    assert {world.row(job).state for job in jobs} == {State.DEAD}
