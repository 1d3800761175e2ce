"""due_waits: waiting workflows whose time has come, and that nobody has made ready."""

from holdfast.core.machine import State
from holdfast.core.records import DueWaits
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import job_in, park, picture, start_flow


def test_a_workflow_is_listed_from_the_instant_its_time_comes_until_it_is_roused(
    store: Store, clock: FakeClock
) -> None:
    wake_at = clock.wall() + 60
    park(store, start_flow(store, task="nap"), wake_at=wake_at)
    park(store, start_flow(store, task="nap"), "signal:go", wake_at=wake_at + 2)
    clock.advance(59.75)
    assert store.due_waits() == []
    clock.advance(0.25)
    assert store.due_waits() == [DueWaits("default", "nap", 1, wake_at)]
    clock.advance(60)
    assert store.due_waits() == [DueWaits("default", "nap", 2, wake_at)]
    store.wake_due()
    assert store.due_waits() == []


def test_they_are_counted_by_queue_and_task_each_since_the_first(store: Store, clock: FakeClock) -> None:
    wall = clock.wall()
    for queue, task, delay_s in (("b", "x", 3), ("a", "y", 5), ("a", "x", 2), ("a", "x", 1), ("a", "z", 900)):
        park(store, start_flow(store, queue=queue, task=task), wake_at=wall + delay_s)
    clock.advance(60)
    assert store.due_waits() == [
        DueWaits("a", "x", 2, wall + 1),
        DueWaits("a", "y", 1, wall + 5),
        DueWaits("b", "x", 1, wall + 3),
    ]


def test_jobs_without_a_time_and_jobs_that_do_not_wait_are_not_listed(store: Store, clock: FakeClock) -> None:
    for state in State:
        job_in(store, state)
    park(store, start_flow(store), "signal:go")
    clock.advance(10**6)
    assert store.due_waits() == []


def test_looking_changes_nothing(store: Store, clock: FakeClock) -> None:
    park(store, start_flow(store), wake_at=clock.wall() + 1)
    clock.advance(2)
    before = picture(store)
    store.due_waits()
    assert picture(store) == before
