"""The steps of a workflow, as people and programs are shown them: in order, as a tree, with who died where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from holdfast.core.flow import APPROVAL, needs_undo
from holdfast.core.machine import ENDED, State
from holdfast.core.records import Event, Filter, Job, Moment, Step
from holdfast.core.times import iso
from holdfast.insight.words import duration, parsed
from holdfast.stores.protocol import Store

STEPS_MAX = 1_000_000  # of one workflow
_ALIKE = 1000  # steps of another one, where only their number is wanted

# ----------------------------------------------------------------------------------------------- views


def steps_of(store: Store, job: Job, *, aside: bool = False) -> list[Step]:
    """Return what a workflow has on record, in its order; with `aside` also what was set aside."""
    return store.steps(job.id, limit=STEPS_MAX, aside=aside) if job.workflow else []


def step_view(step: Step) -> dict[str, Any]:
    """Show a step as `jobs show` does."""
    return {
        "name": step.name,
        "state": step.state,
        "attempt": step.attempt,
        "started_at": iso(step.started_at),
        "ended_at": iso(step.ended_at),
        "result": result_of(step),
        "error": step.error,
    }


def result_of(step: Step) -> Any:
    """Return what a step returned. What stands there while it waits is no result, and a sleep's is an instant."""
    if step.state == "started":
        return None
    value = parsed(step.result)
    return iso(value) if step.kind == "sleep" and isinstance(value, int | float) else value


# ------------------------------------------------------------------------------------------- as a tree


@dataclass(frozen=True, slots=True)
class Branch:
    """A line of the tree: a step, or the head of lines that run side by side."""

    depth: int
    step: Step | None = None
    label: str = ""
    path: str = ""


@dataclass(slots=True)
class _Node:
    path: str = ""
    step: Step | None = None
    first: float = float("inf")  # the lowest position in it
    below: dict[str, _Node] = field(default_factory=dict)


def as_tree(steps: Sequence[Step]) -> list[Branch]:
    """Lay live steps out by their paths, in the order in which they began; what runs side by side is nested."""
    root = _Node()
    for step in steps:
        node = root
        for part in step.path.split("."):
            node = node.below.setdefault(part, _Node(f"{node.path}.{part}".lstrip(".")))
            node.first = min(node.first, step.position)
        node.step = step
    return list(_calls(root, 0))


def _calls(scope: _Node, depth: int) -> Iterator[Branch]:
    for part, node in sorted(scope.below.items(), key=lambda item: item[1].first):
        if part.startswith("~"):
            yield Branch(depth, label=f"beside, task {part.removeprefix('~')}")
            yield from _calls(node, depth + 1)
            continue
        if node.step is not None:
            yield Branch(depth, node.step)
        elif node.below:
            yield Branch(depth, label="side by side", path=node.path)
        for number, branch in sorted(node.below.items(), key=lambda item: (len(item[0]), item[0])):
            yield Branch(depth + 1, label=f"branch {number}")
            yield from _calls(branch, depth + 2)


# --------------------------------------------------------------------------------------- who died where


@dataclass(frozen=True, slots=True)
class Death:
    """An attempt that lost its worker, and the step at which that was; `inside`: it was begun and not recorded.

    `step` None: behind everything that is recorded.
    """

    event: Event
    step: Step | None
    inside: bool = False
    undoing: bool = False


def deaths(steps: Sequence[Step], events: Sequence[Event]) -> list[Death]:
    """Find the step of each death.

    One that must not be repeated is named in the autopsy; another that was begun is known by the fence of the attempt
    that wrote it down. Of a plain step nothing is known until it is recorded: then it is the first that began later.
    """
    return [death for event in events if event.kind == "zombie" for death in _places(event, steps)]


def _places(event: Event, steps: Sequence[Step]) -> list[Death]:
    at = event.at
    if event.detail.get("rolling_back"):
        left = [step for step in steps if needs_undo(step) and not step.aside]
        left += [step for step in steps if step.state == "undone" and (step.ended_at or at) >= at]
        return [Death(event, max(left, key=lambda step: step.position, default=None), undoing=True)]
    begun = [step for step in steps if step.started_at is not None and step.started_at <= at]
    named = [step for step in begun if step.name == event.detail.get("step")]
    if named:
        return [Death(event, named[-1], inside=True)]
    same = [step for step in begun if step.fence == event.fence and step.state != "undone"]
    opened = [step for step in same if step.ended_at is None or step.ended_at > at]
    if opened:
        return [Death(event, step, inside=True) for step in opened]
    later = [step for step in steps if (step.started_at or 0.0) >= at and step.fence != event.fence]
    return [Death(event, min(later, key=lambda step: (step.started_at or at, step.position), default=None))]


# -------------------------------------------------------------------------------------------- how far


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a workflow is: at step `at` of `known`. While it rolls back: `undone` of `to_undo`."""

    at: int
    known: int
    undone: int = 0
    to_undo: int = 0


def progress_of(store: Store, job: Job, steps: Sequence[Step]) -> Progress:
    """Say how far the workflow is. Known is what it has begun, what it had before it was set back, and as many steps as
    the last one of its kind that was done: code may branch, so it is a guess."""
    live = [step for step in steps if not step.aside]
    recorded = sum(step.state != "started" for step in live)
    ended = job.state in ENDED
    known = max(len(live), len({step.path for step in steps}), recorded + (not ended))
    if not ended and not job.rolling_back:
        alike = store.find(Filter(task=job.task, states=(State.DONE,), workflow=True, limit=1))
        known = max([known, *(len(store.steps(one.id, limit=_ALIKE)) for one in alike)])
    undone = sum(step.state == "undone" for step in live)
    to_undo = undone + sum(needs_undo(step) for step in live)
    return Progress(recorded if ended else min(recorded + 1, known), known, undone, to_undo)


# -------------------------------------------------------------------------------------- what it waits for


def awaited(job: Job, now: Moment) -> list[str]:
    """Say what a waiting workflow waits for, each thing in a few words."""
    words = [f'an answer to "{job.question}"'] if job.question is not None else []
    for what in job.awaits or ():
        kind, _, name = what.partition(":")
        if kind == "job":
            words.append(f"job {name}")
        elif not (job.question is not None and name.startswith(APPROVAL)):
            words.append(f"the signal {name}")
    if job.wake_at is not None:
        left = max(0.0, job.wake_at - now.wall)
        words.append(f"at most {duration(left)}" if words else f"its time, in {duration(left)}")
    return words


def awaits_view(job: Job) -> dict[str, Any] | None:
    """Show what a waiting workflow waits for, as plain data."""
    if job.state is not State.WAITING:
        return None
    things = [what.partition(":") for what in job.awaits or ()]
    return {
        "until": iso(job.wake_at),
        "signals": [name for kind, _, name in things if kind == "signal"],
        "jobs": [name for kind, _, name in things if kind == "job"],
        "question": job.question,
    }


def with_asking(store: Store, held: Sequence[Job], where: Filter) -> list[Job]:
    """Return these jobs and the workflows that ask a person something, newest first, at most `where.limit`."""
    asking = store.find(replace(where, states=(State.WAITING,), asking=True))
    return sorted([*held, *asking], key=lambda job: (job.created_at, job.id), reverse=True)[: where.limit]


def asked(job: Job) -> dict[str, Any]:
    """Show what a person is asked of a job: about a step, or what its code wants to know."""
    return {"open_step": job.open_step, "question": job.question}


def workflow_view(store: Store, job: Job, events: Sequence[Event], names: Mapping[str, str]) -> dict[str, Any]:
    """Show what `workflows show` knows beside what `jobs show` does."""
    steps = steps_of(store, job, aside=True)
    lost, far = deaths(steps, events), progress_of(store, job, steps)
    shown = []
    for step in steps:
        died = [
            {
                "at": iso(one.event.at),
                "worker": names.get(one.event.worker or "", one.event.worker),
                "inside": one.inside,
                "undoing": one.undoing,
                "cause": one.event.detail.get("cause"),
            }
            for one in lost
            if one.step is step
        ]
        more = {"path": step.path, "kind": step.kind, "has_undo": step.has_undo, "repeatable": step.repeatable}
        shown.append((step, {**step_view(step), **more, "deaths": died}))
    return {
        "at_step": far.at,
        "known_steps": far.known,
        "rolling_back": job.rolling_back,
        "open_step": job.open_step,
        "parent": job.parent,
        "waits_for": awaits_view(job),
        "steps": [view for step, view in shown if not step.aside],
        "set_aside": [{**view, "fence": step.aside} for step, view in shown if step.aside],
    }
