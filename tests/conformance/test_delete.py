"""delete: jobs that do not run, each if it is still what the person saw."""

import pytest

from holdfast.core.machine import State
from holdfast.core.records import Filter, Seen
from holdfast.core.verdict import Failed
from holdfast.stores.protocol import Reply, Store
from tests.factory import (
    a_signal,
    a_step,
    delete,
    job_in,
    make_job,
    park,
    picture,
    record,
    row,
    settle,
    start,
    start_flow,
)

STILL = sorted(set(State) - {State.RUNNING})


@pytest.mark.parametrize("state", STILL)
def test_a_job_that_does_not_run_is_deleted_with_its_history(store: Store, state: State) -> None:
    job, other = job_in(store, state, key="k"), job_in(store, state, key="other")
    assert delete(store, job.id, state, job.fence) is True
    assert store.get(job.id) is None
    assert store.journal(job.id) == []
    assert store.get(other.id) == other
    assert store.counts() == {"default": {state: 1}}


def test_a_running_job_is_never_deleted(store: Store) -> None:
    job = job_in(store, State.RUNNING)
    before = picture(store)
    assert delete(store, job.id, State.RUNNING, job.fence) is False
    assert picture(store) == before


@pytest.mark.parametrize("state", STILL)
def test_a_job_that_is_no_longer_what_was_seen_stays(store: Store, state: State) -> None:
    job = job_in(store, state)
    before = picture(store)
    assert delete(store, job.id, state, job.fence + 1) is False
    assert delete(store, job.id, state, job.fence - 1) is False
    for other in set(State) - {state}:
        assert delete(store, job.id, other, job.fence) is False
    assert picture(store) == before


def test_deleting_again_is_false(store: Store) -> None:
    job = job_in(store, State.DONE)
    delete(store, job.id, State.DONE, job.fence)
    assert delete(store, job.id, State.DONE, job.fence) is False
    assert delete(store, "nobody", State.DONE, 1) is False


def test_a_deleted_jobs_id_and_key_are_free(store: Store) -> None:
    job = job_in(store, State.HELD, key="k")
    delete(store, job.id, State.HELD, job.fence)
    assert not store.add([make_job(id=job.id, key="k")])[0].existed


def test_a_workflow_goes_with_its_steps_and_signals_and_with_nobody_elses(store: Store) -> None:
    flows = [start_flow(store) for _ in range(2)]
    for job in flows:
        record(store, job, a_step(1))
        store.signal(a_signal(job, id=f"for-{job.id}"))
        park(store, job)
    gone, other = (row(store, job.id) for job in flows)
    assert delete(store, gone.id, gone.state, gone.fence) is True
    assert (store.steps(gone.id, aside=True), store.inbox(gone.id).signals) == ([], [])
    assert store.steps(other.id) == [a_step(1)]
    assert [signal.id for signal in store.inbox(other.id).signals] == [f"for-{other.id}"]


def test_a_job_under_a_deleted_id_inherits_nothing(store: Store) -> None:
    job = start_flow(store)
    record(store, job, a_step(1))
    store.signal(a_signal(job, id="one"))
    record(store, job, a_step(2, kind="wait"), taken=("one",))
    parked = park(store, job)
    delete(store, job.id, parked.state, parked.fence)
    anew = start_flow(store, id=job.id)
    assert store.steps(job.id) == []
    store.signal(a_signal(anew, id="one"))
    assert [signal.id for signal in store.inbox(job.id).signals] == ["one"]


def test_many_jobs_are_deleted_and_answered_in_their_order(store: Store) -> None:
    done, running, dead = job_in(store, State.DONE), start(store), job_in(store, State.DEAD)
    flow = start_flow(store)
    record(store, flow, a_step(1))
    store.signal(a_signal(flow))
    settle(store, flow, Failed("no luck", final=True))
    stale = job_in(store, State.HELD)
    flow = row(store, flow.id)
    seen = [done.seen, running.seen, Seen("nobody", State.DONE, 1), stale.seen._replace(fence=9), flow.seen, dead.seen]
    yes, no = Reply.ACCEPTED, Reply.REFUSED
    assert store.delete(seen) == [yes, no, no, no, yes, yes]
    assert {job.id for job in store.find(Filter())} == {running.id, stale.id}
    assert store.counts() == {"default": {State.RUNNING: 1, State.HELD: 1}}
    assert {event.job_id for event in store.journal()} == {stale.id}
    assert (store.steps(flow.id), store.inbox(flow.id).signals) == ([], [])
    before = picture(store)
    assert store.delete(seen) == [no] * 6
    assert store.delete([]) == []
    assert picture(store) == before
