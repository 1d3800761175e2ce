"""Callbacks: settle and move store the job that follows from an ending, in the same commit and once for each ending."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from holdfast.core import acts
from holdfast.core.callbacks import Callback, with_callbacks
from holdfast.core.labels import meta_of
from holdfast.core.machine import State
from holdfast.core.records import Filter, Job
from holdfast.core.verdict import Cancelled, Failed, Lost, Outcome, Snoozed, Succeeded
from holdfast.core.worker_exit import WorkerExit
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from holdfast.upkeep.reaper import Reaper
from tests.factory import (
    EXPIRED,
    add,
    again,
    claim,
    enrol,
    make_job,
    move,
    revive,
    row,
    settle,
    settlement,
    start,
    start_flow,
)

TAKES = ("job_id", "state", "error_kind", "error")
NOTIFY = make_job(id="", task="notify", payload="", queue="alerts", priority=7, lease_s=45.0)
BOTH = with_callbacks(
    None, Callback(msgspec.structs.replace(NOTIFY, task="cheer"), ("job_id",)), Callback(NOTIFY, TAKES)
)
BOOM = Failed("ValueError: boom", error_kind="ValueError")


def callbacks(store: Store) -> list[Job]:
    return sorted(store.find(Filter(queue="alerts")), key=lambda job: job.id)


def payloads(store: Store) -> list[Any]:
    return [json.loads(job.payload) for job in callbacks(store)]


def test_a_done_job_stores_its_on_done_task(store: Store, clock: FakeClock) -> None:
    job = start(store, callbacks=BOTH)
    assert row(store, job.id).callbacks == BOTH
    clock.advance(3)
    assert settle(store, job, Succeeded('"fine"')) is Reply.ACCEPTED
    [after] = callbacks(store)
    assert (after.id, after.task, after.queue, after.priority) == (f"{job.id}:done:{job.fence}", "cheer", "alerts", 7)
    assert json.loads(after.payload) == {"job_id": job.id}
    assert (after.state, after.run_at, after.lease_s, after.created_at) == (
        State.READY, clock.wall(), 45.0, clock.wall(),
    )  # fmt: skip
    [claimed] = claim(store, queues=["alerts"], tasks=["cheer"])
    assert claimed.id == after.id


def test_a_callback_inherits_the_metadata_of_the_job(store: Store) -> None:
    own = with_callbacks(None, Callback(msgspec.structs.replace(NOTIFY, meta='{"team":"b"}'), ()), Callback(NOTIFY, ()))
    many = {f"n{number:02}": "1" for number in range(20)}
    settle(store, start(store, callbacks=own, meta='{"team":"a","tenant":"acme"}'), Succeeded())
    settle(store, start(store, callbacks=own, meta='{"tenant":"acme"}', attempts_max=1), BOOM)
    settle(store, start(store, callbacks=own, meta=json.dumps(many)), Succeeded())
    found = [meta_of(job.meta) for job in callbacks(store)]
    assert {"team": "b", "tenant": "acme"} in found
    assert {"tenant": "acme"} in found
    assert any(len(meta) == 20 and meta["team"] == "b" for meta in found)


def test_a_dead_job_stores_its_on_dead_task_with_the_error(store: Store) -> None:
    job = start(store, callbacks=BOTH, attempts_max=1)
    assert settle(store, job, BOOM) is Reply.ACCEPTED
    assert payloads(store) == [
        {"job_id": job.id, "state": "dead", "error_kind": "ValueError", "error": "ValueError: boom"}
    ]
    assert [each.task for each in callbacks(store)] == ["notify"]


def test_an_attempt_that_is_retried_stores_nothing(store: Store) -> None:
    job = start(store, callbacks=BOTH)
    settle(store, job, BOOM)
    assert callbacks(store) == []
    assert row(store, job.id).error_kind == "ValueError"


def test_a_reaper_stores_it_too(store: Store) -> None:
    job = start(store, callbacks=BOTH, on_crash="fail")
    assert settle(store, job, EXPIRED, seen_lease=True) is Reply.ACCEPTED
    [said] = payloads(store)
    assert (said["job_id"], said["state"], said["error_kind"]) == (job.id, "dead", None)
    assert "the lease ran out" in said["error"]


def test_a_repeated_settlement_stores_nothing_twice(store: Store) -> None:
    job = start(store, callbacks=BOTH, attempts_max=1)
    each = settlement(job, BOOM)
    assert store.settle([each]) == [Reply.ACCEPTED]
    assert store.settle([each]) == [Reply.ALREADY]
    assert len(callbacks(store)) == 1


def test_a_refused_settlement_stores_nothing(store: Store) -> None:
    job = start(store, callbacks=BOTH, base_s=0.0, cap_s=0.0)
    settle(store, job, EXPIRED)
    again(store, row(store, job.id))
    assert settle(store, job, Succeeded()) is Reply.REFUSED
    assert callbacks(store) == []


def test_each_of_a_batch_stores_its_own_and_a_refused_neighbour_none(store: Store) -> None:
    mine, stale, plain = start(store, callbacks=BOTH), start(store, callbacks=BOTH), start(store)
    settle(store, stale, EXPIRED)
    again(store, row(store, stale.id))
    ended = [settlement(each, Succeeded()) for each in (mine, stale, plain)]
    assert store.settle(ended) == [Reply.ACCEPTED, Reply.REFUSED, Reply.ACCEPTED]
    assert [json.loads(each.payload)["job_id"] for each in callbacks(store)] == [mine.id]


def test_a_revived_job_that_dies_again_stores_another_one(store: Store) -> None:
    job = start(store, callbacks=BOTH, attempts_max=1)
    settle(store, job, BOOM)
    assert revive(store, row(store, job.id))
    assert len(callbacks(store)) == 1
    second = again(store, row(store, job.id))
    settle(store, second, Failed("again"))
    assert [each.id for each in callbacks(store)] == [f"{job.id}:dead:{job.fence}", f"{job.id}:dead:{second.fence}"]
    assert [said["error_kind"] for said in payloads(store)] == ["ValueError", None]


@pytest.mark.parametrize("outcome", [Cancelled(), Snoozed(5.0), Lost("exit", "killed")])
def test_an_ending_that_is_no_end_or_a_cancellation_stores_nothing(store: Store, outcome: Outcome) -> None:
    settle(store, start(store, callbacks=BOTH), outcome)
    assert callbacks(store) == []


def test_a_workflow_that_is_rolled_back_stores_its_on_dead_task(store: Store) -> None:
    flow = start_flow(store, callbacks=BOTH, on_crash="rollback")
    settle(store, flow, msgspec.structs.replace(BOOM, rollback=True))
    undoing = again(store, row(store, flow.id))
    settle(store, undoing, Succeeded())
    assert payloads(store) == [
        {"job_id": flow.id, "state": "rolled_back", "error_kind": "ValueError", "error": "ValueError: boom"}
    ]


def test_a_person_who_gives_up_stores_it_once(store: Store) -> None:
    job = start(store, callbacks=BOTH, on_crash="hold")
    settle(store, job, EXPIRED)
    held = row(store, job.id)
    given_up = acts.resolve(held, "fail", store.now().wall, actor="ann", reason="never mind")
    assert move(store, held.id, held.state, held.fence, given_up)
    assert not move(store, held.id, held.state, held.fence, given_up)
    assert payloads(store) == [{"job_id": job.id, "state": "dead", "error_kind": None, "error": "never mind"}]


def test_a_person_who_says_that_it_happened_stores_its_on_done_task(store: Store) -> None:
    job = start(store, callbacks=BOTH, on_crash="hold")
    settle(store, job, EXPIRED)
    held = row(store, job.id)
    done = acts.resolve(held, "done", store.now().wall, actor="ann")
    assert move(store, held.id, held.state, held.fence, done)
    assert [each.task for each in callbacks(store)] == ["cheer"]


def test_a_person_who_cancels_stores_nothing(store: Store) -> None:
    job = add(store, callbacks=BOTH)
    assert move(store, job.id, job.state, job.fence, acts.cancel(job, actor="ann"))
    assert callbacks(store) == []


def test_callbacks_travel_with_jobs_that_are_stored_together(store: Store) -> None:
    jobs = [make_job(callbacks=BOTH if number % 2 else None) for number in range(120)]
    store.add(jobs)
    found = {job.id: job.callbacks for job in store.find(Filter(limit=200))}
    assert found == {job.id: job.callbacks for job in jobs}


NEWER = with_callbacks(None, None, Callback(NOTIFY, ("job_id", "a_fact_of_a_newer_version")))


@pytest.mark.parametrize("text", ["{no json", NEWER], ids=["damaged", "newer"])
def test_a_row_with_callbacks_that_cannot_be_read_still_ends_and_says_so(store: Store, text: str) -> None:
    job = start(store, callbacks=text, attempts_max=1)
    assert settle(store, job, BOOM) is Reply.ACCEPTED
    assert row(store, job.id).state is State.DEAD
    [warning] = store.journal(job.id, kinds=["warning"])
    assert warning.detail["about"] == "callbacks"


def test_callbacks_that_cannot_be_read_stop_no_reaper(store: Store, clock: FakeClock) -> None:
    worker = enrol(store)
    lost = [start(store, worker, callbacks=text, on_crash="fail").id for text in (NEWER, None)]
    store.retire(worker, "its process ended", how=WorkerExit("exit"))
    Reaper(store, clock).once()
    assert [row(store, job).state for job in lost] == [State.DEAD, State.DEAD]
