"""record: what an attempt of a workflow did, all or nothing, under its fence; what is recorded changes no more."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import acts
from holdfast.core.machine import State
from holdfast.core.records import Filter, Lease, Record
from holdfast.core.verdict import Failed, Outcome, Parked, Succeeded
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from tests.factory import (
    EXPIRED,
    STALE,
    a_record,
    a_signal,
    a_step,
    add,
    again,
    claim,
    delete,
    enrol,
    make_job,
    move,
    park,
    picture,
    record,
    row,
    settle,
    stale_reports,
    start,
    start_flow,
)

ACCEPTED, REFUSED, TAKEN, GONE = Reply.ACCEPTED, Reply.REFUSED, Reply.TAKEN, Reply.GONE
every_stale = pytest.mark.parametrize("stale", STALE.values(), ids=STALE.keys())

# -------------------------------------------------------------------------------------- what is written


def test_a_record_writes_its_steps_and_leaves_the_lease_as_it_is(store: Store) -> None:
    job = start_flow(store)
    assert record(store, job, a_step(1), a_step(2, "started", has_undo=True)) is ACCEPTED
    assert store.steps(job.id) == [a_step(1), a_step(2, "started", has_undo=True)]
    assert row(store, job.id) == job


def test_no_records_are_nothing(store: Store) -> None:
    before = picture(store)
    assert store.record([]) == []
    assert picture(store) == before


def test_a_started_step_is_rewritten_by_the_attempt_that_starts_or_ends_it(store: Store) -> None:
    """The code may have got an undo since, or other arguments: what counts is what was begun last."""
    job = start_flow(store)
    record(store, job, a_step(1, "started", arguments="[1]", started_at=1.0))
    second = a_step(1, "started", arguments="[2]", started_at=2.0, attempt=2, fence=3, has_undo=True, repeatable=False)
    record(store, job, second)
    assert store.steps(job.id) == [second]
    ended = replace(second, state="recorded", result="5", ended_at=4.0, attempt=3, fence=4)
    record(store, job, ended)
    assert store.steps(job.id) == [ended]


@pytest.mark.parametrize("state", ["started", "recorded"])
def test_what_is_recorded_changes_no_more(store: Store, state: str) -> None:
    job = start_flow(store)
    first = a_step(1, result='"paid"', has_undo=True)
    record(store, job, first)
    other = a_step(1, state, name="other", result='"again"', error="e", error_kind="E", attempt=7, fence=7)
    assert record(store, job, other) is ACCEPTED
    assert store.steps(job.id) == [first]


def test_an_undo_leaves_the_result_and_says_which_attempt_did_it(store: Store) -> None:
    job = start_flow(store)
    first = a_step(1, result='"paid"', arguments="[1]", has_undo=True)
    record(store, job, first)
    undone = a_step(1, "undone", attempt=4, fence=6, started_at=50.0, undone_at=60.0, name="x", arguments=None)
    record(store, job, undone)
    expected = [replace(first, state="undone", attempt=4, fence=6, undone_at=60.0)]
    assert store.steps(job.id) == expected
    for state in ("started", "recorded", "undone"):  # and that is its end
        assert record(store, job, a_step(1, state, attempt=9, result="9", ended_at=99.0)) is ACCEPTED
        assert store.steps(job.id) == expected


def test_the_tries_of_a_step_are_counted_until_it_is_recorded(store: Store) -> None:
    job = start_flow(store)
    for tries, retry_at in ((0, None), (1, 20.5), (1, None), (2, 30.5)):
        begun = a_step(1, "started", repeatable=False, tries=tries, retry_at=retry_at)
        record(store, job, begun)
        assert store.steps(job.id) == [begun]
    ended = a_step(1, repeatable=False, tries=3, has_undo=True)
    record(store, job, ended)
    record(store, job, a_step(1, "started", tries=9, retry_at=40.5))
    assert store.steps(job.id) == [ended]
    record(store, job, a_step(1, "undone", tries=9, retry_at=40.5, undone_at=50.0))
    assert store.steps(job.id) == [replace(ended, state="undone", undone_at=50.0)]


def test_a_step_that_was_begun_and_not_recorded_can_be_undone(store: Store) -> None:
    job = start_flow(store)
    record(store, job, a_step(1, "started", has_undo=True))
    undone = a_step(1, "undone", has_undo=True, attempt=2)
    record(store, job, undone)
    assert store.steps(job.id) == [undone]


def test_a_recorded_error_is_kept_with_its_kind(store: Store) -> None:
    job = start_flow(store)
    failed = a_step(1, error="no luck", error_kind="ValueError")
    record(store, job, replace(failed, state="started", error=None, error_kind=None, ended_at=None))
    record(store, job, failed)
    assert store.steps(job.id) == [failed]


# ------------------------------------------------------------------------------- what the judge must know


def test_an_open_step_stands_on_the_row_until_none_is_open(store: Store) -> None:
    job = start_flow(store)
    record(store, job, a_step(1, "started"), open_step="charge")
    assert row(store, job.id) == replace(job, open_step="charge")
    record(store, job, a_step(2))
    assert row(store, job.id).open_step == "charge"
    record(store, job, a_step(1), open_step="")
    assert row(store, job.id) == job


def test_undoable_is_said_once_and_stays(store: Store) -> None:
    job = start_flow(store)
    record(store, job, a_step(1, "started", has_undo=True), undoable=True)
    assert row(store, job.id) == replace(job, undoable=True)
    record(store, job, a_step(2))
    record(store, job, a_step(1, has_undo=True), open_step="")
    assert row(store, job.id).undoable is True


def test_in_a_batch_the_last_word_about_a_workflow_counts(store: Store) -> None:
    job = start_flow(store)
    words: list[dict[str, Any]] = [{"open_step": "a"}, {"undoable": True}, {"open_step": ""}, {"open_step": "b"}, {}]
    batch = [a_record(job, a_step(number), **word) for number, word in enumerate(words, 1)]
    assert store.record(batch) == [ACCEPTED] * 5
    assert row(store, job.id) == replace(job, open_step="b", undoable=True)


def test_the_last_word_counts_also_when_one_of_them_starts_a_child(store: Store) -> None:
    job, other = start_flow(store), start_flow(store)
    opens, closes = a_record(job, a_step(1, "started"), open_step="a"), a_record(job, a_step(1), open_step="")
    child = a_record(job, a_step(2, kind="start"), jobs=(make_job(parent=job.id),), open_step="b")
    assert store.record([opens, a_record(other, a_step(1)), child, closes]) == [ACCEPTED] * 4
    assert row(store, job.id).open_step is None
    assert store.steps(job.id) == [a_step(1), a_step(2, kind="start")]


# ------------------------------------------------------------------------------------------- the fence


@every_stale
def test_a_stale_lease_is_refused_changes_nothing_and_leaves_one_report(
    store: Store, clock: FakeClock, stale: Callable[[Store], Lease]
) -> None:
    lease, other = stale(store), start_flow(store)
    known = len(stale_reports(store, lease.job_id))
    store.signal(a_signal(other))
    [signal] = store.inbox(other.id).signals
    before = picture(store)
    attempt = a_record(
        lease,
        a_step(1, name="pay"),
        open_step="pay",
        undoable=True,
        taken=(signal.id,),
        jobs=(make_job(id="child"),),
        sent=(a_signal(other, id="sent"),),
    )
    for _ in range(3):
        assert store.record([attempt]) == [REFUSED]
    assert store.record([replace(attempt, jobs=(), sent=())]) == [REFUSED]
    reports = stale_reports(store, lease.job_id)
    assert len(reports) == known + 1
    now = row(store, lease.job_id)
    said = {"verb": "record", "step": "pay", "state": now.state.value, "fence_now": now.fence}
    assert (reports[-1].detail, reports[-1].fence, reports[-1].worker) == (said, lease.fence, "w")
    assert store.get("child") is None
    assert store.steps(lease.job_id) == []
    events = [event for event in store.journal(limit=10_000) if event != reports[-1]]
    assert (store.find(Filter(limit=10_000)), events) == (before[0], before[2])
    assert store.inbox(other.id).signals == [signal]


@pytest.mark.parametrize("outcome", [Succeeded(), Failed("x"), Parked("waits")], ids=["done", "failed", "parked"])
def test_an_attempt_that_has_ended_itself_writes_nothing_more(store: Store, outcome: Outcome) -> None:
    """It is no zombie: a thread of it was late."""
    job = start_flow(store)
    settle(store, job, outcome)
    before = picture(store)
    assert record(store, job, a_step(1), open_step="a", undoable=True) is REFUSED
    assert record(store, job, a_step(1), jobs=(make_job(),)) is REFUSED
    assert picture(store) == before


def test_a_lease_on_a_job_that_is_not_there_is_refused(store: Store) -> None:
    assert record(store, Lease("nobody", 1, "c"), a_step(1)) is REFUSED
    assert record(store, Lease("nobody", 1, "c"), a_step(1), jobs=(make_job(),)) is REFUSED
    assert store.journal() == []


@pytest.mark.parametrize("zombie_first", [True, False])
@pytest.mark.parametrize("plain", [True, False])
def test_a_zombie_in_one_batch_with_its_successor_gets_nothing_in(
    store: Store, zombie_first: bool, plain: bool
) -> None:
    """Both may run in one process: a thread that was given up on, and the attempt after it."""
    zombie = start_flow(store)
    store.signal(a_signal(zombie, id="wanted"))
    settle(store, zombie, EXPIRED)
    successor = again(store, row(store, zombie.id))
    late = a_record(zombie, a_step(1, name="late"), open_step="late", undoable=True, taken=("wanted",))
    late = late if plain else replace(late, jobs=(make_job(id="late"),))
    fine = a_record(successor, a_step(2, name="fine"))
    batch, answers = [late, fine], [REFUSED, ACCEPTED]
    if not zombie_first:
        batch, answers = batch[::-1], answers[::-1]
    assert store.record(batch) == answers
    assert store.steps(zombie.id) == [a_step(2, name="fine")]
    assert row(store, zombie.id) == replace(successor, inbox=1)
    assert [signal.id for signal in store.inbox(zombie.id).signals] == ["wanted"]
    assert [event.detail["step"] for event in stale_reports(store)] == ["late"]
    assert store.get("late") is None


def test_a_reap_and_a_record_exclude_each_other(store: Store) -> None:
    job = start_flow(store)
    assert record(store, job, a_step(1, "started"), open_step="charge") is ACCEPTED
    settle(store, row(store, job.id), EXPIRED)
    held = row(store, job.id)
    assert (held.state, held.open_step) == (State.HELD, "charge")
    assert record(store, job, a_step(1), open_step="") is REFUSED
    assert store.steps(job.id) == [a_step(1, "started")]
    assert row(store, job.id) == held


# ------------------------------------------------------------------------------------------- lost answers


def test_a_repeated_record_is_accepted_and_changes_nothing(store: Store) -> None:
    job, other = start_flow(store), start_flow(store)
    store.signal(a_signal(job, id="taken"))
    batch = [
        a_record(job, a_step(1, "started", has_undo=True), undoable=True),
        a_record(job, a_step(1, has_undo=True, result="1")),
        a_record(job, a_step(2, kind="wait"), taken=("taken",)),
        a_record(job, a_step(3, kind="start"), jobs=(make_job(id="child", key="k", parent=job.id),)),
        a_record(job, a_step(4, kind="signal"), sent=(a_signal(other, id="sent"),)),
    ]
    assert store.record(batch) == [ACCEPTED] * 5
    before = picture(store)
    assert store.record(batch) == [ACCEPTED] * 5
    assert [store.record([each]) for each in batch] == [[ACCEPTED]] * 5
    assert picture(store) == before


def test_a_repeat_is_accepted_when_child_and_addressee_have_ended_since(store: Store) -> None:
    job, other = start_flow(store), start_flow(store)
    child = make_job(id="child", key="k", task="child")
    batch = [a_record(job, a_step(1), jobs=(child,)), a_record(job, a_step(2), sent=(a_signal(other, id="sent"),))]
    store.record(batch)
    [running] = claim(store, tasks=["child"])
    settle(store, running, Succeeded())
    settle(store, row(store, other.id), Succeeded())
    store.add([make_job(key="k")])  # the key has another owner by now
    before = picture(store)
    assert store.record(batch) == [ACCEPTED] * 2
    assert picture(store) == before


# ------------------------------------------------------------------------------------------------ batches


def test_a_batch_of_many_workflows_is_answered_in_its_order(store: Store) -> None:
    store.add([make_job(workflow=True) for _ in range(600)])
    jobs = claim(store, enrol(store), limit=600)
    for job in jobs[::3]:
        settle(store, job, EXPIRED)
    batch = [a_record(job, a_step(1, result=f'"{job.id}"'), a_step(2)) for job in jobs]
    assert store.record(batch) == [ACCEPTED if number % 3 else REFUSED for number in range(600)]
    for number, job in enumerate(jobs):
        expected = [a_step(1, result=f'"{job.id}"'), a_step(2)] if number % 3 else []
        assert store.steps(job.id) == expected
    assert len(stale_reports(store)) == 200


def test_a_thousand_steps_of_one_workflow_go_in_one_batch(store: Store) -> None:
    job = start_flow(store)
    steps = [a_step(number) for number in range(1, 1001)]
    assert store.record([a_record(job, step) for step in steps[:500]]) == [ACCEPTED] * 500
    assert record(store, job, *steps[500:]) is ACCEPTED
    assert store.steps(job.id) == steps


def test_one_step_may_come_several_times_in_a_batch(store: Store) -> None:
    job = start_flow(store)
    states = [a_step(1, "started", has_undo=True), a_step(1, has_undo=True, result="1"), a_step(1, result="2")]
    assert store.record([a_record(job, step) for step in states]) == [ACCEPTED] * 3
    assert store.steps(job.id) == [states[1]]


def test_a_record_is_that_of_its_own_workflow(store: Store) -> None:
    store.add([make_job(workflow=True), make_job(workflow=True)])
    one, other = claim(store)
    store.signal(a_signal(other, id="others"))
    seen = row(store, other.id)
    greedy = a_record(one, a_step(1), open_step="a", undoable=True, taken=("others",))
    assert store.record([greedy, a_record(other, a_step(2))]) == [ACCEPTED, ACCEPTED]
    assert row(store, other.id) == seen
    assert (store.steps(one.id), store.steps(other.id)) == ([a_step(1)], [a_step(2)])
    assert [signal.id for signal in store.inbox(other.id).signals] == ["others"]


# --------------------------------------------------------------------------------- signals that are taken


def test_a_signal_is_taken_once(store: Store) -> None:
    job = start_flow(store)
    store.signal(a_signal(job, id="one"))
    store.signal(a_signal(job, id="two"))
    assert record(store, job, a_step(3, kind="wait"), taken=("one",)) is ACCEPTED
    inbox = store.inbox(job.id)
    assert ([signal.id for signal in inbox.signals], inbox.count) == (["two"], 2)


def test_the_first_step_that_takes_a_signal_keeps_it(store: Store) -> None:
    """Set aside is what the first taker did; so it comes back only with that."""
    job = start_flow(store)
    store.signal(a_signal(job, id="one"))
    record(store, job, a_step(1, kind="wait"), taken=("one",))
    record(store, job, a_step(5, kind="wait"), taken=("one",))
    settle(store, row(store, job.id), Failed("x", final=True))
    dead = row(store, job.id)
    verdict = replace(acts.revive(dead, store.now().wall, actor="ann"), aside_from=5)
    assert move(store, dead.id, dead.state, dead.fence, verdict) is True
    assert store.inbox(job.id).signals == []


# -------------------------------------------------------------------------------------------- children


@pytest.mark.parametrize("workflow", [True, False])
def test_a_child_is_stored_with_the_step_that_starts_it(store: Store, clock: FakeClock, workflow: bool) -> None:
    job = start_flow(store)
    child = make_job(id="child", parent=job.id, workflow=workflow, key="k", delay_s=5.0)
    assert record(store, job, a_step(1, kind="start"), jobs=(child,)) is ACCEPTED
    stored = row(store, "child")
    assert (stored.state, stored.parent, stored.workflow, stored.key) == (State.READY, job.id, workflow, "k")
    assert stored.run_at == clock.wall() + 5.0
    assert row(store, job.id) == job


def test_a_child_whose_key_is_taken_is_not_started_and_nothing_is_recorded(store: Store) -> None:
    store.add([make_job(key="k")])
    job, other = start_flow(store), start_flow(store)
    children = (make_job(), make_job(key="k"))
    before = picture(store)
    facts: dict[str, Any] = {"open_step": "a", "undoable": True}
    assert record(store, job, a_step(1), jobs=children, sent=(a_signal(other),), **facts) is TAKEN
    assert picture(store) == before


@pytest.mark.parametrize("of", ["another parent", "no parent", "another task"])
@pytest.mark.parametrize("has_ended", [False, True])
def test_a_child_whose_id_is_taken_is_not_started_and_nothing_is_recorded(
    store: Store, of: str, has_ended: bool
) -> None:
    job, other = start_flow(store), start_flow(store)
    child = make_job(id="child", task="ship", parent=job.id)
    stranger = {"another parent": {"parent": other.id}, "no parent": {"parent": None}, "another task": {"task": "pay"}}
    store.add([replace(child, **stranger[of])])
    if has_ended:
        [running] = claim(store, tasks=["ship", "pay"])
        settle(store, running, Succeeded())
    store.add([make_job(task="ship", parent=job.id)])  # a child of its own, which has another id
    before = picture(store)
    facts: dict[str, Any] = {"open_step": "a", "undoable": True}
    assert record(store, job, a_step(1), jobs=(make_job(), child), sent=(a_signal(other),), **facts) is TAKEN
    assert picture(store) == before


def test_two_children_with_one_key_are_not_both_started(store: Store) -> None:
    job = start_flow(store)
    before = picture(store)
    assert record(store, job, a_step(1), jobs=(make_job(key="k"), make_job(key="k"))) is TAKEN
    assert picture(store) == before


def test_one_bad_record_does_not_keep_the_others(store: Store) -> None:
    store.add([make_job(key="k")])
    job, other = start_flow(store), start_flow(store)
    batch: list[Record] = [
        a_record(job, a_step(1)),
        a_record(job, a_step(2), jobs=(make_job(key="k"),)),
        a_record(other, a_step(1), sent=(a_signal(job, id="fine"),)),
        a_record(job, a_step(3), sent=(replace(a_signal(job), job_id="nobody"),)),
        a_record(job, a_step(4)),
    ]
    assert store.record(batch) == [ACCEPTED, TAKEN, ACCEPTED, GONE, ACCEPTED]
    assert store.steps(job.id) == [a_step(1), a_step(4)]
    assert store.steps(other.id) == [a_step(1)]
    assert [signal.id for signal in store.inbox(job.id).signals] == ["fine"]


# ------------------------------------------------------------------------------------ signals that are sent


def test_a_sent_signal_arrives_with_the_step_that_sends_it(store: Store, clock: FakeClock) -> None:
    job, other = start_flow(store), start_flow(store)
    waiting = park(store, other, "signal:go")
    clock.advance(3)
    sent = a_signal(other, value="7", actor="w")
    assert record(store, job, a_step(1, kind="signal"), sent=(sent,)) is ACCEPTED
    assert store.inbox(other.id).signals == [replace(sent, sent_at=clock.wall())]
    now = row(store, other.id)
    assert (now.state, now.inbox, now.run_at) == (State.READY, waiting.inbox + 1, clock.wall())
    [event] = store.journal(other.id, kinds=["signalled"])
    assert (event.detail, event.actor, event.fence) == ({"name": "go"}, "w", other.fence)


@pytest.mark.parametrize("plain", [True, False], ids=["a job", "nobody"])
def test_a_signal_that_cannot_be_delivered_leaves_nothing(store: Store, plain: bool) -> None:
    job, other = start_flow(store), start(store, workflow=False)
    signal = a_signal(other) if plain else replace(a_signal(other), job_id="nobody")
    before = picture(store)
    assert record(store, job, a_step(1), jobs=(make_job(),), sent=(a_signal(job), signal)) is GONE
    assert picture(store) == before


def test_a_workflow_may_send_to_itself(store: Store) -> None:
    job = start_flow(store)
    assert record(store, job, a_step(1), sent=(a_signal(job, id="own"),)) is ACCEPTED
    assert row(store, job.id) == replace(job, inbox=1)
    assert [signal.id for signal in store.inbox(job.id).signals] == ["own"]


def test_steps_and_signals_go_with_their_job(store: Store) -> None:
    job = start(store, workflow=True)
    store.signal(a_signal(job))
    record(store, job, a_step())
    settle(store, job, Succeeded())
    done = row(store, job.id)
    assert delete(store, done.id, done.state, done.fence)
    assert store.steps(job.id) == []
    assert store.inbox(job.id).signals == []


def test_a_job_that_was_claimed_with_others_does_not_speak_for_them(store: Store) -> None:
    for _ in range(2):
        add(store, workflow=True)
    lost, kept = claim(store, limit=2)
    assert (lost.fence, lost.claim_id) == (kept.fence, kept.claim_id)
    settle(store, lost, EXPIRED)
    assert record(store, lost, a_step()) is REFUSED
    assert record(store, kept, a_step()) is ACCEPTED
    assert (store.steps(lost.id), len(store.steps(kept.id))) == ([], 1)
