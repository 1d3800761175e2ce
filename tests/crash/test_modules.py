"""What the user's module does while it is imported: to Python's modules, to signals, to logging. The worker copes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Job
from tests.crash.world import until

HEAD = """
import logging, logging.config, os, signal
from holdfast import App, Context

app = App("sqlite:///jobs.db")

@app.task(name="add", isolate=ISOLATE)
def add(a: int, b: int) -> int:
    return a + b

@app.task(name="die", isolate=ISOLATE, crashes_max=1)
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@app.task(name="fail", isolate=ISOLATE)
def fail() -> None:
    raise ValueError("no luck")

@app.task(name="silence", isolate=ISOLATE)
def silence() -> None:
    logging.config.dictConfig({"version": 1})
    raise ValueError("no luck")

@app.task(name="configure", isolate=ISOLATE)
def configure(ctx: Context) -> None:
    handler = {"class": "logging.FileHandler", "filename": "own.log"}
    logging.config.dictConfig({"version": 1, "handlers": {"own": handler}, "root": {"handlers": ["own"]}})
    ctx.log.warning("said by ctx.log")
    logging.getLogger("later").warning("said by a logger")
    raise ValueError("no luck")
"""


class Shop:
    """A project in a folder of its own, and a worker of it, as `holdfast worker` is started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.app = App(f"sqlite:///{folder}/jobs.db")

        @self.app.task(name="add")
        def add(a: int, b: int) -> int:
            return a + b

        @self.app.task(name="die", crashes_max=1)
        def die() -> None: ...

        @self.app.task(name="fail")
        def fail() -> None: ...

        @self.app.task(name="silence")
        def silence() -> None: ...

        @self.app.task(name="configure")
        def configure() -> None: ...

    @contextmanager
    def worker(self, module: str, *, isolate: bool) -> Iterator[None]:
        (self.folder / "shop.py").write_text(HEAD.replace("ISOLATE", str(isolate)) + module)
        command = [sys.executable, "-P", "-m", "holdfast", "worker", "shop:app", "--name", "w"]
        with self.log.open("wb") as log:
            process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                assert process.wait(60) == 0, self.log.read_text()
            finally:
                process.kill()
                process.wait()

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)

    def enqueue(self, name: str, *arguments: int) -> Job[Any]:
        job: Job[Any] = self.app.tasks[name].enqueue(*arguments)
        return job

    def until_state(self, job: Job[Any], state: str) -> str:
        until(lambda: self.app.get(job.id).row.state == state, f"it becomes {state}; {self.log.read_text()}")
        return self.app.get(job.id).row.error or ""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.app.close()


ALONE = pytest.mark.parametrize("isolate", [False, True], ids=["in the worker", "isolated"])


@ALONE
def test_modules_of_the_project_do_not_take_the_place_of_pythons(shop: Shop, isolate: bool) -> None:
    for name in ("json", "queue", "selectors", "socket", "logging"):
        (shop.folder / f"{name}.py").write_text("raise RuntimeError('this is not the module that you want')\n")
    with shop.worker("", isolate=isolate):
        job = shop.enqueue("add", 1, 2)
        shop.until_state(job, "done")
    assert shop.app.get(job.id).row.result == "3"


@ALONE
def test_a_module_that_ignores_sigchld_does_not_hide_how_a_process_ended(shop: Shop, isolate: bool) -> None:
    with shop.worker("signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n", isolate=isolate):
        error = shop.until_state(shop.enqueue("die"), "dead")
    assert "its process was killed by SIGKILL" in error


@ALONE
def test_a_module_that_disables_the_loggers_that_are_there_does_not_silence_the_worker(
    shop: Shop, isolate: bool
) -> None:
    with shop.worker('logging.config.dictConfig({"version": 1})\n', isolate=isolate):
        job = shop.enqueue("fail")
        until(lambda: f"job {job.id} (fail): attempt 1 ended" in shop.log.read_text(), "the failure is in the log")
    log = shop.log.read_text()
    assert log.count("worker w/1 is ready: ") == 1
    assert "worker w/1 has stopped" in log
    assert f"{os.sep}shop.py:" in log


@ALONE
def test_a_handler_that_disables_the_loggers_that_are_there_does_not_silence_the_worker(
    shop: Shop, isolate: bool
) -> None:
    with shop.worker("", isolate=isolate):
        for name in ("silence", "fail"):
            job = shop.enqueue(name)
            until(lambda job=job: f"job {job.id} " in shop.log.read_text(), "the failure is in the log")  # type: ignore[misc]
    assert "worker w/1 has stopped" in shop.log.read_text()


GREEN = """
from gevent import monkey
monkey.patch_all()
import sys
import shop
if sys.argv[1] == "enqueue":
    print(shop.add.enqueue(1, 2).id)
else:
    shop.app.tick(5)
"""


def test_a_program_that_gevent_has_patched_may_enqueue_but_not_work(shop: Shop) -> None:
    """Its threads are not real: a handler could not be interrupted, and one that waits would hold up the heartbeat."""
    pytest.importorskip("gevent")
    (shop.folder / "green.py").write_text(GREEN)
    with shop.worker("", isolate=False):
        job = shop.app.get(shop.python("green.py", "enqueue").stdout.strip())
        shop.until_state(job, "done")
    waiting = shop.enqueue("add", 1, 2)
    refused = shop.python("green.py", "tick")
    assert "UsageError: gevent or eventlet has replaced Python's threads in this process" in refused.stderr
    (shop.folder / "shop.py").write_text(
        "from gevent import monkey\nmonkey.patch_all()\n" + HEAD.replace("ISOLATE", "False")
    )
    refused = shop.python("-m", "holdfast", "worker", "shop:app")
    assert refused.returncode == 2
    assert "gevent or eventlet has replaced Python's threads in this process" in refused.stderr
    assert shop.app.get(waiting.id).row.state == "ready"


@ALONE
def test_what_a_job_logs_is_kept_although_it_has_configured_the_root_logger(shop: Shop, isolate: bool) -> None:
    with shop.worker("", isolate=isolate):
        job = shop.enqueue("configure")
        until(lambda: shop.app.get(job.id).row.failures, "it has failed")
    [failed] = [event for event in shop.app.get(job.id).events() if event.kind == "failed"][:1]
    said = "\n".join(failed.detail["log"])
    assert "WARNING holdfast.job: said by ctx.log" in said
    assert "WARNING later: said by a logger" in said
    log = (shop.log if isolate else shop.folder / "own.log").read_text()
    assert f"job {job.id} (configure): attempt 1 ended" in log, "the failure is where the process logs to"
