"""Findings about a store on Redis or Valkey: what its server keeps, its room, its replicas."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.text import counted, listed
from holdfast.insight.findings import Finding, long_journal, ok, problem, warning
from holdfast.insight.format import size
from holdfast.stores.protocol import Store
from holdfast.stores.redis.facts import RedisFacts

LANES_MAX = 500
EVENTS_MAX = 5_000_000
FULL = 0.8  # of maxmemory


def of_the_server(store: Store, found: RedisFacts) -> Iterator[Finding]:
    """Check the server and our keys in it."""
    yield _soundness(store, found)
    yield _durability(found)
    yield from _replication(found)
    yield _room(found)
    yield from _load(found)


def _soundness(store: Store, found: RedisFacts) -> Finding:
    if found.is_primary is False:
        fix = "give the address of the primary, or let Sentinel name it: ?sentinel=SERVICE"
        return problem("The server takes no writes", f"{found.server} is a replica", fix)
    if damage := store.check():
        return problem("The rows contradict each other", listed(damage, 3), "restore the server from a backup")
    return ok("The rows are sound", f"store {found.epoch} on {found.server}, {counted(found.jobs, 'job')}")


def _durability(found: RedisFacts) -> Finding:
    if found.aof_failed or found.snapshot_failed:
        what = "the append-only file" if found.aof_failed else "the last snapshot"
        return problem(
            "The server cannot save", f"{what} could not be written", "look at the server's log and its disk"
        )
    if found.appendonly is None:
        fix = "give the user +info and +config|get, or make sure that appendonly is yes"
        return warning("It is unknown what a restart of the server loses", "this user may not ask", fix)
    if not found.appendonly:
        snapshots = f"snapshots ({found.save})" if found.save else "nothing"
        evidence = f"appendonly is no: the server keeps {snapshots}"
        return problem("A restart of the server loses acknowledged jobs", evidence, "set appendonly yes")
    synced = "every write" if found.ack == "aof" or found.appendfsync == "always" else None
    if synced is None:
        evidence = f"appendonly is yes, appendfsync is {found.appendfsync or 'unknown'}"
        fix = "if a crash must lose nothing: add ack=aof to the store address, or set appendfsync always"
        return Finding("ok", "Acknowledged jobs survive a restart; a crash may undo the last seconds", evidence, fix)
    return ok("Acknowledged jobs survive a power cut", f"{synced} is on the disk before it is acknowledged")


def _replication(found: RedisFacts) -> Iterator[Finding]:
    if not found.replicas or isinstance(found.ack, int):
        return
    if found.replicas_min == 0:
        evidence = f"{counted(found.replicas, 'replica')}, min-replicas-to-write 0: a primary that is cut off continues"
        fix = "set min-replicas-to-write 1 and min-replicas-max-lag 10, or add ack=1 to the store address"
        yield warning("A failover may lose more than the last second", evidence, fix)
    elif found.replicas_min is None:
        fix = "make sure that min-replicas-to-write is at least 1, or give the user +config|get"
        yield warning("It is unknown what a failover loses", "this user may not ask for min-replicas-to-write", fix)


def _room(found: RedisFacts) -> Finding:
    if found.evicted:
        evidence = f"evicted_keys is {found.evicted}: the server has deleted keys to make room"
        fix = "set maxmemory-policy noeviction, and restore what is missing: holdfast db check"
        return problem("The server evicts", evidence, fix)
    if found.policy is not None and found.policy.startswith("allkeys"):
        fix = "set maxmemory-policy noeviction"
        return problem("The server will delete jobs when it is full", f"maxmemory-policy is {found.policy}", fix)
    if found.policy not in (None, "noeviction"):
        evidence = f"maxmemory-policy is {found.policy}; keys of Holdfast have no time to live, and stay"
        return warning("The server evicts keys of other programs", evidence, "set maxmemory-policy noeviction")
    if found.used_bytes is None:
        return warning("It is unknown whether the server has room", "this user may not ask", "give the user +info")
    used = f"{size(found.used_bytes)} used"
    if not found.max_bytes:
        return ok("The server has no limit of memory", f"{used}; maxmemory is 0, so the host's memory is the limit")
    evidence = f"{used} of {size(found.max_bytes)}, {found.jobs_ended:,} of {found.jobs:,} jobs have ended"
    if found.used_bytes > FULL * found.max_bytes:
        return warning("The server is nearly full", evidence, "keep ended jobs for a shorter time, or raise maxmemory")
    return ok("The server has room", evidence)


def _load(found: RedisFacts) -> Iterator[Finding]:
    if found.lanes > LANES_MAX:
        evidence = f"queue {found.lanes_queue!r} has {found.lanes:,} combinations of priority, group and task"
        yield warning("A queue has many lanes", evidence, "use fewer priorities; groups are for limits and turns")
    if found.events > EVENTS_MAX:
        yield long_journal(found.events)
    if found.unlocked:
        evidence = f"{counted(found.unlocked, 'worker')} without a lock on this run of the server"
        fix = "if that lasts: let the server be reached without a proxy, and give the user +@pubsub and +info"
        yield warning("The death of some workers is found by their leases only", evidence, fix)
