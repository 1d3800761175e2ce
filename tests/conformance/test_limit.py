"""limit, queues, places: limits are data, of the app and of a person, and every change is in the journal."""

import pytest

from holdfast.core.limits import Limits, Places, Queue, Rate, Setting, setting
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import add, claim, picture


def only(store: Store) -> Queue:
    [queue] = store.queues()
    return queue


def test_nothing_is_listed_before_something_is_set(store: Store) -> None:
    add(store)
    assert store.queues() == []
    assert store.places("default") == Places(0, 0)


def test_what_a_person_chooses_wins_field_by_field_until_it_is_taken_back(store: Store) -> None:
    store.limit("mail", setting(limit=20, group_limit=2, rate="100/60s", burst=5), declared=True)
    assert only(store).limits == Limits(limit=20, group_limit=2, rate=Rate(100, 60.0), burst=5)
    store.limit("mail", setting(limit=3, rate=None), actor="ann")
    assert only(store).limits == Limits(limit=3, group_limit=2, rate=None, burst=5)
    store.limit("mail", setting(limit=7), declared=True)
    assert only(store).limits == Limits(limit=3)
    store.limit("mail", Setting(), actor="ann")
    assert only(store).limits == Limits(limit=7)


def test_every_change_is_in_the_journal_and_what_changes_nothing_is_not(store: Store) -> None:
    store.limit("mail", setting(limit=2), declared=True)
    store.limit("mail", setting(limit=1, rate="5/s"), actor="ann")
    store.pause("mail", True, actor="bob")
    store.pause("mail", True, group="acme", until=2_000_000_000.0, actor="bob")
    before = picture(store)
    store.limit("mail", setting(limit=1, rate="5/1s"), actor="eve")
    store.limit("mail", setting(limit=2), declared=True)
    store.pause("mail", True, actor="eve")
    store.pause("mail", True, group="acme", until=2_000_000_000.0, actor="eve")
    assert picture(store) == before
    store.pause("mail", False, group="acme", actor="ann")
    store.pause("mail", False, actor="ann")
    lines = [(event.job_id, event.kind, event.actor, event.detail) for event in store.journal()]
    until = {"until": "2033-05-18T03:33:20.000Z"}
    assert lines == [
        ("", "limited", None, {"queue": "mail", "by": "app", "was": {}, "is": {"limit": 2}}),
        ("", "limited", "ann", {"queue": "mail", "by": "person", "was": {}, "is": {"limit": 1, "rate": "5/1s"}}),
        ("", "paused", "bob", {"queue": "mail"}),
        ("", "paused", "bob", {"queue": "mail", "group": "acme", **until}),
        ("", "resumed", "ann", {"queue": "mail", "group": "acme"}),
        ("", "resumed", "ann", {"queue": "mail"}),
    ]


def test_queues_are_listed_by_name_with_all_that_is_set(store: Store, clock: FakeClock) -> None:
    store.pause("b", True, until=clock.wall() + 60)
    store.pause("a", True, group="x")
    store.pause("a", True, group="ünï 🐈", until=clock.wall() + 5)
    add(store, queue="c", group="g")
    a, b, c = store.queues()
    assert (a.name, a.paused, a.paused_groups) == ("a", False, {"x": None, "ünï 🐈": clock.wall() + 5})
    assert (b.name, b.paused, b.paused_until) == ("b", True, clock.wall() + 60)
    assert (c.name, c.grouped, c.limits) == ("c", True, Limits())


def test_a_person_may_say_why(store: Store) -> None:
    store.limit("mail", setting(limit=1), actor="ann", note="the relay is slow")
    [event] = store.journal(kinds=("limited",))
    assert (event.actor, event.detail["note"]) == ("ann", "the relay is slow")
    assert only(store).limits == Limits(limit=1)


@pytest.mark.parametrize("group", [None, "g"])
def test_places_are_counted_from_the_rows_that_run(store: Store, group: str | None) -> None:
    for name in ("g", "g", "h", None):
        add(store, group=name)
    add(store, queue="other", group="g")
    claim(store, limit=4)
    assert store.places("default", group) == Places(4, 0 if group is None else 2)


def test_a_group_travels_with_the_job(store: Store) -> None:
    job = add(store, group="ünï 🐈")
    assert job.group == "ünï 🐈"
    [claimed] = claim(store)
    assert claimed.group == "ünï 🐈"
    assert claim(store) == []


def test_a_limit_is_journalled_with_its_note(store: Store) -> None:
    store.limit("mail", Setting(limit=2), actor="ann", note="a sale begins")
    [event] = store.journal(kinds=["limited"])
    assert (event.actor, event.detail["note"]) == ("ann", "a sale begins")
