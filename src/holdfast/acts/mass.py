"""Acts of people on all jobs that a selection chooses: list them, let a person decide, act page by page.

The list is compared with the rows when the act is carried out: a job that has moved on meanwhile is left alone. So an
act that was interrupted can be repeated, and the repetition finds only what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, Literal, get_args

import msgspec
from msgspec.structs import replace

from holdfast import insight
from holdfast.bulk import Acted, Named, delete_all, move_all
from holdfast.core import acts
from holdfast.core.machine import ENDED, LIVE, State
from holdfast.core.records import DamagedJob, Job, Seen
from holdfast.core.replay import STEPS_MAX
from holdfast.core.text import check_storable
from holdfast.core.verdict import Verdict
from holdfast.errors import Refused, UsageError
from holdfast.insight import Selection
from holdfast.stores.protocol import Store
from holdfast.tasks import WALL_MAX, check_name

ActName = Literal["revive", "retry", "cancel", "delete", "approve", "fail", "hold", "move", "set"]
ACTS: tuple[str, ...] = get_args(ActName)
SAMPLE = 10  # jobs that a dry run shows
PRIORITY_MAX = 1_000_000
PER_S_MIN, PER_S_MAX = 0.01, 10_000.0
_REVIVABLE = (State.HELD, State.DEAD, State.CANCELLED)

# The states that an act may choose jobs from, and those that it does choose from unless told. `retry` brings back only
# dead jobs unless told: a held one waits for an answer, and a person or a program has cancelled a cancelled one.
_STATES: Mapping[str, tuple[tuple[State, ...], tuple[State, ...]]] = {
    "revive": ((State.DEAD,), (State.DEAD,)),
    "retry": (_REVIVABLE, (State.DEAD,)),
    "cancel": (tuple(LIVE), tuple(LIVE)),
    "delete": (tuple(state for state in State if state is not State.RUNNING), tuple(ENDED)),
    "approve": ((State.HELD,), (State.HELD,)),
    "fail": ((State.HELD,), (State.HELD,)),
    "hold": ((State.READY, State.WAITING), (State.READY, State.WAITING)),
    "move": ((State.READY,), (State.READY,)),
    "set": ((State.READY,), (State.READY,)),
}
_PARTS = {"scheduled": State.READY, "retrying": State.READY}  # of a state, as people call them


class MassAct(msgspec.Struct, frozen=True, kw_only=True):
    """An act, and what a person says of it."""

    name: ActName
    actor: str
    note: str | None = None
    queue: str | None = None  # where `move` moves
    priority: int | None = None  # this and the next: what `set` sets
    run_at: float | None = None  # wall time
    per_s: float | None = None  # how many jobs that `revive` and `retry` bring back become due each second; None: all

    def check(self) -> None:
        """Raise `UsageError` for an act that cannot be carried out on any job."""
        check_storable(by=self.actor, note=self.note)
        if self.name == "move":
            if self.queue is None:
                raise UsageError("name the queue to move jobs to")
            check_name("queue", self.queue)
        if self.name == "set" and self.priority is None and self.run_at is None:
            raise UsageError("say what to set: a priority, or when to run")
        if self.priority is not None and abs(self.priority) > PRIORITY_MAX:
            raise UsageError(f"the priority must be from -{PRIORITY_MAX} to {PRIORITY_MAX}")
        if self.per_s is not None and self.name not in ("revive", "retry"):
            raise UsageError("a rate is only for revive and retry")
        if self.per_s is not None and not PER_S_MIN <= self.per_s <= PER_S_MAX:
            raise UsageError(f"the rate must be from {PER_S_MIN:g} to {PER_S_MAX:g} jobs a second")
        if self.run_at is not None and not 0 <= self.run_at <= WALL_MAX:
            raise UsageError("the time to run must lie between the years 1970 and 9999")


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that an act is about, as they are now, before anything is changed."""

    jobs: list[Seen] = []
    sample: list[Job] = []  # the first of them
    tasks: dict[str, int] = {}  # how many of them each task has, the most frequent first
    left_alone: dict[str, str] = {}  # jobs that need an act of their own, with the reason


def list_for(store: Store, act: MassAct, chosen: Selection) -> Listing:
    """List the jobs that the act would be carried out on. Raises `UsageError` for states that the act cannot change."""
    act.check()
    chosen.check()
    jobs: list[Seen] = []
    sample: list[Job] = []
    left_alone: dict[str, str] = {}
    tasks: Counter[str] = Counter()
    for job in insight.selected(store, with_states(act.name, chosen)):
        if (why := needs_own_act(act.name, job)) is not None:
            left_alone[job.id] = why
            continue
        jobs.append(job.seen)
        tasks[job.task] += 1
        if len(sample) < SAMPLE:
            sample.append(job)
    if act.name in ("approve", "fail") and not chosen.of_crashes:
        for job in insight.asking_jobs(store, chosen):
            left_alone[job.id] = f'it asks "{insight.first_line(job.question)}"'
    return Listing(jobs=jobs, sample=sample, tasks=dict(tasks.most_common()), left_alone=left_alone)


def with_states(act: ActName, chosen: Selection) -> Selection:
    """Return the selection with the states of the act, if it names none."""
    possible, usual = _STATES[act]
    for word in chosen.states:
        if State(_PARTS.get(word, word)) not in possible:
            raise UsageError(f"{word!r} jobs cannot be chosen for {act}: only {', '.join(possible)}")
    return chosen if chosen.states else replace(chosen, states=tuple(state.value for state in usual))


def needs_own_act(act: ActName, job: Job) -> str | None:
    """Say why a person must decide about this job alone; None if the act may be one on many."""
    if act not in ("revive", "retry", "approve", "fail"):
        return None
    if job.open_step is not None:
        return f"its step {insight.first_line(job.open_step)!r} may have happened and must not be repeated"
    if isinstance(job, DamagedJob):
        return f"its row was damaged by another program: {job.damage}"
    return None


def carry_out(store: Store, act: MassAct, jobs: list[Named]) -> Iterator[list[Acted]]:
    """Act on these jobs page by page, and yield what became of each. Those that moved on meanwhile are refused."""
    if act.name == "delete":
        return delete_all(store, jobs, lambda job: deletable(store, job), act.actor, act.note)
    places = count()
    return move_all(store, jobs, lambda job: decided(store, act, job, next(places) / (act.per_s or float("inf"))))


def decided(store: Store, act: MassAct, job: Job, after_s: float = 0.0) -> Verdict:
    """Decide what becomes of one job; one that comes back is due after `after_s`. Raises `Refused` where there is no
    such act on it."""
    said: dict[str, Any] = {"actor": act.actor, "reason": act.note}
    match act.name:
        case "cancel":
            return acts.cancel(job, **said)
        case "hold":
            return acts.hold(job, **said)
        case "move" | "set":
            return acts.reschedule(job, **said, queue=act.queue, priority=act.priority, run_at=act.run_at)
        case "approve":
            return acts.resolve(job, "retry", store.now().wall, **said)
        case "fail":
            return acts.resolve(job, "fail", store.now().wall, **said)
        case _:
            return revival(store, job, act.actor, act.note, after_s=after_s)


def revival(
    store: Store, job: Job, actor: str, note: str | None, *, repeat_step: bool = False, after_s: float = 0.0
) -> Verdict:
    """Return the act that brings a job back, due after `after_s`."""
    steps = store.steps(job.id, limit=STEPS_MAX) if job.open_step is not None else []
    return acts.revive(job, store.now().wall + after_s, actor=actor, reason=note, repeat_step=repeat_step, steps=steps)


def deletable(store: Store, job: Job) -> Seen:
    """Return the job as seen, if it may be deleted. Raises `Refused`."""
    if job.state is State.RUNNING:
        raise Refused(f"job {job.id} is running with fence {job.fence}; cancel it first")
    parent = store.get(job.parent) if job.parent is not None else None
    if parent is not None and job.id in insight.awaited_jobs(parent):
        raise Refused(
            f"workflow {parent.id} waits for job {job.id} and would wait for ever; cancel the job first, then the "
            f"workflow is notified: holdfast jobs cancel {job.id}"
        )
    return job.seen


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an act on many jobs."""

    act: ActName
    dry_run: bool
    count: int  # jobs that it was about
    sample: list[str]  # ids of the first of them
    done: int = 0
    refused: dict[str, str] = {}  # jobs that moved on meanwhile, with the reason
    left_alone: dict[str, str] = {}  # jobs that need an act of their own, with the reason


def act_on_selected(store: Store, act: MassAct, chosen: Selection, *, dry_run: bool = False) -> Outcome:
    """List the jobs and act on them, without a question in between."""
    chosen = insight.with_full_task(store, chosen)
    listing = list_for(store, act, chosen)
    done, refused = 0, dict[str, str]()
    if not dry_run:
        for page in carry_out(store, act, [*listing.jobs]):
            done += sum(acted.error is None for acted in page)
            refused |= {acted.job_id: str(acted.error) for acted in page if acted.error is not None}
        store.wake()
    return Outcome(
        act=act.name,
        dry_run=dry_run,
        count=len(listing.jobs),
        sample=[job.id for job in listing.sample],
        done=done,
        refused=refused,
        left_alone=listing.left_alone,
    )
