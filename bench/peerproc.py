"""What peers with workers of their own share: how these are started, and how a handler tells when it began.

A handler tells by a line in a file: not every peer hands results back.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from watch import stop


def started(sent: float) -> None:
    """Write down how long the job waited, in ms; this clock is one for all processes of the machine."""
    waited = 1000 * (time.monotonic() - sent)
    with Path(os.environ["BENCH_FILE"]).open("a") as lines:
        lines.write(f"{waited}\n")


@contextmanager
def worker(path: Path, processes: int = 1) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run the peer's worker, each process of it by itself."""
    said = path.with_suffix(".log")
    with said.open("wb") as log:
        command = [sys.executable, sys.argv[0], "serve", str(path), "0", "0"]
        begun = [
            subprocess.Popen(command, stdout=log, stderr=log, cwd=Path(__file__).parent, start_new_session=True)
            for _ in range(processes)
        ]
        try:
            yield begun
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the worker said: {said.read_text()[-1500:]}") from None
        finally:
            for process in begun:
                stop(process, signal.SIGTERM)


def waits(path: Path, number: int, within_s: float = 60.0) -> list[float]:
    """Return what so many handlers have told."""
    give_up_at = time.monotonic() + within_s
    while True:
        times = [float(line) for line in path.read_text().splitlines()] if path.exists() else []
        if len(times) >= number:
            return times
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{len(times)} of {number} jobs were started within {within_s:g} s")
        time.sleep(0.02)
