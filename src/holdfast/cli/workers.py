"""`holdfast workers`: see who runs jobs, drain and stop them from anywhere, and forget who is dead."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection

import click

from holdfast import insight
from holdfast.acts.workers import forget_workers, order_workers, resume_workers
from holdfast.alerts import Alert
from holdfast.cli.alerts import TELL_S, alert_options, hooks_and_alerts, telling_shown
from holdfast.cli.base import Group, say, show_result
from holdfast.cli.completing import complete_worker
from holdfast.cli.loading import import_options, opened_store
from holdfast.cli.output import Column, clean, show_json, show_table
from holdfast.cli.types import Text, app_argument, json_option, person_options
from holdfast.cli.worker_page import tell_workers
from holdfast.clock import SystemClock
from holdfast.core.records import Moment, OrderAct, Worker
from holdfast.core.text import counted, listed
from holdfast.errors import NotFound
from holdfast.stores.rounds import together
from holdfast.upkeep.reaper import Reaper


@click.group(cls=Group, epilog="holdfast workers list")
def workers() -> None:
    """See, drain, stop and resume workers; forget dead ones."""


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
        found, vanished, now = together(
            lambda: store.workers(gone=gone), lambda: insight.vanished_ids(store), store.now
        )
    if found:
        show_table(_columns(now, vanished, gone, released=any(each.release for each in found)), found)
    else:
        say("No workers. Start one with: holdfast worker APP")


@workers.command(
    epilog="""
    holdfast workers show box
    holdfast workers show box/1 --json
    """
)
@click.argument("name", metavar="NAME", type=Text(), shell_complete=complete_worker)
@json_option
def show(name: str, as_json: bool) -> None:
    """Show what a worker runs, ended last and logged, as of its last beat.

    NAME is a worker or a supervisor with its children. If none of them is alive, the one that has gone last is shown.
    Exits with 5 when no worker of that name is known.
    """
    with opened_store() as store:
        reports = insight.worker_reports(store, name)
    if not reports:
        raise NotFound(f"there is no worker {name!r}; see `holdfast workers list --gone`")
    if as_json:
        show_json(reports)
    else:
        tell_workers(reports)


def _act_options(command: Callable[..., None]) -> Callable[..., None]:
    return click.argument("name", metavar="NAME", type=Text(), shell_complete=complete_worker)(
        person_options(json_option(command))
    )


@workers.command(
    epilog="""
    holdfast workers drain box
    holdfast workers drain box/1 --by ann --note "a new kernel"
    """
)
@_act_options
def drain(name: str, by: str, note: str | None, as_json: bool) -> None:
    """Ask workers to claim nothing more; what runs goes on.

    NAME is a worker, or a supervisor with its children. They obey with their next beat. It stands until
    `holdfast workers resume NAME`, also for workers that are started again. Exits with 5 when no worker of that name is
    known.
    """
    _order(name, "drain", by, note, as_json=as_json)


@workers.command(
    epilog="""
    holdfast workers stop box
    holdfast workers stop box --by ann --note "the host moves"
    """
)
@_act_options
def stop(name: str, by: str, note: str | None, as_json: bool) -> None:
    """Ask workers to leave: as SIGTERM would, from anywhere.

    They claim nothing more, let what runs end within their grace period, give the rest back, and exit with 0. A worker
    that is started again claims nothing until `holdfast workers resume NAME`. Exits with 5 when no worker of that name
    is known.
    """
    _order(name, "stop", by, note, as_json=as_json)


@workers.command(
    epilog="""
    holdfast workers resume box
    """
)
@_act_options
def resume(name: str, by: str, note: str | None, as_json: bool) -> None:
    """Let workers claim again that were asked to drain or to stop.

    For a supervisor it resumes its children too. Exits with 5 when nothing was asked of that name, with 6 when it was
    asked of the supervisor.
    """
    with opened_store() as store:
        taken = resume_workers(store, name, by, note)
    words = f"{listed([clean(each) for each in taken])} may claim jobs again; they obey with their next beat"
    show_result(as_json, {"resumed": taken}, words)


def _order(name: str, act: OrderAct, by: str, note: str | None, *, as_json: bool) -> None:
    with opened_store() as store:
        reached = order_workers(store, name, act, by, note)
    beat_s = max((worker.beat_s for worker in reached), default=0.0)
    until = f"it stands until: holdfast workers resume {clean(name)}"
    obey = f"{counted(len(reached), 'worker')} will {act} within {2 * beat_s:g} s" if reached else "none is alive now"
    data = {"name": name, "act": act, "workers": [worker.name for worker in reached]}
    show_result(as_json, data, f"{clean(name)}: {obey}; {until}")


@workers.command(
    epilog="""
    holdfast workers forget box/1
    holdfast workers forget box/1 --note "its host burned"
    holdfast workers forget box/1 jobs:app
    holdfast workers forget box/1 --alert-webhook https://hooks.example.org/jobs
    """
)
@click.argument("name", metavar="NAME", type=Text(), shell_complete=complete_worker)
@app_argument
@person_options
@import_options
@alert_options
@json_option
def forget(name: str, app: str | None, by: str, note: str | None, as_json: bool, alerts: tuple[Alert, ...]) -> None:
    """Declare a silent worker dead, and recover its jobs.

    For a worker whose death cannot be proved: behind a pooler, or in a restored store. Exits with 5 when there is no
    such worker, with 6 when it still beats.

    With APP (module:name, on its own store unless --db says otherwise) the app's hooks and alerts are notified of held
    and dead jobs; the --alert options need no APP.
    """
    from holdfast.alerts.notifier import tell_once

    hooks, alerts = hooks_and_alerts(app, alerts)
    with opened_store() as store, telling_shown():
        clock, since = SystemClock(), store.now().wall
        silent = insight.silent_workers(store, name)
        recovered = forget_workers(store, Reaper(store, clock, hooks=hooks, name="forget"), silent, by, note)
        if hooks is not None:
            hooks.flush()
        tell_once(
            store, clock, alerts, name=f"{socket.gethostname()}:forget", since=since, timeout_s=TELL_S, looks=False
        )
    words = f"{clean(name)} forgotten, {recovered} of its jobs recovered"
    show_result(as_json, {"forgotten": len(silent), "recovered": recovered}, words)


def _asked(worker: Worker) -> str | None:
    order = worker.order
    if order is None:
        return None
    why = f": {order.note}" if order.note else ""
    return f"to {order.act} by {order.actor or '-'}{why}"


def _columns(now: Moment, vanished: Collection[str], gone: bool, *, released: bool) -> list[Column]:
    columns = [
        Column("NAME", lambda worker: worker.name, least=12),
        Column("STATE", lambda worker: insight.worker_state(worker, now, vanished), keep=True, coloured=True),
        Column("HOST", lambda worker: worker.host, rank=2),
        Column("PID", lambda worker: worker.pid, right=True, keep=True, rank=1),
        Column("RUNNING", lambda worker: f"{worker.running}/{worker.slots}", right=True, keep=True),
        Column("LAST BEAT", lambda worker: f"{insight.brief(now.wall - worker.beat_at)} ago", right=True, keep=True),
        Column("MEMORY", lambda worker: worker.rss_mb and f"{worker.rss_mb:.0f} MB", right=True, keep=True, rank=3),
        Column("QUEUES", lambda worker: ", ".join(worker.queues), rank=4),
    ]
    if released:
        columns.append(Column("RELEASE", lambda worker: worker.release, rank=2, least=8))
    columns.append(Column("ASKED", _asked, rank=5, grows=True, below=True))
    if gone:
        columns.append(Column("CAUSE", insight.gone_cause, rank=5, grows=True, below=True))
    return columns
