"""Acts of people as the journal has them, in one shape: the person, the time, the act, its object and the reason. Pure.

An act is an event with an actor. Acts on a job stand under its id. Others, on a queue, a schedule, a worker, a token or
the store itself, stand under the job id "".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.records import Event, EventKind, NewEvent

IDS_MAX = 100  # ids that a line about many jobs names

_WORDS: dict[EventKind, str] = {
    "revived": "revive",
    "cancelled": "cancel",
    "held": "hold",
    "signalled": "signal",
    "paused": "pause",
    "resumed": "resume",
    "limited": "limit",
    "deleted": "delete",
    "purged": "purge",
    "fired": "fire",
    "scheduled": "schedule",
    "forgotten": "forget",
    "accepted": "accept",
    "token_added": "add token",
    "token_revoked": "revoke token",
}
# The fields that name what an act on the store itself was about: the first that is there.
_ABOUT = ("queue", "schedule", "task", "worker", "token")


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """An act of a person, as the journal has it. `about`: of an act on no job, what kind of thing it was on."""

    seq: int
    at: float  # wall time
    actor: str
    act: str
    job_id: str | None
    about: str | None
    name: str | None
    note: str | None
    detail: dict[str, Any]


def line(kind: EventKind, actor: str, note: str | None, **detail: Any) -> NewEvent:
    """Return the line for an act on the store itself."""
    return NewEvent(kind, {**detail, **({"note": note} if note else {})}, actor)


def about_jobs(act: NewEvent, ids: Sequence[str]) -> NewEvent:
    """Return the line of an act on these jobs, which are not there any more to have lines of their own."""
    return NewEvent(act.kind, {"jobs": len(ids), "ids": list(ids[:IDS_MAX]), **act.detail}, act.actor)


def act_of(event: Event) -> Act | None:
    """Return the act that an event is; None: a program wrote it, or it only says what another act has led to."""
    if event.actor is None or event.kind == "dead":  # a person who gives up has answered, and that line says more
        return None
    detail = dict(event.detail)
    note = detail.pop("note", None) or detail.pop("reason", None)
    about = None if event.job_id else next((word for word in _ABOUT if word in detail), "store")
    return Act(
        seq=event.seq,
        at=event.at,
        actor=event.actor,
        act=_word(event),
        job_id=event.job_id or None,
        about=about,
        name=str(detail[about]) if about in detail else None,
        note=None if note is None else str(note),
        detail=detail,
    )


def _word(event: Event) -> str:
    """Return the act in a word or two, as the command line calls it."""
    detail = event.detail
    match event.kind:
        case "resolved":
            return {"retry": "approve", "done": "done", "fail": "fail"}.get(str(detail.get("answer")), "answer")
        case "ordered":
            return str(detail.get("order", "order"))
        case "signalled" if "answer" in detail:
            return "approve" if detail["answer"] else "fail"
        case "moved" if "cancel_requested" in detail:
            return "cancel"
        case "moved" if detail.keys() & {"undo_requested", "rolling_back"}:
            return "rollback"
        case "moved" if "forked_from" in detail:
            return "fork"
        case "moved" if "from_step" in detail:
            return "retry from step"
        case "moved":
            return "move" if "queue" in detail else "set"
        case kind:
            return _WORDS.get(kind, kind)
