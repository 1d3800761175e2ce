"""What huey's consumer runs on Redis."""

from __future__ import annotations

import os

from huey import RedisHuey
from peerproc import started

huey = RedisHuey("bench", url=os.environ["BENCH_URL"], results=False)


@huey.task()
def noop() -> None:
    pass


@huey.task()
def stamp(sent: float) -> None:
    started(sent)
