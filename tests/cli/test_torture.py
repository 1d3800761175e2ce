"""`holdfast torture`: it finds a task that repeats an effect, passes a safe one, and runs nothing unasked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from holdfast.core.machine import State
from holdfast.testing import effect
from holdfast.torture.lines import FILE, EffectFile
from holdfast.torture.plan import CHOICES, rounds
from holdfast.torture.verdict import Ran, report
from tests.cli.conftest import Run

TASKS = """
import os, pathlib
import holdfast
from holdfast.testing import effect

app = holdfast.App("sqlite:///of-the-user.db")
HERE = pathlib.Path(__file__).parent

@app.task
def unsafe(order: int = 7) -> None:
    effect("charged", order)

@app.task
def safe(ctx: holdfast.Context) -> None:
    try:
        os.close(os.open(HERE / f"charged-{ctx.job.id}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    effect("charged")

@app.task
def needs(order: int) -> None: ...

def charges_of(job) -> int:
    return int((HERE / f"charged-{job.id}").exists())
"""


@pytest.fixture
def tasks(folder: Path) -> Path:
    (folder / "shop.py").write_text(TASKS)
    return folder


def torture(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", "torture", "shop:app", "--minutes", "0.01", *words]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.slow  # four rounds with real workers and real deaths
def test_an_unsafe_task_is_found_and_a_safe_one_passes(tasks: Path) -> None:
    """Killed right after the effect: a task is run again. One that looks first whether it has happened is safe."""
    names = [word for name in ("unsafe", "safe") for word in ("--task", name)]
    done = torture(tasks, *names, "--only", "effect.after", "-y", "--json")
    assert done.returncode == 7, done.stderr
    found = {each["task"]: each for each in json.loads(done.stdout)["tasks"]}
    assert {name: each["safety"] for name, each in found.items()} == {
        "shop.unsafe": "unsafe",
        "shop.safe": "safe",
    }
    assert found["shop.unsafe"]["repeated"][0]["disturbance"] == "kill at effect.after"
    assert found["shop.unsafe"]["repeated"][0]["jobs"] >= 1
    assert 'on_crash="hold"' in found["shop.unsafe"]["advice"]
    assert found["shop.safe"]["lost_attempts"] >= 1
    assert not (tasks / "of-the-user.db").exists(), "the store of the user was not touched"


@pytest.mark.slow  # real workers, one of them frozen for a lease
def test_a_check_counts_instead_of_marks_while_a_worker_is_frozen(tasks: Path) -> None:
    (tasks / "calls.jsonl").write_text('{"task": "safe"}\n')
    words = ["--task", "safe", "--inputs", "calls.jsonl", "--check", "shop:charges_of"]
    done = torture(tasks, *words, "--only", "freeze", "-y", "--json")
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)["tasks"]
    assert (found["safety"], found["lost_attempts"] >= 1) == ("safe", True)


def test_nothing_is_run_before_a_person_agrees(tasks: Path) -> None:
    done = torture(tasks)
    assert (done.returncode, done.stdout) == (2, "")
    assert "These tasks run for real, many times, and their workers are killed: shop.unsafe" in done.stderr
    assert not list(tasks.glob("charged-*"))


def test_it_refuses_any_store_but_its_own(tasks: Path, run: Run) -> None:
    refused = run("torture", "shop:app", "-y", "--db", "sqlite:///jobs.db", code=2)
    assert "a store of its own" in refused.stderr


def test_an_input_that_does_not_fit_is_refused(tasks: Path) -> None:
    (tasks / "calls.jsonl").write_text('{"task": "needs", "args": ["many"]}\n')
    done = torture(tasks, "--inputs", "calls.jsonl", "-y")
    assert done.returncode == 2
    assert "--inputs" in done.stderr
    (tasks / "calls.jsonl").write_text('{"args": [1]}\n')
    assert "calls.jsonl, line 1" in torture(tasks, "--inputs", "calls.jsonl", "-y").stderr


def ran(state: State = State.DONE, effects: int = 1, job_id: str = "j", starts: int = 1) -> Ran:
    marked = Counter({("charged", None): effects}) if effects else Counter[tuple[str, str | None]]()
    return Ran(job_id, 0, state, "kill in the middle", marked, starts, lost_attempts=1)


@pytest.mark.parametrize(
    ("seen", "safety", "words"),
    [
        ([ran()], "safe", "every effect happened once"),
        ([ran(effects=2)], "unsafe", 'declare on_crash="hold"'),
        ([ran(effects=0)], "unsafe", "missing although the job is done"),
        ([ran(State.DEAD, effects=0)], "safe", "every effect happened once"),
        ([ran(State.HELD, effects=1)], "safe", "every effect happened once"),
    ],
)
def test_effects_are_compared_with_an_undisturbed_run(seen: list[Ran], safety: str, words: str) -> None:
    found = report("t", "retry", [ran()], seen)
    assert (found.safety, words in found.advice) == (safety, True)


def test_without_marks_only_starts_are_counted() -> None:
    found = report("t", "retry", [ran(effects=0)], [ran(effects=0, starts=2)])
    assert (found.safety, found.repeated[0].name) == ("unknown", "start")
    assert "starts repeated" in found.advice


def test_what_a_check_counts_wins_over_marks() -> None:
    found = report("t", "retry", [ran()], [ran(job_id="a"), ran(job_id="b")], {"a": 2, "b": 0})
    assert [len(found.repeated), len(found.lost)] == [1, 1]


def test_every_disturbance_can_be_chosen_alone() -> None:
    for choice in CHOICES:
        assert next(rounds(True, [choice])).choice == choice


def test_an_effect_outside_of_torture_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILE, raising=False)
    effect("charged", 1)
    file = EffectFile(tmp_path / "effects")
    monkeypatch.setenv(FILE, str(file.path))
    effect("charged", 1)
    effect("mailed")
    assert [(line.job, line.name, line.key) for line in file.new()] == [(None, "charged", "1"), (None, "mailed", None)]
    assert file.new() == []
    assert os.stat(file.path).st_mode & 0o777 == 0o600
