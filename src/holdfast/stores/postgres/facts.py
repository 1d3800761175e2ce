"""Facts about a PostgreSQL store: settings, load, age, size. `insight` judges them."""

from __future__ import annotations

import msgspec


class PostgresFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the server and of our schema in it."""

    version: str
    database: str
    schema: str
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    autovacuum: bool
    takes_writes: bool
    connections: int  # of all programs
    connections_max: int
    oldest_transaction_s: float | None  # of those that this user may see; None: there is none
    hidden_sessions: int  # in our database, whose transactions this user may not see
    table_bytes: int  # of the jobs, with their indexes
    live_rows: int  # by the server's own estimate
    dead_rows: int
    events: int
    notify_share: float  # of the server's room for NOTIFY that is taken
    unlocked: int  # living workers without a liveness lock
