"""`holdfast port`: what of another system's project has a counterpart here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from holdfast.cli.base import Group, complain, say
from holdfast.cli.output import Column, show_json, show_table
from holdfast.cli.types import json_option
from holdfast.errors import UsageError

_WORDS = {"maps": "maps", "differs": "differs: read first", "none": "has no counterpart", "unknown": "is not known"}

_COLUMNS = [
    Column("WHERE", lambda use: f"{use.file}:{use.line}", keeps_end=True, least=12),
    Column("KIND", lambda use: use.kind, rank=1),
    Column("IN CELERY", lambda use: use.name, keep=True),
    Column("FIT", lambda use: use.fit),
    Column("HERE", lambda use: use.here, grows=True, below=True),
]


@click.group(
    cls=Group,
    epilog="""
    holdfast port celery .
    """,
)
def port() -> None:
    """See what of a project for another system maps.

    The project is read, and none of its code is run.
    """


@port.command(
    epilog="""
    holdfast port celery .
    holdfast port celery src/shop --json
    holdfast port celery src/shop --only differs
    """
)
@click.argument("project", type=click.Path(path_type=Path))
@click.option("--only", type=click.Choice(list(_WORDS)), help="List only uses that fit like this.")
@json_option
def celery(project: Path, only: str | None, as_json: bool) -> None:
    """List what a Celery project uses, and what it is here.

    PROJECT is a folder or a file of Python. Each use maps, differs, has no counterpart or is not known. The page
    docs/from-celery.md explains them.
    """
    from holdfast.cli.celery_features import scan

    if not project.exists():
        raise UsageError(f"there is no {project}; name a folder or a file of Python")
    found, unread = scan(project)
    counts = Counter[str](use.fit for use in found)
    shown = [use for use in found if only in (None, use.fit)]
    if as_json:
        show_json({"counts": dict(counts), "unread": unread, "uses": [use._asdict() for use in shown]})
    elif shown:
        show_table(_COLUMNS, shown)
    for name in unread:
        complain(f"{name} could not be read as Python")
    if not found:
        say("Nothing of Celery was found.")
        return
    say("; ".join(f"{counts[fit]} {words}" for fit, words in _WORDS.items() if counts[fit]) + ".")
