"""The program as people start it: a process of its own, its streams, its exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from holdfast.clock import SystemClock, pause
from holdfast.core.machine import State
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore
from tests.factory import add, row

APP = """
import os, signal, time
from holdfast import App

app = App("sqlite:///jobs.db")

@app.task
def add(a: int, b: int) -> int:
    return a + b

@app.task(on_crash="hold")
def die() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def holdfast(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    settings = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **env}
    command = [sys.executable, "-m", "holdfast", *words]
    return subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_from_enqueue_to_result(folder: Path) -> None:
    """Slow: four programs are started, one after the other."""
    (folder / "shop.py").write_text(APP)
    assert holdfast(folder, "jobs", "list", "--db", "sqlite:///jobs.db").returncode == 3
    job_id = holdfast(folder, "enqueue", "shop:app", "add", "[1, 2]").stdout.strip()
    worker = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", "shop:app", "--name", "w1"], cwd=folder, stderr=subprocess.DEVNULL
    )
    try:
        shown = until_done(folder, job_id)
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    assert (shown["state"], shown["result"], shown["attempt"]) == ("done", 3, 1)


@pytest.mark.slow
def test_a_worker_without_tasks_says_so_and_one_with_imports_runs_them_in_every_process(folder: Path) -> None:
    """Slow: four programs are started, and a process for an isolated task."""
    (folder / "plain.py").write_text("from holdfast import App\napp = App('sqlite:///jobs.db')\n")
    (folder / "more").mkdir()
    (folder / "more" / "tasks.py").write_text(
        "from plain import app\n@app.task(isolate=True)\ndef double(n: int) -> int:\n    return 2 * n\n"
    )
    imports = ("--import", "more.tasks")
    job_id = holdfast(folder, "enqueue", "plain:app", "double", "[21]", *imports).stdout.strip()
    with open(folder / "empty.log", "w+") as log, started(folder, log, "worker", "plain:app"):
        until_said(log, "has no tasks and will run no jobs")
    with open(folder / "full.log", "w+") as log, started(folder, log, "worker", "plain:app", *imports):
        assert until_done(folder, job_id)["result"] == 42
        assert "has no tasks" not in Path(log.name).read_text()


@contextmanager
def started(folder: Path, log: IO[str], *words: str) -> Iterator[None]:
    """A program that runs while the block does, and ends with 0 when it is told to."""
    program = subprocess.Popen([sys.executable, "-m", "holdfast", *words], cwd=folder, stderr=log)
    try:
        yield
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 0
    finally:
        program.kill()
        program.wait()


def until_said(log: IO[str], words: str) -> None:
    give_up = SystemClock().lease() + 60
    while words not in Path(log.name).read_text():
        assert SystemClock().lease() < give_up, Path(log.name).read_text()
        pause(0.1)


@pytest.mark.slow
def test_a_worker_killed_with_its_supervisor_is_found_by_a_scan(folder: Path) -> None:
    """Slow: two programs are started and killed."""
    (folder / "shop.py").write_text(APP)
    job_id = holdfast(folder, "enqueue", "shop:app", "die").stdout.strip()
    killed = holdfast(folder, "worker", "shop:app", "--name", "w1")
    assert killed.returncode == -signal.SIGKILL
    env = {"HOLDFAST_DB": "sqlite:///jobs.db"}
    until_dead(folder)
    [worker] = json.loads(holdfast(folder, "workers", "list", "--json", **env).stdout)
    assert worker["state"] == "vanished", "it beat a moment ago, but its process has ended"
    assert " vanished " in holdfast(folder, "workers", "list", **env).stdout
    health = json.loads(holdfast(folder, "jobs", "show", job_id, "--json", **env).stdout)["health"]
    assert health["word"] == "dead"
    assert health["sentence"].startswith("Its worker vanished: ")
    assert health["sentence"].endswith("No worker is alive to settle it: start one, unless `holdfast reaper` runs.")
    found = holdfast(folder, "scan", "--fix", "--json", "--check", **env)
    assert found.returncode == 7
    [zombie] = json.loads(found.stdout)["zombies"]
    assert (zombie["id"], zombie["worker"], zombie["decision"]) == (job_id, "w1/1", "hold")
    assert zombie["detector"] == "vanished"
    assert holdfast(folder, "held", "approve", job_id, **env).returncode == 0
    assert holdfast(folder, "held", "approve", job_id, **env).returncode == 6


def test_data_is_on_stdout_and_all_else_on_stderr(folder: Path, store: Store) -> None:
    job = add(store)
    env = {"HOLDFAST_DB": f"sqlite:///{folder}/jobs.db"}
    good = holdfast(folder, "jobs", "list", "--json", "--limit", "1", **env)
    assert [shown["id"] for shown in json.loads(good.stdout)] == [job.id]
    assert good.stderr == ""
    bad = holdfast(folder, "jobs", "show", "nobody", "--json", **env)
    assert (bad.returncode, bad.stdout) == (5, "")
    assert bad.stderr == "holdfast: there is no job 'nobody'; see `holdfast jobs list`\n"


def test_what_the_terminal_cannot_encode_is_escaped(folder: Path, store: Store) -> None:
    add(store, task="обработать")
    env = {"HOLDFAST_DB": f"sqlite:///{folder}/jobs.db", "PYTHONIOENCODING": "latin-1"}
    shown = holdfast(folder, "jobs", "list", **env)
    assert shown.returncode == 0
    assert "\\u043e\\u0431" in shown.stdout
    assert json.loads(holdfast(folder, "jobs", "list", "--json", **env).stdout)[0]["task"] == "обработать"


@pytest.mark.parametrize("words", ["jobs list --json", "jobs list 2>&1", "doctor"])
def test_a_reader_that_leaves_early_is_no_trouble(folder: Path, store: Store, words: str) -> None:
    add(store)
    command = f"set -o pipefail; {sys.executable} -m holdfast {words} | true"
    env = {"PATH": os.environ["PATH"], "HOLDFAST_DB": f"sqlite:///{folder}/jobs.db"}
    done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (141, ""), "what was not said is not taken for good news"


def test_ctrl_c_is_130_without_a_traceback(folder: Path, store: Store) -> None:
    code = (
        "import os, signal, holdfast.stores.sqlite.store as s\n"
        "s.SqliteStore.find = lambda *a: os.kill(os.getpid(), signal.SIGINT)\n"
        "from holdfast.cli.main import main\n"
        "import sys; sys.argv = ['holdfast', 'jobs', 'list']; main()"
    )
    env = {"PATH": os.environ["PATH"], "HOLDFAST_DB": f"sqlite:///{folder}/jobs.db"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "holdfast: interrupted\n")


def test_help_needs_no_store_and_none_of_the_heavy_modules(folder: Path) -> None:
    code = (
        "import sys\nfrom holdfast.cli.main import cli\n"
        "try: cli(['--help'])\nexcept SystemExit: pass\n"
        "print([name for name in ('rich', 'sqlite3', 'holdfast.cli.jobs') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == "[]\n"
    assert "Commands:" in done.stdout


def until_done(folder: Path, job_id: str) -> dict[str, object]:
    store = SqliteStore(f"sqlite:///{folder}/jobs.db")
    try:
        give_up_at = SystemClock().lease() + 60
        while row(store, job_id).state is not State.DONE:
            assert SystemClock().lease() < give_up_at
            pause(0.05)
    finally:
        store.close()
    shown = holdfast(folder, "jobs", "show", job_id, "--json", HOLDFAST_DB="sqlite:///jobs.db")
    return dict(json.loads(shown.stdout))


def until_dead(folder: Path) -> None:
    """The child may outlive the supervisor that it killed by a moment."""
    store = SqliteStore(f"sqlite:///{folder}/jobs.db")
    try:
        give_up_at = SystemClock().lease() + 60
        while not store.vanished():
            assert SystemClock().lease() < give_up_at
            pause(0.02)
    finally:
        store.close()


def test_a_password_in_db_is_hidden_from_ps_and_warned_of(folder: Path) -> None:
    (folder / "shop.py").write_text(APP.replace("sqlite:///jobs.db", "memory://"))
    away = "postgresql://me:hunter2@127.0.0.1:1/shop?sslpassword=hunter3"
    command = [sys.executable, "-m", "holdfast", "worker", "shop:app", "--db", away]
    worker = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert worker.stderr is not None
        said = worker.stderr.readline()
        shown = Path(f"/proc/{worker.pid}/cmdline")
        if shown.exists():  # only Linux lets a process change it
            assert "me:*******@127.0.0.1" in shown.read_text()
            assert "hunter" not in shown.read_text()
    finally:
        worker.kill()
        worker.communicate()
    assert "the password in --db is seen by every user" in said
    assert "HOLDFAST_DB" in said


def test_an_address_without_a_password_is_not_warned_of(folder: Path) -> None:
    assert "password" not in holdfast(folder, "jobs", "list", "--db", "postgresql://me@127.0.0.1:1/shop").stderr
    secret = "postgresql://me:hunter2@127.0.0.1:1/shop"
    assert "password" not in holdfast(folder, "jobs", "list", HOLDFAST_DB=secret).stderr
    assert "password" not in holdfast(folder, "jobs", "list", "-q", "--db", secret).stderr
