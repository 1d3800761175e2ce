"""Instants and lengths of time, in words."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(wall: float | None) -> str | None:
    """Write wall time as people and JSON readers expect it: ISO 8601, UTC, to the millisecond."""
    if wall is None:
        return None
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
