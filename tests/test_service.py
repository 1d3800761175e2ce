"""A service takes turns until it is stopped, whatever goes wrong meanwhile."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from holdfast.clock import Clock
from holdfast.errors import DutyLost, FileReplaced, StoreUnavailable
from holdfast.runtime.service import Service
from holdfast.testing import FakeClock

LOG = logging.getLogger("holdfast.test")


class Turns:
    """Raises or returns what it was given, one at a time; then stops its service."""

    def __init__(self, clock: Clock, *what: Any, **given: Any) -> None:
        self.what = list(what)
        self.told: list[str] = []
        self.pauses: list[float] = []
        self._clock = clock
        self.service = Service("holdfast-test", self.turn, self, LOG, 10.0, **given)  # type: ignore[arg-type]

    def turn(self) -> float | None:
        what = self.what.pop(0)
        if not self.what:
            self.service.stopping.set()
        if isinstance(what, Exception):
            raise what
        result: float | None = what
        return result

    def lease(self) -> float:
        return self._clock.lease()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.pauses.append(timeout_s)
        return event.is_set()


def test_it_pauses_about_as_long_as_it_is_told_or_less_if_something_is_due_sooner(clock: FakeClock) -> None:
    turns = Turns(clock, *[None] * 50, 0.5, 100.0)
    turns.service.run()
    assert all(9 <= pause <= 11 for pause in [*turns.pauses[:50], turns.pauses[-1]])
    assert len(set(turns.pauses[:50])) > 25
    assert turns.pauses[50] == 0.5


def test_a_store_that_fails_is_tried_again_after_a_growing_pause(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    turns = Turns(clock, *[StoreUnavailable("away")] * 3, None, meanwhile="nothing happens")
    turns.service.run()
    assert turns.pauses[:3] == [0.05, 0.1, 0.2]
    assert [each.getMessage() for each in caplog.records] == [
        "the store fails (away); trying again; nothing happens",
        "the store is back after 0.0 s",
    ]


def test_an_error_of_its_own_is_logged_and_does_not_end_it(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    failed: list[Exception] = []
    turns = Turns(clock, KeyError("x"), None, failed=failed.append, jitter=0.0, meanwhile="nothing happens")
    turns.service.run()
    assert turns.pauses == [10.0, 10.0]
    assert [each.getMessage() for each in caplog.records] == ["holdfast-test failed; it tries again in 10.0 s"]
    assert [type(error) for error in failed] == [KeyError]


def test_a_duty_that_another_program_took_is_not_an_outage(clock: FakeClock) -> None:
    lost: list[bool] = []
    turns = Turns(clock, DutyLost("taken"), None, meanwhile="nothing happens", lost=lambda: lost.append(True), jitter=0)
    turns.service.run()
    assert (lost, turns.pauses) == ([True], [10.0, 10.0])


def test_an_error_may_end_it(clock: FakeClock) -> None:
    def fail(error: Exception) -> None:
        raise error

    turns = Turns(clock, FileReplaced("gone"), None, meanwhile="nothing happens", failed=fail)
    with pytest.raises(FileReplaced):
        turns.service.run()


@pytest.mark.parametrize("died", [None, lambda name, error: None])
def test_a_stop_ends_the_thread_after_its_turn_and_lets_it_leave(clock: FakeClock, died: Any) -> None:
    left: list[str] = []
    done = threading.Event()
    service = Service(
        "holdfast-test", done.set, clock, LOG, 1.0, leave=lambda: left.append(threading.current_thread().name)
    )
    service.start(died)
    assert done.wait(60)
    service.stop(60)
    assert left == ["holdfast-test"]


def test_a_service_that_never_started_can_be_stopped(clock: FakeClock) -> None:
    Service("holdfast-test", lambda: None, clock, LOG, 1.0).stop(60)
