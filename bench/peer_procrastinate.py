"""Procrastinate on PostgreSQL: psycopg's pool, LISTEN/NOTIFY on, jobs kept (its defaults), ten jobs at once."""

from __future__ import annotations

import procrastinate
from pgpeer import URL, PostgresPeer, started

CONCURRENCY = 10
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL, max_size=CONCURRENCY + 2))


@app.task(name="noop")
async def noop() -> None:
    pass


@app.task(name="stamp")
async def stamp(sent: float) -> None:
    started(sent)


class Procrastinate(PostgresPeer):
    done = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'"

    async def open(self) -> None:
        await app.open_async()
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()

    async def put(self, sent: float | None = None) -> None:
        await (noop.defer_async() if sent is None else stamp.defer_async(sent=sent))

    async def put_many(self, jobs: int) -> None:
        for start in range(0, jobs, 1000):
            await noop.batch_defer_async(*[{} for _ in range(min(1000, jobs - start))])

    async def serve(self) -> None:
        await app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)


if __name__ == "__main__":
    Procrastinate().main()
