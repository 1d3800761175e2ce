"""One scene of ab.py, in a process of its own: `ab_scene.py SCENE JOBS [SERVER_PID]` prints µs for each job as JSON.

It runs on old commits too, so it uses only what all of them have: the app, its tasks, and `holdfast worker`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import noise
import psycopg
from noise import cpu_seconds
from watch import counter, stop

from holdfast import App

CHUNK = 10_000
WARM = 20  # jobs that pay for connections and caches
app = App(os.environ["HOLDFAST_DB"])


@app.task(name="noop")
async def noop() -> None:
    pass


class Meter:
    """Seconds and processor seconds of this process, of a worker and of the server, from the start of the meter."""

    def __init__(self, worker: int | None = None) -> None:
        self._worker = worker
        self._begun = self._now()

    def _now(self) -> dict[str, float]:
        client = time.process_time() if self._worker is None else cpu_seconds(self._worker)
        now = {"client": client, "wall": time.perf_counter()}
        return now | ({"server": noise.of_servers()} if noise.servers else {})

    def for_each(self, jobs: int) -> dict[str, float]:
        return {name: 1e6 * (value - self._begun[name]) / jobs for name, value in self._now().items()}


def single(jobs: int) -> dict[str, float]:
    for _ in range(WARM):
        noop.enqueue()
    meter = Meter()
    for _ in range(jobs):
        noop.enqueue()
    return meter.for_each(jobs)


def bulk(jobs: int) -> dict[str, float]:
    app.enqueue_many([noop.job() for _ in range(WARM)])
    meter = Meter()
    _fill(jobs)
    return meter.for_each(jobs)


def tick(jobs: int) -> dict[str, float]:
    _fill(WARM)
    app.tick(budget_s=60.0)
    meter = Meter()
    _fill(jobs)
    while app.counts()["done"] < jobs + WARM:
        app.tick(budget_s=60.0)
    return meter.for_each(jobs)


def drain(jobs: int) -> dict[str, float]:
    """`holdfast worker` with default settings, from the first look that finds a job done."""
    _fill(jobs)
    done = _done()
    command = [sys.executable, "-m", "holdfast", "worker", "ab_scene:app"]
    worker = subprocess.Popen(command, stdout=sys.stderr, stderr=sys.stderr)
    try:
        give_up_at = time.perf_counter() + 60
        while not (begun := done()):
            if time.perf_counter() > give_up_at or worker.poll() is not None:
                raise TimeoutError("no job was done within a minute")
            time.sleep(0.005)
        meter = Meter(worker.pid)
        while done() < jobs:
            time.sleep(0.01)
        return meter.for_each(jobs - begun)
    finally:
        stop(worker, signal.SIGTERM)


def _done() -> Callable[[], int]:
    url = app.url
    if url.startswith("sqlite:///"):
        return counter(
            Path(url.removeprefix("sqlite:///")), "SELECT sum(jobs) FROM holdfast_tally WHERE state = 'done'"
        )
    base, _, schema = url.partition("?schema=")
    db = psycopg.connect(base, autocommit=True, options=f"-c search_path={schema}")
    query = "SELECT coalesce(sum(jobs), 0)::bigint FROM tally WHERE state = 'done'"
    return lambda: int(db.execute(query).fetchone()[0])  # type: ignore[index]


def _fill(jobs: int) -> None:
    for start in range(0, jobs, CHUNK):
        app.enqueue_many([noop.job() for _ in range(min(CHUNK, jobs - start))])


SCENES = {"single": single, "bulk": bulk, "drain": drain, "tick": tick}


def main() -> None:
    scene, jobs, *servers = sys.argv[1:]
    noise.servers += map(int, servers)
    app.store.migrate()
    print(json.dumps(SCENES[scene](int(jobs))))
    app.close()


if __name__ == "__main__":
    main()
