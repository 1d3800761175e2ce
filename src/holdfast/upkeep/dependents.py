"""Jobs that run after others: looked up at the enqueue, and started when the others have ended.

    settle of a job ─▶ DependentStarter (a thread of the worker) ─┐
    a reaper's pass, once a second ─▶ DependentSweep ─────────────┴─▶ decide() (pure) ─▶ store.move()

`move` compares and sets, so any number of programs may look at once. If a worker dies between its settlement and the
look, the next sweep of any reaper finds the job.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.core.acts import Move
from holdfast.core.dependencies import decide, ids_of
from holdfast.core.machine import State
from holdfast.core.records import Job, NewJob
from holdfast.errors import NotFound, UsageError
from holdfast.failpoints import point
from holdfast.stores.protocol import Reply, Store, rows_of
from holdfast.upkeep.after_settle import REST_S, AfterSettle

log = logging.getLogger("holdfast.reaper")

SWEEP_S = 1.0  # how often to look
PAGE = 1_000
PAGES_MAX = 5  # in one pass: the dead come first
AT_ONCE = 50  # rows that are read at once: each may be a few megabytes
NOTED_MAX = 10_000  # jobs that are kept for a look


def looked_up(store: Store, jobs: Sequence[NewJob], *, joins: bool = False) -> Sequence[NewJob]:
    """Return the jobs as they are to be stored: one that runs after jobs that are done already waits for nothing.

    `joins`: the caller's own transaction stores them, and perhaps the jobs that they run after; nothing is looked up.
    Raises `NotFound` for a job that does not exist, and `UsageError` for one that comes later in the same call.
    """
    wanted = {each for job in jobs for each in ids_of(job.awaits)}
    if not wanted:
        return jobs
    places = {job.id: place for place, job in enumerate(jobs)}
    for place, job in enumerate(jobs):
        for each in ids_of(job.awaits):
            if places.get(each, -1) >= place:
                raise UsageError(f"job {job.id} runs after job {each}, which comes later in this call; give it first")
            if each in places and jobs[places[each]].key is not None:
                raise UsageError(
                    f"job {job.id} runs after job {each}, which has a key and may not be stored: enqueue that one "
                    "first, and give the handle"
                )
    if joins:
        return jobs
    states = {row.id: row.state for row in _rows(store, sorted(wanted - places.keys()))}
    found: list[NewJob] = []
    for job in jobs:
        ids = ids_of(job.awaits)
        missing = [each for each in ids if each not in states and each not in places]
        if missing and store.get(job.id) is None:  # else it is repeated, and was stored before
            raise NotFound(f"there is no job {missing[0]!r} to run after")
        is_free = bool(ids) and all(states.get(each) is State.DONE for each in ids)
        found.append(replace(job, awaits=()) if is_free else job)
    return found


def start_dependents(store: Store, ids: Sequence[str]) -> int:
    """Decide about these jobs, as far as they wait for others that have all ended; return how many moved on."""
    moved = 0
    for start in range(0, len(ids), AT_ONCE):
        jobs = list(rows_of(store, ids[start : start + AT_ONCE], AT_ONCE))
        wanted = sorted({each for job in jobs for each in ids_of(job.awaits)})
        states = {row.id: row.state for row in rows_of(store, wanted, AT_ONCE)}
        wall = store.now().wall
        verdicts = ((job, decide(job, states, wall)) for job in jobs)
        moves = [Move(job.seen, verdict) for job, verdict in verdicts if verdict is not None]
        if moves:
            point("dependents.before")
            moved += store.move(moves).count(Reply.ACCEPTED)
    return moved


def _rows(store: Store, ids: Sequence[str]) -> Iterable[Job]:
    if store.is_served:  # the token of a producer may read one job, and not search
        return (row for row in map(store.get, ids) if row is not None)
    return rows_of(store, ids, AT_ONCE)


def _pages(store: Store, on: Sequence[str] | None, after: str = "") -> Iterator[tuple[list[str], str]]:
    """Yield the ids of jobs whose others have all ended, page by page, and the last id that was looked at; "" at the
    end."""
    while True:
        page = store.dependents(on, after, PAGE)
        after = page[-1].id if len(page) == PAGE else ""
        yield [each.id for each in page if each.is_over], after
        if not after:
            return


class DependentSweep:
    """Looks at the jobs that wait for others, some pages at a time, and starts again after the last one."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._after = ""
        self._at = float("-inf")

    def once(self) -> int:
        """Look if it is time to, and return how many jobs moved on. Raises `StoreError` when the store does."""
        if self._clock.lease() - self._at < SWEEP_S:
            return 0
        self._at = self._clock.lease()
        moved = 0
        for number, (ids, after) in enumerate(_pages(self._store, None, self._after), 1):
            self._after = after
            moved += start_dependents(self._store, ids)
            if number == PAGES_MAX:
                break
        if moved:
            log.info("decided about %d jobs whose earlier jobs have ended", moved)
        return moved


class DependentStarter(AfterSettle):
    """Starts the jobs that run after those that this worker has settled. While there are none in the store, it asks
    for them once a second at most."""

    name = "holdfast-dependents"
    what = "jobs that others may run after"

    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__(store, clock)
        self._rest_s = REST_S

    @property
    def rest_s(self) -> float:
        return self._rest_s

    def note(self, ids: Iterable[str]) -> None:
        if len(self._ids) < NOTED_MAX:  # what is left out is found by the sweep
            super().note(ids)

    def look(self, ids: set[str]) -> None:
        self._rest_s = SWEEP_S
        if not self._store.dependents(limit=1):
            return
        self._rest_s = REST_S
        for found, _ in _pages(self._store, sorted(ids)):
            start_dependents(self._store, found)
