"""vanished, enroll, retire: who is there, who is gone, and what the gone still hold."""

from contextlib import suppress

import pytest

from holdfast.core.records import REMOTE_BOOT, Pulse, Vanished
from holdfast.core.verdict import Lost, Succeeded
from holdfast.errors import HoldfastError, WorkerGone
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from tests.factory import a_worker, add, again, claim, enrol, picture, row, settle, stale_reports, start

GONE = Lost("vanished", "its process is gone")


def test_a_worker_that_lives_has_not_vanished(store: Store, clock: FakeClock) -> None:
    start(store)
    enrol(store)
    clock.advance(10**6)
    assert store.vanished() == []


def test_a_worker_marked_gone_is_listed_while_it_holds_leases(store: Store) -> None:
    worker = enrol(store)
    first, second = start(store, worker), start(store, worker)
    store.retire(worker, "killed")
    [listed] = store.workers(gone=True)
    assert store.vanished() == [Vanished(listed, "gone")]
    settle(store, first, GONE)
    assert [found.worker.id for found in store.vanished()] == [worker]
    settle(store, second, GONE)
    assert store.vanished() == []


def test_it_is_listed_with_the_number_of_its_own_leases(store: Store) -> None:
    worker = enrol(store)
    for holder in (worker, worker, enrol(store)):
        start(store, holder)
    store.retire(worker, "killed")
    assert [found.worker.running for found in store.vanished()] == [2]


def test_a_worker_marked_gone_that_holds_nothing_is_not_listed(store: Store) -> None:
    store.retire(enrol(store), "stopped")
    assert store.vanished() == []


def test_looking_changes_nothing(store: Store) -> None:
    job = start(store)
    assert job.worker is not None
    store.retire(job.worker, "killed")
    before = picture(store)
    assert store.vanished() == store.vanished()
    assert picture(store) == before


def test_retiring_leaves_the_leases_to_be_settled(store: Store) -> None:
    job = start(store)
    assert job.worker is not None
    assert store.retire(job.worker, "killed") is True
    assert row(store, job.id) == job
    assert settle(store, job, GONE) is Reply.ACCEPTED


def test_a_worker_retires_once(store: Store, clock: FakeClock) -> None:
    worker = enrol(store)
    clock.advance(5)
    assert store.retire(worker, "killed") is True
    before = picture(store)
    clock.advance(5)
    assert store.retire(worker, "killed again") is False
    assert picture(store) == before
    [gone] = store.workers(gone=True)
    assert (gone.gone_at, gone.gone_cause) == (clock.wall() - 5, "killed")


def test_an_unknown_worker_cannot_retire(store: Store) -> None:
    assert store.retire("nobody", "killed") is False
    assert store.workers(gone=True) == []


def test_retiring_one_worker_does_not_disturb_another_of_the_same_name(store: Store) -> None:
    first, second = enrol(store, name="same"), enrol(store, name="same")
    job = start(store, second)
    store.retire(first, "killed")
    assert store.vanished() == []
    assert store.beat(second, []).gone is False
    assert row(store, job.id) == job


def test_a_worker_that_lives_enrols_again_under_a_new_id(store: Store) -> None:
    store.retire(enrol(store, name="w"), "declared dead by mistake")
    add(store)
    assert len(claim(store, enrol(store, name="w"))) == 1


def test_the_id_of_a_gone_worker_does_not_come_back(store: Store) -> None:
    worker = a_worker()
    store.enroll(worker)
    store.retire(worker.id, "killed")
    with suppress(HoldfastError):
        store.enroll(worker)
    add(store)
    with pytest.raises(WorkerGone):
        claim(store, worker.id)
    assert store.beat(worker.id, []).gone


def test_an_id_that_is_enrolled_already_is_refused_and_its_row_stays(store: Store) -> None:
    worker = a_worker(name="first")
    store.enroll(worker)
    before = picture(store)
    with pytest.raises(HoldfastError):
        store.enroll(a_worker(id=worker.id, name="second"))
    assert picture(store) == before


def test_the_enrolment_that_was_refused_does_not_make_the_first_look_dead(store: Store) -> None:
    worker = a_worker()
    store.enroll(worker)
    with suppress(HoldfastError):
        store.enroll(worker)
    assert store.vanished() == []


def test_a_row_says_what_the_worker_said_of_itself(store: Store, clock: FakeClock) -> None:
    worker = a_worker(
        name="media/1",
        host="höst 🐈",
        pid=4711,
        supervisor="parent",
        queues=["a", 'b"c'],
        slots=20,
        beat_s=2.5,
        version="0.1.0",
    )
    store.enroll(worker)
    [listed] = store.workers()
    same = ("id", "name", "host", "pid", "boot_id", "supervisor", "queues", "slots", "beat_s", "version")
    wanted = [getattr(worker, name) for name in same]
    if store.is_served:  # its lock would be the server's
        wanted[same.index("boot_id")] = REMOTE_BOOT
    assert [getattr(listed, name) for name in same] == wanted
    assert (listed.started_at, listed.beat_at, listed.beats) == (clock.wall(), clock.wall(), 0)
    assert (listed.running, listed.rss_mb, listed.gone_at, listed.gone_cause) == (0, None, None, None)


def test_the_whole_way_of_a_death_from_mark_to_successor(store: Store) -> None:
    zombie = start(store)
    assert zombie.worker is not None
    store.retire(zombie.worker, "killed by signal 9")
    [found] = store.vanished()
    assert found.worker.id == zombie.worker
    assert settle(store, zombie, GONE) is Reply.ACCEPTED
    successor = again(store, row(store, zombie.id))
    assert settle(store, zombie, Succeeded('"from the grave"')) is Reply.REFUSED
    assert settle(store, successor, Succeeded('"alive"')) is Reply.ACCEPTED
    assert row(store, zombie.id).result == '"alive"'
    assert [event.fence for event in stale_reports(store)] == [zombie.fence]


def test_a_remote_worker_has_no_lock_and_is_dead_only_when_it_is_marked_gone(store: Store) -> None:
    worker = enrol(store, boot_id=REMOTE_BOOT)
    job = start(store, worker)
    assert store.vanished() == []
    assert store.beat(worker, [Pulse(job.lease)]).lost == []
    assert store.vanished() == []
    store.retire(worker, "it said that it leaves")
    assert [(each.worker.id, each.evidence) for each in store.vanished()] == [(worker, "gone")]
