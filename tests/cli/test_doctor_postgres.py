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

from holdfast.errors import StoreError, StoreLocked, StoreTimeout, StoreUnavailable
from holdfast.insight.diagnosis import diagnose
from holdfast.insight.postgres_findings import of_the_database
from holdfast.insight.store_findings import to_be_read, to_take_writes
from holdfast.stores.postgres.facts import PostgresFacts
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
def good(store: PostgresStore) -> PostgresFacts:
    """A server as it should be: the real one, but for what the tests' own switches off for speed."""
    return replace(
        store.condition(), fsync=True, full_page_writes=True, synchronous_commit="on", oldest_transaction_s=None
    )


def titles(store: PostgresStore, found: PostgresFacts) -> dict[str, str]:
    return {each.title: each.severity for each in of_the_database(store, found)}


def test_a_good_server_has_nothing_but_good_findings(store: PostgresStore, good: PostgresFacts) -> None:
    assert set(titles(store, good).values()) == {"ok"}
    assert (good.schema, good.takes_writes, good.unlocked) == ("holdfast", True, 0)
    assert good.connections_max > good.connections > 0


@pytest.mark.parametrize(
    ("change", "title", "severity"),
    [
        ({"fsync": False}, "The server may lose committed jobs", "problem"),
        ({"full_page_writes": False}, "The server may lose committed jobs", "problem"),
        ({"synchronous_commit": "off"}, "Acknowledged jobs may be lost", "warning"),
        ({"takes_writes": False}, "The server takes no writes", "problem"),
        ({"connections": 95, "connections_max": 100}, "The server is running out of connections", "warning"),
        ({"notify_share": 0.6}, "Notifications pile up", "warning"),
        ({"oldest_transaction_s": 301.0}, "An old transaction keeps dead rows", "warning"),
        ({"autovacuum": False}, "Dead rows are not cleaned up", "problem"),
        ({"dead_rows": 1_000_001, "live_rows": 10}, "Dead rows pile up", "warning"),
        ({"events": 50_000_001}, "The journal is long", "warning"),
        ({"unlocked": 2}, "Workers without a liveness lock", "warning"),
    ],
)
def test_each_finding_has_its_fact(
    store: PostgresStore, good: PostgresFacts, change: dict[str, Any], title: str, severity: str
) -> None:
    assert titles(store, replace(good, **change))[title] == severity


def test_an_old_transaction_of_another_program_is_reported(store: PostgresStore, postgres: str) -> None:
    with psycopg.connect(postgres) as somebody:
        somebody.execute("SELECT 1")
        age = store.condition().oldest_transaction_s
    assert age is not None
    assert age > 0


@pytest.fixture
def reader(store: PostgresStore, postgres: str) -> Iterator[PostgresStore]:
    """The same store, as a role that may read our tables, and no more."""
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("CREATE ROLE reader; GRANT USAGE ON SCHEMA holdfast TO reader")
        db.execute("GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO reader")
        opened = PostgresStore(f"{postgres}{'&' if '?' in postgres else '?'}options=-c%20role%3Dreader")
        yield opened
        opened.close()
        db.execute("DROP OWNED BY reader; DROP ROLE reader")


def test_an_ordinary_role_counts_all_sessions_and_says_what_it_cannot_see(
    reader: PostgresStore, postgres: str, good: PostgresFacts
) -> None:
    with psycopg.connect(postgres) as somebody:
        somebody.execute("SELECT 1")
        found = reader.condition()
        somebody.execute("GRANT pg_read_all_stats TO reader")
        somebody.commit()
        granted = reader.condition()
    assert found.connections >= found.hidden_sessions > 1
    assert (good.hidden_sessions, granted.hidden_sessions) == (0, 0)
    [finding] = [
        each for each in of_the_database(reader, found) if each.title == "Transactions of other users are hidden"
    ]
    assert finding.severity == "ok", "most users are ordinary ones: nothing is wrong"
    assert "GRANT pg_read_all_stats" in finding.evidence


def test_a_role_that_may_not_write_is_told_which_rights_it_needs(reader: PostgresStore, clock: FakeClock) -> None:
    [finding] = [each for each in diagnose(reader, clock) if each.title == "The store takes no writes"]
    assert "may not do that" in finding.evidence
    assert finding.fix is not None
    assert "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES" in finding.fix
    assert "fuser" not in finding.fix


def test_another_writer_that_holds_everything_up_is_found_in_the_server(store: PostgresStore) -> None:
    assert "pg_blocking_pids()" in to_take_writes(store, StoreUnavailable("no answer in time"))


def test_a_server_that_is_down_is_to_be_started() -> None:
    command = [sys.executable, "-m", "holdfast", "doctor", "--json", "--db", "postgresql://nobody@127.0.0.1:1/none"]
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    [finding] = json.loads(done.stdout)["findings"]
    assert done.returncode == 3
    assert finding["fix"].startswith("start the server")
    assert "refused. Is the server running" in finding["evidence"], "two lines of libpq are two sentences"


def test_a_job_without_its_worker_is_named(store: PostgresStore, good: PostgresFacts, postgres: str) -> None:
    from tests.factory import start

    job = start(store, enrol(store))
    with psycopg.connect(postgres, autocommit=True) as somebody:
        somebody.execute("DELETE FROM holdfast.worker")
    assert titles(store, good)["A running job has a worker without a row"] == "warning"
    assert job.id in store.check()[0]


def test_the_command_says_it_and_exits_7(postgres: str, store: PostgresStore) -> None:
    """The tests' own server has fsync off, which is exactly what a doctor must not overlook."""
    command = [sys.executable, "-m", "holdfast", "doctor", "--json", "--db", postgres]
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    found = {each["title"]: each for each in json.loads(done.stdout)["findings"]}
    if store.condition().fsync:
        pytest.fail("this server is durable: let HOLDFAST_TEST_POSTGRES name one for tests, with fsync = off")
    assert (done.returncode, found["The server may lose committed jobs"]["severity"]) == (7, "problem")


@pytest.mark.parametrize("error", [StoreLocked("locked"), StoreTimeout("too long")], ids=["locked", "timeout"])
def test_a_locked_store_is_not_reported_as_unreadable(error: StoreError) -> None:
    assert "pg_blocking_pids()" in to_be_read("postgresql://db/jobs", error)
