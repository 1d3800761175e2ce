"""Handlers that nothing stops: a worker that has too many of them makes room for another."""

from tests.crash.world import World, on_sql_stores, until


@on_sql_stores
def test_a_worker_with_too_many_handlers_that_will_not_stop_is_started_again(world: World) -> None:
    worker = world.worker("w", "--slots", "3").until_ready()
    [first] = worker.children()
    deaf = [world.tasks.deaf.enqueue().id for _ in range(3)]
    for job in deaf:
        row = world.until_state(job, "dead")
        assert row.error is not None
        assert "ran longer than timeout_s=1.5; its handler did not stop and was given up" in row.error
        assert (row.failures, row.crashes) == (1, 0)
    until(lambda: worker.children() not in ([], [first]), "another one has taken over")
    worker.until_ready(times=2)
    worker.until_said("3 handlers did not stop; this process ends its other jobs and exits")
    job = world.tasks.quick.enqueue().id
    assert world.until_state(job, "done").attempt == 1
