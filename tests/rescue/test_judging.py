"""Which rows are ghosts, and what the map must say. No database."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast.errors import UsageError
from holdfast.rescue import Map
from holdfast.rescue.judging import Finding, Known, Row, examine, instant
from holdfast.rescue.quoting import NAME_MAX, quoted, quoted_table
from tests.rescue.conftest import MAP

NOW = 1_790_000_000.0


def row(**given: Any) -> Row:
    values = {"id": 1, "status": "running", "started": NOW - 3600, "worker": "w1", "attempts": 0}
    return Row(**{**dict.fromkeys(Row._fields), **values, **given})


def seen(known: Known | None = None, table: Map | None = None, **given: Any) -> Finding:
    return examine(table or Map(**MAP), row(**given), NOW, known or Known())


@pytest.mark.parametrize(("age_s", "is_ghost"), [(59, False), (60, False), (60.5, True), (-3, False), (-4000, False)])
def test_a_row_is_a_ghost_after_its_bound_and_not_before(age_s: float, is_ghost: bool) -> None:
    assert (seen(started=NOW - age_s).rescue is not None) is is_ghost


def test_the_newest_sign_of_life_counts() -> None:
    assert seen(started=NOW - 3600, updated=NOW - 5).rescue is None
    assert seen(started=NOW - 5, updated=NOW - 3600).rescue is None  # that of an earlier run


@pytest.mark.parametrize("never", [0, "0", "0001-01-01 00:00:00", datetime(1970, 1, 1)])
def test_a_worker_that_has_not_renewed_yet_is_judged_by_its_start(never: object) -> None:
    assert seen(updated=never).rescue is not None
    assert seen(updated=never, started=NOW - 5).rescue is None


def test_a_row_without_an_id_is_left_alone() -> None:
    assert seen(id=None).why == "id is empty"
    assert seen(Known(only_process=True), id=None).rescue is None


def test_a_time_in_the_future_is_explained_by_its_zone() -> None:
    assert seen(started=NOW + 7200).why == "seen_at is 2 h in the future: check time_zone"


@pytest.mark.parametrize(
    ("value", "at"),
    [
        (NOW, NOW),
        (NOW * 1e3, NOW),
        (int(NOW * 1e6), NOW),
        (str(NOW), NOW),
        ("2026-11-19 20:00:00", 1795118400.0),
        ("2026-11-19T21:00:00+01:00", 1795118400.0),
        (datetime(2026, 11, 19, 20, tzinfo=UTC), 1795118400.0),
    ],
)
def test_times_are_read_as_programs_write_them(value: object, at: float) -> None:
    assert instant(value, ZoneInfo("UTC"), "t") == at


@pytest.mark.parametrize("value", [2_460_000.5, 0, "soon", b"\x00", True, 86_400 * 3])
def test_a_value_that_may_not_be_a_time_makes_no_ghost(value: object) -> None:
    """The Julian days of SQLite, for one, would be fifty years ago."""
    assert isinstance(instant(value, ZoneInfo("UTC"), "t"), str)
    assert seen(started=value).rescue is None


def test_a_time_without_a_zone_needs_one_in_the_map() -> None:
    table = Map(**{**MAP, "time_zone": None})
    finding = seen(table=table, started="2026-09-01 00:00:00")
    assert finding.rescue is None
    assert "add to the map" in finding.why
    assert seen(Known(only_process=True), table, started="2026-09-01 00:00:00").rescue is not None


@pytest.mark.parametrize("attempts", ["three", 1.5, True])
def test_attempts_that_are_not_a_number_are_explained(attempts: object) -> None:
    finding = seen(attempts=attempts)
    assert finding.rescue is None
    assert "not a whole number" in finding.why


def test_a_name_is_quoted_whatever_it_holds() -> None:
    assert quoted('a"b') == '"a""b"'
    assert quoted_table("app.jobs") == '"app"."jobs"'
    for wrong in ("", "a\0b", "x" * (NAME_MAX + 1)):
        with pytest.raises(UsageError, match="cannot be the name"):
            quoted(wrong)
    with pytest.raises(UsageError, match="cannot be the name"):
        quoted_table("app.")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("ready", "running", "would stay a running one"),
        ("stale_after_s", 0, "seconds above 0"),
        ("stale_after_s", True, "seconds above 0"),
        ("attempts_max", 0, "from 1 to"),
        ("on_crash", "rollback", "choose one of 'retry', 'hold', 'fail'"),
        ("on_crash", "hold", "needs held"),
        ("attempts_counted", "never", "choose one of"),
        ("time_zone", "Berlin", "is not a time zone"),
        ("concurrency", 0, "at once"),
        ("clear", "locked_by", "must be a list"),
        ("clear", ["status"], "which a rescue writes"),
        ("status", "", "must be the name"),
        ("dead", "", "a text or a number"),
        ("worke", "x", "did you mean 'worker'"),
    ],
)
def test_a_wrong_map_says_what_to_write(key: str, value: object, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Map.of({**MAP, key: value})


def test_a_map_file_that_is_wrong_names_itself(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    with pytest.raises(UsageError, match="cannot be read"):
        Map.read(path)
    path.write_text("table = ")
    with pytest.raises(UsageError, match="is not TOML"):
        Map.read(path)
    path.write_text('table = "jobs"\nid = "id"\n')
    with pytest.raises(UsageError, match=r"lacks status, running, ready.*rescue init"):
        Map.read(path)
