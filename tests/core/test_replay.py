"""Replay: what the code asks for against what is recorded, and what the records say."""

from typing import Any

import pytest

from holdfast.core.records import Event, EventKind, Step
from holdfast.core.replay import (
    FlowCall,
    Replay,
    Scope,
    answer_to,
    asked_about,
    asked_since,
    first_named,
    is_answered,
    is_paused,
    open_steps,
    to_undo,
    would_repeat,
)
from holdfast.errors import Diverged
from tests.factory import a_job, a_step, awaiting


def paths(steps: list[Step]) -> list[str]:
    return [step.path for step in steps]


# ---------------------------------------------------------------------------------------------- scopes


def test_each_branch_counts_its_own_calls() -> None:
    main = Scope()
    assert (main.peek(), main.next(), main.next()) == ("1", "1", "2")
    first, second = main.branch("2", 1), main.branch("2", 2)
    assert (second.next(), first.next(), first.next(), main.next()) == ("2.2.1", "2.1.1", "2.1.2", "3")
    assert first.branch("2.1.2", 1).next() == "2.1.2.1.1"
    assert first.main is main
    assert main.main is main


def test_a_dropped_branch_and_those_below_it_do_nothing_more() -> None:
    main = Scope()
    branch, other = main.branch("1", 1), main.branch("1", 2)
    below = branch.branch("1.1.1", 1)
    below.waits_at.append("1.1.1.1.1")
    assert branch.drop() == ["1.1.1.1.1"]
    assert (main.dropped, other.dropped, branch.dropped, below.dropped) == (False, False, True, True)
    assert below.branch("1.1.1.1.2", 1).dropped


def test_what_failed_and_was_caught_is_taken_once_with_that_of_branches() -> None:
    main = Scope()
    main.failed.append(a_step(1))
    main.branch("2", 1).failed.append(a_step(2))
    assert paths(main.take_failed()) == ["1", "2"]
    assert main.take_failed() == []


def test_a_call_is_recorded_when_its_step_has_ended() -> None:
    known = [None, a_step(state="started"), a_step(), a_step(state="undone")]
    calls = [FlowCall("1", "step", "step-1", Scope(), step) for step in known]
    assert [call.is_recorded for call in calls] == [False, False, True, True]
    assert (calls[0].was_passed, calls[0].is_concurrent) == (False, False)


# ---------------------------------------------------------------------------------------------- replay


def test_positions_begin_at_one_and_continue_after_the_last_record() -> None:
    assert Replay().next_position() == 1
    replay = Replay([a_step(7), a_step(3)])
    assert (replay.next_position(), replay.next_position()) == (8, 9)


def test_a_call_gets_its_record_or_learns_that_there_is_none() -> None:
    step = a_step()
    replay = Replay([step])
    assert not replay.is_empty
    assert Replay().is_empty
    assert replay.match("1", "step", "step-1") is step
    assert replay.match("2", "step", "step-1") is None


@pytest.mark.parametrize(("kind", "name"), [("step", "other"), ("sleep", "step-1")])
def test_a_call_that_does_not_fit_its_record_diverges(kind: Any, name: str) -> None:
    with pytest.raises(Diverged, match=f"number 1 the code asks for {kind} '{name}', and recorded there is step 'step"):
        Replay([a_step()]).match("1", kind, name)


def test_code_that_ends_before_all_records_are_matched_diverges_at_the_first() -> None:
    replay = Replay([a_step(3), a_step(2), a_step(1)])
    replay.match("1", "step", "step-1")
    with pytest.raises(Diverged, match="number 2 is step 'step-2'"):
        replay.check_all_matched()
    replay.put(a_step(2))
    replay.match("3", "step", "step-3")
    replay.check_all_matched()


def test_a_rollback_needs_the_undos_and_nothing_else() -> None:
    replay = Replay([a_step(1, has_undo=True), a_step(2), a_step(3, state="undone", has_undo=True)])
    assert replay.has_undos_ahead
    assert paths(replay.to_undo()) == ["1"]
    with pytest.raises(Diverged, match="number 1"):
        replay.check_undos_matched()
    replay.match("1", "step", "step-1")
    assert not replay.has_undos_ahead
    replay.check_undos_matched()


def test_a_gather_that_failed_once_must_fail_again() -> None:
    replay = Replay([a_step(kind="gather", name="gather", error="no")])
    replay.check_failed("2")
    with pytest.raises(Diverged, match="had failed"):
        replay.check_failed("1")


def test_a_record_behind_a_call_that_still_waits_was_run_too_early() -> None:
    said = str(Replay([a_step(2)]).too_early("1", "wait", "go", "2"))
    assert "number 1, wait 'go', has not ended, but number 2, step 'step-2', is recorded" in said


# ----------------------------------------------------------------------------------- what records say


def test_undos_run_backwards_and_leave_out_what_was_set_aside() -> None:
    steps = [a_step(n, has_undo=True) for n in (1, 2)] + [a_step(3), a_step(4, has_undo=True, aside=5)]
    assert paths(to_undo(steps)) == ["2", "1"]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (a_step(state="started", repeatable=False, result="1"), True),
        (a_step(state="started", repeatable=False), False),
        (a_step(state="recorded", repeatable=False, result="1"), False),
        (a_step(state="started", kind="wait", result="17.5"), False),  # its deadline
    ],
)
def test_a_step_is_answered_by_a_person_only_while_it_is_open(step: Step, expected: bool) -> None:
    assert is_answered(step) is expected


def test_a_step_pauses_until_its_next_try_or_its_undo() -> None:
    tried = {"retry_at": 9.0, "tries": 1}
    assert is_paused(a_step(state="started", **tried))
    assert not is_paused(a_step(state="started"))
    assert not is_paused(a_step(state="undone", **tried))


def test_a_person_is_asked_about_open_steps_first_the_one_on_the_row() -> None:
    once: dict[str, Any] = {"state": "started", "repeatable": False}
    steps = [a_step(n, **once) for n in (3, 2, 1)]
    others = [
        a_step(4, **once | {"state": "recorded"}),
        a_step(5, **once | {"repeatable": True}),
        a_step(6, **once, aside=1),
        a_step(7, **once, result="1"),
        a_step(8, **once, retry_at=9.0),
    ]
    assert paths(open_steps([*others, *steps])) == ["1", "2", "3"]
    assert paths(asked_about(a_job(open_step="step-2"), steps)) == ["2", "1", "3"]


def test_a_retry_would_repeat_what_came_later_and_must_not_be_repeated() -> None:
    once = {"repeatable": False}
    steps = [a_step(n, **once) for n in (3, 2, 1)]
    others = [a_step(4), a_step(5, state="undone", **once), a_step(6, aside=1, **once)]
    assert paths(would_repeat([*steps, *others], a_step(1))) == ["2", "3"]


def test_a_step_is_found_by_its_name_or_path_among_the_live_ones() -> None:
    steps = [a_step(3, name="mail"), a_step(2, name="mail"), a_step(1, name="mail", aside=1)]
    found = [first_named(steps, name) for name in ("mail", "3", "1", "other")]
    assert [step and step.path for step in found] == ["2", "3", None, None]


def test_the_first_open_question_is_answered() -> None:
    assert answer_to(awaiting("job:approve:0", "signal:go", "signal:approve:2", "signal:approve:3")) == "approve:2"
    assert answer_to(awaiting("job:approve:0", "step:1/2:approve:1")) is None


def event(at: float, kind: EventKind, name: str | None = None) -> Event:
    return Event(int(at), "id", at, kind, 1, None, None, {} if name is None else {"name": name})


@pytest.mark.parametrize(
    ("events", "since"),
    [
        ([], None),
        ([event(1, "asked", "approve:1")], 1),
        ([event(1, "asked", "approve:2")], None),
        ([event(1, "asked", "approve:1"), event(2, "asked", "approve:1")], 1),
        ([event(1, "asked", "approve:1"), event(2, "asked", "approve:2")], 1),
        ([event(1, "asked", "approve:1"), event(2, "signalled", "approve:1")], None),
        ([event(1, "asked", "approve:1"), event(2, "signalled", "approve:2")], 1),
        ([event(1, "asked", "approve:1"), event(2, "signalled", "go"), event(3, "asked", "approve:1")], 1),
        ([event(1, "asked", "approve:1"), event(2, "moved")], None),
        ([event(1, "asked", "approve:1"), event(2, "moved"), event(3, "asked", "approve:1")], 3),
    ],
)
def test_a_question_is_open_since_it_was_first_asked_and_not_answered(events: list[Event], since: float | None) -> None:
    assert asked_since("approve:1", events) == since
