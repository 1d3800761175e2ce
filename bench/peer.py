"""The protocol between the bench and a peer's script: one verb per process, the answer as JSON on stdout.

python peer_NAME.py VERB FILE JOBS CAP_S      VERB: fill, bulk, enqueue, drain, pickup

The bench starts a fresh process per verb, with $BENCH_FILE set, and $BENCH_FSYNC=0 for the fill, which is not measured.
On PostgreSQL the database is $BENCH_URL, and FILE is a place for notes.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


class Verbs:
    """What a peer can do; it leaves out what it cannot."""

    def fill(self, path: Path, jobs: int) -> None:
        """Queue no-op jobs, as fast as it goes."""
        raise NotImplementedError

    def enqueue(self, path: Path, jobs: int) -> None:
        """Queue no-op jobs one at a time, as an application would."""
        raise NotImplementedError

    def drain(self, path: Path, jobs: int, cap_s: float) -> dict[str, float]:
        """Run what `fill` queued; return acknowledged jobs per second."""
        raise NotImplementedError

    def pickup(self, path: Path, jobs: int) -> dict[str, float]:
        """Return p50 and p99 in milliseconds from the enqueue call to the start of the handler elsewhere."""
        raise NotImplementedError


def main(peer: Verbs) -> None:
    verb, path, jobs, cap_s = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    answer: dict[str, float] = {}
    if verb == "fill":
        peer.fill(path, jobs)
    elif verb == "bulk":
        peer.enqueue(path, 1)
        began = time.perf_counter()
        peer.fill(path, jobs)
        answer = {"rate": jobs / (time.perf_counter() - began)}
    elif verb == "enqueue":
        peer.enqueue(path, 1)
        began = time.perf_counter()
        peer.enqueue(path, jobs)
        answer = {"rate": jobs / (time.perf_counter() - began)}
    elif verb == "drain":
        answer = peer.drain(path, jobs, cap_s)
    elif verb == "pickup":
        answer = peer.pickup(path, jobs)
    print(json.dumps(answer))
