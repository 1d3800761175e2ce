"""SAQ on PostgreSQL, all settings its defaults: ten jobs at once, LISTEN/NOTIFY. Finished jobs stay for ten minutes."""

from __future__ import annotations

import asyncio
from typing import Any

from pgpeer import URL, PostgresPeer, started
from saq import Queue, Worker


async def noop(ctx: Any) -> None:
    pass


async def stamp(ctx: Any, *, sent: float) -> None:
    started(sent)


class Saq(PostgresPeer):
    done = "SELECT count(*) FROM saq_jobs WHERE status = 'complete'"

    async def open(self) -> None:
        self._queue = Queue.from_url(URL)
        await self._queue.connect()

    async def put(self, sent: float | None = None) -> None:
        await (self._queue.enqueue("noop") if sent is None else self._queue.enqueue("stamp", sent=sent))

    async def put_many(self, jobs: int) -> None:
        async def some(number: int) -> None:
            for _ in range(number):
                await self._queue.enqueue("noop")

        await asyncio.gather(*[some(jobs // 10 + (each < jobs % 10)) for each in range(10)])

    async def serve(self) -> None:
        worker = Worker(self._queue, functions=[noop, stamp])
        worker.SIGNALS = []
        await worker.start()


if __name__ == "__main__":
    Saq().main()
