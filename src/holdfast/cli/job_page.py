"""Print one job: why it is in its state, its settings, and its journal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import click

from holdfast import insight
from holdfast.cli.commands import command_of
from holdfast.cli.output import bold, clean, clean_lines, columns, dim, is_terminal, one_line, padded, styled, width
from holdfast.cli.steps import ShownWorkflow, show_steps
from holdfast.core.autopsy import beat_data
from holdfast.core.labels import meta_of, tags_of
from holdfast.core.records import Event, Job, Moment, Step
from holdfast.core.replay import asked_about
from holdfast.core.stop_reason import full_reason
from holdfast.stores.protocol import Store
from holdfast.stores.rounds import together

_LABEL = 12
_LONG = 4000  # characters of a payload or a result that are shown; all of it is in the JSON

# The autopsy of a zombie in the order in which a person asks, each with its label; what is not listed comes after.
_AUTOPSY = {
    "cause": "cause",
    "decision": "decision",
    "detector": "found by",
    "evidence": "evidence",
    "release": "release",
    "host": "host",
    "pid": "pid",
    "last_beat": "last beat",
    "seconds_since_beat": "silent for",
    "lease_until": "lease end",
    "seconds_overdue": "overdue",
    "attempt": "attempt",
    "claimed_at": "claimed at",
    "started": "had begun",
    "isolated": "own process",
    "step": "step",
    "rolling_back": "undoing",
    "progress": "progress",
    "note": "note",
    "beat_data": "it had said",
    "rss_mb": "memory",
    "exit_code": "exit code",
    "signal": "signal",
    "fence_before": "fence",
    "log": "last lines",
    "stack": "stack",
}
_SAID_ELSEWHERE = {
    "zombie": ("fence_after", "worker", "open_step", "in_steps"),
    "failed": ("steps",),
}


def tell(store: Store, job: Job, *, step_arguments: bool = False) -> None:
    """Print a job's story on stdout, with all that the store knows of it."""
    why, events, now, names, steps = together(
        lambda: insight.explain(store, job),
        lambda: store.journal(job.id),
        store.now,
        lambda: insight.worker_names(store),
        lambda: insight.steps_of(store, job, aside=True, asks=True),
    )
    state = job.shown_state(now.wall)
    click.echo(f"{bold(clean(job.task))}  {styled(state)}  {dim(clean(job.id))}")
    click.echo()
    for line in textwrap.wrap(clean(why.sentence), width() - 2, break_on_hyphens=False):
        click.echo(f"  {line}")
    if why.choices:
        click.echo()
        _show_choices([(clean(choice.words), clean(command_of(choice))) for choice in why.choices])
    click.echo()
    for label, value in _facts(job, now, names, insight.uncounted(job, events), insight.fresh_since(events), steps):
        if not (label == "error" and value in why.sentence):  # once is enough
            _show(label, value, "  ")
    for warning in insight.warnings_of(events):
        _show("warning", insight.in_words(warning), "  ")
    lost = insight.deaths(steps, events) if job.workflow else []
    if job.workflow:
        far, ahead = insight.progress_of(store, job, steps), insight.ahead(job, steps)
        show_steps(ShownWorkflow(job, steps, far, events, lost, now, names, ahead, step_arguments))
    if events:
        click.echo()
        click.echo(bold("Journal") + dim("  (oldest first, UTC)"))
        was = {ending.seq: ending for ending in insight.endings(job, events)}
        for event in events:
            places = ", ".join(death.place for death in lost if death.event is event)
            _tell_event(event, names, was.get(event.seq), places, full_reason(job))


def _show_choices(choices: Sequence[tuple[str, str]]) -> None:
    """Print what a person may do, and the command for it; below it where the terminal is too narrow for both."""
    room = max(columns(words) for words, _ in choices)
    if is_terminal() and any(4 + room + columns(command) > width() for _, command in choices):
        for words, command in choices:
            click.echo(f"  {words}:")
            click.echo(f"    {bold(command)}")
        return
    for words, command in choices:
        click.echo(f"  {padded(words, room)}  {bold(command)}")


def _scope_of_key(scope: str | None) -> str:
    match scope:
        case None:
            return ""
        case "queued":
            return ", until a worker claims the job"
        case "ever":
            return ", for ever"
        case "passed":
            return ", which a newer job has taken"
    return f", for {insight.duration(float(scope))} from its enqueue"


def _facts(
    job: Job, now: Moment, names: insight.Names, uncounted: insight.Uncounted, fresh: str | None, steps: Sequence[Step]
) -> Iterator[tuple[str, str]]:
    yield "queue", job.queue + (f", priority {job.priority}" if job.priority else "")
    if job.key is not None:
        yield "key", job.key + _scope_of_key(job.key_scope)
    if job.parent is not None:
        yield "started by", f"workflow {job.parent}"
    if job.batch is not None:
        yield "batch", job.batch
    yield "created", f"{insight.moment(job.created_at)}, {insight.ago(job.created_at, now)}"
    if job.tags is not None:
        yield "tags", ", ".join(tags_of(job.tags))
    if job.meta is not None:
        yield "meta", ", ".join(f"{name}={value}" for name, value in meta_of(job.meta).items())
    if job.expires_at is not None:
        yield "expires", f"{insight.moment(job.expires_at)}, unless it is started before"
    if job.run_at > now.wall:
        yield "runs at", f"{insight.moment(job.run_at)}, in {insight.duration(job.run_at - now.wall)}"
    spent = f"{job.failures} failed and {job.crashes} crashed"
    yield "attempts", f"{job.attempt}; {spent} since {fresh}" if fresh else f"{job.attempt}, with {spent}"
    crashes = insight.counted(job.crashes_max, "crash", "crashes")
    yield "gives up", f"after {crashes}, or {job.attempts_max} failed and crashed in all{_span(job)}"
    yield "on crash", job.on_crash + (", rolling back" if job.rolling_back and job.state != "rolled_back" else "")
    if job.open_step is not None:
        step = next((insight.named(each) for each in asked_about(job, steps)), job.open_step)
        yield "open step", f"{step}: started, not recorded, must not be repeated"
    if unrecorded := uncounted.unrecorded:
        losses = f"{insight.counted(unrecorded, 'loss', 'losses')} of its worker before its start was recorded"
        yield "not counted", f"{losses}: perhaps it had begun; after a loss each start is recorded first"
    if innocent := uncounted.innocent:
        were = "loss of its worker, which was" if innocent == 1 else "losses of its worker, which were"
        yield "not counted", f"{innocent} {were} not its doing"
    if job.zombies > job.crashes + uncounted.unrecorded + uncounted.innocent:
        yield "zombies", f"{job.zombies} over its life"
    if job.in_steps and job.state == "running":
        yield (
            ("undoing" if job.rolling_back else "now in"),
            ", ".join(f"{step.name} ({step.path})" for step in job.in_steps),
        )
    yield "fence", str(job.fence)
    end = insight.lease_end(job, now)
    if end is not None and job.worker is not None:
        yield "worker", names.get(job.worker, job.worker)
        yield "lease", f"until {insight.moment(end)}, of {insight.duration(job.lease_s)}"
    if job.progress is not None or job.note is not None:
        share = [] if job.progress is None else [f"{job.progress:.0%}"]
        yield "progress", " ".join([*share, *([job.note] if job.note else [])])
    if said := beat_data(job.beat_data):
        yield "it says", one_line(said)
    if job.log:
        yield "last lines", job.log
    if job.ended_at is not None:
        yield "ended", f"{insight.moment(job.ended_at)}, {insight.ago(job.ended_at, now)}"
    yield "arguments", _short(one_line(insight.parsed(job.payload)))
    if job.result is not None:
        yield "result", _short(one_line(insight.parsed(job.result)))
    if (error := full_reason(job)) is not None:
        yield ("last error" if job.state in ("done", "waiting") else "error"), error


def _span(job: Job) -> str:
    """Say how long the pauses between all attempts last; nothing if there are none."""
    least, most = job.retry.span_s
    if not most:
        return ""
    longest = insight.duration(most)
    if least < most:
        longest = f"{insight.duration(least)} to {longest}" if least else f"up to {longest}"
    return f"; its retries span {longest}"


def _tell_event(event: Event, names: insight.Names, was: insight.Ending | None, places: str, said: str | None) -> None:
    """Print a line of the journal. `said`: the reason of the job's state, which is on the page already."""
    who = [f"fence {event.fence}"]
    if event.worker:
        who.append(f"worker {names.get(event.worker, event.worker)}")
    if event.actor:
        who.append(f"by {event.actor}")
    head = f"{dim(insight.moment(event.at, millis=True))}  {styled(clean(event.kind), _colour(event.kind))}"
    click.echo(f"  {head}  {dim(clean(', '.join(who)))}")
    if was is not None:
        for line in textwrap.wrap(clean(was.sentence), width() - 6, break_on_hyphens=False):
            click.echo(f"      {line}")
    for label, value in _details(event, places):
        if not (label in ("reason", "note") and value == said):
            _show(label, value, "      ")


def _details(event: Event, places: str) -> Iterator[tuple[str, str]]:
    detail = {**event.detail, **({"step": places} if places else {})}
    if "fence_after" in detail:
        detail["fence_before"] = f"{detail['fence_before']} before, {detail['fence_after']} after"
    names = list(detail)
    if event.kind == "zombie":
        names = [name for name in dict.fromkeys([*_AUTOPSY, *names]) if name in detail]
    for name in names:
        if detail[name] is not None and name not in _SAID_ELSEWHERE.get(event.kind, ()):
            yield _AUTOPSY.get(name, name.replace("_", " ")), _worded(name, detail[name], event.kind)


def _worded(name: str, value: Any, event: str) -> str:
    match value:
        case False if event == "zombie" and name == "started":
            return "not recorded"
        case bool():
            return "yes" if value else "no"
        case int() | float() if name.startswith("seconds_") or name.endswith("_s"):
            return insight.duration(value)
        case int() | float() if name.endswith("_mb"):
            return f"{value:.0f} MB"
        case float() if name == "progress":
            return f"{value:.0%}"
        case str() if name in ("last_beat", "lease_until", "claimed_at"):
            return value.replace("T", " ")
        case str():
            return value
        case list() if all(isinstance(line, str) for line in value):
            return "\n".join(value)
        case _:
            return one_line(value)


def _colour(kind: str) -> str:
    return {"zombie": "dead", "failed": "retrying", "timed_out": "retrying", "stalled": "retrying"}.get(kind, kind)


def _show(label: str, value: str, indent: str) -> None:
    """Print a labelled value; one with several lines keeps them, all indented, so that none passes for ours."""
    first, *rest = clean_lines(value)
    if not rest and is_terminal():
        room = max(20, width() - len(indent) - _LABEL)
        first, *rest = textwrap.wrap(first, room, break_on_hyphens=False) or [""]
    click.echo(f"{indent}{dim(clean(label).ljust(_LABEL - 1))} {first}")
    for line in rest:
        click.echo(f"{indent}{' ' * _LABEL}{line}")


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:_LONG]}… ({len(text):,} characters; all of it with --json)"
