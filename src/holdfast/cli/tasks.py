"""`holdfast tasks`: see and forget the tasks that workers have published."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast import insight
from holdfast.acts import store as store_acts
from holdfast.cli.base import Group, acknowledge, say
from holdfast.cli.completing import complete_task
from holdfast.cli.loading import opened_store
from holdfast.cli.output import Column, clean, json_line, show_json, show_table
from holdfast.cli.types import Text, json_option, person_options
from holdfast.errors import NotFound
from holdfast.stores.protocol import Store


@click.group(cls=Group, epilog="holdfast tasks list")
def tasks() -> None:
    """See the tasks that workers have published, and forget old ones."""


_COLUMNS = [
    Column("TASK", lambda view: view["task"], least=12, keeps_end=True),
    Column("QUEUE", lambda view: view["queue"], least=8, rank=1),
    Column("ON CRASH", lambda view: view["on_crash"], keep=True),
    Column("ATTEMPTS", lambda view: view["attempts_max"], right=True, keep=True, rank=3),
    Column("LEASE", lambda view: insight.brief(view["lease_s"]), right=True, keep=True, rank=2),
    Column("WORKERS", lambda view: view["workers"], right=True, keep=True),
    Column("PUBLISHED", lambda view: view["published_at"], rank=4),
]


@tasks.command(
    "list",
    epilog="""
    holdfast tasks list
    holdfast tasks list --json
    """,
)
@json_option
def list_(as_json: bool) -> None:
    """Show every task that a worker has published, with its policy.

    WORKERS counts the living workers that have the task. Jobs that are enqueued by name get the policy shown.
    """
    with opened_store() as store:
        views = insight.task_views(store)
    if as_json:
        show_json(views)
    elif views:
        show_table(_COLUMNS, views)
    else:
        say("No worker has published tasks yet; each publishes its own when it starts.")


@tasks.command(
    epilog="""
    holdfast tasks show billing.charge
    holdfast tasks show billing.charge --json
    """
)
@click.argument("name", metavar="TASK", type=Text(), shell_complete=complete_task)
@json_option
def show(name: str, as_json: bool) -> None:
    """Show the policy and the arguments of a task."""
    with opened_store() as store:
        _check_known(store, [name])
        [view] = insight.task_views(store, [name])
    if as_json:
        show_json(view)
        return
    for word in (
        "task",
        "queue",
        "priority",
        "on_crash",
        "attempts_max",
        "crashes_max",
        "key",
        "published_at",
        "workers",
    ):
        if view[word] is not None:
            click.echo(f"{word.replace('_', ' ')}: {clean(str(view[word]))}")
    for word in ("lease_s", "beat_s", "timeout_s", "stall_s"):
        if view[word] is not None:
            click.echo(f"{word.removesuffix('_s')}: {insight.brief(view[word])}")
    properties = view["arguments"].get("properties", {})
    click.echo("arguments:" if view["parameters"] else "arguments: none")
    for argument, kind, required in view["parameters"]:
        stars = {"var_positional": "*", "var_keyword": "**"}.get(kind, "")
        need = "" if required or stars else ", optional"
        click.echo(f"  {stars}{clean(argument)}: {clean(json_line(properties.get(argument, {})))}{need}")


@tasks.command(epilog="holdfast tasks forget billing.charge")
@click.argument("names", metavar="TASK...", nargs=-1, required=True, type=Text(), shell_complete=complete_task)
@person_options
@json_option
def forget(names: tuple[str, ...], by: str, note: str | None, as_json: bool) -> None:
    """Remove what was published of tasks that no code has any more.

    Enqueues by name are then refused. Stored jobs stay. A worker that has the task publishes it again at its start.
    """
    with opened_store() as store:
        _check_known(store, names)  # before anything is changed
        views = insight.task_views(store, list(names))
        for view in views:
            store_acts.forget_task(store, view["task"], by, note)
            if not as_json:
                acknowledge(f"{clean(view['task'])} forgotten")
    if as_json:
        show_json([{"task": view["task"], "forgotten": True} for view in views])
    if any(view["workers"] for view in views):
        say("Living workers have it. The next one that starts publishes it again.")


def _check_known(store: Store, names: Sequence[str]) -> None:
    """Raise `NotFound`, with the names that may have been meant, unless all of these are published."""
    known = [task.name for task in store.published()]
    for name in names:
        if name not in known:
            guesses = " or ".join(insight.near(name, known))
            raise NotFound(
                f"no worker has published a task {name!r}" + (f"; did you mean {guesses}?" if guesses else "")
            )
