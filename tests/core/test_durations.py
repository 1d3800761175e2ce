"""Lengths of time in words."""

import pytest

from holdfast.core.durations import at_most, duration

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
