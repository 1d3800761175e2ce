"""Write docs/states.md from the table in core/machine.py. A test fails when the page is stale."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from holdfast.core import machine
from holdfast.core.machine import LIVE, MOVES, State, Transition

PAGE = Path(__file__).with_name("states.md")

MEANING = {
    State.READY: "waits for a claim, now or at `run_at`",
    State.RUNNING: "a worker holds the lease",
    State.WAITING: "a workflow waits for a signal, a timer or children, without a slot",
    State.HELD: "waits for a person to decide",
    State.DONE: "succeeded",
    State.DEAD: "gave up; dead jobs are the dead letters",
    State.CANCELLED: "a person or a program stopped it",
    State.ROLLED_BACK: "the undos of its steps have run",
}


def page() -> str:
    """Return the whole text of docs/states.md."""
    return "\n".join([*head(), *diagram(), *states(), *moves(), *table()]) + "\n"


def head() -> list[str]:
    return [
        "# The states of a job",
        "",
        "This page lists the states of a job and every move between them. Any other move raises and changes nothing.",
        "`docs/make_states.py` generates it from `src/holdfast/core/machine.py`; do not edit it.",
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
        " names. A live job keeps its key. Only a person's `revive` or `undo` leads out of an ended state."
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
        "## All moves by state",
        "",
        "Each row is a move, each column the present state of a job; an empty field raises `IllegalMove`.",
        "",
        f"| | {' | '.join(f'`{name}`' for name in columns)} |",
        f"|---|{'---|' * len(columns)}",
        *rows,
    ]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
