"""Duties as plain data: which chores of the fleet are taken care of, and by whom."""

from __future__ import annotations

from typing import Any

from holdfast.core.records import Duty, Moment
from holdfast.stores.protocol import Store
from holdfast.stores.rounds import together


def duty_views(store: Store) -> list[dict[str, Any]]:
    """Show every duty that was ever taken, by name. `holder` is None when nobody has it now."""
    duties, now = together(store.duties, store.now)
    return [_view(duty, now) for duty in duties]


def is_held(duty: Duty, now: Moment) -> bool:
    """Say whether a process has the duty at this instant."""
    return bool(duty.holder) and duty.until > now.lease


def _view(duty: Duty, now: Moment) -> dict[str, Any]:
    held = is_held(duty, now)
    return {
        "duty": duty.name,
        "holder": holder_name(duty) if held else None,
        "term": duty.term,
        "left_s": round(duty.until - now.lease, 3) if held else None,
    }


def holder_name(duty: Duty) -> str:
    """Return the name of the program that took the duty; the id of its start is left out."""
    return duty.holder.rpartition(":")[0] or duty.holder
