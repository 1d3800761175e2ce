"""holdfast doctor on PostgreSQL: each finding about the server can be made to appear, and says what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from holdfast.insight.database import of_the_database
from holdfast.stores.postgres.condition import Condition
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing import FakeClock
from tests.factory import enrol


@pytest.fixture
def store(postgres: str, clock: FakeClock) -> Iterator[PostgresStore]:
    opened = PostgresStore(postgres, clock=clock)
    opened.migrate()
    yield opened
    opened.close()


@pytest.fixture
def good(store: PostgresStore) -> Condition:
    """A server as it should be: the real one, but for what the tests' own switches off for speed."""
    return replace(
        store.condition(), fsync=True, full_page_writes=True, synchronous_commit="on", oldest_transaction_s=None
    )


def titles(store: PostgresStore, found: Condition) -> dict[str, str]:
    return {each.title: each.severity for each in of_the_database(store, found)}


def test_a_good_server_has_nothing_but_good_findings(store: PostgresStore, good: Condition) -> None:
    assert set(titles(store, good).values()) == {"ok"}
    assert (good.schema, good.takes_writes, good.unlocked) == ("holdfast", True, 0)
    assert good.connections_max > good.connections > 0


@pytest.mark.parametrize(
    ("change", "title", "severity"),
    [
        ({"fsync": False}, "The server does not keep what it says", "problem"),
        ({"full_page_writes": False}, "The server does not keep what it says", "problem"),
        ({"synchronous_commit": "off"}, "What was acknowledged may be lost", "warning"),
        ({"takes_writes": False}, "The server takes no writes", "problem"),
        ({"connections": 95, "connections_max": 100}, "The server is running out of connections", "warning"),
        ({"notify_share": 0.6}, "Notifications pile up", "warning"),
        ({"oldest_transaction_s": 301.0}, "An old transaction keeps dead rows", "warning"),
        ({"autovacuum": False}, "Nobody cleans up", "problem"),
        ({"dead_rows": 1_000_001, "live_rows": 10}, "Dead rows pile up", "warning"),
        ({"events": 50_000_001}, "The journal is long", "warning"),
        ({"unlocked": 2}, "Workers without a liveness lock", "warning"),
    ],
)
def test_each_finding_has_its_fact(
    store: PostgresStore, good: Condition, change: dict[str, Any], title: str, severity: str
) -> None:
    assert titles(store, replace(good, **change))[title] == severity


def test_an_old_transaction_of_somebody_else_is_seen(store: PostgresStore, postgres: str) -> None:
    with psycopg.connect(postgres) as somebody:
        somebody.execute("SELECT 1")
        age = store.condition().oldest_transaction_s
    assert age is not None
    assert age > 0


def test_a_job_without_its_worker_is_damage(store: PostgresStore, good: Condition, postgres: str) -> None:
    from tests.factory import start

    job = start(store, enrol(store))
    with psycopg.connect(postgres, autocommit=True) as somebody:
        somebody.execute("DELETE FROM holdfast.worker")
    assert titles(store, good)["The tables contradict each other"] == "problem"
    assert job.id in store.check()[0]


def test_the_command_says_it_and_exits_7(postgres: str, store: PostgresStore) -> None:
    """The tests' own server has fsync off, which is exactly what a doctor must not overlook."""
    command = [sys.executable, "-m", "holdfast", "doctor", "--json", "--db", postgres]
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    found = {each["title"]: each for each in json.loads(done.stdout)["findings"]}
    if store.condition().fsync:
        pytest.fail("this server is durable: let HOLDFAST_TEST_POSTGRES name one for tests, with fsync = off")
    assert (done.returncode, found["The server does not keep what it says"]["severity"]) == (7, "problem")
