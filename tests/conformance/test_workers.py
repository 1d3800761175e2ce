"""workers: who is enrolled, oldest first."""

from holdfast.core.records import Published, Pulse
from holdfast.core.verdict import Succeeded
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
    assert store.workers()[0].tasks == tasks


def test_what_a_gone_worker_published_counts_no_more(store: Store) -> None:
    worker = enrol(store, tasks={"mail.send": Published("mail")})
    store.retire(worker, "stopped")
    assert [each.tasks for each in store.workers(gone=True)] == [None]
