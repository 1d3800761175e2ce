"""How long ended jobs are kept: what may be declared, and what must not."""

from datetime import timedelta
from typing import Any

import pytest

from holdfast.core.machine import ENDED, LIVE, State
from holdfast.core.retention import Retention
from holdfast.errors import UsageError

DAY_S = 86_400.0


def test_without_a_word_everything_is_kept_for_ever() -> None:
    for nothing in (None, {}, {"done": None}):
        assert not Retention.declare(nothing)
        assert Retention.declare(nothing).rules == ()


def test_a_length_may_be_text_or_seconds_or_a_timedelta() -> None:
    kept = Retention.declare({"done": "7d", "cancelled": 7 * DAY_S, "rolled_back": timedelta(days=7), "dead": "1w 2d"})
    assert kept.rules == (((State.DONE, State.CANCELLED, State.ROLLED_BACK), 7 * DAY_S), ((State.DEAD,), 9 * DAY_S))
    kept = Retention.declare({"done": "1h", "dead": "90d", "cancelled": "36h"})
    assert str(kept) == "done for 1 h, cancelled for 1 d 12 h, dead for 90 d"


@pytest.mark.parametrize("state", sorted(ENDED))
def test_every_state_in_which_jobs_end_may_be_named(state: State) -> None:
    assert Retention.declare({state.value: "1d"}).rules == (((state,), DAY_S),)


@pytest.mark.parametrize("name", [*sorted(LIVE), "finished", "", "DONE"])
def test_no_live_state_and_no_other_word_may_be_named(name: str) -> None:
    with pytest.raises(UsageError, match="is not a state in which jobs end"):
        Retention.declare({name: "1d"})


@pytest.mark.parametrize("age", ["soon", "", "-1d", True, [], object(), b"1d"])
def test_what_is_no_length_of_time_is_refused(age: Any) -> None:
    with pytest.raises(UsageError, match="is not a length of time"):
        Retention.declare({"done": age})


@pytest.mark.parametrize("age", [0, 59.9, "59s", -1.0, float("nan"), float("inf"), 1.1e9, timedelta(seconds=-90)])
def test_what_is_too_short_or_too_long_is_refused(age: Any) -> None:
    with pytest.raises(UsageError, match="is not between 1 min and 11574 d"):
        Retention.declare({"done": age})


def test_a_minute_is_long_enough() -> None:
    assert Retention.declare({"done": 60}).rules == (((State.DONE,), 60.0),)
