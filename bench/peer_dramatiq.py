"""Dramatiq: one process with 8 threads, its default. A message stays stored until its actor has ended."""

from __future__ import annotations

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from redispeer import URL, RedisPeer, command, started

dramatiq.set_broker(RedisBroker(url=URL))


@dramatiq.actor
def noop() -> None:
    pass


@dramatiq.actor
def stamp(sent: float) -> None:
    started(sent)


class Dramatiq(RedisPeer):
    def put(self, sent: float | None = None) -> None:
        if sent is None:
            noop.send()
        else:
            stamp.send(sent)

    def left(self, db: redis.Redis) -> int:
        return int(db.hlen("dramatiq:default.msgs"))  # type: ignore[arg-type]

    def serve(self) -> None:
        command("dramatiq", "peer_dramatiq", "--processes", "1", "--threads", "8")()


if __name__ == "__main__":
    Dramatiq().main()
