"""move: a person's act, applied only if state and fence are still what the person saw."""

from collections.abc import Callable

import pytest

from holdfast.core import acts
from holdfast.core.acts import Move
from holdfast.core.limits import Setting
from holdfast.core.machine import ENDED, State
from holdfast.core.records import Filter, Job, Seen
from holdfast.core.verdict import Failed, Succeeded, Verdict
from holdfast.errors import KeyTaken
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from tests.factory import (
    EXPIRED,
    add,
    add_many,
    again,
    claim,
    job_in,
    make_job,
    move,
    park,
    picture,
    revive,
    row,
    settle,
    start,
    start_flow,
)

Act = Callable[[Job], Verdict]

ACTS: dict[str, tuple[State, Act, State]] = {
    "cancel a ready job": (State.READY, lambda job: acts.cancel(job, actor="ann"), State.CANCELLED),
    "cancel a waiting job": (State.WAITING, lambda job: acts.cancel(job, actor="ann"), State.CANCELLED),
    "cancel a held job": (State.HELD, lambda job: acts.cancel(job, actor="ann"), State.CANCELLED),
    "revive a held job": (State.HELD, lambda job: acts.revive(job, 5.0, actor="ann"), State.READY),
    "revive a dead job": (State.DEAD, lambda job: acts.revive(job, 5.0, actor="ann"), State.READY),
    "revive a cancelled job": (State.CANCELLED, lambda job: acts.revive(job, 5.0, actor="ann"), State.READY),
    "answer retry": (State.HELD, lambda job: acts.resolve(job, "retry", 5.0, actor="ann"), State.READY),
    "answer done": (
        State.HELD,
        lambda job: acts.resolve(job, "done", 5.0, actor="ann", result='"x"'),
        State.DONE,
    ),
    "answer fail": (State.HELD, lambda job: acts.resolve(job, "fail", 5.0, actor="ann"), State.DEAD),
    "hold a ready job": (State.READY, lambda job: acts.hold(job, actor="ann"), State.HELD),
    "hold a waiting job": (State.WAITING, lambda job: acts.hold(job, actor="ann"), State.HELD),
}
every_act = pytest.mark.parametrize(("state", "act", "after"), ACTS.values(), ids=ACTS.keys())


@every_act
def test_an_act_is_applied_and_raises_the_fence(
    store: Store, clock: FakeClock, state: State, act: Act, after: State
) -> None:
    seen = job_in(store, state)
    clock.advance(60)
    assert move(store, seen.id, seen.state, seen.fence, act(seen)) is True
    moved = row(store, seen.id)
    assert (moved.state, moved.fence, moved.claim_id) == (after, seen.fence + 1, None)
    assert (moved.worker, moved.lease_until, moved.attempt) == (None, None, seen.attempt)
    assert moved.ended_at == (clock.wall() if after in ENDED else None)


@every_act
def test_an_act_is_journalled_under_the_fence_that_was_seen_with_its_actor(
    store: Store, clock: FakeClock, state: State, act: Act, after: State
) -> None:
    seen = job_in(store, state)
    known = len(store.journal(seen.id))
    clock.advance(60)
    verdict = act(seen)
    move(store, seen.id, seen.state, seen.fence, verdict)
    events = store.journal(seen.id)[known:]
    assert [event.kind for event in events] == [note.kind for note in verdict.events]
    assert {(event.fence, event.actor, event.at) for event in events} == {(seen.fence, "ann", clock.wall())}


@every_act
def test_an_act_whose_answer_was_lost_is_repeated_and_changes_nothing(
    store: Store, state: State, act: Act, after: State
) -> None:
    seen = job_in(store, state)
    move(store, seen.id, seen.state, seen.fence, act(seen))
    before = picture(store)
    assert move(store, seen.id, seen.state, seen.fence, act(seen)) is False
    assert picture(store) == before


@every_act
def test_an_act_on_another_fence_than_was_seen_changes_nothing(
    store: Store, state: State, act: Act, after: State
) -> None:
    seen = job_in(store, state)
    before = picture(store)
    for fence in (seen.fence - 1, seen.fence + 1):
        assert move(store, seen.id, seen.state, fence, act(seen)) is False
    assert picture(store) == before


@every_act
def test_an_act_on_another_state_than_was_seen_changes_nothing(
    store: Store, state: State, act: Act, after: State
) -> None:
    seen = job_in(store, state)
    before = picture(store)
    for other in set(State) - {state}:
        assert move(store, seen.id, other, seen.fence, act(seen)) is False
    assert picture(store) == before


def test_an_act_on_an_unknown_job_is_false(store: Store) -> None:
    assert move(store, "nobody", State.HELD, 1, acts.cancel(job_in(store, State.HELD), actor="ann")) is False


def test_an_approval_repeated_after_the_second_hold_starts_no_third_run(store: Store) -> None:
    seen = job_in(store, State.HELD)
    assert revive(store, seen)
    second = again(store, row(store, seen.id))
    settle(store, second, EXPIRED)
    assert row(store, seen.id).state is State.HELD
    assert not revive(store, seen)
    assert row(store, seen.id).state is State.HELD


# -------------------------------------------------------------------------------------------- revive


def test_a_revived_job_has_fresh_budgets_and_keeps_its_history(store: Store, clock: FakeClock) -> None:
    job = start(store, attempts_max=2, base_s=0.0, cap_s=0.0)
    settle(store, job, Failed("at first"))
    settle(store, again(store, row(store, job.id)), EXPIRED)
    dead = row(store, job.id)
    assert (dead.state, dead.failures, dead.crashes, dead.zombies) == (State.DEAD, 1, 1, 1)
    clock.advance(60)
    revive(store, dead)
    job = row(store, dead.id)
    assert (job.failures, job.crashes, job.ended_at) == (0, 0, None)
    assert (job.error, job.attempt, job.zombies) == (dead.error, dead.attempt, dead.zombies)
    assert job.run_at == clock.wall()


def test_a_revived_job_is_claimed_under_a_higher_fence(store: Store) -> None:
    dead = job_in(store, State.DEAD)
    revive(store, dead)
    job = again(store, row(store, dead.id))
    assert (job.fence, job.attempt) == (dead.fence + 2, dead.attempt + 1)


def test_a_revived_job_is_no_longer_asked_to_stop(store: Store) -> None:
    running = start(store)
    move(store, running.id, State.RUNNING, running.fence, acts.cancel(running, actor="ann"))
    settle(store, row(store, running.id), EXPIRED)
    cancelled = row(store, running.id)
    assert (cancelled.state, cancelled.cancel_requested) == (State.CANCELLED, True)
    revive(store, cancelled)
    assert row(store, running.id).cancel_requested is False


@pytest.mark.parametrize("state", [State.DEAD, State.CANCELLED])
def test_reviving_onto_a_key_that_is_taken_raises_and_changes_nothing(store: Store, state: State) -> None:
    ended = job_in(store, state, key="order-42")
    add(store, key="order-42")
    before = picture(store)
    with pytest.raises(KeyTaken):
        revive(store, ended)
    assert picture(store) == before


def test_what_the_person_saw_is_checked_before_the_key(store: Store) -> None:
    ended = job_in(store, State.DEAD, key="order-42")
    add(store, key="order-42")
    verdict = acts.revive(ended, 0.0, actor="ann")
    assert move(store, ended.id, State.DEAD, ended.fence + 1, verdict) is False


def test_a_held_job_keeps_its_key_and_can_be_revived_onto_it(store: Store) -> None:
    held = job_in(store, State.HELD, key="order-42")
    assert revive(store, held)


def test_a_key_is_free_for_a_revival_once_its_holder_has_ended(store: Store) -> None:
    ended = job_in(store, State.DEAD, key="order-42")
    holder = start(store, key="order-42")
    settle(store, holder, Succeeded())
    assert revive(store, ended)


# ----------------------------------------------------------------------------------- cancel, move in queue


def test_a_running_job_is_asked_to_stop_and_keeps_its_lease(store: Store) -> None:
    job = start(store)
    assert move(store, job.id, State.RUNNING, job.fence, acts.cancel(job, actor="ann")) is True
    asked = row(store, job.id)
    assert asked.cancel_requested is True
    assert (asked.state, asked.fence, asked.claim_id, asked.worker) == (
        State.RUNNING,
        job.fence,
        job.claim_id,
        job.worker,
    )
    assert (asked.lease_until, asked.started, asked.ended_at) == (job.lease_until, True, None)
    assert [event.kind for event in store.journal(job.id)] == ["moved"]


def test_a_job_that_is_asked_to_stop_before_its_start_is_not_taken_for_started(store: Store) -> None:
    add(store)
    [job] = claim(store, limit=0, ahead=1)
    assert move(store, job.id, State.RUNNING, job.fence, acts.cancel(job, actor="ann")) is True
    assert (row(store, job.id).cancel_requested, row(store, job.id).started) == (True, False)


def test_a_cancel_that_comes_after_the_end_is_refused(store: Store) -> None:
    job = start(store)
    settle(store, job, Succeeded())
    assert move(store, job.id, State.RUNNING, job.fence, acts.cancel(job, actor="ann")) is False
    assert row(store, job.id).state is State.DONE


def test_a_cancel_aimed_at_one_attempt_does_not_hit_the_next(store: Store) -> None:
    zombie = start(store)
    settle(store, zombie, EXPIRED)
    successor = again(store, row(store, zombie.id))
    assert move(store, zombie.id, State.RUNNING, zombie.fence, acts.cancel(zombie, actor="ann")) is False
    assert row(store, zombie.id) == successor


def test_a_claim_that_comes_before_a_persons_act_wins(store: Store) -> None:
    seen = add(store)
    claim(store)
    assert move(store, seen.id, State.READY, seen.fence, acts.cancel(seen, actor="ann")) is False
    assert row(store, seen.id).state is State.RUNNING


def test_a_persons_act_that_comes_before_a_settle_does_not_refuse_it(store: Store) -> None:
    job = start(store)
    move(store, job.id, State.RUNNING, job.fence, acts.cancel(job, actor="ann"))
    assert settle(store, job, Succeeded()) is Reply.ACCEPTED


def test_a_ready_job_is_moved_in_its_queue(store: Store, clock: FakeClock) -> None:
    first, second = add(store), add(store)
    verdict = acts.reschedule(second, actor="ann", priority=9, run_at=clock.wall() - 1)
    assert move(store, second.id, State.READY, second.fence, verdict) is True
    moved = row(store, second.id)
    assert (moved.priority, moved.run_at, moved.state, moved.fence) == (9, clock.wall() - 1, State.READY, 0)
    assert [job.id for job in claim(store, limit=1)] == [second.id]
    assert row(store, first.id) == first


@pytest.mark.parametrize("group", [None, "acme"])
def test_a_ready_job_is_moved_to_another_queue(store: Store, group: str | None) -> None:
    job, other = add(store, queue="slow", group=group, priority=3), add(store, queue="slow")
    assert move(store, job.id, State.READY, job.fence, acts.reschedule(job, actor="ann", queue="fast", reason="so"))
    moved = row(store, job.id)
    assert (moved.queue, moved.priority, moved.run_at, moved.state) == ("fast", 3, job.run_at, State.READY)
    event = store.journal(job.id)[-1]
    assert (event.kind, event.actor) == ("moved", "ann")
    assert event.detail == {"queue": "fast", "from_queue": "slow", "note": "so"}
    assert store.counts()["fast"] == {State.READY: 1}
    assert [each.id for each in claim(store, queues=["slow"], limit=9)] == [other.id]
    assert [each.id for each in claim(store, queues=["fast"], limit=9)] == [job.id]


def test_a_job_with_a_group_takes_turns_in_the_queue_that_it_was_moved_to(store: Store) -> None:
    store.limit("fast", Setting(group_limit=1))
    jobs = [add(store, queue="slow", group="acme") for _ in range(2)]
    moves = [Move(job.seen, acts.reschedule(job, actor="ann", queue="fast")) for job in jobs]
    assert store.move(moves) == [Reply.ACCEPTED] * 2
    assert len(claim(store, queues=["fast"], limit=9)) == 1


# ----------------------------------------------------------------------------------------------- many at once


def test_acts_on_many_jobs_are_answered_in_their_order(store: Store, clock: FakeClock) -> None:
    ready, held, dead, other = add(store), job_in(store, State.HELD), job_in(store, State.DEAD), add(store)
    moves = [
        Move(ready.seen, acts.cancel(ready, actor="ann", reason="twice")),
        Move(Seen("nobody", State.HELD, 1), acts.cancel(held, actor="ann")),
        Move(held.seen, acts.resolve(held, "done", 5.0, actor="bob", result='"x"')),
        Move(other.seen._replace(fence=7), acts.cancel(other, actor="ann")),
        Move(dead.seen, acts.revive(dead, 5.0, actor="ann")),
    ]
    known = {job.id: len(store.journal(job.id)) for job in (ready, held, dead, other)}
    clock.advance(60)
    yes, no = Reply.ACCEPTED, Reply.REFUSED
    assert store.move(moves) == [yes, no, yes, no, yes]
    assert [row(store, job.id).state for job in (ready, held, dead)] == ["cancelled", "done", "ready"]
    assert row(store, other.id) == other
    assert (row(store, ready.id).error, row(store, held.id).result) == ("twice", '"x"')
    lines = {job_id: [event.actor for event in store.journal(job_id)[number:]] for job_id, number in known.items()}
    assert lines == {ready.id: ["ann"], held.id: ["bob"], dead.id: ["ann"], other.id: []}
    assert store.counts() == {"default": {State.CANCELLED: 1, State.DONE: 1, State.READY: 2}}
    before = picture(store)
    assert store.move(moves) == [no] * 5
    assert picture(store) == before


def test_no_act_is_no_work(store: Store) -> None:
    before = picture(store)
    assert store.move([]) == []
    assert picture(store) == before


def test_of_jobs_with_one_key_the_first_comes_alive(store: Store) -> None:
    dead = [job_in(store, State.DEAD, key="order-42") for _ in range(3)]
    other = job_in(store, State.DEAD, key="order-43")
    moves = [Move(job.seen, acts.revive(job, 5.0, actor="ann")) for job in (dead[1], dead[0], other, dead[2])]
    assert store.move(moves) == [Reply.ACCEPTED, Reply.TAKEN, Reply.ACCEPTED, Reply.TAKEN]
    assert [row(store, job.id).state for job in dead] == ["dead", "ready", "dead"]
    assert [len(store.journal(job.id, kinds=["revived"])) for job in dead] == [0, 1, 0]


def test_a_key_stays_taken_during_a_batch_of_acts_that_ends_its_holder(store: Store) -> None:
    dead = job_in(store, State.DEAD, key="order-42")
    holder = add(store, key="order-42")
    moves = [Move(holder.seen, acts.cancel(holder, actor="ann")), Move(dead.seen, acts.revive(dead, 5.0, actor="ann"))]
    assert store.move(moves) == [Reply.ACCEPTED, Reply.TAKEN]
    assert store.move(moves) == [Reply.REFUSED, Reply.ACCEPTED]


def test_an_act_that_was_seen_wrongly_takes_no_key(store: Store) -> None:
    first, second = (job_in(store, State.DEAD, key="order-42") for _ in range(2))
    stale = Move(first.seen._replace(fence=9), acts.revive(first, 5.0, actor="ann"))
    assert store.move([stale, Move(second.seen, acts.revive(second, 5.0, actor="ann"))]) == [
        Reply.REFUSED,
        Reply.ACCEPTED,
    ]


def test_jobs_that_stay_alive_or_end_take_no_key(store: Store) -> None:
    held = job_in(store, State.HELD, key="order-42")
    ended = [job_in(store, State.CANCELLED, key="order-43"), job_in(store, State.HELD, key="order-44")]
    moves = [
        Move(held.seen, acts.revive(held, 5.0, actor="ann")),
        Move(ended[0].seen, acts.revive(ended[0], 5.0, actor="ann")),
        Move(ended[1].seen, acts.cancel(ended[1], actor="ann")),
    ]
    assert store.move(moves) == [Reply.ACCEPTED] * 3


def test_children_of_one_workflow_that_end_together_are_all_told_to_it(store: Store) -> None:
    parent = start_flow(store)
    children = [add(store, parent=parent.id) for _ in range(3)]
    park(store, parent, *(f"job:{child.id}" for child in children))
    store.move([Move(child.seen, acts.cancel(child, actor="ann")) for child in children])
    assert (row(store, parent.id).state, row(store, parent.id).inbox) == (State.READY, 3)


def test_a_large_page_of_acts_is_applied(store: Store) -> None:
    add_many(store, [make_job() for _ in range(1_000)])
    jobs = store.find(Filter(limit=1_000))
    assert store.move([Move(job.seen, acts.cancel(job, actor="ann")) for job in jobs]) == [Reply.ACCEPTED] * 1_000
    assert store.counts() == {"default": {State.CANCELLED: 1_000}}
    assert len(store.journal(kinds=["cancelled"], limit=2_000)) == 1_000
