"""docs/states.md is what docs/make_states.py writes, and shows every move of the machine."""

import importlib.util
from pathlib import Path
from types import ModuleType

from holdfast.core.machine import MOVES, State, Transition

DOCS = Path(__file__).resolve().parents[2] / "docs"


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_states", DOCS / "make_states.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date() -> None:
    written = (DOCS / "states.md").read_text(encoding="utf-8")
    assert written == maker().page(), "run: python docs/make_states.py"


def test_the_drawing_has_every_arrow_and_no_other() -> None:
    drawn = set()
    for line in maker().diagram():
        source, arrow, rest = line.strip().partition(" --> ")
        target, _, moves = rest.partition(": ")
        if arrow and moves:
            drawn |= {(source, move, target) for move in moves.split(", ")}
    assert drawn == {
        (state.value, move.value, target.value) for state in State for move, target in MOVES[state].items()
    }


def test_the_page_names_every_state_and_move() -> None:
    page = maker().page()
    for name in (*State, *Transition):
        assert f"| `{name.value}` |" in page
