"""PgQueuer on PostgreSQL: asyncpg, uvloop as its own command does, $BENCH_BATCH jobs a time (its default is 10).

It deletes a finished job and writes it to its log: what counts is the log.
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

import asyncpg
import uvloop
from pgpeer import URL, PostgresPeer, started
from pgqueuer import AsyncpgDriver, Job, PgQueuer, Queries


class Pgqueuer(PostgresPeer):
    done = "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)

    async def open(self) -> None:
        self._driver = AsyncpgDriver(await asyncpg.connect(URL))
        self._queries = Queries(self._driver)
        if not await self._queries.schema_is_installed():
            await self._queries.install()

    async def put(self, sent: float | None = None) -> None:
        if sent is None:
            await self._queries.enqueue("noop", None)
        else:
            await self._queries.enqueue("stamp", str(sent).encode())

    async def put_many(self, jobs: int) -> None:
        for start in range(0, jobs, 1000):
            number = min(1000, jobs - start)
            await self._queries.enqueue(["noop"] * number, [None] * number, [0] * number)

    async def serve(self) -> None:
        app = PgQueuer(self._driver)

        @app.entrypoint("noop")
        async def noop(job: Job) -> None:
            pass

        @app.entrypoint("stamp")
        async def stamp(job: Job) -> None:
            started(float(job.payload or b""))

        await app.run(dequeue_timeout=timedelta(seconds=30), batch_size=int(os.environ.get("BENCH_BATCH") or 10))


if __name__ == "__main__":
    Pgqueuer().main()
