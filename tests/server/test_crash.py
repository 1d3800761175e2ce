"""Real processes: a job that was enqueued with curl, and a worker that is killed with kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.curl import path_with_curl
from tests.server.process import HOLDFAST, ServerProcess

TASKS = """
import os, signal, time
from holdfast import App
app = App("sqlite:///jobs.db")

@app.task(name="charge", on_crash="hold", lease_s=3)
def charge(order: int) -> None:
    with open("started", "a") as file:
        file.write(f"{order};")
    time.sleep(60)
"""


def until(url: str, state: str) -> Any:
    deadline = time.monotonic() + 60
    while (job := httpx.get(url).json())["state"] != state:
        assert time.monotonic() < deadline, job
        time.sleep(0.05)
    return job


@pytest.mark.slow  # a server, a worker with its processes, and a death
def test_a_hold_task_enqueued_with_curl_is_held_after_kill_9(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PATH": path_with_curl(tmp_path)}
    command = [*HOLDFAST, "worker", "tasks:app", "--no-reaper", "--name", "w"]
    with ServerProcess(tmp_path) as server:
        worker = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            deadline = time.monotonic() + 60
            while not httpx.get(f"{server.url}/v1/tasks").json()["items"]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            body = json.dumps({"task": "charge", "kwargs": {"order": 7}})
            curl = ["curl", "-sS", "-H", "content-type: application/json", "-d", body, f"{server.url}/v1/jobs"]
            made = json.loads(subprocess.run(curl, capture_output=True, check=True, env=env).stdout)
            assert (made["on_crash"], made["existed"]) == ("hold", False)
            job = f"{server.url}/v1/jobs/{made['id']}"
            while not (tmp_path / "started").exists():
                assert time.monotonic() < deadline + 60
                time.sleep(0.02)
            os.killpg(worker.pid, signal.SIGKILL)  # the supervisor as well: only the server can find this
        finally:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait(30)
        held = until(job, "held")
        assert (held["attempt"], held["crashes"]) == (1, 1)
        assert (tmp_path / "started").read_text() == "7;"
        refused = subprocess.run([*curl[:-3], "-d", "{}", f"{job}/resolve"], capture_output=True, check=True, env=env)
        assert json.loads(refused.stdout)["state"] == "ready", "a person runs it again"
