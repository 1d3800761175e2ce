"""What systemd hears of a worker with Type=notify, over a real datagram socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.worker.systemd import Systemd


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "notify"))
        end.settimeout(60)
        yield end, str(tmp_path / "notify")


def heard(end: socket.socket) -> list[str]:
    """What has come by now."""
    end.setblocking(False)
    found = []
    while True:
        try:
            found.append(end.recv(4096).decode())
        except BlockingIOError:
            return found


def test_it_says_once_that_it_is_ready_and_once_that_it_stops(listening: tuple[socket.socket, str]) -> None:
    end, path = listening
    systemd = Systemd({"NOTIFY_SOCKET": path}, 1)
    for _ in range(2):
        systemd.ready()
    for _ in range(2):
        systemd.stopping()
    assert [message.split("\n")[0] for message in heard(end)] == ["READY=1", "STOPPING=1"]


def test_the_watchdog_is_fed_twice_in_each_interval(listening: tuple[socket.socket, str]) -> None:
    end, path = listening
    systemd = Systemd({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "7"}, 7)
    for now in (0.0, 1.0, 4.9, 5.0, 6.0, 10.0):
        systemd.alive(now)
    assert heard(end) == ["WATCHDOG=1"] * 3


@pytest.mark.parametrize("watched", [{}, {"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "8"}, {"WATCHDOG_USEC": "soon"}])
def test_where_no_watchdog_watches_this_process_none_is_fed(
    listening: tuple[socket.socket, str], watched: dict[str, str]
) -> None:
    end, path = listening
    Systemd({"NOTIFY_SOCKET": path, **watched}, 7).alive(0.0)
    assert heard(end) == []


def test_an_abstract_socket_is_found() -> None:
    name = f"holdfast-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind("\0" + name)
        Systemd({"NOTIFY_SOCKET": f"@{name}"}, 1).ready()
        assert heard(end)[0].startswith("READY=1\n")


def test_a_socket_that_is_gone_or_none_at_all_does_no_harm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Systemd({}, 1).ready()
    assert caplog.messages == []
    gone = Systemd({"NOTIFY_SOCKET": str(tmp_path / "gone")}, 1)
    gone.ready()
    gone.stopping()
    assert len(caplog.messages) == 1
    assert "systemd could not be notified" in caplog.messages[0]


@pytest.mark.slow  # it starts a whole worker
def test_a_worker_tells_systemd_that_it_is_ready_alive_and_stopping(
    listening: tuple[socket.socket, str], tmp_path: Path
) -> None:
    end, path = listening
    (tmp_path / "jobs.py").write_text("from holdfast import App\napp = App()\n@app.task\ndef t(): ...\n")
    env = {**os.environ, "HOLDFAST_DB": f"sqlite:///{tmp_path}/jobs.db", "NOTIFY_SOCKET": path}
    env["WATCHDOG_USEC"] = "1000000"
    command = [sys.executable, "-m", "holdfast", "worker", "jobs:app", "-q"]
    worker = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
    try:
        found: list[str] = []
        give_up_at = time.monotonic() + 90
        while not {"READY=1", "WATCHDOG=1"} <= set(found) and time.monotonic() < give_up_at:
            found.append(end.recv(4096).decode().split("\n")[0])
        worker.send_signal(signal.SIGTERM)
        while found[-1] != "STOPPING=1" and time.monotonic() < give_up_at:
            found.append(end.recv(4096).decode().split("\n")[0])
        assert found.count("READY=1") == 1
        assert found.count("WATCHDOG=1") >= 1
        assert found[-1] == "STOPPING=1"
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()
