"""A verdict on its way to the row: which attempt it ends, and what its judge saw of the row.

The judge reads, and a store writes later; in between the row may change. So a settlement carries what the verdict was
made of, and the store applies it only to a row that is still like that.
"""

from __future__ import annotations

import msgspec

from holdfast.core.machine import State
from holdfast.core.records import Job, Lease, NewEvent
from holdfast.core.verdict import ENDING_EVENT, Verdict


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict with the lease that it ends.

    `seen_lease_until`: the lease end that the reaper read. If a beat came in between, the settlement is refused,
    so a live job is never reaped. If anything else has changed that its judge saw, the store answers AGAIN:
    `seen_cancel`, because every ending but success becomes a cancellation; `seen_open_step` ("": none was open),
    because a step that must not be repeated was begun, or is recorded by now; `seen_undoable`, because there is
    something to undo by now; the `inbox` of the verdict, because something came for a job that is to wait. None: that
    was not looked at.
    """

    lease: Lease
    queue: str  # for the count of finished jobs
    worker: str | None  # whose attempt it is, for the journal
    verdict: Verdict
    seen_lease_until: float | None = None
    seen_cancel: bool = False
    seen_open_step: str | None = None
    seen_undoable: bool | None = None
    parent: str | None = None  # is woken if this ends the job
    task: str = ""  # for the count of errors
    waited_s: float | None = None  # from when it was due to its start; None: it never began, or nobody knows
    ran_s: float | None = None  # None: its worker has not said

    @property
    def detector(self) -> str:
        """Return what found the attempt lost, or ""."""
        lost = next((event for event in self.verdict.events if event.kind == "zombie"), None)
        return "" if lost is None else str(lost.detail.get("detector", ""))


def settlement(
    job: Job,
    verdict: Verdict,
    *,
    seen_lease: bool = False,
    began_after_s: float | None = 0.0,
    ran_s: float | None = None,
) -> Settlement:
    """Address a verdict to the attempt that `job` shows; with `seen_lease` only while its lease is as seen.

    Only workflows have steps, and a success is one whatever is open: others are not looked at for them. The handler
    began `began_after_s` after its claim; None: never.
    """
    looked = job.workflow and verdict.state is not State.DONE
    waited_s = None
    if began_after_s is not None and job.claimed_at is not None:
        waited_s = max(0.0, job.claimed_at - job.run_at) + began_after_s
    return Settlement(
        lease=job.lease,
        queue=job.queue,
        worker=job.worker,
        verdict=verdict,
        seen_lease_until=job.lease_until if seen_lease else None,
        seen_cancel=job.cancel_requested,
        seen_open_step=(job.open_step or "") if looked else None,
        seen_undoable=job.undoable if looked else None,
        parent=job.parent,
        task=job.task,
        waited_s=waited_s,
        ran_s=ran_s,
    )


def is_as_judged(each: Settlement, cancel_requested: bool, open_step: str | None, undoable: bool, inbox: int) -> bool:
    """Say whether the row still is what the judge saw; else the verdict may be another one by now."""
    if each.verdict.state is not State.DONE and each.seen_cancel != bool(cancel_requested):
        return False
    if each.seen_open_step is not None and each.seen_open_step != (open_step or ""):
        return False
    if each.verdict.inbox is not None and each.verdict.inbox != inbox:
        return False
    return each.seen_undoable is None or each.seen_undoable == bool(undoable)


def stale_report(state: State, fence_now: int, reported: State | None = None, step: str | None = None) -> NewEvent:
    """Make the journal entry about an attempt that reported after it was given up.

    With `step` it tried to record that step; with neither `step` nor `reported` it was a beat.
    """
    said = {"verb": "beat"} if reported is None else {"verb": "settle", "reported": reported.value}
    if step is not None:
        said = {"verb": "record", "step": step}
    return NewEvent("stale_report", {**said, "state": State(state).value, "fence_now": fence_now})


def own_event(verdict: Verdict) -> NewEvent | None:
    """Return the line that this verdict, if it is an attempt's own report, writes to the journal under its fence.

    The same line there already: the report is a repeat of one that was accepted before.
    """
    own = (event for event in verdict.events if event.kind in ENDING_EVENT.values() and event.kind != "zombie")
    return next(own, None)
