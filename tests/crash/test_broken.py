"""A worker process that lives and is of no use: a thread of it has died, or it does not beat. It is replaced."""

import contextlib

import pytest

from tests.crash.world import World, on_every_store, on_sql_stores, until

THREADS = ("holdfast-heartbeat", "holdfast-settler", "holdfast-time-limits", "holdfast-reaper", "holdfast-runner")


@on_every_store
@pytest.mark.parametrize("thread", THREADS)
def test_a_process_that_has_lost_a_thread_is_replaced_and_its_jobs_run_again(world: World, thread: str) -> None:
    worker = world.worker("w").until_ready()
    job = world.tasks.ends_a_thread.using(lease_s=600).enqueue(thread).id
    before = world.until_started(job).pid
    world.tasks.quick.enqueue()  # wakes the settler, which sleeps until there is an ending
    row = world.until_state(job, "done")
    assert (row.attempt, row.zombies) == (2, 1)
    assert world.starts(job)[1].pid != before
    [zombie] = world.events(job, "zombie")
    assert zombie.detail["detector"] == "exit"
    assert zombie.detail["cause"].endswith("exited with code 78: a required thread had died")
    worker.until_said(f"the thread {thread} of worker w/1 has died (SystemExit)")


@pytest.mark.slow  # a child has half a minute to show that it lives
@on_sql_stores
def test_a_child_that_lives_and_does_not_beat_is_replaced(world: World) -> None:
    worker = world.worker("w").until_ready()
    job = world.tasks.freezes.enqueue().id
    frozen = world.until_started(job).pid
    row = world.until_state(job, "done")
    assert row.zombies == 1
    until(lambda: frozen not in worker.children(), "the frozen child is ended")
    worker.until_said("child w/1 is alive but has sent no heartbeat")
    worker.until_ready(2)


@pytest.mark.slow  # a child has half a minute to show that it lives
def test_a_child_that_stopped_inside_its_transaction_is_replaced(world: World) -> None:
    """It keeps the only write lock of the file: no worker of the host can write until it is gone."""
    assert world.store.schema().found
    with contextlib.closing(world.connect()) as db:
        db.execute("CREATE TABLE effect (job TEXT, fence INTEGER)")
    worker = world.worker("w").until_ready()
    job = world.tasks.stops_inside.enqueue().id
    stopped = world.until_started(job).pid
    row = world.until_state(job, "done")
    assert (row.attempt, row.zombies) == (2, 1)
    until(lambda: stopped not in worker.children(), "the stopped child is ended")
    worker.until_said("child w/1 is alive but has sent no heartbeat")
