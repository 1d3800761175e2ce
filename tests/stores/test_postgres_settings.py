"""Settings of a role, a database or a session that would change what a statement means, and what Holdfast does about
them: its own connections pin them, a pooler's sessions get them with each transaction, a caller's connection stays as
it is."""

import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import App, Context
from holdfast.cli.exit_codes import Exit
from holdfast.core.machine import State
from holdfast.errors import StoreUnsupported, UsageError
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing import FakeClock
from holdfast.upkeep.reaper import Reaper
from tests.factory import make_job, start
from tests.proxy import PgBouncer, Pooler
from tests.servers import PostgresServer
from tests.worker.house import House, until

Houses = Callable[..., House]
Reach = Callable[[tuple[str, ...]], str]

TEXT = "Grüße, Владимир, 你好, 🙂"
DECOYS = "search_path = decoy, pg_catalog, public"
ENCODINGS = ("client_encoding = 'LATIN1'", "client_encoding = 'SQL_ASCII'")
HARMLESS = (
    "extra_float_digits = -15",
    "extra_float_digits = 0",
    "default_transaction_isolation = 'serializable'",
    "default_transaction_isolation = 'repeatable read'",
    "TimeZone = 'Asia/Kathmandu'",
    "search_path = decoy, public",
)  # for a caller's connection
STRANGE = (
    (DECOYS, ENCODINGS[0], "extra_float_digits = -15", "default_transaction_isolation = 'serializable'"),
    (ENCODINGS[1], "extra_float_digits = 0", "default_transaction_isolation = 'repeatable read'", HARMLESS[4]),
)  # for a role; each of these alone breaks something if it is not pinned
BINARY = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
WAYS = {"direct": None, "pooler": Pooler, "pgbouncer": PgBouncer}
_numbers = itertools.count(1)


@pytest.fixture(scope="module", autouse=True)
def _decoy(server: PostgresServer) -> None:
    """What somebody who does not like us could put before the functions that every statement uses."""
    server.execute("CREATE SCHEMA decoy")
    server.execute("CREATE FUNCTION decoy.json_array_elements(json) RETURNS SETOF json LANGUAGE sql AS 'SELECT $1'")
    server.execute(
        "CREATE FUNCTION decoy.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT to_timestamp(0)'"
    )
    server.execute("GRANT USAGE ON SCHEMA decoy TO PUBLIC")


@pytest.fixture(params=WAYS.values(), ids=WAYS.keys())
def reach(request: pytest.FixtureRequest, server: PostgresServer) -> Iterator[Reach]:
    """Return the address of the server for a new role with these settings, straight or through a pooler."""
    if request.param is PgBouncer and BINARY is None:
        pytest.skip("pgbouncer is not installed")
    with ExitStack() as stack:

        def url(settings: tuple[str, ...]) -> str:
            address = role(server, *settings)
            if request.param is None:
                return address
            pooler = request.param(address, BINARY) if request.param is PgBouncer else request.param(address)
            return str(stack.enter_context(closing(pooler)).url)

        yield url


def role(server: PostgresServer, *settings: str) -> str:
    """Return the server's address for a new role with these settings."""
    name = f"role_{next(_numbers)}"
    server.execute(f"CREATE ROLE {name} LOGIN")
    server.execute(f"GRANT CREATE ON DATABASE postgres TO {name}")
    for setting in settings:
        server.execute(f"ALTER ROLE {name} SET {setting}")
    return server.url.replace("holdfast@", f"{name}@")


@pytest.mark.parametrize("settings", STRANGE, ids=["latin", "ascii"])
def test_jobs_are_stored_run_and_recovered_whatever_is_set_for_the_role(
    reach: Reach, schema: str, settings: tuple[str, ...]
) -> None:
    clock = FakeClock(1_763_279_273.123456, 1_763_279_273.123456)
    with closing(PostgresStore(f"{reach(settings)}?schema={schema}", clock=clock)) as store:
        store.migrate()
        texts = [make_job(payload=f'{{"text": "{TEXT}"}}') for _ in range(3)]
        store.add(texts)
        assert [store.get(each.id).payload for each in texts] == [each.payload for each in texts]  # type: ignore[union-attr]
        store.add([make_job(queue="many", payload=f'{{"text": "{TEXT}"}}') for _ in range(150)])
        assert store.counts()["many"] == {State.READY: 150}
        lost = [start(store, task=f"lost-{number}", lease_s=7 + number / 7) for number in range(8)]
        clock.advance(60)
        found = store.overdue()
        assert sorted((each.id, each.lease_until) for each in found) == sorted((j.id, j.lease_until) for j in lost)
        reaper = Reaper(store, clock)
        reaper.once()
        clock.advance(1)  # it believes what it sees a second time
        assert len(reaper.once().zombies) == 8
        assert store.counts()["default"] == {State.READY: 11}


def test_a_lost_job_is_recovered_in_a_session_whose_floats_are_rounded(server: PostgresServer, schema: str) -> None:
    """Not even the pin is trusted for what is compared again."""
    clock = FakeClock(1_763_279_273.123456, 1_763_279_273.123456)
    with closing(PostgresStore(f"{server.url}?schema={schema}", clock=clock)) as store:
        store.migrate()
        lost = start(store, lease_s=7 + 1 / 7)
        clock.advance(60)
        store._hot.run(lambda db: db.execute("SET extra_float_digits = -15"))
        [found] = store.overdue()
        assert found.lease_until == lost.lease_until


@pytest.mark.parametrize("settings", STRANGE, ids=["latin", "ascii"])
def test_a_worker_does_its_work_whatever_is_set_for_its_role(
    reach: Reach, houses: Houses, settings: tuple[str, ...]
) -> None:
    house = houses(reach(settings))

    @house.app.task
    def echo(ctx: Context, text: str) -> str:
        with ctx.transaction() as db:
            db.execute("SELECT 1")
        return text

    house.start()
    jobs: list[Any] = []

    def produce() -> None:
        jobs.extend(echo.enqueue(TEXT) for _ in range(20))

    producers = [threading.Thread(target=produce) for _ in range(3)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join(60)
    assert [job.result(60) for job in jobs] == [TEXT] * 60


def test_a_callback_is_stored_where_arrays_cannot_hold_null(server: PostgresServer, houses: Houses) -> None:
    house = houses(role(server, "array_nulls = off"))

    @house.app.task
    def thank(job_id: str) -> str:
        return job_id

    @house.app.task(on_done=thank)
    def pay(ctx: Context) -> None:
        with ctx.transaction() as db:
            db.execute("SELECT 1")

    house.start()
    job = pay.enqueue()
    job.result(60)
    assert house.until_state(f"{job.id}:done:1", "done").result == f'"{job.id}"'


def test_a_limit_for_idle_sessions_does_not_end_those_of_a_worker(server: PostgresServer, houses: Houses) -> None:
    address = role(server, "idle_session_timeout = '100ms'")
    house = houses(address)

    @house.app.task
    def nothing() -> None: ...

    house.start()
    proof = "SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory'"
    before = server.execute(proof)
    assert before
    idle = f"SELECT bool_or(now() - state_change > '200ms') FROM pg_stat_activity WHERE pid IN ({proof})"
    until(lambda: server.execute(idle) == [(True,)] or server.execute(proof) != before, "the limit could strike", 60)
    assert server.execute(proof) == before


def test_a_pooler_s_sessions_keep_their_settings(server: PostgresServer, schema: str) -> None:
    address = role(server, "extra_float_digits = 0")
    with closing(Pooler(address, size=1)) as pooler, closing(PostgresStore(f"{pooler.url}?schema={schema}")) as store:
        store.migrate()
        store.add([make_job()])
        store.overdue()
        with psycopg.connect(pooler.url, autocommit=True) as other:
            settings = [other.execute(f"SHOW {name}").fetchone() for name in ("extra_float_digits", "search_path")]  # type: ignore[call-overload]
        assert settings == [("0",), ('"$user", public',)]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_hold_every_text_is_refused(server: PostgresServer, encoding: str) -> None:
    name = encoding.lower()
    server.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    with closing(PostgresStore(server.url.replace("/postgres", f"/{name}"))) as store:
        with pytest.raises(StoreUnsupported, match=f"encoding is {encoding}.*needs UTF8"):
            store.migrate()
        with pytest.raises(StoreUnsupported):
            store.add([make_job()])


@pytest.mark.slow
def test_a_worker_on_a_database_that_cannot_hold_every_text_ends_and_says_so(
    server: PostgresServer, tmp_path: Path
) -> None:
    """Slow: a worker is started. It used to spin, with an empty log and deaf to SIGTERM."""
    server.execute("CREATE DATABASE for_a_worker ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    (tmp_path / "shop.py").write_text("from holdfast import App\napp = App()\napp.task(name='echo')(print)\n")
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "worker", "shop:app"],
        cwd=tmp_path,
        env={**os.environ, "HOLDFAST_DB": server.url.replace("/postgres", "/for_a_worker")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (Exit.STORE, "")
    assert "encoding is SQL_ASCII" in done.stderr
    assert "needs UTF8" in " ".join(done.stderr.split())


# --------------------------------------------------------------------------------- the caller's connection


@pytest.fixture(scope="module")
def app(server: PostgresServer) -> Iterator[App]:
    with App(f"{server.url}?schema=callers") as app:
        app.task(name="echo")(lambda text: None)
        app.store.migrate()
        server.execute("GRANT USAGE ON SCHEMA callers TO PUBLIC")
        server.execute("GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA callers TO PUBLIC")
        yield app


def settings_of(db: psycopg.Connection[Any]) -> list[Any]:
    return db.execute("SELECT name, setting FROM pg_settings ORDER BY name").fetchall()


@pytest.mark.parametrize("many", [1, 150])
@pytest.mark.parametrize("setting", HARMLESS)
def test_an_enqueue_on_the_caller_s_connection_is_right_under_its_settings_and_changes_none(
    app: App, server: PostgresServer, setting: str, many: int
) -> None:
    with psycopg.connect(role(server, setting)) as db:
        before = settings_of(db)
        jobs = app.enqueue_many([app.tasks["echo"].using(connection=db).job(TEXT) for _ in range(many)])
        assert settings_of(db) == before
        db.commit()
    now = app.store.now().wall
    rows = [app.store.get(job.id) for job in jobs]
    assert [row is not None and now - 60 < row.run_at <= now and TEXT in row.payload for row in rows] == [True] * many


@pytest.mark.parametrize("setting", [*ENCODINGS, DECOYS])
def test_a_caller_s_connection_that_would_change_what_is_stored_is_refused(
    app: App, server: PostgresServer, setting: str
) -> None:
    stored = app.store.counts()
    with psycopg.connect(role(server, setting)) as db:
        before = settings_of(db)
        with pytest.raises(UsageError, match=setting.partition(" ")[0]):
            app.tasks["echo"].using(connection=db).enqueue(TEXT)
        assert settings_of(db) == before
        db.commit()
    assert app.store.counts() == stored


@pytest.mark.parametrize("many", [1, 150])
def test_a_search_path_that_is_set_between_two_enqueues_is_refused_as_well(
    app: App, server: PostgresServer, many: int
) -> None:
    stored = app.store.counts()["default"][State.READY]
    with psycopg.connect(server.url) as db:
        drafts = [app.tasks["echo"].using(connection=db).job(TEXT) for _ in range(2 * many)]
        app.enqueue_many(drafts[:many])
        db.execute(f"SET {DECOYS}")
        with pytest.raises(UsageError, match="search_path names other schemas before pg_catalog"):
            app.enqueue_many(drafts[many:])
        db.execute("SET search_path = decoy, public")
        assert [job.existed for job in app.enqueue_many(drafts)] == [True] * many + [False] * many
        db.commit()
    assert app.store.counts()["default"][State.READY] == stored + 2 * many


def test_instants_can_be_compared_with_now_in_psql(server: PostgresServer, schema: str) -> None:
    with closing(PostgresStore(f"{server.url}?schema={schema}")) as store:
        store.migrate()
        start(store, lease_s=60)
        store.add([make_job(delay_s=3600)])
        assert server.execute(f"SELECT count(*) FROM {schema}.jobs WHERE run_at <= now()") == [(1,)]
        assert server.execute(f"SELECT count(*) FROM {schema}.jobs WHERE lease_until > now()") == [(1,)]
        assert server.execute(f"SELECT count(*) FROM {schema}.workers WHERE now() - beat_at < '60 s'") == [(1,)]
        for view in ("events", "schedules", "steps"):
            server.execute(f"SELECT * FROM {schema}.{view}")
        for worker in store.workers():
            store.retire(worker.id, "the test is over")


def test_the_tables_may_be_published_for_logical_replication(server: PostgresServer, schema: str) -> None:
    """The server refuses to change a published table whose rows have no identity."""
    with closing(PostgresStore(f"{server.url}?schema={schema}")) as store:
        store.migrate()
        tables = [name for (name,) in server.execute(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'")]
        assert "tally" in tables
        server.execute(f"CREATE PUBLICATION {schema} FOR TABLE " + ", ".join(f"{schema}.{name}" for name in tables))
        try:
            for name in tables:
                server.execute(f"DELETE FROM {schema}.{name} WHERE false")
        finally:
            server.execute(f"DROP PUBLICATION {schema}")
