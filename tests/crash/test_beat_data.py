"""What a handler said with its beats is in the autopsy after its worker was killed."""

from __future__ import annotations

import signal

import pytest

from tests.crash.world import World, on_sql_stores, until

pytestmark = pytest.mark.slow  # workers are killed


@on_sql_stores
@pytest.mark.parametrize("name", ["says", "isolated_says"])
def test_the_autopsy_knows_what_the_handler_was_at(world: World, name: str) -> None:
    job = getattr(world.tasks, name).enqueue(600)
    victim = world.worker("victim")
    until(lambda: world.row(job.id).beat_data is not None, "a beat has carried it")
    victim.signal_group(signal.SIGKILL)
    victim.wait()
    until(lambda: world.app.reap() and world.events(job.id, "zombie"), "the death is found")
    [zombie] = world.events(job.id, "zombie")
    assert zombie.detail["beat_data"] == {"file": "a.csv", "line": 1}
    assert world.row(job.id).beat_data is None
