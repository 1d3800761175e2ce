"""`holdfast demo`: kill a worker with kill -9 and watch the recovery."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from holdfast.cli.base import Command, say, settings, show_log
from holdfast.cli.exit_codes import Exit
from holdfast.cli.output import is_terminal, show_json
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.demo.script import Script, View
    from holdfast.demo.summary import Summary

_LEAVE = (signal.SIGTERM, signal.SIGHUP)


@click.command(
    cls=Command,
    epilog="""
    holdfast demo
    holdfast demo --plain --keep
    holdfast demo --json
    """,
)
@click.option("--plain", is_flag=True, help="One line per event, also in a terminal. With --json: on stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print only the summary, as one JSON object.")
@click.option("--keep", is_flag=True, help="Keep the store and the logs, and say how to look around.")
@click.pass_context
def demo(ctx: click.Context, plain: bool, as_json: bool, keep: bool) -> None:
    """Kill a worker with kill -9 and watch the recovery.

    Starts real workers on a SQLite store in a temporary folder, submits a few hundred jobs, kills and freezes workers
    in the middle of them, and counts at the end what was lost. Ends by itself, in less than a minute.
    """
    if settings().db_given is not None:
        raise UsageError("the demo makes a store of its own; --db has no meaning here")
    show_log()
    with _leaving_on_signals(), _folder(keep) as folder:
        summary = _play(folder, plain, as_json)
        _show(summary, as_json)
    if keep:
        _invite(folder, summary)
    ctx.exit(Exit.OK if summary.ok else Exit.FAILED)


def _play(folder: Path, plain: bool, as_json: bool) -> Summary:
    from holdfast.demo.script import DidNotHappen, Script

    try:
        with _view(plain, as_json) as view:
            stage = Script(folder, view)
            try:
                return stage.play()
            finally:
                _end(stage)
    except DidNotHappen as error:
        if as_json:
            show_json({"ok": False, "trouble": [str(error)]})
        raise


def _end(stage: Script) -> None:
    """End every process of the demo. It takes a moment, in which no signal may come in between."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *_LEAVE)}
    try:
        stage.close()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(summary: Summary, as_json: bool) -> None:
    import msgspec
    from rich.console import Console

    from holdfast.demo.view import told

    if as_json:
        show_json(msgspec.to_builtins(summary))
        return
    console = Console(highlight=False)
    width = console.width if console.is_terminal else 10_000
    for line in told(summary, width):
        console.print(line, soft_wrap=True)


# ---------------------------------------------------------------------------------------- around the play


@contextlib.contextmanager
def _view(plain: bool, as_json: bool) -> Iterator[View]:
    from rich.console import Console

    from holdfast.demo.view import HEIGHT_MIN, WIDTH_MIN, Plain, Screen

    console = Console(highlight=False)
    small = console.size.width < WIDTH_MIN or console.size.height < HEIGHT_MIN
    if settings().verbosity < 0 or (as_json and not plain):
        yield Plain(lambda _: None)
    elif plain or small or not is_terminal():
        yield Plain(lambda line: click.echo(line, err=as_json))
    else:
        with Screen(console) as screen:
            yield screen


@contextlib.contextmanager
def _leaving_on_signals() -> Iterator[None]:
    """Turn a request to leave into an exception, so that everything is cleaned up on the way out."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in _LEAVE}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        yield folder
    finally:
        if keep:
            say(f"\nThe store and the logs of the workers are kept in {folder}.")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _invite(folder: Path, summary: Summary) -> None:
    from holdfast.demo.script import url_in

    say("To look around:")
    for words in ("jobs list --limit 20", f"jobs show {summary.story['charge']}", "dead list", "workers list --gone"):
        say(f"  holdfast --db {url_in(folder)} {words}")
