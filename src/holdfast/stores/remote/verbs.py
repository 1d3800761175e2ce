"""The table of verbs that travel over HTTP. Client and server are both made from it, so they cannot differ.

The types of arguments and answers come from `stores/protocol.py`: a new verb costs one line here, a new field none.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from holdfast.core.access import ADMINS, PRODUCERS, READERS, ROLES, WORKERS, Role
from holdfast.core.records import DamagedJob
from holdfast.core.records import damaged as as_damaged
from holdfast.core.row_text import Awaited, Awaits, CurrentStep, CurrentSteps
from holdfast.stores.protocol import Added, Batches, Figures, Reply, Store

ANYBODY: frozenset[Role] = frozenset(ROLES)
Scope = Literal["filter", "refuse", "whole", "none"]
BATCH_MAX = 10_000  # items of one list in a request


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb of the store, or of a part of it: `batches.open`. `scope`: see `server/routes.py`. `reads`: it changes
    nothing."""

    name: str
    roles: frozenset[Role] = ADMINS
    scope: Scope = "whole"
    reads: bool = False


_READ = (
    *("overdue", "locked", "ghosts", "deadline", "vanished", "schedules", "published", "counts", "errors", "journal"),
    *("journals", "workers", "recent", "paused", "queues", "places", "unserved", "due_waits", "doubts", "check"),
    *(
        "missing",
        "expired",
        "dependents",
        "audit",
        "figures.backlog",
        "figures.flow",
        "figures.lost",
        "figures.counters",
        "figures.rollups",
        "duties",
    ),
)
_CHANGE = (
    *(
        "signal",
        "wake_due",
        "fork",
        "acquire",
        "resign",
        "move",
        "pause",
        "limit",
        "order",
        "purge",
        "purge_keys",
        "delete",
    ),
    *("declare", "schedule", "fire", "pause_schedule", "forget_schedule", "publish", "forget_task", "doubt", "accept"),
    "note_act",
    *("batches.end", "batches.purge"),
    "figures.fold",
)
_BATCH_READS = ("batches.get", "batches.find", "batches.newest", "batches.counts", "batches.jobs")
VERBS: tuple[Verb, ...] = (
    # A worker needs these for its own jobs; `server/store_verbs.py` checks that they are its own.
    *(Verb(name, WORKERS, "refuse") for name in ("enroll", "claim", "beat", "settle", "record", "retire")),
    Verb("steps", READERS | WORKERS, "refuse", reads=True),
    Verb("inbox", READERS | WORKERS, "refuse", reads=True),
    Verb("find", READERS | WORKERS, "filter", reads=True),
    Verb("get", ANYBODY, "filter", reads=True),
    Verb("due", WORKERS, "refuse", reads=True),
    Verb("orders", WORKERS, "none", reads=True),
    # Every program may ask these, and a producer may add jobs.
    *(Verb(name, ANYBODY, "none", reads=True) for name in ("now", "ping", "schema", "standing")),
    Verb("add", PRODUCERS, "refuse"),
    *(Verb(name, PRODUCERS) for name in ("batches.open", "batches.add", "batches.close")),
    *(Verb(name, READERS | PRODUCERS, reads=True) for name in _BATCH_READS),
    # The rest belongs to operators of the store, and to the conformance suite.
    *(Verb(name, reads=True) for name in _READ),
    *(Verb(name) for name in _CHANGE),
)
# Each process does these for itself; `store.py` says how. `tokens` belongs to the server.
LOCAL = frozenset(
    {
        "transaction",
        "stands_by",
        "holds_lock",
        "wait",
        "wake",
        "is_woken",
        "wake_sleepers",
        "stop_waking",
        "migrate",
        "close",
    }
)

_PARTS: Mapping[str, type] = {"": Store, "batches": Batches, "figures": Figures}
_NOT_SENT = frozenset({"self", "connection"})
_RETURNS: Mapping[str, Any] = {"fire": list[Added | Reply | None]}  # a decoder knows the enum, and not one member of it


class Sent(msgspec.Struct, frozen=True):
    """The body of an answer, around what the verb returned.

    wall, lease: the instant on the store's clocks. server: the process that answered. damaged: jobs in the answer whose
    rows cannot be read in full, and why.
    """

    value: msgspec.Raw
    wall: float
    lease: float
    server: str
    damaged: dict[str, str] = {}


class Codec:
    """Writes and reads the arguments and the answer of one verb."""

    def __init__(self, name: str) -> None:
        part, _, own_name = name.rpartition(".")
        method = getattr(_PARTS[part], own_name)
        signature, hints = inspect.signature(method), typing.get_type_hints(method)
        self.names = [each for each in signature.parameters if each not in _NOT_SENT]
        fields: list[Any] = []
        for each in self.names:
            default = signature.parameters[each].default
            fields.append((each, hints[each]) if default is inspect.Parameter.empty else (each, hints[each], default))
        self.arguments: type[msgspec.Struct] = msgspec.defstruct(
            f"{name.replace('.', '_')}_arguments", fields, forbid_unknown_fields=True, module=__name__, kw_only=True
        )
        self.returns = _RETURNS.get(name, hints["return"])
        self._answer = msgspec.json.Decoder(self.returns, dec_hook=decode_hook)
        self._has_jobs = "records.Job" in str(self.returns)

    def write(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Write the arguments of a call as the body of a request."""
        given = dict(zip(self.names, args, strict=False)) | kwargs
        return _encoder.encode(given)

    def given(self, body: msgspec.Struct) -> dict[str, Any]:
        """Return the arguments in the decoded body of a request."""
        return {name: getattr(body, name) for name in self.names}

    def write_answer(self, value: Any, wall: float, lease: float, server: str) -> bytes:
        """Write what the verb has returned as the body of an answer."""
        return _encoder.encode(
            Sent(msgspec.Raw(_encoder.encode(value)), wall, lease, server, _damage_in(value) if self._has_jobs else {})
        )

    def read_answer(self, sent: Sent) -> Any:
        """Read what the verb has returned."""
        value = self._answer.decode(sent.value)
        if not sent.damaged:
            return value
        jobs = value if isinstance(value, list) else [value]
        marked = [as_damaged(job, sent.damaged[job.id]) if job.id in sent.damaged else job for job in jobs]
        return marked if isinstance(value, list) else marked[0]


_encoder = msgspec.json.Encoder()
read_sent = msgspec.json.Decoder(Sent).decode


@functools.cache
def codec(name: str) -> Codec:
    """Return the codec of a verb."""
    return Codec(name)


@functools.cache
def fields_known() -> int:
    """Count the fields that this program knows. They only grow, so a program that knows fewer is an older one."""
    kinds = [kind for verb in VERBS for kind in (codec(verb.name).arguments, codec(verb.name).returns)]
    _, components = msgspec.json.schema_components(kinds, schema_hook=_schema)
    return len(VERBS) + sum(len(each.get("properties", each.get("prefixItems", ()))) for each in components.values())


def decode_hook(kind: type, value: Any) -> Any:
    """Read the types of a row that JSON does not know."""
    if kind is Awaits:
        return Awaits(msgspec.convert(value, tuple[Awaited, ...]))
    if kind is CurrentSteps:
        return CurrentSteps(msgspec.convert(value, tuple[CurrentStep, ...]))
    raise NotImplementedError(kind)


def _schema(kind: type) -> dict[str, Any]:
    return {"type": "array"}


def _damage_in(value: Any) -> dict[str, str]:
    jobs = value if isinstance(value, list) else [value]
    return {job.id: job.damage for job in jobs if isinstance(job, DamagedJob)}
