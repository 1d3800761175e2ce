"""persist-queue's SQLiteAckQueue: a library without a worker, so the loop is ours: get, run, ack. Its own settings."""

from __future__ import annotations

import os
import time
from pathlib import Path

from peer import Verbs, main
from persistqueue import Empty, SQLiteAckQueue


class PersistQueue(Verbs):
    def __init__(self) -> None:
        self._queue: SQLiteAckQueue | None = None

    def open(self, path: Path) -> SQLiteAckQueue:
        if self._queue is None:
            self._queue = SQLiteAckQueue(str(path), multithreading=True)
            if os.environ.get("BENCH_FSYNC") == "0":
                self._queue._putter.execute("PRAGMA synchronous=OFF")
        return self._queue

    def fill(self, path: Path, jobs: int) -> None:
        queue = self.open(path)
        for _ in range(jobs):
            queue.put(())

    enqueue = fill

    def drain(self, path: Path, jobs: int, cap_s: float) -> dict[str, float]:
        queue = self.open(path)
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < cap_s:
            try:
                item = queue.get(block=False, raw=True)
            except Empty:
                break
            queue.ack(id=item["pqid"])
            done += 1
        return {"rate": done / (time.perf_counter() - began), "jobs": done}


if __name__ == "__main__":
    main(PersistQueue())
