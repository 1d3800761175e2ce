"""What the peers on PostgreSQL share: a loop of their own, a worker in a process of its own, a count of what is done.

The database is $BENCH_URL; it is fresh, and its commits are synced but for the fill. A handler tells when it started
by a line in a file: not every peer hands results back.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import peer
import psycopg
from peerproc import started, waits, worker
from watch import percentile, watch

__all__ = ["URL", "PostgresPeer", "started"]

URL = os.environ["BENCH_URL"]


class PostgresPeer(peer.Verbs):
    """A peer with an async client: it says how to connect, to queue, to serve, and how to count what is done."""

    done: str  # a query
    every_s = 0.05  # between two looks, which cost its own server something

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._open = False

    async def open(self) -> None:
        """Connect, and make the tables that are not there yet."""
        raise NotImplementedError

    async def put(self, sent: float | None = None) -> None:
        """Queue one job: a no-op, or the one that calls `started` when `sent` is given."""
        raise NotImplementedError

    async def put_many(self, jobs: int) -> None:
        """Queue so many no-ops, the fastest way there is."""
        raise NotImplementedError

    async def serve(self) -> None:
        """Work until cancelled."""
        raise NotImplementedError

    def fill(self, path: Path, jobs: int) -> None:
        self._run(self.put_many(jobs))

    def enqueue(self, path: Path, jobs: int) -> None:
        async def singly() -> None:
            for _ in range(jobs):
                await self.put()

        self._run(singly())

    def drain(self, path: Path, jobs: int, cap_s: float) -> dict[str, float]:
        with worker(path, int(os.environ["BENCH_PROCESSES"])):
            return watch(counter(self.done), jobs, cap_s=cap_s, every_s=self.every_s)._asdict()

    def pickup(self, path: Path, jobs: int) -> dict[str, float]:
        async def send(number: int) -> None:
            for _ in range(number):
                await asyncio.sleep(random.uniform(0.03, 0.07))
                await self.put(time.monotonic())

        self._run(asyncio.sleep(0))
        with worker(path):
            self._run(send(1))
            waits(path, 1)  # the worker is there
            self._run(send(jobs))
            times = waits(path, jobs + 1)[1:]
        return {"p50": percentile(times, 0.5), "p99": percentile(times, 0.99)}

    def main(self) -> None:
        """Do what the bench asked for; `serve` is asked for by ourselves."""
        with self._runner:
            if sys.argv[1] == "serve":
                self._runner.run(self._serve())
            else:
                peer.main(self)

    async def _serve(self) -> None:
        await self.open()
        working = asyncio.ensure_future(self.serve())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
        await asyncio.wait([working])
        if not working.cancelled():
            working.result()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        if not self._open:
            self._open = True
            self._runner.run(self.open())
        self._runner.run(work)


def counter(query: str) -> Callable[[], int]:
    """Return a function that asks the database for one number; 0 while there is no table."""
    db = psycopg.connect(URL, autocommit=True)

    def ask() -> int:
        try:
            row = db.execute(query).fetchone()  # type: ignore[call-overload]
        except psycopg.errors.UndefinedTable:
            return 0
        return int(row[0] or 0) if row else 0

    return ask
