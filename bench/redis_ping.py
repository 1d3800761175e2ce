"""How long another client of the same Redis or Valkey waits while Holdfast works: the latency of its PING.

Usage: python bench/redis_ping.py redis://HOST:PORT [JOBS]

The server must be empty: it is flushed. The other client is a process of its own, which sends a PING each millisecond.
The goal is 3 ms for 99 of 100, on a quiet machine with a core each for the server, Holdfast and the other client.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import redis

from holdfast import App
from holdfast.core.limits import Setting
from holdfast.core.machine import State
from holdfast.core.records import Job, Worker
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Lost, Outcome, Succeeded, judge
from holdfast.ids import new_id

Latency = tuple[float, float]  # when a PING was sent, and how long its answer took


def ping(url: str, line: Connection) -> None:
    """Send a PING each millisecond until the other end of the line says something; then say how long each took."""
    client = redis.Redis.from_url(url)
    seen: list[Latency] = []
    while not line.poll():
        sent_at = time.monotonic()
        client.ping()
        seen.append((sent_at, time.monotonic() - sent_at))
        time.sleep(0.001)
    line.recv()
    line.send(seen)


def main(url: str, jobs: int = 20_000) -> None:
    redis.Redis.from_url(url).flushall()
    ours, others = multiprocessing.get_context("spawn").Pipe()
    other = multiprocessing.get_context("spawn").Process(target=ping, args=(url, others), daemon=True)
    phases: list[tuple[str, float, float]] = []

    def phase(name: str, act: Callable[[], object]) -> None:
        began = time.monotonic()
        act()
        phases.append((name, began, time.monotonic()))

    with App(url) as app:
        task = app.task(name="t")(lambda text: None)
        store = app.store
        worker = Worker(id=new_id(), name="w", host="h", pid=0, boot_id="b", slots=50)
        store.enroll(worker)

        def add() -> None:
            app.enqueue_many([task.job("x" * 80) for _ in range(jobs)])

        def claim(most: int) -> list[Job]:
            return store.claim(worker.id, new_id(), ["default"], ["t"], most)

        def settle(taken: list[Job], outcome: Outcome) -> None:
            now = store.now().wall
            store.settle([settlement(job, judge(outcome, job, now, chance=0.5)) for job in taken])

        def drain() -> None:
            while taken := claim(500):
                settle(taken, Succeeded("7"))

        def limit() -> None:
            for number in range(200):
                store.limit("default", Setting(limit=1 + number % 50, group_limit=1))
            store.limit("default", Setting())

        other.start()
        time.sleep(1.0)
        phase("idle", lambda: time.sleep(2.0))
        phase("bulk enqueue", add)
        phase("drain", drain)
        phase("purge", lambda: store.purge([State.DONE], 1e12, jobs))
        add()
        running = [job for _ in range(0, jobs, 500) for job in claim(500)]
        phase("reap", lambda: settle(running, Lost("expired", "its lease ran out")))
        phase("limit change", limit)
        store.retire(worker.id, "measured")
    ours.send("the end")
    seen: list[Latency] = ours.recv()
    other.join()
    for name, began, ended in phases:
        took = sorted(each for at, each in seen if began <= at < ended)
        points = {share: took[int(len(took) * share)] * 1000 for share in (0.5, 0.9, 0.99)} if took else {}
        shown = ", ".join(f"p{share * 100:.0f} {each:.2f}" for share, each in points.items())
        print(f"{name}: {len(took)} PINGs in {ended - began:.1f} s, ms: {shown}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
