"""Notices that the store was replaced, rewound or emptied, in every process that stays connected to it.

A process compares what the store says about itself with what it has seen of it before: a worker with every beat, a
supervisor and `holdfast reaper` on a thread of their own, a producer every few seconds while it enqueues. A worker that
has connected again, perhaps to another server, compares before it starts what it claims. A process writes
a finding into the store, so that all others learn of it, and logs it every minute, until a person accepts the store as
it is (`holdfast db accept`). A worker in doubt claims nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from holdfast.clock import Clock
from holdfast.core.continuity import Doubt, Standing, compare, is_accepted
from holdfast.core.records import Lease
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.runtime.service import Service
from holdfast.stores.protocol import Store, in_words

log = logging.getLogger("holdfast.continuity")

LOOK_S = 5.0  # how often a process looks that does not beat
SUPERVISOR_LOOK_S = 10.0  # the same for the parent of workers, which look with every beat
SAY_EVERY_S = 60.0

WORKER = "This worker claims no jobs and will settle the ones it runs."
SUPERVISOR = "Workers claim no jobs."
REAPER = "Workers claim no jobs; this reaper continues."
PRODUCER = "This process still stores jobs, but no worker claims them."


class Continuity:
    """Compares the store with what this process has seen of it before.

    `then`: what the process does about a finding, for the log. `settled` returns the lease that it has settled last.
    `heard` is called with what the store says about itself.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        name: str,
        then: str,
        *,
        settled: Callable[[], Lease | None] = lambda: None,
        heard: Callable[[Standing], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._name = name
        self._then = then
        self._settled, self._heard = settled, heard
        self._lock = threading.Lock()
        self._looked_at = clock.lease()
        self._connections = 0  # made before the last look
        self._worker_id = ""
        self._beats = 0  # of this incarnation of the worker, that were acknowledged
        self._added: list[str] = []  # the first two jobs that this process has stored since its last look
        self._before: Standing | None = None  # the last standing without a doubt
        self._last: Standing | None = None  # the same, or the one that is doubted
        self._found: Doubt | None = None
        self._said_at = float("-inf")
        self.in_doubt = False

    @property
    def is_outdated(self) -> bool:
        """Say whether the store has connected to a server since the last look."""
        return self._connections != self._store.connections_made

    def beaten(self, worker_id: str) -> None:
        """Count a beat that the store has acknowledged."""
        if worker_id != self._worker_id:
            self._worker_id, self._beats = worker_id, 0
        self._beats += 1

    def added(self, job_id: str) -> None:
        """Note that the store has acknowledged a job, and look when the last look was long ago."""
        is_due = self._clock.lease() - self._looked_at >= LOOK_S
        if is_due and self.try_to_look():
            return
        if len(self._added) < 2:  # the first ones: a later one may have been stored after the store was rewound
            self._added.append(job_id)

    def try_to_look(self) -> bool:
        """Look, unless another thread is at it, and return whether the store has answered. If not, it is asked again
        the next time."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._look("")
            return True
        except HoldfastError as error:
            log.debug("could not ask the store about itself (%s)", error)
            return False
        finally:
            self._lock.release()

    def look(self, worker_id: str) -> None:
        """Ask the store what it says about itself, and compare."""
        with self._lock:
            self._look(worker_id)

    def _look(self, worker_id: str) -> None:
        if worker_id != self._worker_id:
            self._worker_id, self._beats = worker_id, 0
        self._looked_at = self._clock.lease()
        added, self._added = self._added, []
        newest = self._before.newest if self._before is not None else []
        beats, connections = self._beats, self._store.connections_made
        try:
            now = self._store.standing(worker_id, sorted({*newest, *added}), self._settled())
            self._heard(now)
        except BaseException:
            self._added = added or self._added
            raise
        if self._last is not None and is_accepted(self._last, now):
            log.warning("the store was accepted as it is (incarnation %d)", now.incarnation)
            self._found, self._beats = None, now.beats or 0
        elif self._before is not None and (doubt := compare(self._before, beats, now)) is not None:
            self._found = msgspec.structs.replace(doubt, worker=self._name)
        self._last = now  # a restored store may have an older incarnation: accepting it raises that one
        if self._found is None:
            self._before = now
        self.in_doubt = self._found is not None or now.doubts > 0
        self._connections = connections  # only now: another thread starts what it has claimed when nothing is outdated
        self._say()
        if self._found is not None:  # last: the store may refuse the row
            self._store.doubt(now.incarnation, self._found)  # again: a store may be rewound twice

    def _say(self) -> None:
        if not self.in_doubt:
            self._said_at = float("-inf")
        elif self._clock.lease() - self._said_at >= SAY_EVERY_S:
            self._said_at = self._clock.lease()
            what = in_words(self._found) if self._found is not None else "another program has found this store changed"
            log.error("%s. %s Check the jobs, then run: holdfast db accept --by NAME --note TEXT", *(what, self._then))


def check_whole(store: Store) -> None:
    """Raise `StoreUnavailable` while another store is being copied into this one: nothing may change it meanwhile."""
    if store.is_served:
        return
    for doubt in store.doubts():
        if doubt.evidence == "copy":
            raise StoreUnavailable(in_words(doubt))


class Watcher:
    """Looks every few seconds on a thread of its own, while the block runs: for programs that do not beat."""

    def __init__(self, store: Store, clock: Clock, name: str, then: str, look_s: float = LOOK_S) -> None:
        self._continuity = Continuity(store, clock, name, then)
        self._service = Service("holdfast-continuity", self._turn, clock, log, look_s, jitter=0.0)

    def __enter__(self) -> Watcher:
        self._service.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._service.stop(LOOK_S)

    def _turn(self) -> None:
        self._continuity.try_to_look()
