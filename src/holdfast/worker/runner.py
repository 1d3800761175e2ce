"""One worker process: it claims jobs, runs them, and hands their endings to the settler.

claim loop ──▶ buffer ──▶ slots (event loop, threads, cells) ──▶ settler ──▶ store
    ▲                                                        heartbeat: beats        (store)
    └── woken by the store, or by a slot that became free    watch: local time    (no store)
                                                             reaper: other dead   (store)
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from holdfast.clock import Clock
from holdfast.closing import Work
from holdfast.continuity import WORKER, Continuity
from holdfast.core.isolation import isolates
from holdfast.core.payload import JSON
from holdfast.core.records import Job, Moment, Published, Worker, nobody_has
from holdfast.core.text import escaped, listed
from holdfast.core.verdict import Outcome, Released
from holdfast.errors import (
    BudgetSpent,
    FileLocked,
    FileReplaced,
    HoldfastError,
    LeaseLost,
    SchemaMismatch,
    Stopping,
    StoreUnsupported,
    UsageError,
    WorkerBroken,
    WorkerGone,
)
from holdfast.forks import ForkGuard
from holdfast.ids import new_id
from holdfast.interrupts import shield_logging
from holdfast.reaper import LOOK_S, SECOND_LOOK_S, Reaper
from holdfast.store_backoff import SAY_EVERY_S, StoreBackoff
from holdfast.stores.protocol import Store
from holdfast.tracebacks import describe
from holdfast.vital_threads import BROKEN_S, EXIT_BROKEN, refuse_patched_threads
from holdfast.worker.admission import Admission
from holdfast.worker.attempt import Attempt
from holdfast.worker.context import Context
from holdfast.worker.executors import Loop, Threads, interrupted
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.isolated.exits import stranded
from holdfast.worker.isolated.pool import Pool, WorkerCallbacks
from holdfast.worker.isolated.task_locator import TaskLocator
from holdfast.worker.launch import Launch
from holdfast.worker.log_capture import current_attempt, enable_our_loggers, listening
from holdfast.worker.options import WorkerOptions
from holdfast.worker.prefetch import Prefetch
from holdfast.worker.reaper_thread import ReaperThread
from holdfast.worker.schema import SchemaChange
from holdfast.worker.settler import Settler
from holdfast.worker.stuck_handlers import ABANDONED, StuckHandlers
from holdfast.worker.time_limits import TimeLimits
from holdfast.worker.workflows import WorkflowRuntime
from holdfast.workflow.timers import Timers

if TYPE_CHECKING:
    from holdfast.app import App

log = logging.getLogger("holdfast.worker")

EXIT_STUCK = 75  # a handler would not stop at the end; it was given back
EXIT_FENCED = 76  # a handler would not stop before its lease ended
EXIT_TOO_OLD = 77  # for the schema of the store; nothing was left behind
EXIT_UNSUPPORTED = 79  # no worker can use the store as it is set up; nothing was left behind
EXIT_LOCKED = 80  # a handler left a transaction of its own open, and nobody could write
EXIT_REPLACED = 81  # another file is in the place of the store, or of one beside it: only a new process can use it
UNSERVED_S = 60.0  # how often to say which tasks nobody here knows
POLL_S = 1.0  # how often to look for work though nobody has said that there is any
NO_THREAD_PAUSE_S = 1.0  # how long not to claim after a thread could not be started
GULP = 500  # so many jobs are claimed ahead in one call at most
DOUBT_S = 0.25  # how often to look whether somebody has accepted the store
LEAVE_S = 10.0  # to tell hooks and to sign off
LINGER_S = 1.0  # how long `app.close()` waits for a handler that outlived its tick
BUFFERED_MAX_S = 1.0  # a job claimed ahead that has not begun by then is given back


class Runner:
    """One incarnation after the other of one named worker, in this process."""

    _look_at: float | None = None  # when the sweep of a tick looks again at what it was not sure of,
    _sure_at = 0.0  # and when everything is settled that can be
    _said_short_at = float("-inf")  # that there are no more threads
    _lingers = False  # a tick has returned, and a handler of it goes on
    _broken: WorkerBroken | None = None  # what it has died of

    def __init__(
        self,
        app: App,
        options: WorkerOptions,
        *,
        name: str | None = None,
        app_ref: str | None = None,
        supervisor: str | None = None,
        launch: Launch | None = None,
        may_exit: bool = False,
        until_idle: bool = False,
        stop_s: float = 2.0,
        flush_s: float = 5.0,
        on_beat: Callable[[float], None] = lambda _: None,
    ) -> None:
        refuse_patched_threads()
        self._task_locator = TaskLocator(  # raises before any start
            app, app_ref, worker_wide=options.isolate, patient=not until_idle, imports=options.imports, launch=launch
        )
        self._app = app
        self._options = options
        self._store = cast(Store, ForkGuard(lambda: app.store))
        self._clock: Clock = app.clock
        self.name = name or options.name or socket.gethostname()
        self._supervisor = supervisor
        self._may_exit = may_exit  # this process is ours alone, and somebody will start it again
        self._until_idle = until_idle  # leave when nothing is due and nothing runs
        self._stop_s, self._flush_s = stop_s, flush_s  # the time to stop a handler, and to save its ending
        self._tasks = dict(app.tasks)
        self._queues = list(options.queues) or sorted({task.queue for task in self._tasks.values()}) or ["default"]
        self._beat_s = min((task.policy.beat_every_s for task in self._tasks.values()), default=10.0)
        self._lock = threading.Lock()
        self._enrolling = threading.Lock()
        self._buffer: deque[Attempt] = deque()
        self._running = 0
        self._room, self._idle = threading.Event(), threading.Event()
        self._stopping, self._stop_now = threading.Event(), threading.Event()
        self._prefetch = Prefetch()
        self._trouble = StoreBackoff(log, self._clock, "no jobs are claimed meanwhile")
        self._too_old = False  # for the schema of the store
        self._unusable: StoreUnsupported | FileReplaced | None = None  # why this worker can never use the store
        store, clock = self._store, self._clock
        watched = (store, clock, self.name, WORKER)
        heard = SchemaChange(self._store, self._became_too_old).hear
        self._continuity = Continuity(*watched, settled=lambda: self._settler.last, heard=heard)
        self._heartbeat = Heartbeat(
            *(store, clock, self._beat_s, self._was_declared_dead, self._continuity, self._start, on_beat),
            locked=self._is_locked_out,
            replaced=self._was_replaced,
        )
        self._settler = Settler(store, clock, self._heartbeat.forget, app.hooks, journal_all=app.journal == "full")
        self._admission = Admission(store, clock, self._tasks, self._settler.put)
        self._time_limits = TimeLimits(clock, self._heartbeat.all, self._overran, self._abandon)
        self._flows = WorkflowRuntime(app, store, clock, self._context, self._broke)
        self._threads = Threads(clock, self._context, self._settler.commit, self._ended, self._flows)
        self._loop = Loop(clock, self._context, self._settler.commit, self._ended, self._flows, died=self._broke)
        self._timers = Timers(store, clock, self._tasks)
        callbacks = WorkerCallbacks(
            self._ended, self._settler.settled_itself, self._heartbeat.beat_soon, self._pause_claims, self._broke
        )
        self._pool = Pool(clock, self._task_locator, options, callbacks, self.name)
        self._reaper = Reaper(store, clock, hooks=app.hooks, grace_s=options.grace_s, name=self.name)
        self._reaper_thread = ReaperThread(self._reaper, store, clock, app.hooks, self._stopping, options.grace_s)
        self._due_in_s: float | None = None
        self._ahead_target = 0
        self._claims_paused_until = float("-inf")
        self._stuck_handlers = StuckHandlers(options.slots, may_end=may_exit)
        self._work = Work(self.stop, options.grace_period_s + stop_s + flush_s + LEAVE_S, self._runs_the_caller)
        self.worker_id = ""
        self.recovered = 0  # by the sweep before the first claim

    @property
    def settled(self) -> int:
        """Return how many endings the store has acknowledged."""
        return self._settler.settled

    # --------------------------------------------------------------------------------------- life

    def run(self) -> int:
        """Work until told to stop; return the exit code.

        Raises `WorkerBroken` when a thread of it has died, and `StoreUnsupported` when no worker can use the store as
        it is set up, `UsageError` when the app is closed.
        """
        self._app.closing.begin(self._work)
        try:
            return self._run()
        finally:
            if not self._lingers:
                self._app.closing.end(self._work)

    def _run(self) -> int:
        enable_our_loggers()
        shield_logging()
        leave = self._leave
        try:
            self._begin()
            with listening(self._app.logger.getChild("job")):
                try:
                    self._claim_until_stopped()
                except BaseException as error:
                    self._lose_claims(error)
                    raise
                code = self._drain()
            if code == EXIT_STUCK and self._until_idle:
                self._lingers = True
                self._work.outlive_its_caller(LINGER_S)
                leave = threading.Thread(target=self._linger, name="holdfast-linger", daemon=True).start
            if self._broken is not None:
                raise self._broken
            if self._unusable is not None:
                raise self._unusable
            return code
        finally:
            leave()

    def _begin(self) -> None:
        self._until_it_works(self._enroll)
        self._until_it_works(lambda: self._continuity.look(self.worker_id))
        self._heartbeat.start(self._broke)  # first: to settle what very many dead workers left takes its time
        self._until_it_works(self._sweep)
        self._settler.start(self._broke)
        self._time_limits.start(self._broke)
        if not self._until_idle:
            self._pool.prepare()
        if self._options.reaper:
            self._reaper_thread.start(self._broke)
        if not self._stopping.is_set():
            self._say_ready()

    def stop(self) -> None:
        """Claim nothing more; let running jobs finish within the grace period. Not for a signal handler."""
        self._stopping.set()
        self._room.set()
        self._store.wake()

    def stop_now(self) -> None:
        """Give back what runs, at once."""
        self._stop_now.set()
        self.stop()

    def _runs_the_caller(self) -> bool:
        return current_attempt.get() in self._heartbeat.all()

    def _enroll(self) -> None:
        from holdfast import __version__

        worker = Worker(
            id=new_id(),
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            boot_id=self._clock.boot_id,
            supervisor=self._supervisor,
            queues=self._queues,
            slots=self._options.slots,
            beat_s=self._beat_s,
            version=__version__,
            tasks={task.name: Published(task.queue, task.app.codec is not JSON) for task in self._tasks.values()},
        )
        try:
            self._store.enroll(worker)
        except KeyboardInterrupt:  # the row may be stored all the same, so this worker signs off when it leaves
            self.worker_id = worker.id
            raise
        self.worker_id = self._heartbeat.worker_id = worker.id

    def _say_ready(self) -> None:
        log.info(
            "worker %s is ready: %d slots, queues %s, %d tasks",
            *(self.name, self._options.slots, listed(self._queues, 10), len(self._tasks)),
        )
        if not self._tasks:
            log.warning(
                "worker %s has no tasks and will run no jobs; import the modules that declare them before it starts, "
                "or name them: holdfast worker APP --import MODULE",
                self.name,
            )

    def _sweep(self) -> None:
        """Before the first claim: settle what dead workers left, an earlier process of this name first of all."""
        self.recovered = self._reaper.complete(within_s=max(self._store.believe_s, SECOND_LOOK_S)).recovered
        if self._until_idle and self._reaper.doubt_s:  # no other pass comes after this one
            self._sure_at = self._clock.lease() + self._reaper.patience_s + SECOND_LOOK_S
            self._look_at = self._clock.lease() + min(self._reaper.doubt_s, LOOK_S)
        level = logging.WARNING if self.recovered else logging.INFO
        log.log(level, "recovered %d orphaned jobs at start", self.recovered)

    def _look_again(self) -> None:
        """Go on with the pass that the sweep began, until nothing is in doubt, or the time is up."""
        self.recovered += self._reaper.once().recovered
        now, doubt_s = self._clock.lease(), self._reaper.doubt_s
        self._look_at = now + min(doubt_s, LOOK_S) if doubt_s and now < self._sure_at else None

    def _until_it_works(self, step: Callable[[], None]) -> None:
        while not self._stopping.is_set():
            try:
                step()
                self._trouble.over()
                return
            except SchemaMismatch as error:
                log.error("%s", error)
                self._became_too_old()
            except StoreUnsupported as error:  # waiting does not help; a person must change something
                self._unusable = error
                self.stop()
            except FileReplaced as error:
                self._was_replaced(error)
            except HoldfastError as error:
                self._clock.wait(self._stopping, self._trouble.met(error))

    # -------------------------------------------------------------------------------------- claiming

    def _claim_until_stopped(self) -> None:
        said_at = self._clock.lease() - UNSERVED_S + 5.0
        claim_id: str = new_id()
        asked_at: float | None = None  # when this claim was first sent: a lease counts from then
        likely = False  # there was some the last time, or a hint of more: asking first would cost a round trip
        while not self._stopping.is_set():
            asked_as = self.worker_id  # the heartbeat may be told that this one is gone, and enrol anew, while we ask
            try:
                if self._continuity.is_outdated:
                    self._continuity.look(asked_as)
                if self._continuity.in_doubt:
                    if asked_at is not None:  # what a lost answer gave is asked for, and nothing more: nobody keeps it
                        self._claim(asked_as, claim_id, asked_at, 0, 0)
                        claim_id, asked_at = new_id(), None
                    self._give_back_buffer(0.0, "the store may not be what it was")
                    if self._until_idle:
                        return
                    self._clock.wait(self._stopping, DOUBT_S)
                    continue
                if self._look_at is not None and self._clock.lease() >= self._look_at:
                    self._look_again()
                limit, ahead = self._room_now()
                if limit + ahead == 0:
                    self._room.clear()
                    if self._room_now() == (0, 0):
                        self._clock.wait(self._room, 0.25)
                    self._give_back_buffer(BUFFERED_MAX_S, "claimed ahead, but no slot became free")
                    continue
                self._timers.ring()
                was_idle = self._is_idle()  # before looking what is due: the last ending may have made a job due again
                if asked_at is not None or likely or self._is_due():
                    asked_at = self._clock.lease() if asked_at is None else asked_at
                    jobs = self._claim(asked_as, claim_id, asked_at, limit, ahead)
                    claim_id, asked_at = new_id(), None  # only after an answer: a lost one is asked for again
                    guessed, likely = likely, bool(jobs)
                    if jobs:
                        self._prefetch.add(self._settler.settled, self._clock.lease())
                    if jobs or guessed:  # wrongly: then look when the next one is due
                        continue
                if self._clock.lease() - said_at >= UNSERVED_S:
                    said_at = self._clock.lease()
                    self._say_what_nobody_serves()
                self._trouble.over()
                if self._until_idle and was_idle and self._look_at is None:
                    return
                likely = self._wait_for_work() and self._store.hints_of_work
            except WorkerGone:
                self._was_declared_dead(asked_as)
                claim_id, asked_at = new_id(), None
            except FileReplaced as error:
                self._was_replaced(error)
            except UsageError:  # the app was closed under this worker, or is to be closed here: waiting does not help
                raise
            except HoldfastError as error:
                self._clock.wait(self._stopping, self._trouble.met(error))
            except Exception as error:
                log.exception("the claim loop stumbled; it goes on")
                self._clock.wait(self._stopping, self._trouble.met(error))

    def _room_now(self) -> tuple[int, int]:
        """Return how many jobs could start at once, and how many more to claim ahead of a free slot."""
        with self._lock:
            taken = self._running + len(self._buffer)
        slots = self._options.slots
        if self._clock.lease() < self._claims_paused_until:
            return 0, 0
        self._ahead_target = target = self._prefetch.ahead(self._settler.settled, self._clock.lease())
        ahead = slots + target - max(taken, slots)
        enough = ahead >= min(target / 2, GULP / 2)  # not in sips
        return max(0, slots - taken), min(ahead, GULP) if enough else 0

    def _is_due(self) -> bool:
        due = self._store.due(self._queues, self._task_locator.claimable())
        self._due_in_s = None if due is None else due - self._store.now().wall
        return self._due_in_s is not None and self._due_in_s <= 0

    def _claim(self, worker_id: str, claim_id: str, sent_at: float, limit: int, ahead: int) -> list[Job]:
        self._queues.append(self._queues.pop(0))  # the next claim begins with another queue
        jobs = self._store.claim(worker_id, claim_id, self._queues, self._task_locator.claimable(), limit, ahead)
        if self._continuity.is_outdated:  # if the look fails, the claim is asked again, and gives the same jobs
            self._continuity.look(worker_id)
        attempts = [Attempt(job, self._tasks[job.task], sent_at) for job in jobs]
        self._heartbeat.keep(attempts)
        admitted = self._admission.admit(attempts)
        with self._lock:
            self._buffer.extend(admitted)
        self._start_next()
        return jobs

    def _wait_for_work(self) -> bool:
        timeout_s = POLL_S if self._due_in_s is None else min(POLL_S, max(0.001, self._due_in_s))
        timeout_s = min(timeout_s, self._timers.in_s())
        most_s = POLL_S if not self._until_idle else 0.02 if self._look_at is None else SECOND_LOOK_S
        return self._store.wait(min(timeout_s, most_s))

    def _is_idle(self) -> bool:
        with self._lock:
            return self._running == 0 and not self._buffer and self._settler.is_idle

    def _give_back_buffer(self, older_s: float, cause: str) -> None:
        now = self._clock.lease()
        with self._lock:
            stale = [each for each in self._buffer if now - each.claimed_at >= older_s]
            for attempt in stale:
                self._buffer.remove(attempt)
        if stale:
            self._prefetch.reset()
        for attempt in stale:
            self._settler.put(attempt, Released(started=False, cause=cause))

    def _say_what_nobody_serves(self) -> None:
        """Name the tasks of due jobs that no living worker has, in our queues and in those that nobody serves. Those of
        another worker are left for it, silently."""
        now, unroused = self._store.now().wall, self._store.unroused()
        living = [worker for worker in self._store.workers() if worker.is_alive(now)]
        served = {queue for worker in living for queue in worker.queues}
        used = {*self._store.counts(), *(each.queue for each in unroused)}
        missing: Counter[str] = Counter()
        for queue in {*self._queues, *used - served - set(self._store.paused())}:
            due = Counter(self._store.unserved([queue], list(self._tasks)))
            due.update({each.task: each.jobs for each in unroused if each.queue == queue})
            missing.update({task: jobs for task, jobs in due.items() if nobody_has(living, queue, task)})
        for task, jobs in sorted(missing.items()):
            log.warning("no living worker has task %r: %d due jobs wait for one that has it", task, jobs)

    # --------------------------------------------------------------------------------------- running

    def _start_next(self) -> None:
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
        self._start(now_due)
        self._heartbeat.announce(to_announce)
        for attempt in too_late:
            self._settler.put(attempt, Released(started=False, cause="its lease was about to end before it began"))

    def _start(self, attempts: Sequence[Attempt]) -> None:
        """Run these; each has its slot."""
        in_loop: list[Attempt] = []
        in_threads: list[Attempt] = []
        in_cells: list[Attempt] = []
        with self._lock:
            shared = self._running > 1 or bool(self._buffer) or (self._may_exit and self._options.slots > 1)
        for attempt in attempts:
            if self._isolates(attempt, shared):
                in_cells.append(attempt)
            else:
                (in_loop if attempt.task.is_async else in_threads).append(attempt)
        self._loop.start(in_loop)
        for attempt in in_cells:
            self._start_one(self._pool, attempt)
        for attempt in in_threads:
            self._start_one(self._threads, attempt)

    def _start_one(self, executor: Threads | Pool, attempt: Attempt) -> None:
        try:
            executor.start([attempt])
        except (RuntimeError, OSError) as error:  # the system gives no more threads
            self._say_short_of_threads(error)
            self._pause_claims(NO_THREAD_PAUSE_S)
            attempt.ended = True
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

    def _ended(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """Take the ending of an attempt, from whatever thread it ran in."""
        if not attempt.end():
            if self._stuck_handlers.back(attempt):
                self._free_slot()
            return
        if outcome is not None:
            self._settler.put(attempt, outcome)
        self._free_slot()

    def _free_slot(self) -> None:
        with self._lock:
            self._running -= 1
            last = self._running == 0
        if last:
            self._idle.set()
        if self._buffer and not self._stuck_handlers.must_end and self._broken is None:  # else it is given back
            self._start_next()
        if len(self._buffer) <= max(self._ahead_target / 2, self._ahead_target - GULP / 2) and not self._room.is_set():
            self._room.set()

    def _isolates(self, attempt: Attempt, shared: bool) -> bool:
        declared = self._options.isolate or attempt.task.isolate
        return isolates(attempt.job, declared=declared, shared=shared) and self._task_locator.knows(attempt.task)

    def _pause_claims(self, pause_s: float) -> None:
        """Claim nothing for a while: the system gives no more threads or processes, or this worker is broken."""
        self._claims_paused_until = max(self._claims_paused_until, self._clock.lease() + pause_s)

    def _context(self, attempt: Attempt) -> Context:
        return Context(attempt, self._store, self._clock, self._heartbeat.beat_soon, self._app.logger.getChild("job"))

    # -------------------------------------------------------------------------------------- leaving

    def _was_declared_dead(self, worker_id: str) -> None:
        """Stop what the dead incarnation ran; its leases are or will be settled by others. Then enrol anew."""
        with self._enrolling:
            if worker_id != self.worker_id:
                return  # the other thread was told as well, and was first
            self._until_it_works(lambda: self._continuity.look(worker_id))  # or has the store lost its row?
            with self._lock:
                buffered = list(self._buffer)
                self._buffer.clear()
            self._heartbeat.forget(buffered)
            if self._continuity.in_doubt:
                log.warning("this worker enrols again; what it runs goes on as long as the store knows of it")
            else:
                log.warning("this worker was declared dead while it lived; its jobs are stopped and it enrols anew")
                for attempt in self._heartbeat.all():
                    attempt.stop(LeaseLost("this worker was declared dead"))
            self._until_it_works(self._enroll)

    def _became_too_old(self) -> None:
        """Leave: a newer program has changed the schema, and this one does not know it."""
        self._too_old = True
        self.stop()

    def _abandon(self, attempt: Attempt) -> None:
        """End an attempt whose handler was asked to stop and goes on."""
        if attempt.interrupt is None or not attempt.abandon():
            return
        self._settler.put(attempt, interrupted(attempt, attempt.interrupt, ABANDONED))
        if self._stuck_handlers.add(attempt):
            self._free_slot()
        if self._stuck_handlers.must_end:
            self.stop()

    def _broke(self, thread: str, error: BaseException | None) -> None:
        """Give up, because a thread has died that this worker cannot do without.

        A process that is ours alone ends at once: its supervisor settles its jobs and starts another. Any other process
        goes on; the worker gives back what it can, signs off, and `run` raises.
        """
        self._pause_claims(float("inf"))
        if self._may_exit:
            threading.Timer(BROKEN_S, os._exit, (EXIT_BROKEN,)).start()  # should what follows be held up
        died_of = describe(error) if error is not None else "it was stopped"
        broken = WorkerBroken(escaped(f"the thread {thread} of worker {self.name} has died ({died_of})"))
        with self._lock:
            if self._broken is not None:
                return
            self._broken = broken
        self._app.hooks.emit("error", {"error": str(broken), "worker": self.name})
        if not self._may_exit:
            log.critical("%s; the worker gives its jobs back and stops", broken)
            self.stop_now()
            return
        try:
            log.critical("%s; this process ends, for another to take its place", broken)
            self._settler.flush(BROKEN_S)
            self._app.hooks.flush(BROKEN_S)
        finally:
            os._exit(EXIT_BROKEN)

    def _lose_claims(self, error: BaseException) -> None:
        """Give back what there is, because nobody claims any more: this thread was told to end, by Ctrl-C or others."""
        if self._may_exit:
            self._broke("holdfast-runner", error)
        self._stopping.set()
        self._stop_now.set()
        self._drain()

    def _overran(self, attempt: Attempt) -> None:
        if attempt.kill(self._clock.lease()):
            return
        if self._may_exit:
            threading.Timer(0.2, os._exit, (EXIT_FENCED,)).start()  # should the log be what holds the handler up
            log.critical("job %s: its handler did not stop before the lease ended; ending this process", attempt.job.id)
            os._exit(EXIT_FENCED)
        attempt.stop(LeaseLost("the lease has ended"))

    def _is_locked_out(self, error: FileLocked) -> None:
        """End a process of our own that keeps everybody from writing: a handler left its own transaction open there."""
        if error.holder is None:
            return
        self._pool.kill_process(error.holder)
        if error.holder == os.getpid() and self._may_exit:
            threading.Timer(0.2, os._exit, (EXIT_LOCKED,)).start()  # should the log be what cannot be written
            log.critical("%s; a handler left its own transaction open; ending this process", error)
            os._exit(EXIT_LOCKED)

    def _was_replaced(self, error: FileReplaced) -> None:
        """Leave: this process can never write to the store again. A process that is ours alone ends at once, before
        another worker runs its jobs."""
        if self._may_exit:
            threading.Timer(0.2, os._exit, (EXIT_REPLACED,)).start()  # should the log be what cannot be written
            log.error("%s; this process ends, for another to take its place", error)
            os._exit(EXIT_REPLACED)
        self._unusable = error
        self.stop_now()

    def _drain(self) -> int:
        """Give back what has not begun, let the rest finish within the grace period, then stop it."""
        with self._lock:
            buffered = list(self._buffer)
            self._buffer.clear()
            self._idle.clear()
        for attempt in buffered:
            self._settler.put(attempt, Released(started=False, cause="the worker stopped"))
        with self._lock:
            running = self._running
            if running == 0:
                self._idle.set()
        if running and not self._stop_now.is_set():
            log.info("stopping: running jobs (%d) may go on for %g s", running, self._options.grace_period_s)
        give_up_at = self._clock.lease() + self._options.grace_period_s
        while not self._idle.is_set() and not self._stop_now.is_set() and self._clock.lease() < give_up_at:
            self._clock.wait(self._idle, 0.05)
        if self._broken is not None:
            self._end_stranded(str(self._broken))
        if not self._idle.is_set():
            for attempt in self._heartbeat.all():
                if not attempt.ended:
                    attempt.stop(
                        BudgetSpent("the budget of the tick is spent")
                        if self._until_idle
                        else Stopping("the worker stopped")
                    )
            self._clock.wait(self._idle, self._stop_s)
        flushed = self._settler.flush(self._flush_s)
        if not self._idle.is_set() or not flushed:
            heir = "its lease is kept as long as this process lives" if self._until_idle else "the process ends"
            log.warning("a handler would not stop, or the store takes no endings; %s", heir)
            return EXIT_STUCK
        if self._stuck_handlers.must_end:
            return EXIT_STUCK
        return EXIT_TOO_OLD if self._too_old else 0

    def _end_stranded(self, cause: str) -> None:
        """Settle what would never end, because the event loop or the pool that ran it has died."""
        attempts = self._loop.stranded() + self._pool.stranded()
        for attempt in attempts:
            now = Moment(self._clock.wall(), self._clock.lease())
            self._ended(attempt, stranded(attempt, cause, self.name, len(attempts), now))

    def _linger(self) -> None:
        """Stay behind a caller who goes on: whatever would not stop has its lease renewed until it ends, and its ending
        is written. Given back before that it would run twice at once."""
        self._idle.wait()
        self._settler.flush(self._beat_s)
        self._leave()
        self._app.closing.end(self._work)

    def _leave(self) -> None:
        self._stopping.set()  # ends the reaper's thread, also when Ctrl-C came before the first claim
        self._pool.close()
        self._settler.close()
        self._flows.close()
        self._heartbeat.close()
        self._time_limits.close()
        self._threads.close()
        self._loop.close()
        if self.worker_id and not self._heartbeat.all():
            try:
                self._store.retire(self.worker_id, "left")
            except HoldfastError as error:
                log.warning("could not sign off: %s", error)
        self._app.hooks.flush()
        log.info("worker %s has stopped", self.name)
