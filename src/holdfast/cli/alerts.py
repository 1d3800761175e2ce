"""`holdfast alerts`: try the channels; and the options by which commands that have no App take them."""

from __future__ import annotations

import functools
import logging
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast, get_args, get_type_hints

import click

from holdfast.alerts import Alert, declare
from holdfast.alerts.messages import WebhookForm, a_test
from holdfast.alerts.rules import KINDS, ThresholdOptions
from holdfast.cli.base import Command, Group, settings
from holdfast.cli.loading import import_options, named_app, own_app
from holdfast.cli.logs import LOG_FORMAT, log_to_stderr
from holdfast.cli.output import Column, show_json, show_table
from holdfast.cli.types import ParamType, Text, WordList, app_argument, json_option, options, shared_option
from holdfast.clock import SystemClock
from holdfast.errors import UsageError
from holdfast.runtime.hooks import Hooks

SECRET = "HOLDFAST_ALERT_SECRET"  # noqa: S105  the name of a variable: what is secret has no place among the arguments
TELL_S = 30.0  # how long the channels may take, for a command that ends

_COLUMNS = [
    Column("CHANNEL", lambda row: row["channel"], keep=True),
    Column("TOLD", lambda row: "yes" if row["told"] else "NO", keep=True),
    Column("WHAT HAPPENED", lambda row: row["what"], least=20),
]


class Limit(ParamType):
    """A limit of an alert and its number, such as zombies_max=50."""

    name = "name=number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        name, _, number = str(value).partition("=")
        if name not in ThresholdOptions.__annotations__:
            self.fail(f"{value!r} names none of {', '.join(ThresholdOptions.__annotations__)}", param, ctx)
        try:
            return name, float(number) if get_type_hints(ThresholdOptions)[name] is float else int(number)
        except ValueError:
            self.fail(f"{value!r} has no number behind the =", param, ctx)


_flags = options(
    shared_option("--alert-log", is_flag=True, help="Write alerts to the log."),
    shared_option(
        "--alert-command",
        type=Text(),
        metavar="WORDS",
        help="Send alerts to this program, without a shell; JSON on its stdin.",
    ),
    shared_option(
        "--alert-webhook",
        type=Text(),
        metavar="URL",
        help=f"Send alerts to this https address; signed with ${SECRET}, if that is set.",
    ),
    shared_option("--alert-private", is_flag=True, help="The webhook may be on a private network or on this machine."),
    shared_option(
        "--alert-form",
        type=click.Choice(get_args(WebhookForm)),
        help="The form of the webhook's requests: json (the default), or slack, for Slack, Mattermost and the like.",
    ),
    shared_option("--alert-on", type=WordList(KINDS), metavar="A,B", help=f"Only these of: {', '.join(KINDS)}."),
    shared_option(
        "--alert-limit",
        type=Limit(),
        multiple=True,
        metavar="NAME=NUMBER",
        help=f"Change a limit; may be repeated. One of: {', '.join(ThresholdOptions.__annotations__)}.",
    ),
)


def alert_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Take an alert on the command line, and pass it on as one argument `alerts`: this one, or none."""

    @_flags
    @functools.wraps(command)
    def run(**given: Any) -> Any:
        declared = {name: given.pop(name) for name in list(given) if name.startswith("alert_")}
        return command(alerts=alerts_of(declared), **given)

    return run


def hooks_and_alerts(app: str | None, alerts: tuple[Alert, ...]) -> tuple[Hooks | None, tuple[Alert, ...]]:
    """Return the hooks of the App that a command was given, if any, and all alerts: the App's and the options'."""
    found = own_app(app)
    return (None, alerts) if found is None else (found.hooks, (*found.alerts, *alerts))


def alerts_of(given: dict[str, Any]) -> tuple[Alert, ...]:
    """Return the alert that these options declare, or none."""
    log, command, webhook = given["alert_log"], given["alert_command"], given["alert_webhook"]
    if not (log or command or webhook):
        for name in ("alert_private", "alert_form", "alert_on", "alert_limit"):
            if given[name]:
                raise UsageError(f"--{name.replace('_', '-')} needs --alert-log, --alert-command or --alert-webhook")
        return ()
    try:
        words = shlex.split(command or "")
    except ValueError as error:
        raise UsageError(f"--alert-command cannot be read as words: {error}") from None
    if command and not words:
        raise UsageError("--alert-command names no program")
    secret = os.environ.get(SECRET) if webhook else None
    declared = declare(
        log=log,
        command=words,
        webhook=webhook,
        secret=secret or None,
        private=given["alert_private"],
        form=given["alert_form"] if webhook else None,
        on=given["alert_on"],
        limits=cast("ThresholdOptions", dict(given["alert_limit"])),
    )
    return (declared,)


@contextmanager
def telling_shown() -> Iterator[None]:
    """Show on stderr what alerts and hooks log, in a command that shows its log only with -v."""
    if settings().verbosity > 0:
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    loggers = [logging.getLogger(name) for name in ("holdfast.alerts", "holdfast.hooks")]
    for each in loggers:
        each.addHandler(handler)
    try:
        yield
    finally:
        for each in loggers:
            each.removeHandler(handler)


@click.group(
    cls=Group,
    epilog="""
    holdfast alerts test jobs:app
    """,
)
def alerts() -> None:
    """Test the channels that notify people of trouble."""


@alerts.command(
    cls=Command,
    epilog="""
    holdfast alerts test jobs:app
    holdfast alerts test --alert-webhook https://hooks.example.org/jobs
    holdfast alerts test --alert-command "notify --urgent" --json
    """,
)
@app_argument
@import_options
@alert_options
@json_option
@click.pass_context
def test(ctx: click.Context, app: str | None, as_json: bool, alerts: tuple[Alert, ...]) -> None:
    """Send a test message through each channel, once, and say what happened.

    The channels are those of APP (module:name) and those of the options. No store is opened. Ends with 1 if a channel
    did not take the message.
    """
    url = settings().db
    if app is not None:
        found = named_app(app)
        alerts, url = (*found.alerts, *alerts), found.url
    channels = {channel.identity: channel for alert in alerts for channel in alert.channels}
    if not channels:
        raise UsageError("there is no channel to try: name an APP that calls app.alert(…), or use --alert-webhook")
    log_to_stderr(logging.INFO)
    message = a_test(SystemClock().wall())
    rows = []
    for channel in channels.values():
        sent = channel.send(message, url)
        rows.append({"channel": channel.name, "told": sent.told, "what": sent.words})
    if as_json:
        show_json(rows)
    else:
        show_table(_COLUMNS, rows)
    ctx.exit(0 if all(row["told"] for row in rows) else 1)
