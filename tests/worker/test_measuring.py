"""`holdfast worker --metrics-port`: what the processes of a worker have counted."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from holdfast.runtime.metrics import Registry, Series
from holdfast.testing import FakeClock
from holdfast.worker.measuring import Measures, add_up
from holdfast.worker.metrics_server import FleetMeasures, MetricsServer
from tests.test_metrics import Sample, samples

HOLDFAST = (sys.executable, "-m", "holdfast")
JOBS = """
import os, signal
from holdfast import App
app = App("sqlite:///jobs.db")

@app.task
def fine(): ...

@app.task
def wrong(): raise ValueError("no")
"""


def wait_for(condition, timeout_s: float = 30.0) -> None:  # type: ignore[no-untyped-def]
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_at, "it did not happen in time"
        time.sleep(0.02)


def test_counts_of_children_add_up_and_stay_when_a_child_dies(clock: FakeClock) -> None:
    fleet = FleetMeasures(["t"], "sqlite")
    ends = [fleet.pipe(number) for number in (1, 2)]
    for number, end in enumerate(ends):
        child = Measures(clock)
        child.beaten("ok", 3.0 + number)
        child.registry.put("holdfast_slots", "busy", value=2.0)
        child.send(end)
        child.beaten("ok")
        child.send(end)
    wait_for(lambda: fleet.series().get("holdfast_beats_total") == {("ok",): 4.0})
    assert fleet.series()["holdfast_slots"] == {("busy",): 4.0}
    os.write(ends[0], b'{"holdfast_beats_total": [[["o')  # it is killed while it writes
    os.close(ends[0])
    wait_for(lambda: fleet.series()["holdfast_slots"] == {("busy",): 2.0})
    assert fleet.series()["holdfast_beats_total"] == {("ok",): 4.0}
    assert fleet.series()["holdfast_attempts_total"] == {("t", "succeeded"): 0.0, ("t", "failed"): 0.0}
    os.close(ends[1])
    wait_for(lambda: "holdfast_slots" not in fleet.series())


def test_a_line_that_is_none_changes_nothing() -> None:
    registry = Registry()
    for line in (b"", b"{", b'{"holdfast_beats_total": 1}', b'{"a_metric_of_another_version": [[["x"], 1]]}'):
        add_up(line, registry, {})
    assert registry.read() == {}


def ask(port: int, path: str) -> tuple[int, str]:
    with socket.create_connection(("127.0.0.1", port), 5) as link:
        link.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        text = b"".join(iter(lambda: link.recv(65_536), b"")).decode()
    return int(text.split()[1]), text.partition("\r\n\r\n")[2]


def test_the_port_answers_for_metrics_and_health_alone() -> None:
    moves = [True]
    series: Series = {"holdfast_beats_total": {("ok",): 1.0}}
    server = MetricsServer("127.0.0.1", 0, lambda: series, lambda: moves[0])
    server.start()
    try:
        assert ask(server.port, "/metrics?name=x")[1].endswith('holdfast_beats_total{result="ok"} 1\n')
        assert ask(server.port, "/health/live") == (200, "live\n")
        moves[0] = False
        assert ask(server.port, "/health/live")[0] == 503
        assert ask(server.port, "/../jobs.db")[0] == 404
    finally:
        server.close()


def scrape(url: str) -> dict[Sample, float]:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return samples(answer.read().decode())


@pytest.mark.slow  # a real worker with two processes, one of them killed
def test_a_worker_counts_attempts_over_all_processes_and_over_their_deaths(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [*HOLDFAST, "worker", "jobs:app", "--processes", "2", "--metrics-port", "0", "--grace-period", "1"]
    worker = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    assert worker.stderr is not None
    try:
        lines = iter(worker.stderr.readline, "")
        url = next(found[1] for line in lines if (found := re.search(r"metrics are at (\S+)", line)))
        assert scrape(url)["holdfast_attempts_total", (("outcome", "failed"), ("task", "jobs.wrong"))] == 0
        for task in ("fine", "wrong", "fine"):
            subprocess.run(
                [*HOLDFAST, "enqueue", "jobs:app", f"jobs.{task}"],
                cwd=tmp_path,
                env=env,
                check=True,
                capture_output=True,
            )

        def number(name: str, **labels: str) -> float:
            return scrape(url).get((name, tuple(sorted(labels.items()))), 0.0)

        wait_for(lambda: number("holdfast_attempts_total", task="jobs.fine", outcome="succeeded") == 2)
        wait_for(lambda: number("holdfast_attempts_total", task="jobs.wrong", outcome="failed") >= 1)
        assert number("holdfast_attempt_duration_seconds_count", task="jobs.fine") == 2
        assert number("holdfast_attempt_wait_seconds_count", queue="default") >= 3
        assert number("holdfast_slots", state="free") == 40
        assert number("holdfast_beats_total", result="ok") > 0
        assert number("holdfast_store_operation_duration_seconds_count", verb="claim") > 0
        [child, *_] = psutil.Process(worker.pid).children()
        before = number("holdfast_beats_total", result="ok")
        os.kill(child.pid, signal.SIGKILL)
        wait_for(lambda: number("holdfast_beats_total", result="ok") > before)
        assert number("holdfast_attempts_total", task="jobs.fine", outcome="succeeded") == 2
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
        worker.stderr.close()


@pytest.mark.slow  # a real program
def test_a_metrics_port_that_is_taken_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused = subprocess.run(
            [*HOLDFAST, "worker", "jobs:app", "--metrics-port", port],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert refused.returncode == 2
    assert "--metrics-port" in refused.stderr
