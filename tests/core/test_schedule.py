"""Cron expressions in time zones, also where clocks are set; which instant is to be fired (fault F44 of the field)."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from functools import cache
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.records import NewJob, Schedule
from holdfast.core.schedule import (
    INSTANTS_MAX,
    LATE_S,
    MISSED_MAX,
    SPEC_MAX,
    All,
    Late,
    checked,
    checked_jitter,
    due,
    every,
    in_words,
    last_instants,
    late,
    local_time,
    missed_by,
    next_instant,
    run_at,
    upcoming,
)
from holdfast.errors import UsageError

NOW = datetime(2026, 11, 15, 12, 0, 30, tzinfo=UTC).timestamp()
MINUTE_S = 60.0
DAY_S = 86_400.0


def at(text: str) -> float:
    """An instant in UTC, to the minute."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def written(instant: float | None) -> str:
    assert instant is not None
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%M")


def following(spec: str, tz: str, after: str, many: int) -> list[str]:
    found, instant = [], at(after)
    for _ in range(many):
        coming = next_instant(spec, tz, instant)
        assert coming is not None
        found.append(written(coming))
        instant = coming
    return found


def last_instant(spec: str, tz: str, after: float, until: float) -> float | None:
    found = last_instants(spec, tz, after, until)
    assert len(found) <= 1
    return found[0] if found else None


# --- What an expression means ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("*/5 * * * *", "2026-11-15 12:05"),
        ("0 3 * * *", "2026-11-16 03:00"),
        ("0 3 * * MON-FRI", "2026-11-16 03:00"),
        ("30 9 1 * *", "2026-12-01 09:30"),
        ("0 0 29 2 *", "2028-02-29 00:00"),
        ("0 0 L * *", "2026-11-30 00:00"),
        ("0 0 1 * 0", "2026-11-22 00:00"),  # either day will do, as everywhere
    ],
)
def test_the_next_instant(spec: str, expected: str) -> None:
    assert written(next_instant(spec, "UTC", NOW)) == expected


def test_an_instant_follows_itself_never() -> None:
    assert following("* * * * *", "UTC", "2026-11-15 12:00", 3) == [f"2026-11-15 12:0{minute}" for minute in (1, 2, 3)]


def test_a_zone_has_its_own_days() -> None:
    assert written(next_instant("0 9 * * *", "Asia/Tokyo", NOW)) == "2026-11-16 00:00"
    assert written(next_instant("0 9 * * *", "America/New_York", NOW)) == "2026-11-15 14:00"


FIELDS = [
    st.sampled_from(["*", "0", "*/7", "5-20", "3,33,59", "10-50/20"]),
    st.sampled_from(["*", "0", "*/5", "8-17", "23"]),
    st.sampled_from(["*", "1", "13,31", "10-20"]),
    st.sampled_from(["*", "2", "6-8"]),
    st.sampled_from(["*", "1-5", "0", "7"]),
]


def matches(spec: str, when: datetime) -> bool:
    """The brute-force oracle: whether this very minute is meant."""
    minute, hour, day, month, weekday = spec.split()
    days = (
        in_field(day, when.day, 1, 31),
        in_field(weekday, when.isoweekday(), 0, 7) or (when.isoweekday() == 7 and in_field(weekday, 0, 0, 7)),
    )
    right_day = all(days) if "*" in (day, weekday) else any(days)
    return (
        in_field(minute, when.minute, 0, 59)
        and in_field(hour, when.hour, 0, 23)
        and in_field(month, when.month, 1, 12)
        and right_day
    )


def in_field(field: str, value: int, least: int, most: int) -> bool:
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        begin = least if first == "*" else int(first)
        end = most if first == "*" else int(last or first)
        if begin <= value <= end and (value - begin) % int(step or 1) == 0:
            return True
    return False


@settings(max_examples=150, deadline=None)
@given(spec=st.tuples(*FIELDS).map(" ".join), minutes=st.integers(0, 2 * 366 * 1440))
def test_no_minute_is_left_out_and_none_too_many(spec: str, minutes: int) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    span = [start + timedelta(minutes=number) for number in range(1, 2881)]
    expected = [when.timestamp() for when in span if matches(spec, when)]
    found, instant = [], next_instant(spec, "UTC", start.timestamp())
    while instant is not None and instant <= span[-1].timestamp():
        found.append(instant)
        instant = next_instant(spec, "UTC", instant)
    assert found == expected
    last = last_instant(spec, "UTC", start.timestamp(), span[-1].timestamp())
    assert last == (expected[-1] if expected else None)


@pytest.mark.parametrize(
    ("macro", "fields"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        (" @hourly ", "0 * * * *"),
    ],
)
def test_a_macro_stands_for_five_fields(macro: str, fields: str) -> None:
    assert checked(macro, "Europe/Berlin", NOW) == (fields, "Europe/Berlin")


@pytest.mark.parametrize(
    "spec", ["@reboot", "@every", "@every 30", "@every -1s", "@every 30 s", "@every 1.2345s", "@Hourly"]
)
def test_an_unknown_macro_is_refused(spec: str) -> None:
    with pytest.raises(UsageError, match=r'is not a cron expression.*"@hourly"'):
        checked(spec, "UTC", NOW)


@pytest.mark.parametrize(
    ("seconds", "spec"), [(1, "@every 1s"), (30.0, "@every 30s"), (2.5, "@every 2.5s"), (1.0004, "@every 1s")]
)
def test_a_period_is_written_as_an_expression(seconds: float, spec: str) -> None:
    assert every(seconds) == spec
    assert checked(f" {spec} ", "UTC", NOW) == (spec, "UTC")


@pytest.mark.parametrize("seconds", [0, 0.999, -1, float("nan"), float("inf"), 400 * DAY_S, True, "30", None])
def test_a_period_is_at_least_a_second(seconds: Any) -> None:
    with pytest.raises(UsageError, match="seconds="):
        every(seconds)


@settings(max_examples=300, deadline=None)
@given(ms=st.integers(1000, 10**7), after=st.floats(0, 4e9))
def test_the_instants_of_a_period_are_its_multiples_each_once(ms: int, after: float) -> None:
    spec = every(ms / 1000)
    found = []
    instant = after
    for _ in range(5):
        coming = next_instant(spec, "UTC", instant)
        assert coming is not None
        assert coming > instant
        found.append(round(coming * 1000))
        instant = coming
    assert all(each % ms == 0 for each in found)
    assert [later - sooner for sooner, later in pairwise(found)] == [ms] * 4
    assert found[0] - after * 1000 <= ms + 0.01
    assert last_instant(spec, "UTC", after, instant) == instant
    assert last_instant(spec, "UTC", instant, instant) is None


def test_of_a_long_pause_only_the_last_instant_of_a_period_is_due() -> None:
    schedule = a_schedule("@every 30s", mark=NOW - DAY_S)
    assert due(schedule, NOW) == (NOW - NOW % 30,)
    assert due(replace(schedule, mark=NOW), NOW + 29) == ()


# --- Where clocks are set --------------------------------------------------------------------------------


def test_a_time_that_does_not_exist_is_taken_at_the_end_of_the_gap() -> None:
    """Berlin, 29 March 2026: 02:00 becomes 03:00, which is 01:00 UTC."""
    expected = ["2026-03-28 01:30", "2026-03-29 01:00", "2026-03-30 00:30"]
    assert following("30 2 * * *", "Europe/Berlin", "2026-03-27 12:00", 3) == expected


def test_two_times_in_the_gap_are_one_instant() -> None:
    expected = ["2026-03-29 01:00", "2026-03-30 00:00", "2026-03-30 00:30"]
    assert following("0,30 2 * * *", "Europe/Berlin", "2026-03-28 12:00", 3) == expected


def test_a_time_that_comes_twice_is_taken_at_its_first_coming() -> None:
    """Berlin, 25 October 2026: 03:00 becomes 02:00, so 02:30 is at 00:30 UTC and again at 01:30 UTC."""
    expected = ["2026-10-24 00:30", "2026-10-25 00:30", "2026-10-26 01:30"]
    assert following("30 2 * * *", "Europe/Berlin", "2026-10-23 12:00", 3) == expected


def test_a_look_between_the_two_passes_of_a_repeated_hour_waits_for_the_next_day() -> None:
    assert following("30 2 * * *", "Europe/Berlin", "2026-10-25 01:10", 1) == ["2026-10-26 01:30"]


@pytest.mark.parametrize("after", ["2026-03-29 00:00", "2026-10-25 00:00"])
def test_every_hour_means_every_hour_that_passes(after: str) -> None:
    expected = [written(at(after) + hour * 3600 + 600) for hour in range(5)]
    assert following("10 * * * *", "Europe/Berlin", after, 5) == expected


@settings(max_examples=100, deadline=None)
@given(
    spec=st.tuples(*FIELDS).map(" ".join),
    tz=st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Asia/Beirut"]),
    change=st.sampled_from(["2026-03-29 01:00", "2026-10-25 01:00", "2026-04-04 15:00", "2026-03-08 07:00"]),
    starts=st.lists(st.integers(-2 * 86_400, 86_400), min_size=2, max_size=5),
)
def test_from_wherever_one_looks_the_instants_are_the_same(spec: str, tz: str, change: str, starts: list[int]) -> None:
    """Otherwise two schedulers, or one before and after a restart, would not agree on what an instant is."""
    end = at(change) + 2 * DAY_S
    seen = []
    for start in sorted(at(change) + start for start in starts):
        instants, instant = set(), next_instant(spec, tz, start)
        while instant is not None and instant <= end:
            instants.add(instant)
            instant = next_instant(spec, tz, instant)
        for before, others in seen:
            assert {each for each in others if each > start} == instants, (before, start)
        seen.append((start, instants))
        assert last_instant(spec, tz, start, end) == max(instants, default=None)


def offset_s(zone: ZoneInfo, instant: float) -> float:
    offset = datetime.fromtimestamp(instant, zone).utcoffset()
    assert offset is not None
    return offset.total_seconds()


@cache
def changes() -> list[tuple[str, float]]:
    """Every way in which zones set their clocks from 1997 to 2037: at which time of day, from and to which offset."""
    found: dict[tuple[float, float, float], tuple[str, float]] = {}
    start, step_s, steps = at("1997-01-01"), 10 * DAY_S, 4 * 366
    for name in sorted(available_timezones()):
        zone = ZoneInfo(name)
        offsets = [offset_s(zone, start + number * step_s) for number in range(steps)]
        for number, (before, after) in enumerate(pairwise(offsets)):
            if before != after:
                early, late = start + number * step_s, start + (number + 1) * step_s
                while late - early > MINUTE_S:
                    middle = early + (late - early) // (2 * MINUTE_S) * MINUTE_S
                    early, late = (middle, late) if offset_s(zone, middle) == before else (early, middle)
                found[(late + before) % DAY_S, before, after] = name, late
    return list(found.values())


def walked(spec: str, tz: str, after: float, until: float) -> list[float]:
    """The instants as the scheduler finds them: each from the one before it."""
    found, instant = [], next_instant(spec, tz, after)
    while instant is not None and instant <= until:
        found.append(instant)
        instant = next_instant(spec, tz, instant)
    return found


def by_the_clock_on_the_wall(spec: str, tz: str, after: float, until: float) -> list[float]:
    """The oracle: what somebody fires who looks at the clock on the wall at every minute.

    With a fixed minute and hour he fires when the clock reaches a time for the first time or passes over it; otherwise
    whenever the clock matches.
    """
    fixed = not any(field.startswith("*") for field in spec.split()[:2])
    zone, minute = ZoneInfo(tz), timedelta(minutes=1)
    seen = datetime.fromtimestamp(after - DAY_S, zone).replace(tzinfo=None)  # the latest time that the clock has shown
    found = []
    for number in range(-1440, int((until - after) // MINUTE_S) + 1):
        instant = after + number * MINUTE_S
        shown = datetime.fromtimestamp(instant, zone).replace(tzinfo=None)
        reached = [seen + minute * each for each in range(1, (shown - seen) // minute + 1)] if fixed else [shown]
        seen = max(seen, shown)
        if instant > after and any(matches(spec, each.replace(tzinfo=UTC)) for each in reached):
            found.append(instant)
    return found


IN_PARTICULAR = [
    ("America/Santiago", at("2026-09-06 04:00")),  # no midnight
    ("Asia/Beirut", at("2026-03-28 22:00")),
    ("America/Havana", at("2026-03-08 05:00")),
    ("Africa/Cairo", at("2026-04-23 22:00")),
    ("Africa/Cairo", at("2026-10-29 21:00")),  # the hour before midnight twice
    ("Australia/Lord_Howe", at("2026-10-03 15:30")),  # half an hour
    ("Australia/Lord_Howe", at("2026-04-04 15:00")),
    ("Pacific/Apia", at("2011-12-30 10:00")),  # no 30 December
]
NEAR_MIDNIGHT = [
    "*/15 1-3 * * 7",
    "0 */2 * * 7",
    "*/20 0 * * *",
    "* 1 * * *",
    "5 * * * 5-7",
    "30 0,1 * * *",
    "0 0 * * 7",
]


def test_a_quarter_of_an_hour_passes_between_two_instants_at_every_change_of_every_zone() -> None:
    wrong = {}
    for tz, change in changes():
        if any(offset_s(ZoneInfo(tz), instant) % 900 for instant in (change - 1, change)):
            continue
        begin, end = (change // 3600 + hours for hours in (-2, 2))
        instants = walked("*/15 * * * *", tz, begin * 3600, end * 3600)
        if instants != [begin * 3600 + quarter * 900 for quarter in range(1, 17)]:
            wrong[tz, written(change)] = [written(instant) for instant in instants]
    assert not wrong


@pytest.mark.parametrize("spec", ["0 0 * * *", "30 0 * * *", "30 2 * * *", "0 3 * * *", "59 23 * * *"])
def test_every_date_of_every_zone_has_one_instant_of_a_fixed_time(spec: str) -> None:
    """Also a date without this time, and one without a midnight."""
    wrong = {}
    for tz, change in changes():
        zone = ZoneInfo(tz)
        if abs(offset_s(zone, change) - offset_s(zone, change - 1)) >= DAY_S:
            continue  # there a whole date is missing
        middle = datetime.fromtimestamp(change, zone).date()
        begin, end = (datetime.combine(middle + timedelta(days=days), time(12), zone).timestamp() for days in (-2, 2))
        instants = walked(spec, tz, begin, end)
        if len(instants) != 4 or not all(18 * 3600 < two - one < 30 * 3600 for one, two in pairwise(instants)):
            wrong[tz, written(change)] = [written(instant) for instant in instants]
    assert not wrong


@pytest.mark.parametrize(("tz", "change"), IN_PARTICULAR, ids=lambda value: value if isinstance(value, str) else None)
def test_what_matches_the_clock_on_the_wall_is_fired_where_midnight_is_missing(tz: str, change: float) -> None:
    begin, end = change - 26 * 3600, change + 26 * 3600
    for spec in NEAR_MIDNIGHT:
        assert walked(spec, tz, begin, end) == by_the_clock_on_the_wall(spec, tz, begin, end), spec


@settings(max_examples=100, deadline=None)
@given(
    spec=st.tuples(*FIELDS).map(" ".join),
    place=st.deferred(lambda: st.sampled_from(changes())),
    minutes=st.integers(-360, 360),
)
def test_what_matches_the_clock_on_the_wall_is_fired_in_every_zone(
    spec: str, place: tuple[str, float], minutes: int
) -> None:
    tz, change = place
    begin = change + minutes * MINUTE_S
    end = begin + 8 * 3600
    expected = by_the_clock_on_the_wall(spec, tz, begin, end)
    assert walked(spec, tz, begin, end) == expected
    assert last_instant(spec, tz, begin, end) == (expected[-1] if expected else None)


# --- Which one is due ------------------------------------------------------------------------------------


def a_schedule(spec: str, mark: float, **given: Any) -> Schedule:
    return Schedule(key="k", spec=spec, tz="UTC", job=NewJob(id="", task="t", payload="{}"), mark=mark, **given)


def test_nothing_is_due_before_its_instant_and_the_instant_itself_is() -> None:
    schedule = a_schedule("5 12 * * *", NOW)
    assert due(schedule, at("2026-11-15 12:05") - 0.001) == ()
    assert due(schedule, at("2026-11-15 12:05")) == (at("2026-11-15 12:05"),)


def test_what_the_mark_has_reached_is_not_due_again() -> None:
    assert due(a_schedule("5 12 * * *", at("2026-11-15 12:05")), at("2026-11-15 12:06")) == ()


@pytest.mark.parametrize("back_s", [600.0, 2 * DAY_S, 400 * DAY_S])
def test_of_many_missed_ones_the_last_is_due(back_s: float) -> None:
    assert due(a_schedule("* * * * *", NOW - back_s), NOW) == (at("2026-11-15 12:00"),)


@pytest.mark.parametrize(("spec", "expected"), [("0 0 1 1 *", "2026-01-01 00:00"), ("0 0 29 2 *", "2024-02-29 00:00")])
def test_a_rare_one_is_made_up_for_however_late(spec: str, expected: str) -> None:
    assert due(a_schedule(spec, at("2020-03-01 00:00")), NOW) == (at(expected),)


def test_one_that_fell_into_a_gap_is_made_up_for() -> None:
    schedule = Schedule(
        key="k",
        spec="30 2 * * *",
        tz="Europe/Berlin",
        job=NewJob(id="", task="t", payload="{}"),
        mark=at("2026-03-28 12:00"),
    )
    assert due(schedule, at("2026-03-29 20:00")) == (at("2026-03-29 01:00"),)


def test_skip_fires_a_slightly_late_instant_and_nothing_else() -> None:
    schedule = a_schedule("5 12 * * *", NOW - DAY_S, missed="skip")
    assert due(schedule, at("2026-11-15 12:05") + LATE_S - 0.001) == (at("2026-11-15 12:05"),)
    assert due(schedule, at("2026-11-15 12:05") + LATE_S) == ()


def test_skip_fires_no_instant_up_to_the_mark() -> None:
    schedule = a_schedule("5 12 * * *", at("2026-11-15 12:05"), missed="skip")
    assert due(schedule, at("2026-11-15 12:05") + 1) == ()


# --- What is no expression -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        *("", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8"),
        *(
            "a b c d e",
            "*/0 * * * *",
            "5-1 * * * *",
            "1--100000000 * * * *",
            "* * * * MONDAY",
            "٣ * * * *",
            "L * * * *",
        ),
        *("* * * * " + "1," * 200, None, 5),
    ],
)
def test_what_is_no_expression_is_said_to_be_none(spec: Any) -> None:
    with pytest.raises(UsageError, match=r"is not a cron expression: .*five fields minute, hour"):
        checked(spec, "UTC", NOW)


def test_an_expression_may_be_long_but_not_without_end() -> None:
    longest = f"{'1,' * 95}10 * * * *"
    assert len(longest) == SPEC_MAX
    assert checked(longest, "UTC", NOW) == (longest, "UTC")
    with pytest.raises(UsageError, match="is not a cron expression"):
        checked(f"1,{longest}", "UTC", NOW)


@pytest.mark.parametrize("spec", ["0 0 30 2 *", "0 0 31 4,6 *"])
def test_a_day_that_never_comes_is_refused(spec: str) -> None:
    with pytest.raises(UsageError):
        checked(spec, "UTC", NOW)


@pytest.mark.parametrize(
    "tz", ["Berlin", "Europe", "", "../etc/passwd", "/etc/passwd", "Europe/\0", None, 1, "é" * 300]
)
def test_what_is_no_time_zone_is_said_to_be_none(tz: Any) -> None:
    with pytest.raises(UsageError, match="is not a time zone"):
        checked("* * * * *", tz, NOW)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("0123456789*/-,L#MONWAPRUS", min_size=1, max_size=8), min_size=5, max_size=5).map(" ".join))
def test_any_text_has_instants_or_is_refused(spec: str) -> None:
    try:
        written_evenly, _ = checked(spec, "Europe/Berlin", NOW)
    except UsageError:
        return
    assert next_instant(written_evenly, "Europe/Berlin", NOW) is not None


def test_an_expression_is_kept_evenly_spaced() -> None:
    assert checked("  0\t3  * * mon ", "Europe/Berlin", NOW) == ("0 3 * * mon", "Europe/Berlin")


def test_the_zones_of_this_system_are_known() -> None:
    assert ZoneInfo("Europe/Berlin").utcoffset(datetime(2026, 7, 1)) == timedelta(hours=2)


# --- Which ones are late ---------------------------------------------------------------------------------


def test_an_instant_is_late_when_nobody_fired_it_for_a_minute() -> None:
    instant = at("2026-11-15 12:05")
    schedule = a_schedule("5 12 * * *", NOW)
    assert late(schedule, instant + LATE_S) is None
    assert late(schedule, instant + LATE_S + 0.001) == Late(instant, 1)
    assert late(replace(schedule, missed="skip"), instant + DAY_S + LATE_S + 1) == Late(instant, 2)
    assert late(replace(schedule, mark=instant), instant + LATE_S + 1) is None
    assert late(replace(schedule, paused=True), instant + DAY_S) is None


def test_of_very_many_late_instants_the_first_thousand_are_counted() -> None:
    first = at("2026-11-15 12:01")
    assert late(a_schedule("* * * * *", at("2026-11-15 12:00")), first + 400 * DAY_S) == Late(first, INSTANTS_MAX)


# --- Several missed instants -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "tz"),
    [("*/5 * * * *", "UTC"), ("0 3 * * *", "Europe/Berlin"), ("@every 7s", "UTC"), ("0 0 29 2 *", "UTC")],
)
@pytest.mark.parametrize("most", [1, 3, 12, 1000])
@pytest.mark.parametrize("back_s", [0.0, 30.0, 3600.0, 3 * DAY_S, 40 * DAY_S])
def test_of_the_missed_instants_the_last_ones_are_made_up_for(spec: str, tz: str, most: int, back_s: float) -> None:
    after, expected = NOW - back_s, []
    for instant in iter(lambda: next_instant(spec, tz, expected[-1] if expected else after), None):
        if instant > NOW or len(expected) > 20_000:
            break
        expected.append(instant)
    if len(expected) <= 20_000:
        assert last_instants(spec, tz, after, NOW, most) == tuple(expected[-most:])
        assert due(replace(a_schedule(spec, after), tz=tz, missed_max=most), NOW) == tuple(expected[-most:])


def test_instants_that_are_long_past_are_left_out_whatever_their_number() -> None:
    schedule = replace(a_schedule("@every 10s", NOW - DAY_S), missed="skip", missed_max=1000)
    assert due(schedule, NOW) == tuple(NOW - NOW % 10 - 10 * back for back in (5, 4, 3, 2, 1, 0))


def test_missed_is_one_of_three_things() -> None:
    assert missed_by("last") == ("last", 1)
    assert missed_by("skip") == ("skip", 1)
    assert missed_by(All(24)) == ("last", 24)
    assert (missed_by(All(1)), missed_by(All(MISSED_MAX))) == (("last", 1), ("last", 1000))
    for wrong in (None, "all", 3, True):
        with pytest.raises(UsageError, match=r'choose "last", "skip" or All\(limit\)'):
            missed_by(wrong)
    for limit in (0, -1, 1001, 1.5, True, "3"):
        with pytest.raises(UsageError, match="a whole number from 1 to 1000"):
            All(limit)  # type: ignore[arg-type]


# --- Jitter ----------------------------------------------------------------------------------------------


def test_jitter_is_made_of_key_and_instant_and_spreads_the_jobs() -> None:
    schedules = [replace(a_schedule("0 3 * * *", NOW), key=f"tenant-{number}", jitter_s=600.0) for number in range(500)]
    delays = [run_at(each, NOW) - NOW for each in schedules]
    assert delays == [run_at(each, NOW) - NOW for each in schedules]
    assert all(0 <= delay <= 600 for delay in delays)
    assert all(sum(low <= delay < low + 100 for delay in delays) > 40 for low in range(0, 600, 100)), "evenly"
    one = schedules[0]
    assert len({run_at(one, NOW + day) - day for day in range(100)}) > 90, "another each time"
    assert run_at(replace(one, jitter_s=0.0), NOW) == NOW


def test_a_jitter_that_cannot_be_is_refused() -> None:
    assert (checked_jitter(0), checked_jitter(1.5), checked_jitter(86_400)) == (0.0, 1.5, 86_400.0)
    for wrong in (-1, 86_401, float("nan"), True, "5", None):
        with pytest.raises(UsageError, match="jitter_s="):
            checked_jitter(wrong)


# --- In words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "tz", "words"),
    [
        ("*/5 * * * *", "UTC", "Every fifth minute of every hour, UTC"),
        ("0 3 * * *", "Europe/Berlin", "At 03:00 every day, Europe/Berlin"),
        ("0 9 * * MON-FRI", "UTC", "At 09:00 on Monday through Friday, UTC"),
        ("@every 30s", "UTC", "Every 30 s"),
        ("@every 3600s", "UTC", "Every 1 h"),
        ("@every 5400s", "UTC", "Every 1 h 30 min"),
        ("no cron", "UTC", "no cron, UTC"),
    ],
)
def test_an_expression_is_said_in_words(spec: str, tz: str, words: str) -> None:
    assert in_words(spec, tz) == words


def test_the_next_instants_are_shown_as_clocks_in_the_zone_show_them() -> None:
    coming = upcoming("30 2 * * *", "Europe/Berlin", at("2026-03-28 00:00"), 3)
    assert [local_time(instant, "Europe/Berlin") for instant in coming] == [
        "Sat 2026-03-28 02:30 CET",
        "Sun 2026-03-29 03:00 CEST",
        "Mon 2026-03-30 02:30 CEST",
    ]
    assert local_time(NOW, "UTC") == "Sun 2026-11-15 12:00:30 UTC"
