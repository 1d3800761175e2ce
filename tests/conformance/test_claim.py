"""claim: leases for one worker, fairly over queues, in one step, repeatable."""

import pytest

from holdfast.core.machine import State
from holdfast.core.verdict import Failed, Succeeded
from holdfast.errors import WorkerGone
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import EXPIRED, add, add_many, again, claim, enrol, job_in, make_job, picture, row, settle, start


def test_a_claim_sets_lease_fence_and_attempt_in_one(store: Store, clock: FakeClock) -> None:
    added = add(store, lease_s=30.0)
    worker = enrol(store)
    clock.advance(7)
    [job] = store.claim(worker, "c-1", ["default"], ["t"], 1)
    assert (job.id, job.state, job.worker, job.claim_id) == (added.id, State.RUNNING, worker, "c-1")
    assert (job.attempt, job.fence, job.started) == (1, 1, True)
    assert (job.lease_until, job.claimed_at) == (clock.lease() + 30, clock.wall())
    assert (job.payload, job.run_at, job.created_at) == (added.payload, added.run_at, added.created_at)
    assert row(store, job.id) == job


def test_every_claim_raises_the_fence_and_counts_the_attempt(store: Store) -> None:
    job = start(store, base_s=0.0, cap_s=0.0)
    fences = [job.fence]
    for attempt in (2, 3, 4):
        settle(store, job, Failed("again"))
        job = again(store, row(store, job.id))
        fences.append(job.fence)
        assert job.attempt == attempt
    assert fences == sorted(set(fences))


def test_a_job_is_given_to_one_worker_only(store: Store) -> None:
    add(store)
    assert len(claim(store)) == 1
    assert claim(store) == []


def test_no_more_than_the_limit_is_given(store: Store) -> None:
    for _ in range(5):
        add(store)
    assert len(claim(store, limit=3)) == 3
    assert store.counts() == {"default": {State.READY: 2, State.RUNNING: 3}}


@pytest.mark.parametrize("limit", [0, 1])
def test_nothing_is_given_when_there_is_nothing(store: Store, limit: int) -> None:
    assert claim(store, limit=limit) == []


def test_a_limit_of_zero_gives_nothing(store: Store) -> None:
    add(store)
    assert claim(store, limit=0) == []


@pytest.mark.parametrize("state", sorted(set(State) - {State.READY}))
def test_only_ready_jobs_are_given(store: Store, state: State) -> None:
    job = job_in(store, state)
    assert claim(store, tasks=[job.task]) == []


# ------------------------------------------------------------------------------------- order and time


def test_larger_priority_first_then_earlier_run_at_then_first_come(store: Store, clock: FakeClock) -> None:
    wall = clock.wall()
    late = add(store, run_at=wall - 1)
    early = add(store, run_at=wall - 9)
    tied = add(store, run_at=wall - 9)
    urgent = add(store, priority=5)
    lazy = add(store, priority=-5, run_at=wall - 99)
    wanted = [urgent.id, early.id, tied.id, late.id, lazy.id]
    worker = enrol(store)
    got = [claim(store, worker, limit=1)[0].id for _ in wanted]
    assert got == wanted


def test_first_come_means_first_added_not_smallest_id(store: Store) -> None:
    store.add([make_job(id=name) for name in ("z", "m", "a")])
    worker = enrol(store)
    assert [claim(store, worker, limit=1)[0].id for _ in range(3)] == ["z", "m", "a"]


def test_a_scheduled_job_is_given_at_its_instant_and_not_before(store: Store, clock: FakeClock) -> None:
    add(store, run_at=clock.wall() + 10)
    worker = enrol(store)
    clock.advance(9.75)
    assert claim(store, worker) == []
    clock.advance(0.25)
    assert len(claim(store, worker)) == 1


def test_an_urgent_job_that_is_scheduled_does_not_hide_those_that_are_due(store: Store, clock: FakeClock) -> None:
    add(store, priority=9, run_at=clock.wall() + 60)
    due = add(store, priority=0)
    assert [job.id for job in claim(store, limit=1)] == [due.id]


def test_run_at_is_wall_time_and_leases_are_not(store: Store, clock: FakeClock) -> None:
    add(store, run_at=clock.wall() + 3600)
    clock.set_wall(clock.wall() + 3600)
    [job] = claim(store)
    assert job.lease_until == clock.lease() + job.lease_s


def test_every_job_has_the_lease_of_its_own_policy(store: Store, clock: FakeClock) -> None:
    add(store, lease_s=5.0)
    add(store, lease_s=600.0)
    assert [job.lease_until for job in claim(store)] == [clock.lease() + 5, clock.lease() + 600]


# ------------------------------------------------------------------------------- tasks, queues, fairness


def test_jobs_of_other_tasks_stay_where_they_are(store: Store) -> None:
    strange, ours = add(store, task="strange", priority=9), add(store, task="ours")
    assert [job.id for job in claim(store, tasks=["ours", "more"], limit=1)] == [ours.id]
    assert row(store, strange.id) == strange


def test_a_thousand_jobs_of_an_unknown_task_do_not_block_the_queue(store: Store) -> None:
    add_many(store, [make_job(task="strange", priority=1) for _ in range(1000)])
    ours = add(store)
    assert [job.id for job in claim(store, limit=1)] == [ours.id]


def test_without_tasks_or_queues_nothing_is_given(store: Store) -> None:
    add(store)
    assert claim(store, tasks=[]) == []
    assert claim(store, queues=[]) == []


def test_jobs_of_other_queues_stay_where_they_are(store: Store) -> None:
    other = add(store, queue="other")
    assert claim(store) == []
    assert row(store, other.id) == other


def test_a_paused_queue_gives_nothing_until_it_is_resumed(store: Store) -> None:
    add(store, queue="a")
    add(store, queue="b")
    store.pause("a", True)
    worker = enrol(store)
    assert [job.queue for job in claim(store, worker, queues=["a", "b"])] == ["b"]
    store.pause("a", False)
    assert [job.queue for job in claim(store, worker, queues=["a", "b"])] == ["a"]


FAIRNESS = {
    # waiting in a, b, c; limit; given from a, b, c when asked for in this order
    "each gets the same": ((9, 9, 9), 6, (2, 2, 2)),
    "the first gets the odd one": ((9, 9, 9), 7, (3, 2, 2)),
    "the first two get the odd ones": ((9, 9, 9), 8, (3, 3, 2)),
    "one for each is an even share of four, and one is odd": ((9, 9, 9), 4, (2, 1, 1)),
    "one only: the first": ((9, 9, 9), 1, (1, 0, 0)),
    "two only: the first two": ((9, 9, 9), 2, (1, 1, 0)),
    "a flood does not starve the others": ((500, 1, 1), 3, (1, 1, 1)),
    "what one does not need goes to the first that does": ((0, 9, 9), 6, (0, 4, 2)),
    "what two do not need goes to the third": ((1, 1, 9), 6, (1, 1, 4)),
    "all that there is": ((1, 2, 3), 10, (1, 2, 3)),
    "nothing at all": ((0, 0, 0), 5, (0, 0, 0)),
}


@pytest.mark.parametrize(("waiting", "limit", "given"), FAIRNESS.values(), ids=FAIRNESS.keys())
def test_every_queue_gets_an_even_share_before_any_gets_more(
    store: Store, waiting: tuple[int, ...], limit: int, given: tuple[int, ...]
) -> None:
    for queue, jobs in zip("abc", waiting, strict=True):
        store.add([make_job(queue=queue) for _ in range(jobs)])
    got = [job.queue for job in claim(store, queues=["a", "b", "c"], limit=limit)]
    assert tuple(got.count(queue) for queue in "abc") == given


def test_the_order_in_which_queues_are_asked_for_decides_about_the_odd_one(store: Store) -> None:
    store.add([make_job(queue=queue) for queue in "aabb"])
    got = [job.queue for job in claim(store, queues=["b", "a"], limit=3)]
    assert sorted(got) == ["a", "b", "b"]


def test_priority_counts_within_a_queue_and_not_between_them(store: Store) -> None:
    store.add([make_job(queue="loud", priority=9) for _ in range(4)])
    store.add([make_job(queue="quiet") for _ in range(4)])
    got = [job.queue for job in claim(store, queues=["loud", "quiet"], limit=4)]
    assert sorted(got) == ["loud", "loud", "quiet", "quiet"]


def test_the_share_of_a_queue_is_filled_over_several_priorities(store: Store) -> None:
    store.add([make_job(queue="a", priority=priority) for priority in (1, 2, 3)])
    store.add([make_job(queue="b", priority=priority) for priority in (1, 2, 3)])
    got = sorted((job.queue, job.priority) for job in claim(store, queues=["a", "b"], limit=4))
    assert got == [("a", 2), ("a", 3), ("b", 2), ("b", 3)]


def test_a_queue_named_twice_gets_one_share(store: Store) -> None:
    store.add([make_job(queue=queue) for queue in "aaaabbbb"])
    got = [job.queue for job in claim(store, queues=["a", "b", "a"], limit=4)]
    assert sorted(got) == ["a", "a", "b", "b"]


# ---------------------------------------------------------------------------------------- taken ahead


def test_jobs_taken_ahead_are_leased_but_not_started(store: Store, clock: FakeClock) -> None:
    store.add([make_job() for _ in range(4)])
    jobs = claim(store, limit=1, ahead=2)
    assert [job.started for job in jobs] == [True, False, False]
    assert {job.state for job in jobs} == {State.RUNNING}
    assert {job.lease_until for job in jobs} == {clock.lease() + 30}
    assert {(job.attempt, job.fence) for job in jobs} == {(1, 1)}
    assert store.counts() == {"default": {State.RUNNING: 3, State.READY: 1}}


@pytest.mark.parametrize("on_crash", ["hold", "fail", "rollback"])
def test_what_is_dangerous_to_repeat_is_never_taken_ahead(store: Store, on_crash: str) -> None:
    first = add(store, on_crash=on_crash)
    second = add(store, on_crash=on_crash)
    harmless = add(store, priority=-1)
    started = {job.id: job.started for job in claim(store, limit=1, ahead=5)}
    assert started == {first.id: True, harmless.id: False}
    assert row(store, second.id) == second


def test_a_full_worker_may_take_ahead_only(store: Store) -> None:
    add(store)
    [job] = claim(store, limit=0, ahead=1)
    assert not job.started


@pytest.mark.parametrize("limit", [0, 1])
def test_what_may_not_be_taken_ahead_does_not_hide_what_may(store: Store, limit: int) -> None:
    if limit:
        add(store, priority=9)
    dangerous = [add(store, on_crash="hold") for _ in range(2)]
    harmless = add(store)
    jobs = claim(store, limit=limit, ahead=1)
    assert [job.id for job in jobs if not job.started] == [harmless.id]
    assert [row(store, job.id) for job in dangerous] == dangerous


def test_jobs_are_taken_ahead_fairly_too(store: Store) -> None:
    store.add([make_job(queue=queue) for queue in "aaaabbbb"])
    early = [job.queue for job in claim(store, queues=["a", "b"], limit=2, ahead=2) if not job.started]
    assert sorted(early) == ["a", "b"]


# --------------------------------------------------------------------------------- repeats and the dead


def test_a_claim_whose_answer_was_lost_returns_the_same_jobs_and_takes_no_more(store: Store, clock: FakeClock) -> None:
    store.add([make_job() for _ in range(5)])
    worker = enrol(store)
    first = store.claim(worker, "c-1", ["default"], ["t"], 2, 1)
    before = picture(store)
    clock.advance(5)
    second = store.claim(worker, "c-1", ["default"], ["t"], 2, 1)
    assert {job.id: job for job in second} == {job.id: job for job in first}
    assert picture(store) == before


def test_a_repeated_claim_does_not_return_what_was_settled_meanwhile(store: Store) -> None:
    store.add([make_job() for _ in range(2)])
    worker = enrol(store)
    first, second = store.claim(worker, "c-1", ["default"], ["t"], 2)
    settle(store, first, Succeeded())
    assert store.claim(worker, "c-1", ["default"], ["t"], 2) == [second]


def test_a_repeated_claim_does_not_return_what_another_claim_of_the_worker_took(store: Store) -> None:
    store.add([make_job() for _ in range(2)])
    worker = enrol(store)
    first = store.claim(worker, "c-1", ["default"], ["t"], 1)
    store.claim(worker, "c-2", ["default"], ["t"], 1)
    assert store.claim(worker, "c-1", ["default"], ["t"], 1) == first


def test_another_claim_id_takes_more(store: Store) -> None:
    store.add([make_job() for _ in range(4)])
    worker = enrol(store)
    taken = {job.id for name in ("c-1", "c-2") for job in store.claim(worker, name, ["default"], ["t"], 2)}
    assert len(taken) == 4


def test_the_claim_id_of_another_worker_gives_none_of_its_jobs(store: Store) -> None:
    add(store)
    store.claim(enrol(store), "c-1", ["default"], ["t"], 1)
    assert store.claim(enrol(store), "c-1", ["default"], ["t"], 1) == []


def test_an_unknown_worker_gets_nothing(store: Store) -> None:
    job = add(store)
    with pytest.raises(WorkerGone):
        store.claim("nobody", "c-1", ["default"], ["t"], 1)
    assert row(store, job.id) == job


def test_a_worker_marked_gone_gets_nothing(store: Store) -> None:
    worker = enrol(store)
    job = add(store)
    store.retire(worker, "killed")
    before = picture(store)
    with pytest.raises(WorkerGone):
        store.claim(worker, "c-1", ["default"], ["t"], 1)
    assert picture(store) == before
    assert row(store, job.id) == job


def test_a_worker_that_nobody_knows_is_told_so_even_when_there_is_no_job(store: Store) -> None:
    enrol(store)
    with pytest.raises(WorkerGone):
        store.claim("somebody else", "c-1", ["default"], ["t"], 1)


def test_a_worker_marked_gone_does_not_get_its_own_claim_again(store: Store) -> None:
    worker = enrol(store)
    add(store)
    store.claim(worker, "c-1", ["default"], ["t"], 1)
    store.retire(worker, "killed")
    with pytest.raises(WorkerGone):
        store.claim(worker, "c-1", ["default"], ["t"], 1)


def test_a_reaped_job_is_claimable_at_once_under_a_higher_fence(store: Store) -> None:
    zombie = start(store)
    settle(store, zombie, EXPIRED)
    successor = again(store, row(store, zombie.id))
    assert successor.fence > zombie.fence
    assert successor.attempt == 2


def test_two_thousand_jobs_are_claimed_in_one_batch(store: Store) -> None:
    new = [make_job() for _ in range(2000)]
    add_many(store, new)
    jobs = claim(store, limit=2000)
    assert [job.id for job in jobs] == [job.id for job in new]
    assert store.counts() == {"default": {State.RUNNING: 2000}}


def test_a_stranger_gets_nothing_although_others_are_enrolled(store: Store) -> None:
    job = add(store)
    enrol(store)
    with pytest.raises(WorkerGone):
        store.claim("a-stranger", "claim", ["default"], ["t"], 1)
    assert row(store, job.id) == job
