"""Find the step of a workflow at which each lost attempt was.

Three facts show it. The autopsy names the steps that the attempt last reported, and one that must not be repeated.
The record of a step that was begun has the fence of the attempt that began it, until another begins it. Otherwise the
records of that time narrow it down: the attempt was in the next step, or before it. For branches that run side by side
the same holds in each branch whose step was recorded as begun, and was begun again since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.durations import iso
from holdfast.core.records import Event, Step
from holdfast.core.replay import is_paused
from holdfast.core.row_text import current_steps

WAITS = ("sleep", "wait", "approve", "result")  # nobody is inside these: the workflow waits without a slot
_FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class StepDeath:
    """An attempt that lost its worker, and the step at which that was.

    `inside`: surely in it; otherwise in it or before it. `step` None: it is not on record (`path` and `name` are what
    was reported of it), or it was behind all that is. `aside`: these steps were set aside later, at that fence.
    """

    event: Event
    step: Step | None
    inside: bool = False
    undoing: bool = False
    path: str | None = None
    name: str | None = None
    aside: int = 0

    @property
    def place(self) -> str:
        """Say in a few words where it was."""
        if self.name is None:
            return "behind everything that is recorded"
        there = f"{self.name} ({self.path})"
        if self.undoing:
            return f"undoing {there}"
        return f"in {there}" if self.inside else f"in or before {there}"


def deaths(steps: Sequence[Step], events: Sequence[Event]) -> list[StepDeath]:
    """Find the step of each death, among all steps that the workflow has, also those that were set aside."""
    return [death for event in events if event.kind == "zombie" for death in _places(event, steps)]


def death_view(death: StepDeath, worker: str | None) -> dict[str, Any]:
    """Show a death as plain data."""
    return {
        "at": iso(death.event.at),
        "fence": death.event.fence,
        "attempt": death.event.detail.get("attempt"),
        "worker": worker,
        "path": death.path,
        "step": death.name,
        "inside": death.inside,
        "undoing": death.undoing,
        "cause": death.event.detail.get("cause"),
    }


def _places(event: Event, steps: Sequence[Step]) -> Iterator[StepDeath]:
    known = sorted(_of_its_time(event, steps), key=lambda step: step.position)
    aside = min((step.aside for step in steps if step.aside >= event.fence), default=0)
    reported = dict(current_steps(event.detail.get("in_steps") or ()))
    undoing = bool(event.detail.get("rolling_back"))
    opened = [step for step in known if not _was_over(step, event, undoing)]
    inside = [step for step in opened if step.path in reported]
    if not undoing:
        inside += [step for step in _begun(event, opened) if step not in inside]
    for one in inside:
        yield StepDeath(event, one, True, undoing, one.path, one.name, aside)
    lost = {} if undoing else {path: reported[path] for path in reported.keys() - {step.path for step in known}}
    for path, name in sorted(lost.items()):
        yield StepDeath(event, None, True, False, path, name, aside)
    coming = None if inside or lost else _next(event, opened, undoing)
    if not inside and not lost and coming is None:
        yield StepDeath(event, None, aside=aside)
    maybe = [] if coming is None else [coming]
    if not undoing:
        maybe += _begun_anew(event, opened, [*lost, *(step.path for step in inside + maybe)])
    for one in maybe:
        yield StepDeath(event, one, False, undoing, one.path, one.name, aside)


def _of_its_time(event: Event, steps: Sequence[Step]) -> Iterator[Step]:
    """Yield the steps that counted when it happened. Steps that are set aside free their places for those that run
    again. So, of the steps that are set aside later or never, only those before the first that was set aside
    counted."""
    first: dict[int, int] = {}
    for step in steps:
        if step.aside:
            first[step.aside] = min(step.position, first.get(step.aside, step.position))
    for step in steps:
        until = step.aside or _FOREVER
        if until >= event.fence and all(
            step.position < place for fence, place in first.items() if event.fence <= fence < until
        ):
            yield step


def _was_over(step: Step, event: Event, undoing: bool) -> bool:
    """Say whether the step was behind the attempt: recorded, or undone if it was rolling back."""
    if not undoing:
        return step.ended_at is not None and step.ended_at <= event.at
    return not step.has_undo or (step.state == "undone" and step.fence <= event.fence)


def _begun(event: Event, opened: Sequence[Step]) -> list[Step]:
    """Return those that this attempt had begun, by their records, and the one that must not be repeated."""
    begun = [step for step in opened if step.fence == event.fence and step.kind not in WAITS and not is_paused(step)]
    return begun or [step for step in opened if step.name == event.detail.get("open_step")][:1]


def _begun_anew(event: Event, opened: Sequence[Step], places: list[str]) -> Iterator[Step]:
    """Yield other steps that it may have begun: the first of each branch side by side with these places, if its
    beginning is recorded, and a later attempt wrote over that. A task beside the main line counts only if a step after
    it was recorded by then."""
    last = max((step.position for step in opened if step.fence <= event.fence), default=0)
    for step in opened:
        is_written = step.has_undo or not step.repeatable
        are_beside = _are_beside if step.position < last else _are_branches
        if is_written and step.fence > event.fence and all(are_beside(step.path, place) for place in places):
            yield step
            places.append(step.path)


def _next(event: Event, opened: Sequence[Step], undoing: bool) -> Step | None:
    """Return the one that it would have come to: undos go backwards. A wait next to it is not where it was."""
    if undoing:
        return opened[-1] if opened else None
    waits = [step for step in opened if step.kind in WAITS and (step.started_at or _FOREVER) <= event.at]
    moving = (step for step in opened if all(_are_beside(step.path, wait.path) for wait in waits))
    return next(moving, None) or next(iter(opened), None)


def _are_beside(path: str, other: str) -> bool:
    """Say whether neither is behind the other: they part at a branch, or one is on the line of a task beside."""
    _, one, two = _parting(path, other)
    return _are_branches(path, other) or "~" in one + two


def _are_branches(path: str, other: str) -> bool:
    """Say whether they are in two branches of one call, or in two tasks beside one line."""
    calls, one, two = _parting(path, other)
    return calls % 2 == 1 if "~" not in one + two else one[0] == two[0]


def _parting(path: str, other: str) -> tuple[int, str, str]:
    """Return what each has where two paths part, and how many calls and branches they have in common before."""
    common = 0
    for one, two in zip(path.split("."), other.split("."), strict=False):
        if one != two:
            return common, one, two
        common += "~" not in one  # it is neither a call nor a branch, but opens a line of calls
    return 0, "", ""
