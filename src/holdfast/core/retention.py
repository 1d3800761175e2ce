"""The retention of ended jobs, declared and checked once. A state that is not named is kept for ever."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from holdfast.core.durations import duration, seconds
from holdfast.core.machine import ENDED, State
from holdfast.errors import UsageError

Age = str | float | timedelta
SHORTEST_S = 60.0  # a caller that waits for a result, or repeats an enqueue, must still find the job
LONGEST_S = 1e9


@dataclass(frozen=True, slots=True)
class Retention:
    """States in which jobs end, and how many seconds after their end such jobs may be deleted. False: keep all."""

    rules: tuple[tuple[tuple[State, ...], float], ...] = ()

    @classmethod
    def declare(cls, given: Mapping[str, Age | None] | None) -> Retention:
        """Check what was asked for: by state, seconds, text such as "7d", or a timedelta; None keeps for ever."""
        by_age: dict[float, list[State]] = {}
        for name, age in (given or {}).items():
            if name not in ENDED:
                raise UsageError(f"keep: {name!r} is not a state in which jobs end: {', '.join(sorted(ENDED))}")
            if age is not None:
                by_age.setdefault(_checked(name, age), []).append(State(name))
        return cls(tuple((tuple(states), age_s) for age_s, states in sorted(by_age.items())))

    def __bool__(self) -> bool:
        return bool(self.rules)

    def __str__(self) -> str:
        return ", ".join(f"{state.value} for {duration(age_s)}" for states, age_s in self.rules for state in states)


def _checked(name: str, age: Age) -> float:
    given: object = seconds(age) if isinstance(age, str) else age
    age_s = given.total_seconds() if isinstance(given, timedelta) else given
    if not isinstance(age_s, int | float) or isinstance(age_s, bool):
        raise UsageError(f"keep: {age!r} for {name} is not a length of time; give seconds, a timedelta, or 12h, 7d")
    if not SHORTEST_S <= age_s <= LONGEST_S:
        raise UsageError(f"keep: {age!r} for {name} is not between {duration(SHORTEST_S)} and {duration(LONGEST_S)}")
    return float(age_s)
