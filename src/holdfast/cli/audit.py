"""`holdfast audit`: what people did, when, on what, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from holdfast import insight
from holdfast.cli.base import Command, acknowledge, say
from holdfast.cli.loading import opened_store
from holdfast.cli.output import Column, json_line, show_json, show_table
from holdfast.cli.types import Text, json_option, limit_option, since_option
from holdfast.core.audit import Act


@click.command(
    cls=Command,
    epilog="""
    holdfast audit
    holdfast audit --by ann --since 2h
    holdfast audit --since 14:00 --json | jq -r '.[] | [.at, .by, .act] | @tsv'
    """,
)
@click.option("--by", type=Text(), help="Only the acts of this person.")
@since_option("Only acts since then: 2h, 14:00, or an ISO instant.")
@click.option("--before", type=click.IntRange(0), metavar="SEQ", help="Show the page after this act.")
@limit_option
@json_option
def audit(
    by: str | None, since: Callable[[float], float] | None, before: int | None, limit: int, as_json: bool
) -> None:
    """See what people did, when and why.

    Newest first: acts on jobs, queues, schedules, workers, tokens and the store itself. Programs that act are shown by
    the name that they gave, "app" by default. The acts on a job are deleted with the job; the deletion is kept.
    """
    with opened_store() as store:
        instant = None if since is None else since(store.now().wall)
        found = insight.acts_of_people(store, instant, by, limit, before)
    if as_json:
        show_json([insight.act_view(act) for act in found])
    elif not found:
        acknowledge("No acts of people.")
    else:
        show_table(_COLUMNS, found)
        if len(found) == limit:
            say(f"Perhaps there are more: add --before {found[-1].seq}, or a larger --limit.")


def _on(act: Act) -> str:
    """Name the thing that the act was on."""
    if act.job_id is not None:
        return act.job_id
    return f"{act.about} {act.name}" if act.name is not None else str(act.about)


def _detail(act: Act) -> str | None:
    """Write the rest of what the journal says, in short."""
    left = {name: value for name, value in act.detail.items() if name != act.about and value not in (None, [], {})}
    words = [f"{name} {_short(value)}" for name, value in left.items() if name != "ids"]
    return ", ".join([*([act.note] if act.note else []), *words]) or None


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json_line(value)


_COLUMNS = [
    Column("AT", lambda act: insight.moment(act.at), keep=True),
    Column("BY", lambda act: act.actor, least=8),
    Column("ACT", lambda act: act.act, keep=True),
    Column("ON", _on, least=36),
    Column("WHY", _detail, least=16, grows=True, below=True),
]
