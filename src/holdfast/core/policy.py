"""The settings that a task declares for its own recovery, validated once.

Policy travels on the job's row, so the reaper needs none of the user's code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from holdfast.errors import PolicyError

OnCrash = Literal["retry", "hold", "fail", "rollback"]
Jitter = Literal["equal", "full", "none"]

WHOLE_MAX = 2**31 - 1
SECONDS_MAX = 10**9  # thirty years
DOUBLINGS_MAX = 64  # beyond that every cap is reached, and floats stay finite
BEATS_PER_LEASE = 3  # one beat may be lost, and one late, before the lease runs out


def _whole(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= WHOLE_MAX:
        raise PolicyError(f"{name}={value!r} must be a whole number of at least {least} and at most {WHOLE_MAX}")


def _seconds(name: str, value: object, *, least: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= SECONDS_MAX:  # type: ignore[operator]  # not a number is never in between
        raise PolicyError(
            f"{name}={value!r} must be a number of seconds of at least {least:g} and at most {SECONDS_MAX}"
        )


def _check_errors(name: str, kinds: object) -> None:
    right = isinstance(kinds, tuple) and all(isinstance(each, type) and issubclass(each, Exception) for each in kinds)
    if not right:
        raise PolicyError(f"{name}={kinds!r} must be a tuple of exception classes, such as (ValueError, OSError)")


@dataclass(frozen=True, slots=True)
class Retry:
    """The number of runs of a job, the pauses between them, and the exceptions that end them.

    The pause doubles from `base_s` up to `cap_s`. `jitter` says how much of it is random, so that jobs that failed
    together do not come back together: half of it ("equal"), all of it ("full", or True), nothing ("none", or False).

    `on`: only these exceptions are retried. `never`: these are not retried. `backoff`: a function that gets the number
    of failures so far and returns the pause in seconds. These three are code: they do not travel on the job's row. The
    worker reads them from the declaration of the task, and they count for exceptions of the handler only.
    """

    attempts_max: int = 10
    base_s: float = 5.0
    cap_s: float = 3600.0
    jitter: Jitter | bool = "equal"
    on: tuple[type[Exception], ...] = ()
    never: tuple[type[Exception], ...] = ()
    backoff: Callable[[int], float] | None = None

    def __post_init__(self) -> None:
        _whole("attempts_max", self.attempts_max, least=1)
        _seconds("base_s", self.base_s, least=0.0)
        _seconds("cap_s", self.cap_s, least=0.0)
        if self.cap_s < self.base_s:
            raise PolicyError(f"cap_s={self.cap_s:g} is below base_s={self.base_s:g}; raise cap_s or lower base_s")
        if isinstance(self.jitter, bool):
            object.__setattr__(self, "jitter", "full" if self.jitter else "none")
        elif self.jitter not in get_args(Jitter):
            raise PolicyError(
                f"jitter={self.jitter!r} is not known; choose one of {', '.join(map(repr, get_args(Jitter)))}"
            )
        for name in ("on", "never"):
            _check_errors(name, getattr(self, name))
        if self.backoff is not None and not callable(self.backoff):
            raise PolicyError(f"backoff={self.backoff!r} must be a function of the number of failures, such as "
                              "lambda failures: 10 * failures")  # fmt: skip

    def covers(self, error: BaseException) -> bool:
        """Say whether a handler that raised this may be run again."""
        return not isinstance(error, self.never) and (not self.on or isinstance(error, self.on))

    @property
    def is_code(self) -> bool:
        """Say whether a part of it cannot travel on a job's row."""
        return bool(self.on or self.never or self.backoff)

    def chosen_delay_s(self, failures: int) -> float | None:
        """Return the pause that `backoff` chooses after this number of failures; None without one.

        Raises `PolicyError` for what is not a number of seconds, and whatever the function raises.
        """
        if self.backoff is None:
            return None
        delay: Any = self.backoff(failures)
        _seconds(f"backoff({failures})", delay, least=0.0)
        return float(delay)

    def delay_s(self, nth: int, chance: float) -> float:
        """Return the pause before the run that follows the nth failure; `chance` is from 0 up to 1."""
        doublings = min(max(nth, 1) - 1, DOUBLINGS_MAX)
        delay = min(self.cap_s, self.base_s * 2.0**doublings)
        return delay * (self._fixed + (1 - self._fixed) * chance)

    @property
    def span_s(self) -> tuple[float, float]:
        """Return the least and the most that all pauses add up to, from the first failure to the last attempt."""
        pauses = self.attempts_max - 1
        growing = [min(self.cap_s, self.base_s * 2.0**n) for n in range(min(pauses, DOUBLINGS_MAX))]
        longest = sum(growing) + max(0, pauses - DOUBLINGS_MAX) * min(self.cap_s, self.base_s * 2.0**DOUBLINGS_MAX)
        return longest * self._fixed, longest

    @property
    def _fixed(self) -> float:
        """Return the share of a pause that is not random."""
        return {"equal": 0.5, "full": 0.0}.get(str(self.jitter), 1.0)


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything about a job's recovery, as it travels on the row."""

    retry: Retry = Retry()
    crashes_max: int = 3
    on_crash: OnCrash = "retry"
    lease_s: float = 30.0
    beat_s: float | None = None
    timeout_s: float | None = None
    stall_s: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.retry, Retry):
            raise PolicyError(f"retry={self.retry!r} is not a Retry; write retry=Retry(attempts_max=…)")
        if self.on_crash not in get_args(OnCrash):
            raise PolicyError(
                f"on_crash={self.on_crash!r} is not known; choose one of 'retry', 'hold', 'fail', "
                "and for workflows also 'rollback'"
            )
        _whole("crashes_max", self.crashes_max, least=1)
        _seconds("lease_s", self.lease_s, least=0.1)
        for name in ("timeout_s", "stall_s"):
            value = getattr(self, name)
            if value is not None:
                _seconds(name, value, least=0.001)
        if self.beat_s is not None:
            _seconds("beat_s", self.beat_s, least=0.01)
            if self.beat_s > self.lease_s / BEATS_PER_LEASE:
                raise PolicyError(
                    f"beat_s={self.beat_s:g} is longer than a third of lease_s={self.lease_s:g}: one lost beat "
                    f"would look like a death; use beat_s of at most {self.lease_s / BEATS_PER_LEASE:g}"
                )

    @property
    def of_a_row(self) -> Policy:
        """Return the policy as a job's row can carry it: without the parts of its `Retry` that are code."""
        if not self.retry.is_code:
            return self
        return replace(self, retry=replace(self.retry, on=(), never=(), backoff=None))

    @property
    def beat_every_s(self) -> float:
        """Return the pause between two beats of this job."""
        return self.beat_s if self.beat_s is not None else self.lease_s / BEATS_PER_LEASE
