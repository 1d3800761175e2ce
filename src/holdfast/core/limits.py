"""Limits, rates and turns of queues: how they are declared, and what a claim may take. Pure.

A place is what a running attempt holds of a limit. Nothing here counts: the store counts running rows and asks how many
more may start. `take_turns` chooses among the groups of one priority, and every store follows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from holdfast.core.durations import duration, iso, seconds
from holdfast.core.records import Job, NewEvent
from holdfast.errors import UsageError

LIMIT_MAX = 1_000_000
PERIOD_MAX_S = 31_622_400.0  # a year
GROUP_MAX = 200  # characters of a group's name
PROBES_MAX = 1000  # groups that one claim looks at, in each priority
SPARE_GROUPS = 100  # groups beyond the wanted jobs: the jobs of some may be of other tasks, or locked
REPEATS_MAX = 20  # looks of one claim that has found nothing and not seen all groups
GHOSTS_MAX = 100
UNGROUPED = ""  # what jobs without a group are to the turns; no group has this name
T = TypeVar("T")


class Rate(Struct, frozen=True):
    """A number of starts in each period."""

    starts: int
    period_s: float

    @classmethod
    def parse(cls, text: object) -> Rate:
        """Read `100/60s`, `5/s` or `1000/1h`; raise `UsageError` for anything else."""
        number, slash, period = text.partition("/") if isinstance(text, str) else ("", "", "")
        period = period.strip()
        length_s = seconds(period if period[:1].isdigit() else f"1{period}") if slash and period else None
        if not number.strip().isdecimal() or not number.isascii() or length_s is None:
            raise UsageError(f'rate={text!r} must be starts per period, such as "100/60s", "5/s" or "1000/1h"')
        starts = int(number)
        if not 1 <= starts <= LIMIT_MAX or not 0.001 <= length_s <= PERIOD_MAX_S:
            raise UsageError(
                f"rate={text!r} must have 1 to {LIMIT_MAX} starts in a period of a millisecond to a year; "
                "limit=0 starts nothing"
            )
        return cls(starts, length_s)

    @property
    def step_s(self) -> float:
        """Return the time between two starts at this rate."""
        return self.period_s / self.starts

    def __str__(self) -> str:
        return f"{self.starts}/{self.period_s:g}s"


class Limits(Struct, frozen=True, kw_only=True):
    """The limits in force for a queue. None: no such limit."""

    limit: int | None = None  # running attempts of the queue
    group_limit: int | None = None  # running attempts of each group in it
    rate: Rate | None = None  # starts of the queue
    burst: int = 1  # starts that may come at once after a pause

    @property
    def counts(self) -> bool:
        """Say whether running attempts must be counted."""
        return self.limit is not None or self.group_limit is not None

    @property
    def any(self) -> bool:
        """Say whether a claim must ask before it starts anything."""
        return self.counts or self.rate is not None


class Setting(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits that an app declares, or that a person has chosen. UNSET: says nothing about it."""

    limit: int | UnsetType | None = UNSET
    group_limit: int | UnsetType | None = UNSET
    rate: Rate | UnsetType | None = UNSET
    burst: int | UnsetType = UNSET

    def __post_init__(self) -> None:
        for name in ("limit", "group_limit", "burst"):
            value = getattr(self, name)
            least = 1 if name == "burst" else 0
            if value is UNSET or (value is None and name != "burst"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LIMIT_MAX:
                raise UsageError(f"{name}={value!r} must be a whole number from {least} to {LIMIT_MAX}")

    @property
    def says_nothing(self) -> bool:
        return self == Setting()

    @property
    def view(self) -> dict[str, int | str | None]:
        """Return what it says as plain data, for people and the journal."""
        said = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: str(each) if isinstance(each, Rate) else each for name, each in said.items() if each is not UNSET}


def setting(
    limit: int | UnsetType | None = UNSET,
    group_limit: int | UnsetType | None = UNSET,
    rate: str | Rate | UnsetType | None = UNSET,
    burst: int | UnsetType = UNSET,
) -> Setting:
    """Return the setting; a rate may be text. Raise `UsageError` for what can never be in force."""
    parsed = Rate.parse(rate) if not isinstance(rate, Rate | UnsetType | None) else rate
    return Setting(limit=limit, group_limit=group_limit, rate=parsed, burst=burst)


def in_force(declared: Setting, chosen: Setting) -> Limits:
    """Return the limits in force: what a person has chosen wins over what the app declares, field by field."""
    given = {}
    for name in Setting.__struct_fields__:
        values = (value for value in (getattr(chosen, name), getattr(declared, name)) if value is not UNSET)
        value = next(values, UNSET)
        if value is not UNSET:
            given[name] = value
    return Limits(**given)


class Queue(Struct, frozen=True, kw_only=True):
    """The settings of a queue. `paused_until` is wall time; None: until a person resumes it."""

    name: str
    paused: bool = False
    paused_until: float | None = None
    paused_groups: dict[str, float | None] = {}  # group -> until when
    declared: Setting = Setting()
    chosen: Setting = Setting()
    booked_until: float = 0.0  # wall time up to which the rate has given out starts
    grouped: bool = False  # a job with a group was stored in it

    @property
    def limits(self) -> Limits:
        return in_force(self.declared, self.chosen)

    @property
    def takes_turns(self) -> bool:
        """Say whether a claim from it must look at more than the order of its jobs."""
        timed = self.paused and self.paused_until is not None
        return self.limits.any or self.grouped or timed or bool(self.paused_groups)

    def is_paused(self, wall: float) -> bool:
        return self.paused and is_in_force(self.paused_until, wall)

    def is_group_paused(self, group: str, wall: float) -> bool:
        return group in self.paused_groups and is_in_force(self.paused_groups[group], wall)

    def opens_at(self, wall: float) -> float | None:
        """Return from when on a claim may start something, as far as pause and rate tell: 0.0 for at once, None for
        when a person resumes it."""
        if self.is_paused(wall):
            return self.paused_until
        rate = self.limits.rate
        return 0.0 if rate is None else next_permit(rate, self.limits.burst, self.booked_until, wall)


def with_pause(queue: Queue, paused: bool, group: str | None, until: float | None) -> Queue:
    """Return the queue with itself, or a group of it, paused or resumed."""
    if group is None:
        return replace(queue, paused=paused, paused_until=until if paused else None)
    others = {name: ends for name, ends in queue.paused_groups.items() if name != group}
    return replace(queue, paused_groups={**others, group: until} if paused else others)


def with_setting(queue: Queue, setting: Setting, *, declared: bool) -> Queue:
    """Return the queue with another setting of its app or of a person."""
    return replace(queue, declared=setting) if declared else replace(queue, chosen=setting)


def events(before: Queue, after: Queue, actor: str | None, note: str | None = None) -> Iterator[NewEvent]:
    """Yield what the journal says of a change; nothing if nothing has changed."""
    name = {"queue": after.name, **({"note": note} if note else {})}
    if (before.paused, before.paused_until) != (after.paused, after.paused_until):
        yield NewEvent("paused" if after.paused else "resumed", {**name, **_until(after.paused_until)}, actor)
    for group in sorted(before.paused_groups.keys() | after.paused_groups.keys()):
        if group not in after.paused_groups:
            yield NewEvent("resumed", {**name, "group": group}, actor)
        elif group not in before.paused_groups or before.paused_groups[group] != after.paused_groups[group]:
            yield NewEvent("paused", {**name, "group": group, **_until(after.paused_groups[group])}, actor)
    for by, old, new in (("app", before.declared, after.declared), ("person", before.chosen, after.chosen)):
        if old != new:
            yield NewEvent("limited", {**name, "by": by, "was": old.view, "is": new.view}, actor)


def _until(ends: float | None) -> dict[str, str | None]:
    return {} if ends is None else {"until": iso(ends)}


class Places(NamedTuple):
    """The places that are taken: attempts of a queue that run, and those of one group in it."""

    queue: int
    group: int


def is_in_force(until: float | None, wall: float) -> bool:
    """Say whether a pause that ends then still holds."""
    return until is None or wall < until


# ------------------------------------------------------------------------------------------------ rates


def booked(rate: Rate, burst: int, booked_until: float, wall: float) -> float:
    """Return from when on further starts are booked.

    A mark further ahead than the burst was made before the clock was set back: it is taken for one at the burst's end.
    """
    return min(max(booked_until, wall), wall + burst * rate.step_s)


def permits(rate: Rate, burst: int, booked_until: float, wall: float) -> int:
    """Return how many jobs may start now.

    Each start books one step of the time line, at most `burst` of them ahead of now. So any half-open interval of
    length d has at most ceil(d / step) + burst - 1 starts.
    """
    step, base = rate.step_s, booked(rate, burst, booked_until, wall)
    number = burst + math.floor((wall - base) / step)
    while number < burst and base + (number + 1 - burst) * step <= wall:
        number += 1
    while number > 0 and base + (number - burst) * step > wall:
        number -= 1
    return max(0, number)


def mark_after(rate: Rate, burst: int, booked_until: float, wall: float, taken: int) -> float | None:
    """Return the mark after a claim that took this many jobs; None: it stays.

    A mark that lies too far ahead comes back even if nothing was taken: otherwise it would move on with the clock.
    """
    mark = booked(rate, burst, booked_until, wall) + taken * rate.step_s
    return mark if taken or mark < booked_until else None


def next_permit(rate: Rate, burst: int, booked_until: float, wall: float) -> float:
    """Return from when on one more job may start, or on a claim has a mark to bring back; 0.0 for now."""
    if permits(rate, burst, booked_until, wall) or booked_until > booked(rate, burst, booked_until, wall) > wall:
        return 0.0
    return booked(rate, burst, booked_until, wall) + (1 - burst) * rate.step_s


def room(limits: Limits, running: int, booked_until: float, wall: float, wanted: int) -> int:
    """Return how many jobs of a queue a claim may start now, of those that it wants."""
    free = wanted if limits.limit is None else min(wanted, limits.limit - running)
    if limits.rate is not None:
        free = min(free, permits(limits.rate, limits.burst, booked_until, wall))
    return max(0, free)


# ------------------------------------------------------------------------------------------------ turns


class Group(NamedTuple):
    """A group in the walk of one claim: how many of its jobs may start. None: as many as there are."""

    name: str
    places: int | None


def walk(names: Sequence[str], cursor: str) -> list[str]:
    """Return the groups in the order of their turns: those behind the cursor, then the others from the beginning.

    Jobs without a group take one turn together, before the first name.
    """
    ordered = sorted({UNGROUPED, *names})
    return [name for name in ordered if name > cursor] + [name for name in ordered if name <= cursor]


def most_of_each(free: int, groups: int) -> int:
    """Return how many jobs of each open group a claim reads at most."""
    return max(1, 2 * free // max(1, groups))


def saw_all(found: int, walked: int, free: int) -> bool:
    """Say whether a walk ended because there were no more groups: not with enough open ones, or too many looked at."""
    return found < free + SPARE_GROUPS and walked < PROBES_MAX


def take_turns(groups: Sequence[Group], due: Mapping[str, Sequence[T]], free: int) -> Iterator[tuple[str, T]]:
    """Yield up to `free` jobs with their groups: the first job of each group in the order of the walk, then the second
    of each, and so on."""
    most = most_of_each(free, len(groups))
    lots = []
    for place, group in enumerate(groups):
        own = most if group.places is None else min(most, group.places)
        lots += [(number, place, group.name, job) for number, job in enumerate(due.get(group.name, ())[:own])]
    lots.sort(key=lambda lot: lot[:2])
    yield from ((name, job) for _, _, name, job in lots[:free])


def next_cursor(cursor: str, taken: Sequence[str], free: int, last_walked: str | None, *, whole: bool) -> str:
    """Return the group behind which the next claim begins.

    taken: the groups of the jobs, in their order. last_walked: the last group that was looked at. whole: all were.
    """
    if taken and (whole or len(taken) == free):
        return taken[-1]
    return cursor if whole or last_walked is None else last_walked


# ----------------------------------------------------------------------------------------------- reasons


def why_paused(queue: Queue, job: Job, wall: float) -> str | None:
    """Say that the queue or the group of a job is paused; None if neither is."""
    if queue.is_paused(wall):
        return f"Its queue, {queue.name}, is paused{_until_text(queue.paused_until)}."
    if job.group is not None and queue.is_group_paused(job.group, wall):
        until = _until_text(queue.paused_groups[job.group])
        return f"Its group, {job.group}, is paused in queue {queue.name}{until}."
    return None


def why_limited(queue: Queue, job: Job, places: Places, wall: float) -> str | None:
    """Say which limit of its queue keeps a due job from being started; None if none does."""
    held, group = queue.limits, job.group
    if held.limit is not None and places.queue >= held.limit:
        return f"Its queue, {queue.name}, has reached its limit: {places.queue} of {held.limit} jobs run."
    if group is not None and held.group_limit is not None and places.group >= held.group_limit:
        return (
            f"Its group, {group}, has reached the group limit of queue {queue.name}: "
            f"{places.group} of {held.group_limit} jobs run."
        )
    if held.rate is not None and (at := next_permit(held.rate, held.burst, queue.booked_until, wall)):
        return (
            f"Its queue, {queue.name}, starts {held.rate.starts} jobs in {duration(held.rate.period_s)}: "
            f"the next one in {duration(at - wall)}."
        )
    return None


def _until_text(ends: float | None) -> str:
    return "" if ends is None else f" until {iso(ends)}"


def check_group(group: object) -> str:
    """Return the name of a group if it can be stored and shown."""
    if not isinstance(group, str) or not 1 <= len(group) <= GROUP_MAX:
        raise UsageError(f"group={group!r} must be text of 1 to {GROUP_MAX} characters")
    if not group.isprintable() or group != group.strip():
        raise UsageError(f"group={group!r} must be printable, without space around it")
    return group
