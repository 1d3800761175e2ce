"""Many jobs, a few workers, and somebody who kills them at random, and their server too; then the books are compared.

For the tests, and for `bench/storm.py`. What was done is held against `book.py`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.machine import State
from holdfast.errors import StoreError
from holdfast.tasks import Draft
from tests.crash.book import Book, Figures, check
from tests.crash.world import Process, World, now, until
from tests.servers import PostgresServer, RedisServer

GROUPS = ("ann", "bob")
PROCESSES = 2


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    jobs: int  # at once; with `refill` this many are kept waiting
    kills: int = 0  # at least; more until one of them hits a running job
    minutes: float = 0.0  # go on at least this long
    refill: bool = False
    seed: int = 1
    slots: int = 4
    pause_s: tuple[float, float] = (0.1, 0.7)  # between two kills
    seconds: tuple[float, float] = (0.02, 0.2)  # that a job takes
    patience_s: float = 120.0
    effects: bool = False  # whether every third job writes to the user's table, inside ctx.transaction()
    server_share: float = 0.0  # of the kills, that hit the server
    back_s: float = 10.0  # workers consume again this long after the server is back
    lease_s: float = 30.0  # when the server dies soon after a worker, nothing but the lease shows that death


def storm(folder: Path, plan: Plan, url: str = "", server: PostgresServer | RedisServer | None = None) -> Figures:
    """Run it and return what was seen; `wrong` is empty when every promise was kept."""
    world = World(folder, url=url)
    try:
        lots = random.Random(plan.seed)
        book = Book(back_s=plan.back_s, lease_s=plan.lease_s)
        if plan.effects:
            assert world.store.schema().found
            with contextlib.closing(world.connect()) as db:
                db.execute("CREATE TABLE effect (job TEXT, fence INTEGER)")
        load = Load(world, plan, random.Random(plan.seed), book)
        load.add(plan.jobs)
        began = time.monotonic()
        load.start()
        try:
            Executioner(world, plan, lots, book, server).work(began + plan.minutes * 60)
        finally:
            load.stop()
        _until_all_ended(world, plan)
        figures = Figures(took_s=time.monotonic() - began)
        check(world, book, figures)
        return figures
    finally:
        world.close()


class Load:
    """Stores jobs, and keeps account of those that were acknowledged."""

    def __init__(self, world: World, plan: Plan, lots: random.Random, book: Book) -> None:
        self._world = world
        self._plan = plan
        self._lots = lots
        self._book = book
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="load")

    def add(self, many: int) -> None:
        """Store so many; what was not acknowledged is repeated with the same ids until it is (P2)."""
        drafts = [self._draft(n) for n in range(many)]
        while True:
            try:
                self._book.jobs += [job.id for job in self._world.app.enqueue_many(drafts)]
                return
            except StoreError:
                self._book.repeated += 1
                self._stopping.wait(0.05)

    def start(self) -> None:
        if self._plan.refill:
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _draft(self, number: int) -> Draft[int]:
        tasks = self._world.tasks
        seconds = self._lots.uniform(*self._plan.seconds)
        pays = self._plan.effects and number % 3 == 2
        task = tasks.pay if pays else (tasks.quick, tasks.aquick)[number % 2]
        draft: Draft[int] = task.using(lease_s=self._plan.lease_s).job(seconds)
        if pays:
            self._book.paying.add(draft.new.id)
        return draft

    def _go_on(self) -> None:
        while not self._stopping.wait(0.1):
            with contextlib.suppress(StoreError):
                waiting = self._world.store.counts().get("default", {}).get(State.READY, 0)
                if waiting < self._plan.jobs:
                    self.add(self._plan.jobs - waiting)


class Executioner:
    """Kills children, whole groups and the server by the lot, and starts anew what nobody else would."""

    def __init__(
        self, world: World, plan: Plan, lots: random.Random, book: Book, server: PostgresServer | RedisServer | None
    ) -> None:
        self._world = world
        self._plan = plan
        self._lots = lots
        self._book = book
        self._server = server
        self._groups = [self._start(name) for name in GROUPS]

    def _start(self, name: str) -> Process:
        return self._world.worker(name, "--slots", str(self._plan.slots), processes=PROCESSES)

    def work(self, end: float) -> None:
        """Kill as often as planned, at least until this instant, and until a kill has hit a running job."""
        for group in self._groups:
            group.until_ready()
        while time.monotonic() < end or self._book.kills.total() < self._plan.kills or not self._has_hit():
            rest_until = time.monotonic() + self._lots.uniform(*self._plan.pause_s)
            until(lambda: time.monotonic() > rest_until, "the executioner rests")  # noqa: B023
            if self._server is not None and self._lots.random() < self._plan.server_share:
                self._strike_the_server(self._server)
            else:
                self._strike()

    def _has_hit(self) -> bool:
        return bool(self._world.store.journal(None, ["zombie"], limit=1))

    def _strike(self) -> None:
        number = self._lots.randrange(len(self._groups))
        group, choice = self._groups[number], self._lots.random()
        children = group.children()
        if children and choice < 0.6:
            victim = self._lots.choice(sorted(children))
            self._book.killed[victim] = now()
            os.kill(victim, signal.SIGKILL)
            self._book.kills["children"] += 1
        else:
            members = group.members()
            at = now()
            group.kill()
            self._book.killed |= dict.fromkeys([*members, *group.pids_seen], at)
            self._groups[number] = self._start(group.name)
            self._book.kills["groups"] += 1

    def _strike_the_server(self, server: PostgresServer | RedisServer) -> None:
        killed_at = now()
        server.stop(signal.SIGKILL)
        server.start()
        self._book.outages.append((killed_at, now()))
        self._book.kills["servers"] += 1


def _until_all_ended(world: World, plan: Plan) -> None:
    def ended() -> bool:
        states = world.store.counts().get("default", {})
        return states.get(State.READY, 0) + states.get(State.RUNNING, 0) == 0

    until(ended, "every job ends", plan.patience_s)
