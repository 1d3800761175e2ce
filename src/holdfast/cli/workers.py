"""`holdfast workers`: see who runs jobs, and forget who is dead."""

from __future__ import annotations

import click

from holdfast import insight
from holdfast.cli.base import Group, acknowledge, say
from holdfast.cli.loading import opened_store
from holdfast.cli.screen import Column, show_json, show_table
from holdfast.cli.types import Text, json_option, person
from holdfast.clock import SystemClock
from holdfast.core.records import Moment
from holdfast.errors import NotFound, Refused
from holdfast.reaper import Reaper


@click.group(cls=Group, epilog="holdfast workers list")
def workers() -> None:
    """See who runs jobs, and forget who is dead."""


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


@workers.command(
    epilog="""
    holdfast workers forget box/1
    holdfast workers forget box/1 --by ann
    """
)
@click.argument("name", metavar="NAME", type=Text())
@click.option("--by", type=Text(), envvar="HOLDFAST_BY", help="Who.  [env: HOLDFAST_BY; default: user@host]")
@json_option
def forget(name: str, by: str | None, as_json: bool) -> None:
    """Declare a silent worker dead, and recover its jobs.

    For a worker that nobody can prove dead, behind a pooler or in a restored store. Exits with 5 when there is no such
    worker, with 6 when it still beats.
    """
    with opened_store() as store:
        named, now = [worker for worker in store.workers() if worker.name == name], store.now()
        if not named:
            raise NotFound(f"there is no worker {name!r}; see `holdfast workers list`")
        silent = [worker for worker in named if insight.worker_state(worker, now) != "alive"]
        if not silent:
            raise Refused(f"worker {name} beats; stop its process instead")
        reaper = Reaper(store, SystemClock(), name="forget")
        cause = f"forgotten by {person(by)}"
        recovered = sum(reaper.recover_worker(worker, "vanished", cause).recovered for worker in silent)
    if as_json:
        show_json({"forgotten": len(silent), "recovered": recovered})
    else:
        acknowledge(f"{name} forgotten, {recovered} of its jobs recovered")


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
