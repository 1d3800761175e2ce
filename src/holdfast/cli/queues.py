"""`holdfast queues`: see, limit, pause and resume queues."""

from __future__ import annotations

from typing import Any

import click

from holdfast import insight
from holdfast.cli.base import Group, acknowledge, say
from holdfast.cli.completing import complete_queue
from holdfast.cli.loading import opened_store
from holdfast.cli.output import Column, clean, show_json, show_table
from holdfast.cli.types import Text, json_option, later, person_options
from holdfast.core.durations import iso
from holdfast.core.limits import Rate, check_group
from holdfast.errors import UsageError
from holdfast.queues import choose_limits, pause_queue, queue_named, resume_queue
from holdfast.stores.protocol import Store


@click.group(cls=Group, epilog="holdfast queues list")
def queues() -> None:
    """See, limit, pause and resume queues."""


def _now(queue: dict[str, Any]) -> str:
    if queue["paused"]:
        return "paused"
    if not queue["served"]:
        return "no worker"
    return "task unserved" if queue["unserved"] else "open"


def _speed(per_s: float) -> str:
    return "0" if per_s == 0 else f"{per_s:.3g}"


_COLUMNS = [
    Column("QUEUE", lambda queue: queue["queue"], least=12),
    Column("NOW", _now, keep=True, coloured=True),
    *(
        Column(state.upper(), lambda queue, state=state: queue[state], right=True, keep=True, rank=rank)  # type: ignore[misc]
        for state, rank in (("ready", 0), ("running", 4), ("waiting", 8), ("held", 5), ("done", 7), ("dead", 6))
    ),
    Column("IN/S", lambda queue: _speed(queue["in_per_s"]), right=True, keep=True, rank=3),
    Column("OUT/S", lambda queue: _speed(queue["out_per_s"]), right=True, keep=True, rank=2),
    Column("DRAINS IN", insight.drains_in, right=True, keep=True, rank=1),
    Column(
        "OLDEST DUE",
        lambda queue: None if queue["oldest_due_s"] is None else insight.brief(queue["oldest_due_s"]),
        right=True,
        keep=True,
    ),
]
_UNSERVED = Column("NO WORKER HAS", lambda queue: ", ".join(queue["missing"]) or None, least=16)


def _limits(queue: dict[str, Any]) -> str | None:
    """Write the limits of a queue, and what is paused of it, in a few words."""
    words = [
        None if queue["limit"] is None else f"limit {queue['limit']}",
        None if queue["group_limit"] is None else f"{queue['group_limit']} for each group",
        None if queue["rate"] is None else f"rate {queue['rate']}",
        None if queue["rate"] is None or queue["burst"] == 1 else f"burst {queue['burst']}",
        None if queue["paused_until"] is None else f"paused until {queue['paused_until']}",
        f"paused: {', '.join(sorted(queue['paused_groups']))}" if queue["paused_groups"] else None,
    ]
    return ", ".join(word for word in words if word) or None


def _paused_by(queue: dict[str, Any]) -> str | None:
    """Say who has paused the queue, when and why."""
    if not queue["paused"] or queue["paused_by"] is None:
        return None
    when = str(queue["paused_at"])[:16].replace("T", " ")
    note = f": {queue['paused_note']}" if queue["paused_note"] else ""
    return f"{queue['paused_by']}, {when}Z{note}"


_PAUSED_BY = Column("PAUSED BY", _paused_by, least=16, below=True)
_LIMITS = Column("LIMITS", _limits, least=16)


@queues.command(
    "list",
    epilog="""
    holdfast queues list
    holdfast queues list --json
    """,
)
@json_option
def list_(as_json: bool) -> None:
    """Show every queue, with its jobs by state and its limits.

    IN/S and OUT/S are jobs that were added and that ended, per second, in the last five minutes; of a busier store, in
    a shorter time. DRAINS IN is how long the ready jobs last at that speed: "> 5 min" means that more come than end,
    and that these alone last for five minutes; "never" that none ends. OLDEST DUE is how long the oldest due job has
    waited. NO WORKER HAS names tasks of due jobs that no living worker has.
    """
    with opened_store() as store:
        views = insight.queue_views(store)
    if as_json:
        show_json(views)
    elif views:
        missing = any(queue["missing"] for queue in views)
        limited = [_LIMITS] if any(map(_limits, views)) else []
        paused = [_PAUSED_BY] if any(map(_paused_by, views)) else []
        show_table([*_COLUMNS, *paused, *limited, *([_UNSERVED] if missing else [])], views)
        if missing:
            say("Start a worker of the code that has the task, or declare it again under its old name.")
    else:
        say("There are no queues yet; the first job makes one.")


class _Most(click.ParamType):  # type: ignore[type-arg]
    """A whole number, or `none` for no limit."""

    name = "n|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if str(value).lower() == "none":
            return None
        if not str(value).isdecimal():
            self.fail(f"{value!r} is not a whole number, nor none", param, ctx)
        return int(value)


class _RateOption(click.ParamType):  # type: ignore[type-arg]
    """Starts per period, or `none`."""

    name = "n/time|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Rate | None:
        try:
            return None if str(value).lower() == "none" else Rate.parse(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)


@queues.command(
    epilog="""
    holdfast queues limit mail 20
    holdfast queues limit mail --group-limit 2 --rate 100/60s --burst 5
    holdfast queues limit mail 5 --note "the relay is slow"
    holdfast queues limit mail --clear
    """
)
@click.argument("name", metavar="QUEUE", type=Text(), shell_complete=complete_queue)
@click.argument("limit", metavar="[N]", required=False, type=_Most())
@click.option("--group-limit", type=_Most(), metavar="N", help="The most jobs of each group that run at once, or none.")
@click.option("--rate", type=_RateOption(), metavar="N/TIME", help="The most starts, such as 100/60s or 5/s, or none.")
@click.option("--burst", type=click.IntRange(1), metavar="N", help="How many starts may come at once.")
@click.option("--clear", is_flag=True, help="Forget what was set before: what the app declares holds again.")
@person_options
@json_option
@click.pass_context
def limit(
    context: click.Context,
    name: str,
    limit: int | None,
    group_limit: int | None,
    rate: Rate | None,
    burst: int | None,
    clear: bool,
    by: str,
    note: str | None,
    as_json: bool,
) -> None:
    """Limit how many jobs of a queue run or start at once. N is the most that run at once, or none.

    It wins over what the app declares, and is in force when the command ends. Without a number or an option it shows
    what is in force."""
    given = {"limit": limit, "group_limit": group_limit, "rate": rate, "burst": burst}
    source = click.core.ParameterSource.COMMANDLINE
    given = {key: value for key, value in given.items() if context.get_parameter_source(key) is source}
    with opened_store() as store:
        if given or clear:
            choose_limits(store, name, given, by, note, clear=clear)
        view = {"queue": name, **insight.limits_view(queue_named(store, name), store.now().wall)}
    if as_json:
        show_json(view)
    elif given or clear:
        acknowledge(f"{clean(name)}: {_limits(view) or 'no limits'}")
    else:
        click.echo(f"{clean(name)}: {_limits(view) or 'no limits'}")


group_option = click.option("--group", type=Text(), metavar="GROUP", help="Only the jobs of this group.")


@queues.command(
    epilog="""
    holdfast queues pause mail media
    holdfast queues pause mail --group acme --until 15m
    """
)
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True, type=Text(), shell_complete=complete_queue)
@group_option
@click.option("--until", type=Text(), metavar="TIME", help="Resume by itself: an ISO 8601 instant, or 15m from now.")
@person_options
@json_option
def pause(
    names: tuple[str, ...], group: str | None, until: str | None, by: str, note: str | None, as_json: bool
) -> None:
    """Stop claims from queues, or of one group in them. Running jobs continue; new jobs are kept."""
    with opened_store() as store:
        instant = None if until is None else later(until, store.now().wall, "--until")
        _check_known(store, names)
        for name in dict.fromkeys(names):
            pause_queue(store, name, group, instant, by, note)
            ends = "" if instant is None else f" until {iso(instant)}"
            _tell(name, group, f"paused{ends}", as_json)
    if as_json:
        show_json([_shown(name, True, group, instant) for name in dict.fromkeys(names)])


@queues.command(
    epilog="""
    holdfast queues resume mail
    holdfast queues resume mail --group acme
    """
)
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True, type=Text(), shell_complete=complete_queue)
@group_option
@person_options
@json_option
def resume(names: tuple[str, ...], group: str | None, by: str, note: str | None, as_json: bool) -> None:
    """Let workers claim from queues again, or of one group in them."""
    with opened_store() as store:
        _check_known(store, names)
        for name in dict.fromkeys(names):
            resume_queue(store, name, group, by, note)
            _tell(name, group, "resumed", as_json)
    if as_json:
        show_json([_shown(name, False, group, None) for name in dict.fromkeys(names)])


def _check_known(store: Store, names: tuple[str, ...]) -> None:
    known = {view["queue"] for view in insight.queue_views(store)}
    for name in dict.fromkeys(names):
        if name not in known:
            say(f"No job has used the queue {clean(name)} yet; is the name right?")


def _tell(name: str, group: str | None, what: str, as_json: bool) -> None:
    if not as_json:
        acknowledge(f"{clean(name)}{'' if group is None else f', group {clean(check_group(group))}'} {what}")


def _shown(name: str, paused: bool, group: str | None, until: float | None) -> dict[str, Any]:
    more = {"group": group, "until": iso(until)}
    return {"queue": name, "paused": paused, **{key: value for key, value in more.items() if value is not None}}
