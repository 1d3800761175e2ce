"""`holdfast jobs export`: jobs with their history, as many as there are, for other programs."""

from __future__ import annotations

import csv
import json
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import click

from holdfast import insight
from holdfast.cli.base import Command, say
from holdfast.cli.filters import Chosen, choose_options
from holdfast.cli.loading import opened_store, suggest_task
from holdfast.cli.output import Progress, clean, is_terminal, json_line
from holdfast.cli.types import step_arguments_option
from holdfast.errors import UsageError
from holdfast.insight import Selection
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.backup import give_name
from holdfast.stores.sqlite.store import SqliteStore

_PAGE = 200  # a job may be a few megabytes
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run a cell that begins with one of these


@click.command(
    cls=Command,
    epilog="""
    holdfast jobs export > jobs.jsonl
    holdfast jobs export --state dead --since 7d -o dead.jsonl
    holdfast jobs export --format csv --queue mail -o mail.csv --force
    holdfast jobs export --state done | jq -r 'select(.crashes > 0) | .id'
    """,
)
@choose_options
@click.option(
    "--format", "form", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True, help="How to write it."
)
@step_arguments_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write into this file instead of stdout.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists. A file of the store is never replaced.")
def export(
    chosen: Chosen,
    form: str,
    step_arguments: bool,
    output: Path | None,
    force: bool,
) -> None:
    """Write jobs with their arguments and history, newest first.

    One JSON object per line, with the fields of `jobs show --json` and more. Or a table for spreadsheets, with the
    number of events only; text that a spreadsheet would take for a formula gets a ' before it.

    Jobs are read page by page, so that any number fits; those that are added meanwhile are not in it. FILE appears when
    it is complete; if it exists already, nothing is written without --force.
    """
    if str(output) == "-":
        output = None
    with opened_store(bulk=True) as store, _opened(store, output, force) as stream:
        write = _csv(stream) if form == "csv" else _json_lines(stream)
        number = 0
        wanted = chosen.on(store)
        jobs = insight.selected(store, wanted, page=_PAGE)
        with Progress("exporting", _guess(store, wanted) if output or not is_terminal() else 0) as progress:
            for record in insight.job_records(store, jobs, _PAGE, arguments=step_arguments):
                write(record)
                number += 1
                progress.advance(1)
        if not number:
            suggest_task(store, wanted.task, wanted.states)
    say(f"{insight.counted(number, 'job')} exported{f' to {clean(output)}' if output else ''}.")


def _guess(store: Store, chosen: Selection) -> int:
    """Return how many jobs there will be at most."""
    wanted = {"ready" if state in ("scheduled", "retrying") else state for state in chosen.states}
    counts = store.counts()
    queues = [counts.get(chosen.queue, {})] if chosen.queue is not None else list(counts.values())
    return sum(number for jobs in queues for state, number in jobs.items() if not wanted or state.value in wanted)


@contextmanager
def _opened(store: Store, output: Path | None, force: bool) -> Iterator[TextIO]:
    """Open stdout, or a file that takes its name only when it is complete; only its owner may read it."""
    if output is None:
        yield sys.stdout
        return
    _check(store, output, force)
    try:  # a name that no other process could prepare, and a file that only this call makes
        descriptor, name = tempfile.mkstemp(prefix=f"{output.name}.", suffix=".part", dir=output.parent)
    except OSError as error:
        raise UsageError(f"cannot write to {output.parent}: {error.strerror}") from error
    part = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as stream:
            yield stream
        _check(store, output, force)  # another process may have made it meanwhile
        if force:
            os.replace(part, output)
        else:
            _give_name(part, output)
    finally:
        part.unlink(missing_ok=True)


def _give_name(part: Path, output: Path) -> None:
    try:
        give_name(part, output)
    except FileExistsError as error:
        raise _taken(output) from error


def _check(store: Store, output: Path, force: bool) -> None:
    """Raise `UsageError` where an export would take the place of something that it must leave alone."""
    if isinstance(store, SqliteStore) and store.owns(output):
        raise UsageError(f"{output} is a name of the store's own files; choose another")
    if os.path.lexists(output):
        if not force:
            raise _taken(output)
        if not stat.S_ISREG(os.lstat(output).st_mode):
            raise UsageError(f"{output} is not a regular file; name another")


def _taken(output: Path) -> UsageError:
    return UsageError(f"{output} exists; name a new file, or replace it with --force")


def _json_lines(stream: TextIO) -> Callable[[dict[str, Any]], None]:
    has_all = (stream.encoding or "utf-8").lower().startswith("utf")

    def write(record: dict[str, Any]) -> None:
        stream.write(json_line(record, has_all) + "\n")

    return write


def _csv(stream: TextIO) -> Callable[[dict[str, Any]], None]:
    writer = csv.writer(stream)
    shown = clean if stream is sys.stdout and is_terminal() else str
    titles: list[str] = []

    def write(record: dict[str, Any]) -> None:
        record = {**record, "events": len(record["events"])}
        del record["steps"]
        if not titles:
            titles.extend(record)
            writer.writerow(titles)
        writer.writerow([shown(_cell(value)) for value in record.values()])

    return write


def _cell(value: object) -> object:
    """Write a value as a spreadsheet takes it; text is never a formula."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str():
            return f"'{value}" if value.startswith(_FORMULA) else value
        case dict() | list():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return value
