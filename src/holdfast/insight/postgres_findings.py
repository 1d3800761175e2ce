"""Findings about a PostgreSQL store: its settings, its load, and what stands in the way of cleaning up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.core.text import counted, listed
from holdfast.insight.findings import Finding, long_journal, of_orphans, ok, problem, warning
from holdfast.insight.format import brief, size
from holdfast.stores.postgres.facts import PostgresFacts
from holdfast.stores.protocol import Store

OLD_S = 300.0  # a transaction that is open for longer keeps dead rows
DEAD_MAX = 1_000_000
EVENTS_MAX = 50_000_000


def of_the_database(store: Store, found: PostgresFacts) -> Iterator[Finding]:
    """Check the server and our schema in it."""
    yield from _soundness(store, found)
    yield from _durability(found)
    yield _load(found)
    yield from _cleaning(found)
    yield from _liveness(found)


def _soundness(store: Any, found: PostgresFacts) -> Iterator[Finding]:
    orphans = [] if store.missing() else store.orphans()
    damage = [each for each in store.check() if each not in orphans]
    where = f"schema {found.schema} of {found.database}, PostgreSQL {found.version}"
    yield from of_orphans(orphans)
    if damage:
        yield problem("The tables contradict each other", listed(damage, 3), "restore the database from a backup")
        return
    if not found.takes_writes:
        evidence = f"{where} is a standby, or was set to read-only"
        fix = "give the address of the primary, for example with several hosts and target_session_attrs=read-write"
        yield problem("The server takes no writes", evidence, fix)
        return
    yield ok("The tables are sound", f"{where}, {size(found.table_bytes)} of jobs")


def _durability(found: PostgresFacts) -> Iterator[Finding]:
    if not found.fsync or not found.full_page_writes:
        off = "fsync" if not found.fsync else "full_page_writes"
        evidence = f"{off} is off: a power cut can destroy the whole database"
        yield problem("The server may lose committed jobs", evidence, f"set {off} = on in postgresql.conf")
    elif found.synchronous_commit == "off":
        evidence = "synchronous_commit is off: a crash of the server takes the last moments with it"
        fix = "set synchronous_commit = on, at least for this user: ALTER ROLE … SET synchronous_commit = on"
        yield warning("Acknowledged jobs may be lost", evidence, fix)
    else:
        evidence = f"fsync is on, synchronous_commit is {found.synchronous_commit}"
        yield ok("Acknowledged jobs survive a power cut", evidence)


def _load(found: PostgresFacts) -> Finding:
    evidence = f"{found.connections} of {found.connections_max} connections are in use"
    if found.connections > 0.85 * found.connections_max:
        fix = "raise max_connections, or lower pool_max in the addresses of the workers"
        return warning("The server is running out of connections", evidence, fix)
    if found.notify_share > 0.5:
        evidence = f"{found.notify_share:.0%} of the room for notifications is taken: a session listens and never reads"
        return warning("Notifications pile up", evidence, "end that session; see pg_stat_activity")
    return ok("The server has connections left", evidence)


def _cleaning(found: PostgresFacts) -> Iterator[Finding]:
    age = found.oldest_transaction_s
    if age is not None and age > OLD_S:
        evidence = f"a transaction has been open for {brief(age)}: nothing that died since can be cleared away"
        fix = "find it in pg_stat_activity by xact_start, and end it with pg_terminate_backend(pid)"
        yield warning("An old transaction keeps dead rows", evidence, fix)
    if found.hidden_sessions:
        whose = counted(found.hidden_sessions, "session of another user", "sessions of other users")
        grant = "to see it: GRANT pg_read_all_stats TO …"
        yield ok("Transactions of other users are hidden", f"how old that of {whose} is cannot be seen; {grant}")
    if not found.autovacuum:
        evidence = f"autovacuum is off; about {found.dead_rows:,} rows of jobs are dead"
        yield problem("Dead rows are not cleaned up", evidence, "set autovacuum = on in postgresql.conf")
    elif found.dead_rows > DEAD_MAX and found.dead_rows > found.live_rows:
        evidence = f"about {found.dead_rows:,} rows of jobs are dead and {found.live_rows:,} alive"
        yield warning("Dead rows pile up", evidence, f"VACUUM {found.schema}.job; more autovacuum_max_workers")
    else:
        yield ok("Dead rows are cleared away", f"about {found.dead_rows:,} of jobs are waiting for it")
    if found.events > EVENTS_MAX:
        yield long_journal(found.events)


def _liveness(found: PostgresFacts) -> Iterator[Finding]:
    if found.unlocked:
        who = counted(found.unlocked, "worker")
        evidence = f"{who} reached the server through a pooler: a death is found when the lease ends, not sooner"
        yield warning("Workers without a liveness lock", evidence, "give workers an address of the server itself")
