"""How PostgreSQL goes about the statements that run all the time: by an index, however many jobs there are."""

from functools import partial
from typing import Any

import pytest
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH

from holdfast.core.limits import setting
from holdfast.core.machine import State
from holdfast.core.records import Filter
from holdfast.stores.postgres.connection import Connections, Cursor
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.postgres.turns import Turns
from holdfast.stores.row_json import rows_from
from tests.factory import enrol, make_job
from tests.servers import PostgresServer

JOBS = 30_000
CLAIM = {
    "worker": "w",
    "claim_id": "c",
    "try": 0,
    "limit": 1,
    "most": 1,
    "even": True,
    "first": True,
    "row_locked": False,
}
VALUES: dict[str, dict[str, Any]] = {
    "claim": CLAIM | {"queues": ["default"], "tasks": ["t"], "lanes": None, "wall": None, "lease": None},
    "due": {"queues": ["default"], "tasks": ["t"], "lanes": None, "sleeps": False, "wall": None},
    "deadline": {},
    "settle_done": {"endings": '[["j1", 1, "c", null]]', "many": 1, "wall": None},
    "beat": {
        "worker": "w",
        "pulses": '[["j1", 1, "c", true, null, null, null]]',
        "rss_mb": 1.0,
        "stopping": False,
        "recent": None,
        "row_locked": False,
        "wall": None,
        "lease": None,
    },
}


@pytest.fixture(scope="module")
def full(server: PostgresServer) -> Any:
    """A store with many ready jobs and many finished ones, and a planner that knows it."""
    store = PostgresStore(f"{server.url}?schema=plans")
    store.migrate()
    server.execute(FILL)
    server.execute("ANALYZE plans.job")
    yield store
    store.close()
    server.execute("DROP SCHEMA plans CASCADE")


FILL = f"""
        INSERT INTO plans.job (id, task, queue, payload, run_at, created_at, attempts_max, backoff_base_s,
            backoff_cap_s, backoff_jitter, crashes_max, on_crash, lease_s, beat_s, state, ended_at)
        SELECT 'j' || n, 't', CASE WHEN n % 2000 < 2 THEN 'rare' ELSE 'default' END,
            '{{}}', n, n, 3, 1, 60, true, 3, 'retry', 30, 10,
            CASE WHEN n % 2 = 0 THEN 'ready' ELSE 'done' END, CASE WHEN n % 2 = 1 THEN n END
        FROM generate_series(1, {JOBS}) AS n
"""


@pytest.mark.parametrize("query", VALUES)
def test_what_runs_all_the_time_reads_jobs_by_an_index(full: PostgresStore, query: str) -> None:
    plan = full._hot.run(partial(explained, full._hot, query))
    assert "Seq Scan on job" not in plan
    assert "Scan using job_" in plan


def test_a_signal_is_taken_by_its_id_however_many_its_workflow_has(full: PostgresStore) -> None:
    values = {"tokens": '[["j1", 1, "c"]]', "steps": "[]", "facts": "[]", "taken": '[["j1", 1, "s"]]'}

    def plan(db: Cursor) -> str:
        rows = db.execute(b"EXPLAIN " + full._hot["record"], values, prepare=False).fetchall()
        return "\n".join(row[0] for row in rows)

    assert "signal_job" not in full._hot.run(plan)


SETTLE = {"duty": None, "holder": None, "term": None, "events": "[]", "errors": "[]", "channel": "plans", "wall": None}
BY_ID: dict[str, dict[str, Any]] = {
    "settle_done": VALUES["settle_done"],
    "settle": SETTLE | {"endings": '[["j1", 1, "c", null, false, "ready"]]'},
    "beat": VALUES["beat"],
    "record": {"tokens": '[["j1", 1, "c"]]', "steps": "[]", "facts": "[]", "taken": "[]"},
}


@pytest.mark.parametrize("query", BY_ID)
def test_jobs_are_looked_up_by_id_though_the_plan_was_made_for_an_empty_table(
    server: PostgresServer, query: str
) -> None:
    """Otherwise each settlement reads the whole table, and all that an old transaction keeps of it."""
    store = PostgresStore(f"{server.url}?schema=plans_by_id")
    store.migrate()
    try:
        with store._hot._open_pool().connection() as db, db.cursor() as cursor:
            cursor.execute(store._hot[query], BY_ID[query], prepare=True)
            server.execute(FILL.replace("plans.", "plans_by_id."))
            with db.transaction():
                cursor.execute(store._hot[query], BY_ID[query], prepare=True)
                read = "SELECT idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'plans_by_id.job'::regclass"
                [rows] = cursor.execute(read).fetchone() or [JOBS]
                assert rows < 10
    finally:
        store.close()
        server.execute("DROP SCHEMA plans_by_id CASCADE")


def test_a_plan_from_when_there_was_nothing_serves_a_full_table(server: PostgresServer) -> None:
    """Made once, on an empty table; asked for again when it is full and nothing has told the planner."""
    store = PostgresStore(f"{server.url}?schema=plans_anew")
    store.migrate()
    try:
        with store._hot._open_pool().connection() as db, db.cursor() as cursor:
            for name in ("claim", "due"):
                cursor.execute(store._hot[name], VALUES[name], prepare=True)
            server.execute(FILL.replace("plans.", "plans_anew."))
            server.execute(
                "INSERT INTO plans_anew.worker (id, name, host, pid, boot_id, queues, slots, beat_s, version, schema,"
                " started_at, beat_at) VALUES ('w', '', '', 1, '', '[]', 1, 1, '', 99, 0, 0)"
            )
            with db.transaction():
                for name in ("claim", "due"):
                    cursor.execute(store._hot[name], VALUES[name], prepare=True)
                scans = "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relid = 'plans_anew.job'::regclass"
                assert cursor.execute(scans).fetchone() == (0,)
            made = "SELECT sum(generic_plans), sum(custom_plans) FROM pg_prepared_statements WHERE statement LIKE %s"
            assert cursor.execute(made, ("%plans_anew%",)).fetchone() == (4, 0)
    finally:
        store.close()
        server.execute("DROP SCHEMA plans_anew CASCADE")


def test_the_sessions_of_the_pool_are_set_up_like_that(full: PostgresStore) -> None:
    shown = full._hot.run(lambda db: [db.execute(f"SHOW {name}").fetchone() for name in ("plan_cache_mode", "jit")])
    assert shown == [("force_generic_plan",), ("off",)]


def explained(queries: Connections, query: str, db: Cursor) -> str:
    with db.connection.transaction(force_rollback=True):
        rows = db.execute(b"EXPLAIN " + queries[query], VALUES[query], prepare=False).fetchall()
    return "\n".join(row[0] for row in rows)


@pytest.mark.parametrize("queue", [None, "default", "rare"])
@pytest.mark.parametrize("states", [(), (State.READY,), (State.HELD,), (State.DONE,), (State.CANCELLED,)])
def test_a_list_reads_no_more_than_it_shows(
    full: PostgresStore, queue: str | None, states: tuple[State, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those of another state nor, if they are few, those of another queue are passed on the way."""
    asked: list[tuple[str, dict[str, Any]]] = []
    with monkeypatch.context() as instead:
        instead.setattr(full._db, "one", lambda query, values: asked.append((query, values)) or ["[]"])
        full.find(Filter(queue=queue, states=states, limit=20))

    def read_by(db: Cursor) -> tuple[int, int]:
        with db.connection.transaction():
            before = db.execute(READ).fetchone() or (0, 0)
            db.execute(full._db[asked[0][0]], asked[0][1])
            after = db.execute(READ).fetchone() or (0, 0)
        return after[0] - before[0], after[1] - before[1]

    scans, rows = full._db.run(read_by)
    assert scans == 0
    assert rows < 1000


READ = "SELECT seq_scan, seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'plans.job'::regclass"


@pytest.mark.parametrize("query", ["claim", "beat", "settle_done", "due"])
def test_the_driver_keeps_in_mind_what_runs_all_the_time(full: PostgresStore, query: str) -> None:
    """It takes a longer statement apart each time."""
    assert len(full._hot[query]) <= MAX_CACHED_STATEMENT_LENGTH


@pytest.mark.parametrize("why", ["full", "paused", "later"])
def test_a_claim_by_turns_leaps_over_the_jobs_of_groups_that_may_not_start(server: PostgresServer, why: str) -> None:
    """It reads no more rows of the job table with thousands of jobs before the open group than with few."""
    store = PostgresStore(f"{server.url}?schema=plans_turns")
    store.migrate()
    read = "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_xact_user_tables WHERE relid = 'plans_turns.job'::regclass"
    try:
        worker = enrol(store)
        store.limit("default", setting(group_limit=1))
        delay_s = 3600.0 if why == "later" else 0.0
        store.add([make_job(group=f"g{n % 20:02}", delay_s=delay_s) for n in range(20_000)] + [make_job(group="z")])
        for number in range(20):
            if why == "paused":
                store.pause("default", True, group=f"g{number:02}")
        if why == "full":
            assert len(store.claim(worker, "fill", ["default"], ["t"], 20)) == 20
        values = {"queue": "default", "wanted": 5, "cursors": "{}", "probes": 1000, "spare": 100, "row_locked": False}
        values |= {"worker": worker, "claim_id": "c", "tasks": ["t"], "started": True, "first": True, "try": 0}
        with store._hot._open_pool().connection() as db, db.transaction():
            before = (db.execute(read).fetchone() or (0,))[0]
            found = db.execute(store._hot["claim_by_turns"], {**values, "wall": None, "lease": None}).fetchone()
            after = (db.execute(read).fetchone() or (0,))[0]
        assert found is not None
        assert '"ids" : [["' in found[0]
        assert after - before < 500
    finally:
        for each in store.workers():
            store.retire(each.id, "the test is over")
        store.close()
        server.execute("DROP SCHEMA plans_turns CASCADE")


def test_a_claim_calls_only_for_queues_in_which_something_may_start(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of hundreds of queues with limits would otherwise make hundreds of calls for one job."""
    store = PostgresStore(f"{server.url}?schema=plans_queues")
    store.migrate()
    queues, asked = [f"q{number:02}" for number in range(30)], []
    take = Turns.take
    monkeypatch.setattr(
        Turns, "take", lambda self, db, queue, *rest: asked.append(queue) or take(self, db, queue, *rest)
    )
    try:
        worker = enrol(store)
        for queue in queues:
            store.limit(queue, setting(limit=1))
        store.add([make_job(queue=queue) for queue in ("q07", "q23", "q23")])
        store.claim(worker, "first", queues, ["t"], 1)  # from here on this process knows the queues
        asked.clear()
        assert [job.queue for job in store.claim(worker, "second", queues, ["t"], 5, 20)] == ["q23"]
        assert set(asked) == {"q23"}
        asked.clear()
        assert store.claim(worker, "third", queues, ["t"], 5, 20) == []
        assert asked == [], "q23 is full, and has another job"
    finally:
        for each in store.workers():
            store.retire(each.id, "the test is over")
        store.close()
        server.execute("DROP SCHEMA plans_queues CASCADE")


def test_a_look_on_behalf_of_the_fleet_reads_no_jobs_of_tomorrow(server: PostgresServer) -> None:
    """However many there are, of however many queues, priorities and groups; and it counts those that are due."""
    store = PostgresStore(f"{server.url}?schema=plans_look")
    store.migrate()
    read = "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_xact_user_tables WHERE relid = 'plans_look.job'::regclass"
    try:
        for group in (None, "g"):
            later = {"run_at": 4e9, "group": group}
            store.add([make_job(queue=f"q{n % 20:02}", priority=n % 5, **later) for n in range(20_000)])
            store.add([make_job(queue="q03", run_at=1.0, group=group) for _ in range(3)])
        with store._hot._open_pool().connection() as db, db.transaction():
            before = (db.execute(read).fetchone() or (0,))[0]
            found = db.execute(store._hot["wake_sleepers"], {"limit": 100}, prepare=True).fetchone()
            after = (db.execute(read).fetchone() or (0,))[0]
        assert found is not None
        [[queue, jobs, _]] = rows_from(found[0])
        assert (queue, jobs) == ("q03", 6)
        assert after - before < 500
    finally:
        store.close()
        server.execute("DROP SCHEMA plans_look CASCADE")
