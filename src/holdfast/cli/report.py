"""`holdfast report`: one file about an incident, for people who were not there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from holdfast import insight
from holdfast.cli.base import Command, acknowledge
from holdfast.cli.loading import opened_store
from holdfast.cli.output import show_json
from holdfast.cli.report_page import report_page
from holdfast.cli.types import json_option, since_option
from holdfast.errors import UsageError


@click.command(
    cls=Command,
    epilog="""
    holdfast report --since 2h -o report.html
    holdfast report --since 14:00 -o report.html
    holdfast report --since 12h --json | jq .lost.decisions
    """,
)
@since_option("How far to look back: 2h, 14:00, or an ISO instant.", "2h")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write this file, which must be new."
)
@json_option
def report(since: Callable[[float], float], output: Path | None, as_json: bool) -> None:
    """Write a report of what went wrong, as one HTML file.

    It shows what died, how it was found and how fast, what was held, the errors over time, the acts of people, versions
    and settings. The file loads nothing from elsewhere and has no script, so it can be attached to an incident. It has
    no arguments and no results of jobs, but the texts of errors. Without -o it goes to stdout.
    """
    with opened_store() as store:
        view = insight.incident_view(store, partial(_instant, since))
    if as_json:
        show_json(view)
        return
    page = report_page(view)
    if output is None:
        click.echo(page, nl=False)
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(page)
    except FileExistsError:
        raise UsageError(f"{output} is there already; choose another name, or remove it") from None
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}") from None
    acknowledge(f"wrote {output}")


def _instant(since: Callable[[float], float], now: float) -> float:
    instant = since(now)
    if instant >= now:
        raise UsageError("--since must be in the past")
    return instant
