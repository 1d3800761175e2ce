"""Many jobs, a few workers, and somebody who kills them at random; then the books are compared.

For the tests, and for `bench/storm.py`. The checker has a book of its own: the ledger, in which each handler wrote the
fence it was started under, and the list of the processes that were killed, with the time. From these it knows which
attempt was the newest, and whether its forerunner was dead; then it asks the store.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.core.machine import State
from holdfast.core.records import Event
from tests.crash.world import Entry, Process, World, now, until

GROUPS = ("ann", "bob")
PROCESSES = 2


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    jobs: int
    kills: int
    seed: int = 1
    slots: int = 4
    pause_s: tuple[float, float] = (0.1, 0.7)  # between two kills
    seconds: tuple[float, float] = (0.02, 0.2)  # that a job takes
    patience_s: float = 120.0


@dataclass
class Figures:
    """What was seen."""

    took_s: float = 0.0
    done: int = 0
    starts: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    zombies: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    verdict_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # every broken promise, in words

    def lines(self) -> Iterator[str]:
        yield f"{self.done} jobs done in {self.took_s:.1f} s, by {self.starts} starts"
        yield f"killed: {_told(self.kills)}"
        yield f"zombies: {self.zombies.total()} ({_told(self.zombies)})"
        if self.verdict_s:
            middle, longest = statistics.median(self.verdict_s), max(self.verdict_s)
            yield f"from kill -9 to the verdict on its jobs: median {middle:.3f} s, longest {longest:.3f} s"
        yield f"journal: {_told(self.events)}"
        yield "every promise held" if not self.wrong else f"BROKEN: {len(self.wrong)}"
        yield from self.wrong[:20]


def storm(folder: Path, plan: Plan) -> Figures:
    """Run it and return what was seen; `wrong` is empty when every promise was kept."""
    world = World(folder)
    try:
        lots = random.Random(plan.seed)
        tasks = (world.tasks.quick, world.tasks.aquick)
        drafts = [tasks[n % 2].job(lots.uniform(*plan.seconds)) for n in range(plan.jobs)]
        ids = [job.id for job in world.app.enqueue_many(drafts)]
        began = time.monotonic()
        executioner = Executioner(world, plan, lots)
        executioner.work()
        _until_all_ended(world, plan)
        figures = Figures(took_s=time.monotonic() - began, kills=executioner.counts)
        check(world, ids, executioner.killed, figures)
        return figures
    finally:
        world.close()


class Executioner:
    """Kills children and whole groups by the lot, and starts anew what nobody else would."""

    def __init__(self, world: World, plan: Plan, lots: random.Random) -> None:
        self._world = world
        self._plan = plan
        self._lots = lots
        self._groups = [self._start(name) for name in GROUPS]
        self.counts: Counter[str] = Counter()
        self.killed: dict[int, float] = {}  # pid -> when

    def _start(self, name: str) -> Process:
        return self._world.worker(name, "--slots", str(self._plan.slots), processes=PROCESSES)

    def work(self) -> None:
        for group in self._groups:
            group.until_ready()
        for _ in range(self._plan.kills):
            rest_until = time.monotonic() + self._lots.uniform(*self._plan.pause_s)
            until(lambda: time.monotonic() > rest_until, "the executioner rests")  # noqa: B023
            self._strike()

    def _strike(self) -> None:
        number = self._lots.randrange(len(self._groups))
        group, choice = self._groups[number], self._lots.random()
        children = group.children()
        if children and choice < 0.6:
            victim = self._lots.choice(sorted(children))
            self.killed[victim] = now()
            os.kill(victim, signal.SIGKILL)
            self.counts["children"] += 1
        else:
            members = group.members()
            at = now()
            group.kill()
            self.killed |= dict.fromkeys([*members, *group.pids_seen], at)
            self._groups[number] = self._start(group.name)
            self.counts["groups"] += 1


def _until_all_ended(world: World, plan: Plan) -> None:
    def ended() -> bool:
        states = world.store.counts().get("default", {})
        return states.get(State.READY, 0) + states.get(State.RUNNING, 0) == 0

    until(ended, "every job ends", plan.patience_s)


# ------------------------------------------------------------------------------------------- the book


def check(world: World, ids: list[str], killed: dict[int, float], figures: Figures) -> None:
    """Compare what the store says with what the handlers wrote and who was killed."""
    ledger: dict[str, list[Entry]] = defaultdict(list)
    for entry in world.ledger():
        ledger[entry.job].append(entry)
    journal: dict[str, list[Event]] = defaultdict(list)
    for event in world.store.journal(limit=10**9):
        journal[event.job_id].append(event)
        figures.events[event.kind] += 1
    for job in ids:
        for trouble in _troubles(world, job, ledger[job], journal[job], killed):
            figures.wrong.append(f"job {job}: {trouble}")
        figures.starts += sum(entry.event == "start" for entry in ledger[job])
        figures.verdict_s += _verdicts(journal[job], killed)
    figures.zombies = Counter(
        str(event.detail["detector"]) for events in journal.values() for event in events if event.kind == "zombie"
    )
    counts = {state: number for states in world.store.counts().values() for state, number in states.items()}
    figures.done = counts.get(State.DONE, 0)
    if counts != {State.DONE: len(ids)}:
        figures.wrong.append(f"P1: {len(ids)} jobs were stored, and there are {counts}")


def _troubles(
    world: World, job: str, entries: list[Entry], events: list[Event], killed: dict[int, float]
) -> Iterator[str]:
    row = world.store.get(job)
    if row is None:
        yield "P1: it is lost"
        return
    starts = [entry for entry in entries if entry.event == "start"]
    fences = [start.fence for start in starts]
    if row.state is not State.DONE:
        yield f"P10: it is {row.state.value}"
        return
    if fences != sorted(set(fences)):
        yield f"P4: its fences did not rise: {fences}"
    accepted = [event.fence for event in events if event.kind == "succeeded"]
    if len(accepted) != 1:
        yield f"P4: it was accepted {len(accepted)} times"
    elif accepted != fences[-1:] or row.result != str(accepted[0]):
        yield f"P3: attempt {accepted[0]} was accepted, {fences} were started, the result is of {row.result}"
    elif not any(entry.event == "end" and entry.fence == accepted[0] for entry in entries):
        yield "it was accepted, and its handler never came to the end"
    for sooner, later in itertools.pairwise(starts):
        if sooner.pid not in killed:
            yield f"P9: attempt {sooner.fence} was taken over although nobody killed its process {sooner.pid}"
        elif later.at < killed[sooner.pid]:
            yield f"P9: attempt {later.fence} was started {killed[sooner.pid] - later.at:.3f} s before the kill"
    for event in events:
        if event.kind == "zombie" and event.detail.get("pid") not in killed:
            yield f"P9: a false zombie, of process {event.detail.get('pid')} that nobody killed"
        elif event.kind not in ("zombie", "succeeded", "claimed", "released"):
            yield f"unexpected: {event.kind} {event.detail}"
    if row.zombies != sum(event.kind == "zombie" for event in events):
        yield f"it counts {row.zombies} zombies, and its journal does not agree"


def _verdicts(events: list[Event], killed: dict[int, float]) -> Iterator[float]:
    """From the kill of a process to the verdict on each job that it ran. Both clocks are of this host."""
    wall_minus_boot = time.time() - now()
    for event in events:
        if event.kind == "zombie" and (pid := event.detail.get("pid")) in killed:
            yield event.at - wall_minus_boot - killed[pid]


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items())) or "none"
