"""`holdfast scan`: one pass of the reaper, from cron or by hand."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import click

from holdfast import insight
from holdfast.alerts import Alert
from holdfast.cli.alerts import TELL_S, alert_options, hooks_and_alerts, telling_shown
from holdfast.cli.base import Command, acknowledge, is_quiet, say
from holdfast.cli.exit_codes import Exit
from holdfast.cli.loading import import_options, opened_store
from holdfast.cli.output import Column, Progress, is_watched, show_json, show_table
from holdfast.cli.types import app_argument, grace_option, json_option
from holdfast.clock import SystemClock
from holdfast.core.text import listed

_ROWS_MAX = 50  # of the table; a person reads no more

# The decision about a zombie, as a person would say it.
_DECISIONS = {"retry": "run again", "hold": "hold", "bury": "give up", "undo": "roll back", "cancel": "cancel"}
_NOT_RETRIED = {"held": "held", "dead": "dead", "rolled_back": "sent to roll back"}

_COLUMNS = [
    Column("ID", lambda zombie: zombie["id"], keep=True),
    Column("TASK", lambda zombie: zombie["task"], keeps_end=True),
    Column("WORKER", lambda zombie: zombie["worker"], rank=2),
    Column("FOUND BY", lambda zombie: zombie["detector"], rank=1),
    Column("CRASHES", lambda zombie: zombie["crashes"], right=True, rank=3),
    Column("DECISION", lambda zombie: _DECISIONS.get(zombie["decision"], zombie["decision"]), least=9),
]


@click.command(
    cls=Command,
    epilog="""
    holdfast scan
    holdfast scan --fix
    holdfast scan --fix --json --grace 10
    holdfast scan jobs:app --fix
    holdfast scan --fix --alert-webhook https://hooks.example.org/jobs
    holdfast scan --check || alert "jobs lost their worker"
    """,
)
@app_argument
@click.option("--fix", is_flag=True, help="Recover what is found. Without it nothing is changed.")
@click.option("--check", is_flag=True, help="Exit with 7 when something was found.")
@grace_option
@import_options
@alert_options
@json_option
@click.pass_context
def scan(
    ctx: click.Context,
    app: str | None,
    fix: bool,
    check: bool,
    grace_s: float,
    as_json: bool,
    alerts: tuple[Alert, ...],
) -> None:
    """Find jobs whose worker died; recover them with --fix.

    This is one pass of the reaper. It needs none of your code: a job's on_crash policy is stored when it is enqueued.
    Any number of scans may run at once, also while workers run.

    With APP (module:name, on its own store unless --db says otherwise) the app's hooks and alerts are notified of held
    and dead jobs; the --alert options need no APP.
    """
    from holdfast.alerts.notifier import tell_once
    from holdfast.upkeep.reaper import reap, suspected

    hooks, alerts = hooks_and_alerts(app, alerts)
    with opened_store() as store, telling_shown():
        shown = fix and is_watched() and not as_json and not is_quiet()
        with Progress("recovering", suspected(store, grace_s) if shown else 0) as progress:
            since, clock = store.now().wall, SystemClock()
            report = reap(store, clock, hooks=hooks, grace_s=grace_s, fix=fix, on_settled=progress.advance)
        tell_once(store, clock, alerts, name=f"{socket.gethostname()}:scan", since=since, timeout_s=TELL_S, looks=fix)
        view = insight.scan_view(report, store.now(), fixed=fix)
        locked = insight.locked_rows(store)
    if as_json:
        show_json(view)
    else:
        _show(view, fix)
        if locked:
            say(
                f"Another transaction has locked the row of {listed([job.id for job in locked], 3)}, so no lease is "
                'renewed and no result saved there. To find it: docs/postgresql.md, "Locks of others".'
            )
    if check and view["zombies_found"]:
        ctx.exit(Exit.UNHEALTHY)


def _show(view: dict[str, Any], fixed: bool) -> None:
    found = view["zombies_found"]
    if not found:
        acknowledge("No zombies: every running job has a living worker.")
        return
    show_table(_COLUMNS, view["zombies"][:_ROWS_MAX])
    if found > _ROWS_MAX:
        click.echo(f"… and {found - _ROWS_MAX:,} more; `--json` lists all")
    jobs = insight.counted(found, "job")
    if not fixed:
        theirs = "its" if found == 1 else "their"
        say(f"{jobs} lost {theirs} worker. Nothing was changed; to recover: holdfast scan --fix")
        return
    parts = [f"{view[key]} {words}" for key, words in _NOT_RETRIED.items() if view[key]]
    text = f"{view['zombies_recovered']} of {jobs} recovered"
    text += f", of these {', '.join(parts)}" if parts else ""
    text += "".join(f"; {reason}" for reason in _not_recovered(view))
    say(f"{text}." + (" To decide: holdfast held list" if view["held"] else ""))


def _not_recovered(view: dict[str, Any]) -> Iterator[str]:
    """Say of the jobs that were found and are as they were why that is so."""
    locked = view["zombies_locked"]
    failed = sum(zombie["answer"] is None for zombie in view["zombies"])
    if locked:
        rows = "1 row is" if locked == 1 else f"{locked} rows are"
        yield f"{rows} locked by another transaction and left for the next pass"
    if failed:
        yield f"{failed} could not be settled: the log says why"
    if others := view["zombies_found"] - view["zombies_recovered"] - locked - failed:
        yield f"{others} had been settled or renewed by another process"
