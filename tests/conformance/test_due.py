"""due: when the next claim could give something."""

import pytest

from holdfast.core.machine import State
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import add, claim, job_in


def due(store: Store, *queues: str, tasks: tuple[str, ...] = ("t",)) -> float | None:
    return store.due(queues or ("default",), tasks)


def test_an_empty_store_has_nothing_due(store: Store) -> None:
    assert due(store) is None


def test_the_earliest_run_at_counts_past_or_future(store: Store, clock: FakeClock) -> None:
    wall = clock.wall()
    add(store, run_at=wall + 60)
    assert due(store) == wall + 60
    add(store, run_at=wall + 30)
    assert due(store) == wall + 30
    add(store, run_at=wall - 30)
    assert due(store) == wall - 30


def test_a_later_job_of_larger_priority_does_not_hide_an_earlier_one(store: Store, clock: FakeClock) -> None:
    add(store, priority=9, run_at=clock.wall() + 60)
    add(store, priority=-9, run_at=clock.wall() + 5)
    assert due(store) == clock.wall() + 5


def test_other_tasks_and_queues_do_not_count(store: Store, clock: FakeClock) -> None:
    add(store, task="strange")
    add(store, queue="other", run_at=clock.wall() + 7)
    assert due(store) is None
    assert due(store, "default", "other") == clock.wall() + 7
    assert due(store, "default", tasks=("strange", "t")) == clock.wall()
    assert store.due([], ["t"]) is None
    assert store.due(["default"], []) is None


def test_a_paused_queue_does_not_count(store: Store, clock: FakeClock) -> None:
    add(store, queue="a")
    add(store, queue="b", run_at=clock.wall() + 7)
    store.pause("a", True)
    assert due(store, "a", "b") == clock.wall() + 7
    store.pause("a", False)
    assert due(store, "a", "b") == clock.wall()


@pytest.mark.parametrize("state", sorted(set(State) - {State.READY}))
def test_only_ready_jobs_count(store: Store, state: State) -> None:
    job = job_in(store, state)
    assert due(store, tasks=(job.task,)) is None


def test_a_claim_at_that_instant_gives_the_job_and_not_before(store: Store, clock: FakeClock) -> None:
    clock.set_wall(1_700_000_000.1 + 0.2)
    add(store, delay_s=7.7)
    instant = due(store)
    assert instant is not None
    clock.set_wall(instant - 0.001)
    assert claim(store) == []
    clock.set_wall(instant)
    assert len(claim(store)) == 1


def test_a_retry_is_due_when_its_pause_is_over(store: Store, clock: FakeClock) -> None:
    job_in(store, State.DEAD)
    add(store, delay_s=12.0)
    assert due(store) == clock.wall() + 12


def test_a_job_that_runs_does_not_count_beside_one_that_waits_for_its_time(store: Store, clock: FakeClock) -> None:
    add(store)
    claim(store)
    add(store, run_at=clock.wall() + 60)
    assert due(store) == clock.wall() + 60
