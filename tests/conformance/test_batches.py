"""batches: jobs that belong together, and one job that is stored when all of them have ended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.core import acts
from holdfast.core.batches import Batch, Then, then_text
from holdfast.core.machine import State
from holdfast.core.records import Filter, Job, NewJob
from holdfast.core.verdict import Cancelled, Failed, Succeeded
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from holdfast.upkeep.batch_ends import SWEEP_S, BatchSweep, end_batches
from holdfast.upkeep.reaper import Reaper
from tests.factory import (
    EXPIRED,
    WAY_TO,
    add,
    again,
    claim,
    delete,
    make_job,
    move,
    revive,
    row,
    settle,
    settlement,
    start,
)

LAST = make_job(id="", task="last", payload="{}", queue="after", priority=7, lease_s=45.0)
TAKES = ("batch_id", "counts", "complete")


def opened(store: Store, id: str = "b", jobs: int = 0, *, then: Then | None = None, **given: Any) -> list[NewJob]:
    store.batches.open(Batch(id=id, then=then_text(then or Then(LAST, TAKES)), **given))
    new = [make_job(id=f"{id}-{number}") for number in range(jobs)]
    if new:
        assert store.batches.add(id, new) == [(job.id, False) for job in new]
    return new


def end(store: Store, id: str = "b") -> int:
    return end_batches(store, store.batches.get([id]))


def last_jobs(store: Store) -> list[Job]:
    return store.find(Filter(queue="after"))


def said(store: Store) -> Any:
    [job] = last_jobs(store)
    return json.loads(job.payload)


def finish_all(store: Store) -> None:
    for job in claim(store, limit=1000):
        settle(store, job, Succeeded())


def test_the_last_job_is_stored_once_when_all_have_ended(store: Store, clock: FakeClock) -> None:
    opened(store, jobs=3)
    first, second, third = claim(store)
    assert store.batches.close("b", complete=True)
    for job in (first, second):
        settle(store, job, Succeeded())
        assert end(store) == 0
    assert last_jobs(store) == []
    settle(store, third, Succeeded())
    clock.advance(3)
    assert end(store) == 1
    assert said(store) == {
        "batch_id": "b",
        "counts": {"done": 3, "dead": 0, "cancelled": 0, "rolled_back": 0},
        "complete": True,
    }
    [last] = last_jobs(store)
    assert (last.task, last.priority, last.lease_s, last.created_at) == ("last", 7, 45.0, clock.wall())
    assert (last.id, last.batch, last.state) == ("b:then:0", None, State.READY)
    assert end(store) == 0
    assert not store.batches.end("b", {}, LAST)
    assert len(last_jobs(store)) == 1
    [batch] = store.batches.get(["b"])
    assert (batch.ended_at, batch.counts, batch.live) == (clock.wall(), {"done": 3}, False)


def test_a_job_of_a_batch_knows_it_and_another_one_does_not(store: Store) -> None:
    opened(store, jobs=2)
    plain = add(store)
    assert [row(store, each).batch for each in ("b-0", "b-1")] == ["b", "b"]
    assert plain.batch is None
    assert {job.batch for job in claim(store)} == {"b", None}


def test_one_that_is_open_does_not_end(store: Store) -> None:
    opened(store, jobs=1)
    finish_all(store)
    assert end(store) == 0
    assert not store.batches.end("b", {}, LAST)
    assert last_jobs(store) == []


def test_an_empty_batch_ends_at_once(store: Store) -> None:
    opened(store)
    store.batches.close("b", complete=True)
    assert end(store) == 1
    assert said(store)["counts"] == {"done": 0, "dead": 0, "cancelled": 0, "rolled_back": 0}


def test_a_batch_without_a_last_job_only_ends(store: Store) -> None:
    store.batches.open(Batch(id="b"))
    store.batches.close("b", complete=True)
    assert end(store) == 1
    assert store.find(Filter()) == []
    assert store.batches.get(["b"])[0].ended_at is not None


@pytest.mark.parametrize("state", list(State))
def test_each_state_counts_as_ended_or_not(store: Store, state: State) -> None:
    store.batches.open(Batch(id="b", then=then_text(Then(LAST, TAKES))))
    policy, outcome = WAY_TO.get(state, ({}, None))
    workflow = state in (State.ROLLED_BACK, State.WAITING)
    store.batches.add("b", [make_job(id="one", workflow=workflow, **policy)])
    store.batches.close("b", complete=True)
    if state is not State.READY:
        [job] = claim(store)
        if state is State.ROLLED_BACK:
            settle(store, job, EXPIRED)
            job = again(store, row(store, "one"))
        if outcome is not None:
            assert settle(store, job, outcome) is Reply.ACCEPTED
    assert row(store, "one").state is state
    ended = state in (State.DONE, State.DEAD, State.CANCELLED, State.ROLLED_BACK)
    assert store.batches.get(["b"])[0].live is not ended
    assert end(store) == ended
    assert not store.batches.end("b", {}, LAST)
    if ended:
        assert said(store)["counts"][state.value] == 1


def test_the_arguments_of_the_last_job_stay(store: Store) -> None:
    mine = make_job(id="", task="last", payload='{"order":123456789012345678901234567890}', queue="after")
    opened(store, then=Then(mine, ("complete",)))
    store.batches.close("b", complete=False)
    end(store)
    assert said(store) == {"order": 123456789012345678901234567890, "complete": False}


def test_a_batch_is_opened_once(store: Store, clock: FakeClock) -> None:
    first = store.batches.open(Batch(id="b", then=then_text(Then(LAST, TAKES)), abandon_s=60.0))
    clock.advance(5)
    second = store.batches.open(Batch(id="b", abandon_s=7.0))
    assert first == second
    assert (second.abandon_s, second.created_at, second.added_at) == (60.0, clock.wall() - 5, clock.wall() - 5)


def test_a_closed_batch_takes_nothing(store: Store) -> None:
    opened(store, jobs=1)
    assert store.batches.close("b", complete=True)
    assert not store.batches.close("b", complete=False)
    assert store.batches.get(["b"])[0].complete
    assert store.batches.add("b", [make_job(id="late")]) is None
    assert store.batches.add("nowhere", [make_job(id="late")]) is None
    assert not store.batches.close("nowhere", complete=True)
    assert store.get("late") is None


def test_chunks_that_are_sent_twice_are_stored_once(store: Store, clock: FakeClock) -> None:
    chunk = opened(store, jobs=2)
    clock.advance(9)
    further = [*chunk[1:], make_job(id="b-new")]
    assert store.batches.add("b", further) == [("b-1", True), ("b-new", False)]
    assert store.batches.get(["b"])[0].added_at == clock.wall()
    assert store.batches.counts("b") == {"ready": 3}


def test_a_job_whose_key_is_taken_is_not_one_of_the_batch(store: Store) -> None:
    holder = add(store, key="k")
    opened(store)
    assert store.batches.add("b", [make_job(id="mine", key="k"), make_job(id="own")]) == [
        (holder.id, True),
        ("own", False),
    ]
    assert row(store, holder.id).batch is None
    assert store.batches.counts("b") == {"ready": 1}


def test_many_jobs_at_once(store: Store) -> None:
    jobs = opened(store, jobs=300)
    assert store.batches.counts("b") == {"ready": 300}
    assert {job.id for job in claim(store, limit=1000)} == {job.id for job in jobs}


def test_jobs_of_a_batch_may_have_groups(store: Store) -> None:
    opened(store)
    store.batches.add("b", [make_job(group="acme"), make_job()])
    assert [queue.grouped for queue in store.queues()] == [True]
    assert len(claim(store)) == 2


def test_an_abandoned_batch_is_closed_and_its_last_job_is_told(store: Store, clock: FakeClock) -> None:
    opened(store, jobs=1, abandon_s=60.0)
    finish_all(store)
    clock.advance(59)
    store.batches.add("b", [])  # its producer lives
    clock.advance(59)
    assert end(store) == 0
    clock.advance(1)
    assert end(store) == 1
    assert said(store)["complete"] is False
    assert store.batches.add("b", [make_job()]) is None


def test_a_producer_that_adds_again_just_in_time_keeps_its_batch(store: Store, clock: FakeClock) -> None:
    opened(store, abandon_s=60.0)
    clock.advance(61)
    [seen] = store.batches.get(["b"])
    store.batches.add("b", [make_job()])
    assert not store.batches.close("b", complete=False, unless_added_since=seen.added_at)
    assert end_batches(store, [seen]) == 0
    assert store.batches.get(["b"])[0].closed_at is None


def test_a_batch_is_abandoned_at_whatever_instant_somebody_added_to_it(store: Store, clock: FakeClock) -> None:
    """An instant that loses a digit on its way would look like an addition since."""
    for number in range(20):
        clock.advance(0.1234567)
        name = f"b{number}"
        store.batches.open(Batch(id=name, then=None, abandon_s=1.0))
        store.batches.add(name, [make_job()])
        [seen] = store.batches.get([name])
        assert store.batches.close(name, complete=False, unless_added_since=seen.added_at), seen.added_at


def test_a_revived_job_holds_its_batch_open(store: Store) -> None:
    opened(store, jobs=1)
    store.batches.close("b", complete=True)
    [job] = claim(store)
    settle(store, job, Cancelled())
    assert revive(store, row(store, job.id))
    assert end(store) == 0
    settle(store, again(store, row(store, job.id)), Succeeded())
    assert end(store) == 1
    assert said(store)["counts"]["done"] == 1


def test_a_job_that_is_revived_after_the_end_changes_nothing(store: Store) -> None:
    opened(store, jobs=1)
    store.batches.close("b", complete=True)
    [job] = claim(store)
    settle(store, job, Cancelled())
    assert end(store) == 1
    assert revive(store, row(store, job.id))
    settle(store, again(store, row(store, job.id)), Succeeded())
    assert end(store) == 0
    [batch] = store.batches.get(["b"])
    assert batch.counts == {"cancelled": 1}
    assert store.batches.counts("b") == {"done": 1}
    assert len(last_jobs(store)) == 1


def test_an_act_of_a_person_ends_it_too(store: Store) -> None:
    opened(store, jobs=1)
    store.batches.close("b", complete=True)
    job = row(store, "b-0")
    assert move(store, job.id, job.state, job.fence, acts.cancel(job, actor="ann"))
    assert end(store) == 1
    assert said(store)["counts"]["cancelled"] == 1


def test_deleted_jobs_count_as_what_they_were(store: Store, clock: FakeClock) -> None:
    plain = start(store)
    settle(store, plain, Succeeded())
    opened(store, jobs=4)
    dead, *_ = claim(store, limit=1)
    settle(store, dead, Failed("no", final=True))
    for job in claim(store, limit=2):
        settle(store, job, Succeeded())
    clock.advance(5)
    assert store.purge([State.DONE], clock.wall()) == 3
    last = row(store, "b-3")
    assert delete(store, dead.id, State.DEAD, dead.fence)
    assert delete(store, last.id, last.state, last.fence)
    store.batches.close("b", complete=True)
    assert store.batches.counts("b") == {"done": 2, "dead": 1, "ready": 1}
    assert end(store) == 1
    assert said(store)["counts"] == {"done": 2, "dead": 1, "cancelled": 0, "rolled_back": 0}


def test_an_ended_batch_without_jobs_is_purged_in_the_end(store: Store, clock: FakeClock) -> None:
    for name in ("old", "kept", "open"):
        opened(store, name, jobs=1)
    finish_all(store)
    for name in ("old", "kept"):
        store.batches.close(name, complete=True)
        assert end(store, name) == 1
    clock.advance(10)
    job = row(store, "old-0")
    assert delete(store, job.id, job.state, job.fence)
    job = row(store, "open-0")
    assert delete(store, job.id, job.state, job.fence)
    assert store.batches.purge(clock.wall() - 10, 10) == 0
    assert store.batches.purge(clock.wall(), 10) == 1
    assert [each.id for each in store.batches.newest()] == ["open", "kept"]
    assert store.batches.counts("old") == {}
    assert store.batches.counts("open") == {"done": 1}


def test_batches_are_listed(store: Store, clock: FakeClock) -> None:
    for name in ("c", "a", "b"):
        opened(store, name)
        clock.advance(1)
    store.batches.close("a", complete=True)
    end(store, "a")
    assert [each.id for each in store.batches.find()] == ["a", "b", "c"]
    assert [each.id for each in store.batches.find("a", 1)] == ["b"]
    assert [each.id for each in store.batches.find(unended=True)] == ["b", "c"]
    assert [each.id for each in store.batches.find("b", unended=True)] == ["c"]
    assert [each.id for each in store.batches.newest(2)] == ["b", "a"]
    assert [each.id for each in store.batches.get(["c", "x", "a"])] == ["a", "c"]


def test_jobs_of_a_batch_are_listed_by_state(store: Store) -> None:
    opened(store, jobs=3)
    add(store)
    running, *_ = claim(store, limit=1)
    assert {job.id for job in store.batches.jobs("b", (), 10)} == {"b-0", "b-1", "b-2"}
    assert [job.id for job in store.batches.jobs("b", (State.RUNNING,), 10)] == [running.id]
    assert len(store.batches.jobs("b", (State.READY,), 1)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "{no json",
        then_text(Then(LAST, ("a_fact_of_a_newer_version",))),
        then_text(Then(make_job(id="", task="last", payload="{}", priority=10**30), ())),
    ],
    ids=["damaged", "newer", "not storable"],
)
def test_a_last_job_that_cannot_be_stored_stops_no_other_batch(store: Store, text: str) -> None:
    store.batches.open(Batch(id="a", then=text))
    opened(store, "b")
    for name in ("a", "b"):
        store.batches.close(name, complete=True)
    end_batches(store, store.batches.find(unended=True))
    assert said(store)["batch_id"] == "b"


def test_a_sweep_walks_over_all_batches_and_starts_again(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.upkeep.batch_ends.PAGE", 2)
    for name in ("a", "b", "c"):
        opened(store, name)
    store.batches.close("c", complete=True)
    sweep = BatchSweep(store, clock)
    sweep.once()
    assert last_jobs(store) == []
    sweep.once()  # too early
    assert last_jobs(store) == []
    clock.advance(SWEEP_S)
    sweep.once()
    assert said(store)["batch_id"] == "c"
    store.batches.close("a", complete=True)
    clock.advance(SWEEP_S)
    sweep.once()
    assert len(last_jobs(store)) == 2


def test_the_pass_of_a_reaper_ends_batches(store: Store, clock: FakeClock) -> None:
    opened(store, jobs=1)
    store.batches.close("b", complete=True)
    finish_all(store)
    reaper = Reaper(store, clock)
    reaper.once(fix=False)
    assert last_jobs(store) == []
    reaper.once()
    assert said(store)["counts"]["done"] == 1


def test_settlements_of_one_batch_need_nothing_from_each_other(store: Store) -> None:
    """A settlement says nothing about the batch: the same statements as for any other job."""
    opened(store, jobs=2)
    store.batches.close("b", complete=True)
    ends = [settlement(job, Succeeded()) for job in claim(store)]
    assert store.settle(ends) == [Reply.ACCEPTED, Reply.ACCEPTED]
    assert end(store) == 1
