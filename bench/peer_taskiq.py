"""Taskiq: RedisStreamBroker, which has acknowledgements, and one worker process; results left out."""

from __future__ import annotations

import redis
from redispeer import URL, AsyncRedisPeer, command, started
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(url=URL)


@broker.task(task_name="noop")
async def noop() -> None:
    pass


@broker.task(task_name="stamp")
async def stamp(sent: float) -> None:
    started(sent)


class Taskiq(AsyncRedisPeer):
    async def open(self) -> None:
        await broker.startup()

    async def aput(self, sent: float | None = None) -> None:
        await (noop.kiq() if sent is None else stamp.kiq(sent))

    def left(self, db: redis.Redis) -> int:
        [group] = db.xinfo_groups("taskiq")  # type: ignore[misc]
        length = int(db.xlen("taskiq"))  # type: ignore[arg-type]
        return length - int(group["entries-read"] or 0) + int(group["pending"])

    def serve(self) -> None:
        command("taskiq", "worker", "peer_taskiq:broker", "--workers", "1", "--log-level", "ERROR")()


if __name__ == "__main__":
    Taskiq().main()
