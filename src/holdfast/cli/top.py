"""`holdfast top`: a live view of queues, rates, workers, leases and detections in a plain terminal."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from typing import Any

import click

from holdfast import insight
from holdfast.cli.base import Command
from holdfast.cli.loading import opened_store
from holdfast.cli.output import bold, clean, columns, dim, fitted, is_terminal, padded, show_json, styled, width
from holdfast.cli.types import Duration, json_option
from holdfast.errors import UsageError

LEAST_S, MOST_S = 0.2, 60.0
HEIGHT_MIN = 12
_BAR = 10

Cell = tuple[str, str | None]  # the text, and what it means, for its colour


@click.command(
    cls=Command,
    epilog="""
    holdfast top
    holdfast top --interval 5
    holdfast top --once --json
    """,
)
@click.option(
    "--interval", type=Duration(), default="1s", show_default=True, metavar="TIME", help="Look again after this long."
)
@click.option("--once", is_flag=True, help="Print one look and end.")
@json_option
def top(interval: float, once: bool, as_json: bool) -> None:
    """Watch queues, rates, workers, leases and detections.

    Shows each queue with its rates of the last minute, each worker, the leases with the least time left, and the
    attempts that were lost in the last hour. It follows the size of the terminal. `q` ends it, and the space bar pauses
    it. Without a terminal, or with --once, it prints one look.
    """
    if not LEAST_S <= interval <= MOST_S:
        raise UsageError(f"--interval must be between {LEAST_S:g} s and {MOST_S:g} s")
    with opened_store() as store:
        if as_json:
            show_json(insight.live_view(store))
        elif once or not is_terminal() or not sys.stdin.isatty():
            for line in screen(insight.live_view(store), width(), 200):
                click.echo(line)
        else:
            with _whole_terminal():
                _watch(store, interval)


def _watch(store: Any, interval_s: float) -> None:
    paused, shown = False, insight.live_view(store)
    while True:
        size = shutil.get_terminal_size((100, 24))
        foot = "paused; space continues, q quits" if paused else "q quits, space pauses"
        lines = [*screen(shown, size.columns, size.lines - 1), dim(foot)]
        click.echo("\x1b[H" + "\n".join(f"{line}\x1b[K" for line in lines[: size.lines]) + "\x1b[J", nl=False)
        match _key(interval_s):
            case b"q" | b"Q" | b"\x03" | b"\x04":
                return
            case b" ":
                paused = not paused
        if not paused:
            shown = insight.live_view(store)


def _key(timeout_s: float) -> bytes | None:
    """Return a key that was pressed within this time. A terminal that is gone counts as `q`."""
    try:
        if not select.select([sys.stdin], [], [], timeout_s)[0]:
            return None
        return os.read(sys.stdin.fileno(), 1) or b"q"
    except InterruptedError:  # the terminal has another size
        return None


@contextlib.contextmanager
def _whole_terminal() -> Iterator[None]:
    """Take the whole terminal and its keys, and give both back whatever happens."""
    before = termios.tcgetattr(sys.stdin)
    click.echo("\x1b[?1049h\x1b[?25l", nl=False)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        click.echo("\x1b[?25h\x1b[?1049l", nl=False)


# ------------------------------------------------------------------------------------------------ the screen


def screen(view: dict[str, Any], wide: int, high: int) -> list[str]:
    """Lay out a look in at most `high` lines of `wide` columns: each part gets its share of what is left."""
    out = sum(queue["out_per_s"] for queue in view["queues"])
    into = sum(queue["in_per_s"] for queue in view["queues"])
    running = sum(queue["running"] for queue in view["queues"])
    head = f"{view['at'][11:19]} UTC  {running:,} running  {into:.3g} in/s  {out:.3g} out/s  {view['lost']} lost in 1 h"
    parts = [
        _table(("QUEUE", "NOW", ">READY", ">RUN", ">IN/S", ">OUT/S", ">DRAINS", ">OLDEST"), _queues(view), wide),
        _table(("WORKER", "STATE", ">SLOTS", ">BEAT", ">MB", "RELEASE"), _workers(view), wide),
        _table(("LEASE", ">LEFT", "", "TASK", "WORKER", ">ATTEMPT"), _leases(view), wide),
        _table(("LOST AT", "FOUND BY", "THEN", "TASK", "WORKER"), _detections(view), wide),
    ]
    parts = [part for part in parts if len(part) > 1]
    lines = [bold(fitted(head, wide))]
    room = max(high, HEIGHT_MIN) - 1
    for left, part in zip(range(len(parts), 0, -1), parts, strict=True):
        share = max(3, room // left)
        shown = part if len(part) + 1 <= share else [*part[: share - 2], dim(f"  … {len(part) - share + 2} more")]
        lines += ["", *shown]
        room -= len(shown) + 1
    return lines[:high]


def _table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], wide: int) -> list[str]:
    """Lay out rows in columns; `>` before a head puts its column to the right. The widest column gives way."""
    names = [head.lstrip(">") for head in heads]
    sizes = [max([len(name), *(columns(row[at][0]) for row in rows)]) for at, name in enumerate(names)]
    while sum(sizes) + 2 * (len(sizes) - 1) > wide and max(sizes) > 8:
        sizes[sizes.index(max(sizes))] -= 1

    def line(cells: Sequence[Cell]) -> str:
        texts = []
        for head, size, (text, meaning) in zip(heads, sizes, cells, strict=True):
            cell = padded(fitted(text, size), size, right=head.startswith(">"))
            texts.append(styled(cell, meaning) if meaning else cell)
        return "  ".join(texts).rstrip()

    return [bold(line([(name, None) for name in names])), *(line(row) for row in rows)]


def _queues(view: dict[str, Any]) -> list[list[Cell]]:
    found = []
    for queue in sorted(view["queues"], key=lambda queue: (-(queue["oldest_due_s"] or 0), -queue["ready"])):
        now = "paused" if queue["paused"] else "open" if queue["served"] else "no worker"
        oldest = queue["oldest_due_s"]
        found.append(
            [
                (clean(queue["queue"]), None),
                (now, {"open": None, "paused": "paused"}.get(now, "dead")),
                (f"{queue['ready']:,}", None),
                (f"{queue['running']:,}", None),
                (f"{queue['in_per_s']:.3g}", None),
                (f"{queue['out_per_s']:.3g}", None),
                (insight.drains_in(queue) or "-", None),
                ("-" if oldest is None else insight.brief(oldest), "held" if (oldest or 0) > 600 else None),
            ]
        )
    return found


def _workers(view: dict[str, Any]) -> list[list[Cell]]:
    return [
        [
            (clean(worker["name"]), None),
            (worker["state"], worker["state"]),
            (f"{worker['running']}/{worker['slots']}", None),
            (f"{worker['beat_s']:.0f} s", None),
            ("-" if worker["rss_mb"] is None else f"{worker['rss_mb']:.0f}", None),
            (clean(worker["release"] or "-"), None),
        ]
        for worker in view["workers"]
    ]


def _leases(view: dict[str, Any]) -> list[list[Cell]]:
    found = []
    for lease in view["leases"]:
        share = min(1.0, max(0.0, lease["left_s"] / lease["lease_s"])) if lease["lease_s"] else 0.0
        meaning = "done" if share > 0.5 else "held" if share > 0.2 else "dead"
        full = round(share * _BAR)
        left = "overdue" if lease["left_s"] < 0 else f"{lease['left_s']:.1f} s"
        found.append(
            [
                (clean(lease["id"]), None),
                (left, meaning),
                ("#" * full + "-" * (_BAR - full), meaning),
                (clean(lease["task"]), None),
                (clean(lease["worker"] or "-"), None),
                (str(lease["attempt"]), None),
            ]
        )
    return found


def _detections(view: dict[str, Any]) -> list[list[Cell]]:
    return [
        [
            (each["at"][11:19], None),
            (clean(each["detector"] or "-"), "held"),
            (clean(insight.DECIDED.get(each["decision"] or "", each["decision"] or "-")), None),
            (clean(each["task"] or "(deleted)"), None),
            (clean(each["worker"] or "-"), None),
        ]
        for each in view["detections"]
    ]
