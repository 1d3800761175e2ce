"""Many leases run out at one instant: how fast are they reaped, and does fresh work get its turn meanwhile?

Run as a program it is the reaper:  python reaping.py URL AT     (AT: lease clock; prints seconds and jobs as JSON)
"""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tasks
from ground import Ground, fill, worker
from stores import BATCH, CLOCK, Bed
from watch import percentile

from holdfast import App, Job
from holdfast.core.records import Worker
from holdfast.ids import new_id
from holdfast.tasks import Task

BEFORE_S = 4.0
PROBE_MAX_S = 120.0
QUIET_S = 1.5  # after the leases were given their end, which takes the write lock for a while
Probes = list[tuple[float, Job[Any]]]
Found = dict[str, float]
Reaping = subprocess.Popen[bytes]


def aside(ground: Ground) -> Found:
    """`reap()` in a process of its own, beside a worker that does not reap."""
    with ground.fresh() as bed:
        return _scene("reap", ground.scale.leases, bed, ["--no-reaper"], lambda at: _reaper(bed.url, at))


def inside(ground: Ground) -> Found:
    """The worker reaps by itself, between its other duties, as it does by default."""
    with ground.fresh() as bed:
        return _scene("storm", ground.scale.leases, bed, [], lambda at: None)


def _scene(name: str, leases: int, bed: Bed, options: list[str], reaper: Callable[[float], Reaping | None]) -> Found:
    """Probe with fresh jobs before, while and after the leases are reaped: some in the queue that the lost jobs come
    back to, some in a queue of their own."""
    with tasks.make_app(bed.url, aside=True) as app:
        silent = lost(app, leases)
        probed = [app.named("stamp"), app.named("stamp_aside")]
        with worker(bed, *options, app="tasks:app_aside", ready=True):
            ends_at = _let_end(app, bed)
            probes = {"before": probe(probed, lambda: _lease(app) < ends_at)}
            process = reaper(ends_at)
            reaped = bed.holds if process is None else lambda _: process.poll() is None
            probes["during"] = probe(probed, lambda: reaped(silent))
            seconds, recovered = _lease(app) - ends_at, leases
            if process is not None:
                seconds, recovered = json.loads(process.communicate()[0])
            probes["after"] = probe(probed, lambda: bed.done() < recovered)
            found = {f"{name}.seconds": seconds, f"{name}.rate": recovered / seconds, f"{name}.jobs": recovered}
            for phase, sent in probes.items():
                for place, mine in (("same", sent[0::2]), ("own", sent[1::2])):
                    found |= _spread(f"{name}.{phase}.{place}", waits(mine))
        app.store.retire(silent, "left")
    return found


def lost(app: App, leases: int) -> str:
    """Claim so many jobs for a worker that lives, in this process, but will not renew; return its id."""
    fill(app, "async_noop", leases)
    me = new_id()
    app.store.enroll(Worker(id=me, name="silent", host="here", pid=os.getpid(), boot_id=CLOCK.boot_id, beat_s=1e6))
    while app.store.claim(me, new_id(), ["default"], ["tasks.async_noop"], BATCH):
        pass
    assert app.counts()["running"] == leases
    return me


def _let_end(app: App, bed: Bed) -> float:
    """Let every lease end at one instant, soon; return it."""
    ends_at = _lease(app) + BEFORE_S + QUIET_S + 3.0
    bed.expire_all(ends_at)
    time.sleep(max(0.0, ends_at - BEFORE_S - _lease(app)))
    return ends_at


def _lease(app: App) -> float:
    """Return the instant on the clock that the leases are measured with, which may be a server's."""
    return app.store.now().lease


def probe(
    by_turns: Sequence[Task[..., Any]], goes_on: Callable[[], bool], low_s: float = 0.015, high_s: float = 0.025
) -> Probes:
    """Enqueue a job every now and then; return when each was sent, before the call."""
    probes: Probes = []
    give_up_at = time.monotonic() + PROBE_MAX_S
    while goes_on() or len(probes) < len(by_turns):
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"not over after {PROBE_MAX_S:g} s")
        sent = time.monotonic()
        probes.append((sent, by_turns[len(probes) % len(by_turns)].enqueue()))
        time.sleep(random.uniform(low_s, high_s))
    return probes


def waits(probes: Probes) -> list[float]:
    """Return the milliseconds from each enqueue call to the start of its handler in the worker."""
    return [1000 * (job.result(timeout=120) - sent) for sent, job in probes]


def _spread(name: str, waits: list[float]) -> Found:
    return {f"{name}.p50": percentile(waits, 0.5), f"{name}.p99": percentile(waits, 0.99), f"{name}.max": max(waits)}


def _reaper(url: str, at: float) -> Reaping:
    command = [sys.executable, Path(__file__).name, url, str(at)]
    return subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def main(url: str, at: float) -> None:
    logging.basicConfig(level=logging.WARNING)  # one line for each zombie, as in a worker
    with tasks.make_app(url) as app:
        app.store.ping()
        time.sleep(max(0.0, at - _lease(app)) + 0.01)
        began = time.perf_counter()
        report = app.reap()
        print(json.dumps([time.perf_counter() - began, report.recovered]))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
