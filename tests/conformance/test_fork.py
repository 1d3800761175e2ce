"""fork: a workflow that begins with the steps of another one."""

import pytest

from holdfast.core import acts
from holdfast.core.machine import State
from holdfast.core.verdict import Failed, Succeeded
from holdfast.stores.protocol import Added, Store
from tests.factory import a_step, add, again, make_job, picture, record, row, settle, start_flow


def test_the_steps_before_a_position_are_the_first_of_the_new_one(store: Store) -> None:
    source = start_flow(store)
    record(store, source, *(a_step(number, result=str(number), attempt=3, fence=5) for number in (1, 2, 3, 4)))
    settle(store, source, Succeeded())
    before = row(store, source.id)
    assert store.fork(make_job(id="fork", workflow=True), source.id, 3) == Added("fork", False)
    copied = [a_step(number, result=str(number), attempt=0, fence=0) for number in (1, 2)]
    assert store.steps("fork") == copied
    forked = row(store, "fork")
    assert (forked.state, forked.workflow, forked.attempt) == (State.READY, True, 0)
    assert row(store, source.id) == before
    assert len(store.steps(source.id)) == 4


@pytest.mark.parametrize("before", [0, 1])
def test_before_the_first_there_is_nothing(store: Store, before: int) -> None:
    source = start_flow(store)
    record(store, source, a_step(1))
    store.fork(make_job(id="fork", workflow=True), source.id, before)
    assert store.steps("fork") == []


def test_a_fork_whose_answer_was_lost_is_repeated_and_changes_nothing(store: Store) -> None:
    source = start_flow(store)
    record(store, source, a_step(1), a_step(2))
    new = make_job(id="fork", workflow=True, task="forked")
    store.fork(new, source.id, 2)
    forked = again(store, row(store, "fork"))
    record(store, forked, a_step(2, name="other"))
    before = picture(store)
    assert store.fork(new, source.id, 3) == Added("fork", True)
    assert picture(store) == before


def test_a_fork_whose_key_is_taken_is_the_job_that_has_it(store: Store) -> None:
    holder, source = add(store, key="k"), start_flow(store)
    record(store, source, a_step(1))
    before = picture(store)
    assert store.fork(make_job(id="fork", key="k", workflow=True), source.id, 2) == Added(holder.id, True)
    assert picture(store) == before
    assert store.steps("fork") == []


def test_what_was_set_aside_is_not_copied(store: Store) -> None:
    source = start_flow(store, attempts_max=1)
    record(store, source, a_step(1), a_step(2))
    settle(store, source, Failed("x"))
    dead, steps = row(store, source.id), store.steps(source.id)
    store.move(dead.id, dead.state, dead.fence, acts.retry_from(dead, steps[1], steps, 5.0, actor="ann"))
    store.fork(make_job(id="fork", workflow=True), source.id, 10)
    assert store.steps("fork", aside=True) == [a_step(1, attempt=0, fence=0)]
