"""Trust in a lease: renew, then stop, then be gone, always before a successor may run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lease import trust
from holdfast.core.policy import Policy

leases = st.floats(min_value=0.1, max_value=1e6)
instants = st.floats(min_value=0, max_value=1e7)


def test_the_instants_of_an_ordinary_lease() -> None:
    window = trust(100.0, 30.0)
    assert (window.renew_at, window.stop_at) == (110.0, 125.0)
    assert window.end_at == pytest.approx(129.5)


@pytest.mark.parametrize(
    ("now", "renew", "stop", "over"),
    [
        (100.0, False, False, False),
        (109.999, False, False, False),
        (110.0, True, False, False),
        (124.999, True, False, False),
        (125.0, True, True, False),
        (129.4, True, True, False),
        (129.6, True, True, True),
        (130.0, True, True, True),
        (1e9, True, True, True),
    ],
)
def test_what_a_worker_must_do_at_each_instant(now: float, renew: bool, stop: bool, over: bool) -> None:
    window = trust(100.0, 30.0)
    assert (window.must_renew(now), window.must_stop(now), window.is_over(now)) == (renew, stop, over)


def test_trust_counts_from_before_the_call_was_sent_so_a_slow_answer_does_not_stretch_it() -> None:
    sent, answered, lease_s = 100.0, 128.0, 30.0
    window = trust(sent, lease_s)
    assert window.must_stop(answered)
    assert window.end_at < sent + lease_s


def test_a_beat_of_its_own_moves_only_the_renewal() -> None:
    usual, often = trust(0.0, 30.0), trust(0.0, 30.0, 1.0)
    assert often.renew_at == 1
    assert (often.stop_at, often.end_at) == (usual.stop_at, usual.end_at)


def test_each_instant_of_a_window_counts_from_the_instant_itself() -> None:
    window = trust(0.0, 60.0)
    assert (window.must_renew(20.0), window.must_stop(50.0), window.is_over(59.0)) == (True, True, True)
    assert (window.must_renew(19.9), window.must_stop(49.9), window.is_over(58.9)) == (False, False, False)


def test_a_window_does_not_change() -> None:
    with pytest.raises(AttributeError):
        trust(0.0, 30.0).end_at = 99.0  # type: ignore[misc]


@given(sent=instants, lease_s=leases)
def test_renew_comes_before_stop_and_stop_before_the_end_and_the_end_before_a_successor(
    sent: float, lease_s: float
) -> None:
    window = trust(sent, lease_s)
    assert sent < window.renew_at < window.stop_at < window.end_at < sent + lease_s


@given(sent=instants, lease_s=leases)
def test_one_beat_may_be_lost_before_the_handler_is_told_to_stop(sent: float, lease_s: float) -> None:
    window = trust(sent, lease_s)
    second_beat = sent + 2 * Policy(lease_s=lease_s).beat_every_s
    assert second_beat < window.stop_at


@given(sent=instants, lease_s=leases, later=instants)
def test_a_later_beat_never_shortens_trust(sent: float, lease_s: float, later: float) -> None:
    first, second = trust(sent, lease_s), trust(sent + later, lease_s)
    assert second.stop_at >= first.stop_at
    assert second.end_at >= first.end_at
