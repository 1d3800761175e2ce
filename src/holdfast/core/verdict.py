"""Decide what happens to a job when an attempt ends. No other module decides this.

    outcome (what the attempt reported)  ──judge()──▶  verdict (what becomes of the job)

Crashes and exceptions go through the same pure function: the time and the random number for the jitter are arguments.
Stores apply the verdict by compare-and-set and decide nothing.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict, Unpack, assert_never

import msgspec

from holdfast.core.callbacks import callback
from holdfast.core.error_fingerprint import Fault, exact, fault
from holdfast.core.machine import State, Transition, after
from holdfast.core.records import DamagedJob, Detector, EventKind, Job, NewEvent, NewJob, Step, StopReason
from holdfast.core.replay import answer_to
from holdfast.core.row_text import Awaited
from holdfast.core.stop_reason import full_reason, sentence, words

# ---------------------------------------------------------------------------------------- outcomes


class Succeeded(msgspec.Struct, frozen=True):
    """The handler returned; `result` is JSON."""

    result: str | None = None


class _Erred(msgspec.Struct, frozen=True):
    """An ending with an error of its own."""

    error: str
    detail: dict[str, Any] = {}


class Failed(_Erred, frozen=True):
    """The handler raised.

    `finished`: the handler returned, but its result or its outcome could not be stored. Such a job has done its work,
    so `on_crash` decides whether it may run again.
    `final`: it would fail the same way again, or is not to be retried. `rollback`: the workflow asks for its steps to
    be undone. `delay_s`: the pause that the task's code chose; None leaves it to the job's backoff.
    `outage`: the store failed in the middle of its transaction, so its writes were rolled back. That is not the job's
    fault, but it cut the attempt short: it costs what a release costs, and passes through `on_crash` as well.
    `unwritten`: it replaces an outcome that the store could not write.
    `frames`: where it raised, for the log; the traceback is in the detail.
    `error_kind`: the class of the exception; None: it was none.
    `origin`: the module and function of the author's code that raised it.
    """

    finished: bool = False
    final: bool = False
    rollback: bool = False
    outage: bool = False
    unwritten: bool = False
    delay_s: float | None = None
    frames: tuple[str, ...] = ()
    error_kind: str | None = None
    origin: str | None = None


class Diverged(_Erred, frozen=True):
    """The code of the workflow does not fit what is recorded."""


class TimedOut(_Erred, frozen=True):
    """The handler ran longer than its `timeout_s` and was stopped. `goes_on`: it did not stop, and was given up."""

    goes_on: bool = False


class Stalled(_Erred, frozen=True):
    """The handler made no progress for its `stall_s` and was stopped. `goes_on`: it did not stop, and was given up."""

    goes_on: bool = False


class Lost(msgspec.Struct, frozen=True):
    """The attempt's process is gone. `autopsy` is what is known of it.

    `worker`: the name of the worker whose process that was; None: the attempt had a process of its own.
    `excused`: lost in a gap in which the store could not be reached, so nobody is to blame.
    `spread_s`: many were lost at once; they come back spread over this many seconds.
    `started`: False when the job was claimed ahead of a free slot, and its handler had not begun.
    """

    detector: Detector
    cause: str
    autopsy: dict[str, Any] = {}
    suspects: int = 0
    excused: bool = False
    spread_s: float = 0.0
    started: bool = True
    worker: str | None = None


class Released(msgspec.Struct, frozen=True):
    """The worker gave the attempt back. `started`: the handler had begun, and has stopped.

    `budget_spent`: it took longer than the budget of its tick, so the others of its queue come first now.
    `delay_s`: the job comes back this much later, because the reason that kept it from ending may last.
    """

    started: bool
    cause: str
    budget_spent: bool = False
    delay_s: float = 0.0


class HeldBack(msgspec.Struct, frozen=True):
    """The worker did not start it: others of the same task and arguments have crashed (core/crash_fingerprint.py)."""

    cause: str


class Snoozed(msgspec.Struct, frozen=True):
    """The handler asked to be run again later."""

    delay_s: float


class Parked(msgspec.Struct, frozen=True):
    """The workflow waits without a slot: until `wake_at`, for any of `awaits`, for a person to answer a question.

    `inbox`: how many things had come for it when it looked. If there are more by now, it does not wait.
    `caught_at`: file and line of code that caught the signal to park, if the journal does not have them yet.
    """

    cause: str
    wake_at: float | None = None
    awaits: tuple[Awaited, ...] = ()
    question: str | None = None
    inbox: int | None = None
    caught_at: tuple[str, int] | None = None


class Cancelled(msgspec.Struct, frozen=True):
    """The handler stopped because it was asked to. `goes_on`: it did not stop, and was given up."""

    cause: str = "cancelled"
    goes_on: bool = False


Outcome = Succeeded | Failed | Diverged | TimedOut | Stalled | Lost | Released | HeldBack | Snoozed | Parked | Cancelled

# ----------------------------------------------------------------------------------------- verdicts


class RowFields(TypedDict, total=False):
    """The fields of a verdict that only some endings set; see `Verdict`."""

    run_at: float | None
    stop_reason: StopReason | Literal[""] | None
    rollback_cause: str | None
    reason: str | None
    result: str | None
    rolling_back: bool
    cancel_requested: bool
    undo_requested: bool
    fresh_budgets: bool
    releases: int
    open_step: str
    wake_at: float | None
    awaits: tuple[Awaited, ...]
    question: str | None
    inbox: int | None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about a job. Numbers are added to those of the row; None leaves the value of the row unchanged."""

    move: Transition
    state: State
    run_at: float | None = None
    error: str | None = None  # "" removes it: a person has answered what it asked
    error_kind: str | None = None  # of this error
    stop_reason: StopReason | Literal[""] | None = None  # "": it continues
    rollback_cause: str | None = None
    reason: str | None = None  # the error and why the job stops, in words; it is not stored
    result: str | None = None
    failures: int = 0
    crashes: int = 0
    zombies: int = 0
    suspects: int | None = None
    rolling_back: bool | None = None
    cancel_requested: bool | None = None
    priority: int | None = None
    queue: str | None = None
    releases: int = 0  # not added: how often in a row it has come back at no cost after its handler had begun
    fresh_budgets: bool = False
    raises_fence: bool = False  # another program than the attempt's ended it: its late report must be refused
    open_step: str | None = None  # "": none is open any more
    undo_requested: bool | None = None
    wake_at: float | None = None  # this and the next two: of a job that waits
    awaits: tuple[Awaited, ...] = ()
    question: str | None = None
    inbox: int | None = None  # if the row of a job that is to wait has another count, it is judged again
    progress: float | None = None  # this and the next: what the attempt said last, which no beat may have carried
    note: str | None = None
    steps: tuple[Step, ...] = ()  # what a person says of steps
    fault: Fault | None = None  # the error of the attempt, to be counted
    release: str | None = None  # of the worker that ran it; only with a fault
    aside_from: int | None = None  # live steps from this position on are set aside
    events: tuple[NewEvent, ...] = ()
    jobs: tuple[NewJob, ...] = ()  # callbacks: stored by the same commit; one whose id is known is not stored again


ENDING_EVENT: dict[type, EventKind] = {
    Failed: "failed",
    Diverged: "failed",
    TimedOut: "timed_out",
    Stalled: "stalled",
    Lost: "zombie",
    Released: "released",
    HeldBack: "released",
    Snoozed: "snoozed",
}


_ENDINGS = frozenset(ENDING_EVENT.values())
_ERRED = frozenset({"failed", "timed_out", "stalled", "zombie"})  # these endings are errors, and are counted


def judge(outcome: Outcome, job: Job, now: float, *, chance: float, release: str | None = None) -> Verdict:
    """Decide what becomes of a running job whose attempt ended with `outcome`.

    `now` is wall time; `chance` is a random number from 0 up to 1, for the jitter. `release` is that of the worker that
    ran the attempt: the event of the ending carries it. A suspect was one of several jobs in a process that died. If
    its next attempt ends and its process survives, the job is innocent, and its crash is removed from the count.
    """
    verdict = _noted(outcome, _acquitted(outcome, job, now, chance), release)
    if isinstance(outcome, Failed) and verdict.error == outcome.error:
        verdict = msgspec.structs.replace(verdict, error_kind=outcome.error_kind)
    return verdict if job.callbacks is None else with_callback(job, verdict)


def with_callback(job: Job, verdict: Verdict) -> Verdict:
    """Return the verdict with the job that is to be stored if this ends `job`."""
    says = verdict.error is not None
    kind, error = (verdict.error_kind, verdict.error) if says else (job.error_kind, job.error)
    try:
        new = callback(job, verdict.state, kind, error)
    except ValueError as damage:
        warning = NewEvent("warning", {"about": "callbacks", "error": str(damage)})
        return msgspec.structs.replace(verdict, events=(*verdict.events, warning))
    return verdict if new is None else msgspec.structs.replace(verdict, jobs=(new,))


def _acquitted(outcome: Outcome, job: Job, now: float, chance: float) -> Verdict:
    if job.suspects > 1 and isinstance(outcome, _ACQUITS):
        innocent = msgspec.structs.replace(job, crashes=0)
        verdict = _judge(outcome, innocent, now, chance)
        taken_back = 0 if verdict.fresh_budgets else -job.crashes
        return msgspec.structs.replace(verdict, crashes=taken_back, suspects=0)
    return _judge(outcome, job, now, chance)


def _noted(outcome: Outcome, verdict: Verdict, release: str | None) -> Verdict:
    """Return the verdict with the error to be counted, and the release in the event of the ending."""
    first = verdict.events[0] if verdict.events else None
    if first is None or first.kind not in _ENDINGS:
        return verdict
    if release is not None:
        first = msgspec.structs.replace(first, detail={**first.detail, "release": release})
        verdict = msgspec.structs.replace(verdict, events=(first, *verdict.events[1:]))
    if first.kind not in _ERRED:
        return verdict
    return msgspec.structs.replace(verdict, fault=_fault(outcome), release=release)


def _fault(outcome: Outcome) -> Fault | None:
    match outcome:
        case Failed():
            return fault(outcome.error_kind or "failed", outcome.origin, outcome.error)
        case Diverged():
            return fault("diverged", None, outcome.error)
        case TimedOut():
            return fault("timed out", None, outcome.error)
        case Stalled():
            return fault("stalled", None, outcome.error)
        case Lost():
            return _crash(outcome)
        case _:
            return None


def _crash(lost: Lost) -> Fault:
    """Return a crash as an error: by its detector and, if its parent saw the end of the process, by that."""
    signal, code = lost.autopsy.get("signal"), lost.autopsy.get("exit_code")
    if signal is not None:
        return exact("crash", lost.detector, f"killed by {signal}")
    if code is not None:
        return exact("crash", lost.detector, f"exited with code {code}")
    return fault("crash", lost.detector, lost.cause)


_ACQUITS = (Succeeded, Failed, Diverged, TimedOut, Stalled, Snoozed, Parked)


_FINISHED = after(State.RUNNING, Transition.FINISH)


def _judge(outcome: Outcome, job: Job, now: float, chance: float) -> Verdict:
    if isinstance(outcome, Succeeded):
        if job.rolling_back:
            return _roll_back(outcome, job)
        return Verdict(move=Transition.FINISH, state=_FINISHED, result=outcome.result)
    if job.cancel_requested or isinstance(outcome, Cancelled):
        return _cancel(outcome, job, now)
    if isinstance(job, DamagedJob):
        return _hold_damaged(outcome, job)
    if job.open_step and _cut_short(outcome):
        # The step must not be repeated, and may have happened: a person has to find out.
        return _stop(Transition.HOLD, outcome, job, "open_step")
    match outcome:
        case Diverged():
            return _stop(Transition.HOLD, outcome, job, "diverged")
        case Failed(outage=True) if _is_free(outcome, job):
            return _judge(Released(True, outcome.error, delay_s=OUTAGE_S), job, now, chance)
        case Failed(rollback=True) if not job.rolling_back:
            return _undo(outcome, job, now, free=True)
        case Failed(finished=False, outage=False):
            return _run_again(outcome, job, now, chance)
        case Released(started=True) if job.on_crash != "retry":
            return _by_on_crash(outcome, job, now, chance)
        case Released():
            return _release(outcome, job, now)
        case Failed() | TimedOut() | Stalled() | Lost():
            return _by_on_crash(outcome, job, now, chance)
        case HeldBack():
            return _stop(Transition.HOLD, outcome, job, "suspected")
        case Snoozed():
            return _verdict(Transition.SNOOZE, outcome, job, run_at=now + max(0.0, outcome.delay_s))
        case Parked():
            return _park(outcome, job, now)
        case _:  # pragma: no cover
            assert_never(outcome)


def _cut_short(outcome: Outcome) -> bool:
    """Say whether the attempt may have been interrupted inside a step. A job that was never started was not. A snoozed
    or parked one may have left a step open in another branch."""
    return isinstance(outcome, (*_ERRORS, Snoozed, Parked)) or getattr(outcome, "started", False)


def _cost(outcome: Outcome, job: Job) -> tuple[int, int]:
    """Return how many failures and crashes this ending adds to those of the job."""
    match outcome:
        case Failed() | TimedOut() | Stalled():
            return (0 if _is_free(outcome, job) else 1), 0
        case Lost():
            return 0, (0 if _is_forgiven(outcome, job) else 1)
        case _:
            return 0, 0


def _is_forgiven(outcome: Lost, job: Job) -> bool:
    """Say whether this crash is not the job's fault: it had not started, the store was away, or its worker died.

    A job that is suspected of an earlier crash runs in a process of its own. The end of that process is reported with
    one suspect, so any other report means that the worker around it died. A worker that cannot isolate jobs may run it
    among others; therefore a job is forgiven only a few times.
    """
    was_isolated = job.crashes > 0 and job.suspects > 0 and outcome.suspects != 1
    return outcome.excused or not outcome.started or (was_isolated and job.zombies < FORGIVEN_MAX)


def _is_free(outcome: Failed | TimedOut | Stalled, job: Job) -> bool:
    """Say whether the store is to blame for this failure. After many in a row the job may be what brings it down."""
    return isinstance(outcome, Failed) and outcome.outage and job.releases < OUTAGES_MAX


FORGIVEN_MAX = 10
OUTAGES_MAX = 10
PROMPT_RELEASES_MAX = 10  # how often in a row a job that was given back may run again at once
RELEASE_DELAY_MAX_S = 60.0
OUTAGE_S = 1.0  # delay after an outage in the job's transaction: the store may stay down for a while


CutShort = Failed | TimedOut | Stalled | Lost | Released


def _by_on_crash(outcome: CutShort, job: Job, now: float, chance: float) -> Verdict:
    """Let `on_crash` decide about an attempt that did not end by itself. A rollback always continues."""
    if job.rolling_back:
        if getattr(outcome, "goes_on", False):
            return _stop(Transition.HOLD, outcome, job, "still_running")
        return _run_again(outcome, job, now, chance)
    match job.on_crash:
        case "hold":
            return _stop(Transition.HOLD, outcome, job, "on_crash")
        case "fail":
            return _stop(Transition.BURY, outcome, job, "on_crash")
        case "rollback":
            return _undo(outcome, job, now)
        case "retry":
            return _run_again(outcome, job, now, chance)


def _run_again(outcome: CutShort, job: Job, now: float, chance: float) -> Verdict:
    """Run the job again while its budgets last; then bury it, or hold it if it was rolling back."""
    if isinstance(outcome, Released):  # given back while it rolls back: it costs nothing, and waits for nothing
        return _release(outcome, job, now)
    failures, crashes = _cost(outcome, job)
    total_crashes = job.crashes + crashes
    total = job.failures + failures + total_crashes
    spent: StopReason | None = None
    if crashes and total_crashes >= job.crashes_max:
        spent = "crashes_max"
    elif (failures or crashes) and total >= job.attempts_max:
        spent = "attempts_max"
    elif isinstance(outcome, Failed) and outcome.final and not job.rolling_back:
        spent = "final"
    if spent is not None:
        if job.rolling_back:
            return _stop(Transition.HOLD, outcome, job, spent)
        if job.undoable and job.on_crash != "fail":
            reason = _full_reason(_reason(outcome), spent, outcome, job)
            return _undo(outcome, job, now, free=True, stop_reason=spent, reason=reason)
        return _stop(Transition.BURY, outcome, job, spent)
    if isinstance(outcome, Lost) and (not crashes or total_crashes <= 1):
        return _come_back(outcome, job, now, chance, crashes)
    chosen = outcome.delay_s if isinstance(outcome, Failed) else None
    delay_s = chosen if chosen is not None else job.retry.delay_s(total, chance)
    return _verdict(Transition.RETRY, outcome, job, run_at=now + max(0.0, delay_s))


def _come_back(outcome: Lost, job: Job, now: float, chance: float, crashes: int) -> Verdict:
    """Run the job again at once, in its old place in the queue: nothing shows that it was at fault.

    In a storm, jobs that had begun are spread over a few seconds instead. A loss without cost counts as a release, so
    that a job that kills its worker every time does not stay at the head of its queue.
    """
    if outcome.started and outcome.spread_s:
        return _verdict(Transition.RETRY, outcome, job, run_at=now + outcome.spread_s * chance)
    if crashes:
        return _verdict(Transition.RETRY, outcome, job, run_at=_place(job, now))
    releases = job.releases + outcome.started
    run_at = _place(job, now, behind=outcome.started and releases % 2 == 0)
    return _verdict(Transition.RETRY, outcome, job, run_at=run_at, releases=releases)


def _release(outcome: Released, job: Job, now: float) -> Verdict:
    """Give the job back at no cost. It keeps its place in the queue. Every second release in a row after its handler
    had begun puts it behind the jobs that wait: a job that runs longer than its workers live must not block the queue.
    After many releases in a row the delay grows, to avoid a hot loop."""
    releases = job.releases + outcome.started
    behind = outcome.budget_spent or (outcome.started and releases % 2 == 0)
    delay_s = outcome.delay_s
    if outcome.started and releases > PROMPT_RELEASES_MAX:
        delay_s = max(delay_s, min(2.0 ** min(releases - PROMPT_RELEASES_MAX, 10), RELEASE_DELAY_MAX_S))
    run_at = now + delay_s if delay_s else _place(job, now, behind=behind)
    return _verdict(Transition.RELEASE, outcome, job, run_at=run_at, releases=releases)


def _place(job: Job, now: float, *, behind: bool = False) -> float | None:
    """Return the new `run_at`: None keeps the job's place in the queue, `now` puts it behind the jobs that wait. If the
    clock was set back, the old `run_at` may be in the future; then it is `now` too."""
    return now if behind or job.run_at > now else None


def _stop(
    move: Transition,
    outcome: Outcome,
    job: Job,
    why: StopReason,
    *,
    error: str | None = None,
    free: bool = False,
    **more: Unpack[RowFields],
) -> Verdict:
    """Hold or bury the job. Its row keeps the error and the reason for the stop apart; people are shown both."""
    error = error or _reason(outcome)
    reason = _full_reason(error, why, outcome, job)
    events = (NewEvent("held" if move is Transition.HOLD else "dead", {"reason": reason}),)
    kept: RowFields = {"stop_reason": why, "reason": reason, "rollback_cause": why_undone(job), **more}
    return _verdict(move, outcome, job, error=error, free=free, events=events, **kept)


def _hold_damaged(outcome: Outcome, job: DamagedJob) -> Verdict:
    """Hold a job whose row cannot be read: a program would run it with other arguments, or under another policy."""
    error = f"its row cannot be read: {job.damage}"
    events = (NewEvent("held", {"reason": error}),)
    return _verdict(Transition.HOLD, outcome, job, error=error, events=events, stop_reason="", reason=error)


def _full_reason(error: str, why: StopReason, outcome: Outcome, job: Job) -> str:
    failures, crashes = _cost(outcome, job)
    counted = msgspec.structs.replace(job, failures=job.failures + failures, crashes=job.crashes + crashes)
    return sentence(error, words(why, counted), why_undone(job))


def _undo(
    outcome: Outcome,
    job: Job,
    now: float,
    *,
    error: str | None = None,
    free: bool = False,
    **more: Unpack[RowFields],
) -> Verdict:
    """Begin to roll back. The undos have budgets of their own, and the request to undo is answered.

    But not while the handler may still be at work: what it does yet would come after its undo.
    """
    heard: RowFields = {"cancel_requested": False, "undo_requested": False} if job.undo_requested else {}
    if getattr(outcome, "goes_on", False):
        return _stop(Transition.HOLD, outcome, job, "still_running", error=error, free=free, **heard)
    error = error or _reason(outcome)
    fresh: RowFields = {"run_at": now, "rolling_back": True, "fresh_budgets": True, "open_step": "", **heard, **more}
    return _verdict(Transition.UNDO, outcome, job, error=error, free=free, **fresh)


def _roll_back(outcome: Succeeded, job: Job) -> Verdict:
    """End the rollback. The error is again the one that caused the rollback, not that of an undo."""
    cause = job.rollback_cause
    stop_reason: Literal[""] | None = None if cause is None else ""
    events = (NewEvent("rolled_back"),)
    return _verdict(Transition.ROLL_BACK, outcome, job, error=cause, events=events, stop_reason=stop_reason)


def _park(outcome: Parked, job: Job, now: float) -> Verdict:
    events: tuple[NewEvent, ...] = ()
    if outcome.question is not None:
        events += (NewEvent("asked", {"name": answer_to(outcome.awaits), "question": outcome.question}),)
    if outcome.caught_at is not None:
        file, line = outcome.caught_at
        events += (NewEvent("warning", {"about": "caught_park", "file": file, "line": line}),)
    if outcome.inbox is not None and job.inbox > outcome.inbox:  # something came after it had looked
        return _verdict(Transition.SNOOZE, outcome, job, run_at=now, events=events)
    return _verdict(
        Transition.PARK,
        outcome,
        job,
        events=events,
        wake_at=outcome.wake_at,
        awaits=outcome.awaits,
        question=outcome.question,
        inbox=outcome.inbox,
    )


def _cancel(outcome: Outcome, job: Job, now: float) -> Verdict:
    if job.undo_requested and not job.rolling_back:
        return _undo(outcome, job, now, free=True, error=_why_asked(outcome, job))
    reason = _reason(outcome)
    events = (NewEvent("cancelled", {"reason": reason}),)
    return _verdict(Transition.CANCEL, outcome, job, free=True, error=reason, events=events, stop_reason="")


def _verdict(
    move: Transition,
    outcome: Outcome,
    job: Job,
    *,
    error: str | None = None,
    free: bool = False,
    events: tuple[NewEvent, ...] = (),
    **more: Unpack[RowFields],
) -> Verdict:
    """Return the verdict, with what each ending does to the row. `free`: it costs nothing. `more`: other fields."""
    failures, crashes = (0, 0) if free else _cost(outcome, job)
    lost = type(outcome) is Lost
    kind = ENDING_EVENT.get(type(outcome))
    first = (NewEvent(kind, {**_detail(outcome), "decision": move.value}),) if kind else ()
    return Verdict(
        move=move,
        state=after(State.RUNNING, move),
        error=error if error is not None or _keeps_its_error(job) else _error(outcome),
        failures=failures,
        crashes=crashes,
        zombies=1 if lost else 0,
        suspects=outcome.suspects if type(outcome) is Lost and not _is_forgiven(outcome, job) else None,
        raises_fence=lost,
        events=first + events,
        **more,
    )


def why_undone(job: Job) -> str | None:
    """Return why a workflow is rolled back; None if it is not."""
    return (job.rollback_cause or full_reason(job)) if job.rolling_back else None


def _why_asked(outcome: Outcome, job: Job) -> str:
    """Return the reason that a person gave for the rollback. A worker that knows of the request has read it from the
    row."""
    if job.error is None:
        return _reason(outcome)
    return f"{job.error}; {_reason(outcome)}" if getattr(outcome, "goes_on", False) else job.error


def _keeps_its_error(job: Job) -> bool:
    """Say whether the row's error is the reason for the rollback, which must stay readable."""
    return job.rolling_back and job.error is not None


def _error(outcome: Outcome) -> str | None:
    """Return the new error of the row; None after a release or a snooze, which keep the last error."""
    return _reason(outcome) if type(outcome) in _ERRORS else None


_ERRORS = (Failed, Diverged, TimedOut, Stalled, Lost)


def _reason(outcome: Outcome) -> str:
    match outcome:
        case Failed() | Diverged() | TimedOut() | Stalled():
            return outcome.error
        case Lost(worker=str(name)):
            return f"worker {name} was lost: {outcome.cause}"
        case Lost() | Released() | HeldBack() | Parked() | Cancelled():
            return outcome.cause
        case Snoozed():
            return f"snoozed for {outcome.delay_s:g} s"
        case Succeeded():
            return "succeeded"


def _detail(outcome: Outcome) -> dict[str, Any]:
    match outcome:
        case Failed() | Diverged() | TimedOut() | Stalled():
            return {"error": outcome.error, **outcome.detail}
        case Lost():
            return {"detector": outcome.detector, "cause": outcome.cause, **outcome.autopsy}
        case Released():
            return {"cause": outcome.cause, "started": outcome.started}
        case HeldBack():
            return {"cause": outcome.cause, "started": False}
        case Snoozed():
            return {"delay_s": outcome.delay_s}
        case _:
            return {}
