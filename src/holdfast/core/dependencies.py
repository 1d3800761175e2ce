"""Jobs that run after others: what they wait for, and what becomes of them when one of these did not succeed.

    using(after=…) ──things()──▶ waiting, with what it awaits ──decide()──▶ ready | cancelled | held

Such a job waits like a workflow that has parked, but no worker has ever claimed it: it is `waiting` with the fence 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from holdfast.core.acts import moved
from holdfast.core.machine import LIVE, State, Transition
from holdfast.core.records import Job, NewEvent
from holdfast.core.row_text import Awaited
from holdfast.core.verdict import Verdict
from holdfast.errors import UsageError

AfterFailed = Literal["cancel", "hold", "run"]

MANY_MAX = 100  # jobs that one job may run after


class Dependent(NamedTuple):
    """A job that waits for others. `is_over`: each of these has ended, or was deleted."""

    id: str
    is_over: bool


def things(ids: Sequence[str], if_failed: object = None) -> tuple[Awaited, ...]:
    """Return what a job awaits that runs after these jobs. Raises `UsageError`."""
    if_failed = "cancel" if if_failed is None else if_failed
    if if_failed not in get_args(AfterFailed):
        raise UsageError(f"after_failed={if_failed!r} must be one of {', '.join(get_args(AfterFailed))}")
    ids = list(dict.fromkeys(ids))
    if len(ids) > MANY_MAX:
        raise UsageError(f"after has {len(ids)} jobs; at most {MANY_MAX} are possible: use a batch for more")
    if not ids:
        return ()
    return (*(Awaited("after", each) for each in ids), Awaited("unless", str(if_failed)))


def ids_of(awaits: Sequence[Awaited] | None) -> list[str]:
    """Return the ids of the jobs that a job runs after."""
    return [each.name for each in awaits or () if each.kind == "after"]


def check_no_after(awaits: Sequence[Awaited], what: str) -> None:
    """Raise `UsageError` for a job that runs after others where none can."""
    if awaits:
        raise UsageError(f"{what} cannot run after others: leave out after=")


def waits_for_others(job: Job) -> bool:
    """Say whether the job has not been started because it waits for others."""
    return job.state is State.WAITING and job.fence == 0


def decide(job: Job, states: Mapping[str, State], now: float) -> Verdict | None:
    """Return what becomes of a job that runs after others, by their states; None: it waits on.

    One that is not among the states was deleted, and nobody knows whether it had succeeded: that is for a person.
    """
    ids = ids_of(job.awaits)
    if job.awaits is None or not waits_for_others(job) or any(states.get(each) in LIVE for each in ids):
        return None
    failed = next((each for each in ids if states.get(each, State.DONE) is not State.DONE), None)
    gone = next((each for each in ids if each not in states), None)
    if_failed = next((each.name for each in job.awaits if each.kind == "unless"), "hold")
    if if_failed == "run" or (failed is None and gone is None):
        event = NewEvent("moved", {"after": ids})
        return Verdict(move=Transition.WAKE, state=State.READY, run_at=max(job.run_at, now), events=(event,))
    if failed is not None and if_failed == "cancel":
        state = states[failed].value
        event = NewEvent("cancelled", {"after": failed, "state": state})
        return moved(job, Transition.CANCEL, event, error=f"it was to run after job {failed}, which is {state}")
    if failed is not None:
        detail = {"after": failed, "state": states[failed].value}
        why = f"it was to run after job {failed}, which is {states[failed].value}"
    else:
        detail = {"after": str(gone), "state": "deleted"}
        why = f"it was to run after job {gone}, which was deleted: nobody knows whether it had succeeded"
    return moved(job, Transition.HOLD, NewEvent("held", detail), error=why)
