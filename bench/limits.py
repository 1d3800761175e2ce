"""Drain grouped jobs with and without limits, next to the plain rate of the same run: limits.py URL [JOBS].

Prints jobs per second for claims and settles of one process, in batches, without handlers.
"""

import sys
import time
from collections import Counter

from holdfast.clock import SystemClock
from holdfast.core.limits import Setting, setting
from holdfast.core.records import NewJob, Worker
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Succeeded, judge
from holdfast.ids import new_id
from holdfast.stores import open_store
from holdfast.stores.protocol import Store

GROUPS, BATCH, SLOTS = 1000, 500, 100


def fill(store: Store, queue: str, jobs: int, *, grouped: bool) -> None:
    for start in range(0, jobs, 5000):
        numbers = range(start, min(start + 5000, jobs))
        name = "g{}".format if grouped else lambda _: None
        store.add(
            [NewJob(id=f"{queue}-{n}", task="t", payload="{}", queue=queue, group=name(n % GROUPS)) for n in numbers]
        )


def drain(store: Store, queue: str, jobs: int, batch: int) -> tuple[float, int]:
    """Return jobs per second, and the largest difference between the starts of two groups that had jobs left."""
    worker = Worker(id=new_id(), name="bench", host="h", pid=0, boot_id=SystemClock().boot_id, slots=batch)
    store.enroll(worker)
    starts: Counter[str | None] = Counter()
    each, worst, done, began = jobs // GROUPS, 0, 0, time.monotonic()
    while done < jobs:
        claimed = store.claim(worker.id, new_id(), [queue], ["t"], batch)
        starts.update(job.group for job in claimed)
        open_groups = [starts[f"g{n}"] for n in range(GROUPS) if starts[f"g{n}"] < each]
        worst = max(worst, max(starts.values()) - min(open_groups, default=max(starts.values())))
        now = store.now().wall
        store.settle([settlement(job, judge(Succeeded(), job, now, chance=0.5)) for job in claimed])
        done += len(claimed)
    rate = jobs / (time.monotonic() - began)
    store.retire(worker.id, "the bench is over")
    return rate, worst


def main(url: str, jobs: int) -> None:
    store = open_store(url)
    store.migrate()
    run = new_id()[:8]
    fill(store, f"plain-{run}", jobs, grouped=False)
    plain, _ = drain(store, f"plain-{run}", jobs, BATCH)
    print(f"plain: {plain:.0f} jobs/s", flush=True)
    cases: list[tuple[str, Setting | None, int]] = [
        ("1,000 groups, no limits", None, BATCH),
        ("limit 100, group limit 2", setting(limit=SLOTS, group_limit=2), SLOTS),
    ]
    for number, (what, held, batch) in enumerate(cases):
        queue = f"turns-{number}-{run}"
        fill(store, queue, jobs, grouped=True)
        if held is not None:
            store.limit(queue, held)
        rate, worst = drain(store, queue, jobs, batch)
        print(f"{what}: {rate:.0f} jobs/s, {rate / plain:.2f} of plain; starts differ by at most {worst}", flush=True)
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100_000)
