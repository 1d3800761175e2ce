"""Workers are drained, stopped and resumed from another process, and some of them die or freeze meanwhile."""

import os
import signal

import pytest

from holdfast import insight
from holdfast.acts.workers import order_workers, resume_workers
from tests.crash.world import World, on_every_store, until

pytestmark = pytest.mark.slow  # real processes, which obey with their next beat


def states(world: World, name: str = "box") -> set[str]:
    return {view["state"] for view in insight.worker_views(world.store) if view["name"].split("/")[0] == name}


def drain(world: World, name: str = "box") -> None:
    order_workers(world.store, name, "drain", "ann", "a new kernel")


def until_drained(world: World) -> None:
    until(lambda: states(world) == {"drained"}, "all are drained")


@on_every_store
def test_a_drained_worker_finishes_what_runs_and_claims_nothing_until_it_is_resumed(world: World) -> None:
    box = world.worker("box", processes=2).until_ready(2)
    running = world.tasks.wait.enqueue().id
    world.until_started(running)
    drain(world)
    until(lambda: all(worker.stopping for worker in world.worker_rows("box")), "they claim nothing")
    assert "draining" in states(world)
    later = world.tasks.quick.enqueue().id
    world.go()
    world.until_state(running, "done")
    until_drained(world)
    assert world.row(later).attempt == 0
    assert resume_workers(world.store, "box", "ann", None) == ["box"]
    world.until_state(later, "done")
    assert box.popen.poll() is None
    lines = [(event.actor, event.detail["order"]) for event in world.store.journal(kinds=["ordered"])]
    assert lines == [("ann", "drain"), ("ann", "resume")]


@on_every_store
def test_a_drain_outlives_the_death_of_the_whole_host(world: World) -> None:
    box = world.worker("box", processes=2).until_ready(2)
    drain(world)
    until_drained(world)
    box.kill()
    again = world.worker("box", processes=2)
    again.until_ready(2)
    job = world.tasks.quick.enqueue().id
    until(lambda: again.said("it claims nothing until: holdfast workers resume box") == 2, "both know")
    assert world.row(job).attempt == 0
    resume_workers(world.store, "box", "ann", None)
    world.until_state(job, "done")


def test_a_child_that_dies_while_it_is_drained_is_replaced_by_one_that_claims_nothing(world: World) -> None:
    box = world.worker("box").until_ready()
    victim = world.until_started(world.tasks.first_hangs.enqueue().id)
    drain(world)
    until(lambda: states(world) == {"draining"}, "it has heard")
    os.kill(victim.pid, signal.SIGKILL)
    box.until_ready(2)
    until_drained(world)
    assert world.row(victim.job).attempt == 1
    resume_workers(world.store, "box", "ann", None)
    world.until_started(victim.job, 2)


@on_every_store
def test_a_stopped_group_ends_and_claims_nothing_when_it_is_started_again(world: World) -> None:
    box = world.worker("box", processes=2).until_ready(2)
    other = world.worker("other").until_ready()
    order_workers(world.store, "box", "stop", "ann", None)
    assert box.wait() == 0
    assert states(world) == set()
    assert other.popen.poll() is None
    again = world.worker("box").until_ready()
    until(lambda: states(world) == {"drained"}, "it claims nothing")
    assert again.popen.poll() is None
    resume_workers(world.store, "box", "ann", None)
    until(lambda: states(world) == {"alive"}, "it claims again")


def test_one_child_is_stopped_and_its_successor_waits(world: World) -> None:
    box = world.worker("box", processes=2).until_ready(2)
    order_workers(world.store, "box/2", "stop", "ann", None)
    box.until_ready(3)
    until(lambda: states(world) == {"alive", "drained"}, "the other one works on")
    assert box.popen.poll() is None


def test_a_frozen_worker_obeys_when_it_wakes_up(world: World) -> None:
    box = world.worker("box").until_ready()
    world.freeze(box)
    order_workers(world.store, "box", "stop", "ann", None)
    box.signal_group(signal.SIGCONT)
    assert box.wait() == 0


def test_the_endings_of_a_worker_outlive_it(world: World) -> None:
    box = world.worker("box").until_ready()
    jobs = {world.tasks.quick.enqueue().id for _ in range(3)}
    for job in jobs:
        world.until_state(job, "done")

    def endings() -> set[str]:
        return {each["id"] for report in insight.worker_reports(world.store, "box") for each in report["endings"]}

    until(lambda: endings() == jobs, "a beat has told them")
    box.kill()
    until(lambda: endings() == jobs)
