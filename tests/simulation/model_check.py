"""Every interleaving of a small world, one call of the store at a time.

    explore(World(jobs=[…], deaths=1, losses=1))     returns counts, or raises Violation with the shortest way there

Two workers, a reaper, a supervisor, perhaps a person (`model_actors.py`); each may stop between any two of its calls
for as long as it likes (a pause), a worker may die anywhere, also with its claim on the wire, answers are late or lost,
and time is an actor like the others. All of it runs over the real core and the memory store; `checker.py` checks
every call; and in every state each lease that was ever given, and each mixture of two, comes back once more.

Two worlds that differ only in how late it is are one: instants count by their distance from now, and what is past is
past. So the search ends without a limit on time; what is limited is in `World`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from holdfast.core.machine import ENDED, State
from holdfast.core.records import Job, Lease, NewEvent, NewJob, Pulse, Record
from holdfast.core.records import Worker as Enrolled
from holdfast.core.settlement import Settlement, settlement
from holdfast.core.verdict import Outcome, Succeeded, judge
from holdfast.stores.memory import MemoryStore
from holdfast.stores.protocol import Store
from holdfast.testing.clock import FakeClock
from tests.simulation.checker import CheckedStore, Checker, Violation
from tests.simulation.model_actors import QUEUES, TASKS, Actor, Person, ReaperActor, SupervisorActor, Worker

T = TypeVar("T")

TICK_S = 1.0
LEASE_S = 2.0  # of the jobs in a model: it runs out at the second tick, and its worker beats at the first
WALL, LEASE = 1_700_000_000.0, 1_000.0  # where the clocks start
BYSTANDER = "bystander"  # a living worker that brings old leases back


@dataclass(frozen=True, slots=True)
class World:
    """What there is, and how often things may happen."""

    jobs: Sequence[NewJob]
    workers: int = 2
    reapers: int = 1
    claims: int = 3
    deaths: int = 1
    losses: int = 1  # of answers
    failures: int = 0
    slanders: int = 0  # living workers declared dead
    acts: Sequence[Literal["approve", "hold", "cancel"]] = ()  # what a person may decide, each as often as it is named


@dataclass(frozen=True, slots=True)
class Explored:
    """How large the world was."""

    states: int
    transitions: int
    ends: int  # states in which every job has ended or is held


class _Store(MemoryStore):
    """A memory store that can be set back."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.traces: frozenset[tuple[object, ...]] = frozenset()  # what the journal has that could decide an answer

    def snapshot(self) -> tuple[Any, ...]:
        events = {job_id: tuple(events) for job_id, events in self._events.items()}
        return dict(self._jobs), dict(self._workers), events, self.traces

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        jobs, workers, events, self.traces = snapshot
        self._jobs, self._workers = dict(jobs), dict(workers)
        self._events = {job_id: list(kept) for job_id, kept in events.items()}

    def _write(self, job_id: str, note: NewEvent, fence: int, worker: str | None) -> None:
        super()._write(job_id, note, fence, worker)
        if note.kind not in ("stale_report", "zombie"):
            self.traces |= {(job_id, fence, note.kind, note.detail.get("decision"))}


class Model:
    """The world as it is now. It is set back and forth between the states that are known."""

    def __init__(self, world: World) -> None:
        self.clock = FakeClock(WALL, LEASE)
        self.store = _Store(self.clock)
        self.checker = Checker(self.store, self._is_trusted)
        self.attempts = cast(Store, CheckedStore(self.store, self.checker, "attempt"))
        self.reapers = cast(Store, CheckedStore(self.store, self.checker, "reaper"))
        self.left = {name: getattr(world, name) for name in ("deaths", "losses", "failures", "slanders")}
        self.left |= {act: list(world.acts).count(act) for act in ("approve", "hold", "cancel")}
        self._claims = world.claims
        self._issued: frozenset[Lease] = frozenset()
        actors: list[Actor] = [Worker(name=f"w{number}") for number in range(world.workers)]
        actors += [ReaperActor(name=f"reaper {number}") for number in range(world.reapers)]
        actors += [SupervisorActor(name="supervisor"), *([Person(name="person")] if world.acts else [])]
        self.actors = {actor.name: actor for actor in actors}
        self.attempts.add(world.jobs)
        self.store.enroll(Enrolled(id=BYSTANDER, name=BYSTANDER, host="h", pid=1, boot_id="boot"))
        for actor in actors:
            if isinstance(actor, Worker):
                self.enrol(actor)

    # ------------------------------------------------------------------------------- what actors may ask

    def now(self) -> float:
        return self.clock.lease()

    def age_s(self, instant: float | None) -> float | None:
        """Return how long ago that was; longer than a lease is all the same."""
        return None if instant is None else min(self.now() - instant, LEASE_S)

    def left_s(self, instant: float | None) -> float | None:
        """Return how long it is until then; what is past is past."""
        return None if instant is None else max(instant - self.now(), 0.0)

    def has_work(self) -> bool:
        due = self.store.due(QUEUES, TASKS)
        return due is not None and due <= self.clock.wall() and not self.is_used_up()

    def is_used_up(self) -> bool:
        """Say whether all claims of this world were made."""
        return self._started() >= self._claims

    def may_arrive(self, worker: Worker) -> bool:
        """Say whether a claim may arrive now. One that finds nothing may as well arrive later; a repeated one, and one
        of the gone, take nothing."""
        running = (job for job in self.checker.rows.values() if job.state is State.RUNNING)
        repeated = any(job.claim_id == worker.claim_id for job in running)
        return repeated or worker.id in self.checker.gone or self.has_work()

    def is_current(self, lease: Lease) -> bool:
        """Say whether the lease still stands. One that does not can do nothing any more (`probe` tries, in every
        state), so whoever has it is only offered to report it."""
        expected = self.checker.expectations[lease.job_id]
        return expected.lease == lease and expected.state is State.RUNNING

    def is_next(self, worker: Worker) -> bool:
        """Workers are alike, so the first one asks first: what else could happen is the same with the names changed."""
        first = next(actor for actor in self.actors.values() if isinstance(actor, Worker))
        return worker.name == first.name or first.claims > 0 or first.born > 1

    def judged(self, job: Job, outcome: Outcome, *, seen_lease: bool = False) -> Settlement:
        return settlement(job, judge(outcome, job, self.clock.wall(), chance=0.5), seen_lease=seen_lease)

    def spend(self, what: str, actor: T) -> T:
        self.left[what] -= 1
        return actor

    def enrol(self, worker: Worker) -> Worker:
        self.store.enroll(Enrolled(id=worker.id, name=worker.name, host="h", pid=1, boot_id="boot"))
        return worker

    def sure(self, value: T | None) -> T:
        """Return what must be there in this phase."""
        assert value is not None
        return value

    def _started(self) -> int:
        return sum(job.attempt for job in self.checker.rows.values())

    def _is_trusted(self, lease: Lease) -> bool:
        holders = (actor for actor in self.actors.values() if isinstance(actor, Worker) and actor.job is not None)
        windows = (actor.window for actor in holders if self.sure(actor.job).lease == lease)
        return any(window is not None and not window.is_over(self.now()) for window in windows)

    # ---------------------------------------------------------------------------------- one state

    def snapshot(self) -> tuple[Any, ...]:
        kept = (dict(self.actors), dict(self.left), self._issued)
        return self.now(), self.store.snapshot(), self.checker.snapshot(), *kept

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        now, store, checker, actors, left, self._issued = snapshot
        self.clock.reboot(self.clock.boot_id, now)
        self.clock.set_wall(WALL + now - LEASE)
        self.store.restore(store)
        self.checker.restore(checker)
        self.actors, self.left = dict(actors), dict(left)

    def key(self) -> tuple[Hashable, Hashable]:
        """Return what decides everything that can follow: of the store, and of the rest."""
        rows = tuple(self._row(job) for job in self.checker.rows.values())
        actors = tuple(actor.key(self) for actor in self.actors.values())
        store = (rows, self.checker.gone, self.store.traces, self._issued)
        return store, (actors, tuple(self.left.values()), self.checker.dead)

    def _row(self, job: Job) -> Hashable:
        expected = self.checker.expectations[job.id]
        due_s = max(0.0, job.run_at - self.clock.wall()) if job.state is State.READY else None
        left_s = self.left_s(job.lease_until)
        return (
            *(job.state, job.fence, job.claim_id, job.worker, job.attempt, job.failures, job.crashes, due_s, left_s),
            *(job.cancel_requested, job.open_step),
            *(expected.started, expected.by_itself, expected.lease, expected.opened),
        )

    def steps(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Offer everything that can happen next."""
        for name, actor in self.actors.items():
            for what, act in actor.steps(self):
                yield f"{name}: {what}", lambda name=name, act=act: self._take(name, act)  # type: ignore[misc]
        yield "a tick passes", lambda: self.clock.advance(TICK_S)

    def _take(self, name: str, act: Callable[[], Actor]) -> None:
        self.actors[name] = act()
        leases = (expected.lease for expected in self.checker.expectations.values())
        self._issued |= {lease for lease in leases if lease is not None}

    def probe(self) -> None:
        """Bring every lease back that does not stand, and every mixture of two; the checker hears the answers."""
        for job in list(self.checker.rows.values()):
            issued = [lease for lease in self._issued if lease.job_id == job.id]
            mixed = {Lease(job.id, one.fence, other.claim_id) for one in issued for other in issued}
            for lease in sorted((lease for lease in mixed if not self.is_current(lease)), key=repr):
                self.attempts.beat(BYSTANDER, [Pulse(lease)])
                verdict = judge(Succeeded('"stale"'), job, self.clock.wall(), chance=0.5)
                late = Settlement(lease=lease, queue=job.queue, worker=BYSTANDER, verdict=verdict)
                self.attempts.settle([late])
                if job.workflow:
                    self.attempts.record([Record(lease=lease, open_step="late")])

    def is_over(self) -> bool:
        """Say whether every job has ended."""
        return all(job.state in ENDED for job in self.checker.rows.values())

    def is_end(self) -> bool:
        """Say whether every job has ended or is held, or has used up the claims of this world."""
        ended = all(job.state in ENDED or job.state is State.HELD for job in self.checker.rows.values())
        return ended or self.is_used_up()


def explore(world: World, states_max: int = 1_000_000) -> Explored:
    """Take every way through the world; raises `Violation` with the shortest way to the broken promise."""
    here = Model(world)
    first = here.snapshot()
    known = {here.key(): 0}
    probed: set[Hashable] = set()
    ways: list[tuple[int, str]] = [(0, "the beginning")]
    before: list[list[int]] = [[]]  # from which states each one is reached
    ends: list[int] = []
    todo: deque[tuple[int, tuple[Any, ...]]] = deque([(0, first)])
    transitions = 0
    while todo:
        number, snapshot = todo.popleft()
        here.restore(snapshot)
        over = here.is_over()
        for what, act in list(here.steps()):  # actors are values: what they offer stays right
            here.restore(snapshot)
            try:
                act()
                transitions += 1
                key = here.key()
                there = known.get(key)
                if there is None:
                    there = known[key] = len(ways)
                    ways.append((number, what))
                    before.append([])
                    if over or here.is_end():
                        ends.append(there)
                    if not over:  # the first step after the end is taken, to see that nothing changes; no more
                        todo.append((there, here.snapshot()))
                    if key[0] not in probed:
                        probed.add(key[0])
                        here.probe()
            except Violation as broken:
                raise _told(broken, ways, number, what) from broken
            before[there].append(number)
            if len(ways) > states_max:
                raise OverflowError(f"more than {states_max} states; make the world smaller")
    _check_that_all_ways_end(ways, before, ends)
    return Explored(len(ways), transitions, len(ends))


def _check_that_all_ways_end(ways: list[tuple[int, str]], before: list[list[int]], ends: list[int]) -> None:
    """P10: from every state there is a way to an end."""
    safe, todo = set(ends), list(ends)
    while todo:
        for origin in before[todo.pop()]:
            if origin not in safe:
                safe.add(origin)
                todo.append(origin)
    for number, (origin, what) in enumerate(ways):
        if number not in safe:
            stuck = Violation("P10", "from here no job can come to its end")
            raise _told(stuck, ways, origin, what)


def _told(broken: Violation, ways: list[tuple[int, str]], number: int, what: str) -> Violation:
    """Return the violation with the way that led to it."""
    way = [what]
    while number:
        number, step = ways[number]
        way.append(step)
    told = Violation(broken.promise, str(broken).partition(": ")[2] + "\n  " + "\n  ".join(reversed(way)))
    told.steps_taken = way[::-1]
    return told
