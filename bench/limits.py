"""What limits, groups and turns cost, next to plain queues of the same run: limits.py URL [JOBS] [--scene NAME].

    drain       grouped jobs, without and with limits, in turns with plain jobs: each slice sees the same machine
    beside      a plain queue, claimed alone and together with a queue that is at its limit
    full-group  one job of an open group behind JOBS jobs of a full or paused group, or many of a later one

All in one process, without handlers; `drain` and `beside` claim and settle in batches. URL: an empty store.
`drain` exits with 1 unless 1,000 groups without limits reach a third of the plain rate, and a group limit of 2 with 100
slots a tenth of it, with no place above a limit and starts of groups that differ by at most one.
"""

import argparse
import statistics
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

GROUPS, BATCH, SLOTS, SLICES = 1000, 500, 100, 20
GROUP_LIMIT = 2
LEAST = (1.0, 1 / 3, 1 / 10)  # of the plain rate
RUN = new_id()[-8:]


def fill(store: Store, queue: str, jobs: int, *, group: str | None = None, run_at: float | None = None) -> None:
    """Store jobs; `group` may have a place for a number, which goes round."""
    for start in range(0, jobs, 5000):
        new = []
        for number in range(start, min(start + 5000, jobs)):
            name = None if group is None else group.format(number % GROUPS)
            new.append(NewJob(id=new_id(), task="t", payload="{}", queue=queue, group=name, run_at=run_at))
        store.add(new)


class Drain:
    """One queue that is emptied slice by slice, with the time that it took and the starts of each group."""

    def __init__(self, store: Store, what: str, jobs: int, batch: int, held: Setting | None, *, grouped: bool) -> None:
        self.what, self.batch, self.store, self.held = what, batch, store, held
        self.above = 0  # how often a limit was exceeded
        self.queue = f"{what.replace(' ', '-')}-{RUN}"
        self.each, self.done, self.seconds, self.worst = jobs // GROUPS, 0, 0.0, 0
        self.starts: Counter[str | None] = Counter()
        self.grouped = grouped
        fill(store, self.queue, jobs, group="g{}" if grouped else None)
        if held is not None:
            store.limit(self.queue, held)
        self.worker = enrolled(store, batch)

    def advance(self, upto: int, beside: tuple[str, ...] = ()) -> None:
        """Run jobs until so many have ended."""
        began = time.monotonic()
        while self.done < upto:
            claimed = self.store.claim(self.worker, new_id(), [self.queue, *beside], ["t"], self.batch)
            self.compare(claimed)
            now = self.store.now().wall
            self.store.settle([settlement(job, judge(Succeeded(), job, now, chance=0.5)) for job in claimed])
            self.done += len(claimed)
            self.note(claimed)
        self.seconds += time.monotonic() - began

    def compare(self, claimed: list) -> None:  # type: ignore[type-arg]
        """Compare what runs with the limits."""
        if self.held is not None:
            most = max(Counter(job.group for job in claimed).values(), default=0)
            self.above += most > GROUP_LIMIT or len(claimed) > SLOTS

    def note(self, claimed: list) -> None:  # type: ignore[type-arg]
        """Note the largest difference between the starts of two groups that had jobs left."""
        if self.grouped:
            self.starts.update(job.group for job in claimed)
            open_groups = [starts for n in range(GROUPS) if (starts := self.starts[f"g{n}"]) < self.each]
            most = max(self.starts.values())
            self.worst = max(self.worst, most - min(open_groups, default=most))


def enrolled(store: Store, slots: int) -> str:
    worker = Worker(id=new_id(), name="bench", host="h", pid=0, boot_id=SystemClock().boot_id, slots=slots)
    store.enroll(worker)
    return worker.id


def drain(store: Store, jobs: int) -> None:
    ways = [
        Drain(store, "plain", jobs, BATCH, None, grouped=False),
        Drain(store, "1,000 groups", jobs, BATCH, None, grouped=True),
        Drain(
            store,
            "limit 100 and group limit 2",
            jobs,
            SLOTS,
            setting(limit=SLOTS, group_limit=GROUP_LIMIT),
            grouped=True,
        ),
    ]
    for number in range(1, SLICES + 1):
        for way in ways:
            way.advance(jobs * number // SLICES)
    for way in ways:
        ratio = f"{ways[0].seconds / way.seconds:.2f} of plain"
        turns = f"; starts differ by at most {way.worst}" if way.grouped else ""
        print(f"{way.what}: {jobs / way.seconds:.0f} jobs/s, {ratio}{turns}", flush=True)
    ratios = [ways[0].seconds / way.seconds for way in ways]
    slow = [way.what for way, ratio, least in zip(ways, ratios, LEAST, strict=True) if ratio < least]
    unfair = [way.what for way in ways[2:] if way.worst > 1 or way.above]
    if slow or unfair:
        sys.exit(f"not shown: too slow {slow}, above a limit or starts differ by more than one {unfair}")


def beside(store: Store, jobs: int) -> None:
    """The limited queue is full all the time: its holder settles nothing."""
    full = f"full-{RUN}"
    store.limit(full, setting(limit=1))
    fill(store, full, jobs)
    store.claim(enrolled(store, 1), new_id(), [full], ["t"], 1)
    alone = Drain(store, "plain alone", jobs, BATCH, None, grouped=False)
    both = Drain(store, "plain beside a full queue", jobs, BATCH, None, grouped=False)
    for number in range(1, SLICES + 1):
        alone.advance(jobs * number // SLICES)
        both.advance(jobs * number // SLICES, (full,))
    for way in (alone, both):
        print(f"{way.what}: {jobs / way.seconds:.0f} jobs/s, {alone.seconds / way.seconds:.2f} of alone", flush=True)


def full_group(store: Store, jobs: int) -> None:
    worker = enrolled(store, 10)
    for many in (1000, jobs):
        queue, later = f"full-{many}-{RUN}", f"later-{many}-{RUN}"
        store.limit(queue, setting(group_limit=1))
        fill(store, queue, many, group="a")
        [holder] = store.claim(worker, new_id(), [queue], ["t"], 1)
        probe(store, worker, queue, f"{many} jobs of a full group")
        store.pause(queue, True, group="a")
        store.settle([settlement(holder, judge(Succeeded(), holder, store.now().wall, chance=0.5))])
        probe(store, worker, queue, f"{many} jobs of a paused group")
        store.limit(later, setting(group_limit=1))
        fill(store, later, many // 10, group="a", run_at=store.now().wall + 86_400)
        probe(store, worker, later, f"{many // 10} jobs of a group whose time has not come")


def probe(store: Store, worker: str, queue: str, behind: str) -> None:
    """Print how long it takes to claim the one job of another group."""
    took = []
    for _ in range(40):
        store.add([NewJob(id=new_id(), task="t", payload="{}", queue=queue, group="b")])
        began = time.monotonic()
        claimed = store.claim(worker, new_id(), [queue], ["t"], 10)
        took.append(time.monotonic() - began)
        assert [job.group for job in claimed] == ["b"]
        now = store.now().wall
        store.settle([settlement(job, judge(Succeeded(), job, now, chance=0.5)) for job in claimed])
    print(f"behind {behind}: {statistics.median(took) * 1000:.1f} ms, {max(took) * 1000:.1f} at most", flush=True)


SCENES = {"drain": drain, "beside": beside, "full-group": full_group}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("jobs", nargs="?", type=int, default=100_000)
    parser.add_argument("--scene", choices=SCENES, default="drain")
    asked = parser.parse_args()
    store = open_store(asked.url)
    store.migrate()
    SCENES[asked.scene](store, asked.jobs)
    store.close()


if __name__ == "__main__":
    main()
