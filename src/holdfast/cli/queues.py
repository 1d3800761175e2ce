"""`holdfast queues`: see, pause and resume queues."""

from __future__ import annotations

from typing import Any

import click

from holdfast import insight
from holdfast.cli.base import Group, acknowledge, say
from holdfast.cli.loading import opened_store
from holdfast.cli.output import Column, clean, show_json, show_table
from holdfast.cli.types import Text, json_option


@click.group(cls=Group, epilog="holdfast queues list")
def queues() -> None:
    """See, pause and resume queues."""


def _now(queue: dict[str, Any]) -> str:
    if queue["paused"]:
        return "paused"
    if not queue["served"]:
        return "no worker"
    return "task unserved" if queue["unserved"] else "open"


_COLUMNS = [
    Column("QUEUE", lambda queue: queue["queue"], least=12),
    Column("NOW", _now, keep=True),
    *(
        Column(state.upper(), lambda queue, state=state: queue[state], right=True, keep=True, rank=rank)  # type: ignore[misc]
        for state, rank in (("ready", 0), ("running", 0), ("waiting", 4), ("held", 1), ("done", 3), ("dead", 2))
    ),
    Column(
        "OLDEST DUE",
        lambda queue: None if queue["oldest_due_s"] is None else insight.brief(queue["oldest_due_s"]),
        right=True,
        keep=True,
    ),
]
_UNSERVED = Column("NO WORKER HAS", lambda queue: ", ".join(queue["missing"]) or None, least=16)


@queues.command(
    "list",
    epilog="""
    holdfast queues list
    holdfast queues list --json
    """,
)
@json_option
def list_(as_json: bool) -> None:
    """Show every queue, with its jobs by state.

    OLDEST DUE is how long the oldest due job has waited. NO WORKER HAS names tasks of due jobs that no living worker
    has."""
    with opened_store() as store:
        views = insight.queue_views(store)
    if as_json:
        show_json(views)
    elif views:
        missing = any(queue["missing"] for queue in views)
        show_table([*_COLUMNS, _UNSERVED] if missing else _COLUMNS, views)
        if missing:
            say("Start a worker of the code that has the task, or declare it again under its old name.")
    else:
        say("There are no queues yet; the first job makes one.")


@queues.command(epilog="holdfast queues pause mail media")
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True, type=Text())
@json_option
def pause(names: tuple[str, ...], as_json: bool) -> None:
    """Stop claims from queues. Running jobs continue; new jobs are kept."""
    _set(names, True, as_json)


@queues.command(epilog="holdfast queues resume mail")
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True, type=Text())
@json_option
def resume(names: tuple[str, ...], as_json: bool) -> None:
    """Let workers claim from queues again."""
    _set(names, False, as_json)


def _set(names: tuple[str, ...], paused: bool, as_json: bool) -> None:
    with opened_store() as store:
        known = {view["queue"] for view in insight.queue_views(store)}
        for name in dict.fromkeys(names):
            store.pause(name, paused)
            if not as_json:
                acknowledge(f"{clean(name)} {'paused' if paused else 'resumed'}")
            if name not in known:
                say(f"No job has used the queue {clean(name)} yet; is the name right?")
    if as_json:
        show_json([{"queue": name, "paused": paused} for name in dict.fromkeys(names)])
