"""The requests of a workflow's operations. Operations are generators of these; a driver carries them out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.core.records import Record
from holdfast.core.replay import Scope, answer_to
from holdfast.errors import Dropped, Parking

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Do:
    """Call the user's function, and answer with what it returns; what it raises is raised in the operation.

    `at`: path and name of the step that is run, or undone, by it.
    """

    at: tuple[str, str]
    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None
    what: str = "step"


@dataclass(frozen=True, slots=True)
class Write:
    """Record this, and answer with what the store says."""

    record: Record


@dataclass(frozen=True, slots=True)
class Read:
    """Ask the store, and answer with what it says."""

    fn: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for a moment, in the slot."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait without a slot, in the call at this path. There is no answer: the workflow is replayed later."""

    until: Parking
    path: str


current_scope: ContextVar[Scope | Do | None] = ContextVar("holdfast_scope", default=None)


@contextmanager
def inside(effect: Do) -> Iterator[None]:
    """Say that the user's function of a step, a transaction or an undo runs during the block."""
    token = current_scope.set(effect)
    try:
        yield
    finally:
        with suppress(ValueError):  # a dead event loop left the block, and it is cleared away somewhere else
            current_scope.reset(token)


Effect = Do | Write | Read | Pause | Wait
Operation = Generator[Effect, Any, T]


def merged(waits: list[Parking]) -> Parking:
    """Return what wakes a workflow whose branches wait for several things: the first of them that comes. If one of them
    was dropped, so were all: nothing wakes them."""
    if dropped := next((each for each in waits if isinstance(each, Dropped)), None):
        return dropped
    times = [each.wake_at for each in waits if each.wake_at is not None]
    awaits = tuple(sorted({what for each in waits for what in each.awaits}))
    asking = sorted((answer_to(each.awaits), each.question) for each in waits if each.question is not None)
    asked = asking[0][1] if asking else None  # an answer goes to the first in the order of `awaits`
    counts = [each.inbox for each in waits if each.inbox is not None]
    return Parking(min(times, default=None), awaits, asked, min(counts, default=None))
