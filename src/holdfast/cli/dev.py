"""`holdfast dev`: everything that a programmer needs, in one command."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from holdfast.cli.base import Command, say, settings
from holdfast.cli.leaving import raise_signals
from holdfast.cli.loading import import_options, load_app, wanted_modules
from holdfast.cli.output import clean
from holdfast.cli.types import Text
from holdfast.clock import SystemClock
from holdfast.core.text import counted
from holdfast.errors import UsageError

NAME = "dev"
PORT = 8080


@click.command(
    cls=Command,
    epilog="""
    holdfast dev jobs:app
    holdfast dev jobs:app --port 9000
    holdfast dev jobs:app --chaos
    """,
)
@click.argument("app", metavar="APP", type=Text())
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="The port of the server; 0: any free one.",
)
@click.option("--slots", type=click.IntRange(1), default=4, show_default=True, help="Jobs at once.")
@click.option("--no-server", is_flag=True, help="Run the worker alone.")
@click.option("--chaos", is_flag=True, help="Kill the worker with kill -9 at random moments of its jobs.")
@import_options
def dev(app: str, port: int, slots: int, no_server: bool, chaos: bool) -> None:
    """Run a worker and a server, and start both again when a Python file below this folder changes.

    For your own machine, until Ctrl-C. With --chaos the worker dies every few seconds in the middle of a job, and an
    effect that a task marks with holdfast.testing.effect is reported when it happens twice.
    """
    from holdfast.dev import Chaos, Dev, has_server
    from holdfast.torture.lines import EffectFile

    raise_signals()
    clock = SystemClock()

    def tell(line: str) -> None:
        say(f"dev: {clean(line)}")

    with tempfile.TemporaryDirectory(prefix="holdfast-dev-") as folder:
        effects = EffectFile(Path(folder) / "effects")
        words = [app, *(word for name in wanted_modules() for word in ("--import", name))]
        if settings().db_given is not None:
            words += ["--db", settings().db]
        programs = [["worker", *words, "--name", NAME, "--slots", str(slots), "--grace-period", "2"]]
        if not no_server and has_server():
            programs.append(["server", *words, "--port", str(port), "--log-level", "warning"])
        elif not no_server:
            tell("no server: install holdfast[server]")
        running = Dev(programs, Path.cwd(), clock, tell, effects if chaos else None)
        if not chaos:
            with running.running():
                running.watch(lambda: None)
        with load_app(app, settings().db_given, wanted_modules()) as loaded:
            if any(worker.is_alive(loaded.store.now().wall) for worker in loaded.store.workers()):
                raise UsageError("other workers use this store; --chaos needs one of its own")
            trouble = Chaos(loaded.store, NAME, clock, tell, effects)
            try:
                with running.running():
                    running.watch(trouble.look)
            finally:
                tell(f"{counted(trouble.killed, 'worker')} killed, {counted(trouble.repeated, 'effect')} repeated")
