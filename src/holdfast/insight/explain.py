"""Why a job is where it is, in a sentence, and what would bring it on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from msgspec.structs import replace

from holdfast.core.durations import at_most, duration
from holdfast.core.machine import State
from holdfast.core.records import Event, Job, Moment, Step, nobody_has
from holdfast.core.replay import asked_about, to_undo
from holdfast.core.stop_reason import told
from holdfast.core.text import counted
from holdfast.insight.format import ago, first_line
from holdfast.insight.health import Health, enqueued_ahead_s, health
from holdfast.insight.steps import awaited, awaited_things, awaited_time, between_tries, failed_tries, named, steps_of
from holdfast.insight.views import EVENTS_MAX, Names, health_of, name_of
from holdfast.stores.protocol import Store


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
    """Why a job is where it is, in a sentence, and what would bring it on: (words, command) pairs."""

    sentence: str
    answers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Service:
    """What is known of a job's queue, and of the workers that would claim the job."""

    paused: bool = False
    served: bool = True  # a worker claims jobs of the queue
    known: bool = True  # False: no living worker has the task (`nobody_has`)
    stopping: bool = False  # a worker would run it, but is stopping
    anybody: bool = True  # a worker claims jobs of some queue


def explain(store: Store, job: Job) -> Explanation:
    """Say why the job is where it is, with what the store knows of its queue and its worker."""
    workers, now = store.workers(gone=True), store.now()
    claiming = [worker for worker in workers if worker.claims(now.wall)]
    leaving = [worker for worker in workers if worker.is_alive(now.wall) and worker.stopping]
    service = Service(
        paused=job.state in (State.READY, State.WAITING) and job.queue in store.paused(),
        served=any(job.queue in worker.queues for worker in claiming),
        known=not nobody_has(claiming, job.queue, job.task),
        stopping=any(worker.may_run(job.queue, job.task) for worker in leaving),
        anybody=bool(claiming),
    )
    answers = store.journal(job.id, kinds=("resolved",), limit=EVENTS_MAX) if job.state is State.DONE else []
    answer = answers[-1] if answers else None
    names = {worker.id: worker.name for worker in workers}
    state = health_of(store, job, workers)
    steps = steps_of(store, job) if job.state is State.HELD or failed_tries(job) else ()
    return why(job, now, names, service=service, answer=answer, state=state, steps=steps)


def why(
    job: Job,
    now: Moment,
    names: Names | None = None,
    *,
    service: Service | None = None,
    answer: Event | None = None,
    state: Health | None = None,
    steps: Sequence[Step] = (),
) -> Explanation:
    """The same, from facts at hand. `answer`: a person's last. `state`: what is the matter with it, if it runs and more
    is known than its row says. `steps`: those of a workflow, if it is held or waits between two tries: what it asks
    about or tries again is one of them.
    """
    service = service or Service()
    seen = f"{job.id} --fence {job.fence}"  # so that the act counts only for what the reader of the sentence saw
    match job.state:
        case State.READY:
            return _why_ready(job, now, service)
        case State.RUNNING:
            return _why_running(job, now, name_of(job.worker, names), state or health(job, None, now))
        case State.WAITING:
            return _why_waiting(job, now, steps, service)
        case State.HELD:
            return _why_held(job, seen, steps)
        case State.DONE if answer is not None and _is_about_the_job(answer):
            note = answer.detail.get("note")
            by = f"{answer.actor} resolved it as done {ago(answer.at, now)}"
            return Explanation(f"{by}{f': {first_line(note)}' if note else ''}. No attempt reported success.")
        case State.DONE:
            return Explanation(f"It succeeded at attempt {job.attempt}, {ago(job.ended_at, now)}.")
        case State.DEAD:
            back = _way_back(job, f"holdfast dead revive {seen}")
            ways = (back, *_ways_of_a_workflow(job))
            return Explanation(f"It gave up {ago(job.ended_at, now)}{_halfway(job)}: {reason(job)}.", ways)
        case State.CANCELLED:
            back = _way_back(job, f"holdfast jobs retry {seen}")
            ways = (back, *_ways_of_a_workflow(job))
            return Explanation(f"It was cancelled {ago(job.ended_at, now)}{_halfway(job)}: {reason(job)}.", ways)
        case State.ROLLED_BACK:
            return Explanation(f"Its recorded steps were undone {ago(job.ended_at, now)}: {reason(job)}.")


def _why_waiting(job: Job, now: Moment, steps: Sequence[Step], service: Service) -> Explanation:
    late = job.wake_at is not None and job.wake_at <= now.wall
    tail, ways = _obstacle(job, service) if late else ("", ())
    if job.question is not None:
        seen = f"{job.id} --fence {job.fence}"
        choices = (("yes", f"holdfast held approve {seen}"), ("no", f"holdfast held fail {seen}"))
        left = "" if job.wake_at is None or late else f" waits {at_most(job.wake_at - now.wall)} more, and"
        over = f" Its time was over {ago(job.wake_at, now)}.{tail}" if late else ""
        asks = f'It asks a person: "{first_line(job.question)}" It{left} holds no slot meanwhile.{over}'
        return Explanation(asks, (*choices, *ways))
    if (failed := between_tries(job, now, steps)) is not None:
        return Explanation(f"{failed[0].upper()}{failed[1:]}. It holds no slot meanwhile.{tail}", ways)
    things = awaited_things(job)
    parts = [" and ".join(things), *awaited_time(job, now, alone=not things)]
    what = ", ".join(part for part in parts if part) or "a signal, a timer or other jobs"
    signals = [each.name for each in job.awaits or () if each.kind == "signal"]
    sends = [(f"send {name}", f"holdfast workflows signal {job.id} {quote(name)} JSON") for name in signals]
    return Explanation(f"It waits for {what}, and holds no slot meanwhile.{tail}", (*ways, *sends))


def _why_held(job: Job, seen: str, steps: Sequence[Step]) -> Explanation:
    run, happened, give_up = (f"holdfast held {word} {seen}" for word in ("approve", "done", "fail"))
    if job.open_step is not None:
        first, *later = [f"step {named(step)}" for step in asked_about(job, steps)] or [
            f"step {first_line(job.open_step)}"
        ]
        choices = [(f"{first} happened", f"{happened} --result JSON"), ("it did not: run it", run)]
        if not job.rolling_back:
            choices.append(("undo all steps", f"holdfast workflows rollback {seen}"))
        then = f" Then it asks about {' and '.join(later)}." if later else ""
        sentence = f"It waits for a person's answer about {first}: {reason(job)}.{then}"
        return Explanation(sentence, (*choices, ("give up", give_up)))
    if job.rolling_back:
        undos = [f"undo of {named(step)}" for step in to_undo(steps)[:1]]  # with none left nothing is done by hand
        choices = [("continue to undo", run), *((f"{undo} was done by hand", happened) for undo in undos)]
        then = f" The {undos[0]} is next." if undos else " Nothing is left to undo."
        return Explanation(f"It waits for a person's answer: {reason(job)}.{then}", (*choices, ("give up", give_up)))
    # Of a workflow nobody says that all of it happened: it would be done, without what is still to come.
    whole = () if job.workflow else (("it happened", happened),)
    choices = [("run it again", run), *whole, ("give up", give_up), *_ways_of_a_workflow(job)]
    return Explanation(f"It waits for a person's answer: {reason(job)}.", tuple(choices))


def _halfway(job: Job) -> str:
    return ", while it was rolling back" if job.rolling_back else ""


def _way_back(job: Job, command: str) -> tuple[str, str]:
    if job.open_step is not None:
        return f"run it, and {first_line(job.open_step)} again", f"{command} --repeat-step"
    return "continue to undo" if job.rolling_back else "bring it back", command


def _ways_of_a_workflow(job: Job) -> tuple[tuple[str, str], ...]:
    if not job.workflow or job.rolling_back:
        return ()
    seen = f"{job.id} --fence {job.fence}"
    again = ("from a step", f"holdfast workflows retry {seen} --from-step NAME")
    return (again, ("undo its steps", f"holdfast workflows rollback {seen}")) if job.undoable else (again,)


def _is_about_the_job(answer: Event) -> bool:
    """Say whether a person said of the whole job that it happened, and not of a step of it."""
    return answer.detail.get("answer") == "done" and "step" not in answer.detail


def _why_ready(job: Job, now: Moment, service: Service) -> Explanation:
    tail, answers = _obstacle(job, service)
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


def _obstacle(job: Job, service: Service) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Say why no worker would claim a job that is due, and what would change that; nothing if one would."""
    leaving = " A worker that would run it is stopping, and claims nothing more." if service.stopping else ""
    if service.paused:
        return f" Its queue, {job.queue}, is paused.", (("let it run", f"holdfast queues resume {job.queue}"),)
    if not service.known:
        queue = "No" if service.served else f"No worker serves its queue, {job.queue}, and no"
        ways = (("start one that has it", "holdfast worker APP"),)
        return f" {queue} living worker has its task, {job.task}.{leaving}", ways
    if not service.served:
        queues = f" --queues {quote(job.queue)}" if service.anybody else ""
        return f" No worker serves its queue, {job.queue}.{leaving}", (("start one", f"holdfast worker APP{queues}"),)
    return "", ()


def _why_running(job: Job, now: Moment, worker: str | None, state: Health) -> Explanation:
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
        "dead": (("recover it now", "holdfast scan --fix"),),
        "hung": (("stop it", f"holdfast jobs cancel {job.id} --fence {job.fence}"),),
    }
    return Explanation(text + state.sentence, () if job.cancel_requested else ways.get(state.word, ()))


def reason(job: Job) -> str:
    """Return the first line of why the last attempt did not succeed, and why the job stopped."""
    return told(replace(job, error=first_line(job.error))) or "no reason was recorded"
