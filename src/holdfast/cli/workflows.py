"""`holdfast workflows`: see workflows step by step; retry, undo, signal, cancel and fork them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click
from msgspec.structs import replace

from holdfast import insight
from holdfast.app import App
from holdfast.cli import job_page
from holdfast.cli.base import Group, acknowledge, say
from holdfast.cli.filters import Chosen, page_options
from holdfast.cli.jobs import act_on, known, show_jobs
from holdfast.cli.loading import import_options, opened_app, opened_store, require_task
from holdfast.cli.output import clean, show_json
from holdfast.cli.types import (
    JobId,
    Json,
    Text,
    call_of,
    fence_option,
    json_option,
    person_options,
    repeat_step_option,
    require_one,
    step_arguments_option,
)
from holdfast.core.machine import State
from holdfast.core.records import Job
from holdfast.core.row_text import Awaited
from holdfast.errors import Refused
from holdfast.jobs import Job as Handle
from holdfast.stores.protocol import Store

_VALUE = """Write a JSON value, in single quotes for the shell: '"yes"', '42' or '{"paid": true}'."""
_CALL = """Write them in single quotes for the shell: '[42, "x"]' or '{"order_id": 42}'."""


@click.group(cls=Group, epilog="holdfast workflows list --state waiting")
def workflows() -> None:
    """See workflows step by step; retry, undo, signal, cancel and fork them.

    A workflow is a job: `holdfast jobs`, `holdfast held` and `holdfast dead` work on it too.
    """


# ---------------------------------------------------------------------------------------------- seeing


@workflows.command(
    "list",
    epilog="""
    holdfast workflows list
    holdfast workflows list --state waiting --task shop.checkout
    """,
)
@partial(page_options, kind="workflow", states=True)
@json_option
def list_(chosen: Chosen, limit: int, before: str | None, as_json: bool) -> None:
    """Show workflows, newest first, with what they wait for."""
    with opened_store() as store:
        show_jobs(store, replace(chosen.on(store), workflow=True), limit, before, as_json, "workflows")


@workflows.command(
    epilog="""
    holdfast workflows show 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d
    holdfast workflows show 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d --json
    """
)
@click.argument("job_id", metavar="ID", type=JobId())
@step_arguments_option
@json_option
def show(job_id: str, step_arguments: bool, as_json: bool) -> None:
    """Show one workflow: its steps, what it waits for, and its history."""
    with opened_store() as store:
        job = _known(store, job_id)
        if not as_json:
            job_page.tell(store, job, step_arguments=step_arguments)
            return
        events, names = store.journal(job.id), insight.worker_names(store)
        view = insight.workflow_view(store, job, events, names, arguments=step_arguments)
        show_json({**insight.job_story(store, job), **view})


def _known(store: Store, job_id: str) -> Job:
    job = known(store, job_id)
    if not job.workflow:
        raise Refused(f"job {job.id} is not a workflow; see `holdfast jobs show {job.id}`")
    return job


# ---------------------------------------------------------------------------------------------- acting


@workflows.command(
    epilog="""
    holdfast workflows retry order-42 --from-step charge --note "card was blocked"
    """
)
@click.argument("job_id", metavar="ID", type=JobId())
@click.option(
    "--from-step", "step", type=Text(), metavar="NAME", help="The first step to run again, by name or number."
)
@repeat_step_option
@person_options
@fence_option
@json_option
def retry(job_id: str, step: str | None, as_json: bool, **said: Any) -> None:
    """Bring a held, dead or cancelled workflow back, with fresh budgets.

    It continues after its last recorded step. With --from-step the records before that step stay; that step and
    later ones are set aside, stay readable, and are run again; their effects are not undone, now or later. If a step
    that must not be repeated has happened, or may have, retry is refused unless that step is named, or --repeat-step is
    given.
    """
    if step is None:
        _act([job_id], App.revive, as_json, **said)
    else:
        _act([job_id], App.retry_from, as_json, step=step, **said)


@workflows.command(
    epilog="""
    holdfast workflows rollback order-42 --note "the customer withdrew"
    """
)
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, type=JobId())
@person_options
@fence_option
@json_option
def rollback(job_ids: tuple[str, ...], as_json: bool, **said: Any) -> None:
    """Undo what workflows did, in the reverse order.

    A worker carries the undos out. A workflow that runs is asked to stop first. One that is done is refused: run a
    workflow that takes back what it did.
    """
    _act(job_ids, App.rollback, as_json, **said)


@workflows.command(
    epilog="""
    holdfast workflows cancel order-42 --note "ordered twice"
    holdfast workflows cancel order-42 --rollback
    """
)
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, type=JobId())
@click.option("--rollback", "undo", is_flag=True, help="Undo what they did; without it, nothing is undone.")
@person_options
@fence_option
@json_option
def cancel(job_ids: tuple[str, ...], undo: bool, as_json: bool, **said: Any) -> None:
    """Stop workflows. One that runs is asked to stop, and may still succeed."""
    _act(job_ids, App.rollback if undo else App.cancel, as_json, **said)


def _act(
    job_ids: Sequence[str], act: Callable[..., Handle[Any]], as_json: bool, app_ref: str | None = None, **said: Any
) -> None:
    """Call this method of the App for each workflow, with what a person said."""
    require_one(said.get("fence"), job_ids)

    def act_on_workflow(app: App, job_id: str) -> Job:
        _known(app.store, job_id)
        return act(app, job_id, **said).row

    act_on(job_ids, act_on_workflow, as_json, app_ref=app_ref)


@workflows.command(
    epilog="""
    holdfast workflows signal order-42 paid '{"cents": 999}'
    holdfast workflows signal order-42 paid --id bank-7
    holdfast workflows signal order-42 paid --app jobs:app
    """
)
@click.argument("job_id", metavar="ID", type=JobId())
@click.argument("name", metavar="NAME", type=Text())
@click.argument("value", metavar="[JSON]", type=Json(_VALUE), required=False)
@click.option("--id", "signal_id", type=Text(), help="The signal's own id; a workflow gets it once.")
@click.option("--app", "app_ref", type=Text(), metavar="APP", help="Write the value with the codec of this app.")
@import_options
@person_options
@json_option
def signal(job_id: str, name: str, value: Any, app_ref: str | None, as_json: bool, **said: Any) -> None:
    """Send a signal to a workflow.

    It is kept until the workflow asks for it with flow.wait(NAME), and delivered once; if it does not wait for it now,
    that is said. JSON is its value, null by default; - reads it from stdin. A question is answered with
    `holdfast held approve` or `holdfast held fail`. If the app has a codec of its own, --app (module:name, on the app's
    own store unless --db says otherwise) must name it.
    """
    with opened_app(app_ref) as app:
        before = _known(app.store, job_id)
        if app_ref is not None:
            require_task(app, app_ref, before.task)
        job_id = before.id
        sent = app.signal(job_id, name, value, **said)
        now, names = app.store.now(), insight.worker_names(app.store)
        view = insight.job_view(known(app.store, job_id), now, names)
    if as_json:
        show_json({**view, "sent": sent})
    else:
        acknowledge(f"{clean(job_id)}  {'signalled' if sent else 'had this signal already'}")
    if sent and Awaited("signal", name) not in (before.awaits or ()):
        waits = ", ".join(insight.awaited(before, now))
        undoes = before.rolling_back and before.state is not State.HELD
        state = "rolling back" if undoes else before.shown_state(now.wall)
        instead = f"it waits for {waits}" if waits else f"it is {state}"
        say(f"Kept: it does not wait for {clean(repr(name))} now; {clean(instead)}.")


@workflows.command(
    epilog="""
    holdfast workflows fork 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d --from-step ship
    holdfast workflows fork order-42 '{"express": true}' --from-step ship
    """
)
@click.argument("job_id", metavar="ID", type=JobId())
@click.argument("arguments", metavar="[JSON]", type=Json(_CALL), required=False)
@click.option(
    "--from-step", "step", type=Text(), metavar="NAME", required=True, help="The first step that the new one runs."
)
@click.option(
    "--app", "app_ref", type=Text(), metavar="APP", help="Check the arguments against the workflow of this app."
)
@import_options
@repeat_step_option
@person_options
@json_option
def fork(job_id: str, arguments: Any, app_ref: str | None, as_json: bool, **said: Any) -> None:
    """Start a new workflow from the recorded steps of an ended one.

    The copied steps are not run again, and the new workflow never undoes them: their effects belong to the old one. The
    new workflow has the arguments of the old one (see `holdfast workflows show ID`). JSON replaces some of them: an
    object of named ones, or with --app (module:name) also an array of positional ones. With --app all of them are
    checked against the workflow before it is stored; without it, one that does not fit fails and is retried.
    If a step that must not be repeated would run again, fork is refused, unless that step is named, or --repeat-step is
    given.
    """
    args, kwargs = call_of(arguments, _CALL)
    _act([job_id], App.fork, as_json, app_ref, args=args, kwargs=kwargs, **said)
