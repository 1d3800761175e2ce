"""PostgreSQL behind a transaction pooler: no lock means anything there, and no session is ours."""

import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors

from holdfast import Context, Retry
from holdfast.core.machine import State
from holdfast.core.verdict import Succeeded
from holdfast.errors import BadURL, OutcomeUnknown, StoreUnsupported, is_passing
from holdfast.stores.postgres.connection import Options, Session
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Reply
from tests.factory import add, enrol, make_job, settle, start
from tests.proxy import PgBouncer, Pooler, Proxy
from tests.servers import PostgresServer
from tests.worker.house import House, until

Houses = Callable[..., House]
BINARY = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")


@pytest.fixture
def pooler(server: PostgresServer) -> Iterator[Pooler]:
    pooler = Pooler(server.url, size=2)
    yield pooler
    pooler.close()


def test_workers_behind_a_pooler_are_judged_by_their_leases_and_say_so_once(
    pooler: Pooler, server: PostgresServer, houses: Houses, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    house = houses(pooler.url)
    server.execute(f"CREATE TABLE {schema}.effect (job text)")

    @house.app.task
    def pay(ctx: Context) -> int:
        with ctx.transaction() as db:
            db.execute(f"INSERT INTO {schema}.effect VALUES (%s)", (ctx.job.id,))
            for _ in range(8):  # the driver would prepare it by now
                db.execute(f"SELECT count(*) FROM {schema}.effect")
        return ctx.attempt

    house.start(name="a")
    house.start(name="b")
    jobs = [pay.enqueue() for _ in range(20)]
    assert [job.result(60) for job in jobs] == [1] * 20
    assert server.execute(f"SELECT count(*), count(DISTINCT job) FROM {schema}.effect") == [(20, 20)]
    said = [record.getMessage() for record in caplog.records if "pooler" in record.getMessage()]
    assert len(said) == 1
    assert "when its lease ends" in said[0]
    assert pooler.clients > len(pooler._sessions), "they share"
    assert server.execute(f"SELECT server FROM {schema}.worker") == [(None,), (None,)]
    assert house.store.vanished() == []
    locks = server.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'")
    assert locks == [], "a lock would stay in a session of the pooler"


@pytest.mark.slow  # workers lose every connection, and others doubt their death meanwhile
@pytest.mark.skipif(BINARY is None, reason="pgbouncer is not installed")
def test_a_pooler_that_allows_no_transactions_is_refused_in_plain_words(server: PostgresServer, schema: str) -> None:
    pooler = PgBouncer(server.url, str(BINARY), mode="statement")
    store = PostgresStore(f"{pooler.url}?schema={schema}")
    with pytest.raises(StoreUnsupported, match="pooler is in statement mode, which allows no transactions"):
        store.add([make_job()])
    with pytest.raises(StoreUnsupported, match="pool_mode = transaction or session"):
        store.counts()
    store.close()
    pooler.close()


@pytest.mark.parametrize("kind", ["pooler", "pgbouncer"])
def test_a_pooler_may_be_put_before_the_server_while_workers_run_and_be_taken_away_again(
    kind: str, server: PostgresServer, proxy: Proxy, houses: Houses, schema: str
) -> None:
    """The address stays: a service, a name or a proxy leads elsewhere. Results come in while that happens."""
    if kind == "pgbouncer" and BINARY is None:
        pytest.skip("pgbouncer is not installed")
    pooler = PgBouncer(server.url, str(BINARY)) if kind == "pgbouncer" else Pooler(server.url, size=2)
    fleet = [houses(proxy.url), houses(proxy.url)]
    go_on, runs = threading.Event(), Counter[int]()

    def define(house: House) -> Any:
        @house.app.task(name="work", retry=Retry(attempts_max=1), on_crash="hold")
        def work(n: int, wait: bool) -> int:
            runs[n] += 1
            while wait and not go_on.is_set():
                time.sleep(0.01)
            return n

        return work

    tasks = [define(house) for house in fleet]
    workers = [house.start(name=f"w{number}", slots=10) for number, house in enumerate(fleet)]
    assert [tasks[0].enqueue(n, False).result(60) for n in range(10)] == list(range(10))
    named = f"SELECT count(server) FROM {schema}.worker"
    assert server.execute(named) == [(2,)]

    for port, with_locks in ((pooler.port, 0), (server.port, 2)):
        first = max(runs) + 1
        waiting = [tasks[0].enqueue(first + n, True) for n in range(10)]
        until(lambda first=first: all(runs[first + n] for n in range(10)), "they run")
        proxy._target = ("127.0.0.1", port)
        proxy.cut()
        go_on.set()
        assert [job.result(60) for job in waiting] == [first + n for n in range(10)]
        go_on.clear()
        until(lambda many=with_locks: server.execute(named) == [(many,)], "the rows say who has a lock")
        more = [tasks[1].enqueue(first + n, False) for n in range(10, 40)]
        assert [job.result(60) for job in more] == [first + n for n in range(10, 40)]
        assert {house.store.real._hot.pooled for house in fleet} == {with_locks == 0}
    until(lambda: any(house.store.real._liveness.watches() for house in fleet), "one looks for free locks again")
    assert set(runs.values()) == {1}
    known = {worker.id: worker.gone_at for worker in fleet[0].store.workers(gone=True)}
    assert known == {worker.worker_id: None for worker in workers}, "nobody was declared dead"
    assert fleet[0].store.journal(kinds=["zombie", "failed", "released", "stale_report", "held"]) == []
    for house in fleet:
        house.close()
    pooler.close()


def test_a_worker_behind_a_pooler_keeps_a_session_of_its_own_with_the_server(
    pooler: Pooler, server: PostgresServer, houses: Houses, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`direct=` names the server: its lock means something there, and hints of new jobs are heard."""
    house = houses(pooler.url, f"&direct=127.0.0.1:{server.port}")

    @house.app.task
    def work() -> int:
        return 1

    runner = house.start(name="a")
    store = house.store.real
    until(lambda: store._hot.pooled, "its other connections are the pooler's")
    assert house.store.holds_lock(runner.worker_id)
    [[run, now]] = server.execute(f"SELECT server, {schema}.server() FROM {schema}.worker")
    assert run == now
    until(lambda: store._liveness.dead.is_held and store._liveness.due.is_held, "it has the roles")
    assert work.enqueue().result(60) == 1
    assert [record for record in caplog.records if "pooler" in record.getMessage()] == []
    listener = PostgresStore(f"{server.url}?schema={schema}")
    store._liveness.close()
    assert [each.worker.id for each in listener.vanished()] == [runner.worker_id]
    listener.close()


@pytest.mark.parametrize(
    ("url", "direct"),
    [
        (
            "postgresql://ann:p%40@pool:6432/shop?sslmode=require&direct=db:5432",
            "ann:p%40@db:5432/shop?sslmode=require",
        ),
        ("postgresql://pool/shop?direct=db.example.org", "db.example.org/shop"),
        ("postgresql://ann@/shop?host=pool&port=6432&direct=[::1]:5433&schema=x", "ann@[::1]:5433/shop"),
    ],
)
def test_direct_changes_nothing_of_the_address_but_the_place(url: str, direct: str) -> None:
    options = Options.parse(url)
    assert options.to_server().conninfo == f"postgresql://{direct}"
    assert options.to_server().to_server() == options.to_server()
    assert "p%40" not in repr(options)


@pytest.mark.parametrize("direct", ["", "a b", "ann@db", "db:port", "db/shop", "db,other"])
def test_a_direct_that_is_no_place_is_refused(direct: str) -> None:
    with pytest.raises(BadURL, match="direct"):
        Options.parse(f"postgresql://pool/shop?direct={direct}")


TAMPERINGS = {
    "gone": [b"DEALLOCATE ALL"],
    "all reset": [b"DISCARD ALL"],
    "taken": [b"PREPARE _pg3_%d AS SELECT 1" % number for number in range(50)],  # those that are not there yet
}


@pytest.mark.parametrize("tampering", TAMPERINGS.values(), ids=TAMPERINGS.keys())
def test_statements_that_another_client_of_the_session_has_replaced_are_sent_again_unprepared(
    server: PostgresServer, schema: str, tampering: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """A pooler that cannot be told from the server: the numbers of its processes are the server's own."""
    store = PostgresStore(f"{server.url}?schema={schema}")
    store.migrate()
    worker = enrol(store)
    job = start(store, worker)
    store.beat(worker, [])

    def tamper() -> None:
        """The driver is not told."""
        store._hot.run(lambda db: [db.connection.pgconn.exec_(statement) for statement in tampering])

    tamper()
    assert not store.beat(worker, []).gone
    assert settle(store, job, Succeeded("1")) is Reply.ACCEPTED
    assert store._hot.pooled
    for _ in range(10):
        tamper()
        assert not store.beat(worker, []).gone
    said = [record for record in caplog.records if "pooler" in record.getMessage()]
    assert len(said) == 1
    store.close()


@pytest.mark.parametrize("kind", [errors.DuplicatePreparedStatement, errors.InvalidSqlStatementName])
def test_what_a_pooler_does_to_prepared_statements_is_blamed_on_no_row(kind: type[psycopg.Error]) -> None:
    store = PostgresStore("postgresql://nobody@127.0.0.1:1/none")
    assert is_passing(store._hot.explain(kind("x")))


def test_statements_do_not_depend_on_the_session_they_run_in(pooler: Pooler, schema: str) -> None:
    """The driver prepares what it sends for the fifth time; another session has never heard of it."""
    stores = [PostgresStore(f"{pooler.url}?schema={schema}") for _ in range(2)]
    stores[0].migrate()
    for _ in range(12):
        for store in stores:
            add(store)
            assert store.now().wall > 0
            store.ping()
    stores[0].add([make_job() for _ in range(150)])
    assert stores[1].counts() == {"default": {State.READY: 174}}
    for store in stores:
        assert store._db.pooled
        store.close()


def test_a_commit_whose_answer_is_lost_has_an_unknown_outcome(
    pooler: Pooler, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a pooler each verb ends with a commit of its own, and the cut may come right after it."""
    store = PostgresStore(f"{pooler.url}?schema={schema}")
    store.migrate()
    job = make_job()
    commit = Session.commit

    def cut(session: Session) -> None:
        commit(session)
        session.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(Session, "commit", cut)
    with pytest.raises(OutcomeUnknown):
        store.add([job])
    monkeypatch.undo()
    assert store.get(job.id) is not None
    store.close()


def test_the_server_itself_is_not_taken_for_a_pooler(server: PostgresServer, schema: str) -> None:
    store = PostgresStore(f"{server.url}?schema={schema}")
    store.migrate()
    enrol(store)
    assert not store._db.pooled
    [[run]] = server.execute(f"SELECT server FROM {schema}.worker")
    assert run
    store.close()
