"""using(connection=…) on PostgreSQL: by psycopg, SQLAlchemy and Django, awaited or not, always in the caller's
transaction."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy
from django.db import transaction
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from holdfast import App
from holdfast.errors import StoreUnavailable, UsageError
from holdfast.stores import caller_connection
from tests.api.doors import DOORS, AsyncPsycopg, Django, Psycopg, SqlAlchemySession, driver


@pytest.fixture
def app(postgres: str) -> Iterator[App]:
    with App(postgres) as app:
        app.store.counts()
        yield app


@pytest.fixture
def outside(app: App, postgres: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else's look at the caller's table, who also hears of new jobs."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS orders; CREATE TABLE orders (number INTEGER); LISTEN holdfast")
        connection.execute("SELECT nextval('holdfast.sleep_count')")  # a worker has gone to sleep
        yield connection


@pytest.fixture(params=DOORS.values(), ids=DOORS.keys())
def door(request: pytest.FixtureRequest, outside: psycopg.Connection[Any], postgres: str) -> Iterator[Psycopg]:
    opened = request.param(postgres)
    yield opened
    opened.close()


def orders(outside: psycopg.Connection[Any]) -> list[int]:
    return [number for (number,) in outside.execute("SELECT number FROM orders ORDER BY 1")]


def wakeups(outside: psycopg.Connection[Any]) -> int:
    """How many were sent until now: one of our own comes after them."""
    for thread in threading.enumerate():
        if thread.name == "holdfast-wakeup":
            thread.join(60)
    outside.execute("SELECT pg_notify('holdfast', 'the last')")
    for count, notify in enumerate(outside.notifies(timeout=60)):
        if notify.payload == "the last":
            return count
    raise AssertionError("no wake-up came at all")


def test_row_job_and_wakeup_appear_with_the_commit_and_not_before(
    app: App, door: Psycopg, outside: psycopg.Connection[Any]
) -> None:
    ship = app.task(ship_order)
    door.write(1)
    job = door.enqueue(ship, 1)
    assert (orders(outside), app.counts()["ready"], wakeups(outside)) == ([], 0, 0)
    door.commit()
    assert (orders(outside), app.get(job.id).state, wakeups(outside)) == ([1], "ready", int(door.tells))


def test_a_rollback_leaves_neither_row_nor_job(app: App, door: Psycopg, outside: psycopg.Connection[Any]) -> None:
    ship = app.task(ship_order)
    door.write(1)
    door.enqueue(ship, 1)
    door.rollback()
    assert (orders(outside), app.counts()["ready"]) == ([], 0)


@pytest.mark.parametrize("kind", [DOORS["sqlalchemy connection"], DOORS["sqlalchemy async connection"]])
def test_a_connection_of_sqlalchemy_tells_of_its_commit_when_it_is_given_back(
    app: App, kind: type[Psycopg], outside: psycopg.Connection[Any], postgres: str
) -> None:
    door = kind(postgres)
    door.enqueue(app.task(ship_order), 1)
    door.commit()
    assert wakeups(outside) == 0
    door.close()
    assert wakeups(outside) == 1


def test_a_connection_that_is_never_given_back_does_not_collect_what_to_tell(app: App, postgres: str) -> None:
    ship = app.task(ship_order)
    engine = sqlalchemy.create_engine(driver(postgres), poolclass=NullPool)
    with engine.connect() as connection:
        for number in range(20):
            ship.using(connection=connection, queue=f"q{number % 2}").enqueue(number)
            connection.commit()
        below = connection.connection.driver_connection
        assert list(caller_connection._calls[below].values()) == [{"q0", "q1"}]


def test_the_raw_connection_of_an_engine_may_be_used(app: App, postgres: str) -> None:
    ship = app.task(ship_order)
    engine = sqlalchemy.create_engine(driver(postgres), poolclass=NullPool)
    connection = engine.raw_connection()
    ship.using(connection=connection).enqueue(1)
    connection.rollback()
    ship.using(connection=connection).enqueue(2)
    assert app.counts()["ready"] == 0
    connection.commit()
    assert app.counts()["ready"] == 1
    connection.close()
    with pytest.raises(UsageError):
        ship.using(connection=connection).enqueue(3)


def test_the_callers_transaction_may_be_prepared(app: App, door: Psycopg, outside: psycopg.Connection[Any]) -> None:
    ship = app.task(ship_order)
    door.write(1)
    jobs = [door.enqueue(ship, 1), *door.enqueue_many(ship, range(2)), *door.enqueue_many(ship, range(150))]
    door.sql("PREPARE TRANSACTION 'holdfast-test'")
    assert (orders(outside), app.counts()["ready"]) == ([], 0)
    outside.execute("COMMIT PREPARED 'holdfast-test'")
    assert (orders(outside), app.counts()["ready"]) == ([1], len(jobs))


@pytest.mark.parametrize("kind", [psycopg.connect, "sqlalchemy"], ids=["psycopg", "sqlalchemy"])
@pytest.mark.parametrize("many", [1, 2, 150])
def test_two_phase_commit(app: App, outside: psycopg.Connection[Any], postgres: str, kind: Any, many: int) -> None:
    ship = app.task(ship_order)
    if kind == "sqlalchemy":
        engine = sqlalchemy.create_engine(driver(postgres), poolclass=NullPool)
        with Session(engine, twophase=True) as session:
            session.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
            app.enqueue_many([ship.using(connection=session).job(number) for number in range(many)])
            session.prepare()
            assert app.counts()["ready"] == 0
            session.commit()
    else:
        with psycopg.connect(postgres) as connection:
            connection.tpc_begin(connection.xid(1, "holdfast", f"{many}"))
            connection.execute("INSERT INTO orders VALUES (1)")
            app.enqueue_many([ship.using(connection=connection).job(number) for number in range(many)])
            connection.tpc_prepare()
            assert app.counts()["ready"] == 0
            connection.tpc_commit()
    assert (orders(outside), app.counts()["ready"]) == ([1], many)


@pytest.mark.parametrize("many", [2, 150], ids=["as rows", "as a stream"])
def test_a_rollback_leaves_no_job_of_many_on_a_connection_that_was_used_before(
    app: App, door: Psycopg, outside: psycopg.Connection[Any], many: int
) -> None:
    ship = app.task(ship_order)
    door.enqueue(ship, 0)
    door.commit()
    door.begin()
    door.enqueue_many(ship, range(1, many + 1))
    assert app.counts()["ready"] == 1
    door.rollback()
    assert app.counts()["ready"] == 1
    door.begin()
    door.enqueue_many(ship, range(1, many + 1))
    door.commit()
    assert app.counts()["ready"] == many + 1


def test_the_enqueue_may_come_first(app: App, door: Psycopg, outside: psycopg.Connection[Any]) -> None:
    """What it begins is the caller's, to be committed by the caller."""
    ship = app.task(ship_order)
    door.enqueue(ship, 1)
    assert app.counts()["ready"] == 0
    door.write(1)
    door.commit()
    assert (orders(outside), app.counts()["ready"]) == ([1], 1)


def test_the_enqueue_may_be_all_there_is(app: App, door: Psycopg) -> None:
    """A commit of SQLAlchemy's that knows of no transaction does nothing."""
    ship = app.task(ship_order)
    door.enqueue(ship, 1)
    door.commit()
    assert app.counts()["ready"] == 1


@pytest.mark.parametrize("many", [3, 150], ids=["as rows", "as a stream"])
def test_many_jobs_one_of_them_known(app: App, door: Psycopg, outside: psycopg.Connection[Any], many: int) -> None:
    ship = app.task(ship_order, key=lambda order: f"order-{order}")
    first = ship.enqueue(1)
    door.write(1)
    new = door.enqueue_many(ship, range(2, many + 2))
    known = door.enqueue_many(ship, range(1, many + 1))
    assert app.counts()["ready"] == 1
    door.commit()
    assert app.counts()["ready"] == many + 1
    assert known[0].id == first.id
    assert [job.id for job in known[1:]] == [job.id for job in new[:-1]]
    assert ([job.existed for job in new], [job.existed for job in known]) == ([False] * many, [True] * many)
    assert orders(outside) == [1]


def test_an_error_leaves_the_callers_transaction_usable(
    app: App, door: Psycopg, outside: psycopg.Connection[Any], postgres: str
) -> None:
    ship = app.task(ship_order)
    with psycopg.connect(postgres) as other:
        ship.using(key="k", connection=other).enqueue(1)  # nobody knows yet whether the key is taken
        door.write(1)
        door.sql("SET LOCAL lock_timeout = '20ms'")
        with pytest.raises(StoreUnavailable, match="another transaction holds a lock"):
            door.enqueue(ship.using(key="k"), 2)
        other.rollback()
    door.enqueue(ship.using(key="k"), 3)
    door.write(2)
    door.commit()
    assert (orders(outside), app.counts()["ready"]) == ([1, 2], 1)


def test_a_transaction_that_was_aborted_is_refused_with_one_error(app: App, door: Psycopg) -> None:
    ship = app.task(ship_order)
    with pytest.raises(Exception, match="division by zero"):
        door.sql("SELECT 1 / 0")
    with pytest.raises(
        UsageError, match=r"aborted the transaction on this connection; roll it back first|cannot be used"
    ):
        door.enqueue(ship, 1)
    door.rollback()
    assert app.counts()["ready"] == 0


@pytest.fixture(scope="module", params=["empty", "with a store"])
def elsewhere(request: pytest.FixtureRequest, postgres_server: str) -> Iterator[str]:
    """Another database of the same server."""
    url = urlsplit(postgres_server)._replace(path="/elsewhere").geturl()
    with psycopg.connect(postgres_server, autocommit=True) as server:
        server.execute("DROP DATABASE IF EXISTS elsewhere WITH (FORCE)")
        server.execute("CREATE DATABASE elsewhere")
        if request.param == "with a store":
            with App(url) as other:
                other.counts()
        yield url
        server.execute("DROP DATABASE elsewhere WITH (FORCE)")


@pytest.mark.parametrize("kind", DOORS.values(), ids=DOORS.keys())
def test_a_connection_to_another_database_is_refused(app: App, elsewhere: str, kind: Any) -> None:
    door = kind(elsewhere)
    with pytest.raises(UsageError, match="the connection is not open on postgresql://"):
        door.enqueue(app.task(ship_order), 1)
    door.sql("CREATE TABLE mine (number INTEGER)")  # it can be used for what is the caller's
    door.sql("DROP TABLE mine")
    door.commit()
    door.close()
    assert app.counts()["ready"] == 0


def test_a_refused_connection_is_left_without_a_transaction(app: App, elsewhere: str) -> None:
    with psycopg.connect(elsewhere) as other:
        with pytest.raises(UsageError):
            app.task(ship_order).using(connection=other).enqueue(1)
        assert other.info.transaction_status.name == "IDLE"


def test_a_user_without_rights_is_refused(app: App, postgres: str, outside: psycopg.Connection[Any]) -> None:
    outside.execute("DROP ROLE IF EXISTS stranger; CREATE ROLE stranger")
    with psycopg.connect(postgres) as connection:
        connection.execute("SET ROLE stranger")
        with pytest.raises(UsageError, match="user may not write to schema holdfast"):
            app.task(ship_order).using(connection=connection).enqueue(1)
        assert connection.execute("SELECT 1").fetchone() == (1,)
    outside.execute("DROP ROLE stranger")


def test_a_transaction_that_only_reads_is_refused(app: App, postgres: str) -> None:
    with psycopg.connect(postgres) as connection:
        connection.read_only = True
        with pytest.raises(UsageError, match="transaction is read-only"):
            app.task(ship_order).using(connection=connection).enqueue(1)


SETTINGS = {
    "rows as dicts": {"row_factory": dict_row},
    "raw cursors": {"cursor_factory": psycopg.RawCursor},
    "values in the text": {"cursor_factory": psycopg.ClientCursor},
    "always prepared": {"prepare_threshold": 0},
    "never prepared": {"prepare_threshold": None},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_what_the_caller_has_set_on_the_connection_does_not_disturb(app: App, postgres: str, settings: Any) -> None:
    ship = app.task(ship_order)
    first = ship.using(key="k").enqueue(1)
    with psycopg.connect(postgres, **settings) as connection:
        for _ in range(7):
            assert ship.using(connection=connection, key="k").enqueue(1).id == first.id
        assert not ship.using(connection=connection).enqueue(2).existed
        left = "SELECT count(*) AS n FROM pg_prepared_statements WHERE statement LIKE '%holdfast%job%'"
        with psycopg.Cursor(connection, row_factory=dict_row) as cursor:
            assert cursor.execute(left, prepare=False).fetchone() == {"n": 0}
    assert app.counts()["ready"] == 2


@pytest.mark.parametrize("level", list(psycopg.IsolationLevel), ids=lambda level: level.name)
def test_any_isolation_level(app: App, postgres: str, level: psycopg.IsolationLevel) -> None:
    with psycopg.connect(postgres) as connection:
        connection.isolation_level = level
        app.task(ship_order).using(connection=connection, key="k").enqueue(1)
    assert app.counts()["ready"] == 1


def test_a_key_that_was_taken_after_the_callers_snapshot_says_to_repeat_the_transaction(
    app: App, postgres: str
) -> None:
    ship = app.task(ship_order)
    with psycopg.connect(postgres) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM pg_class")
        ship.using(key="k").enqueue(1)
        with pytest.raises(StoreUnavailable, match="roll your transaction back and do it again"):
            ship.using(connection=connection, key="k").enqueue(1)


def test_in_autocommit_mode_the_job_is_stored_at_once(app: App, postgres: str) -> None:
    ship = app.task(ship_order)
    with psycopg.connect(postgres, autocommit=True) as connection:
        ship.using(connection=connection).enqueue(1)
        assert connection.info.transaction_status.name == "IDLE"
        assert app.counts()["ready"] == 1

    async def awaited() -> None:
        async with await psycopg.AsyncConnection.connect(postgres, autocommit=True) as connection:
            await ship.using(connection=connection).aenqueue(2)

    asyncio.run(awaited())
    assert app.counts()["ready"] == 2


def test_django_without_atomic_stores_the_job_at_once(app: App, outside: Any, postgres: str) -> None:
    door = Django(postgres)
    door.commit()
    door.enqueue(app.task(ship_order), 1)
    assert app.counts()["ready"] == 1
    inner = app.task(ship_order, name="inner")
    with transaction.atomic():
        door.enqueue(inner, 2)
        with suppress(ZeroDivisionError), transaction.atomic():
            door.enqueue(inner, 3)
            raise ZeroDivisionError
    assert app.counts()["ready"] == 2
    door.close()


def test_what_django_is_going_to_roll_back_is_refused(app: App, outside: Any, postgres: str) -> None:
    """The server's transaction is sound, but Django will not commit it: the job would vanish without a word."""
    door = Django(postgres)
    with suppress(ZeroDivisionError), transaction.atomic(savepoint=False):
        raise ZeroDivisionError
    with pytest.raises(UsageError, match="cannot be used: An error occurred in the current transaction"):
        door.enqueue(app.task(ship_order), 1)
    door.close()


def test_a_connection_that_is_of_no_use_is_refused_in_plain_words(app: App, postgres: str) -> None:
    ship = app.task(ship_order)
    connection = psycopg.connect(postgres)
    with connection.pipeline(), pytest.raises(UsageError, match="pipeline mode"):
        ship.using(connection=connection).enqueue(1)
    connection.execute("SET client_encoding = 'LATIN1'")
    with pytest.raises(UsageError, match="client_encoding is iso8859-1; it must be UTF8"):
        ship.using(connection=connection).enqueue(1)
    connection.close()
    with pytest.raises(UsageError, match="the connection is closed; pass one that is open"):
        ship.using(connection=connection).enqueue(1)
    engine = sqlalchemy.create_engine(driver(postgres), poolclass=NullPool)
    for wrong in ("jobs", engine, 7):
        with pytest.raises(UsageError, match="leads to no connection of psycopg 3"):
            ship.using(connection=wrong).enqueue(1)
    closed = engine.connect()
    closed.close()
    with pytest.raises(UsageError, match="connection=Connection cannot be used: This Connection is closed"):
        ship.using(connection=closed).enqueue(1)
    with pytest.raises(UsageError, match="connection=Session cannot be used"):
        ship.using(connection=Session()).enqueue(1)  # bound to nothing
    nowhere = sqlalchemy.create_engine(driver(postgres.replace("127.0.0.1", "127.0.0.2").replace("holdfast@", "x@")))
    with Session(nowhere) as session, pytest.raises(StoreUnavailable, match="connection=Session cannot be opened"):
        ship.using(connection=session).enqueue(1)
    assert app.counts()["ready"] == 0


def test_an_awaited_connection_needs_an_awaited_enqueue(app: App, postgres: str) -> None:
    ship = app.task(ship_order)

    async def wrongly() -> None:
        async with await psycopg.AsyncConnection.connect(postgres) as connection:
            with pytest.raises(UsageError, match=r"is used by awaiting: call `await task\.using"):
                ship.using(connection=connection).enqueue(1)
            with pytest.raises(UsageError, match="is used by awaiting"):
                app.enqueue_many([ship.using(connection=connection).job(1)])
            await connection.close()
            with pytest.raises(UsageError, match="the connection is closed"):
                await ship.using(connection=connection).aenqueue(1)
        engine = create_async_engine(driver(postgres), poolclass=NullPool)
        with pytest.raises(UsageError, match="AsyncConnection cannot be used: AsyncConnection context has not been"):
            await ship.using(connection=engine.connect()).aenqueue(1)
        async with AsyncSession(engine) as session:
            with pytest.raises(UsageError, match=r"connection=AsyncSession is used by awaiting: call `await"):
                ship.using(connection=session).enqueue(1)

    asyncio.run(wrongly())
    assert app.counts()["ready"] == 0


def test_a_plain_connection_may_be_used_with_await_too(app: App, postgres: str) -> None:
    ship = app.task(ship_order)
    engine = sqlalchemy.create_engine(driver(postgres), poolclass=NullPool)
    with psycopg.connect(postgres) as connection, Session(engine) as session:
        asyncio.run(ship.using(connection=connection).aenqueue(1))
        asyncio.run(ship.using(connection=session).aenqueue(2))
        assert app.counts()["ready"] == 0
        session.commit()
        assert app.counts()["ready"] == 1
    assert app.counts()["ready"] == 2


def test_django_says_what_to_do_in_async_code(app: App, outside: Any, postgres: str) -> None:
    door = Django(postgres)
    with pytest.raises(UsageError, match="cannot be used: You cannot call this from an async context"):
        asyncio.run(app.task(ship_order).using(connection=door.connection).aenqueue(1))
    with ThreadPoolExecutor(1) as another, pytest.raises(UsageError, match="created in thread"):
        another.submit(door.enqueue, app.task(ship_order, name="there"), 1).result()
    door.close()


def test_an_enqueue_that_is_cancelled_has_left_the_connection_when_it_raises(
    app: App, outside: psycopg.Connection[Any], postgres: str
) -> None:
    """It waits for a key that another transaction may take. Its caller gives up, and goes on with its own."""
    ship = app.task(ship_order)
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%json_array%'"

    async def caller() -> None:
        async with await psycopg.AsyncConnection.connect(postgres) as connection:
            await connection.execute("INSERT INTO orders VALUES (1)")
            waiting = asyncio.create_task(ship.using(connection=connection, key="k").aenqueue(2))
            while outside.execute(blocked).fetchone() == (0,):
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert connection.info.transaction_status.name == "INTRANS"
            await connection.execute("INSERT INTO orders VALUES (2)")

    with psycopg.connect(postgres) as other:
        ship.using(key="k", connection=other).enqueue(1)
        asyncio.run(caller())
        other.rollback()
    assert (orders(outside), app.counts()["ready"]) == ([1, 2], 0)


def test_the_loop_goes_on_while_an_enqueue_waits(app: App, outside: psycopg.Connection[Any], postgres: str) -> None:
    ship = app.task(ship_order)
    holder = psycopg.connect(postgres)
    ship.using(key="k", connection=holder).enqueue(1)

    async def caller() -> bool:
        async with await psycopg.AsyncConnection.connect(postgres) as connection:
            waiting = asyncio.create_task(ship.using(connection=connection, key="k").aenqueue(2))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            holder.rollback()  # by the loop that the enqueue would have blocked
            return (await waiting).existed

    assert asyncio.run(caller()) is False
    holder.close()


def test_what_is_rolled_back_wakes_nobody_in_this_process_either(app: App, postgres: str) -> None:
    ship = app.task(ship_order)
    with ThreadPoolExecutor(1) as waiter, psycopg.connect(postgres) as connection:
        while waiter.submit(app.store.wait, 0.2).result():
            pass
        ship.using(connection=connection).enqueue(1)
        assert not waiter.submit(app.store.wait, 0.2).result()
        connection.rollback()
        assert not waiter.submit(app.store.wait, 0.2).result()


def test_a_session_that_failed_before_is_refused(app: App, outside: Any, postgres: str) -> None:
    door = SqlAlchemySession(postgres)
    door.connection.begin_nested()
    with pytest.raises(sqlalchemy.exc.DBAPIError):
        door.sql("SELECT 1 / 0")
    with pytest.raises(UsageError):
        door.enqueue(app.task(ship_order), 1)
    door.connection.rollback()
    door.enqueue(app.task(ship_order, name="again"), 1)
    door.commit()
    door.close()
    assert app.counts()["ready"] == 1


def test_a_server_that_is_gone_is_an_error_of_the_store(app: App, outside: Any, postgres: str) -> None:
    for kind in (Psycopg, AsyncPsycopg):
        door = kind(postgres)
        pid = door.connection.info.backend_pid
        outside.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        with pytest.raises(StoreUnavailable, match=r"terminating connection|server closed"):
            door.enqueue(app.task(ship_order, name=kind.__name__), 1)
        with pytest.raises(UsageError, match="the connection is closed"):
            door.enqueue(app.task(ship_order, name=f"{kind.__name__} again"), 1)
        door.close()


def ship_order(order: int) -> int:
    return order


@pytest.mark.parametrize("autocommit", [False, True])
def test_enqueues_at_once_on_one_connection_take_turns(app: App, postgres: str, autocommit: bool) -> None:
    """Without turns, the savepoint of one that fails takes back what others have stored meanwhile."""
    ship = app.task(ship_order)
    ship.using(id="taken").enqueue(0)
    with psycopg.connect(postgres, autocommit=autocommit) as connection, ThreadPoolExecutor(8) as threads:
        connection.execute("SELECT 1")

        def one(number: int) -> str:
            if number % 4 == 0:
                with suppress(UsageError):  # another task has this id
                    app.task(_other).using(connection=connection, id="taken").enqueue()
            return ship.using(connection=connection).enqueue(number).id

        stored = list(threads.map(one, range(60)))
    assert len({job.id for job in app.find(limit=100)} & set(stored)) == 60


def _other() -> None: ...
