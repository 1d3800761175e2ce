"""PostgreSQL behind a transaction pooler: no lock means anything there, and no session is ours."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from holdfast import Context
from holdfast.core.machine import State
from holdfast.errors import OutcomeUnknown
from holdfast.stores.postgres.connection import Session
from holdfast.stores.postgres.store import PostgresStore
from tests.factory import add, enrol, make_job
from tests.proxy import Pooler
from tests.servers import PostgresServer
from tests.worker.house import House

Houses = Callable[..., House]


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
