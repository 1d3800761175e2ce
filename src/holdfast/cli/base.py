"""Shared by all commands: options that may stand anywhere, the display of errors, lazy loading.

`--db`, `-v` and `-q` may be given before the command, between the words, or after it; the last one wins. Every other
option has an environment variable named by its command: HOLDFAST_WORKER_SLOTS, HOLDFAST_JOBS_LIST_LIMIT.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

import click

from holdfast.cli.arguments import overwrite
from holdfast.cli.exit_codes import Exit, code_of
from holdfast.cli.leaving import story
from holdfast.cli.logs import log_to_stderr
from holdfast.cli.output import clean_lines, show_json
from holdfast.errors import HoldfastError, IllegalMove
from holdfast.stores.urls import DEFAULT_URL, masked_url


@dataclass
class Settings:
    """The values of the common options."""

    db_given: str | None = None  # on the command line, so it overrides the address that an App has
    verbosity: int = 0
    serves: bool = False  # runs until it is stopped: then its process must leave, whatever the user's code does
    imports: tuple[str, ...] = ()  # modules that declare tasks of the App
    discover: tuple[str, ...] = ()  # packages whose modules named `tasks` do

    @property
    def db(self) -> str:
        return self.db_given or os.environ.get("HOLDFAST_DB") or DEFAULT_URL


def settings() -> Settings:
    """Return the settings of the command that is being run."""
    return click.get_current_context().find_root().ensure_object(Settings)


def say(message: str) -> None:
    """Tell a person something that is not data: on stderr, and not with -q."""
    if not is_quiet():
        click.echo(message, err=True)


def acknowledge(message: str) -> None:
    """Say on stdout that all went well. With -q that needs no words: cron would mail them."""
    if not is_quiet():
        click.echo(message)


def show_result(as_json: bool, data: Any, words: str) -> None:
    """Print what an act has done: JSON for a program, or `acknowledge` it in words."""
    if as_json:
        show_json(data)
    else:
        acknowledge(words)


def is_quiet() -> bool:
    return settings().verbosity < 0


def show_log() -> None:
    """Show the program's own log with -v; without, a command says itself what it did, or chooses a level later."""
    if settings().verbosity > 0:
        log_to_stderr(logging.DEBUG)
    else:
        logging.getLogger("holdfast").addHandler(logging.NullHandler())


def complain(message: str) -> None:
    """Say what went wrong, in the one form that all errors have."""
    click.echo("holdfast: " + "\n".join(clean_lines(message)), err=True)


_OPTIONS = {"repeat_step": "--repeat-step", "result": "--result JSON"}


def error_text(error: HoldfastError) -> str:
    """Return the text of an error, with the option for the argument that it needs."""
    option = _OPTIONS.get(error.needs or "") if isinstance(error, IllegalMove) else None
    return f"{error}; on the command line: {option}" if option else str(error)


class _WithCommonOptions(click.Command):
    """Takes the common options, and shows its examples below its help."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += common_options()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.strip().splitlines():
                    formatter.write(f"{' ' * formatter.current_indent}{line.strip()}\n")


class Command(_WithCommonOptions):
    """A command: each of its options has an environment variable."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for param in self.params:
            if isinstance(param, click.Option) and param.envvar is None and param.allow_from_autoenv:
                param.envvar = variable(ctx, param)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        show_log()
        given = settings().db_given
        if given is not None and given != masked_url(given):
            say(
                "holdfast: the password in --db is seen by every user of this machine who lists its processes; put the "
                "address into the environment: HOLDFAST_DB=…"
            )
        return super().invoke(ctx)


class Group(_WithCommonOptions, click.Group):
    """A noun: its verbs are commands. `elsewhere` has the verbs that people look for here, each with the command that
    does it.
    """

    command_class = Command

    def __init__(self, *args: Any, elsewhere: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.elsewhere = elsewhere or {}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.elsewhere and not ctx.resilient_parsing:
            ctx.fail(f"No such command {cmd_name!r}. Did you mean `{self.elsewhere[cmd_name]}`?")
        return super().get_command(ctx, cmd_name)


Group.group_class = Group


class Root(Group):
    """The `holdfast` command: loads a noun's module when it is used, and turns errors into exit codes."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy  # name -> (module, summary)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            close = get_close_matches(cmd_name, self.lazy)
            if close and not ctx.resilient_parsing:
                ctx.fail(f"No such command {cmd_name!r}. Did you mean {close[0]!r}?")
            return None
        command: click.Command = getattr(importlib.import_module(self.lazy[cmd_name][0]), cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Like click's own, from the summaries at hand: the list of commands needs none of their modules."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self.lazy.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            if ctx.ensure_object(Settings).verbosity > 0:
                traceback.print_exc(file=sys.stderr)
            complain(error_text(error))
            ctx.exit(code_of(error))
        except KeyboardInterrupt as error:
            what, code = story(error)
            complain(what)
            ctx.exit(code)
        except BrokenPipeError:  # `… | head` has seen enough
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in (1, 2):
                os.dup2(nowhere, stream)  # for what is still to be flushed
            ctx.exit(Exit.UNREAD)


# ------------------------------------------------------------------------------------------- options


def variable(ctx: click.Context, option: click.Option) -> str:
    """Name the environment variable of an option by the words that people type, whatever the code calls it."""
    flag = max(option.opts, key=len).lstrip("-").replace("-", "_")
    return f"{ctx.auto_envvar_prefix}_{flag.upper()}"


def common_options() -> list[click.Parameter]:
    """Make the options that may stand anywhere; none reads the environment here, so that any flag beats it."""
    option = partial(click.Option, expose_value=False, allow_from_autoenv=False, callback=_note)
    where = f"The store.  [env: HOLDFAST_DB; default: {DEFAULT_URL}]"
    return [
        option(["--db"], metavar="URL", help=where),
        option(["--token-file"], metavar="FILE", help="The token for a server.  [env: HOLDFAST_TOKEN_FILE]"),
        option(["-v", "--verbose"], count=True, help="Print the log, and tracebacks of errors."),
        option(["-q", "--quiet"], count=True, help="Print only data and errors, for cron."),
    ]


def _note(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    given = ctx.find_root().ensure_object(Settings)
    if option.name == "verbose":
        given.verbosity += value
    elif option.name == "quiet":
        given.verbosity -= value
    elif value is not None and option.name == "token_file":
        os.environ.pop("HOLDFAST_TOKEN", None)  # a flag beats the environment, also in the processes of a worker
        os.environ["HOLDFAST_TOKEN_FILE"] = os.path.abspath(value)
    elif value is not None:
        given.db_given = value
        overwrite(value, masked_url(value))
