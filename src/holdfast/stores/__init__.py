"""Mechanism: stores apply verdicts and decide nothing. `open_store` finds the one that a URL names."""

from __future__ import annotations

from holdfast.clock import Clock
from holdfast.errors import BadURL, StoreUnsupported
from holdfast.stores.protocol import Store

SCHEMES = ("sqlite", "postgresql", "postgres", "memory")


def check_url(url: str) -> str:
    """Return how the address begins, if a store can have it. Opens nothing.

    What is wrong is said without the rest of the address, where there may be a password.
    """
    scheme, colon, _ = url.partition(":")
    if colon and scheme.lower() in SCHEMES:
        return scheme.lower()
    what = f"begins with {scheme + colon!r}, which no store does" if colon else "does not say what kind of store it is"
    raise BadURL(f"the store address {what}; write sqlite:///jobs.db, postgresql://user@host/database or memory://")


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
