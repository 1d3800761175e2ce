"""The folder of rollups and its duty: one of several folds, under its term, and all there is."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import App
from holdfast.core.rollups import EVER, MINUTE
from holdfast.core.verdict import Succeeded
from holdfast.runtime.hooks import Hooks
from holdfast.stores.memory import MemoryStore
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from holdfast.upkeep import rollup_folder
from holdfast.upkeep.rollup_folder import DUTY, RollupFolder
from holdfast.worker.options import WorkerOptions
from holdfast.worker.tick import tick
from tests.factory import add, settle, start


def a_folder(store: Any, clock: FakeClock, name: str = "a") -> RollupFolder:
    return RollupFolder(store, clock, hooks=Hooks(), name=name)


@pytest.fixture
def memory(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock=clock)


def arrived(store: Store) -> dict[str, int]:
    return {each.queue: each.arrived for each in store.figures.rollups(EVER, 0)}


def test_it_folds_all_there_is_and_counts_what_has_arrived(
    memory: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollup_folder, "FOLD_MAX", 2)
    monkeypatch.setattr(rollup_folder, "REST_S", 0.0)
    for _ in range(5):
        settle(memory, start(memory, queue="mail"), Succeeded())
    add(memory, queue="mail")
    add(memory, queue="media")
    assert a_folder(memory, clock).once() == 5
    assert arrived(memory) == {"mail": 6, "media": 1}


def test_only_one_of_several_folds_and_the_next_takes_over(memory: MemoryStore, clock: FakeClock) -> None:
    first, second = a_folder(memory, clock), a_folder(memory, clock, "b")
    add(memory, queue="mail")
    settle(memory, start(memory, queue="mail"), Succeeded())
    assert (first.once(), second.once()) == (1, 0)
    first.resign()
    settle(memory, start(memory, queue="mail"), Succeeded())
    assert second.once() == 1
    assert arrived(memory) == {"mail": 3}


def test_one_that_was_paused_changes_nothing_after_another_has_taken_over(
    memory: MemoryStore, clock: FakeClock
) -> None:
    late, next_one = a_folder(memory, clock), a_folder(memory, clock, "b")
    late.once()
    counts = memory.counts

    def paused() -> Any:
        memory.counts = counts  # type: ignore[method-assign]
        clock.advance(1_000)
        assert next_one.once() == 1
        return {}

    settle(memory, start(memory, queue="mail"), Succeeded())
    memory.counts = paused  # type: ignore[method-assign]
    assert late.once() == 0
    assert arrived(memory) == {"mail": 1}
    holder = memory.acquire(DUTY, "c", 1.0)
    assert holder is None


def test_no_piece_begins_after_its_time(memory: MemoryStore, clock: FakeClock) -> None:
    settle(memory, start(memory, queue="mail"), Succeeded())
    assert a_folder(memory, clock).once(until=clock.lease()) == 0


def test_a_tick_folds_what_it_has_run() -> None:
    app = App("memory://")

    @app.task
    def hello() -> None: ...

    hello.enqueue()
    tick(app, 5.0, WorkerOptions())
    [minute] = app.store.figures.rollups(MINUTE, app.store.now().wall - 60)
    assert (minute.arrived, [each.attempts for each in minute.endings]) == (1, [1])
    assert minute.endings[0].runs
    assert minute.endings[0].waits
    app.close()
