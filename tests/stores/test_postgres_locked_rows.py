"""A row that somebody else has locked delays nothing but itself (P15, DESIGN 15.18)."""

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from holdfast import App, bulk, insight
from holdfast.bulk import Acted
from holdfast.cli.main import cli
from holdfast.core import acts
from holdfast.core.acts import Move
from holdfast.core.limits import setting
from holdfast.core.machine import State
from holdfast.core.records import Filter, Job, Moment, Pulse
from holdfast.core.verdict import Failed, Succeeded
from holdfast.errors import OutcomeUnknown, Refused, StoreError, StoreLocked, StoreReadOnly, StoreUnavailable
from holdfast.insight.diagnosis import diagnose
from holdfast.stores.postgres import purge
from holdfast.stores.postgres.connection import Limits
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.postgres.turns import Turns
from holdfast.stores.protocol import Reply
from holdfast.stores.sql import advance
from holdfast.testing import FakeClock
from holdfast.upkeep import batch_ends, dependents, expiry
from holdfast.upkeep.reaper import Reaper, reap, suspected
from tests.factory import (
    a_signal,
    a_step,
    add,
    claim,
    delete,
    enrol,
    job_in,
    make_job,
    record,
    row,
    settle,
    start,
    start_flow,
)
from tests.proxy import Proxy
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


def slow(server: PostgresServer, schema: str, job_id: str, seconds: float) -> None:
    """Let the server take this long to read one job."""
    server.execute(f"ALTER FUNCTION {schema}.as_json({schema}.job) RENAME TO quick_json")
    server.execute(
        f"CREATE FUNCTION {schema}.as_json(job {schema}.job) RETURNS json LANGUAGE plpgsql AS "
        f"$$ BEGIN IF job.id = '{job_id}' THEN PERFORM pg_sleep({seconds}); END IF; "
        f"RETURN {schema}.quick_json(job); END $$"
    )


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
        until(lambda: house.store.counts()["default"].get(State.DONE) == 50, "fifty results are saved", PATIENCE_S)
        assert house.row(jobs[25].id).state == "running"
        assert waiting_backends(server) == 0
    assert jobs[25].result(PATIENCE_S) == 25
    assert house.kinds(jobs[25].id) == ["succeeded"]


def test_idle_workers_ask_seldom_for_a_ready_job_whose_row_is_locked(
    server: PostgresServer, schema: str, houses: Houses
) -> None:
    house = houses(server.url)

    @house.app.task
    def work() -> str:
        return "done"

    job = work.enqueue()
    with locked(server, schema, job.id):
        house.start()
        until(lambda: house.store.calls["claim"] >= 8, "it asks less and less often", PATIENCE_S)
        asked, began_at = house.store.calls["claim"], time.monotonic()
        until(lambda: time.monotonic() > began_at + 1.0)
        assert house.store.calls["claim"] - asked <= 10  # it was several hundred
    assert job.result(PATIENCE_S) == "done"


def test_a_lock_that_outlives_the_lease_costs_nothing_when_the_result_is_in_hand(
    server: PostgresServer, schema: str, houses: Houses
) -> None:
    """Two workers look for lost attempts all the time; when the lock goes, the result is saved before they judge."""
    mine, other = houses(server.url), houses(server.url)
    gate, runs = threading.Event(), []

    @mine.app.task(name="work", lease_s=9.0)
    def work() -> str:
        runs.append(1)
        gate.wait(PATIENCE_S)
        return "fine"

    mine.start(name="mine")
    other.start(name="other")
    job = work.enqueue()
    until(lambda: runs, "it runs")
    with locked(server, schema, job.id):
        gate.set()
        until(lambda: mine.row(job.id).lease_until < mine.store.now().lease - 2.0, "the lease is long over", PATIENCE_S)
        assert mine.row(job.id).state == "running"
        assert waiting_backends(server) == 0
    assert job.result(PATIENCE_S) == "fine"
    assert (runs, mine.kinds(job.id)) == ([1], ["succeeded"])


def test_a_row_that_refers_to_a_job_delays_nothing(
    store: PostgresStore, clock: FakeClock, server: PostgresServer, schema: str
) -> None:
    """A table of the user's has a foreign key to jobs. A row that is inserted there locks the key of its job."""
    worker = enrol(store)
    running, ready = start(store, worker, lease_s=30), add(store)
    server.execute(f"CREATE TABLE {schema}.upload (job text REFERENCES {schema}.job (id))")
    with psycopg.connect(server.url) as db:
        for job in (ready, running):
            db.execute(f"INSERT INTO {schema}.upload VALUES (%s)", (job.id,))  # type: ignore[call-overload]
        clock.advance(1)
        store.beat(worker, [Pulse(running.lease)])
        assert row(store, running.id).lease_until == (running.lease_until or 0) + 1
        assert [job.id for job in claim(store, worker)] == [ready.id]
        assert settle(store, running, Succeeded()) is Reply.ACCEPTED


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
    assert settle(store, mine, Succeeded()) is Reply.ACCEPTED


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


def test_a_single_pass_waits_one_beat_for_a_worker_that_beats_and_none_for_a_locked_row(
    server: PostgresServer, schema: str, store: PostgresStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = overdue_twice(store, clock)
    began = clock.lease()

    def pause(seconds: float) -> None:
        clock.advance(seconds)
        store.beat(mine.worker or "", [])

    monkeypatch.setattr("holdfast.upkeep.reaper.pause", pause)
    with locked(server, schema, mine.id):
        assert [zombie.job.id for zombie in reap(store, clock).zombies] == [other.id]
        assert clock.lease() - began < 1
    assert [zombie.job.id for zombie in reap(store, clock, fix=False).zombies] == [mine.id]
    began = clock.lease()
    assert reap(store, clock).recovered == 1
    assert 10 <= clock.lease() - began < 11
    assert row(store, mine.id).state is State.READY


def test_a_tick_recovers_what_a_worker_that_beats_has_forgotten(
    server: PostgresServer, schema: str, houses: Houses, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, other = houses(server.url), threading.Event()

    @house.app.task(name="t", lease_s=3.0)
    def work() -> str:
        return "fine"

    worker = enrol(house.store)
    job = work.enqueue()
    [claimed] = house.store.claim(worker, "c", ["default"], ["t"], 1)
    house.store.real._db.run(
        lambda db: db.execute(f"UPDATE {schema}.job SET lease_until = lease_until - 13 WHERE id = %s", (claimed.id,))
    )
    real_now, swept = house.store.real.now, threading.Event()
    began = real_now().lease

    def now() -> Moment:
        """Let the beat that the job is given pass after the sweep, not during it, however slow the machine is."""
        return Moment(real_now().wall, began + 1.5 * swept.is_set())

    monkeypatch.setattr(house.store.real, "now", now)
    beating = threading.Thread(
        target=lambda: [house.store.beat(worker, []) for _ in iter(lambda: other.wait(0.2), True)]
    )
    beating.start()
    try:
        with house.store.before("due", lambda *_: swept.set()):
            report = house.app.tick(budget_s=60.0)
    finally:
        other.set()
        beating.join()
    assert (report.recovered, report.settled, report.finished) == (1, 1, True)
    assert house.row(job.id).state == "done"


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
    monkeypatch.setattr("holdfast.upkeep.reaper.PAGE", 1)
    worker = enrol(store)
    jobs = [start(store, worker) for _ in range(3)]
    store.retire(worker, "its process died")
    with locked(server, schema, jobs[2].id):
        assert sorted(look(Reaper(store, clock))) == sorted([jobs[0].id, jobs[1].id])


# ------------------------------------------------------------------------------------ limits of the server


def limits_of(store: PostgresStore, pool: str) -> tuple[Any, ...]:
    ask = b"SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"
    found: tuple[Any, ...] = getattr(store, pool).run(lambda db: db.execute(ask).fetchone())
    return found


def test_the_server_limits_what_a_verb_may_wait_for_by_the_shortest_beat(store: PostgresStore) -> None:
    assert limits_of(store, "_hot") == ("1s", "10s")
    assert limits_of(store, "_db") == ("8s", "10s")
    worker = enrol(store, beat_s=1.2)
    assert limits_of(store, "_hot") == ("400ms", "1200ms")
    start(store, worker, lease_s=0.9)
    assert limits_of(store, "_hot") == ("100ms", "1s"), "a job with a short lease was claimed"


SEEN = "INSERT INTO {schema}.seen VALUES (current_setting('lock_timeout'), current_setting('statement_timeout'))"


@pytest.mark.parametrize("act", ["purge", "export", "revive"])
def test_each_page_of_a_bulk_act_may_take_a_minute(
    server: PostgresServer, schema: str, store: PostgresStore, act: str
) -> None:
    """The server itself writes down which limits are in force while it deletes or reads the jobs."""
    jobs = [job_in(store, State.DEAD).id for _ in range(2)]
    server.execute(f"CREATE TABLE {schema}.seen (lock_timeout text, statement_timeout text)")
    if act == "purge":
        server.execute(
            f"CREATE FUNCTION {schema}.see() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN {SEEN.format(schema=schema)}; RETURN old; END $$"
        )
        server.execute(f"CREATE TRIGGER see BEFORE DELETE ON {schema}.job FOR EACH ROW EXECUTE FUNCTION {schema}.see()")
        assert store.purge([State.DEAD], 1e12) == 2
    else:
        server.execute(f"ALTER FUNCTION {schema}.as_json({schema}.job) RENAME TO quick_json")
        server.execute(
            f"CREATE FUNCTION {schema}.as_json(job {schema}.job) RETURNS json LANGUAGE plpgsql AS "
            f"$$ BEGIN {SEEN.format(schema=schema)}; RETURN {schema}.quick_json(job); END $$"
        )
        words = {"export": ["jobs", "export"], "revive": ["dead", "revive", "--all", "--yes", "--by", "ann"]}[act]
        done = CliRunner().invoke(cli, ["--db", store.url, *words])
        assert done.exit_code == 0, done.output
        assert act == "export" or [row(store, job).state for job in jobs] == [State.READY] * 2
    seen = server.execute(f"SELECT * FROM {schema}.seen")
    assert ("1s", "1min") in seen
    assert act == "revive" or set(seen) == {("1s", "1min")}, "an act on one job of many has the limits of an act"


def test_each_piece_of_a_migration_may_take_a_minute(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def watched(migrations: Any, found: Any, editor: Any, *rest: Any) -> Any:
        ask = "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"
        seen.append(editor._db.execute(ask).fetchone())
        return advance(migrations, found, editor, *rest)

    monkeypatch.setattr("holdfast.stores.postgres.store.advance", watched)
    store = PostgresStore(f"{server.url}?schema={schema}")
    store.migrate()
    store.close()
    assert set(seen) == {("500ms", "1min")}


def test_a_beat_renews_leases_while_the_row_of_the_worker_is_locked(
    server: PostgresServer, schema: str, store: PostgresStore, clock: FakeClock
) -> None:
    worker = enrol(store, beat_s=0.3)
    job = start(store, worker, lease_s=30)
    with locked(server, schema, worker, "worker"):
        clock.advance(20)
        answer = store.beat(worker, [Pulse(job.lease)])
        assert (answer.gone, answer.lost, answer.skipped, answer.counted) == (False, [], [], False)
    assert row(store, job.id).lease_until == clock.lease() + 30
    assert store.beat("nobody", []).gone


def test_a_worker_whose_row_is_locked_claims_and_is_seen_alive(
    server: PostgresServer, schema: str, store: PostgresStore, clock: FakeClock
) -> None:
    worker, job = enrol(store), add(store).id
    with locked(server, schema, worker, "worker"):
        [claimed] = claim(store, worker)
        assert claimed.id == job
        assert waiting_backends(server) == 0
        clock.advance(3600)
        assert not store.beat(worker, []).counted
        assert [each.beat_at for each in store.workers()] == [clock.wall()]
    clock.advance(1)
    store.beat(worker, [])
    assert [each.beat_at for each in store.workers()] == [clock.wall()]
    settle(store, claimed, Succeeded("null"))
    store.retire(worker, "stopped")
    clock.advance(2 * 86_400)
    store.retire(enrol(store), "stopped")
    assert server.execute(f"SELECT worker FROM {schema}.beat_aside") == [], "a forgotten worker leaves nothing"


def test_a_worker_is_not_declared_dead_before_its_claim_beside_a_locked_row_is_over(
    server: PostgresServer, store: PostgresStore
) -> None:
    worker = enrol(store)
    with psycopg.connect(server.url) as claiming:
        claiming.execute(store._db["claim_locked"], {"worker": worker})
        with pytest.raises(StoreLocked):
            store.retire(worker, "dead")
    assert store.retire(worker, "dead")


def test_a_dead_worker_whose_row_is_locked_does_not_keep_another_from_being_recovered(
    server: PostgresServer, schema: str, store: PostgresStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = enrol(store, beat_s=0.3), enrol(store)
    jobs = [start(store, worker) for worker in (first, second)]
    store._liveness.drop(first)
    store._liveness.drop(second)
    reaper = Reaper(store, clock)
    with locked(server, schema, first, "worker"):
        look(reaper)
        clock.advance(2)
        assert look(reaper) == [jobs[1].id]
        assert "cannot be recovered yet" in caplog.text
    assert look(reaper) == [jobs[0].id]
    [zombie] = store.journal(jobs[0].id, kinds=("zombie",))
    assert zombie.detail["evidence"] == "session", "the server knows no more than that"


def test_an_old_worker_whose_row_is_locked_keeps_nobody_from_leaving(
    server: PostgresServer, schema: str, store: PostgresStore, clock: FakeClock
) -> None:
    old, other = enrol(store), enrol(store, beat_s=0.3)
    store.retire(old, "stopped")
    clock.advance(2 * 86_400)
    with locked(server, schema, old, "worker"):
        assert store.retire(other, "stopped")
    assert {worker.id for worker in store.workers(gone=True)} == {old, other}


def test_a_duty_whose_row_is_locked_is_renewed_when_the_lock_is_gone_and_other_duties_go_on(
    server: PostgresServer, schema: str, store: PostgresStore
) -> None:
    enrol(store, beat_s=0.3)
    duty = store.acquire("chore", "me", 5.0)
    with psycopg.connect(server.url) as db:
        db.execute(f"SELECT FROM {schema}.duty WHERE name = 'chore' FOR UPDATE")  # type: ignore[call-overload]
        with pytest.raises(StoreLocked):
            store.acquire("chore", "me", 5.0)
        assert store.acquire("other", "me", 5.0) is not None
        assert waiting_backends(server) == 0
    assert store.acquire("chore", "me", 5.0) == duty


def test_a_row_of_the_turns_that_is_locked_keeps_no_job_from_being_claimed(
    server: PostgresServer, schema: str, store: PostgresStore
) -> None:
    store.limit("default", setting(limit=10))
    worker = enrol(store)
    store.add([make_job(group=group) for group in "ab"])
    assert len(claim(store, worker)) == 2
    store.add([make_job(group="c"), make_job(queue="plain")])
    with psycopg.connect(server.url) as db:
        assert db.execute(f"SELECT FROM {schema}.turn FOR UPDATE").rowcount == 1  # type: ignore[call-overload]
        assert {job.queue for job in claim(store, worker, queues=["default", "plain"])} == {"default", "plain"}
        assert waiting_backends(server) == 0


def test_a_queue_whose_row_is_locked_holds_up_one_claim_in_a_second(
    server: PostgresServer, schema: str, store: PostgresStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.limit("limited", setting(limit=10))
    store.add([make_job(queue=queue) for queue in ("limited", *["plain"] * 4)])
    worker, queues, asked = enrol(store), ["plain", "limited"], []
    claim(store, worker, queues=queues, limit=1)  # from here on this process knows the queue
    take = Turns.take
    monkeypatch.setattr(Turns, "take", lambda self, *given: asked.append(given[1]) or take(self, *given))
    with psycopg.connect(server.url) as db:
        db.execute(f"SELECT FROM {schema}.queue FOR UPDATE")  # type: ignore[call-overload]
        queues.reverse()
        for _ in range(3):
            assert [job.queue for job in claim(store, worker, queues=queues, limit=1)] == ["plain"]
    assert asked == ["limited"]
    clock.advance(1)
    assert [job.queue for job in claim(store, worker, queues=queues, limit=1)] == ["limited"]


CLIENT = """
import sys
from holdfast.core.machine import State
from holdfast.stores.postgres.store import PostgresStore
from tests.factory import make_job

store = PostgresStore(sys.argv[1])
match sys.argv[2]:
    case "enqueue": store.add([make_job(key="K")])
    case "purge": store.purge([State.DEAD], 1e12)
    case "read": store.get("slow")
"""


@pytest.mark.parametrize("call", ["enqueue", "purge", "read"])
def test_a_server_process_ends_at_its_limit_when_its_client_was_killed(
    server: PostgresServer, schema: str, store: PostgresStore, call: str
) -> None:
    """The client dies while the server waits for a lock, or works, on its behalf. The lock stays."""
    add(store, id="locked")
    dead = job_in(store, State.DEAD)
    add(store, id="slow")
    slow(server, schema, "slow", 600)
    command = [sys.executable, "-c", CLIENT, f"{server.url}?schema={schema}&wait_s=2", call]
    with psycopg.connect(server.url) as db:
        store.add([make_job(key="K")], connection=db)
        db.execute(f"SELECT FROM {schema}.job WHERE id = 'locked' FOR UPDATE")  # type: ignore[call-overload]
        db.execute(f"SELECT FROM {schema}.journal WHERE job_id = %s FOR UPDATE", (dead.id,))  # type: ignore[call-overload]
        busy = (
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'holdfast' AND state = 'active' "
            "AND (wait_event_type = 'Lock' OR wait_event = 'PgSleep')"
        )
        with subprocess.Popen(command) as client:
            try:
                [(pid,)] = until(lambda: server.execute(busy), "the server works for it", PATIENCE_S)
            finally:
                client.kill()
        left = f"SELECT pid FROM pg_stat_activity WHERE pid = {pid}"
        until(lambda: not server.execute(left), "the server's process has ended", PATIENCE_S)


@pytest.mark.parametrize("verb", ["move", "delete"])
def test_acts_pass_by_the_locked_row_and_are_done_on_the_others(
    server: PostgresServer, schema: str, store: PostgresStore, verb: str
) -> None:
    jobs = [add(store) for _ in range(3)]

    def act() -> list[Reply]:
        if verb == "delete":
            return store.delete([job.seen for job in jobs])
        return store.move([Move(job.seen, acts.cancel(job, actor="ann")) for job in jobs])

    with locked(server, schema, jobs[1].id):
        assert act() == [Reply.ACCEPTED, Reply.LOCKED, Reply.ACCEPTED]
        assert row(store, jobs[1].id) == jobs[1]
    assert act() == [Reply.REFUSED, Reply.ACCEPTED, Reply.REFUSED]


def test_a_person_is_told_that_a_row_is_locked(
    server: PostgresServer, schema: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "LOCK_WAIT_S", 0.1)
    job = add(store)
    with App(store.url) as app, locked(server, schema, job.id):
        with pytest.raises(StoreLocked, match=f"job {job.id}: another transaction holds a lock on its row"):
            app.cancel(job.id)
        assert row(store, job.id) == job


def test_an_act_waits_a_moment_for_a_row_that_is_locked(
    server: PostgresServer, schema: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [add(store) for _ in range(3)]
    with locked(server, schema, jobs[1].id) as db:
        monkeypatch.setattr(bulk, "pause", lambda seconds: db.rollback())
        pages = list(bulk.move_all(store, [job.id for job in jobs], lambda job: acts.cancel(job, actor="ann")))
    assert pages == [[Acted(jobs[0].id), Acted(jobs[2].id)], [Acted(jobs[1].id)]]


def test_a_key_that_an_open_transaction_stores_locks_out_that_job_and_no_other(
    server: PostgresServer, store: PostgresStore
) -> None:
    jobs = [job_in(store, State.DEAD, key=f"order-{number}") for number in range(9)]
    moves = [Move(job.seen, acts.revive(job, 0.0, actor="ann")) for job in jobs]
    with psycopg.connect(server.url) as db:
        store.add([make_job(key="order-4")], connection=db)
        assert store.move(moves) == [Reply.ACCEPTED] * 4 + [Reply.LOCKED] + [Reply.ACCEPTED] * 4
        db.commit()
    assert store.move(moves[4:5]) == [Reply.TAKEN]


def test_a_delete_passes_by_a_job_whose_history_is_locked(
    server: PostgresServer, schema: str, store: PostgresStore
) -> None:
    jobs = [job_in(store, State.DEAD) for _ in range(5)]
    with psycopg.connect(server.url) as db:
        db.execute(f"SELECT FROM {schema}.journal WHERE job_id = %s FOR UPDATE", (jobs[2].id,))  # type: ignore[call-overload]
        answers = store.delete([job.seen for job in jobs])
    assert answers == [Reply.ACCEPTED] * 2 + [Reply.LOCKED] + [Reply.ACCEPTED] * 2


def test_a_job_that_a_table_refers_to_does_not_stop_the_deletion_of_others(
    server: PostgresServer, schema: str, store: PostgresStore
) -> None:
    jobs = [job_in(store, State.DONE) for _ in range(5)]
    server.execute(f"CREATE TABLE {schema}.upload (job_id text REFERENCES {schema}.job (id))")
    server.execute(f"INSERT INTO {schema}.upload VALUES ('{jobs[3].id}')")
    with pytest.raises(Refused, match="one of 5 jobs cannot be deleted"):
        store.delete([job.seen for job in jobs])
    [page] = bulk.delete_all(store, [job.id for job in jobs], lambda job: job.seen, None, None)
    errors = {acted.job_id: str(acted.error) for acted in page if acted.error is not None}
    assert list(errors) == [jobs[3].id]
    assert f"the table {schema}.upload refers to it" in errors[jobs[3].id]
    assert [job.id for job in store.find(Filter())] == [jobs[3].id]


def test_an_act_on_many_jobs_skips_the_locked_one_and_acts_on_the_others(
    server: PostgresServer, schema: str, store: PostgresStore
) -> None:
    jobs = [job_in(store, State.DEAD) for _ in range(6)]
    with locked(server, schema, jobs[1].id):
        done = CliRunner().invoke(cli, ["--db", store.url, "dead", "revive", "--all", "--yes", "--by", "ann"])
        assert "another transaction holds a lock" in done.output
        assert [row(store, job.id).state for job in jobs] == ["ready", "dead", *["ready"] * 4]
        others = [job_in(store, State.DEAD).id for _ in range(3)]
        assert store.purge([State.DEAD], 1e12) == 3
        assert [store.get(job) for job in others] == [None] * 3
        assert row(store, jobs[1].id).state is State.DEAD


@pytest.mark.parametrize("table", ["journal", "step", "signal"])
def test_a_purge_skips_a_job_whose_history_is_locked_and_removes_the_others(
    server: PostgresServer, schema: str, store: PostgresStore, table: str
) -> None:
    flows = [start_flow(store) for _ in range(4)]
    for flow in flows:
        assert record(store, flow, a_step(1)) is Reply.ACCEPTED
        assert store.signal(a_signal(flow)) is Reply.ACCEPTED
        assert settle(store, flow, Failed("no luck", final=True)) is Reply.ACCEPTED
    with psycopg.connect(server.url) as first, psycopg.connect(server.url) as second:
        lock = f"SELECT FROM {schema}.{table} WHERE job_id = %s FOR UPDATE"
        first.execute(lock, (flows[0].id,))  # type: ignore[call-overload]
        second.execute(lock, (flows[1].id,))  # type: ignore[call-overload]
        assert store.purge([State.DEAD], 1e12, limit=1) == 1, "the oldest one that is free"
        assert store.purge([State.DEAD], 1e12) == 1
        assert {job.id for job in store.find(Filter())} == {flows[0].id, flows[1].id}
        assert [len(store.journal(flow.id)) > 0 for flow in flows] == [True, True, False, False]
    assert store.purge([State.DEAD], 1e12) == 2


def test_a_purge_keeps_the_jobs_that_a_table_refers_to_and_removes_the_others(
    server: PostgresServer, schema: str, store: PostgresStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [job_in(store, State.DONE).id for _ in range(9)]
    server.execute(f"CREATE TABLE {schema}.upload (job_id text REFERENCES {schema}.job (id))")
    for job_id in (jobs[0], jobs[4]):
        server.execute(f"INSERT INTO {schema}.upload VALUES ('{job_id}')")
    assert store.purge([State.DONE], 1e12, limit=3) == 3, "they do not hide what comes next"
    assert store.purge([State.DONE], 1e12) == 4
    assert store.purge([State.DONE], 1e12) == 0
    assert {job.id for job in store.find(Filter())} == {jobs[0], jobs[4]}
    said = [record.getMessage() for record in caplog.records if "is kept" in record.getMessage()]
    assert [line.split()[1] for line in said] == [jobs[0], jobs[4]], "each is named once"
    assert f"the table {schema}.upload refers to it" in said[0]
    with pytest.raises(Refused, match=f"job {jobs[0]} cannot be deleted: a row of the table {schema}.upload"):
        delete(store, jobs[0], State.DONE, row(store, jobs[0]).fence)
    server.execute(f"DELETE FROM {schema}.upload")
    clock.advance(purge.LEAVE_ALONE_S)
    assert store.purge([State.DONE], 1e12) == 2, "it was tried again"


def test_a_job_that_a_purge_keeps_is_named_once_a_day(
    server: PostgresServer,
    schema: str,
    store: PostgresStore,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(purge, "NAMED_MAX", 2)
    jobs = [job_in(store, State.DONE).id for _ in range(3)]
    server.execute(f"CREATE TABLE {schema}.upload (job_id text REFERENCES {schema}.job (id))")
    server.execute(f"INSERT INTO {schema}.upload SELECT id FROM {schema}.job")
    lines = []
    for pause_s in (0.0, purge.LEAVE_ALONE_S, purge.SAY_EVERY_S):
        clock.advance(pause_s)
        assert store.purge([State.DONE], 1e12) == 0
        lines.append([record.getMessage() for record in caplog.records])
        caplog.clear()
    assert [[line.split()[1] for line in each] for each in lines] == [[*jobs[:2], "kept"], [], [*jobs[:2], "kept"]]
    assert lines[0][2] == "2 kept jobs were logged within a day; further ones are not logged"


@pytest.mark.parametrize("verb", ["claim", "purge"])
def test_a_page_that_takes_too_long_is_repeated_in_smaller_pieces(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    worker = enrol(store)
    found = [(add(store) if verb == "claim" else job_in(store, State.DEAD)).id for _ in range(5)]
    asked = Limited(monkeypatch, most=2)
    if verb == "claim":
        assert [job.id for job in store.claim(worker, "c", ["default"], ["t"], 5)] == found[:2]
        assert [job.id for job in store.claim(worker, "d", ["default"], ["t"], 5)] == found[2:4]
    else:
        assert store.purge([State.DEAD], 1e12, limit=5) == 5
    assert asked.limits[0] == 5
    monkeypatch.undo()


def test_a_reaper_whose_pages_take_too_long_recovers_every_job_that_is_not_locked(
    server: PostgresServer, schema: str, store: PostgresStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stays in a page must not hide what comes after it, however small the pages are."""
    worker = enrol(store)
    jobs = [start(store, worker, lease_s=1).id for _ in range(8)]
    clock.advance(5)
    monkeypatch.setattr("holdfast.upkeep.reaper.PAGE", 4)
    asked = Limited(monkeypatch, most=2)
    reaper = Reaper(store, clock)
    with locked(server, schema, jobs[0]), locked(server, schema, jobs[1]):
        assert suspected(store) == 8
        reaper.once()
        clock.advance(1)
        assert reaper.once().locked == 2
        assert [row(store, job).state for job in jobs] == ["running"] * 2 + ["ready"] * 6
    assert set(asked.limits) - {batch_ends.PAGE, expiry.PAGE, dependents.PAGE} == {4, 2}
    reaper.once()
    assert {row(store, job).state for job in jobs} == {State.READY}


def test_a_scan_says_that_a_row_is_locked_and_left_for_the_next_pass(
    server: PostgresServer, schema: str, store: PostgresStore
) -> None:
    worker = enrol(store)
    jobs = [start(store, worker).id for _ in range(3)]
    store.retire(worker, "its process died")
    with locked(server, schema, jobs[1]):
        done = CliRunner().invoke(cli, ["--db", store.url, "scan", "--fix"])
        said = "2 of 3 jobs recovered; 1 row is locked by another transaction and left for the next pass."
        assert said in " ".join(done.output.split())
        assert App(store.url).reap().locked == 1
        view = json.loads(CliRunner().invoke(cli, ["--db", store.url, "scan", "--fix", "--json"]).stdout)
        assert (view["zombies_found"], view["zombies_recovered"], view["zombies_locked"]) == (1, 0, 1)
        assert [zombie["answer"] for zombie in view["zombies"]] == ["locked"]
    done = CliRunner().invoke(cli, ["--db", store.url, "scan", "--fix"])
    assert "1 of 1 job recovered." in done.output


def test_a_scan_names_the_jobs_whose_rows_another_transaction_has_locked(
    server: PostgresServer, schema: str, store: PostgresStore
) -> None:
    job = start(store, enrol(store))
    said = f"Another transaction has locked the row of {job.id}, so no lease is renewed and no result saved there."
    with locked(server, schema, job.id):
        assert said in " ".join(CliRunner().invoke(cli, ["--db", store.url, "scan"]).output.split())
    assert "Another transaction" not in CliRunner().invoke(cli, ["--db", store.url, "scan"]).output


def test_only_a_store_that_may_only_be_read_cannot_tell_which_rows_are_locked(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = start(store, enrol(store))

    def fail(error: StoreError) -> None:
        def locked(_: Any) -> list[str]:
            raise error

        monkeypatch.setattr(store, "locked", locked)

    fail(StoreReadOnly("it is a standby"))
    assert insight.locked_rows(store, [job]) == []
    fail(StoreUnavailable("the server is gone"))
    with pytest.raises(StoreUnavailable):
        insight.locked_rows(store, [job])


def test_a_locked_row_of_a_living_worker_is_reported_as_locked(
    server: PostgresServer, schema: str, store: PostgresStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    worker = enrol(store)
    job = start(store, worker)
    clock.advance(job.lease_s + 1)
    store.beat(worker, [])
    title = "Rows are locked by another transaction"
    with locked(server, schema, job.id) as holder:
        story = insight.job_story(store, job)
        assert story["health"]["word"] == "locked"
        assert "another transaction has locked its row" in insight.explain(store, job).sentence
        [finding] = [each for each in diagnose(store, clock) if each.title == title]
        assert finding.evidence == f"1 job: {job.id} ({job.task})"
        reaper = Reaper(store, clock)
        for _ in range(2):
            reaper.once()
        assert caplog.text.count("another transaction has locked its row") == 1
        [text] = re.findall(
            r"```sql\n(SELECT pid.*?)```", (Path(__file__).parents[2] / "docs/postgresql.md").read_text(), re.DOTALL
        )
        found = server.execute(text.replace("holdfast.job", f"{schema}.job"))
        assert holder.info.backend_pid in [pid for pid, *_ in found]
    assert insight.job_story(store, job)["health"]["word"] == "dead"
    assert title not in [each.title for each in diagnose(store, clock)]


def test_an_export_reads_in_smaller_pages_what_takes_too_long(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [add(store).id for _ in range(5)]
    asked = Limited(monkeypatch, most=2)
    done = CliRunner().invoke(cli, ["--db", store.url, "jobs", "export", "--queue", "default"])
    monkeypatch.undo()
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ids[::-1]
    assert len(asked.limits) > 3


@pytest.mark.parametrize("act", ["export", "revive"])
def test_a_program_that_reads_all_jobs_may_take_longer_than_a_call(
    server: PostgresServer, schema: str, store: PostgresStore, act: str
) -> None:
    job = job_in(store, State.DEAD)
    db = f"{server.url}?schema={schema}&wait_s=3"
    slow(server, schema, job.id, 3.5)
    if act == "export":
        done = CliRunner().invoke(cli, ["--db", db, "jobs", "export"])
        assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [job.id]
    else:
        done = CliRunner().invoke(cli, ["--db", db, "dead", "revive", "--all", "--yes", "--by", "ann"])
        assert "1 job revived" in done.output


class Limited:
    """A server that stops every page of more than so many jobs at its time limit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.limits: list[int] = []
        real = psycopg.Cursor.execute

        def execute(cursor: Any, query: Any, params: Any = None, **more: Any) -> Any:
            if isinstance(params, dict) and "limit" in params and not params.keys() & {"job_id", "job_ids"}:
                self.limits.append(params["limit"])
                if params["limit"] > most:
                    raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
            return real(cursor, query, params, **more)

        monkeypatch.setattr(psycopg.Cursor, "execute", execute)


# --------------------------------------------------------------------------------- an enqueue without answer


def test_an_enqueue_that_waits_too_long_for_a_key_is_never_stored_later(
    server: PostgresServer, schema: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limits, "patient", lambda _: Limits(0.5, 60.0))
    store = PostgresStore(f"{server.url}?schema={schema}", clock=clock)
    store.migrate()
    job = make_job(key="K")
    with psycopg.connect(server.url) as db:
        store.add([make_job(key="K")], connection=db)
        with pytest.raises(StoreLocked, match=r"another transaction .* will not later\. Repeat the call when"):
            store.add([job])
        assert waiting_backends(server) == 0
        db.rollback()
    assert store.get(job.id) is None
    assert store.counts() == {}
    store.close()


def test_an_enqueue_whose_answer_is_lost_says_so_and_can_be_repeated(
    server: PostgresServer, proxy: Proxy, schema: str
) -> None:
    app = App(f"{proxy.url}?schema={schema}&wait_s=3")

    @app.task
    def work() -> None: ...

    work.enqueue()
    proxy.swallow(b"INSERT INTO")
    proxy.refuse()
    with pytest.raises(OutcomeUnknown, match=r"the outcome of this enqueue is unknown.*safe.*using\(id=") as caught:
        work.enqueue()
    proxy.listen()
    [job_id] = caught.value.job_ids
    assert job_id in str(caught.value)
    job = work.using(id=job_id).enqueue()
    assert (job.id, job.existed) == (job_id, True)
    assert app.store.counts() == {"default": {State.READY: 2}}
    app.close()


def test_an_enqueue_that_never_reached_the_server_is_known_not_to_be_stored(proxy: Proxy, schema: str) -> None:
    app = App(f"{proxy.url}?schema={schema}&wait_s=3")

    @app.task
    def work() -> None: ...

    work.enqueue()
    with proxy.down():
        with pytest.raises(StoreUnavailable):
            app.store.counts()  # from now on the connections are known to be dead
        with pytest.raises(StoreUnavailable) as caught:
            work.enqueue()
    assert not isinstance(caught.value, OutcomeUnknown)
    app.close()
