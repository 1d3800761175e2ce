"""`holdfast dev`: one command runs the worker and the server, and starts them again when a file changes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast.dev import stamps
from holdfast.stores import open_store
from tests.servers import free_port
from tests.worker.house import until

TASKS = """
import time
import holdfast
from holdfast.testing import effect

app = holdfast.App("sqlite:///dev.db")

@app.task(crashes_max=50)
def slow() -> None:
    effect("mailed", "ann")
    time.sleep(1.0)
"""


@contextmanager
def dev(folder: Path, *words: str) -> Iterator[Path]:
    """Run it; give the file with what it says."""
    (folder / "shop.py").write_text(TASKS)
    said = folder / "said"
    command = [sys.executable, "-m", "holdfast", "dev", "shop:app", *words]
    with said.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        yield said
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()


def pids(folder: Path) -> set[int]:
    """Of the living workers."""
    if not (folder / "dev.db").exists():
        return set()
    with closing(open_store(f"sqlite:///{folder}/dev.db")) as store:
        if store.schema().is_stale:
            return set()
        return {worker.pid for worker in store.workers() if worker.gone_at is None}


@pytest.mark.slow  # real programs that start, are started again, and stop
def test_worker_and_server_run_and_start_again_when_a_file_changes(folder: Path) -> None:
    port = free_port()

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/live", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    with dev(folder, "--port", str(port)) as said:
        until(lambda: pids(folder), "a worker runs")
        until(answers, "the server answers")
        before = pids(folder)
        (folder / "shop.py").write_text(TASKS + "# changed\n")
        until(lambda: "shop.py has changed: starting again" in said.read_text(), "it is noticed")
        until(lambda: pids(folder) and not pids(folder) & before, "another worker runs")
        until(answers, "the server answers again")
        after = pids(folder)
    until(lambda: not any(_lives(pid) for pid in before | after), "nothing is left")


@pytest.mark.slow  # real deaths, a few seconds apart
def test_chaos_kills_the_worker_and_reports_a_repeated_effect(folder: Path) -> None:
    with dev(folder, "--chaos", "--no-server") as said:
        until(lambda: pids(folder), "a worker runs")
        command = [sys.executable, "-m", "holdfast", "enqueue", "shop:app", "shop.slow"]

        def repeated() -> bool:
            if "mailed" not in said.read_text():
                for _ in range(2):
                    subprocess.run(command, cwd=folder, check=True, capture_output=True)
            return "the effect 'mailed' (ann) of job" in said.read_text()

        until(repeated, "a job was killed after its effect, and ran again")
    words = said.read_text()
    assert re.search(r"chaos: kill -9 dev/1, which ran shop\.slow \(\S+\)", words)
    assert re.search(r"\d+ workers? killed, [1-9]\d* effects? repeated", words)


def test_only_files_of_the_project_are_watched(tmp_path: Path) -> None:
    for name in ("jobs.py", "package/tasks.py", ".hidden/x.py", "env/pyvenv.cfg", "env/lib/y.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert {os.path.relpath(name, tmp_path) for name in stamps(tmp_path)} == {"jobs.py", "package/tasks.py"}


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
