"""Find the running rows that have lost their worker, and decide about them. Pure: rows in, decisions out.

`core/verdict.py: judge` decides, from a job of Holdfast that stands for the row.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from holdfast.core.durations import duration
from holdfast.core.machine import State
from holdfast.core.policy import Policy, Retry
from holdfast.core.records import Detector, NewJob
from holdfast.core.transitions import first_row
from holdfast.core.verdict import Lost, judge
from holdfast.rescue.map import ATTEMPTS_MAX, Map, Value

OLDEST = 946_684_800.0  # the year 2000: an earlier instant does not count as a sign of life
NEWEST = 32_503_680_000.0  # the year 3000
CLOCKS_DIFFER_S = 5.0  # a sign of life may be this far in the future

State3 = Literal["ready", "dead", "held"]


class Row(NamedTuple):
    """A running row, with the values as they were read: a rescue compares them."""

    id: Any
    status: Any
    started: Any
    updated: Any
    worker: Any
    attempts: Any
    attempts_max: Any


class Rescue(NamedTuple):
    """The decision about a ghost. `why` is written into the row; `seen_at` is its last sign of life, wall time."""

    state: State3
    status: Value
    attempts: int
    why: str
    seen_at: float | None


class Finding(NamedTuple):
    """A running row, and what is known of it. Without `rescue` it is left alone."""

    row: Row
    seen_at: float | None  # its last sign of life, wall time
    why: str
    rescue: Rescue | None


class Known(NamedTuple):
    """The knowledge of the caller about workers. `only_process`: no worker is at work, so every running row is a ghost.
    `worker`: the name of a worker that is not at work."""

    only_process: bool = False
    worker: str | None = None


def examine(table: Map, row: Row, now: float, known: Known) -> Finding:
    """Say whether a row has lost its worker, and decide what becomes of it."""
    counts = f"{table.id} is empty" if row.id is None else _counts(table, row)
    if isinstance(counts, str):
        return Finding(row, None, counts, None)
    seen_at = _last_sign(table, row)
    detector: Detector = "restart"
    if known.only_process:
        cause = "the process that ran it has ended"
    elif known.worker is not None and table.worker is not None and str(row.worker) == known.worker:
        cause = f"worker {known.worker} was started again"
    else:
        if isinstance(seen_at, str):
            return Finding(row, None, seen_at, None)
        age_s = now - seen_at
        alive = _alive(table, age_s)
        if alive is not None:
            return Finding(row, seen_at, alive, None)
        detector = "expired"
        cause = f"no sign of life for {duration(age_s)} (stale_after_s={table.stale_after_s:g})"
    at = None if isinstance(seen_at, str) else seen_at
    return Finding(
        row, at, cause, _decide(table, row, counts, now, Lost(detector, cause, worker=_text(row.worker)), at)
    )


def _alive(table: Map, age_s: float) -> str | None:
    column = table.updated or table.started
    if age_s < -CLOCKS_DIFFER_S:
        return f"{column} is {duration(-age_s)} in the future: check time_zone"
    if age_s <= table.stale_after_s:
        return f"its last sign of life is {duration(max(0.0, age_s))} ago"
    return None


def _decide(table: Map, row: Row, counts: tuple[int, int], now: float, lost: Lost, at: float | None) -> Rescue:
    """Let `judge` decide. The row counts failures and crashes together, and so does `attempts_max`."""
    attempts, attempts_max = counts
    before = max(0, attempts - 1) if table.attempts_counted == "at_start" else attempts
    policy = Policy(Retry(attempts_max), crashes_max=attempts_max + 1, on_crash=table.on_crash)
    new = NewJob(id=str(row.id), task=table.table, payload="", policy=policy)
    job = replace(first_row(new, now), state=State.RUNNING, started=True, crashes=min(before, attempts_max))
    verdict = judge(lost, job, now, chance=0.5)
    why = verdict.reason or verdict.error or lost.cause
    return Rescue(_STATES[verdict.state], _status(table, verdict.state), before + 1, why, at)


_STATES: dict[State, State3] = {State.READY: "ready", State.DEAD: "dead", State.HELD: "held"}


def _status(table: Map, state: State) -> Value:
    if state is State.HELD and table.held is not None:
        return table.held
    return table.ready if state is State.READY else table.dead


def _counts(table: Map, row: Row) -> tuple[int, int] | str:
    """Return the attempts so far and the most that are allowed, or why they cannot be read."""
    most = row.attempts_max if isinstance(table.attempts_max, str) else table.attempts_max
    attempts = 0 if row.attempts is None else row.attempts
    for column, value in ((table.attempts, attempts), (table.attempts_max, most)):
        if isinstance(value, bool) or not isinstance(value, int):
            return f"{column} is {value!r}, which is not a whole number"
    if not 1 <= most <= ATTEMPTS_MAX:
        return f"{table.attempts_max} is {most}, which is not between 1 and {ATTEMPTS_MAX}"
    return max(0, attempts), most


def _last_sign(table: Map, row: Row) -> float | str:
    """Return the newest sign of life of a row, or why there is none."""
    instants = []
    for column, value in ((table.updated, row.updated), (table.started, row.started)):
        if column is None or value is None or (column == table.updated and _is_zero(value)):
            continue
        at = instant(value, table.zone, column)
        if isinstance(at, str):
            return at
        instants.append(at)
    return max(instants) if instants else f"{table.started} is empty, so its age is not known"


def _is_zero(value: object) -> bool:
    """Say whether a program writes this for "never": 0, or the first instant of a calendar."""
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC).timestamp() <= 0
    return isinstance(value, int | float | Decimal) and value == 0


def instant(value: object, zone: ZoneInfo | None, column: str) -> float | str:
    """Return the seconds since 1970 of a time as a database gives it, or why it cannot be read.

    A time that a clock showed twice, because it was set back, is the later one: a living row never looks older.
    """
    read = _parsed(value) if isinstance(value, str) else value
    if isinstance(read, datetime):
        if read.tzinfo is None and zone is None:
            return f"{column} has no time zone: add to the map that of the programs that write it, time_zone = 'UTC'"
        if not 1 < read.year < 9999:  # a zone may lead out of the calendar
            return f"{column} is {value!r}, which is not a time of a run"
        if read.tzinfo is None:
            at = max(read.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
        else:
            at = read.timestamp()
    elif isinstance(read, bool) or not isinstance(read, int | float | Decimal):
        return f"{column} is {value!r}, which is not a time"
    else:
        at = _seconds(read)
    if not OLDEST <= at <= NEWEST:
        return f"{column} is {value!r}, which is not a time between the years 2000 and 3000"
    return at


def _seconds(number: float | Decimal) -> float:
    """Return seconds of a number of seconds, milliseconds, microseconds or nanoseconds since 1970."""
    for bound, scale in ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3)):
        if number > bound:
            return float(number) / scale
    return float(number)


def _parsed(text: str) -> float | datetime | None:
    try:
        date.fromisoformat(text)
    except ValueError:
        pass
    else:
        return None  # a day without a time says nothing about the last hour
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _text(value: object) -> str | None:
    return None if value is None else str(value)
