"""The reaper's daemon and its duty: one active replica, a term on every act, a replacement when it dies or stops."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, UsageError
from holdfast.clock import SystemClock
from holdfast.core.machine import State
from holdfast.core.records import Duty, Worker
from holdfast.core.recovery import PROOF_S, RENEW_S, SECOND_LOOK_S
from holdfast.errors import DutyLost, StoreUnavailable
from holdfast.runtime.duties import DutyHolder, Election
from holdfast.runtime.hooks import Hooks
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from holdfast.upkeep import reaper_service
from holdfast.upkeep.reaper import Reaper
from tests.factory import enrol, picture, row, start

TTL_S = 3.0


class Heard:
    """Hooks that remember what they were told."""

    def __init__(self) -> None:
        self.hooks = Hooks()
        self._events: list[tuple[str, str, int]] = []
        for kind in ("duty_acquired", "duty_lost"):
            self.hooks.on(kind, self._hear)

    @property
    def events(self) -> list[tuple[str, str, int]]:
        assert self.hooks.flush()
        return self._events

    def _hear(self, event: Mapping[str, Any]) -> None:
        self._events.append((event["kind"], event["holder"], event["term"]))


def post(store: Store, clock: FakeClock, holder: str, heard: Heard | None = None) -> DutyHolder:
    return DutyHolder(store, clock, "reaper", holder, TTL_S, (heard or Heard()).hooks)


def test_one_replica_is_active_and_the_other_takes_over_when_it_falls_silent(store: Store, clock: FakeClock) -> None:
    heard = Heard()
    first, second = post(store, clock, "a", heard), post(store, clock, "b", heard)
    assert first.duty() is not None
    assert second.duty() is None
    clock.advance(TTL_S)
    duty = second.duty()
    assert duty is not None
    assert duty.term == 2
    assert heard.events == [("duty_acquired", "a", 1), ("duty_acquired", "b", 2)]


def test_a_holder_that_renews_in_time_keeps_its_term(store: Store, clock: FakeClock) -> None:
    heard = Heard()
    holder = post(store, clock, "a", heard)
    terms = []
    for _ in range(20):
        duty = holder.duty()
        assert duty is not None
        terms.append(duty.term)
        clock.advance(TTL_S / 3)
    assert terms == [1] * 20
    assert heard.events == [("duty_acquired", "a", 1)]


def test_a_duty_that_could_not_be_renewed_is_given_up_before_it_ends(store: Store, clock: FakeClock) -> None:
    heard = Heard()
    holder = post(Broken(store), clock, "a", heard)  # type: ignore[arg-type]
    assert holder.duty() is not None
    Broken.broken = True
    try:
        clock.advance(TTL_S * 5 / 6)
        with pytest.raises(StoreUnavailable):
            holder.duty()
    finally:
        Broken.broken = False
    assert heard.events == [("duty_acquired", "a", 1), ("duty_lost", "a", 1)]


class Broken:
    """A store whose acquire fails while `broken`."""

    broken = False

    def __init__(self, store: Store) -> None:
        self._store = store

    def acquire(self, name: str, holder: str, ttl_s: float, note: str | None = None) -> Duty | None:
        if Broken.broken:
            raise StoreUnavailable("it is away")
        return self._store.acquire(name, holder, ttl_s, note)


def test_stopping_gives_the_duty_to_the_next_one_at_once(store: Store, clock: FakeClock) -> None:
    heard = Heard()
    first, second = post(store, clock, "a", heard), post(store, clock, "b", heard)
    first.duty()
    first.resign()
    first.resign()
    assert second.duty() is not None
    assert heard.events == [("duty_acquired", "a", 1), ("duty_lost", "a", 1), ("duty_acquired", "b", 2)]


def test_a_paused_holder_that_wakes_is_refused_and_changes_nothing(store: Store, clock: FakeClock) -> None:
    worker = enrol(store)
    job = start(store, worker, lease_s=30.0)
    old = post(store, clock, "a")
    duty = old.duty()
    sleeper = Reaper(store, clock)
    clock.advance(31)
    sleeper.once(under=duty)  # it has looked once, and is paused before it acts
    assert post(store, clock, "b").duty() is not None
    clock.advance(2 * SECOND_LOOK_S)
    before = picture(store)
    with pytest.raises(DutyLost):
        sleeper.once(under=duty)
    assert picture(store) == before
    assert row(store, job.id).state is State.RUNNING


def serve_in_thread(
    store: Store, clock: FakeClock, heard: Heard
) -> tuple[threading.Thread, threading.Event, list[int]]:
    stop, settled = threading.Event(), list[int]()

    def run() -> None:
        settled.append(reaper_service.serve(store, clock, stop, hooks=heard.hooks, name="a", interval_s=1.0))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, stop, settled


def test_the_daemon_recovers_what_is_overdue_and_gives_its_duty_back(store: Store, clock: FakeClock) -> None:
    job = start(store, lease_s=30.0)
    clock.advance(31)
    heard = Heard()
    thread, stop, settled = serve_in_thread(store, clock, heard)  # its waiting advances the fake clock
    until(lambda: row(store, job.id).state is State.READY)
    stop.set()
    thread.join(60)
    assert settled == [1]
    assert [kind for kind, _, _ in heard.events] == ["duty_acquired", "duty_lost"]
    assert post(store, clock, "b").duty() is not None


def test_what_was_seen_once_is_looked_at_again_before_the_interval_is_over(store: Store, clock: FakeClock) -> None:
    reaper = Reaper(store, clock)
    assert reaper_service.until_next_look(reaper, store, 0.0) is None
    reaper.observed.unconfirmed = [store.confirm_s]
    assert reaper_service.until_next_look(reaper, store, 0.0) == store.confirm_s


def test_a_reaper_with_long_pauses_looks_before_a_lease_ends(store: Store, clock: FakeClock) -> None:
    """It commits writes until then, so that it can judge the lease at once."""
    store.commits_may_hang = True
    reaper = Reaper(store, clock)
    start(store, lease_s=30.0)
    reaper.once()
    assert reaper_service.until_next_look(reaper, store, 0.0) == pytest.approx(30.0 - RENEW_S)
    assert reaper_service.until_next_look(reaper, store, 5.0) == pytest.approx(35.0 - RENEW_S)
    clock.advance(30.0 - RENEW_S)
    assert reaper_service.until_next_look(reaper, store, 0.0) == PROOF_S
    clock.advance(RENEW_S - 0.5)
    assert reaper_service.until_next_look(reaper, store, 0.0) == pytest.approx(0.5)
    clock.advance(1.0)
    assert reaper_service.until_next_look(reaper, store, 0.0) == SECOND_LOOK_S


def until(condition: Callable[[], bool]) -> None:
    give_up_at = SystemClock().lease() + 60
    while not condition():
        assert SystemClock().lease() < give_up_at, "it did not happen in a minute"
        threading.Event().wait(0.001)


def test_a_replica_does_not_take_its_own_standby_for_a_gap(store: Store, clock: FakeClock) -> None:
    """It had the duty, another one had it, and it has it again: what is lost then is an ordinary crash."""
    stop, jobs = threading.Event(), []

    def at(wait: int) -> None:
        if wait == 2:
            clock.advance(10)  # it is paused, and loses the duty
            assert store.acquire("reaper", "another", 20.0) is not None
        elif wait == 20:
            jobs.append(start(store, lease_s=30.0))
        elif wait == 100:  # pauses are random, and short while it stands by
            stop.set()

    reaper_service.serve(store, Played(clock, at), stop, hooks=Hooks(), name="a", interval_s=1.0)  # type: ignore[arg-type]
    after = row(store, jobs[0].id)
    assert (after.state, after.crashes, after.zombies) == (State.READY, 1, 1)


def test_a_store_gap_during_a_standby_is_known_to_the_process_that_takes_over(store: Store, clock: FakeClock) -> None:
    """15.5: all replicas stood still; the one that wakes first must not charge what was lost meanwhile."""
    stop = threading.Event()
    assert store.acquire("reaper", "another", 40.0) is not None
    job = start(store, lease_s=30.0)

    def at(wait: int) -> None:
        if wait == 5:
            clock.advance(40)
        elif wait == 250:  # a tenth of a second each, while a lease is overdue
            stop.set()

    reaper_service.serve(store, Played(clock, at), stop, hooks=Hooks(), name="a", interval_s=1.0)  # type: ignore[arg-type]
    after = row(store, job.id)
    assert (after.state, after.crashes, after.zombies) == (State.READY, 0, 1)


def test_a_holder_renews_its_duty_when_the_election_says(store: Store, clock: FakeClock) -> None:
    asked: list[float] = []

    class Asked:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def acquire(self, *given: Any) -> Duty | None:
            asked.append(clock.lease())
            return store.acquire(*given)

    began = clock.lease()
    holder = DutyHolder(Asked(), clock, "reaper", "a", 30.0, Hooks(), 5.0)  # type: ignore[arg-type]
    for _ in range(12):
        assert holder.duty() is not None
        clock.advance(1.0)
    assert [at - began for at in asked] == [0.0, 5.0, 10.0]


def test_a_replica_that_stands_by_asks_each_retry_and_takes_over_at_the_end_of_the_ttl(
    store: Store, clock: FakeClock
) -> None:
    stop, asked, turns = threading.Event(), list[float](), list[bool]()
    assert store.acquire("reaper", "another", 30.0) is not None
    began = clock.lease()

    class Asked:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def acquire(self, *given: Any) -> Duty | None:
            asked.append(clock.lease() - began)
            return store.acquire(*given)

    def note(active: bool, settled: int) -> None:
        turns.append(active)
        if active:
            stop.set()

    election = Election.declare(0.5, 30.0, 10.0, 4.0)
    heard = Heard()
    reaper_service.serve(
        *(Asked(), clock, stop),  # type: ignore[arg-type]
        hooks=heard.hooks,
        name="a",
        election=election,
        on_turn=note,
    )
    gaps = [later - sooner for sooner, later in itertools.pairwise(asked)]
    assert all(4.0 <= gap < 5.0 for gap in gaps), gaps
    assert 30.0 <= asked[-1] < 35.0, "it is taken over within ttl and retry"
    assert turns.count(True) == 1
    assert turns[-1] is False, "it has given the duty back"
    assert len(turns) > len(asked), "it looks whether the store answers meanwhile"
    assert [kind for kind, _, _ in heard.events] == ["duty_acquired", "duty_lost"]


def test_an_active_replica_with_long_pauses_keeps_a_short_duty(store: Store, clock: FakeClock) -> None:
    stop, heard, turns = threading.Event(), Heard(), list[bool]()

    def note(active: bool, settled: int) -> None:
        turns.append(active)
        if len(turns) == 60:
            stop.set()

    reaper_service.serve(
        *(store, clock, stop),
        hooks=heard.hooks,
        name="a",
        interval_s=3600.0,
        election=Election.declare(3600.0, 9.0, 3.0, None),
        on_turn=note,
    )
    assert [term for _, _, term in heard.events] == [1, 1], "it never lost it"


@pytest.mark.parametrize(
    ("timing", "says"),
    [
        ({"ttl_s": 10.0, "renewal_s": 6.0}, "half"),
        ({"ttl_s": 0.0}, "ttl_s"),
        ({"retry_s": float("nan")}, "retry_s"),
        ({"renewal_s": True}, "renewal_s"),
        ({"interval_s": 0.0}, "interval_s"),
        ({"grace_s": -1}, "grace_s"),
    ],
)
def test_an_election_that_makes_no_sense_is_refused(timing: dict[str, Any], says: str) -> None:
    with App("memory://") as app, pytest.raises(UsageError, match=says):
        app.reaper(**timing)


def test_a_reaper_inside_a_program_recovers_tells_hooks_and_gives_its_duty_back(tmp_path: Path) -> None:
    with App(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal") as app:
        told: list[str] = []
        app.on("zombie", lambda event: told.append(event["kind"]))
        for kind in ("duty_acquired", "duty_lost"):
            app.on(kind, lambda event: told.append(event["kind"]) if event["duty"] == "reaper" else None)
        job = app.task(print, name="shout").enqueue()
        app.store.enroll(Worker(id="dead", name="old", host="here", pid=1, boot_id=app.clock.boot_id))
        app.store.claim("dead", "claim", ["default"], ["shout"], 1)
        with app.reaper(name="sidecar", interval_s=0.05) as reaper:
            assert reaper.is_active
            app.store.retire("dead", "it was killed")
            until(lambda: reaper.settled == 1)
            with pytest.raises(UsageError, match="started before"):
                reaper.start()
        assert (job.refresh().state, reaper.is_active, reaper.name) == ("ready", False, "sidecar")
        assert app.hooks.flush()
        assert told == ["duty_acquired", "zombie", "duty_lost"]
        assert app.store.acquire("reaper", "another", 3.0) is not None
        with pytest.raises(UsageError, match="not started"):
            app.reaper().stop()


def test_of_two_reapers_one_is_active_and_the_other_takes_over_when_it_stops() -> None:
    with App("memory://") as app:
        first = app.reaper(name="a", ttl_s=60, renewal_s=20, retry_s=0.05).start()
        second = app.reaper(name="b", ttl_s=60, renewal_s=20, retry_s=0.05).start()
        assert (first.is_active, second.is_active) == (True, False)
        first.stop()
        until(lambda: second.is_active)  # it does not wait for the ttl
        second.stop()


def test_a_reaper_can_be_entered_with_await_and_ends_with_its_app() -> None:
    async def story() -> None:
        app = App("memory://")
        async with app.reaper() as reaper:
            assert reaper.is_active
        assert not reaper.is_active
        late = app.reaper()
        await asyncio.to_thread(late.start)
        await app.aio.close()
        assert not late.is_active, "closing the app has stopped it"
        late.stop()

    asyncio.run(story())


class Played:
    """A clock that tells a test at each whole wait how many there were."""

    def __init__(self, clock: FakeClock, at: Callable[[int], None]) -> None:
        self._clock = clock
        self._at = at
        self._waits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self._waits += 1
        self._at(self._waits)
        return self._clock.wait(event, timeout_s)
