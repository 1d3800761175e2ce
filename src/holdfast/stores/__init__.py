"""Mechanism: stores apply verdicts and decide nothing. `open_store` finds the one that a URL names."""

from __future__ import annotations

from holdfast.clock import Clock
from holdfast.errors import StoreUnsupported
from holdfast.stores.protocol import Store
from holdfast.stores.urls import check_url


def open_store(url: str, *, clock: Clock | None = None, create: bool = True) -> Store:
    """Open the store at `url`. Without `create`, raise `StoreMissing` where there is none, and create nothing."""
    scheme = check_url(url)
    if scheme == "sqlite":
        from holdfast.stores.sqlite.store import SqliteStore

        return SqliteStore(url, clock=clock, create=create)
    if scheme == "memory":
        from holdfast.stores.memory import MemoryStore

        return MemoryStore(url, clock=clock)
    try:
        from holdfast.stores.postgres.store import PostgresStore
    except ModuleNotFoundError as error:
        raise StoreUnsupported(f"{error}: PostgreSQL needs pip install 'holdfast[postgres]'") from None
    return PostgresStore(url, clock=clock, create=create)
