"""`holdfast doctor`: look for trouble, and say what to do about it."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Any

import click

from holdfast import insight
from holdfast.cli.base import Command, is_quiet, say, settings
from holdfast.cli.exit_codes import Exit, code_of
from holdfast.cli.loading import import_options, open_existing, own_app
from holdfast.cli.output import bold, paragraph, show_json, styled
from holdfast.cli.types import app_argument, json_option
from holdfast.clock import SystemClock
from holdfast.errors import StoreError, StoreFull
from holdfast.insight.findings import Finding, findings_view, problem

_SIGNS = {"ok": ("✓", "+"), "warning": ("!", "!"), "problem": ("✗", "x")}  # for a terminal with and without Unicode
_STYLES = {"ok": "done", "warning": "held", "problem": "dead"}
_INDENT = " " * 11


@click.command(
    cls=Command,
    epilog="""
    holdfast doctor
    holdfast doctor jobs:app --db sqlite:///jobs.db
    holdfast doctor --json | jq -r '.findings[] | select(.fix) | .fix'
    """,
)
@app_argument
@import_options
@json_option
@click.pass_context
def doctor(ctx: click.Context, app: str | None, as_json: bool) -> None:
    """Look for trouble, and say what to do about it.

    Checks the store (schema, damage, durability, permissions, room, the SQLite that Python brings), the workers, queues
    that no worker serves, jobs that are lost or wait for a person, and the settings against what was observed. With APP
    (module:name) also whether it knows the tasks that are due. Nothing is changed. With -q only what is not
    ok is shown.

    Exits with 7 when it found a warning or a problem, with 3 when the store cannot be read.
    """
    found, code = _examine(app)
    view = findings_view(insight.shown_url(settings().db), found)
    if as_json:
        show_json(view)
    else:
        _show(view)
    if code is not Exit.OK or not view["ok"]:
        ctx.exit(code or Exit.UNHEALTHY)


def _examine(ref: str | None) -> tuple[list[Finding], Exit]:
    """Collect findings, as far as the store lets us; say how to exit if it stopped us."""
    from holdfast.insight.diagnosis import diagnose
    from holdfast.insight.store_findings import to_be_read

    app = own_app(ref)
    found: list[Finding] = []
    try:
        with closing(open_existing()) as store:
            found.extend(diagnose(store, SystemClock(), app, ref or "APP"))
    except StoreError as error:
        title = "The disk is full" if isinstance(error, StoreFull) else "The store cannot be read"
        return [*found, problem(title, str(error), to_be_read(settings().db, error))], code_of(error)
    return found, Exit.OK


def _show(view: dict[str, Any]) -> None:
    for finding in view["findings"]:
        if finding["severity"] == "ok" and is_quiet():
            continue
        word = finding["severity"]
        sign = _SIGNS[word][0 if (sys.stdout.encoding or "").lower().startswith("utf") else 1]
        head = f"{styled(f'{sign} {word}', _STYLES[word])}{' ' * (len(_INDENT) - len(word) - 2)}"
        paragraph(f"{finding['title']}: {finding['evidence']}", head, _INDENT)
        if finding["fix"]:
            paragraph(finding["fix"], f"{_INDENT}{bold('fix:')} ", f"{_INDENT}     ")
    words = [finding["severity"] for finding in view["findings"]]
    if view["ok"]:
        to_do = any(finding["fix"] for finding in view["findings"])
        say("Nothing is wrong; a job waits for a person's answer." if to_do else "Nothing to do.")
    else:
        numbers = [(words.count("problem"), "problem"), (words.count("warning"), "warning")]
        say(f"{' and '.join(insight.counted(number, word) for number, word in numbers if number)}.")
