"""Acts of people, as the journal has them: on jobs, queues, schedules, workers, tokens and the store itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from holdfast.core.audit import Act, act_of
from holdfast.core.durations import iso
from holdfast.core.records import Event
from holdfast.stores.protocol import Store

_PAGE = 1_000


def acts_of_people(
    store: Store, since: float | None, actor: str | None, limit: int, before: int | None = None
) -> list[Act]:
    """Return the newest acts since a wall time, newest first."""
    return list(islice(_acts(store, since, actor, min(limit, _PAGE), before), limit))


def _acts(store: Store, since: float | None, actor: str | None, page: int, before: int | None) -> Iterator[Act]:
    while events := store.audit(page, since=since, before=before, actor=actor):
        before = events[0].seq
        yield from (act for event in reversed(events) if (act := act_of(event)) is not None)


def act_view(act: Act) -> dict[str, Any]:
    """Show an act as `holdfast audit` does."""
    return {
        "seq": act.seq,
        "at": iso(act.at),
        "by": act.actor,
        "act": act.act,
        "job": act.job_id,
        "about": act.about,
        "name": act.name,
        "note": act.note,
        "detail": act.detail,
    }


def pauses(store: Store) -> dict[tuple[str, str | None], Act]:
    """Return who has paused what last, by queue and group. A pause of an older version may be missing."""
    found: dict[tuple[str, str | None], Act] = {}
    for event in reversed(store.journal(kinds=("paused",), since=0.0, limit=_PAGE)):
        if (act := _pause(event)) is not None:
            found.setdefault((str(event.detail["queue"]), event.detail.get("group")), act)
    return found


def _pause(event: Event) -> Act | None:
    return act_of(event) if "queue" in event.detail else None
