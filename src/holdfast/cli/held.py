"""`holdfast held`: answer for jobs that wait for a person."""

from __future__ import annotations

from functools import partial
from typing import Any

import click
from msgspec.structs import replace

from holdfast.acts.mass import ActName, MassAct
from holdfast.app import App
from holdfast.cli.base import Group
from holdfast.cli.filters import Chosen, page_options
from holdfast.cli.jobs import act_on, known, show_jobs
from holdfast.cli.loading import import_options, opened_store, require_task
from holdfast.cli.mass import act_on_chosen, chooses, mass_options
from holdfast.cli.output import clean
from holdfast.cli.types import JobId, Json, Text, fence_option, json_option, person, person_options, require_one
from holdfast.core.acts import Choice
from holdfast.core.records import Job
from holdfast.insight.format import first_line

_APP = "Answer with the codec of this app, module:name."
_RESULT = """Write a JSON value, in single quotes for the shell: '"receipt 7"', '42' or '{"paid": true}'."""


@click.group(cls=Group, epilog="holdfast held list", elsewhere={"show": "holdfast jobs show ID"})
def held() -> None:
    """Answer for jobs that wait for a person.

    A job with on_crash="hold" whose attempt was cut short is not run again automatically, because only you can find out
    whether its work happened. Workflows that ask a person a question are answered here too.
    """


@held.command(
    "list",
    epilog="""
    holdfast held list
    holdfast held list --queue payments --json
    """,
)
@page_options
@json_option
def list_(chosen: Chosen, limit: int, before: str | None, as_json: bool) -> None:
    """Show what waits for an answer, newest first."""
    with opened_store() as store:
        show_jobs(store, replace(chosen.on(store), states=("held",)), limit, before, as_json, asking=True)


@held.command(
    epilog="""
    holdfast held approve 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d --note "not paid"
    holdfast held approve order-42 --app jobs:app
    holdfast held approve --task pay --since 2h --note "nothing was paid"
    """
)
@click.argument("job_id", metavar="[ID]", required=False, type=JobId())
@partial(mass_options, states=False)
@click.option("--app", "app_ref", type=Text(), metavar="APP", help=_APP)
@import_options
@person_options
@fence_option
@json_option
def approve(job_id: str | None, **given: Any) -> None:
    """Let the job continue.

    Name the job, or choose many by options. Options leave alone, and list, what needs an answer of its own: workflows
    with an open step, and questions.

    A workflow that asks a question (flow.approve) gets the answer yes. A workflow that is held with an open step runs
    that step again and continues; if several steps are open, it asks about the next one. A workflow whose rollback is
    stuck continues to undo. Any other held job runs again with fresh budgets: from its beginning or, for a workflow,
    after its last recorded step.

    If the app has a codec of its own, the answer to a question needs --app (module:name, on the app's own store unless
    --db says otherwise).
    """
    _answer_one_or_many(job_id, "approve", "retry", **given)


@held.command(
    epilog="""
    holdfast held done 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d --result '"receipt 7"'
    holdfast held done order-42 --result 7 --app jobs:app
    """
)
@click.argument("job_id", metavar="ID", type=JobId())
@click.option(
    "--result", type=Json(_RESULT), default=..., metavar="JSON", help="The result of the task, or of the open step."
)
@click.option("--app", "app_ref", type=Text(), metavar="APP", help="Check the result against the task of this app.")
@import_options
@person_options
@fence_option
@json_option
def done(
    job_id: str,
    result: Any,
    app_ref: str | None,
    by: str | None,
    note: str | None,
    fence: int | None,
    as_json: bool,
) -> None:
    """Say that the job's work did happen.

    For a workflow with an open step, the answer applies to that step and needs --result; the workflow continues after
    it. If the result does not fit the step's return type, a worker holds the workflow again and says so. For a workflow
    whose rollback is stuck, it says that the next undo was done by hand.

    With --app (module:name, on the app's own store unless --db says otherwise) the result must fit what the task
    returns, or nothing is changed. Without it the result of a task is not checked: any JSON is stored as it is. If the
    app has a codec of its own, a result needs --app.
    """
    _answer(job_id, "done", by, note, fence, as_json, result, app_ref)


@held.command(
    epilog="""
    holdfast held fail 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d --note "withdrawn"
    holdfast held fail --queue imports --until 14:00 --dry-run
    """
)
@click.argument("job_id", metavar="[ID]", required=False, type=JobId())
@partial(mass_options, states=False)
@click.option("--app", "app_ref", type=Text(), metavar="APP", help=_APP)
@import_options
@person_options
@fence_option
@json_option
def fail(job_id: str | None, **given: Any) -> None:
    """Give the job up, or answer no to a question.

    Name the job, or choose many by options. Options leave alone, and list, what needs an answer of its own: workflows
    with an open step, and questions.

    A held job becomes dead, and nothing is undone. A workflow that asks a question gets the answer no and continues; if
    its app has a codec of its own, that needs --app (module:name, on the app's own store unless --db says otherwise).
    """
    _answer_one_or_many(job_id, "fail", "fail", **given)


def _answer_one_or_many(
    job_id: str | None,
    act: ActName,
    answer: Choice,
    *,
    chosen: Chosen,
    every: bool,
    dry_run: bool,
    yes: bool,
    by: str | None,
    note: str | None,
    fence: int | None,
    as_json: bool,
    app_ref: str | None,
) -> None:
    ids = [] if job_id is None else [job_id]
    require_one(fence, ids)
    if chooses(ids, chosen, every, dry_run):
        said = MassAct(name=act, actor=person(by), note=note)
        act_on_chosen(said, chosen, dry_run=dry_run, yes=yes, as_json=as_json)
    else:
        _answer(ids[0], answer, by, note, fence, as_json, app_ref=app_ref)


def _answer(
    job_id: str,
    answer: Choice,
    by: str | None,
    note: str | None,
    fence: int | None,
    as_json: bool,
    result: Any = ...,
    app_ref: str | None = None,
) -> None:
    question: str | None = None

    def act(app: App, it: str) -> Job:
        nonlocal question
        if app_ref is not None:
            require_task(app, app_ref, known(app.store, it).task)
        job = app.resolve(it, answer, by=person(by), note=note, result=result, fence=fence)
        question = job.answered
        return job.row

    def answered() -> str:
        word = "no" if answer == "fail" else "yes"
        return "" if question is None else f'  {word} to "{clean(first_line(question))}"'

    act_on([job_id], act, as_json, app_ref=app_ref, answered=answered)
