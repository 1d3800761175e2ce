"""Write docs/states.md from the table in core/machine.py. A test fails when the page is stale."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from holdfast.core import machine
from holdfast.core.machine import LIVE, MOVES, State, Transition

PAGE = Path(__file__).with_name("states.md")

MEANING = {
    State.READY: "wants to be claimed, now or at `run_at`",
    State.RUNNING: "a worker holds the lease",
    State.WAITING: "a workflow waits for a signal, a timer or children, without a slot",
    State.HELD: "waits for a person to decide",
    State.DONE: "succeeded",
    State.DEAD: "gave up; the list of these is the dead letters",
    State.CANCELLED: "was stopped by somebody",
    State.ROLLED_BACK: "the undos of its recorded steps have run",
}


def page() -> str:
    """Return the whole text of docs/states.md."""
    return "\n".join([*head(), *diagram(), *states(), *moves(), *table()]) + "\n"


def head() -> list[str]:
    return [
        "# The life of a job",
        "",
        "Generated from `src/holdfast/core/machine.py` by `docs/make_states.py`; do not edit.",
        "",
        "A move that is not on this page raises and changes nothing.",
        "",
    ]


def diagram() -> list[str]:
    arrows = [
        f"    {state.value} --> {target.value}: {', '.join(move.value for move in ways)}"
        for state in State
        for target, ways in by_target(state).items()
    ]
    return ["```mermaid", "stateDiagram-v2", f"    [*] --> {State.READY.value}", *arrows, *ends(), "```", ""]


def ends() -> list[str]:
    return [f"    {state.value} --> [*]" for state in State if state not in LIVE]


def by_target(state: State) -> dict[State, list[Transition]]:
    targets: dict[State, list[Transition]] = {}
    for move, target in MOVES[state].items():
        targets.setdefault(target, []).append(move)
    return targets


def states() -> list[str]:
    rows = [f"| `{state.value}` | {'live' if state in LIVE else 'ended'} | {MEANING[state]} |" for state in State]
    note = (
        "`scheduled` and `retrying` are not states: lists and pages show a `ready` job with a later `run_at` by those"
        " names. The key of a live job is taken; an ended state is left only by a person's `revive`."
    )
    return ["## States", "", "| state | kind | meaning |", "|---|---|---|", *rows, "", note, ""]


def moves() -> list[str]:
    """Each move with the comment that stands beside it in the source."""
    said = dict(re.findall(r'= "(\w+)"  # (.+)', inspect.getsource(machine.Transition)))
    rows = [f"| `{move.value}` | {said[move.value]} |" for move in Transition]
    return ["## Moves", "", "| move | meaning |", "|---|---|", *rows, ""]


def table() -> list[str]:
    columns = [state.value for state in State]
    rows = []
    for move in Transition:
        targets = [MOVES[state].get(move) for state in State]
        rows.append(f"| `{move.value}` | {' | '.join(target.value if target else '' for target in targets)} |")
    return [
        "## What follows what",
        "",
        "Each row is a move, each column the state a job is in; an empty cell raises `IllegalMove`.",
        "",
        f"| | {' | '.join(f'`{name}`' for name in columns)} |",
        f"|---|{'---|' * len(columns)}",
        *rows,
    ]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
