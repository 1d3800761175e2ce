"""The page of one worker: `holdfast workers show`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from holdfast import insight
from holdfast.cli.output import Column, bold, clean, paragraph, show_table, styled

_ENDINGS = [
    Column("ENDED", lambda ended: ended["at"][11:19], keep=True),
    Column("JOB", lambda ended: ended["id"], keep=True),
    Column("OUTCOME", lambda ended: ended["outcome"], keep=True),
    Column("TOOK", lambda ended: None if ended["took_s"] is None else insight.brief(ended["took_s"]), right=True),
    Column("NOW", lambda ended: ended["state"], keep=True, coloured=True, rank=1),
    Column("TASK", lambda ended: ended["task"], keeps_end=True, grows=True, rank=2),
]
_RUNNING = [
    Column("RUNS", lambda job: job["id"], keep=True),
    Column("ATTEMPT", lambda job: job["attempt"], right=True, keep=True),
    Column("TASK", lambda job: job["task"], keeps_end=True, grows=True),
]


def tell_workers(reports: Sequence[dict[str, Any]]) -> None:
    """Print what each worker runs, ended last and logged."""
    for number, report in enumerate(reports):
        if number:
            click.echo()
        _tell(report)


def _tell(report: dict[str, Any]) -> None:
    state = styled(report["state"])
    click.echo(f"{bold(clean(report['name']))}  {state}  {clean(report['host'])}  pid {report['pid']}")
    click.echo(f"  id {report['id']}, version {clean(report['version'])}, since {report['started_at']}")
    click.echo(f"  last beat {report['last_beat']}, {report['running']} of {report['slots']} slots in use")
    if (order := report["order"]) is not None:
        why = f": {order['note']}" if order["note"] else ""
        asked = f"asked to {order['act']} by {order['by'] or '-'} at {order['at']}{why}"
        paragraph(asked, "  ", "  ")
    if report["gone_at"] is not None:
        paragraph(f"gone at {report['gone_at']}: {report['gone_cause'] or 'no cause is known'}", "  ", "  ")
    if report["jobs"]:
        show_table(_RUNNING, report["jobs"], "  ")
    if report["endings"]:
        show_table(_ENDINGS, report["endings"], "  ")
    else:
        click.echo("  It has ended no jobs, as of its last beat.")
    if report["log"]:
        click.echo(bold("  LOG"))
        for line in report["log"]:
            paragraph(line, "    ", "      ")
