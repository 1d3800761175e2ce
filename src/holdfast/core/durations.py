"""Instants and lengths of time, in words."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import ceil
from typing import overload

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_YEAR_1, _YEAR_9999 = -62_135_596_800.0, 253_402_300_799.0
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|min|s|m|h|d|w)", re.ASCII)


@overload
def iso(wall: float) -> str: ...
@overload
def iso(wall: float | None) -> str | None: ...
def iso(wall: float | None) -> str | None:
    """Write wall time as people and JSON readers expect it: ISO 8601, UTC, to the millisecond."""
    return None if wall is None else _iso(wall)


@lru_cache(maxsize=1000)  # jobs that were stored or settled together have their instants in common
def _iso(wall: float) -> str:
    wall = min(max(wall, _YEAR_1), _YEAR_9999)  # a row of another program must not break the list that shows it
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(text: str) -> float | None:
    """Read a length of time: seconds, or numbers with units such as 500ms, 90s, 15m, 1h30m, 7d; None if it is none."""
    text = text.strip().lower().replace(" ", "")
    parts = _PART.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII) else None


def instant(text: str, now: float) -> float | None:
    """Read an instant in the past: a length of time before now, the last time that a clock showed HH:MM, or ISO 8601
    (local time unless it says another); None if it is none."""
    if (ago_s := seconds(text)) is not None:
        return now - ago_s
    if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text, re.ASCII):
        return _last_time_of_day(text, now)
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        return None


def _last_time_of_day(text: str, now: float) -> float | None:
    numbers = [int(part) for part in text.split(":")]
    local = datetime.fromtimestamp(now).astimezone()
    try:
        at = local.replace(hour=numbers[0], minute=numbers[1], second=sum(numbers[2:]), microsecond=0, tzinfo=None)
    except ValueError:
        return None
    return (at if at.timestamp() <= now else at - timedelta(days=1)).timestamp()


def duration(seconds: float) -> str:
    """Write a length of time as people say it: two units at most."""
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for size, unit, small_size, small in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // small_size
            return f"{whole // size} {unit} {rest} {small}" if rest and whole < 10 * size else f"{whole // size} {unit}"
    return f"{whole} s"


def at_most(seconds: float) -> str:
    """Write a length of time that is a bound, as `duration` does, but rounded up."""
    sizes = ((86_400, 3600), (3600, 60), (60, 1))
    unit = next((small if seconds < 10 * size else size for size, small in sizes if seconds >= size), 1)
    unit_s = 0.001 if seconds < 1 else 0.1 if seconds < 10 else unit
    return f"at most {duration(ceil(round(seconds / unit_s, 6)) * unit_s)}"
