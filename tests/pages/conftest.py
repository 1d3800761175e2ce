"""A store, its pages, and a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from holdfast.app import App
from holdfast.testing import FakeClock
from tests.pages.browser.find import launched
from tests.pages.world import World


@pytest.fixture
def app(clock: FakeClock) -> Iterator[App]:
    app = App("memory://", clock=clock)
    yield app
    app.close()


@pytest.fixture
def world(app: App) -> World:
    return World(app)


@pytest.fixture(scope="module")  # not longer: its event loop would be in the way of other tests
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser
