"""The limits of running attempts, by the local clock alone.

It stops a handler that runs past `timeout_s`, one that does not move for `stall_s`, the code of a workflow that waits
and does not leave, and, when no beat got through, every handler whose lease is about to end (self-fencing). A handler
that still continues is given up after a moment. The thread never touches the store, so it works while the store
hangs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.clock import Clock
from holdfast.errors import Cancelled, Interrupted, LeaseLost, NoProgress, Parking, TimeLimit
from holdfast.worker.attempt import Attempt

log = logging.getLogger("holdfast.worker")

LOOK_S = 0.1
ABANDON_S = 2.0  # how long a handler may take to stop before it is given up
LEAVE_S = 5.0  # how long the code of a workflow that waits may clean up
_ENDS_BY_FORCE = (TimeLimit, NoProgress, Cancelled, Parking)


@dataclass(frozen=True)
class TimeLimits:
    """See the module's docstring. `overrun` is called with an attempt whose handler would not stop before its lease
    ended: only the end of this process can stop it. `abandon` is called with one that would not stop in time for
    another reason."""

    clock: Clock
    attempts: Callable[[], list[Attempt]]
    overrun: Callable[[Attempt], None]
    abandon: Callable[[Attempt], None]

    def look(self) -> None:
        """Stop what must stop now."""
        for attempt in self.attempts():
            try:
                self._look_at(attempt, self.clock.lease())
            except Exception:  # the limits of the other attempts still hold
                log.exception("job %s: its time limits could not be enforced; trying again", attempt.job.id)

    def _look_at(self, attempt: Attempt, now: float) -> None:
        handler, activity, workflow = attempt.handler, attempt.activity, attempt.workflow
        if activity.started_at is None or handler.ended:
            return
        if attempt.window.must_stop(now):
            handler.stop(LeaseLost("no beat got through; stopped before the lease ended"))
            handler.interrupted_at = min(handler.interrupted_at, now)
            # A process that was frozen wakes up past the end: its handlers still get a moment to stop and report.
            if attempt.window.is_over(now) and now - handler.interrupted_at >= min(1.0, attempt.job.lease_s / 10):
                self.overrun(attempt)
        elif isinstance(handler.interrupt, _ENDS_BY_FORCE):
            handler.interrupted_at = min(handler.interrupted_at, now)
            if now - handler.interrupted_at >= ABANDON_S:
                self.abandon(attempt)
        elif workflow is not None and workflow.parked is not None and now - workflow.parked_at >= LEAVE_S:
            _stop(attempt, workflow.parked)
        elif activity.deadline is not None and now >= activity.deadline:
            _stop(attempt, TimeLimit(f"ran longer than timeout_s={attempt.job.timeout_s:g}"))
        elif attempt.job.stall_s is not None and now - activity.moved_at >= attempt.job.stall_s:
            _stop(attempt, NoProgress(f"no progress for stall_s={attempt.job.stall_s:g}"))


def _stop(attempt: Attempt, why: Interrupted) -> None:
    if attempt.handler.interrupt is None:
        why.stack = attempt.stack()
        attempt.handler.stop(why)
