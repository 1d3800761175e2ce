"""The pruner and its duty: what is due goes, in batches with rests between, by one of several, under its term."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import App, UsageError
from holdfast.core.machine import State
from holdfast.core.records import Filter
from holdfast.core.retention import Age, Retention
from holdfast.runtime.hooks import Hooks
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from holdfast.testing.faults import BEFORE, FaultyStore, scripted
from holdfast.upkeep import pruner
from holdfast.upkeep.pruner import REST, REST_MIN_S, Pruner
from tests.factory import job_in
from tests.test_reaper_service import Heard, Played, until

INTERVAL_S = 10.0
TTL_S = 30.0


def a_pruner(
    store: Any, clock: Any, name: str = "a", heard: Heard | None = None, keep: dict[str, Age] | None = None
) -> Pruner:
    hooks = heard.hooks if heard is not None else Hooks()
    retention = Retention.declare({"done": 60} if keep is None else keep)
    return Pruner(store, clock, retention, hooks=hooks, name=name, interval_s=INTERVAL_S)


def old_jobs(store: Store, clock: FakeClock, number: int, state: State = State.DONE) -> None:
    for _ in range(number):
        job_in(store, state)
    clock.advance(61)


def left(store: Store) -> int:
    return len(store.find(Filter(limit=10_000)))


class Meddling:
    """A store of which something happens before each purge reaches it."""

    def __init__(self, store: Store, happens: Callable[[], object]) -> None:
        self._store = store
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def purge(self, *arguments: Any, **named: Any) -> int:
        self._happens()
        return self._store.purge(*arguments, **named)


# -------------------------------------------------------------------------------------------- what goes


def test_each_state_goes_after_its_own_time_and_others_never(store: Store, clock: FakeClock) -> None:
    jobs = {state: job_in(store, state).id for state in State}
    keep: dict[str, Age] = {"done": "1d", "rolled_back": "1d", "dead": "9d"}
    one = a_pruner(store, clock, keep=keep)
    assert one.once() == 0
    clock.advance(86_401)
    assert one.once() == 2
    clock.advance(8 * 86_400)
    assert one.once() == 1
    clock.advance(800 * 86_400)
    assert one.once() == 0
    gone = {State.DONE, State.ROLLED_BACK, State.DEAD}
    assert {state for state, job_id in jobs.items() if store.get(job_id) is None} == gone


def test_a_pruner_without_retention_deletes_nothing_and_takes_no_duty(store: Store, clock: FakeClock) -> None:
    old_jobs(store, clock, 2)
    clock.advance(10**9)
    heard = Heard()
    with a_pruner(store, clock, heard=heard, keep={}) as one:
        assert one.once() == 0
    assert left(store) == 2
    assert not App("memory://").keep


def test_an_app_says_how_long_and_is_checked_at_once() -> None:
    assert App("memory://", keep={"done": "7d"}).keep == Retention.declare({"done": 7 * 86_400})
    with pytest.raises(UsageError, match="keep: 'running'"):
        App("memory://", keep={"running": "7d"})


def test_it_goes_in_batches_and_rests_after_each(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pruner, "BATCH", 2)
    caplog.set_level(logging.INFO, "holdfast.pruner")
    old_jobs(store, clock, 5)
    sizes, rests = [], []

    def at(_: int) -> None:
        rests.append(clock.lease())
        sizes.append(left(store))

    began = clock.lease()
    assert a_pruner(store, Played(clock, at)).once() == 5
    assert sizes == [3, 1]
    assert rests == [began, began + REST_MIN_S]
    assert [record.getMessage() for record in caplog.records] == ["deleted 5 jobs that ended long ago"]


def test_it_rests_longer_when_the_store_is_slow(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruner, "BATCH", 1)
    old_jobs(store, clock, 2)
    began = clock.lease()
    assert a_pruner(Meddling(store, lambda: clock.advance(1.0)), clock).once() == 2
    assert clock.lease() == began + 3 + 2 * REST  # the third finds none


def test_a_stop_ends_it_after_the_batch_that_is_under_way(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruner, "BATCH", 2)
    old_jobs(store, clock, 5)
    deleting, stop = threading.Event(), threading.Event()

    def pausing() -> None:
        deleting.set()
        assert stop.wait(60)

    with a_pruner(Meddling(store, pausing), clock) as one:
        assert deleting.wait(60)
        one._service.stopping.set()  # the block's end would wait for the batch
        stop.set()
    assert left(store) == 3


# --------------------------------------------------------------------------------------------- the duty


def test_one_of_several_prunes_and_another_takes_over_when_it_falls_silent(store: Store, clock: FakeClock) -> None:
    heard = Heard()
    first, second = a_pruner(store, clock, "a", heard), a_pruner(store, clock, "b", heard)
    old_jobs(store, clock, 1)
    assert first.once() == 1
    old_jobs(store, clock, 1)
    assert first.once() == 1
    clock.advance(TTL_S - 1)
    old = left(store)
    assert (second.once(), left(store)) == (0, old)
    clock.advance(1)
    assert second.once() == 0
    assert [(kind, term) for kind, _, term in heard.events][-1] == ("duty_acquired", 2)


def test_a_paused_holder_that_wakes_is_refused_and_deletes_nothing(store: Store, clock: FakeClock) -> None:
    old_jobs(store, clock, 3)
    heard = Heard()

    def paused() -> None:
        clock.advance(TTL_S)
        assert store.acquire("pruner", "another", TTL_S) is not None

    assert a_pruner(Meddling(store, paused), clock, "a", heard).once() == 0
    assert left(store) == 3
    assert [(kind, term) for kind, _, term in heard.events] == [("duty_acquired", 1), ("duty_lost", 1)]


def test_a_long_pass_keeps_its_term(store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruner, "BATCH", 1)
    old_jobs(store, clock, 12)
    heard = Heard()
    slow = Meddling(store, lambda: clock.advance(INTERVAL_S / 2))
    assert a_pruner(slow, clock, "a", heard).once() == 12
    assert [(kind, term) for kind, _, term in heard.events] == [("duty_acquired", 1)]
    assert store.acquire("pruner", "another", TTL_S) is None


def test_a_pruner_that_stops_gives_the_duty_to_the_next_one_at_once(store: Store, clock: FakeClock) -> None:
    old_jobs(store, clock, 1)
    heard = Heard()
    with a_pruner(store, clock, "a", heard):
        until(lambda: left(store) == 0)
    assert [kind for kind, _, _ in heard.events] == ["duty_acquired", "duty_lost"]
    duty = store.acquire("pruner", "another", TTL_S)
    assert duty is not None
    assert duty.term == 2


def test_a_store_that_fails_is_tried_again(store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    old_jobs(store, clock, 1)
    failing = FaultyStore(store, scripted([BEFORE] * 3, ["purge"]))
    with a_pruner(failing, clock):
        until(lambda: left(store) == 0)
    lines = [record.getMessage() for record in caplog.records if record.name == "holdfast.pruner"]
    assert sum("the store fails" in line for line in lines) == 1
    assert sum("the store is back" in line for line in lines) == 1


def test_whatever_else_goes_wrong_it_goes_on(store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    old_jobs(store, clock, 1)
    stumbles = iter([ZeroDivisionError("what nobody thought of")])

    def stumble() -> None:
        for error in stumbles:
            raise error

    with a_pruner(Meddling(store, stumble), clock):
        until(lambda: left(store) == 0)
    assert any("holdfast-pruner failed; it tries again" in record.getMessage() for record in caplog.records)
