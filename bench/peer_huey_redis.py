"""huey on Redis: its consumer with 4 threads. A task leaves the queue when it is taken: there is no acknowledgement."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import redis
from huey_redis_app import noop, stamp
from redispeer import RedisPeer


class Huey(RedisPeer):
    def put(self, sent: float | None = None) -> None:
        if sent is None:
            noop()
        else:
            stamp(sent)

    def left(self, db: redis.Redis) -> int:
        return int(db.llen("huey.redis.bench"))  # type: ignore[arg-type]

    def serve(self) -> None:
        os.environ["PYTHONPATH"] = str(Path(__file__).parent)
        consumer = Path(sys.executable).with_name("huey_consumer")
        os.execv(consumer, [str(consumer), "huey_redis_app.huey", "-w", "4", "-k", "thread", "-q"])


if __name__ == "__main__":
    Huey().main()
