"""FastAPI: the example project with its own tests, and enqueues in an async transaction on SQLite."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlmodel.ext.asyncio.session import AsyncSession as ModelSession
from starlette.applications import Starlette
from starlette.requests import Request

from holdfast import App, UsageError
from holdfast.errors import TransactionExpired
from holdfast.integrations.fastapi import get_app, lifespan, progress_events
from holdfast.integrations.sqlalchemy import transaction
from holdfast.testing import AppTester

SHOP = Path(__file__).resolve().parents[2] / "examples" / "fastapi_shop"


@pytest.mark.slow  # it starts Python and workers
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_the_tests_of_the_fastapi_shop_pass(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = f"sqlite:///{tmp_path}/shop.db" if kind == "sqlite" else str(request.getfixturevalue("postgres"))
    if kind == "postgres":
        with psycopg.connect(url, autocommit=True) as db:  # other tests have a table of that name, too
            db.execute("DROP TABLE IF EXISTS purchase CASCADE")
    env = {**os.environ, "DATABASE_URL": url, "PYTHONPATH": str(SHOP)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(SHOP)]
    command += ["--rootdir", str(SHOP), "-c", os.devnull, "-p", "no:schemathesis"]
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "5 passed" in ran.stdout


class Async:
    """An app on a file, and an async engine of SQLAlchemy on the same file."""

    def __init__(self, folder: Path) -> None:
        self.app = App(f"sqlite:///{folder}/jobs.db")
        self.engine: AsyncEngine = create_async_engine(f"sqlite+aiosqlite:///{folder}/jobs.db")
        self.ship: Any = self.app.task(name="ship")(ship)
        self.app.counts()

    def run(self, test: Any) -> None:
        async def main() -> None:
            try:
                await test()
            finally:
                await self.engine.dispose()

        try:
            asyncio.run(main())
        finally:
            self.app.close()


def ship(number: int) -> None: ...


@pytest.mark.parametrize("kind", ["session", "model", "connection"])
@pytest.mark.parametrize("first", ["row", "job"])
def test_an_async_transaction_on_sqlite_stores_the_row_and_the_job(tmp_path: Path, kind: str, first: str) -> None:
    shop = Async(tmp_path)
    sessions: Any = async_sessionmaker(shop.engine, class_=ModelSession) if kind == "model" else None
    sessions = sessions or async_sessionmaker(shop.engine)

    async def test() -> None:
        async with shop.engine.begin() as db:
            await db.execute(text("CREATE TABLE orders (id integer)"))
        for number, ends in ((1, "commit"), (2, "rollback")):
            opened: Any = shop.engine.connect() if kind == "connection" else sessions()
            async with opened as db:
                insert = text("INSERT INTO orders VALUES (:n)").bindparams(n=number)
                plain = db if kind == "connection" else await db.connection()
                if first == "row":
                    await plain.execute(insert)
                job = await shop.ship.using(connection=db).aenqueue(number)
                if first == "job":
                    await plain.execute(insert)
                assert await shop.app.aio.find() == [] or ends == "rollback"
                await getattr(db, ends)()
            found = [each.id for each in await shop.app.aio.find()]
            assert (job.id in found) == (ends == "commit")
        async with shop.engine.begin() as db:
            assert (await db.execute(text("SELECT id FROM orders"))).all() == [(1,)]

    shop.run(test)


def test_a_cancelled_enqueue_stores_nothing_and_the_transaction_goes_on(tmp_path: Path) -> None:
    shop = Async(tmp_path)
    begun, end = asyncio.Event(), asyncio.Event()

    async def test() -> None:
        go, loop = threading.Event(), asyncio.get_running_loop()
        add = shop.app.store.add

        def slow(*arguments: Any, **named: Any) -> Any:
            added = add(*arguments, **named)
            loop.call_soon_threadsafe(begun.set)
            go.wait(60)
            return added

        shop.app.store.add = slow  # type: ignore[method-assign]
        async with async_sessionmaker(shop.engine).begin() as db:
            enqueueing = asyncio.create_task(shop.ship.using(connection=db).aenqueue(1))
            await begun.wait()
            enqueueing.cancel()
            loop.call_later(0.05, go.set)
            with pytest.raises(asyncio.CancelledError):
                await enqueueing
            kept = await shop.ship.using(connection=db).aenqueue(2)
        assert [job.id for job in await shop.app.aio.find()] == [kept.id]
        end.set()

    shop.run(test)
    assert end.is_set()


def test_an_enqueue_that_is_cancelled_when_it_has_its_answer_is_taken_back(tmp_path: Path) -> None:
    shop = Async(tmp_path)

    async def test() -> None:
        async with async_sessionmaker(shop.engine).begin() as db:
            store = shop.app.store

            def add(*arguments: Any, **named: Any) -> Any:
                try:
                    return type(store).add(store, *arguments, **named)
                finally:  # the answer is on its way, and nobody waits for it any more
                    loop.call_soon_threadsafe(lambda: loop.call_soon(enqueueing.cancel))

            loop = asyncio.get_running_loop()
            for _ in range(20):
                store.add = add  # type: ignore[method-assign]
                enqueueing = asyncio.create_task(shop.ship.using(connection=db).aenqueue(1))
                with suppress(asyncio.CancelledError):
                    await enqueueing
                del store.add  # type: ignore[method-assign]
                stored = (await db.execute(text("SELECT count(*) FROM holdfast_job"))).scalar_one()
                assert stored == (not enqueueing.cancelled())
                await db.execute(text("DELETE FROM holdfast_job"))

    shop.run(test)


@pytest.mark.parametrize("commits", [False, True])
def test_a_cancelled_enqueue_leaves_no_lock_that_it_took_itself(tmp_path: Path, commits: bool) -> None:
    shop = Async(tmp_path)

    async def test() -> None:
        where = f"{tmp_path}/jobs.db"
        async with aiosqlite.connect(where, isolation_level=None if commits else "") as db:
            add, loop, begun, go = shop.app.store.add, asyncio.get_running_loop(), asyncio.Event(), threading.Event()

            def slow(*arguments: Any, **named: Any) -> Any:
                loop.call_soon_threadsafe(begun.set)
                go.wait(60)
                return add(*arguments, **named)

            shop.app.store.add = slow  # type: ignore[method-assign]
            enqueueing = asyncio.create_task(shop.ship.using(connection=db).aenqueue(1))
            await begun.wait()
            enqueueing.cancel()
            await asyncio.sleep(0)
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await enqueueing
            shop.app.store.add = add  # type: ignore[method-assign]
            with closing(sqlite3.connect(where, timeout=0, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")  # nobody holds the lock
                other.execute("ROLLBACK")
            assert await shop.app.aio.find() == []
            await shop.ship.using(connection=db).aenqueue(2)
            assert len(await shop.app.aio.find()) == commits  # a connection in autocommit mode stores it at once
            await db.rollback()

    shop.run(test)


def test_a_commit_that_fails_leaves_no_lock_and_no_job(tmp_path: Path) -> None:
    shop = Async(tmp_path)

    async def test() -> None:
        where = f"{tmp_path}/jobs.db"
        async with aiosqlite.connect(where, isolation_level=None) as db:
            await db.execute("PRAGMA foreign_keys = ON")
            await db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
            await db.execute("CREATE TABLE line (of INTEGER REFERENCES orders DEFERRABLE INITIALLY DEFERRED)")
            add = shop.app.store.add

            def wrong(*arguments: Any, **named: Any) -> Any:
                added = add(*arguments, **named)
                db._conn.execute("INSERT INTO line VALUES (1)")  # the commit fails: there is no such order
                return added

            shop.app.store.add = wrong  # type: ignore[method-assign]
            with pytest.raises(sqlite3.IntegrityError):
                await shop.ship.using(connection=db).aenqueue(1)
            shop.app.store.add = add  # type: ignore[method-assign]
            with closing(sqlite3.connect(where, timeout=0, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")  # nobody holds the lock
                other.execute("ROLLBACK")
            kept = await shop.ship.using(connection=db).aenqueue(2)
            assert [job.id for job in await shop.app.aio.find()] == [kept.id]

    shop.run(test)


def test_a_cancellation_during_a_commit_is_heard_of_when_the_job_is_stored(tmp_path: Path) -> None:
    shop = Async(tmp_path)

    async def test() -> None:
        async with aiosqlite.connect(f"{tmp_path}/jobs.db", isolation_level=None) as db:
            loop, go = asyncio.get_running_loop(), threading.Event()

            def traced(statement: str) -> None:
                if statement == "COMMIT":
                    loop.call_soon_threadsafe(enqueueing.cancel)
                    loop.call_soon_threadsafe(loop.call_later, 0.05, go.set)
                    go.wait(60)

            await db.set_trace_callback(traced)
            enqueueing = asyncio.create_task(shop.ship.using(connection=db).aenqueue(1))
            with pytest.raises(asyncio.CancelledError):
                await enqueueing
            assert go.is_set(), "the commit has not ended"
            assert not db.in_transaction
            assert len(await shop.app.aio.find()) == 1

    shop.run(test)


def test_a_transaction_of_a_request_ends_after_transaction_max_s(tmp_path: Path) -> None:
    shop = Async(tmp_path)

    async def test() -> None:
        sessions = async_sessionmaker(shop.engine)

        async def dawdle() -> None:
            async with transaction(sessions, transaction_max_s=0.1) as db:
                await shop.ship.using(connection=db).aenqueue(1)
                await asyncio.Event().wait()

        with pytest.raises(TransactionExpired, match=r"more than 0.1 s"):
            await dawdle()
        assert await shop.app.aio.find() == []
        assert (await shop.ship.aenqueue(2)).refresh().state == "ready"  # the lock is free
        with pytest.raises(TimeoutError):
            async with transaction(sessions):
                raise TimeoutError

    shop.run(test)


def test_the_events_of_a_job_end_when_the_browser_has_gone(tmp_path: Path) -> None:
    shop = Async(tmp_path)

    async def test() -> None:
        job, gone, sent = await shop.ship.aenqueue(1), asyncio.Event(), []

        async def receive() -> dict[str, str]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if message.get("body"):
                gone.set()

        response = progress_events(shop.app, job.id, every_s=0.01)
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        await asyncio.wait_for(response(scope, receive, send), 30)
        assert '"state":"ready"' in sent[1]["body"].decode()

    shop.run(test)


def test_a_job_that_outlives_the_grace_of_a_lifespan_is_released(tmp_path: Path) -> None:
    app, begun, end = App(f"sqlite:///{tmp_path}/jobs.db"), threading.Event(), threading.Event()

    @app.task
    def wait() -> None:
        begun.set()
        end.wait(60)

    async def live() -> str:
        async with lifespan(app, slots=1, grace_period_s=0.1)(Starlette()):
            job = await wait.aenqueue()
            await asyncio.to_thread(begun.wait, 60)
            asyncio.get_running_loop().call_later(0.5, end.set)
        return job.id

    try:
        row = app.get(asyncio.run(live())).row
    finally:
        end.set()
        app.close()
    assert (row.state, row.failures, row.crashes) == ("ready", 0, 0)


def test_a_lifespan_leaves_the_jobs_to_the_test_that_runs_them() -> None:
    app = App("postgresql://nobody@example.invalid/shop")
    task: Any = app.task(name="ship")(ship)

    async def live() -> None:
        async with lifespan(app, slots=2)(Starlette()):
            assert app.store.workers() == []

    with AppTester() as jobs:
        asyncio.run(live())
        job = task.enqueue(1)
        assert jobs.drain() == 1
        assert job.result(timeout=0) is None


def test_a_forgotten_lifespan_is_named() -> None:
    request = Request({"type": "http", "app": Starlette(), "headers": []})
    with pytest.raises(UsageError, match=r"FastAPI\(lifespan=lifespan\(app\)\)"):
        get_app(request)


def test_the_server_says_how_to_install_what_it_needs() -> None:
    code = "import sys; sys.modules['jinja2'] = None; import holdfast.server"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "install the server: pip install 'holdfast[server]'" in ran.stderr
