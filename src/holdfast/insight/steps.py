"""The steps of a workflow, as people and programs are shown them: in order, as a tree, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from holdfast.core.durations import at_most, duration, iso
from holdfast.core.machine import ENDED, State
from holdfast.core.records import Event, Filter, Job, Moment, Step, StepKind
from holdfast.core.replay import (
    ASKED_KINDS,
    STEPS_MAX,
    answer_to,
    asked_about,
    asked_since,
    is_answered,
    is_paused,
    needs_undo,
    to_undo,
)
from holdfast.core.row_text import Awaited, texts_of
from holdfast.insight.deaths import death_view, deaths
from holdfast.insight.format import first_line, parsed
from holdfast.stores.protocol import Store

_EVENTS = 100_000  # of one job
_FEW_EVENTS = 50  # of one job: read with those of other jobs
_ALIKE = 1000  # steps of another one, where only their number is wanted

# ----------------------------------------------------------------------------------------------- views


def steps_of(store: Store, job: Job, *, aside: bool = False, asks: bool = False) -> list[Step]:
    """Return what a workflow has on record, in its order; with `aside` also what was set aside.

    asks: look also for the steps of other jobs: a worker over the HTTP API may have recorded some.
    """
    return store.steps(job.id, limit=STEPS_MAX, aside=aside) if job.workflow or asks else []


def step_view(step: Step, *, arguments: bool = False) -> dict[str, Any]:
    """Show a step as `jobs show` does. The arguments of its undo are shown by size, unless they are asked for: they may
    hold secrets."""
    size = None if step.arguments is None else len(step.arguments.encode())
    return {
        "name": step.name,
        "state": step.state,
        "attempt": step.attempt,
        "tries": step.tries,
        "started_at": iso(step.started_at),
        "ended_at": iso(step.ended_at),
        "result": result_of(step),
        "error": step.error,
        "arguments_bytes": size,
        **({"arguments": parsed(step.arguments)} if arguments else {}),
    }


def named(step: Step) -> str:
    """Name a step by its name and its path, which others of that name do not have."""
    return f"{first_line(step.name)} ({step.path})"


def state_of(step: Step) -> str:
    """Return the state of a step. `answered`: a person said what it returned, and no worker has read that yet.
    `failed`: its last try raised, and the workflow did not continue after it. A sleep is `recorded` once it has
    begun."""
    if step.kind == "sleep":
        return "recorded"
    if is_answered(step):
        return "answered"
    return "failed" if step.state == "started" and step.error is not None and not is_paused(step) else step.state


def is_at(place: Step | None, step: Step) -> bool:
    """Say whether both are the same step of a workflow."""
    return place is not None and (place.aside, place.position) == (step.aside, step.position)


def with_failures(job: Job, steps: Sequence[Step], events: Sequence[Event]) -> list[Step]:
    """Return the steps with what they raised when the workflow last failed. That is in the journal and not on record:
    the next attempt of the workflow runs them again. Behind them come those that have no record at all."""
    failed = next((event for event in reversed(events) if event.detail.keys() & {"steps", "from_step"}), None)
    runs_again = failed is not None and job.state is State.RUNNING and job.fence > failed.fence
    if failed is None or job.state is State.DONE or (runs_again and not job.rolling_back):
        return list(steps)
    reported: dict[str, dict[str, Any]] = {each["path"]: each for each in failed.detail.get("steps", ())}
    shown = []
    for step in steps:
        said = None if step.aside else reported.pop(step.path, None)
        again = step.state == "started" and step.fence > failed.fence
        if said is not None and step.error is None and step.state != "recorded" and not again:
            step = replace(step, error=said["error"], tries=said["tries"])
        shown.append(step)
    last = max((step.position for step in steps), default=0)
    found = enumerate(reported.values(), last + 1)
    return shown + [Step(position=place, state="started", fence=failed.fence, **said) for place, said in found]


def result_of(step: Step) -> Any:
    """Return the value that the step returned, with instants as text; None while it waits and when it has failed."""
    if (step.state == "started" and not is_answered(step)) or step.error_kind is not None:
        return None
    value = parsed(step.result)
    return iso(value) if step.kind in ("sleep", "now") and isinstance(value, int | float) else value


def warnings_of(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return what is wrong with the code of a workflow, as far as its runs have shown it."""
    return [{"at": iso(event.at), **event.detail} for event in events if event.kind == "warning"]


def in_words(warning: Mapping[str, Any]) -> str:
    """Say what a warning is about, and what to do."""
    return (
        f"{warning['file']}:{warning['line']} caught the signal that parks this workflow; it still waits, but "
        "what follows runs again. Let BaseException pass (asyncio.CancelledError in an async workflow)"
    )


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
        for part in (step.path or f"?{step.position}").split("."):
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


# -------------------------------------------------------------------------------------------- how far


@dataclass(frozen=True, slots=True)
class WorkflowProgress:
    """The progress of a workflow: step `at` of `known`. While it rolls back: `undone` of `to_undo`."""

    at: int
    known: int
    undone: int = 0
    to_undo: int = 0


def progress_of(store: Store, job: Job, steps: Sequence[Step]) -> WorkflowProgress:
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
    return WorkflowProgress(recorded if ended else min(recorded + 1, known), known, undone, to_undo)


def ahead(job: Job, steps: Sequence[Step]) -> dict[str, str]:
    """Say, by path, what is still to come for steps that a person has to do with: answers, runs and undos."""
    words: dict[str, str] = {}
    if job.rolling_back and job.state is not State.ROLLED_BACK:
        words = {step.path: "not undone" if job.state in ENDED else "to be undone" for step in to_undo(steps)}
        if job.state is State.HELD and words:
            words[next(iter(words))] = "its undo is next"
    elif job.state is State.HELD and job.open_step is not None:
        again = [step for step in steps if step.kind == "step" and step.state == "started" and not step.aside]
        words = {step.path: "to be run again" for step in again if step.repeatable or is_paused(step)}
        for place, step in enumerate(asked_about(job, steps)):
            words[step.path] = "asked about later" if place else "asked about now"
    return words


# -------------------------------------------------------------------------------------- what it waits for


def failed_tries(job: Job) -> list[Awaited]:
    """Return the steps whose next try a waiting workflow waits for."""
    return [each for each in job.awaits or () if each.kind == "step"]


def between_tries(job: Job, now: Moment, steps: Sequence[Step] = ()) -> str | None:
    """Say which step failed and when it is tried again, if the workflow waits for nothing else. With `steps` also what
    the step raised."""
    failed = failed_tries(job)
    if not failed or job.wake_at is None or len(failed) < len(job.awaits or ()):
        return None
    raised = {step.name: first_line(step.error) for step in steps if is_paused(step) and not step.aside}
    words = [
        f"step {first_line(each.name)} failed{f' ({raised[each.name]})' if each.name in raised else ''}, tried "
        f"{each.tries} of {each.tries_max} times"
        for each in failed
    ]
    left_s = job.wake_at - now.wall
    when = f"next try in {duration(left_s)}" if left_s > 0 else f"the next try has been due for {duration(-left_s)}"
    return f"{', '.join(words)}; {when}"


def awaited(job: Job, now: Moment) -> list[str]:
    """Say what a waiting workflow waits for, each thing in a few words; at the end, until when."""
    words = awaited_things(job)
    return [*words, *awaited_time(job, now, alone=not words)]


def awaited_things(job: Job) -> list[str]:
    """Say what a waiting workflow waits for beside its time, each thing in a few words."""
    words = [f'an answer to "{job.question}"'] if job.question is not None else []
    kinds = {"job": "job", "after": "the success of job", "step": "the next try of step"}
    others = (
        each for each in job.awaits or () if each.kind != "unless" and (job.question is None or each.question is None)
    )
    return words + [f"{kinds.get(each.kind, 'the signal')} {each.name}" for each in others]


def awaited_time(job: Job, now: Moment, *, alone: bool) -> list[str]:
    """Say until when a workflow waits, if there is an end. `alone`: it waits for nothing else."""
    if job.wake_at is None:
        return []
    left_s = job.wake_at - now.wall
    if left_s > 0:
        return [f"its time, in {duration(left_s)}" if alone else at_most(left_s)]
    came = f"{duration(-left_s)} ago"
    return [f"its time, which came {came}" if alone else f"whose time was over {came}"]


def awaited_jobs(workflow: Job) -> list[str]:
    """Return the ids of the jobs whose end a workflow waits for."""
    return [each.name for each in workflow.awaits or () if each.kind == "job"]


def unrecorded(job: Job, steps: Sequence[Step]) -> list[Step]:
    """Return what a workflow is in, or waits for, without a record of it, as if there were one: it has begun.

    The place of a question and of a reported step among the others is known; other things that it waits for have no
    path.
    """
    known = {step.path for step in steps if not step.aside}
    begun = {(step.kind, step.name) for step in steps if not step.aside and step.state == "started"}
    found: list[tuple[StepKind, str, str]] = []
    if job.state is State.RUNNING:
        found.extend(("step", step.path, step.name) for step in job.in_steps or ())
    for each in job.awaits or () if job.state is State.WAITING else ():
        if each.kind == "job":
            child = next((step for step in steps if step.kind == "start" and parsed(step.result) == each.name), None)
            found.append(("result", "", each.name if child is None else child.name))
        elif job.question is not None and each.question is not None:
            first = not any(kind == "approve" for kind, _, _ in found)  # the row has the words of one question
            found.append(("approve", each.question, job.question if first else "(another question)"))
        elif each.kind == "signal" and ("wait", each.name) not in begun:
            found.append(("wait", "", each.name))
    last = max((step.position for step in steps), default=0)
    known_by = {"state": "started", "attempt": job.attempt, "fence": job.fence}
    return [
        Step(position=last + place, path=path, kind=kind, name=name, **known_by)  # type: ignore[arg-type]
        for place, (kind, path, name) in enumerate(found, 1)
        if path not in known
    ]


def awaits_view(job: Job) -> dict[str, Any] | None:
    """Show what a waiting workflow waits for, as plain data."""
    if job.state is not State.WAITING:
        return None
    tries = [{"name": each.name, "tries": each.tries, "tries_max": each.tries_max} for each in failed_tries(job)]
    return {
        "until": iso(job.wake_at),
        "signals": [each.name for each in job.awaits or () if each.kind == "signal"],
        "jobs": awaited_jobs(job),
        "tries": tries,
        "question": job.question,
    }


def asking(store: Store, where: Filter) -> list[Job]:
    """Return the workflows that ask a person something."""
    return store.find(replace(where, states=(State.WAITING,), asking=True))


def newest(jobs: Sequence[Job], limit: int) -> list[Job]:
    """Return these jobs, newest first, at most `limit`."""
    return sorted(jobs, key=lambda job: (job.created_at, job.id), reverse=True)[:limit]


def asked(job: Job, since: float) -> dict[str, Any]:
    """Show what a person is asked of a job, about a step or what its code wants to know, and since when."""
    return {"open_step": job.open_step, "question": job.question, "since": iso(since)}


def since_each(store: Store, jobs: Sequence[Job]) -> dict[str, float]:
    """Return since when each of these jobs is held, asks a person or has ended; of any other, when it was added."""
    waiting = [job.id for job in jobs if job.ended_at is None and (job.state is State.HELD or job.question is not None)]
    events = store.journals(waiting, _FEW_EVENTS + 1) if waiting else {}
    return {job.id: _since(store, job, events.get(job.id, [])) for job in jobs}


def _since(store: Store, job: Job, events: Sequence[Event]) -> float:
    if job.ended_at is not None:
        return job.ended_at
    is_held = job.state is State.HELD
    if len(events) > _FEW_EVENTS:  # the last ones count
        events = store.journal(job.id, kinds=("held",) if is_held else ASKED_KINDS, limit=_EVENTS)
    if is_held:
        return next((event.at for event in reversed(events) if event.kind == "held"), job.created_at)
    if job.question is not None:
        asked_at = asked_since(answer_to(job.awaits or ()), [each for each in events if each.kind in ASKED_KINDS])
        return asked_at or job.claimed_at or job.created_at  # a worker of an older version does not journal it
    return job.created_at


def workflow_view(
    store: Store, job: Job, events: Sequence[Event], names: Mapping[str, str], *, arguments: bool = False
) -> dict[str, Any]:
    """Show what `workflows show` knows beside what `jobs show` does."""
    steps = steps_of(store, job, aside=True)
    far = progress_of(store, job, steps)
    in_steps = job.in_steps if job.state is State.RUNNING else None
    lost = [
        (one.step, death_view(one, names.get(one.event.worker or "", one.event.worker)))
        for one in deaths(steps, events)
    ]
    shown, coming = [], ahead(job, steps)
    for step in with_failures(job, steps, events):
        more = {"path": step.path, "kind": step.kind, "has_undo": step.has_undo, "repeatable": step.repeatable}
        more |= {"retry_at": iso(step.retry_at) if is_paused(step) else None}
        more |= {"undone_at": iso(step.undone_at), "deaths": [view for place, view in lost if is_at(place, step)]}
        more["ahead"] = None if step.aside else coming.get(step.path)
        shown.append((step, {**step_view(step, arguments=arguments), **more}))
    return {
        "at_step": far.at,
        "known_steps": far.known,
        "rolling_back": job.rolling_back,
        "open_step": job.open_step,
        "in_steps": None if in_steps is None else texts_of(in_steps),
        "parent": job.parent,
        "waits_for": awaits_view(job),
        "deaths": [view for _, view in lost],
        "warnings": warnings_of(events),
        "steps": [view for step, view in shown if not step.aside],
        "set_aside": [{**view, "fence": step.aside} for step, view in shown if step.aside],
    }
