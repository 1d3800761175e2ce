"""Rescue against tables, rows and maps that want to make it fail, on each engine."""

from __future__ import annotations

import importlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
import sqlalchemy

from holdfast.errors import StoreUnavailable, UsageError
from holdfast.rescue import Map, sweep
from holdfast.rescue.judging import Known, examine, instant
from holdfast.rescue.sweep import opened, rescue
from holdfast.rescue.tables import LOCK_S, SqliteTable
from tests.rescue.conftest import ENGINES, MAP, Shop, run
from tests.rescue.test_judging import seen

SWEEP = importlib.import_module("holdfast.rescue.sweep")  # the package gives the function of this name


def outcomes(report: Any) -> dict[Any, str]:
    return {row.finding.row.id: row.outcome for row in report.rows}


def swept(shop: Shop, table: Map | dict[str, Any], **given: Any) -> Any:
    with shop.connect() as db:
        return sweep(db, table, **given)


def test_two_rows_of_one_id_are_both_left_alone(shop: Shop) -> None:
    """The id of a table whose key has two columns names no single row."""
    shop.run(
        "CREATE TABLE parts (tenant INTEGER, nr INTEGER, status VARCHAR(20), attempts INTEGER, error TEXT, "
        "at DOUBLE PRECISION, PRIMARY KEY (tenant, nr))"
    )
    try:
        shop.run(
            "INSERT INTO parts VALUES (1, 7, 'running', 0, NULL, 1700000000), (2, 7, 'running', 0, NULL, 1700000000)"
        )
        table = {**MAP, "table": "parts", "id": "nr", "error": "error", "started": "at"}
        for key in ("updated", "worker"):
            del table[key]
        report = swept(shop, table)
        assert shop.run("SELECT status, attempts FROM parts") == [("running", 0)] * 2
        assert [row.outcome for row in report.rows] == ["failed", "failed"]
        assert "2 rows have the id 7" in str(report.rows[0].error)
        assert shop.journal() == []
    finally:
        shop.run("DROP TABLE parts")


@pytest.mark.parametrize(
    "value",
    [
        float("inf"),
        float("nan"),
        1e300,
        "inf",
        "9e999",
        10**30,
        "0001-01-01 00:00:00",
        "2026-09-01",
        "20260901",
        datetime(1, 1, 1),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59),
    ],
)
def test_a_time_that_cannot_be_one_makes_no_ghost(value: object) -> None:
    assert seen(started=value).rescue is None


def test_a_clock_that_is_set_back_makes_no_living_row_an_hour_old() -> None:
    """On the last Sunday of October 2:30 comes twice in Berlin; the row may have begun the second time."""
    second = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    assert instant("2026-10-25 02:30:00", ZoneInfo("Europe/Berlin"), "t") == second.timestamp()


@pytest.mark.parametrize("wild", ["infinity", "-infinity"])
@pytest.mark.parametrize("shop", ["postgres"], indirect=True)
def test_an_infinite_time_stops_no_other_row(shop: Shop, table: Map, wild: str) -> None:
    shop.add(1)
    shop.add(2)
    shop.run(f"UPDATE jobs SET started_at = '{wild}' WHERE id = 1")
    assert outcomes(swept(shop, table)) == {1: "alive", 2: "rescued"}


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_a_text_that_is_not_utf8_stops_no_other_row(shop: Shop, table: Map) -> None:
    shop.add(1)
    shop.add(2)
    shop.add(3)
    shop.run("UPDATE jobs SET locked_by = CAST(x'ff41' AS TEXT) WHERE id = 1")
    shop.run("UPDATE jobs SET started_at = CAST(x'ff41' AS TEXT) WHERE id = 3")
    found = outcomes(swept(shop, table))
    assert found[2] == "rescued"
    assert found[3] == "alive"


@pytest.mark.parametrize("shop", ["postgres"], indirect=True)
def test_a_role_without_the_right_to_make_tables_uses_a_journal_that_is_there(shop: Shop, table: Map) -> None:
    shop.add(1)
    swept(shop, table)
    shop.add(2)
    shop.run("CREATE ROLE guest LOGIN")
    try:
        shop.run("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        shop.run("GRANT SELECT, UPDATE ON jobs TO guest")
        shop.run("GRANT INSERT ON holdfast_rescues TO guest")
        with psycopg.connect(shop.url.replace("holdfast@", "guest@"), autocommit=True) as db:
            report = sweep(db, table)
        assert outcomes(report) == {2: "rescued"}
    finally:
        shop.run("DROP OWNED BY guest; DROP ROLE guest")


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_connection_of_sqlalchemy_sweeps_each_engine(engine: str, tmp_path: Path, request: Any, table: Map) -> None:
    url = f"sqlite:///{tmp_path}/shop.db" if engine == "sqlite" else request.getfixturevalue("shop_server")
    shop = Shop(engine, url)
    shop.add(1)
    shop.add(2, ago_s=1)
    made = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with made.connect() as db:
            report = sweep(db, table)
    finally:
        made.dispose()
    assert outcomes(report) == {1: "rescued", 2: "alive"}
    assert shop.row(1)[:2] == ("queued", 1)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"error": "status"}, "both"),
        ({"attempts": "id"}, "both"),
        ({"worker": "last_error"}, "both"),
        ({"attempts_max": "attempts"}, "both"),
        ({"journal": "jobs"}, "journal"),
        ({"dead": "queued"}, "for ever"),
        ({"running": 1, "ready": "1"}, "would stay"),
        ({"clear": ["seen_at", "seen_at"]}, "twice"),
    ],
)
def test_a_map_that_would_spoil_rows_is_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Map(**{**MAP, **more})


def test_a_pass_waits_once_for_locked_rows_and_rescues_the_others(
    shop: Shop, table: Map, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 5):
        shop.add(number)
    waits: list[float] = []
    with shop.connect() as db, opened(shop.url) as database:
        database.make_journal(table)
        write = database.rescue
        monkeypatch.setattr(database, "rescue", lambda *given: waits.append(given[-1]) or write(*given))
        if shop.engine == "sqlite":
            run(db, "BEGIN IMMEDIATE")  # its only lock is one of the whole file
        elif shop.engine == "postgres":
            db.autocommit = False
            for number in (1, 2, 3):
                db.execute(f"SELECT * FROM jobs WHERE id = {number} FOR UPDATE")
        else:
            for number in (1, 2, 3):  # one by one: a scan of a small table would lock all of it
                db.exec_driver_sql(f"SELECT * FROM jobs WHERE id = {number} FOR UPDATE")
        report = rescue(database, table, Known(), fix=True)
        db.rollback()
    free = "locked" if shop.engine == "sqlite" else "rescued"
    assert outcomes(report) == {1: "locked", 2: "locked", 3: "locked", 4: free}
    assert waits == [LOCK_S, 0.0, 0.0, 0.0]
    assert shop.row(1)[0] == "running"


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_a_connection_of_the_application_keeps_its_settings(shop: Shop, table: Map) -> None:
    shop.add(1)
    with shop.connect() as db:
        db.text_factory = bytes
        db.execute("PRAGMA busy_timeout = 1234")
        database = SqliteTable(db)
        [row] = database.running(table, 10)
        found = examine(table, row, database.now(), Known()).rescue
        assert found is not None
        database.make_journal(table)
        said: list[str] = []
        db.set_trace_callback(said.append)
        assert database.rescue(table, row, found, database.now(), "a test", wait_s=0.25) == "rescued"
        assert "PRAGMA busy_timeout = 250" in said
        assert db.execute("PRAGMA busy_timeout").fetchone() == (1234,)
        assert db.execute("SELECT status FROM jobs").fetchone() == (b"queued",)


@pytest.mark.parametrize("shop", ["postgres"], indirect=True)
def test_a_connection_that_is_lost_ends_the_pass(shop: Shop, table: Map) -> None:
    shop.add(1)
    with opened(shop.url) as database:
        [row] = database.running(table, 10)
        now = database.now()
        found = examine(table, row, now, Known()).rescue
        assert found is not None
        shop.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast rescue'")
        with pytest.raises(StoreUnavailable):
            database.rescue(table, row, found, now, "a test")


def test_every_row_of_the_only_process_is_taken_however_many_there_are(
    shop: Shop, table: Map, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SWEEP, "ROWS_MAX", 4)
    for number in range(1, 12):
        shop.add(number, ago_s=1)
    report = swept(shop, table, only_process=True)
    assert len(report.rescued) == 11


def test_rows_without_a_start_hide_no_others(shop: Shop, table: Map, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SWEEP, "ROWS_MAX", 4)
    for number in range(1, 9):
        shop.add(number)
    shop.run("UPDATE jobs SET started_at = NULL WHERE id < 7")
    assert {job for job, state in outcomes(swept(shop, table)).items() if state == "rescued"} == {7, 8}


@pytest.mark.parametrize("shop", [engine for engine in ENGINES if engine == "mysql"], indirect=True)
def test_mysql_timestamps_are_read_in_utc_whatever_the_session_says(shop: Shop) -> None:
    shop.run("DROP TABLE jobs")
    shop.run(
        "CREATE TABLE jobs (id INTEGER PRIMARY KEY, status VARCHAR(20), attempts INTEGER, last_error TEXT, "
        "started_at TIMESTAMP(6) NULL, seen_at TIMESTAMP NULL, locked_by VARCHAR(9))"
    )
    shop.run(
        "INSERT INTO jobs VALUES (1, 'running', 0, NULL, now(6), now(), 'w'), "
        "(2, 'running', 0, NULL, now(6) - interval 1 hour, NULL, 'w')"
    )
    assert outcomes(swept(shop, MAP)) == {1: "alive", 2: "rescued"}
    with opened(shop.url) as database:
        report = rescue(database, Map(**MAP), Known(), fix=True)
    assert outcomes(report) == {1: "alive"}
