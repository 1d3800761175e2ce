"""unserved: due jobs that nobody here knows how to run."""

import pytest

from holdfast.core.machine import State
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import add, add_many, job_in, make_job, picture


def test_jobs_of_unknown_tasks_are_counted_by_task(store: Store) -> None:
    for task in ("known", "typo", "typo", "gone"):
        add(store, task=task)
    assert dict(store.unserved(["default"], ["known"])) == {"typo": 2, "gone": 1}


def test_when_every_task_is_known_there_are_none(store: Store) -> None:
    add(store, task="known")
    assert dict(store.unserved(["default"], ["known", "more"])) == {}


def test_without_any_task_every_due_job_is_unserved(store: Store) -> None:
    add(store)
    assert dict(store.unserved(["default"], [])) == {"t": 1}


def test_other_queues_are_not_looked_at(store: Store) -> None:
    add(store, queue="other")
    assert dict(store.unserved(["default"], [])) == {}
    assert dict(store.unserved([], [])) == {}
    assert dict(store.unserved(["default", "other"], [])) == {"t": 1}


def test_a_scheduled_job_is_unserved_only_when_it_is_due(store: Store, clock: FakeClock) -> None:
    add(store, run_at=clock.wall() + 10)
    clock.advance(9.75)
    assert dict(store.unserved(["default"], [])) == {}
    clock.advance(0.25)
    assert dict(store.unserved(["default"], [])) == {"t": 1}


@pytest.mark.parametrize("state", sorted(set(State) - {State.READY}))
def test_only_ready_jobs_are_unserved(store: Store, state: State) -> None:
    job_in(store, state)
    assert dict(store.unserved(["default"], [])) == {}


def test_it_stops_counting_at_a_thousand_jobs(store: Store) -> None:
    add_many(store, [make_job() for _ in range(1200)])
    assert dict(store.unserved(["default"], ["known"])) == {"t": 1000}


def test_looking_changes_nothing(store: Store) -> None:
    add(store)
    before = picture(store)
    store.unserved(["default"], [])
    assert picture(store) == before
