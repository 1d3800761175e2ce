"""Ghosts of a home-grown table are rescued, and nothing alive is touched, on each engine."""

from __future__ import annotations

import logging
import sqlite3
import threading
from typing import Any

import psycopg
import pytest

from holdfast.errors import UsageError
from holdfast.rescue import Map, sweep
from holdfast.rescue.judging import Known, examine
from holdfast.rescue.sweep import opened, rescue
from tests.rescue.conftest import MAP, THEN, Shop, run


def swept(shop: Shop, table: Map | dict[str, Any], **given: Any) -> Any:
    with shop.connect() as db:
        return sweep(db, table, **given)


def test_a_ghost_is_queued_again_and_a_living_row_is_left_alone(shop: Shop, table: Map) -> None:
    ghost, alive, renewed = shop.add(1), shop.add(2, ago_s=5), shop.add(3, seen_s=5)
    kept = shop.whole(alive), shop.whole(renewed)
    report = swept(shop, table)
    assert [row.finding.row.id for row in report.rescued] == [ghost]
    status, attempts, error = shop.row(ghost)
    assert (status, attempts) == ("queued", 1)
    assert "worker w1 was lost: no sign of life for 1 h" in error
    assert (shop.whole(alive), shop.whole(renewed)) == kept
    assert shop.journal() == [("1", "ready", "queued")]


def test_a_row_that_has_spent_its_attempts_is_dead(shop: Shop, table: Map) -> None:
    shop.add(1, attempts=1)
    shop.add(2, attempts=2)
    report = swept(shop, table)
    assert (report.count("ready"), report.count("dead")) == (1, 1)
    assert shop.row(1)[:2] == ("queued", 2)
    status, attempts, error = shop.row(2)
    assert (status, attempts) == ("failed", 3)
    assert "failed or crashed 3 times (attempts_max=3)" in error


def test_an_application_that_counts_at_the_start_is_not_charged_twice(shop: Shop) -> None:
    shop.add(1, attempts=2)
    shop.add(2, attempts=3)
    swept(shop, {**MAP, "attempts_counted": "at_start"})
    assert shop.row(1)[:2] == ("queued", 2)
    assert shop.row(2)[:2] == ("failed", 3)


@pytest.mark.parametrize(("on_crash", "status"), [("hold", "review"), ("fail", "failed")])
def test_on_crash_decides_as_it_does_for_jobs_of_holdfast(shop: Shop, on_crash: str, status: str) -> None:
    shop.add(1)
    swept(shop, {**MAP, "on_crash": on_crash, "held": "review"})
    assert shop.row(1)[0] == status


def test_the_most_attempts_may_be_a_column(shop: Shop) -> None:
    shop.run("ALTER TABLE jobs ADD COLUMN tries_max INTEGER")
    with shop.connect() as db:
        for number, most in ((1, 1), (2, 9)):
            then = THEN[shop.engine].format(3600)
            run(db, f"INSERT INTO jobs VALUES ({number}, 'running', 0, NULL, {then}, NULL, 'w1', {most})")
    swept(shop, {**MAP, "attempts_max": "tries_max"})
    assert (shop.row(1)[0], shop.row(2)[0]) == ("failed", "queued")


def test_a_dry_run_changes_nothing(shop: Shop, table: Map) -> None:
    shop.add(1)
    before = shop.whole(1)
    report = swept(shop, table, fix=False)
    assert len(report.ghosts) == 1
    assert report.rescued == []
    assert shop.whole(1) == before
    assert not shop.has_journal
    swept(shop, table)
    shop.add(2)
    before = shop.whole(2)
    swept(shop, table, fix=False)  # where the journal is there, too
    assert shop.whole(2) == before
    assert shop.journal() == [("1", "ready", "queued")]


def test_at_the_start_of_the_only_process_every_running_row_is_a_ghost(
    shop: Shop, table: Map, caplog: pytest.LogCaptureFixture
) -> None:
    shop.add(1, ago_s=1)
    shop.add(2, ago_s=1, attempts=2)
    with caplog.at_level(logging.INFO, "holdfast.rescue"):
        report = swept(shop, table, only_process=True)
    assert report.places == {"limit": 5, "taken": 2, "ghosts": 2, "freed": 2}
    assert (shop.row(1)[0], shop.row(2)[0]) == ("queued", "failed")
    assert "recovered 2 orphaned rows of jobs (1 run again, 0 held, 1 dead); 2 of 5 places" in caplog.text


def test_a_worker_sweeps_its_own_rows_and_no_others(shop: Shop, table: Map) -> None:
    shop.add(1, ago_s=1, worker="w1")
    shop.add(2, ago_s=1, worker="w2")
    swept(shop, table, worker="w1")
    assert (shop.row(1)[0], shop.row(2)[0]) == ("queued", "running")
    with pytest.raises(UsageError, match="needs the key worker"):
        swept(shop, {key: value for key, value in MAP.items() if key != "worker"}, worker="w1")


def test_a_table_without_the_optional_columns_is_rescued_too(shop: Shop) -> None:
    shop.add(1)
    shop.add(2, ago_s=5)
    swept(shop, {key: value for key, value in MAP.items() if key not in ("updated", "worker", "concurrency")})
    assert (shop.row(1)[0], shop.row(2)[0]) == ("queued", "running")


def test_columns_that_claim_a_row_are_cleared(shop: Shop) -> None:
    shop.add(1)
    swept(shop, {**MAP, "clear": ["locked_by", "seen_at"]})
    assert shop.run("SELECT locked_by, seen_at FROM jobs") == [(None, None)]


MOVES = {
    "it ended": "status = 'done'",
    "it was renewed": "seen_at = {now}",
    "it was started again": "started_at = {now}",
    "another worker took it": "locked_by = 'w9'",
    "its attempts were counted": "attempts = attempts + 1",
}


@pytest.mark.parametrize("how", MOVES)
def test_a_row_that_moved_after_it_was_read_is_not_touched(shop: Shop, table: Map, how: str) -> None:
    shop.add(1)
    with opened(shop.url) as database:
        [row] = database.running(table, 10)
        finding = examine(table, row, database.now(), Known())
        assert finding.rescue is not None
        database.make_journal(table)
        shop.run(f"UPDATE jobs SET {MOVES[how].format(now=THEN[shop.engine].format(0))} WHERE id = 1")
        moved = shop.whole(1)
        assert database.rescue(table, row, finding.rescue, database.now(), "a test") == "moved"
    assert shop.whole(1) == moved
    assert shop.journal() == []


def test_rescuers_and_late_workers_race_and_each_row_ends_once(shop: Shop, table: Map) -> None:
    """Workers that were taken for dead end their rows while two rescuers are at it: the first one wins."""
    numbers = [shop.add(number) for number in range(1, 61)]
    alive = [shop.add(number, ago_s=1) for number in range(61, 71)]
    kept = [shop.whole(number) for number in alive]
    start = threading.Barrier(4)
    errors: list[BaseException] = []

    def rescuer() -> None:
        try:
            with opened(shop.url) as database:
                start.wait(60)
                for _ in range(3):
                    rescue(database, table, Known(), fix=True)
        except BaseException as error:
            errors.append(error)

    def late_worker(mine: list[int]) -> None:
        try:
            with shop.connect() as db:
                start.wait(60)
                for number in mine:
                    run(db, f"UPDATE jobs SET status = 'done' WHERE id = {number} AND status = 'running'")
        except BaseException as error:
            errors.append(error)

    rescue_first = [threading.Thread(target=rescuer) for _ in range(2)]
    workers = [threading.Thread(target=late_worker, args=(part,)) for part in (numbers[:29:-2], numbers[-2:29:-2])]
    for thread in (*rescue_first, *workers):
        thread.start()
    for thread in (*rescue_first, *workers):
        thread.join(120)
    assert errors == []
    rescued = [int(job) for job, *_ in shop.journal()]
    assert len(rescued) == len(set(rescued))
    for number in numbers:
        status, attempts, _ = shop.row(number)
        assert (status, attempts) == (("queued", 1) if number in rescued else ("done", 0))
    assert [shop.whole(number) for number in alive] == kept


def test_a_row_that_cannot_be_read_is_explained_and_the_others_are_rescued(shop: Shop, table: Map) -> None:
    shop.add(1)
    shop.add(2)
    shop.run("UPDATE jobs SET started_at = NULL WHERE id = 1")
    report = swept(shop, table)
    why = {row.finding.row.id: (row.outcome, row.finding.why) for row in report.rows}
    assert why[1] == ("alive", "started_at is empty, so its age is not known")
    assert why[2][0] == "rescued"


def test_names_with_quotes_and_percent_signs_are_only_names(shop: Shop) -> None:
    wild = 'a"; DROP TABLE jobs; -- %s' if shop.engine != "mysql" else 'a"; DROP TABLE jobs; -- :s'
    quote = "`" if shop.engine == "mysql" else '"'
    name = quote + wild.replace(quote, quote * 2) + quote
    shop.add(1)
    with shop.connect() as db:
        if isinstance(db, sqlite3.Connection | psycopg.Connection):
            db.execute(f"ALTER TABLE jobs RENAME COLUMN last_error TO {name}")  # type: ignore[arg-type]
        else:
            db.exec_driver_sql(f"ALTER TABLE jobs RENAME COLUMN last_error TO {name}")
            db.commit()
    report = swept(shop, {**MAP, "error": wild})
    assert [row.outcome for row in report.rows] == ["rescued"]
    assert shop.run("SELECT status FROM jobs") == [("queued",)]


def test_a_map_that_does_not_fit_the_table_is_refused(shop: Shop) -> None:
    with pytest.raises(UsageError, match="started = 'begun_at', but jobs has the columns id, status"):
        swept(shop, {**MAP, "started": "begun_at"})
    with pytest.raises(UsageError, match="there is no table 'tasks'"):
        swept(shop, {**MAP, "table": "tasks"})


def test_a_connection_inside_a_transaction_is_refused(shop: Shop, table: Map) -> None:
    shop.add(1)
    with shop.connect() as db:
        if shop.engine == "postgres":
            db.autocommit = False
        if shop.engine == "mysql":
            db.begin()
        else:
            db.execute("BEGIN" if shop.engine == "sqlite" else "SELECT 1")
        with pytest.raises(UsageError, match="open transaction"):
            sweep(db, table)
        db.rollback()
