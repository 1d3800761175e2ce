"""Why a job stopped, in words: its row keeps the error, the reason and the counts apart."""

from __future__ import annotations

from holdfast.core.machine import State
from holdfast.core.records import Job, StopReason

STILL_AT_WORK = "may still be at work, so nothing is undone at the same time"


def full_reason(job: Job) -> str | None:
    """Return the error of a job, why it stopped and, while a rollback is stuck, why it is rolled back."""
    if job.error is None:
        return None
    ended = job.state in (State.HELD, State.DEAD)
    stopped = "" if job.stop_reason is None else words(job.stop_reason, job, counted=ended)
    return sentence(job.error, stopped, job.rollback_cause if ended else None)


def sentence(error: str, stopped: str, rollback_cause: str | None = None) -> str:
    """Join the parts: only the error is always there."""
    parts = [error, stopped, rollback_cause and f"it is rolled back because of: {rollback_cause}"]
    return "; ".join(part for part in parts if part)


def words(reason: StopReason, job: Job, *, counted: bool = True) -> str:
    """Say in words why a job stopped; an empty text when the error already says it.

    `counted`: False once the counts on the row are those of its rollback.
    """
    match reason:
        case "crashes_max" if counted:
            return f"crashed {_times(job.crashes)} (crashes_max={job.crashes_max})"
        case "attempts_max" if counted:
            return f"failed or crashed {_times(job.failures + job.crashes)} (attempts_max={job.attempts_max})"
        case "crashes_max":
            return f"crashes_max={job.crashes_max} was reached"
        case "attempts_max":
            return f"attempts_max={job.attempts_max} was reached"
        case "final":
            return "it is not retried"
        case "on_crash":
            return "on_crash=hold: a person decides" if job.on_crash == "hold" else f"on_crash={job.on_crash}"
        case "open_step":
            return (
                f"step {job.open_step!r} was started and not recorded, and must not be repeated: "
                "a person decides whether it happened"
            )
        case "still_running" if job.rolling_back:
            return f"its undo {STILL_AT_WORK}: a person continues when that has ended"
        case "still_running":
            return f"it {STILL_AT_WORK}: a person rolls it back when that has ended"
        case "suspected":
            return "a person decides"
        case "diverged":
            return ""


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
