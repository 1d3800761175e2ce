"""Policies: what may be declared, what is refused and how it is said, and how delays grow."""

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.policy import Policy, Retry
from holdfast.errors import PolicyError, UsageError

NOT_WHOLE: list[Any] = [0, -1, 2**31, 10**400, 1.0, 1.5, math.inf, math.nan, "3", None, True, [3], Fraction(3)]
NOT_SECONDS: list[Any] = [-0.001, -1, math.inf, -math.inf, math.nan, 10**9 + 1, 10**400, "5", None, True, [1]]
NOT_POSITIVE: list[Any] = [0, 0.0, -0.0]


def shortly(value: Any) -> str:
    return repr(value)[:20]


def refused(kind: type, name: str, value: Any) -> str:
    with pytest.raises(PolicyError) as caught:
        kind(**{name: value})
    return str(caught.value)


@pytest.mark.parametrize("value", NOT_WHOLE, ids=shortly)
@pytest.mark.parametrize(("kind", "name"), [(Retry, "attempts_max"), (Policy, "crashes_max")])
def test_a_budget_is_a_whole_number_of_at_least_one(kind: type, name: str, value: Any) -> None:
    message = refused(kind, name, value)
    assert message.startswith(f"{name}={value!r} ")
    assert "whole number" in message
    assert "\n" not in message


@pytest.mark.parametrize("value", NOT_SECONDS, ids=shortly)
@pytest.mark.parametrize(("kind", "name"), [(Retry, "base_s"), (Retry, "cap_s"), (Policy, "lease_s")])
def test_a_duration_is_a_number_of_seconds(kind: type, name: str, value: Any) -> None:
    message = refused(kind, name, value)
    assert message.startswith(f"{name}={value!r} ")
    assert "seconds" in message


@pytest.mark.parametrize("value", [v for v in NOT_SECONDS if v is not None] + NOT_POSITIVE, ids=shortly)
@pytest.mark.parametrize("name", ["timeout_s", "stall_s", "beat_s"])
def test_a_limit_that_may_be_left_out_is_a_number_of_seconds_above_zero(name: str, value: Any) -> None:
    assert refused(Policy, name, value).startswith(f"{name}={value!r} ")


@pytest.mark.parametrize("value", [*NOT_POSITIVE, 0.05, 0.0999], ids=shortly)
def test_a_lease_is_not_shorter_than_a_tenth_of_a_second(value: Any) -> None:
    assert "at least 0.1" in refused(Policy, "lease_s", value)


@pytest.mark.parametrize("value", ["", "RETRY", "ignore", None, 3, True, ["retry"]], ids=shortly)
def test_an_unknown_on_crash_names_the_known_ones(value: Any) -> None:
    message = refused(Policy, "on_crash", value)
    assert message.startswith(f"on_crash={value!r} ")
    assert message.endswith("choose one of 'retry', 'hold', 'fail', and for workflows also 'rollback'")
    for word in ("retry", "hold", "fail", "rollback"):
        assert repr(word) in message


@pytest.mark.parametrize("value", [5, None, "Retry()", {"attempts_max": 5}], ids=shortly)
def test_what_is_not_a_retry_is_refused_with_an_example(value: Any) -> None:
    assert "Retry(attempts_max=" in refused(Policy, "retry", value)


def test_a_cap_below_the_base_is_refused() -> None:
    with pytest.raises(PolicyError, match="cap_s=5 is below base_s=10"):
        Retry(base_s=10, cap_s=5)
    assert Retry(base_s=10, cap_s=10).cap_s == 10


@pytest.mark.parametrize("beat_s", [10.001, 15.0, 30.0, 60.0])
def test_a_beat_longer_than_a_third_of_the_lease_is_refused_and_the_longest_is_named(beat_s: float) -> None:
    with pytest.raises(PolicyError, match="at most 10"):
        Policy(lease_s=30, beat_s=beat_s)


def test_a_policy_error_is_the_callers_mistake() -> None:
    assert issubclass(PolicyError, UsageError)


def test_defaults_are_those_of_the_design() -> None:
    policy = Policy()
    assert (policy.retry.attempts_max, policy.retry.base_s, policy.retry.cap_s) == (10, 5, 3600)
    assert policy.retry.jitter == "equal"
    assert (policy.crashes_max, policy.on_crash, policy.lease_s) == (3, "retry", 30)
    assert (policy.beat_s, policy.timeout_s, policy.stall_s) == (None, None, None)
    assert policy.beat_every_s == 10


@pytest.mark.parametrize("on_crash", ["retry", "hold", "fail", "rollback"])
def test_what_is_in_range_is_taken(on_crash: Any) -> None:
    Policy(
        retry=Retry(attempts_max=2**31 - 1, base_s=0, cap_s=10**9, jitter=False),
        crashes_max=1,
        on_crash=on_crash,
        lease_s=0.1,
        beat_s=0.02,
        timeout_s=0.001,
        stall_s=10**9,
    )


def test_whole_numbers_are_good_durations() -> None:
    assert Policy(lease_s=30, beat_s=10, timeout_s=600).beat_every_s == 10


def test_policies_cannot_be_changed_once_they_were_checked() -> None:
    with pytest.raises(AttributeError):
        Policy().lease_s = 0.0  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Retry().attempts_max = 0  # type: ignore[misc]


# ------------------------------------------------------------------------------------------------ delays


def test_without_jitter_the_delay_doubles_up_to_the_cap() -> None:
    retry = Retry(base_s=1, cap_s=60, jitter=False)
    assert [retry.delay_s(nth, 0.0) for nth in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


@pytest.mark.parametrize(("chance", "equal", "full"), [(0.0, 4.0, 0.0), (0.25, 5.0, 2.0), (0.5, 6.0, 4.0)])
def test_half_of_a_delay_is_random_or_all_of_it_as_the_jitter_says(chance: float, equal: float, full: float) -> None:
    assert Retry(base_s=1, cap_s=60).delay_s(4, chance) == equal
    assert Retry(base_s=1, cap_s=60, jitter="full").delay_s(4, chance) == full


@pytest.mark.parametrize(("said", "jitter"), [(True, "full"), (False, "none"), ("equal", "equal")])
def test_a_jitter_of_true_is_full_and_of_false_is_none(said: Any, jitter: str) -> None:
    assert Retry(jitter=said).jitter == jitter
    assert Retry(jitter=said) == Retry(jitter=jitter)  # type: ignore[arg-type]


@pytest.mark.parametrize("jitter", ["", "half", "Equal", 1, 0.5, None])
def test_an_unknown_jitter_is_refused_with_the_known_ones(jitter: Any) -> None:
    with pytest.raises(PolicyError, match="choose one of 'equal', 'full', 'none'"):
        Retry(jitter=jitter)


def test_the_default_spans_twenty_to_forty_five_minutes() -> None:
    least, most = Retry().span_s
    assert 20 * 60 <= least < most <= 45 * 60


@pytest.mark.parametrize(
    ("retry", "span"),
    [
        (Retry(attempts_max=1), (0, 0)),
        (Retry(attempts_max=4, base_s=1, cap_s=3), (3, 6)),
        (Retry(attempts_max=4, base_s=1, cap_s=3, jitter="full"), (0, 6)),
        (Retry(attempts_max=4, base_s=1, cap_s=3, jitter="none"), (6, 6)),
        (Retry(attempts_max=1_000_001, base_s=0, cap_s=0), (0, 0)),
        (Retry(attempts_max=101, base_s=10, cap_s=10), (500, 1000)),
    ],
)
def test_a_span_adds_up_the_pauses_between_the_attempts(retry: Retry, span: tuple[float, float]) -> None:
    assert retry.span_s == span


@given(attempts=st.integers(1, 200), jitter=st.sampled_from(["equal", "full", "none"]))
def test_a_span_is_what_the_luckiest_and_the_unluckiest_job_wait(attempts: int, jitter: Any) -> None:
    retry = Retry(attempts_max=attempts, base_s=0.5, cap_s=100, jitter=jitter)
    least, most = (sum(retry.delay_s(nth, chance) for nth in range(1, attempts)) for chance in (0.0, 1.0))
    assert retry.span_s == pytest.approx((least, most))


@pytest.mark.parametrize("nth", [-(2**31), -1, 0, 1])
def test_before_the_second_failure_the_delay_is_the_base(nth: int) -> None:
    assert Retry(base_s=3, cap_s=60, jitter=False).delay_s(nth, 0.0) == 3


durations = st.floats(min_value=0, max_value=1e9)
chances = st.floats(min_value=0, max_value=1, exclude_max=True)
counts = st.integers(min_value=-(2**31), max_value=2**31)


@given(base=durations, cap=durations, jitter=st.sampled_from(["equal", "full", "none"]), nth=counts, chance=chances)
def test_a_delay_is_finite_never_negative_and_within_its_cap(
    base: float, cap: float, jitter: Any, nth: int, chance: float
) -> None:
    base, cap = sorted([base, cap])
    delay = Retry(base_s=base, cap_s=cap, jitter=jitter).delay_s(nth, chance)
    assert math.isfinite(delay)
    assert 0 <= delay <= cap


@given(base=durations, cap=durations, nth=st.integers(1, 200), chance=chances)
def test_a_later_failure_never_waits_for_less(base: float, cap: float, nth: int, chance: float) -> None:
    base, cap = sorted([base, cap])
    retry = Retry(base_s=base, cap_s=cap)
    assert retry.delay_s(nth, chance) <= retry.delay_s(nth + 1, chance)


@given(base=st.floats(min_value=1e-3, max_value=1e9), nth=st.integers(65, 2**31))
def test_after_many_failures_every_cap_is_reached(base: float, nth: int) -> None:
    assert Retry(base_s=base, cap_s=1e9, jitter=False).delay_s(nth, 0.0) == 1e9


@given(lease_s=st.floats(min_value=0.1, max_value=1e9))
def test_left_out_the_beat_is_a_third_of_the_lease_and_may_be_written_out(lease_s: float) -> None:
    policy = Policy(lease_s=lease_s)
    assert policy.beat_every_s == lease_s / 3
    assert Policy(lease_s=lease_s, beat_s=policy.beat_every_s).beat_every_s == policy.beat_every_s
