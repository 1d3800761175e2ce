"""A program that dies while it stores a job whose key is taken has changed nothing, or all of it."""

from __future__ import annotations

import pytest

from holdfast.core.machine import State
from tests.crash.test_failpoints import KILLED, on
from tests.crash.world import World

pytestmark = pytest.mark.slow  # programs are killed and started again

PROGRAM = """
import crash_tasks
crash_tasks.quick.using(key="k", key_scope={scope!r}, on_taken={on_taken!r}, id="new").enqueue(0.5)
"""


def enqueue(world: World, scope: object, on_taken: str, point: str | None) -> int:
    code = PROGRAM.format(scope=scope, on_taken=on_taken)
    return world.run("producer", ["-c", code], {"HOLDFAST_POINT": point or ""}).wait()


@on({"sqlite": (1,), "postgres": (1,), "redis": (1,)}, ["add.before", "key.middle", "add.after"])
@pytest.mark.parametrize("on_taken", ["replace", "cancel"])
@pytest.mark.parametrize("scope", ["queued", "live", 600])
def test_a_producer_that_dies(world: World, point: str, passing: int, scope: object, on_taken: str) -> None:
    old = world.tasks.quick.using(key="k", key_scope=scope, on_taken=on_taken).enqueue(0.25)
    assert enqueue(world, scope, on_taken, f"{point}=kill:{passing}") == KILLED
    is_stored = point == "add.after"
    events = world.events(old.id, "moved") + world.events(old.id, "cancelled")
    assert len(events) == is_stored
    changed = world.row(old.id)
    if on_taken == "cancel":
        assert changed.state is (State.CANCELLED if is_stored else State.READY)
        assert (world.store.get("new") is not None) is is_stored
    else:
        assert (changed.payload != '{"seconds":0.25}') is is_stored
        assert world.store.get("new") is None
    assert enqueue(world, scope, on_taken, None) == 0
    living = [job for job in world.app.find(key="k") if job.state is State.READY]
    assert [job.row.payload for job in living] == ['{"seconds":0.5}']
    assert len(world.events(old.id, "cancelled")) == (on_taken == "cancel")
