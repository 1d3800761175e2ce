"""`holdfast dev`: a worker and a server in processes of their own, started again when a file of the project changes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from holdfast.clock import Clock, pause
from holdfast.core.machine import State
from holdfast.core.records import Filter, Worker
from holdfast.errors import StoreError
from holdfast.ids import chance
from holdfast.stores.protocol import Store
from holdfast.torture.lines import FILE, EffectFile

LOOK_S = 0.25
SETTLE_S = 0.3  # an editor may write several files
STOP_S = 5.0
CHAOS_S = (2.0, 6.0)  # between two kills
_LEFT_OUT = {"node_modules", "__pycache__", "site-packages"}

Tell = Callable[[str], object]
Stamps = dict[str, tuple[int, int]]


def stamps(folder: Path) -> Stamps:
    """Return when each Python file below the folder was last written, and its size. Hidden folders are left out."""
    found: Stamps = {}
    left = [folder]
    while left:
        try:
            entries = list(os.scandir(left.pop()))
        except OSError:  # it was removed meanwhile
            continue
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in _LEFT_OUT and not entry.name.startswith(".") and not _is_environment(entry):
                        left.append(Path(entry.path))
                elif entry.name.endswith(".py"):
                    facts = entry.stat()
                    found[entry.path] = facts.st_mtime_ns, facts.st_size
    return found


class Program:
    """One command of Holdfast, in a process group of its own."""

    def __init__(self, words: Sequence[str], environment: dict[str, str]) -> None:
        self._command = [sys.executable, "-m", "holdfast", *words]
        self._environment = environment
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it. Its lines go where ours go."""
        self.process = subprocess.Popen(
            self._command, env=self._environment, stdin=subprocess.DEVNULL, start_new_session=True
        )

    @property
    def exit_code(self) -> int | None:
        """Return how it has ended by itself; None while it runs."""
        return None if self.process is None else self.process.poll()

    def stop(self) -> None:
        """End it, and whatever is left of its group."""
        process, self.process = self.process, None
        if process is None:
            return
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Dev:
    """Runs the programs until it is interrupted."""

    def __init__(
        self,
        programs: Sequence[Sequence[str]],
        folder: Path,
        clock: Clock,
        tell: Tell,
        effects: EffectFile | None = None,
    ) -> None:
        environment = dict(os.environ)
        if effects is not None:
            environment[FILE] = str(effects.path)
        self._programs = [Program(words, environment) for words in programs]
        self._folder = folder
        self._clock = clock
        self._tell = tell

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the programs inside the block."""
        try:
            self._start()
            yield
        finally:
            for program in self._programs:
                program.stop()

    def watch(self, each: Callable[[], object]) -> None:
        """Look for changed files, for ever, and call `each` with every look."""
        before, ended = stamps(self._folder), set[int]()
        while True:
            pause(LOOK_S)
            now = stamps(self._folder)
            if now != before:
                changed = [name for name in now.keys() | before.keys() if now.get(name) != before.get(name)]
                self._tell(f"{_changed(changed, self._folder)}: starting again")
                pause(SETTLE_S)
                before = stamps(self._folder)
                self._restart()
                ended.clear()
            for number, program in enumerate(self._programs):
                if program.exit_code is not None and number not in ended:
                    ended.add(number)
                    self._tell("it has ended; it starts again when a file changes")
            each()

    def _start(self) -> None:
        for program in self._programs:
            program.start()

    def _restart(self) -> None:
        for program in self._programs:
            program.stop()
        self._start()


class Chaos:
    """Kills workers of this program at random moments of their jobs, and counts effects that are repeated."""

    def __init__(self, store: Store, name: str, clock: Clock, tell: Tell, effects: EffectFile) -> None:
        self._store = store
        self._name = name  # of our workers
        self._clock = clock
        self._tell = tell
        self._effects = effects
        self._seen: Counter[tuple[str | None, str, str | None]] = Counter()
        self._next = clock.lease() + _pause()
        self.killed = self.repeated = 0

    def look(self) -> None:
        """Kill a worker, if it is time; report effects that happened twice."""
        try:
            self._count()
            if self._clock.lease() >= self._next and self._strike():
                self._next = self._clock.lease() + _pause()
        except StoreError as error:
            self._tell(f"chaos cannot read the store: {error}")
            self._next = self._clock.lease() + _pause()

    def _strike(self) -> bool:
        busy = [worker for worker in self._store.workers() if worker.running and self._is_ours(worker)]
        if not busy:
            return False
        victim = busy[int(chance() * len(busy))]
        jobs = self._store.find(Filter(states=(State.RUNNING,), worker=victim.id))
        try:
            os.kill(victim.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.killed += 1
        tasks = ", ".join(f"{job.task} ({job.id})" for job in jobs) or "nothing"
        self._tell(f"chaos: kill -9 {victim.name}, which ran {tasks}")
        return True

    def _is_ours(self, worker: Worker) -> bool:
        return worker.name.startswith(f"{self._name}/") and worker.gone_at is None

    def _count(self) -> None:
        for line in self._effects.new():
            which = line.job, line.name, line.key
            self._seen[which] += 1
            if line.job is not None and self._seen[which] == 2:
                self.repeated += 1
                key = f" ({line.key})" if line.key is not None else ""
                self._tell(
                    f"chaos: the effect {line.name!r}{key} of job {line.job} was repeated; see `holdfast torture`"
                )


def has_server() -> bool:
    """Say whether what `holdfast server` needs is installed."""
    return importlib.util.find_spec("uvicorn") is not None


def _pause() -> float:
    least, most = CHAOS_S
    return least + chance() * (most - least)


def _is_environment(folder: os.DirEntry[str]) -> bool:
    return os.path.exists(os.path.join(folder.path, "pyvenv.cfg"))


def _changed(changed: Sequence[str], folder: Path) -> str:
    names = sorted(os.path.relpath(name, folder) for name in changed)
    return f"{names[0]} has changed" if len(names) < 2 else f"{len(names)} files have changed"
