"""What a person may do to a workflow, and what refuses to be done."""

from functools import partial

import pytest
from msgspec.structs import replace

from holdfast.core import acts
from holdfast.core.machine import ENDED, State, Transition
from holdfast.core.records import Job, Step
from holdfast.core.replay import open_steps
from holdfast.core.stop_reason import full_reason
from holdfast.core.transitions import apply_verdict
from holdfast.errors import IllegalMove
from tests.factory import a_job, a_step

NOW = 50.0
AT_REST = (State.READY, State.WAITING, State.HELD, State.DEAD, State.CANCELLED)


def flow(state: State = State.RUNNING, **changes: object) -> Job:
    return a_job(state, workflow=True, **changes)


# --------------------------------------------------------------------------------------------- rollback


@pytest.mark.parametrize("state", AT_REST)
def test_a_rollback_makes_it_ready_to_be_undone(state: State) -> None:
    job = flow(state, open_step="charge", cancel_requested=True, undo_requested=True)
    verdict = acts.rollback(job, NOW, actor="ann", reason="withdrawn")
    assert (verdict.move, verdict.state, verdict.run_at) == (Transition.UNDO, State.READY, NOW)
    assert (verdict.rolling_back, verdict.fresh_budgets, verdict.raises_fence) == (True, True, True)
    assert (verdict.open_step, verdict.cancel_requested, verdict.undo_requested) == ("", False, False)
    assert verdict.error == "withdrawn"
    [note] = verdict.events
    detail = {"rolling_back": True, "from": state.value, "note": "withdrawn"}
    assert (note.kind, note.actor, note.detail) == ("moved", "ann", detail)
    assert acts.rollback(job, NOW, actor="ann").error == "rolled back by ann"


def test_a_running_one_is_asked_to_stop_and_to_undo() -> None:
    verdict = acts.rollback(flow(), NOW, actor="ann", reason="withdrawn")
    assert (verdict.move, verdict.state, verdict.raises_fence) == (Transition.CANCEL, State.RUNNING, False)
    assert (verdict.cancel_requested, verdict.undo_requested) == (True, True)
    assert verdict.error == "withdrawn", "why is asked for in the end, and is not what stopped it"
    assert verdict.events[0].detail == {"undo_requested": True, "note": "withdrawn"}


def test_what_cannot_be_rolled_back() -> None:
    with pytest.raises(IllegalMove, match="is done, and others may build on its result"):
        acts.rollback(flow(State.DONE), NOW, actor="ann")
    with pytest.raises(IllegalMove, match="was rolled back already"):
        acts.rollback(flow(State.ROLLED_BACK, rolling_back=True), NOW, actor="ann")
    with pytest.raises(IllegalMove, match="is not a workflow"):
        acts.rollback(a_job(State.HELD), NOW, actor="ann")
    for state in (State.READY, State.RUNNING):
        with pytest.raises(IllegalMove, match="is being rolled back already"):
            acts.rollback(flow(state, rolling_back=True), NOW, actor="ann")


@pytest.mark.parametrize("state", [State.HELD, State.DEAD, State.CANCELLED])
def test_a_rollback_that_was_given_up_goes_on_and_keeps_its_cause(state: State) -> None:
    verdict = acts.rollback(flow(state, rolling_back=True, error="why"), NOW, actor="ann", reason="once more")
    assert (verdict.state, verdict.rolling_back, verdict.error) == (State.READY, True, None)
    assert verdict.events[0].detail["note"] == "once more"


# ------------------------------------------------------------------------------------------ from a step


@pytest.mark.parametrize("state", [State.HELD, State.DEAD, State.CANCELLED])
def test_that_step_and_later_ones_are_set_aside_and_named(state: State) -> None:
    steps = [a_step(1), a_step(3), a_step(2), a_step(2, aside=1, name="long ago")]
    verdict = acts.retry_from(flow(state), steps[2], steps, NOW, actor="ann", reason="mended")
    assert (verdict.move, verdict.state, verdict.aside_from) == (Transition.REVIVE, State.READY, 2)
    assert (verdict.open_step, verdict.undo_requested) == ("", False)
    revived, moved = verdict.events
    assert revived.kind == "revived"
    set_aside = ["step-2", "step-3"]
    assert (moved.kind, moved.actor) == ("moved", "ann")
    assert moved.detail == {"from_step": "step-2", "path": "2", "set_aside": set_aside, "note": "mended"}


def test_what_cannot_be_run_again_from_a_step() -> None:
    with pytest.raises(IllegalMove, match="fork it"):
        acts.retry_from(flow(State.DONE), a_step(), [a_step()], NOW, actor="ann")
    for state in (State.READY, State.RUNNING, State.WAITING, State.ROLLED_BACK):
        with pytest.raises(IllegalMove, match="revived"):
            acts.retry_from(flow(state), a_step(), [a_step()], NOW, actor="ann")
    with pytest.raises(IllegalMove, match="rolled back"):
        acts.retry_from(flow(State.HELD, rolling_back=True), a_step(), [a_step()], NOW, actor="ann")


# ----------------------------------------------------------------- what was begun and must not be repeated


@pytest.mark.parametrize("state", [State.HELD, State.DEAD, State.CANCELLED])
def test_an_open_step_runs_again_only_on_explicit_request(state: State) -> None:
    job = flow(state, open_step="charge")
    with pytest.raises(IllegalMove, match="'charge' was started and not recorded, and must not be repeated"):
        acts.revive(job, NOW, actor="ann")
    verdict = acts.revive(job, NOW, actor="ann", reason="not on the card", repeat_step=True)
    assert (verdict.state, verdict.open_step) == (State.READY, "")
    [note] = verdict.events
    detail = {"from": state.value, "repeat_step": "charge", "note": "not on the card"}
    assert (note.kind, note.actor, note.detail) == ("revived", "ann", detail)


def test_repeating_several_open_steps_needs_each_of_them_named() -> None:
    job, steps = held("charge", "ship")
    with pytest.raises(IllegalMove, match="its steps 'charge', 'ship' were started and not recorded"):
        acts.revive(job, NOW, actor="ann", steps=steps)
    [note] = acts.revive(job, NOW, actor="ann", repeat_step=True, steps=steps).events
    assert note.detail["repeat_step"] == "charge, ship"
    with pytest.raises(IllegalMove, match="its steps 'charge', 'ship' were"):
        acts.retry_from(job, steps[0], steps, NOW, actor="ann")


def test_what_can_be_done_instead_depends_on_whether_it_still_waits_for_an_answer() -> None:
    with pytest.raises(IllegalMove, match="answer for it"):
        acts.revive(flow(State.HELD, open_step="charge"), NOW, actor="ann")
    with pytest.raises(IllegalMove, match="find out whether it happened"):
        acts.revive(flow(State.DEAD, open_step="charge"), NOW, actor="ann")


def test_to_name_the_open_step_is_to_say_so() -> None:
    job, steps = held("charge")
    [charge] = [step for step in steps if step.name == "charge"]
    assert acts.retry_from(job, charge, steps, NOW, actor="ann").aside_from == charge.position
    with pytest.raises(IllegalMove, match="'charge' was started"):
        acts.retry_from(job, steps[0], steps, NOW, actor="ann")
    verdict = acts.retry_from(job, steps[0], steps, NOW, actor="ann", repeat_step=True)
    assert (verdict.aside_from, verdict.events[0].detail["repeat_step"]) == (steps[0].position, "charge")


def test_nobody_is_asked_about_a_step_that_pauses_between_two_tries() -> None:
    _, steps = held("charge", "ship")
    assert [step.name for step in open_steps(steps)] == ["charge", "ship"]
    paused = [replace(step, tries=1, retry_at=NOW + 9) if step.name == "charge" else step for step in steps]
    assert [step.name for step in open_steps(paused)] == ["ship"]


def test_that_one_may_run_again_is_not_said_of_the_next() -> None:
    job, steps = held("charge", "ship")
    verdict = acts.resolve(job, "retry", NOW, actor="ann", reason="so", steps=steps)
    assert (verdict.state, verdict.open_step, verdict.raises_fence) == (State.HELD, "ship", True)
    assert [(step.name, step.state, step.repeatable) for step in verdict.steps] == [("charge", "started", True)]
    assert verdict.events[0].detail == {"answer": "retry", "step": "charge", "note": "so"}
    left = [*verdict.steps, *(step for step in steps if step.name != "charge")]
    assert acts.resolve(job, "retry", NOW, actor="ann", steps=left).state is State.READY


def test_nothing_is_built_on_what_may_have_happened() -> None:
    _, steps = held("charge")
    job, last = flow(State.DEAD, open_step="charge"), a_step(9)
    with pytest.raises(IllegalMove, match="'charge' may have happened"):
        acts.fork(job, last, [*steps, last], actor="ann")
    acts.fork(job, last, [a_step(1, state="started", has_undo=True), a_step(2, repeatable=False), last], actor="ann")


@pytest.mark.parametrize("state", ["started", "recorded"])
def test_a_recorded_unrepeatable_step_runs_again_only_on_explicit_request(state: str) -> None:
    job = flow(State.DEAD)
    first, paid = a_step(1), a_step(2, state, name="charge", repeatable=False)
    for act in (partial(acts.retry_from, job, now=NOW), partial(acts.fork, job)):
        with pytest.raises(IllegalMove, match=r"'charge' .*must not be repeated"):
            act(step=first, steps=[first, paid], actor="ann")
        act(step=first, steps=[first, paid], actor="ann", repeat_step=True)
        act(step=paid, steps=[first, paid], actor="ann")
        for harmless in (a_step(2, "undone", repeatable=False), replace(paid, aside=3)):
            act(step=first, steps=[first, harmless], actor="ann")


# ------------------------------------------------------------------------------------------------ forks


@pytest.mark.parametrize("state", sorted(ENDED))
def test_one_that_has_ended_can_be_forked(state: State) -> None:
    job = flow(state)
    note = acts.fork(job, a_step(2), [a_step(1), a_step(2)], actor="ann", reason="again")
    detail = {"forked_from": job.id, "from_step": "step-2", "path": "2", "note": "again"}
    assert (note.kind, note.actor, note.detail) == ("moved", "ann", detail)


def test_what_cannot_be_forked() -> None:
    for state in sorted(set(State) - ENDED):
        with pytest.raises(IllegalMove, match="has ended"):
            acts.fork(flow(state), a_step(), [a_step()], actor="ann")
    with pytest.raises(IllegalMove, match="is not a workflow"):
        acts.fork(a_job(State.DONE), a_step(), [a_step()], actor="ann")


def test_nothing_is_built_on_what_was_undone() -> None:
    undone, second = a_step(1, state="undone"), a_step(2)
    job = flow(State.ROLLED_BACK)
    with pytest.raises(IllegalMove, match="'step-1' was undone"):
        acts.fork(job, second, [undone, second], actor="ann")
    acts.fork(job, undone, [undone, second], actor="ann")  # begins before it
    acts.fork(job, second, [a_step(1, state="undone", aside=3), second], actor="ann")


# ---------------------------------------------------------------------------------------------- answers


def held(*names: str) -> tuple[Job, list[Step]]:
    opened = [a_step(at, name=name, state="started", repeatable=False) for at, name in enumerate(names, 2)]
    return flow(State.HELD, open_step=names[0]), [a_step(1), *reversed(opened)]


def test_that_it_happened_is_said_of_the_open_step() -> None:
    job, steps = held("charge")
    verdict = acts.resolve(job, "done", NOW, actor="ann", reason="seen", result="7", steps=steps)
    assert (verdict.move, verdict.state, verdict.run_at, verdict.result) == (Transition.REVIVE, State.READY, NOW, None)
    assert (verdict.open_step, verdict.fresh_budgets, verdict.raises_fence) == ("", True, True)
    [said] = verdict.steps
    assert (said.name, said.state, said.result, said.ended_at) == ("charge", "started", "7", NOW)
    assert verdict.events[0].detail == {"answer": "done", "step": "charge", "note": "seen"}
    with pytest.raises(IllegalMove, match="say what it returned") as refused:
        acts.resolve(job, "done", NOW, actor="ann", steps=steps)
    assert refused.value.needs == "result"
    with pytest.raises(IllegalMove, match="not on record"):
        acts.resolve(job, "done", NOW, actor="ann", result="7", steps=[a_step(1)])


def test_the_next_open_step_has_its_own_question() -> None:
    job, steps = held("charge", "ship")
    verdict = acts.resolve(job, "done", NOW, actor="ann", result="7", steps=steps)
    assert (verdict.state, verdict.open_step, verdict.raises_fence) == (State.HELD, "ship", True)
    assert [step.name for step in verdict.steps] == ["charge"]


def test_an_answer_is_taken_for_the_step_that_the_person_was_shown() -> None:
    """One that was approved, and not begun anew before the workflow was held again, stands before it."""
    _, steps = held("charge", "ship")
    job = flow(State.HELD, open_step="ship")
    answers: tuple[acts.Choice, ...] = ("done", "retry")
    for answer in answers:
        verdict = acts.resolve(job, answer, NOW, actor="ann", result="7", steps=steps)
        assert ([step.name for step in verdict.steps], verdict.open_step) == (["ship"], "charge")


def test_the_other_answers_leave_the_step() -> None:
    job, steps = held("charge")
    again = acts.revive(job, NOW, actor="ann", repeat_step=True)
    assert acts.resolve(job, "retry", NOW, actor="ann", steps=steps) == again
    assert acts.resolve(job, "rollback", NOW, actor="ann", steps=steps) == acts.rollback(job, NOW, actor="ann")
    assert acts.resolve(job, "fail", NOW, actor="ann", steps=steps).state is State.DEAD


def test_one_that_was_given_up_keeps_why_it_was_undone() -> None:
    stuck = flow(
        State.HELD, rolling_back=True, error="it fails", stop_reason="attempts_max", rollback_cause="withdrawn"
    )
    verdict = acts.resolve(stuck, "fail", NOW, actor="ann")
    dead = apply_verdict(stuck, verdict, NOW)
    assert (dead.error, dead.stop_reason, dead.rollback_cause) == ("given up by ann", None, "withdrawn")
    assert (
        full_reason(dead)
        == verdict.events[-1].detail["reason"]
        == "given up by ann; it is rolled back because of: withdrawn"
    )


def test_a_job_that_goes_on_keeps_no_reason_to_have_stopped() -> None:
    for held in (flow(State.HELD, stop_reason="on_crash"), flow(State.DEAD, stop_reason="crashes_max")):
        for verdict in (acts.revive(held, NOW, actor="ann"), acts.rollback(held, NOW, actor="ann")):
            assert apply_verdict(held, verdict, NOW).stop_reason is None


def test_nothing_is_built_on_what_may_yet_be_undone() -> None:
    steps = [a_step(1), a_step(2)]
    with pytest.raises(IllegalMove, match="undone in part"):
        acts.fork(flow(State.DEAD, rolling_back=True), steps[1], steps, actor="ann")
    acts.fork(flow(State.ROLLED_BACK, rolling_back=True), steps[1], steps, actor="ann")


def test_one_that_is_held_without_an_open_step_may_be_done() -> None:
    with pytest.raises(IllegalMove, match="about the whole workflow"):
        acts.resolve(flow(State.HELD), "done", NOW, actor="ann")
    verdict = acts.resolve(flow(State.HELD), "done", NOW, actor="ann", result="7")
    assert (verdict.state, verdict.result, verdict.steps) == (State.DONE, "7", ())


def test_one_that_was_answered_for_is_not_open_until_its_answer_is_taken_back() -> None:
    job, steps = held("charge", "ship")
    answered = acts.resolve(job, "done", NOW, actor="ann", result="7", steps=steps).steps
    left = [*answered, *(step for step in steps if step.name != "charge")]
    verdict = acts.resolve(job, "done", NOW, actor="ann", result="8", steps=left)
    assert ([step.name for step in verdict.steps], verdict.state) == (["ship"], State.READY)


def test_of_one_that_is_being_undone_it_is_said_that_the_next_undo_was_done_by_hand() -> None:
    job = flow(State.HELD, rolling_back=True)
    steps = [a_step(1, has_undo=True), a_step(2, has_undo=True), a_step(3), a_step(4, state="undone", has_undo=True)]
    verdict = acts.resolve(job, "done", NOW, actor="ann", reason="paid back", steps=steps)
    assert (verdict.move, verdict.state, verdict.run_at, verdict.error) == (Transition.REVIVE, State.READY, NOW, None)
    assert (verdict.fresh_budgets, verdict.raises_fence, verdict.rolling_back) == (True, True, None)
    assert [(step.position, step.state, step.undone_at) for step in verdict.steps] == [(2, "undone", NOW)]
    assert verdict.events[0].detail == {"answer": "done", "undone": "step-2", "note": "paid back"}
    with pytest.raises(IllegalMove, match="'step-2' was undone by hand"):
        acts.resolve(job, "done", NOW, actor="ann", result="7", steps=steps)
    with pytest.raises(IllegalMove, match="nothing left to undo"):
        acts.resolve(job, "done", NOW, actor="ann", steps=[a_step(1), a_step(2, has_undo=True, aside=3)])
    assert acts.resolve(job, "retry", NOW, actor="ann").state is State.READY
    assert acts.resolve(job, "fail", NOW, actor="ann").state is State.DEAD


def test_a_question_is_not_answered_by_a_move() -> None:
    job = flow(State.WAITING, question="Ship it?")
    with pytest.raises(IllegalMove, match=r"Ship it\?"):
        acts.resolve(job, "done", NOW, actor="ann")
