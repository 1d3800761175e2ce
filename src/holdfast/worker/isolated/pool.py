"""Runs isolated attempts, sync and async, each in a process of its own, taken from a warm pool.

    attempts ──▶ waiting ──▶ an idle process ──▶ its outcome, or its death ──▶ report

One thread does it all: it starts the processes, receives their messages, sees them end, and enforces the time of those
that must stop. A handler is asked first, then its process group is terminated, then killed. If a handler breaks its
process, only its own attempt is lost; nothing that it has started outlives the process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast import errors
from holdfast.clock import Clock
from holdfast.core.records import Moment
from holdfast.core.text import clean, escaped
from holdfast.core.verdict import Cancelled, Failed, Outcome, Released
from holdfast.runtime.tracebacks import ERROR_MAX
from holdfast.runtime.vital_threads import Died, VitalThread
from holdfast.worker.attempt import Attempt
from holdfast.worker.executors import ReportOutcome
from holdfast.worker.handler import Handler
from holdfast.worker.isolated import memory, protocol
from holdfast.worker.isolated.exits import lost, stopped_by_force
from holdfast.worker.isolated.orphan_guard import OrphanGuard
from holdfast.worker.isolated.process import NONSENSE, IsolatedProcess
from holdfast.worker.isolated.task_locator import TaskLocator, location_of
from holdfast.worker.log_capture import pass_on
from holdfast.worker.options import WorkerOptions

log = logging.getLogger("holdfast.worker")

IDLE_S = 60.0  # an isolated process that has been idle for this long is ended
LEAVE_S = 1.0  # how long an isolated process that was asked to leave may take
DUMP_S = 0.1  # pause between two looks at the stack that a process writes; it is complete when it stops growing
DUMP_TRIES = 50
BIRTH_MAX_S = 60.0  # how long an isolated process may take to load its tasks
FIRST_RESTART_S = 0.5  # the first pause after an isolated process that ended before it was ready; it doubles
UNBORN_MAX_S = 30.0
CLAIM_PAUSE_S = 1.0  # how long the whole worker claims nothing when the system gave no process
LOOK_S = 0.05  # how often to look for ends where the system does not tell


class Moments(NamedTuple):
    """The time that a handler has to stop when asked, and to end when its process group is terminated."""

    ask_s: float
    end_s: float


def moments(why: errors.Interrupted | None, lease_s: float) -> Moments:
    """Return them for one reason to stop. All of it fits into what is left of a lease that is about to end."""
    match why:
        case errors.Cancelled():
            return Moments(2.0, 1.0)
        case errors.TimeLimit() | errors.NoProgress():
            return Moments(0.5, 0.5)
        case _:
            return Moments(min(0.5, lease_s / 30), min(0.5, lease_s / 30))


class WorkerCallbacks(NamedTuple):
    """The calls that a pool makes to its worker."""

    report: ReportOutcome
    settled: Callable[[Attempt], None]  # an attempt settled itself, with its own transaction
    beat_soon: Callable[[], None]
    pause: Callable[[float], None]  # the system gives no process: claim nothing for this long
    died: Died  # its thread has


class Pool:
    """The third executor. `name` is the worker's, for the journal."""

    def __init__(
        self, clock: Clock, task_locator: TaskLocator, options: WorkerOptions, callbacks: WorkerCallbacks, name: str
    ) -> None:
        self._clock = clock
        self._task_locator = task_locator
        self._options = options
        self._callbacks = callbacks
        self._name = name
        self._processes: list[IsolatedProcess] = []
        self._idle: list[IsolatedProcess] = []  # the last one used is the warmest
        self._waiting: deque[Attempt] = deque()
        self._held: set[Attempt] = set()  # what was taken and is not reported
        self._is_dead = False
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = self._bell = -1
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._restart_s = FIRST_RESTART_S
        self._next_birth_at = float("-inf")
        self._kills = 0  # for want of memory, when the last process was buried

    # ------------------------------------------------------------------------- for any other thread

    def prepare(self) -> None:
        """Warm up, if attempts are expected."""
        if self._task_locator.expected:
            self._do(lambda: None)

    def start(self, attempts: Sequence[Attempt]) -> None:
        """Run these. Raises `OSError` or `RuntimeError`, and takes none, when the system gives no thread."""
        for attempt in attempts:
            self._held.add(attempt)
            self._do(lambda attempt=attempt: self._take(attempt))  # type: ignore[misc]

    def interrupt(self, handler: Handler) -> None:
        self._do(lambda: self._stop(handler))

    def kill(self, handler: Handler) -> None:
        self._do(lambda: self._force(handler))

    def kill_process(self, pid: int) -> None:
        """End the process of this number, if there is one, whatever it does."""
        if self._thread is not None:
            self._do(lambda: self._kill_process(pid))

    def stranded(self) -> list[Attempt]:
        """Return the attempts that will never end, because the thread has died and its processes with it; once."""
        if not self._is_dead:
            return []
        stranded, self._held = list(self._held), set()
        return stranded

    def close(self) -> None:
        """End every isolated process, and return when they have ended."""
        with self._lock:
            thread, self._closing = self._thread, True
        if thread is not None:
            self._do(self._send_all_away)
            thread.join(LEAVE_S + 2.0)

    def _do(self, act: Callable[[], None]) -> None:
        thread = self._thread or self._begin()
        self._inbox.append(act)
        if thread is not threading.current_thread():
            with self._lock, contextlib.suppress(BlockingIOError):  # a full pipe wakes the thread as well
                if self._wake >= 0:
                    os.write(self._wake, b".")

    def _begin(self) -> threading.Thread:
        with self._lock:
            if self._thread is None:
                if self._wake < 0:
                    self._bell, self._wake = os.pipe()
                    os.set_blocking(self._wake, False)
                    self._selector = selectors.DefaultSelector()
                    self._selector.register(self._bell, selectors.EVENT_READ)
                thread = VitalThread("holdfast-pool", self._serve, lambda: self._closing)
                thread.begin(self._callbacks.died)
                self._thread = thread
            return self._thread

    # ------------------------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        # Not a `Service`: it waits for its processes in `select`, and stays after the stop until the last has ended.
        self._orphan_guard = OrphanGuard()
        try:
            while not (self._closing and not self._processes and not self._inbox):
                try:
                    self._turn()
                except Exception:
                    log.exception("the pool of isolated processes failed unexpectedly; the thread continues")
                    self._clock.wait(threading.Event(), LOOK_S)
        finally:
            self._leave()

    def _leave(self) -> None:
        """End the isolated processes that are left, if this thread dies; they would end with it anyway."""
        self._is_dead = True
        for process in self._processes:
            process.kill()
            process.release()
        self._orphan_guard.close()
        with self._lock:  # so that no thread writes to a descriptor that means something else by then
            self._selector.close()
            os.close(self._bell)
            os.close(self._wake)
            self._wake = -1

    def _turn(self) -> None:
        for key, events in self._selector.select(self._pause_s()):
            process: IsolatedProcess | None = key.data
            if process is None:
                os.read(self._bell, 4096)
            elif key.fileobj is not process.socket:
                self._process_ended(process)
            elif process in self._processes:  # it may have been buried in this very turn
                if events & selectors.EVENT_READ:
                    self._hear(process)
                self._mind_output(process)
        now = self._clock.lease()
        for process in tuple(self._processes):
            if process.end is None and process.has_ended():
                self._process_ended(process)
                continue
            while process.plan and process.plan[0][0] <= now:
                process.plan.popleft()[1]()
        while self._inbox:
            self._inbox.popleft()()
        self._hand_out()
        self._tend(now)

    def _pause_s(self) -> float | None:
        if self._inbox:
            return 0.0
        now = self._clock.lease()
        times = [process.plan[0][0] for process in self._processes if process.plan]
        if (self._waiting or self._task_locator.closed) and now < self._next_birth_at:
            times.append(self._next_birth_at)
        if len(self._idle) > self._spares:
            times.append(self._idle[0].idle_since + IDLE_S)
        if any(process.end is None for process in self._processes):
            times.append(now + LOOK_S)
        return max(0.0, min(times) - now) if times else None

    # ------------------------------------------------------------------------------------- attempts

    def _take(self, attempt: Attempt) -> None:
        self._waiting.append(attempt)
        attempt.handler.enter_process(self)

    def _hand_out(self) -> None:
        while self._waiting and self._idle and not self._closing:
            attempt = self._waiting.popleft()
            now = self._clock.lease()
            if attempt.window.must_stop(now):
                self._give_back(attempt, "its lease was about to end before it began")
                continue
            process = self._idle.pop()
            attempt.start(now)
            process.kills_before = memory.kills_here()
            process.run(attempt, location_of(attempt.task))
            self._mind_output(process)

    def _hear(self, process: IsolatedProcess) -> None:
        try:
            words, more = process.receive()
            for word in words:
                self._understand(process, word)
        except NONSENSE as error:
            process.error, more = f"sent a message that cannot be decoded ({clean(str(error), ERROR_MAX)})", False
        if not more:  # an isolated process without a connection is of no use
            self._selector.unregister(process.socket)
            process.kill()

    def _understand(self, process: IsolatedProcess, word: protocol.Word) -> None:
        match word:
            case protocol.Ready():
                process.is_ready = True
                process.plan.clear()
                self._restart_s = FIRST_RESTART_S
                self._rest(process)
            case protocol.Unusable():
                process.error = clean(word.error, ERROR_MAX)
            case protocol.ProgressMade() if process.attempt is not None:
                process.attempt.move(self._clock.lease(), word.progress, word.note, word.beat_data)
                if word.beat:
                    self._callbacks.beat_soon()
            case protocol.StepsChanged() if process.attempt is not None:
                process.attempt.begin_workflow().steps = word.steps
            case protocol.StackTaken():
                process.stack = word.stack or None
            case protocol.Logged():
                pass_on(word, process.attempt)
            case protocol.Ended() if process.attempt is not None:
                self._ended(process, process.attempt, word)

    def _ended(self, process: IsolatedProcess, attempt: Attempt, word: protocol.Ended) -> None:
        outcome = protocol.outcome_of(word)
        process.attempt = None
        process.plan.clear()
        process.jobs += 1
        attempt.activity.progress, attempt.activity.note = word.progress, word.note
        attempt.activity.beat_data = word.beat_data
        if word.spent or process.forced:
            self._retire(process, kill=True)
        elif process.jobs >= self._options.recycle_jobs or word.rss_mb >= self._options.recycle_mb:
            self._retire(process)
        else:
            self._rest(process)
        if outcome is None:
            self._callbacks.settled(attempt)
        self._report(attempt, outcome)

    def _report(self, attempt: Attempt, outcome: Outcome | None) -> None:
        self._held.discard(attempt)
        self._callbacks.report(attempt, outcome)

    def _give_back(self, attempt: Attempt, cause: str) -> None:
        self._report(attempt, Released(started=False, cause=cause))

    # ------------------------------------------------------------------------------ stopping a handler

    def _running(self, handler: Handler) -> tuple[IsolatedProcess, Attempt] | None:
        for process in self._processes:
            if process.attempt is not None and process.attempt.handler is handler:
                return process, process.attempt
        return None

    def _stop(self, handler: Handler) -> None:
        """Ask; then terminate; then kill. If the lease would end meanwhile, kill at once."""
        why = handler.interrupt
        if why is None:
            return
        if (running := self._running(handler)) is None:
            for waiting in [each for each in self._waiting if each.handler is handler]:
                self._waiting.remove(waiting)
                asked = isinstance(why, errors.Cancelled)
                outcome: Outcome = Cancelled(str(why)) if asked else Released(started=False, cause=str(why))
                self._report(waiting, outcome)
            return
        process, attempt = running
        allowed, now = moments(why, attempt.job.lease_s), self._clock.lease()
        if isinstance(why, errors.LeaseLost) and attempt.window.is_over(now + sum(allowed)):
            self._force(handler)
            return
        process.send(protocol.Stop(type(why).__name__, str(why)))
        self._mind_output(process)
        terminate_at = now + allowed.ask_s
        if isinstance(why, errors.TimeLimit | errors.NoProgress):
            process.plan.append((terminate_at, process.ask_for_stack))
            terminate_at += DUMP_S
            process.plan.append((terminate_at, lambda: self._wait_for_stack(process, DUMP_TRIES - 1, None)))
        process.plan.append((terminate_at, lambda: self._terminate(process)))
        process.plan.append((terminate_at + allowed.end_s, process.kill))

    def _wait_for_stack(self, process: IsolatedProcess, tries: int, seen: str | None) -> None:
        """Put the rest of the plan off until the stack is complete: on a busy machine a signal may take its time."""
        found = process.read_stack()
        if tries and (found is None or found != seen):
            later = [(at + DUMP_S, act) for at, act in process.plan]
            again = self._clock.lease() + DUMP_S, lambda: self._wait_for_stack(process, tries - 1, found)
            process.plan = deque([again, *later])

    def _terminate(self, process: IsolatedProcess) -> None:
        process.forced, process.stack = True, process.stack or process.read_stack()
        process.terminate()

    def _force(self, handler: Handler) -> None:
        if (running := self._running(handler)) is not None:
            running[0].forced = True
            running[0].kill()

    # ----------------------------------------------------------------------------- isolated processes

    def _kill_process(self, pid: int) -> None:
        for process in self._processes:
            if process.pid == pid:
                log.error("the process of an isolated task (pid %d) kept the store's write lock; it is killed", pid)
                process.kill()

    @property
    def _spares(self) -> int:
        return 1 if self._task_locator.expected and not self._closing else 0

    def _tend(self, now: float) -> None:
        """Start the isolated processes that are wanted, a few at a time; end those that have been idle for long."""
        unready = [process for process in self._processes if not process.is_ready and not process.is_leaving]
        staying = [process for process in self._processes if not process.is_leaving]
        wanted = len(self._waiting) + self._spares - len(self._idle) - len(unready)
        room = min(self._options.slots + self._spares - len(staying), (os.cpu_count() or 1) - len(unready))
        if not self._closing and now >= self._next_birth_at:
            for _ in range(min(wanted, room)):
                if not self._start_process():
                    break
        while len(self._idle) > self._spares and now - self._idle[0].idle_since >= IDLE_S:
            self._retire(self._idle.pop(0))

    def _start_process(self) -> bool:
        born_at = self._clock.lease()
        try:
            process = IsolatedProcess(
                self._task_locator.setup(), self._task_locator.launch, grouped=self._task_locator.limited
            )
        except OSError as error:  # no memory, no process, no descriptor to be had
            self._callbacks.pause(CLAIM_PAUSE_S)
            self._start_failed(f"no process could be started: {error}")
            return False
        process.plan.append((born_at + BIRTH_MAX_S, lambda: self._give_up_on(process)))
        self._processes.append(process)
        self._orphan_guard.add(process.pid)
        self._selector.register(process.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, process)
        if process.end is not None:
            self._selector.register(process.end, selectors.EVENT_READ, process)
        return True

    def _give_up_on(self, process: IsolatedProcess) -> None:
        process.error = f"a process was not ready after {BIRTH_MAX_S:g} s"
        process.kill()

    def _start_failed(self, why: str) -> None:
        """Do not try again at once: what kept one process from starting will keep the next.

        Waiting attempts are given back at no cost. Until a process is free, the worker claims only jobs that need none:
        jobs in its own process keep their pace, and the journal of the others does not grow. A job that is isolated
        only because it has crashed is still claimed; the second time, its attempt ends as a failure.
        """
        again, self._task_locator.closed = self._task_locator.closed, True
        pause_s, self._restart_s = self._restart_s, min(2 * self._restart_s, UNBORN_MAX_S)
        log.error("isolated jobs cannot be run: %s; trying again in %g s", escaped(why), pause_s)
        self._next_birth_at = self._clock.lease() + pause_s
        waiting, self._waiting = self._waiting, deque()
        for attempt in waiting:
            if again and not self._task_locator.expects(attempt.task):
                self._report(attempt, Failed(f"no process of its own could be started: {why}"))
            else:
                self._give_back(attempt, why)

    def _rest(self, process: IsolatedProcess) -> None:
        if self._closing:
            self._retire(process)
            return
        self._task_locator.closed = False
        process.idle_since = self._clock.lease()
        self._idle.insert(len(self._idle) if process.jobs else 0, process)  # one that is new is the coldest

    def _retire(self, process: IsolatedProcess, *, kill: bool = False) -> None:
        process.is_leaving = True
        if kill:
            process.kill()
            return
        process.send(protocol.Leave())
        self._mind_output(process)
        process.plan.append((self._clock.lease() + LEAVE_S, process.kill))

    def _send_all_away(self) -> None:
        for attempt in self._waiting:
            self._give_back(attempt, "the worker stopped")
        self._waiting.clear()
        self._idle.clear()
        for process in self._processes:
            process.forced = process.attempt is not None
            self._retire(process, kill=process.forced or not process.is_ready)

    def _mind_output(self, process: IsolatedProcess) -> None:
        """Wake up when the process reads again, if something waits for that."""
        if process.socket in self._selector.get_map():
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if process.flush() else 0)
            if self._selector.get_key(process.socket).events != wanted:
                self._selector.modify(process.socket, wanted, process)

    def _process_ended(self, process: IsolatedProcess) -> None:
        """Handle the end of an isolated process: read its last messages, kill what it started, settle its attempt."""
        if process not in self._processes:
            return
        if process.socket in self._selector.get_map():
            self._hear(process)
            with contextlib.suppress(KeyError):
                self._selector.unregister(process.socket)
        if process.end is not None:
            self._selector.unregister(process.end)
        process.kill()
        crashed = process.read_stack()
        killed_for_memory = self._was_killed_for_memory(process)
        self._orphan_guard.remove(process.pid)
        code = process.release()
        self._processes.remove(process)
        if process in self._idle:
            self._idle.remove(process)
        attempt, process.attempt = process.attempt, None
        if attempt is not None and process.forced:
            why = attempt.handler.interrupt or errors.Stopping("the worker stopped")
            self._report(attempt, stopped_by_force(attempt, why, process, code))
        elif attempt is not None:
            now = Moment(self._clock.wall(), self._clock.lease())
            self._report(attempt, lost(attempt, process, code, self._name, crashed, killed_for_memory, now))
        elif not process.is_ready and not process.is_leaving:
            self._start_failed(process.error or "a process ended before it was ready")

    def _was_killed_for_memory(self, process: IsolatedProcess) -> bool:
        if process.group is not None and process.group.kills():
            return True
        kills = memory.kills_here()
        if kills is None or process.kills_before is None:
            return False
        before = max(process.kills_before, self._kills)
        self._kills = kills  # one kill is not counted for two processes
        return kills > before
