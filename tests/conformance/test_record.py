"""record: what an attempt of a workflow did; fenced, all or nothing, never twice. And `steps`, which reads it."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from holdfast.core.machine import State
from holdfast.core.records import Lease, Record
from holdfast.core.verdict import Released, Succeeded
from holdfast.stores.protocol import Answer, Store
from tests.conformance.test_add import AWKWARD
from tests.factory import (
    STALE,
    a_signal,
    a_step,
    add,
    again,
    make_job,
    picture,
    record,
    row,
    settle,
    stale_reports,
    start,
)

ACCEPTED, REFUSED, TAKEN, GONE = Answer.ACCEPTED, Answer.REFUSED, Answer.TAKEN, Answer.GONE


def test_steps_come_back_as_they_were_recorded_in_their_order(store: Store) -> None:
    job = start(store, workflow=True)
    steps = [
        a_step(2, has_undo=True, repeatable=False, arguments="[1]", attempt=3, fence=4),
        a_step(1, state="started", result=None, ended_at=None, kind="wait", path="1.2.1"),
        a_step(10, error="ValueError: no", error_kind="ValueError", result=None),
    ]
    assert record(store, job, *steps) is ACCEPTED
    assert store.steps(job.id) == [steps[1], steps[0], steps[2]]


@pytest.mark.parametrize("text", AWKWARD)
def test_every_text_comes_back_as_it_was(store: Store, text: str) -> None:
    job = start(store, workflow=True)
    step = a_step(name=text, path=text, result=text, error=text, error_kind=text, arguments=text)
    assert record(store, job, step) is ACCEPTED
    assert store.steps(job.id) == [step]


def test_steps_are_read_in_pages(store: Store) -> None:
    job = start(store, workflow=True)
    record(store, job, *(a_step(number) for number in range(1, 8)))
    pages, after = [], 0
    while page := store.steps(job.id, after, limit=3):
        pages.append([step.position for step in page])
        after = page[-1].position
    assert pages == [[1, 2, 3], [4, 5, 6], [7]]
    assert store.steps("nobody") == []


def test_a_started_step_is_recorded_and_a_recorded_one_changes_no_more(store: Store) -> None:
    job = start(store, workflow=True)
    record(store, job, a_step(state="started", result=None, ended_at=None))
    assert record(store, job, a_step(result='"first"')) is ACCEPTED
    assert record(store, job, a_step(result='"second"')) is ACCEPTED
    assert record(store, job, a_step(state="started", result=None)) is ACCEPTED
    assert store.steps(job.id) == [a_step(result='"first"')]


def test_a_step_that_is_undone_keeps_its_result_and_stays_undone(store: Store) -> None:
    job = start(store, workflow=True)
    record(store, job, a_step())
    assert record(store, job, a_step(state="undone", result=None, attempt=2, fence=3, ended_at=9.0)) is ACCEPTED
    assert record(store, job, a_step(result='"again"')) is ACCEPTED
    assert store.steps(job.id) == [a_step(state="undone", attempt=2, fence=3, ended_at=9.0)]


@pytest.mark.parametrize("stale", STALE.values(), ids=STALE.keys())
def test_a_stale_lease_records_nothing_and_leaves_one_report(store: Store, stale: Callable[[Store], Lease]) -> None:
    lease = stale(store)
    job = row(store, lease.job_id)
    target = add(store, workflow=True)
    for more in ({}, {"jobs": (make_job(id="child"),)}, {"sent": (a_signal(target),)}, {"open_step": "x"}):
        [answer] = store.record([Record(lease=lease, worker="w", steps=(a_step(name="late"),), **more)])  # type: ignore[arg-type]
        assert answer is REFUSED
    assert row(store, job.id) == job
    assert row(store, target.id) == target
    assert store.get("child") is None
    assert store.steps(job.id) == []
    [report] = stale_reports(store, job.id)
    assert (report.fence, report.worker) == (lease.fence, "w")
    assert (report.detail["verb"], report.detail["step"]) == ("record", "late")


def test_who_has_ended_its_own_attempt_is_refused_without_a_report(store: Store) -> None:
    job = start(store, workflow=True)
    settle(store, job, Succeeded())
    before = picture(store)
    assert record(store, job, a_step()) is REFUSED
    assert picture(store) == before
    assert store.steps(job.id) == []


def test_a_job_that_nobody_knows_is_refused(store: Store) -> None:
    [answer] = store.record([Record(lease=Lease("nobody", 1, "c"), steps=(a_step(),))])
    assert answer is REFUSED


def test_many_records_are_answered_in_their_order(store: Store) -> None:
    jobs = [start(store, workflow=True) for _ in range(4)]
    settle(store, jobs[1], Released(True, "gone"))
    again(store, row(store, jobs[1].id))
    records = [Record(lease=job.lease, worker=job.worker, steps=(a_step(),)) for job in jobs]
    assert store.record(records) == [ACCEPTED, REFUSED, ACCEPTED, ACCEPTED]
    assert [len(store.steps(job.id)) for job in jobs] == [1, 0, 1, 1]
    assert store.record([]) == []


def test_what_the_judge_must_know_stands_on_the_row(store: Store) -> None:
    job = start(store, workflow=True)
    assert (job.undoable, job.open_step) == (False, None)
    record(store, job, a_step(state="started"), open_step="charge", undoable=True)
    assert (row(store, job.id).undoable, row(store, job.id).open_step) == (True, "charge")
    record(store, job, a_step(2))
    assert (row(store, job.id).undoable, row(store, job.id).open_step) == (True, "charge")
    record(store, job, a_step(), open_step="")
    assert (row(store, job.id).undoable, row(store, job.id).open_step) == (True, None)


def test_of_several_words_about_one_job_the_last_one_counts(store: Store) -> None:
    job = start(store, workflow=True)
    words = ["a", "b", "", "c"]
    store.record(
        [
            Record(lease=job.lease, steps=(a_step(number),), open_step=word, undoable=number == 1)
            for number, word in enumerate(words, 1)
        ]
    )
    assert (row(store, job.id).undoable, row(store, job.id).open_step) == (True, "c")
    store.record([Record(lease=job.lease, steps=(a_step(7),), open_step=word) for word in ("d", "")][1:])
    assert row(store, job.id).open_step is None


def test_a_record_changes_neither_lease_nor_anything_else_of_the_row(store: Store) -> None:
    job = start(store, workflow=True)
    record(store, job, a_step())
    assert row(store, job.id) == job


def test_a_child_is_stored_with_the_record_or_not_at_all(store: Store) -> None:
    job = start(store, workflow=True)
    child = make_job(id="child", parent=job.id)
    assert record(store, job, a_step(kind="start"), jobs=(child,)) is ACCEPTED
    assert (row(store, "child").parent, row(store, "child").state) == (job.id, State.READY)
    assert record(store, job, a_step(kind="start"), jobs=(child,)) is ACCEPTED  # its answer was lost
    assert len(store.steps(job.id)) == 1


def test_a_child_whose_key_is_taken_is_not_started_and_nothing_is_recorded(store: Store) -> None:
    add(store, key="k")
    job = start(store, workflow=True)
    second = make_job(id="second", key="k", parent=job.id)
    assert record(store, job, a_step(), jobs=(make_job(id="first"), second), open_step="x") is TAKEN
    assert store.steps(job.id) == []
    assert (store.get("first"), store.get("second")) == (None, None)
    assert row(store, job.id) == job


def test_a_signal_is_sent_with_the_record_or_not_at_all(store: Store) -> None:
    job, other = start(store, workflow=True), add(store, workflow=True)
    signal = a_signal(other)
    assert record(store, job, a_step(kind="signal"), sent=(signal,)) is ACCEPTED
    assert record(store, job, a_step(kind="signal"), sent=(signal,)) is ACCEPTED  # its answer was lost
    assert [each.id for each in store.inbox(other.id).signals] == [signal.id]
    assert row(store, other.id).inbox == 1
    gone = replace(a_signal(other), job_id="nobody")
    assert record(store, job, a_step(2), sent=(a_signal(other), gone)) is GONE
    assert len(store.steps(job.id)) == 1
    assert row(store, other.id).inbox == 1


def test_a_signal_is_taken_with_the_record(store: Store) -> None:
    job = start(store, workflow=True)
    first, second = a_signal(job), a_signal(job)
    store.signal(first)
    store.signal(second)
    assert record(store, job, a_step(kind="wait"), taken=(first.id,)) is ACCEPTED
    assert [each.id for each in store.inbox(job.id).signals] == [second.id]


def test_steps_and_signals_go_with_their_job(store: Store) -> None:
    job = start(store, workflow=True)
    store.signal(a_signal(job))
    record(store, job, a_step())
    settle(store, job, Succeeded())
    done = row(store, job.id)
    assert store.delete(done.id, done.state, done.fence)
    assert store.steps(job.id) == []
    assert store.inbox(job.id).signals == []
