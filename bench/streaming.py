"""One stream of jobs from a generator, for `figures.stream`:   python streaming.py URL JOBS   prints JSON."""

from __future__ import annotations

import json
import resource
import sys
import time

from tasks import make_app
from watch import percentile

from holdfast.stores.sqlite.store import SqliteStore


def main(url: str, jobs: int) -> None:
    held: list[float] = []
    real = SqliteStore._note_lock

    def note(store: SqliteStore, many: int, held_s: float) -> None:
        held.append(1000 * held_s)
        real(store, many, held_s)

    SqliteStore._note_lock = note  # type: ignore[method-assign]
    with make_app(url) as app:
        noop = app.named("async_noop")
        noop.enqueue()
        began = time.perf_counter()
        for _ in app.enqueue_stream(noop.job() for _ in range(jobs)):
            pass
        rate = jobs / (time.perf_counter() - began)
    found = {"stream.rate": rate, "stream.mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    if held:
        found |= {"stream.lock.p50": percentile(held, 0.5), "stream.lock.p99": percentile(held, 0.99)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
