"""Real programs on a store that was replaced, rewound or emptied under them (P14)."""

from __future__ import annotations

import pytest

from holdfast.core.continuity import Doubt
from tests.crash.world import World, on_every_store, until

pytestmark = pytest.mark.slow


@on_every_store
def test_a_supervisor_says_that_the_store_is_not_what_it_was(world: World) -> None:
    world.store.doubt(1, Doubt("emptied", "truncate", "job", "ann"))
    worker = world.worker("w").until_ready()
    until(lambda: worker.said("Workers claim no jobs. Check the jobs"), "the supervisor says so")
    until(lambda: worker.said("This worker claims no jobs"), "its child says so")
