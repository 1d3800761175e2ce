"""`holdfast tick`: a worker for one call, from cron."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # real programs: a tick configures the log of its process

SHOP = """
from holdfast import App, Retry

app = App("sqlite:///shop.db", keep={"done": "1h"})


@app.task(queue="sums")
def add(a: int, b: int) -> int:
    return a + b


@app.task(retry=Retry(attempts_max=1))
def fail() -> None:
    raise ValueError("no luck")
"""


def holdfast(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = [sys.executable, "-m", "holdfast", *words]
    return subprocess.run(done, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_a_tick_from_cron_runs_what_is_due_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    first = holdfast(tmp_path, "enqueue", "shop:app", "add", "[1, 2]").stdout.strip()
    second = holdfast(tmp_path, "enqueue", "shop:app", "fail").stdout.strip()
    ran = holdfast(tmp_path, "tick", "shop:app", "--queues", "sums", "--budget", "30s")
    assert (ran.returncode, ran.stdout) == (0, "1 attempt settled.\n"), ran.stderr
    ran = holdfast(
        tmp_path, "tick", "shop:app", "--json", "--alert-command", "sh -c 'cat > told'", "--alert-on", "dead"
    )
    report = {"settled": 1, "recovered": 0, "fired": 0, "pruned": 0, "finished": True}
    assert (ran.returncode, json.loads(ran.stdout)) == (0, report), ran.stderr
    shown = holdfast(tmp_path, "jobs", "list", "--json", "--db", "sqlite:///shop.db").stdout
    assert {each["id"]: each["state"] for each in json.loads(shown)} == {first: "done", second: "dead"}
    assert json.loads((tmp_path / "told").read_text())["kind"] == "dead"


def test_a_tick_that_finds_nothing_is_silent_with_q_so_cron_mails_nothing(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    ran = holdfast(tmp_path, "tick", "shop:app", "-q")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert holdfast(tmp_path, "tick", "shop:nothing").returncode == 2
    assert holdfast(tmp_path, "tick", "shop:app", "--budget", "0s").returncode == 2
