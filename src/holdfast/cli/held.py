"""`holdfast held`: answer for jobs that wait for a person."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.base import Group
from holdfast.cli.jobs import act_on, show_jobs
from holdfast.cli.loading import opened_store
from holdfast.cli.types import JobId, Json, Text, json_option, limit_option, person, person_options
from holdfast.core.acts import Answer
from holdfast.core.records import Filter


@click.group(cls=Group, epilog="holdfast held list")
def held() -> None:
    """Answer for jobs that wait for a person.

    A job with on_crash="hold" whose attempt was cut short is never run again by itself: nobody but you can know whether
    its work happened.
    """


@held.command(
    "list",
    epilog="""
    holdfast held list
    holdfast held list --queue payments --json
    """,
)
@click.option("--queue", type=Text(), help="Only of this queue.")
@click.option("--task", type=Text(), help="Only of this task, by its full name.")
@limit_option
@click.option("--before", metavar="ID", type=JobId(), help="The page after this job.")
@json_option
def list_(queue: str | None, task: str | None, limit: int, before: str | None, as_json: bool) -> None:
    """Show what waits for an answer, newest first."""
    with opened_store() as store:
        show_jobs(store, ["held"], Filter(queue=queue, task=task, limit=limit, before=before), as_json)


@held.command(epilog='holdfast held approve 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d --note "not paid"')
@click.argument("job_id", metavar="ID", type=JobId())
@person_options
@json_option
def approve(job_id: str, by: str | None, note: str | None, as_json: bool) -> None:
    """Run the job again, with fresh budgets."""
    _answer(job_id, "retry", by, note, as_json)


@held.command(epilog="""holdfast held done 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d --result '"receipt 7"'""")
@click.argument("job_id", metavar="ID", type=JobId())
@click.option("--result", type=Json(), metavar="JSON", help="What the task would have returned.")
@person_options
@json_option
def done(job_id: str, result: Any, by: str | None, note: str | None, as_json: bool) -> None:
    """Say that the job's work did happen."""
    _answer(job_id, "done", by, note, as_json, result)


@held.command(epilog='holdfast held fail 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d --note "withdrawn"')
@click.argument("job_id", metavar="ID", type=JobId())
@person_options
@json_option
def fail(job_id: str, by: str | None, note: str | None, as_json: bool) -> None:
    """Give the job up: it goes to the dead ones."""
    _answer(job_id, "fail", by, note, as_json)


def _answer(job_id: str, answer: Answer, by: str | None, note: str | None, as_json: bool, result: Any = None) -> None:
    act_on([job_id], lambda app, it: app.resolve(it, answer, by=person(by), note=note, result=result).row, as_json)
