"""The work of a running handler: its progress and log lines, the steps of a workflow, a transaction of its own."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.core.records import Step
from holdfast.core.row_text import CurrentStep, CurrentSteps
from holdfast.worker.log_capture import LogCapture

if TYPE_CHECKING:
    from holdfast.errors import Parking
    from holdfast.stores.protocol import Transaction

SHORT_S = 1.0  # what a handler logs or enters in its first moments goes with its end, or with a beat that is due anyway
NEVER = float("inf")
TOLD_MAX = 10  # how many steps of one workflow are reported at once


class Activity:
    """The start of a handler, its last move, its progress and its log lines. The handler writes it, beats carry it."""

    __slots__ = ("beat_data", "deadline", "ended_at", "lines", "moved_at", "note", "progress", "reported", "started_at")

    def __init__(self, claimed_at: float) -> None:
        self.started_at: float | None = None
        self.ended_at: float | None = None  # when its outcome was known
        self.deadline: float | None = None
        self.moved_at = claimed_at
        self.progress: float | None = None
        self.note: str | None = None
        self.beat_data: str | None = None  # JSON
        self.reported = True  # False while there is progress that no beat has carried yet
        self.lines: LogCapture | None = None  # None: it has logged nothing

    def start(self, now: float, timeout_s: float | None) -> None:
        """Note that the handler begins."""
        self.started_at = self.moved_at = now
        if timeout_s is not None:
            self.deadline = now + timeout_s

    def move(self, now: float, progress: float | None, note: str | None, beat_data: str | None = None) -> None:
        """Note that the handler moves."""
        self.moved_at = now
        self.progress = progress if progress is not None else self.progress
        self.note = note if note is not None else self.note
        self.beat_data = beat_data if beat_data is not None else self.beat_data
        self.reported = False

    def hear(self, record: logging.LogRecord) -> None:
        """Keep what the handler has logged."""
        if self.lines is None:
            self.lines = LogCapture()
        self.lines.hear(record)

    def still_s(self, now: float) -> float | None:
        """Return how long it has not moved; None: it has not moved since it began."""
        has_moved = self.started_at is not None and self.moved_at > self.started_at
        return max(0.0, now - self.moved_at) if has_moved else None


class WorkflowActivity:
    """The steps that a workflow is in, which beats carry, and what is known of its end before it has ended."""

    __slots__ = ("_reported", "_seen", "_seen_at", "failed", "fatal", "parked", "parked_at", "steps")

    def __init__(self, claimed_at: float) -> None:
        self.steps: dict[str, str] = {}  # path -> name, of those that it is in
        self.failed: dict[str, Step] = {}  # path -> the last try, of calls that raised
        self.fatal: BaseException | None = None  # what would leave it in every replay
        self.parked: Parking | None = None  # it waits: its code has nothing more to do
        self.parked_at = NEVER  # lease clock
        self._reported: tuple[CurrentStep, ...] | None = ()  # those that a beat has carried; None: perhaps it was lost
        self._seen: tuple[CurrentStep, ...] = ()  # what they were when the heartbeat looked last, and since when
        self._seen_at = claimed_at

    def park(self, until: Parking, now: float) -> None:
        """Note that it waits without a slot from now on: its code has a moment to leave."""
        self.parked, self.parked_at = until, now

    def in_steps(self) -> CurrentSteps:
        """Return the steps that it is in, as its row has them."""
        return CurrentSteps(CurrentStep(*each) for each in list(self.steps.items())[:TOLD_MAX])

    def has_other_steps(self, now: float) -> bool:
        """Say whether it has been in steps for a second that no beat has reported: then a beat is due. Short steps cost
        no beat of their own."""
        steps = self.in_steps()
        if steps != self._seen:
            self._seen, self._seen_at = steps, now
        return steps != self._reported and now - self._seen_at >= SHORT_S

    def newly_in(self) -> CurrentSteps | None:
        """Return the steps that it is in, to be reported; None: the store knows them."""
        steps = self.in_steps()
        if steps == self._reported:
            return None
        self._reported = steps
        return steps

    def unheard(self) -> None:
        """Note that what was reported last may not have reached the store."""
        self._reported = None


@dataclass(eq=False, slots=True)
class TaskTransaction:
    """A transaction that the code of a task opened. `outage`: what the code met when the store failed inside it."""

    opened_by: str  # the name that users know
    current: Transaction | None = None  # None: it is not open, or not any more
    manager: object = None  # what holds it open: letting go of it would roll it back
    outage: BaseException | None = None

    def take(self) -> Transaction | None:
        """Return it if it is open, to be committed or rolled back by the caller. For code that nothing interrupts."""
        current, self.current = self.current, None
        return current

    def roll_back(self, error: BaseException | None = None) -> None:
        """Undo its writes, if it is open, because the code raised this."""
        if self.current is not None:
            if self.current.outage is not None:
                self.outage = error
            self.current.rollback()
            self.current = None  # last: until then an interrupt leaves it to be rolled back later
