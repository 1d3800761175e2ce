"""Print data: JSON for programs, tables for a terminal, plain aligned text for a pipe.

Job data is not trusted: whatever could move the cursor, change colours or fake a line is written as an escape, here and
nowhere else. So a job cannot write to the operator's terminal.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from holdfast.core.text import escaped

_BELOW_MAX = 3  # lines of one cell
_STYLES = {
    "ready": "cyan",
    "scheduled": "cyan",
    "retrying": "yellow",
    "running": "blue",
    "waiting": "magenta",
    "held": "yellow",
    "done": "green",
    "dead": "red",
    "cancelled": "bright_black",
    "rolled_back": "magenta",
    "alive": "green",
    "stopping": "yellow",
    "silent": "yellow",
    "locked": "yellow",
    "gone": "bright_black",
    "paused": "yellow",
    "recorded": "green",
    "answered": "green",
    "started": "blue",
    "undone": "magenta",
    "failed": "red",
}


def clean(text: object) -> str:
    """Write text on one line: control characters, line breaks and invisible characters as escapes."""
    return escaped(str(text))


def clean_lines(text: str) -> list[str]:
    """Write text that has lines of its own: each is clean, and the caller indents them."""
    return [clean(line.expandtabs(4)) for line in re.split(r"\r?\n", text.rstrip())]


def show_json(data: Any) -> None:
    """Print one JSON document on stdout; what a terminal would obey is escaped inside its strings."""
    click.echo(json_line(data, (sys.stdout.encoding or "utf-8").lower().startswith("utf"), indent=2))


def json_line(data: Any, has_all: bool = True, indent: int | None = None) -> str:
    """Write plain data as JSON, on one line without `indent`, with escapes; `has_all`: any character can be written."""
    text = json.dumps(data, indent=indent, ensure_ascii=not has_all)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _json_escaped(char) for char in text)


def _json_escaped(char: str) -> str:
    return json.dumps(char)[1:-1] if ord(char) != 0x7F else "\\u007f"


def one_line(data: Any) -> str:
    """Write plain data as one clean line of JSON."""
    return clean(json.dumps(data, ensure_ascii=False))


def is_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def is_watched() -> bool:
    """Say whether a person would see a bar."""
    return sys.stderr.isatty()


def styled(word: str, key: str | None = None) -> str:
    """Colour a word by what it means; click takes the colour away again when stdout is not a terminal."""
    style = _STYLES.get(key or word)
    return click.style(word, fg=style) if style and uses_colour() else word


def bold(word: str) -> str:
    return click.style(word, bold=True) if uses_colour() else word


def dim(word: str) -> str:
    return click.style(word, dim=True) if uses_colour() else word


def uses_colour() -> bool:
    return is_terminal() and not os.environ.get("NO_COLOR")


def width() -> int:
    return shutil.get_terminal_size((100, 24)).columns if is_terminal() else 100


def columns(text: str) -> int:
    """Return how many columns of a terminal a clean text takes: some characters are two wide, or none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def fitted(text: str, room: int, *, keeps_end: bool = False) -> str:
    """Cut a clean text to a number of columns, and mark the cut at its end; with `keeps_end` at its start."""
    if columns(text) <= room:
        return text
    if keeps_end:
        return fitted(text[::-1], room)[::-1]
    cut = text[: room - 1]
    while columns(cut) > room - 1:
        cut = cut[:-1]
    return f"{cut}…"


def padded(text: str, room: int, *, right: bool = False) -> str:
    """Pad a clean text to a number of columns."""
    gap = " " * (room - columns(text))
    return gap + text if right else text + gap


def paragraph(text: str, first: str = "", rest: str = "") -> None:
    """Print text on stdout, cleaned, broken to the width of a terminal; `first` and `rest` stand before its lines.

    `first` may hold colour; what a terminal shows of it must be as wide as `rest`.
    """
    lines = [clean(text)]
    if is_terminal():
        lines = textwrap.wrap(lines[0], max(20, width() - len(rest)), break_on_hyphens=False, break_long_words=False)
    for number, line in enumerate(lines or [""]):
        click.echo(f"{rest if number else first}{line}")


# ---------------------------------------------------------------------------------------------- tables


@dataclass(frozen=True)
class Column:
    """A column of a table. `keep`: never shortened. `rank`: the highest goes first when the terminal is narrow.
    `grows`: spare room goes to it before others. `keeps_end`: what tells most is at its end, as in a task's name.
    `below`: where it would be cut or left out, it goes below the row, on lines of its own, behind `word`. `coloured`:
    its words are states, and have the colour of what they mean; a task or a queue of the same name has none.
    """

    head: str
    cell: Callable[[Any], object]
    keep: bool = False
    right: bool = False
    rank: int = 0
    least: int = 6  # how short its cells may be cut
    grows: bool = False
    keeps_end: bool = False
    below: bool = False
    word: str = ""
    coloured: bool = False


def show_table(
    wanted: Sequence[Column], rows: Sequence[Any], indent: str = "", after: Callable[[Any], None] = lambda _: None
) -> None:
    """Print a table on stdout: fitted to a terminal, or in full when another program reads it.

    `after` is called with each row when it was printed.
    """
    room = sys.maxsize
    if is_terminal():
        room = width() - len(indent)
        wanted = [column for column in wanted if not column.rank or any(column.cell(row) is not None for row in rows)]
    kept, sizes, below = _placed(wanted, rows, room)
    click.echo(bold(indent + _line(kept, sizes, [column.head for column in kept])))
    for row, cells, texts in zip(rows, _cells(kept, rows), _cells(below, rows), strict=True):
        click.echo(indent + _line(kept, sizes, cells))
        for part in _beneath(below, texts, room - 2):
            click.echo(f"  {part}")
        after(row)


def _beneath(below: Sequence[Column], texts: Sequence[str], room: int) -> Iterator[str]:
    """Write what goes below a row: those with a word of their own share a line."""
    said = [text for column, text in zip(below, texts, strict=True) if not column.word and text != "-"]
    words = [f"{column.word} {text}" for column, text in zip(below, texts, strict=True) if column.word and text != "-"]
    for each in (*said, "; ".join(words)):
        yield from textwrap.wrap(each, room, max_lines=_BELOW_MAX, placeholder=" …")


def _cells(columns: Sequence[Column], rows: Sequence[Any]) -> list[list[str]]:
    return [["-" if (value := column.cell(row)) is None else clean(value) for column in columns] for row in rows]


def _line(columns: Sequence[Column], sizes: Sequence[int], cells: Sequence[str]) -> str:
    shown = []
    for column, size, cell in zip(columns, sizes, cells, strict=True):
        text = fitted(cell, size, keeps_end=column.keeps_end)
        text = padded(text, size, right=column.right)
        shown.append(styled(text, cell) if column.coloured else text)
    return "  ".join(shown).rstrip()


def _placed(
    wanted: Sequence[Column], rows: Sequence[Any], room: int
) -> tuple[Sequence[Column], Sequence[int], Sequence[Column]]:
    """Return the columns that fit and their widths, and those that go below each row because they would be cut."""
    beside, below = list(wanted), list[Column]()
    while True:
        cells = _cells(beside, rows)
        kept, widths = _fitted(beside, cells, room)
        given = {column.head: size for column, size in zip(kept, widths, strict=True)}
        needs = {
            column.head: max((columns(line[place]) for line in cells if line[place] != "-"), default=0)
            for place, column in enumerate(beside)
        }
        cut = [column for column in beside if column.below and needs[column.head] > given.get(column.head, 0)]
        if not cut:
            return kept, widths, [column for column in wanted if column in below]
        longest = max(cut, key=lambda column: needs[column.head])  # then there may be room for the others
        beside.remove(longest)
        below.append(longest)


def _fitted(
    all_columns: Sequence[Column], table: Sequence[Sequence[str]], room: int
) -> tuple[Sequence[Column], Sequence[int]]:
    """Return the columns that fit and their widths: the flexible ones are cut, then the least important left out."""
    wanted = {
        column.head: max([len(column.head), *(columns(line[i]) for line in table)])
        for i, column in enumerate(all_columns)
    }
    kept = list(all_columns)
    while True:
        least = [wanted[c.head] if c.keep else min(wanted[c.head], max(c.least, len(c.head))) for c in kept]
        gaps = 2 * (len(kept) - 1)
        droppable = [column for column in kept if column.rank]
        if sum(least) + gaps <= room or not droppable:
            break
        kept.remove(max(droppable, key=lambda column: column.rank))
    spare = max(0, room - gaps - sum(least))
    widths = list(least)
    for place in sorted(range(len(kept)), key=lambda place: not kept[place].grows):
        more = min(spare, wanted[kept[place].head] - widths[place])
        widths[place] += more
        spare -= more
    return kept, widths


class Progress:
    """A bar on stderr while a person watches; nothing otherwise."""

    def __init__(self, label: str, total: int) -> None:
        shown = is_watched() and total > 0
        self._left = total
        self._bar = click.progressbar(length=total, label=label, file=sys.stderr) if shown else None

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.__enter__()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if self._bar is not None:
            if error is None:
                self._bar.update(self._left)  # the total was a guess; what is over is over
            self._bar.__exit__(None, None, None)

    def advance(self, steps: int) -> None:
        if self._bar is not None:
            self._bar.update(steps)
            self._left -= steps

    def make_way(self) -> None:
        """Take the bar off its line, for words that go to stderr; the next step draws it again below them."""
        if self._bar is not None:
            click.echo("\r\x1b[K", err=True, nl=False)
