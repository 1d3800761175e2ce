"""`holdfast status`: what is broken right now, on one screen."""

from __future__ import annotations

from typing import Any

import click

from holdfast import insight
from holdfast.cli.base import Command
from holdfast.cli.exit_codes import Exit
from holdfast.cli.loading import opened_store
from holdfast.cli.output import bold, dim, paragraph, show_json, styled
from holdfast.cli.types import json_option

_STYLES = {"lost": "dead", "stopped": "dead", "late": "held", "failing": "held", "waiting": "waiting"}
_WIDE = max(map(len, _STYLES)) + 2


@click.command(
    cls=Command,
    epilog="""
    holdfast status
    holdfast status --json | jq -r '.troubles[].command'
    holdfast status -q || mail -s 'holdfast is unhealthy' ops@example.org
    """,
)
@json_option
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """See what is broken right now, the worst first.

    Shows the health in words, then each trouble with the command that shows more of it: lost work, jobs that no worker
    runs, queues that are behind, late schedules, silent workers, jobs that died in the last hour, and jobs that wait
    for a person. Below that are the most frequent errors of the last hour and what people changed.
    `holdfast doctor` looks at settings too.

    Exits with 7 when something is broken.
    """
    with opened_store() as store:
        view = insight.status_view(store)
    if as_json:
        show_json(view)
    else:
        _show(view)
    if not view["healthy"]:
        ctx.exit(Exit.UNHEALTHY)


def _show(view: dict[str, Any]) -> None:
    click.echo(bold(styled(view["summary"], "done" if view["healthy"] else "dead")))
    for trouble in view["troubles"]:
        head = styled(f"{trouble['harm']:<{_WIDE}}", _STYLES[trouble["harm"]])
        paragraph(trouble["text"], head, " " * _WIDE)
        paragraph(trouble["command"], " " * _WIDE + dim("see: "), " " * (_WIDE + 5))
    click.echo()
    jobs = ", ".join(f"{number:,} {state}" for state, number in view["jobs"].items() if number) or "none"
    workers = ", ".join(f"{number} {state}" for state, number in view["workers"].items()) or "none"
    paragraph(jobs, bold("jobs     "), " " * 9)
    click.echo(f"{bold('rates')}    {view['in_per_s']:.3g} in, {view['out_per_s']:.3g} out per second, in 5 minutes")
    paragraph(workers, bold("workers  "), " " * 9)
    if view["errors"]:
        click.echo(bold("errors of the last hour"))
        for error in view["errors"]:
            on = f"; on release {', '.join(error['releases'])}" if error["releases"] else ""
            text = f"{error['task']}: {error['message']}; since {error['first_seen'][11:16]}Z{on}"
            paragraph(text, f"  {error['attempts']:>6,}  ", " " * 10)
    if view["lost"]:
        click.echo(f"{insight.counted(view['lost'], 'attempt')} lost their worker in the last hour: holdfast zombies")
    if view["changes"]:
        click.echo(bold("changes of the last hour"))
        for change in view["changes"][-8:]:
            paragraph(change["text"], f"  {change['at'][11:16]}  ", " " * 9)
