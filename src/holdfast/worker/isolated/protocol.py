"""The messages between a worker and its isolated processes: frames of msgpack on a pair of sockets, after their length.

Nothing that is read here is turned into code. The names to import come from the worker's own tasks, never from a job.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Generic, TypeVar, get_args

import msgspec

from holdfast import errors
from holdfast.core.records import Job
from holdfast.core.verdict import Outcome

FRAME_MAX = 1 << 30  # a longer one is not a frame
READ_BYTES = 1 << 18

_HEAD = struct.Struct(">I")
T = TypeVar("T")

# --------------------------------------------------------------------------------- from the worker


class TaskLocation(msgspec.Struct, frozen=True):
    """The place of a task's function in the worker's own program."""

    module: str
    qualname: str


class Setup(msgspec.Struct, frozen=True, tag=True):
    """The first frame: where the tasks are, and how an isolated process is to behave."""

    app: str | None  # `module:name`, as the worker was started with; None: it was built in code
    main: dict[str, str]  # how to find what the worker's program calls `__main__`; empty: no task is there
    sys_path: list[str]
    url: str
    journal: str
    own_codec: bool  # the app has one that a new App would not
    log_level: int
    imports: list[str] = []  # further modules that declare tasks of `app`


class StartAttempt(msgspec.Struct, frozen=True, tag=True):
    """Run one attempt."""

    job: Job
    home: TaskLocation | None
    memory_max_mb: int | None = None  # to be kept by the process itself; None: no limit, or the system keeps it
    retry_is_code: bool = False  # only the declaration of the task says which exceptions are retried


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Ask the handler to stop; `kind` is the name of the signal in `errors`."""

    kind: str
    text: str


class Leave(msgspec.Struct, frozen=True, tag=True):
    """There is nothing more to do."""


# ---------------------------------------------------------------------------------- from the process


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The tasks are loaded."""


class Unusable(msgspec.Struct, frozen=True, tag=True):
    """The tasks cannot be loaded, for this reason."""

    error: str


class ProgressMade(msgspec.Struct, frozen=True, tag=True):
    """The handler called `ctx.progress()`, or `ctx.heartbeat()`, which asks for a beat soon."""

    progress: float | None = None
    note: str | None = None
    beat: bool = False
    beat_data: str | None = None


class StepsChanged(msgspec.Struct, frozen=True, tag=True):
    """In which steps a workflow is now: their names by their paths."""

    steps: dict[str, str]


class StackTaken(msgspec.Struct, frozen=True, tag=True):
    """The stack of the handler when it was asked to stop. The process may not live to write it to the journal."""

    stack: str


class Logged(msgspec.Struct, frozen=True, tag=True):
    """A record of the standard logging."""

    record: dict[str, Any]
    attempt: tuple[str, int] | None = None  # job id and fence, if it was that attempt's own code that logged it


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The attempt has ended. Without a `kind` it has settled itself, together with its own transaction."""

    kind: str | None
    outcome: msgspec.Raw
    progress: float | None
    note: str | None
    rss_mb: float
    spent: bool  # it left processes behind: the process is not used again
    beat_data: str | None = None


Order = Setup | StartAttempt | Stop | Leave
Word = Ready | Unusable | ProgressMade | StepsChanged | StackTaken | Logged | Ended

_OUTCOMES: dict[str, type[Outcome]] = {kind.__name__: kind for kind in get_args(Outcome)}
_encoder = msgspec.msgpack.Encoder()


def frame(message: Order | Word) -> bytes:
    """Return a message as it travels."""
    body = _encoder.encode(message)
    return _HEAD.pack(len(body)) + body


def ended(
    outcome: Outcome | None,
    *,
    progress: float | None,
    note: str | None,
    rss_mb: float,
    spent: bool,
    beat_data: str | None = None,
) -> Ended:
    """Wrap up an outcome; None: the attempt has settled itself."""
    kind = None if outcome is None else type(outcome).__name__
    return Ended(kind, msgspec.Raw(_encoder.encode(outcome)), progress, note, rss_mb, spent, beat_data)


def outcome_of(word: Ended) -> Outcome | None:
    """Unwrap it. Raises `msgspec.DecodeError` or `KeyError` for what no isolated process of ours sends."""
    return None if word.kind is None else msgspec.msgpack.decode(word.outcome, type=_OUTCOMES[word.kind])


def signal_of(order: Stop) -> errors.Interrupted:
    """Return what is to be raised in the handler."""
    kind: type[errors.Interrupted] = getattr(errors, order.kind)
    return kind(order.text)


class Frames(Generic[T]):
    """Cuts a stream of bytes into messages of one side."""

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[T]:
        """Yield the messages that are complete now. Raises `msgspec.DecodeError` for what is none."""
        self._bytes += data
        while len(self._bytes) >= _HEAD.size:
            (length,) = _HEAD.unpack_from(self._bytes)
            if length > FRAME_MAX:
                raise msgspec.DecodeError(f"a frame of {length} bytes")
            end = _HEAD.size + length
            if len(self._bytes) < end:
                return
            body = bytes(self._bytes[_HEAD.size : end])
            del self._bytes[:end]
            yield self._decoder.decode(body)
