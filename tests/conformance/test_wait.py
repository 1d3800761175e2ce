"""wait and wake: a hint that something may have changed. Polling is the truth."""

import threading

from holdfast.core.verdict import Succeeded
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import add, settle, start


def drain(store: Store) -> None:
    """Take the hints that are there already."""
    while store.wait(0):
        pass


def test_without_a_change_the_whole_time_passes(store: Store, clock: FakeClock) -> None:
    drain(store)
    before = clock.lease()
    assert store.wait(5.0) is False
    assert clock.lease() >= before + 5


def test_no_time_at_all_returns_at_once(store: Store, clock: FakeClock) -> None:
    drain(store)
    before = clock.lease()
    assert store.wait(0.0) is False
    assert clock.lease() == before


def test_a_wake_between_two_waits_is_not_lost(store: Store) -> None:
    drain(store)
    store.wake()
    assert store.wait(0) is True
    assert store.wait(0) is False


def test_a_new_job_between_two_waits_is_not_missed(store: Store) -> None:
    drain(store)
    add(store)
    assert store.wait(0) is True


def test_a_new_job_before_the_first_wait_of_a_thread_is_not_missed(store: Store) -> None:
    woken: list[bool] = []

    def falls_asleep() -> None:
        assert store.due(["default"], ["t"]) is None
        add(store)
        woken.append(store.wait(0))

    drain(store)
    thread = threading.Thread(target=falls_asleep)
    thread.start()
    thread.join(60)
    assert woken == [True]


def test_a_settlement_between_two_waits_is_not_missed(store: Store) -> None:
    job = start(store)
    drain(store)
    settle(store, job, Succeeded())
    assert store.wait(0) is True


def test_two_threads_that_wait_are_both_woken(store: Store) -> None:
    drained, woken = threading.Barrier(3, timeout=60), []
    go = threading.Event()

    def waiter() -> None:
        drain(store)
        drained.wait()
        go.wait(60)
        woken.append(store.wait(0))

    threads = [threading.Thread(target=waiter) for _ in range(2)]
    for thread in threads:
        thread.start()
    drained.wait()
    store.wake()
    go.set()
    for thread in threads:
        thread.join(60)
    assert woken == [True, True]
