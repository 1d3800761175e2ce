"""`holdfast worker`: run jobs."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

import click

from holdfast.alerts import Alert
from holdfast.app import App
from holdfast.cli.alerts import alert_options
from holdfast.cli.base import Command, settings
from holdfast.cli.loading import import_options, named_app, wanted_modules
from holdfast.cli.logs import log_to_stderr
from holdfast.cli.types import Duration, F, Text, WordList, grace_option, log_format_option, shared_option
from holdfast.clock import pause
from holdfast.core.text import listed
from holdfast.errors import StoreError, is_final
from holdfast.runtime.store_backoff import StoreBackoff


def _number(flag: str, default: int, words: str, unit: str = "N") -> Callable[[F], F]:
    return click.option(flag, type=click.IntRange(1), metavar=unit, default=default, show_default=True, help=words)


@click.command(
    cls=Command,
    epilog="""
    holdfast worker jobs:app
    holdfast worker jobs:app --queues mail,media --slots 8 --processes 2
    holdfast worker shop.app:app --import shop.mail --discover shop.parts
    HOLDFAST_WORKER_SLOTS=8 holdfast worker jobs:app --db sqlite:///jobs.db
    """,
)
@click.argument("app", metavar="APP", type=Text())
@import_options
@click.option(
    "--queues",
    type=WordList(),
    metavar="A,B",
    default=(),
    help="Serve only these.  [default: all that the app's tasks name]",
)
@_number("--slots", 20, "Jobs at once, per process.")
@_number("--processes", 1, "Worker processes.")
@click.option("--name", type=Text(), help="A name that stays over restarts.  [default: the host's name]")
@shared_option(
    "--release", type=Text(), help="The release of your code, for errors and crashes.  [env: HOLDFAST_RELEASE]"
)
@click.option(
    "--grace-period",
    "grace_period_s",
    type=Duration(),
    default="30s",
    metavar="TIME",
    show_default=True,
    help="How long running jobs may finish after SIGTERM; the rest is given back.",
)
@grace_option
@click.option("--isolate", is_flag=True, help="Run every job in a process of its own, not only where its task asks.")
@_number("--recycle-jobs", 1000, "Replace such a process after this many jobs.")
@_number("--recycle-mb", 1024, "Replace such a process when it uses this much memory after a job.", "MB")
@click.option("--no-reaper", is_flag=True, help="Leave the recovery of lost jobs to others.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    show_default=True,
    help="How much to log, on stderr.",
)
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), metavar="PORT", help="Answer /metrics; 0: any free port."
)
@click.option(
    "--metrics-host", type=Text(), default="127.0.0.1", show_default=True, help="The address for --metrics-port."
)
@log_format_option
@alert_options
@click.pass_context
def worker(
    ctx: click.Context, /, app: str, alerts: tuple[Alert, ...], no_reaper: bool, log_level: str, **given: Any
) -> None:
    """Run jobs.

    APP is module:name, imported with the current folder on the path. Its tasks are those that are declared when that
    module, and those of --import and --discover, are loaded.

    SIGTERM, SIGHUP or Ctrl-C ends it gracefully: no new jobs,
    running ones may finish within the grace period, the rest is given back. A second one gives everything back at once.
    """
    from holdfast.continuity import SUPERVISOR, SUPERVISOR_LOOK_S, Watcher
    from holdfast.core.child_exit import EXIT_REPLACED
    from holdfast.worker.fleet_services import fleet_services
    from holdfast.worker.launch import Launch
    from holdfast.worker.options import WorkerOptions
    from holdfast.worker.supervisor import supervise

    launch = Launch.now()
    common = settings()
    common.serves = True
    if common.verbosity:
        log_level = "debug" if common.verbosity > 0 else "error"
    found = named_app(app)
    found.alerts = (*found.alerts, *alerts)
    options = WorkerOptions(**given, reaper=not no_reaper, imports=wanted_modules(), log_level=log_level.lower())
    who = options.name or socket.gethostname()
    log_to_stderr(options.log_level.upper(), options.log_format, who)
    _warn_of_strange_queues(found, app, options.queues)
    with found:
        _open(found)
        watcher = Watcher(found.store, found.clock, who, SUPERVISOR, SUPERVISOR_LOOK_S)
        with watcher, fleet_services(found, who):
            code = supervise(app, found, options, launch)
    if code == EXIT_REPLACED:
        launch.start_again()
    ctx.exit(code)


def _open(app: App) -> None:
    """Wait until the store can be opened, as a worker does later in its life; raise if its address can never work."""
    backoff = StoreBackoff(logging.getLogger("holdfast.supervisor"), app.clock, "the worker starts when it is back")
    while True:
        try:
            app.store.schema()
            backoff.recovered()
            return
        except StoreError as error:
            if is_final(error):
                raise
            pause(backoff.failed(error))


def _warn_of_strange_queues(app: App, ref: str, queues: Sequence[str]) -> None:
    """Say, once and before the first claim, which of the wanted queues is perhaps a slip of the hand."""
    named = sorted({task.queue for task in app.tasks.values()})
    for queue in queues:
        if queue not in named:
            logging.getLogger("holdfast.worker").warning(
                "queue %r is not named by any task of %s; it is served, but gets only jobs that were enqueued to it by "
                "name. The named queues: %s",
                *(queue, ref, listed(named, 10) or "none"),
            )
