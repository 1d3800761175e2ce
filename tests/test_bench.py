"""What the bench says about its figures: the comparison with the committed ones, and the pages made of them."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"
SCALE = {"rounds": 3, "jobs": 20_000}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("compare")


def run(scale: dict[str, int] = SCALE, **figures: list[float]) -> dict[str, Any]:
    figures = {key.replace("_", "."): values for key, values in figures.items()}
    return {"at": "2026-01-01T00:00:00", "scale": scale, "noise": {}, "figures": figures}


def test_a_rate_that_fell_by_a_fifth_is_reported_as_worse(bench: ModuleType) -> None:
    said = bench.compared(run(drain=[80, 81, 82], raw_loop=[100, 100, 100]), run(drain=[99, 100, 101], raw_loop=[100]))
    assert "| drain | 100 | 81 | -19% | **worse** |" in said


def test_what_takes_less_is_better_where_less_is_wanted(bench: ModuleType) -> None:
    said = bench.compared(run(pickup_p50=[3.0, 3.1]), run(pickup_p50=[4.0, 4.1]))
    assert "| pickup.p50 | 4.05 | 3.05 | -25% | better |" in said


def test_a_tenth_is_not_worth_a_line(bench: ModuleType) -> None:
    said = bench.compared(run(drain=[91, 92]), run(drain=[100, 101]))
    assert "Nothing else changed" in said


def test_rounds_that_overlap_tell_nothing(bench: ModuleType) -> None:
    said = bench.compared(run(drain=[70, 80, 120]), run(drain=[75, 100, 110]))
    assert "within the spread of the rounds" in said


def test_a_machine_that_is_slower_explains_what_is_slower_by_as_much(bench: ModuleType) -> None:
    slower = run(drain=[50, 51], idle_cpu=[2.0, 2.1], raw_loop=[100], huey_drain=[52])
    said = bench.compared(slower, run(drain=[100, 101], idle_cpu=[1.0, 1.1], raw_loop=[200], huey_drain=[100]))
    assert "runs at 51% of its rate" in said
    assert said.count("as much as the machine") == 2


def test_figures_of_other_sizes_are_not_compared(bench: ModuleType) -> None:
    said = bench.compared(run(drain=[1]), run({"rounds": 3, "jobs": 50_000}, drain=[100]))
    assert "cannot be compared" in said
    assert "no committed figures" in bench.compared(run(drain=[1]), None)


def test_the_pages_show_what_was_measured_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    page = importlib.import_module("page")
    for path in page.PAGES:
        text = path.read_text()
        assert "<!-- made: " in text
        assert page.filled(text) == text, f"{path.name} is not up to date: run bench/page.py"
