"""SIGTERM, SIGINT, SIGHUP; the death of the supervisor alone (DESIGN 14: SIGTERM; a child whose supervisor dies)."""

import os
import signal

import pytest

from holdfast.core.machine import State
from tests.crash.world import World, is_alive, on_every_store, until


@on_every_store
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_running_jobs_finish_within_the_grace_period(world: World, number: signal.Signals) -> None:
    worker = world.worker("w", "--grace-period", "50").until_ready()
    job = world.tasks.wait.enqueue().id
    world.until_started(job)
    worker.signal_leader(number)
    until(lambda: worker.said("may continue for 50 s"), "it is stopping")
    late = world.tasks.quick.enqueue().id
    world.go()
    assert worker.wait() == 0
    assert world.row(job).state is State.DONE
    assert world.row(late).attempt == 0, "nothing new is claimed"
    assert world.store.workers() == [], "everybody has signed off"
    assert worker.members() == []


@on_every_store
def test_the_rest_is_released_without_cost(world: World) -> None:
    worker = world.worker("w", "--grace-period", "0.2", processes=2).until_ready(2)
    jobs = [world.tasks.wait.enqueue().id for _ in range(4)]
    careful = world.tasks.careful.enqueue(600.0).id
    for job in [*jobs, careful]:
        world.until_started(job)
    worker.signal_leader(signal.SIGTERM)
    assert worker.wait() == 0
    for job in jobs:
        row = world.row(job)
        assert (row.state, row.attempt, row.failures, row.crashes, row.zombies) == (State.READY, 1, 0, 0, 0)
        assert world.kinds(job) == ["released"]
    row = world.row(careful)
    assert (row.state, row.crashes) == (State.HELD, 0)
    assert world.kinds(careful) == ["released", "held"]
    assert world.store.workers() == []


def test_a_second_one_releases_at_once(world: World) -> None:
    worker = world.worker("w", "--grace-period", "600").until_ready()
    job = world.tasks.wait.enqueue().id
    world.until_started(job)
    worker.signal_leader(signal.SIGTERM)
    until(lambda: worker.said("may continue for 600 s"), "it is stopping")
    worker.signal_leader(signal.SIGTERM)
    assert worker.wait() == 0
    assert world.kinds(job) == ["released"]
    assert world.row(job).crashes == 0


def test_a_second_sighup_does_not_hurry_running_jobs(world: World) -> None:
    """A shell that ends sends it to its jobs, and the kernel sends it once more."""
    worker = world.worker("w", "--grace-period", "600").until_ready()
    job = world.tasks.wait.enqueue().id
    world.until_started(job)
    for times in (1, 2):
        worker.signal_leader(signal.SIGHUP)
        until(lambda times=times: worker.said("holdfast.supervisor stopping\n") == times, "it has heard")
    world.go()
    assert worker.wait() == 0
    assert world.row(job).state is State.DONE


def test_one_that_reaches_the_whole_group_counts_once(world: World) -> None:
    """Ctrl-C in a terminal, or a service manager, signals every process of the group."""
    worker = world.worker("w", "--grace-period", "600", processes=2).until_ready(2)
    job = world.tasks.wait.enqueue().id
    world.until_started(job)
    worker.signal_group(signal.SIGTERM)
    until(lambda: worker.said("may continue for 600 s"), "it is stopping")
    until(lambda: len(worker.children()) == 1, "the idle child leaves; the other one is not hurried")
    assert world.row(job).state is State.RUNNING
    world.go()
    assert worker.wait() == 0
    assert world.kinds(job) == ["succeeded"]


@pytest.mark.slow  # the handler is given two seconds
def test_a_handler_that_does_not_stop_is_released_by_the_supervisor(world: World) -> None:
    """15.7: a release is written after the handler has stopped; here that is when its process has ended."""
    worker = world.worker("w", "--grace-period", "0").until_ready()
    deaf = world.tasks.blocks.enqueue(30.0).id
    start = world.until_started(deaf)
    worker.signal_leader(signal.SIGTERM)
    until(lambda: not is_alive(start.pid), "its process ends")
    assert worker.wait() == 0
    row = world.row(deaf)
    assert (row.state, row.failures, row.crashes, row.zombies) == (State.READY, 0, 0, 0)
    assert world.kinds(deaf) == ["released"]


def test_sigterm_to_one_child_stops_that_child_gracefully_and_it_is_started_again(world: World) -> None:
    worker = world.worker("w").until_ready()
    [child] = worker.children()
    os.kill(child, signal.SIGTERM)
    until(lambda: not is_alive(child), "it leaves")
    worker.until_ready(2)
    world.until_state(world.tasks.quick.enqueue().id, "done")


@on_every_store
def test_children_whose_supervisor_dies_release_what_they_run_and_leave(world: World) -> None:
    worker = world.worker("w", "--grace-period", "600", processes=2).until_ready(2)
    jobs = [world.tasks.wait.using(lease_s=600).enqueue().id for _ in range(3)]
    careful = world.tasks.careful.using(lease_s=600).enqueue(600.0).id
    for job in [*jobs, careful]:
        world.until_started(job)
    children = worker.children()
    assert len(children) == 2
    worker.signal_leader(signal.SIGKILL)
    worker.wait()
    until(lambda: not any(map(is_alive, children)), "the children leave")
    for job in jobs:
        row = world.row(job)
        assert (row.state, row.crashes, row.zombies) == (State.READY, 0, 0)
        assert set(world.kinds(job)) == {"released"}  # twice, if the other child took it before it noticed too
    assert world.row(careful).state is State.HELD
    assert world.store.workers() == []
    world.go()
    world.worker("other")
    for job in jobs:
        world.until_state(job, "done")
    assert len(world.starts(careful)) == 1


@on_every_store
def test_two_workers_of_one_name_do_not_disturb_each_other(world: World) -> None:
    """DESIGN 11, 15.4: a name alone never proves a death. The second one's sweep leaves the first one's jobs alone."""
    first = world.worker("twin").until_ready()
    job = world.tasks.wait.using(lease_s=600).enqueue().id
    started = world.until_started(job)
    second = world.worker("twin").until_ready()
    other = world.tasks.quick.enqueue().id
    world.until_state(other, "done")
    row = world.row(job)
    assert (row.state, row.attempt, row.zombies) == (State.RUNNING, 1, 0)
    assert sorted(worker.name for worker in world.store.workers()) == ["twin/1", "twin/1"]
    second.kill()
    until(lambda: len(world.store.workers()) == 1, "the dead twin is found, and only that one")
    world.go()
    assert world.until_state(job, "done").result == str(started.fence)
    assert first.popen.poll() is None
    assert world.kinds(job) == ["succeeded"]
