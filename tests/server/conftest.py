"""An app on the memory store, and clients of a server over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.app import App
from holdfast.testing import FakeClock
from tests.server.client import Client


@pytest.fixture
def app(clock: FakeClock) -> Iterator[App]:
    app = App("memory://", clock=clock)
    yield app
    app.close()


@pytest.fixture
def serve(app: App) -> Iterator[Callable[..., Client]]:
    opened: list[Client] = []

    def serve(**options: Any) -> Client:
        opened.append(Client(options.pop("app", app), **options))
        return opened[-1]

    yield serve
    for client in opened:
        client.close()


@pytest.fixture
def client(serve: Callable[..., Client]) -> Client:
    return serve()
