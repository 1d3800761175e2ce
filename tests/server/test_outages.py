"""Servers that are killed and restarted under load, alone and behind a proxy: nothing is lost, nobody taken for dead.

docs/guarantees.md names the command with 50 workers.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import httpx
import pytest

from holdfast.app import App
from tests.server.client import add_token
from tests.server.fleet import Load, Nginx, Restarting, until

RESTARTS = 10


@pytest.mark.slow  # ten starts of a real server
def test_a_server_that_is_killed_and_restarted_ten_times_loses_nothing(tmp_path: Path) -> None:
    behind = App(f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal")
    server = Restarting(tmp_path)
    try:
        with Load(server.process.url, behind) as load:
            for number in range(RESTARTS):
                load.until_more(40)
                server.restart(signal.SIGKILL if number % 2 == 0 else signal.SIGTERM)
            load.until_more(40)
            load.end()
        load.check()
        assert len(load.acknowledged) >= RESTARTS * 40
    finally:
        server.close()
        behind.close()


@pytest.mark.slow  # two real servers, a real nginx, and a stream through it
def test_a_replica_that_is_killed_behind_nginx_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behind = App(f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal")
    behind.store.migrate()
    monkeypatch.setenv("HOLDFAST_TOKEN", add_token(behind, "fleet", "admin"))
    flags = ("--prefix", "/ops/jobs", "--trusted-proxy", "127.0.0.1")
    replicas = [Restarting(tmp_path, *flags) for _ in range(2)]
    nginx = Nginx(tmp_path, *(each.port for each in replicas))
    headers = {"authorization": "Bearer secret-of-fleet"}
    try:
        with Load(nginx.url, behind) as load:
            load.until_more(40)
            for replica in replicas:
                replica.restart(signal.SIGKILL)
                load.until_more(40)
            with httpx.stream("GET", f"{nginx.url}/v1/events", headers=headers, timeout=20) as stream:
                lines = stream.iter_lines()
                assert next(lines) == ": connected"
                held = behind.enqueue_by_name("nobody", {}, on_crash="hold", run_after=3_600)
                asked_at = time.monotonic()
                answer = httpx.post(f"{nginx.url}/v1/jobs/{held.id}/hold", headers=headers, json={"note": "wait"})
                assert answer.status_code == 200, answer.text
                until(lambda: held.id in next(lines), "the event comes through nginx")
                assert time.monotonic() - asked_at < 10, "nginx does not keep it back"
            behind.resolve(held.id, "fail")
            httpx.delete(f"{nginx.url}/v1/jobs/{held.id}", headers=headers).raise_for_status()
            load.end()
        load.check()
    finally:
        nginx.close()
        for replica in replicas:
            replica.close()
        behind.close()
