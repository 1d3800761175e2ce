"""Ask a person before an act that cannot be undone, or that is about many jobs."""

from __future__ import annotations

import sys

import click

from holdfast.errors import UsageError


def confirm(question: str, yes: bool) -> None:
    """Ask a person; without a terminal to ask at, demand -y."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask at; add -y to continue")
    click.confirm(question, abort=True, err=True)
