"""Types of option values, and options that several commands share."""

from __future__ import annotations

import getpass
import socket
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from holdfast.core.durations import instant, seconds
from holdfast.core.payload import JSON
from holdfast.core.records import KeyScope
from holdfast.errors import NotFound, PayloadError, UsageError

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # older ones are not generic when the program runs

F = TypeVar("F", bound=Callable[..., Any])

_LONGEST_S = 1e9


class Duration(ParamType):
    """A length of time: seconds, or numbers with units such as 500ms, 90s, 15m, 1h30m, 7d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        length_s = seconds(str(value))
        if length_s is None:
            self.fail(f"{value!r} is not a length of time; write seconds, or 90s, 15m, 2h, 7d", param, ctx)
        if length_s > _LONGEST_S:
            self.fail(f"{value!r} is too long", param, ctx)
        return length_s


class KeyScopeType(ParamType):
    """The scope of a key: a word, or a length of time."""

    name = "scope"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> KeyScope | float:
        if value in get_args(KeyScope):
            return value  # type: ignore[no-any-return]
        length_s = seconds(str(value))
        if not length_s or length_s > _LONGEST_S:
            self.fail(f"{value!r} is not a scope; write live, queued, ever, or a time such as 10m", param, ctx)
        return length_s


class Pair(ParamType):
    """A name and a value: NAME=VALUE."""

    name = "pair"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, sign, text = str(value).partition("=")
        if not name or not sign:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, text


class Since(ParamType):
    """An instant in the past: 2h, 14:00, or 2026-11-19T14:00. The command converts it, by the clock of the store."""

    name = "since"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Callable[[float], float]:
        text, ago_s = str(value), seconds(str(value))
        if instant(text, 0.0) is None or (ago_s is not None and ago_s > _LONGEST_S):
            self.fail(f"{text!r} is not an instant; write 2h, 14:00, or 2026-11-19T14:00", param, ctx)
        return lambda now: instant(text, now) or 0.0


class Text(ParamType):
    """Text that a store can hold: bytes of the command line that are not UTF-8 are refused, not passed on."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail("it is not valid UTF-8", param, ctx)
        return text


class JobId(Text):
    """An id, or its first part. A text that cannot be an id is not found, like any other unknown id."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            raise NotFound(f"there is no job {value!a}; see `holdfast jobs list`") from None


class WordList(ParamType):
    """Several words with commas in between; given `known`, each must be one of them."""

    name = "a,b"

    def __init__(self, known: tuple[str, ...] = ()) -> None:
        self.known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        text = Text().convert(value, param, ctx)
        found = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
        if not found:
            self.fail("name at least one", param, ctx)
        for word in found:
            if self.known and word not in self.known:
                self.fail(f"{word!r} is not one of {', '.join(self.known)}", param, ctx)
        return found


class Json(ParamType):
    """A JSON value. `-` reads it from stdin. `advice` says how to write one here."""

    name = "json"

    def __init__(self, advice: str) -> None:
        self.advice = advice

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        text = sys.stdin.read() if value == "-" else value
        try:
            return JSON.decode(text)
        except PayloadError as error:
            self.fail(f"{error}. {self.advice}", param, ctx)


def call_of(arguments: Any, advice: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call that were written as JSON: an array of positional, or an object of named ones."""
    match arguments:
        case None:
            return [], {}
        case list():
            return arguments, {}
        case dict():
            return [], arguments
        case _:
            raise UsageError(f"the arguments must be a JSON array (positional) or object (keywords). {advice}")


# ------------------------------------------------------------------------------------- shared options


def options(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Combine options into one decorator; the help lists them in this order."""

    def add(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return add


def shared_option(flag: str, *names: str, **more: Any) -> Callable[[F], F]:
    """Make an option whose environment variable is the same for every command."""
    return click.option(flag, *names, envvar=f"HOLDFAST_{flag[2:].replace('-', '_').upper()}", **more)


log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json"], case_sensitive=False),
    default="text",
    show_default=True,
    help="How to write the log: json is one object on a line.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def since_option(words: str, default: str | None = None) -> Callable[[F], F]:
    """Make --since, which commands get as a function from now to an instant."""
    return click.option(
        "--since", type=Since(), default=default, show_default=default is not None, metavar="TIME", help=words
    )


def later(text: str, wall: float, option: str) -> float:
    """Read an instant that is to come: now, a length of time from now, or ISO 8601 with a time zone."""
    if text.strip().lower() == "now":
        return wall
    if (length_s := seconds(text)) is not None:
        return wall + length_s
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.utcoffset() is None:
        raise UsageError(
            f"{option} {text!r} is neither an instant with a time zone (2030-01-31T08:00Z) nor a time (15m)"
        )
    return at.timestamp()


yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
app_argument = click.argument("app", metavar="[APP]", required=False, type=Text())
limit_option = click.option(
    "--limit", type=click.IntRange(1, 100_000), metavar="N", default=50, show_default=True, help="Show at most N."
)
older_than_option = click.option(
    "--older-than",
    type=Duration(),
    required=True,
    metavar="TIME",
    help="Only jobs that ended this long ago, such as 7d or 12h.",
)
grace_option = click.option(
    "--grace", "grace_s", type=Duration(), default=0.0, metavar="TIME", help="Wait this long after a lease expires."
)
fence_option = click.option(
    "--fence", type=click.IntRange(0), metavar="N", help="Only if the job still has this fence, which you saw."
)
step_arguments_option = click.option(
    "--step-arguments", is_flag=True, help="Show the arguments of steps with an undo, not only their size."
)
repeat_step_option = click.option(
    "--repeat-step", is_flag=True, help="Also run steps again that must not be repeated and may have happened."
)


def require_one(fence: int | None, job_ids: Sequence[str]) -> None:
    """Raise where a fence is given that cannot be meant for all of these jobs."""
    if fence is not None and len(set(job_ids)) != 1:
        raise UsageError("--fence is the fence of one job; name that job alone")


def person(by: str | None) -> str:
    """Return the name under which an act goes into the journal."""
    if by:
        return by
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


by_option = shared_option(
    "--by",
    type=Text(),
    callback=lambda _ctx, _option, by: person(by),
    help="The person who does this.  [env: HOLDFAST_BY; default: user@host]",
)
# The actor and the reason: both are written to the job's journal.
person_options = options(by_option, click.option("--note", type=Text(), help="The reason, for the journal."))
