"""The handler of one attempt: where it runs, how it is asked to stop, and whether it has returned."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import Interrupted
from holdfast.interrupts import clear_interrupt, interrupt
from holdfast.runtime.tracebacks import stack_text

if TYPE_CHECKING:
    import asyncio

KILL_S = 1.0  # how long the end of a process may take
NEVER = float("inf")


class HandlerProcess(Protocol):
    """Runs a handler in another process, and can reach it there."""

    def interrupt(self, handler: Handler) -> None:
        """Stop it, for the reason that it has noted. Returns at once."""
        ...

    def kill(self, handler: Handler) -> None:
        """End its process now."""
        ...


class Handler:
    """See the module's docstring. It runs in a thread, as an asyncio task, or in a process of its own."""

    __slots__ = (
        "_async",
        "_elsewhere",
        "_lock",
        "_thread",
        "ended",
        "heard",
        "interrupt",
        "interrupted_at",
        "killed_at",
    )

    def __init__(self, lock: threading.Lock) -> None:
        self.ended = False  # it has returned, or was given up; its outcome may still be on its way
        self.interrupt: Interrupted | None = None  # why it was asked to stop
        self.interrupted_at = NEVER  # lease clock
        self.killed_at = NEVER  # lease clock
        self.heard = False  # the event loop has passed that on
        self._lock = lock
        self._thread: int | None = None
        self._elsewhere: HandlerProcess | None = None
        self._async: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None

    # -------------------------------------------------------------------------------- where it runs

    def enter_thread(self) -> None:
        """Say that it runs in this thread from now on."""
        with self._lock:
            self._thread = threading.get_ident()
            if self.interrupt is not None:
                raise self.interrupt

    def leave_thread(self) -> None:
        """Say that it has left this thread; no interrupt can hit it any more."""
        while True:
            try:
                with self._lock:
                    if self._thread is not None:
                        clear_interrupt()
                    self._thread = None
                return
            except Interrupted:  # it came in on the last bytecodes
                continue

    def enter_loop(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
        """Say that it runs as this asyncio task from now on."""
        with self._lock:
            self._async = (loop, task)
            if self.interrupt is not None:
                raise self.interrupt

    def leave_loop(self) -> None:
        """Say that its asyncio task has ended."""
        with self._lock:
            self._async = None

    def enter_process(self, process: HandlerProcess) -> None:
        """Say that it runs in a process of its own from now on; that one knows its stack."""
        with self._lock:
            self._elsewhere = process
            if self.interrupt is not None:
                process.interrupt(self)

    @property
    def is_elsewhere(self) -> bool:
        """Say whether it has a process of its own: what it recorded is known to the store, and not here."""
        return self._elsewhere is not None

    # ------------------------------------------------------------------------------------ stopping it

    def stop(self, why: Interrupted) -> None:
        """Ask it to stop, once. It stops at its next bytecode or await; code in C is not interrupted."""
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

    def kill(self, now: float) -> bool:
        """End its process, if it has one of its own; False when it has none, or has outlived that."""
        if self._elsewhere is None:
            return False
        self.killed_at = min(self.killed_at, now)
        self._elsewhere.kill(self)
        return now - self.killed_at < KILL_S

    def end(self) -> bool:
        """Note that it has returned; False when it was given up before."""
        with self._lock:
            first, self.ended = not self.ended, True
            return first

    def abandon(self) -> bool:
        """Give it up: it was asked to stop and goes on. False when there is nobody to give up: it has returned, or it
        is in a process of its own, which can be ended."""
        with self._lock:
            if self.ended or (self._thread is None and self._async is None):
                return False
            self.ended = True
            return True

    @property
    def is_deaf(self) -> bool:
        """Say whether it, or another one, holds the event loop, so that no cancellation gets through."""
        return self._async is not None and not self.heard

    # -------------------------------------------------------------------------------- where it stands

    def stack(self) -> str | None:
        """Return where it is now; None: it cannot be told."""
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
