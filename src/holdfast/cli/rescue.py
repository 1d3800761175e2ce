"""`holdfast rescue`: the recovery of Holdfast, for a jobs table that is not Holdfast's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.arguments import overwrite
from holdfast.cli.base import Group, acknowledge, complain, is_quiet, say, settings
from holdfast.cli.exit_codes import Exit
from holdfast.cli.leaving import stopped_by_signals
from holdfast.cli.logs import LogForm, log_to_stderr
from holdfast.cli.output import Column, show_json, show_table
from holdfast.cli.types import Duration, Text, json_option, log_format_option
from holdfast.clock import SystemClock
from holdfast.core.durations import duration
from holdfast.errors import UsageError
from holdfast.stores.urls import masked_url

if TYPE_CHECKING:
    from holdfast.rescue import Report

F = TypeVar("F", bound=Callable[..., Any])

_ROWS_MAX = 50  # of the table; a person reads no more

_COLUMNS = [
    Column("ID", lambda row: row["id"], keep=True),
    Column("WORKER", lambda row: row["worker"], rank=2),
    Column("LAST SIGN", lambda row: None if row["age_s"] is None else f"{duration(row['age_s'])} ago", rank=1),
    Column("ATTEMPTS", lambda row: row["to_attempts"] or row["attempts"], right=True, rank=3),
    Column("BECOMES", lambda row: row["to_status"]),
    Column("WHY", lambda row: row["error"] or row["why"], grows=True, least=12),
    Column("RESULT", lambda row: row["outcome"]),
]


@click.group(
    cls=Group,
    epilog="""
    holdfast rescue init --url sqlite:///shop.db --table jobs --map jobs.toml
    holdfast rescue scan --url sqlite:///shop.db --map jobs.toml
    holdfast rescue fix --url sqlite:///shop.db --map jobs.toml
    holdfast rescue watch --url sqlite:///shop.db --map jobs.toml --fix
    """,
)
def rescue() -> None:
    """Rescue jobs in a table that is not Holdfast's.

    A map of a few lines says which columns and values mean what. A row whose worker died runs again, is held or is
    dead, as its attempts and on_crash in the map decide. A row that moved since it was read is never touched. --url is
    the database of your application: --db has no effect here. See docs/rescue.md.
    """


def _masked(ctx: click.Context, option: click.Parameter, url: str) -> str:
    """Keep a password out of the list of processes, as `--db` does."""
    if url != masked_url(url):
        overwrite(url, masked_url(url))
    return url


def _options(command: F) -> F:
    for option in reversed(
        [
            click.option(
                "--url",
                required=True,
                metavar="URL",
                type=Text(),
                callback=_masked,
                help="The database with the table.",
            ),
            click.option(
                "--map",
                "path",
                required=True,
                metavar="FILE",
                type=click.Path(path_type=Path),
                help="Its description.",
            ),
            click.option("--table", metavar="NAME", type=Text(), help="Another table than the map's."),
        ]
    ):
        command = option(command)
    return command


def _knowledge(command: F) -> F:
    for option in reversed(
        [
            click.option("--only-process", is_flag=True, help="No worker runs now: every running row is a ghost."),
            click.option(
                "--worker", metavar="NAME", type=Text(), help="This worker does not run: its rows are ghosts."
            ),
        ]
    ):
        command = option(command)
    return command


@rescue.command(
    epilog="""
    holdfast rescue init --url sqlite:///shop.db --table jobs
    holdfast rescue init --url postgresql://app@db/shop --table jobs --map m.toml
    """
)
@click.option("--url", required=True, metavar="URL", type=Text(), callback=_masked, help="The database with the table.")
@click.option(
    "--table", required=True, metavar="NAME", type=Text(), help="The table; a dot divides it from its schema."
)
@click.option(
    "--map", "path", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), help="Write it; must be new."
)
@click.pass_context
def init(ctx: click.Context, url: str, table: str, path: Path | None) -> None:
    """Propose a map for a table.

    Reads the definition of the table and the values of its status, and changes nothing. Read the map before you use
    it. Exits with 7 if a person has to fill in something.
    """
    from holdfast.rescue.proposal import propose
    from holdfast.rescue.sweep import opened

    with opened(url) as database:
        proposal = propose(database, table)
    if path is None:
        click.echo(proposal.text, nl=False)
    else:
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(proposal.text)
        except FileExistsError:
            raise UsageError(f"{path} is there already; choose another name, or remove it") from None
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from None
        acknowledge(f"wrote {path}; read it, then: holdfast rescue scan --url … --map {path}")
    if proposal.missing:
        complain(f"nothing was found for {', '.join(proposal.missing)}: fill that in")
        ctx.exit(Exit.UNHEALTHY)


@rescue.command(
    epilog="""
    holdfast rescue scan --url sqlite:///shop.db --map jobs.toml
    holdfast rescue scan --url sqlite:///shop.db --map jobs.toml --json
    holdfast rescue scan --url sqlite:///shop.db --map jobs.toml --check || alert
    """
)
@_options
@_knowledge
@click.option("--check", is_flag=True, help="Exit with 7 when a ghost was found.")
@json_option
@click.pass_context
def scan(ctx: click.Context, /, check: bool, as_json: bool, **given: Any) -> None:
    """Show which running rows are ghosts, and why."""
    report = _pass(**given, fix=False)
    _show(report, as_json)
    if check and report.ghosts:
        ctx.exit(Exit.UNHEALTHY)


@rescue.command(
    epilog="""
    holdfast rescue fix --url sqlite:///shop.db --map jobs.toml
    holdfast rescue fix --url sqlite:///shop.db --map jobs.toml --only-process
    """
)
@_options
@_knowledge
@json_option
@click.pass_context
def fix(ctx: click.Context, /, as_json: bool, **given: Any) -> None:
    """Rescue the ghosts of a table.

    Each rescue is a line in the journal of the table, holdfast_rescues unless the map says otherwise.

    Exits with 1 if a row could not be written.
    """
    report = _pass(**given, fix=True)
    _show(report, as_json)
    if any(row.outcome == "failed" for row in report.rows):
        ctx.exit(Exit.FAILED)


@rescue.command(
    epilog="""
    holdfast rescue watch --url postgresql://app@db/shop --map jobs.toml
    holdfast rescue watch --url postgresql://app@db/shop --map m.toml --fix
    holdfast rescue watch --url sqlite:///shop.db --map m.toml --interval 10s
    """
)
@_options
@click.option("--fix", is_flag=True, help="Rescue what is found. Without it nothing is changed.")
@click.option(
    "--interval", type=Duration(), default="30s", metavar="TIME", show_default=True, help="The pause between two looks."
)
@log_format_option
def watch(url: str, path: Path, table: str | None, fix: bool, interval: float, log_format: LogForm) -> None:
    """Look for ghosts until it is stopped.

    Several may run at once. SIGTERM and Ctrl-C let the look that is under way end. A database that cannot be reached is
    tried again.
    """
    from holdfast.rescue.judging import Known
    from holdfast.rescue.map import Map
    from holdfast.rescue.sweep import opened, rescue, tell
    from holdfast.runtime.service import Service

    if not 0.1 <= interval <= 86_400:
        raise click.BadParameter("must be between 100ms and 1d", param_hint="--interval")
    read = Map.read(path, **({} if table is None else {"table": table}))
    settings().serves = True
    log_to_stderr(logging.INFO, log_format, "rescue")
    rescued, shown = 0, frozenset[str]()

    def look() -> None:
        nonlocal rescued, shown
        with opened(url) as database:
            report = rescue(database, read, Known(), fix=fix)
        rescued += len(report.rescued)
        ghosts = frozenset(str(row.finding.row.id) for row in report.ghosts)
        if ghosts != shown:  # a dry run says the same only once
            tell(report)
        shown = ghosts

    stop, log = stopped_by_signals(), logging.getLogger("holdfast.rescue")
    look()  # what is wrong with the address, the map or the table is said at once
    Service(
        "holdfast-rescue", look, SystemClock(), log, interval, "no ghosts are looked for meanwhile", stopping=stop
    ).run()
    say(f"rescued {rescued} rows")


def _pass(url: str, path: Path, table: str | None, only_process: bool, worker: str | None, fix: bool) -> Report:
    from holdfast.rescue.judging import Known
    from holdfast.rescue.map import Map
    from holdfast.rescue.sweep import opened, rescue

    read = Map.read(path, **({} if table is None else {"table": table}))
    if worker is not None and read.worker is None:
        raise UsageError("--worker needs the key worker in the map: the column that names the worker of a row")
    with opened(url) as database:
        return rescue(database, read, Known(only_process, worker), fix=fix)


def _show(report: Report, as_json: bool) -> None:
    view = report.view()
    if as_json:
        show_json(view)
        return
    if view["rows"] and (not is_quiet() or report.ghosts):
        show_table(_COLUMNS, view["rows"][:_ROWS_MAX])
        if len(view["rows"]) > _ROWS_MAX:
            click.echo(f"… and {len(view['rows']) - _ROWS_MAX:,} more; `--json` lists all")
    for line in _summary(report, view):
        acknowledge(line) if not report.ghosts else say(line)


def _summary(report: Report, view: dict[str, Any]) -> Iterator[str]:
    ghosts, places = view["ghosts_found"], view["places"]
    if not report.complete:
        yield f"There are more running rows: the {len(report.rows):,} that began first were looked at."
    if not ghosts:
        yield f"No ghosts: each of {view['running']} running rows has shown signs of life."
        return
    limit = "" if places["limit"] is None else f" of {places['limit']}"
    held = "Ghosts hold" if view["dry_run"] else "Ghosts held"
    yield f"{held} {ghosts}{limit} places of the application's concurrency limit; {places['taken']} rows were running."
    if view["dry_run"]:
        yield "Nothing was changed; to rescue them: holdfast rescue fix"
        return
    parts = [f"{view[state]} {words}" for state, words in _STATES.items() if view[state]]
    done = f"{view['ghosts_rescued']} of {ghosts} ghosts rescued"
    yield f"{done}: {', '.join(parts)}. {places['freed']} places are free again." if parts else f"{done}."
    yield from (f"{count} {words}" for count, words in _left(report))


_STATES = {"ready": "run again", "held": "held", "dead": "dead"}


def _left(report: Report) -> Iterator[tuple[int, str]]:
    """Say of the ghosts that were not rescued why that is so."""
    reasons = {
        "moved": "moved while they were looked at, and were left alone",
        "locked": "are locked by another transaction, and were left alone",
        "failed": "could not be written",
    }
    for outcome, words in reasons.items():
        if count := sum(row.outcome == outcome for row in report.rows):
            yield count, words
