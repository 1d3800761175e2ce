"""Parking: a settlement that lets a workflow wait without a slot, unless something has come for it meanwhile."""

import threading
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from holdfast.core import acts
from holdfast.core.machine import ENDED, State
from holdfast.core.records import Job
from holdfast.core.settlement import Settlement
from holdfast.core.verdict import Cancelled, Failed, Outcome, Parked, Succeeded
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from tests.factory import (
    EXPIRED,
    STALE,
    a_signal,
    a_step,
    again,
    awaiting,
    claim,
    enrol,
    job_in,
    make_job,
    move,
    park,
    picture,
    record,
    row,
    settle,
    settle_for_good,
    settlement,
    start,
    start_flow,
)

ACCEPTED, ALREADY, REFUSED, AGAIN = Reply.ACCEPTED, Reply.ALREADY, Reply.REFUSED, Reply.AGAIN
ENDINGS: dict[State, Outcome] = {
    State.DONE: Succeeded("1"),
    State.DEAD: Failed("x"),
    State.CANCELLED: Cancelled(),
}


# ---------------------------------------------------------------------------------------------- waiting


def test_a_parked_workflow_has_no_lease_and_says_what_it_waits_for(store: Store, clock: FakeClock) -> None:
    job = start_flow(store)
    clock.advance(5)
    wake_at = clock.wall() + 60
    waiting = park(store, job, "signal:a", "job:b", wake_at=wake_at, question="Ship it?", inbox=0)
    assert (waiting.state, waiting.worker, waiting.lease_until) == (State.WAITING, None, None)
    assert waiting.run_at == job.run_at
    assert (waiting.wake_at, waiting.awaits, waiting.question) == (wake_at, awaiting("signal:a", "job:b"), "Ship it?")
    assert (waiting.fence, waiting.claim_id, waiting.ended_at) == (job.fence, job.claim_id, None)
    assert claim(store, tasks=[job.task]) == []
    assert store.counts() == {"default": {State.WAITING: 1}}
    [event] = store.journal(job.id)
    assert (event.kind, event.at, event.detail["question"]) == ("asked", clock.wall(), "Ship it?")


def test_waiting_costs_no_budget_and_keeps_what_the_judge_must_know(store: Store) -> None:
    job = start_flow(store)
    record(store, job, a_step(1, "started", has_undo=True), undoable=True, open_step="charge")
    waiting = park(store, row(store, job.id), "signal:a")
    assert (waiting.undoable, waiting.open_step) == (True, "charge")
    assert (waiting.failures, waiting.crashes, waiting.attempt) == (0, 0, 1)


def test_a_parking_whose_answer_was_lost_is_already_accepted(store: Store, clock: FakeClock) -> None:
    job = start_flow(store)
    park(store, job, "signal:a", wake_at=clock.wall() + 5)
    before = picture(store)
    assert settle(store, job, Parked("waits", awaits=awaiting("signal:b"))) is ALREADY
    assert picture(store) == before
    store.signal(a_signal(job, "a"))
    before = picture(store)
    assert settle(store, job, Parked("waits", awaits=awaiting("signal:a"))) is ALREADY, "also when it was woken since"
    assert picture(store) == before


@pytest.mark.parametrize("stale", STALE.values(), ids=STALE.keys())
def test_a_stale_lease_parks_nobody(store: Store, stale: object) -> None:
    lease = stale(store)  # type: ignore[operator]
    before = row(store, lease.job_id)
    forged = replace(settlement(start_flow(store), Parked("waits", awaits=awaiting("signal:a"))), lease=lease)
    assert store.settle([forged]) == [REFUSED]
    assert row(store, lease.job_id) == before


def test_a_job_that_was_asked_to_stop_is_judged_again(store: Store) -> None:
    job = start_flow(store)
    move(store, job.id, job.state, job.fence, acts.cancel(job, actor="ann"))
    before = picture(store)
    assert settle(store, job, Parked("waits")) is AGAIN
    assert picture(store) == before


# ------------------------------------------------------------------------------------- no lost wake-up


def test_a_workflow_that_has_not_seen_its_whole_inbox_does_not_park(store: Store, clock: FakeClock) -> None:
    job = start_flow(store, run_at=clock.wall() - 500)
    looked = store.inbox(job.id).count
    store.signal(a_signal(job, "other"))
    clock.advance(5)
    before = picture(store)
    assert settle(store, job, Parked("waits", awaits=awaiting("signal:a"), inbox=looked)) is AGAIN
    assert picture(store) == before
    after = park(store, job, "signal:a", wake_at=clock.wall() + 60, question="Ship it?", inbox=looked)
    assert (after.state, after.run_at, after.inbox) == (State.READY, clock.wall(), 1)
    assert (after.wake_at, after.awaits, after.question) == (None, None, None)
    assert (after.worker, after.lease_until, after.fence, after.claim_id) == (None, None, job.fence, job.claim_id)
    assert store.wake_due() is None
    assert again(store, after).fence == job.fence + 1


def test_a_workflow_that_has_seen_its_whole_inbox_parks(store: Store) -> None:
    job = start_flow(store)
    store.signal(a_signal(job))
    store.signal(a_signal(job))
    after = park(store, job, "signal:a", inbox=store.inbox(job.id).count)
    assert (after.state, after.awaits) == (State.WAITING, awaiting("signal:a"))


def test_a_workflow_that_reports_no_inbox_parks(store: Store) -> None:
    job = start_flow(store)
    store.signal(a_signal(job))
    assert park(store, job, "signal:a").state is State.WAITING


def test_an_ending_that_does_not_wait_is_not_changed_by_what_came(store: Store) -> None:
    job = start_flow(store)
    store.signal(a_signal(job))
    assert settle(store, job, Succeeded("1")) is ACCEPTED
    assert row(store, job.id).state is State.DONE


@pytest.mark.parametrize("of_a_child", [True, False], ids=["a child's end", "a signal"])
def test_whatever_comes_while_it_parks_nobody_sleeps_on_it(store: Store, of_a_child: bool) -> None:
    """Both happen at once, in either order: afterwards it is ready, or it has seen what came."""
    for number in range(25):
        job = start_flow(store)
        looked = store.inbox(job.id).count
        child = start(store, parent=job.id)
        awaited = f"job:{child.id}" if of_a_child else "signal:go"
        waits = Parked("waits", awaits=awaiting(awaited), inbox=looked)
        bringing = settlement(child, Succeeded())
        gate = threading.Barrier(2)

        def bring(bringing: Settlement = bringing, job: Job = job, gate: threading.Barrier = gate) -> None:
            gate.wait(60)
            if of_a_child:
                settle_for_good(store, bringing)
            else:
                store.signal(a_signal(job))

        thread = threading.Thread(target=bring)
        thread.start()
        gate.wait(60)
        answer = settle_for_good(store, settlement(job, waits))
        if answer is AGAIN:
            answer = settle_for_good(store, settlement(row(store, job.id), waits))
        assert answer is ACCEPTED
        thread.join(60)
        after = row(store, job.id)
        assert (after.state, after.inbox) == (State.READY, 1), f"in round {number}"


# --------------------------------------------------------------------------------------------- children


@pytest.mark.parametrize(("state", "outcome"), ENDINGS.items())
def test_the_end_of_a_child_wakes_the_parent_that_awaits_it(
    store: Store, clock: FakeClock, state: State, outcome: Outcome
) -> None:
    parent = start_flow(store)
    child = start(store, parent=parent.id, attempts_max=1)
    waiting = park(store, parent, "signal:a", f"job:{child.id}", wake_at=clock.wall() + 60)
    clock.advance(3)
    settle(store, child, outcome)
    assert row(store, child.id).state is state
    woken = replace(waiting, state=State.READY, run_at=clock.wall(), inbox=1, wake_at=None, awaits=None)
    assert row(store, parent.id) == woken


def test_a_child_that_rolled_back_has_ended_too(store: Store) -> None:
    parent = start_flow(store)
    child = start_flow(store, parent=parent.id, on_crash="rollback")
    park(store, parent, f"job:{child.id}")
    settle(store, child, EXPIRED)
    assert row(store, parent.id).state is State.WAITING, "it is not over"
    settle(store, again(store, row(store, child.id)), Succeeded())
    assert row(store, child.id).state is State.ROLLED_BACK
    assert row(store, parent.id).state is State.READY


@pytest.mark.parametrize("outcome", [Failed("x"), EXPIRED, Parked("waits")], ids=["failed", "lost", "parked"])
def test_a_child_that_goes_on_wakes_nobody(store: Store, outcome: Outcome) -> None:
    parent = start_flow(store)
    child = start_flow(store, parent=parent.id)
    waiting = park(store, parent, f"job:{child.id}")
    settle(store, child, outcome)
    assert row(store, parent.id) == waiting


def test_a_child_that_is_not_awaited_is_counted_and_wakes_nobody(store: Store) -> None:
    parent = start_flow(store)
    child = start(store, parent=parent.id)
    waiting = park(store, parent, "job:another", "signal:a")
    settle(store, child, Succeeded())
    assert row(store, parent.id) == replace(waiting, inbox=1)


def test_a_repeated_or_refused_end_of_a_child_is_not_counted_again(store: Store) -> None:
    parent = start_flow(store)
    zombie = start(store, parent=parent.id)
    settle(store, zombie, EXPIRED)
    child = again(store, row(store, zombie.id))
    assert [settle(store, each, Succeeded()) for each in (zombie, child, child)] == [REFUSED, ACCEPTED, ALREADY]
    assert store.inbox(parent.id).count == 1


@pytest.mark.parametrize("state", sorted(ENDED))
def test_a_parent_that_has_ended_is_left_alone(store: Store, state: State) -> None:
    parent = job_in(store, state, workflow=True)
    settle(store, start(store, parent=parent.id), Succeeded())
    assert row(store, parent.id) == parent


def test_a_parent_that_is_gone_or_is_no_workflow_changes_nothing(store: Store) -> None:
    plain = job_in(store, State.WAITING)
    for parent in ("nobody", plain.id):
        child = start(store, parent=parent)
        assert settle(store, child, Succeeded()) is ACCEPTED
    assert row(store, plain.id) == plain


def test_ending_a_child_by_hand_wakes_the_parent(store: Store) -> None:
    parent = start_flow(store)
    child = job_in(store, State.HELD, parent=parent.id)
    waiting = park(store, parent, f"job:{child.id}")
    other = job_in(store, State.READY, parent=parent.id)
    move(store, other.id, other.state, other.fence, acts.hold(other, actor="ann"))
    assert row(store, parent.id) == waiting, "a move that ends nothing"
    move(store, child.id, child.state, child.fence, acts.resolve(child, "done", 5.0, actor="ann"))
    assert (row(store, parent.id).state, row(store, parent.id).inbox) == (State.READY, 1)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]], ids=["parent first", "child first"])
def test_a_parent_that_parks_in_one_batch_with_the_end_of_its_child_is_ready(store: Store, order: list[int]) -> None:
    parent = start_flow(store)
    child = start(store, parent=parent.id)
    parked = settlement(parent, Parked("waits", awaits=awaiting(f"job:{child.id}"), inbox=0))
    both = [parked, settlement(child, Succeeded())]
    assert store.settle([both[place] for place in order]) == [ACCEPTED, ACCEPTED]
    after = row(store, parent.id)
    assert (after.state, after.inbox, after.awaits) == (State.READY, 1, None)


def test_many_children_of_many_parents_end_in_one_batch(store: Store) -> None:
    store.add([make_job(workflow=True, task="parent") for _ in range(20)])
    parents = claim(store, enrol(store), tasks=["parent"], limit=20)
    children: list[Job] = []
    for parent in parents:
        store.add([make_job(task="child", parent=parent.id) for _ in range(5)])
    children = claim(store, enrol(store), tasks=["child"], limit=100)
    awaited: dict[str, Sequence[str]] = {
        parent.id: [f"job:{child.id}" for child in children if child.parent == parent.id] for parent in parents
    }
    for parent in parents:
        park(store, parent, *awaited[parent.id], inbox=0)
    batch = [settlement(child, Succeeded() if number % 2 else Failed("x")) for number, child in enumerate(children)]
    batch.append(settlement(start(store), Succeeded()))
    assert store.settle(batch) == [ACCEPTED] * 101
    ended = {child.id for number, child in enumerate(children) if number % 2}
    for parent in parents:
        came = sum(child.id in ended for child in children if child.parent == parent.id)
        assert (row(store, parent.id).inbox, row(store, parent.id).state) == (came, State.READY)
