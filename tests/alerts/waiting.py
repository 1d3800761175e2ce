"""Waiting for what must happen, on a machine that is busy with something else."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.clock import SystemClock, pause

PATIENCE_S = 60.0
FOR_EVER_S = 120.0  # what hangs does so for much longer than anybody waits, and yet a test that fails comes to an end


def until(condition: Callable[[], bool]) -> None:
    give_up_at = SystemClock().lease() + PATIENCE_S
    while not condition():
        assert SystemClock().lease() < give_up_at, f"it did not happen in {PATIENCE_S:g} s"
        pause(0.005)
