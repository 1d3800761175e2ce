"""Callbacks: the job that is stored when another one ends, by the same commit.

    on_done, on_dead of a task ──with_callbacks()──▶ the job's row ──callback()──▶ a job ──settle, move──▶ stored

The row has everything that the callback needs, so a reaper without the user's code stores it too. Its id is made from
the job and the fence of the ending: an ending that is repeated stores nothing twice, and one after a revive stores
another one.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from holdfast.core.labels import inherited
from holdfast.core.machine import State
from holdfast.core.payload import JSON
from holdfast.core.records import Job, NewJob
from holdfast.errors import PolicyError

Kind = Literal["done", "dead"]

KINDS: dict[State, Kind] = {State.DONE: "done", State.DEAD: "dead", State.ROLLED_BACK: "dead"}
ERROR_BYTES_MAX = 2_000
ID_MAX = 64
# Examples of the arguments that a callback may take, by name: the job that ended, its state, the class of the exception
# if it was one, and the text of the error. `on_done` gets None for the last two.
NO_ERROR: dict[str, str | None] = {"error_kind": None, "error": None}
FACTS: dict[Kind, list[dict[str, str | None]]] = {
    "done": [{"job_id": "x", "state": "done", **NO_ERROR}],
    "dead": [
        {"job_id": "x", "state": "dead", "error_kind": "ValueError", "error": "x"},
        {"job_id": "x", "state": "rolled_back", "error_kind": None, "error": ""},
    ],
}


class Callback(msgspec.Struct, frozen=True):
    """The job to store, without id and payload, and which facts its task takes."""

    job: NewJob
    takes: tuple[str, ...]


class Callbacks(msgspec.Struct, frozen=True, omit_defaults=True):
    """The jobs that an ending stores: `dead` also when it is rolled back. A cancelled job stores nothing."""

    done: Callback | None = None
    dead: Callback | None = None


_KNOWN = frozenset(NO_ERROR) | {"job_id", "state"}
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Callbacks)
_facts = msgspec.json.Decoder(dict[str, str | None])


def with_callbacks(text: str | None, done: Callback | None, dead: Callback | None) -> str | None:
    """Return the callbacks of a row with these in place of its own; None leaves one as it was."""
    if done is None and dead is None:
        return text
    before = _decoder.decode(text) if text is not None else Callbacks()
    return _encoder.encode(Callbacks(done or before.done, dead or before.dead)).decode()


def callback(job: Job, state: State, error_kind: str | None, error: str | None) -> NewJob | None:
    """Return the job that is stored when `job` ends in this state; None if there is none.

    Raises `ValueError` if the row was damaged and its callbacks cannot be read.
    """
    kind = KINDS.get(state)
    if job.callbacks is None or kind is None:
        return None
    callbacks = callbacks_of(job.callbacks)
    declared = callbacks.done if kind == "done" else callbacks.dead
    if declared is None:
        return None
    said: dict[str, str | None] = {"job_id": job.id, "state": state.value}
    said |= {"error_kind": error_kind, "error": cut(error)} if kind == "dead" else NO_ERROR
    payload = JSON.encode({name: said[name] for name in declared.takes})
    meta = inherited(job.meta, declared.job.meta)
    return msgspec.structs.replace(declared.job, id=derived_id(job.id, kind, job.fence), payload=payload, meta=meta)


def is_filled_in(declared: NewJob, new: NewJob) -> bool:
    """Say whether `new` is the callback `declared`, apart from the error: only the worker knows that."""
    if msgspec.structs.replace(new, payload="") != msgspec.structs.replace(declared, payload=""):
        return False
    own = _facts.decode(declared.payload)
    try:
        given = _facts.decode(new.payload)
    except (msgspec.DecodeError, UnicodeError):
        return False
    if any(len(given.get(name) or "") > ERROR_BYTES_MAX for name in NO_ERROR):
        return False
    return given.keys() == own.keys() and {**given, **NO_ERROR} == {**own, **NO_ERROR}


def callbacks_of(text: str) -> Callbacks:
    """Read the callbacks of a row. Raises `ValueError` if they cannot be read, or take what this program cannot say."""
    try:
        found = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, PolicyError) as damage:
        raise ValueError(str(damage)) from damage
    for each in (found.done, found.dead):
        if each is not None and (unknown := set(each.takes) - _KNOWN):
            raise ValueError(f"task {each.job.task} takes {min(unknown)!r}, which this program does not know")
    return found


def derived_id(job_id: str, kind: str, number: int) -> str:
    """Return the id of a job that follows from another one; the same for the same words."""
    tail = f":{kind}:{number}"
    if len(job_id) + len(tail) > ID_MAX:
        job_id = hashlib.sha256(job_id.encode()).hexdigest()[:32]
    return job_id + tail


def cut(error: str | None) -> str:
    """Return as much of an error as a callback gets."""
    return (error or "").encode()[:ERROR_BYTES_MAX].decode(errors="ignore")
