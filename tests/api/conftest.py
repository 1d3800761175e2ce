"""An app over each store in turn."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import App
from holdfast.testing import FakeClock


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db?synchronous=normal"


@pytest.fixture
def app(url: str, clock: FakeClock) -> Iterator[App]:
    with App(url, clock=clock) as app:
        yield app
