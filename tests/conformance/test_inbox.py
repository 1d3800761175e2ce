"""inbox: the signals that were not taken, oldest first, and how many things have come."""

from typing import Any

from holdfast.core.records import Inbox
from holdfast.core.verdict import Succeeded
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import a_signal, a_step, record, settle, start, start_flow


def test_nothing_has_come(store: Store) -> None:
    assert store.inbox(start_flow(store).id) == Inbox(0, [])
    assert store.inbox("nobody") == Inbox(0, [])


def test_the_oldest_is_the_one_that_came_first_whatever_the_clock_and_the_ids_say(
    store: Store, clock: FakeClock
) -> None:
    job = start_flow(store)
    for name in ("z", "a", "m"):
        store.signal(a_signal(job, id=name))
        clock.set_wall(clock.wall() - 60)
    assert [signal.id for signal in store.inbox(job.id).signals] == ["z", "a", "m"]


def test_only_so_many_and_only_of_one_name(store: Store) -> None:
    job = start_flow(store)
    for number, name in enumerate(("a", "b", "a", "b", "a")):
        store.signal(a_signal(job, name, id=str(number)))

    def found(*given: Any) -> tuple[int, list[str]]:
        inbox = store.inbox(job.id, *given)
        return inbox.count, [signal.id for signal in inbox.signals]

    assert found() == (5, ["0", "1", "2", "3", "4"])
    assert found(None, 2) == (5, ["0", "1"])
    assert found("a") == (5, ["0", "2", "4"])
    assert found("b", 1) == (5, ["1"])
    assert found("c") == (5, [])
    assert found(None, 0) == (5, [])


def test_the_count_never_falls(store: Store) -> None:
    job = start_flow(store)
    for name in ("a", "b", "c"):
        store.signal(a_signal(job, id=name))
    record(store, job, a_step(1, kind="wait"), taken=("a", "c"))
    inbox = store.inbox(job.id)
    assert (inbox.count, [signal.id for signal in inbox.signals]) == (3, ["b"])


def test_an_ended_child_is_counted_and_is_no_signal(store: Store) -> None:
    job = start_flow(store)
    settle(store, start(store, parent=job.id), Succeeded())
    assert store.inbox(job.id) == Inbox(1, [])
