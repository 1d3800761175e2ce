"""What a person may do to a job: the operator's door.

An act is judged like an outcome: a pure function from the job as the person saw it to a verdict. The store
applies it only if state *and* fence are still what the person saw, so a repeated approval cannot start a second run.
"""

from __future__ import annotations

from typing import Literal

from holdfast.core.machine import Move, State, after
from holdfast.core.records import Job, Note
from holdfast.core.verdict import Verdict
from holdfast.errors import IllegalMove

Answer = Literal["retry", "done", "fail"]


def cancel(job: Job, *, actor: str, reason: str | None = None) -> Verdict:
    """Stop a live job. A running one is asked to; every later ending of it but success becomes cancelled."""
    if job.state is State.RUNNING:
        asked = () if job.cancel_requested else (Note("moved", {"cancel_requested": True, "reason": reason}, actor),)
        return Verdict(move=Move.CANCEL, state=State.RUNNING, cancel_requested=True, notes=asked)
    state = after(job.state, Move.CANCEL, job.id)
    return Verdict(
        move=Move.CANCEL,
        state=state,
        error=reason or f"cancelled by {actor}",
        raises_fence=True,
        notes=(Note("cancelled", {"reason": reason}, actor),),
    )


def revive(job: Job, now: float, *, actor: str, reason: str | None = None) -> Verdict:
    """Bring a held, dead or cancelled job back with fresh budgets."""
    state = after(job.state, Move.REVIVE, job.id)
    return Verdict(
        move=Move.REVIVE,
        state=state,
        run_at=now,
        cancel_requested=False,
        fresh_budgets=True,
        raises_fence=True,
        notes=(Note("revived", {"from": job.state.value, "note": reason}, actor),),
    )


def resolve(
    job: Job, answer: Answer, now: float, *, actor: str, reason: str | None = None, result: str | None = None
) -> Verdict:
    """Answer the question of a held job: run it again, it happened, or give up."""
    if job.state is not State.HELD:
        raise IllegalMove(f"job {job.id} is {job.state.value}; only a held job waits for an answer")
    if answer == "retry":
        return revive(job, now, actor=actor, reason=reason)
    move = Move.RESOLVE if answer == "done" else Move.BURY
    notes = [Note("resolved", {"answer": answer, "note": reason}, actor)]
    error = (reason or f"given up by {actor}") if move is Move.BURY else None
    if error is not None:
        notes.append(Note("dead", {"reason": error}, actor))
    return Verdict(
        move=move,
        state=after(job.state, move, job.id),
        result=result,
        error=error,
        raises_fence=True,
        notes=tuple(notes),
    )


def hold(job: Job, *, actor: str, reason: str | None = None) -> Verdict:
    """Set a ready or waiting job aside until somebody decides."""
    if job.state is State.RUNNING:
        raise IllegalMove(f"job {job.id} is running; cancel it, or wait until it ends")
    return Verdict(
        move=Move.HOLD,
        state=after(job.state, Move.HOLD, job.id),
        error=reason or f"held by {actor}",
        raises_fence=True,
        notes=(Note("held", {"reason": reason}, actor),),
    )


def reprioritise(job: Job, *, actor: str, priority: int | None = None, run_at: float | None = None) -> Verdict:
    """Change when a ready job is run."""
    state = after(job.state, Move.RESCHEDULE, job.id)
    changes = {"priority": priority, "run_at": run_at}
    detail = {name: value for name, value in changes.items() if value is not None}
    return Verdict(
        move=Move.RESCHEDULE, state=state, priority=priority, run_at=run_at, notes=(Note("moved", detail, actor),)
    )
