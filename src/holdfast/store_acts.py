"""Acts of people on schedules, tasks, tokens and the store itself, each with its line in the journal.

The line comes first: an act that was carried out is never without one.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.access import Token
from holdfast.core.audit import line
from holdfast.core.durations import iso
from holdfast.core.machine import State
from holdfast.core.records import EventKind, Schedule
from holdfast.core.text import check_storable
from holdfast.errors import NotFound, Refused
from holdfast.stores.protocol import Added, Store, in_words


def pause_schedule(store: Store, key: str, paused: bool, actor: str, note: str | None) -> None:
    """Stop or resume a schedule that is there."""
    _note(store, "paused" if paused else "resumed", actor, note, schedule=key)
    store.pause_schedule(key, paused)


def forget_schedule(store: Store, key: str, actor: str, note: str | None) -> None:
    """Remove a schedule that is there."""
    _note(store, "forgotten", actor, note, schedule=key)
    store.forget_schedule(key)


def fire_schedule(store: Store, schedule: Schedule, job_id: str, actor: str, note: str | None) -> Added:
    """Enqueue the job of a schedule now, under this id."""
    _note(store, "fired", actor, note, schedule=schedule.key, id=job_id)
    [added] = store.add([replace(schedule.job, id=job_id)])
    return added


def forget_task(store: Store, name: str, actor: str, note: str | None) -> None:
    """Remove what was published of a task."""
    _note(store, "forgotten", actor, note, task=name)
    store.forget_task(name)


def add_token(store: Store, token: Token, actor: str, note: str | None) -> None:
    """Store a token. Raises `Refused` when there is one of that name."""
    if any(each.name == token.name for each in store.tokens.all()) or not store.tokens.add(token):
        raise Refused(f"there is a token {token.name!r} already; revoke it, or choose another name")
    queues = {} if token.queues is None else {"queues": list(token.queues)}
    _note(store, "token_added", actor, note, token=token.name, role=token.role, **queues)


def revoke_token(store: Store, name: str, actor: str, note: str | None) -> None:
    """Remove a token. Raises `NotFound`."""
    if not any(each.name == name for each in store.tokens.all()):
        raise NotFound(f"there is no token {name!r}")
    _note(store, "token_revoked", actor, note, token=name)
    store.tokens.revoke(name)


def accept(store: Store, actor: str, note: str) -> int:
    """Accept a store that was replaced, rewound or emptied; return the number of the new incarnation.

    Raises `Refused` when there is nothing to accept.
    """
    seen = store.standing("", (), None).incarnation
    doubts = store.doubts()
    if not doubts:
        raise Refused("there is nothing to accept: no worker has reported this store as changed")
    if half := [doubt for doubt in doubts if doubt.evidence == "copy"]:
        raise Refused(in_words(half[0]))
    _note(store, "accepted", actor, note, incarnation=seen + 1)
    return store.accept(seen, actor, note)


def note_purge(store: Store, states: Sequence[State], before: float, actor: str, note: str | None) -> None:
    """Write down that a person deletes the jobs that ended in these states before an instant."""
    _note(store, "purged", actor, note, states=[state.value for state in states], ended_before=iso(before))


def _note(store: Store, kind: EventKind, actor: str, note: str | None, **detail: object) -> None:
    check_storable(by=actor, note=note)
    store.note_act(line(kind, actor, note, **detail))
