"""Print the steps of a workflow as a tree: durations, results, and the steps at which workers died."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import click

from holdfast import insight
from holdfast.cli.output import Column, bold, clean, columns, dim, fitted, one_line, paragraph, show_table
from holdfast.core.machine import ENDED, State
from holdfast.core.records import Event, Job, Moment, Step
from holdfast.core.replay import asked_since, is_paused
from holdfast.core.row_text import ANSWER

_ENDS = 100  # lines that are shown of the beginning and of the end of a very long workflow
_NAME_MAX = 40
_RESULT_MAX = 400  # characters; all of it is in the JSON
_AT_ONCE = ("sleep", "now", "random", "uuid", "patch", "gather")  # what it takes to record these says nothing


@dataclass(frozen=True, slots=True)
class _StepRow:
    path: str
    name: str
    depth: int
    state: str = ""
    took: str = ""
    attempt: str = ""
    result: str = ""
    below: tuple[str, ...] = ()


_COLUMNS = (
    Column("", lambda row: row.path, keep=True),
    Column("STEP", lambda row: fitted("  " * row.depth + clean(row.name), _NAME_MAX), least=16),
    Column("STATE", lambda row: row.state, keep=True, coloured=True),
    Column("TOOK", lambda row: row.took, right=True, keep=True),
    Column("ATTEMPT", lambda row: row.attempt, right=True, keep=True),
    Column("RESULT", lambda row: row.result, least=16),
)


@dataclass(frozen=True, slots=True)
class ShownWorkflow:
    """A workflow, and all that is known of it."""

    job: Job
    steps: Sequence[Step]  # also those that were set aside
    far: insight.WorkflowProgress
    events: Sequence[Event]
    lost: Sequence[insight.StepDeath]
    now: Moment
    names: insight.Names
    ahead: Mapping[str, str]  # what is to come for steps, by path
    step_arguments: bool = False  # what undos are called with is asked for


def show_steps(flow: ShownWorkflow) -> None:
    """Print what a workflow has on record, and what it is in or waits for, on stdout."""
    live = [step for step in insight.with_failures(flow.job, flow.steps, flow.events) if not step.aside]
    failed = sum(insight.state_of(step) == "failed" for step in live)
    click.echo()
    click.echo(bold("Steps") + dim(f"  ({_how_far(flow.job, flow.far)}{f', {failed} failed' if failed else ''})"))
    tree = insight.as_tree([*live, *insight.unrecorded(flow.job, live)])
    _print([_of_branch(branch, flow) for branch in tree], _behind(flow, 0))
    for fence in sorted({step.aside for step in flow.steps if step.aside}):
        click.echo()
        click.echo(bold("Set aside") + dim(f"  (at fence {fence}; run again from there)"))
        _print([_of_step(step, 0, flow) for step in flow.steps if step.aside == fence], _behind(flow, fence))


def _behind(flow: ShownWorkflow, aside: int) -> list[str]:
    return [_died(death, flow) for death in flow.lost if death.step is None and death.aside == aside]


def _how_far(job: Job, far: insight.WorkflowProgress) -> str:
    undos = f"{far.undone} of {far.to_undo} undone"
    if job.state in ENDED:
        return f"{insight.counted(far.at, 'step')} on record" + (f", {undos}" if far.undone else "")
    if job.rolling_back:
        return f"rolling back: {undos}"
    return f"step {far.at} of {far.known} known"


def _of_branch(branch: insight.Branch, flow: ShownWorkflow) -> _StepRow:
    if branch.step is None:
        return _StepRow(branch.path, branch.label, branch.depth)
    return _of_step(branch.step, branch.depth, flow)


def _of_step(step: Step, depth: int, flow: ShownWorkflow) -> _StepRow:
    attempt = str(step.attempt) if step.attempt else "copied"
    below = [_died(death, flow) for death in flow.lost if insight.is_at(death.step, step)]
    if _waits(step, flow):
        below.append(_awaits(step, flow))
    if flow.step_arguments and step.arguments is not None:
        below.append(f"called with {one_line(insight.parsed(step.arguments))}")
    if step.error is not None:
        below.append(f"raised {step.error}")
    if step.tries > 1 or is_paused(step):
        below.append(_tried(step, flow))
    if not step.aside and step.path in flow.ahead:
        below.append(flow.ahead[step.path])
    called = step.name if step.kind == "step" or step.name == step.kind else f"{step.kind} {step.name}"
    state = "waiting" if _waits(step, flow) else insight.state_of(step)
    took, result = _took(step, flow), _returned(step, flow)
    return _StepRow(clean(step.path), called, depth, state, took, attempt, result, tuple(below))


def _tried(step: Step, flow: ShownWorkflow) -> str:
    known = [
        each.tries_max for each in insight.failed_tries(flow.job) if (each.name, each.tries) == (step.name, step.tries)
    ]
    if is_paused(step) and known:
        return f"tried {step.tries} of {known[0]} times"
    return "tried once" if step.tries == 1 else f"tried {step.tries} times"


# ------------------------------------------------------------------------------------------------ cells


def _waits(step: Step, flow: ShownWorkflow) -> bool:
    if flow.job.state is not State.WAITING or step.aside:
        return False
    if step.kind == "sleep" or is_paused(step):
        return (_until(step) or 0.0) > flow.now.wall
    return step.kind in insight.WAITS and step.state == "started"


def _until(step: Step) -> float | None:
    """Return the instant of the next try, or the one that stands where a result will while a step waits."""
    value = step.retry_at if is_paused(step) else insight.parsed(step.result)
    return float(value) if isinstance(value, int | float) else None


def _took(step: Step, flow: ShownWorkflow) -> str:
    """Say how long the run took that was recorded; with … how long it has run, or had run when it was cut off."""
    began = step.started_at
    if step.kind == "approve" and (asked_at := _asked_at(step, flow)) is not None:
        began = asked_at  # without a time limit it is on record only since it was answered
    if began is None or step.kind in _AT_ONCE:
        return "-"
    lost = [death.event.at for death in flow.lost if insight.is_at(death.step, step) and death.inside]
    cut_off = [at for at in lost if began <= at <= (step.ended_at or at)]
    if step.kind in insight.WAITS:
        came = [event.at for event in flow.events if event.kind == "signalled" and _is_for(step, event)]
        ends = [at for at in came if began <= at <= (step.ended_at or 0.0)]
        if _waits(step, flow):
            return f"{insight.duration(flow.now.wall - began)}…"
        return insight.duration(ends[0] - began) if ends else "-"
    if step.ended_at is None:
        runs = flow.job.state is State.RUNNING and step.fence == flow.job.fence and step.state == "started"
        until = flow.now.wall if runs else min(cut_off, default=None)
        return "-" if until is None else f"{insight.duration(until - began)}…"
    if cut_off:  # a person said later that it happened
        return f"{insight.duration(min(cut_off) - began)}…"
    return insight.duration(step.ended_at - began)


def _asked_at(step: Step, flow: ShownWorkflow) -> float | None:
    """Return since when a question is open, or was when its answer came."""
    events = flow.events
    if step.ended_at is not None:
        known = [event for event in events if event.at <= step.ended_at]
        answers = [place for place, event in enumerate(known) if event.kind == "signalled" and _is_for(step, event)]
        events = known[: answers[-1]] if answers else known
    return asked_since(f"{ANSWER}{step.path}", events)


def _is_for(step: Step, event: Event) -> bool:
    return event.detail.get("name") == (f"{ANSWER}{step.path}" if step.kind == "approve" else step.name)


def _returned(step: Step, flow: ShownWorkflow) -> str:
    unknown = step.ended_at is None and (step.state == "started" or step.result is None)
    if unknown or step.error is not None or _waits(step, flow):
        return ""
    value = insight.result_of(step)
    if step.kind == "sleep":
        return f"until {str(value).replace('T', ' ')}"
    if step.kind == "approve" and isinstance(value, bool):
        return "yes" if value else "no"
    text = one_line(value)
    return text if len(text) <= _RESULT_MAX else f"{text[:_RESULT_MAX]}…"


def _awaits(step: Step, flow: ShownWorkflow) -> str:
    until = _until(step)
    at_most = "for as long as it takes"
    if until is not None:
        at_most = f"until {insight.moment(until)}, {insight.duration(until - flow.now.wall)} more"
    if is_paused(step) and until is not None:
        return f"tried again at {insight.moment(until)}, in {insight.duration(until - flow.now.wall)}"
    if step.kind == "sleep":
        return f"waits {at_most}"
    things = {"approve": "a person's answer", "wait": "this signal", "result": f"the end of {_child(flow)}"}
    return f"waits for {things[step.kind]}, {at_most}"


def _child(flow: ShownWorkflow) -> str:
    jobs = insight.awaited_jobs(flow.job)
    return f"job {jobs[0]}" if len(jobs) == 1 else "its job"


def _died(death: insight.StepDeath, flow: ShownWorkflow) -> str:
    event, detail = death.event, death.event.detail
    worker = flow.names.get(event.worker or "", event.worker or "unknown")
    where = "in it" if death.inside else "in it or before it"
    if death.undoing:
        where = "undoing it"
    elif death.step is None:
        where = death.place
    attempt = f", attempt {detail['attempt']}" if "attempt" in detail else ""
    who = f"its process on {worker}" if detail.get("isolated") else f"worker {worker}"
    lived = any(each.kind == "stale_report" and each.fence == event.fence for each in flow.events)
    fate = "was taken for dead" if lived else "died"
    return f"{who} {fate} {where}{attempt}, {insight.ago(event.at, flow.now)}: {detail.get('cause', 'unknown')}"


# ------------------------------------------------------------------------------------------------ lines


def _print(rows: Sequence[_StepRow], behind: Sequence[str] = ()) -> None:
    if not rows and not behind:
        click.echo(dim("  none"))
    margin = max((4 + columns(row.path) for row in rows), default=2)
    if (more := len(rows) - 2 * _ENDS) > 0:
        last = rows[_ENDS - 1]
        last = replace(last, below=(*last.below, f"… {more:,} more; all of them with --json"))
        rows = [*rows[: _ENDS - 1], last, *rows[-_ENDS:]]

    def tell(row: _StepRow) -> None:
        _tell_below(row.below, margin + 2 * row.depth + 2)

    if rows:
        show_table(_COLUMNS, rows, "  ", tell)
    _tell_below(behind, margin)


def _tell_below(texts: Sequence[str], margin: int) -> None:
    for text in texts:
        paragraph(text, " " * margin, " " * margin)
