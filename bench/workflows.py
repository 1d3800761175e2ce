"""What workflows cost.   .venv/bin/python bench/workflows.py [--store sqlite|postgres] [--quick] [--only steps,replay]

steps    recorded steps a second that do nothing, 100 workflows in flight, one worker; beside DBOS on the same database
replay   from the signal that a workflow of N recorded steps waits for to its end: what a replay costs, and how it grows
signals  how long one workflow takes for 10,000 signals that were sent before it started
waiting  CPU time of an idle worker, with 100,000 workflows that wait and without

Rates count steps that the store says are recorded. Rounds are interleaved; a figure is the median of its rounds.
Exits non-zero when a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peers
from bench import home
from flows import app
from ground import HERE, QUICK, Ground, worker
from noise import cpu_seconds
from stores import STORES, Bed, PostgresBed, SqliteBed, database
from watch import counter, watch

from holdfast import App
from holdfast.core.records import Job, NewJob, Record, Signal, Step, Worker
from holdfast.core.row_text import Awaited
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Parked, judge
from holdfast.ids import new_id
from holdfast.stores.protocol import Reply, Store

FLOWS = 100  # in flight
STEPS_GOAL = {"sqlite": 3_000, "postgres": 1_500}  # a second
PEER_GOAL = 5.0  # times DBOS
REPLAY_GOAL_S = 2.0  # of 10,000 steps
GROWTH_GOAL = 2.0  # a step of the longest may cost so many times what one of the middle costs
SIZES = (1_000, 10_000, 30_000)
SIGNALS, SIGNALS_GOAL_S = 10_000, 10.0
WAITING, BATCH = 100_000, 1_000
IDLE_GOAL = 1.0  # percent of a core more than without

Figures = dict[str, float]


# ------------------------------------------------------------------------------------------------ steps


def steps(ground: Ground, each: int) -> Figures:
    """Run 100 workflows of so many steps, async and in threads; then DBOS, where it is there."""
    found: Figures = {}
    for kind, task in (("async", "async_steps"), ("threads", "sync_steps")):
        with ground.fresh() as bed:
            found[f"steps, {kind}"] = drain(at_ease(bed), task, each)
    if isinstance_of(ground, SqliteBed):
        with ground.fresh() as bed:
            found["steps, async, synchronous FULL"] = drain(bed, "async_steps", each)
    peer = dbos(ground, max(1, each // 10))
    if peer is not None:
        found["steps, DBOS"] = peer
    return found


def at_ease(bed: Bed) -> Bed:
    """SQLite with synchronous NORMAL: no commit is lost by a crash of the process, the last ones by a power cut."""
    if isinstance(bed, SqliteBed):
        bed.url += "?synchronous=normal"
    return bed


def drain(bed: Bed, task: str, each: int) -> float:
    with App(bed.url) as client:
        client.store.add([new_flow(task, steps=each) for _ in range(FLOWS)])
    with worker(bed, "--slots", str(FLOWS), app="flows:app"):
        return watch(recorded(bed), FLOWS * each, every_s=0.1).rate


def new_flow(task: str, **arguments: Any) -> NewJob:
    return app.named(task).job(**arguments).new


def recorded(bed: Bed) -> Callable[[], int]:
    """Return a function that counts the steps that are recorded."""
    if isinstance(bed, SqliteBed):
        return counter(bed.path, "SELECT count(*) FROM holdfast_step")
    assert isinstance(bed, PostgresBed)

    def ask() -> int:
        row = bed._db.execute("SELECT count(*) FROM step").fetchone()
        return row[0] if row else 0

    return ask


def dbos(ground: Ground, each: int) -> float | None:
    """Let DBOS do the same on the same kind of database; None where it is not installed."""
    if not peers.PYTHON.exists():
        return None
    with place(ground) as env:
        command = [str(peers.PYTHON), str(HERE / "peer_dbos_steps.py"), env["BENCH_FILE"], str(FLOWS), str(each)]
        asked = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    if asked.returncode != 0:
        raise RuntimeError(f"DBOS: {asked.stderr.strip()[-1000:]}")
    rate: float = json.loads(asked.stdout.splitlines()[-1])["rate"]
    return rate


@contextmanager
def place(ground: Ground) -> Iterator[dict[str, str]]:
    env = {**os.environ, "BENCH_FILE": str(ground.folder / f"{new_id()}.db")}
    if not isinstance_of(ground, PostgresBed):
        yield env
        return
    with database() as url:
        yield {**env, "BENCH_URL": url}


def isinstance_of(ground: Ground, bed: type[Bed]) -> bool:
    return ground._bed is bed


# ----------------------------------------------------------------------------------------------- replay


def replay(ground: Ground) -> Figures:
    """Let workflows that wait behind so many steps be woken one by one, on one worker."""
    found: Figures = {}
    with ground.fresh() as bed, App(bed.url) as client:
        jobs = {size: waiting_behind(client.store, size) for size in (0, *SIZES)}
        with worker(bed, app="flows:app", ready=True):
            for size, job_id in jobs.items():
                began = time.perf_counter()
                client.signal(job_id, "go")
                client.get(job_id).result(timeout=120)
                found[f"replay of {size:,} steps, s"] = time.perf_counter() - began
    return found


def waiting_behind(store: Store, size: int) -> str:
    """Write the records as a worker would have, and let the workflow wait."""
    [job] = claimed(store, [new_flow("resumed", steps=size)])
    steps = [recorded_step(number) for number in range(1, size + 1)]
    for start in range(0, size, BATCH):
        batch = Record(lease=job.lease, worker=job.worker, steps=tuple(steps[start : start + BATCH]))
        assert store.record([batch]) == [Reply.ACCEPTED]
    park(store, [job], Parked("waits", awaits=(Awaited("signal", "go"),), inbox=0))
    return job.id


def recorded_step(number: int) -> Step:
    return Step(
        position=number, path=str(number), kind="step", name="nothing", state="recorded", attempt=1, fence=1,
        result="null", started_at=0.0, ended_at=0.0,
    )  # fmt: skip


def claimed(store: Store, new: list[NewJob]) -> list[Job]:
    store.add(new)
    me = Worker(id=new_id(), name="bench", host="h", pid=os.getpid(), boot_id="b", slots=len(new))
    store.enroll(me)
    jobs = store.claim(me.id, new_id(), ["default"], [new[0].task], len(new))
    assert len(jobs) == len(new)
    return jobs


def park(store: Store, jobs: list[Job], outcome: Parked) -> None:
    now = store.now().wall
    answers = store.settle([settlement(job, judge(outcome, job, now, chance=0.5)) for job in jobs])
    assert set(answers) == {Reply.ACCEPTED}
    if jobs[0].worker is not None:
        store.retire(jobs[0].worker, "it is done")


# ---------------------------------------------------------------------------------------------- signals


def signals(ground: Ground) -> Figures:
    """Let one workflow take what has been sent to it."""
    with ground.fresh() as bed, App(bed.url) as client:
        new = new_flow("listening", signals=SIGNALS)
        client.store.add([new])
        for number in range(SIGNALS):
            client.store.signal(Signal(id=f"s{number}", job_id=new.id, name="go", value="1"))
        with worker(bed, app="flows:app", ready=True):
            client.get(new.id).result(timeout=300)
        row = client.store.get(new.id)
        assert row is not None
        assert row.claimed_at is not None
        assert row.ended_at is not None
        return {f"{SIGNALS:,} signals, s": row.ended_at - row.claimed_at}


# ---------------------------------------------------------------------------------------------- waiting


def waiting(ground: Ground, many: int) -> Figures:
    """An idle worker's CPU time, supervisor included, with so many workflows that wait and with none."""
    found: Figures = {}
    for name, flows in (("idle, nobody waits, % of a core", 0), (f"idle, {many:,} wait, % of a core", many)):
        with ground.fresh() as bed:
            with App(bed.url) as client:
                until = client.store.now().wall + 86_400
                for start in range(0, flows, BATCH):
                    jobs = claimed(
                        client.store, [new_flow("resumed", steps=0) for _ in range(min(BATCH, flows - start))]
                    )
                    park(client.store, jobs, Parked("waits", until, (Awaited("signal", "go"),), inbox=0))
            with worker(bed, app="flows:app", ready=True) as process:
                time.sleep(1.0)
                used, began = cpu_seconds(process.pid), time.perf_counter()
                time.sleep(5.0)
                found[name] = 100 * (cpu_seconds(process.pid) - used) / (time.perf_counter() - began)
    return found


# ----------------------------------------------------------------------------------------------- report


def goals(store: str, medians: Figures, values: dict[str, list[float]]) -> list[tuple[str, float, float, bool]]:
    """Return for each goal that was measured: what it is about, the figure, the goal, whether it is reached."""
    found = []
    if "steps, async" in medians:
        rate, goal = medians["steps, async"], STEPS_GOAL[store]
        found.append((f"recorded steps a second, {FLOWS} workflows in flight", rate, goal, rate >= goal))
    if "steps, DBOS" in medians:
        pairs = zip(values["steps, async"], values["steps, DBOS"], strict=True)
        times = statistics.median(ours / theirs for ours, theirs in pairs)
        found.append(("times DBOS, within a round", times, PEER_GOAL, times >= PEER_GOAL))
    if "replay of 10,000 steps, s" in medians:
        took = medians["replay of 10,000 steps, s"]
        found.append(("seconds for a replay of 10,000 steps", took, REPLAY_GOAL_S, took <= REPLAY_GOAL_S))
        # The shortest is too short to be divided; what grows with the square would be three times the cost here.
        costs = [medians[f"replay of {size:,} steps, s"] / size for size in SIZES[1:]]
        growth = costs[1] / costs[0]
        what = f"times the cost of a step, {SIZES[2]:,} to {SIZES[1]:,}"
        found.append((what, growth, GROWTH_GOAL, growth <= GROWTH_GOAL))
    if f"{SIGNALS:,} signals, s" in medians:
        took = medians[f"{SIGNALS:,} signals, s"]
        found.append((f"seconds for {SIGNALS:,} signals", took, SIGNALS_GOAL_S, took <= SIGNALS_GOAL_S))
    idle = [value for name, value in medians.items() if name.startswith("idle")]
    if idle:
        more = idle[1] - idle[0]
        found.append(("percent of a core more for those that wait", more, IDLE_GOAL, more <= IDLE_GOAL))
    return found


def main(given: argparse.Namespace) -> int:
    values: dict[str, list[float]] = {}
    measured: dict[str, Callable[[Ground], Figures]] = {
        "steps": lambda ground: steps(ground, 60 if given.quick else 300),
        "replay": replay,
        "signals": signals,
        "waiting": lambda ground: waiting(ground, WAITING // 10 if given.quick else WAITING),
    }
    only = given.only.split(",") if given.only else list(measured)
    missing = peers.prepare() if "steps" in only and not peers.PYTHON.exists() else None
    if missing:
        print(f"DBOS is left out: {missing}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=home()) as name:
        os.environ |= {"BENCH_FOLDER": name, "BENCH_HOME": str(home())}
        ground = Ground(STORES[given.store], QUICK, Path(name))
        for number in range(given.rounds):
            for what in only if number == 0 else [each for each in only if each != "waiting"]:
                for figure, value in measured[what](ground).items():
                    values.setdefault(figure, []).append(value)
    medians = {name: statistics.median(found) for name, found in values.items()}
    print(f"{given.store}, {given.rounds} rounds".ljust(48), "   lowest    median   highest")
    for name, found in values.items():
        print(f"{name:48} {min(found):9,.2f} {medians[name]:9,.2f} {max(found):9,.2f}")
    judged = goals(given.store, medians, values)
    for what, figure, goal, reached in judged:
        print(f"{'reached' if reached else 'MISSED '} {what}: {figure:,.2f} (goal {goal:,.2f})")
    return 0 if all(reached for *_, reached in judged) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="what workflows cost")
    parser.add_argument("--store", choices=STORES, default="sqlite")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="steps, replay, signals, waiting; separated by commas")
    parser.add_argument("--quick", action="store_true")
    sys.exit(main(parser.parse_args()))
