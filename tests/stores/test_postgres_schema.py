"""The schema on PostgreSQL: made once, by whoever may, and never mistaken for another."""

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from holdfast import Context
from holdfast.core.machine import State
from holdfast.core.verdict import Succeeded
from holdfast.errors import (
    BadURL,
    HoldfastError,
    SchemaMismatch,
    StoreError,
    StoreLost,
    StoreMissing,
    StoreReadOnly,
    StoreUnavailable,
)
from holdfast.stores.postgres.connection import Limits, Options
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Reply
from holdfast.stores.sql import load_migrations, load_queries, parse_migration
from tests.factory import OLD_JOB, OLD_STEP, a_worker, add, claim, enrol, make_job, settle, start
from tests.servers import PostgresServer
from tests.worker.house import House, until

Houses = Callable[..., House]
MIGRATIONS = load_migrations("holdfast.stores.postgres")

MIGRATE = """
import os, sys
from holdfast.stores.postgres.store import PostgresStore
gate, opener = os.pipe()
children = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        os.close(opener)
        store = PostgresStore(sys.argv[1])
        os.read(gate, 1)  # until the parent closes its end
        store.migrate()
        store.close()
        os._exit(0)
    children.append(child)
os.close(opener)
sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
"""


def test_ten_processes_that_start_at_once_make_it_once(server: PostgresServer, schema: str) -> None:
    command = [sys.executable, "-c", MIGRATE, f"{server.url}?schema={schema}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), "how many of them failed"
    store = PostgresStore(f"{server.url}?schema={schema}", create=False)
    found, wanted, _ = store.migrate()
    store.close()
    assert found == wanted
    assert server.execute(f"SELECT value FROM {schema}.meta WHERE name = 'schema'") == [(str(wanted),)]


# ------------------------------------------------------------------------------------------- rights


@pytest.fixture
def stranger(server: PostgresServer, schema: str) -> tuple[str, str]:
    """A user who may connect, and no more: the address, and the name."""
    name = f"user_of_{schema}"
    server.execute(f"CREATE ROLE {name} LOGIN NOSUPERUSER")
    return f"{server.url.replace('holdfast@', f'{name}@')}?schema={schema}", name


def test_a_user_who_may_not_create_the_schema_is_told_what_to_do_and_that_works(
    server: PostgresServer, schema: str, stranger: tuple[str, str]
) -> None:
    url, name = stranger
    store = PostgresStore(url)
    with pytest.raises(StoreReadOnly, match=f"CREATE SCHEMA {schema} AUTHORIZATION"):
        store.migrate()
    server.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {name}")
    store.migrate()
    add(store)
    store.close()


def test_the_owner_of_the_schema_needs_no_further_right(
    server: PostgresServer, schema: str, stranger: tuple[str, str], houses: Houses
) -> None:
    url, name = stranger
    server.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {name}")
    house = houses(url.partition("?")[0])

    @house.app.task
    def pay(ctx: Context) -> int:
        ctx.progress(0.5)
        with ctx.transaction() as db:
            db.execute("SELECT 1")
        return ctx.attempt

    house.start()
    assert pay.enqueue().result(60) == 1
    store = house.store.real
    store.add([make_job() for _ in range(120)])
    duty = store.acquire("chore", "me", 5.0)
    assert duty is not None
    assert store.resign(duty)
    store.pause("default", True)
    store.ping()
    assert store.purge([State.DONE], store.now().wall + 1) == 1
    assert (store.check(), store.vanished(), store.overdue(), store.unserved(["x"], [])) == ([], [], [], {})
    same = f"SELECT {schema}.server()"
    assert [store._db.run(lambda db: db.execute(same).fetchone())] == server.execute(same), "it knows the server's run"


def test_the_run_of_the_server_is_the_same_while_others_come_and_go(server: PostgresServer, schema: str) -> None:
    """The pids have begun again from low numbers. From 18 on, a session that is being opened looks like a helper."""
    store = PostgresStore(f"{server.url}?schema={schema}")
    store.migrate()
    store.close()
    [(written,)] = server.execute(f"SELECT prosrc FROM pg_proc WHERE oid = '{schema}.server'::regproc")
    [(version,)] = server.execute("SHOW server_version_num")
    helpers = "(NULL::oid, NULL::oid, 901), (NULL, NULL, 900)"
    autovacuum, client, opening = "(5, NULL, 17)", "(5, 10, 3)", "(NULL, NULL, 4)"
    others = [autovacuum, client, opening] if int(str(version)) >= 180_000 else [autovacuum, client]

    def run(*processes: str) -> object:
        rows = f"(VALUES {', '.join(processes)}) AS seen (datid, usesysid, pid)"
        return server.execute(str(written).replace("pg_stat_get_activity(NULL)", rows))

    assert run(helpers, *others) == run(helpers)


def test_a_user_who_may_only_read_is_told_so(server: PostgresServer, schema: str, stranger: tuple[str, str]) -> None:
    owner = PostgresStore(f"{server.url}?schema={schema}")
    owner.migrate()
    job = start(owner)
    url, name = stranger
    server.execute(f"GRANT USAGE ON SCHEMA {schema} TO {name}; GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {name}")
    store = PostgresStore(url)
    store.migrate()
    assert store.get(job.id) == job
    for verb in (lambda: store.add([make_job()]), store.ping, lambda: store.enroll(a_worker())):
        with pytest.raises(
            StoreReadOnly, match=r"may not .* After a migration the owner must grant .* GRANT SELECT, INSERT"
        ):
            verb()
    store.close()
    owner.close()


# ----------------------------------------------------------------------------------- another schema


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
def test_a_store_of_any_earlier_version_is_brought_up_to_date_with_what_is_in_it(
    server: PostgresServer, schema: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.url}?schema={schema}"
    with monkeypatch.context() as earlier:
        earlier.setattr("holdfast.stores.postgres.store._MIGRATIONS", MIGRATIONS[:version])
        old = PostgresStore(url)
        old.migrate()
        old.close()
    server.execute(f"INSERT INTO {schema}.job ({OLD_JOB[0]}) VALUES ({OLD_JOB[1]})")
    new = PostgresStore(url)
    assert new.migrate()[:2] == (version, len(MIGRATIONS))
    assert [each.id for each in claim(new, enrol(new))] == ["old"]
    assert new.schedules() == []
    new.close()


def test_what_was_undone_before_steps_said_when_keeps_its_instant(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.url}?schema={schema}"
    with monkeypatch.context() as earlier:
        earlier.setattr("holdfast.stores.postgres.store._MIGRATIONS", MIGRATIONS[:8])
        old = PostgresStore(url)
        old.migrate()
        old.close()
    for position, state in enumerate(("undone", "recorded"), 1):
        server.execute(OLD_STEP.format(table=f"{schema}.step", position=position, state=state))
    new = PostgresStore(url)
    new.migrate()
    assert [(step.ended_at, step.undone_at) for step in new.steps("old")] == [(None, 7.0), (7.0, None)]
    new.close()


def test_a_schema_that_is_too_new_is_refused_with_exit_code_4(server: PostgresServer, schema: str) -> None:
    url = f"{server.url}?schema={schema}"
    store = PostgresStore(url)
    store.migrate()
    server.execute(f"UPDATE {schema}.meta SET value = '99' WHERE name IN ('schema', 'works_with')")
    with pytest.raises(SchemaMismatch, match="99"):
        store.migrate()
    store.close()
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "jobs", "list", "--db", url], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 4, done.stderr
    assert "99" in done.stderr


@pytest.mark.parametrize("name", ["Jobs", "a-b", "pg_jobs", "1st", 'a"b', "a.b", "", "x" * 52, "a;drop"])
def test_a_schema_that_is_not_a_plain_name_is_refused(name: str) -> None:
    with pytest.raises(BadURL, match="schema"):
        PostgresStore(f"postgresql://h/d?schema={name}")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("pool_max=1", "pool_max is a whole number of at least 2"),
        ("pool_max=many", "pool_max is a whole number of at least 2"),
        ("wait_s=0", "wait_s is a number of seconds"),
        ("wait_s=nan", "wait_s is a number of seconds"),
        ("wait_s=soon", "wait_s is a number of seconds"),
        ("nonsense=1", "there is no option 'nonsense'$"),
        ("shema=jobs", "there is no option 'shema'; perhaps 'schema'"),
    ],
)
def test_an_option_that_means_nothing_is_refused(option: str, words: str) -> None:
    with pytest.raises(BadURL, match=words):
        PostgresStore(f"postgresql://h/d?{option}")


@pytest.mark.parametrize(
    "url",
    ["postgresql:///jobs", "postgresql://", "postgresql:///?service=prod", "postgres:///d?host=/run/x&sslmode=require"],
)
def test_what_libpq_finds_by_itself_may_be_left_out(url: str) -> None:
    assert Options.parse(url).conninfo == url.replace("postgres:", "postgresql:")


def test_a_password_with_a_letter_that_ends_it_is_refused_and_not_shown() -> None:
    with pytest.raises(BadURL, match="write %XX for special characters") as refused:
        PostgresStore("postgresql://ann:s3@cret@h/d")
    assert "cret" not in str(refused.value)


def test_without_create_an_empty_database_stays_empty(server: PostgresServer, schema: str) -> None:
    store = PostgresStore(f"{server.url}?schema={schema}", create=False)
    with pytest.raises(StoreMissing, match=schema):
        store.migrate()
    with pytest.raises(StoreMissing, match=schema):
        store.counts()
    assert server.execute(f"SELECT to_regnamespace('{schema}')") == [(None,)]
    store.close()


def test_a_database_that_is_not_there_is_missing(server: PostgresServer) -> None:
    store = PostgresStore(server.url.replace("/postgres", "/nowhere"))
    with pytest.raises(StoreMissing, match="create the database first"):
        store.migrate()
    store.close()


# -------------------------------------------------------------------------------- dropped while in use


def test_a_schema_that_was_dropped_is_missing_and_not_empty(server: PostgresServer, schema: str) -> None:
    store = PostgresStore(f"{server.url}?schema={schema}")
    store.migrate()
    job = start(store)
    server.execute(f"DROP SCHEMA {schema} CASCADE")
    verbs: list[Callable[[], object]] = [
        lambda: store.add([make_job()]),
        lambda: store.add([make_job() for _ in range(150)]),
        lambda: store.claim(job.worker or "", "c", ["default"], ["t"], 1),
        lambda: store.beat(job.worker or "", []),
        lambda: store.get(job.id),
        lambda: store.counts(),
        lambda: store.due(["default"], ["t"]),
        lambda: store.vanished(),
        lambda: store.overdue(),
        lambda: store.workers(),
        lambda: store.enroll(a_worker()),
        store.ping,
    ]
    for verb in verbs:
        with pytest.raises((StoreMissing, StoreLost), match=schema):
            verb()
    assert store.schema().found == 0
    store.close()


def test_a_schema_that_was_created_again_is_reported_as_lost_to_programs_of_the_old_one(
    server: PostgresServer, schema: str
) -> None:
    """P14: to a worker that is told to enrol again it would look like a healthy store with nothing to be done."""
    store, other = (PostgresStore(f"{server.url}?schema={schema}") for _ in range(2))
    store.migrate()
    worker = enrol(store)
    server.execute(f"DROP SCHEMA {schema} CASCADE")
    other.migrate()
    assert store.beat(worker, []).gone
    with pytest.raises(StoreLost, match="dropped or restored"):
        store.enroll(a_worker())
    enrol(other)
    store.close()
    other.close()


# ----------------------------------------------------------------------------------------- passwords

SECRET = "s3cr3t"
ADDRESSES = [
    f"postgresql://ann:{SECRET}@127.0.0.1:1/d",
    f"postgresql://ann:{SECRET}@127.0.0.1:1,127.0.0.1:2/d",
    f"postgresql://ann@127.0.0.1:1/d?password={SECRET}",
    f"postgresql://127.0.0.1:1/d?user=ann&password={SECRET}&sslpassword={SECRET}",
    f"postgresql://ann:{SECRET}%zz@127.0.0.1:1/d",
    f"postgresql://ann:{SECRET}/x@127.0.0.1:1/d",
    f"postgresql://localhost:{SECRET}/x@127.0.0.1:1/d",
    f"postgresql://ann:{SECRET}@x@127.0.0.1:1/d",
    f"postgresql://ann:{SECRET}#x@127.0.0.1:1/d",
    f"postgresql://ann:{SECRET}?x@127.0.0.1:1/d",
    f"postgresql://ann:[{SECRET}@127.0.0.1:1/d",
    f"postgresql://ann:{SECRET}@127.0.0.1:port/d",
    f"postgresql://ann:{SECRET}@127.0.0.1:1/d?pool_max=0",
    f"postgresql://ann:{SECRET}@127.0.0.1:1/d?schema=A",
]


@pytest.mark.parametrize("url", ADDRESSES)
def test_a_password_is_never_shown(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    try:
        store = PostgresStore(url)
        shown += [store.url, repr(store), repr(store._db.options), repr(vars(store))]
        store.migrate()
    except HoldfastError as error:
        shown += [str(error), repr(error), str(error.__cause__)]
    assert len(shown) in (3, 7)
    assert SECRET not in "".join(shown)
    assert SECRET not in caplog.text


def test_a_password_that_is_wrong_is_not_shown_either(server: PostgresServer, schema: str) -> None:
    name = f"user_of_{schema}"
    server.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'right'")
    rules = server.folder / "data" / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all {name} 127.0.0.1/32 scram-sha-256\n{before}")
    server.execute("SELECT pg_reload_conf()")
    store = PostgresStore(f"{server.url.replace('holdfast@', f'{name}:{SECRET}@')}?schema={schema}")
    try:
        with pytest.raises(StoreUnavailable, match="authentication failed") as caught:
            store.migrate()
        assert SECRET not in f"{caught.value} {caught.value.__cause__}"
    finally:
        rules.write_text(before)
        server.execute("SELECT pg_reload_conf()")
        store.close()


def test_what_a_person_says_of_a_step_is_written_as_an_attempt_writes_it() -> None:
    """Two statements, because an attempt must show its lease; but only one way to write a step."""
    queries = load_queries("holdfast.stores.postgres")
    recorded = queries["record"].partition("written AS (")[2].partition("\n),")[0]
    free, guards = re.subn(r"WHERE \(value ->> \d+\)::bigint IN \(SELECT place FROM mine\)", "", recorded)
    said = " ".join(queries["move_steps"].split())
    assert guards == 1
    assert said[said.index("INSERT") :].rstrip(";") == " ".join(free.split())


def test_a_migration_waits_for_another_one_longer_than_a_call_may(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wait is cut by the limit of a call, and begins again."""
    monkeypatch.setattr(Limits, "patient", lambda _: Limits(0.8, 60.0))
    store = PostgresStore(f"{server.url}?schema={schema}")
    tries = "SELECT query_start FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    with ThreadPoolExecutor() as threads, psycopg.connect(server.url) as other:
        other.execute("SELECT pg_advisory_lock(hashtextextended(%s, 4))", (schema,))
        seen: set[object] = set()
        migrates = threads.submit(store.migrate)

        def tried_twice() -> bool:
            with psycopg.connect(server.url) as db:
                seen.update(db.execute(tries, (other.info.backend_pid,)).fetchall())
            return len(seen) > 1 or migrates.done()

        try:
            until(tried_twice, "it tries again", 60.0)
        finally:
            other.close()
        migrates.result(60.0)
    assert len(seen) > 1
    assert not store.schema().is_stale
    store.close()


def test_a_page_of_a_migration_that_the_server_stops_is_repeated_in_halves(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.stores.sql.PAGE", 8)
    number, asked, real = len(MIGRATIONS) + 1, [], psycopg.Cursor.execute
    text = """-- works with: 9
ALTER TABLE {schema}.job ADD COLUMN seen bigint NOT NULL DEFAULT 0;
-- pages of job
UPDATE {schema}.job SET seen = seen + 1 WHERE state = 'ready' AND seq > %(after)s AND seq <= %(upto)s;
"""

    def execute(cursor: Any, query: Any, params: Any = None, **more: Any) -> Any:
        if isinstance(params, dict) and "page" in params:
            asked.append(params["page"])
            if params["page"] > 2:
                raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
        return real(cursor, query, params, **more)

    store = PostgresStore(f"{server.url}?schema={schema}")
    store.migrate()
    for _ in range(5):
        add(store)
    monkeypatch.setattr(psycopg.Cursor, "execute", execute)
    monkeypatch.setattr("holdfast.stores.postgres.store._MIGRATIONS", [*MIGRATIONS, parse_migration(number, text)])
    store.migrate()
    monkeypatch.undo()
    assert asked == [8, 4, 2, 2, 2]
    assert server.execute(f"SELECT DISTINCT seen FROM {schema}.job") == [(1,)]
    store.close()


def test_a_table_that_is_missing_is_named(server: PostgresServer, schema: str) -> None:
    store = PostgresStore(f"{server.url}?schema={schema}")
    store.migrate()
    assert store.missing() == []
    server.execute(f"DROP TABLE {schema}.tally, {schema}.signal")
    assert store.check() == [f"the table {schema}.signal is missing", f"the table {schema}.tally is missing"]
    store.close()


def test_older_workers_settle_what_they_run_before_a_migration_shuts_them_out(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.stores.sql.WAIT_S", 0.0)
    url = f"{server.url}?schema={schema}"
    number = len(MIGRATIONS) + 1
    shut = parse_migration(number, f"-- works with: {number}\nCREATE TABLE {{schema}}.new (x text);")
    old = PostgresStore(url)
    old.migrate()
    worker = enrol(old, name="old")
    job = start(old, worker)
    add(old)

    def migrate() -> None:
        with monkeypatch.context() as later:
            later.setattr("holdfast.stores.postgres.store._MIGRATIONS", [*MIGRATIONS, shut])
            new = PostgresStore(url)
            try:
                new.migrate()
            finally:
                new.close()

    with pytest.raises(StoreUnavailable, match=r"older version: old \(1\)"):
        migrate()
    assert old.schema().is_too_new
    with pytest.raises(StoreError, match="too old"):
        claim(old, worker)
    assert settle(old, job, Succeeded()) is Reply.ACCEPTED
    migrate()
    assert old.schema().found == number
    assert old.workers() == []
    with pytest.raises(SchemaMismatch):
        enrol(old)
    old.close()
