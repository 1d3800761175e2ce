"""What every drain shares, ours and the peers': watch the store, and take the rate between two looks at it.

Only the standard library: the peers run this with their own Python.
"""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple


class Drain(NamedTuple):
    """Acknowledged jobs per second between the first and the last look that counted, and how many these were."""

    rate: float
    jobs: int


def watch(
    done: Callable[[], int], wanted: int, *, cap_s: float = 120.0, start_s: float = 60.0, every_s: float = 0.01
) -> Drain:
    """Look every `every_s` until the store says that `wanted` jobs are done, or `cap_s` after the first one was.

    The start of the worker does not count: time runs from the first look that finds a job done, and that look's jobs
    are left out.
    """
    give_up_at = time.perf_counter() + start_s
    while not (begun := done()):
        if time.perf_counter() > give_up_at:
            raise TimeoutError(f"no job was done within {start_s:g} s")
        time.sleep(every_s / 2)
    seen, first = begun, time.perf_counter()
    last = first
    while seen < wanted and last - first < cap_s:
        time.sleep(every_s)
        seen = done()
        last = time.perf_counter()
    if seen == begun:
        raise TimeoutError(f"{begun} of {wanted} jobs were done at the first look, and no more after it")
    return Drain((seen - begun) / (last - first), seen - begun)


def counter(path: Path, query: str) -> Callable[[], int]:
    """Return a function that asks the file for one number, on a connection of its own; 0 while there is no table."""

    def ask() -> int:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)) as db:
            try:
                row = db.execute(query).fetchone()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error) or "locked" in str(error):
                    return 0
                raise
        return int(row[0] or 0) if row else 0

    return ask


def stop(process: subprocess.Popen[bytes], signal_number: int) -> None:
    """Ask a process to end, and see to it."""
    if process.poll() is None:
        process.send_signal(signal_number)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` of them lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
