"""Explain in a sentence why a job is in its state, and list the acts that would change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.core import orders
from holdfast.core.durations import at_most, duration
from holdfast.core.limits import why_limited, why_paused
from holdfast.core.machine import LIVE, State
from holdfast.core.records import DamagedJob, Event, Job, Moment, Step, Worker, nobody_has
from holdfast.core.replay import asked_about, to_undo
from holdfast.core.stop_reason import full_reason
from holdfast.core.text import counted
from holdfast.insight.format import ago, first_line
from holdfast.insight.health import Health, enqueued_ahead_s, health
from holdfast.insight.possible_acts import ActName, PossibleAct, on_job, possible
from holdfast.insight.steps import awaited, awaited_things, awaited_time, between_tries, failed_tries, named, steps_of
from holdfast.insight.views import EVENTS_MAX, Names, health_of, name_of
from holdfast.queues import queue_named
from holdfast.stores.protocol import Store
from holdfast.stores.rounds import together

FIX_CODE = "Bring back the code that fits, declared with its old version=, or fix this one; then continue."


def in_short(job: Job, now: Moment, names: Names | None = None) -> str | None:
    """Say the one thing about a job that a list has room for."""
    match job.shown_state(now.wall):
        case "scheduled":
            return f"in {duration(job.run_at - now.wall)}"
        case "retrying":
            return f"in {duration(job.run_at - now.wall)}: {reason(job)}"
        case "running":
            late = job.lease_until is not None and job.lease_until < now.lease
            parts = [
                "lease ran out" if late else None,
                ", ".join(f"in {step.name}" for step in job.in_steps or ()) or None,
                None if job.progress is None else f"{job.progress:.0%}",
                job.note,
                f"on {name_of(job.worker, names)}",
            ]
            return ", ".join(part for part in parts if part)
        case "done":
            return job.result
        case "waiting" if job.question is not None:
            return ", ".join([f'asks "{job.question}"', *awaited(job, now)[1:]])
        case "waiting":
            return between_tries(job, now) or ", ".join(awaited(job, now)) or None
        case "held" if job.open_step is not None:
            return f"step {job.open_step}: {reason(job)}"
        case _:
            return reason(job) if job.error else None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job is where it is, in a sentence, and the acts that would bring it on."""

    sentence: str
    choices: tuple[PossibleAct, ...] = ()


def explain(store: Store, job: Job) -> Explanation:
    """Say why the job is where it is, with what the store knows of its queue and its worker."""
    now = store.now()
    if isinstance(job, DamagedJob) and job.state in LIVE:
        return _why_damaged(job)
    match job.state:
        case State.READY:
            return _why_ready(store, job, now)
        case State.RUNNING:
            return _why_running(store, job, now)
        case State.WAITING:
            return _why_waiting(store, job, now)
        case State.HELD:
            return _why_held(job, steps_of(store, job))
        case State.DONE:
            answers = store.journal(job.id, kinds=("resolved",), limit=EVENTS_MAX)
            if not answers or not _is_about_the_job(answers[-1]):
                return Explanation(f"It succeeded at attempt {job.attempt}, {ago(job.ended_at, now)}.")
            note = answers[-1].detail.get("note")
            by = f"{answers[-1].actor} resolved it as done {ago(answers[-1].at, now)}"
            return Explanation(f"{by}{f': {first_line(note)}' if note else ''}. No attempt reported success.")
        case State.DEAD | State.CANCELLED:
            dead = job.state is State.DEAD
            back = _way_back(job, "revive" if dead else "retry")
            halfway = ", while it was rolling back" if job.rolling_back else ""
            what = f"It {'gave up' if dead else 'was cancelled'} {ago(job.ended_at, now)}{halfway}"
            return Explanation(f"{what}: {reason(job)}.", (back, *_ways_of_a_workflow(job)))
        case State.ROLLED_BACK:
            return Explanation(f"Its recorded steps were undone {ago(job.ended_at, now)}: {reason(job)}.")


def _why_damaged(job: DamagedJob) -> Explanation:
    choices: tuple[PossibleAct, ...] = (on_job(job, "delete it", "delete"),)
    then = "It is held when a worker claims it."
    if job.state is State.RUNNING:
        then, choices = "It is held when its worker or a reaper looks at it.", ()
    if job.state is State.HELD:
        then = "Repair the row by hand and approve it, or delete the job."
        choices = (on_job(job, "run it, once repaired", "approve"), *choices)
    return Explanation(f"Its row was damaged by another program: {job.damage}. {then}", choices)


def _why_waiting(store: Store, job: Job, now: Moment) -> Explanation:
    late = job.wake_at is not None and job.wake_at <= now.wall
    tail, ways = _obstacle(store, job, now) if late else ("", ())
    if job.question is not None:
        choices = (
            on_job(job, "yes", "approve", consequence="the workflow continues with yes"),
            on_job(job, "no", "fail", consequence="the workflow continues with no"),
        )
        left = "" if job.wake_at is None or late else f" waits {at_most(job.wake_at - now.wall)} more, and"
        over = f" Its time was over {ago(job.wake_at, now)}.{tail}" if late else ""
        asks = f'It asks a person: "{first_line(job.question)}" It{left} holds no slot meanwhile.{over}'
        return Explanation(asks, (*choices, *ways))
    steps = steps_of(store, job) if failed_tries(job) else ()
    if (failed := between_tries(job, now, steps)) is not None:
        return Explanation(f"{failed[0].upper()}{failed[1:]}. It holds no slot meanwhile.{tail}", ways)
    things = awaited_things(job)
    parts = [" and ".join(things), *awaited_time(job, now, alone=not things)]
    what = ", ".join(part for part in parts if part) or "a signal, a timer or other jobs"
    signals = [each.name for each in job.awaits or () if each.kind == "signal"]
    sends = [possible(f"send {name}", "signal", "value", id=job.id, name=name) for name in signals]
    return Explanation(f"It waits for {what}, and holds no slot meanwhile.{tail}", (*ways, *sends))


def _why_held(job: Job, steps: Sequence[Step]) -> Explanation:
    fix = f" {FIX_CODE}" if job.stop_reason == "diverged" else ""
    give_up = on_job(job, "give up", "fail")
    if job.open_step is not None:
        first, *later = [f"step {named(step)}" for step in asked_about(job, steps)] or [
            f"step {first_line(job.open_step)}"
        ]
        goes_on = "the workflow continues after that step"
        choices = [
            on_job(job, f"{first} happened", "done", "result", consequence=goes_on),
            on_job(job, "it did not: run it", "approve", consequence="that step runs, and the workflow continues"),
        ]
        if not job.rolling_back:
            choices.append(on_job(job, "undo all steps", "rollback"))
        then = f" Then it asks about {' and '.join(later)}." if later else ""
        sentence = f"It waits for a person's answer about {first}: {reason(job)}.{then}"
        return Explanation(sentence, (*choices, give_up))
    if job.rolling_back:
        undos = [f"undo of {named(step)}" for step in to_undo(steps)[:1]]  # with none left nothing is done by hand
        by_hand = "undoing continues with the step before"
        choices = [
            on_job(job, "continue to undo", "approve", consequence="the undo runs again"),
            *(on_job(job, f"{undo} was done by hand", "done", consequence=by_hand) for undo in undos),
        ]
        then = f" The {undos[0]} is next." if undos else " Nothing is left to undo."
        sentence = f"It waits for a person's answer: {reason(job)}.{fix}{then}"
        return Explanation(sentence, (*choices, give_up))
    # Nobody can say that all of a workflow happened: it would be done, without the steps still to come.
    whole = () if job.workflow else (on_job(job, "it happened", "done"),)
    choices = [on_job(job, "run it again", "approve"), *whole, give_up, *_ways_of_a_workflow(job)]
    return Explanation(f"It waits for a person's answer: {reason(job)}.{fix}", tuple(choices))


def _way_back(job: Job, act: ActName) -> PossibleAct:
    if job.open_step is not None:
        return on_job(job, f"run it, and {first_line(job.open_step)} again", act, repeat_step=True)
    return on_job(job, "continue to undo" if job.rolling_back else "bring it back", act)


def _ways_of_a_workflow(job: Job) -> tuple[PossibleAct, ...]:
    if not job.workflow or job.rolling_back:
        return ()
    again = on_job(job, "from a step", "retry_from", "step")
    return (again, on_job(job, "undo its steps", "rollback")) if job.undoable else (again,)


def _is_about_the_job(answer: Event) -> bool:
    """Say whether a person said of the whole job that it happened, and not of a step of it."""
    return answer.detail.get("answer") == "done" and "step" not in answer.detail


def _why_ready(store: Store, job: Job, now: Moment) -> Explanation:
    tail, answers = _obstacle(store, job, now)
    if job.rolling_back:
        tail = f" It will undo the steps that it had recorded.{tail}"
    if job.run_at <= now.wall:
        waits = "" if answers else " and waits for a free slot"
        again = f"; last time: {reason(job)}" if job.failures or job.crashes else ""
        head = f"It has been due for {duration(now.wall - job.run_at)}{waits}{again}."
    elif job.failures or job.crashes:
        spent = f"{counted(job.failures, 'failure')} and {counted(job.crashes, 'crash', 'crashes')}"
        head = f"It runs again in {duration(job.run_at - now.wall)}, after {spent}: {reason(job)}."
    else:
        head = f"It is scheduled and runs in {duration(job.run_at - now.wall)}."
    if job.run_at > now.wall and (ahead_s := enqueued_ahead_s(job, now)):
        head += f" The clock of the store was set back: the job was enqueued {duration(ahead_s)} later than now."
    return Explanation(head + tail, answers)


def _obstacle(store: Store, job: Job, now: Moment) -> tuple[str, tuple[PossibleAct, ...]]:
    """Say why no worker would claim a job that is due, and what would change that; nothing if one would."""
    set_for, workers = together(lambda: queue_named(store, job.queue), store.workers)
    if (why := why_paused(set_for, job, now.wall)) is not None:
        group = None if set_for.is_paused(now.wall) else job.group
        return f" {why}", (possible("let it run", "resume_queue", queue=job.queue, group=group),)
    alive: list[Worker] = [worker for worker in workers if worker.is_alive(now.wall)]
    claiming = [worker for worker in alive if not worker.stopping]
    served = any(job.queue in worker.queues for worker in claiming)
    stopping = any(worker.stopping and worker.may_run(job.queue, job.task) for worker in alive)
    leaving = " A worker that would run it is stopping, and claims nothing more." if stopping else ""
    if not served and not claiming and (standing := store.orders()):
        told = " ".join(f"Workers that come claim nothing: {orders.in_words(order)}." for order in standing)
        ways = tuple(possible("let them claim", "resume_workers", name=order.name) for order in standing)
        return f" No worker serves its queue, {job.queue}.{leaving} {told}", ways
    if nobody_has(claiming, job.queue, job.task):
        queue = "No" if served else f"No worker serves its queue, {job.queue}, and no"
        ways = (possible("start one that has it", "start_worker"),)
        return f" {queue} living worker has its task, {job.task}.{leaving}", ways
    if not served:
        way = possible("start one", "start_worker", queue=job.queue if claiming else None)
        return f" No worker serves its queue, {job.queue}.{leaving}", (way,)
    if job.state is State.READY and job.run_at <= now.wall and set_for.limits.any:
        why = why_limited(set_for, job, store.places(job.queue, job.group), now.wall)
        if why is not None:
            return f" {why}", (possible("see its limits", "see_limits", queue=job.queue),)
    return "", ()


def _why_running(store: Store, job: Job, now: Moment) -> Explanation:
    workers, found = together(lambda: store.workers(gone=True), lambda: health_of(store, job))
    worker = name_of(job.worker, {each.id: each.name for each in workers})
    state: Health = found or health(job, None, now)
    length = None if job.claimed_at is None else duration(now.wall - job.claimed_at)
    if job.begun:
        text = f"Worker {worker} has run it{f' for {length}' if length else ''}, attempt {job.attempt}. "
    else:
        text = f"Worker {worker} claimed it{f' {length} ago' if length else ''}, attempt {job.attempt}, "
        text += "and has not said that it has begun. "
    if job.rolling_back:
        text += "It undoes what it did. "
    if job.cancel_requested:
        text += "It was asked to stop. "
    ways = {
        "dead": (possible("recover it now", "recover"),),
        "hung": (on_job(job, "stop it", "cancel"),),
    }
    return Explanation(text + state.sentence, () if job.cancel_requested else ways.get(state.word, ()))


def reason(job: Job) -> str:
    """Return the first line of why the last attempt did not succeed, and why the job stopped."""
    return full_reason(replace(job, error=first_line(job.error))) or "no reason was recorded"
