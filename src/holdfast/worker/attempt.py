"""One run of a job inside this process: what the threads of a worker share about it."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast.core.lease import TrustWindow, trust
from holdfast.core.records import Job, Lease, Pulse, Step
from holdfast.core.row_text import CurrentStep, CurrentSteps
from holdfast.errors import Diverged, Interrupted, Parking, PayloadError
from holdfast.interrupts import clear_interrupt, interrupt
from holdfast.tracebacks import stack_text
from holdfast.worker.log_capture import LogCapture, current_attempt

if TYPE_CHECKING:
    import asyncio

    from holdfast.stores.protocol import Transaction
    from holdfast.tasks import Task

log = logging.getLogger("holdfast.worker")

SHORT_S = 1.0  # what a handler logs in its first moments goes with its end, or with a beat that is due anyway
KILL_S = 1.0  # how long the end of a process may take
NEVER = float("inf")
TOLD_MAX = 10  # how many steps of one workflow are reported at once


class Keeps(Protocol):
    """Runs a handler in another process, and can reach it there."""

    def interrupt(self, attempt: Attempt) -> None:
        """Stop it, for the reason that the attempt has noted. Returns at once."""
        ...

    def kill(self, attempt: Attempt) -> None:
        """End its process now."""
        ...


class Attempt:
    """The attempt's lease, its trust in it, and the way to interrupt its handler.

    Written by several threads: `window` by the heartbeat, `progress` and `note` by the handler, the rest under `_lock`.
    """

    __slots__ = (
        "_async",
        "_elsewhere",
        "_lock",
        "_reported",
        "_seen",
        "_seen_at",
        "_thread",
        "announcing",
        "claimed_at",
        "deadline",
        "ended",
        "failed",
        "fatal",
        "heard",
        "interrupt",
        "interrupted_at",
        "job",
        "key",
        "killed_at",
        "known_started",
        "lease",
        "lines",
        "moved_at",
        "note",
        "opened",
        "opened_by",
        "outage",
        "parked",
        "parked_at",
        "progress",
        "reported",
        "started_at",
        "steps",
        "task",
        "transaction",
        "window",
    )

    def __init__(self, job: Job, task: Task[..., object], sent_at: float) -> None:
        self.job = job
        self.task = task
        self.lease: Lease = job.lease
        self.key: tuple[str, int] = (job.id, job.fence)
        self.claimed_at = sent_at
        self.window: TrustWindow = trust(sent_at, job.lease_s, job.beat_s)
        self.started_at: float | None = None
        self.deadline: float | None = None
        self.ended = False  # the handler has returned, or was given up; its outcome may still be on its way
        self.moved_at = sent_at
        self.progress: float | None = None
        self.note: str | None = None
        self.lines: LogCapture | None = None  # None: it has logged nothing
        self.interrupt: Interrupted | None = None  # why the handler was asked to stop
        self.interrupted_at = NEVER  # lease clock
        self.killed_at = NEVER  # lease clock
        self.parked: Parking | None = None  # the workflow waits: its code has nothing more to do
        self.parked_at = NEVER  # lease clock
        self.heard = False  # the event loop has passed that on
        self.transaction: Transaction | None = None
        self.failed: dict[str, Step] = {}  # path -> the last try, of calls of a workflow that raised
        self.fatal: BaseException | None = None  # what would leave a workflow in every replay
        self.outage: BaseException | None = None  # what the task met when the store failed inside its transaction
        self.opened_by: str | None = None  # that transaction, by the name that users know
        self.opened: object = None  # what holds the transaction open: letting go of it would roll it back
        self.reported = True  # False while there is progress that no beat has carried yet
        self.known_started = job.started  # the store knows that the handler has begun, or is about to
        self.announcing = False  # the handler begins when the store knows
        self.steps: dict[str, str] = {}  # path -> name, of the steps of a workflow that it is in
        self._reported: tuple[CurrentStep, ...] | None = ()  # those that a beat has carried; None: perhaps it was lost
        self._seen: tuple[CurrentStep, ...] = ()  # what they were when the heartbeat looked last, and since when
        self._seen_at = sent_at
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._elsewhere: Keeps | None = None
        self._async: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None

    @property
    def must_announce(self) -> bool:
        """Say whether the store must know of the start before it happens. A job that was claimed ahead costs its budget
        nothing when its worker dies, because it may not have begun. If it had, and was what killed the worker, that
        must be known the next time."""
        return not self.known_started and self.job.zombies > 0

    def start(self, now: float) -> None:
        """Note that the handler begins."""
        self.started_at = self.moved_at = now
        if self.job.timeout_s is not None:
            self.deadline = now + self.job.timeout_s

    def move(self, now: float, progress: float | None, note: str | None) -> None:
        """Note that the handler moves."""
        self.moved_at = now
        self.progress = progress if progress is not None else self.progress
        self.note = note if note is not None else self.note
        self.reported = False

    def park(self, until: Parking, now: float) -> None:
        """Note that the workflow waits without a slot from now on: its code has a moment to leave."""
        self.parked, self.parked_at = until, now

    def pulse(self, now: float, *, talks: bool = False) -> Pulse:
        """Return what the next beat reports about this attempt; with `talks` also its new log lines."""
        self.reported = True
        news = self.lines.take() if talks and self.lines is not None else None
        has_moved = self.started_at is not None and self.moved_at > self.started_at
        still_s = max(0.0, now - self.moved_at) if has_moved else None
        started = self.announcing or self.started_at is not None
        return Pulse(self.lease, started, self.progress, self.note, news, still_s, self._newly_in())

    def unheard(self) -> None:
        """Note that the last pulse may not have reached the store, so that the next one repeats it."""
        self.reported = False
        self._reported = None
        if self.lines is not None:
            self.lines.fresh = True

    def has_lines(self, now: float) -> bool:
        """Say whether it has log lines that no beat has sent, and has run for a second: then a beat is due."""
        if self.lines is None or not self.lines.fresh or self.started_at is None:
            return False
        return self.window.must_renew(now) or now - self.started_at >= SHORT_S

    def has_begun_unseen(self, now: float) -> bool:
        """Say whether it was claimed ahead and began a second ago or more, and no beat has reported that."""
        return not self.known_started and self.started_at is not None and now - self.started_at >= SHORT_S

    @contextmanager
    def inside(self, path: str, name: str) -> Iterator[None]:
        """Say that the handler is in a step during the block. Several may be, side by side."""
        self.steps[path] = name
        try:
            yield
        finally:
            self.steps.pop(path, None)

    def in_steps(self) -> CurrentSteps:
        """Return the steps that it is in, as its row has them."""
        return CurrentSteps(CurrentStep(*each) for each in list(self.steps.items())[:TOLD_MAX])

    def has_other_steps(self, now: float) -> bool:
        """Say whether it has been in steps for a second that no beat has reported: then a beat is due. Short steps cost
        no beat of their own."""
        steps = self.in_steps()
        if steps != self._seen:
            self._seen, self._seen_at = steps, now
        return steps != self._reported and now - self._seen_at >= SHORT_S

    def _newly_in(self) -> CurrentSteps | None:
        steps = self.in_steps()
        if steps == self._reported:
            return None
        self._reported = steps
        return steps

    def hear(self, record: logging.LogRecord) -> None:
        """Keep what the handler has logged."""
        if self.lines is None:
            self.lines = LogCapture()
        self.lines.hear(record)

    def as_seen(self) -> Job:
        """Return the job's row as the newest beat would make it."""
        log = None if self.lines is None else "\n".join(self.lines.all())
        said = {"progress": self.progress, "note": self.note, "log": log, "in_steps": self.in_steps()}
        return msgspec.structs.replace(self.job, started=True, **said)

    def ask_to_stop(self, row: Job | None = None) -> None:
        """Note that the job was asked to stop: every ending but success is a cancellation from now on.

        If its `row` says so, they want what a workflow did to be undone, and said why.
        """
        undo = row is not None and row.undo_requested
        self.learn(cancel_requested=True, undo_requested=undo or None, error=row.error if row and undo else None)

    def learn(self, **facts: Any) -> None:
        """Note what has changed on the row: the judge must know. None: as it was."""
        known = {name: value for name, value in facts.items() if value is not None}
        with self._lock:
            self.job = msgspec.structs.replace(self.job, **known)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what the handler is called with, without the context.

        A call that does not fit the signature is a failure as any other: in the middle of a deploy the next attempt may
        meet a worker whose code it fits. But a workflow that has something to undo could not even do that; it is held
        until the code fits again. So is a workflow that is a plain task by now, which would repeat its steps.
        """
        if self.job.workflow and not self.task.is_workflow:
            raise Diverged(f"it was stored as a workflow, and {self.task.name!r} is a plain task here")
        try:
            return self.task.decode(self.job.payload)
        except PayloadError as error:
            if self.job.undoable or self.job.rolling_back:
                raise Diverged(f"the code does not fit the arguments: {error}") from error
            raise

    def unlimit(self) -> None:
        """Lift the limits of the handler, if it has any: it has ended, and what it died of must be written down."""

    # ------------------------------------------------------------------------- stopping the handler

    def stop(self, why: Interrupted) -> None:
        """Ask the handler to stop, once. It stops at its next bytecode or await; code in C is not interrupted."""
        with self._lock:
            if self.interrupt is not None:
                return
            self.interrupt = why
            if self._thread is not None:
                interrupt(self._thread, type(why))
            elif self._async is not None:
                loop, task = self._async
                with suppress(RuntimeError):  # the loop has died, and the handler with it
                    loop.call_soon_threadsafe(self._cancel, task)
            elif self._elsewhere is not None:
                self._elsewhere.interrupt(self)

    def _cancel(self, task: asyncio.Task[None]) -> None:
        self.heard = True
        task.cancel()

    def end(self) -> bool:
        """Note that the handler has returned; False when it was given up before."""
        with self._lock:
            first, self.ended = not self.ended, True
            return first

    def abandon(self) -> bool:
        """Give the handler up: it was asked to stop and goes on. False when there is nobody to give up: it has
        returned, or it is in a process of its own, which can be ended."""
        with self._lock:
            if self.ended or (self._thread is None and self._async is None):
                return False
            self.ended = True
            return True

    @property
    def is_elsewhere(self) -> bool:
        """Say whether the handler has a process of its own: what it recorded is known to the store, and not here."""
        return self._elsewhere is not None

    @property
    def is_deaf(self) -> bool:
        """Say whether the handler, or another one, holds the event loop, so that no cancellation gets through."""
        return self._async is not None and not self.heard

    def kill(self, now: float) -> bool:
        """End the handler's process, if it has one of its own; False when it has none, or has outlived that."""
        if self._elsewhere is None:
            return False
        self.killed_at = min(self.killed_at, now)
        self._elsewhere.kill(self)
        return now - self.killed_at < KILL_S

    def enter_thread(self) -> None:
        """Say that the handler runs in this thread from now on."""
        with self._lock:
            self._thread = threading.get_ident()
            current_attempt.set(self)
            if self.interrupt is not None:
                raise self.interrupt

    def leave_thread(self) -> None:
        """Say that the handler has left this thread; no interrupt can hit it any more."""
        while True:
            try:
                with self._lock:
                    if self._thread is not None:
                        clear_interrupt()
                    self._thread = None
                    current_attempt.set(None)
                return
            except Interrupted:  # it came in on the last bytecodes
                continue

    def enter_loop(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
        """Say that the handler runs as this asyncio task from now on."""
        with self._lock:
            self._async = (loop, task)
            current_attempt.set(self)
            if self.interrupt is not None:
                raise self.interrupt

    def leave_loop(self) -> None:
        """Say that the handler's asyncio task has ended."""
        with self._lock:
            self._async = None
            current_attempt.set(None)

    def enter_process(self, keeps: Keeps) -> None:
        """Say that the handler runs in a process of its own from now on; that one knows its stack."""
        with self._lock:
            self._elsewhere = keeps
            if self.interrupt is not None:
                keeps.interrupt(self)

    def stack(self) -> str | None:
        """Return where the handler is now, for the journal; None: it is not known."""
        try:
            return self._stack()
        except Exception:  # Python asks the loader of the user's own module for its source
            log.exception("job %s: could not read the stack of its handler", self.job.id)
            return None

    def _stack(self) -> str | None:
        with self._lock:
            if self._thread is not None:
                frame = _frame_of(self._thread)
                return stack_text(traceback.extract_stack(frame)) if frame is not None else None
            if self._async is not None:
                return _stack_of(*self._async)
        return None


def _stack_of(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> str:
    """Follow what the task awaits down to where it stands. Where it runs just now, the loop's thread knows more."""
    frames = []
    step: Any = task.get_coro()
    while step is not None and (frame := getattr(step, "cr_frame", None) or getattr(step, "gi_frame", None)):
        frames.append((frame, frame.f_lineno))
        step = getattr(step, "cr_await", None) or getattr(step, "gi_yieldfrom", None)
    running = _frame_of(getattr(loop, "_thread_id", None) or 0)
    if running is not None and frames and any(frame is frames[-1][0] for frame, _ in traceback.walk_stack(running)):
        return stack_text(traceback.extract_stack(running))
    return stack_text(traceback.StackSummary.extract(iter(frames)))


_looking = threading.Lock()


def _frame_of(thread: int) -> FrameType | None:
    """Return where a thread is.

    While Python lists the frames it holds the lock of its list of threads. If the garbage collector runs just then and
    finds a `threading.local`, it wants that same lock, and the whole process stands still for ever (seen in 3.11). So
    the collector rests meanwhile.
    """
    with _looking:  # or one thread would wake it while another one looks
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames().get(thread)
        finally:
            if collects:
                gc.enable()
