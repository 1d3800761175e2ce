"""A world for each test, and nothing left of it afterwards."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.world import World

if sys.platform != "linux":  # these tests read /proc
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    try:
        trouble = world.store.check() if world.db.exists() else []
    finally:
        world.close()
    assert trouble == []
