"""Wakes workflows whose time has come: asked by the claim loop, at the instant of the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.clock import Clock
from holdfast.stores.protocol import Store
from holdfast.tasks import Task

LOOK_S = 0.25  # others may park a workflow at any time


class Timers:
    """Used by the claiming thread alone. A worker without workflows leaves the timers to those that have some."""

    def __init__(self, store: Store, clock: Clock, tasks: Mapping[str, Task[..., Any]]) -> None:
        self._store = store
        self._clock = clock
        used = any(task.is_workflow for task in tasks.values())
        self._next_at = float("-inf") if used else float("inf")

    def wake_due(self) -> None:
        """Make the workflows ready whose time has come, if it is time to look."""
        if self._clock.lease() < self._next_at:
            return
        earliest = self._store.wake_due()
        left_s = LOOK_S if earliest is None else max(0.0, earliest - self._store.now().wall)
        self._next_at = self._clock.lease() + min(LOOK_S, left_s)

    def in_s(self) -> float:
        """Return how long until the next look."""
        return max(0.001, self._next_at - self._clock.lease())
