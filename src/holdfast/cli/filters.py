"""The options that choose jobs, for lists and for acts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click
from msgspec.structs import replace

from holdfast import insight
from holdfast.cli.completing import complete_queue, complete_task
from holdfast.cli.types import JobId, Pair, Since, Text, limit_option
from holdfast.insight import Selection
from holdfast.stores.protocol import Store
from holdfast.stores.rounds import together

F = TypeVar("F", bound=Callable[..., Any])

_STATES = ", ".join(insight.SHOWN_STATES)
_TIME = "2h, 14:00, or an ISO instant"


class Chosen(NamedTuple):
    """The jobs that a command line chooses, as far as it can be known without the store: instants need its clock, and
    tasks may be given in short."""

    wanted: Selection
    since: Callable[[float], float] | None
    until: Callable[[float], float] | None

    def on(self, store: Store) -> Selection:
        """Return the choice by the clock of this store, and with the full name of the task."""
        times = (self.since, self.until)
        now, named = together(
            lambda: store.now().wall if any(times) else 0.0,
            lambda: insight.with_full_task(store, self.wanted),
        )
        since, until = (None if each is None else each(now) for each in times)
        chosen: Selection = replace(named, since=since, until=until)
        chosen.check()
        return chosen

    @property
    def narrows(self) -> bool:
        """Say whether any option was given that narrows the choice."""
        return self != Chosen(Selection(), None, None)


def choose_options(command: F, *, kind: str = "task", states: bool = True) -> F:
    """Take the options that choose jobs, as one argument `chosen`; without `states` the command knows the state."""

    @functools.wraps(command)
    def run(
        *,
        states: tuple[str, ...] = (),
        queue: str | None,
        task: str | None,
        group: str | None,
        key: str | None,
        tags: tuple[str, ...],
        meta: tuple[tuple[str, str], ...],
        error: str | None,
        release: str | None,
        since: Callable[[float], float] | None,
        until: Callable[[float], float] | None,
        crashed: bool,
        detector: str | None,
        **rest: Any,
    ) -> Any:
        wanted = Selection(
            states=states,
            queue=queue,
            task=task,
            group=group,
            key=key,
            tags=tags,
            meta=meta,
            error=error,
            release=release,
            crashed=crashed,
            detector=detector,
        )
        return command(chosen=Chosen(wanted, since, until), **rest)

    chosen: Any = run
    for option in reversed(_options(kind)):
        chosen = option(chosen)
    return state_option(chosen) if states else chosen  # type: ignore[no-any-return]


state_option = click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(insight.SHOWN_STATES),
    metavar="STATE",
    help=f"Only these; may be repeated. One of {_STATES}.",
)


def _options(kind: str) -> list[Callable[[Any], Any]]:
    """Return the options in the order of the help."""
    word = "The name may be cut at its front: send for mail.send."
    return [
        click.option("--queue", type=Text(), shell_complete=complete_queue, help="Only of this queue."),
        click.option("--task", type=Text(), shell_complete=complete_task, help=f"Only of this {kind}. {word}"),
        click.option("--group", type=Text(), help="Only of this group."),
        click.option("--key", type=Text(), help="Only with this key."),
        click.option("--tag", "tags", multiple=True, type=Text(), help="Only with this tag; may be repeated."),
        click.option(
            "--meta", multiple=True, type=Pair(), metavar="NAME=VALUE", help="Only with this metadata; may be repeated."
        ),
        click.option(
            "--error",
            type=Text(),
            metavar="FINGERPRINT",
            help="Only with this last error; `holdfast errors` lists fingerprints.",
        ),
        click.option("--release", type=Text(), help="Only if the last error came from a worker of this release."),
        click.option(
            "--since",
            type=Since(),
            metavar="TIME",
            help=f"Only if they ended, failed or were added since then: {_TIME}.",
        ),
        click.option("--until", type=Since(), metavar="TIME", help="Only if that was before then."),
        click.option("--crashed", is_flag=True, help="Only jobs that lost their worker (in that time)."),
        click.option(
            "--detector",
            type=click.Choice(insight.DETECTORS),
            metavar="NAME",
            help=f"Only crashes found by it: {', '.join(insight.DETECTORS)}.",
        ),
    ]


def page_options(command: F, *, kind: str = "task", states: bool = False) -> F:
    """Take the options that choose jobs and a page of them, as `chosen`, `limit` and `before`."""
    listed: Any = click.option("--before", metavar="ID", type=JobId(), help="Show the page after this job.")(command)
    return choose_options(limit_option(listed), kind=kind, states=states)  # type: ignore[no-any-return]
