"""The ways into a caller's own transaction on PostgreSQL, each as one small class with the same verbs.

Those that are awaited run on an event loop of their own, so that a test reads the same for all.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar
from urllib.parse import urlsplit

import django
import psycopg
import sqlalchemy
from django.conf import settings
from django.db import connections, transaction
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from holdfast import Job
from holdfast.tasks import Sender

INSERT = "INSERT INTO orders VALUES ({})"


class Psycopg:
    """A plain connection, in a transaction of its own accord."""

    tells: ClassVar[bool] = False  # of its commit

    def __init__(self, url: str) -> None:
        self.connection: Any = psycopg.connect(url)

    def sql(self, statement: str) -> None:
        self.connection.execute(statement)

    def enqueue(self, sender: Sender[Any, Any], *args: Any) -> Job[Any]:
        return sender.using(connection=self.connection).enqueue(*args)

    def enqueue_many(self, sender: Sender[Any, Any], numbers: Any) -> list[Job[Any]]:
        sender = sender.using(connection=self.connection)
        return sender._task.app.enqueue_many([sender.job(number) for number in numbers])

    def write(self, number: int) -> None:
        self.sql(INSERT.format(number))

    def begin(self) -> None:
        """Open another transaction after the end of one, where that is done by hand."""

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def close(self) -> None:
        self.connection.close()


class PsycopgBlock(Psycopg):
    """A connection in autocommit mode, inside a `with connection.transaction():`."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.begin()

    def begin(self) -> None:
        self.block = self.connection.transaction()
        self.block.__enter__()

    def commit(self) -> None:
        self.block.__exit__(None, None, None)

    def rollback(self) -> None:
        self.block.__exit__(psycopg.Rollback, psycopg.Rollback(), None)


class SqlAlchemy(Psycopg):
    """A Connection of SQLAlchemy's."""

    def __init__(self, url: str) -> None:
        self.engine = sqlalchemy.create_engine(driver(url), poolclass=NullPool)
        self.connection = self.made()

    def made(self) -> Any:
        return self.engine.connect()

    def sql(self, statement: str) -> None:
        self.connection.execute(sqlalchemy.text(statement))


class SqlAlchemySession(SqlAlchemy):
    """A Session of SQLAlchemy's."""

    tells = True

    def made(self) -> Any:
        return Session(self.engine)


class Django(Psycopg):
    """Django's connection, inside `transaction.atomic()`."""

    tells = True
    alias = "default"

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path[1:],
            "USER": parts.username,
            "HOST": parts.hostname,
            "PORT": parts.port,
        }
        self.connection = with_django({self.alias: database})[self.alias]
        self.begin()

    def begin(self) -> None:
        self.block = transaction.atomic(self.alias)
        self.block.__enter__()

    def sql(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)

    def commit(self) -> None:
        self.block.__exit__(None, None, None)

    def rollback(self) -> None:
        error = ValueError("by the test")
        self.block.__exit__(type(error), error, None)

    def close(self) -> None:
        if self.connection.in_atomic_block:
            self.rollback()
        self.connection.close()


class AsyncPsycopg(Psycopg):
    """A connection that is awaited."""

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.connection = self.run(self.amade(url))

    def run(self, step: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(step)

    async def amade(self, url: str) -> Any:
        return await psycopg.AsyncConnection.connect(url)

    def sql(self, statement: str) -> None:
        self.run(self.connection.execute(statement))

    def enqueue(self, sender: Sender[Any, Any], *args: Any) -> Job[Any]:
        job: Job[Any] = self.run(sender.using(connection=self.connection).aenqueue(*args))
        return job

    def enqueue_many(self, sender: Sender[Any, Any], numbers: Any) -> list[Job[Any]]:
        sender = sender.using(connection=self.connection)
        jobs: list[Job[Any]] = self.run(sender._task.app.aio.enqueue_many([sender.job(number) for number in numbers]))
        return jobs

    def commit(self) -> None:
        self.run(self.connection.commit())

    def rollback(self) -> None:
        self.run(self.connection.rollback())

    def close(self) -> None:
        self.run(self.connection.close())
        self.runner.close()


class AsyncSqlAlchemy(AsyncPsycopg):
    """An AsyncConnection of SQLAlchemy's."""

    async def amade(self, url: str) -> Any:
        return await create_async_engine(driver(url), poolclass=NullPool).connect()

    def sql(self, statement: str) -> None:
        self.run(self.connection.execute(sqlalchemy.text(statement)))


class AsyncSqlAlchemySession(AsyncSqlAlchemy):
    """An AsyncSession of SQLAlchemy's."""

    tells = True

    async def amade(self, url: str) -> Any:
        return AsyncSession(create_async_engine(driver(url), poolclass=NullPool))


class RunSync(AsyncSqlAlchemySession):
    """A plain Session, inside `run_sync` of an AsyncSession: below it is a driver that is awaited."""

    def enqueue(self, sender: Sender[Any, Any], *args: Any) -> Job[Any]:
        job: Job[Any] = self.run(self.connection.run_sync(lambda plain: sender.using(connection=plain).enqueue(*args)))
        return job

    def enqueue_many(self, sender: Sender[Any, Any], numbers: Any) -> list[Job[Any]]:
        async def inside() -> list[Job[Any]]:
            return await self.connection.run_sync(lambda plain: self.at_once(sender.using(connection=plain), numbers))

        jobs: list[Job[Any]] = self.run(inside())
        return jobs

    @staticmethod
    def at_once(sender: Sender[Any, Any], numbers: Any) -> list[Job[Any]]:
        return sender._task.app.enqueue_many([sender.job(number) for number in numbers])


DOORS = {
    "psycopg": Psycopg,
    "psycopg block": PsycopgBlock,
    "sqlalchemy connection": SqlAlchemy,
    "sqlalchemy session": SqlAlchemySession,
    "django": Django,
    "psycopg async": AsyncPsycopg,
    "sqlalchemy async connection": AsyncSqlAlchemy,
    "sqlalchemy async session": AsyncSqlAlchemySession,
    "sqlalchemy run_sync": RunSync,
}


def driver(url: str) -> str:
    """Return the address as SQLAlchemy wants it for psycopg 3."""
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


class _Django:
    databases: ClassVar[dict[str, Any]] = {}


def with_django(databases: dict[str, Any]) -> Any:
    """Return Django's connections, with these databases among them."""
    if not settings.configured:
        settings.configure(DATABASES={"default": {}}, USE_TZ=True)
        django.setup()
    for alias, database in databases.items():
        if _Django.databases.get(alias) != database:
            _Django.databases[alias] = database
            connections.settings[alias] = dict(database)
            connections.configure_settings(connections.settings)
            if hasattr(connections._connections, alias):
                del connections[alias]
    return connections
