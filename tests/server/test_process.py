"""`holdfast server` as a program: it listens, refuses, is mounted, and stops."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast.app import App
from holdfast.core.access import User
from holdfast.server import Server, ServerOptions
from tests.server.process import HOLDFAST, ServerProcess


def holdfast(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HOLDFAST, *args], cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.mark.slow  # two real processes
def test_a_server_answers_until_it_is_stopped_and_gives_its_duties_back(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--prefix", "/ops/jobs") as server:
        assert httpx.get(f"{server.url}/health/ready").json()["status"] == "ready"
        assert httpx.get(server.url.removesuffix("/ops/jobs") + "/health/ready").status_code == 404
        with httpx.Client() as kept:  # an open connection must not keep it from stopping
            kept.get(f"{server.url}/health/live")
            server.until_said("took the duty 'reaper'")
            began = time.monotonic()
            assert server.stop() == 0
        assert time.monotonic() - began < 20
    log = "".join(server.log)
    assert "took the duty 'reaper'" in log
    assert "took the duty 'scheduler'" not in log  # there is no schedule
    assert all(f"has the duty '{duty}' of term 1: resigned" in log for duty in ("reaper", "rollups")), log


@pytest.mark.slow  # a real process, three times
def test_a_server_for_others_refuses_to_start_without_a_token(tmp_path: Path) -> None:
    holdfast(tmp_path, "--db", "sqlite:///jobs.db", "db", "init")
    for words in (["--host", "0.0.0.0"], ["--trusted-proxy", "127.0.0.1"]):
        refused = holdfast(tmp_path, "--db", "sqlite:///jobs.db", "server", "--port", "0", *words)
        assert refused.returncode == 2
        assert "holdfast tokens add" in refused.stderr
    holdfast(tmp_path, "--db", "sqlite:///jobs.db", "tokens", "add", "ann", "--role", "viewer")
    with ServerProcess(tmp_path, "--host", "0.0.0.0", "--no-reaper") as server:
        assert httpx.get(f"{server.url}/health/live").status_code == 200
        assert httpx.get(f"{server.url}/v1/me").status_code == 401
        assert server.stop(signal.SIGINT) == 0
    assert "reaper" not in "".join(server.log)


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "https://jobs.example"])
def test_a_server_over_a_server_is_a_usage_error(tmp_path: Path, address: str) -> None:
    """Nobody is asked: the address alone says so."""
    refused = holdfast(tmp_path, "--db", address, "server", "--port", "0")
    assert refused.returncode == 2
    assert f"{address} is a server already; give this one the store behind it" in refused.stderr


@pytest.mark.slow  # a real process
def test_a_port_that_is_taken_is_a_usage_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused = holdfast(tmp_path, "--db", "memory://", "server", "--port", port)
    assert refused.returncode == 2
    assert "--port" in refused.stderr


def test_the_server_is_mounted_in_an_application_under_any_path(app: App) -> None:
    async def ask() -> list[int]:
        mounted = Server(app, user=lambda scope: User(scope["shop_user"], "viewer"))
        site = Starlette(routes=[Mount("/ops/jobs", mounted)])

        async def with_user(scope: dict[str, object], receive: object, send: object) -> None:
            await site({**scope, "shop_user": "carol"}, receive, send)  # type: ignore[arg-type]

        async with mounted, httpx.AsyncClient(transport=httpx.ASGITransport(with_user)) as http:
            me = await http.get("http://shop.example/ops/jobs/v1/me")
            assert me.json() == {"name": "carol", "role": "viewer", "queues": None}
            lost = await http.get("http://shop.example/ops/jobs/v1/nothing")
            assert lost.json()["type"] == "/ops/jobs/problems/not_found"
            out = await http.post("http://shop.example/ops/jobs/v1/logout", headers={"origin": "http://shop.example"})
            assert "Path=/ops/jobs" in out.headers["set-cookie"]
            bad = await http.post("http://shop.example/ops/jobs/v1/logout", headers={"origin": "http://evil.example"})
            return [me.status_code, lost.status_code, out.status_code, bad.status_code]

    assert asyncio.run(ask()) == [200, 404, 200, 403]


def test_a_server_that_is_closed_answers_that_it_stops(app: App) -> None:
    async def ask() -> int:
        server = Server(app, options=ServerOptions())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(server)) as http:
            assert (await http.get("http://localhost/health/ready")).status_code == 200
            await server.close()
            return (await http.get("http://localhost/v1/me")).status_code

    assert asyncio.run(ask()) == 503


@pytest.mark.slow  # a real server, and three real programs
def test_a_token_is_never_in_a_log(tmp_path: Path) -> None:
    db = ("--db", "sqlite:///jobs.db")
    holdfast(tmp_path, *db, "db", "init")
    secret = holdfast(tmp_path, *db, "tokens", "add", "ann", "--role", "admin").stdout.split()[-1]
    wrong = secret[:-4] + "AAAA"
    said = []
    with ServerProcess(tmp_path, "--require-token", "--log-level", "debug") as server:
        for token in (secret, wrong):
            bearer = {"authorization": f"Bearer {token}"}
            httpx.get(f"{server.url}/v1/jobs", headers=bearer)
            httpx.get(f"{server.url}/v1/jobs?token={token}", headers=bearer)
            httpx.get(f"{server.url}/v1/jobs", headers={"authorization": f"Basic {token}"})
            with httpx.Client() as browser:
                browser.post(f"{server.url}/v1/login", json={"token": token})
                browser.post(f"{server.url}/v1/login", json={"token": [token]})
                me = browser.get(f"{server.url}/v1/me")
                assert (me.status_code == 200) == (token == secret)
                said += [value for name, value in browser.cookies.items() if name == "holdfast_session"]
            found = subprocess.run(
                [*HOLDFAST, "-v", "--db", server.url, "workers", "list"],
                cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "HOLDFAST_TOKEN": token},
            )  # fmt: skip
            assert (found.returncode == 0) == (token == secret)
            server.log += [found.stdout, found.stderr]
        server.stop()
    assert len(said) == 1
    log = "".join(server.log)
    assert "listening" in log
    for each in (secret, wrong, *said):
        assert each not in log
