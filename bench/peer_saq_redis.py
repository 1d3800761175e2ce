"""SAQ on Redis: ten jobs at once, its default."""

from __future__ import annotations

from typing import Any

import redis
from redispeer import URL, AsyncRedisPeer, started
from saq import Queue, Worker


async def noop(ctx: Any) -> None:
    pass


async def stamp(ctx: Any, *, sent: float) -> None:
    started(sent)


class Saq(AsyncRedisPeer):
    async def open(self) -> None:
        self._queue = Queue.from_url(URL)
        await self._queue.connect()

    async def aput(self, sent: float | None = None) -> None:
        await (self._queue.enqueue("noop") if sent is None else self._queue.enqueue("stamp", sent=sent))

    def left(self, db: redis.Redis) -> int:
        return int(db.zcard("saq:default:incomplete"))  # type: ignore[arg-type]

    async def aserve(self) -> None:
        worker = Worker(self._queue, functions=[noop, stamp])
        worker.SIGNALS = []
        await worker.start()


if __name__ == "__main__":
    Saq().main()
