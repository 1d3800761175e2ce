"""fork: a new workflow that begins with what another one has recorded."""

from holdfast.core import acts
from holdfast.core.machine import State
from holdfast.core.records import Job, Note, Record, Step
from holdfast.core.verdict import Cancelled
from holdfast.stores.protocol import Answer, Store
from tests.factory import add, make_job, picture, row, settle, start

NOTE = Note("moved", {"forked_from": "old"}, "ann")


def recorded(store: Store) -> Job:
    """A workflow with a step of each kind."""
    job = start(store, workflow=True)

    def step(position: int, **given: object) -> Step:
        known = {"kind": "step", "name": f"s{position}", "state": "recorded", "attempt": 1, "fence": job.fence}
        return Step(position=position, path=str(position), **known | given)  # type: ignore[arg-type]

    steps = (
        step(1, has_undo=True, result='{"n":1}', arguments="[1]", started_at=1.0, ended_at=2.0),
        step(2, error="ValueError: no", error_kind="ValueError", repeatable=False),
        step(3, state="started", has_undo=True),
        step(4, result='"last"'),
        step(5, result='"not this"'),
    )
    assert store.record([Record(lease=job.lease, steps=steps, undoable=True)]) == [Answer.ACCEPTED]
    return job


def test_what_is_recorded_before_the_position_is_copied(store: Store) -> None:
    old = recorded(store)
    before = store.steps(old.id)
    new = make_job(workflow=True)
    assert store.fork(new, old.id, 5, NOTE) == (new.id, False)
    assert (row(store, new.id).state, row(store, new.id).undoable) == (State.READY, False)
    first, second, last = store.steps(new.id)
    assert (first.position, first.path, first.result, first.arguments) == (1, "1", '{"n":1}', "[1]")
    assert (first.started_at, first.ended_at, first.attempt, first.fence) == (1.0, 2.0, 0, 0)
    assert first.has_undo is False  # what it did belongs to the old one
    assert (second.error, second.error_kind, second.repeatable) == ("ValueError: no", "ValueError", False)
    assert last.result == '"last"'
    assert store.steps(old.id) == before
    [event] = store.journal(new.id)
    assert (event.kind, event.fence, event.actor, event.detail) == ("moved", 0, "ann", NOTE.detail)


def test_what_was_set_aside_is_not_copied(store: Store) -> None:
    old = recorded(store)
    store.move(old.id, State.RUNNING, old.fence, acts.cancel(old, actor="ann"))
    settle(store, row(store, old.id), Cancelled())
    cancelled = row(store, old.id)
    steps = store.steps(old.id)
    verdict = acts.retry_from(cancelled, steps[1], steps, store.now().wall, actor="ann")
    assert store.move(old.id, State.CANCELLED, cancelled.fence, verdict)
    new = make_job(workflow=True)
    store.fork(new, old.id, 5, NOTE)
    assert [step.name for step in store.steps(new.id)] == ["s1"]


def test_a_repeated_fork_changes_nothing(store: Store) -> None:
    old = recorded(store)
    new = make_job(workflow=True)
    store.fork(new, old.id, 5, NOTE)
    seen = picture(store), store.steps(new.id)
    assert store.fork(new, old.id, 2, NOTE) == (new.id, True)
    assert (picture(store), store.steps(new.id)) == seen


def test_a_key_that_is_taken_is_not_forked_onto(store: Store) -> None:
    old, holder = recorded(store), add(store, key="k")
    new = make_job(workflow=True, key="k")
    assert store.fork(new, old.id, 5, NOTE) == (holder.id, True)
    assert store.get(new.id) is None
    assert store.steps(new.id) == store.steps(holder.id) == []


def test_only_what_that_one_recorded_is_copied(store: Store) -> None:
    recorded(store)
    old, new = start(store, workflow=True), make_job(workflow=True)
    store.fork(new, old.id, 5, NOTE)
    assert store.steps(new.id) == []
