"""The houses of the worker tests, and a table of the user's own in the same database."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.worker.conftest import _quick_start, shared_house
from tests.worker.house import House

__all__ = ["_quick_start", "shared_house"]


@pytest.fixture
def effects(shared_house: House, tmp_path: Path) -> Iterator[Any]:
    """The table, as somebody else sees it."""
    if shared_house.app.url.startswith("sqlite"):
        path = tmp_path / "jobs.db"
        connection: Any = sqlite3.connect(path, isolation_level=None, timeout=60, check_same_thread=False)
    else:
        connection = psycopg.connect(shared_house.app.url, autocommit=True)
        connection.execute("DROP TABLE IF EXISTS effect")
    shared_house.app.counts()
    connection.execute("CREATE TABLE effect (job VARCHAR(64) PRIMARY KEY, fence INTEGER, at TIMESTAMP WITH TIME ZONE)")
    yield connection
    connection.execute("DROP TABLE effect")
    connection.close()


def seen(effects: Any) -> list[Any]:
    return [tuple(row) for row in effects.execute("SELECT job, fence FROM effect ORDER BY job")]
