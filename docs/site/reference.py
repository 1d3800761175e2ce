"""Pages of reference that are made from the program: the Python API from docstrings, commands from their `--help`."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import click

import holdfast
from holdfast.admin import Admin
from holdfast.aio import AsyncApp
from holdfast.cli.main import cli
from holdfast.integrations import sentry, sqlalchemy, structlog
from holdfast.tasks import Sender
from holdfast.testing import AppTester, FakeClock, ShiftedClock, SteppedClock
from holdfast.worker.embedded import EmbeddedWorker

CLASSES: dict[str, tuple[type, ...]] = {
    "The app": (holdfast.App, AsyncApp, Admin),
    "Tasks and jobs": (holdfast.Task, Sender, holdfast.Retry, holdfast.Job, holdfast.Context),
    "Workflows": (holdfast.Flow, holdfast.AsyncFlow),
    "Schedules and workers": (holdfast.All, EmbeddedWorker),
    "Tests": (AppTester, SteppedClock, FakeClock, ShiftedClock),
}
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "Functions": (holdfast.current_job,),
    "Integrations": (sqlalchemy.session, sqlalchemy.connection, sentry.instrument, structlog.add_job),
}


def python_api() -> str:
    """Return the page on the Python API."""
    return "\n".join(_python_api()) + "\n"


def commands() -> str:
    """Return the page on the command line."""
    return (
        "\n".join(["# Commands and their options", "", "Each command prints this for `--help`.", "", *_commands()])
        + "\n"
    )


def _python_api() -> Iterator[str]:
    yield from (
        "# Classes and functions",
        "",
        "Made from the docstrings. The [Python API](../api.md) has the same as tables.",
        "",
    )
    for title, classes in CLASSES.items():
        yield from (f"## {title}", "")
        for kind in classes:
            yield from _class(kind)
    for title, functions in FUNCTIONS.items():
        yield from (f"## {title}", "")
        for function in functions:
            yield from _callable(f"{function.__module__}.{function.__name__}", function, "###")
    yield from ("## Exceptions", "")
    for name in holdfast.__all__:
        found = getattr(holdfast, name)
        if isinstance(found, type) and issubclass(found, BaseException):
            bases = ", ".join(f"`{base.__name__}`" for base in found.__bases__)
            yield from (f"### `{name}`", "", f"Derives from {bases}.", "", *_prose(found.__dict__.get("__doc__")), "")


def _class(kind: type) -> Iterator[str]:
    yield from (f"### `{kind.__name__}`", "")
    if "__init__" in vars(kind) and kind in (holdfast.App, AppTester, holdfast.Retry):
        yield from _signature(kind.__name__, kind)
    yield from (*_prose(inspect.getdoc(kind)), "")
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield from (f"#### `{kind.__name__}.{name}`", "", *_prose(inspect.getdoc(member)), "")
        elif inspect.isfunction(member):
            yield from _callable(f"{kind.__name__}.{name}", member, "####")


def _callable(name: str, function: Any, level: str) -> Iterator[str]:
    yield from (
        f"{level} `{name}`",
        "",
        *_signature(name.rpartition(".")[2], function),
        *_prose(inspect.getdoc(function)),
        "",
    )


def _signature(name: str, function: Any) -> Iterator[str]:
    """Yield the call, one argument to a line if it is long."""
    parts = [*_parts(inspect.signature(function))]
    returned = inspect.signature(function).return_annotation
    arrow = (
        f" -> {_named(returned)}" if returned is not inspect.Signature.empty and not isinstance(function, type) else ""
    )
    text = f"{name}({', '.join(parts)}){arrow}"
    if len(text) > 80:
        text = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){arrow}"
    yield from ("```python", text, "```", "")


def _parts(signature: inspect.Signature) -> Iterator[str]:
    wanted = [each for each in signature.parameters.values() if each.name != "self"]
    positional_only = [each for each in wanted if each.kind is each.POSITIONAL_ONLY]
    has_star = False
    for each in wanted:
        if each.kind is each.KEYWORD_ONLY and not has_star:
            yield "*"
        has_star = has_star or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        kind = "" if each.annotation is each.empty else f": {_named(each.annotation)}"
        equals = " = " if kind else "="
        default = "..." if each.default is ... else repr(each.default)
        yield f"{stars}{each.name}{kind}{'' if each.default is each.empty else equals + default}"
        if positional_only and each is positional_only[-1]:
            yield "/"


def _named(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


_PARAMETER = re.compile(r"(?:^|(?<=[.;)\]}`\"] )|(?<=\n))([a-z_]+(?:, [a-z_]+)*): ")


def _prose(doc: str | None) -> list[str]:
    """Return a docstring as Markdown: indented blocks are code, and `name: what it is` begins an item of a list."""
    lines: list[str] = []
    for block in (doc or "").split("\n\n"):
        if block and all(line.startswith("    ") for line in block.splitlines()):
            code = textwrap.dedent(block).splitlines()
            if lines[-2:] == ["```", ""]:
                lines[-2:] = ["", *code, "```", ""]
            else:
                lines += ["```text", *code, "```", ""]
            continue
        pieces = _PARAMETER.split(block.replace("<", "&lt;"))
        lines += [pieces[0].strip(), ""] if pieces[0].strip() else []
        names = pieces[1::2]
        lines += [f"- **{name}**: {' '.join(what.split())}" for name, what in zip(names, pieces[2::2], strict=True)]
        lines += [""] if names else []
    return lines


def _commands() -> Iterator[str]:
    for path, command in _walk("holdfast", cli):
        with click.Context(command, info_name=path, max_content_width=88, terminal_width=88) as context:
            text = command.get_help(context)
        yield from (f"{'##' if path.count(' ') < 2 else '###'} `{path}`", "", "```text", text, "```", "")


def _walk(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from _walk(f"{path} {name}", found)
