"""A row that somebody else has locked delays nothing but itself (P15, DESIGN 15.18)."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from holdfast.core.machine import State
from holdfast.core.records import Job
from holdfast.core.verdict import Succeeded
from holdfast.reaper import Reaper
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Answer
from holdfast.testing import FakeClock
from tests.factory import enrol, row, settle, start
from tests.servers import PostgresServer
from tests.worker.house import House, until

PATIENCE_S = 60.0
Houses = Callable[..., House]


@contextmanager
def locked(server: PostgresServer, schema: str, job_id: str, table: str = "job") -> Iterator[psycopg.Connection[Any]]:
    """Hold a lock on one row, as a person does who has typed SELECT … FOR UPDATE in psql and gone to lunch."""
    with psycopg.connect(server.url) as db:
        db.execute(f"SELECT FROM {schema}.{table} WHERE id = %s FOR UPDATE", (job_id,))  # type: ignore[call-overload]
        yield db


def waiting_backends(server: PostgresServer) -> int:
    [(number,)] = server.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'holdfast'"
    )
    assert isinstance(number, int)
    return number


def test_a_worker_saves_all_results_but_that_of_the_locked_row(
    server: PostgresServer, schema: str, houses: Houses
) -> None:
    house = houses(server.url)
    gate = threading.Event()

    @house.app.task(lease_s=60)
    def work(number: int) -> int:
        gate.wait(PATIENCE_S)
        return number

    house.start(slots=51)
    jobs = house.app.enqueue_many([work.job(number) for number in range(51)])
    until(lambda: house.store.counts()["default"].get(State.RUNNING) == 51, "all run", PATIENCE_S)
    with locked(server, schema, jobs[25].id):
        gate.set()
        until(lambda: house.store.counts()["default"].get(State.DONE) == 50, "fifty results are saved", 30.0)
        assert house.row(jobs[25].id).state == "running"
        assert waiting_backends(server) == 0
    assert jobs[25].result(PATIENCE_S) == 25
    assert house.kinds(jobs[25].id) == ["succeeded"]


# --------------------------------------------------------------------------------------------- the reaper


@pytest.fixture
def store(server: PostgresServer, schema: str, clock: FakeClock) -> Iterator[PostgresStore]:
    store = PostgresStore(f"{server.url}?schema={schema}", clock=clock)
    store.migrate()
    yield store
    store.close()


def overdue_twice(store: PostgresStore, clock: FakeClock) -> tuple[Job, Job]:
    """Two jobs whose leases have run out: one of a worker that still beats, and one of a worker that is silent."""
    living, silent = enrol(store), enrol(store)
    jobs = start(store, living, lease_s=30, beat_s=10), start(store, silent, lease_s=30, beat_s=10)
    clock.advance(31)
    store.beat(living, [])
    return jobs


def look(reaper: Reaper) -> list[str]:
    return [zombie.job.id for zombie in reaper.once().zombies if zombie.recovered]


def test_a_result_in_hand_is_accepted_before_a_reaper_judges_a_lease_that_a_lock_kept_from_renewal(
    server: PostgresServer, schema: str, store: PostgresStore, clock: FakeClock
) -> None:
    """The lock lasts longer than the lease, and much longer than a beat; from its end the worker has one beat."""
    mine, other = overdue_twice(store, clock)
    reaper = Reaper(store, clock)
    with locked(server, schema, mine.id):
        look(reaper)
        clock.advance(1)
        assert look(reaper) == [other.id]
        for _ in range(30):
            clock.advance(1)
            assert store.beat(mine.worker or "", []).lost == []
            assert look(reaper) == []
    for _ in range(9):
        clock.advance(1)
        store.beat(mine.worker or "", [])
        assert look(reaper) == []
    assert settle(store, mine, Succeeded()) is Answer.ACCEPTED


def test_a_reaper_that_never_saw_the_lock_waits_one_beat_for_a_worker_that_beats(
    store: PostgresStore, clock: FakeClock
) -> None:
    mine, other = overdue_twice(store, clock)
    reaper = Reaper(store, clock)
    look(reaper)
    clock.advance(1)
    assert look(reaper) == [other.id]
    for _ in range(9):
        store.beat(mine.worker or "", [])
        assert look(reaper) == []
        clock.advance(1)
    assert look(reaper) == [mine.id], "the worker has forgotten it"


def test_a_reaper_leaves_a_locked_row_of_a_dead_worker_and_recovers_the_others(
    server: PostgresServer, schema: str, store: PostgresStore, clock: FakeClock
) -> None:
    worker = enrol(store)
    jobs = [start(store, worker) for _ in range(3)]
    store.retire(worker, "its process died")
    reaper = Reaper(store, clock)
    with locked(server, schema, jobs[1].id):
        assert sorted(look(reaper)) == sorted([jobs[0].id, jobs[2].id])
        assert look(reaper) == []
    assert look(reaper) == [jobs[1].id]
    assert row(store, jobs[1].id).state is State.READY


def test_locked_rows_that_fill_a_page_do_not_hide_the_others(
    server: PostgresServer, schema: str, store: PostgresStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.reaper.PAGE", 1)
    worker = enrol(store)
    jobs = [start(store, worker) for _ in range(3)]
    store.retire(worker, "its process died")
    with locked(server, schema, jobs[2].id):
        assert sorted(look(Reaper(store, clock))) == sorted([jobs[0].id, jobs[1].id])
