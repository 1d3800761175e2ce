"""acquire, resign and acts under a duty: one holder at a time, a term that only rises, an old term refused."""

import pytest

from holdfast.core.machine import State
from holdfast.core.records import Duty
from holdfast.core.verdict import Lost
from holdfast.errors import DutyLost
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from tests.factory import enrol, job_in, picture, row, settlement, start

LOST = Lost("expired", "the lease ran out")


def acquire(store: Store, holder: str = "a", ttl_s: float = 30.0) -> Duty:
    duty = store.acquire("reaper", holder, ttl_s)
    assert duty is not None
    return duty


def test_the_first_holder_gets_term_one_until_the_ttl_has_passed(store: Store, clock: FakeClock) -> None:
    assert acquire(store) == Duty("reaper", "a", 1, clock.lease() + 30)


def test_another_gets_nothing_until_the_very_end_and_then_the_next_term(store: Store, clock: FakeClock) -> None:
    acquire(store)
    clock.advance(29.999)
    assert store.acquire("reaper", "b", 30.0) is None
    clock.advance(0.001)
    assert acquire(store, "b") == Duty("reaper", "b", 2, clock.lease() + 30)
    assert store.acquire("reaper", "a", 30.0) is None


def test_renewing_keeps_the_term_also_late_if_nobody_came(store: Store, clock: FakeClock) -> None:
    acquire(store)
    clock.advance(10)
    assert acquire(store) == Duty("reaper", "a", 1, clock.lease() + 30)
    clock.advance(300)
    assert acquire(store).term == 1


def test_duties_of_other_names_do_not_disturb_each_other(store: Store) -> None:
    acquire(store)
    other = store.acquire("pruner", "b", 30.0)
    assert other is not None
    assert (other.name, other.term) == ("pruner", 1)


def test_a_resignation_lets_the_next_process_in_at_once_under_a_higher_term(store: Store) -> None:
    duty = acquire(store)
    assert store.resign(duty) is True
    assert store.resign(duty) is False
    assert acquire(store, "b").term == 2
    assert store.resign(duty) is False
    assert store.acquire("reaper", "c", 30.0) is None


def test_a_process_that_returns_after_resigning_has_a_new_term(store: Store) -> None:
    store.resign(acquire(store))
    assert acquire(store).term == 2


def test_a_note_left_at_resignation_stays_until_the_next_one(store: Store) -> None:
    assert acquire(store).note is None
    assert store.resign(acquire(store), "as far as Tuesday")
    assert acquire(store, "b").note == "as far as Tuesday"
    assert acquire(store, "b").note == "as far as Tuesday"
    assert store.resign(acquire(store, "b"))
    assert acquire(store, "c").note == "as far as Tuesday"


@pytest.mark.parametrize("end", ["resigned", "died"])
def test_a_holder_leaves_a_note_as_it_renews_and_nobody_else_does(store: Store, clock: FakeClock, end: str) -> None:
    first = store.acquire("reaper", "a", 1.0, "of nobody")
    assert first is not None
    assert first.note is None, "it took the duty, and knew nothing of what was done before"
    renewed = store.acquire("reaper", "a", 1.0, "as far as Tuesday")
    assert renewed is not None
    assert (renewed.term, renewed.note) == (first.term, "as far as Tuesday")
    assert store.acquire("reaper", "b", 1.0, "of another") is None
    if end == "resigned":
        store.resign(renewed)
    clock.advance(2)
    taken = store.acquire("reaper", "b", 30.0, "of another")
    assert taken is not None
    assert taken.note == "as far as Tuesday"
    assert store.resign(renewed, "too late") is False
    assert acquire(store, "b").note == "as far as Tuesday"


def test_an_act_under_the_current_term_is_accepted_also_when_its_time_has_run_out(
    store: Store, clock: FakeClock
) -> None:
    duty = acquire(store, ttl_s=1.0)
    job = start(store)
    clock.advance(60)
    assert store.settle([settlement(job, LOST)], under=duty) == [Reply.ACCEPTED]
    assert row(store, job.id).state is State.READY


@pytest.mark.parametrize("end", ["taken over", "resigned", "taken over and back"])
def test_the_act_of_an_old_term_is_refused_and_changes_nothing(store: Store, clock: FakeClock, end: str) -> None:
    duty = acquire(store)
    worker = enrol(store)
    job_in(store, State.DONE)
    job = start(store, worker)
    if end == "resigned":
        store.resign(duty)
    else:
        clock.advance(30)
        acquire(store, "b", ttl_s=5.0)
    if end == "taken over and back":
        clock.advance(5)
        assert acquire(store).term == 3
    before = picture(store)
    with pytest.raises(DutyLost, match="term 1"):
        store.settle([settlement(job, LOST)], under=duty)
    with pytest.raises(DutyLost):
        store.retire(worker, "vanished", under=duty)
    with pytest.raises(DutyLost):
        store.purge([State.DONE], clock.wall() + 1, under=duty)
    assert picture(store) == before


def test_what_is_deleted_under_the_current_term_is_gone(store: Store, clock: FakeClock) -> None:
    job = job_in(store, State.DONE)
    assert store.purge([State.DONE], clock.wall() + 1, under=acquire(store)) == 1
    assert store.get(job.id) is None


def test_a_duty_is_no_proof_of_another_that_was_lost(store: Store, clock: FakeClock) -> None:
    kept, lost = store.acquire("pruner", "a", 90.0), acquire(store)
    assert kept is not None
    assert (kept.holder, kept.term) == (lost.holder, lost.term)
    clock.advance(30)
    acquire(store, "b")
    worker = enrol(store)
    job_in(store, State.DONE)
    job = start(store, worker)
    before = picture(store)
    with pytest.raises(DutyLost):
        store.settle([settlement(job, LOST)], under=lost)
    with pytest.raises(DutyLost):
        store.retire(worker, "vanished", under=lost)
    with pytest.raises(DutyLost):
        store.purge([State.DONE], clock.wall() + 1, under=lost)
    assert picture(store) == before
    assert store.purge([State.DONE], clock.wall() + 1, under=kept) == 1
    assert store.retire(worker, "vanished", under=kept) is True


def test_every_duty_is_listed_by_name_with_its_holder_and_its_note(store: Store, clock: FakeClock) -> None:
    assert store.duties() == []
    reaper, pruner = acquire(store, "a", 30.0), store.acquire("pruner", "b", 5.0)
    assert pruner is not None
    assert store.duties() == [pruner, reaper]
    clock.advance(6)
    store.resign(reaper, 'as "far" as Tuesday: ü')
    assert [(each.name, each.holder, each.term, each.note) for each in store.duties()] == [
        ("pruner", "b", 1, None),
        ("reaper", "", 1, 'as "far" as Tuesday: ü'),
    ]
    assert store.duties()[0].until < clock.lease() < store.duties()[1].until


def test_resigning_one_duty_keeps_the_other(store: Store) -> None:
    duty = acquire(store)
    store.acquire("pruner", "a", 30.0)
    assert store.resign(duty) is True
    assert store.acquire("pruner", "b", 30.0) is None


def test_an_old_resignation_does_not_end_a_newer_term(store: Store, clock: FakeClock) -> None:
    old = acquire(store)
    clock.advance(30)
    acquire(store, "b", ttl_s=5.0)
    clock.advance(5)
    assert acquire(store).term == 3
    assert store.resign(old) is False
    assert store.acquire("reaper", "b", 5.0) is None
