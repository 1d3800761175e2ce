"""P7 for jobs by name: a task that must not be repeated is held, whoever has enqueued it."""

from __future__ import annotations

import pytest

from holdfast import App
from tests.crash.world import World, on_sql_stores

pytestmark = pytest.mark.slow  # workers are killed and started again
PRODUCER = """
import sys
from holdfast import App
with App(sys.argv[1]) as app:
    print(app.enqueue_by_name("careful", {"seconds": 600}).id)
"""

TASKS = 300
PUBLISHER = f"""
import os, sys, threading, time
from holdfast import App
from holdfast.enqueueing.by_name import publish
app = App(sys.argv[1])
for number in range({TASKS}):
    app.task(name=f"t{{number}}")(lambda word: None)
app.store
def die():
    time.sleep(int(sys.argv[2]) / 1000)
    os.kill(os.getpid(), 9)
if sys.argv[2:]:
    threading.Thread(target=die, daemon=True).start()
publish(app.store, app.tasks)
"""


@on_sql_stores
@pytest.mark.parametrize("by", ["a program", "the command line"])
def test_a_hold_task_that_is_enqueued_by_name_is_held_after_kill_9(world: World, by: str) -> None:
    """The producer has none of the code, and all workers were gone when it enqueued."""
    world.worker("ann").until_ready().kill()
    with App(world.url) as app:
        assert app.store.published(["careful"])[0].job.policy.on_crash == "hold"
    command = ["-c", PRODUCER, world.url]
    if by == "the command line":
        command = ["-m", "holdfast", "enqueue", "--by-name", "careful", '{"seconds": 600}', "--db", world.url]
    producer = world.run("producer", command)
    assert producer.wait() == 0, producer.log.read_text()
    job = producer.log.read_text().split()[-1]
    group = world.worker("bob").until_ready()
    world.until_started(job)
    group.kill()
    world.worker("eve").until_ready()
    row = world.until_state(job, "held")
    assert (row.attempt, row.on_crash, len(world.starts(job))) == (1, "hold", 1)


@on_sql_stores
def test_a_worker_that_dies_while_it_publishes_leaves_all_or_nothing(world: World) -> None:
    (world.folder / "publisher.py").write_text(PUBLISHER)
    for milliseconds in range(0, 10, 2):
        world.run("dying", ["publisher.py", world.url, str(milliseconds)]).wait()
        assert len(world.store.published()) in (0, TASKS)
    assert world.run("living", ["publisher.py", world.url]).wait() == 0
    assert len(world.store.published()) == TASKS
