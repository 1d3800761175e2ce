"""Facts about a Redis or Valkey server: settings, room, replicas. `insight` judges them."""

from __future__ import annotations

import msgspec

from holdfast.stores.redis.address import Ack


class RedisFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the server and of our keys in it. None: this user may not ask."""

    server: str  # and its version
    epoch: str
    ack: Ack
    is_primary: bool | None
    appendonly: bool | None
    appendfsync: str | None
    save: str | None
    aof_failed: bool
    snapshot_failed: bool
    policy: str | None
    evicted: int
    used_bytes: int | None
    max_bytes: int  # 0: no limit
    replicas: int
    replicas_min: int | None  # below which the primary takes no writes
    jobs: int
    jobs_ended: int
    lanes: int  # of the queue with the most
    lanes_queue: str
    events: int
    unlocked: int  # living workers without a liveness lock on this run of the server
