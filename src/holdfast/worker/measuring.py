"""Count attempts, beats and calls of the store in a worker process, for `--metrics-port`.

A child writes what it has counted since its last line, as JSON, into a pipe; the supervisor adds it up. So counters do
not fall when a child is replaced. A child that is killed loses what it counted in its last second. Without the option
nothing is counted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast.clock import Clock
from holdfast.core.machine import State
from holdfast.runtime.metrics import METRICS, Registry, measured
from holdfast.runtime.service import Service
from holdfast.worker.attempt import Attempt

if TYPE_CHECKING:
    from holdfast.app import App

log = logging.getLogger("holdfast.worker")

SEND_S = 1.0

Line = dict[str, list[tuple[tuple[str, ...], float | list[float]]]]
_decoder = msgspec.json.Decoder(Line)


class Measures:
    """The numbers of one worker process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.registry = Registry()

    def watch_store(self, app: App) -> None:
        """Time the calls of the app's store. Before it is opened."""
        app.opener = measured(app.opener, self._clock, self.registry)

    def ended(self, ended: Sequence[tuple[Attempt, str, State]]) -> None:
        """Count attempts that were settled."""
        now = self._clock.lease()
        for attempt, outcome, _ in ended:
            job = attempt.job
            self.registry.inc("holdfast_attempts_total", job.task, outcome)
            if (began := attempt.activity.started_at) is not None:
                self.registry.observe("holdfast_attempt_duration_seconds", job.task, value=now - began)
            if job.claimed_at is not None:
                waited_s = max(0.0, job.claimed_at - job.run_at)
                self.registry.observe("holdfast_attempt_wait_seconds", job.queue, value=waited_s)

    def beaten(self, result: str, headroom_s: float | None = None) -> None:
        """Count a beat: ok, late, failed or refused. headroom_s: what was left of the tightest lease."""
        self.registry.inc("holdfast_beats_total", result)
        if headroom_s is not None:
            self.registry.observe("holdfast_beat_headroom_seconds", value=max(0.0, headroom_s))

    def sender(self, descriptor: int, running: Callable[[], int], slots: int) -> Service:
        """Return the thread that writes to the supervisor's pipe."""

        def send() -> None:
            busy = running()
            self.registry.put("holdfast_slots", "busy", value=float(busy))
            self.registry.put("holdfast_slots", "free", value=float(max(0, slots - busy)))
            self.send(descriptor)

        return Service("holdfast-metrics", send, self._clock, log, SEND_S)

    def send(self, descriptor: int) -> None:
        """Write what was counted since the last time."""
        line: Line = {name: list(found.items()) for name, found in self.registry.take().items()}
        text = msgspec.json.encode(line) + b"\n"
        with suppress(OSError):  # the supervisor is gone
            while text:
                text = text[os.write(descriptor, text) :]


def add_up(line: bytes, into: Registry, gauges: dict[str, dict[tuple[str, ...], float]]) -> None:
    """Add a child's line to the numbers of its supervisor; gauges are kept apart, as the child's own."""
    try:
        found = _decoder.decode(line)
    except msgspec.MsgspecError:
        return  # the child was killed while it wrote
    for name, series in found.items():
        metric = METRICS.get(name)
        for labels, value in series if metric is not None else ():
            if metric is not None and metric.kind == "gauge" and not isinstance(value, list):
                gauges.setdefault(name, {})[labels] = value
            else:
                into.merge(name, labels, value)
