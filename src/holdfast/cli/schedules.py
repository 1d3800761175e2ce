"""`holdfast schedules`: see, add, pause, resume, fire and forget schedules."""

from __future__ import annotations

from typing import Any

import click

from holdfast import insight
from holdfast.acts import store as store_acts
from holdfast.cli.base import Group, acknowledge, say
from holdfast.cli.loading import opened_app, opened_store
from holdfast.cli.output import Column, clean, show_json, show_table
from holdfast.cli.types import Duration, Json, Text, call_of, json_option, person_options
from holdfast.clock import SystemClock
from holdfast.core.audit import line
from holdfast.core.durations import iso
from holdfast.core.schedule import All
from holdfast.core.transitions import is_declared
from holdfast.enqueueing.by_name import task_named
from holdfast.ids import new_job_id


@click.group(cls=Group, epilog="holdfast schedules list")
def schedules() -> None:
    """See, add, pause, resume, fire and forget schedules."""


def _now(view: dict[str, Any]) -> str:
    if view["paused"]:
        return "paused"
    if not view["declared"] and not view["kept"]:
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
    Column("NOW", _now, keep=True, coloured=True),
    Column("NEXT", _next, right=True, keep=True),
    Column("MISSED", lambda view: view["late_instants"] or None, right=True, keep=True, rank=1),
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

    A schedule whose instant was not fired shows how late it is. MISSED is how many instants came since. JOB is the
    state of the job that was fired last.
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
        say(
            "There are no schedules; app.cron(…) declares one, and the first worker of that app makes it known. "
            "app.schedule(…) and `holdfast schedules add` make one at once."
        )


@schedules.command(
    epilog="""
    holdfast schedules show nightly-report
    holdfast schedules show nightly-report --json
    """
)
@click.argument("key", metavar="KEY", type=Text())
@json_option
def show(key: str, as_json: bool) -> None:
    """Show one schedule: what it enqueues, and when.

    Also its next runs in its own time zone.
    """
    with opened_store() as store:
        insight.schedules_named(store, [key])
        [view] = insight.schedule_views(store, [key])
        now = store.now().wall
        jobs = insight.schedule_jobs(store, view)
    runs = insight.next_runs(view, now)
    if as_json:
        runs_at = [iso(instant) for instant, _ in runs]
        show_json(view | {"when": insight.when(view), "next_runs": runs_at, "jobs": jobs})
        return
    click.echo(f"{clean(view['key'])}: {clean(view['task'])} on queue {clean(view['queue'])}, {_now(view)}")
    click.echo(f"when: {clean(insight.when(view))} ({clean(view['spec'])})")
    click.echo(f"missed: {_missed(view)}")
    if view["jitter_s"]:
        click.echo(f"jitter: each job becomes due up to {insight.brief(view['jitter_s'])} after its instant")
    made = "at run time" if view["kept"] else "by a program that declares it"
    click.echo(f"made: {made}")
    if view["last"] is not None:
        click.echo(f"last: {_ago(view)}, job {view['job']} ({view['job_state']})")
    if view["late_s"] is not None:
        click.echo(f"late: {_next(view)}; holdfast doctor says why")
    for instant, local in runs:
        click.echo(f"next: {local} (in {insight.brief(instant - now)})")
    if jobs:
        click.echo(f"the newest jobs of {clean(view['task'])}:")
        show_table(_JOBS, jobs, "  ")


_JOBS = [
    Column("JOB", lambda job: job["id"], keep=True),
    Column("STATE", lambda job: job["state"], keep=True, coloured=True),
    Column("ADDED", lambda job: job["created_at"].replace("T", " ")[:19], keep=True, rank=1),
    Column("ERROR", lambda job: job["error"], grows=True),
]


def _missed(view: dict[str, Any]) -> str:
    words = {"last": "the last missed instant is made up for", "skip": "missed instants are left out"}
    return words.get(view["missed"], f"missed instants are made up for, at most the last {view['missed_max']}")


_CALL = """write an array of positional or an object of keyword arguments, such as '[42]' or '{"order": 42}'"""


class _Missed(Text):
    """last, skip, or how many instants to make up for."""

    name = "missed"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = super().convert(value, param, ctx)
        if text in ("last", "skip"):
            return text
        if not text.isascii() or not text.isdigit():
            self.fail(f"{text!r} is not last, skip or a number of instants", param, ctx)
        return All(int(text))


@schedules.command(
    epilog="""
    holdfast schedules add tenant-7 '0 3 * * *' reports.nightly '{"tenant": 7}'
    holdfast schedules add poll '@every 30s' reports.poll --missed skip
    """
)
@click.argument("key", metavar="KEY", type=Text())
@click.argument("spec", metavar="CRON", type=Text())
@click.argument("task", metavar="TASK", type=Text())
@click.argument("arguments", metavar="[JSON]", type=Json(_CALL), required=False)
@click.option("--tz", type=Text(), default="UTC", show_default=True, help="The time zone of the expression.")
@click.option(
    "--missed",
    type=_Missed(),
    metavar="last|skip|N",
    default="last",
    show_default=True,
    help="Instants at which no worker ran: N makes up for the last N of them.",
)
@click.option("--jitter", type=Duration(), default=0.0, help="Let each job become due up to this much later: 10m.")
@click.option("--queue", type=Text(), help="The queue; by default the task's own.")
@person_options
@json_option
def add(
    key: str,
    spec: str,
    task: str,
    arguments: Any,
    tz: str,
    missed: Any,
    jitter: float,
    queue: str | None,
    by: str,
    note: str | None,
    as_json: bool,
) -> None:
    """Make or change a schedule that no program declares.

    CRON has five fields, or is @hourly, @daily or @every 30s. TASK is the full name of a task that a worker has
    published. A running worker fires the schedule; `holdfast schedules forget` removes it.
    """
    args, kwargs = call_of(arguments, _CALL)
    with opened_app() as app:
        named = task_named(app, task)
        draft = (named.using(queue=queue) if queue is not None else named).job(*args, **kwargs)
        app.schedule(key, spec, draft, tz=tz, missed=missed, jitter_s=jitter)
        app.store.note_act(line("scheduled", by, note, schedule=key, spec=spec, for_task=task))
        [view] = insight.schedule_views(app.store, [key])
    if as_json:
        show_json(view)
    else:
        acknowledge(f"{clean(key)}: {clean(insight.when(view))}; next {_next(view)}")


@schedules.command(epilog="holdfast schedules pause nightly-report")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, type=Text())
@person_options
@json_option
def pause(keys: tuple[str, ...], by: str, note: str | None, as_json: bool) -> None:
    """Stop firing schedules until you resume them. Stored jobs stay."""
    _set(keys, True, by, note, as_json)


@schedules.command(epilog="holdfast schedules resume nightly-report")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, type=Text())
@person_options
@json_option
def resume(keys: tuple[str, ...], by: str, note: str | None, as_json: bool) -> None:
    """Fire schedules again, from the next instant on.

    Instants during the pause are not made up for.
    """
    _set(keys, False, by, note, as_json)


@schedules.command(epilog="holdfast schedules forget nightly-report")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, type=Text())
@person_options
@json_option
def forget(keys: tuple[str, ...], by: str, note: str | None, as_json: bool) -> None:
    """Remove schedules that no program declares any more.

    Those that were made at run time go for good. Stored jobs stay. A program that still declares the schedule makes
    it again; it then begins at that time.
    """
    with opened_store() as store:
        found = insight.schedules_named(store, keys)  # before anything is changed
        for each in found:
            store_acts.forget_schedule(store, each.key, by, note)
            if not as_json:
                acknowledge(f"{clean(each.key)} forgotten")
        declared = any(not each.kept and is_declared(each, store.now().wall) for each in found)
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
@person_options
@json_option
def fire(key: str, by: str, note: str | None, as_json: bool) -> None:
    """Enqueue the job of a schedule now, and print its id.

    The regular instants stay as they are. A paused schedule may be fired, too.
    """
    with opened_store() as store:
        [found] = insight.schedules_named(store, [key])
        added = store_acts.fire_schedule(store, found, new_job_id(SystemClock()), by, note)
    if as_json:
        show_json({"id": added.id, "existed": added.existed})
    else:
        click.echo(added.id)
    if added.existed:
        say("A job with its key was there already; no second one was added.")


def _set(keys: tuple[str, ...], paused: bool, by: str, note: str | None, as_json: bool) -> None:
    with opened_store() as store:
        found = insight.schedules_named(store, keys)  # before anything is changed
        for each in found:
            store_acts.pause_schedule(store, each.key, paused, by, note)
            if not as_json:
                acknowledge(f"{clean(each.key)} {'paused' if paused else 'resumed'}")
    if as_json:
        show_json([{"key": each.key, "paused": paused} for each in found])
