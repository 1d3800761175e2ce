"""One claimer of tests/crash/test_limits.py: claims, counts what runs by now, keeps its places a moment, settles.

Usage: python -m tests.crash.limits_claimer URL NAME BATCH REPORT [KEPT_S]
"""

import socket
import sys
import time
from pathlib import Path

from holdfast.clock import SystemClock
from holdfast.core.records import Worker
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Succeeded, judge
from holdfast.errors import HoldfastError
from holdfast.ids import new_id
from holdfast.stores import open_store

KEPT_S = 0.005  # of two claims that together exceed a limit, the one that commits later must see it


def main(url: str, name: str, batch: int, report: Path, kept_s: float = KEPT_S) -> None:
    store = open_store(url)
    clock = SystemClock()
    worker = Worker(id=new_id(), name=name, host=socket.gethostname(), pid=0, boot_id=clock.boot_id, slots=batch)
    store.enroll(worker)
    with report.open("a", buffering=1) as lines:
        print("ready", flush=True)
        while True:
            claim_id = new_id()
            try:
                jobs = store.claim(worker.id, claim_id, ["q"], ["t"], batch)
                if jobs and len(jobs) % 2:  # as if the answer had been lost
                    repeated = store.claim(worker.id, claim_id, ["q"], ["t"], batch)
                    if sorted(job.id for job in repeated) != sorted(job.id for job in jobs):
                        lines.write("error a repeated claim gave other jobs\n")
            except HoldfastError as error:
                lines.write(f"error {error}\n")
                continue
            if not jobs:
                time.sleep(0.005)
                continue
            for job in jobs:
                lines.write(f"holds {job.id} {job.fence}\n")
            groups = {job.group for job in jobs}
            for group in groups:
                places = store.places("q", group)
                lines.write(f"saw {places.queue} {places.group} {len(jobs)}\n")
            time.sleep(kept_s)
            now = store.now().wall
            replies = store.settle([settlement(job, judge(Succeeded(), job, now, chance=0.5)) for job in jobs])
            for job, reply in zip(jobs, replies, strict=True):
                lines.write(f"settled {job.id} {job.fence} {reply.value}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), *map(float, sys.argv[5:]))
