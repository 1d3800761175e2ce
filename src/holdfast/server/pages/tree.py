"""Data of a job as a tree for a template. Numbers are shown as they were stored: no digit is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

NODES_MAX = 2_000
DEPTH_MAX = 40  # a template goes down by calls, and what is deeper would end the page
TEXT_MAX = 20_000  # characters of one text
OPEN_MAX = 12  # a branch with more children is closed at first


class Leaf(NamedTuple):
    """A value without parts. `kind`: text, number, word (true, false, null) or cut (there is more)."""

    kind: str
    text: str


class Branch(NamedTuple):
    """An object or a list. `parts`: each with its name."""

    kind: str  # object or list
    parts: list[tuple[str, Leaf | Branch]]
    size: int
    is_open: bool


class _Number(str):
    """A number as its digits were written."""


def tree(text: str | None) -> Leaf | Branch | None:
    """Return the tree of a JSON text; a text that is not JSON is one leaf."""
    if text is None:
        return None
    try:
        data = json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_Number)
    except (ValueError, RecursionError):
        return _text(text)
    return _node(data, iter(range(NODES_MAX)), 0)


def _node(data: Any, left: Iterator[int], depth: int) -> Leaf | Branch:
    next(left, None)
    if isinstance(data, _Number):
        return Leaf("number", str(data))
    if isinstance(data, str):
        return _text(data)
    if isinstance(data, dict | list) and depth >= DEPTH_MAX:
        return Leaf("cut", f"… {len(data):,}")
    if isinstance(data, dict | list):
        kind, pairs = ("object", data.items()) if isinstance(data, dict) else ("list", enumerate(data))
        parts: list[tuple[str, Leaf | Branch]] = []
        for name, value in islice(pairs, NODES_MAX):
            if next(left, None) is None:
                parts.append(("…", Leaf("cut", f"{len(data) - len(parts):,}")))
                break
            parts.append((str(name), _node(value, left, depth + 1)))
        return Branch(kind, parts, len(data), depth == 0 or (depth < 3 and len(data) <= OPEN_MAX))
    return Leaf("word", json.dumps(data))


def _text(text: str) -> Leaf:
    return Leaf("text", text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…")
