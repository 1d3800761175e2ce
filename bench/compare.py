"""What has changed since the committed figures."""

from __future__ import annotations

import statistics
from typing import Any

from report import LESS_IS_BETTER, NAMES

CHANGED = 0.10  # a smaller difference is not worth a line
YARDSTICKS = ("raw.", "crowd.bare", "crowd.notify")  # and the peers: none of them is code of ours

Figures = dict[str, list[float]]


def compared(now: dict[str, Any], committed: dict[str, Any] | None) -> str:
    """Return a table of the figures that differ by more than a tenth, and how much the machine itself differs."""
    if committed is None:
        return "There are no committed figures of this kind to compare with: `--save` makes them."
    if now["scale"] | {"rounds": 0} != committed["scale"] | {"rounds": 0}:
        return "The committed figures were taken with other sizes: they cannot be compared."
    figures, before = now["figures"], committed["figures"]
    drift = machine(figures, before)
    about = [
        f"Compared with the committed figures of {committed['at'][:10]} ({_taken(committed)}).",
        f"What is not our code (raw statements, peers) now runs at {drift:.0%} of its rate then, in the median."
        if drift
        else "Nothing was measured by which to judge the machine.",
    ]
    lines = [line for key in NAMES if key in figures and key in before and (line := _line(key, figures, before, drift))]
    if not lines:
        return "\n".join([*about, "", "Nothing else changed by more than a tenth."])
    head = ["| changed by more than a tenth | then | now | change | |", "|---|---|---|---|---|"]
    return "\n".join([*about, "", *head, *lines])


def machine(figures: Figures, before: Figures) -> float | None:
    """Return the median ratio of the rates that do not depend on our code; None if there are none."""
    shared = [key for key in figures if key in before and _is_yardstick(key)]
    return statistics.median(map(_middle, shared, [figures] * len(shared), [before] * len(shared))) if shared else None


def _middle(key: str, figures: Figures, before: Figures) -> float:
    return statistics.median(figures[key]) / statistics.median(before[key])


def _is_yardstick(key: str) -> bool:
    is_peer = key not in NAMES and (key.endswith((".enqueue", ".bulk")) or ".drain" in key)
    return is_peer or key.startswith(YARDSTICKS)


def _line(key: str, figures: Figures, before: Figures, drift: float | None) -> str | None:
    """Say what changed and whether the rounds tell it from noise, or from a machine that changed as well."""
    ratio = _middle(key, figures, before)
    if _is_yardstick(key) or abs(ratio - 1) <= CHANGED:
        return None
    less = key.startswith(LESS_IS_BETTER)
    now, then = figures[key], before[key]
    if min(now) <= max(then) and min(then) <= max(now):
        verdict = "within the spread of the rounds"
    elif drift and abs((ratio * drift if less else ratio / drift) - 1) <= CHANGED:
        verdict = "as much as the machine"
    else:
        verdict = "better" if (ratio < 1) == less else "**worse**"
    shown = "{:,.0f}" if statistics.median(then) >= 100 else "{:,.2f}"
    cells = f"{shown.format(statistics.median(then))} | {shown.format(statistics.median(now))}"
    return f"| {key} | {cells} | {ratio - 1:+.0%} | {verdict} |"


def _taken(result: dict[str, Any]) -> str:
    load = result["noise"].get("load")
    return f"{result['scale']['rounds']} rounds" + (f", load average {load[0]:.1f} to {load[1]:.1f}" if load else "")
