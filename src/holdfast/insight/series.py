"""Throughput, waits and runs over the last hour, day or week, from rollups: as charts and programs read them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from holdfast.core.durations import iso
from holdfast.core.machine import ENDED
from holdfast.core.rollups import HOUR, MINUTE, QUARTER, Rollup, added, percentile
from holdfast.errors import UsageError
from holdfast.stores.protocol import Store

Window = Literal["hour", "day", "week"]
_ENDED = tuple(state.value for state in ENDED)


@dataclass(frozen=True, slots=True)
class Frame:
    """A window: its rollups have this span, and its points are `step_s` apart."""

    span: int
    step_s: int
    length_s: int


FRAMES: dict[str, Frame] = {
    "hour": Frame(MINUTE, 60, 3_600),
    "day": Frame(QUARTER, 900, 86_400),
    "week": Frame(HOUR, 3_600, 7 * 86_400),
}


@dataclass(slots=True)
class _Sum:
    """Rollups that are added up."""

    arrived: int = 0
    attempts: int = 0
    states: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    lost: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    waits: list[int] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)

    def add(self, each: Rollup) -> None:
        self.arrived += each.arrived
        for endings in each.endings:
            self.attempts += endings.attempts
            self.states[endings.state] += endings.attempts
            if endings.detector:
                self.lost[endings.detector] += endings.attempts
            self.waits = added(self.waits, endings.waits)
            self.runs = added(self.runs, endings.runs)

    def view(self) -> dict[str, Any]:
        return {
            "arrived": self.arrived,
            "ended": sum(self.states[state] for state in _ENDED),
            **{state: self.states[state] for state in _ENDED},
            "attempts": self.attempts,
            "lost": dict(sorted(self.lost.items())),
            **_percentiles("wait", self.waits),
            **_percentiles("run", self.runs),
        }


def _percentiles(name: str, histogram: list[int]) -> dict[str, float | None]:
    found = {each: percentile(histogram, each / 100) for each in (50, 95, 99)}
    return {f"{name}_p{each}_s": None if value is None else round(value, 4) for each, value in found.items()}


def series_view(
    store: Store, window: str = "hour", queue: str | None = None, sees: Callable[[str], bool] = lambda _: True
) -> dict[str, Any]:
    """Show a window of one queue, or of all that the reader `sees`, as points; and each of these queues as a sum.

    The last point is not over yet. Jobs that have arrived since the last fold, half a minute ago at most, are missing.
    """
    if window not in FRAMES:
        raise UsageError(f"window={window!r} must be one of {', '.join(get_args(Window))}")
    frame, now = FRAMES[window], store.now().wall
    last = int(now // frame.step_s)
    first = last - frame.length_s // frame.step_s + 1
    found = [each for each in store.figures.rollups(frame.span, float(first * frame.step_s)) if sees(each.queue)]
    points, queues, whole = defaultdict[int, _Sum](_Sum), defaultdict[str, _Sum](_Sum), _Sum()
    for each in found:
        queues[each.queue].add(each)
        if queue in (None, each.queue):
            points[each.slot * frame.span // frame.step_s].add(each)
            whole.add(each)
    return {
        "window": window,
        "step_s": frame.step_s,
        "queue": queue,
        "at": iso(now),
        "points": [{"at": iso(slot * frame.step_s), **points[slot].view()} for slot in range(first, last + 1)],
        "total": whole.view(),
        "queues": _by_name(queues.items()),
    }


def _by_name(queues: Iterable[tuple[str, _Sum]]) -> dict[str, dict[str, Any]]:
    return {name: each.view() for name, each in sorted(queues)}
