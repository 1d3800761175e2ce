"""How fast are acts on many jobs: reap, revive, cancel, delete, purge, export?   .venv/bin/python bench/acts.py

Each is the command that a person would run, in a process of its own, on a store with nobody else. A line has jobs per
second, and for a thousand jobs the CPU seconds of the command and of the database's server. `--against FOLDER` runs the
commands of another checkout in turn with these, on stores of their own that its schema must fit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import noise
import tasks
from ground import FULL, HERE, Ground, fill
from reaping import lost
from stores import BATCH, CLOCK, STORES, Bed

from holdfast import App, Retry
from holdfast.core.records import Worker
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Failed, judge
from holdfast.ids import new_id

NAMED = 2_000  # jobs that are named on the command line


def dead(app: App, bed: Bed, jobs: int) -> list[str]:
    """Let so many jobs give up, each after one failure; return their ids."""
    fill(app, "fails", jobs)
    me, ids = new_id(), list[str]()
    app.store.enroll(Worker(id=me, name="fails", host="here", pid=os.getpid(), boot_id=CLOCK.boot_id, beat_s=1e6))
    while found := app.store.claim(me, new_id(), ["default"], ["tasks.fails"], BATCH):
        now = app.store.now().wall
        outcome = Failed(f"ValueError: {'no such thing ' * 8}")
        app.store.settle([settlement(job, judge(outcome, job, now, chance=0.5)) for job in found])
        ids += [job.id for job in found]
    app.store.retire(me, "left")
    return ids


def ready(app: App, bed: Bed, jobs: int) -> list[str]:
    fill(app, "async_noop", jobs)
    return [job.id for job in app.find("ready", limit=NAMED)]


def overdue(app: App, bed: Bed, jobs: int) -> list[str]:
    lost(app, jobs)
    bed.expire_all(app.store.now().lease)
    return []


def holdfast(*words: str) -> Callable[[list[str]], list[str]]:
    return lambda ids: [sys.executable, "-m", "holdfast", *words]


def named(*words: str) -> Callable[[list[str]], list[str]]:
    return lambda ids: [sys.executable, "-m", "holdfast", *words, *ids[:NAMED]]


# Name -> how its jobs are made, the command, and whether it takes only those that are named.
ACTS: dict[str, tuple[Callable[[App, Bed, int], list[str]], Callable[[list[str]], list[str]], bool]] = {
    "reap": (overdue, holdfast("scan", "--fix", "-q"), False),
    "revive": (dead, holdfast("dead", "revive", "--all", "-y"), False),
    "revive named": (dead, named("dead", "revive"), True),
    "cancel named": (ready, named("jobs", "cancel"), True),
    "delete named": (dead, named("jobs", "delete", "-y"), True),
    "purge": (dead, holdfast("dead", "purge", "--older-than", "0s", "-y"), False),
    "export": (dead, holdfast("jobs", "export"), False),
}


def measure(name: str, bed: Bed, jobs: int, source: Path | None) -> dict[str, float]:
    make, command, only_named = ACTS[name]
    with tasks.make_app(bed.url) as app:
        app.task(name="tasks.fails", retry=Retry(attempts_max=1))(tasks.sync_noop)
        jobs = min(jobs, NAMED) if only_named else jobs
        ids = make(app, bed, jobs)
    env = {**os.environ, "HOLDFAST_DB": bed.url}
    if source is not None:
        env["PYTHONPATH"] = str(source / "src")
    server, own, began = noise.of_servers(), _children(), time.perf_counter()
    ended = subprocess.run(command(ids), cwd=HERE, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wall = time.perf_counter() - began
    if ended.returncode:
        raise RuntimeError(f"{name}: {ended.stderr.decode()[-2000:]}")
    per_thousand = 1000 / jobs
    return {
        "jobs": jobs,
        "rate": jobs / wall,
        "seconds": wall,
        "command_cpu_ms": 1000 * (_children() - own) * per_thousand,
        "server_cpu_ms": 1000 * (noise.of_servers() - server) * per_thousand,
    }


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rounds(given: argparse.Namespace, ground: Ground) -> Iterator[tuple[str, str, dict[str, float]]]:
    sources = {"this": None, **({"other": given.against} if given.against else {})}
    for name in given.only.split(",") if given.only else ACTS:
        for _ in range(given.rounds):
            for which, source in sources.items():
                with ground.fresh() as bed:
                    yield name, which, measure(name, bed, given.jobs, source)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=STORES, default="postgres")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--only", metavar="A,B", help=f"of: {', '.join(ACTS)}")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout, for a comparison")
    parser.add_argument("--json", action="store_true", help="one object per line")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_HOME")) as folder:
        ground = Ground(STORES[given.store], FULL, Path(folder))
        if not given.json:
            print(f"{'act':<14}{'code':<7}{'jobs':>8}{'jobs/s':>9}{'seconds':>9}{'command ms':>12}{'server ms':>11}")
        for name, which, found in rounds(given, ground):
            if given.json:
                print(json.dumps({"act": name, "code": which, **found}), flush=True)
                continue
            figures = [found[key] for key in ("jobs", "rate", "seconds", "command_cpu_ms", "server_cpu_ms")]
            jobs, rate, seconds, command, server = figures
            line = f"{name:<14}{which:<7}{jobs:>8,.0f}{rate:>9,.0f}{seconds:>9.2f}{command:>12.1f}{server:>11.1f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
