"""The acts of people on jobs: cancel, revive, resolve, hold, roll back, retry from a step, fork.

An act is judged like an outcome: a pure function from the job as the person saw it to a verdict. The store
applies it only if state *and* fence are still what the person saw, so a repeated approval cannot start a second run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from holdfast.core.machine import ENDED, State, Transition, after
from holdfast.core.records import Job, NewEvent, Seen, Step
from holdfast.core.replay import asked_about, open_steps, to_undo, would_repeat
from holdfast.core.stop_reason import sentence
from holdfast.core.verdict import Verdict, why_undone, with_callback
from holdfast.errors import IllegalMove, Refused

Choice = Literal["retry", "done", "fail", "rollback"]


class Move(NamedTuple):
    """An act on its way to the row: the job as the person saw it, and what becomes of it."""

    seen: Seen
    verdict: Verdict


def as_seen(job: Job, fence: int | None) -> Job:
    """Return the job if it has the fence that the person saw; None: the person has not said. Raises `Refused`."""
    if fence is not None and job.fence != fence:
        raise Refused(
            f"job {job.id} is {job.state.value} with fence {job.fence} by now, and you saw fence {fence}; "
            "nothing was changed, look again"
        )
    return job


def cancel(job: Job, *, actor: str, reason: str | None = None) -> Verdict:
    """Stop a live job. A running job is asked to stop; it ends as cancelled unless it succeeds.

    A workflow keeps what it did; `rollback` undoes it.
    """
    if job.state is State.RUNNING:
        asked = () if job.cancel_requested else (NewEvent("moved", {"cancel_requested": True, "note": reason}, actor),)
        return _asked_to_stop(*asked)
    event = NewEvent("cancelled", {"note": reason}, actor)
    return moved(job, Transition.CANCEL, event, error=reason or f"cancelled by {actor}")


def expire(job: Job) -> Verdict:
    """End a job that was not started in time. No person did that."""
    event = NewEvent("cancelled", {"expires_at": job.expires_at})
    return moved(job, Transition.CANCEL, event, error="it was not started before its expiry")


def supersede(job: Job, new_id: str) -> Verdict:
    """Stop a live job because a newer one takes its key, as `cancel` does. No person did that."""
    detail = {"key": job.key, "replaced_by": new_id}
    if job.state is State.RUNNING:
        return _asked_to_stop(NewEvent("moved", {"cancel_requested": True, **detail}))
    error = f"job {new_id} took its key"
    return moved(job, Transition.CANCEL, NewEvent("cancelled", detail), error=error)


def revive(
    job: Job,
    now: float,
    *,
    actor: str,
    reason: str | None = None,
    repeat_step: bool = False,
    steps: Sequence[Step] = (),
) -> Verdict:
    """Bring a held, dead or cancelled job back with fresh budgets.

    A job with an open step needs `repeat_step`: the person allows its repetition. This covers all open steps among
    `steps`, so a refusal names them all, and the journal records them.
    """
    after(job.state, Transition.REVIVE, job.id)  # first: refuse a state that cannot be revived
    names = [] if job.open_step is None else [step.name for step in asked_about(job, steps)] or [job.open_step]
    if names and not repeat_step:
        raise _must_not_be_repeated(job, names)
    repeated = {"repeat_step": ", ".join(names)} if names else {}
    event = NewEvent("revived", {"from": job.state.value, **repeated, "note": reason}, actor)
    # The answer that it may run covers the step that was begun, too.
    return _back(job, now, event, error=_answered(job), open_step="", cancel_requested=False, undo_requested=False)


def _asked_to_stop(*events: NewEvent, **more: Any) -> Verdict:
    """Return the verdict on a job that runs on until its worker reads it."""
    return Verdict(move=Transition.CANCEL, state=State.RUNNING, cancel_requested=True, events=events, **more)


def moved(job: Job, move: Transition, *events: NewEvent, **more: Any) -> Verdict:
    """Return the verdict of an act on a job that does not run: what an attempt reports later is refused."""
    state = after(job.state, move, job.id)
    verdict = Verdict(move=move, state=state, stop_reason="", raises_fence=True, events=events, **more)
    return verdict if job.callbacks is None else with_callback(job, verdict)


def _back(job: Job, now: float, event: NewEvent, move: Transition = Transition.REVIVE, **more: Any) -> Verdict:
    """Return the verdict of an act that brings a job back with fresh budgets."""
    return moved(job, move, event, run_at=now, fresh_budgets=True, **more)


def _answered(job: Job) -> str | None:
    """Return the error of a job whose open step a person has answered for: it only asked about that step."""
    return "" if job.state is State.HELD and job.open_step is not None and not job.rolling_back else None


def _must_not_be_repeated(job: Job, names: Sequence[str]) -> IllegalMove:
    ways = "answer for it," if job.state is State.HELD else "find out whether it happened;"
    which, it = _listed(names, "was", "were")
    return IllegalMove(
        f"workflow {job.id}: {which} started and not recorded, and must not be repeated: {ways} "
        f"say that {it} to be run again (repeat_step=True), or roll back",
        needs="repeat_step",
    )


def _check_repeated(job: Job, steps: Sequence[Step], first: Step) -> None:
    if again := [step.name for step in would_repeat(steps, first)]:
        which, it = _listed(again, "happened, or may have,", "happened, or may have,")
        raise IllegalMove(
            f"workflow {job.id}: {which} and must not be repeated; from {first.name!r} on it would be: continue from a "
            f"later step, or say that {it} to be run again (repeat_step=True)",
            needs="repeat_step",
        )


def _listed(names: Sequence[str], verb: str, verbs: str) -> tuple[str, str]:
    listed = ", ".join(repr(name) for name in names)
    return (f"its step {listed} {verb}", "it is") if len(names) == 1 else (f"its steps {listed} {verbs}", "they are")


def rollback(job: Job, now: float, *, actor: str, reason: str | None = None) -> Verdict:
    """Undo the steps of a workflow. A running workflow is asked to stop first. A dead or held rollback continues."""
    if not job.workflow:
        raise IllegalMove(f"job {job.id} is not a workflow: it has no steps to undo")
    if job.state is State.DONE:
        raise IllegalMove(
            f"workflow {job.id} is done, and others may build on its result: it cannot be rolled back any more; "
            "run a workflow that takes back what it did"
        )
    if job.state is State.ROLLED_BACK:
        raise IllegalMove(f"workflow {job.id} was rolled back already")
    if job.rolling_back and job.state in (State.READY, State.RUNNING):
        raise IllegalMove(f"workflow {job.id} is being rolled back already")
    why = None if job.rolling_back else reason or f"rolled back by {actor}"  # the cause stays
    if job.state is State.RUNNING:
        asked = NewEvent("moved", {"undo_requested": True, "note": reason}, actor)
        return _asked_to_stop(asked, error=why, undo_requested=True)
    event = NewEvent("moved", {"rolling_back": True, "from": job.state.value, "note": reason}, actor)
    fresh = {"rolling_back": True, "cancel_requested": False, "undo_requested": False, "open_step": ""}
    return _back(job, now, event, Transition.UNDO, error=why, **fresh)


def retry_from(
    job: Job,
    step: Step,
    steps: Sequence[Step],
    now: float,
    *,
    actor: str,
    reason: str | None = None,
    repeat_step: bool = False,
) -> Verdict:
    """Run a workflow again from one of its steps: earlier records stay, that one and later ones are set aside.

    Naming a step allows its repetition; repeating another step with `repeatable=False` needs `repeat_step`.
    """
    if job.state is State.DONE:
        raise IllegalMove(f"workflow {job.id} is done: it cannot be retried; fork it, or start a new one")
    revived = revive(job, now, actor=actor, reason=reason, repeat_step=True, steps=steps)
    others = [each.name for each in open_steps(steps) if each.path != step.path]
    if others and not repeat_step:
        raise _must_not_be_repeated(job, others)
    if not repeat_step:
        _check_repeated(job, steps, step)
    if job.rolling_back:
        raise IllegalMove(f"workflow {job.id} is being rolled back: what it did is undone, in part; start a new one")
    later = [each for each in steps if each.position >= step.position and not each.aside]
    names = [each.name for each in sorted(later, key=lambda each: each.position)]
    detail = {"from_step": step.name, "path": step.path, "set_aside": names, "note": reason}
    return replace(revived, aside_from=step.position, events=(*revived.events, NewEvent("moved", detail, actor)))


def check_forkable(job: Job) -> None:
    """Raise `IllegalMove` if a new workflow cannot begin with the records of this job."""
    if not job.workflow:
        raise IllegalMove(f"job {job.id} is not a workflow: it has no steps to start from")
    if job.state not in ENDED:
        raise IllegalMove(f"workflow {job.id} is {job.state.value}: only one that has ended can be forked")
    if job.rolling_back and job.state is not State.ROLLED_BACK:
        raise IllegalMove(
            f"workflow {job.id} is undone in part: what a new one would build on may yet be undone; "
            "finish the rollback first"
        )


def fork(
    job: Job,
    step: Step,
    steps: Sequence[Step],
    *,
    actor: str,
    reason: str | None = None,
    repeat_step: bool = False,
) -> NewEvent:
    """Check that a new workflow may begin with the records of an ended one before a step; return the journal entry.

    Steps that must not be repeated need `repeat_step`, as in `retry_from`.
    """
    check_forkable(job)
    if not repeat_step:
        _check_repeated(job, steps, step)
    kept = [each for each in steps if each.position < step.position and not each.aside]
    begun = [(each, "may have happened") for each in kept if each.state == "started" and not each.repeatable]
    undone = [(each, "was undone") for each in kept if each.state == "undone"]
    for each, how in begun + undone:
        raise IllegalMove(f"workflow {job.id}: its step {each.name!r} {how}, so nothing can be built on it")
    return NewEvent("moved", {"forked_from": job.id, "from_step": step.name, "path": step.path, "note": reason}, actor)


def resolve(
    job: Job,
    answer: Choice,
    now: float,
    *,
    actor: str,
    reason: str | None = None,
    result: str | None = None,
    steps: Sequence[Step] = (),
) -> Verdict:
    """Choice the question of a held job: run it again, it happened, give up, or roll back.

    "done" applies to the open step if the workflow is held with one, and needs the result of that step. If its rollback
    is stuck, "done" says that a person did the next undo by hand. For any other job it applies to the whole job, and a
    workflow needs its result.
    """
    if job.question is not None:
        raise IllegalMove(f'workflow {job.id} asks "{job.question}": answer yes (approve) or no (fail)')
    if job.state is not State.HELD:
        raise IllegalMove(f"job {job.id} is {job.state.value}; only a held job waits for an answer")

    def event(**of: str) -> NewEvent:
        return NewEvent("resolved", {"answer": answer, **of, "note": reason}, actor)

    if answer == "retry":
        match asked_about(job, steps):
            case [first, second, *_]:
                return _ask_next(replace(first, repeatable=True), second, event(step=first.name))
        return revive(job, now, actor=actor, reason=reason, repeat_step=True)
    if answer == "rollback":
        return rollback(job, now, actor=actor, reason=reason)
    if answer == "done" and job.open_step is not None:
        return _it_happened(job, steps, now, result, event)
    if answer == "done" and job.rolling_back:
        return _it_is_undone(job, steps, now, result, event)
    if answer == "done" and job.workflow and result is None:
        raise IllegalMove(
            f"workflow {job.id} has no open step, so this answer is about the whole workflow: run it again, or say "
            "what the whole workflow returned (result, null if nothing), and no more of it is run",
            needs="result",
        )
    move = Transition.RESOLVE if answer == "done" else Transition.BURY
    events = [event()]
    error = (reason or f"given up by {actor}") if move is Transition.BURY else None
    because = why_undone(job)
    if error is not None:
        events.append(NewEvent("dead", {"reason": sentence(error, "", because)}, actor))
    return moved(job, move, *events, result=result, error=error, rollback_cause=because)


MakeEvent = Callable[..., NewEvent]  # about an answer to the question of one step


def _ask_next(said: Step, following: Step, event: NewEvent) -> Verdict:
    """Record the answer about one open step, and ask about the next one."""
    return Verdict(
        move=Transition.HOLD,
        state=State.HELD,
        open_step=following.name,
        raises_fence=True,  # a repeated answer must not be taken for one about the next step
        steps=(said,),
        events=(event,),
    )


def _it_happened(job: Job, steps: Sequence[Step], now: float, result: str | None, event: MakeEvent) -> Verdict:
    opened = asked_about(job, steps)
    if not opened:
        raise IllegalMove(f"workflow {job.id}: the step {job.open_step!r} is not on record; retry it, or give up")
    first, *others = opened
    if result is None:
        raise IllegalMove(
            f"workflow {job.id} waits for an answer about its step {first.name!r}: say what it returned (result, null "
            "if nothing), and the workflow continues after that step",
            needs="result",
        )
    said = replace(first, result=result, ended_at=now)  # it is recorded by the worker that can read it
    if others:
        return _ask_next(said, others[0], event(step=said.name))
    return _back(job, now, event(step=said.name), error=_answered(job), open_step="", steps=(said,))


def _it_is_undone(job: Job, steps: Sequence[Step], now: float, result: str | None, event: MakeEvent) -> Verdict:
    left = to_undo(steps)
    if not left:
        raise IllegalMove(f"workflow {job.id} is being rolled back, and has nothing left to undo: continue, or give up")
    if result is not None:
        raise IllegalMove(
            f"workflow {job.id} is being rolled back, so no result is wanted: leave it out to say that the step "
            f"{left[0].name!r} was undone by hand"
        )
    undone = replace(left[0], state="undone", undone_at=now)
    return _back(job, now, event(undone=undone.name), steps=(undone,))


def hold(job: Job, *, actor: str, reason: str | None = None) -> Verdict:
    """Hold a ready or waiting job until a person decides."""
    if job.state is State.RUNNING:
        raise IllegalMove(f"job {job.id} is running; cancel it, or wait until it ends")
    event = NewEvent("held", {"note": reason}, actor)
    return moved(job, Transition.HOLD, event, error=reason or f"held by {actor}", rollback_cause=why_undone(job))


def set_aside(job: Job, error: str) -> Verdict:
    """Hold a ready job whose row its store refuses to change as a claim would."""
    return Verdict(
        move=Transition.HOLD,
        state=after(job.state, Transition.HOLD, job.id),
        stop_reason="",
        error=error,
        events=(NewEvent("held", {"reason": error}),),
    )


def reschedule(
    job: Job,
    *,
    actor: str,
    reason: str | None = None,
    queue: str | None = None,
    priority: int | None = None,
    run_at: float | None = None,
) -> Verdict:
    """Change when a ready job is run, or from which queue."""
    state = after(job.state, Transition.RESCHEDULE, job.id)
    changes = {"queue": queue, "priority": priority, "run_at": run_at, "note": reason}
    detail = {name: value for name, value in changes.items() if value is not None}
    if queue is not None:
        detail["from_queue"] = job.queue
    return Verdict(
        move=Transition.RESCHEDULE,
        state=state,
        queue=queue,
        priority=priority,
        run_at=run_at,
        events=(NewEvent("moved", detail, actor),),
    )
