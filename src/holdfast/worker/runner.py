"""One worker process: it enrols, starts its threads, stops when asked, and signs off.

claimer ──▶ slots (buffer; event loop, threads, isolated processes) ──▶ settler ──▶ store
    ▲                                                  heartbeat: renews leases    (store)
    └── woken by the store, or by a free slot          time limits: stop handlers  (no store)
                                                       reaper: other dead workers  (store)
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from holdfast.continuity import WORKER, Continuity
from holdfast.core.child_exit import (
    EXIT_BROKEN,
    EXIT_FENCED,
    EXIT_LOCKED,
    EXIT_REPLACED,
    EXIT_STUCK,
    EXIT_TOO_OLD,
)
from holdfast.core.orders import in_force
from holdfast.core.payload import JSON
from holdfast.core.records import Moment, Published, Worker
from holdfast.core.text import escaped, listed
from holdfast.core.verdict import Released
from holdfast.errors import (
    BudgetSpent,
    FileLocked,
    FileReplaced,
    HoldfastError,
    LeaseLost,
    SchemaMismatch,
    Stopping,
    StoreUnsupported,
    WorkerBroken,
)
from holdfast.forks import ForkGuard
from holdfast.ids import new_id
from holdfast.interrupts import shield_logging
from holdfast.queues import declare_limits
from holdfast.runtime.closing import Work
from holdfast.runtime.log_fields import current_attempt
from holdfast.runtime.service import Service
from holdfast.runtime.store_backoff import StoreBackoff
from holdfast.runtime.tracebacks import describe
from holdfast.runtime.vital_threads import BROKEN_S, end_process, refuse_patched_threads
from holdfast.stores.protocol import Store
from holdfast.upkeep.reaper import Reaper
from holdfast.upkeep.reaper_service import in_worker
from holdfast.version import __version__
from holdfast.worker.attempt import Attempt
from holdfast.worker.claimer import Claimer
from holdfast.worker.context import Context
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.isolated.exits import stranded
from holdfast.worker.isolated.task_locator import TaskLocator
from holdfast.worker.launch import Launch
from holdfast.worker.log_capture import enable_our_loggers, listening
from holdfast.worker.measuring import Measures
from holdfast.worker.options import WorkerOptions
from holdfast.worker.orders import Orders
from holdfast.worker.publisher import Publisher
from holdfast.worker.recent import RecentWork
from holdfast.worker.schema import SchemaChange
from holdfast.worker.settler import Settler
from holdfast.worker.slots import Slots
from holdfast.worker.sweep import Sweep
from holdfast.worker.time_limits import LOOK_S, TimeLimits
from holdfast.worker.workflows import WorkflowRuntime

if TYPE_CHECKING:
    from holdfast.app import App

log = logging.getLogger("holdfast.worker")

LEAVE_S = 10.0  # to tell hooks and to sign off
LINGER_S = 1.0  # how long `app.close()` waits for a handler that outlived its tick


class Runner:
    """One incarnation after the other of one named worker, in this process."""

    _lingers = False  # it has returned to a program that goes on, and a handler of it still runs
    _too_old = False  # for the schema of the store
    _is_broken = False  # a required thread has died
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
        measures: Measures | None = None,
    ) -> None:
        refuse_patched_threads()
        # Raises before any start.
        task_locator = TaskLocator(app, app_ref, options, patient=not until_idle, launch=launch)
        self._app, self._options = app, options
        self._store = store = cast(Store, ForkGuard(lambda: app.store))
        self._clock = clock = app.clock
        self.name = name or options.name or socket.gethostname()
        self._supervisor = supervisor
        self._may_exit = may_exit  # this process is ours alone, and a supervisor starts it again
        self._until_idle = until_idle  # leave when nothing is due and nothing runs
        self._stop_s, self._flush_s = stop_s, flush_s  # the time to stop a handler, and to save its outcome
        self._tasks = dict(app.tasks)
        self._queues = list(options.queues) or sorted({task.queue for task in self._tasks.values()}) or ["default"]
        self._beat_s = min((task.policy.beat_every_s for task in self._tasks.values()), default=10.0)
        self._lock, self._enrolling = threading.Lock(), threading.Lock()
        self._stopping, self._stop_now = threading.Event(), threading.Event()
        self.ready = threading.Event()  # it claims jobs
        self._grace_period_s = options.grace_period_s
        self._backoff = StoreBackoff(log, clock, "no jobs are claimed meanwhile")
        self._unusable: StoreUnsupported | FileReplaced | None = None  # why this worker can never use the store
        heard = SchemaChange(store, self._became_too_old).hear
        self._continuity = Continuity(store, clock, self.name, WORKER, settled=lambda: self._settler.last, heard=heard)
        self._recent = recent = RecentWork()
        self._orders = Orders(self.stop, self._publish_drained)
        self._heartbeat = Heartbeat(
            *(store, clock, self._beat_s, self._was_declared_dead, self._continuity),
            *(lambda attempts: self._slots.start(attempts), recent, self._orders.obey, on_beat),
            *(self._is_locked_out, self._was_replaced, measures),
        )
        settled_by = store, clock, self._heartbeat.forget, app.hooks, recent, options.release
        self._settler: Settler = Settler(*settled_by, journal_all=app.journal == "full", measures=measures)
        limits = TimeLimits(clock, self._heartbeat.all, self._overran, self._abandon)
        self._time_limits = Service("holdfast-time-limits", limits.look, clock, log, LOOK_S, jitter=0.0)
        self._flows = WorkflowRuntime(app, store, clock, self._context, self._broke)
        make_reaper = partial(Reaper, store, clock, hooks=app.hooks, grace_s=options.grace_s, name=self.name)
        reaper = make_reaper()
        self._reaper_thread = in_worker(reaper, store, clock, app.hooks, self._stopping, options.grace_s)
        self._publisher = Publisher(store, clock, self._tasks)
        self._sweep = Sweep(reaper, store, clock, make_reaper, only_pass=until_idle)
        self._slots: Slots = Slots(
            *(options, clock, self._heartbeat, self._settler, self._continuity, task_locator, self._context),
            *(self._flows, self._broke),
            name=self.name,
            may_exit=may_exit,
        )
        self._claimer = Claimer(
            *(store, clock, self._tasks, self._queues, self._slots, self._heartbeat, self._settler),
            *(self._continuity, task_locator, self._sweep, self._orders, self._backoff, self._stopping),
            *(self._was_declared_dead, self._was_replaced),
            until_idle=until_idle,
        )
        self._work = Work(self.stop, options.grace_period_s + stop_s + flush_s + LEAVE_S, self.runs_the_caller)
        self.worker_id = ""

    @property
    def settled(self) -> int:
        """Return how many outcomes the store has acknowledged."""
        return self._settler.settled

    @property
    def running(self) -> int:
        """Return how many attempts run."""
        return self._slots.running

    @property
    def recovered(self) -> int:
        """Return how many orphaned jobs the sweep before the first claim has settled."""
        return self._sweep.recovered

    # --------------------------------------------------------------------------------------- life

    def run(self) -> int:
        """Work until stopped; return the exit code.

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
        began = False
        try:
            self._app.resources.begin()
            self._app.worker_hooks.start(self._slots.loop.run)
            began = True
            self._begin()
            with listening(self._app.logger.getChild("job"), self._recent):
                try:
                    self._claimer.run()
                except BaseException as error:
                    self._lose_claims(error)
                    raise
                code = self._drain()
            if code == EXIT_STUCK and not self._may_exit:
                self._lingers = True
                self._work.outlive_its_caller(LINGER_S)
                leave = threading.Thread(target=self._linger, name="holdfast-linger", daemon=True).start
            if self._broken is not None:
                raise self._broken
            if self._unusable is not None:
                raise self._unusable
            return code
        finally:
            if began:
                self._app.worker_hooks.stop(self._slots.loop.run, f"worker {self.name}")
            leave()

    def _begin(self) -> None:
        self._until_it_works(lambda: declare_limits(self._store, self._app.queues))
        self._until_it_works(self._enroll)
        self._until_it_works(lambda: self._continuity.look(self.worker_id))
        self._heartbeat.start(self._broke)  # first: to settle what very many dead workers left takes its time
        self._until_it_works(self._sweep.begin)
        self._publisher.begin()
        self._settler.start(self._broke)
        self._time_limits.start(self._broke)
        if not self._until_idle:
            self._slots.pool.prepare()
        if self._options.reaper and not self._store.is_served:
            self._reaper_thread.start(self._broke)
        if not self._stopping.is_set():
            self._say_ready()
            self.ready.set()

    def stop(self, grace_period_s: float | None = None) -> None:
        """Claim nothing more; let running jobs finish within the grace period. Not for a signal handler."""
        if grace_period_s is not None:
            self._grace_period_s = grace_period_s
        self._stopping.set()
        self._slots.has_room.set()
        self._store.wake()

    def stop_now(self) -> None:
        """Give back what runs, at once."""
        self._stop_now.set()
        self.stop()

    def runs_the_caller(self) -> bool:
        """Say whether the caller is a job that it runs."""
        return current_attempt.get() in self._heartbeat.all()

    def _enroll(self) -> None:
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
            release=self._options.release,
            tasks={task.name: Published(task.queue, task.app.codec is not JSON) for task in self._tasks.values()},
        )
        try:
            self._store.enroll(worker)
        except KeyboardInterrupt:  # the row may still be stored, so this worker signs off when it leaves
            self.worker_id = worker.id
            raise
        is_first = not self.worker_id
        self.worker_id = self._heartbeat.worker_id = worker.id
        order = in_force(self._store.orders(), worker)
        self._orders.find(order) if is_first else self._orders.obey(order)

    def _publish_drained(self, drained: bool) -> None:
        self._heartbeat.publish_stopping(drained)

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

    def _until_it_works(self, step: Callable[[], None]) -> None:
        while not self._stopping.is_set():
            try:
                step()
                self._backoff.recovered()
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
                self._clock.wait(self._stopping, self._backoff.failed(error))

    def _context(self, attempt: Attempt) -> Context:
        return Context(attempt, self._store, self._clock, self._heartbeat.beat_soon, self._app.logger.getChild("job"))

    # -------------------------------------------------------------------------------------- leaving

    def _was_declared_dead(self, worker_id: str) -> None:
        """Stop the jobs of the dead incarnation; others settle its leases. Then enrol again."""
        with self._enrolling:
            if worker_id != self.worker_id:
                return  # the other thread got the same answer, and was first
            self._until_it_works(lambda: self._continuity.look(worker_id))  # or has the store lost its row?
            self._heartbeat.forget(self._slots.empty_buffer())
            if self._continuity.in_doubt:
                log.warning("this worker enrols again; its jobs continue as long as the store has their leases")
            else:
                log.warning("this worker was declared dead while it was alive; it stops its jobs and enrols again")
                for attempt in self._heartbeat.all():
                    attempt.handler.stop(LeaseLost("this worker was declared dead"))
            self._until_it_works(self._enroll)

    def _became_too_old(self) -> None:
        """Leave: a newer program has changed the schema, and this one does not know it."""
        self._too_old = True
        self.stop()

    def _abandon(self, attempt: Attempt) -> None:
        self._slots.abandon(attempt)
        if self._slots.must_end:
            self.stop()

    def _broke(self, thread: str, error: BaseException | None) -> None:
        """Give up, because a thread has died that this worker cannot do without.

        A process that is ours alone ends at once: its supervisor settles its jobs and starts another. Any other process
        goes on; the worker gives back what it can, signs off, and `run` raises.
        """
        self._slots.pause(float("inf"))
        with self._lock:
            if self._is_broken:
                return
            self._is_broken = True
        if self._may_exit:
            end_process(EXIT_BROKEN, lambda: self._say_why_it_ends(thread, error), BROKEN_S)
        log.critical("%s; the worker gives its jobs back and stops", self._break(thread, error))
        self.stop_now()

    def _break(self, thread: str, error: BaseException | None) -> WorkerBroken:
        died_of = describe(error) if error is not None else "it was stopped"
        self._broken = WorkerBroken(escaped(f"the thread {thread} of worker {self.name} has died ({died_of})"))
        self._app.hooks.emit("error", {"error": str(self._broken), "worker": self.name})
        return self._broken

    def _say_why_it_ends(self, thread: str, error: BaseException | None) -> None:
        log.critical("%s; this process ends, for another to take its place", self._break(thread, error))
        self._settler.flush(BROKEN_S)
        self._app.hooks.flush(BROKEN_S)

    def _lose_claims(self, error: BaseException) -> None:
        """Give back all jobs: the claiming thread was interrupted, by Ctrl-C or by other code."""
        if self._may_exit:
            self._broke("holdfast-runner", error)
        self._stopping.set()
        self._stop_now.set()
        self._drain()

    def _overran(self, attempt: Attempt) -> None:
        if attempt.handler.kill(self._clock.lease()):
            return
        self._exit(EXIT_FENCED, f"job {attempt.job.id}: its handler did not stop before the lease ended")
        attempt.handler.stop(LeaseLost("the lease has ended"))

    def _is_locked_out(self, error: FileLocked) -> None:
        """End a process of our own that keeps all others from writing: a handler left its own transaction open."""
        if error.holder is not None:
            self._slots.pool.kill_process(error.holder)
        if error.holder == os.getpid():
            self._exit(EXIT_LOCKED, f"{error}; a handler left its own transaction open")

    def _was_replaced(self, error: FileReplaced) -> None:
        """Leave: this process can never write to the store again. If it can, it ends before another worker runs its
        jobs."""
        self._exit(EXIT_REPLACED, str(error))
        self._unusable = error
        self.stop_now()

    def _exit(self, code: int, why: str) -> None:
        """End this process at once, if it is ours alone: the supervisor settles its jobs and starts another."""
        if self._may_exit:
            end_process(code, lambda: log.critical("%s; ending this process", why))

    def _drain(self) -> int:
        """Give back what has not begun, let the rest finish within the grace period, then stop it."""
        idle = self._slots.idle
        idle.clear()
        for attempt in self._slots.empty_buffer():
            self._settler.put(attempt, Released(started=False, cause="the worker stopped"))
        self._store.stop_waking()
        running = self._slots.running
        if running == 0:
            idle.set()
        else:
            self._heartbeat.publish_stopping()
        if running and not self._stop_now.is_set():
            log.info("stopping: running jobs (%d) may continue for %g s", running, self._grace_period_s)
        began_at = self._clock.lease()
        while not (idle.is_set() or self._stop_now.is_set() or self._clock.lease() - began_at >= self._grace_period_s):
            self._clock.wait(idle, 0.05)
        if self._broken is not None:
            self._end_stranded(str(self._broken))
        if not idle.is_set():
            for attempt in self._heartbeat.all():
                if not attempt.handler.ended:
                    attempt.handler.stop(
                        BudgetSpent("the budget of the tick is spent")
                        if self._until_idle
                        else Stopping("the worker stopped")
                    )
            self._clock.wait(idle, self._stop_s)
        flushed, stopped = self._settler.flush(self._flush_s), idle.is_set()
        then = "this process ends" if self._may_exit else "their leases are renewed while this process lives"
        if not stopped:
            log.warning("%d handlers did not stop within %g s; %s", self._slots.running, self._stop_s, then)
        if not flushed:
            log.warning("the results of ended jobs could not be saved within %g s; %s", self._flush_s, then)
        if not stopped or not flushed or self._slots.must_end:
            return EXIT_STUCK
        return EXIT_TOO_OLD if self._too_old else 0

    def _end_stranded(self, cause: str) -> None:
        """Settle what would never end, because the event loop or the pool that ran it has died."""
        attempts = self._slots.stranded()
        for attempt in attempts:
            now = Moment(self._clock.wall(), self._clock.lease())
            self._slots.ended(attempt, stranded(attempt, cause, self.name, len(attempts), now))

    def _linger(self) -> None:
        """Stay after the caller has returned: renew the leases of handlers that did not stop until they end, and save
        their results. A job given back before that would run twice at once."""
        self._slots.idle.wait()
        self._settler.flush(self._beat_s)
        self._leave()
        self._app.closing.end(self._work)

    def _close_resources(self) -> None:
        resources = self._app.resources
        if resources.on_a_loop:
            try:
                self._slots.loop.run(resources.aend(), LEAVE_S)
            except Exception as error:  # the loop has died, or a handler holds it
                log.error("the resources of the event loop could not be closed: %s", describe(error))
        resources.end()

    def _leave(self) -> None:
        self._stopping.set()  # ends the reaper's thread, also when Ctrl-C came before the first claim
        self._slots.pool.close()
        self._settler.close()
        self._flows.close()
        self._heartbeat.close()
        self._time_limits.stop(1.0)
        self._publisher.close()
        self._slots.threads.close()
        self._close_resources()
        self._slots.loop.close()
        if self.worker_id and not self._heartbeat.all():
            try:
                if not self._until_idle:
                    self._heartbeat.say_last()
                self._store.retire(self.worker_id, "left")
            except HoldfastError as error:
                log.warning("could not sign off: %s", error)
        self._app.hooks.flush(self._flush_s)
        log.info("worker %s has stopped", self.name)
