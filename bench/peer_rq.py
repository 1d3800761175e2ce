"""RQ: SimpleWorker, which runs jobs in its own process; its usual worker forks for each job and is slower."""

from __future__ import annotations

import redis
import rq_tasks
from redispeer import URL, RedisPeer
from rq import Queue, SimpleWorker


class Rq(RedisPeer):
    def __init__(self) -> None:
        self._db = redis.Redis.from_url(URL)
        self._queue = Queue(connection=self._db)

    def put(self, sent: float | None = None) -> None:
        if sent is None:
            self._queue.enqueue(rq_tasks.noop)
        else:
            self._queue.enqueue(rq_tasks.stamp, sent)

    def put_many(self, jobs: int) -> None:
        for start in range(0, jobs, 500):
            many = min(500, jobs - start)
            self._queue.enqueue_many([Queue.prepare_data(rq_tasks.noop) for _ in range(many)])

    def left(self, db: redis.Redis) -> int:
        queued, running = db.llen("rq:queue:default"), db.zcard("rq:wip:default")
        return int(queued) + int(running)  # type: ignore[arg-type]

    def serve(self) -> None:
        SimpleWorker([self._queue], connection=self._db).work(logging_level="ERROR")


if __name__ == "__main__":
    Rq().main()
