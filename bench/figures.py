"""What is measured about Holdfast. Each function takes one round and returns its figures by key.

What is compared within a figure is measured within the same seconds, because the disks that this runs on are noisy.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median

import acts
import producers
import reaping
from ground import HERE, Ground, fill, worker
from probes import probe_of
from stores import BATCH, CLOCK, Bed
from tasks import make_app
from watch import percentile, watch

from holdfast.core.records import Worker
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Succeeded, judge
from holdfast.ids import new_id, new_job_id

Found = dict[str, float]
CHUNK = 100  # one at a time, raw and ours by turns
DEPTH_LOOKS = 3


def enqueue(ground: Ground) -> Found:
    """One durable row after the other, into one file: a small raw row, a raw job, an enqueue."""
    spent = dict.fromkeys(("raw.insert", "raw.insert_job", "enqueue"), 0.0)
    with ground.fresh() as bed, make_app(bed.url) as app:
        noop = app.named("async_noop")
        ways: dict[str, Callable[[list[str]], object]] = {
            "raw.insert": bed.raw_insert,
            "raw.insert_job": bed.raw_insert_job,
            "enqueue": lambda ids: [noop.enqueue() for _ in ids],
        }
        for way in ways.values():
            way([new_job_id(CLOCK)])  # the first pays for tables and connections
        for _ in range(ground.scale.singles // CHUNK):
            for name, way in random.sample(sorted(ways.items()), len(ways)):
                ids = [new_job_id(CLOCK) for _ in range(CHUNK)]
                began = time.perf_counter()
                way(ids)
                spent[name] += time.perf_counter() - began
    jobs = ground.scale.singles // CHUNK * CHUNK
    return {name: jobs / seconds for name, seconds in spent.items()}


def enqueue_many(ground: Ground) -> Found:
    """From the arguments to the commit, checks and ids included, in one call."""
    return {
        "enqueue_many": _enqueue_many(ground, ground.scale.jobs),
        "enqueue_many.large": _enqueue_many(ground, ground.scale.many),
    }


def _enqueue_many(ground: Ground, jobs: int) -> float:
    with ground.fresh() as bed, make_app(bed.url) as app:
        noop = app.named("async_noop")
        noop.enqueue()
        began = time.perf_counter()
        app.enqueue_many([noop.job() for _ in range(jobs)])
        return jobs / (time.perf_counter() - began)


def stream(ground: Ground) -> Found:
    """A million jobs of a generator, in a process of its own: how fast, with how much memory, and on SQLite how long
    other writers may have to wait for the lock."""
    with ground.fresh() as bed:
        command = [sys.executable, str(HERE / "streaming.py"), bed.url, str(ground.scale.deep)]
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=1200, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-1000:])
        found: Found = json.loads(done.stdout)
        return found


def raw(ground: Ground) -> Found:
    """The same statements without a worker: bare, and through the store's verbs with the judge in between."""
    found = {}
    for name, loop in (("raw.loop", _statements), ("verbs", _verbs)):
        with ground.fresh() as bed, make_app(bed.url) as app:
            fill(app, "async_noop", ground.scale.jobs)
            began = time.perf_counter()
            done = loop(bed)
            found[name] = done / (time.perf_counter() - began)
            assert done == bed.done() == ground.scale.jobs
    return found


def _statements(bed: Bed) -> int:
    return bed.raw_loop("tasks.async_noop")


def _verbs(bed: Bed) -> int:
    with make_app(bed.url) as app:
        store, me, done = app.store, new_id(), 0
        store.enroll(Worker(id=me, name="verbs", host="here", pid=1, boot_id=CLOCK.boot_id))
        while claimed := store.claim(me, new_id(), ["default"], ["tasks.async_noop"], BATCH):
            store.settle([settlement(job, judge(Succeeded("null"), job, 0.0, chance=0.5)) for job in claimed])
            done += len(claimed)
        store.retire(me, "left")
        return done


def drain(ground: Ground) -> Found:
    """`holdfast worker` on a full queue, until the store says that the last job is done."""
    few, many = ground.scale.jobs, ground.scale.many
    return {
        "drain": _drain(ground, "async_noop", few),
        "drain.large": _drain(ground, "async_noop", many),
        "drain.two": _drain(ground, "async_noop", few, "--processes", "2"),
        "drain.two.large": _drain(ground, "async_noop", many, "--processes", "2"),
        "drain.sync": _drain(ground, "sync_noop", few),
    }


def _drain(ground: Ground, task: str, jobs: int, *options: str) -> float:
    with ground.fresh() as bed:
        with make_app(bed.url) as app:
            fill(app, task, jobs)
        with worker(bed, *options):
            return watch(bed.done, jobs).rate


def depth(ground: Ground) -> Found:
    """The cost of a job with ten thousand of them queued, and with a million.

    A short queue is drained from half above that length to half below it, never to its end, where nothing is left to be
    claimed and a job is cheaper. Several looks by turns: each takes half a second, and machines wobble.
    """
    jobs = ground.scale.shallow
    seen: dict[str, list[float]] = {"cost.shallow": [], "cost.deep": []}
    for _ in range(DEPTH_LOOKS):
        for name in random.sample(list(seen), 2):
            if name == "cost.shallow":
                with ground.fresh() as bed:
                    seen[name].append(1e6 / _drain_some(bed, jobs + jobs // 2, jobs))
            else:
                seen[name].append(1e6 / _drain_some(ground.deep(), ground.scale.deep, jobs))
    return {name: median(costs) for name, costs in seen.items()}


def _drain_some(bed: Bed, queued: int, jobs: int) -> float:
    """Make the queue as long as it should be, then drain some of it."""
    with make_app(bed.url) as app:
        there = app.counts()["ready"]
        fill(app, "async_noop", queued - there)
    before = bed.done()
    with worker(bed):
        return watch(lambda: bed.done() - before, jobs).rate


def idle(ground: Ground) -> Found:
    """A worker with nothing to do: what it uses, supervisor included, and how soon it starts what comes in."""
    with ground.fresh() as bed, make_app(bed.url) as app, worker(bed, ready=True) as process:
        time.sleep(1.0)
        probe = probe_of(bed)
        probe.pids.append(process.pid)
        begun = probe.now()
        time.sleep(ground.scale.idle_s)
        used = probe.since(begun)
        found: Found = {"idle.cpu": 100 * used.worker_s / used.seconds}
        if ground.store == "postgres":
            found["idle.connections"] = sum(probe.connections())
            found["idle.transactions"] = used.transactions / used.seconds
            found["idle.server"] = 100 * used.store_s / used.seconds
        stamp = app.named("stamp")
        stamp.enqueue().result(timeout=20)
        waits = reaping.waits(reaping.probe([stamp], _times(ground.scale.probes), 0.03, 0.07))
        return found | {"pickup.p50": percentile(waits, 0.5), "pickup.p99": percentile(waits, 0.99)}


def mass_acts(ground: Ground) -> Found:
    """The commands of a person on many jobs, each in a process of its own, on a store with nobody else."""
    found: Found = {}
    for name, act in acts.ACTS.items():
        with ground.fresh() as bed:
            found |= acts.measure(name, act, bed, ground.scale.acts)
    return found


def crowd(ground: Ground) -> Found:
    """One producer, and sixteen at once, beside the bare insert by the same driver. SQLite has one writer at a time."""
    found: Found = {}
    if ground.store == "postgres":
        for many in (1, 16):
            for way in producers.WAYS:
                found[f"crowd.{way}.{many}"] = producers.measure(ground, way, many, ground.scale.idle_s)
    return found


def _times(number: int) -> Callable[[], bool]:
    """Return a function that is true so many times."""
    left: Iterator[int] = iter(range(number))
    return lambda: next(left, None) is not None


ON_REDIS = (
    "enqueue",
    "bulk",
    "drain",
    "depth",
    "idle",
)  # the others ask a database, or end leases in it
FIGURES: dict[str, tuple[Callable[[Ground], Found], int]] = {
    # name: (one round of it, the most rounds that it is worth)
    "enqueue": (enqueue, 99),
    "bulk": (enqueue_many, 99),
    "stream": (stream, 1),
    "raw": (raw, 99),
    "drain": (drain, 99),
    "acts": (mass_acts, 3),
    "depth": (depth, 99),
    "idle": (idle, 99),
    "crowd": (crowd, 99),
    "reap": (reaping.aside, 3),
    "storm": (reaping.inside, 3),
}
