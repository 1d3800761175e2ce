"""Rollups: how many attempts ended in each minute and hour, how long they had waited, and how long they ran.

A settlement adds a `Delta` in its own commit: one small row for the whole batch. The holder of a duty folds these into
a row for each queue and minute, quarter of an hour, and hour, and for each queue since the beginning. An enqueue writes
nothing: how many jobs arrived follows from how many there are and how many have ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

import msgspec

from holdfast.core.settlement import Settlement

# The upper bounds of the buckets of waits and runs, in seconds; one more bucket has what took longer.
BOUNDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1_200.0, 1_800.0, 3_600.0, 7_200.0, 21_600.0, 43_200.0, 86_400.0),
)
MINUTE, QUARTER, HOUR, EVER = 60, 900, 3_600, 0  # the spans of rollups, in seconds; EVER has one slot
SPANS = (MINUTE, QUARTER, HOUR, EVER)
KEPT_S = {MINUTE: 48 * 3_600, QUARTER: 48 * 3_600, HOUR: 90 * 86_400}  # how long those of a span are kept
FOLD_MAX = 500  # deltas that one call folds

Place = tuple[int, int, str]  # span, slot, queue


class Line(msgspec.Struct, frozen=True, array_like=True):
    """Attempts of one batch that ended alike. `wait` and `run` are numbers of buckets; None: not known."""

    queue: str
    state: str  # of the job after its attempt
    detector: str  # that found it lost, or ""
    wait: int | None
    run: int | None
    attempts: int


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """The lines that one batch of settlements adds."""

    minute: int
    lines: list[Line]


class Endings(msgspec.Struct, frozen=True, array_like=True):
    """Attempts after which their jobs were in one state. `waits` and `runs` are histograms without their last zeros."""

    state: str
    detector: str
    attempts: int
    waits: list[int]
    runs: list[int]


class Rollup(msgspec.Struct, frozen=True, array_like=True):
    """The attempts and arrivals of a queue in one slot of a span: the slot is the time since 1970 in spans.

    `arrived`: jobs that came, new ones and revived ones. `came`: the same since the store began, at the last fold.
    """

    span: int
    slot: int
    queue: str
    arrived: int = 0
    came: int = 0
    endings: list[Endings] = []

    @property
    def place(self) -> Place:
        return self.span, self.slot, self.queue


MARK = Rollup(EVER, 0, "")  # no queue has this name


def delta(settlements: Iterable[Settlement], wall: float) -> Delta:
    """Return what these settlements add, once they are accepted."""
    counts = Counter(map(what, settlements))
    return Delta(slot_of(wall, MINUTE), [Line(*each, attempts) for each, attempts in counts.items()])


def what(settlement: Settlement) -> tuple[str, str, str, int | None, int | None]:
    """Return what is counted of one settlement: the fields of its `Line`."""
    wait, run = bucket_of(settlement.waited_s), bucket_of(settlement.ran_s)
    return settlement.queue, settlement.verdict.state.value, settlement.detector, wait, run


def bucket_of(seconds: float | None) -> int | None:
    """Return the number of the bucket that a length of time is in. A clock that moved back counts as no time."""
    return None if seconds is None else bisect_left(BOUNDS, seconds)


def slot_of(wall: float, span: int) -> int:
    """Return the slot of a span that an instant is in."""
    return int(wall // span) if span else 0


def touched(deltas: Iterable[Delta], came: Mapping[str, int], wall: float) -> set[Place]:
    """Return the rollups that a fold may change."""
    found = {(float(delta.minute * MINUTE), line.queue) for delta in deltas for line in delta.lines}
    found |= {(wall, queue) for queue in came}
    return {(span, slot_of(at, span), queue) for at, queue in found for span in SPANS}


def folded(stored: Sequence[Rollup], deltas: Iterable[Delta], came: Mapping[str, int], wall: float) -> list[Rollup]:
    """Return the rollups that change when these deltas are added to those that are stored.

    `stored`: those that are `touched`, and all of EVER. `came`: how many jobs there are and have ended, by queue. The
    growth of that number since the last fold has arrived. A store that had jobs before it had rollups has nothing to
    compare the first `came` with: it lacks the MARK.
    """
    before = {each.place: each for each in stored}
    sums = _added(deltas)
    is_first = not any(each.span == EVER for each in stored)
    after: dict[Place, Rollup] = {MARK.place: MARK} if is_first else {}
    for span, slot, queue in touched((), came, wall) | sums.keys():
        old = before.get((span, slot, queue), Rollup(span, slot, queue))
        ever = before.get((EVER, 0, queue), Rollup(EVER, 0, queue))
        new = old
        if queue in came and slot == slot_of(wall, span):
            arrived = 0 if is_first else max(0, came[queue] - ever.came)
            new = msgspec.structs.replace(new, arrived=old.arrived + arrived, came=came[queue])
        if (span, slot, queue) in sums:
            new = msgspec.structs.replace(new, endings=_merged([*old.endings, *sums[span, slot, queue]]))
        is_empty = span != EVER and not new.arrived and not new.endings
        if new != old and not is_empty:
            after[new.place] = new
    return [after[place] for place in sorted(after)]


def with_deltas(stored: Iterable[Rollup], deltas: Iterable[Delta], span: int) -> list[Rollup]:
    """Return the rollups of a span as they would be if all was folded, by slot and queue. Empty ones are left out."""
    found = {each.place: each for each in stored}
    for place, endings in _added(deltas).items():
        if place[0] == span:
            old = found.get(place, Rollup(*place))
            found[place] = msgspec.structs.replace(old, endings=_merged([*old.endings, *endings]))
    return [found[place] for place in sorted(found) if found[place].arrived or found[place].endings]


def oldest_slot(span: int, wall: float) -> int:
    """Return the oldest slot of a span that is kept."""
    return slot_of(wall - KEPT_S[span], span)


def _added(deltas: Iterable[Delta]) -> dict[Place, list[Endings]]:
    """Return what deltas add to each rollup."""
    counts: dict[tuple[int, str, str, str], tuple[Counter[int], Counter[int], Counter[None]]] = {}
    for each in deltas:
        for line in each.lines:
            key = each.minute, line.queue, line.state, line.detector
            waits, runs, attempts = counts.setdefault(key, (Counter(), Counter(), Counter()))
            attempts[None] += line.attempts
            if line.wait is not None:
                waits[line.wait] += line.attempts
            if line.run is not None:
                runs[line.run] += line.attempts
    found: dict[Place, list[Endings]] = {}
    for (minute, queue, state, detector), (waits, runs, attempts) in counts.items():
        endings = Endings(state, detector, attempts[None], _histogram(waits), _histogram(runs))
        for span in SPANS:
            found.setdefault((span, slot_of(minute * MINUTE, span), queue), []).append(endings)
    return {place: _merged(endings) for place, endings in found.items()}


def _histogram(counts: Counter[int]) -> list[int]:
    return [counts[bucket] for bucket in range(max(counts, default=-1) + 1)]


def _merged(endings: Iterable[Endings]) -> list[Endings]:
    found: dict[tuple[str, str], Endings] = {}
    for each in endings:
        key = each.state, each.detector
        old = found.get(key, Endings(*key, 0, [], []))
        waits, runs = added(old.waits, each.waits), added(old.runs, each.runs)
        found[key] = Endings(*key, old.attempts + each.attempts, waits, runs)
    return [found[key] for key in sorted(found)]


def added(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Add two histograms."""
    return [first + second for first, second in zip_longest(one, other, fillvalue=0)]


def percentile(histogram: Sequence[int], share: float) -> float | None:
    """Return the time that this share of a histogram took at most, in seconds; None if it is empty.

    Inside a bucket it is interpolated, as if all times in it were equally likely. A time above the last bound
    counts as that bound.
    """
    total, seen = sum(histogram), 0
    for bucket, count in enumerate(histogram):
        if count and seen + count >= share * total:
            if bucket >= len(BOUNDS):
                return BOUNDS[-1]
            lower = BOUNDS[bucket - 1] if bucket else 0.0
            return lower + (BOUNDS[bucket] - lower) * max(0.0, share * total - seen) / count
        seen += count
    return None
