"""A world for each test, and nothing left of it afterwards."""

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.world import World, schema_of_its_own

if sys.platform != "linux":  # these tests read /proc
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an empty store: a file, or a schema of its own on the server for a test that asks for both."""
    if getattr(request, "param", "sqlite") == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    with schema_of_its_own(request.getfixturevalue("postgres_server"), f"crash_{secrets.token_hex(4)}") as url:
        yield url


@pytest.fixture
def world(tmp_path: Path, db: str) -> Iterator[World]:
    world = World(tmp_path, url=db)
    yield world
    try:
        trouble = world.store.check() if world.kind == "postgres" or world.db.exists() else []
    finally:
        world.close()
    assert trouble == []
