"""An enqueue on the caller's async connection that is cancelled: it has left the connection when the caller hears of
it, and stores nothing that the caller could commit."""

import asyncio
import dataclasses
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.pq import TransactionStatus
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from holdfast import App, Task
from holdfast.stores import caller_connection
from holdfast.tasks import Draft
from tests.api.doors import driver
from tests.proxy import Proxy

AT_ONCE = 4
CANCELLED = 120
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%json_array%'"
IN_USE = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
LOST = (psycopg.OperationalError, sqlalchemy.exc.OperationalError)


@pytest.fixture
def app(postgres: str) -> Iterator[App]:
    with App(postgres) as app:
        app.store.counts()
        yield app


@pytest.fixture
def ship(app: App) -> Task[[str], str]:
    return app.task(ship_order)


@pytest.fixture
def outside(app: App, postgres: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS orders; CREATE TABLE orders (name TEXT)")
        yield connection


class Plain:
    """A connection of psycopg's for each transaction."""

    def __init__(self, app: App, url: str) -> None:
        self.app = app
        self.url = url

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Any]:
        connection = await psycopg.AsyncConnection.connect(self.url)
        yield connection
        await connection.close()

    async def sql(self, connection: Any, statement: str) -> None:
        await connection.execute(statement)

    async def enqueue(self, connection: Any, drafts: list[Draft[str]]) -> None:
        await self.app.aio.enqueue_many([dataclasses.replace(draft, connection=connection) for draft in drafts])

    async def close(self) -> None:
        pass


class Pooled(Plain):
    """Sessions of SQLAlchemy's, which share a few connections."""

    def __init__(self, app: App, url: str) -> None:
        super().__init__(app, url)
        self.engine: AsyncEngine = create_async_engine(driver(url), pool_size=AT_ONCE, max_overflow=0)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Any]:
        async with AsyncSession(self.engine) as session:
            yield session

    async def sql(self, connection: Any, statement: str) -> None:
        await connection.execute(sqlalchemy.text(statement))

    async def close(self) -> None:
        await self.engine.dispose()


class Inline(Pooled):
    """The same, with the synchronous enqueue inside `run_sync`."""

    async def enqueue(self, connection: Any, drafts: list[Draft[str]]) -> None:
        await connection.run_sync(
            lambda inner: self.app.enqueue_many([dataclasses.replace(draft, connection=inner) for draft in drafts])
        )


@pytest.mark.parametrize("kind", [Plain, Pooled, Inline])
def test_cancellations_at_any_moment_leave_a_sound_connection_and_no_job(
    app: App, ship: Task[[str], str], outside: psycopg.Connection[Any], postgres: str, kind: type[Plain]
) -> None:
    """The ledger: whoever was told of a commit finds row and jobs, or of a cancelled enqueue the row alone."""
    chance = random.Random(f"{kind.__name__} 7")
    expected: dict[str, int] = {}  # the caller's rows that are committed -> their jobs

    async def one(ways: Plain, name: str, places: asyncio.Semaphore) -> None:
        many = chance.choice([1, 2, 150])
        patience_s = chance.random() * chance.choice([0.005, 0.02, 0.08])
        async with places, ways.opened() as connection:
            await ways.sql(connection, f"INSERT INTO orders VALUES ('{name}')")
            drafts = [ship.using(id=f"{name}.{number}").job(name) for number in range(many)]
            is_cancelled = False
            try:
                await asyncio.wait_for(ways.enqueue(connection, drafts), patience_s)
            except TimeoutError:
                is_cancelled = True
            try:
                await ways.sql(connection, "SELECT 1")
                await connection.commit()
                expected[name] = 0 if is_cancelled else many
            except LOST:
                assert is_cancelled

    async def callers() -> None:
        ways, places = kind(app, postgres), asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(one(ways, f"o{number}", places) for number in range(CANCELLED)))
        assert outside.execute(IN_USE).fetchone() == (0,)
        await ways.close()

    asyncio.run(callers())
    stored = dict.fromkeys((name for (name,) in outside.execute("SELECT name FROM orders")), 0)
    for job in app.find(limit=CANCELLED * 150):
        stored[job.id.split(".")[0]] += 1
    assert stored == expected
    assert 0 in expected.values()
    assert len(expected) > CANCELLED // 2


@pytest.mark.parametrize("kind", [Plain, Pooled, Inline])
def test_a_cancelled_enqueue_ends_while_its_statement_waits(
    app: App, ship: Task[[str], str], outside: psycopg.Connection[Any], postgres: str, kind: type[Plain]
) -> None:
    async def caller() -> None:
        ways = kind(app, postgres)
        async with ways.opened() as connection:
            waiting = asyncio.ensure_future(ways.enqueue(connection, [ship.using(key="k").job("o1")]))
            while outside.execute(WAITING).fetchone() == (0,):
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await ways.sql(connection, "INSERT INTO orders VALUES ('o2')")
            await connection.commit()
        await ways.close()

    with psycopg.connect(postgres) as other:
        ship.using(key="k", connection=other).enqueue("o0")
        asyncio.run(caller())
        other.rollback()
    assert outside.execute("SELECT name FROM orders").fetchall() == [("o2",)]
    assert app.counts()["ready"] == 0


def test_a_loop_that_shuts_down_leaves_no_thread_on_the_connection(
    app: App, ship: Task[[str], str], outside: psycopg.Connection[Any], postgres: str
) -> None:
    """`asyncio.run` cancels every task at its end: the callers', and what runs a statement for our thread."""
    left: list[tuple[bool, int]] = []

    async def caller(delay_s: float) -> None:
        async with Plain(app, postgres).opened() as connection:
            await connection.execute("INSERT INTO orders VALUES ('x')")
            working = asyncio.ensure_future(Plain(app, postgres).enqueue(connection, [ship.job("o")] * 2))
            await asyncio.sleep(delay_s)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await working
            is_quiet = connection.info.transaction_status != TransactionStatus.ACTIVE
            try:
                await connection.commit()
                left.append((is_quiet, 0 if working.cancelled() else 1))
            except LOST:
                left.append((True, 0))

    for number in range(40):
        asyncio.run(caller(0.0005 * number))
    assert [quiet for quiet, _ in left] == [True] * 40
    assert app.counts()["ready"] == sum(stored for _, stored in left)


def test_a_cancelled_enqueue_does_not_wait_for_a_server_that_is_gone(
    app: App, ship: Task[[str], str], outside: psycopg.Connection[Any], postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_connection, "_STOP_S", 0.2)
    proxy = Proxy(postgres)

    async def caller() -> float:
        connection = await psycopg.AsyncConnection.connect(proxy.url)
        await connection.execute("INSERT INTO orders VALUES ('x')")
        proxy.stall()
        waiting = asyncio.ensure_future(Plain(app, postgres).enqueue(connection, [ship.job("o")]))
        await asyncio.sleep(0.05)
        waiting.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        took_s = time.monotonic() - began
        with pytest.raises(psycopg.OperationalError):
            await connection.commit()
        await connection.close()
        return took_s

    assert asyncio.run(caller()) < 10
    proxy.close()
    assert app.counts()["ready"] == 0
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("asyncio_")]


def ship_order(order: str) -> str:
    return order
