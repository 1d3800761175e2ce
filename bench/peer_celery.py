"""Celery: one process with 20 threads, and acknowledgement after the task; else its defaults, results left out."""

from __future__ import annotations

import redis
from celery import Celery
from redispeer import URL, RedisPeer, command, started

app = Celery("peer_celery", broker=URL)
app.conf.update(task_acks_late=True, task_ignore_result=True, worker_hijack_root_logger=False)


@app.task(name="noop")
def noop() -> None:
    pass


@app.task(name="stamp")
def stamp(sent: float) -> None:
    started(sent)


class CeleryPeer(RedisPeer):
    def put(self, sent: float | None = None) -> None:
        if sent is None:
            noop.delay()
        else:
            stamp.delay(sent)

    def left(self, db: redis.Redis) -> int:
        queued, running = db.llen("celery"), db.hlen("unacked")
        return int(queued) + int(running)  # type: ignore[arg-type]

    def serve(self) -> None:
        words = ("--pool", "threads", "--concurrency", "20", "--loglevel", "ERROR", "--without-gossip")
        command("celery", "-A", "peer_celery", "worker", *words, "--without-mingle")()


if __name__ == "__main__":
    CeleryPeer().main()
