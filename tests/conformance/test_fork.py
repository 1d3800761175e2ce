"""fork: a new workflow that begins with what another one has recorded."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.core import acts
from holdfast.core.machine import ENDED, State
from holdfast.core.records import Job, NewEvent, Record, Step
from holdfast.core.verdict import Cancelled
from holdfast.stores.protocol import Reply, Store
from tests.factory import add, again, job_in, make_job, move, picture, row, settle, start

NOTE = NewEvent("moved", {"forked_from": "old"}, "ann")


def recorded(store: Store) -> Job:
    """A workflow that has ended, with a step of each kind."""
    job = start(store, workflow=True)

    def step(position: int, **given: object) -> Step:
        known = {"kind": "step", "name": f"s{position}", "state": "recorded", "attempt": 1, "fence": job.fence}
        return Step(position=position, path=str(position), **known | given)  # type: ignore[arg-type]

    steps = (
        step(1, has_undo=True, result='{"n":1}', arguments="[1]", started_at=1.0, ended_at=2.0, tries=4),
        step(2, error="ValueError: no", error_kind="ValueError", repeatable=False),
        step(3, state="started", has_undo=True),
        step(4, result='"last"'),
        step(5, result='"not this"'),
    )
    assert store.record([Record(lease=job.lease, steps=steps, undoable=True)]) == [Reply.ACCEPTED]
    return cancelled(store, job)


def cancelled(store: Store, job: Job) -> Job:
    job = row(store, job.id)
    assert move(store, job.id, job.state, job.fence, acts.cancel(job, actor="ann"))
    if job.state is State.RUNNING:
        assert settle(store, row(store, job.id), Cancelled()) is Reply.ACCEPTED
    ended = row(store, job.id)
    assert ended.state is State.CANCELLED
    return ended


def from_second(store: Store, job: Job) -> bool:
    """Run it again from its second step."""
    steps = store.steps(job.id)
    verdict = acts.retry_from(job, steps[1], steps, store.now().wall, actor="ann")
    return move(store, job.id, job.state, job.fence, verdict)


def test_what_is_recorded_before_the_position_is_copied(store: Store) -> None:
    old = recorded(store)
    before = store.steps(old.id)
    new = make_job(workflow=True)
    assert store.fork(new, old.id, old.fence, 5, NOTE) == (new.id, False)
    assert (row(store, new.id).state, row(store, new.id).undoable) == (State.READY, False)
    first, second, last = store.steps(new.id)
    assert (first.position, first.path, first.result, first.arguments) == (1, "1", '{"n":1}', "[1]")
    assert (first.tries, second.tries) == (4, 0)
    assert (first.started_at, first.ended_at, first.attempt, first.fence) == (1.0, 2.0, 0, 0)
    assert first.has_undo is False  # what it did belongs to the old one
    assert (second.error, second.error_kind, second.repeatable) == ("ValueError: no", "ValueError", False)
    assert last.result == '"last"'
    assert store.steps(old.id) == before
    [event] = store.journal(new.id)
    assert (event.kind, event.fence, event.actor, event.detail) == ("moved", 0, "ann", NOTE.detail)


def test_what_was_set_aside_is_not_copied(store: Store) -> None:
    old = recorded(store)
    assert from_second(store, old)
    old = cancelled(store, old)
    new = make_job(workflow=True)
    store.fork(new, old.id, old.fence, 5, NOTE)
    assert [step.name for step in store.steps(new.id)] == ["s1"]


def test_a_repeated_fork_changes_nothing(store: Store) -> None:
    old = recorded(store)
    new = make_job(workflow=True)
    store.fork(new, old.id, old.fence, 5, NOTE)
    seen = picture(store), store.steps(new.id)
    assert store.fork(new, old.id, old.fence, 2, NOTE) == (new.id, True)
    assert (picture(store), store.steps(new.id)) == seen


def test_a_key_that_is_taken_is_not_forked_onto(store: Store) -> None:
    old, holder = recorded(store), add(store, key="k")
    new = make_job(workflow=True, key="k")
    assert store.fork(new, old.id, old.fence, 5, NOTE) == (holder.id, True)
    assert store.get(new.id) is None
    assert store.steps(new.id) == store.steps(holder.id) == []


def test_only_what_that_one_recorded_is_copied(store: Store) -> None:
    recorded(store)
    old, new = cancelled(store, start(store, workflow=True)), make_job(workflow=True)
    store.fork(new, old.id, old.fence, 5, NOTE)
    assert store.steps(new.id) == []


def test_a_workflow_that_runs_again_is_not_forked(store: Store) -> None:
    old, new = recorded(store), make_job(workflow=True)
    assert from_second(store, old)
    old = again(store, old)
    other = job_in(store, State.DEAD, workflow=True)
    while other.fence < old.fence:
        move(store, other.id, other.state, other.fence, acts.revive(other, store.now().wall, actor="ann"))
        other = cancelled(store, again(store, other))
    assert other.fence == old.fence, "somebody else has ended with that fence"
    before = picture(store)
    assert store.fork(new, old.id, old.fence, 5, NOTE) is None, "it has not ended"
    assert picture(store) == before
    assert store.get(new.id) is None


def test_a_workflow_that_ended_again_is_not_forked_by_an_older_look(store: Store) -> None:
    old, new = recorded(store), make_job(workflow=True)
    assert from_second(store, old)
    cancelled(store, old)
    before = picture(store)
    assert store.fork(new, old.id, old.fence, 5, NOTE) is None
    assert picture(store) == before
    assert store.fork(new, "nobody", 1, 5, NOTE) is None


@pytest.mark.parametrize("state", sorted(ENDED))
def test_an_ended_workflow_is_forked(store: Store, state: State) -> None:
    old, new = job_in(store, state, workflow=True), make_job(workflow=True)
    assert store.fork(new, old.id, old.fence, 5, NOTE) == (new.id, False)


def test_a_fork_that_is_repeated_after_the_other_went_on_is_known(store: Store) -> None:
    old, new = recorded(store), make_job(workflow=True)
    store.fork(new, old.id, old.fence, 5, NOTE)
    assert from_second(store, old)
    assert store.fork(new, old.id, old.fence, 5, NOTE) == (new.id, True)


def test_what_is_run_again_at_the_same_time_is_copied_whole_or_not_at_all(store: Store) -> None:
    for _ in range(20):
        old, new = recorded(store), make_job(workflow=True)
        with ThreadPoolExecutor(2) as pool:
            forked = pool.submit(store.fork, new, old.id, old.fence, 5, NOTE)
            assert pool.submit(from_second, store, old).result()
        whole = ["s1", "s2", "s4"]
        assert [step.name for step in store.steps(new.id)] == (whole if forked.result() is not None else [])
        assert (store.get(new.id) is None) == (forked.result() is None)
