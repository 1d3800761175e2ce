"""Findings about what holds the jobs: each kind of store has its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.errors import (
    StoreError,
    StoreFull,
    StoreLocked,
    StoreMissing,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
    StoreUnsupported,
)
from holdfast.insight.findings import Finding, warning
from holdfast.insight.postgres_findings import of_the_database
from holdfast.insight.redis_findings import of_the_server
from holdfast.insight.sqlite_findings import TO_MAKE_ROOM, of_the_file
from holdfast.stores.postgres.facts import PostgresFacts as DatabaseCondition
from holdfast.stores.protocol import Store
from holdfast.stores.redis.facts import RedisFacts as ServerCondition
from holdfast.stores.sqlite.facts import SqliteFacts as FileCondition

TO_MAKE_ONE = "if there was one, restore it from a backup; otherwise make one: holdfast db init"
_TO_REACH = "start the server, or find out why it cannot be reached from here; then ask again"
_TO_FREE_MEMORY = "raise maxmemory, or prune ended jobs: holdfast db prune --older-than 7d; workers end jobs meanwhile"
_REDIS = ("redis", "unix:")
_TO_GET_A_LOCK = "if a session holds a lock, pg_blocking_pids() names it: let it continue, or end it"


def of_the_medium(store: Store) -> Iterator[Finding]:
    """Check the facts about this kind of store."""
    look: Any = getattr(store, "condition", None)
    found = look() if look is not None else None
    if isinstance(found, FileCondition):
        yield from of_the_file(store, found)
    elif isinstance(found, DatabaseCondition):
        yield from of_the_database(store, found)
    elif isinstance(found, ServerCondition):
        yield from of_the_server(store, found)
    else:
        yield warning(
            "Jobs are kept only in memory",
            f"{store.url} lives in one process and ends with it",
            "use sqlite:///jobs.db",
        )


def to_be_read(url: str, error: StoreError) -> str:
    """Say what makes a store readable that could not be opened or read."""
    if isinstance(error, StoreFull):
        return _TO_FREE_MEMORY if url.startswith(_REDIS) else TO_MAKE_ROOM
    if isinstance(error, StoreUnsupported):
        return "change that, then ask again"
    if isinstance(error, StoreMissing):
        return TO_MAKE_ONE
    if url.startswith("postgres") and isinstance(error, StoreLocked | StoreTimeout):
        return _TO_GET_A_LOCK
    if url.startswith(("postgres", *_REDIS)) and type(error) is StoreUnavailable:
        return _TO_REACH
    return "make it readable, or name another one with --db; then ask again"


def to_take_writes(store: Store, error: StoreError) -> str:
    """Say what makes this kind of store take writes again."""
    if isinstance(error, StoreFull):
        return _TO_FREE_MEMORY if store.url.startswith(_REDIS) else TO_MAKE_ROOM
    if store.url.startswith(_REDIS):
        if isinstance(error, StoreReadOnly):
            return "if it is a replica: give the address of the primary; if it cannot save: make room on its disk"
        return _TO_REACH
    if not store.url.startswith("postgres"):
        return (
            "let the process that holds the write lock continue, or end it; fuser names those that have the file open"
        )
    if isinstance(error, StoreReadOnly):
        rights = "GRANT USAGE ON SCHEMA …; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA …"
        return f"if this user lacks the rights: {rights}; if it is a standby: give the address of the primary"
    return _TO_GET_A_LOCK
