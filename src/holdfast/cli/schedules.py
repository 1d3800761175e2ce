"""`holdfast schedules`: see, pause, resume, fire and forget schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from msgspec.structs import replace

from holdfast import insight
from holdfast.cli.base import Group, acknowledge, say
from holdfast.cli.loading import opened_store
from holdfast.cli.output import Column, clean, show_json, show_table
from holdfast.cli.types import Text, json_option
from holdfast.clock import SystemClock
from holdfast.core.records import Schedule
from holdfast.errors import NotFound
from holdfast.ids import new_job_id
from holdfast.scheduler import is_declared
from holdfast.stores.protocol import Store


@click.group(cls=Group, epilog="holdfast schedules list")
def schedules() -> None:
    """See, pause, resume, fire and forget schedules."""


def _now(view: dict[str, Any]) -> str:
    if view["paused"]:
        return "paused"
    if not view["declared"]:
        return "not declared"
    return "on" if view["late_s"] is None else "late"


def _next(view: dict[str, Any]) -> str | None:
    if view["late_s"] is not None:
        return f"{insight.brief(view['late_s'])} late"
    return None if view["next_s"] is None else f"in {insight.brief(view['next_s'])}"


def _ago(view: dict[str, Any]) -> str | None:
    return None if view["last_s"] is None else f"{insight.brief(view['last_s'])} ago"


_COLUMNS = [
    Column("KEY", lambda view: view["key"], least=12),
    Column("CRON", lambda view: view["spec"], keep=True),
    Column("ZONE", lambda view: view["tz"], rank=3),
    Column("TASK", lambda view: view["task"], least=8, rank=2, keeps_end=True),
    Column("NOW", _now, keep=True),
    Column("NEXT", _next, right=True, keep=True),
    Column("LAST", _ago, right=True, keep=True),
    Column("JOB", lambda view: view["job_state"], keep=True),
]


@schedules.command(
    "list",
    epilog="""
    holdfast schedules list
    holdfast schedules list --json
    """,
)
@json_option
def list_(as_json: bool) -> None:
    """Show every schedule, with its next and its last instant.

    A schedule whose instant was not fired shows how late it is. The list has the state of the last job.
    """
    with opened_store() as store:
        views = insight.schedule_views(store)
    if as_json:
        show_json(views)
    elif views:
        show_table(_COLUMNS, views)
        if any(view["late_s"] is not None for view in views):
            say("A late schedule has missed a time at which it should have fired: holdfast doctor")
    else:
        say("There are no schedules; app.cron(…) declares one, and the first worker of that app makes it known.")


@schedules.command(epilog="holdfast schedules pause nightly-report")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, type=Text())
@json_option
def pause(keys: tuple[str, ...], as_json: bool) -> None:
    """Stop firing schedules until you resume them. Stored jobs stay."""
    _set(keys, True, as_json)


@schedules.command(epilog="holdfast schedules resume nightly-report")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, type=Text())
@json_option
def resume(keys: tuple[str, ...], as_json: bool) -> None:
    """Fire schedules again, from the next instant on.

    Instants during the pause are not made up for.
    """
    _set(keys, False, as_json)


@schedules.command(epilog="holdfast schedules forget nightly-report")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, type=Text())
@json_option
def forget(keys: tuple[str, ...], as_json: bool) -> None:
    """Remove schedules that the code no longer declares.

    Stored jobs stay. A program that still declares the schedule makes it again; it then begins at that time.
    """
    with opened_store() as store:
        found = _known(store, keys)  # before anything is changed
        for each in found:
            store.forget_schedule(each.key)
            if not as_json:
                acknowledge(f"{clean(each.key)} forgotten")
        declared = any(is_declared(each, store.now().wall) for each in found)
    if as_json:
        show_json([{"key": each.key, "forgotten": True} for each in found])
    if declared:
        say("A program declared it in the last three minutes. If that program still runs, the schedule comes back.")


@schedules.command(
    epilog="""
    holdfast schedules fire nightly-report
    holdfast schedules fire nightly-report --json
    """
)
@click.argument("key", metavar="KEY", type=Text())
@json_option
def fire(key: str, as_json: bool) -> None:
    """Enqueue the job of a schedule now, and print its id.

    The regular instants stay as they are. A paused schedule may be fired, too.
    """
    with opened_store() as store:
        [found] = _known(store, [key])
        [added] = store.add([replace(found.job, id=new_job_id(SystemClock()))])
    if as_json:
        show_json({"id": added.id, "existed": added.existed})
    else:
        click.echo(added.id)
    if added.existed:
        say("A job with its key was there already; no second one was added.")


def _set(keys: tuple[str, ...], paused: bool, as_json: bool) -> None:
    with opened_store() as store:
        found = _known(store, keys)  # before anything is changed
        for each in found:
            store.pause_schedule(each.key, paused)
            if not as_json:
                acknowledge(f"{clean(each.key)} {'paused' if paused else 'resumed'}")
    if as_json:
        show_json([{"key": each.key, "paused": paused} for each in found])


def _known(store: Store, keys: Sequence[str]) -> list[Schedule]:
    """Return the schedules with these keys. Raises `NotFound` with the keys that may have been meant."""
    schedules = {each.key: each for each in store.schedules()}
    for key in keys:
        if key not in schedules:
            guesses = " or ".join(insight.near(key, schedules))
            raise NotFound(f"there is no schedule {key!r}" + (f"; did you mean {guesses}?" if guesses else ""))
    return [schedules[key] for key in dict.fromkeys(keys)]
