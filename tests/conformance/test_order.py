"""order: what a person asks of all workers of a name, and of the children of a supervisor of that name."""

import pytest
from msgspec.structs import replace

from holdfast.core import orders
from holdfast.core.machine import State
from holdfast.core.records import EndedAttempt, Order, Recent
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import a_worker, enrol, picture

RECENT = Recent((EndedAttempt("job-1", "t", "succeeded", State.DONE, 5.0, 0.25),), "a line\nanother 🐈")


def asked(store: Store, worker: str) -> Order | None:
    """Return what the worker hears with a beat; lists must say the same."""
    order = store.beat(worker, []).order
    [listed] = [each.order for each in store.workers() if each.id == worker]
    assert listed == order
    return order


def test_a_beat_tells_the_order_that_stands(store: Store, clock: FakeClock) -> None:
    worker, other = enrol(store, name="box"), enrol(store, name="other")
    assert store.order("box", "drain", actor="ann", note="a new kernel") is True
    assert asked(store, worker) == Order("box", "drain", "ann", "a new kernel", clock.wall())
    assert asked(store, other) is None
    assert store.orders() == [Order("box", "drain", "ann", "a new kernel", clock.wall())]


@pytest.mark.parametrize(
    ("order", "name", "supervisor", "hears"),
    [
        ("box", "box/1", "s", True),
        ("box", "box/12", "s", True),
        ("box/1", "box/1", "s", True),
        ("box/1", "box/12", "s", False),
        ("box", "box/1", None, False),  # a worker that somebody has named so, and no child
        ("box", "box/a", "s", False),
        ("box", "boxer/1", "s", False),
        ("ünï/🐈", "ünï/🐈/3", "s", True),
    ],
)
def test_an_order_reaches_the_name_and_the_children_of_a_supervisor(
    store: Store, order: str, name: str, supervisor: str | None, hears: bool
) -> None:
    worker = enrol(store, name=name, supervisor=supervisor)
    store.order(order, "drain")
    assert (asked(store, worker) is not None) is hears


def test_a_stop_wins_over_a_drain(store: Store) -> None:
    worker = enrol(store, name="box/1", supervisor="s")
    store.order("box", "drain")
    store.order("box/1", "stop")
    order = asked(store, worker)
    assert order is not None
    assert (order.name, order.act) == ("box/1", "stop")


def test_an_order_waits_for_a_worker_that_is_not_there_yet(store: Store) -> None:
    store.order("box", "stop")
    order = asked(store, enrol(store, name="box"))
    assert order is not None
    assert order.act == "stop"


def test_the_same_order_again_keeps_the_first(store: Store, clock: FakeClock) -> None:
    store.order("box", "drain", actor="ann")
    before = store.orders(), picture(store)
    clock.advance(5)
    assert store.order("box", "drain", actor="bob") is False
    assert (store.orders(), picture(store)) == before
    assert store.order("box", "stop", actor="bob") is True
    assert [(each.act, each.actor) for each in store.orders()] == [("stop", "bob")]


def test_resuming_a_supervisor_resumes_its_children(store: Store) -> None:
    child, other = enrol(store, name="box/2", supervisor="s"), enrol(store, name="boxer/2", supervisor="s")
    for name in ("box", "box/2", "boxer"):
        store.order(name, "drain")
    assert store.order("box", None, actor="ann") is True
    assert asked(store, child) is None
    assert asked(store, other) is not None
    assert [each.name for each in store.orders()] == ["boxer"]


def test_resuming_a_child_leaves_the_order_for_all(store: Store) -> None:
    child = enrol(store, name="box/2", supervisor="s")
    store.order("box", "drain")
    store.order("box/2", "stop")
    store.order("box/2", None)
    order = asked(store, child)
    assert order is not None
    assert order.name == "box"


def test_resuming_what_was_never_asked_changes_nothing(store: Store) -> None:
    before = picture(store)
    assert store.order("box", None, actor="ann") is False
    assert picture(store) == before


def test_each_change_is_journalled_with_its_actor_and_note(store: Store) -> None:
    store.order("box", "drain", actor="ann", note="a new kernel")
    store.order("box", "drain", actor="bob")
    store.order("box", None, actor="bob")
    lines = [(event.job_id, event.actor, event.detail) for event in store.journal(kinds=["ordered"])]
    assert lines == [
        ("", "ann", {"worker": "box", "order": "drain", "note": "a new kernel"}),
        ("", "bob", {"worker": "box", "order": "resume"}),
    ]


def test_a_worker_that_is_gone_hears_nothing(store: Store) -> None:
    worker = enrol(store, name="box")
    store.order("box", "drain")
    store.retire(worker, "left")
    assert store.beat(worker, []).order is None
    assert [each.order for each in store.workers(gone=True)] == [None]


def test_what_a_worker_says_of_itself_replaces_what_it_said_before(store: Store) -> None:
    worker, silent = enrol(store), enrol(store)
    assert store.recent([worker]) == {}
    store.beat(worker, [], recent=RECENT)
    store.beat(worker, [])
    assert store.recent([worker, silent, "nobody"]) == {worker: RECENT}
    newer = replace(RECENT, log="newer")
    store.beat(worker, [], recent=newer)
    assert store.recent([worker]) == {worker: newer}


def test_what_a_worker_said_outlives_it_as_long_as_its_row(store: Store) -> None:
    worker = enrol(store)
    store.beat(worker, [], recent=RECENT)
    store.retire(worker, "died")
    assert store.recent([worker]) == {worker: RECENT}
    assert store.beat(worker, [], recent=Recent()).gone
    assert store.recent([worker]) == {worker: RECENT}


def test_what_a_worker_said_goes_with_its_row(store: Store, clock: FakeClock) -> None:
    worker, another = enrol(store), enrol(store)
    for each in (worker, another):
        store.beat(each, [], recent=RECENT)
    store.retire(worker, "died")
    clock.advance(2 * 86_400)
    store.retire(enrol(store), "left")
    if not store.url.startswith(("memory", "http")):  # memory keeps the rows of workers
        assert store.recent([worker, another]) == {another: RECENT}


def test_the_order_in_force_is_the_same_in_pure_and_in_stores() -> None:
    worker = a_worker(name="box/1", supervisor="s")
    given = [Order("box", "drain", None, None, 1.0), Order("box/1", "drain", None, None, 2.0)]
    assert orders.in_force(given, worker) == given[0]
    assert orders.in_force([], worker) is None
