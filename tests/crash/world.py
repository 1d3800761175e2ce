"""Real processes over one store: they are started, watched and killed here, and nowhere else.

Every process is started in a session of its own, so that the group that a test kills is a group that it has started.
What the handlers did is read from a ledger that they append to, not from the store that is being tested.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
import redis

from holdfast import App
from holdfast.core.records import Event, Worker
from holdfast.core.records import Job as Row
from holdfast.stores.postgres.connection import Options
from holdfast.stores.protocol import Store

T = TypeVar("T")

PATIENCE_S = 180.0  # how long to wait for what must happen, on a machine that is busy with something else
ROOT = Path(__file__).resolve().parents[2]  # some tasks use helpers of the tests
SOURCE = Path(__file__).parent / "tasks.py"
MODULE = "crash_tasks"
SERVED = bool(os.environ.get("HOLDFAST_TEST_SERVED"))  # workers reach the store through `holdfast server`
SERVED_BOUND_S = 5.0  # a death shows as a closed connection


def now() -> float:
    """The clock of the ledger: it is the same for all processes of a host."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def until(condition: Callable[[], T], what: str = "", timeout_s: float = PATIENCE_S) -> T:
    """Wait until the condition holds and return what it returned; fail when the time is up."""
    give_up_at = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > give_up_at:
            raise AssertionError(f"waited {timeout_s:g} s in vain: {what or condition}")
        time.sleep(0.004)
    return found


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    event: str  # start, end
    job: str
    fence: int
    attempt: int
    pid: int
    parent: int  # of a cell: its worker, with which it dies
    at: float  # CLOCK_BOOTTIME
    wall: float


@dataclass
class Process:
    """A process that a test has started, and the group that it leads."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    pids_seen: set[int] = field(default_factory=set)

    @property
    def pid(self) -> int:
        return self.popen.pid

    def signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def signal_leader(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9 for the whole group."""
        self.pids_seen |= set(self.members())
        self.signal_group(signal.SIGKILL)
        self.popen.wait(PATIENCE_S)

    def members(self) -> list[int]:
        """The living processes of the group."""
        return [pid for pid, (_, group, state) in _processes().items() if group == self.pid and state != "Z"]

    def children(self) -> list[int]:
        """The living processes that the leader has started itself."""
        return [pid for pid, (parent, _, state) in _processes().items() if parent == self.pid and state != "Z"]

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        return self.popen.wait(timeout_s)

    def said(self, words: str) -> int:
        """How often the words are in its log."""
        return self.log.read_text(errors="replace").count(words)

    def until_said(self, words: str, times: int = 1) -> None:
        """Wait until its log has the words so many times, and no more. What is said of an end may come after it."""
        until(lambda: self.said(words) >= times, f"{self.name} says {words!r}")
        assert self.said(words) == times, self.log.read_text()

    def until_ready(self, times: int = 1) -> Process:
        def ready() -> bool:
            assert self.popen.poll() is None, f"{self.name} ended:\n{self.log.read_text()}"
            return self.said(" is ready: ") >= times

        until(ready, f"{self.name} is ready")
        return self


class World:
    """A folder with the module of tasks, the ledger, the processes of one test, and a store: a file in the folder, or
    the one at `url`."""

    def __init__(self, folder: Path, options: str = "", url: str = "", source: Path = SOURCE) -> None:
        self.folder = folder
        self.db = folder / "jobs.db"
        self.url = url or f"sqlite:///{self.db}{options}"
        self.kind = next((kind for kind in ("postgres", "redis") if url.startswith(kind)), "sqlite")
        self.ledger_path = folder / "ledger"
        self.processes: list[Process] = []
        (folder / f"{MODULE}.py").write_text(source.read_text())
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")},
            "HOLDFAST_DB": self.url,
            "CRASH_FOLDER": str(folder),
            "CRASH_STORE": self.kind,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", ""), str(ROOT)])),
        }
        self.tasks = self._import()
        self.app: App = self.tasks.app
        if SERVED:
            self.serve()

    def _import(self) -> Any:
        """The same module, for this process to enqueue with."""
        os.environ["CRASH_FOLDER"] = str(self.folder)
        os.environ["CRASH_STORE"] = self.kind
        spec = importlib.util.spec_from_file_location(MODULE, self.folder / f"{MODULE}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.app.url = self.url
        return module

    def serve(self) -> None:
        """Put a server before the store; every process that is started from now on speaks to it."""
        server = self.run("server", ["-m", "holdfast", "--db", self.url, "server", "--port", "0"])
        found = until(lambda: re.search(r"listening on (http\S+)/", server.log.read_text()), "the server listens")
        self.env["HOLDFAST_DB"] = found[1]

    def bound_s(self, of_kind: Mapping[str, float]) -> float:
        """Return how long the discovery of a death may take."""
        return max(of_kind[self.kind], SERVED_BOUND_S) if SERVED else of_kind[self.kind]

    @property
    def store(self) -> Store:
        return self.app.store

    # ----------------------------------------------------------------------------------- processes

    def run(self, name: str, command: Sequence[str], env: dict[str, str] | None = None, **options: Any) -> Process:
        """Start any process; its output goes to a log."""
        log = self.folder / f"{name}-{len(self.processes)}.log"
        with log.open("wb") as output:
            popen = subprocess.Popen(
                [sys.executable, *command],
                cwd=self.folder,
                env={**self.env, **(env or {})},
                stdout=options.pop("stdout", output),
                stderr=output,
                stdin=options.pop("stdin", subprocess.DEVNULL),
                start_new_session=True,
                **options,
            )
        process = Process(name, popen, log)
        self.processes.append(process)
        return process

    def worker(self, name: str, *flags: str, processes: int = 1, point: str | None = None) -> Process:
        """Start `holdfast worker`: a supervisor with its children. `point` arms the first child only."""
        command = ["-m", "holdfast", "worker", f"{MODULE}:app", "--name", name, "--processes", str(processes), *flags]
        return self.run(name, command, {"CRASH_POINT": point} if point else {})

    def lone_worker(self, name: str, point: str | None = None, slots: int = 4) -> Process:
        """Start one worker process without a supervisor: nobody sees it end."""
        code = (
            f"import logging; logging.basicConfig(level='INFO'); import {MODULE}; "
            "from holdfast.worker.runner import Runner; from holdfast.worker.options import WorkerOptions; "
            f"Runner({MODULE}.app, WorkerOptions(name={name!r}, slots={slots}), may_exit=True).run()"
        )
        return self.run(name, ["-c", code], {"HOLDFAST_POINT": point} if point else {})

    def close(self) -> None:
        for process in self.processes:
            process.signal_group(signal.SIGCONT)
            process.kill()
            if process.popen.stdin is not None:
                process.popen.stdin.close()
            if process.popen.stdout is not None:
                process.popen.stdout.close()
        self.app.close()

    # ---------------------------------------------------------------------------------- what is known

    def ledger(self, event: str | None = None, job: str | None = None) -> list[Entry]:
        """What the handlers have written, oldest first. The last line of a killed process may be torn: left out."""
        if not self.ledger_path.exists():
            return []
        entries = []
        for line in self.ledger_path.read_bytes().split(b"\n"):
            with contextlib.suppress(ValueError):
                entries.append(Entry(**json.loads(line)))
        return [each for each in entries if event in (None, each.event) and job in (None, each.job)]

    def starts(self, job: str) -> list[Entry]:
        return self.ledger("start", job)

    def until_started(self, job: str, times: int = 1) -> Entry:
        """Wait until the job's handler was started so many times; return the last start."""
        return until(lambda: self.starts(job)[times - 1 :], f"start {times} of {job}")[-1]

    def row(self, job: str) -> Row:
        row = self.store.get(job)
        assert row is not None, f"job {job} is lost"
        return row

    def until_state(self, job: str, state: str) -> Row:
        until(lambda: self.row(job).state == state, f"{job} becomes {state}")
        return self.row(job)

    def kinds(self, job: str) -> list[str]:
        """What happened to the job, without its claims."""
        return [event.kind for event in self.store.journal(job) if event.kind != "claimed"]

    def events(self, job: str, kind: str) -> list[Event]:
        return list(self.store.journal(job, [kind]))

    def worker_rows(self, name: str) -> list[Worker]:
        return [worker for worker in self.store.workers() if worker.name.split("/")[0] == name]

    def holder(self, job: str) -> Worker:
        """The worker that runs the job."""
        holder = self.row(job).worker
        [worker] = [each for each in self.store.workers(gone=True) if each.id == holder]
        return worker

    def go(self) -> None:
        """Let every `wait` task return."""
        (self.folder / "go").touch()

    # ------------------------------------------------------------------------------ beside Holdfast

    def connect(self) -> Any:
        """A connection of another program to the same database, in autocommit mode."""
        if self.kind == "redis":
            return redis.Redis.from_url(self.url)
        if self.kind == "postgres":
            return psycopg.connect(Options.parse(self.url).conninfo, autocommit=True)
        return sqlite3.connect(self.db, timeout=60, isolation_level=None)

    def is_writable(self) -> bool:
        """Whether nobody is inside a write at this moment."""
        if self.kind == "redis":
            return True  # a script runs in the server, whatever happens to its client
        with contextlib.closing(self.connect()) as connection:
            begin = ["BEGIN", "LOCK job IN SHARE MODE NOWAIT"] if self.kind == "postgres" else ["BEGIN IMMEDIATE"]
            try:
                if self.kind == "sqlite":
                    connection.execute("PRAGMA busy_timeout=0")
                for statement in [*begin, "ROLLBACK"]:
                    connection.execute(statement)
            except (sqlite3.OperationalError, psycopg.errors.LockNotAvailable):
                return False
            return True

    def freeze(self, process: Process) -> None:
        """SIGSTOP for the whole group, but not inside a write: SQLite has one writer (DESIGN 14)."""
        for _ in range(50):
            process.signal_group(signal.SIGSTOP)
            until(lambda: all(state == "T" for state in _states(process.pid)), "it is stopped")
            if self.is_writable():
                return
            process.signal_group(signal.SIGCONT)
        raise AssertionError("it is always inside a write")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the write lock, as another program would."""
        with contextlib.closing(self.connect()) as connection:
            if self.kind == "redis":
                connection.execute_command("CLIENT", "PAUSE", 1_000_000, "WRITE")
                try:
                    yield
                finally:
                    connection.execute_command("CLIENT", "UNPAUSE")
                return
            if self.kind == "postgres":
                connection.execute("BEGIN")
                connection.execute("LOCK job, worker IN EXCLUSIVE MODE")  # reads go on
            else:
                connection.execute("BEGIN EXCLUSIVE")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")


# A test that asks for a world and has this mark is run over each.
on_every_store = pytest.mark.parametrize("db", ["sqlite", "postgres", "redis"], indirect=True)
# The same for what only stores with tables and transactions have.
on_sql_stores = pytest.mark.parametrize("db", ["sqlite", "postgres"], indirect=True)


@contextlib.contextmanager
def schema_of_its_own(server: str, name: str) -> Iterator[str]:
    """Lend the address of a store in a schema that is there for this while; the user's tables are in it too."""
    more = "&" if "?" in server else "?"
    try:
        yield f"{server}{more}schema={name}&options=-csearch_path%3D{name}"
    finally:
        with psycopg.connect(server, autocommit=True) as db:
            db.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")  # type: ignore[call-overload]


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and was not waited for does not."""
    return pid in (found := _processes()) and found[pid][2] != "Z"


def is_stopped(pid: int) -> bool:
    return _processes().get(pid, (0, 0, ""))[2] == "T"


def _states(group: int) -> list[str]:
    return [state for _, found, state in _processes().values() if found == group and state != "Z"]


def _processes() -> dict[int, tuple[int, int, str]]:
    """(parent, group, state) of every process of this host."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                found[int(entry)] = (int(fields[1]), int(fields[2]), fields[0])
    return found
