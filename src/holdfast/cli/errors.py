"""`holdfast errors`: which errors there are, how many, since when, and on which release."""

from __future__ import annotations

from collections.abc import Callable

import click

from holdfast import insight
from holdfast.cli.base import Command, acknowledge, say
from holdfast.cli.completing import complete_task
from holdfast.cli.loading import opened_store, suggest_task
from holdfast.cli.output import Column, show_json, show_table
from holdfast.cli.types import Text, json_option, limit_option, since_option


@click.command(
    cls=Command,
    epilog="""
    holdfast errors
    holdfast errors --since 2h --task mail.send
    holdfast errors --since 14:00 --json | jq -r '.[].fingerprint'
    """,
)
@since_option("How far to look back: 2h, 14:00, or an ISO instant.", "24h")
@click.option("--task", type=Text(), shell_complete=complete_task, help="Only of this task, perhaps in short: send.")
@limit_option
@json_option
def errors(since: Callable[[float], float], task: str | None, limit: int, as_json: bool) -> None:
    """See which errors there are, how many, since when, on which release.

    Attempts of one task with the same fingerprint are one row: the type of the exception, the function of your code
    that raised it, and the text without ids, numbers and quoted text. Crashes go by their detector and how the process
    ended. Errors count for 30 days, whether or not their jobs are still there.
    """
    with opened_store() as store:
        now = store.now().wall
        task = None if task is None else insight.task_named(store, task)
        found = insight.error_views(store, since(now), task, limit)
        if not found:
            suggest_task(store, task, [])
    if as_json:
        show_json(found)
        return
    if not found:
        acknowledge("No errors in that time.")
        return
    show_table(_COLUMNS, found)
    say("See one: holdfast jobs show ID")


_COLUMNS = [
    Column("FINGERPRINT", lambda row: row["fingerprint"], keep=True),
    Column("COUNT", lambda row: row["attempts"], right=True, keep=True),
    Column("LAST SEEN", lambda row: _clock(row["last_seen"]), keep=True, rank=1),
    Column("FIRST SEEN", lambda row: _clock(row["first_seen"]), keep=True, rank=2),
    Column("TASK", lambda row: row["task"], least=12, keeps_end=True),
    Column("ERROR", lambda row: _in_words(row), least=24, grows=True, below=True),
    Column("RELEASES", lambda row: ", ".join(row["releases"]) or None, least=8, rank=3, below=True, word="release"),
    Column("EXAMPLE", lambda row: row["example"], keep=True, rank=4, below=True, word="example"),
]


def _clock(instant: str) -> str:
    return instant.replace("T", " ")[:19]


def _in_words(row: dict[str, str | None]) -> str:
    if row["kind"] == "crash":
        return f"crash, found by {row['origin']}: {row['message']}"
    return f"{row['message']}, in {row['origin']}" if row["origin"] else f"{row['message']}"
