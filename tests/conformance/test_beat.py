"""beat: prove life, extend leases, learn what was lost or cancelled. Fenced."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from holdfast.core import acts
from holdfast.core.machine import State
from holdfast.core.records import BeatReply, Job, Lease, Pulse
from holdfast.core.row_text import CurrentSteps, current_steps
from holdfast.core.verdict import Failed, Outcome, Released, Succeeded
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from tests.factory import (
    EXPIRED,
    STALE,
    add,
    add_many,
    again,
    claim,
    enrol,
    job_in,
    make_job,
    move,
    picture,
    row,
    settle,
    stale_reports,
    start,
    start_flow,
)

NOTHING = BeatReply()


def beat(store: Store, *jobs: Job) -> BeatReply:
    assert jobs[0].worker is not None
    return store.beat(jobs[0].worker, [Pulse(job.lease) for job in jobs])


def test_a_beat_extends_the_lease_by_its_length_from_now(store: Store, clock: FakeClock) -> None:
    job = start(store, lease_s=30.0)
    clock.advance(10)
    assert beat(store, job) == NOTHING
    assert row(store, job.id).lease_until == clock.lease() + 30


def test_a_worker_that_stops_says_so_with_a_beat(store: Store) -> None:
    stopping, other = enrol(store), enrol(store)
    store.beat(stopping, [], stopping=True)
    store.beat(other, [])
    told = {worker.id: (worker.stopping, worker.claims(worker.beat_at)) for worker in store.workers()}
    assert told == {stopping: (True, False), other: (False, True)}
    assert [worker.is_alive(worker.beat_at) for worker in store.workers()] == [True, True]


def test_a_beat_extends_only_the_leases_it_names(store: Store, clock: FakeClock) -> None:
    worker = enrol(store)
    named, left_out = start(store, worker), start(store, worker)
    clock.advance(10)
    beat(store, named)
    assert row(store, left_out.id) == left_out


def test_a_beat_does_not_extend_another_lease_of_the_same_claim(store: Store, clock: FakeClock) -> None:
    add(store)
    add(store)
    named, left_out = claim(store, limit=2)
    clock.advance(10)
    beat(store, named)
    assert row(store, left_out.id) == left_out


def test_every_lease_is_extended_by_its_own_length(store: Store, clock: FakeClock) -> None:
    worker = enrol(store)
    short, long = start(store, worker, lease_s=5.0), start(store, worker, lease_s=300.0)
    clock.advance(1)
    beat(store, short, long)
    assert row(store, short.id).lease_until == clock.lease() + 5
    assert row(store, long.id).lease_until == clock.lease() + 300


def test_a_lease_never_gets_shorter(store: Store, clock: FakeClock) -> None:
    job = start(store, lease_s=30.0)
    clock.reboot(clock.boot_id, clock.lease() - 5)  # a clock that runs backwards, as none should
    beat(store, job)
    assert row(store, job.id).lease_until == job.lease_until


def test_a_beat_at_the_same_instant_changes_no_lease(store: Store) -> None:
    job = start(store)
    beat(store, job)
    assert row(store, job.id) == job


def test_a_beat_whose_answer_was_lost_is_repeated_and_changes_no_job(store: Store, clock: FakeClock) -> None:
    job = start(store)
    clock.advance(10)
    first = beat(store, job)
    renewed = row(store, job.id)
    assert beat(store, job) == first
    assert row(store, job.id) == renewed


@pytest.mark.parametrize("late_s", [30.0, 30.25, 3600.0])
def test_a_lease_that_ran_out_but_was_not_reaped_is_renewed(store: Store, clock: FakeClock, late_s: float) -> None:
    job = start(store, lease_s=30.0)
    clock.advance(late_s)
    assert beat(store, job) == NOTHING
    assert row(store, job.id).lease_until == clock.lease() + 30
    assert store.overdue() == []


def test_a_beat_that_comes_between_the_reapers_look_and_its_settle_wins(store: Store, clock: FakeClock) -> None:
    job = start(store, lease_s=30.0)
    clock.advance(30)
    [seen] = store.overdue()
    beat(store, job)
    assert settle(store, seen, EXPIRED, seen_lease=True) is Reply.REFUSED
    alive = row(store, job.id)
    assert (alive.state, alive.fence, alive.lease_until) == (State.RUNNING, job.fence, clock.lease() + 30)
    assert store.journal() == []


# ------------------------------------------------------------------------------------------ what it says


def test_progress_and_note_are_kept_until_new_ones_come(store: Store) -> None:
    job = start(store)
    assert job.worker is not None
    store.beat(job.worker, [Pulse(job.lease, progress=0.25, note="page 1 of 4 🐈")])
    assert (row(store, job.id).progress, row(store, job.id).note) == (0.25, "page 1 of 4 🐈")
    store.beat(job.worker, [Pulse(job.lease)])
    assert (row(store, job.id).progress, row(store, job.id).note) == (0.25, "page 1 of 4 🐈")
    store.beat(job.worker, [Pulse(job.lease, progress=0.0, note="")])
    assert (row(store, job.id).progress, row(store, job.id).note) == (0.0, "")


def test_the_log_is_kept_until_new_lines_come(store: Store) -> None:
    job = start(store)
    assert job.worker is not None
    assert row(store, job.id).log is None
    store.beat(job.worker, [Pulse(job.lease, log="one\ntwo 🐈")])
    assert row(store, job.id).log == "one\ntwo 🐈"
    store.beat(job.worker, [Pulse(job.lease, progress=0.5)])
    assert row(store, job.id).log == "one\ntwo 🐈"
    store.beat(job.worker, [Pulse(job.lease, log="three")])
    assert (row(store, job.id).log, row(store, job.id).progress) == ("three", 0.5)


def test_each_job_has_its_own_log(store: Store) -> None:
    worker = enrol(store)
    jobs = [start(store, worker) for _ in range(3)]
    store.beat(worker, [Pulse(jobs[0].lease, log="of the first"), Pulse(jobs[1].lease), Pulse(jobs[2].lease, log="z")])
    assert [row(store, job.id).log for job in jobs] == ["of the first", None, "z"]


def test_a_beat_tells_when_the_handler_moved_last(store: Store, clock: FakeClock) -> None:
    job = start(store)
    assert job.worker is not None
    assert job.moved_at is None
    clock.advance(10)
    store.beat(job.worker, [Pulse(job.lease, still_s=4.0)])
    moved_at = clock.wall() - 4.0
    assert row(store, job.id).moved_at == moved_at
    clock.advance(10)
    store.beat(job.worker, [Pulse(job.lease)])
    assert row(store, job.id).moved_at == moved_at
    settle(store, job, Released(started=True, cause="the worker stopped"))
    assert again(store, row(store, job.id), job.worker).moved_at is None, "the next attempt has not moved yet"


def test_a_beat_tells_in_which_steps_a_workflow_is(store: Store) -> None:
    worker = enrol(store)
    job, other = start_flow(store, worker), start_flow(store, worker)
    assert job.in_steps is None
    told = current_steps(["2.1.1 mail", '2.2.1 print "it"'])
    store.beat(worker, [Pulse(job.lease, in_steps=told), Pulse(other.lease)])
    assert (row(store, job.id).in_steps, row(store, other.id).in_steps) == (told, None)
    store.beat(worker, [Pulse(job.lease), Pulse(other.lease, in_steps=CurrentSteps())])
    assert (row(store, job.id).in_steps, row(store, other.id).in_steps) == (told, ())
    store.beat(worker, [Pulse(replace(job.lease, fence=job.fence - 1), in_steps=current_steps(["9 no"]))])
    assert row(store, job.id).in_steps == told, "a zombie tells nothing"
    settle(store, job, Released(started=True, cause="the worker stopped"))
    assert again(store, row(store, job.id), worker).in_steps is None, "the next attempt is in none yet"


def test_a_job_taken_ahead_counts_as_started_from_the_first_beat_that_says_so(store: Store) -> None:
    add(store)
    worker = enrol(store)
    [job] = claim(store, worker, limit=0, ahead=1)
    store.beat(worker, [Pulse(job.lease, started=False)])
    assert row(store, job.id).started is False
    store.beat(worker, [Pulse(job.lease, started=True)])
    assert row(store, job.id).started is True


def test_a_started_job_never_becomes_unstarted(store: Store) -> None:
    job = start(store)
    assert job.worker is not None
    store.beat(job.worker, [Pulse(job.lease, started=False)])
    assert row(store, job.id).started is True


def test_a_beat_moves_the_workers_own_row(store: Store, clock: FakeClock) -> None:
    job = start(store)
    [before] = store.workers()
    clock.advance(10)
    store.beat(before.id, [Pulse(job.lease)], 81.5)
    [after] = store.workers()
    assert (after.beats, after.beat_at, after.rss_mb, after.running) == (
        before.beats + 1,
        clock.wall(),
        81.5,
        1,
    )


def test_a_beat_that_knows_no_memory_size_keeps_the_last_one(store: Store) -> None:
    worker = enrol(store)
    store.beat(worker, [], 81.5)
    store.beat(worker, [])
    assert store.workers()[0].rss_mb == 81.5


def test_a_beat_without_leases_proves_life(store: Store, clock: FakeClock) -> None:
    worker = enrol(store)
    clock.advance(10)
    assert store.beat(worker, []) == NOTHING
    assert store.workers()[0].beat_at == clock.wall()


# ----------------------------------------------------------------------------------------- cancellation


def test_a_beat_lists_every_job_of_the_worker_that_was_asked_to_stop(store: Store) -> None:
    worker = enrol(store)
    asked, named, others = start(store, worker), start(store, worker), start(store)
    for job in (asked, others):
        move(store, job.id, State.RUNNING, job.fence, acts.cancel(job, actor="ann"))
    assert beat(store, named) == BeatReply(cancelled=[asked.id])
    assert beat(store, named, asked) == BeatReply(cancelled=[asked.id])
    assert row(store, asked.id).state is State.RUNNING


def test_a_job_asked_to_stop_keeps_its_lease_while_it_stops(store: Store, clock: FakeClock) -> None:
    job = start(store)
    move(store, job.id, State.RUNNING, job.fence, acts.cancel(job, actor="ann"))
    clock.advance(10)
    beat(store, job)
    assert row(store, job.id).lease_until == clock.lease() + job.lease_s


# ------------------------------------------------------------------------------------------- the fence


@pytest.mark.parametrize("stale", STALE.values(), ids=STALE.keys())
def test_a_stale_lease_is_lost_and_nothing_changes_but_one_event(
    store: Store, clock: FakeClock, stale: Callable[[Store], Lease]
) -> None:
    lease = stale(store)
    worker = enrol(store)
    before = row(store, lease.job_id)
    clock.advance(10)
    for _ in range(3):
        assert store.beat(worker, [Pulse(lease, progress=0.5, note="I live!", log="I live!")]) == BeatReply(
            lost=[lease.job_id]
        )
    assert row(store, lease.job_id) == before
    [event] = stale_reports(store)
    assert (event.job_id, event.fence, event.worker, event.at) == (
        lease.job_id,
        lease.fence,
        worker,
        clock.wall(),
    )


def test_the_lost_and_the_living_are_told_apart_in_one_beat(store: Store, clock: FakeClock) -> None:
    lost = STALE["after a successor claimed"](store)
    job = start(store)
    assert job.worker is not None
    clock.advance(10)
    assert store.beat(job.worker, [Pulse(lost), Pulse(job.lease)]) == BeatReply(lost=[lost.job_id])
    assert row(store, job.id).lease_until == clock.lease() + job.lease_s


def test_the_lost_and_the_living_of_one_claim_are_told_apart(store: Store, clock: FakeClock) -> None:
    store.add([make_job(), make_job()])
    lost, living = claim(store)
    settle(store, lost, EXPIRED)
    clock.advance(10)
    assert beat(store, lost, living) == BeatReply(lost=[lost.id])
    assert row(store, living.id).lease_until == clock.lease() + 30


def test_an_unknown_job_is_lost_without_an_event(store: Store) -> None:
    worker = enrol(store)
    assert store.beat(worker, [Pulse(Lease("nobody", 1, "c"))]) == BeatReply(lost=["nobody"])
    assert store.journal() == []


def test_a_purged_job_is_lost_without_an_event(store: Store, clock: FakeClock) -> None:
    zombie = STALE["after a successor was done"](store)
    store.purge([State.DONE], clock.wall() + 1)
    assert store.beat(enrol(store), [Pulse(zombie)]) == BeatReply(lost=[zombie.job_id])
    assert store.journal() == []


@pytest.mark.parametrize("outcome", [Succeeded(), Released(True, "stopping")], ids=lambda o: type(o).__name__)
def test_an_attempt_that_has_settled_itself_is_not_lost(
    store: Store, clock: FakeClock, outcome: Succeeded | Released
) -> None:
    job = start(store)
    settle(store, job, outcome)
    settled = row(store, job.id)
    clock.advance(1)
    assert beat(store, job) == NOTHING
    assert row(store, job.id) == settled
    assert stale_reports(store) == []


def test_a_beat_and_a_settle_of_one_zombie_leave_one_event(store: Store) -> None:
    zombie = start(store)
    settle(store, zombie, EXPIRED)
    beat(store, zombie)
    settle(store, zombie, Succeeded())
    assert len(stale_reports(store, zombie.id)) == 1


# ------------------------------------------------------------------------------------------- the gone


def test_a_worker_marked_gone_extends_nothing_and_is_told_so(store: Store, clock: FakeClock) -> None:
    job = start(store)
    assert job.worker is not None
    store.retire(job.worker, "killed")
    before = picture(store)
    clock.advance(10)
    assert beat(store, job) == BeatReply(gone=True)
    assert picture(store) == before


def test_a_gone_workers_beat_about_a_stale_lease_changes_nothing(store: Store) -> None:
    zombie = start(store)
    assert zombie.worker is not None
    store.retire(zombie.worker, "killed")
    settle(store, zombie, EXPIRED)
    before = picture(store)
    assert beat(store, zombie).gone
    assert picture(store) == before


def test_an_unknown_worker_is_told_that_it_is_gone(store: Store) -> None:
    job = start(store)
    before = picture(store)
    assert store.beat("nobody", [Pulse(job.lease)]) == BeatReply(gone=True)
    assert picture(store) == before


def test_a_beat_does_not_touch_what_is_not_running(store: Store) -> None:
    worker = enrol(store)
    for state in set(State) - {State.RUNNING}:
        job = job_in(store, state)
        store.beat(worker, [Pulse(job.lease, progress=0.5)])
        assert row(store, job.id) == job


def test_two_thousand_leases_are_renewed_in_one_beat(store: Store, clock: FakeClock) -> None:
    add_many(store, [make_job() for _ in range(2000)])
    worker = enrol(store)
    jobs = claim(store, worker, limit=2000)
    clock.advance(10)
    assert store.beat(worker, [Pulse(job.lease) for job in jobs]) == NOTHING
    assert store.deadline() == clock.lease() + 30


def test_what_a_handler_says_with_its_beats_is_kept_until_it_says_something_else(store: Store) -> None:
    job, other = start(store), start(store)
    assert job.worker is not None
    assert row(store, job.id).beat_data is None
    store.beat(job.worker, [Pulse(job.lease, beat_data='{"file":"a"}')])
    assert row(store, job.id).beat_data == '{"file":"a"}'
    store.beat(job.worker, [Pulse(job.lease)])
    assert row(store, job.id).beat_data == '{"file":"a"}'
    store.beat(job.worker, [Pulse(job.lease, beat_data='{"file":"\\u0000 ü"}')])
    assert row(store, job.id).beat_data == '{"file":"\\u0000 ü"}'
    assert row(store, other.id).beat_data is None


def test_what_a_zombie_says_with_its_beats_is_not_taken(store: Store, clock: FakeClock) -> None:
    old = start(store, lease_s=30.0)
    assert old.worker is not None
    store.beat(old.worker, [Pulse(old.lease, beat_data='{"file":"a"}')])
    settle(store, old, Released(True, "stop"))
    new = again(store, old)
    assert row(store, old.id).beat_data is None, "the end of an attempt takes it from the row"
    store.beat(old.worker, [Pulse(old.lease, beat_data='{"file":"b"}')])
    assert row(store, new.id).beat_data is None


@pytest.mark.parametrize("outcome", [Succeeded(), Failed("no"), EXPIRED, Released(True, "stop")], ids=repr)
def test_every_end_of_an_attempt_takes_what_it_said_from_the_row(store: Store, outcome: Outcome) -> None:
    job = start(store)
    assert job.worker is not None
    store.beat(job.worker, [Pulse(job.lease, beat_data='{"file":"a"}')])
    assert settle(store, row(store, job.id), outcome) is Reply.ACCEPTED
    assert row(store, job.id).beat_data is None
