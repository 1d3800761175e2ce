"""An isolated process: the process of one isolated attempt at a time, as its worker sees it.

It has a session and a process group of its own, so whatever it starts can be ended with it. Only the pool's thread
touches it; that thread also starts it, because the kernel ends the process when the thread that started it ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.core.text import clean
from holdfast.worker.attempt import Attempt
from holdfast.worker.executors import TRACE_MAX, runs_handler
from holdfast.worker.isolated import memory, protocol
from holdfast.worker.launch import Launch

PROGRAM = "holdfast.cli.isolated"
DUMP_MAX = 1 << 18


class IsolatedProcess:
    """See the module's docstring. Raises `OSError` when the system gives no process."""

    def __init__(self, setup: bytes, launch: Launch, *, grouped: bool = False) -> None:
        self.attempt: Attempt | None = None
        self.is_ready = False
        self.is_leaving = False
        self.error: str | None = None  # why it could not load its tasks, or cannot be understood
        self.jobs = 0
        self.idle_since = 0.0
        self.plan: deque[tuple[float, Callable[[], None]]] = deque()  # what to do to it, and when
        self.forced = False  # we ended it, because its attempt had to stop
        self.stack: str | None = None
        self.peak_mb: float | None = None
        self.kills_before: int | None = None  # for want of memory, in the worker's cgroup, when its attempt began
        self._code: int | None = None
        self._strays: list[int] = []  # the processes that it had started when it was asked to end
        self._dump = _scratch()
        self._frames = protocol.Frames[protocol.Word](protocol.Word)
        self._out = bytearray(setup)
        try:
            self._process, self.socket = launch.start(PROGRAM, self._dump, own_session=True)
        except BaseException:
            os.close(self._dump)
            raise
        self.pid = self._process.pid
        self.end = end_of(self.pid)
        self.group = memory.make_group(self.pid) if grouped else None
        self.socket.setblocking(False)

    # ------------------------------------------------------------------------------------- talking

    def send(self, order: protocol.Order) -> None:
        """Send it now, or as soon as the process reads again."""
        self._out += protocol.frame(order)
        self.flush()

    def flush(self) -> bool:
        """Send what waits; return whether some of it still does."""
        with contextlib.suppress(BlockingIOError, OSError):  # an isolated process that is gone is found by its end
            while self._out:
                del self._out[: self.socket.send(self._out)]
        return bool(self._out)

    def receive(self) -> tuple[list[protocol.Word], bool]:
        """Return what it has said since, and whether it can say more. Raises `msgspec.DecodeError` for nonsense."""
        words: list[protocol.Word] = []
        while True:
            try:
                data = self.socket.recv(protocol.READ_BYTES)
            except BlockingIOError:
                return words, True
            except OSError:
                data = b""
            if not data:
                return words, False
            words += self._frames.feed(data)

    def run(self, attempt: Attempt, home: protocol.TaskLocation | None) -> None:
        """Run an attempt."""
        most_mb = attempt.task.memory_max_mb
        self.attempt, self.forced, self.stack = attempt, False, None
        self._empty_dump()  # an earlier attempt may have left its stack there
        if self.group is not None:
            with contextlib.suppress(OSError):
                self.group.limit(most_mb)
                most_mb = None  # the system keeps it
        self.send(protocol.StartAttempt(attempt.job, home, most_mb, attempt.task.policy.retry.is_code))

    # --------------------------------------------------------------------------------------- ending

    def terminate(self) -> None:
        """Ask everything in its group to end."""
        self._strays = _descendants(self.pid)
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it now, with everything that it has started."""
        strays = self._strays + _descendants(self.pid)  # those that have left its group are known only while it lives
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        for pid in strays:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._strays = []
        if self.group is not None:
            self.group.kill()

    def has_ended(self, *, wait: bool = False) -> bool:
        """Say whether it is dead, and keep what is known of its end. From then on another process may get its pid."""
        if self._process.returncode is None:
            try:
                pid, status, used = os.wait4(self.pid, 0 if wait else os.WNOHANG)
            except ChildProcessError:  # code of the user's that waits for any process was first
                self._process.returncode = 0
                return True
            if pid:
                self._process.returncode = self._code = os.waitstatus_to_exitcode(status)
                self.peak_mb = memory.peak_mb(used)
        return self._process.returncode is not None

    def release(self) -> int | None:
        """Release a process that has ended; return its exit code, negative for a signal. None: it is not known."""
        self.has_ended(wait=True)
        if self.group is not None:
            self.group.close()
        self.socket.close()
        os.close(self._dump)
        if self.end is not None:
            os.close(self.end)
        return self._code

    # ---------------------------------------------------------------------------------------- stacks

    def ask_for_stack(self) -> None:
        """Let it write down where it is. A handler in C does it: it works while a library holds Python's lock."""
        self._empty_dump()
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGUSR1)

    def _empty_dump(self) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._dump, 0)
            os.lseek(self._dump, 0, os.SEEK_SET)  # the process writes at the same place in the file

    def read_stack(self) -> str | None:
        """Return what it has written, when asked or by itself when it crashed: the handler's thread, if it is there."""
        with contextlib.suppress(OSError):
            written = os.pread(self._dump, DUMP_MAX, 0).decode("utf-8", "replace")
            threads = re.split(r"\n(?=(?:Current thread|Thread) 0x)", "\n" + written)
            handlers = [text for text in threads if runs_handler(text)]
            return clean("\n".join(handlers or threads).strip(), TRACE_MAX) or None
        return None


def _descendants(pid: int) -> list[int]:
    """Return what a process has started, and what that has started; orphans among them are its own by then."""
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{each}/task"):
                found += map(int, Path(f"/proc/{each}/task/{thread}/children").read_text().split())
    return found[1:]


def end_of(pid: int) -> int | None:
    """Return a descriptor that can be read when the process has ended; None where the system has none to give."""
    with contextlib.suppress(OSError, AttributeError):
        return os.pidfd_open(pid)
    return None


def _scratch() -> int:
    """Return a file that has no name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("holdfast-stack")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


NONSENSE = (msgspec.DecodeError, KeyError)
