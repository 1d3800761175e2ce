"""The options that narrow a list of jobs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast import insight
from holdfast.cli.types import JobId, Text, limit_option
from holdfast.core.records import Filter

F = TypeVar("F", bound=Callable[..., Any])


state_option = click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(insight.SHOWN_STATES),
    metavar="STATE",
    help=f"Only these; may be repeated. One of {', '.join(insight.SHOWN_STATES)}.",
)


def origin_options(command: F, *, kind: str = "task") -> F:
    command = click.option("--task", type=Text(), help=f"Only of this {kind}, by its full name.")(command)
    return click.option("--queue", type=Text(), help="Only of this queue.")(command)


def page_options(command: F, *, kind: str = "task", key: bool = False) -> F:
    """Take a page of a list, as one argument `where`; with `key` also by the key of jobs."""

    @functools.wraps(command)
    def run(
        *,
        queue: str | None,
        task: str | None,
        group: str | None,
        limit: int,
        before: str | None,
        key: str | None = None,
        **rest: Any,
    ) -> Any:
        return command(where=Filter(queue=queue, task=task, key=key, limit=limit, before=before, group=group), **rest)

    listed: Any = click.option("--before", metavar="ID", type=JobId(), help="Show the page after this job.")(run)
    listed = limit_option(listed)
    listed = click.option("--group", type=Text(), help="Only of this group.")(listed)
    if key:
        listed = click.option("--key", type=Text(), help="Only with this key.")(listed)
    return origin_options(listed, kind=kind)  # type: ignore[no-any-return]
