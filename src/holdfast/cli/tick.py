"""`holdfast tick`: a worker for one call, from cron."""

from __future__ import annotations

import logging
import socket

import click

from holdfast.alerts import Alert
from holdfast.cli.alerts import alert_options
from holdfast.cli.base import Command, acknowledge, settings
from holdfast.cli.loading import import_options, named_app
from holdfast.cli.logs import LogForm, log_to_stderr
from holdfast.cli.output import show_json
from holdfast.cli.types import Duration, Text, WordList, json_option, log_format_option
from holdfast.core.text import counted


@click.command(
    cls=Command,
    epilog="""
    holdfast tick jobs:app
    holdfast tick jobs:app --budget 50s -q
    holdfast tick jobs:app --queues mail,media --slots 4 --json
    """,
)
@click.argument("app", metavar="APP", type=Text())
@click.option(
    "--budget",
    type=Duration(),
    default="25s",
    metavar="TIME",
    show_default=True,
    help="Be done within this time; give back what is not.",
)
@click.option(
    "--queues",
    type=WordList(),
    metavar="A,B",
    default=(),
    help="Serve only these.  [default: all that the app's tasks name]",
)
@click.option("--slots", type=click.IntRange(1), metavar="N", default=20, show_default=True, help="Jobs at once.")
@import_options
@log_format_option
@alert_options
@json_option
def tick(
    app: str,
    budget: float,
    queues: tuple[str, ...],
    slots: int,
    log_format: LogForm,
    alerts: tuple[Alert, ...],
    as_json: bool,
) -> None:
    """Run what is due, within a budget, and end.

    Fires schedules, recovers jobs whose worker died, runs due jobs, sends alerts, and deletes what the app's `keep` no
    longer keeps. For cron, and wherever no worker runs all the time. Any number of ticks may run at once, also while
    workers run. It exits with 0 when it gave jobs back, too: the next tick continues.
    """
    found = named_app(app)
    found.alerts = (*found.alerts, *alerts)
    level = logging.WARNING if settings().verbosity <= 0 else logging.INFO
    log_to_stderr(level, log_format, f"{socket.gethostname()}:tick")
    with found:
        report = found.tick(budget, queues=queues, slots=slots)
    view = {name: getattr(report, name) for name in report.__struct_fields__}
    if as_json:
        show_json(view)
        return
    parts = [counted(report.settled, "attempt settled", "attempts settled")]
    parts += [f"{view[name]} {name}" for name in ("recovered", "fired", "pruned") if view[name]]
    rest = "" if report.finished else "; the budget is spent, and the next tick continues"
    acknowledge(f"{', '.join(parts)}{rest}.")
