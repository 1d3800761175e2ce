"""Facts about a workflow's waits and current steps, and the short texts that stores keep of them.

Only this module writes and reads these texts. The columns `awaits` and `in_steps` are JSON arrays of them, and the
journal has the second kind as well:

    signal:NAME             a signal; the answer to `flow.approve` at a path is the signal `approve:PATH`
    job:ID                  the end of a child
    after:ID                the success of a job; core/dependencies.py
    unless:WORD             what happens if that job does not succeed
    step:TRIES/MAX:NAME     the next try of a step that failed
    PATH NAME               a step that an attempt is in
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

ANSWER = "approve:"  # how the names of signals begin that answer a question; the path of the call follows


class Awaited(msgspec.Struct, frozen=True, order=True):
    """One thing that a waiting job waits for. `kind`: signal, job, step, after, unless; `name`: its name, or the id of
    the job."""

    kind: str
    name: str
    tries: int = 0  # this and the next: of a step
    tries_max: int = 0

    @property
    def text(self) -> str:
        """Return it as stores keep it."""
        return f"{self.kind}:{f'{self.tries}/{self.tries_max}:' if self.kind == 'step' else ''}{self.name}"

    @property
    def question(self) -> str | None:
        """Return the path of the question that this signal answers; None: it is not an answer."""
        is_answer = self.kind == "signal" and self.name.startswith(ANSWER)
        return self.name.removeprefix(ANSWER) if is_answer else None


class CurrentStep(NamedTuple):
    """A step that an attempt is in."""

    path: str
    name: str

    @property
    def text(self) -> str:
        """Return it as stores keep it."""
        return f"{self.path} {self.name}"


class Awaits(tuple[Awaited, ...]):
    """All that a waiting workflow waits for. A type of its own, so that rows can be read by `from_row`."""

    __slots__ = ()


class CurrentSteps(tuple[CurrentStep, ...]):
    """The steps that an attempt was in when it last said so; see `Awaits`."""

    __slots__ = ()


def awaited(text: str) -> Awaited:
    """Read the text of one awaited thing."""
    kind, _, name = text.partition(":")
    if kind != "step":
        return Awaited(kind, name)
    counts, _, name = name.partition(":")
    tries, _, tries_max = counts.partition("/")
    return Awaited(kind, name, int(tries), int(tries_max))


def current_steps(texts: Iterable[str]) -> CurrentSteps:
    """Read the texts of steps that an attempt was in."""
    return CurrentSteps(CurrentStep(*text.partition(" ")[::2]) for text in texts)


def from_row(kind: type, texts: Any) -> Any:
    """Read a column that has such texts: what a decoder of rows calls for the two types above."""
    known = msgspec.convert(texts, list[str])
    return Awaits(map(awaited, known)) if kind is Awaits else current_steps(known)


def texts_of(facts: Iterable[Awaited | CurrentStep]) -> list[str]:
    """Return each as stores keep it."""
    return [each.text for each in facts]
