"""litequeue: a library without a worker, so the loop is ours: pop, run, done. WAL and NORMAL are its own."""

from __future__ import annotations

import time
from pathlib import Path

from litequeue import LiteQueue
from peer import Verbs, main


class Litequeue(Verbs):
    def __init__(self) -> None:
        self._queue: LiteQueue | None = None

    def open(self, path: Path) -> LiteQueue:
        self._queue = self._queue or LiteQueue(path)
        return self._queue

    def fill(self, path: Path, jobs: int) -> None:
        queue = self.open(path)
        for _ in range(jobs):
            queue.put("{}")

    enqueue = fill

    def drain(self, path: Path, jobs: int, cap_s: float) -> dict[str, float]:
        queue = self.open(path)
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < cap_s and (message := queue.pop()):
            queue.done(message.message_id)
            done += 1
        return {"rate": done / (time.perf_counter() - began), "jobs": done}


if __name__ == "__main__":
    main(Litequeue())
