"""The program of one worker process: what it does with an app that it cannot use."""

import gc
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import msgspec
import pytest

from holdfast.cli import child as program
from holdfast.worker.options import WorkerOptions
from tests.servers import free_port

EAGER = """
from holdfast import App
app = App("sqlite:///jobs.db")
@app.task
def hello() -> None: ...
app.store.counts()
"""


def child(folder: Path, db: str) -> tuple[int, str]:
    """Start it as the supervisor does, and let the supervisor die at once; return its exit code and its log."""
    read_end, write_end = os.pipe()
    settings = {"app": "shop:app", "db": db, "name": "w/1", "supervisor": "s", "options": asdict(WorkerOptions())}
    os.write(write_end, msgspec.json.encode(settings) + b"\n")
    os.close(write_end)
    command = [sys.executable, "-m", "holdfast.cli.child", str(read_end)]
    try:
        done = subprocess.run(
            command, cwd=folder, pass_fds=[read_end], stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    finally:
        os.close(read_end)
    return done.returncode, done.stderr


@pytest.mark.parametrize(("chosen", "kept"), [((700, 10, 10), 20_000), ((123, 10, 10), 123)])
def test_a_worker_process_collects_garbage_less_often_unless_its_app_says_otherwise(
    chosen: tuple[int, int, int], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_USUAL", (700, 10, 10))
    before = gc.get_threshold()
    gc.set_threshold(*chosen)
    try:
        program._collect_less_often()
        assert gc.get_threshold()[0] == kept
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_a_module_may_use_the_store_while_it_is_imported(folder: Path) -> None:
    (folder / "shop.py").write_text(EAGER)
    code, log = child(folder, "sqlite:///jobs.db")
    assert code == 0, log
    assert "the supervisor is gone" in log


@pytest.mark.parametrize(
    ("text", "db", "why"),
    [
        (EAGER, "sqlite:///other.db", "the store is open; set the url before its first use"),
        ("import nothing_of_that_name", "sqlite:///jobs.db", "No module named 'nothing_of_that_name'"),
        ("raise SystemExit(0)", "sqlite:///jobs.db", "could not be imported"),
    ],
)
def test_an_app_that_cannot_be_used_ends_it_with_one_message(folder: Path, text: str, db: str, why: str) -> None:
    (folder / "shop.py").write_text(text)
    code, log = child(folder, db)
    assert code == 2
    assert why in log
    assert log.count("the worker cannot start") == 1
    assert "cli/child.py" not in log, "no traceback of ours"


def test_a_store_that_is_away_is_waited_for(folder: Path) -> None:
    """It does not die young: the supervisor would be slower and slower to start it again."""
    (folder / "shop.py").write_text("from holdfast import App\napp = App()\n@app.task\ndef hello() -> None: ...\n")
    read_end, write_end = os.pipe()
    db = f"postgresql://nobody@127.0.0.1:{free_port()}/jobs"
    settings = {"app": "shop:app", "db": db, "name": "w/1", "supervisor": "s", "options": asdict(WorkerOptions())}
    os.write(write_end, msgspec.json.encode(settings) + b"\n")
    command = [sys.executable, "-m", "holdfast.cli.child", str(read_end)]
    with subprocess.Popen(command, cwd=folder, pass_fds=[read_end], stderr=subprocess.PIPE, text=True) as started:
        os.close(read_end)
        assert started.stderr is not None
        said = started.stderr.readline()
        assert "the store fails" in said
        assert "Connection refused" in said
        assert "the worker starts when it is back" in said
        os.write(write_end, b"stop\n")
        assert started.wait(60) == 0
        os.close(write_end)
        assert started.stderr.read() == "", "one line, and no traceback"
