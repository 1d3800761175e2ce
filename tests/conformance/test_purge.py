"""purge: retention. Deletes what ended before an instant, with its history, and nothing that is live."""

import pytest

from holdfast.core.machine import ENDED, LIVE, State
from holdfast.core.records import Filter
from holdfast.core.verdict import Succeeded
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import a_signal, a_step, add, job_in, make_job, picture, record, settle, start_flow

EVERY = sorted(State)


@pytest.mark.parametrize("state", sorted(ENDED))
def test_an_ended_job_is_deleted_with_its_history(store: Store, clock: FakeClock, state: State) -> None:
    job = job_in(store, state)
    clock.advance(1)
    assert store.purge([state], clock.wall()) == 1
    assert store.get(job.id) is None
    assert store.journal() == []
    assert store.counts() == {}


@pytest.mark.parametrize("state", sorted(LIVE))
def test_a_live_job_is_never_purged(store: Store, clock: FakeClock, state: State) -> None:
    job_in(store, state)
    before = picture(store)
    assert store.purge(EVERY, clock.wall() + 10**9) == 0
    assert picture(store) == before


def test_only_the_named_states_are_purged(store: Store, clock: FakeClock) -> None:
    done, dead = job_in(store, State.DONE), job_in(store, State.DEAD)
    assert store.purge([State.DONE, State.CANCELLED], clock.wall() + 1) == 1
    assert store.get(done.id) is None
    assert store.get(dead.id) == dead
    assert store.purge([], clock.wall() + 1) == 0


def test_what_ended_at_the_very_instant_stays(store: Store, clock: FakeClock) -> None:
    job_in(store, State.DONE)
    assert store.purge([State.DONE], clock.wall()) == 0
    assert store.purge([State.DONE], clock.wall() + 0.25) == 1


def test_the_age_counts_from_the_end_and_not_from_the_beginning(store: Store, clock: FakeClock) -> None:
    add(store)
    clock.advance(3600)
    job_in(store, State.DONE, run_at=0.0)
    assert store.purge([State.DONE], clock.wall()) == 0


def test_the_limit_holds_and_the_oldest_go_first(store: Store, clock: FakeClock) -> None:
    jobs = []
    for _ in range(5):
        jobs.append(job_in(store, State.DONE))
        clock.advance(1)
    assert store.purge([State.DONE], clock.wall(), limit=2) == 2
    assert [job.id for job in store.find(Filter())] == [job.id for job in reversed(jobs[2:])]
    assert store.purge([State.DONE], clock.wall(), limit=2) == 2
    assert store.purge([State.DONE], clock.wall(), limit=2) == 1
    assert store.purge([State.DONE], clock.wall(), limit=2) == 0


def test_of_several_states_one_goes_after_the_other_within_the_limit(store: Store, clock: FakeClock) -> None:
    done = [job_in(store, State.DONE) for _ in range(2)]
    clock.advance(1)
    dead = [job_in(store, State.DEAD) for _ in range(2)]
    clock.advance(1)
    assert store.purge([State.DEAD, State.DONE], clock.wall(), limit=3) == 3
    assert [store.get(job.id) for job in dead] == [None, None]
    assert [store.get(job.id) for job in done].count(None) == 1
    assert store.purge([State.DEAD, State.DONE], clock.wall(), limit=3) == 1


def test_the_history_of_others_stays(store: Store, clock: FakeClock) -> None:
    job_in(store, State.DEAD)
    clock.advance(10)
    kept = job_in(store, State.DEAD)
    store.purge([State.DEAD], clock.wall())
    assert {event.job_id for event in store.journal()} == {kept.id}


def test_an_id_may_be_used_again_after_the_purge(store: Store, clock: FakeClock) -> None:
    job = job_in(store, State.DONE, key="k")
    store.purge([State.DONE], clock.wall() + 1)
    assert not store.add([make_job(id=job.id, key="k")])[0].existed


def test_a_workflow_goes_with_its_steps_and_signals_and_with_nobody_elses(store: Store, clock: FakeClock) -> None:
    old, other = start_flow(store), start_flow(store)
    for job in (old, other):
        record(store, job, a_step(1))
        store.signal(a_signal(job, id=f"for-{job.id}"))
    settle(store, old, Succeeded())
    clock.advance(1)
    assert store.purge(EVERY, clock.wall()) == 1
    assert (store.steps(old.id, aside=True), store.inbox(old.id).signals) == ([], [])
    assert store.steps(other.id) == [a_step(1)]
    assert [signal.id for signal in store.inbox(other.id).signals] == [f"for-{other.id}"]
