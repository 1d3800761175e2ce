"""Lengths of time, numbers and data as people write them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from holdfast.core.durations import duration, iso
from holdfast.core.records import Moment

# The decision about a lost attempt, as a person would say it.
DECIDED = {
    "retry": "run again",
    "hold": "held",
    "bury": "given up",
    "undo": "sent to roll back",
    "cancel": "cancelled",
}


def moment(wall: float, *, millis: bool = False) -> str:
    """Write an instant for people: UTC, without the T."""
    text = iso(wall).replace("T", " ")
    return text if millis else text[:19] + "Z"


def ago(wall: float | None, now: Moment) -> str:
    return "some time ago" if wall is None else f"{duration(now.wall - wall)} ago"


def brief(seconds: float) -> str:
    """Write a length of time in one unit, for a list."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(max(0.0, seconds))} s"


def near(name: str, known: Iterable[str]) -> list[str]:
    """Return the full names that may have been meant, at most three: those that end in `.name`, or are spelt alike."""
    full = sorted(known)
    if "." in name:
        return get_close_matches(name, full, cutoff=0.8)
    shorts = {each.rpartition(".")[2] for each in full}
    meant = [name] if name in shorts else get_close_matches(name, shorts, cutoff=0.7)
    return [each for short in meant for each in full if each.rpartition(".")[2] == short][:3]


def size(number: float) -> str:
    """Write a number of bytes."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            break
        number /= 1000
    return f"{number:.0f} {unit}" if number >= 10 or unit == "bytes" else f"{number:.1f} {unit}"


def first_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return lines[0].rstrip(".") if lines else ""


def parsed(text: str | None) -> Any:
    """Return what a JSON text says; the text itself when an app with a codec of its own wrote something else."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text
