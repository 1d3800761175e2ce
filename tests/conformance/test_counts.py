"""counts: exact, per queue and state, through everything that can happen to a job."""

import itertools
from collections import Counter

import pytest

from holdfast.core import acts
from holdfast.core.machine import State
from holdfast.core.records import Filter
from holdfast.core.verdict import Failed, Outcome, Succeeded
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import EXPIRED, STALE, again, delete, job_in, make_job, move, revive, row, settle, settlement, start

ENDINGS: list[Outcome] = [Succeeded(), Failed("x"), EXPIRED]


def counted(store: Store) -> dict[str, dict[State, int]]:
    """The truth: every job, one by one."""
    truth: dict[str, dict[State, int]] = {}
    for (queue, state), jobs in Counter((job.queue, job.state) for job in store.find(Filter(limit=10_000))).items():
        truth.setdefault(queue, {})[state] = jobs
    return truth


def test_an_empty_store_has_no_counts(store: Store) -> None:
    assert store.counts() == {}


def test_every_state_of_every_queue_is_counted(store: Store) -> None:
    for (number, state), queue in itertools.product(enumerate(State, 1), ("a", "b")):
        for _ in range(number):
            job_in(store, state, queue=queue)
    each = {state: number for number, state in enumerate(State, 1)}
    assert store.counts() == {"a": each, "b": each}


def test_states_and_queues_with_none_are_left_out(store: Store, clock: FakeClock) -> None:
    job_in(store, State.DONE, queue="a")
    held = job_in(store, State.HELD, queue="b")
    assert store.counts() == {"a": {State.DONE: 1}, "b": {State.HELD: 1}}
    store.purge([State.DONE], clock.wall() + 1)
    delete(store, held.id, State.HELD, held.fence)
    assert store.counts() == {}


@pytest.mark.parametrize("state", [State.DEAD, State.CANCELLED])
def test_a_revived_job_is_counted_where_it_is(store: Store, state: State) -> None:
    job_in(store, state)
    job = job_in(store, state)
    revive(store, job)
    assert store.counts() == {"default": {state: 1, State.READY: 1}}


def test_acts_that_end_a_job_are_counted(store: Store) -> None:
    ready, held, other = job_in(store, State.READY), job_in(store, State.HELD), job_in(store, State.HELD)
    move(store, ready.id, ready.state, ready.fence, acts.cancel(ready, actor="ann"))
    move(store, held.id, held.state, held.fence, acts.resolve(held, "done", 0.0, actor="ann"))
    move(store, other.id, other.state, other.fence, acts.resolve(other, "fail", 0.0, actor="ann"))
    assert store.counts() == {"default": {State.CANCELLED: 1, State.DONE: 1, State.DEAD: 1}}


def test_what_is_refused_or_repeated_is_not_counted(store: Store) -> None:
    job = start(store)
    done = settlement(job, Succeeded())
    assert store.settle([done, done])
    assert store.settle([done])
    settle(store, job, Failed("late"))
    stale = STALE["after a successor was done"](store)
    store.settle([done, settlement(start(store), Succeeded())])
    assert row(store, stale.job_id).state is State.DONE
    assert store.counts() == {"default": {State.DONE: 3}} == counted(store)


def test_an_act_that_was_refused_is_not_counted(store: Store) -> None:
    dead = job_in(store, State.DEAD)
    revive(store, dead)
    revive(store, dead)
    assert store.counts() == {"default": {State.READY: 1}}


def test_counts_stay_exact_through_a_long_life(store: Store, clock: FakeClock) -> None:
    for step in range(60):
        queue = f"q{step % 3}"
        job = start(store, queue=queue, attempts_max=2, base_s=0.0, cap_s=0.0)
        settle(store, job, ENDINGS[step % 3])
        if step % 4 == 0 and row(store, job.id).state is State.READY:
            settle(store, again(store, row(store, job.id)), Failed("y"))
        if step % 5 == 0:
            for dead in store.find(Filter(states=(State.DEAD,), limit=1)):
                revive(store, dead)
        if step % 7 == 0:
            for old in store.find(Filter(states=(State.DONE,), limit=1)):
                delete(store, old.id, old.state, old.fence)
        if step % 11 == 0:
            store.purge([State.DONE, State.DEAD], clock.wall(), limit=3)
        clock.advance(1)
        assert store.counts() == counted(store), step


def test_a_batch_over_several_queues_is_counted_in_each(store: Store) -> None:
    store.add([make_job(queue=queue) for queue in "aabbb"])
    jobs = store.claim(start(store, queue="z").worker or "", "c", ["a", "b"], ["t"], 10)
    store.settle([settlement(job, Succeeded()) for job in jobs])
    assert store.counts() == {"a": {State.DONE: 2}, "b": {State.DONE: 3}, "z": {State.RUNNING: 1}}
