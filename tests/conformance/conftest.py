"""The stores of the conformance suite: those of every test, and one that is behind a server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests import conftest
from tests.served import Served

BEHIND = os.environ.get("HOLDFAST_TEST_BEHIND", "memory")  # the store behind the server


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """A server on a port of this machine, whose store each test replaces."""
    with Served() as served:
        yield served


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis", "remote"])
def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> Iterator[Store]:
    kind = BEHIND if request.param == "remote" else request.param
    url = request.getfixturevalue(kind) if kind in conftest.SERVERS else ""
    opened = behind = conftest.open_store(kind, clock, tmp_path, url)
    behind.migrate()
    if request.param == "remote":
        opened = request.getfixturevalue("served").store(behind, clock)
    yield opened
    trouble = opened.check()
    for worker in opened.workers():
        opened.retire(worker.id, "the test is over")  # drops its liveness lock
    opened.close()
    behind.close()
    assert trouble == []
