"""A PostgreSQL server for each file, a schema for each test, a network that the test may break."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import App
from tests.proxy import Proxy
from tests.servers import PostgresServer, RedisServer
from tests.worker.house import House

_numbers = itertools.count(1)


Places = Callable[[str], str]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of this file's own: its tests may stop it, and leave it running."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def schema() -> str:
    """The name of a schema that is not there yet."""
    return f"store_{next(_numbers)}"


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[Proxy]:
    proxy = Proxy(server.url)
    yield proxy
    proxy.close()


@pytest.fixture
def houses(schema: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], House]]:
    """Make houses over the test's schema, each with an app and connections of its own."""
    monkeypatch.setattr("holdfast.upkeep.reaper.pause", lambda _: None)  # the sweep's second look
    made: list[House] = []

    def make(url: str, options: str = "") -> House:
        made.append(House(App(f"{url}?schema={schema}{options}", journal="full")))
        return made[-1]

    yield make
    for house in made:
        house.close()


@pytest.fixture
def place(server: PostgresServer, redis_server: RedisServer, tmp_path: Path, schema: str) -> Places:
    """Give the address of an empty store: `sqlite-1`, `postgres-2`, …; the same for the same name."""

    def address(name: str) -> str:
        if name.startswith("sqlite"):
            return f"sqlite:///{tmp_path}/{name}.db?synchronous=normal"
        if name.startswith("redis"):
            return f"{redis_server.url}?prefix={schema}-{name}"
        return f"{server.url}?schema={schema}_{name.replace('-', '_')}"

    return address
