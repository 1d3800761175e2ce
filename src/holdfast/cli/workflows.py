"""`holdfast workflows`: see workflows and their steps, answer them, run them again, undo them."""

from __future__ import annotations

from typing import Any

import click

from holdfast import insight
from holdfast.app import App
from holdfast.cli import story
from holdfast.cli.base import Group, acknowledge
from holdfast.cli.jobs import act_on, known, show_jobs
from holdfast.cli.loading import opened_app, opened_store
from holdfast.cli.screen import bold, clean, dim, show_json, styled
from holdfast.cli.types import JobId, Json, Text, fence_option, json_option, limit_option, person, person_options
from holdfast.core.records import Filter, Job, Step
from holdfast.errors import Refused
from holdfast.stores.protocol import Store

_VALUE = """Write a JSON value, in single quotes for the shell: 'true', '"yes"' or '{"amount": 3}'."""
_ARGUMENTS = "Write a JSON array of positional or an object of keyword arguments."
_SHOWN = 60  # characters of a result in the tree; all of it is in the JSON


@click.group(cls=Group, epilog="holdfast workflows list --state waiting")
def workflows() -> None:
    """See workflows and their steps, signal, retry, undo and fork them."""


@workflows.command(
    "list",
    epilog="""
    holdfast workflows list
    holdfast workflows list --state waiting --json
    """,
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(insight.SHOWN_STATES),
    metavar="STATE",
    help=f"Only these; may be repeated. One of {', '.join(insight.SHOWN_STATES)}.",
)
@click.option("--queue", type=Text(), help="Only of this queue.")
@click.option("--task", type=Text(), help="Only of this workflow, by its full name.")
@limit_option
@click.option("--before", metavar="ID", type=JobId(), help="The page after this job.")
@json_option
def list_(
    states: tuple[str, ...], queue: str | None, task: str | None, limit: int, before: str | None, as_json: bool
) -> None:
    """Show workflows, newest first."""
    where = Filter(queue=queue, task=task, limit=limit, before=before, workflow=True)
    with opened_store() as store:
        show_jobs(store, states, where, as_json)


@workflows.command(epilog="holdfast workflows show 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d")
@click.argument("job_id", metavar="ID", type=JobId())
@json_option
def show(job_id: str, as_json: bool) -> None:
    """Show one workflow: its steps as a tree, and all that happened to it."""
    with opened_store() as store:
        job = _known(store, job_id)
        if as_json:
            show_json(insight.job_story(store, job))
            return
        names = insight.worker_names(store)
        story.tell(job, insight.explain(store, job), store.journal(job.id), store.now(), names)
        steps = insight.steps_of(store, job)
        click.echo()
        click.echo(bold("Steps") + dim(f"  ({insight.progress_of(steps)})"))
        for step in steps:
            _tell(step)


@workflows.command(
    epilog="""
    holdfast workflows retry 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d
    holdfast workflows retry order-42 --from-step charge --note "card is new"
    """
)
@click.argument("job_id", metavar="ID", type=JobId())
@click.option("--from-step", type=Text(), metavar="NAME", help="Keep what is recorded before it; set the rest aside.")
@person_options
@fence_option
@json_option
def retry(
    job_id: str, from_step: str | None, by: str | None, note: str | None, fence: int | None, as_json: bool
) -> None:
    """Bring a held, dead or cancelled workflow back: behind its last recorded step, or from a step."""

    def act(app: App, it: str) -> Job:
        _known(app.store, it)
        if from_step is None:
            return app.revive(it, by=person(by), note=note, fence=fence).row
        return app.retry_from(it, from_step, by=person(by), note=note, fence=fence).row

    act_on([job_id], act, as_json)


@workflows.command(epilog='holdfast workflows rollback 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d --note "not wanted"')
@click.argument("job_id", metavar="ID", type=JobId())
@person_options
@fence_option
@json_option
def rollback(job_id: str, by: str | None, note: str | None, fence: int | None, as_json: bool) -> None:
    """Undo what a workflow did, in the reverse order. A worker carries it out."""
    act_on([job_id], lambda app, it: app.rollback(it, by=person(by), note=note, fence=fence).row, as_json)


@workflows.command(epilog="holdfast workflows cancel 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d --rollback")
@click.argument("job_id", metavar="ID", type=JobId())
@click.option("--rollback", "undo", is_flag=True, help="Undo what it did, too.")
@person_options
@fence_option
@json_option
def cancel(job_id: str, undo: bool, by: str | None, note: str | None, fence: int | None, as_json: bool) -> None:
    """Stop a workflow. What it did stays, unless --rollback is given."""

    def act(app: App, it: str) -> Job:
        _known(app.store, it)
        stop = app.rollback if undo else app.cancel
        return stop(it, by=person(by), note=note, fence=fence).row

    act_on([job_id], act, as_json)


@workflows.command(epilog="holdfast workflows signal 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d approval true")
@click.argument("job_id", metavar="ID", type=JobId())
@click.argument("name", type=Text())
@click.argument("value", metavar="[JSON]", required=False, type=Json(_VALUE))
@click.option("--by", type=Text(), envvar="HOLDFAST_BY", help="Who.  [env: HOLDFAST_BY; default: user@host]")
@json_option
def signal(job_id: str, name: str, value: Any, by: str | None, as_json: bool) -> None:
    """Send a signal to a workflow: it goes on if it waits for it, and finds it later otherwise."""

    def act(app: App, it: str) -> Job:
        app.signal(it, name, value, by=person(by))
        return known(app.store, it)

    act_on([job_id], act, as_json)


@workflows.command(
    epilog="""
    holdfast workflows fork 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d --from-step ship
    holdfast workflows fork order-42 '[43]' --from-step charge --app shop:app
    """
)
@click.argument("job_id", metavar="ID", type=JobId())
@click.argument("arguments", metavar="[JSON]", required=False, type=Json(_ARGUMENTS))
@click.option("--from-step", type=Text(), metavar="NAME", required=True, help="Begin with the records before it.")
@click.option("--app", "app_ref", type=Text(), metavar="APP", help="Needed for other arguments: they are checked.")
@json_option
def fork(job_id: str, arguments: Any, from_step: str, app_ref: str | None, as_json: bool) -> None:
    """Start a new workflow with the records of an ended one, up to a step."""
    args = arguments if isinstance(arguments, list) else []
    kwargs = arguments if isinstance(arguments, dict) else {}
    with opened_app(app_ref) as app:
        job = app.fork(job_id, from_step, *args, **kwargs)
        view = insight.job_view(job.row, app.store.now())
    if as_json:
        show_json(view)
    else:
        acknowledge(f"{clean(job.id)}  {styled(view['state'])}")


def _known(store: Store, job_id: str) -> Job:
    job = known(store, job_id)
    if not job.workflow:
        raise Refused(f"job {job_id} is no workflow; see `holdfast jobs show {job_id}`")
    return job


def _tell(step: Step) -> None:
    colour = {"started": "running", "recorded": "done", "undone": "rolled_back"}[step.state]
    shown = "failed" if step.error is not None and step.state == "recorded" else step.state
    head = f"{dim(clean(step.path))} {bold(clean(step.name))}"
    parts = [styled(shown, "dead" if shown == "failed" else colour)]
    parts += [step.kind] if step.kind != "step" else []
    parts += [took] if (took := insight.took(step)) else []
    parts.append(f"attempt {step.attempt}")
    parts += ["set aside"] if step.aside else []
    text = step.error if step.error is not None else step.result
    said = "" if text is None else f"  {' '.join(text.split())[:_SHOWN]}"
    click.echo(f"  {'  ' * insight.depth_of(step)}{head}  {', '.join(parts)}{dim(clean(said))}")
