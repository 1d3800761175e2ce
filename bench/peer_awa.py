"""awa on PostgreSQL: its queue storage; its defaults, but for the slots: as many as did best here.

A batch of finished jobs is one row; older ones are folded into a count.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from typing import Any

from awa import AsyncClient
from pgpeer import URL, PostgresPeer, started

SLOTS = int(os.environ.get("BENCH_SLOTS") or 1024)


@dataclass
class Noop:
    pass


@dataclass
class Stamp:
    sent: float


class Awa(PostgresPeer):
    done = (
        "SELECT coalesce((SELECT sum(completed_count) FROM awa.receipt_completion_batches), 0)"
        " + coalesce((SELECT sum(pruned_completed_count) FROM awa.queue_terminal_rollups), 0)"
    )

    async def open(self) -> None:
        self._client = AsyncClient(URL)
        await self._client.migrate()
        if json.loads(await self._client.storage_status())["active_engine"] != "queue_storage":
            await self._client.install_queue_storage()

    async def put(self, sent: float | None = None) -> None:
        await self._client.insert(Noop() if sent is None else Stamp(sent), queue="bench")

    async def put_many(self, jobs: int) -> None:
        for start in range(0, jobs, 1000):
            await self._client.enqueue_many_copy([Noop() for _ in range(min(1000, jobs - start))], queue="bench")

    async def serve(self) -> None:
        @self._client.task(Noop, queue="bench")
        async def noop(job: Any) -> None:
            pass

        @self._client.task(Stamp, queue="bench")
        async def stamp(job: Any) -> None:
            started(job.args.sent)

        await self._client.start([("bench", SLOTS)])
        try:
            await asyncio.Event().wait()
        finally:
            await self._client.shutdown()


if __name__ == "__main__":
    Awa().main()
