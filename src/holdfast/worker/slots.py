"""The slots of one worker process, and the buffer of claimed attempts that wait for one.

An attempt gets a slot, runs on the event loop, in a thread or in an isolated process, and frees the slot when it ends.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence

from holdfast.clock import Clock
from holdfast.continuity import Continuity
from holdfast.core.isolation import isolates, may_isolate
from holdfast.core.verdict import Outcome, Released
from holdfast.runtime.store_backoff import SAY_EVERY_S
from holdfast.runtime.vital_threads import Died
from holdfast.worker.attempt import Attempt
from holdfast.worker.executors import Flows, Loop, MakeContext, Threads, interrupted
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.isolated.pool import Pool, WorkerCallbacks
from holdfast.worker.isolated.task_locator import TaskLocator
from holdfast.worker.options import WorkerOptions
from holdfast.worker.settler import Settler
from holdfast.worker.stuck_handlers import ABANDONED, StuckHandlers

log = logging.getLogger("holdfast.worker")

AHEAD_MAX = 1000  # jobs claimed ahead in one call
NO_THREAD_PAUSE_S = 1.0  # how long not to claim after a thread could not be started


class Slots:
    """Runs attempts, at most `options.slots` at once.

    `may_exit`: the process belongs to this worker alone. `idle` is set when the last running attempt ends, `has_room`
    when the claimer should claim more.
    """

    def __init__(
        self,
        options: WorkerOptions,
        clock: Clock,
        heartbeat: Heartbeat,
        settler: Settler,
        continuity: Continuity,
        task_locator: TaskLocator,
        make_context: MakeContext,
        flows: Flows,
        died: Died,
        *,
        name: str,
        may_exit: bool,
    ) -> None:
        self._options = options
        self._clock = clock
        self._heartbeat = heartbeat
        self._settler = settler
        self._continuity = continuity
        self._task_locator = task_locator
        self._shares_process = may_exit and options.slots > 1
        self._stuck = StuckHandlers(options.slots, may_end=may_exit)
        self._lock = threading.Lock()
        self._buffer: deque[Attempt] = deque()
        self._running = 0
        self._ahead = 0  # how many the buffer should hold
        self._only_loop = True  # all that the buffer holds will run on the event loop
        self._refills = False  # the event loop is about to fill free slots
        self._paused_until = float("-inf")
        self._said_short_at = float("-inf")  # that there are no more threads
        self.idle, self.has_room = threading.Event(), threading.Event()
        self.threads = Threads(clock, make_context, settler.commit, self.ended, flows)
        self.loop = Loop(clock, make_context, settler.commit, self.ended, flows, died=died)
        callbacks = WorkerCallbacks(self.ended, settler.settled_itself, heartbeat.beat_soon, self.pause, died)
        self.pool = Pool(clock, task_locator, options, callbacks, name)

    @property
    def running(self) -> int:
        with self._lock:
            return self._running

    @property
    def is_empty(self) -> bool:
        """Say whether nothing runs and nothing waits for a slot."""
        with self._lock:
            return self._running == 0 and not self._buffer

    @property
    def must_end(self) -> bool:
        """Say whether handlers that would not stop leave too little of this process."""
        return self._stuck.must_end

    def room(self, ahead: int) -> tuple[int, int]:
        """Return how many more jobs could start at once, and how many more to claim for a buffer of `ahead`."""
        slots = self._options.slots
        with self._lock:
            taken = self._running + len(self._buffer)
        if self._clock.lease() < self._paused_until:
            return 0, 0
        self._ahead = ahead
        missing = slots + ahead - max(taken, slots)
        enough = missing >= min(ahead / 2, AHEAD_MAX / 2)  # a few large claims cost less than many small ones
        return max(0, slots - taken), min(missing, AHEAD_MAX) if enough else 0

    def pause(self, pause_s: float) -> None:
        """Have no room for a while: the system gives no more threads or processes, or this worker is broken."""
        self._paused_until = max(self._paused_until, self._clock.lease() + pause_s)

    # --------------------------------------------------------------------------------------- the buffer

    def add(self, attempts: Sequence[Attempt]) -> None:
        """Take claimed attempts, and start as many as there are free slots."""
        with self._lock:
            self._buffer.extend(attempts)
            self._only_loop = self._only_loop and all(self._is_for_loop(attempt) for attempt in attempts)
        self._fill()

    def empty_buffer(self) -> list[Attempt]:
        """Remove and return the attempts that have not begun."""
        with self._lock:
            buffered = list(self._buffer)
            self._buffer.clear()
        return buffered

    def give_back(self, older_s: float, cause: str) -> bool:
        """Release the attempts that have waited this long for a slot; return whether there were any."""
        now = self._clock.lease()
        with self._lock:
            stale = [each for each in self._buffer if now - each.claimed_at >= older_s]
            for attempt in stale:
                self._buffer.remove(attempt)
        for attempt in stale:
            self._settler.put(attempt, Released(started=False, cause=cause))
        return bool(stale)

    def _fill(self) -> None:
        """Fill the free slots from the buffer."""
        now_due: list[Attempt] = []
        to_announce: list[Attempt] = []
        too_late: list[Attempt] = []
        now = self._clock.lease()
        with self._lock:
            while self._buffer and self._running < self._options.slots and not self._continuity.in_doubt:
                attempt = self._buffer.popleft()
                if attempt.window.must_stop(now):
                    too_late.append(attempt)
                    continue
                self._running += 1
                answered_late = attempt.window.must_renew(now)  # without a beat first it might be stopped at once
                (to_announce if attempt.must_announce or answered_late else now_due).append(attempt)
            self._only_loop = self._only_loop or not self._buffer
        self.start(now_due)
        self._heartbeat.announce(to_announce)
        for attempt in too_late:
            self._settler.put(attempt, Released(started=False, cause="its lease was about to end before it began"))

    # ------------------------------------------------------------------------------------------- running

    def start(self, attempts: Sequence[Attempt]) -> None:
        """Run these; each has its slot."""
        on_loop: list[Attempt] = []
        in_threads: list[Attempt] = []
        isolated: list[Attempt] = []
        with self._lock:
            shared = self._running > 1 or bool(self._buffer) or self._shares_process
        for attempt in attempts:
            if self._isolates(attempt, shared):
                isolated.append(attempt)
            else:
                (on_loop if attempt.task.is_async else in_threads).append(attempt)
        self.loop.start(on_loop)
        for attempt in isolated:
            self._start_one(self.pool, attempt)
        for attempt in in_threads:
            self._start_one(self.threads, attempt)

    def _is_for_loop(self, attempt: Attempt) -> bool:
        return attempt.task.is_async and not may_isolate(attempt.job, declared=self._declares(attempt))

    def _isolates(self, attempt: Attempt, shared: bool) -> bool:
        own = isolates(attempt.job, declared=self._declares(attempt), shared=shared)
        return own and self._task_locator.knows(attempt.task)

    def _declares(self, attempt: Attempt) -> bool:
        return self._options.isolate or attempt.task.isolate

    def _start_one(self, executor: Threads | Pool, attempt: Attempt) -> None:
        try:
            executor.start([attempt])
        except (RuntimeError, OSError) as error:  # the system gives no more threads
            self._say_short_of_threads(error)
            self.pause(NO_THREAD_PAUSE_S)
            attempt.handler.ended = True
            self._settler.put(attempt, Released(started=False, cause=f"no thread could be started: {error}"))
            with self._lock:
                self._running -= 1

    def _say_short_of_threads(self, error: Exception) -> None:
        if self._clock.lease() - self._said_short_at >= SAY_EVERY_S:
            self._said_short_at = self._clock.lease()
            log.error(
                "the system gives this process no more threads (%s); jobs that cannot start are given back. Is its "
                "limit of memory (ulimit -v) or of threads (ulimit -u) too low for %d slots?",
                *(error, self._options.slots),
            )

    def ended(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """Take the outcome of an attempt, from the thread that it ran in."""
        if not attempt.handler.end():
            if self._stuck.back(attempt):
                self._free()
            return
        if outcome is not None:
            self._settler.put(attempt, outcome)
        self._free()

    def abandon(self, attempt: Attempt) -> None:
        """End an attempt whose handler was asked to stop and goes on."""
        why = attempt.handler.interrupt
        if why is None or not attempt.handler.abandon():
            return
        self._settler.put(attempt, interrupted(why, ABANDONED))
        if self._stuck.add(attempt):
            self._free()

    def stranded(self) -> list[Attempt]:
        """Return the attempts that will never end, because the event loop or the pool that ran them has died."""
        return self.loop.stranded() + self.pool.stranded()

    def _free(self) -> None:
        with self._lock:
            self._running -= 1
            last = self._running == 0
        if last:
            self.idle.set()
        if not self._only_loop or not self.loop.is_current:  # a handler that blocks the loop must not hold up others
            self._refill()
        elif not self._refills:  # its handlers free many slots in one round: to fill them together costs far less
            self._refills = True
            self.loop.call_soon(self._refill_on_loop)

    def _refill_on_loop(self) -> None:
        self._refills = False
        self._refill()

    def _refill(self) -> None:
        if self._buffer and not self.must_end and self._paused_until < float("inf"):  # otherwise it is given back
            self._fill()
        if len(self._buffer) <= max(self._ahead / 2, self._ahead - AHEAD_MAX / 2) and not self.has_room.is_set():
            self.has_room.set()
