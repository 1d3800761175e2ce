"""Storms in a look back: windows in which more attempts lost their worker than chance explains.

A storm is recognised by the same rule as the alert on the zombie rate, with its usual limits, so both speak of the same
thing: a single bad job, a task, a worker, or the whole fleet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.alerts.rules import Line, Thresholds, concern
from holdfast.core.durations import iso


def storms(zombies: Sequence[Line]) -> Iterator[list[Line]]:
    """Yield the zombies of each storm, oldest first: more than `zombies_max` in one window, and what adjoins it."""
    limits = Thresholds()
    ordered = sorted(zombies, key=lambda line: line.at)
    storm: list[Line] = []
    first = 0  # of those in the window that ends with the one that is looked at
    taken = 0  # how many belong to a storm that was begun
    for place, line in enumerate(ordered):
        while line.at - ordered[first].at >= limits.window_s:
            first += 1
        if place - first < limits.zombies_max:
            continue
        if storm and first >= taken:
            yield storm
            storm = []
        storm += ordered[max(first, taken) : place + 1]
        taken = place + 1
    if storm:
        yield storm


def storm_view(storm: Sequence[Line]) -> dict[str, Any]:
    concerns, cause = concern(storm)
    return {
        "since": iso(storm[0].at),
        "until": iso(storm[-1].at),
        "zombies": len(storm),
        "jobs": len({line.job_id for line in storm}),
        "tasks": len({line.task for line in storm}),
        "workers": len({line.worker_id for line in storm}),
        "concerns": concerns,
        "cause": cause,
    }
