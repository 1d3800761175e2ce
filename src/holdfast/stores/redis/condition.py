"""Asks a server for the facts of `facts.py`."""

from __future__ import annotations

from holdfast.core.machine import ENDED
from holdfast.stores.redis.connection import Connections
from holdfast.stores.redis.facts import RedisFacts
from holdfast.stores.redis.rows import NUL


def facts_of(db: Connections, sets: list[str]) -> RedisFacts:
    """Ask the server."""
    info = db.info()
    sizes = db.ask(*(("ZCARD", each) for each in sets)) if sets else []
    ended = {state.value for state in ENDED}
    queues = sorted({each.removeprefix("x:").split(NUL)[0] for each in sets})
    lanes = db.ask(*(("ZCARD", f"d:{queue}") for queue in queues)) if queues else []
    kinds, alive, locks = db.ask(("SMEMBERS", "kinds"), ("SMEMBERS", "alive"), ("HGETALL", "locks"))
    lines = db.ask(*(("ZCARD", f"v:{kind.decode()}") for kind in kinds)) if kinds else []
    fields = locks if isinstance(locks, dict) else dict(zip(locks[::2], locks[1::2], strict=True))
    run = info.get("run_id", "").encode()
    lanes_max, lanes_queue = max(zip(lanes, queues, strict=True), default=(0, ""))
    kind = "Valkey" if "valkey_version" in info else "Redis"
    role = info.get("role")
    replicas_min = db.setting("min-replicas-to-write")
    return RedisFacts(
        server=f"{kind} {info.get('valkey_version') or info.get('redis_version') or 'of unknown version'}",
        epoch=db.epoch,
        ack=db.options.ack,
        is_primary=None if role is None else role == "master",
        appendonly=None if "aof_enabled" not in info else info["aof_enabled"] == "1",
        appendfsync=db.setting("appendfsync"),
        save=db.setting("save"),
        aof_failed=info.get("aof_last_write_status", "ok") != "ok",
        snapshot_failed=info.get("rdb_last_bgsave_status", "ok") != "ok",
        policy=info.get("maxmemory_policy"),
        evicted=int(info.get("evicted_keys", 0)),
        used_bytes=int(info["used_memory"]) if "used_memory" in info else None,
        max_bytes=int(info.get("maxmemory", 0)),
        replicas=int(info.get("connected_slaves", 0)),
        replicas_min=None if replicas_min is None else int(replicas_min),
        jobs=sum(sizes),
        jobs_ended=sum(size for name, size in zip(sets, sizes, strict=True) if name.rpartition(NUL)[2] in ended),
        lanes=lanes_max,
        lanes_queue=lanes_queue,
        events=sum(lines),
        unlocked=sum(fields.get(worker) != run for worker in alive),
    )
