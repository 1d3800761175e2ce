"""move, of workflows: what a person says of steps, what is set aside, who is rolled back. One transaction each."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import acts
from holdfast.core.machine import State
from holdfast.core.records import Job
from holdfast.core.verdict import Failed, Verdict
from holdfast.stores.protocol import Reply, Store
from tests.factory import EXPIRED, a_signal, a_step, again, job_in, move, park, picture, record, row, settle, start_flow


def applied(store: Store, seen: Job, verdict: Verdict) -> bool:
    return move(store, seen.id, seen.state, seen.fence, verdict)


def dead_after(store: Store, *steps: Any) -> Job:
    job = start_flow(store, attempts_max=1)
    record(store, job, *steps)
    assert settle(store, job, Failed("x")) is Reply.ACCEPTED
    return row(store, job.id)


def held_with(store: Store, *opened: int) -> Job:
    """A workflow that died in steps which must not be repeated."""
    job = start_flow(store)
    names = [a_step(number, "started", repeatable=False, name=f"charge-{number}") for number in opened]
    record(store, job, *names, open_step=names[0].name)
    assert settle(store, row(store, job.id), EXPIRED) is Reply.ACCEPTED
    return row(store, job.id)


def retry_from(store: Store, job: Job, number: int) -> Verdict:
    steps = store.steps(job.id)
    return acts.retry_from(job, steps[number], steps, store.now().wall, actor="ann")


# ----------------------------------------------------------------------------------------- it happened


def test_it_happened_is_written_to_the_step_and_the_workflow_goes_on(store: Store) -> None:
    held = held_with(store, 1)
    steps = store.steps(held.id)
    verdict = acts.resolve(held, "done", 50.0, actor="ann", result='"paid"', steps=steps)
    assert applied(store, held, verdict) is True
    [said] = store.steps(held.id)
    assert said == replace(steps[0], result='"paid"', ended_at=50.0)  # a worker records it
    now = row(store, held.id)
    assert (now.state, now.open_step, now.fence) == (State.READY, None, held.fence + 1)


@pytest.mark.parametrize("answer", ["done", "retry"])
def test_an_answer_removes_the_error_that_asked_for_it(store: Store, answer: acts.Choice) -> None:
    held = held_with(store, 1)
    assert held.stop_reason == "open_step"
    result = "1" if answer == "done" else None
    assert applied(
        store, held, acts.resolve(held, answer, 50.0, actor="ann", result=result, steps=store.steps(held.id))
    )
    assert row(store, held.id).error is None


def test_the_answer_about_one_of_two_leaves_the_question_about_the_other(store: Store) -> None:
    held = held_with(store, 1, 2)
    answer = acts.resolve(held, "done", 50.0, actor="ann", result="1", steps=store.steps(held.id))
    assert applied(store, held, answer) is True
    now = row(store, held.id)
    assert (now.state, now.open_step) == (State.HELD, "charge-2")
    assert [step.result for step in store.steps(held.id)] == ["1", None]
    answer = acts.resolve(now, "done", 51.0, actor="ann", result="2", steps=store.steps(held.id))
    assert applied(store, now, answer) is True
    assert [step.result for step in store.steps(held.id)] == ["1", "2"]


def test_an_answer_never_changes_what_is_recorded(store: Store) -> None:
    held = held_with(store, 1)
    verdict = acts.resolve(held, "done", 50.0, actor="ann", result="1", steps=store.steps(held.id))
    assert applied(store, held, verdict) is True
    revived = again(store, row(store, held.id))
    record(store, revived, a_step(1, result="1", repeatable=False, name="charge-1"))
    settle(store, revived, EXPIRED)
    now = row(store, held.id)
    held_again = acts.hold(now, actor="ann")
    before = store.steps(held.id)
    assert [step.result for step in before] == ["1"]
    other = a_step(1, result="2", attempt=7, fence=7, ended_at=70.0)
    assert applied(store, now, replace(held_again, steps=(other,))) is True
    assert store.steps(held.id) == before


def test_a_person_may_say_that_a_recorded_step_was_undone(store: Store) -> None:
    dead = dead_after(store, a_step(1, result='"paid"', has_undo=True))
    [known] = store.steps(dead.id)
    undone = replace(known, state="undone", attempt=4, fence=6, ended_at=60.0)
    revived = acts.revive(dead, store.now().wall, actor="ann")
    assert applied(store, dead, replace(revived, steps=(undone,))) is True
    assert store.steps(dead.id) == [undone]


@pytest.mark.parametrize("seen", [{"fence": 99}, {"state": State.DEAD}])
def test_an_answer_to_what_is_no_longer_there_changes_no_step(store: Store, seen: dict[str, Any]) -> None:
    held = held_with(store, 1)
    store.signal(a_signal(held))
    verdict = acts.resolve(held, "done", 50.0, actor="ann", result="1", steps=store.steps(held.id))
    before = picture(store)
    assert applied(store, replace(held, **seen), replace(verdict, aside_from=1)) is False
    assert picture(store) == before


def test_a_job_that_may_run_again_has_no_open_step_and_the_step_stays_started(store: Store) -> None:
    held = held_with(store, 1)
    assert applied(store, held, acts.revive(held, 50.0, actor="ann", repeat_step=True)) is True
    assert row(store, held.id).open_step is None
    assert [step.state for step in store.steps(held.id)] == ["started"]


def test_that_one_of_two_may_run_again_leaves_the_question_about_the_other(store: Store) -> None:
    held = held_with(store, 1, 2)
    answer = acts.resolve(held, "retry", 50.0, actor="ann", steps=store.steps(held.id))
    assert applied(store, held, answer) is True
    now = row(store, held.id)
    assert (now.state, now.open_step) == (State.HELD, "charge-2")
    assert [step.repeatable for step in store.steps(held.id)] == [True, False]


# -------------------------------------------------------------------------------------------- set aside


def test_steps_are_set_aside_from_a_position_on_and_keep_their_rows(store: Store) -> None:
    dead = dead_after(store, a_step(1), a_step(2), a_step(3, "started"))
    assert applied(store, dead, retry_from(store, dead, 1)) is True
    assert store.steps(dead.id) == [a_step(1)]
    aside = [a_step(2, aside=dead.fence), a_step(3, "started", aside=dead.fence)]
    assert store.steps(dead.id, aside=True) == [a_step(1), *aside]
    moved = store.journal(dead.id, kinds=["moved"])[-1]
    assert moved.detail["set_aside"] == ["step-2", "step-3"]


def test_steps_are_set_aside_at_each_request(store: Store) -> None:
    dead = dead_after(store, a_step(1), a_step(2))
    for _ in range(3):
        assert applied(store, dead, retry_from(store, dead, 1)) is True
        running = again(store, row(store, dead.id))
        record(store, running, a_step(2, attempt=running.attempt))
        settle(store, running, Failed("x", final=True))
        dead = row(store, dead.id)
    assert len(store.steps(dead.id)) == 2
    assert [step.position for step in store.steps(dead.id, aside=True)] == [1, 2, 2, 2, 2]


def test_the_steps_of_others_stay(store: Store) -> None:
    dead, other = dead_after(store, a_step(1)), dead_after(store, a_step(1))
    for job in (dead, other):
        assert len(store.steps(job.id)) == 1
    applied(store, dead, retry_from(store, dead, 0))
    assert store.steps(dead.id) == []
    assert store.steps(other.id) == [a_step(1)]


def test_signals_that_were_taken_by_what_is_set_aside_wait_to_be_taken_again(store: Store) -> None:
    jobs = [start_flow(store, attempts_max=1) for _ in range(2)]
    for job in jobs:
        for number in (1, 2, 3, 4):
            store.signal(a_signal(job, id=f"{job.id}/{number}"))
        for number in (1, 2, 3):
            record(store, job, a_step(number, kind="wait"), taken=(f"{job.id}/{number}",))
        settle(store, row(store, job.id), Failed("x"))
    dead, other = (row(store, job.id) for job in jobs)
    assert applied(store, dead, retry_from(store, dead, 1)) is True
    assert [signal.id for signal in store.inbox(dead.id).signals] == [f"{dead.id}/{number}" for number in (2, 3, 4)]
    assert [signal.id for signal in store.inbox(other.id).signals] == [f"{other.id}/4"]
    assert store.inbox(dead.id).count == 4


def test_answers_to_questions_that_are_set_aside_are_not_for_those_that_are_asked_again(store: Store) -> None:
    """Neither one that was taken, nor one that came in the moment in which the time for it was up."""
    jobs = [start_flow(store, attempts_max=1) for _ in range(2)]
    for job in jobs:
        for name in ("taken", "late"):
            store.signal(a_signal(job, "approve:1", id=f"{job.id}/{name}", value="true"))
        record(store, job, a_step(1, kind="approve"), taken=(f"{job.id}/taken",))
        settle(store, row(store, job.id), Failed("x"))
    dead, other = (row(store, job.id) for job in jobs)
    assert applied(store, dead, retry_from(store, dead, 0)) is True
    assert store.inbox(dead.id).signals == []
    assert [signal.id for signal in store.inbox(other.id).signals] == [f"{other.id}/late"]


# ------------------------------------------------------------------------------------------- rolled back


@pytest.mark.parametrize("state", [State.READY, State.WAITING, State.HELD, State.DEAD, State.CANCELLED])
def test_a_rollback_makes_it_ready_to_be_undone(store: Store, state: State) -> None:
    job = job_in(store, state, workflow=True)
    assert applied(store, job, acts.rollback(job, 50.0, actor="ann")) is True
    now = row(store, job.id)
    assert (now.state, now.rolling_back, now.fence) == (State.READY, True, job.fence + 1)
    assert (now.wake_at, now.awaits, now.question, now.open_step) == (None, None, None, None)


def test_a_running_one_is_asked_to_stop_and_keeps_its_lease(store: Store) -> None:
    job = start_flow(store)
    assert applied(store, job, acts.rollback(job, 50.0, actor="ann")) is True
    asked = replace(job, cancel_requested=True, undo_requested=True, error="rolled back by ann")
    assert row(store, job.id) == asked
    assert record(store, job, a_step(1)) is Reply.ACCEPTED


def test_an_attempt_that_was_asked_for_a_rollback_ends_in_one(store: Store) -> None:
    job = start_flow(store)
    applied(store, job, acts.rollback(job, 50.0, actor="ann"))
    assert settle(store, job, Failed("x")) is Reply.AGAIN, "it has not heard of it"
    assert settle(store, row(store, job.id), Failed("x")) is Reply.ACCEPTED
    now = row(store, job.id)
    assert (now.state, now.rolling_back, now.undo_requested, now.cancel_requested) == (State.READY, True, False, False)


@pytest.mark.parametrize("act", ["cancel", "hold"])
def test_a_job_that_is_stopped_while_it_waits_awaits_nothing(store: Store, act: str) -> None:
    waiting = park(store, start_flow(store), "signal:a", wake_at=store.now().wall + 9, question="Ship it?")
    verdict = acts.cancel(waiting, actor="ann") if act == "cancel" else acts.hold(waiting, actor="ann")
    assert applied(store, waiting, verdict) is True
    now = row(store, waiting.id)
    assert (now.wake_at, now.awaits, now.question) == (None, None, None)
