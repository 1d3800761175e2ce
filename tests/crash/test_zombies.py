"""A worker that is stopped past its lease and comes back: SIGSTOP, a successor, SIGCONT (P3; must be shown, 2)."""

import os
import signal

import pytest

from holdfast.core.machine import State
from tests.crash.world import Process, World, now, on_every_store, until

LEASE_S = 4.5  # long enough for a busy machine to renew it in time


def stopped_holder(world: World, job: str, *groups: Process) -> Process:
    """Stop the group that runs the job; return it."""
    name = world.holder(job).name.split("/")[0]
    [group] = [each for each in groups if each.name == name]
    world.freeze(group)
    return group


@pytest.mark.slow  # a lease has to run out
@pytest.mark.parametrize(
    ("db", "task"),
    [("sqlite", "first_hangs"), ("sqlite", "from_the_grave"), ("postgres", "from_the_grave")],
    indirect=["db"],
    ids=["it gives up", "it succeeded", "it succeeded, on a server"],
)
def test_the_late_result_is_refused_and_the_successors_stands(world: World, task: str) -> None:
    """Whatever the zombie has to say: that it was stopped, or that it has done the work."""
    groups = [world.worker(name).until_ready() for name in ("ann", "bob")]
    job = getattr(world.tasks, task).using(lease_s=LEASE_S).enqueue().id
    world.until_started(job)
    zombie = stopped_holder(world, job, *groups)
    stopped_at = now()
    row = world.until_state(job, "done")
    successor = world.starts(job)[-1]
    print(f"\nstopped for good under a lease of {LEASE_S} s, started again after {successor.at - stopped_at:.2f} s")
    assert successor.at - stopped_at < LEASE_S + 30  # P8: the lease and a second; the machine may be busy
    assert (row.attempt, row.crashes, row.zombies, row.result) == (2, 1, 1, str(successor.fence))
    before = world.kinds(job)
    assert before == ["zombie", "succeeded"]
    zombie.signal_group(signal.SIGCONT)
    until(lambda: "stale_report" in world.kinds(job), "the zombie reports")
    [event] = world.events(job, "stale_report")
    assert event.fence == 1
    assert event.detail["verb"] in ("settle", "beat")
    assert world.row(job) == row, "nothing else has changed"
    fine = world.tasks.quick.enqueue().id  # both go on working
    world.until_state(fine, "done")
    assert zombie.popen.poll() is None
    assert world.kinds(job) == [*before, "stale_report"]


@pytest.mark.slow  # a lease has to run out
def test_the_late_result_is_refused_while_the_successor_still_runs(world: World) -> None:
    groups = [world.worker(name).until_ready() for name in ("ann", "bob")]
    job = world.tasks.wait.using(lease_s=LEASE_S).enqueue().id
    first = world.until_started(job)
    zombie = stopped_holder(world, job, *groups)
    second = world.until_started(job, 2)
    assert second.pid != first.pid
    zombie.signal_group(signal.SIGCONT)
    until(lambda: "stale_report" in world.kinds(job), "the zombie reports")
    row = world.row(job)
    assert (row.state, row.fence, row.attempt) == (State.RUNNING, second.fence, 2), "the successor runs on"
    world.go()
    row = world.until_state(job, "done")
    assert row.result == str(second.fence)
    assert world.kinds(job) == ["zombie", "stale_report", "succeeded"]


@on_every_store
@pytest.mark.slow  # a lease has to run out
def test_a_careful_job_is_held_and_the_returned_zombie_changes_nothing(world: World) -> None:
    """P7: there is no successor; the late success is refused all the same, and a person decides."""
    world.go()
    groups = [world.worker(name).until_ready() for name in ("ann", "bob")]
    job = world.tasks.careful.using(lease_s=LEASE_S).enqueue(9.0).id
    world.until_started(job)
    zombie = stopped_holder(world, job, *groups)
    world.until_state(job, "held")
    zombie.signal_group(signal.SIGCONT)
    until(lambda: "stale_report" in world.kinds(job), "the zombie reports")
    assert world.kinds(job) == ["zombie", "held", "stale_report"]
    assert world.row(job).state is State.HELD
    assert len(world.starts(job)) == 1


@on_every_store
def test_a_worker_that_was_stopped_for_less_than_its_lease_goes_on(world: World) -> None:
    """P9: nobody takes what can still be renewed."""
    groups = [world.worker(name).until_ready() for name in ("ann", "bob")]
    job = world.tasks.wait.using(lease_s=30).enqueue().id
    world.until_started(job)
    frozen = stopped_holder(world, job, *groups)
    other = next(group for group in groups if group is not frozen)
    done = world.tasks.quick.enqueue().id
    world.until_state(done, "done")  # the other one works, and looks for the dead, all the while
    until(lambda: other.popen.poll() is None and world.is_writable())
    frozen.signal_group(signal.SIGCONT)
    world.go()
    row = world.until_state(job, "done")
    assert (row.attempt, row.zombies) == (1, 0)
    assert world.kinds(job) == ["succeeded"]


@on_every_store
@pytest.mark.slow  # three leases
def test_a_task_that_blocks_the_event_loop_for_three_leases_is_not_reaped(world: World) -> None:
    """Must be shown, 4: the beat has a thread and a connection of its own."""
    for name in ("ann", "bob"):
        world.worker(name).until_ready()
    job = world.tasks.blocks.using(lease_s=4).enqueue(12.2).id
    row = world.until_state(job, "done")
    assert (row.attempt, row.zombies, row.fence) == (1, 0, 1)
    assert world.kinds(job) == ["succeeded"]
    assert len(world.starts(job)) == 1


@pytest.mark.slow  # a process is given its lease to stop in
def test_a_thread_that_will_not_stop_before_its_lease_ends_ends_its_process(world: World) -> None:
    """15.7: it is deaf (one long call into C), and no beat gets through because the file is locked. Its process ends
    itself; it costs no crash, because the store was out of reach (15.5)."""
    worker = world.worker("w").until_ready()
    job = world.tasks.blocks.using(lease_s=LEASE_S).enqueue(60.0).id
    first = world.until_started(job)
    with world.locked():
        until(lambda: first.pid not in worker.children(), "the process ends itself")
    until(lambda: worker.said("no beat had reached the store in time"), "its supervisor says why")
    world.until_started(job, 2)
    row = world.row(job)
    assert (row.crashes, row.attempt) == (0, 2)
    [event] = world.events(job, "zombie")
    assert event.detail["detector"] in ("exit", "expired")


@pytest.mark.slow  # a lock longer than a beat
def test_a_lock_longer_than_a_beat_and_shorter_than_a_lease_makes_no_zombie(world: World) -> None:
    """P9, 15.5: another program holds the file's only write lock."""
    for name in ("ann", "bob"):
        world.worker(name).until_ready()
    jobs = [world.tasks.wait.using(lease_s=15).enqueue().id for _ in range(4)]
    for job in jobs:
        world.until_started(job)
    locked_at = os.times().elapsed
    with world.locked():
        until(lambda: os.times().elapsed > locked_at + 5.5)
    world.go()
    for job in jobs:
        row = world.until_state(job, "done")
        assert (row.attempt, row.zombies) == (1, 0)
        assert world.kinds(job) == ["succeeded"]


@on_every_store
@pytest.mark.slow  # a lock longer than a lease
def test_a_lock_longer_than_a_lease_costs_no_crash(world: World) -> None:
    """15.5, 15.7: nobody could renew; handlers were stopped before their leases ended, and gave their jobs back."""
    for name in ("ann", "bob"):
        world.worker(name).until_ready()
    jobs = [world.tasks.wait.using(lease_s=LEASE_S).enqueue().id for _ in range(3)]
    careful = world.tasks.careful.using(lease_s=LEASE_S).enqueue(600.0).id
    for job in [*jobs, careful]:
        world.until_started(job)
    locked_at = os.times().elapsed
    with world.locked():
        until(lambda: os.times().elapsed > locked_at + 2 * LEASE_S)
    for job in jobs:
        world.until_started(job, 2)
    world.go()
    for job in jobs:
        row = world.until_state(job, "done")
        assert (row.failures, row.crashes) == (0, 0)
        assert world.kinds(job).count("succeeded") == 1
    assert world.until_state(careful, "held").crashes == 0
    assert len(world.starts(careful)) == 1
