"""Inside an isolated process, which runs one attempt at a time. The same executors run it as in a worker.

The main thread listens to the worker and passes progress on; the handler runs in a thread or on the event loop. When
the worker dies the socket closes, and the process ends with everything that it has started.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from holdfast.clock import Clock
from holdfast.core.child_exit import EXIT_BROKEN
from holdfast.core.text import clean
from holdfast.core.verdict import Failed, Outcome
from holdfast.errors import Cancelled, HoldfastError, NoProgress, StoreUnsupported, TimeLimit, UsageError
from holdfast.forks import ForkGuard
from holdfast.interrupts import shielded
from holdfast.runtime.closing import Work
from holdfast.runtime.log_fields import current_attempt, trace_fields
from holdfast.runtime.tracebacks import ERROR_MAX, describe
from holdfast.runtime.vital_threads import BROKEN_S, end_process
from holdfast.stores.protocol import Store
from holdfast.tasks import Task
from holdfast.worker.attempt import Attempt
from holdfast.worker.context import Context
from holdfast.worker.executors import Loop, Threads
from holdfast.worker.isolated import memory, protocol
from holdfast.worker.settler import Settler
from holdfast.worker.workflows import WorkflowRuntime

if TYPE_CHECKING:
    from holdfast.app import App

MOVED_S = 0.1  # the least pause between two reports of progress
_PLAIN = (str, int, float, bool, type(None))
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

Find = Callable[[protocol.StartAttempt], Task[..., Any]]


class WorkerConnection:
    """The way to the worker; may be used by any thread."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._lock = threading.Lock()
        self._frames = protocol.Frames[protocol.Order](protocol.Order)
        os.register_at_fork(after_in_child=self._hang_up)

    def send(self, word: protocol.Word) -> None:
        """Send it whole, whatever interrupts the handler meanwhile."""
        data = protocol.frame(word)
        with shielded(), self._lock:
            try:
                self.socket.sendall(data)
            except OSError:
                if self.socket.fileno() >= 0:
                    end()  # the worker is gone

    def receive_setup(self) -> protocol.Setup:
        """Wait for the first order. The worker sends no other before this process is ready."""
        while not (orders := self.receive()):
            pass
        return cast(protocol.Setup, orders[0])

    def receive(self) -> list[protocol.Order]:
        """Wait for orders; end with the worker."""
        try:
            data = self.socket.recv(protocol.READ_BYTES)
        except OSError:
            data = b""
        if not data:
            end()
        return list(self._frames.feed(data))

    def _hang_up(self) -> None:
        """In a forked child: close the socket, so that the child cannot send messages or keep it open."""
        self._lock = threading.Lock()
        self.socket.close()


def end() -> None:
    """End this process and everything in its group."""
    with contextlib.suppress(OSError):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def settle_in(dump: int) -> None:
    """Let this process die with its worker, keep what it starts, and write its stack to `dump` when asked or crashed.

    The stack is written by a handler in C: it works while a C library holds Python's lock.
    """
    faulthandler.enable(dump, all_threads=True)
    faulthandler.register(signal.SIGUSR1, dump, all_threads=True, chain=False)
    if sys.platform == "linux":
        import ctypes

        memory.offer_self()
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class IsolatedChild:
    """See the module's docstring."""

    def __init__(self, line: WorkerConnection, find: Find, clock: Clock) -> None:
        self._line = line
        self._find = find
        self._clock = clock
        self._attempt: _Attempt | None = None
        self._apps: set[App] = set()  # whose tasks were run
        self._workflows: dict[App, WorkflowRuntime] = {}  # each on its app's store, opened for the first workflow
        self._threads = Threads(clock, self._context, self._commit, self._report, self)
        self._loop: Loop | None = None

    def serve(self) -> None:
        """Run what the worker orders, until it says to leave."""
        poll = select.poll()
        poll.register(self._line.socket.fileno(), select.POLLIN)
        leaves = False
        while not leaves:
            with contextlib.suppress(MemoryError):  # the handler has all that there is, and will learn so
                leaves = self._turn(poll)
        self._leave_apps()

    def _leave_apps(self) -> None:
        for app in self._apps:
            app.worker_hooks.stop(lambda called: self._event_loop().run(called, BROKEN_S), "an isolated process")
            if app.resources.on_a_loop and self._loop is not None:
                with contextlib.suppress(Exception):  # the worker kills a process that does not leave
                    self._loop.run(app.resources.aend(), BROKEN_S)
            app.resources.end()

    def _turn(self, poll: select.poll) -> bool:
        """Wait for orders and obey them, or pass progress on; return whether to leave."""
        attempt = self._attempt
        if not poll.poll(None if attempt is None else MOVED_S * 1000):
            if attempt is not None:
                attempt.tell_news()
            return False
        for order in self._line.receive():
            if isinstance(order, protocol.Leave):
                return True
            self._obey(order)
        return False

    def _obey(self, order: protocol.Order) -> None:
        match order:
            case protocol.StartAttempt():
                self._run(order)
            case protocol.Stop():
                attempt = self._attempt
                if attempt is None:
                    return  # it has ended by itself
                why = protocol.signal_of(order)
                if isinstance(why, Cancelled):
                    attempt.ask_to_stop()
                if isinstance(why, TimeLimit | NoProgress):
                    why.stack = attempt.stack()
                    self._line.send(protocol.StackTaken(why.stack or ""))
                attempt.handler.stop(why)

    def _run(self, order: protocol.StartAttempt) -> None:
        try:
            task = self._find(order)
        except HoldfastError as error:
            self._refuse(clean(str(error), ERROR_MAX))
            return
        try:
            self._enter(task.app)
        except BaseException as error:  # the author's code, and so may be an exit of it
            self._refuse(f"a hook for the start of its process raised: {describe(error)}")
            return
        attempt = self._attempt = _Attempt(order, task, self._clock, self._line)
        try:
            self._executor(task).start([attempt])
        except RuntimeError as error:  # the system gives no more threads
            self._report(attempt, Failed(f"its process had no memory to start: {error}"))

    def _refuse(self, error: str) -> None:
        ended = protocol.ended(Failed(error), progress=None, note=None, rss_mb=memory.rss_mb(), spent=False)
        self._line.send(ended)

    def _enter(self, app: App) -> None:
        """Call the app's hooks for the start of a process, before its first attempt here."""
        if app not in self._apps:
            app.worker_hooks.start(lambda called: self._event_loop().run(called))
            self._apps.add(app)

    def _executor(self, task: Task[..., Any]) -> Threads | Loop:
        return self._event_loop() if task.is_async else self._threads

    def _event_loop(self) -> Loop:
        if self._loop is None:
            self._loop = Loop(self._clock, self._context, self._commit, self._report, self, died=self._broke)
        return self._loop

    def _broke(self, thread: str, error: BaseException | None) -> None:
        """End this process, because a thread has died without which its attempt will never end."""
        what = "its event loop" if thread == "holdfast-loop" else f"the thread {thread}"

        def report() -> None:
            self._line.send(protocol.Unusable(f"lost {what} ({describe(error) if error else 'it was stopped'})"))

        end_process(EXIT_BROKEN, report, BROKEN_S)

    def _context(self, attempt: Attempt) -> Context:
        app = attempt.task.app
        return Context(attempt, _guarded_store(app), self._clock, self._beat, app.logger.getChild("job"))

    def play(self, attempt: Attempt) -> Any:
        return self._runtime(attempt.task.app).play(attempt)

    async def aplay(self, attempt: Attempt) -> Any:
        return await self._runtime(attempt.task.app).aplay(attempt)

    def _runtime(self, app: App) -> WorkflowRuntime:
        if app not in self._workflows:
            self._workflows[app] = WorkflowRuntime(app, _guarded_store(app), self._clock, self._context, self._broke)
        return self._workflows[app]

    def _beat(self) -> None:
        self._line.send(protocol.ProgressMade(beat=True))

    def _commit(self, attempt: Attempt, outcome: Outcome) -> Outcome | None:
        """Settle with the commit, on the process's own handle of the store, and notify the worker."""
        if attempt.transaction is None:
            return outcome
        app = attempt.task.app
        settler = Settler(app.store, self._clock, lambda _: None, app.hooks, journal_all=app.journal == "full")
        return settler.commit(attempt, outcome)

    def _report(self, attempt: Attempt, outcome: Outcome | None) -> None:
        said = attempt.activity
        attempt.handler.end()  # first: what it left behind must not speak for the next one
        word = protocol.ended(
            outcome,
            progress=said.progress,
            note=said.note,
            rss_mb=memory.rss_mb(),
            spent=_has_children(),
            beat_data=said.beat_data,
        )
        self._attempt = None
        self._line.send(word)


class _Attempt(Attempt):
    """An attempt that keeps to its memory, and passes its progress on to the worker."""

    __slots__ = ("_clock", "_line", "_sent_at", "_sent_steps", "memory_max_mb")

    def __init__(
        self, order: protocol.StartAttempt, task: Task[..., object], clock: Clock, line: WorkerConnection
    ) -> None:
        super().__init__(order.job, task, clock.lease())
        self.memory_max_mb = order.memory_max_mb
        self._clock = clock
        self._line = line
        self._sent_at = float("-inf")
        self._sent_steps: dict[str, str] = {}

    def start(self, now: float) -> None:
        super().start(now)
        if self.memory_max_mb is not None:
            memory.limit_self(self.memory_max_mb)

    def unlimit(self) -> None:
        if self.memory_max_mb is not None:
            memory.limit_self(None)

    def move(self, now: float, progress: float | None, note: str | None, beat_data: str | None = None) -> None:
        super().move(now, progress, note, beat_data)
        if now - self._sent_at >= MOVED_S:
            self.tell()

    @contextlib.contextmanager
    def inside(self, path: str, name: str) -> Iterator[None]:
        """Pass it on at once: the process may not live to do it later."""
        with super().inside(path, name):
            self.tell_news()
            yield

    def tell_news(self) -> None:
        """Pass on what has not been said yet: how far it is, and in which steps."""
        if not self.activity.reported:
            self.tell()
        if (steps := {} if self.workflow is None else dict(self.workflow.steps)) != self._sent_steps:
            self._sent_steps = steps
            self._line.send(protocol.StepsChanged(steps))

    def tell(self) -> None:
        """Pass on how far it is."""
        self._sent_at = self._clock.lease()
        self.activity.reported = True
        said = self.activity
        self._line.send(protocol.ProgressMade(said.progress, said.note, beat_data=said.beat_data))


def _guarded_store(app: App) -> Store:
    """Return the process's own handle of the store, which is opened at its first use."""
    return cast(Store, ForkGuard(lambda: app.store))


class Unshared:
    """Stands for a store that lives in the worker's memory, where no other process can reach it."""

    def __getattr__(self, verb: str) -> Any:
        raise StoreUnsupported(
            "memory:// lives in the memory of the worker, and an isolated task has a process of its own: it cannot "
            "enqueue or look at jobs, or open a transaction; use sqlite:// or postgresql://"
        )


def adopt(app: App, url: str) -> App:
    """Give an app that was found in this process the store of the worker, and let no job close it."""
    app.closing.begin(Work(lambda: None, 0.0, lambda: True))
    if url.partition("?")[0].rstrip("/") == "memory:":
        app._store = cast(Store, Unshared())
    else:
        try:
            app.url = url
        except UsageError as error:
            raise UsageError(f"the module of an isolated task uses the store while it is imported: {error}") from error
    return app


class Forward(logging.Handler):
    """Passes log records on to the worker, which knows what becomes of them."""

    def __init__(self, line: WorkerConnection) -> None:
        super().__init__()
        self._line = line
        self._format = logging.Formatter()

    def handle(self, record: logging.LogRecord) -> bool:
        with shielded():  # an interrupt inside the handler's lock would leave it locked
            return super().handle(record)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            trace = self._format.formatException(record.exc_info) if record.exc_info else record.exc_text
            self._send(record, record.getMessage(), trace)
        except Exception as error:
            self.handleError(record)
            self._send(record, f"(a record that cannot be written: {type(error).__name__})", None)

    def _send(self, record: logging.LogRecord, text: str, trace: str | None) -> None:
        fields = {name: value for name, value in record.__dict__.items() if isinstance(value, _PLAIN)}
        fields |= {"msg": text, "exc_text": trace, **trace_fields()}
        attempt = current_attempt.get()
        self._line.send(protocol.Logged(fields, None if attempt is None else attempt.key))


def _has_children() -> bool:
    """Say whether a process is left that the handler started. As the one who inherits orphans, we know them all."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    except (ChildProcessError, AttributeError):
        return False  # or nobody can say, as on macOS before Python 3.13
