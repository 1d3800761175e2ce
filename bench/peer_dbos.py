"""DBOS on SQLite, or on PostgreSQL where $BENCH_URL is set; all settings its defaults (polls its queue once a second).

A workflow of no steps; done when its outcome is stored.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dbos import DBOS, DBOSClient
from peer import Verbs, main
from watch import counter, percentile, stop, watch


@DBOS.workflow()
def noop() -> None:
    pass


@DBOS.workflow()
def started() -> float:
    return time.monotonic()


def address(path: Path) -> str:
    return os.environ.get("BENCH_URL") or f"sqlite:///{path}"


def count(path: Path) -> Callable[[], int]:
    if "BENCH_URL" in os.environ:
        from pgpeer import counter as ask

        return ask("SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'")
    return counter(path, "SELECT count(*) FROM workflow_status WHERE status = 'SUCCESS'")


def launch(path: Path) -> None:
    DBOS(config={"name": "bench", "system_database_url": address(path), "log_level": "ERROR"})
    DBOS.launch()
    DBOS.register_queue("bench")


class Dbos(Verbs):
    def fill(self, path: Path, jobs: int) -> None:
        client = self.client(path)
        for _ in range(jobs):
            client.enqueue({"queue_name": "bench", "workflow_name": "noop"})

    enqueue = fill

    def drain(self, path: Path, jobs: int, cap_s: float) -> dict[str, float]:
        with self.executor(path):
            return watch(count(path), jobs, cap_s=cap_s, every_s=0.1)._asdict()

    def pickup(self, path: Path, jobs: int) -> dict[str, float]:
        client = self.client(path)
        with self.executor(path):
            client.enqueue({"queue_name": "bench", "workflow_name": "started"}).get_result()
            sent = []
            for _ in range(jobs):
                time.sleep(random.uniform(0.03, 0.07))
                sent.append((time.monotonic(), client.enqueue({"queue_name": "bench", "workflow_name": "started"})))
            times = [1000 * (handle.get_result(polling_interval_sec=0.05) - at) for at, handle in sent]
        return {"p50": percentile(times, 0.5), "p99": percentile(times, 0.99)}

    def client(self, path: Path) -> DBOSClient:
        made = path.with_suffix(".made")
        if not made.exists():  # the tables are made by an executor
            with self.executor(path):
                while not made.exists():
                    time.sleep(0.1)
        return DBOSClient(system_database_url=address(path))

    @contextmanager
    def executor(self, path: Path) -> Iterator[None]:
        with path.with_suffix(".log").open("wb") as log:
            command = [sys.executable, __file__, "serve", str(path), "0", "0"]
            process = subprocess.Popen(command, env=dict(os.environ), stdout=log, stderr=log)
            try:
                yield
            finally:
                stop(process, signal.SIGTERM)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        launch(Path(sys.argv[2]))
        Path(sys.argv[2]).with_suffix(".made").touch()
        signal.sigwait({signal.SIGTERM})
        DBOS.destroy()
    else:
        main(Dbos())
