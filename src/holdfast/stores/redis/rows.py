"""Between jobs and what the server keeps of them: a row, a body, and places in indexes.

    j:ID     row: a MessagePack array that scripts read and write (its first places), and a text that they do not (REST)
    b:ID     body: what seldom changes, the payload among it; no script reads it
    leases   the end of the lease, in a sorted set and nowhere else

`places_of` says in which indexes a job is. A write puts the difference between before and after into them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from holdfast.core.dependencies import ids_of, waits_for_others
from holdfast.core.machine import ENDED, LIVE, State
from holdfast.core.policy import Policy
from holdfast.core.records import Job
from holdfast.core.row_text import Awaits, CurrentSteps, from_row, texts_of
from holdfast.stores import row_json

NUL = "\0"
# In the order of the places in a row, which `scripts/lib.lua` knows too. Before them: the number of arrival.
_IN_ROW: tuple[str, ...] = (
    "state",
    "queue",
    "task",
    "priority",
    "run_at",
    "group",
    "fence",
    "attempt",
    "claim_id",
    "worker",
)
_IN_ROW += ("claimed_at", "started", "lease_s")
# Then: whether it may be claimed ahead, expires_at, batch, the fence at which the rest was written, and the rest.
_TO_ROW = frozenset((*_IN_ROW, "expires_at", "batch"))
_IN_BODY: tuple[str, ...] = (
    "payload",
    "key",
    "created_at",
    "attempts_max",
    "backoff_base_s",
    "backoff_cap_s",
    "backoff_jitter",
)
_IN_BODY += ("backoff_full", "crashes_max", "on_crash", "beat_s", "timeout_s", "stall_s", "workflow", "parent")
_IN_BODY += ("callbacks", "tags", "meta", "key_scope")
_OF_ATTEMPT = ("progress", "note", "moved_at", "in_steps")  # a claim takes them back, by the fence of the rest

_TEXTS: dict[str, type] = {"awaits": Awaits, "in_steps": CurrentSteps}  # facts that rows have as texts
_usual = Policy()
_DEFAULTS: dict[str, Any] = {
    "failures": 0,
    "crashes": 0,
    "zombies": 0,
    "suspects": 0,
    "cancel_requested": False,
    "rolling_back": False,
    "attempts_max": _usual.retry.attempts_max,
    "backoff_base_s": _usual.retry.base_s,
    "backoff_jitter": True,
    "backoff_cap_s": _usual.retry.cap_s,
    "crashes_max": _usual.crashes_max,
    "on_crash": _usual.on_crash,
    "beat_s": _usual.beat_every_s,
    "key": None,
    "timeout_s": None,
    "stall_s": None,
    **dict.fromkeys(("error", "result", "progress", "note", "ended_at")),
}


def _struct(name: str, wanted: Iterable[str]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for field in sorted(msgspec.structs.fields(Job), key=lambda each: each.name not in ("payload", "created_at")):
        if field.name in wanted:
            is_open = field.default is msgspec.NODEFAULT
            known = _DEFAULTS.get(field.name, msgspec.UNSET) if is_open else field.default
            kind = list[str] | None if field.name in _TEXTS else field.type
            fields.append((field.name, kind) if known is msgspec.UNSET else (field.name, kind, known))
    return msgspec.defstruct(name, fields, omit_defaults=True, frozen=True)


class CreatedAt(msgspec.Struct, frozen=True):
    """The part of a body that says when the job was created."""

    created_at: float


_IN_REST = tuple(
    name for name in Job.__struct_fields__ if name not in _TO_ROW and name not in (*_IN_BODY, "id", "lease_until")
)
Body, Rest = _struct("Body", _IN_BODY), _struct("Rest", _IN_REST)
_json = msgspec.json.Encoder()
_pack = msgspec.msgpack.Encoder()
_row = msgspec.msgpack.Decoder(list[Any])
_created_at = msgspec.json.Decoder(CreatedAt)
_body = msgspec.json.Decoder(Body)
_rest = msgspec.json.Decoder(Rest)


class Stored(NamedTuple):
    """A job as it is stored: its number of arrival, and the bytes that a commit compares and replaces."""

    seq: int
    job: Job
    row: bytes
    body: bytes


def row_of(seq: int, job: Job) -> list[Any]:
    """Return the row of a job. None is False there: MessagePack of Lua has no place for None in a list."""
    values = [getattr(job, name) for name in _IN_ROW]
    said = {name: getattr(job, name) for name in _IN_REST}
    said |= {name: texts_of(said[name]) for name in _TEXTS if said[name] is not None}
    rest = Rest(**said)
    values += [job.on_crash == "retry", job.expires_at, job.batch, job.fence, _json.encode(rest).decode()]
    return [seq, *(False if value is None else value for value in values)]


def body_of(job: Job) -> bytes:
    """Return the body of a job."""
    return _json.encode(Body(**{name: getattr(job, name) for name in _IN_BODY}))


def packed(value: Any) -> bytes:
    """Return anything without bytes in MessagePack."""
    return _pack.encode(value)


def packed_lists(lists: Iterable[Iterable[Any]]) -> bytes:
    """Return lists that may have bytes in MessagePack, as Lua reads it: its reader knows text only."""
    return _pack.encode([[_text(each) if isinstance(each, bytes) else each for each in one] for one in lists])


def _text(value: bytes) -> msgspec.Raw:
    size = len(value)
    if size < 32:
        head = bytes([0xA0 | size])
    else:
        head = b"\xda" + size.to_bytes(2, "big") if size < 65_536 else b"\xdb" + size.to_bytes(4, "big")
    return msgspec.Raw(head + value)


def stored(seq: int, job: Job) -> Stored:
    """Return the job as it is written."""
    return Stored(seq, job, packed(row_of(seq, job)), body_of(job))


def read(job_id: str, row: bytes, body: bytes, lease: bytes | None) -> Stored | None:
    """Read a job; None, and a line in the log, if another program has damaged it."""
    try:
        seq, *values, _, expires_at, batch, rest_fence, rest = _row.decode(row)
        said: dict[str, Any] = {
            name: None if value is False else value for name, value in zip(_IN_ROW, values, strict=True)
        }
        for name in ("run_at", "lease_s", "claimed_at"):
            said[name] = None if said[name] is None else float(said[name])
        more = msgspec.structs.asdict(_rest.decode(rest))
        more |= {name: from_row(kind, more[name]) for name, kind in _TEXTS.items() if more[name] is not None}
        if rest_fence != said["fence"] and said["state"] == "running":
            more |= dict.fromkeys(_OF_ATTEMPT)
        said["started"] = bool(said["started"])
        said["state"] = State(said["state"])
        job = Job(
            id=job_id,
            lease_until=None if lease is None or said["state"] is not State.RUNNING else float(lease),
            expires_at=None if expires_at is False else float(expires_at),
            batch=None if batch is False else batch,
            **said,
            **more,
            **msgspec.structs.asdict(_body.decode(body)),
        )
        return Stored(int(seq), job, row, body)
    except (msgspec.MsgspecError, ValueError, TypeError, UnicodeError) as error:
        row_json.log_once(f"the row of job {job_id} cannot be read and is left out: {error}")
        return None


class Place(NamedTuple):
    """An entry of an index: a sorted set with a score, or a set without one."""

    key: str
    member: str
    score: float | None = None


def live_key(job: Job) -> str | None:
    """Return the key that belongs to the job, if any: while it is live, and the key has no other scope."""
    return job.key if job.key_scope is None and job.state in LIVE else None


def places_by_arrival(job: Job) -> list[str]:
    """Return the sorted sets that have the job by its number of arrival."""
    sets = [f"x:{job.queue}{NUL}{job.task}{NUL}{job.state.value}"]
    if job.key is not None:
        sets.append(f"ks:{job.key}")
    if job.fingerprint is not None:
        sets.append(f"fp:{job.fingerprint}")
    if job.workflow:
        sets.append("wf")
    if job.batch is not None:
        sets.append(f"bm:{job.batch}{NUL}{job.state.value}")
    return sets


def created_at_of(body: bytes | None) -> float | None:
    """Return when a job was created, by its body; None if it is gone or damaged."""
    try:
        return None if body is None else _created_at.decode(body).created_at
    except (msgspec.MsgspecError, ValueError):
        return None


def state_queue_task(row: bytes | None) -> tuple[str, str, str] | None:
    """Return state, queue and task of a job, by its row; None if it is gone or damaged."""
    try:
        _, state, queue, task, *_ = [] if row is None else _row.decode(row)
    except (msgspec.MsgspecError, ValueError):
        return None
    return str(state), str(queue), str(task)


def places_of(job: Job, seq: int) -> set[Place]:
    """Return every entry that a job has in indexes, apart from its lane and its key."""
    places = {Place(key, job.id, seq) for key in places_by_arrival(job)}
    if job.state is State.RUNNING:
        places |= {Place("leases", job.id, job.lease_until), Place(f"held:{job.worker}", job.id)}
        if job.group is not None:
            places.add(Place(f"pg:{job.queue}{NUL}{job.group}", job.id))
        if job.cancel_requested:
            places.add(Place(f"asked:{job.worker}", job.id))
    elif job.state is State.WAITING and job.wake_at is not None:
        places.add(Place("waits", job.id, job.wake_at))
    if waits_for_others(job):
        places.add(Place("dependents", job.id, 0))
        places |= {Place(f"after:{each}", job.id) for each in ids_of(job.awaits)}
    if job.state is State.READY and job.fence == 0 and job.expires_at is not None:
        places.add(Place("expiries", job.id, job.expires_at))
    elif job.state in ENDED and job.ended_at is not None:
        places.add(Place(f"e:{job.state.value}", job.id, job.ended_at))
    return places


def lane_of(job: Job) -> tuple[Any, ...] | None:
    """Return what decides about the place of a ready job among those to be claimed."""
    if job.state is not State.READY:
        return None
    return job.queue, job.priority, job.group, job.task, job.on_crash == "retry", job.run_at
