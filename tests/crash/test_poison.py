"""A job that kills the process it runs in: it dies of it, and none of those who were in the process with it."""

import pytest

from holdfast.core.machine import State
from tests.crash.world import World, on_every_store, until

INNOCENT = 200


@on_every_store
def test_one_poison_job_among_many_is_dead_and_no_innocent_has_a_crash_on_its_record(world: World) -> None:
    world.worker("w", "--slots", str(INNOCENT + 1)).until_ready()
    poison = world.tasks.poison.enqueue().id
    jobs = [world.tasks.wait.enqueue().id for _ in range(INNOCENT)]
    until(lambda: len({entry.job for entry in world.ledger()}) == INNOCENT + 1, "all are in one process")
    assert len({entry.pid for entry in world.ledger()}) == 1
    (world.folder / "strike").touch()
    until(lambda: world.row(poison).zombies, "it takes them along")
    world.go()
    dead = world.until_state(poison, "dead")
    assert (dead.crashes, dead.zombies, dead.crashes_max) == (3, 3, 3)
    assert dead.stop_reason == "crashes_max"
    assert [event.detail.get("detector") for event in world.events(poison, "zombie")] == ["exit"] * 3
    until(lambda: world.app.counts()["done"] == INNOCENT, "all others are done")
    rows = [world.row(job) for job in jobs]
    assert {(row.state, row.crashes, row.suspects) for row in rows} == {(State.DONE, 0, 0)}
    assert {row.zombies for row in rows} == {1}, "the first time it took them along; then it died alone"
    assert {row.attempt for row in rows} == {2}


@on_every_store
@pytest.mark.parametrize("neighbours_come", ["before", "after"])
@pytest.mark.parametrize("task", ["poison", "leaver"])
def test_a_poison_job_that_died_alone_is_not_run_among_neighbours_again(
    world: World, task: str, neighbours_come: str
) -> None:
    """Neither when they run already, nor when the worker has nothing else to do and they come later."""
    world.worker("w", "--slots", "4").until_ready()
    poison = getattr(world.tasks, task).enqueue().id
    world.until_started(poison)
    world.store.pause("default", True)
    strike = world.folder / "strike"
    strike.touch()
    until(lambda: world.row(poison).zombies, "it dies alone in the worker's process")
    strike.unlink()
    waiting = [world.tasks.wait.job() for _ in range(3)]
    neighbours = world.app.enqueue_many(waiting) if neighbours_come == "before" else []
    world.store.pause("default", False)
    world.until_started(poison, 2)
    neighbours = neighbours or world.app.enqueue_many(waiting)
    for job in neighbours:
        world.until_started(job.id)
    strike.touch()
    world.until_state(poison, "dead")
    world.go()
    for job in neighbours:
        row = world.until_state(job.id, "done")
        assert (row.attempt, row.zombies) == (1, 0)


@on_every_store
def test_a_job_that_kills_its_process_at_once_is_charged_though_it_was_claimed_ahead(world: World) -> None:
    """Nobody records the start of a job that was claimed ahead before it kills its worker. That is free once, not for
    ever: after the first loss the store knows of each start before the handler is called."""
    (world.folder / "strike").touch()
    jobs = [world.tasks.quick.job() for _ in range(INNOCENT)]
    jobs.insert(INNOCENT // 2, world.tasks.poison.job())
    poison = world.app.enqueue_many(jobs)[INNOCENT // 2].id
    world.worker("w", "--slots", "1").until_ready()
    dead = world.until_state(poison, "dead")
    assert dead.crashes == dead.crashes_max == 3
    assert len(world.starts(poison)) <= dead.crashes_max + 1
    known = [event.detail["started"] for event in world.events(poison, "zombie")]
    assert known[-3:] == [True] * 3
    until(lambda: world.app.counts()["done"] == INNOCENT, "all others are done")
