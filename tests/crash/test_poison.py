"""A job that kills the process it runs in: it dies of it, and none of those who were in the process with it."""

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
    assert dead.error is not None
    assert dead.error.endswith("crashed 3 times (crashes_max=3)")
    assert [event.detail.get("detector") for event in world.events(poison, "zombie")] == ["exit"] * 3
    until(lambda: world.app.counts()["done"] == INNOCENT, "all others are done")
    rows = [world.row(job) for job in jobs]
    assert {(row.state, row.crashes, row.suspects) for row in rows} == {(State.DONE, 0, 0)}
    assert {row.zombies for row in rows} == {1}, "the first time it took them along; then it died alone"
    assert {row.attempt for row in rows} == {2}
