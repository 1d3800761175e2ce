"""workers: who is enrolled, oldest first."""

import pytest

from holdfast.core.records import Published, Pulse
from holdfast.core.verdict import Succeeded
from holdfast.core.worker_exit import WorkerExit, exit_of
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import enrol, settle, start


def test_oldest_first(store: Store, clock: FakeClock) -> None:
    ids = []
    for name in ("z", "a", "m"):
        ids.append(enrol(store, name=name))
        clock.advance(1)
    assert [worker.id for worker in store.workers()] == ids
    assert [worker.name for worker in store.workers()] == ["z", "a", "m"]


def test_those_marked_gone_are_shown_only_when_asked_for(store: Store, clock: FakeClock) -> None:
    first = enrol(store)
    clock.advance(1)
    second = enrol(store)
    store.retire(first, "stopped")
    assert [worker.id for worker in store.workers()] == [second]
    assert [(worker.id, worker.gone_cause) for worker in store.workers(gone=True)] == [
        (first, "stopped"),
        (second, None),
    ]


@pytest.mark.parametrize("how", [WorkerExit("exit", -9), WorkerExit("exit", 76, excused=True), WorkerExit("released")])
def test_how_a_worker_ended_is_on_its_row(store: Store, how: WorkerExit) -> None:
    job = start(store)
    store.retire(str(job.worker), "it ended: for some reason", how=how)
    store.retire(str(job.worker), "the first word counts", how=WorkerExit("restart", 1))
    [listed], [vanished] = store.workers(gone=True), store.vanished()
    assert exit_of(listed) == exit_of(vanished.worker) == how
    assert listed.gone_cause == vanished.worker.gone_cause == "it ended: for some reason"


def test_a_worker_that_left_without_a_word_has_vanished(store: Store) -> None:
    store.retire(enrol(store), "left")
    [listed] = store.workers(gone=True)
    assert (listed.exit_kind, exit_of(listed)) == (None, WorkerExit("vanished"))


def test_a_worker_shows_how_many_jobs_it_runs(store: Store) -> None:
    worker = enrol(store)
    jobs = [start(store, worker) for _ in range(3)]
    store.beat(worker, [Pulse(job.lease) for job in jobs])
    assert store.workers()[0].running == 3
    settle(store, jobs[0], Succeeded())
    store.beat(worker, [Pulse(job.lease) for job in jobs[1:]])
    assert store.workers()[0].running == 2


def test_an_empty_store_has_no_workers(store: Store) -> None:
    assert store.workers() == []
    assert store.workers(gone=True) == []


def test_a_worker_publishes_its_tasks_and_their_queues(store: Store, clock: FakeClock) -> None:
    tasks = {"mail.send": Published("mail"), 'odd "name" {} %s': Published("ünïcode")}
    ids = [enrol(store, tasks=given) for given in (tasks, {}, None)]
    assert {worker.id: worker.tasks for worker in store.workers()} == dict(zip(ids, (tasks, {}, None), strict=True))
    clock.advance(5)
    store.beat(ids[0], [])
    assert [worker.tasks for worker in store.workers() if worker.id == ids[0]] == [tasks]


def test_what_a_gone_worker_published_counts_no_more(store: Store) -> None:
    worker = enrol(store, tasks={"mail.send": Published("mail")})
    store.retire(worker, "stopped")
    assert [each.tasks for each in store.workers(gone=True)] == [None]


def test_a_worker_shows_the_release_that_it_runs(store: Store, clock: FakeClock) -> None:
    for release in ("2.4.1", None, 'odd "release" {} %s ünïcode'):
        enrol(store, release=release)
        clock.advance(1)
    assert [worker.release for worker in store.workers()] == ["2.4.1", None, 'odd "release" {} %s ünïcode']


def test_a_vanished_worker_shows_its_release(store: Store) -> None:
    job = start(store, enrol(store, release="2.4.1"))
    store.retire(str(job.worker), "it ended")
    assert [each.worker.release for each in store.vanished()] == ["2.4.1"]
