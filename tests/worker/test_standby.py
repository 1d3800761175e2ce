"""A worker that leaves the search for the dead to another process: it knows of gaps, and looks when a lease ended."""

from typing import Any

import pytest

from holdfast.core.records import Standby
from holdfast.core.recovery import SECOND_LOOK_S
from holdfast.stores.memory import MemoryStore
from holdfast.testing import FakeClock
from holdfast.upkeep.reaper import Reaper
from tests.factory import enrol, start

EVERY_S = 1.25


class World:
    """A reaper that stands by; each second it learns what the store says."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(clock=self.clock)
        self.reaper = Reaper(self.store, self.clock)
        self.every_s = every_s
        self.standby = self.asks()
        self.passes = 0

    def asks(self) -> Standby:
        now, there = self.clock.lease(), self.store.now().lease
        return Standby(now, now, there, self.store.deadline(), self.every_s)

    def passes_time(self, seconds: float, *, answers: bool = True) -> int:
        """Let time pass as it does for a worker; return how many jobs it has recovered."""
        recovered, end = 0, self.clock.lease() + seconds
        while self.clock.lease() < end - 1e-9:
            self.clock.advance(min(SECOND_LOOK_S, end - self.clock.lease()))
            if not answers:
                continue
            if self.clock.lease() - self.standby.answered_at >= self.every_s - 0.25:
                self.standby = self.asks()
            if self.reaper.is_called(self.standby):
                self.passes += 1
                recovered += self.reaper.once().recovered
        return recovered

    def start(self, **policy: Any) -> Any:
        return start(self.store, enrol(self.store), **policy)


def test_it_makes_no_pass_while_no_lease_has_run_out() -> None:
    world = World()
    world.start(lease_s=30.0)
    assert world.passes_time(29.0) == 0
    assert world.passes == 0


def test_it_recovers_a_job_within_a_second_of_the_end_of_its_lease() -> None:
    """The process that looks may be frozen."""
    world = World()
    world.start(lease_s=30.0)
    world.passes_time(30.0)
    assert world.passes_time(1.0) == 1


def test_it_is_called_once_for_each_answer_while_a_row_stays_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.start(lease_s=30.0)
    world.passes_time(29.0)
    monkeypatch.setattr(world.reaper, "once", lambda: type("Nothing", (), {"recovered": 0}))
    world.passes_time(11.0)
    assert 9 <= world.passes <= 11


@pytest.mark.parametrize("every_s", [1.25, 6.0])
def test_its_own_rests_are_no_gap(every_s: float) -> None:
    world = World(every_s)
    world.start(lease_s=40.0)
    world.passes_time(40.0)
    assert world.passes_time(every_s + 1.0) == 1
    assert world.store.journal(kinds=["zombie"])[-1].detail.get("excused") in (None, False)


def test_a_gap_while_it_stood_by_gives_workers_a_beat_to_renew() -> None:
    world = World()
    world.start(lease_s=30.0)  # beats every 10 s
    world.passes_time(12.0)
    world.passes_time(20.0, answers=False)
    world.standby = world.asks()
    assert world.passes_time(9.5) == 0
    assert world.passes_time(2.0) == 1
