"""What a job costs on Redis or Valkey: memory, and CPU time of the client and of the server.

Usage: python bench/redis_costs.py redis://HOST:PORT [JOBS]

The server must be empty: it is flushed. The payload has 90 bytes. CPU times depend on the load less than rates do.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import redis

from holdfast.core.records import NewJob, Worker
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Succeeded, judge
from holdfast.ids import new_id
from holdfast.stores import open_store

PAYLOAD = '{"order":"' + "x" * 78 + '"}'


def main(url: str, jobs: int = 20_000) -> None:
    client = redis.Redis.from_url(url)
    client.flushall()
    store = open_store(url)
    store.migrate()
    worker = Worker(id=new_id(), name="w", host="h", pid=0, boot_id="b", slots=50)
    store.enroll(worker)

    def used() -> int:
        return int(client.info("memory")["used_memory"])

    def server_s() -> float:
        found = client.info("cpu")
        return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])

    def measured(what: str, act: Callable[[], None]) -> None:
        own, server, began, before = time.process_time(), server_s(), time.monotonic(), used()
        act()
        took_s = time.monotonic() - began
        own_us, server_us = (
            (now - then) / jobs * 1e6 for now, then in ((time.process_time(), own), (server_s(), server))
        )
        print(
            f"{what}: {jobs / took_s:,.0f} jobs/s, client {own_us:.1f} us, server {server_us:.1f} us, "
            f"memory {(used() - before) / jobs:+,.0f} bytes for each job"
        )

    def new() -> NewJob:
        return NewJob(id=new_id(), task="t", queue="q", payload=PAYLOAD)

    def add() -> None:
        for _ in range(0, jobs, 50):
            store.add([new() for _ in range(50)])

    def add_one_by_one() -> None:
        for _ in range(jobs):
            store.add([new()])

    def drain() -> None:
        while taken := store.claim(worker.id, new_id(), ["q"], ["t"], 50):
            now = store.now().wall
            store.settle([settlement(job, judge(Succeeded("7"), job, now, chance=0.5)) for job in taken])

    measured("enqueue, 50 in a call", add)
    measured("claim and settle, 50 in a call", drain)
    measured("enqueue, one in a call", add_one_by_one)
    store.retire(worker.id, "measured")
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
