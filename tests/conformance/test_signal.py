"""signal: kept until its workflow takes it, delivered once, and it wakes who awaits it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from holdfast.core import acts
from holdfast.core.machine import ENDED, LIVE, State
from holdfast.core.verdict import Failed, Lost, Succeeded
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from tests.conformance.test_add import AWKWARD
from tests.factory import (
    a_signal,
    a_step,
    add,
    again,
    awaiting,
    job_in,
    move,
    park,
    picture,
    record,
    row,
    settle,
    start,
    start_flow,
)

ACCEPTED, ALREADY, GONE = Reply.ACCEPTED, Reply.ALREADY, Reply.GONE


@pytest.mark.parametrize("state", sorted(LIVE - {State.WAITING}))
def test_a_signal_before_the_wait_is_kept_and_counted(store: Store, clock: FakeClock, state: State) -> None:
    job = job_in(store, state, workflow=True)
    clock.advance(5)
    signal = a_signal(job, value='{"a": 1}', actor="ann")
    assert store.signal(signal) is ACCEPTED
    inbox = store.inbox(job.id)
    assert (inbox.count, inbox.signals) == (1, [replace(signal, sent_at=clock.wall())])
    assert row(store, job.id) == replace(job, inbox=1)


def test_a_signal_is_journalled_under_the_fence_of_its_workflow(store: Store, clock: FakeClock) -> None:
    job = start_flow(store)
    store.signal(a_signal(job, "paid", actor="ann"))
    [event] = store.journal(job.id)
    assert (event.kind, event.detail, event.actor) == ("signalled", {"name": "paid"}, "ann")
    assert (event.fence, event.worker, event.at) == (job.fence, None, clock.wall())


@pytest.mark.parametrize("answer", [True, False])
def test_an_answer_to_a_question_is_journalled_and_not_kept_with_it(store: Store, answer: bool) -> None:
    job = start_flow(store)
    signal = a_signal(job, "approve:1", value="null", answer=answer, note="so be it")
    store.signal(signal)
    [event] = store.journal(job.id)
    assert event.detail == {"name": "approve:1", "answer": answer, "note": "so be it"}
    assert [(each.answer, each.note) for each in store.inbox(job.id).signals] == [(None, None)]


@pytest.mark.parametrize("state", sorted(ENDED))
def test_an_ended_workflow_takes_no_signal(store: Store, state: State) -> None:
    job = job_in(store, state, workflow=True)
    before = picture(store)
    assert store.signal(a_signal(job)) is GONE
    assert picture(store) == before


@pytest.mark.parametrize("state", sorted(State))
def test_a_plain_job_takes_no_signal(store: Store, state: State) -> None:
    job = job_in(store, state)
    before = picture(store)
    assert store.signal(a_signal(job)) is GONE
    assert store.signal(replace(a_signal(job), job_id="nobody")) is GONE
    assert picture(store) == before
    assert store.inbox(job.id).signals == []


def test_a_repeated_signal_is_delivered_once(store: Store) -> None:
    job = start_flow(store)
    signal = a_signal(job)
    assert store.signal(signal) is ACCEPTED
    before = picture(store)
    assert store.signal(signal) is ALREADY
    assert picture(store) == before
    record(store, job, a_step(1, kind="wait"), taken=(signal.id,))
    before = picture(store)
    assert store.signal(signal) is ALREADY, "also when it was taken"
    assert picture(store) == before


def test_one_event_reaches_every_workflow_that_it_is_sent_to(store: Store) -> None:
    one, other = park(store, start_flow(store), "signal:go"), park(store, start_flow(store), "signal:go")
    for job in (one, other):
        event = a_signal(job, id="evt_42")
        assert (store.signal(event), store.signal(event)) == (ACCEPTED, ALREADY)
        assert row(store, job.id).state is State.READY
    record(store, again(store, row(store, one.id)), a_step(1, kind="wait"), taken=("evt_42",))
    assert (store.inbox(one.id).signals, [each.id for each in store.inbox(other.id).signals]) == ([], ["evt_42"])


def test_a_workflow_sends_one_event_to_several(store: Store) -> None:
    sender, *reached = [start_flow(store) for _ in range(3)]
    for number, job in enumerate(reached, 1):
        assert record(store, sender, a_step(number, kind="signal"), sent=(a_signal(job, id="evt_42"),)) is ACCEPTED
    assert [[each.id for each in store.inbox(job.id).signals] for job in reached] == [["evt_42"]] * 2


def test_a_repeat_is_known_after_its_workflow_has_ended(store: Store) -> None:
    job = park(store, start_flow(store), "signal:go")
    signal = a_signal(job)
    store.signal(signal)
    settle(store, again(store, row(store, job.id)), Succeeded())
    assert store.signal(signal) is ALREADY
    assert store.signal(a_signal(job)) is GONE


def test_the_same_signal_sent_by_many_at_once_is_delivered_once(store: Store) -> None:
    for _ in range(10):
        job = start_flow(store)
        signal = a_signal(job)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(store.signal, [signal] * 8))
        assert sorted(answers) == [ACCEPTED, *[ALREADY] * 7]
        assert store.inbox(job.id).count == 1
        assert len(store.journal(job.id, kinds=["signalled"])) == 1


def test_signals_of_many_at_once_are_all_counted(store: Store) -> None:
    job = start_flow(store)
    signals = [a_signal(job) for _ in range(40)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(store.signal, signals)) == [ACCEPTED] * 40
    inbox = store.inbox(job.id)
    assert (inbox.count, {signal.id for signal in inbox.signals}) == (40, {signal.id for signal in signals})


@pytest.mark.parametrize("awaits", [("signal:go",), ("job:x", "signal:other", "signal:go")])
def test_a_signal_wakes_the_workflow_that_awaits_it(store: Store, clock: FakeClock, awaits: tuple[str, ...]) -> None:
    waiting = park(store, start_flow(store), *awaits, wake_at=clock.wall() + 60, question="Ship it?")
    clock.advance(7)
    assert store.signal(a_signal(waiting)) is ACCEPTED
    woken = replace(waiting, state=State.READY, run_at=clock.wall(), inbox=1, wake_at=None, awaits=None, question=None)
    assert row(store, waiting.id) == woken
    assert store.wake_due() is None
    assert again(store, woken).fence == waiting.fence + 1


def test_an_answer_reaches_a_workflow_that_still_awaits_it(store: Store, clock: FakeClock) -> None:
    waiting = park(store, start_flow(store), "signal:go", wake_at=clock.wall() + 60, question="Ship it?")
    answer = a_signal(waiting, seen_fence=waiting.fence)
    assert store.signal(answer) is ACCEPTED
    assert store.inbox(waiting.id).signals == [replace(answer, sent_at=clock.wall(), seen_fence=None)]
    assert row(store, waiting.id).state is State.READY
    assert store.signal(answer) is ALREADY
    assert store.signal(a_signal(waiting, seen_fence=waiting.fence)) is GONE, "it asks nobody any more"


@pytest.mark.parametrize("name", ["go", "other"])
def test_an_answer_to_a_question_that_was_given_up_is_not_kept(store: Store, clock: FakeClock, name: str) -> None:
    waiting = park(store, start_flow(store), "signal:go", wake_at=clock.wall() + 60, question="Ship it?")
    if name == "go":
        clock.advance(60)
        store.wake_due()
    before = picture(store)
    assert store.signal(a_signal(waiting, name, seen_fence=waiting.fence)) is GONE
    assert picture(store) == before
    assert (store.inbox(waiting.id).count, store.inbox(waiting.id).signals) == (0, [])


def test_an_answer_is_not_for_the_next_time_it_asks(store: Store, clock: FakeClock) -> None:
    first = park(store, start_flow(store), "signal:go", wake_at=clock.wall() + 60, question="Ship it?")
    clock.advance(60)
    store.wake_due()
    second = park(store, again(store, first), "signal:go", question="Ship it?")
    before = picture(store)
    assert store.signal(a_signal(first, seen_fence=first.fence)) is GONE
    assert picture(store) == before
    assert store.signal(a_signal(second, seen_fence=second.fence)) is ACCEPTED


@pytest.mark.parametrize("name", ["other", "", "g", "go ", "go%", "GO", "signal:go"])
def test_another_signal_is_kept_and_wakes_nobody(store: Store, clock: FakeClock, name: str) -> None:
    waiting = park(store, start_flow(store), "signal:go", "job:go", wake_at=clock.wall() + 60, question="Ship it?")
    clock.advance(7)
    assert store.signal(a_signal(waiting, name)) is ACCEPTED
    assert row(store, waiting.id) == replace(waiting, inbox=1)
    assert len(store.inbox(waiting.id).signals) == 1


def test_a_workflow_that_only_sleeps_is_not_woken(store: Store, clock: FakeClock) -> None:
    waiting = park(store, start_flow(store), wake_at=clock.wall() + 60)
    store.signal(a_signal(waiting))
    assert row(store, waiting.id) == replace(waiting, inbox=1)


def test_a_signal_is_for_its_workflow_and_no_other(store: Store) -> None:
    one, other = park(store, start_flow(store), "signal:go"), park(store, start_flow(store), "signal:go")
    store.signal(a_signal(one))
    assert row(store, other.id) == other
    assert store.inbox(other.id).signals == []


def test_steps_are_set_aside_and_their_signals_wait_again(store: Store, clock: FakeClock) -> None:
    job = start(store, workflow=True, attempts_max=1)
    kept, given_back = a_signal(job), a_signal(job)
    store.signal(kept)
    store.signal(given_back)
    record(store, job, a_step(1, kind="wait", result="1"), taken=(kept.id,))
    record(store, job, a_step(2), a_step(4))
    record(store, job, a_step(3, kind="wait"), taken=(given_back.id,))
    settle(store, job, Failed("no"))
    dead = row(store, job.id)
    steps = store.steps(job.id)
    verdict = acts.retry_from(dead, steps[1], steps, clock.wall(), actor="ann")
    assert move(store, dead.id, dead.state, dead.fence, verdict)
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
    move(store, job.id, ready.state, ready.fence, acts.cancel(ready, actor="ann"))
    cancelled, steps = row(store, job.id), store.steps(job.id)
    verdict = acts.retry_from(cancelled, steps[0], steps, 0.0, actor="ann")
    assert move(store, job.id, cancelled.state, cancelled.fence, verdict)
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
    move(store, job.id, ready.state, ready.fence, acts.cancel(ready, actor="ann"))
    cancelled, steps = row(store, job.id), store.steps(job.id)
    verdict = acts.retry_from(cancelled, steps[1], steps, 0.0, actor="ann")
    assert move(store, job.id, cancelled.state, cancelled.fence, verdict)
    assert [signal.id for signal in store.inbox(job.id).signals] == [mine[1].id]
    assert store.inbox(other.id).signals == []


@pytest.mark.parametrize("text", AWKWARD.values(), ids=AWKWARD.keys())
def test_any_text_comes_back_as_it_was_and_is_awaited_as_it_is(store: Store, text: str) -> None:
    waiting = park(store, start_flow(store), f"signal:{text}", question=text)
    assert (waiting.awaits, waiting.question) == (awaiting(f"signal:{text}"), text)
    store.signal(a_signal(waiting, text, value=text, actor=text))
    [signal] = store.inbox(waiting.id).signals
    assert (signal.name, signal.value, signal.actor) == (text, text, text)
    assert row(store, waiting.id).state is State.READY
