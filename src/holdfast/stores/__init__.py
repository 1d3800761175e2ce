"""Mechanism: stores apply verdicts and decide nothing. `open_store` finds the one that a URL names."""

from __future__ import annotations

from urllib.parse import urlsplit

from holdfast.clock import Clock
from holdfast.errors import BadURL
from holdfast.stores.protocol import Store


def open_store(url: str, *, clock: Clock | None = None, create: bool = True) -> Store:
    """Open the store at `url`. Without `create`, raise `StoreMissing` where there is none, and create nothing."""
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        from holdfast.stores.sqlite.store import SqliteStore

        return SqliteStore(url, clock=clock, create=create)
    if scheme == "memory":
        from holdfast.stores.memory import MemoryStore

        return MemoryStore(url, clock=clock)
    raise BadURL(f"the store address {_without_password(url)!r} is not known; use sqlite:///jobs.db or memory://")


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return url.replace(f":{parts.password}@", ":***@")
