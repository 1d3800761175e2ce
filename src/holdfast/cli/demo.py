"""`holdfast demo`: kill a worker with kill -9 and watch the recovery."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.base import Command, say, settings
from holdfast.cli.exit_codes import Exit
from holdfast.cli.leaving import raise_signals
from holdfast.cli.output import Column, bold, dim, is_terminal, paragraph, show_json, show_table, styled
from holdfast.core.durations import duration
from holdfast.errors import StoreUnsupported, UsageError

if TYPE_CHECKING:
    from holdfast.demo.pages import PagesServer
    from holdfast.demo.view import View

_RECOVERIES = (
    Column("found by", lambda each: each["detector"]),
    Column("in", lambda each: duration(each["found_after_s"]), right=True),
    Column(
        "runs again in",
        lambda each: duration(again) if (again := each["runs_again_after_s"]) is not None else "held",
        right=True,
    ),
    Column("lease had left", lambda each: f"{each['lease_left_s']:.1f} s", right=True),
    Column("fence", lambda each: f"{each['fence_before']} -> {each['fence_after']}"),
    Column("job, worker", lambda each: f"{each['task']}, {each['victim']}"),
)

_FACTS = {
    "jobs": "{jobs_submitted} submitted, {jobs_done} done ({accepted_once} accepted exactly once), {jobs_dead} dead, "
    "{jobs_lost} lost",
    "pace": "{jobs_per_s:.1f} jobs/s done, from the first submitted to the last",
    "kill -9": "{processes_killed} processes",
    "zombies": "{zombies_found} attempts lost their worker; {zombies_left} left",
}
_REASONS = (  # where in the summary, label, words
    ("stale_reports", "refused", "report of {worker} for {task}: its fence {fence}, the job's {fence_now}"),
    ("held", "held", "{task}: {reason}"),
    ("held", "", "approved once, by demo; done at attempt {attempts}"),
    ("dead", "dead", "{task}: {reason}"),
    ("failed", "retried", "{task}: {reason}; done at attempt {attempts}"),
)


@click.command(
    cls=Command,
    epilog="""
    holdfast demo
    holdfast demo --plain --keep
    holdfast demo --pages
    holdfast demo --json
    """,
)
@click.option("--plain", is_flag=True, help="One line per event, also in a terminal. With --json: on stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print only the summary, as one JSON object.")
@click.option("--keep", is_flag=True, help="Keep the store and the logs, and say how to look around.")
@click.option("--pages", "with_pages", is_flag=True, help="Show it on the pages, too, and stay until a key is pressed.")
@click.pass_context
def demo(ctx: click.Context, plain: bool, as_json: bool, keep: bool, with_pages: bool) -> None:
    """Kill a worker with kill -9 and watch the recovery.

    Starts real workers on a SQLite store in a temporary folder, submits a few hundred jobs, kills and freezes workers
    in the middle of them, and counts at the end what was lost. Ends by itself, in less than a minute.

    With --pages it also serves the pages of its store, opens them in a browser, and stays until a key is pressed.
    Without a terminal it prints their address and ends as usual.
    """
    from holdfast.demo.pages import PagesServer
    from holdfast.demo.script import url_in
    from holdfast.dev import has_server

    if settings().db_given is not None:
        raise UsageError("the demo makes a store of its own; --db has no meaning here")
    if with_pages and as_json and not plain:
        raise UsageError("--json prints nothing until the end, so nobody would learn where the pages are; add --plain")
    if with_pages and not has_server():
        raise StoreUnsupported("the pages need the server, which is not installed: pip install 'holdfast[server]'")
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    stays = with_pages and is_terminal() and sys.stdin.isatty() and not as_json
    pages = PagesServer(folder, url_in(folder), opens=stays) if with_pages else None
    try:
        summary = _play(folder, plain, as_json, pages, stays=stays)
        if as_json:
            show_json(summary)
        else:
            _show(summary)
        if pages is not None and stays:
            _stay(pages)
    finally:
        if pages is not None:
            pages.close()
        if keep:
            say(f"\nThe store and the logs of the workers are kept in {folder}.")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if keep:
        say("To look around:")
        for words in ("jobs list --limit 20", "jobs show {charge}", "dead list", "workers list --gone"):
            say(f"  holdfast --db {url_in(folder)} {words.format_map(summary['story'])}")
    ctx.exit(Exit.OK if summary["ok"] else Exit.FAILED)


def _stay(pages: PagesServer) -> None:
    from holdfast.demo.pages import wait_for_key

    say(f"\nThe pages are at {pages.address()} until you press a key.")
    wait_for_key(sys.stdin.fileno())


def _play(folder: Path, plain: bool, as_json: bool, pages: PagesServer | None, *, stays: bool) -> dict[str, Any]:
    from holdfast.demo.script import DidNotHappen, Script
    from holdfast.worker.signals import handle_signals

    try:
        with _view(plain, as_json, stays=stays) as view:
            script = Script(folder, view, pages)
            try:
                return script.play()
            finally:
                handle_signals(lambda *_: None)  # ending every process takes a moment, which no signal may cut short
                script.close()
                raise_signals()
    except DidNotHappen as error:
        if as_json:
            show_json({"ok": False, "trouble": [str(error)]})
        raise


@contextlib.contextmanager
def _view(plain: bool, as_json: bool, *, stays: bool) -> Iterator[View]:
    from rich.console import Console
    from rich.live import Live

    from holdfast.demo.view import HEIGHT_MIN, WIDTH_MIN, View, clock, frame

    console = Console(highlight=False)
    small = console.size.width < WIDTH_MIN or console.size.height < HEIGHT_MIN
    if settings().verbosity < 0 or (as_json and not plain):
        yield View()
    elif plain or small or not is_terminal():
        yield View(line=lambda line: click.echo(f"{clock(line.at)}  {line.text}", err=as_json))
    else:
        with Live(console=console, screen=True, auto_refresh=False, transient=True) as live:
            linger_s = 3.0 if stays else 1.2
            yield View(draw=lambda seen: live.update(frame(seen, console), refresh=True), linger_s=linger_s)


def _show(summary: dict[str, Any]) -> None:
    if summary["ok"]:
        verdict = bold(styled("Nothing was lost.", "done"))
        click.echo(f"\n{verdict} {len(summary['acts'])} acts in {duration(summary['seconds'])}.\n")
    else:
        click.echo("\n" + bold(styled("Something went wrong:", "dead")))
        for trouble in summary["trouble"][:20]:
            paragraph(trouble, "  ", "    ")
        click.echo()
    for label, fact in _FACTS.items():
        _say_fact(label, fact.format_map(summary))
    click.echo()
    show_table(_RECOVERIES, summary["recoveries"])
    click.echo()
    for kind, label, reason in _REASONS:
        for each in summary[kind]:
            _say_fact(label, reason.format_map(each))


def _say_fact(label: str, text: str) -> None:
    paragraph(text, dim(f"  {label:<10}"), " " * 12)
