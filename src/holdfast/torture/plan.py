"""Plans disturbances: deaths and freezes at each point of the program, and a store that takes no writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

Act = Literal["calm", "kill", "strike", "freeze", "cut"]

# Points of the program at which a worker dies, the likeliest places for a mistake first.
POINTS = (
    "effect.after",
    "handler.after",
    "settle.before",
    "handler.before",
    "settle.after",
    "claim.after",
    "beat.before",
)
WORKFLOW_POINTS = ("step.after", "record.before", "record.after", "step.before")
ACTS: tuple[Act, ...] = ("strike", "freeze", "cut")
CHOICES = (*POINTS, *WORKFLOW_POINTS, *ACTS)


class Disturbance(NamedTuple):
    """The disturbance of one round. `nth`: it happens when a process passes the point for the nth time."""

    act: Act
    point: str = ""
    nth: int = 2

    def __str__(self) -> str:
        match self.act:
            case "calm":
                return "undisturbed"
            case "cut":
                return "the store takes no writes"
            case "strike":
                return "kill in the middle"
            case _:
                return f"{self.act} at {self.point}"

    @property
    def choice(self) -> str:
        """Return the word that chooses it."""
        return self.point if self.act == "kill" else self.act


CALM = Disturbance("calm")


def rounds(is_workflow: bool, only: Sequence[str] = ()) -> Iterator[Disturbance]:
    """Yield disturbances without end: each once, then the same with other passings."""
    nth = 2
    while True:
        points = [*WORKFLOW_POINTS, *POINTS] if is_workflow else [*POINTS]
        plan = [Disturbance("kill", point, nth) for point in points]
        plan[3:3] = [Disturbance("strike"), Disturbance("freeze", "effect.after", nth), Disturbance("cut")]
        plan.append(Disturbance("freeze", "handler.before", nth))
        yield from (each for each in plan if not only or each.choice in only)
        nth = 2 + (nth - 1) % 3
