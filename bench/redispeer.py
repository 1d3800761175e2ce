"""What the peers on Redis share: a worker in a process of its own, and a count of what is left.

The server is $BENCH_URL; its database is empty. A job counts as done when the peer has removed it from where it keeps
jobs that are queued or running.
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
import redis
from peerproc import started, waits, worker
from watch import percentile, watch

__all__ = ["URL", "AsyncRedisPeer", "RedisPeer", "command", "started"]

URL = os.environ["BENCH_URL"]


class RedisPeer(peer.Verbs):
    """A peer that says how to queue, how to serve, and how to count what is left."""

    def put(self, sent: float | None = None) -> None:
        """Queue one job: a no-op, or the one that calls `started` when `sent` is given."""
        raise NotImplementedError

    def put_many(self, jobs: int) -> None:
        """Queue so many no-ops, the fastest way there is."""
        for _ in range(jobs):
            self.put()

    def left(self, db: redis.Redis) -> int:
        """Count the jobs that are queued or running."""
        raise NotImplementedError

    def serve(self) -> None:
        """Work until SIGTERM."""
        raise NotImplementedError

    def fill(self, path: Path, jobs: int) -> None:
        self.put_many(jobs)

    def enqueue(self, path: Path, jobs: int) -> None:
        for _ in range(jobs):
            self.put()

    def drain(self, path: Path, jobs: int, cap_s: float) -> dict[str, float]:
        db = redis.Redis.from_url(URL)
        with worker(path, int(os.environ["BENCH_PROCESSES"])):
            return watch(lambda: jobs - self.left(db), jobs, cap_s=cap_s, every_s=0.02)._asdict()

    def pickup(self, path: Path, jobs: int) -> dict[str, float]:
        with worker(path):
            self.put(time.monotonic())
            waits(path, 1)  # the worker is there
            for _ in range(jobs):
                time.sleep(random.uniform(0.03, 0.07))
                self.put(time.monotonic())
            times = waits(path, jobs + 1)[1:]
        return {"p50": percentile(times, 0.5), "p99": percentile(times, 0.99)}

    def main(self) -> None:
        """Do what the bench asked for; `serve` is asked for by ourselves."""
        if sys.argv[1] == "serve":
            self.serve()
        else:
            peer.main(self)


class AsyncRedisPeer(RedisPeer):
    """The same with an async client."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._is_open = False

    async def open(self) -> None:
        """Connect."""

    async def aput(self, sent: float | None = None) -> None:
        """Queue one job; see `put`."""
        raise NotImplementedError

    async def aserve(self) -> None:
        """Work until cancelled."""
        raise NotImplementedError

    def put(self, sent: float | None = None) -> None:
        self._run(self.aput(sent))

    def enqueue(self, path: Path, jobs: int) -> None:
        async def singly() -> None:
            for _ in range(jobs):
                await self.aput()

        self._run(singly())

    def put_many(self, jobs: int) -> None:
        async def some(number: int) -> None:
            for _ in range(number):
                await self.aput()

        async def together() -> None:
            await asyncio.gather(*[some(jobs // 20 + (each < jobs % 20)) for each in range(20)])

        self._run(together())

    def serve(self) -> None:
        async def work() -> None:
            await self.open()
            working = asyncio.ensure_future(self.aserve())
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
            await asyncio.wait([working])
            if not working.cancelled():
                working.result()

        self._runner.run(work())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        if not self._is_open:
            self._is_open = True
            self._runner.run(self.open())
        self._runner.run(work)


def command(*words: str) -> Callable[[], None]:
    """Return a `serve` that becomes a command of the peer's own."""

    def serve() -> None:
        os.environ["PYTHONPATH"] = str(Path(__file__).parent)
        os.execv(sys.executable, [sys.executable, "-m", *words])

    return serve
