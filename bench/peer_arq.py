"""arq: ten jobs at once and a look each half second, its defaults."""

from __future__ import annotations

from typing import Any

import redis
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker
from redispeer import URL, AsyncRedisPeer, started


async def noop(ctx: Any) -> None:
    pass


async def stamp(ctx: Any, sent: float) -> None:
    started(sent)


class Arq(AsyncRedisPeer):
    async def open(self) -> None:
        self._pool = await create_pool(RedisSettings.from_dsn(URL))

    async def aput(self, sent: float | None = None) -> None:
        await (self._pool.enqueue_job("noop") if sent is None else self._pool.enqueue_job("stamp", sent))

    def left(self, db: redis.Redis) -> int:
        return int(db.zcard("arq:queue"))  # type: ignore[arg-type]

    async def aserve(self) -> None:
        settings = RedisSettings.from_dsn(URL)
        await Worker([noop, stamp], redis_settings=settings, handle_signals=False).async_run()


if __name__ == "__main__":
    Arq().main()
