"""Mechanism: stores apply verdicts and decide nothing. `open_store` finds the one that a URL names."""

from __future__ import annotations

from typing import cast

from holdfast.clock import Clock
from holdfast.errors import SchemaMismatch, StoreUnsupported
from holdfast.forks import importing
from holdfast.stores.protocol import Store, schema_too_new
from holdfast.stores.urls import check_url

# Commands that work wherever Holdfast itself came from: a clone, a wheel or an index.
_DRIVER = "pip install 'psycopg[binary,pool]>=3.2'"
_REDIS_DRIVER = "pip install 'redis>=6.2' 'hiredis>=3.1'"


def open_store(url: str, *, clock: Clock | None = None, create: bool = True, bulk: bool = False) -> Store:
    """Open the store at `url`. Without `create`, raise `StoreMissing` where there is none, and create nothing.

    `bulk` is for a program that reads all there is: a server gives each of its statements a minute.
    """
    scheme = check_url(url)
    if scheme == "sqlite":
        with importing:
            from holdfast.stores.sqlite.store import SqliteStore

        return SqliteStore(url, clock=clock, create=create)
    if scheme == "memory":
        with importing:
            from holdfast.stores.memory import MemoryStore

        return MemoryStore(url, clock=clock)
    if scheme in ("https", "http"):
        with importing:
            from holdfast.stores.remote.store import RemoteStore

        return cast(Store, RemoteStore(url, clock=clock))  # its verbs are made from a table
    if scheme in ("redis", "rediss", "unix"):
        try:
            with importing:
                from holdfast.stores.redis.store import RedisStore
        except ModuleNotFoundError as error:
            raise StoreUnsupported(f"{error}; install the Redis driver: {_REDIS_DRIVER}") from None
        return RedisStore(url, clock=clock, create=create)
    try:
        with importing:
            from holdfast.stores.postgres.store import PostgresStore
    except ModuleNotFoundError as error:
        raise StoreUnsupported(f"{error}; install the PostgreSQL driver: {_DRIVER}") from None
    return PostgresStore(url, clock=clock, create=create, bulk=bulk)


def fit(store: Store, *, migrate: bool) -> None:
    """Bring the store's schema up to date; without `migrate`, raise `SchemaMismatch` where it is not."""
    if migrate:
        store.migrate()
        return
    schema = store.schema()
    if schema.is_too_new:
        raise schema_too_new(store.url, schema)
    if schema.is_stale:
        command = "migrate" if schema.found else "init"
        raise SchemaMismatch(
            f"the store's schema is version {schema.found}, this program wants {schema.wanted}; "
            f"run `holdfast db {command}`, or make the App without migrate=False"
        )
