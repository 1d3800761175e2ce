"""The costs behind `holdfast simulate`: measure them, and hold the forecast against what a real fleet used.

    .venv/bin/python bench/capacity.py --store postgres             measure the costs, print them, check the forecast
    .venv/bin/python bench/capacity.py --store sqlite --write       the same, and write them into core/costs.py
    .venv/bin/python bench/capacity.py --check                      check the forecast of the costs that are there
    .venv/bin/python bench/capacity.py --only idle                  one scene: what an idle worker costs

Everything is processor time, bytes and counts, which other programs on the machine disturb little. Seconds are only
used to say how often something happened. The check runs three fleets that no cost was measured with; every figure of
each must be within 25 % of the forecast.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

import noise
import psycopg
from ground import FULL, HERE, Ground, fill, home, worker
from probes import Probe, Used, probe_of
from stores import STORES, Bed, server
from tasks import SHORT_LEASE_S, make_app

from holdfast import App
from holdfast.core import costs as known
from holdfast.core.capacity import DAY_S, Cost, Costs, Event, Plan, busy, forecast
from holdfast.core.machine import State
from holdfast.core.policy import BEATS_PER_LEASE
from holdfast.ids import new_id

COSTS = Path(known.__file__)
WITHIN = 0.25
LOOK_S = 0.1  # how often a scene asks whether its jobs are done: each look costs the server something
QUIET_S = 4.0  # until a fleet that had work sleeps again, and has forgotten how fast it was
IDLE_S = 20.0
IDLE = "one idle command, four processes"
WARM = 100
PAD = 1_000
TEXT = "".join(random.choices(string.ascii_letters, k=100_000))  # the server would compress what repeats itself


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A fleet and its work, at a size that fits on one machine."""

    jobs: int = 0
    rate: float = 0.0  # jobs a second, one at a time; 0: all at once, while the queue is paused
    nap_s: float | None = None  # None: a no-op
    task: str = "nap"
    pad: int = 0  # letters of an argument
    failures: float = 0.0
    batch: int = 1000  # jobs in one enqueue where there is no rate
    commands: int = 1  # 0: nobody works
    processes: int = 1  # of each
    slots: int = 20
    idle_s: float = 0.0  # how long to look at a fleet with no jobs at all
    rounds: int = 1  # the jobs come so often; sizes on disk are those that all rounds but the first two add

    @property
    def total(self) -> int:
        return self.jobs * self.rounds


# ------------------------------------------------------------------------------------------- a scene


def play(ground: Ground, scene: Scene) -> Used:
    """Start the fleet, warm it up, and return what its work uses."""
    with ground.fresh() as bed, make_app(bed.url) as app, ExitStack() as fleet:
        probe = probe_of(bed)
        for _ in range(scene.commands):
            options = ("--processes", str(scene.processes), "--slots", str(scene.slots))
            probe.pids.append(fleet.enter_context(worker(bed, *options, ready=True)).pid)
        _send(app, Scene(jobs=WARM))
        if scene.commands:
            _await(bed, WARM)
            time.sleep(QUIET_S)
        return _work(app, bed, probe, scene)


def _work(app: App, bed: Bed, probe: Probe, scene: Scene) -> Used:
    sizes, supervisors, processes, producer_s, working_s = [], 0, 0, 0.0, 0.0
    done, begun = bed.done(), probe.now()
    time.sleep(scene.idle_s)
    for number in range(scene.rounds):
        if number:
            probe.clean_up()
        sent = time.perf_counter()
        producer_s += _send(app, scene)
        from_then = sent if scene.rate else time.perf_counter()  # the queue was paused until now
        supervisors, processes = probe.connections()
        while scene.commands and bed.done() < done + scene.jobs * (number + 1):
            time.sleep(LOOK_S)
        working_s += time.perf_counter() - from_then
        sizes.append(probe.size())
    used = probe.since(begun)
    used.producer_s, used.working_s = producer_s, working_s
    used.disk_bytes = sizes[-1] - sizes[min(1, len(sizes) - 1)]
    used.lines, used.of_supervisors, used.of_processes = probe.lines(), supervisors, processes
    return used


def _await(bed: Bed, jobs: int) -> None:
    while bed.done() < jobs:
        time.sleep(0.02)


def _send(app: App, scene: Scene) -> float:
    """Enqueue one round of the scene's jobs; return the CPU time of it."""
    task, used, began = (
        app.named("async_noop" if scene.nap_s is None else scene.task),
        time.process_time(),
        time.perf_counter(),
    )
    if scene.rate:
        for number in range(scene.jobs):
            time.sleep(max(0.0, began + number / scene.rate - time.perf_counter()))
            task.enqueue(*_arguments(scene, number))
        return time.process_time() - used
    app.store.pause("default", True)
    for start in range(0, scene.jobs, scene.batch):
        numbers = range(start, min(start + scene.batch, scene.jobs))
        app.enqueue_many([task.job(*_arguments(scene, number)) for number in numbers])
    app.store.pause("default", False)
    return time.process_time() - used


def _arguments(scene: Scene, number: int) -> tuple[object, ...]:
    if scene.nap_s is None:
        return ()
    length_s = scene.nap_s * random.uniform(0.5, 1.5)
    if scene.task == "long_nap":
        return (length_s,)
    start = random.randrange(len(TEXT) - scene.pad)
    return (length_s, TEXT[start : start + scene.pad], random.random() < scene.failures)


# ------------------------------------------------------------------------------------------- the costs


class Measured:
    """The costs, one after the other: each scene is explained by the costs that are known by then, and the rest of what
    it used is the next one."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.cost: dict[Event, Cost] = dict.fromkeys(Event, Cost())
        self.used: dict[str, Used] = {}

    def play(self, words: str, scene: Scene) -> Used:
        print(f"{words} …", end=" ", flush=True, file=sys.stderr)
        self.used[words] = used = play(self.ground, scene)
        print(f"{used.seconds:.0f} s", file=sys.stderr)
        return used

    def rest(self, used: Used, scene: Scene, **more: float) -> Cost:
        """Return what is left of it without the events that are known."""
        enqueues = scene.total if scene.rate else scene.total / scene.batch
        counts = {
            Event.STORED: scene.total,
            Event.ENQUEUE: enqueues,
            Event.RUN: scene.total * (1 + scene.failures) * bool(scene.commands),
            Event.PROCESS: scene.commands * scene.processes * used.seconds,
            Event.COMMAND: scene.commands * used.seconds,
            Event.BUSY: busy_s(scene, used),
        }
        counts |= {Event(name): times for name, times in more.items()}
        return used.cost + sum((self.cost[event] * times for event, times in counts.items()), Cost()) * -1

    def learn(self, event: Event, words: str, times: float, scene: Scene, **more: float) -> Used:
        """Let an event be what is left of this scene, in which it happens so many times."""
        used = self.play(words, scene)
        self.cost[event] = self.rest(used, scene, **more) * (1 / times)
        return used

    def enqueues(self) -> None:
        many, singly = Scene(jobs=20_000, commands=0), Scene(jobs=1_500, rate=1e6, commands=0)
        self.learn(Event.STORED, "enqueues of 1,000 jobs", many.total, many)
        self.learn(Event.ENQUEUE, "enqueues of one job", singly.total, singly)

    def idle(self) -> None:
        """What a worker process costs while nothing happens, and what a command with its supervisor."""
        one, four = Scene(processes=4, idle_s=IDLE_S), Scene(commands=4, idle_s=IDLE_S)
        alone, several = self.play(IDLE, one), self.play("four idle commands", four)
        more = several.cost * (1 / several.seconds) + alone.cost * (-1 / alone.seconds)
        self.cost[Event.COMMAND] = more * (1 / 3)
        self.cost[Event.PROCESS] = (alone.cost * (1 / alone.seconds) + self.cost[Event.COMMAND] * -1) * (1 / 4)

    def all(self) -> Costs:
        self.enqueues()
        self.idle()
        full = self.learn(Event.RUN, "a full queue", 40_000, Scene(jobs=10_000, rounds=4))
        two = Scene(jobs=2, nap_s=10.0)
        self.learn(Event.BUSY, "two long jobs", 10.0, two, busy=0)
        cycle_s = self.rounds()
        rare = Scene(jobs=200, rate=12, nap_s=0.05)
        alone = self.play("a job now and then", rare)
        several = self.play("the same with three more processes", replace(rare, processes=4))
        more = several.cost + alone.cost * -1 + self.cost[Event.PROCESS] * (-4 * several.seconds + alone.seconds)
        self.cost[Event.LOOK] = more * (1 / (3 * rare.jobs))
        many = Scene(jobs=200, nap_s=10.0, task="long_nap", slots=200)
        renewals = many.total * 10.0 * BEATS_PER_LEASE / SHORT_LEASE_S
        self.learn(Event.RENEWAL, "two hundred long jobs", renewals, many)
        failing = Scene(jobs=2_500, nap_s=0.0, failures=1.0, rounds=4)
        failed = self.learn(Event.FAILURE, "failures", failing.total, failing)
        padded = Scene(jobs=2_500, nap_s=0.0, pad=PAD, rounds=4)
        letters = self.play("long arguments", padded)
        wal_copies = self.rest(letters, padded).wal_bytes / padded.total / PAD
        look_s = self.look_s(cycle_s)
        self.cost[Event.DELETED] = self.deletion()
        if self.ground.store == "sqlite":
            self.cost = self.under_the_lock()
        row_bytes = full.disk_bytes / 20_000
        return Costs(
            measured=about(self.ground),
            one_writer=self.ground.store == "sqlite",
            events={event: _positive(cost) for event, cost in self.cost.items()},
            cycle_s=cycle_s,
            look_s=look_s,
            row_bytes=row_bytes,
            line_bytes=(failed.disk_bytes / 5_000 - row_bytes) * failing.total / failed.lines,
            disk_copies=(letters.disk_bytes / 5_000 - row_bytes) / PAD,
            wal_copies=wal_copies,
            connections_idle=self.used[IDLE].of_processes / 4,
            connections_busy=full.of_processes,
            connections_command=self.used[IDLE].of_supervisors,
        )

    def under_the_lock(self) -> dict[Event, Cost]:
        """On SQLite, add the processor time of the bare statements, which nobody else can write during, and how many
        transactions write."""
        stored, singly = self._raw(_raw_insert_together), self._raw(_raw_insert_singly)
        run = self._raw(lambda bed, _: bed.raw_loop("tasks.async_noop"), filled=True)
        both = self._raw(lambda bed, _: bed.raw_loop("tasks.async_noop", 1), filled=True)
        store_us = {Event.STORED: stored, Event.ENQUEUE: singly - stored, Event.RUN: run, Event.ROUND: both - run}
        store_us[Event.DELETED] = self.cost[Event.DELETED].client_us
        store_us[Event.FAILURE] = run
        writes = {Event.ENQUEUE: 1.0, Event.ROUND: 2.0, Event.PROCESS: 0.1, Event.DELETED: 1 / 1000}
        return {
            event: replace(cost, store_us=store_us.get(event, 0.0), transactions=writes.get(event, 0.0))
            for event, cost in self.cost.items()
        }

    def _raw(self, work: Callable[[Bed, int], object], *, filled: bool = False) -> float:
        """Return the µs of this thread for each of 2,000 jobs."""
        with self.ground.fresh() as bed, make_app(bed.url) as app:
            if filled:
                fill(app, "async_noop", 2_000)
            used = time.thread_time()
            work(bed, 2_000)
            return 1e6 * (time.thread_time() - used) / 2_000

    def rounds(self) -> float:
        """Learn what a claim and a commit of results cost, and return how long rows gather for one: few jobs a second
        have one each, many share them."""
        slow, fast = Scene(jobs=100, nap_s=0.5, slots=4), Scene(jobs=4_000, nap_s=0.02)
        left, rates = [], []
        for words, scene in (("jobs in four slots", slow), ("short jobs in 20 slots", fast)):
            used = self.play(words, scene)
            left.append(self.rest(used, scene) * (1 / scene.jobs))
            rates.append(scene.jobs / used.working_s)
        few, many = (_weight(cost) for cost in left)
        cycle_s = max(0.0, (few - many) / (many * rates[1] - few * rates[0]))
        self.cost[Event.ROUND] = left[0] * (1 + rates[0] * cycle_s)
        return cycle_s

    def look_s(self, cycle_s: float) -> float:
        """Return how long a worker looks that was woken: hints that come meanwhile are answered together."""
        scene = Scene(jobs=1_200, rate=80, processes=4)
        used = self.play("80 jobs a second, four processes", scene)
        rate = scene.jobs / used.working_s
        rounds = scene.jobs / (1 + rate / 4 * cycle_s)
        looks = _weight(self.rest(used, scene, round=rounds)) / _weight(self.cost[Event.LOOK])
        return max(0.0, rate / (looks / 4 / used.working_s) - 1) / rate

    def deletion(self) -> Cost:
        with self.ground.fresh() as bed, make_app(bed.url) as app:
            probe = probe_of(bed)
            fill(app, "async_noop", 10_000)
            assert bed.raw_loop("tasks.async_noop") == 10_000
            begun = probe.now()
            while app.store.purge([State.DONE], time.time() + 1, 1000):
                pass
            return probe.since(begun).cost * (1 / 10_000)


def _raw_insert_singly(bed: Bed, jobs: int) -> None:
    bed.raw_insert_job([new_id() for _ in range(jobs)])


def _raw_insert_together(bed: Bed, jobs: int) -> None:
    with make_app(bed.url) as app:
        fill(app, "async_noop", jobs)


def about(ground: Ground) -> str:
    machine = noise.machine(ground.folder) | STORES[ground.store].engine()
    names = {"cores": f"{machine.pop('cores')} cores of {machine.pop('cpu')}"}
    text = ", ".join([*names.values(), *(f"{name} {value}" for name, value in machine.items() if name != "system")])
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return f"{text}, with a load of {os.getloadavg()[0]:.0f}, on {day}"


def busy_s(scene: Scene, used: Used) -> float:
    """Return for how many seconds in all the processes of a scene had something to run."""
    running = scene.total * (1 + scene.failures) * (scene.nap_s or 0.0) / max(used.working_s, 1e-9)
    return used.working_s * busy(scene.commands * scene.processes, running) if running else 0.0


def _positive(cost: Cost) -> Cost:
    return Cost(*(max(0.0, value) for value in (cost.store_us, cost.client_us, cost.wal_bytes, cost.transactions)))


def _weight(cost: Cost) -> float:
    """Return by what to compare costs of one kind: transactions are exact, processor time is what SQLite has."""
    return cost.transactions or cost.client_us


# ------------------------------------------------------------------------------------------- the check


CHECKS = {
    # name: (the fleet, what the plan says beyond its size)
    "backlog: two processes, arguments of 400 letters, one attempt in 20 fails": Scene(
        jobs=5_000, nap_s=0.0, pad=400, failures=0.05, batch=250, processes=2, rounds=4
    ),
    "day: two commands with two processes, 40 jobs a second of 100 ms, one by one": Scene(
        jobs=800, rate=40, nap_s=0.1, pad=50, commands=2, processes=2
    ),
    "slow: two processes, 240 jobs of 2.5 s with a lease of 3 s": Scene(
        jobs=240, nap_s=2.5, task="long_nap", processes=2
    ),
}


def check(ground: Ground, costs: Costs) -> list[dict[str, object]]:
    """Compare the forecast with what three fleets use: each figure, and whether it is near enough."""
    lines = []
    for fleet, scene in CHECKS.items():
        used = play(ground, scene)
        seen = forecast(plan_of(scene, used.working_s), costs)
        idle = seen.costs[Event.PROCESS] + seen.costs[Event.COMMAND]
        total = seen.total * used.working_s + idle * (used.seconds - used.working_s)
        pairs = {
            "server CPU, s": (used.store_s, total.store_us / 1e6),
            "processes CPU, s": (used.worker_s + used.producer_s, total.client_us / 1e6),
            "WAL, MB": (used.wal_bytes / 1e6, total.wal_bytes / 1e6),
            "disk, MB": (used.disk_bytes / 1e6, seen.disk_bytes_day / DAY_S * used.working_s / 1e6 / 2),
        }
        print(f"{fleet}: {used.seconds:.1f} s, {used.working_s:.1f} s with jobs, load {os.getloadavg()[0]:.0f}")
        print(shown(seen.costs))
        about = {"fleet": fleet, "load": round(os.getloadavg()[0], 1)}
        for name, (found, predicted) in pairs.items():
            if found:  # SQLite has no server; the size is only taken in rounds
                off = predicted / found - 1
                near = {"off": f"{off:+.0%}", "near": abs(off) <= WITHIN}
                lines.append({**about, "figure": name, "measured": found, "predicted": f"{predicted:.4g}", **near})
        if found := used.of_processes + used.of_supervisors:
            least, most = seen.connections_idle, seen.connections
            off = min(0.0, most / found - 1) or max(0.0, least / found - 1)
            near = {"off": f"{off:+.0%}", "near": abs(off) <= WITHIN}
            predicted = f"{least:.0f} to {most:.0f}"
            lines.append({**about, "figure": "connections", "measured": found, "predicted": predicted, **near})
    return lines


def plan_of(scene: Scene, seconds: float) -> Plan:
    return Plan(
        workers=scene.commands * scene.processes,
        processes=scene.processes,
        jobs_day=scene.total / seconds * DAY_S,
        duration_s=scene.nap_s or 0.0,
        enqueue_batch=1 if scene.rate else scene.batch,
        payload_bytes=scene.pad,
        failures=scene.failures,
        lease_s=SHORT_LEASE_S if scene.task == "long_nap" else 30.0,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=STORES, default="postgres")
    parser.add_argument("--check", action="store_true", help="only check the costs that are in core/costs.py")
    parser.add_argument("--idle", action="store_true", help="only measure an idle fleet")
    parser.add_argument("--write", action="store_true", help="put the costs into core/costs.py")
    parser.add_argument("--folder", type=Path, help="where the databases go; default: beside .venv-bench's files")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder or home()) as folder:
        os.environ["BENCH_FOLDER"], os.environ["BENCH_HOME"] = folder, str(given.folder or home())
        ground = Ground(STORES[given.store], FULL, Path(folder))
        if given.store == "postgres":
            with psycopg.connect(server(), autocommit=True) as db:
                db.execute("ALTER SYSTEM SET full_page_writes = off")
                db.execute("SELECT pg_reload_conf()")
        measured = Measured(ground)
        print(f"load before: {os.getloadavg()[0]:.1f}", file=sys.stderr)
        if given.idle:
            measured.idle()
            print(shown(measured.cost))
            return 0
        costs = known.COSTS[given.store] if given.check else measured.all()
        print(shown(costs.events), costs, sep="\n")
        found = check(ground, costs)
    for each in found:
        print("{fleet}\n    {figure:18}{measured:10.4g} measured, predicted {predicted} ({off})".format(**each))
    if given.write:
        write({**known.COSTS, given.store: costs})
        (HERE / "results" / f"capacity-{given.store}.json").write_text(json.dumps(found, indent=1) + "\n")
        subprocess.run([sys.executable, HERE / "page.py"], check=True)  # a new process reads the new costs
    return 0 if all(each["near"] for each in found) else 1


def write(costs: Mapping[str, Costs]) -> None:
    """Write the costs of both stores as a module of the package."""
    lines = [
        '"""The measured costs of each store. Written by `bench/capacity.py --store STORE --write`."""',
        "",
        "from __future__ import annotations",
        "",
        "from collections.abc import Mapping",
        "",
        "from holdfast.core.capacity import Cost, Costs, Event",
        "",
    ]
    for store, each in sorted(costs.items()):
        lines += [f"{store.upper()} = Costs("]
        for name in (field.name for field in fields(Costs)):
            value = getattr(each, name)
            lines.append(f"    {name}={_events(value) if name == 'events' else _literal(value)},")
        lines += [")"]
    lines += [
        "COSTS: Mapping[str, Costs] = {" + ", ".join(f'"{store}": {store.upper()}' for store in sorted(costs)) + "}"
    ]
    COSTS.write_text("\n".join(lines) + "\n")
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", COSTS], check=True)


def _events(events: Mapping[Event, Cost]) -> str:
    parts = [
        f"Event.{event.name}: Cost({', '.join(_literal(value) for value in astuple(cost))})"
        for event, cost in events.items()
    ]
    return "{" + ", ".join(parts) + ",}"


def _literal(value: object) -> str:
    return (
        f"{float(f'{value:.3g}')}"
        if isinstance(value, float)
        else json.dumps(value)
        if isinstance(value, str)
        else repr(value)
    )


def shown(events: Mapping[Event, Cost]) -> str:
    lines = [f"{'event':10}{'server µs':>12}{'processes µs':>14}{'WAL bytes':>12}{'transactions':>13}"]
    for event, cost in events.items():
        one = f"{cost.store_us:12.1f}{cost.client_us:14.1f}{cost.wal_bytes:12.1f}{cost.transactions:13.2f}"
        lines.append(f"{event:10}{one}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
