"""The worker groups of the demo: each is a `holdfast worker` command with a process group of its own.

Nothing here signals a process that the demo did not start: a group by its own process group, a worker only after the
system confirmed that it belongs to one of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from holdfast.clock import Clock, pause
from holdfast.demo.tasks import PARENT

APP = "holdfast.demo.tasks:app"
SLOTS = 4
STOP_S = 8.0  # from SIGTERM to SIGKILL; nothing runs any more by then


class WorkerGroup:
    """A supervisor and its workers."""

    def __init__(self, name: str, processes: int, folder: Path, url: str) -> None:
        self.name = name
        self.command = f"holdfast worker {APP} --name {name} --processes {processes}"
        self.worker_names = [f"{name}/{number}" for number in range(1, processes + 1)]
        self._log = folder / f"{name}.log"
        self._url = url
        self.supervisor: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Return the pid of the supervisor, which is also that of the process group; None when it has ended."""
        return self.supervisor.pid if self.supervisor is not None and self.exit_code is None else None

    @property
    def exit_code(self) -> int | None:
        """Return how the supervisor ended by itself or at SIGTERM; None if it runs, or was killed."""
        return None if self.supervisor is None else self.supervisor.poll()

    def start(self) -> None:
        options = ["--db", self._url, "--slots", str(SLOTS), "--grace-period", "3"]
        with self._log.open("ab") as log:
            self.supervisor = subprocess.Popen(
                [sys.executable, "-m", *self.command.split(), *options],
                cwd=self._log.parent,  # nothing there can be mistaken for a module
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL to all of it at once."""
        if self.supervisor is not None and self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.supervisor.pid, signal.SIGKILL)
            self.supervisor.wait()
        self.supervisor = None

    def last_words(self, lines: int = 6) -> list[str]:
        """Return the end of its log."""
        with contextlib.suppress(OSError):
            return self._log.read_text("utf-8", errors="replace").splitlines()[-lines:]
        return []


class Processes:
    """All groups."""

    def __init__(self, folder: Path, url: str, clock: Clock) -> None:
        self.groups = [WorkerGroup("alpha", 2, folder, url), WorkerGroup("beta", 1, folder, url)]
        self.worker_names = [name for group in self.groups for name in group.worker_names]
        self.frozen: dict[int, str] = {}  # pid -> worker name
        self._clock = clock

    def group_of(self, worker_name: str) -> WorkerGroup:
        return next(group for group in self.groups if worker_name in group.worker_names)

    def signal(self, worker_name: str, pid: int, number: signal.Signals) -> None:
        """Signal one worker. Raises `ProcessLookupError` if it is not, or no longer, ours."""
        if os.getpgid(pid) != self.group_of(worker_name).pid:
            raise ProcessLookupError(f"process {pid} is not in the group of {worker_name}")
        os.kill(pid, number)

    def freeze(self, worker_name: str, pid: int) -> None:
        """SIGSTOP to one worker: it lives, and does nothing. Raises as `signal` does.

        Returns when it has stopped, which is a moment after the signal: until then it could still begin to write.
        """
        self.frozen[pid] = worker_name
        self.signal(worker_name, pid, signal.SIGSTOP)
        self._wait(lambda: _has_stopped(pid), 0.002)

    def thaw(self, pid: int) -> None:
        """Let a frozen worker go on."""
        self.signal(self.frozen.pop(pid), pid, signal.SIGCONT)

    def stop(self) -> dict[str, int | None]:
        """End all groups by SIGTERM; return each one's exit code, None for one that had to be killed."""
        for group in self.groups:
            if group.supervisor is not None:
                group.supervisor.terminate()  # it tells its workers
        self._wait(lambda: all(group.pid is None for group in self.groups), 0.02)
        codes = {group.name: group.exit_code for group in self.groups}
        self.kill()
        return codes

    def kill(self) -> None:
        """End whatever is left, frozen workers included. Safe to repeat."""
        for pid in list(self.frozen):
            with contextlib.suppress(ProcessLookupError):
                self.thaw(pid)  # should its supervisor be gone, it can leave by itself now
        for group in self.groups:
            group.kill()

    def _wait(self, is_over: Callable[[], bool], nap_s: float) -> None:
        give_up_at = self._clock.lease() + STOP_S
        while not is_over() and self._clock.lease() < give_up_at:
            pause(nap_s)


def environment() -> dict[str, str]:
    """Our own environment without Holdfast's settings, which may be meant for other workers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    if "PYTHONPATH" in kept:  # it may name folders from where we stand; the workers stand elsewhere
        kept["PYTHONPATH"] = os.pathsep.join(os.path.abspath(part) for part in kept["PYTHONPATH"].split(os.pathsep))
    return {**kept, PARENT: str(os.getpid())}


def _has_stopped(pid: int) -> bool:
    """Say whether no thread of a process runs any more."""
    try:
        threads = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread has just ended
        return False
    if not threads:  # not on Linux: there it takes a moment too
        pause(0.05)
        return True
    return all(words.rpartition(")")[2].split()[0] == "T" for words in threads)
