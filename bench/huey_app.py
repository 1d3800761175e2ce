"""What huey's consumer runs: SqliteHuey with WAL and synchronous FULL, which are its defaults, said aloud."""

from __future__ import annotations

import os
import time

from huey import SqliteHuey

huey = SqliteHuey(filename=os.environ["BENCH_FILE"], journal_mode="wal", fsync=os.environ.get("BENCH_FSYNC") != "0")


@huey.task()
def noop() -> None:
    pass


@huey.task()
def started() -> float:
    return time.monotonic()
