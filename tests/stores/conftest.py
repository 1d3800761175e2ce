"""A PostgreSQL server for each file, a schema for each test, a network that the test may break."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from holdfast import App
from tests.proxy import Proxy
from tests.servers import PostgresServer
from tests.worker.house import House

_numbers = itertools.count(1)


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
