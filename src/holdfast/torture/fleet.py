"""Real workers in process groups of their own, armed with a point of the program at which they die or freeze."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from holdfast.torture.lines import FILE
from holdfast.torture.plan import Disturbance

STOP_S = 10.0
_ACTIONS = {"kill": "kill", "freeze": "stop"}


class Group:
    """A supervisor and its worker. It runs one job at a time, so that a death hits one."""

    def __init__(
        self, name: str, words: Sequence[str], effects: Path, log: Path, disturbance: Disturbance | None
    ) -> None:
        self._command = [sys.executable, "-m", "holdfast", "worker", *words, "--name", name, "--slots", "1"]
        self._environment = {**os.environ, FILE: str(effects)}
        for variable in ("HOLDFAST_DB", "HOLDFAST_POINT"):
            self._environment.pop(variable, None)
        if disturbance is not None and disturbance.act in _ACTIONS:
            action = _ACTIONS[disturbance.act]
            self._environment["HOLDFAST_POINT"] = f"{disturbance.point}={action}:{disturbance.nth}"
        self._log = log
        self.start()

    def start(self) -> None:
        """Start the supervisor; again, if it was killed itself: it passes some of the points, too."""
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                [*self._command, "--grace-period", "2"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """Return how the supervisor has ended; None while it runs."""
        return self._process.poll()

    def frozen(self) -> list[int]:
        """Return the processes of the group that are stopped."""
        return [pid for pid in _members(self._process.pid) if _is_stopped(pid)]

    def thaw(self, pids: Sequence[int]) -> None:
        """Let frozen processes go on."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        """End the group, and whatever is left of it."""
        self.thaw(self.frozen())
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def without_writes(file: Path) -> Iterator[None]:
    """Hold the write lock of a SQLite file: no worker can beat, claim or settle."""
    with closing(sqlite3.connect(file, isolation_level=None, timeout=10.0)) as db:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            db.execute("ROLLBACK")


def _members(group: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ProcessLookupError):
            if os.getpgid(int(folder.name)) == group:
                found.append(int(folder.name))
    return found


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False
