"""The pytest plugin: the fixture `holdfast`. pytest finds it by itself; `-p no:holdfast` switches it off.

It imports nothing of Holdfast until a test asks for the fixture, so other tests of a project pay nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast.testing import AppTester


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the settings of the plugin."""
    what = 'store of the fixture "holdfast": memory (the default), sqlite, or a PostgreSQL database'
    parser.addini("holdfast_store", what, default="memory")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker of the plugin."""
    what = "holdfast(store=…, eager=…, wall=…): settings of the fixture `holdfast` for this test"
    config.addinivalue_line("markers", what)


@pytest.fixture
def holdfast(request: pytest.FixtureRequest, holdfast_store: str, tmp_path: Path) -> Iterator[AppTester]:
    """Every app of the program on a store of this test, with a clock in the test's hand."""
    from holdfast.testing import AppTester

    settings: dict[str, Any] = {"store": holdfast_store}
    marker = request.node.get_closest_marker("holdfast")
    if marker is not None:
        if marker.args:
            raise pytest.UsageError(f"the marker holdfast takes named settings only, not {marker.args!r}")
        settings |= marker.kwargs
    with AppTester(**settings, folder=tmp_path) as tester:
        yield tester


@pytest.fixture
def holdfast_store(request: pytest.FixtureRequest) -> str:
    """The store of the fixture `holdfast`; a project may define this fixture again."""
    return str(request.config.getini("holdfast_store"))
