"""A process that writes to a store without pause, and says on its output what was acknowledged: run by test_power_loss.

Lines: `added ID`, `done ID`; each is printed only after the store has answered.
"""

import itertools
import sys

from holdfast.clock import SystemClock, pause
from holdfast.core.policy import Policy
from holdfast.core.records import NewJob, Pulse, Worker
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Succeeded, judge
from holdfast.ids import new_id, new_job_id
from holdfast.stores.sqlite.store import SqliteStore

SLOW_AT_FIRST = 30  # rounds, so that the first copies are taken before the first checkpoint


def write(url: str) -> None:
    clock = SystemClock()
    store = SqliteStore(url)
    store.migrate()
    worker = Worker(id=new_id(), name="w", host="h", pid=1, boot_id=clock.boot_id)
    store.enroll(worker)
    for number in itertools.count():
        policy = Policy(lease_s=30.0)
        jobs = [
            NewJob(id=new_job_id(clock), task="t", payload=f'"{"x" * (number % 7) * 500}"', policy=policy)
            for _ in range(1 + number % 3)
        ]
        say("added", [added.id for added in store.add(jobs)])
        taken = store.claim(worker.id, new_id(), ["default"], ["t"], 1 + number % 2)
        store.beat(worker.id, [Pulse(job.lease, progress=0.5) for job in taken])
        wall = store.now().wall
        ends = taken[: 1 + number % 2]
        store.settle([settlement(job, judge(Succeeded('"fine"'), job, wall, chance=0.5)) for job in ends])
        say("done", [job.id for job in ends])
        if number < SLOW_AT_FIRST:
            pause(0.02)


def say(what: str, ids: list[str]) -> None:
    sys.stdout.write("".join(f"{what} {job_id}\n" for job_id in ids))
    sys.stdout.flush()


if __name__ == "__main__":
    write(sys.argv[1])
