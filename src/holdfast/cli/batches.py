"""`holdfast batches`: see how far batches are, and which of their jobs went wrong."""

from __future__ import annotations

from typing import Any

import click

from holdfast import insight
from holdfast.cli.base import Group, say
from holdfast.cli.loading import opened_store
from holdfast.cli.output import Column, clean, show_json, show_table
from holdfast.cli.types import JobId, json_option
from holdfast.core.machine import State, states_named


@click.group(cls=Group, epilog="holdfast batches list")
def batches() -> None:
    """See how far batches are, and which of their jobs went wrong."""


def _share(view: dict[str, Any]) -> str | None:
    return None if view["progress"] is None else f"{int(100 * view['progress'])} %"


_COLUMNS = [
    Column("BATCH", lambda view: view["id"], least=12),
    Column("STATE", lambda view: view["state"], keep=True, coloured=True),
    Column("JOBS", lambda view: view["jobs"], right=True, keep=True),
    Column("ENDED", _share, right=True, keep=True),
    Column("DEAD", lambda view: view["counts"]["dead"], right=True, keep=True),
    Column("HELD", lambda view: view["counts"]["held"], right=True, rank=2),
    Column("THEN", lambda view: view["then_task"], least=8, rank=3, keeps_end=True),
    Column("OPENED", lambda view: view["created_at"], rank=4),
]


@batches.command(
    "list",
    epilog="""
    holdfast batches list
    holdfast batches list --limit 5 --json
    """,
)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, metavar="N", show_default=True, help="Show N batches."
)
@json_option
def list_(limit: int, as_json: bool) -> None:
    """Show the batches that were opened last, newest first.

    ENDED is the share of its jobs that have ended. A held job has not.
    """
    with opened_store() as store:
        views = insight.batch_views(store, limit)
    if as_json:
        show_json(views)
    elif views:
        show_table(_COLUMNS, views)
    else:
        say("There are no batches; app.batch(…) makes one.")


@batches.command(
    epilog="""
    holdfast batches show import-7
    holdfast batches show import-7 --jobs dead
    """
)
@click.argument("batch_id", metavar="BATCH", type=JobId())
@click.option(
    "--jobs", "state", type=click.Choice([each.value for each in State]), help="List jobs in this state, too."
)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, metavar="N", show_default=True, help="List at most N jobs."
)
@json_option
def show(batch_id: str, state: str | None, limit: int, as_json: bool) -> None:
    """Show one batch: its jobs by state, and what is stored at its end."""
    with opened_store() as store:
        view = insight.batch_view(store, batch_id)
        found = [] if state is None else store.batches.jobs(batch_id, states_named(state), limit)
        now = store.now()
    if as_json:
        more = {} if state is None else {"listed": [insight.job_view(job, now) for job in found]}
        show_json(view | more)
        return
    click.echo(f"{clean(view['id'])}: {_in_words(view)}")
    for word, number in view["counts"].items():
        if number:
            click.echo(f"{word.replace('_', ' ')}: {number}")
    for label in ("created_at", "closed_at", "ended_at"):
        if view[label] is not None:
            click.echo(f"{label.removesuffix('_at')}: {view[label]}")
    if view["then"] is not None:
        stored = "stored" if view["state"] == "ended" else "stored when all jobs have ended"
        click.echo(f"then: {clean(view['then_task'] or '?')}, job {clean(view['then'])}, {stored}")
    for job in found:
        click.echo(f"  {clean(job.id)}  {clean(job.task)}  {job.shown_state(now.wall)}")


def _in_words(view: dict[str, Any]) -> str:
    jobs = insight.counted(view["jobs"], "job")
    match view["state"]:
        case "open":
            return f"open, with {jobs} by now; its producer may add more"
        case "running":
            return f"{_share(view)} of {jobs} ended"
        case _:
            return f"ended, with {jobs}" + ("" if view["complete"] else "; its producer did not finish it")
