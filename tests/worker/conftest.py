"""An app with a house for its workers, over each store in turn."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import App
from tests.conftest import SERVERS
from tests.worker.house import House


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder}/jobs.db?synchronous=normal"


@pytest.fixture(autouse=True)
def _quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep before the first claim looks twice, a moment apart; three hundred tests need not wait for that."""
    monkeypatch.setattr("holdfast.upkeep.reaper.pause", lambda _: None)


@pytest.fixture(params=["memory", "sqlite"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    """Over memory and over a file; with the mark `on_every_store` over a server too."""
    yield from _opened(_url(request, tmp_path))


@pytest.fixture(params=["sqlite", "postgres"])
def shared_house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    """Over what several processes may share: for what takes long, or what memory does not have."""
    yield from _opened(_url(request, tmp_path))


@pytest.fixture
def file_house(tmp_path: Path) -> Iterator[House]:
    """Over a file: for what memory does not have, or what the store makes no difference to."""
    yield from _opened(sqlite_url(tmp_path))


def _url(request: pytest.FixtureRequest, folder: Path) -> str:
    if request.param in SERVERS:
        return str(request.getfixturevalue(request.param))
    return "memory://" if request.param == "memory" else sqlite_url(folder)


def _opened(url: str) -> Iterator[House]:
    house = House(App(url, journal="full"))
    try:
        yield house
        trouble = house.store.check()
    finally:
        house.close()
    assert trouble == []
