"""`holdfast reaper`: the reaper as a program of its own."""

from __future__ import annotations

import logging
import os
import socket

import click

from holdfast.alerts import Alert
from holdfast.cli.alerts import alert_options, hooks_and_alerts
from holdfast.cli.base import Command, say, settings
from holdfast.cli.leaving import stopped_by_signals
from holdfast.cli.loading import import_options, opened_store
from holdfast.cli.logs import LogForm, log_to_stderr
from holdfast.cli.types import Duration, app_argument, grace_option, log_format_option
from holdfast.clock import SystemClock

PRUNE_EVERY = 10  # intervals: what ended long ago can wait a little longer


@click.command(
    cls=Command,
    epilog="""
    holdfast reaper
    holdfast reaper --interval 5 --grace 10
    holdfast reaper --ttl 30s --renewal 10s --retry 5s
    holdfast --db sqlite:///jobs.db reaper --name reaper-2
    holdfast reaper jobs:app --keep 7d --keep-dead 90d
    holdfast reaper --alert-webhook https://hooks.example.org/jobs
    """,
)
@app_argument
@grace_option
@click.option(
    "--interval", type=Duration(), default="500ms", metavar="TIME", show_default=True, help="Look at least this often."
)
@click.option("--ttl", type=Duration(), metavar="TIME", help="Take over from a silent replica after this long.")
@click.option("--renewal", type=Duration(), metavar="TIME", help="Renew the duty this often. [default: ttl / 3]")
@click.option("--retry", type=Duration(), metavar="TIME", help="Ask for the duty this often. [default: --interval]")
@click.option("--name", default=None, metavar="NAME", help="Its name in the log. [default: host and pid]")
@click.option(
    "--keep",
    type=Duration(),
    metavar="TIME",
    help="Delete done, cancelled and rolled back jobs this long after they end.",
)
@click.option("--keep-dead", type=Duration(), metavar="TIME", help="Delete dead jobs this long after they end.")
@import_options
@log_format_option
@alert_options
def reaper(
    app: str | None,
    grace_s: float,
    interval: float,
    ttl: float | None,
    renewal: float | None,
    retry: float | None,
    name: str | None,
    keep: float | None,
    keep_dead: float | None,
    log_format: LogForm,
    alerts: tuple[Alert, ...],
) -> None:
    """Recover jobs whose worker died, until it is stopped.

    Workers do this themselves. Run a reaper when they use --no-reaper, or when no worker runs. Several replicas may
    run: one is active under a duty, and another takes over when it dies. SIGTERM gives the duty back. One replica also
    sends the alerts of the whole fleet. With --keep one replica deletes jobs that ended long ago; without it they are
    kept for ever.

    With APP (module:name, on its own store unless --db says otherwise) the app's hooks and alerts are notified, too.
    """
    from holdfast.alerts.notifier import Notifier
    from holdfast.continuity import REAPER, Watcher, check_whole
    from holdfast.core.retention import Retention
    from holdfast.runtime.duties import Election
    from holdfast.runtime.hooks import Hooks
    from holdfast.upkeep.pruner import Pruner
    from holdfast.upkeep.reaper_service import serve
    from holdfast.upkeep.rollup_folder import RollupFolder

    if not 0.05 <= interval <= 3600:
        raise click.BadParameter("must be between 50ms and 1h", param_hint="--interval")
    election = Election.declare(interval, ttl, renewal, retry)
    settings().serves = True
    hooks, alerts = hooks_and_alerts(app, alerts)
    retention = Retention.declare({"done": keep, "cancelled": keep, "rolled_back": keep, "dead": keep_dead})
    who = name or f"{socket.gethostname()}:{os.getpid()}"
    log_to_stderr(logging.INFO, log_format, who)
    with opened_store() as store:
        check_whole(store)
        stop, clock = stopped_by_signals(), SystemClock()
        hooks = hooks or Hooks()
        pruner = Pruner(store, clock, retention, hooks=hooks, name=who, interval_s=PRUNE_EVERY * interval)
        folder = RollupFolder(store, clock, hooks=hooks, name=who)
        with Watcher(store, clock, who, REAPER), Notifier(store, clock, alerts, name=who), pruner, folder:
            settled = serve(
                *(store, clock, stop), hooks=hooks, name=who, grace_s=grace_s, interval_s=interval, election=election
            )
    if log_format == "json":
        logging.getLogger("holdfast.reaper").info("settled %d lost attempts", settled)
    else:
        say(f"settled {settled} lost attempts")
