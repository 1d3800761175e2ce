"""Lengths of time in words."""

import time
from datetime import UTC, datetime

import pytest

from holdfast.core.durations import at_most, duration, instant, iso

MIN_S, HOUR_S, DAY_S = 60, 3600, 86_400


@pytest.mark.parametrize(
    ("seconds", "words", "bound"),
    [
        (0, "0 ms", "at most 0 ms"),
        (0.0121, "12 ms", "at most 13 ms"),
        (1.11, "1.1 s", "at most 1.2 s"),
        (59.5, "59 s", "at most 1 min"),
        (90, "1 min 30 s", "at most 1 min 30 s"),
        (2 * HOUR_S - 30, "1 h 59 min", "at most 2 h"),
        (23 * HOUR_S + 59 * MIN_S, "23 h", "at most 1 d"),
        (22 * HOUR_S, "22 h", "at most 22 h"),
        (12 * DAY_S + 1, "12 d", "at most 13 d"),
    ],
)
def test_a_bound_is_never_rounded_down(seconds: float, words: str, bound: str) -> None:
    assert (duration(seconds), at_most(seconds)) == (words, bound)


def test_an_instant_is_a_length_of_time_a_time_of_day_or_iso(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    now = datetime(2026, 11, 19, 14, 30, tzinfo=UTC).timestamp()

    def at(text: str) -> str | None:
        return iso(instant(text, now))

    assert at("2h") == "2026-11-19T12:30:00.000Z"
    assert at("14:00") == "2026-11-19T14:00:00.000Z"
    assert at("14:30") == "2026-11-19T14:30:00.000Z"
    assert at("14:30:01") == "2026-11-18T14:30:01.000Z"
    assert at("23:59") == "2026-11-18T23:59:00.000Z"
    assert at("2026-11-19T14:00:00+02:00") == "2026-11-19T12:00:00.000Z"
    assert at("2026-11-19") == "2026-11-19T00:00:00.000Z"
    assert [at(text) for text in ("24:00", "12:60", "noon", "", "2026-11-32")] == [None] * 5
