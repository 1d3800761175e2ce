"""What a job costs in rows written: the counters by which a rewound or emptied store is noticed ride on beats and on
batches, never on single jobs (P16)."""

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from holdfast.core.records import Pulse
from holdfast.core.settlement import settlement as addressed
from holdfast.core.verdict import Succeeded, judge
from holdfast.ids import new_id
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Reply, Store
from holdfast.stores.sqlite.store import SqliteStore
from tests.factory import enrol, make_job
from tests.servers import PostgresServer

Written = Callable[[], Counter[str]]


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[tuple[Store, Written]]:
    """A file whose triggers write down which tables are written to; and what they have written since the last look."""
    path = tmp_path / "jobs.db"
    with contextlib.closing(SqliteStore(f"sqlite:///{path}")) as store, contextlib.closing(sqlite3.connect(path)) as db:
        store.migrate()
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        db.execute("CREATE TABLE written (name TEXT)")
        for name in names:
            for act in ("INSERT", "UPDATE", "DELETE"):
                body = f"BEGIN INSERT INTO written VALUES ('{name.removeprefix('holdfast_')}'); END"
                db.execute(f"CREATE TRIGGER see_{name}_{act} AFTER {act} ON {name} {body}")
        db.commit()

        def written() -> Counter[str]:
            found = Counter(name for (name,) in db.execute("SELECT name FROM written"))
            db.execute("DELETE FROM written")
            db.commit()
            return found

        yield store, written


@pytest.fixture
def postgres(server: PostgresServer, schema: str) -> Iterator[tuple[Store, Written]]:
    """The same with a schema of a server."""
    with contextlib.closing(PostgresStore(f"{server.url}?schema={schema}")) as store:
        store.migrate()
        tables = server.execute(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'")
        server.execute(f"CREATE TABLE {schema}.written (name text)")
        server.execute(
            f"CREATE FUNCTION {schema}.see() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN INSERT INTO {schema}.written VALUES (TG_TABLE_NAME); RETURN NULL; END $$"
        )
        for (name,) in tables:
            server.execute(
                f"CREATE TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON {schema}.{name} "
                f"FOR EACH ROW EXECUTE FUNCTION {schema}.see()"
            )

        def written() -> Counter[str]:
            with psycopg.connect(server.url, autocommit=True) as db:
                return Counter(name for (name,) in db.execute(f"DELETE FROM {schema}.written RETURNING name"))  # type: ignore[call-overload]

        yield store, written


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("many", [1, 40])
def test_no_counter_is_written_for_a_single_job(request: pytest.FixtureRequest, kind: str, many: int) -> None:
    store, written = request.getfixturevalue(kind)
    worker = enrol(store)
    written()
    for _ in range(many):
        store.add([make_job()])
    assert written() == {"job": many}
    jobs = store.claim(worker, new_id(), ["default"], ["t"], many)
    assert len(jobs) == many
    assert written() == {"job": many}
    store.beat(worker, [Pulse(job.lease) for job in jobs])
    assert written() == {"worker": 1, "job": many}, "one counter for each beat"
    endings = [addressed(job, judge(Succeeded("null"), job, 0.0, chance=0.5)) for job in jobs]
    assert store.settle(endings) == [Reply.ACCEPTED] * many
    assert written() == {"job": many, "tally": 1, "delta": 1}, "two counters for each batch"
    store.retire(worker, "the test is over")
