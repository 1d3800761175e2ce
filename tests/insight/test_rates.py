"""Rates of queues, and how long a backlog lasts."""

from __future__ import annotations

from functools import partial

import pytest

from holdfast import insight
from holdfast.core.verdict import Succeeded
from holdfast.stores.memory.store import MemoryStore
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import add, claim, enrol, settle, start


@pytest.fixture
def store(clock: FakeClock) -> Store:
    return MemoryStore(clock=clock)


def test_jobs_that_came_and_jobs_that_ended_are_counted_over_the_same_time(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.figures, "flow", partial(store.figures.flow, sample=6))
    for _ in range(5):  # these ended before the last jobs came
        settle(store, start(store, queue="mail"), Succeeded())
    clock.advance(200)
    for _ in range(6):
        add(store, queue="mail")
    clock.advance(50)
    settle(store, start(store, queue="mail"), Succeeded())
    clock.advance(50)
    [queue] = insight.queue_views(store)
    assert (queue["in_per_s"], queue["out_per_s"]) == (pytest.approx(6 / 100), pytest.approx(1 / 100))


def test_a_backlog_that_grows_lasts_longer_than_its_jobs_would_alone(store: Store, clock: FakeClock) -> None:
    worker = enrol(store, queues=["mail"])
    for _ in range(9):
        add(store, queue="mail", task="send")
    clock.advance(100)
    [queue] = insight.queue_views(store)
    assert insight.drains_in(queue) == "never"
    [job] = claim(store, worker, queues=["mail"], tasks=["send"], limit=1)
    settle(store, job, Succeeded())
    clock.advance(100)
    [queue] = insight.queue_views(store)
    assert queue["drain_s"] is None
    assert queue["lasts_s"] == pytest.approx(8 / (1 / 300))
    assert insight.drains_in(queue) == "> 40 min"
    clock.advance(150)
    [queue] = insight.queue_views(store)
    assert insight.drains_in(queue) == "40 min", "no more came in the last five minutes"
