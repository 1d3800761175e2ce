"""`holdfast workers`: see who runs jobs."""

from __future__ import annotations

import click

from holdfast import insight
from holdfast.cli.base import Group, say
from holdfast.cli.loading import opened_store
from holdfast.cli.screen import Column, show_json, show_table
from holdfast.cli.types import json_option
from holdfast.core.records import Moment


@click.group(cls=Group, epilog="holdfast workers list")
def workers() -> None:
    """See who runs jobs."""


@workers.command(
    "list",
    epilog="""
    holdfast workers list
    holdfast workers list --gone --json
    """,
)
@click.option("--gone", is_flag=True, help="Those too that stopped or died.")
@json_option
def list_(gone: bool, as_json: bool) -> None:
    """Show the workers, oldest first, with their last beat."""
    with opened_store() as store:
        found, now = store.workers(gone=gone), store.now()
    if as_json:
        show_json([insight.worker_view(worker, now) for worker in found])
    elif found:
        show_table(_columns(now, gone), found)
    else:
        say("No workers. Start one with: holdfast worker APP")


def _columns(now: Moment, gone: bool) -> list[Column]:
    columns = [
        Column("NAME", lambda worker: worker.name, least=12),
        Column("STATE", lambda worker: insight.worker_state(worker, now), keep=True),
        Column("HOST", lambda worker: worker.host, rank=2),
        Column("PID", lambda worker: worker.pid, right=True, keep=True, rank=1),
        Column("RUNNING", lambda worker: f"{worker.running}/{worker.slots}", right=True, keep=True),
        Column("LAST BEAT", lambda worker: f"{insight.brief(now.wall - worker.beat_at)} ago", right=True, keep=True),
        Column("MEMORY", lambda worker: worker.rss_mb and f"{worker.rss_mb:.0f} MB", right=True, keep=True, rank=3),
        Column("QUEUES", lambda worker: ", ".join(worker.queues), rank=4),
    ]
    if gone:
        columns.append(Column("CAUSE", lambda worker: worker.gone_cause, rank=5))
    return columns
