"""Acts on many jobs: reap, revive, cancel, delete, purge, export. Each is the command that a person would run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import tasks
from ground import HERE, fill
from reaping import lost
from stores import BATCH, CLOCK, Bed

from holdfast import App
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


@dataclass(frozen=True)
class Act:
    """How its jobs are made, and the command."""

    make: Callable[[App, Bed, int], list[str]]
    command: Callable[[list[str]], list[str]]


ACTS = {
    "reap": Act(overdue, holdfast("scan", "--fix", "-q")),
    "revive": Act(dead, holdfast("dead", "revive", "--all", "-y")),
    "revive.named": Act(dead, named("dead", "revive")),
    "cancel.named": Act(ready, named("jobs", "cancel")),
    "delete.named": Act(dead, named("jobs", "delete", "-y")),
    "purge": Act(dead, holdfast("dead", "purge", "--older-than", "0s", "-y")),
    "export": Act(dead, holdfast("jobs", "export")),
}


def measure(name: str, act: Act, bed: Bed, jobs: int) -> dict[str, float]:
    """Return how many jobs a second the command takes, its start included."""
    jobs = min(jobs, NAMED) if name.endswith("named") else jobs
    with tasks.make_app(bed.url) as app:
        ids = act.make(app, bed, jobs)
    env, began = {**os.environ, "HOLDFAST_DB": bed.url}, time.perf_counter()
    ended = subprocess.run(act.command(ids), cwd=HERE, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    seconds = time.perf_counter() - began
    if ended.returncode:
        raise RuntimeError(f"{name}: {ended.stderr.decode()[-2000:]}")
    return {f"acts.{name}": jobs / seconds}
