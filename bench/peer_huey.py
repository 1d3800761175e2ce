"""huey on SQLite: its consumer with 4 threads; WAL and synchronous FULL, which are its defaults.

A task leaves huey's queue when it is taken: there is no acknowledgement, so what counts here is the taking. That
favours huey by the jobs in its four hands.
"""

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

from huey_app import noop, started
from peer import Verbs, main
from watch import counter, percentile, stop, watch


class Huey(Verbs):
    def fill(self, path: Path, jobs: int) -> None:
        for _ in range(jobs):
            noop()

    enqueue = fill

    def drain(self, path: Path, jobs: int, cap_s: float) -> dict[str, float]:
        left = counter(path, "SELECT count(*) FROM task")
        with self.consumer(path):
            return watch(lambda: jobs - left(), jobs, cap_s=cap_s, every_s=0.02)._asdict()

    def pickup(self, path: Path, jobs: int) -> dict[str, float]:
        waits = []
        with self.consumer(path):
            started().get(blocking=True, timeout=20)
            for _ in range(jobs):
                time.sleep(random.uniform(0.03, 0.07))
                sent = time.monotonic()
                answer = started()
                waits.append((sent, answer))
            times = [1000 * (answer.get(blocking=True, timeout=20) - sent) for sent, answer in waits]
        return {"p50": percentile(times, 0.5), "p99": percentile(times, 0.99)}

    @contextmanager
    def consumer(self, path: Path) -> Iterator[None]:
        command = [Path(sys.executable).with_name("huey_consumer"), "huey_app.huey", "-w", "4", "-k", "thread", "-q"]
        env = {**os.environ, "BENCH_FILE": str(path), "BENCH_FSYNC": "1", "PYTHONPATH": str(Path(__file__).parent)}
        said = path.with_suffix(".log")
        with said.open("wb") as log:
            process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
            try:
                yield
            finally:
                stop(process, signal.SIGTERM)
        if "Traceback" in said.read_text():
            raise RuntimeError(f"the consumer stumbled:\n{said.read_text()[-2000:]}")


if __name__ == "__main__":
    main(Huey())
