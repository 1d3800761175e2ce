"""`holdfast zombies`: how many jobs lost their worker, how that was found, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from holdfast import insight
from holdfast.cli.base import Command, acknowledge, say
from holdfast.cli.loading import opened_store
from holdfast.cli.output import Column, bold, paragraph, show_json, show_table
from holdfast.cli.types import Duration, json_option, limit_option
from holdfast.errors import UsageError

_TASKS = [
    Column("TASK", lambda row: row["task"] or "(deleted)", least=12, keeps_end=True),
    Column("QUEUE", lambda row: row["queue"], rank=3),
    Column("ZOMBIES", lambda row: row["zombies"], right=True, keep=True),
    Column("JOBS", lambda row: row["jobs"], right=True, keep=True, rank=2),
    Column("FOUND BY", lambda row: _listed(row["detectors"]), least=12, rank=1),
    Column("NOW", lambda row: _listed(row["now"]), least=12),
]
_STEPS = Column("IN STEP", lambda row: _listed(row["steps"]) if row["steps"] else None, least=12, rank=1)
_DETECTORS = [
    Column("FOUND BY", lambda row: row["detector"], keep=True),
    Column("ZOMBIES", lambda row: row["zombies"], right=True, keep=True),
    Column("SILENT, MEDIAN", lambda row: _seconds(row["silent_s"], "median"), right=True, keep=True),
    Column("SILENT, WORST", lambda row: _seconds(row["silent_s"], "worst"), right=True, keep=True),
    Column("OVERDUE, MEDIAN", lambda row: _seconds(row["overdue_s"], "median"), right=True, keep=True, rank=1),
    Column("OVERDUE, WORST", lambda row: _seconds(row["overdue_s"], "worst"), right=True, keep=True, rank=2),
]
_REPEATS = [
    Column("ID", lambda row: row["id"], keep=True),
    Column("TASK", lambda row: row["task"], least=12, keeps_end=True),
    Column("ZOMBIES", lambda row: row["zombies"], right=True, keep=True),
    Column("STATE", lambda row: row["state"], keep=True, coloured=True),
    Column("LAST ERROR", lambda row: row["error"], rank=1, least=16),
]
_GROUPS = [
    Column("TASK", lambda row: row["task"], least=12, keeps_end=True),
    Column("ARGUMENTS", lambda row: f"#{row['arguments']}", keep=True, rank=2),
    Column("JOBS", lambda row: row["jobs"], right=True, keep=True),
    Column("LAST SEEN", lambda row: row["last_seen"].replace("T", " ")[:19], keep=True, rank=1),
    Column("NOW", lambda row: _listed(row["now"]), least=12),
    Column("EXAMPLE", lambda row: row["example"], keep=True),
]

_LIST = [
    Column("FOUND AT", lambda row: row["at"].replace("T", " ")[:19], keep=True, rank=1),
    Column("ID", lambda row: row["id"], keep=True),
    Column("TASK", lambda row: row["task"] or "(deleted)", least=8, keeps_end=True),
    Column("FOUND BY", lambda row: row["detector"], keep=True),
    Column("SILENT", lambda row: _silent(row["silent_s"]), right=True, keep=True, rank=3),
    Column("WORKER", lambda row: row["worker"], least=8, rank=4),
    Column("DECIDED", lambda row: insight.DECIDED.get(row["decision"], row["decision"]), keep=True, rank=2),
    Column(
        "NOW", lambda row: row["now"] + (", reported later" if row["reported_later"] else ""), keep=True, coloured=True
    ),
]

_ROWS_MAX = 50  # of the jobs that come again and again; a person reads no more


@click.command(
    cls=Command,
    epilog="""
    holdfast zombies
    holdfast zombies --since 7d
    holdfast zombies --list --detector vanished --since 12h
    holdfast zombies --json | jq .false_positives.rate
    """,
)
@click.option(
    "--since",
    type=Duration(),
    default="24h",
    show_default=True,
    metavar="TIME",
    help="How far to look back, such as 7d.",
)
@click.option("--list", "listed", is_flag=True, help="List the attempts, the newest first, with the ids of their jobs.")
@click.option(
    "--detector", type=click.Choice(insight.DETECTORS), help="With --list: only attempts that were found by this one."
)
@limit_option
@json_option
def zombies(since: float, listed: bool, detector: str | None, limit: int, as_json: bool) -> None:
    """Look back at the jobs that lost their worker.

    Shows how many there were, of which tasks, how and how fast they were found, and what happened to them. Lists storms
    with their cause, jobs that keep losing their worker, and calls (the same task with the same arguments) that crash
    under several ids. Says how often the worker was not dead. `holdfast scan` shows what is lost now.

    The time from the last sign of life (a beat, or the claim) until a zombie was found is an upper bound for the time
    that recovery took: the worker died somewhere in between.
    """
    if detector is not None and not listed:
        raise UsageError("--detector needs --list")
    with opened_store() as store:
        look = insight.look_back(store, since)
    if listed:
        _show_list(insight.lost_views(look, detector, limit), look, limit, _window(since), as_json)
        return
    view = insight.zombies_view(look)
    if as_json:
        show_json(view)
    else:
        _show(view, _window(since))


def _show_list(rows: list[dict[str, Any]], look: insight.Lookback, limit: int, window: str, as_json: bool) -> None:
    if as_json:
        show_json(rows)
    elif not rows:
        acknowledge(f"No such zombies in the last {window}.")
    else:
        show_table(_LIST, rows)
        if len(rows) == limit or not look.is_whole:
            say(f"The newest {len(rows):,} of {look.total:,} in the last {window}: add --limit, or a shorter --since.")


def _silent(seconds: float | None) -> str | None:
    return None if seconds is None else insight.duration(seconds)


def _show(view: dict[str, Any], window: str) -> None:
    if not view["zombies"]:
        acknowledge(f"No zombies in the last {window}.")
        return
    lost, jobs = insight.counted(view["zombies"], "attempt"), insight.counted(view["jobs"], "job")
    click.echo(f"In the last {window}, {lost} of {jobs} lost {'its' if view['zombies'] == 1 else 'their'} worker.")
    click.echo()
    *tasks, now = _TASKS
    show_table([*tasks, _STEPS, now] if any(row["steps"] for row in view["tasks"]) else _TASKS, view["tasks"])
    click.echo()
    show_table(_DETECTORS, view["detectors"])
    click.echo()
    decisions: dict[str, int] = view["decisions"]
    decided = {insight.DECIDED.get(word, word): number for word, number in decisions.items()}
    paragraph(f"Decided: {_listed(decided)}. By now: {_listed(view['now'])}.")
    paragraph(_about_false_ones(view["false_positives"], view["zombies"]))
    for storm in view["storms"]:
        paragraph(_about_a_storm(storm))
    if view["repeat_offenders"]:
        click.echo()
        click.echo(bold("Again and again") + "  (2 times or more over their life)")
        show_table(_REPEATS, view["repeat_offenders"][:_ROWS_MAX])
        if (more := len(view["repeat_offenders"]) - _ROWS_MAX) > 0:
            click.echo(f"… and {more:,} more; `--json` lists all")
        say("Such a job perhaps kills its workers: holdfast jobs show ID")
    if view["groups"]:
        click.echo()
        click.echo(bold("Under one id after the other") + "  (the same task with the same arguments)")
        show_table(_GROUPS, view["groups"])
        say("Such a call perhaps kills whatever runs it: holdfast jobs show ID")


def _about_a_storm(storm: dict[str, Any]) -> str:
    began, ended = (storm[name].replace("T", " ")[:19] for name in ("since", "until"))
    lost = f"{insight.counted(storm['zombies'], 'attempt')} of {insight.counted(storm['jobs'], 'job')}"
    return f"Storm: from {began} to {ended}, {lost} lost their worker; {storm['cause']}."


def _about_false_ones(false: dict[str, Any], zombies: int) -> str:
    number = false["late_reports"]
    if not number:
        return "False positives: none; no attempt reported after it was given up."
    text = f"False positives: {number} of {zombies} ({false['rate']:.0%}) reported later, which was refused"
    if not false["too_many"]:
        return f"{text}."
    cause = "leases are too short for the work, or hosts are overloaded"
    return f"{text}; above {false['rate_max']:.0%}, {cause}: holdfast doctor"


def _window(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:g} h" if 24 <= hours < 72 else insight.duration(seconds)


def _listed(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {word}" for word, number in numbers.items() if number) or "nothing"


def _seconds(spread: Mapping[str, float] | None, which: str) -> str | None:
    return None if spread is None else insight.duration(spread[which])
