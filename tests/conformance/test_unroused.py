"""unroused: waiting workflows whose time has come, and that nobody has made ready."""

from holdfast.core.machine import State
from holdfast.core.records import Unroused
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
    assert store.unroused() == []
    clock.advance(0.25)
    assert store.unroused() == [Unroused("default", "nap", 1, wake_at)]
    clock.advance(60)
    assert store.unroused() == [Unroused("default", "nap", 2, wake_at)]
    store.rouse()
    assert store.unroused() == []


def test_they_are_counted_by_queue_and_task_each_since_the_first(store: Store, clock: FakeClock) -> None:
    wall = clock.wall()
    for queue, task, delay_s in (("b", "x", 3), ("a", "y", 5), ("a", "x", 2), ("a", "x", 1), ("a", "z", 900)):
        park(store, start_flow(store, queue=queue, task=task), wake_at=wall + delay_s)
    clock.advance(60)
    assert store.unroused() == [
        Unroused("a", "x", 2, wall + 1),
        Unroused("a", "y", 1, wall + 5),
        Unroused("b", "x", 1, wall + 3),
    ]


def test_jobs_without_a_time_and_jobs_that_do_not_wait_are_not_listed(store: Store, clock: FakeClock) -> None:
    for state in State:
        job_in(store, state)
    park(store, start_flow(store), "signal:go")
    clock.advance(10**6)
    assert store.unroused() == []


def test_looking_changes_nothing(store: Store, clock: FakeClock) -> None:
    park(store, start_flow(store), wake_at=clock.wall() + 1)
    clock.advance(2)
    before = picture(store)
    store.unroused()
    assert picture(store) == before
