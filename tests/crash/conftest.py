"""A world for each test, and nothing left of it afterwards."""

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.world import SERVED, World, schema_of_its_own

if sys.platform != "linux":  # these tests read /proc
    collect_ignore_glob = ["test_*.py"]


# What cannot be over a server, by file or by test: there is no database in the worker, or nobody else speaks to one.
NOT_SERVED = {
    "test_effects.py": "transactions of handlers need the database",
    "test_a_zombie_that_returns_can_neither_record_nor_signal_nor_start": "one of its deeds is a transaction",
    "test_own_lock.py": "it is about files of SQLite that the worker has open",
    "test_room.py": "it is about files of SQLite that the worker has open",
    "test_no_commits.py": "it is about sessions of the worker on PostgreSQL",
    "test_upgrade.py": "it is about the schema: workers do not see it",
    "test_a_migration_in_the_middle": "it is about the schema: workers do not see it",
    "test_a_child_that_stopped_inside_its_transaction_is_replaced": "transactions of handlers need the database",
    "reap.": "the reaper is in the server",
    "[holdfast-reaper": "the reaper is in the server",
    "end_batch.": "the server ends batches",
    "key.middle": "the transaction is in the server",
    "prune.": "the server prunes",
    "fire.": "the server fires",
    "test_a_server_that_was_replaced_by_an_older_backup": "its doctor asks the store, not the server",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if SERVED else ():
        for what, why in NOT_SERVED.items():
            if what in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=f"over a server: {why}"))


@pytest.fixture
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an empty store: a file, or a schema of its own on the server for a test that asks for both."""
    kind = getattr(request, "param", "sqlite")
    if kind == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    if kind == "redis":
        yield request.getfixturevalue("redis")
        return
    with schema_of_its_own(request.getfixturevalue("postgres_server"), f"crash_{secrets.token_hex(4)}") as url:
        yield url


@pytest.fixture
def world(tmp_path: Path, db: str) -> Iterator[World]:
    world = World(tmp_path, url=db)
    yield world
    try:
        trouble = world.store.check() if world.kind != "sqlite" or world.db.exists() else []
    finally:
        world.close()
    assert trouble == []
