"""Real Celery workers on a real Valkey server, in processes that a test may kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from celery import Celery

from holdfast import App
from holdfast.clock import SystemClock, pause
from holdfast.core.records import Job
from tests.servers import RedisServer

PATIENCE_S = 60.0
ROOT = Path(__file__).parent.parent.parent
CLOCK = SystemClock()


class Scene:
    """A broker, a store, and the workers of one test."""

    def __init__(self, folder: Path, broker: RedisServer, *, late: bool, store: str | None) -> None:
        self.folder = folder
        self.store = store or f"sqlite:///{folder}/guard.db"
        self.broker = broker
        self.late = late
        address = f"{broker.url}/{int(late)}"
        self.env = {
            **os.environ,
            "SHOP_FOLDER": str(folder),
            "SHOP_BROKER": address,
            "SHOP_STORE": self.store,
            "SHOP_ACKS_LATE": str(int(late)),
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT), os.environ.get("PYTHONPATH", "")]
            ),  # a mutant comes by the latter
            "HOLDFAST_DB": self.store,
        }
        self.app = App(self.store)
        self.client = Celery("client", broker=address, backend=address)
        self._running: list[subprocess.Popen[bytes]] = []

    def worker(self, *more: str) -> subprocess.Popen[bytes]:
        """Start a Celery worker with one prefork child unless told otherwise, in a process group of its own."""
        module = ["-A", "tests.integrations.celery_shop:celery", "worker", "-l", "INFO", "--without-gossip"]
        module.append("--without-mingle")  # which waits a second for other workers
        more = more or ("-c", "1")
        number = len(self._running)
        return self._start([sys.executable, "-m", "celery", *module, "-n", f"w{number}@here", *more])

    def holdfast(self, *args: str) -> subprocess.Popen[bytes]:
        return self._start([sys.executable, "-m", "holdfast", *args])

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"log-{len(self._running)}").open("ab") as log:
            process = subprocess.Popen(command, env=self.env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        self._running.append(process)
        return process

    def send(self, task: str, name: str, task_id: str, *, waits: bool = False, **options: Any) -> None:
        if waits:
            (self.folder / f"wait-{name}").touch()
        self.client.send_task(f"tests.integrations.celery_shop.{task}", [name], task_id=task_id, **options)

    @property
    def messages(self) -> int:
        """How many messages wait in the broker."""
        with closing(self.broker.client()) as client:
            client.select(int(self.late))
            return int(client.llen("celery"))

    def release(self, name: str) -> None:
        (self.folder / f"wait-{name}").unlink()

    @property
    def effects(self) -> list[str]:
        with suppress(FileNotFoundError):
            return (self.folder / "effects").read_text().splitlines()
        return []

    def starts(self, name: str) -> list[int]:
        """The pids of the processes that have begun this work."""
        return [int(line.split()[2]) for line in self.effects if line.startswith(f"start {name} ")]

    def ends(self, name: str) -> int:
        return self.effects.count(f"end {name}")

    def job(self, task_id: str) -> Job:
        return self.app.get(task_id).row

    def state(self, task_id: str) -> str:
        row = self.app.store.get(task_id)
        return "" if row is None else row.state.value

    def until(self, holds: Callable[[], Any], what: str) -> None:
        give_up_at = CLOCK.lease() + PATIENCE_S
        while not holds():
            assert CLOCK.lease() < give_up_at, f"{what}\n{self.effects}\n{self.jobs()}\n{self.logs()}"
            pause(0.05)

    def jobs(self) -> list[tuple[str, str, str, str | None]]:
        return [(job.id, job.row.task, job.row.state.value, job.row.error) for job in self.app.find()]

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-6000:] for path in sorted(self.folder.glob("log-*")))

    def kill_all_of(self, process: subprocess.Popen[bytes]) -> None:
        """kill -9 for a worker and its children at once."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)

    def close(self) -> None:
        for process in self._running:
            with suppress(ProcessLookupError):
                os.killpg(
                    process.pid, signal.SIGKILL
                )  # at once: one child more would keep the broker's connection open
            process.wait(PATIENCE_S)
        self.app.close()
        self.client.close()


@contextmanager
def scene(folder: Path, broker: RedisServer, *, late: bool = False, store: str | None = None) -> Iterator[Scene]:
    made = Scene(folder, broker, late=late, store=store)
    try:
        yield made
    finally:
        made.close()
