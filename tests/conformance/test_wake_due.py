"""wake_due: makes those ready whose time has come, and says when the next one is due."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from holdfast.core import acts
from holdfast.core.machine import State
from holdfast.core.records import Filter
from holdfast.core.verdict import Parked
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import (
    again,
    awaiting,
    claim,
    enrol,
    job_in,
    make_job,
    move,
    park,
    picture,
    row,
    settlement,
    start_flow,
)

DUE_S = 60.0


def test_nobody_waits(store: Store) -> None:
    start_flow(store)
    before = picture(store)
    assert store.wake_due() is None
    assert picture(store) == before


@pytest.mark.parametrize("state", sorted(set(State) - {State.WAITING}))
def test_only_a_waiting_job_is_woken(store: Store, state: State) -> None:
    job_in(store, state, workflow=True)
    before = picture(store)
    assert store.wake_due() is None
    assert picture(store) == before


@pytest.mark.parametrize("awaits", [(), ("signal:go",)])
def test_a_job_whose_wait_ends_now_is_ready_and_awaits_nothing(
    store: Store, clock: FakeClock, awaits: tuple[str, ...]
) -> None:
    waiting = park(store, start_flow(store), *awaits, wake_at=clock.wall() + DUE_S, question="Ship it?")
    assert (waiting.state, waiting.wake_at, waiting.awaits) == (State.WAITING, clock.wall() + DUE_S, awaiting(*awaits))
    clock.advance(DUE_S - 1)
    assert store.wake_due() == waiting.wake_at
    assert row(store, waiting.id) == waiting
    clock.advance(1)
    assert store.wake_due() is None
    woken = replace(waiting, state=State.READY, run_at=clock.wall(), wake_at=None, awaits=None, question=None)
    assert row(store, waiting.id) == woken
    assert again(store, woken).id == waiting.id


def test_a_job_without_a_wake_up_time_stays_waiting(store: Store, clock: FakeClock) -> None:
    waiting = park(store, start_flow(store), "signal:go")
    clock.advance(10**9)
    assert store.wake_due() is None
    assert row(store, waiting.id) == waiting


def test_the_answer_is_the_earliest_that_is_left(store: Store, clock: FakeClock) -> None:
    wall = clock.wall()
    for delay_s in (30, 10, 20, 40):
        park(store, start_flow(store), wake_at=wall + delay_s)
    assert store.wake_due() == wall + 10
    clock.advance(25)
    assert store.wake_due() == wall + 30
    assert store.counts() == {"default": {State.READY: 2, State.WAITING: 2}}
    assert store.wake_due() == wall + 30


def test_no_more_than_the_limit_and_the_longest_due_first(store: Store, clock: FakeClock) -> None:
    wall = clock.wall()
    jobs = [park(store, start_flow(store), wake_at=wall + delay_s) for delay_s in (5, 3, 1, 4, 2)]
    clock.advance(10)
    assert store.wake_due(limit=2) == wall + 3
    assert [row(store, job.id).state for job in jobs] == [*[State.WAITING] * 2, State.READY, State.WAITING, State.READY]
    assert store.wake_due(limit=2) == wall + 5
    assert store.wake_due(limit=2) is None


def test_a_job_that_no_longer_waits_has_no_timer(store: Store, clock: FakeClock) -> None:
    wall = clock.wall()
    cancelled, held = (park(store, start_flow(store), wake_at=wall + 5) for _ in range(2))
    move(store, cancelled.id, cancelled.state, cancelled.fence, acts.cancel(cancelled, actor="ann"))
    move(store, held.id, held.state, held.fence, acts.hold(held, actor="ann"))
    clock.advance(10)
    before = picture(store)
    assert store.wake_due() is None
    assert picture(store) == before
    assert [row(store, job.id).wake_at for job in (cancelled, held)] == [None, None]


def test_many_wake_ups_at_once_lose_no_job(store: Store, clock: FakeClock) -> None:
    store.add([make_job(workflow=True) for _ in range(300)])
    jobs = claim(store, enrol(store), limit=300)
    store.settle([settlement(job, Parked("sleeps", wake_at=clock.wall() + 1)) for job in jobs])
    clock.advance(5)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: store.wake_due(limit=40), range(16)))
    while store.wake_due() is not None:
        pass
    assert len(store.find(Filter(states=(State.READY,), limit=1000))) == 300
    assert {job.run_at for job in store.find(Filter(limit=1000))} == {clock.wall()}
