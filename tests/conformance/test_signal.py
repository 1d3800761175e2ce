"""signal, inbox, rouse; parking and waking: nobody is woken for nothing, and no wake-up is lost."""

import pytest

from holdfast.core import acts
from holdfast.core.machine import ENDED, State
from holdfast.core.records import Filter, Job
from holdfast.core.verdict import Cancelled, Failed, Lost, Outcome, Parked, Succeeded
from holdfast.stores.protocol import Answer, Store
from holdfast.testing import FakeClock
from tests.factory import a_signal, a_step, add, again, job_in, record, row, settle, start

ACCEPTED, ALREADY, GONE = Answer.ACCEPTED, Answer.ALREADY, Answer.GONE


def parked(store: Store, *awaits: str, wake_at: float | None = None, question: str | None = None) -> Job:
    job = start(store, workflow=True)
    assert settle(store, job, Parked("waits", wake_at, awaits, question, job.inbox)) is ACCEPTED
    waiting = row(store, job.id)
    assert waiting.state is State.WAITING
    return waiting


def test_a_signal_is_kept_in_order_until_it_is_taken(store: Store, clock: FakeClock) -> None:
    job = add(store, workflow=True)
    signals = [a_signal(job, name, value=value, actor="ann") for name, value in (("b", "1"), ("a", None), ("b", '"x"'))]
    for signal in signals:
        assert store.signal(signal) is ACCEPTED
    inbox = store.inbox(job.id)
    assert inbox.count == row(store, job.id).inbox == 3
    assert [(each.id, each.name, each.value, each.actor) for each in inbox.signals] == [
        (each.id, each.name, each.value, each.actor) for each in signals
    ]
    assert {each.sent_at for each in inbox.signals} == {clock.wall()}
    assert [(each.kind, each.actor, each.detail) for each in store.journal(job.id)][:1] == [
        ("signalled", "ann", {"name": "b"})
    ]


def test_the_same_signal_counts_once(store: Store) -> None:
    job = add(store, workflow=True)
    signal = a_signal(job)
    assert [store.signal(signal), store.signal(signal)] == [ACCEPTED, ALREADY]
    assert (row(store, job.id).inbox, len(store.journal(job.id))) == (1, 1)


@pytest.mark.parametrize("state", sorted(ENDED))
def test_what_has_ended_gets_no_signal(store: Store, state: State) -> None:
    job = job_in(store, state, workflow=True)
    assert store.signal(a_signal(job)) is GONE
    assert row(store, job.id) == job
    assert store.inbox(job.id).signals == []


def test_a_plain_job_and_nobody_get_no_signal(store: Store) -> None:
    plain = add(store)
    assert store.signal(a_signal(plain)) is GONE
    assert store.signal(a_signal(plain, job_id="nobody")) is GONE
    assert store.inbox("nobody").signals == []


def test_parking_says_until_when_for_what_and_whom_it_asks(store: Store, clock: FakeClock) -> None:
    job = parked(store, "signal:a", "job:1", wake_at=clock.wall() + 5, question="Ship it?")
    assert (job.wake_at, job.awaits, job.question) == (clock.wall() + 5, ["signal:a", "job:1"], "Ship it?")
    assert (job.worker, job.lease_until) == (None, None)
    assert [each.id for each in store.find(Filter(asking=True))] == [job.id]
    assert [each.id for each in store.find(Filter(workflow=True))] == [job.id]
    assert store.find(Filter(workflow=False)) == store.find(Filter(asking=False)) == []


def test_what_it_awaits_wakes_it_and_nothing_else_does(store: Store, clock: FakeClock) -> None:
    job = parked(store, "signal:a", wake_at=clock.wall() + 99, question="?")
    clock.advance(3)
    store.signal(a_signal(job, "b"))
    assert (row(store, job.id).state, row(store, job.id).inbox) == (State.WAITING, 1)
    store.signal(a_signal(job, "a"))
    woken = row(store, job.id)
    assert (woken.state, woken.run_at, woken.inbox) == (State.READY, clock.wall(), 2)
    assert (woken.wake_at, woken.awaits, woken.question) == (None, None, None)
    assert (woken.failures, woken.crashes, woken.fence) == (0, 0, job.fence)
    assert again(store, woken).attempt == 2


def test_a_signal_between_the_look_and_the_parking_is_not_missed(store: Store, clock: FakeClock) -> None:
    job = start(store, workflow=True)
    seen = store.inbox(job.id).count
    store.signal(a_signal(job, "a"))
    clock.advance(2)
    parks = Parked("waits", clock.wall() + 60, ("signal:a",), "?", seen)
    assert settle(store, job, parks) is ACCEPTED
    woken = row(store, job.id)
    assert (woken.state, woken.run_at, woken.wake_at) == (State.READY, clock.wall(), None)
    assert (woken.awaits, woken.question, woken.lease_until) == (None, None, None)


ENDINGS: dict[str, Outcome] = {
    "done": Succeeded("1"),
    "dead": Failed("no"),
    "cancelled": Cancelled(),
    "lost": Lost("exit", "killed"),
}


@pytest.mark.parametrize("outcome", ENDINGS.values(), ids=ENDINGS.keys())
def test_the_end_of_a_child_wakes_its_parent(store: Store, outcome: Outcome) -> None:
    parent = parked(store, "job:child")
    child = start(store, id="child", parent=parent.id, attempts_max=1, crashes_max=1)
    other = start(store, id="other", parent=parent.id)
    settle(store, other, Succeeded())
    assert (row(store, parent.id).state, row(store, parent.id).inbox) == (State.WAITING, 1)
    assert settle(store, child, outcome) is ACCEPTED
    assert (row(store, parent.id).state, row(store, parent.id).inbox) == (State.READY, 2)


def test_a_child_that_is_run_again_has_not_ended(store: Store) -> None:
    parent = parked(store, "job:child")
    child = start(store, id="child", parent=parent.id)
    settle(store, child, Failed("at first"))
    assert row(store, parent.id) == parent


def test_a_child_that_a_person_ends_wakes_its_parent(store: Store) -> None:
    parent = parked(store, "job:child")
    child = add(store, id="child", parent=parent.id)
    assert store.move(child.id, child.state, child.fence, acts.cancel(child, actor="ann"))
    assert row(store, parent.id).state is State.READY


def test_a_child_that_ends_before_its_parent_parks_is_not_missed(store: Store) -> None:
    parent = start(store, workflow=True)
    child = start(store, parent=parent.id)
    settle(store, child, Succeeded())
    assert settle(store, parent, Parked("waits", None, (f"job:{child.id}",), None, parent.inbox)) is ACCEPTED
    assert row(store, parent.id).state is State.READY


def test_a_parent_and_its_children_may_end_in_one_batch(store: Store) -> None:
    from tests.factory import settlement

    parent = start(store, workflow=True)
    children = [start(store, parent=parent.id) for _ in range(3)]
    batch = [settlement(job, Succeeded()) for job in (children[0], parent, *children[1:])]
    assert store.settle(batch) == [ACCEPTED] * 4
    assert row(store, parent.id).state is State.DONE


def test_a_timer_wakes_at_its_instant_and_says_when_the_next_one_is(store: Store, clock: FakeClock) -> None:
    assert store.rouse() is None
    now = clock.wall()
    first, second = parked(store, wake_at=now + 10), parked(store, "signal:a", wake_at=now + 20, question="?")
    forever = parked(store, "signal:a")
    assert store.rouse() == now + 10
    clock.advance(9.5)
    assert store.rouse() == now + 10
    assert row(store, first.id) == first
    clock.advance(0.5)
    assert store.rouse() == now + 20
    assert (row(store, first.id).state, row(store, first.id).run_at) == (State.READY, clock.wall())
    clock.advance(100)
    assert store.rouse() is None
    woken = row(store, second.id)
    assert (woken.state, woken.wake_at, woken.awaits, woken.question) == (State.READY, None, None, None)
    assert row(store, forever.id) == forever


def test_timers_are_woken_so_many_at_a_time_the_earliest_first(store: Store, clock: FakeClock) -> None:
    now = clock.wall()
    jobs = [parked(store, wake_at=now + number) for number in (3, 1, 2)]
    clock.advance(10)
    assert store.rouse(limit=2) == now + 3
    assert [row(store, job.id).state for job in jobs] == [State.WAITING, State.READY, State.READY]


@pytest.mark.parametrize("act", ["cancel", "hold", "rollback"])
def test_who_is_taken_out_of_waiting_waits_for_nothing(store: Store, clock: FakeClock, act: str) -> None:
    job = parked(store, "signal:a", wake_at=clock.wall() + 5, question="?")
    verdicts = {
        "cancel": acts.cancel(job, actor="ann"),
        "hold": acts.hold(job, actor="ann"),
        "rollback": acts.rollback(job, clock.wall(), actor="ann"),
    }
    assert store.move(job.id, job.state, job.fence, verdicts[act])
    moved = row(store, job.id)
    assert (moved.wake_at, moved.awaits, moved.question) == (None, None, None)
    assert moved.rolling_back is (act == "rollback")
    clock.advance(10)
    store.rouse()
    assert row(store, job.id) == moved


def test_what_a_person_says_of_a_step_is_written_with_the_move(store: Store, clock: FakeClock) -> None:
    job = start(store, workflow=True)
    record(store, job, a_step(state="started", repeatable=False, result=None, ended_at=None), open_step="step 1")
    settle(store, row(store, job.id), Lost("exit", "killed"))
    held = row(store, job.id)
    assert (held.state, held.open_step) == (State.HELD, "step 1")
    verdict = acts.resolve(held, "done", clock.wall(), actor="ann", result='"yes"', steps=store.steps(job.id))
    assert not store.move(held.id, held.state, held.fence - 1, verdict)
    assert store.steps(job.id)[0].state == "started"
    assert store.move(held.id, held.state, held.fence, verdict)
    assert (row(store, job.id).state, row(store, job.id).open_step) == (State.READY, None)
    [step] = store.steps(job.id)
    assert (step.state, step.result, step.ended_at) == ("recorded", '"yes"', clock.wall())


def test_steps_are_set_aside_and_their_signals_wait_again(store: Store, clock: FakeClock) -> None:
    job = start(store, workflow=True, attempts_max=1)
    kept, given_back = a_signal(job), a_signal(job)
    store.signal(kept)
    store.signal(given_back)
    record(store, job, a_step(1, kind="wait"), taken=(kept.id,))
    record(store, job, a_step(2), a_step(4))
    record(store, job, a_step(3, kind="wait"), taken=(given_back.id,))
    settle(store, job, Failed("no"))
    dead = row(store, job.id)
    steps = store.steps(job.id)
    verdict = acts.retry_from(dead, steps[1], steps, clock.wall(), actor="ann")
    assert store.move(dead.id, dead.state, dead.fence, verdict)
    assert [step.position for step in store.steps(job.id)] == [1]
    assert [(step.position, step.aside) for step in store.steps(job.id, aside=True)] == [
        *((1, 0), (2, dead.fence), (3, dead.fence), (4, dead.fence)),
    ]
    assert [each.id for each in store.inbox(job.id).signals] == [given_back.id]
    revived = again(store, row(store, job.id))
    record(store, revived, a_step(2, result='"new"'))
    assert [step.result for step in store.steps(job.id)] == ["1", '"new"']


def test_a_persons_answer_is_not_given_back(store: Store) -> None:
    job = start(store, workflow=True)
    answer, paid = a_signal(job, "approve:1"), a_signal(job, "paid")
    for each in (answer, paid):
        store.signal(each)
    record(store, job, a_step(1, kind="approve"), taken=(answer.id,))
    record(store, job, a_step(2, kind="wait"), taken=(paid.id,))
    settle(store, job, Lost("exit", "gone"))
    ready = row(store, job.id)
    store.move(job.id, ready.state, ready.fence, acts.cancel(ready, actor="ann"))
    cancelled, steps = row(store, job.id), store.steps(job.id)
    verdict = acts.retry_from(cancelled, steps[0], steps, 0.0, actor="ann")
    assert store.move(job.id, cancelled.state, cancelled.fence, verdict)
    assert [signal.name for signal in store.inbox(job.id).signals] == ["paid"]


def test_why_a_signal_was_sent_is_in_the_journal_and_its_value_is_not(store: Store) -> None:
    job = add(store, workflow=True)
    for signal in (a_signal(job, "a", note="from the bank"), a_signal(job, "b", value='"secret"')):
        store.signal(signal)
    assert [event.detail for event in store.journal(job.id)] == [{"name": "a", "note": "from the bank"}, {"name": "b"}]
    assert {signal.note for signal in store.inbox(job.id).signals} == {None}


def test_what_was_taken_before_that_and_by_others_stays_taken(store: Store) -> None:
    job, other = start(store, workflow=True), start(store, workflow=True)
    mine, others = [a_signal(job, "paid") for _ in range(2)], a_signal(other, "paid")
    for each in (*mine, others):
        store.signal(each)
    record(store, job, a_step(1), taken=(mine[0].id,))
    record(store, job, a_step(2), taken=(mine[1].id,))
    record(store, other, a_step(2), taken=(others.id,))
    settle(store, job, Failed("no"))
    ready = row(store, job.id)
    store.move(job.id, ready.state, ready.fence, acts.cancel(ready, actor="ann"))
    cancelled, steps = row(store, job.id), store.steps(job.id)
    verdict = acts.retry_from(cancelled, steps[1], steps, 0.0, actor="ann")
    assert store.move(job.id, cancelled.state, cancelled.fence, verdict)
    assert [signal.id for signal in store.inbox(job.id).signals] == [mine[1].id]
    assert store.inbox(other.id).signals == []
