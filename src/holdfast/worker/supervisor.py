"""The parent of the worker processes. It runs no user code, sees its children end, and knows why.

A child that ends takes its leases with it; the parent settles them at once, with the cause in words, and starts the
child again, more slowly each time it dies young. Orders (`stop`, `now`) go down a socket, and the child reports on it
every beat that reached the store. The parent ends a child that lives and does not beat, and one that does not reach its
first beat. When the parent dies the socket closes; the children then give back what they run, and exit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Collection
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.clock import Clock
from holdfast.core.child_exit import (
    EXIT_REPLACED,
    Next,
    how_a_child_ended,
    is_excused,
    is_given_back,
    next_act,
    restart_after,
)
from holdfast.core.records import SILENT_BEATS, Worker
from holdfast.core.text import counted, escaped
from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import FileLocked, FileReplaced, HoldfastError, StoreDenied, StoreLocked
from holdfast.ids import new_id
from holdfast.runtime.store_backoff import StoreBackoff
from holdfast.runtime.vital_threads import refuse_patched_threads
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite import protected
from holdfast.upkeep.reaper import Reaper
from holdfast.worker.isolated.process import end_of
from holdfast.worker.launch import Launch
from holdfast.worker.log_capture import enable_our_loggers
from holdfast.worker.metrics_server import FleetMeasures, MetricsServer
from holdfast.worker.options import WorkerOptions
from holdfast.worker.signals import catch_signals, handle_signals, see_children_end
from holdfast.worker.systemd import Systemd

if TYPE_CHECKING:
    from holdfast.app import App

log = logging.getLogger("holdfast.supervisor")

CHILD = "holdfast.cli.child"
LOOK_S = 1.0  # how often to look whether a child beats
STILL_S = 10.0  # this long without a turn means that the supervisor is stuck
POLL_S = 0.05  # and whether it has ended, where the system does not tell
SILENT_LEAST_S = 15.0  # a child that has not beaten for a few intervals, and for at least this long, is replaced
START_S = 300.0  # and so is one that has not beaten this long after its start; a large app takes a minute to import
STOP_MARGIN_S = 15.0  # beyond the grace period; then a child is killed, and a store that fails is given up
EXIT_STORE = 3  # of the supervisor itself: no worker can use the store as it is set up
EXIT_SCHEMA = 4  # this program is too old for the schema of the store


def supervise(app_ref: str, app: App, options: WorkerOptions, launch: Launch) -> int:
    """Run the workers of an app until SIGTERM, SIGINT or SIGHUP; a second SIGTERM or SIGINT gives back what runs.

    Returns `EXIT_REPLACED` when only a new process can use the store, and all workers have left.
    """
    protected.install()  # the app's hooks run in this process
    if options.metrics_port is None:
        return Supervisor(app_ref, app, options, launch).run()
    measures = FleetMeasures(sorted(app.tasks), app.url.partition(":")[0])
    supervisor = Supervisor(app_ref, app, options, launch, measures)
    server = MetricsServer(options.metrics_host, options.metrics_port, measures.series, supervisor.is_live)
    with contextlib.closing(server):
        server.start()
        log.info("metrics are at http://%s:%d/metrics", options.metrics_host, server.port)
        return supervisor.run()


class Child(NamedTuple):
    """A worker process, and our end of the socket to it."""

    process: subprocess.Popen[bytes]
    socket: socket.socket


class Supervisor:
    """See the module's docstring."""

    def __init__(
        self,
        app_ref: str,
        app: App,
        options: WorkerOptions,
        launch: Launch,
        measures: FleetMeasures | None = None,
    ) -> None:
        refuse_patched_threads()
        self._app_ref = app_ref
        self._url = app.url
        self._store: Store = app.store
        self._clock: Clock = app.clock
        self._hooks = app.hooks
        self._options = options
        self._launch = launch
        self._measures = measures
        self._looked_at = self._clock.lease()
        self._id = new_id()
        self._name = options.name or socket.gethostname()
        self._systemd = Systemd(launch.environment, os.getpid())
        self._stopping = threading.Event()
        self._exit_code = 0  # once it is stopping
        self._lock = threading.Lock()
        self._children: dict[int, Child] = {}  # by their numbers

    def run(self) -> int:
        """Start the children, pass on signals, and return when all have ended."""
        signals = catch_signals()
        see_children_end()
        enable_our_loggers()
        monitors = [
            threading.Thread(target=self._monitor, args=(number,), name=f"holdfast-child-{number}", daemon=True)
            for number in range(1, self._options.processes + 1)
        ]
        for monitor in monitors:
            monitor.start()
        requests = 0
        kill_at = float("inf")
        while any(monitor.is_alive() for monitor in monitors):
            self._looked_at = self._clock.lease()
            if select.select([signals], [], [], 0.2)[0]:
                caught = os.read(signals, 64)
                requests += len([number for number in caught if number in (signal.SIGTERM, signal.SIGINT)])
                requests = requests or 1  # SIGHUP: a shell that ends may send it twice, and means the same by it
                self._stopping.set()
                self._order("now" if requests > 1 else "stop")
                log.info("stopping now" if requests > 1 else "stopping")
                kill_at = self._clock.lease() + STOP_MARGIN_S + (0 if requests > 1 else self._options.grace_period_s)
            if self._stopping.is_set():
                self._systemd.stopping()
            if all(monitor.is_alive() for monitor in monitors) or self._stopping.is_set():
                self._systemd.alive(self._clock.lease())
            if self._clock.lease() > kill_at:
                self._kill()
        self._hooks.flush()
        if self._exit_code == EXIT_REPLACED:
            handle_signals(signal.SIG_DFL)  # nothing is left that has to end gracefully
            was_asked = requests > 0 or bool(select.select([signals], [], [], 0)[0])
            return 0 if was_asked else EXIT_REPLACED
        if self._stopping.is_set():
            return self._exit_code
        log.critical("all monitor threads have ended unexpectedly; killing the worker processes and exiting")
        self._kill()
        return 1

    def is_live(self) -> bool:
        """Say whether the thread that obeys signals and sees to the children has moved lately. Asks no store."""
        return self._clock.lease() - self._looked_at < STILL_S

    # ------------------------------------------------------------------------------------ one child

    def _monitor(self, number: int) -> None:
        # Not a `Service`: a turn lasts as long as a child lives, and the pause depends on how long that was.
        young = 0  # how many died young in a row
        while not self._stopping.is_set():
            born_at = self._clock.lease()
            try:
                what = self._live_and_die(number)
            except OSError as error:  # no memory, no process, no descriptor to be had
                what = f"could not be started ({error})"
            except Exception as error:
                log.exception(
                    "the monitor of child %s/%d failed unexpectedly; the thread continues", self._name, number
                )
                what = f"was lost sight of ({error})"
            if self._stopping.is_set():
                return
            restart = restart_after(young, self._clock.lease() - born_at)
            young = restart.young
            loop = f" (a crash loop: it died young {young} times in a row)" if restart.is_crash_loop else ""
            log.warning(
                "child %s/%d %s; starting it again in %.1f s%s", self._name, number, what, restart.pause_s, loop
            )
            self._clock.wait(self._stopping, restart.pause_s)

    def _live_and_die(self, number: int) -> str:
        """Start a child, wait for its end, and settle its jobs; return what became of it."""
        child = self._spawn(number)
        if self._stopping.is_set():
            self._order("stop")
        silent = self._await_end(number, child)
        with self._lock:
            code = _code_of(child.process)
            del self._children[number]
            child.socket.close()
        enrolled = self._settle_child(number, child.process.pid, code, silent)
        if not self._stopping.is_set() and self._was_asked_to_stop(child.process.pid):
            log.info("a person has asked the workers named %s to stop", escaped(self._name))
            self._leave(0)
        match next_act(code, enrolled=enrolled):
            case Next.CHECK_SCHEMA:
                self._leave_if_too_old()
            case Next.LEAVE:
                self._leave(EXIT_STORE)
        return how_a_child_ended(code, silent=silent, enrolled=enrolled)

    def _await_end(self, number: int, child: Child) -> bool:
        """Wait until a child has ended; return whether we ended it, because it lived and did not beat."""
        orders, pid, silence, ended_by_us = child.socket.fileno(), child.process.pid, Silence(), False
        end = end_of(pid)
        looked_at = self._clock.lease()
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            selector.register(orders, selectors.EVENT_READ)
            if end is not None:
                stack.callback(os.close, end)
                selector.register(end, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select(LOOK_S if end is not None else POLL_S)}
                if orders in ready and not silence.read_from(orders):
                    selector.unregister(orders)
                if silence.has_beaten:
                    self._systemd.ready()
                if end in ready or (end is None and child.process.poll() is not None):
                    return ended_by_us
                looked_at, before = self._clock.lease(), looked_at
                silence.add(looked_at - before)
                if not ended_by_us and not self._stopping.is_set() and self._is_too_long(silence, pid):
                    what = "has sent no heartbeat for" if silence.has_beaten else "is not ready after"
                    log.critical(
                        "child %s/%d is alive but %s %.0f s: replacing it", self._name, number, what, silence.seconds
                    )
                    ended_by_us = True
                    os.kill(pid, signal.SIGKILL)

    def _is_too_long(self, silence: Silence, pid: int) -> bool:
        """Say whether a child has stopped beating. While the store fails for another reason, that is unknown: only a
        write of our own that was committed shows that the child could have beaten."""
        if silence.seconds < silence.limit_s / 2:
            return False
        asked_at = self._clock.lease()
        try:
            self._store.ping(durably=True)
        except HoldfastError as error:
            if isinstance(error, FileLocked) and error.holder == pid:  # stopped inside a transaction: nobody can write
                silence.seconds += self._clock.lease() - asked_at
            else:
                silence.seconds = silence.limit_s / 2
                if not silence.is_excused:
                    log.warning(
                        "the child with pid %d has sent no heartbeat for a while, but it is not replaced: the store "
                        "takes no writes (%s)",
                        *(pid, error),
                    )
                    silence.is_excused = True
        return silence.seconds >= silence.limit_s

    def _was_asked_to_stop(self, pid: int) -> bool:
        """Say whether all children of this supervisor were asked to stop since the one with this pid began."""
        try:
            stops = [each for each in self._store.orders() if (each.name, each.act) == (self._name, "stop")]
            rows = self._store.workers(gone=True) if stops else []
        except HoldfastError as error:
            log.warning("could not look whether the workers were asked to stop (%s); a new child will", error)
            return False
        began = [each.started_at for each in rows if (each.supervisor, each.pid) == (self._id, pid)]
        return any(order.at >= min(began, default=float("inf")) for order in stops)

    def _leave_if_too_old(self) -> None:
        """A child says that the schema is not for this program. If so, no other child will ever work either."""
        try:
            if self._store.schema().is_too_new:
                self._leave(EXIT_SCHEMA)
        except HoldfastError as error:
            log.warning("could not look at the schema (%s); a new child will", error)

    def _leave(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._stopping.set()
        self._order("stop")

    def _spawn(self, number: int) -> Child:
        settings = {
            "app": self._app_ref,
            "db": self._url,
            "name": f"{self._name}/{number}",
            "supervisor": self._id,
            "options": asdict(self._options),
        }
        counts = () if self._measures is None else (self._measures.pipe(number),)
        try:
            child = Child(*self._launch.start(CHILD, *counts))
        finally:
            for each in counts:
                os.close(each)
        with self._lock:
            self._children[number] = child
        try:
            child.socket.send(msgspec.json.encode(settings) + b"\n")  # less than the socket holds: it does not block
        except OSError as error:
            log.warning("child %s/%d ended before it got its settings (%s)", self._name, number, error.strerror)
            child.process.kill()  # if it has not: without orders it is of no use
        return child

    def _settle_child(self, number: int, pid: int, code: int | None, silent: bool = False) -> bool:
        """Settle the jobs of a dead child; keep trying while the store fails. Return whether it had enrolled.

        Once the row is marked gone, it records how its jobs are to be settled, so a later try, ours or a reaper's,
        settles the rest in the same way. While another transaction has locked that row, a separate thread keeps trying,
        and the next child does not wait for it.
        """
        released = is_given_back(code, stopping=self._stopping.is_set())
        reaper = Reaper(self._store, self._clock, hooks=self._hooks, name=f"{self._name}/{number}")
        return self._settle_until_done(number, pid, partial(self._settle_leases, reaper, code, released, silent))

    def _settle_until_done(
        self, number: int, pid: int, settle: Callable[[Worker], None], only: Collection[str] | None = None
    ) -> bool:
        """See `_settle_child`. `only`: the workers whose rows were locked; another child may have the pid by now."""
        backoff = StoreBackoff(log, self._clock, "the jobs of a dead child are settled when it is back")
        give_up_at = float("inf")
        while self._clock.lease() < give_up_at:
            try:
                ours = [
                    each
                    for each in self._store.workers(gone=True)
                    if (each.supervisor, each.pid) == (self._id, pid) and (only is None or each.id in only)
                ]
                locked: dict[str, StoreLocked] = {}
                for worker in ours:
                    if worker.gone_at is None or worker.running:
                        try:
                            settle(worker)
                        except StoreLocked as error:
                            locked[worker.id] = error
                if not locked:
                    backoff.recovered()
                    return bool(ours)
                if only is None and not self._stopping.is_set():
                    given = (number, pid, settle, tuple(locked))
                    threading.Thread(
                        target=self._settle_until_done, args=given, name="holdfast-locked", daemon=True
                    ).start()
                    return True
                raise next(iter(locked.values()))
            except FileReplaced as error:  # only a new process can write to the store; it settles what is left
                if not self._stopping.is_set():
                    log.error("%s; the worker starts again, and its jobs are recovered then", error)
                    self._leave(EXIT_REPLACED)
                return True
            except StoreDenied:  # the token is a worker's: the server sees the connection of the child close
                return True
            except HoldfastError as error:
                pause_s = backoff.failed(error)
            if self._stopping.is_set():
                give_up_at = min(give_up_at, self._clock.lease() + STOP_MARGIN_S)
                self._clock.wait(threading.Event(), pause_s)
            else:
                self._clock.wait(self._stopping, pause_s)
        log.error("the jobs of child %s/%d could not be settled; a reaper will find them", self._name, number)
        return True

    def _settle_leases(self, reaper: Reaper, code: int | None, released: bool, silent: bool, worker: Worker) -> None:
        if released:
            given_back = reaper.release_worker(worker, "the worker stopped")
            if given_back:
                jobs = counted(given_back, "job")
                log.info(
                    "worker %s stopped with %s running; each was settled by its on_crash policy", worker.name, jobs
                )
            return
        how = how_a_child_ended(code, silent=silent, enrolled=True)
        ended = WorkerExit("exit", code, excused=is_excused(code))
        report = reaper.recover_worker(worker, f"its process {how}", ended)
        were = "was" if report.recovered == 1 else "were"
        log.warning("%s %s; %d of its jobs %s settled", worker.name, how, report.recovered, were)

    # ------------------------------------------------------------------------------------ all of them

    def _order(self, word: str) -> None:
        with self._lock:  # so that no descriptor is closed, and means something else, before it is written to
            for child in self._children.values():
                with contextlib.suppress(OSError):
                    child.socket.send(f"{word}\n".encode())

    def _kill(self) -> None:
        with self._lock:  # none of them is buried meanwhile, so that its number means another process
            for child in self._children.values():
                with contextlib.suppress(OSError):
                    os.kill(child.process.pid, signal.SIGKILL)


class Silence:
    """The time since a child's last beat, counted only while its parent was awake to see it.

    Before its first beat a child may take its time to load its app and to open its store.
    """

    def __init__(self) -> None:
        self.limit_s = START_S
        self.seconds = 0.0
        self.has_beaten = False
        self.is_excused = False  # the store takes no writes; said once

    def read_from(self, fd: int) -> bool:
        """Read how often the child means to beat, which it says with every beat; False when it can say no more."""
        with contextlib.suppress(OSError):
            if said := os.read(fd, 4096):
                self.seconds, self.is_excused = 0.0, False
                with contextlib.suppress(IndexError, ValueError):  # the end of a line, or others' words
                    self.limit_s = max(SILENT_BEATS * float(said.split()[-1]), SILENT_LEAST_S)
                    self.has_beaten = True
                return True
        return False

    def add(self, seconds: float) -> None:
        """Note the time since the last look; if it is much more than intended, this process was asleep as well."""
        self.seconds += min(seconds, 2 * LOOK_S)


def _code_of(child: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code of a child that has ended, negative for a signal; None: unknown.

    `Popen.wait` would call it 0 when the system does not know any more, because SIGCHLD is ignored or code of the
    user's waits for any process.
    """
    with contextlib.suppress(ChildProcessError):
        _, status = os.waitpid(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    code: int | None = child.returncode
    child.returncode = code or 0  # it is not waited for again
    return code
