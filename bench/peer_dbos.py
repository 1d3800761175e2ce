"""DBOS on SQLite, all settings its defaults (polls its queue once a second). A workflow of no steps; done when its
outcome is stored."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
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


def launch(path: Path) -> None:
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{path}", "log_level": "ERROR"})
    DBOS.launch()
    DBOS.register_queue("bench")


class Dbos(Verbs):
    def fill(self, path: Path, jobs: int) -> None:
        client = self.client(path)
        for _ in range(jobs):
            client.enqueue({"queue_name": "bench", "workflow_name": "noop"})

    enqueue = fill

    def drain(self, path: Path, jobs: int, cap_s: float) -> dict[str, float]:
        done = counter(path, "SELECT count(*) FROM workflow_status WHERE status = 'SUCCESS'")
        with self.executor(path):
            return watch(done, jobs, cap_s=cap_s, every_s=0.1)._asdict()

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
        if not path.exists():  # the tables are made by an executor
            with self.executor(path):
                time.sleep(2)
        return DBOSClient(system_database_url=f"sqlite:///{path}")

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
        signal.sigwait({signal.SIGTERM})
        DBOS.destroy()
    else:
        main(Dbos())
