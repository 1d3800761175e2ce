"""A program that a signal stops: one line, an exit code, and a process that leaves, whatever the user's code does."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.bulk import PAGE
from holdfast.clock import SystemClock, pause
from holdfast.core.machine import State
from holdfast.stores.protocol import Store
from tests.factory import make_job

APP = """
from holdfast import App

app = App("sqlite:///jobs.db")

@app.task
def nothing() -> None: ...
"""
WAIT_S = 240.0
ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "holdfast")


@contextmanager
def program(
    folder: Path, *words: str, command: Sequence[str] = COMMAND, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A program in a group of its own, whose words on stderr go to `log`; killed at the end, if it is still there."""
    environment = {**os.environ, "HOLDFAST_DB": f"sqlite:///{folder}/jobs.db"}
    with open(folder / "log", "w") as log:
        started = subprocess.Popen(
            [*command, *words],
            **{"stdout": subprocess.DEVNULL, "stderr": log, **options},
            cwd=folder,
            env=environment,
            text=True,
            start_new_session=True,
        )
        try:
            yield started
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.communicate()


def until(condition: Callable[[], object], folder: Path) -> None:
    give_up_at = SystemClock().lease() + WAIT_S
    while not condition():
        assert SystemClock().lease() < give_up_at, said(folder)
        pause(0.05)


def said(folder: Path) -> str:
    return (folder / "log").read_text()


def ready(folder: Path) -> None:
    until(lambda: "is ready" in said(folder), folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        ("threading.Thread(target=time.sleep, args=(600,), name='metrics').start()", "still run: 'metrics'"),
        ("atexit.register(time.sleep, 600)", "an atexit function does not return"),
    ],
    ids=["thread", "atexit"],
)
def test_code_of_the_app_cannot_keep_a_worker_from_leaving(folder: Path, lines: str, kept: str) -> None:
    """Slow: the worker grants that code five seconds."""
    (folder / "shop.py").write_text(f"import atexit, threading, time\n{lines}\n{APP}")
    with program(folder, "worker", "shop:app") as worker:
        ready(folder)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(WAIT_S) == 0
    assert kept in said(folder)
    assert "has stopped" in said(folder)


@pytest.mark.slow
def test_a_worker_whose_app_cannot_be_imported_ends_although_a_thread_runs(folder: Path) -> None:
    """Slow: the worker grants the thread five seconds."""
    lines = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\nraise ValueError('no')\n"
    (folder / "shop.py").write_text(lines)
    with program(folder, "worker", "shop:app") as worker:
        assert worker.wait(WAIT_S) == 2
    assert "ValueError: no" in said(folder)


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [
        (signal.SIGINT, 130, "holdfast: interrupted\n"),
        (signal.SIGTERM, 143, "holdfast: stopped by SIGTERM\n"),
        (signal.SIGHUP, 129, "holdfast: stopped by SIGHUP\n"),
    ],
)
def test_a_worker_that_is_stopped_while_it_imports_its_app_says_so_in_one_line(
    folder: Path, number: signal.Signals, code: int, line: str
) -> None:
    (folder / "shop.py").write_text("import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(600)\n")
    with program(folder, "worker", "shop:app") as worker:
        until((folder / "importing").exists, folder)
        worker.send_signal(number)
        assert worker.wait(WAIT_S) == code
    assert said(folder) == line


def test_ctrl_c_while_the_program_is_imported_says_so_in_one_line(folder: Path) -> None:
    """The program that pip installs; an import of Holdfast that never ends stands for the moment that it takes."""
    (folder / "holdfast").mkdir()
    (folder / "holdfast" / "__init__.py").write_text("open('importing', 'x').close()\nimport time\ntime.sleep(600)\n")
    start = "import sys\nsys.path.insert(0, '.')\nfrom holdfast_start import main\nmain()\n"
    with program(folder, command=[sys.executable, "-c", start]) as started:
        until((folder / "importing").exists, folder)
        started.send_signal(signal.SIGINT)
        assert started.wait(WAIT_S) == 130
    assert said(folder) == "holdfast: interrupted\n"


@pytest.mark.parametrize("slow", ["holdfast/app.py", "holdfast/cli/main.py"])
def test_ctrl_c_while_the_module_is_run_and_imports_says_so_in_one_line(folder: Path, slow: str) -> None:
    """`python -m holdfast`, with one of its imports in place of the moment that they take together."""
    shutil.copytree(ROOT / "src", folder, dirs_exist_ok=True)
    (folder / slow).write_text("open('importing', 'x').close()\nimport time\ntime.sleep(600)\n")
    with program(folder, command=[sys.executable, "-m", "holdfast", "version"]) as started:
        until((folder / "importing").exists, folder)
        started.send_signal(signal.SIGINT)
        assert started.wait(WAIT_S) == 130
    assert said(folder) == "holdfast: interrupted\n"


def test_the_program_of_this_name_starts_with_the_module_that_is_quiet() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"holdfast": "holdfast_start:main"}


def test_ctrl_c_while_a_child_imports_the_app_shows_no_traceback(folder: Path) -> None:
    """The first import is that of the supervisor."""
    second = "try:\n    open('first', 'x').close()\nexcept FileExistsError:\n    open('second', 'x').close()\n"
    (folder / "shop.py").write_text(f"import time\n{second}    time.sleep(600)\n{APP}")
    with program(folder, "worker", "shop:app") as worker:
        until((folder / "second").exists, folder)
        os.killpg(worker.pid, signal.SIGINT)
        assert worker.wait(WAIT_S) == 0
    assert "Traceback" not in said(folder)


def test_a_program_started_by_nohup_goes_on_when_its_terminal_closes(folder: Path) -> None:
    (folder / "shop.py").write_text(APP)

    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with program(folder, "worker", "shop:app", preexec_fn=ignore) as worker:
        ready(folder)
        os.killpg(worker.pid, signal.SIGHUP)
        pause(0.5)
        assert worker.poll() is None
        assert "stopping" not in said(folder)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(WAIT_S) == 0


@pytest.mark.parametrize("by_module", [False, True], ids=["by the parent", "by the app"])
def test_signals_that_were_blocked_stop_a_worker_all_the_same(folder: Path, by_module: bool) -> None:
    block = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGCHLD))\n"
    (folder / "shop.py").write_text(block * by_module + APP)

    def in_the_child() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, () if by_module else (signal.SIGTERM, signal.SIGCHLD))

    with program(folder, "worker", "shop:app", preexec_fn=in_the_child) as worker:
        ready(folder)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(WAIT_S) == 0


@pytest.mark.parametrize("words", [("jobs", "cancel"), ("jobs", "delete", "-y")], ids=["cancel", "delete"])
def test_a_command_that_is_stopped_says_how_many_jobs_it_has_acted_on(
    folder: Path, store: Store, words: tuple[str, ...]
) -> None:
    ids = [added.id for added in store.add([make_job() for _ in range(3 * PAGE)])]
    with program(folder, *words, *ids, stdout=subprocess.PIPE) as command:
        assert command.stdout is not None
        command.stdout.readline()
        command.send_signal(signal.SIGTERM)
        command.communicate(timeout=WAIT_S)
        assert command.returncode == 143
    line = said(folder)
    found = re.fullmatch(
        r"holdfast: stopped by SIGTERM; at least (\d+) of 3000 jobs done; repeat it for the others\n", line
    )
    assert found is not None, line
    left = [id for id in ids if (job := store.get(id)) is not None and job.state is State.READY]
    assert 0 < int(found[1]) <= 3 * PAGE - len(left) <= int(found[1]) + PAGE
