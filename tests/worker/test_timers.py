"""What a worker does on behalf of the fleet must not keep it from its own jobs (P15)."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import App
from holdfast.errors import StoreTimeout
from holdfast.stores.memory.store import MemoryStore
from holdfast.testing import FakeClock
from holdfast.workflow.timers import FAILED_MAX_S, FAILED_S, Timers


class SlowLook(MemoryStore):
    """A store in which the look for what is due takes too long."""

    def __init__(self, clock: FakeClock, verb: str) -> None:
        super().__init__(clock=clock)
        self.looks = 0
        self.is_slow = True
        setattr(self, verb, self._look(getattr(self, verb)))

    def _look(self, really: Callable[[], Any]) -> Callable[[], Any]:
        def look() -> Any:
            self.looks += 1
            if self.is_slow:
                raise StoreTimeout("the server stopped a statement at its time limit")
            return really()

        return look


@pytest.mark.parametrize("verb", ["wake_sleepers", "wake_due"])
def test_a_look_that_takes_too_long_is_made_more_and_more_rarely(clock: FakeClock, verb: str) -> None:
    store = SlowLook(clock, verb)
    flow = App("memory://").workflow(lambda flow: None, name="tests.flow")
    timers = Timers(store, clock, {"tests.flow": flow}, resident=True)
    pauses = []
    for _ in range(6):
        timers.wake_due()
        looks, since = store.looks, clock.lease()
        while store.looks == looks:
            clock.advance(0.5)
            timers.wake_due()
        pauses.append(clock.lease() - since)
    assert pauses == [5.0, 10.0, 20.0, 40.0, FAILED_MAX_S, FAILED_MAX_S]
    assert not timers.is_woken
    store.is_slow = False
    clock.advance(FAILED_MAX_S)
    timers.wake_due()
    clock.advance(1.0)
    timers.wake_due()
    assert store.looks == 9
    store.is_slow = True
    clock.advance(1.0)
    timers.wake_due()
    assert timers.in_s() == FAILED_S


def test_a_worker_claims_though_its_look_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow() -> None:
        raise StoreTimeout("the server stopped a statement at its time limit")

    with App("memory://") as app:
        ran: list[int] = []
        count = app.task(ran.append, name="tests.count")
        app.workflow(lambda flow: None, name="tests.flow")
        monkeypatch.setattr(app.store, "wake_due", slow)
        count.enqueue(1)
        app.tick()
    assert ran == [1]
