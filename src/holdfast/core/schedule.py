"""Compute the instants of a schedule, and decide which one is to be fired now.

A schedule is a cron expression in a time zone, or `@every 30s`: the instants that are whole multiples of the period
since 1970, so that every program computes the same ones.

An expression has the five fields of cron and means what Debian's cron makes of it, in a named time zone. Where clocks
are set forward, a time that does not exist is taken at the end of the gap; where they are set back, a time that comes
twice is taken once, at its first coming. Expressions whose minute or hour begins with `*` follow the time that really
passes: every minute at which the clock on the wall matches, no other, and both comings of one that comes twice.
"""

from __future__ import annotations

import hashlib
import math
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import count, islice, takewhile
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from holdfast.core.durations import duration
from holdfast.core.records import Schedule
from holdfast.errors import UsageError

MISSED_MAX = 1000  # instants of one schedule that are made up for at once


@dataclass(frozen=True, slots=True)
class All:
    """Make up for every missed instant, but at most for the last `limit` ones: `missed=All(24)`."""

    limit: int

    def __post_init__(self) -> None:
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or not 1 <= self.limit <= MISSED_MAX:
            raise UsageError(f"All(limit={self.limit!r}): the limit must be a whole number from 1 to {MISSED_MAX}")


Missed = Literal["last", "skip"] | All

JITTER_MAX_S = 86_400.0
LATE_S = 60.0  # an instant this long ago, and not fired, was missed; a new holder of the duty fires younger ones
SPEC_MAX = 200
INSTANTS_MAX = 1000  # that are counted
_DAY_S = 86_400.0
_BACK_S = (3600.0, _DAY_S, 32 * _DAY_S, 366 * _DAY_S, math.inf)  # how far back to look for the last instant


MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
PERIOD_MAX_S = 366 * 86_400.0
_EVERY = re.compile(r"@every (\d+(?:\.\d{1,3})?)s")


def checked(spec: object, tz: object, now: float) -> tuple[str, str]:
    """Return the expression, evenly spaced, and the zone, if they mean something; raise `UsageError` otherwise.

    `@hourly` and the like become five fields; `@every 30s` stays.
    """
    if isinstance(spec, str) and (wanted := " ".join(spec.split())).startswith("@"):
        if _EVERY.fullmatch(wanted):
            next_instant(wanted, str(tz), now)
            return wanted, str(tz)
        spec = MACROS.get(wanted, spec)
    if not isinstance(spec, str) or len(spec) > SPEC_MAX or len(spec.split()) != 5:
        raise UsageError(f"{spec!r} is not a cron expression: {_ADVICE}")
    spec = " ".join(spec.split())
    if next_instant(spec, str(tz), now) is None:
        raise UsageError(f"{spec!r} will never come; there is no such day")
    return spec, str(tz)


_ADVICE = 'write the five fields minute, hour, day, month and weekday, such as "*/5 * * * *", or "@hourly"'


def every(seconds: object) -> str:
    """Return the expression of a fixed period, if it is one; raise `UsageError` otherwise."""
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 1 <= seconds <= PERIOD_MAX_S:  # type: ignore[operator]  # not a number is never in between
        raise UsageError(f"seconds={seconds!r} must be a number of seconds, at least 1 and at most {PERIOD_MAX_S:g}")
    return f"@every {round(float(seconds), 3):.3f}".rstrip("0").rstrip(".") + "s"  # type: ignore[arg-type]


def _period_ms(spec: str) -> int | None:
    """Return the period of `@every …`; None for a cron expression."""
    found = _EVERY.fullmatch(spec)
    return None if found is None else max(1000, round(float(found[1]) * 1000))


@lru_cache(maxsize=10_000)  # of ten thousand schedules, many have the same expression
def next_instant(spec: str, tz: str, after: float) -> float | None:
    """Return the first instant after `after`, in wall time; None when there is none in the next fifty years."""
    of_the_day = _of_a_day(spec, tz, after // _DAY_S)
    place = bisect_right(of_the_day, after)
    return of_the_day[place] if place < len(of_the_day) else next(_instants(spec, _zone(tz), after), None)


@lru_cache(maxsize=1000)
def _of_a_day(spec: str, tz: str, day: float) -> tuple[float, ...]:
    """Return the instants of a day of UTC: to begin a walk costs more than a step of it."""
    start = day * _DAY_S
    if _period_ms(spec) is not None:
        return ()
    walk = _instants(spec, _zone(tz), start - 0.001)
    return tuple(takewhile(lambda instant: instant < start + _DAY_S, walk))


@lru_cache(maxsize=10_000)
def last_instants(spec: str, tz: str, after: float, until: float, most: int = 1) -> tuple[float, ...]:
    """Return the last instants after `after` and not after `until`, at most `most`, in their order."""
    zone = _zone(tz)
    if (period_ms := _period_ms(spec)) is not None:
        last_ms = round(_multiple(period_ms, until) * 1000)
        instants = (ms / 1000 for ms in range(last_ms - (most - 1) * period_ms, last_ms + 1, period_ms))
        return tuple(instant for instant in instants if instant > after)
    if after >= until // _DAY_S * _DAY_S:
        of_the_day = _of_a_day(spec, tz, until // _DAY_S)
        first, end = bisect_right(of_the_day, after), bisect_right(of_the_day, until)
        return of_the_day[max(first, end - most) : max(first, end)]
    for back_s in _BACK_S:  # a year of minutes is not walked through for its last one
        start = max(after, until - back_s)
        last = deque(takewhile(lambda instant: instant <= until, _instants(spec, zone, start)), maxlen=most)
        if len(last) == most or start == after:
            return tuple(last)
    return ()


def due(schedule: Schedule, now: float) -> tuple[float, ...]:
    """Return the instants that are to be fired now, in their order.

    Those are the last `missed_max` since the mark, however many there were. With missed="skip" those that are long past
    are left out, too.
    """
    after = schedule.mark if schedule.missed == "last" else max(schedule.mark, now - LATE_S)
    return last_instants(schedule.spec, schedule.tz, after, now, schedule.missed_max)


def upcoming(spec: str, tz: str, after: float, most: int) -> list[float]:
    """Return the first instants after `after`, at most `most`, in their order."""
    return list(islice(_instants(spec, _zone(tz), after), most))


def in_words(spec: str, tz: str) -> str:
    """Say when a schedule fires: "At 03:00 every day, Europe/Berlin"."""
    if (period_ms := _period_ms(spec)) is not None:
        return f"Every {duration(period_ms / 1000)}"
    try:
        return f"{CronSim(spec, datetime.fromtimestamp(0, UTC)).explain()}, {tz}"
    except CronSimError:
        return f"{spec}, {tz}"


def local_time(instant: float, tz: str) -> str:
    """Write an instant as clocks in the zone show it: "Mon 2026-03-30 03:00 CEST"."""
    local = datetime.fromtimestamp(instant, _zone(tz))
    return local.strftime("%a %Y-%m-%d %H:%M:%S %Z" if local.second else "%a %Y-%m-%d %H:%M %Z")


def missed_by(missed: object) -> tuple[Literal["last", "skip"], int]:
    """Return `missed` and `missed_max` as a schedule's row has them; raise `UsageError` for anything else."""
    if isinstance(missed, All):
        return "last", missed.limit
    if missed == "last":
        return "last", 1
    if missed == "skip":
        return "skip", 1
    raise UsageError(f'missed={missed!r} is not known; choose "last", "skip" or All(limit)')


def checked_jitter(jitter_s: object) -> float:
    """Return the jitter if it is one; raise `UsageError` otherwise."""
    number = isinstance(jitter_s, int | float) and not isinstance(jitter_s, bool)
    if not number or not 0 <= jitter_s <= JITTER_MAX_S:  # type: ignore[operator]  # not a number is never in between
        raise UsageError(f"jitter_s={jitter_s!r} must be a number of seconds from 0 to {JITTER_MAX_S:g}")
    return float(jitter_s)  # type: ignore[arg-type]


def run_at(schedule: Schedule, instant: float) -> float:
    """Return when the job of an instant becomes due. The jitter is made of key and instant: every program that fires
    the instant computes the same one."""
    if schedule.jitter_s == 0:
        return instant
    drawn = hashlib.sha256(f"jitter {instant:.3f} {schedule.key}".encode()).digest()
    return instant + round(schedule.jitter_s * int.from_bytes(drawn[:6], "big") / 2**48, 3)


class Late(NamedTuple):
    """Instants of a schedule that have come and were not fired."""

    since: float  # the first of them
    instants: int  # how many; at most `INSTANTS_MAX`


def late(schedule: Schedule, now: float) -> Late | None:
    """Return the instants that came more than a minute ago and were not fired; None when there are none.

    A schedule that is paused is never late. One that no program declares may be: then nobody fires it.
    """
    if schedule.paused:
        return None
    instants = _instants(schedule.spec, _zone(schedule.tz), schedule.mark)
    came = list(islice(takewhile(lambda instant: instant < now - LATE_S, instants), INSTANTS_MAX))
    return Late(came[0], len(came)) if came else None


def _instants(spec: str, zone: tzinfo, after: float) -> Iterator[float]:
    """Yield the instants after `after`, each once, in their order.

    CronSim walks through local times and knows nothing of zones: in them it loses its way where clocks skip midnight
    or are set by half an hour. An hour that comes twice is walked through once; its second coming waits in `repeated`.
    """
    if (period_ms := _period_ms(spec)) is not None:
        start = round(_multiple(period_ms, after) * 1000)
        yield from (instant for instant in (ms / 1000 for ms in count(start, period_ms)) if instant > after)
    try:
        walk = CronSim(spec, _start(zone, after))
    except CronSimError as error:
        raise UsageError(f"{spec!r} is not a cron expression: {error}; {_ADVICE}") from None
    elapsed = any(field.startswith("*") for field in spec.split()[:2])
    last = after
    repeated: list[float] = []
    for local in walk:
        first, second = _readings(local, zone)
        if first > second:  # clocks never show this time
            if elapsed:
                continue
            first = second = _end_of_gap(local, zone)
        while repeated and repeated[0] < first:
            yield repeated.pop(0)
        if first > last:
            yield first
            last = first
        if elapsed and second > first:
            repeated.append(second)
    yield from repeated


def _multiple(period_ms: int, until: float) -> float:
    """Return the last multiple of the period that is not after `until`."""
    ms = (math.floor(until * 1000 / period_ms) + 1) * period_ms
    while ms / 1000 > until:  # the division is rounded
        ms -= period_ms
    return ms / 1000


def _start(zone: tzinfo, after: float) -> datetime:
    """Return the earliest time that clocks show from `after` on; they may be set back within the next day."""
    now, tomorrow = (
        datetime.fromtimestamp(instant, zone).replace(tzinfo=None, fold=0) for instant in (after, after + _DAY_S)
    )
    return min(now, tomorrow - timedelta(days=1))


def _readings(local: datetime, zone: tzinfo) -> tuple[float, float]:
    """Return when clocks show `local` for the first and for the second time: two equal instants when they show it once,
    and the later one first when they never do (PEP 495)."""
    return local.replace(tzinfo=zone).timestamp(), local.replace(tzinfo=zone, fold=1).timestamp()


def _end_of_gap(local: datetime, zone: tzinfo) -> float:
    first, second = _readings(local, zone)
    while first > second:
        local += timedelta(minutes=1)
        first, second = _readings(local, zone)
    return first


def _zone(tz: str) -> tzinfo:
    if tz == "UTC":  # needs no table of zones, which small systems lack
        return UTC
    try:
        return ZoneInfo(tz)
    except (KeyError, ValueError, OSError):
        raise UsageError(
            f"tz={tz!r} is not a time zone that this system knows; write one such as "
            '"Europe/Berlin". If it knows none at all: pip install tzdata'
        ) from None
