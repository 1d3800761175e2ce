"""Acts of people on schedules, tasks, workers, tokens and the store itself, each with its line in the journal.

The line comes first: an act that was carried out is never without one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from holdfast.core.access import ROLES, Role, Token, digest_of
from holdfast.core.audit import line
from holdfast.core.durations import iso
from holdfast.core.machine import State
from holdfast.core.records import EventKind, Schedule, Worker
from holdfast.core.text import check_storable
from holdfast.errors import NotFound, Refused, UsageError
from holdfast.ids import new_secret
from holdfast.stores.protocol import Added, Store, in_words

NAME_MAX = 100  # characters of a token's name
PURGE_PAGE = 1000


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


def note_forgotten(store: Store, worker: Worker, actor: str, note: str | None) -> None:
    """Write down that a person declares a worker dead."""
    _note(store, "forgotten", actor, note, worker=worker.name, id=worker.id)


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


def purge_pages(
    store: Store, states: Sequence[State], older_than_s: float, actor: str, note: str | None
) -> Iterator[int]:
    """Delete the jobs that ended longer ago than that, page by page; yield how many each page had."""
    before = store.now().wall - older_than_s
    note_purge(store, states, before, actor, note)
    while page := store.purge(states, before, PURGE_PAGE):
        yield page
        if page < PURGE_PAGE:
            return


def new_token(
    store: Store,
    name: str,
    role: Role,
    queues: Sequence[str] | None,
    expires_s: float | None,
    actor: str,
    note: str | None,
) -> tuple[Token, str]:
    """Store a new token; return it with its secret, of which the store keeps only the SHA-256."""
    check_storable(NAME_MAX, name=name)
    if not name.strip() or any(char.isspace() or char == "," for char in name):
        raise UsageError(f"the name {name!r} must be one word without commas")
    if role not in ROLES:
        raise UsageError(f"{role!r} is not a role: {', '.join(ROLES)}")
    if expires_s is not None and not expires_s > 0:
        raise UsageError(f"expires_s={expires_s!r} must be a number of seconds above 0")
    secret, now = new_secret(), store.now().wall
    token = Token(
        name=name,
        role=role,
        queues=None if queues is None else tuple(queues),
        sha256=digest_of(secret),
        created_at=now,
        expires_at=None if expires_s is None else now + expires_s,
    )
    add_token(store, token, actor, note)
    return token, secret


def note_purge(store: Store, states: Sequence[State], before: float, actor: str, note: str | None) -> None:
    """Write down that a person deletes the jobs that ended in these states before an instant."""
    _note(store, "purged", actor, note, states=[state.value for state in states], ended_before=iso(before))


def _note(store: Store, kind: EventKind, actor: str, note: str | None, **detail: object) -> None:
    check_storable(by=actor, note=note)
    store.note_act(line(kind, actor, note, **detail))
