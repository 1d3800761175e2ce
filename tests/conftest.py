"""What every test may ask for: a clock that stands still, and each store in turn."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from holdfast.stores.memory import MemoryStore
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock

# A landing is judged by what changed, not by what was drawn; docs/guarantees.md names the commands that draw anew.
settings.register_profile("suite", derandomize=True, database=None)
settings.load_profile("suite")
# Hypothesis also tries constants of the loaded modules: what is drawn would depend on which tests are near.
providers._get_local_constants = lambda: providers._local_constants

# A shell that starts this in the background lets it ignore Ctrl-C, and every process that a test starts with it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> Iterator[Store]:
    opened = open_store(request.param, clock, tmp_path)
    opened.migrate()
    yield opened
    trouble = opened.check()
    for worker in opened.workers():
        opened.retire(worker.id, "the test is over")  # drops its liveness lock
    opened.close()
    assert trouble == []


def open_store(kind: str, clock: FakeClock, folder: Path) -> Store:
    if kind == "memory":
        return MemoryStore(clock=clock)
    from holdfast.stores.sqlite.store import SqliteStore

    # What survives a power cut is no matter of conformance, and the suite is a third faster without the wait.
    return SqliteStore(f"sqlite:///{folder}/jobs.db?synchronous=normal", clock=clock)
