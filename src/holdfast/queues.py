"""Settings of queues: limits that apps declare, limits that people choose, pauses."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from holdfast.core.limits import Limits, Queue, Setting, check_group
from holdfast.core.text import check_storable
from holdfast.errors import UsageError
from holdfast.stores.protocol import Store
from holdfast.tasks import WALL_MAX, check_name


def declare_limits(store: Store, declared: Mapping[str, Setting]) -> None:
    """Tell the store what an app declares, as far as it is news: every worker of a fleet does it at its start."""
    if not declared:
        return
    known = {queue.name: queue.declared for queue in store.queues()}
    for name, setting in declared.items():
        if known.get(name, Setting()) != setting:
            store.limit(name, setting, declared=True)


def choose_limits(
    store: Store, name: str, given: Mapping[str, Any], actor: str, note: str | None = None, *, clear: bool = False
) -> Limits:
    """Set what a person chooses for a queue, and return what is in force. Earlier choices stay, unless `clear`."""
    check_name("queue", name)
    check_storable(by=actor, note=note)
    before = queue_named(store, name)
    chosen = replace(Setting() if clear else before.chosen, **given)
    store.limit(name, chosen, actor=actor, note=note)
    return queue_named(store, name).limits


def queue_named(store: Store, name: str) -> Queue:
    """Return what is set for a queue, perhaps nothing."""
    return next((queue for queue in store.queues() if queue.name == name), Queue(name=name))


def pause_queue(
    store: Store,
    name: str,
    group: str | None,
    until: datetime | float | None,
    actor: str,
    note: str | None = None,
) -> None:
    """Pause a queue or a group of it; check everything first."""
    _check(name, group, actor)
    check_storable(note=note)
    store.pause(name, True, group=group, until=None if until is None else _instant(until), actor=actor, note=note)


def resume_queue(store: Store, name: str, group: str | None, actor: str, note: str | None = None) -> None:
    """Resume a queue or a group of it, whatever name another program has given it."""
    check_storable(queue=name, group=group, by=actor, note=note)
    store.pause(name, False, group=group, actor=actor, note=note)


def _instant(until: datetime | float) -> float:
    if isinstance(until, datetime) and until.utcoffset() is None:
        raise UsageError(f"until={until!r} must be a datetime with a time zone, such as datetime.now(UTC)")
    instant = until.timestamp() if isinstance(until, datetime) else until
    if isinstance(instant, bool) or not isinstance(instant, int | float):
        raise UsageError(f"until={until!r} must be a datetime with a time zone")
    if not 0 <= instant <= WALL_MAX:
        raise UsageError(f"until={until!r} must lie between the years 1970 and 9999")
    return instant


def _check(name: str, group: str | None, actor: str) -> None:
    check_name("queue", name)
    check_storable(by=actor)
    if group is not None:
        check_group(group)
