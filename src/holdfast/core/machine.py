"""The life of a job, as a table.

Rule: everything that says which state may follow which lives in this file.

A job is in one of eight states. *Live* ones still want something: `ready` (to be claimed, now or at
`run_at`), `running` (a worker holds the lease), `waiting` (for a signal, a timer, children) and
`held` (for a person). *Ended* ones are final: `done`, `dead`, `cancelled`, `rolled_back`; only a
person's revive leads out of some of them. `scheduled` and `retrying` are not states but names that
people see for `ready` with a later `run_at`.

A move that is not in the table raises and changes nothing. `docs/states.md` is generated from
this table; a test fails when it is stale.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from holdfast.errors import IllegalMove, UsageError

States = str | Iterable[str] | None  # one, several, or any


class State(StrEnum):
    """The state of a job."""

    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"
    HELD = "held"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"
    ROLLED_BACK = "rolled_back"


LIVE = frozenset({State.READY, State.RUNNING, State.WAITING, State.HELD})
ENDED = frozenset(State) - LIVE


class Transition(StrEnum):
    """A way from one state to another."""

    CLAIM = "claim"  # a worker takes the lease
    FINISH = "finish"  # the attempt succeeded
    RETRY = "retry"  # the attempt failed or was lost; run again, perhaps later
    RELEASE = "release"  # the attempt was given back; it costs nothing
    SNOOZE = "snooze"  # the task asked to be run later; it costs nothing
    PARK = "park"  # the workflow waits without a slot
    WAKE = "wake"  # what it waited for has come
    RESCHEDULE = "reschedule"  # a person changes when it is run
    HOLD = "hold"  # a person must decide
    BURY = "bury"  # give up
    CANCEL = "cancel"  # a person or a program asked the job to stop
    UNDO = "undo"  # start to roll back
    ROLL_BACK = "roll_back"  # the last undo was recorded
    REVIVE = "revive"  # a person brings it back
    RESOLVE = "resolve"  # a person says that it happened


MOVES: dict[State, dict[Transition, State]] = {
    State.READY: {
        Transition.CLAIM: State.RUNNING,
        Transition.RESCHEDULE: State.READY,
        Transition.HOLD: State.HELD,
        Transition.CANCEL: State.CANCELLED,
        Transition.UNDO: State.READY,
    },
    State.RUNNING: {
        Transition.FINISH: State.DONE,
        Transition.RETRY: State.READY,
        Transition.RELEASE: State.READY,
        Transition.SNOOZE: State.READY,
        Transition.PARK: State.WAITING,
        Transition.HOLD: State.HELD,
        Transition.BURY: State.DEAD,
        Transition.CANCEL: State.CANCELLED,
        Transition.UNDO: State.READY,
        Transition.ROLL_BACK: State.ROLLED_BACK,
    },
    State.WAITING: {
        Transition.WAKE: State.READY,
        Transition.HOLD: State.HELD,
        Transition.CANCEL: State.CANCELLED,
        Transition.UNDO: State.READY,
    },
    State.HELD: {
        Transition.REVIVE: State.READY,
        Transition.RESOLVE: State.DONE,
        Transition.BURY: State.DEAD,
        Transition.CANCEL: State.CANCELLED,
        Transition.UNDO: State.READY,
    },
    State.DONE: {},
    State.DEAD: {Transition.REVIVE: State.READY, Transition.UNDO: State.READY},
    State.CANCELLED: {Transition.REVIVE: State.READY, Transition.UNDO: State.READY},
    State.ROLLED_BACK: {},
}


# Words for the error that refuses a transition: its effect on a job, and what a person can do instead.
_DOES = {
    Transition.CLAIM: "claimed",
    Transition.FINISH: "finished",
    Transition.RETRY: "retried",
    Transition.RELEASE: "released",
    Transition.SNOOZE: "snoozed",
    Transition.PARK: "parked",
    Transition.WAKE: "woken",
    Transition.RESCHEDULE: "rescheduled",
    Transition.HOLD: "held",
    Transition.BURY: "given up",
    Transition.CANCEL: "cancelled",
    Transition.UNDO: "undone",
    Transition.ROLL_BACK: "rolled back",
    Transition.REVIVE: "revived",
    Transition.RESOLVE: "resolved",
}
_INSTEAD = {
    State.READY: "it will run by itself",
    State.RUNNING: "wait until it ends, or cancel it",
    State.WAITING: "wait until it continues, or cancel it",
    State.HELD: "answer for it: retry, done or fail",
    State.DONE: "enqueue a new one if it should run again",
    State.DEAD: "revive it if it should run again",
    State.CANCELLED: "revive it if it should run again",
    State.ROLLED_BACK: "enqueue a new one if it should run again",
}


def after(state: State, move: Transition, job_id: str | None = None) -> State:
    """Return the state that follows, or raise `IllegalMove`, which names the job if it is given."""
    try:
        return MOVES[state][move]
    except KeyError:
        who, does = "a job" if job_id is None else f"job {job_id}", _DOES[move]
        refused = " already" if does == state.value.replace("_", " ") else f": it cannot be {does}"
        raise IllegalMove(f"{who} is {state.value}{refused}; {_INSTEAD[state]}") from None


def states_named(names: States) -> tuple[State, ...]:
    """Return the states that the caller named; none means any."""
    wanted = () if names is None else (names,) if isinstance(names, str) else tuple(names)
    try:
        return tuple(State(name) for name in wanted)
    except ValueError:
        known = ", ".join(State)
        raise UsageError(f"{names!r} is not a state; known: {known}") from None
