"""Batches as plain data: how many of their jobs are in which state, and what is stored at their end."""

from __future__ import annotations

from typing import Any

from holdfast.core.batches import Batch, progress, then_task
from holdfast.core.durations import iso
from holdfast.core.machine import State
from holdfast.errors import NotFound
from holdfast.stores.protocol import Store


def batch_view(store: Store, batch_id: str) -> dict[str, Any]:
    """Show one batch, or raise `NotFound`."""
    found = store.batches.get([batch_id])
    if not found:
        raise NotFound(f"there is no batch {batch_id!r}")
    return _view(store, found[0])


def batch_views(store: Store, limit: int) -> list[dict[str, Any]]:
    """Show the batches that were opened last, newest first."""
    return [_view(store, batch) for batch in store.batches.newest(limit)]


def _view(store: Store, batch: Batch) -> dict[str, Any]:
    found = store.batches.counts(batch.id)
    counts = {state.value: found.get(state.value, 0) for state in State}
    return {
        "id": batch.id,
        "state": "ended" if batch.ended_at is not None else "running" if batch.closed_at is not None else "open",
        "complete": batch.complete,
        "jobs": sum(counts.values()),
        "progress": progress(counts),
        "counts": counts,
        "counts_at_end": batch.counts,
        "then": None if batch.then is None else batch.then_id,
        "then_task": then_task(batch),
        "created_at": iso(batch.created_at),
        "added_at": iso(batch.added_at),
        "closed_at": iso(batch.closed_at),
        "ended_at": iso(batch.ended_at),
    }
