"""The house of the workers' tests, over every store: workflows are what a store must get right."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.conftest import _opened, _quick_start, _url
from tests.worker.house import House

__all__ = ["_quick_start"]


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    yield from _opened(_url(request, tmp_path))


@pytest.fixture(params=["sqlite", "postgres"])
def sql_house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    yield from _opened(_url(request, tmp_path))


@pytest.fixture
def one_house(tmp_path: Path) -> Iterator[House]:
    """Over memory: for what no store makes a difference to."""
    yield from _opened("memory://")
