"""Ends what a worker's isolated processes have started, should the worker itself be killed.

The kernel ends an isolated process with its worker, but not the processes that it has started: a dead worker can kill
no process group. So a small process next to the worker knows the groups, and kills them when the pipe from the worker
closes. It imports nothing of Holdfast and nothing of the user's; it starts in milliseconds and then sleeps.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys


class OrphanGuard:
    """The worker's side. If it cannot be had, isolated processes still die with their worker."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):
            program = [sys.executable, "-I", "-S", __file__]
            self._process = subprocess.Popen(program, bufsize=0, stdin=subprocess.PIPE, start_new_session=True)

    def add(self, group: int) -> None:
        """Watch over a process group."""
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Forget a group that has ended. Call it before the system can give its number to another process."""
        self._tell(f"-{group}\n")

    def close(self) -> None:
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.communicate(timeout=1.0)

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # the guard is gone
                self._process.stdin.write(line.encode())


def watch() -> None:
    """The guard's side: read which groups there are; when there is nothing more to read, kill them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    rest = b""
    while data := os.read(sys.stdin.fileno(), 4096):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    watch()
