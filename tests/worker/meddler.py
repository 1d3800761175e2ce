"""A real store with somebody in between, who counts the calls and fails them where a test says so."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.errors import StoreUnavailable
from holdfast.stores.protocol import Store

READS = (
    "get",
    "find",
    "counts",
    "journal",
    "journals",
    "workers",
    "paused",
    "unserved",
    "due_waits",
    "due",
    "overdue",
    "deadline",
    "vanished",
    "inbox",
    "steps",
)
WRITES = (
    "add",
    "claim",
    "beat",
    "settle",
    "transaction",
    "enroll",
    "retire",
    "move",
    "pause",
    "purge",
    "delete",
    "record",
    "signal",
    "wake_due",
    "fork",
)
DURABLE_PING = "ping durably"  # a ping that commits something is another verb here
VERBS = (*READS, *WRITES, "ping", DURABLE_PING, "standing", "doubt")


class Meddler:
    """Passes every verb on to `real`. What a test wants to happen before or after one is a plain function: it may look,
    wait, or raise. One that raises *after* the verb is a lost answer: the store has done what it was asked."""

    def __init__(self, real: Store) -> None:
        self.real = real
        self.calls: Counter[str] = Counter()
        self.given: list[tuple[str, tuple[Any, ...]]] = []  # (verb, arguments), in order
        self._before: dict[str, list[Callable[..., object]]] = {}
        self._after: dict[str, list[Callable[..., object]]] = {}
        self._lock = threading.Lock()

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self.real, verb)
        if verb not in VERBS:
            return real

        def call(*arguments: Any, **named: Any) -> Any:
            name = DURABLE_PING if named.get("durably") else verb
            with self._lock:
                self.calls[name] += 1
                self.given.append((name, arguments))
            for step in tuple(self._before.get(name, ())):
                step(*arguments)
            answer = real(*arguments, **named)
            for step in tuple(self._after.get(name, ())):
                step(answer)
            return answer

        return call

    def arguments_of(self, verb: str) -> list[tuple[Any, ...]]:
        """What the verb was called with, each time."""
        with self._lock:
            return [arguments for name, arguments in self.given if name == verb]

    @contextmanager
    def before(self, verb: str, step: Callable[..., object]) -> Iterator[None]:
        """Call `step` with the verb's arguments before each call."""
        with _listed(self._before.setdefault(verb, []), step):
            yield

    @contextmanager
    def after(self, verb: str, step: Callable[..., object]) -> Iterator[None]:
        """Call `step` with the verb's answer after each call that did not raise."""
        with _listed(self._after.setdefault(verb, []), step):
            yield

    @contextmanager
    def down(self, *verbs: str) -> Iterator[None]:
        """Let these verbs, or all of them, fail as a store that cannot be reached."""

        def fail(*_: Any) -> None:
            raise StoreUnavailable("the test took it away")

        for verb in verbs or VERBS:
            self._before.setdefault(verb, []).append(fail)
        try:
            yield
        finally:
            for verb in verbs or VERBS:
                self._before[verb].remove(fail)


@contextmanager
def _listed(steps: list[Callable[..., object]], step: Callable[..., object]) -> Iterator[None]:
    steps.append(step)
    try:
        yield
    finally:
        steps.remove(step)


def once(error: BaseException) -> Callable[..., None]:
    """A step that raises at its first call only."""
    left = [error]

    def step(*_: Any) -> None:
        if left:
            raise left.pop()

    return step
