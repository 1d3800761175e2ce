"""`holdfast torture`: kill the workers of your own tasks at every point, and count what their effects became."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click
import msgspec

from holdfast.app import App
from holdfast.cli.base import Command, is_quiet, say, settings
from holdfast.cli.confirming import confirm
from holdfast.cli.exit_codes import Exit
from holdfast.cli.leaving import raise_signals
from holdfast.cli.loading import import_options, load_app, load_function, wanted_modules
from holdfast.cli.output import clean, paragraph, show_json
from holdfast.cli.types import Text, yes_option
from holdfast.clock import SystemClock
from holdfast.core.text import counted
from holdfast.errors import PayloadError, UsageError
from holdfast.torture.plan import CHOICES

if TYPE_CHECKING:
    from holdfast.torture.torture import Call
    from holdfast.torture.verdict import TaskReport


class _Input(msgspec.Struct, forbid_unknown_fields=True):
    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


@click.command(
    cls=Command,
    epilog="""
    holdfast torture jobs:app
    holdfast torture jobs:app --task charge --inputs inputs.jsonl --minutes 10
    holdfast torture jobs:app --check checks:charges_of -y --json
    """,
)
@click.argument("app", metavar="APP", type=Text())
@click.option("--task", "names", metavar="NAME", type=Text(), multiple=True, help="Only this task; may be repeated.")
@click.option(
    "--minutes", type=click.FloatRange(min=0.01), default=5.0, show_default=True, metavar="N", help="How long."
)
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='Calls to run, one JSON object on a line: {"task": "charge", "args": [42]}.',
)
@click.option(
    "--check",
    metavar="MODULE:FUNCTION",
    type=Text(),
    help="A function that takes a job (id, task, args, kwargs) and returns how often its effect happened.",
)
@click.option(
    "--only",
    "points",
    type=click.Choice(CHOICES),
    metavar="WHAT",
    multiple=True,
    help=f"Only this, may be repeated: {', '.join(CHOICES)}.",
)
@click.option("--keep", is_flag=True, help="Keep the store, the effects and the log of the workers.")
@import_options
@yes_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def torture(
    ctx: click.Context,
    app: str,
    names: tuple[str, ...],
    minutes: float,
    inputs: Path | None,
    check: str | None,
    points: tuple[str, ...],
    keep: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Run your own tasks while their workers are killed and frozen, and their store takes no writes.

    The tasks run for real, on a SQLite store in a temporary folder: point whatever else they use at a test system. The
    report says which tasks repeat or lose an effect, and which on_crash each needs. Effects are what a task marks with
    holdfast.testing.effect(name, key), or what --check counts. Exits with 7 when a task is unsafe.
    """
    from holdfast.torture.torture import Torture

    if settings().db_given is not None:
        raise UsageError("torture makes a store of its own; leave out --db")
    folder = Path(tempfile.mkdtemp(prefix="holdfast-torture-"))
    url = f"sqlite:///{quote(str(folder))}/torture.db?synchronous=normal"
    raise_signals()
    try:
        with load_app(app, url, wanted_modules()) as loaded:
            counts = None if check is None else load_function(check)
            calls, left_out = _calls(loaded, names, inputs)
            _ask(calls, yes)
            words = [app, "--db", url, *(word for name in wanted_modules() for word in ("--import", name))]
            tell = (lambda _: None) if is_quiet() or as_json else (lambda line: say(clean(line)))
            run = Torture(loaded, words, calls, folder, SystemClock(), tell, counts)
            reports = run.run(minutes * 60, points)
    finally:
        if keep:
            say(f"kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        show_json({"rounds": run.rounds, "tasks": [each.plain() for each in reports], "left_out": left_out})
    else:
        _show(reports, left_out, run.rounds)
    if any(each.safety == "unsafe" for each in reports):
        ctx.exit(Exit.UNHEALTHY)


def _calls(app: App, names: tuple[str, ...], inputs: Path | None) -> tuple[dict[str, list[Call]], list[str]]:
    """Return the calls of each task that is tortured, and the tasks that have none."""
    from holdfast.torture.torture import Call

    wanted = [app.named(name).name for name in names] if names else list(app.tasks)
    given: dict[str, list[Call]] = {}
    for each in [] if inputs is None else _lines(inputs):
        given.setdefault(app.named(each.task).name, []).append(Call(tuple(each.args), each.kwargs))
    calls, left_out = {}, []
    for name in wanted:
        try:
            for call in given.get(name, [Call()]):
                app.tasks[name].job(*call.args, **call.kwargs)
        except (PayloadError, TypeError) as error:
            if name in given or names:
                raise UsageError(f"task {name}: {error}; give its arguments with --inputs") from error
            left_out.append(name)
            continue
        calls[name] = given.get(name, [Call()])
    if not calls:
        raise UsageError("no task can be called without arguments; give some with --inputs FILE")
    return calls, left_out


def _lines(file: Path) -> list[_Input]:
    found = []
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(msgspec.json.decode(line, type=_Input))
            except msgspec.DecodeError as error:
                raise UsageError(f"{file}, line {number}: {error}") from error
    return found


def _ask(calls: Mapping[str, list[Call]], yes: bool) -> None:
    what = ", ".join(clean(name) for name in calls)
    say(f"These tasks run for real, many times, and their workers are killed: {what}.")
    confirm("Is everything that they use a test system?", yes)


def _show(reports: list[TaskReport], left_out: list[str], rounds: int) -> None:
    for each in reports:
        click.echo(f"{clean(each.task)}: {each.safety}  (on_crash={each.on_crash})")
        lost = counted(each.lost_attempts, "lost attempt")
        click.echo(f"  {counted(each.jobs, 'job')}, {lost}, {each.held} held, {each.dead} dead")
        for word, findings in (("repeated", each.repeated), ("lost", each.lost)):
            for found in findings:
                example = f"{counted(found.jobs, 'job')}, such as {found.example}"
                click.echo(f"  {word}: {clean(found.name)} when {clean(found.disturbance)} ({example})")
        paragraph(each.advice, "  ", "  ")
    if left_out:
        say(f"not run, because they need arguments (--inputs FILE): {', '.join(map(clean, left_out))}")
    say(f"{counted(rounds, 'round')}")
