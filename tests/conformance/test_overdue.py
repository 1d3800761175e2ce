"""overdue and deadline: whose lease has run out, and when the next one will."""

import pytest

from holdfast.core.limits import Setting
from holdfast.core.machine import State
from holdfast.core.records import REMOTE_BOOT, Pulse
from holdfast.core.verdict import Succeeded
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import EXPIRED, add, enrol, job_in, picture, row, settle, start


@pytest.mark.parametrize(("passed_s", "found"), [(29.75, 0), (30.0, 1), (30.25, 1)])
def test_a_lease_is_over_at_its_very_end(store: Store, clock: FakeClock, passed_s: float, found: int) -> None:
    start(store, lease_s=30.0)
    clock.advance(passed_s)
    assert len(store.overdue()) == found


@pytest.mark.parametrize(("passed_s", "found"), [(30.0, 0), (34.75, 0), (35.0, 1), (36.0, 1)])
def test_grace_is_added_to_the_lease(store: Store, clock: FakeClock, passed_s: float, found: int) -> None:
    start(store, lease_s=30.0)
    clock.advance(passed_s)
    assert len(store.overdue(grace_s=5.0)) == found


def test_an_overdue_job_comes_as_its_row_is(store: Store, clock: FakeClock) -> None:
    job = start(store, key="k", payload='{"a": 1}')
    clock.advance(30)
    assert store.overdue() == [row(store, job.id)]


def test_a_lease_of_a_worker_that_speaks_to_a_server_ends_as_any_other(store: Store, clock: FakeClock) -> None:
    store.limit("q", Setting(limit=1))
    job = start(store, enrol(store, boot_id=REMOTE_BOOT), queue="q", lease_s=30.0)
    assert store.deadline() == pytest.approx(clock.lease() + 30)
    clock.advance(29)
    assert not store.overdue()
    clock.advance(2)
    assert [each.id for each in store.overdue()] == [job.id]
    assert [each.id for each in store.ghosts(["q"])] == [job.id]


def test_longest_ago_comes_first_and_the_limit_holds(store: Store, clock: FakeClock) -> None:
    ids = [start(store, lease_s=lease_s).id for lease_s in (30.0, 10.0, 20.0, 900.0)]
    clock.advance(100)
    assert [job.id for job in store.overdue()] == [ids[1], ids[2], ids[0]]
    assert [job.id for job in store.overdue(limit=2)] == [ids[1], ids[2]]


def test_some_can_be_skipped_so_that_one_that_cannot_be_settled_does_not_hide_the_rest(
    store: Store, clock: FakeClock
) -> None:
    ids = [start(store, lease_s=lease_s).id for lease_s in (10.0, 20.0, 30.0)]
    clock.advance(100)
    assert [job.id for job in store.overdue(skip=1)] == ids[1:]
    assert [job.id for job in store.overdue(limit=1, skip=1)] == ids[1:2]
    assert store.overdue(skip=3) == []


def test_looking_changes_nothing(store: Store, clock: FakeClock) -> None:
    start(store)
    clock.advance(31)
    before = picture(store)
    assert store.overdue() == store.overdue()
    assert picture(store) == before


@pytest.mark.parametrize("state", sorted(set(State) - {State.RUNNING}))
def test_what_does_not_run_is_never_overdue(store: Store, clock: FakeClock, state: State) -> None:
    job_in(store, state)
    clock.advance(10**6)
    assert store.overdue() == []
    assert store.deadline() is None


def test_a_renewed_lease_is_not_overdue(store: Store, clock: FakeClock) -> None:
    job = start(store)
    assert job.worker is not None
    for _ in range(5):
        clock.advance(29)
        store.beat(job.worker, [Pulse(job.lease)])
        assert store.overdue() == []


@pytest.mark.parametrize("jump_s", [-(10.0**8), -3600.0, 3600.0, 10.0**8])
def test_a_jump_of_the_wall_clock_neither_kills_a_lease_nor_keeps_it_alive(
    store: Store, clock: FakeClock, jump_s: float
) -> None:
    start(store, lease_s=30.0)
    clock.set_wall(clock.wall() + jump_s)
    clock.advance(29)
    assert store.overdue() == []
    clock.advance(1)
    assert len(store.overdue()) == 1


def test_a_reaped_job_is_no_longer_overdue(store: Store, clock: FakeClock) -> None:
    start(store)
    clock.advance(30)
    for job in store.overdue():
        settle(store, job, EXPIRED, seen_lease=True)
    assert store.overdue() == []


def test_the_leases_of_a_worker_marked_gone_run_out_like_all_others(store: Store, clock: FakeClock) -> None:
    job = start(store)
    assert job.worker is not None
    store.retire(job.worker, "killed")
    clock.advance(30)
    assert [found.id for found in store.overdue()] == [job.id]


def test_the_deadline_is_the_earliest_lease_end(store: Store, clock: FakeClock) -> None:
    assert store.deadline() is None
    start(store, lease_s=60.0)
    short = start(store, lease_s=10.0)
    add(store)
    assert store.deadline() == clock.lease() + 10
    settle(store, short, Succeeded())
    assert store.deadline() == clock.lease() + 60


def test_a_deadline_that_has_passed_is_still_the_earliest(store: Store, clock: FakeClock) -> None:
    job = start(store)
    clock.advance(1000)
    assert store.deadline() == job.lease_until


def test_a_beat_moves_the_deadline(store: Store, clock: FakeClock) -> None:
    job = start(store)
    assert job.worker is not None
    clock.advance(10)
    store.beat(job.worker, [Pulse(job.lease)])
    assert store.deadline() == clock.lease() + 30
