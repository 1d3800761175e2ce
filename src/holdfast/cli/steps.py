"""The steps of a workflow, laid out to be read: a tree with what each took and returned, and who died where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from holdfast import insight
from holdfast.cli.screen import bold, clean, dim, is_terminal, one_line, paragraph, styled, width
from holdfast.core.machine import ENDED, State
from holdfast.core.records import Event, Job, Moment, Step

_ENDS = 100  # lines that are shown of the beginning and of the end of a very long workflow
_NAME_MAX = 40
_RESULT_MAX = 400  # characters; all of it is in the JSON


@dataclass(frozen=True, slots=True)
class _Line:
    cells: tuple[str, str, str, str, str]  # number, name, state, took, attempt
    result: str
    below: tuple[str, ...] = ()
    depth: int = 0


def show_steps(
    job: Job, steps: Sequence[Step], far: insight.Progress, events: Sequence[Event], now: Moment, names: insight.Names
) -> None:
    """Print what a workflow has on record, on stdout."""
    click.echo()
    click.echo(bold("Steps") + dim(f"  ({_how_far(job, far)})"))
    lost = insight.deaths(steps, events)
    live = [step for step in steps if not step.aside]
    lines = [_of_branch(branch, job, lost, now, names) for branch in insight.as_tree(live)]
    behind = [_died(death, now, names) for death in lost if death.step is None]
    if job.state is State.WAITING:
        behind.append(f"waits for {' and '.join(insight.awaited(job, now))}")
    _print(lines, behind)
    for fence in sorted({step.aside for step in steps if step.aside}):
        click.echo()
        click.echo(bold("Set aside") + dim(f"  (at fence {fence}; run again from there)"))
        _print([_of_step(step, 0, job, lost, now, names) for step in steps if step.aside == fence])


def _how_far(job: Job, far: insight.Progress) -> str:
    undos = f"{far.undone} of {far.to_undo} undone"
    if job.state in ENDED:
        return f"{insight.counted(far.at, 'step')} on record" + (f", {undos}" if far.undone else "")
    if job.rolling_back:
        return f"rolling back: {undos}"
    return f"step {far.at} of {far.known} known"


def _of_branch(
    branch: insight.Branch, job: Job, lost: Sequence[insight.Death], now: Moment, names: insight.Names
) -> _Line:
    if branch.step is None:
        return _Line((branch.path, "  " * branch.depth + branch.label, "", "", ""), "", depth=branch.depth)
    return _of_step(branch.step, branch.depth, job, lost, now, names)


def _of_step(
    step: Step, depth: int, job: Job, lost: Sequence[insight.Death], now: Moment, names: insight.Names
) -> _Line:
    name = clean(_called(step))
    if len(name) > _NAME_MAX:
        name = name[: _NAME_MAX - 1] + "…"
    attempt = str(step.attempt) if step.attempt else "copied"
    below = [_died(death, now, names) for death in lost if death.step is step]
    if step.error is not None:
        below.append(f"raised {step.error}")
    cells = (step.path, "  " * depth + name, step.state, _took(step, job, now), attempt)
    return _Line(cells, _returned(step), tuple(below), depth)


def _called(step: Step) -> str:
    return step.name if step.kind == "step" or step.name == step.kind else f"{step.kind} {step.name}"


def _took(step: Step, job: Job, now: Moment) -> str:
    if step.started_at is None or step.kind in ("sleep", "now", "random", "uuid", "patch"):
        return "-"
    if step.state == "started":
        return f"{insight.duration(now.wall - step.started_at)}…" if job.state not in ENDED else "-"
    if step.state == "undone" or step.ended_at is None:  # the end of an undo says nothing about the step
        return "-"
    return insight.duration(step.ended_at - step.started_at)


def _returned(step: Step) -> str:
    if step.state == "started" or (step.error is not None):
        return ""
    value = insight.result_of(step)
    if step.kind == "sleep":
        return f"until {str(value).replace('T', ' ')}"
    text = one_line(value)
    return text if len(text) <= _RESULT_MAX else f"{text[:_RESULT_MAX]}…"


def _died(death: insight.Death, now: Moment, names: insight.Names) -> str:
    event, detail = death.event, death.event.detail
    worker = names.get(event.worker or "", event.worker or "unknown")
    where = "in it"
    if death.undoing:
        where = "undoing it"
    elif death.step is None:
        where = "behind this"
    elif not death.inside:
        where = "before it was recorded"
    attempt = f", attempt {detail['attempt']}" if "attempt" in detail else ""
    cause = str(detail.get("cause", "unknown")).removeprefix(f"worker {worker} was lost: ")
    return f"worker {worker} died {where}{attempt}, {insight.ago(event.at, now)}: {cause}"


# ------------------------------------------------------------------------------------------------ lines


def _print(lines: Sequence[_Line], behind: Sequence[str] = ()) -> None:
    if not lines and not behind:
        click.echo(dim("  none"))
    if not lines:
        for words in behind:
            paragraph(words, "  ", "  ")
        return
    head = _Line(("", "STEP", "STATE", "TOOK", "ATTEMPT"), "RESULT")
    sizes = [max(len(line.cells[place]) for line in (head, *lines)) for place in range(5)]
    click.echo(bold(_text(head, sizes)))
    for line in _ends(lines):
        click.echo(_text(line, sizes) if isinstance(line, _Line) else dim(line))
        if isinstance(line, _Line):
            indent = " " * (4 + sizes[0] + 2 * line.depth + 2)
            for words in line.below:
                paragraph(words, indent, indent)
    indent = " " * (4 + sizes[0])
    for words in behind:
        paragraph(words, indent, indent)


def _ends(lines: Sequence[_Line]) -> Iterator[_Line | str]:
    more = len(lines) - 2 * _ENDS
    if more <= 0:
        yield from lines
        return
    yield from lines[:_ENDS]
    yield f"  … {more:,} more; all of them with --json"
    yield from lines[-_ENDS:]


def _text(line: _Line, sizes: Sequence[int]) -> str:
    number, name, state, took, attempt = line.cells
    start = f"  {number.ljust(sizes[0])}  {name.ljust(sizes[1])}  "
    middle = f"{took.rjust(sizes[3])}  {attempt.rjust(sizes[4])}  "
    taken = len(start) + sizes[2] + 2 + len(middle)
    result = line.result
    if is_terminal():
        room = max(10, width() - taken)
        result = result if len(result) <= room else result[: room - 1] + "…"
    coloured = styled(state, {"recorded": "done", "started": "running", "undone": "rolled_back"}.get(state))
    return f"{start}{coloured}{' ' * (sizes[2] - len(state))}  {middle}{result}".rstrip()
