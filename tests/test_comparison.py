"""The figures of the page that compares Holdfast with others are those that were measured."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_speeds_of_the_comparison_are_those_of_the_committed_run() -> None:
    page = (ROOT / "docs" / "comparison.md").read_text("utf-8")
    measured = (ROOT / "bench" / "results" / "sqlite.md").read_text("utf-8")
    cells = r"\| ([\d,]+) \| ([\d,]+) \| ([\d.]*) ?\|"
    rows = re.findall(rf"^\| (Holdfast|[\w-]+ [\d.]+)[^|]*{cells}$", page, re.MULTILINE)
    assert len(rows) == 5
    for name, drained, enqueued, pickup in rows:
        first = r"\*\*Holdfast\*\*, async" if name == "Holdfast" else re.escape(name)
        [row] = re.findall(rf"^\| {first} \|.*$", measured, re.MULTILINE)
        for figure in (drained, enqueued, *([pickup] if pickup else [])):
            assert re.search(rf"\b{re.escape(figure)}\b", row), f"{name}: {figure}"
