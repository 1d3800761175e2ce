"""The machine: every pair of state and move, against a table written by hand from the design's drawing."""

import itertools

import pytest

from holdfast.core import machine
from holdfast.core.machine import ENDED, LIVE, MOVES, State, Transition, after
from holdfast.errors import HoldfastError, IllegalMove, Refused

# From section 2 of the design, arrow by arrow; everything that is not here must raise.
ARROWS = {
    ("ready", "claim", "running"),
    ("ready", "reschedule", "ready"),
    ("ready", "hold", "held"),
    ("ready", "cancel", "cancelled"),
    ("running", "finish", "done"),
    ("running", "retry", "ready"),
    ("running", "release", "ready"),
    ("running", "snooze", "ready"),
    ("running", "park", "waiting"),
    ("running", "hold", "held"),
    ("running", "bury", "dead"),
    ("running", "cancel", "cancelled"),
    ("running", "undo", "ready"),
    ("running", "roll_back", "rolled_back"),
    ("waiting", "wake", "ready"),
    ("waiting", "hold", "held"),
    ("waiting", "cancel", "cancelled"),
    ("held", "revive", "ready"),
    ("held", "resolve", "done"),
    ("held", "bury", "dead"),
    ("held", "cancel", "cancelled"),
    ("held", "undo", "ready"),
    ("ready", "undo", "ready"),
    ("waiting", "undo", "ready"),
    ("dead", "undo", "ready"),
    ("cancelled", "undo", "ready"),
    ("dead", "revive", "ready"),
    ("cancelled", "revive", "ready"),
}
ANEW = "enqueue a new one if it should run again"
PAIRS = list(itertools.product(State, Transition))
LEGAL = {(State(state), Transition(move)): State(target) for state, move, target in ARROWS}


@pytest.mark.parametrize(("state", "move"), PAIRS)
def test_every_pair_of_state_and_move_leads_where_the_drawing_says_or_nowhere(state: State, move: Transition) -> None:
    if (state, move) in LEGAL:
        assert after(state, move) is LEGAL[state, move]
    else:
        with pytest.raises(IllegalMove):
            after(state, move)


def test_an_illegal_move_changes_nothing_and_says_which_job_and_what_was_tried() -> None:
    before = {state: dict(moves) for state, moves in MOVES.items()}
    for state, move in set(PAIRS) - set(LEGAL):
        with pytest.raises(IllegalMove, match=rf"^job abc123 is {state.value}(: it cannot be \w+| already)"):
            after(state, move, "abc123")
    assert before == MOVES


@pytest.mark.parametrize(
    ("state", "move", "said"),
    [
        (State.DEAD, Transition.CANCEL, "job abc123 is dead: it cannot be cancelled; revive it if it should run again"),
        (State.CANCELLED, Transition.CANCEL, "job abc123 is cancelled already; revive it if it should run again"),
        (State.DONE, Transition.REVIVE, f"job abc123 is done: it cannot be revived; {ANEW}"),
        (State.READY, Transition.REVIVE, "job abc123 is ready: it cannot be revived; it will run by itself"),
        (State.HELD, Transition.HOLD, "job abc123 is held already; answer for it: retry, done or fail"),
        (State.ROLLED_BACK, Transition.ROLL_BACK, f"job abc123 is rolled_back already; {ANEW}"),
    ],
)
def test_a_refusal_says_what_to_do_instead(state: State, move: Transition, said: str) -> None:
    with pytest.raises(IllegalMove) as refused:
        after(state, move, "abc123")
    assert str(refused.value) == said
    with pytest.raises(IllegalMove, match=f"^a job is {state.value}"):
        after(state, move)


def test_an_illegal_move_is_a_refusal() -> None:
    assert issubclass(IllegalMove, Refused)
    assert issubclass(Refused, HoldfastError)


def test_states_are_live_or_ended_and_never_both() -> None:
    assert {"ready", "running", "waiting", "held"} == LIVE
    assert {"done", "dead", "cancelled", "rolled_back"} == ENDED
    assert not LIVE & ENDED
    assert set(State) == LIVE | ENDED


def test_only_a_persons_revive_or_rollback_leads_out_of_an_ended_state() -> None:
    ways_out = {(state, move) for state in ENDED for move in MOVES[state]}
    assert ways_out == {
        (state, move) for state in (State.DEAD, State.CANCELLED) for move in (Transition.REVIVE, Transition.UNDO)
    }


def test_what_is_done_or_rolled_back_is_final() -> None:
    assert MOVES[State.DONE] == MOVES[State.ROLLED_BACK] == {}


def test_only_a_claim_leads_into_running() -> None:
    ways_in = {move for moves in MOVES.values() for move, target in moves.items() if target is State.RUNNING}
    assert ways_in == {Transition.CLAIM}
    assert [state for state in State if Transition.CLAIM in MOVES[state]] == [State.READY]


def test_every_live_state_can_be_cancelled() -> None:
    assert {state for state in State if Transition.CANCEL in MOVES[state]} == LIVE


def test_every_state_can_be_reached_from_a_new_job() -> None:
    reached, frontier = {State.READY}, [State.READY]
    while frontier:
        for target in MOVES[frontier.pop()].values():
            if target not in reached:
                reached.add(target)
                frontier.append(target)
    assert reached == set(State)


def test_an_end_can_be_reached_from_every_live_state() -> None:
    for start in LIVE:
        reached, frontier = {start}, [start]
        while frontier:
            for target in set(MOVES[frontier.pop()].values()) - reached:
                reached.add(target)
                frontier.append(target)
        assert reached & ENDED, start


def test_every_move_is_used() -> None:
    assert {move for moves in MOVES.values() for move in moves} == set(Transition)


def test_scheduled_and_retrying_are_no_states() -> None:
    assert {"scheduled", "retrying", "failed", "zombie"}.isdisjoint(State)
    assert machine.__doc__ is not None
