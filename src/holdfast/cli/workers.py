"""`holdfast workers`: see who runs jobs, and forget who is dead."""

from __future__ import annotations

import socket
from collections.abc import Collection

import click

from holdfast import insight
from holdfast.alerts import Alert
from holdfast.cli.alerts import TELL_S, alert_options, hooks_and_alerts, telling_shown
from holdfast.cli.base import Group, say, show_result
from holdfast.cli.loading import import_options, opened_store
from holdfast.cli.output import Column, clean, show_json, show_table
from holdfast.cli.types import Text, app_argument, by_option, json_option
from holdfast.clock import SystemClock
from holdfast.core.records import Moment
from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import NotFound, Refused
from holdfast.reaper import Reaper


@click.group(cls=Group, epilog="holdfast workers list")
def workers() -> None:
    """See the workers that run jobs, and forget dead ones."""


@workers.command(
    "list",
    epilog="""
    holdfast workers list
    holdfast workers list --gone --json
    """,
)
@click.option("--gone", is_flag=True, help="Also show workers that stopped or died, with the cause.")
@json_option
def list_(gone: bool, as_json: bool) -> None:
    """Show the workers, oldest first, with their last beat."""
    with opened_store() as store:
        if as_json:
            show_json(insight.worker_views(store, gone=gone))
            return
        found, vanished, now = store.workers(gone=gone), insight.vanished_ids(store), store.now()
    if found:
        show_table(_columns(now, vanished, gone), found)
    else:
        say("No workers. Start one with: holdfast worker APP")


@workers.command(
    epilog="""
    holdfast workers forget box/1
    holdfast workers forget box/1 --by ann
    holdfast workers forget box/1 jobs:app
    holdfast workers forget box/1 --alert-webhook https://hooks.example.org/jobs
    """
)
@click.argument("name", metavar="NAME", type=Text())
@app_argument
@by_option
@import_options
@alert_options
@json_option
def forget(name: str, app: str | None, by: str, as_json: bool, alerts: tuple[Alert, ...]) -> None:
    """Declare a silent worker dead, and recover its jobs.

    For a worker whose death cannot be proved: behind a pooler, or in a restored store. Exits with 5 when there is no
    such worker, with 6 when it still beats.

    With APP (module:name, on its own store unless --db says otherwise) the app's hooks and alerts are notified of held
    and dead jobs; the --alert options need no APP.
    """
    from holdfast.alerts.notifier import tell_once

    hooks, alerts = hooks_and_alerts(app, alerts)
    with opened_store() as store, telling_shown():
        named, now = [worker for worker in store.workers() if worker.name == name], store.now()
        if not named:
            raise NotFound(f"there is no worker {name!r}; see `holdfast workers list`")
        silent = [worker for worker in named if insight.worker_state(worker, now) not in insight.BEATING]
        if not silent:
            raise Refused(f"worker {name} beats; stop its process instead")
        clock = SystemClock()
        reaper = Reaper(store, clock, hooks=hooks, name="forget")
        cause = f"forgotten by {by}"
        recovered = sum(reaper.recover_worker(worker, cause, WorkerExit()).recovered for worker in silent)
        if hooks is not None:
            hooks.flush()
        tell_once(store, clock, alerts, name=f"{socket.gethostname()}:forget", since=now.wall, timeout_s=TELL_S)
    words = f"{clean(name)} forgotten, {recovered} of its jobs recovered"
    show_result(as_json, {"forgotten": len(silent), "recovered": recovered}, words)


def _columns(now: Moment, vanished: Collection[str], gone: bool) -> list[Column]:
    columns = [
        Column("NAME", lambda worker: worker.name, least=12),
        Column("STATE", lambda worker: insight.worker_state(worker, now, vanished), keep=True),
        Column("HOST", lambda worker: worker.host, rank=2),
        Column("PID", lambda worker: worker.pid, right=True, keep=True, rank=1),
        Column("RUNNING", lambda worker: f"{worker.running}/{worker.slots}", right=True, keep=True),
        Column("LAST BEAT", lambda worker: f"{insight.brief(now.wall - worker.beat_at)} ago", right=True, keep=True),
        Column("MEMORY", lambda worker: worker.rss_mb and f"{worker.rss_mb:.0f} MB", right=True, keep=True, rank=3),
        Column("QUEUES", lambda worker: ", ".join(worker.queues), rank=4),
    ]
    if gone:
        columns.append(Column("CAUSE", insight.gone_cause, rank=5, grows=True, below=True))
    return columns
