"""A fleet in one thread: workers, reapers, a supervisor, clients and people, on a virtual clock, with seeded faults.

    simulate(Random(7), MemoryStore(clock=clock), clock)       raises Violation, or returns what was seen

The decisions are the real ones (`judge`, trust windows, `Reaper`, duties); only threads and processes are played. Every
process has its own way to the store, on which calls are lost before or after they were carried out, or are late. While
one call is late the others go on, so that each may find the world changed between two lines of its code, also in
the middle of a reaper's pass. A process that is killed runs no `finally`: its next call does not come back. One that is
frozen wakes up later, and reports what it has.

`checker.py` checks every call. When the faults stop, every job that is not held must come to its end.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import cast

from holdfast.core.machine import ENDED, State
from holdfast.core.records import Lease, Vanished
from holdfast.errors import HoldfastError
from holdfast.stores.protocol import Store
from holdfast.testing.clock import FakeClock
from holdfast.testing.faults import AFTER, BEFORE, Fault, FaultyStore
from tests.simulation.checker import CheckedStore, Checker, Role, Violation

FAULTS_S = 45.0  # how long there are faults
ALL_ENDED_S = 600.0  # by then everything must have ended
SLOW_REAPERS = 8.0  # how much more often a reaper is late between what it read and what it writes
NESTED_CALLS_MAX = 5  # how many late calls may be under way inside one another
SAFE = ("now", "wake", "check", "counts")  # asked of the store too often, or only by the checker


@dataclass(frozen=True, slots=True)
class FaultRates:
    """What goes wrong in one run. Each seed draws its own, so that a fault is also met without the others."""

    lost_before: float
    lost_after: float
    late: float
    late_s: float
    killed_every_s: float
    frozen_every_s: float
    cut_off_every_s: float  # the store cannot be reached by anybody
    declared_dead_every_s: float  # a living worker is declared dead
    lock_looks_free_every_s: float  # a living worker's lock looks free for a moment

    @classmethod
    def draw(cls, dice: Random) -> FaultRates:
        """Switch each kind of fault on or off, and choose how bad it is."""

        def rate(*some: float) -> float:
            return dice.choice(some)

        return cls(
            lost_before=rate(0.0, 0.02, 0.1), lost_after=rate(0.0, 0.02, 0.1), late=rate(0.0, 0.05, 0.2),
            late_s=rate(0.2, 1.0, 8.0), killed_every_s=rate(5.0, 15.0, 1e9), frozen_every_s=rate(2.0, 8.0, 1e9),
            cut_off_every_s=rate(20.0, 1e9),
            declared_dead_every_s=rate(30.0, 1e9), lock_looks_free_every_s=rate(10.0, 1e9),
        )  # fmt: skip


class Killed(BaseException):
    """The process was killed while its call was under way; nothing catches this."""


class Process:
    """Something that can be frozen and killed, with its own way to the store."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.fleet = fleet
        self.name = name
        self.alive = True
        self.frozen_until = float("-inf")
        self.waiting: list[Callable[[], None]] = []  # what it does first when it wakes
        self.id = ""  # the worker that it is now, if it is one

    def died(self, fenced: bool) -> None:
        """Be told that it was killed; `fenced`: by itself, because it could not stop a handler in time."""

    def was_declared_dead_wrongly(self) -> None:
        """Be declared dead while it lives."""

    def store_for(self, role: Role) -> Store:
        """Return the store as this process reaches it."""
        return self.fleet.store_for(self, role)

    def loop(self, turn: Callable[[], None], every_s: float) -> None:
        """Take a turn again and again, as a thread of this process would; a store that fails is tried again."""

        def once() -> None:
            try:
                turn()
            except HoldfastError:
                self.fleet.sometimes["turns cut short by the store"] += 1
            self.fleet.after(every_s * self.fleet.dice.uniform(0.5, 1.5), self, once)

        self.fleet.after(self.fleet.dice.uniform(0.0, every_s), self, once)


class Fleet:
    """The clock, the order of events, the faults, and the way to the store."""

    def __init__(self, dice: Random, store: Store, clock: FakeClock) -> None:
        self.dice = dice
        self.clock = clock
        self.store = store
        self.checker = Checker(store, self._is_trusted)
        self.sometimes: Counter[str] = self.checker.sometimes
        self.fault_rates = FaultRates.draw(dice)
        self.stormy = True
        self.processes: list[Process] = []
        self._sky = Process(self, "the sky")
        self.beliefs: dict[Lease, tuple[Process, float]] = {}  # who believes in a lease, and until when
        self.freed: dict[str, int] = {}  # workers whose lock looks free -> for how many looks
        self._cut_off_until = float("-inf")
        self._events: list[tuple[float, int, Process, Callable[[], None]]] = []
        self.names = itertools.count(1)
        self._count = 0
        self._depth = 0
        self.turns = 0

    # ------------------------------------------------------------------------------------ time

    def now(self) -> float:
        return self.clock.lease()

    def after(self, seconds: float, process: Process, turn: Callable[[], None]) -> None:
        """Let the process take this turn then."""
        self._count += 1
        heapq.heappush(self._events, (self.now() + seconds, self._count, process, turn))

    def run(self, until: float) -> None:
        """Let every turn happen that is due by then."""
        while self._events and self._events[0][0] <= until:
            at, _, process, turn = heapq.heappop(self._events)
            if not process.alive:
                continue
            self._move_to(at)
            if process.frozen_until > self.now():
                process.waiting.append(turn)
                continue
            self.turns += 1
            try:
                turn()
            except Killed:
                self.sometimes["kills in the middle of a call"] += 1
        self._move_to(until)

    def _move_to(self, at: float) -> None:
        if at > self.now():
            self.clock.advance(at - self.now())

    # ------------------------------------------------------------------------------ the way to the store

    def store_for(self, process: Process, role: Role) -> Store:
        seen = cast(Store, CheckedStore(cast(Store, _Liveness(self.store, self)), self.checker, role))
        return cast(Store, FaultyStore(seen, partial(self._plan, role), partial(self._be_late, process)))

    def _plan(self, role: Role, verb: str) -> Fault | None:
        if not self.stormy or verb in SAFE:
            return None
        if self.now() < self._cut_off_until:
            self.sometimes["calls in an outage"] += 1
            return BEFORE
        lot, fault_rates = self.dice.random(), self.fault_rates
        for fault, rate in ((BEFORE, fault_rates.lost_before), (AFTER, fault_rates.lost_after)):
            if lot < rate:
                self.sometimes[f"{'answers' if fault.done else 'calls'} lost: {verb}"] += 1
                return fault
            lot -= rate
        reaps = role == "reaper" and verb == "settle"
        if lot < fault_rates.late * (SLOW_REAPERS if reaps else 1.0) and self._depth < NESTED_CALLS_MAX:
            way_s, back_s = (self.dice.choice((0.0, self.dice.uniform(0.0, fault_rates.late_s))) for _ in range(2))
            if reaps:
                self._thaw()
                way_s += 0.1
            lost = self.dice.random() < fault_rates.lost_after
            return Fault(before_s=way_s, after_s=back_s, error=lost, done=lost)
        return None

    def _be_late(self, process: Process, seconds: float) -> None:
        """Let the others go on meanwhile."""
        self._depth += 1
        self.sometimes["late calls"] += 1
        until = self.now() + seconds
        while True:
            self.run(until)
            if process.frozen_until <= self.now() or not process.alive:
                break
            until = process.frozen_until
        self._depth -= 1
        if not process.alive:
            raise Killed

    def _is_trusted(self, lease: Lease) -> bool:
        process, until = self.beliefs.get(lease, (None, float("-inf")))
        return process is not None and process.alive and until > self.now()

    # ------------------------------------------------------------------------------------ bad fault_rates

    def inject_faults(self, workers: Callable[[], list[Process]]) -> None:
        """Start the faults that come by themselves; `workers` tells who lives."""
        sky, fault_rates = self._sky, self.fault_rates

        def every(mean_s: float, strike: Callable[[Process], None], whom: Callable[[], list[Process]]) -> None:
            def again() -> None:
                if self.stormy:
                    if there := whom():
                        strike(self.dice.choice(there))
                    self.after(self.dice.uniform(0.2, 1.8) * mean_s, sky, again)

            self.after(self.dice.uniform(0.0, 1.0) * mean_s, sky, again)

        every(fault_rates.killed_every_s, self.kill, workers)
        every(fault_rates.frozen_every_s, self._freeze, lambda: self._busy() or self.processes)
        every(fault_rates.cut_off_every_s, lambda _: self._cut_off(), lambda: [sky])
        every(fault_rates.declared_dead_every_s, self._declare_dead_wrongly, workers)
        every(fault_rates.lock_looks_free_every_s, self._show_lock_free, workers)

    def kill(self, process: Process, *, fenced: bool = False) -> None:
        """End a process here and now."""
        if process.alive:
            process.alive = False
            self.sometimes["processes that fenced themselves" if fenced else "kills"] += 1
            process.died(fenced)

    def _declare_dead_wrongly(self, process: Process) -> None:
        if process.alive:
            process.was_declared_dead_wrongly()
            self.sometimes["living workers declared dead"] += 1

    def _freeze(self, process: Process) -> None:
        if process.alive:
            ends = [until for who, until in self.beliefs.values() if who is process]
            just_past = max([*ends, self.now()]) + self.dice.uniform(0.0, 2.0)  # it wakes while the reapers look
            until = self.dice.choice((self.now() + 0.5, self.now() + 3.0, self.now() + 12.0, just_past, just_past))
            process.frozen_until = max(process.frozen_until, until)
            self.after(until - self.now(), self._sky, lambda: self._wake(process))
            self.sometimes["pauses past the lease"] += any(end < process.frozen_until for end in ends)

    def _thaw(self) -> None:
        """Let the frozen wake up just when a reaper is about to take their leases; chance alone does so too rarely."""
        for process in self.processes if self.dice.random() < 0.8 else []:
            process.frozen_until = min(process.frozen_until, self.now())
            self._wake(process)

    def _wake(self, process: Process) -> None:
        if process.frozen_until <= self.now():
            turns, process.waiting = process.waiting, []
            for turn in turns:
                self.after(self.dice.uniform(0.0, 0.05), process, turn)

    def _busy(self) -> list[Process]:
        """Return those who hold a lease, one time in two."""
        holders = [process for process, _ in self.beliefs.values() if process.alive]
        return holders if self.dice.random() < 0.5 else []

    def _cut_off(self) -> None:
        self._cut_off_until = self.now() + self.dice.choice((0.5, 3.0, 9.0))
        self.sometimes["outages"] += 1

    def _show_lock_free(self, process: Process) -> None:
        if process.id and process.id not in self.freed:
            self.freed[process.id] = 1
            self.sometimes["locks that looked free once"] += 1

    def stop_faults(self) -> None:
        """End the bad fault_rates."""
        self.stormy = False
        self._cut_off_until = float("-inf")
        self.freed = {worker_id: looks for worker_id, looks in self.freed.items() if looks > 1}
        for process in self.processes:
            process.frozen_until = min(process.frozen_until, self.now())
            self._wake(process)

    def pick(self, *weighted: tuple[float, object]) -> object:
        """Draw one of the things, each as likely as its weight."""
        lot = self.dice.random() * sum(weight for weight, _ in weighted)
        for weight, thing in weighted:
            lot -= weight
            if lot < 0:
                return thing
        return weighted[-1][1]


class _Liveness:
    """What the host knows beside the store: whose liveness lock looks free."""

    def __init__(self, store: Store, fleet: Fleet) -> None:
        self._store = store
        self._fleet = fleet

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def vanished(self) -> list[Vanished]:
        """Add the workers whose lock looks free to those that the store calls gone."""
        freed = self._fleet.freed
        found = self._store.vanished()
        for worker in self._store.workers():
            if freed.get(worker.id, 0) > 0:
                freed[worker.id] -= 1
                found.append(Vanished(worker, "lock"))
        return found


@dataclass(frozen=True, slots=True)
class Simulated:
    """What one run has seen. `digest` is equal for equal runs."""

    jobs: int
    turns: int
    sometimes: Counter[str]
    digest: tuple[object, ...]


def simulate(dice: Random, store: Store, clock: FakeClock) -> Simulated:
    """Play one fleet through bad fault_rates and the calm after it; raises `Violation` when a promise is broken."""
    from tests.simulation.sim_actors import start_actors  # the actors need a fleet

    fleet = Fleet(dice, store, clock)
    try:
        start_actors(fleet)
        fleet.run(fleet.now() + FAULTS_S)
        fleet.stop_faults()
        _wait_for_all(fleet)
        fleet.checker.close()
    except Violation as broken:
        broken.steps_taken = [str(call) for call in fleet.checker.recent]
        broken.add_note("the last calls:\n" + "\n".join(broken.steps_taken))
        raise
    rows = tuple((row.id, row.state, row.fence, row.attempt, row.result) for row in fleet.checker.rows.values())
    return Simulated(len(rows), fleet.turns, fleet.sometimes, (*rows, fleet.turns, round(fleet.now(), 6)))


def _wait_for_all(fleet: Fleet) -> None:
    """P10: when the fault_rates is good again, every job that is not held comes to its end."""
    give_up_at = fleet.now() + ALL_ENDED_S
    while unfinished := [row for row in fleet.checker.rows.values() if row.state not in {*ENDED, State.HELD}]:
        if fleet.now() >= give_up_at:
            raise Violation("P10", f"{ALL_ENDED_S:g} s after the fault_rates cleared there is still {unfinished}")
        fleet.run(fleet.now() + 5.0)
