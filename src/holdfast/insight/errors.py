"""The errors of a time as plain data: how many, since when, and on which release."""

from __future__ import annotations

from typing import Any

from holdfast.core.durations import iso
from holdfast.core.error_fingerprint import ErrorGroup
from holdfast.stores.protocol import Store


def error_views(store: Store, since: float, task: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
    """Show the errors since a wall time, by task and fingerprint; those of the most attempts first."""
    return [error_view(group) for group in store.errors(since, task, limit)]


def error_view(group: ErrorGroup) -> dict[str, Any]:
    return {
        "task": group.task,
        "fingerprint": group.fingerprint,
        "kind": group.kind,
        "origin": group.origin,
        "message": group.message,
        "attempts": group.attempts,
        "first_seen": iso(group.first_at),
        "last_seen": iso(group.last_at),
        "releases": group.releases,
        "example": group.job_id,
    }
