"""`app.reaper()` in processes that are killed: another replica takes over when the ttl of the election is over."""

from __future__ import annotations

import signal

import pytest

from tests.crash.world import World, on_every_store, until

pytestmark = pytest.mark.slow  # processes are started and killed

REPLICA = """if True:
    import sys, time, crash_tasks
    with crash_tasks.app.reaper(name=sys.argv[1], ttl_s=2, renewal_s=0.5, retry_s=0.2):
        print("ready", flush=True)
        time.sleep(600)
"""


@on_every_store
def test_another_replica_takes_over_from_one_that_is_killed(world: World) -> None:
    first = world.run("first", ["-c", REPLICA, "first"])
    until(lambda: "ready" in first.log.read_text(), "the first replica is active")
    second = world.run("second", ["-c", REPLICA, "second"])
    until(lambda: "ready" in second.log.read_text(), "the second one stands by")
    job = world.tasks.quick.enqueue(600)
    victim = world.run("worker", ["-c", WORKER])
    world.until_started(job.id)
    first.signal_group(signal.SIGKILL)
    first.wait()
    killed_at = world.store.now().wall
    victim.signal_group(signal.SIGKILL)
    victim.wait()
    until(lambda: job.refresh().row.zombies == 1, "the second replica has recovered the job")
    [zombie] = world.events(job.id, "zombie")
    assert job.refresh().state == "ready"
    assert zombie.at - killed_at < 15.0, "the ttl, and the time to see the death"


WORKER = """if True:
    import crash_tasks
    from holdfast.worker.options import WorkerOptions
    from holdfast.worker.runner import Runner
    Runner(crash_tasks.app, WorkerOptions(name="victim", slots=1, reaper=False), may_exit=True).run()
"""
