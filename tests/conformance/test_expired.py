"""expired: jobs that nobody has claimed in time. A claim leaves them alone, and the sweep ends them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core import acts
from holdfast.core.machine import State
from holdfast.core.records import Firing, KeyRule, Schedule
from holdfast.core.verdict import Failed, Released, Succeeded
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from holdfast.upkeep.expiry import PAGE, SWEEP_S, ExpirySweep
from holdfast.upkeep.reaper import Reaper
from tests.factory import add, again, claim, make_job, move, revive, row, settle


def ids(store: Store) -> list[str]:
    return [job.id for job in store.expired()]


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("limited", [False, True])
def test_a_job_is_not_claimed_from_its_expiry_on(
    store: Store, clock: FakeClock, group: str | None, limited: bool
) -> None:
    if limited:
        from holdfast.core.limits import setting

        store.limit("default", setting(limit=5), actor="ann")
    for _ in range(2):
        add(store, expires_s=10.0, group=group)
    clock.advance(9.5)
    assert len(claim(store, limit=1)) == 1
    clock.advance(0.5)
    assert claim(store) == []
    later = add(store, group=group)
    assert [job.id for job in claim(store)] == [later.id]


def test_jobs_are_found_longest_ago_first(store: Store, clock: FakeClock) -> None:
    jobs = [add(store, expires_s=seconds).id for seconds in (3.0, 1.0, 2.0, 9.0)]
    add(store)
    clock.advance(1)
    assert ids(store) == [jobs[1]]
    clock.advance(5)
    assert ids(store) == [jobs[1], jobs[2], jobs[0]]
    assert [job.id for job in store.expired(limit=2)] == [jobs[1], jobs[2]]


def test_the_expiry_counts_from_the_enqueue(store: Store, clock: FakeClock) -> None:
    many = [make_job(expires_s=5.0, id=f"j{number}") for number in range(120)]
    store.add(many)  # as a stream, where the store has streams
    [one] = store.add([make_job(expires_s=5.0)])
    store.add([make_job(expires_s=5.0), make_job(queue="other")])
    assert row(store, one.id).expires_at == row(store, "j7").expires_at == clock.wall() + 5
    clock.advance(5)
    assert len(store.expired()) == 122


def test_a_job_that_was_claimed_in_time_does_not_expire(store: Store, clock: FakeClock) -> None:
    jobs = [add(store, expires_s=10.0, base_s=1.0, cap_s=1.0) for _ in range(2)]
    first, second = claim(store)
    assert {first.id, second.id} == {job.id for job in jobs}
    settle(store, first, Failed("no luck"))
    settle(store, second, Released(False, "stopping"))
    clock.advance(60)
    assert ids(store) == []
    assert len(claim(store)) == 2


def test_a_job_that_a_person_held_does_not_expire(store: Store, clock: FakeClock) -> None:
    job = add(store, expires_s=10.0)
    assert move(store, job.id, job.state, job.fence, acts.hold(job, actor="ann"))
    clock.advance(10)
    assert ids(store) == []
    assert revive(store, row(store, job.id))
    assert ids(store) == []
    again(store, row(store, job.id))


def test_the_sweep_cancels_with_a_line_in_the_journal(store: Store, clock: FakeClock) -> None:
    job = add(store, expires_s=10.0)
    clock.advance(10)
    assert ExpirySweep(store, clock).once() == 1
    ended = row(store, job.id)
    assert (ended.state, ended.error) == (State.CANCELLED, "it was not started before its expiry")
    [event] = store.journal(job.id)
    assert (event.kind, event.actor, event.detail) == ("cancelled", None, {"expires_at": job.expires_at})
    assert store.counts() == {"default": {State.CANCELLED: 1}}


def test_the_sweep_looks_once_a_second_and_takes_page_by_page(store: Store, clock: FakeClock) -> None:
    store.add([make_job(expires_s=SWEEP_S / 4) for _ in range(PAGE + 1)])
    sweep = ExpirySweep(store, clock)
    assert sweep.once() == 0
    clock.advance(SWEEP_S / 2)
    assert sweep.once() == 0
    clock.advance(SWEEP_S / 2)
    assert sweep.once() == PAGE + 1


def test_the_pass_of_a_reaper_ends_what_has_expired(store: Store, clock: FakeClock) -> None:
    if store.is_served:
        pytest.skip("the reaper is the server's")
    job = add(store, expires_s=10.0)
    clock.advance(10)
    Reaper(store, clock).once(fix=False)
    assert row(store, job.id).state is State.READY
    Reaper(store, clock).once()
    assert row(store, job.id).state is State.CANCELLED


def test_a_job_that_expired_can_be_revived(store: Store, clock: FakeClock) -> None:
    job = add(store, expires_s=10.0)
    clock.advance(10)
    ExpirySweep(store, clock).once()
    assert revive(store, row(store, job.id))
    assert ids(store) == []
    settle(store, again(store, row(store, job.id)), Succeeded())


def test_the_job_of_a_schedule_expires(store: Store, clock: FakeClock) -> None:
    store.schedule([Schedule(key="s", spec="* * * * *", tz="UTC", job=make_job(id="", expires_s=5.0))])
    duty = store.acquire("scheduler", "h", 600)
    assert duty is not None
    [schedule] = store.schedules()
    clock.advance(120)
    instant = clock.wall() - 60
    store.fire([Firing("s", instant, replace(schedule.job, id="f", run_at=instant))], duty)
    assert row(store, "f").expires_at == clock.wall() + 5


def test_an_expired_child_tells_its_workflow(store: Store, clock: FakeClock) -> None:
    add(store, id="p", workflow=True, task="w")
    add(store, parent="p", expires_s=1.0)
    clock.advance(1)
    ExpirySweep(store, clock).once()
    assert store.inbox("p").count == 1


def test_a_replaced_job_gets_the_newer_expiry(store: Store, clock: FakeClock) -> None:
    rule = KeyRule("queued", "replace")
    store.add([make_job(id="a", key="k", key_rule=rule, expires_s=10.0)])
    clock.advance(5)
    store.add([make_job(id="b", key="k", key_rule=rule, expires_s=10.0)])
    clock.advance(9)
    assert ids(store) == []
    clock.advance(1)
    assert ids(store) == ["a"]


def test_an_expired_job_that_is_replaced_can_be_claimed(store: Store, clock: FakeClock) -> None:
    rule = KeyRule("queued", "replace")
    store.add([make_job(id="a", key="k", key_rule=rule, expires_s=10.0)])
    clock.advance(10)
    assert claim(store) == []  # it may put the job aside
    store.add([make_job(id="b", key="k", key_rule=rule, expires_s=10.0)])
    assert [job.id for job in claim(store)] == ["a"]
    assert store.check() == []


def test_an_expired_job_that_a_person_runs_now_can_be_claimed(store: Store, clock: FakeClock) -> None:
    job = add(store, id="a", expires_s=10.0)
    clock.advance(10)
    assert claim(store) == []
    assert move(store, job.id, job.state, job.fence, acts.hold(job, actor="ann"))
    assert revive(store, row(store, "a"))
    assert [job.id for job in claim(store)] == ["a"]
    assert store.check() == []
