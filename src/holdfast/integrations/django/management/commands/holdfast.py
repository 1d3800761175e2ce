"""`manage.py holdfast …`: the command line of Holdfast on the app of this project.

Commands that take APP get it by themselves: `manage.py holdfast worker --slots 8`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click
from django.core.management.base import BaseCommand

from holdfast.cli import main as command_line
from holdfast.integrations.django.configuration import project_app

APP = "holdfast.integrations.django.project:app"
_OF_MANAGE = ("--settings", "--pythonpath")  # manage.py has read them already


class Command(BaseCommand):  # type: ignore[misc]  # Django brings no types
    """Passes its words on as they are: options are those of `holdfast`."""

    help = "Run jobs, and see and act on them: the command line of Holdfast."
    requires_system_checks: tuple[str, ...] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Do not let Django read the options."""
        run(_without_options_of_manage(argv[2:]), f"{os.path.basename(argv[0])} holdfast")

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """Print the commands, for `manage.py help holdfast`."""
        run(["--help"], f"{os.path.basename(prog_name)} {subcommand}")

    def add_arguments(self, parser: Any) -> None:
        """Take words from `call_command("holdfast", "tick")`."""
        parser.add_argument("words", nargs="*")

    def handle(self, *_: Any, words: list[str], **options: Any) -> None:
        """Run a command for `call_command`."""
        run(words, "manage.py holdfast")


def run(words: list[str], prog: str) -> None:
    """Run a command line on the app of the project, and exit."""
    folder = os.path.abspath(sys.path[0] or os.getcwd())  # of manage.py: the processes of a worker import from there
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([folder, *filter(None, paths)]))
    named = with_app(words)
    if named == words:  # the command needs the store only
        os.environ.setdefault("HOLDFAST_DB", project_app().url)
    command_line.main(named, prog)


def with_app(words: list[str]) -> list[str]:
    """Return the words of a command line with the app of the project, if the command takes one."""
    at = next((at for at, word in enumerate(words) if word in command_line.COMMANDS), None)
    return words if at is None or not _takes_app(words[at]) else [*words[: at + 1], APP, *words[at + 1 :]]


def _takes_app(name: str) -> bool:
    command = command_line.cli.get_command(click.Context(command_line.cli), name)
    arguments = [each for each in command.params if isinstance(each, click.Argument)] if command is not None else []
    return bool(arguments) and "APP" in (arguments[0].metavar or "")


def _without_options_of_manage(words: list[str]) -> list[str]:
    left: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in _OF_MANAGE:
            next(rest, None)
        elif not word.startswith(tuple(f"{option}=" for option in _OF_MANAGE)):
            left.append(word)
    return left
