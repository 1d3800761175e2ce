"""Replay: compare the records of a workflow with the calls of its code.

A step is known by its path: its number among the calls of its scope, taken when it is called. The code itself is one
scope; each branch is one of its own, so that no path depends on which branch is faster.

    1  2  3  4            the main scope
             4.1.1 4.1.2  the first branch of the fourth call
             4.2.1        the second
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from holdfast.core.records import Event, Job, Step, StepKind
from holdfast.core.row_text import Awaited
from holdfast.errors import Diverged, Parking

ASKED_KINDS = ("asked", "signalled", "moved")  # the lines of the journal that say since when a question is open
STEPS_MAX = 1_000_000  # of one workflow


@dataclass(slots=True, eq=False)
class Scope:
    """One sequence of calls: those of the workflow itself, or those of a branch of a `gather`."""

    _prefix: str = ""
    above: Scope | None = None  # the main scope, of which this is a branch
    owner: object = None  # the thread or the asyncio task that runs it
    parked: Parking | None = None  # set when it waits without a slot: its further calls are not carried out
    dropped: bool = False  # the `gather` of this branch has failed while the branch still ran
    failed: list[Step] = field(default_factory=list)  # ended, mostly with an error, and not recorded yet
    waits_at: list[str] = field(default_factory=list)  # the paths of the calls in which it waits
    _count: int = 0
    _scopes: list[Scope] = field(default_factory=list)  # those of branches

    @property
    def main(self) -> Scope:
        """Return the scope of the workflow itself."""
        return self.above or self

    def next(self) -> str:
        """Return the path of the call that is made now."""
        self._count += 1
        return f"{self._prefix}{self._count}"

    def peek(self) -> str:
        """Return the path that the next call will have."""
        return f"{self._prefix}{self._count + 1}"

    def branch(self, path: str, number: int) -> Scope:
        """Return the scope of one branch of the call at `path`."""
        scope = Scope(f"{path}.{number}.", self.main, dropped=self.dropped)
        self._scopes.append(scope)
        return scope

    def with_branches(self) -> Iterator[Scope]:
        """Return this scope, and those below it."""
        yield self
        for scope in self._scopes:
            yield from scope.with_branches()

    def drop(self) -> list[str]:
        """Let neither this scope nor those below it do anything more; return the paths of the calls they wait in."""
        paths = []
        for scope in self.with_branches():
            scope.dropped = True
            paths += scope.waits_at
        return paths

    def take_failed(self) -> list[Step]:
        """Return, once, the failed calls of this scope and its branches that the code caught, and continued after."""
        failed, self.failed = self.failed, []
        for scope in self._scopes:
            failed += scope.take_failed()
        return failed


@dataclass(slots=True)
class FlowCall:
    """One call of the code: where it is, what is recorded of it, and what failed before it and was caught."""

    path: str
    kind: StepKind
    name: str
    scope: Scope
    known: Step | None
    caught: list[Step] = field(default_factory=list)
    was_passed: bool = False  # something behind it is recorded
    is_concurrent: bool = False  # it is awaited in a task of its own

    @property
    def is_recorded(self) -> bool:
        return self.known is not None and self.known.state != "started"

    @property
    def where(self) -> str:
        """Return what its result is called in an error."""
        return f"{self.kind} {self.name!r}: the result"


class Replay:
    """The live records of one workflow, by path: each call is one lookup."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self._steps = {step.path: step for step in steps}
        self._unmatched = set(self._steps)  # what the code has not asked for yet
        self._undos_unmatched = {step.path for step in self._steps.values() if needs_undo(step)}
        self._position = max((step.position for step in self._steps.values()), default=0)

    def next_position(self) -> int:
        """Return the place of a record that is new."""
        self._position += 1
        return self._position

    @property
    def is_empty(self) -> bool:
        return not self._steps

    def at(self, path: str) -> Step | None:
        """Return what is recorded at the path, whatever it is."""
        return self._steps.get(path)

    def match(self, path: str, kind: StepKind, name: str) -> Step | None:
        """Return the record of this call; None: it was never begun. Raises `Diverged` when it is another's."""
        step = self._steps.get(path)
        if step is None:
            return None
        self._unmatched.discard(path)
        self._undos_unmatched.discard(path)
        if (step.kind, step.name) != (kind, name):
            raise does_not_fit(
                f"as number {path} the code asks for {_said(kind, name)}, and recorded there is "
                f"{_said(step.kind, step.name)} (attempt {step.attempt})"
            )
        return step

    def too_early(self, path: str, kind: StepKind, name: str, behind: str) -> Diverged:
        """Return what is wrong with a call that still waits although the one behind it is on record: older versions
        let code continue that had caught the signal to wait."""
        step = self._steps[behind]
        return does_not_fit(
            f"number {path}, {_said(kind, name)}, has not ended, but number {behind}, {_said(step.kind, step.name)}, "
            f"is recorded (attempt {step.attempt}): it was run too early"
        )

    def put(self, step: Step) -> None:
        """Note what was written."""
        self._steps[step.path] = step
        self._unmatched.discard(step.path)

    def check_failed(self, path: str) -> None:
        """Raise `Diverged` if the `gather` at the path, which has not failed this time, is recorded as failed."""
        step = self._steps.get(path)
        if step is not None:
            had = f"had failed (attempt {step.attempt}: {step.error})"
            raise does_not_fit(f"number {path}, gather, {had}, and now no branch of it fails")

    def check_all_matched(self) -> None:
        """Raise `Diverged` if the code has ended and something is recorded that it did not ask for."""
        if self._unmatched:
            step = min((self._steps[path] for path in self._unmatched), key=lambda step: step.position)
            raise does_not_fit(
                f"the code has ended, and recorded as number {step.path} is {_said(step.kind, step.name)} "
                f"(attempt {step.attempt}), which it did not ask for"
            )

    def check_undos_matched(self) -> None:
        """Raise `Diverged` if something is to be undone that the code did not ask for: its undo is not known."""
        self._unmatched &= self._undos_unmatched
        self.check_all_matched()

    @property
    def has_undos_ahead(self) -> bool:
        """Say whether the code has yet to ask for something that is to be undone."""
        return bool(self._undos_unmatched)

    def to_undo(self) -> list[Step]:
        """Return what is to be undone, in the order in which it is."""
        return to_undo(self._steps.values())


def does_not_fit(what: str) -> Diverged:
    """Return the signal that stops code which asks for something else than what is recorded."""
    return Diverged(f"the code does not fit the record: {what}")


def needs_undo(step: Step) -> bool:
    """Say whether a rollback calls the step's undo: it happened, or may have. One that raised may have, too."""
    return step.has_undo and step.state != "undone"


def to_undo(steps: Iterable[Step]) -> list[Step]:
    """Return which of these are to be undone, in the order in which they are: the reverse of their own."""
    return sorted((step for step in steps if needs_undo(step) and not step.aside), key=lambda step: -step.position)


def is_answered(step: Step) -> bool:
    """Say whether a person has said what the step returned. A worker has yet to read that and record it."""
    return step.state == "started" and not step.repeatable and step.result is not None


def is_paused(step: Step) -> bool:
    """Say whether a try of the step has failed and the start of the next one is not recorded.

    For a step that must not be repeated the start of every try is recorded, so nothing of it runs while it pauses.
    """
    return step.state == "started" and step.retry_at is not None


def open_steps(steps: Iterable[Step]) -> list[Step]:
    """Return those that must not be repeated, and were begun and not recorded or answered for, in their order."""
    begun = (step for step in steps if step.state == "started" and not step.repeatable and not step.aside)
    opened = (step for step in begun if not is_answered(step) and not is_paused(step))
    return sorted(opened, key=lambda step: step.position)


def answer_to(awaits: Iterable[Awaited]) -> str | None:
    """Return the name of the signal that answers the question of a workflow; if several are open, of the first."""
    return next((each.name for each in awaits if each.question is not None), None)


def asked_since(name: str | None, events: Iterable[Event]) -> float | None:
    """Return since when the question is open that the signal `name` answers; None if `events` do not say. These are of
    `ASKED_KINDS`, oldest first: a workflow journals its question each time it parks, and may park often."""
    since = None
    for event in events:
        if event.kind == "moved" or event.detail.get("name") == name:
            first = event.at if since is None else since
            since = first if event.kind == "asked" else None  # answered, or set back: the next question is a new one
    return since


def asked_about(job: Job, steps: Iterable[Step]) -> list[Step]:
    """Return the open steps in the order in which a person is asked about them: first the one that the row names.

    An earlier step may be open too: a person approved it, and the workflow was held again before it was started.
    """
    return sorted(open_steps(steps), key=lambda step: step.name != job.open_step)


def would_repeat(steps: Iterable[Step], first: Step) -> list[Step]:
    """Return the steps that must not be repeated, and that a run from `first` would repeat, without `first` itself."""
    later = [step for step in steps if step.position > first.position and not step.aside]
    again = (step for step in later if not step.repeatable and step.state != "undone")
    return sorted(again, key=lambda step: step.position)


def first_named(steps: Sequence[Step], name: str) -> Step | None:
    """Return the first live step of that name, or at that path."""
    live = sorted((step for step in steps if not step.aside), key=lambda step: step.position)
    return next((step for step in live if name in (step.name, step.path)), None)


def _said(kind: StepKind, name: str) -> str:
    return f"step {name!r}" if kind == "step" else f"{kind} {name!r}"
