"""Where figures are taken: how much to measure, fresh databases, and a worker as users run it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stores import STORES, Bed
from watch import stop

from holdfast import App

HERE = Path(__file__).resolve().parent
CHUNK = 10_000


@dataclass(frozen=True)
class Scale:
    """How much is measured in one round."""

    rounds: int
    jobs: int  # of a drain and of a bulk enqueue,
    many: int  # and of a large one
    singles: int  # enqueues one at a time
    shallow: int  # the queue that `deep` is compared with is this long on average
    deep: int
    idle_s: float
    probes: int
    leases: int  # expired at once
    acts: int  # jobs that a person revives, deletes or exports
    peer_cap_s: float  # longest drain of a peer


FULL = Scale(
    rounds=3,
    jobs=20_000,
    many=100_000,
    singles=1_500,
    shallow=10_000,
    deep=1_000_000,
    idle_s=10.0,
    probes=100,
    leases=100_000,
    acts=8_333,
    peer_cap_s=20.0,
)
QUICK = Scale(
    rounds=2,
    jobs=5_000,
    many=20_000,
    singles=400,
    shallow=5_000,
    deep=100_000,
    idle_s=3.0,
    probes=40,
    leases=10_000,
    acts=1_000,
    peer_cap_s=3.0,
)


class Ground:
    """One run's folder and scale on one kind of store."""

    def __init__(self, bed: type[Bed], scale: Scale, folder: Path) -> None:
        self.store = next(name for name, each in STORES.items() if each is bed)
        self.scale = scale
        self.folder = folder
        self._bed = bed
        self._deep: Bed | None = None

    @contextmanager
    def fresh(self) -> Iterator[Bed]:
        """Lend an empty database, and remove it afterwards."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        bed = self._bed(folder)
        try:
            yield bed
        finally:
            bed.close()
            shutil.rmtree(folder)

    def deep(self) -> Bed:
        """Return the database with the long queue; it is made once and kept over the rounds."""
        if self._deep is None:
            self._deep = self._bed(self.folder)
        return self._deep


def home() -> Path:
    """Return a folder on the disk of this checkout: /tmp may be memory, which syncs nothing."""
    folder = HERE.parent / ".venv-bench" / "scratch"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fill(app: App, task: str, jobs: int) -> None:
    """Queue so many jobs; the drafts of a million would not fit into small machines."""
    named = app.named(task)
    for start in range(0, jobs, CHUNK):
        app.enqueue_many([named.job() for _ in range(min(CHUNK, jobs - start))])


@contextmanager
def worker(bed: Bed, *options: str, app: str = "tasks:app", ready: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """Run `holdfast worker` as a user would: the command, its supervisor and its child, all settings default."""
    command = [sys.executable, "-m", "holdfast", "worker", app, *options]
    with tempfile.NamedTemporaryFile(dir=os.environ.get("BENCH_FOLDER")) as log:
        env = {**os.environ, "HOLDFAST_DB": bed.url}
        process = subprocess.Popen(command, cwd=HERE, env=env, stdout=log, stderr=log)
        try:
            while ready and b"is ready" not in Path(log.name).read_bytes():
                if process.poll() is not None:
                    raise RuntimeError("the worker ended before it was ready")
                time.sleep(0.02)
            yield process
        except BaseException:
            sys.stderr.buffer.write(Path(log.name).read_bytes()[-2000:])
            raise
        finally:
            stop(process, signal.SIGTERM)
