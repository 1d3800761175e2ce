"""A job that runs after others runs once, whatever dies: the worker beside its settle or before the decision, the
worker in the handler, the producer beside its enqueue."""

from __future__ import annotations

import signal

import pytest

from holdfast.core.machine import State
from tests.crash.test_failpoints import KILLED, on
from tests.crash.world import World, on_every_store, until

pytestmark = pytest.mark.slow  # workers are killed and started again


def chains(world: World, many: int = 4) -> list[str]:
    """Enqueue chains of three. The first job of every other one fails."""
    drafts, tells = [], world.tasks.tells
    for number in range(many):
        first = tells.job(number % 2 == 1)
        then = tells.using(after=first).job(False)
        drafts += [first, then, tells.using(after=[first, then], after_failed="run").job(False)]
    return [job.id for job in world.app.enqueue_many(drafts)]


def all_ended(world: World, jobs: list[str]) -> None:
    """Wait until all have ended. Each has run after those that it was to run after, or not at all."""
    until(lambda: all(world.row(job).ended_at is not None for job in jobs), "all have ended")
    for first, then, last in zip(jobs[::3], jobs[1::3], jobs[2::3], strict=True):
        one, two, three = (world.row(job) for job in (first, then, last))
        if one.state is State.DONE:
            assert two.claimed_at is not None
            assert two.claimed_at >= (one.ended_at or 0)
        else:
            assert (two.state, two.attempt) == (State.CANCELLED, 0)
        assert three.claimed_at is not None
        assert three.claimed_at >= max(one.ended_at or 0, two.ended_at or 0)


@on({"sqlite": (1, 2), "postgres": (1,), "redis": (1,)}, ["settle.before", "settle.after", "dependents.before"])
def test_a_worker_that_dies_beside_its_settle_or_the_decision(world: World, point: str, passing: int) -> None:
    jobs = chains(world)
    assert world.lone_worker("victim", f"{point}=kill:{passing}").wait() == KILLED
    world.worker("rescue")
    all_ended(world, jobs)


@on_every_store
def test_the_worker_of_the_first_job_dies_for_good(world: World) -> None:
    """The settlement of a reaper is its end."""
    tells = world.tasks.tells
    first = tells.using(on_crash="fail", lease_s=600).job(False, 600)
    drafts = [first, tells.using(after=first).job(False), tells.using(after=first, after_failed="run").job(False)]
    jobs = [job.id for job in world.app.enqueue_many(drafts)]
    victim = world.lone_worker("victim")
    world.until_started(jobs[0])
    victim.signal_group(signal.SIGKILL)
    victim.wait()
    world.worker("rescue")
    until(lambda: world.row(jobs[2]).state is State.DONE, "the last has run")
    until(lambda: world.row(jobs[1]).state is State.CANCELLED, "the other is cancelled")


@on({"sqlite": (1,), "postgres": (1,), "redis": (1,)}, ["add.before", "add.after"])
def test_a_producer_that_dies_and_repeats_its_enqueue(world: World, point: str, passing: int) -> None:
    code = """if True:
        from crash_tasks import app, tells
        first = tells.using(id="first").job(False)
        app.enqueue_many([first, tells.using(id="then", after=first).job(False)])
    """
    assert world.run("producer", ["-c", code], {"HOLDFAST_POINT": f"{point}=kill:{passing}"}).wait() == KILLED
    world.worker("w")
    until(lambda: world.run("again", ["-c", code]).wait() == 0, "the enqueue is repeated")
    until(lambda: all(world.row(job).state is State.DONE for job in ("first", "then")), "both have run")
    assert len(world.app.find(task="tells")) == 2
