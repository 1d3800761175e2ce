"""The clock that tests pass through the same code as the machine's own."""

import threading

import pytest

from holdfast.clock import Clock, SystemClock
from holdfast.testing import FakeClock, ShiftedClock


def test_it_stands_still_until_it_is_moved() -> None:
    clock = FakeClock(wall=100.0, lease=5.0, boot_id="b")
    assert (clock.wall(), clock.lease(), clock.boot_id) == (100, 5, "b")
    clock.advance(2.5)
    assert (clock.wall(), clock.lease(), clock.boot_id) == (102.5, 7.5, "b")


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(ValueError, match="backwards"):
        FakeClock().advance(-1)


def test_a_jump_of_the_wall_clock_is_not_noticed_by_leases() -> None:
    clock = FakeClock(wall=100.0, lease=5.0)
    clock.set_wall(10.0)
    assert (clock.wall(), clock.lease()) == (10, 5)


def test_after_a_reboot_the_lease_clock_begins_again_and_the_wall_clock_goes_on() -> None:
    clock = FakeClock(wall=100.0, lease=5.0)
    clock.reboot("another")
    assert (clock.wall(), clock.lease(), clock.boot_id) == (100, 0, "another")


def test_waiting_costs_virtual_time_only() -> None:
    clock, event = FakeClock(wall=100.0, lease=5.0), threading.Event()
    assert clock.wait(event, 3600) is False
    assert (clock.wall(), clock.lease()) == (3700, 3605)
    assert clock.wait(event, -1) is False
    assert clock.lease() == 3605


def test_an_event_that_is_set_costs_no_time() -> None:
    clock, event = FakeClock(lease=5.0), threading.Event()
    event.set()
    assert clock.wait(event, 3600) is True
    assert clock.lease() == 5


def test_both_clocks_are_clocks() -> None:
    clocks: list[Clock] = [FakeClock(), SystemClock()]
    for clock in clocks:
        assert clock.boot_id
        assert clock.wall() > 1_600_000_000
        assert clock.lease() <= clock.lease()
        assert clock.wait(threading.Event(), -5) is False


def test_a_shifted_clock_runs_and_only_its_wall_clock_is_set_ahead() -> None:
    clock, real = ShiftedClock(), SystemClock()
    clock.advance(3600)
    clock.advance(60)
    assert clock.wall() - real.wall() == pytest.approx(3660, abs=30)
    before = real.lease()
    assert before <= clock.lease() <= real.lease()
    assert clock.boot_id == real.boot_id
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
