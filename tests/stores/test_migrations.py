"""Migrations: which programs may go on, in pieces, killed and repeated."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.clock import Clock
from holdfast.core.machine import State
from holdfast.core.verdict import Succeeded
from holdfast.errors import SchemaMismatch, StoreError, StoreTimeout, StoreUnavailable
from holdfast.stores import open_store
from holdfast.stores.postgres import store as postgres
from holdfast.stores.protocol import Reply, Store
from holdfast.stores.sql import Migration, MigrationProgress, Pages, Piece, load_migrations, migrate_by, parse_migration
from holdfast.stores.sqlite import store as sqlite
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import FakeClock
from tests.factory import add, claim, enrol, row, settle, start
from tests.servers import PostgresServer

MODULES: dict[str, Any] = {"sqlite": sqlite, "postgres": postgres}
# The migrations of the first store that people had, and their text in one number: what is landed never changes.
LANDED = {
    "holdfast.stores.sqlite": (8, "dfaa294c90d5d1c0544602d7a06a4873ccb6b7b834846769094f0154b9ac0170"),
    "holdfast.stores.postgres": (9, "3c7faa985909eb18f8c6ee1089e620db5d809425ef1e238523de2cbfbb121507"),
}


# ------------------------------------------------------------------------------------------ the format


@pytest.mark.parametrize("package", LANDED)
def test_a_landed_migration_never_changes(package: str) -> None:
    last, text = LANDED[package]
    files = sorted((resources.files(package) / "migrations").iterdir(), key=lambda file: file.name)
    texts = [file.read_bytes() for file in files if file.name.endswith(".sql")][:last]
    assert hashlib.sha256(b"".join(texts)).hexdigest() == text


@pytest.mark.parametrize("package", LANDED)
def test_every_new_migration_names_the_programs_that_may_go_on(package: str) -> None:
    last, _ = LANDED[package]
    folder = resources.files(package) / "migrations"
    newer = {file.name: file.read_text() for file in folder.iterdir() if file.name[:4].isdigit()}
    for name, text in newer.items():
        assert int(name[:4]) <= last or text.startswith("-- works with: "), name
    migrations = load_migrations(package)[last - 1 :]
    for before, after in pairwise(migrations):
        assert before.works_with <= after.works_with <= after.number, "who may not work any more never may again"


def test_a_migration_is_cut_into_pieces_and_pages() -> None:
    text = "-- works with: 3\n-- Why.\nA;\n\n-- pages of job\nB;\n-- piece\nC;\n"
    pieces = (Piece("-- works with: 3\n-- Why.\nA;\n\n"), Piece("\nB;\n", "job"), Piece("\nC;\n"))
    assert parse_migration(5, text) == Migration(5, 3, pieces)


def test_a_migration_that_names_nobody_works_with_nobody_older() -> None:
    assert parse_migration(5, "A;") == Migration(5, 5, (Piece("A;"),))


def test_pages_end_with_the_last_row() -> None:
    assert MigrationProgress(1).page(None, is_full=False) == (0, MigrationProgress(2))
    assert MigrationProgress(1).page(7_000_000, is_full=True) == (7_000_000, MigrationProgress(1, 7_000_000))
    assert MigrationProgress(1, 7_000_000).page(7_000_001, is_full=False) == (7_000_001, MigrationProgress(2))
    assert MigrationProgress(1, 7_000_000).page(None, is_full=False) == (7_000_000, MigrationProgress(2))


def test_a_page_that_takes_too_long_is_repeated_in_halves() -> None:
    sizes: list[int] = []

    def step(pages: Pages) -> float | None:
        sizes.append(pages.size)
        pages.tried = True
        if pages.size > 1_300:
            raise StoreTimeout("the server stopped it")
        return None if len(sizes) > 3 else 0.0

    migrate_by(step)
    assert sizes == [5_000, 2_500, 1_250, 1_250]


def test_what_takes_too_long_and_is_not_a_page_is_not_repeated() -> None:
    tries: list[Pages] = []

    def step(pages: Pages) -> float | None:
        tries.append(pages)
        raise StoreTimeout("the server stopped it")

    with pytest.raises(StoreTimeout):
        migrate_by(step)
    assert len(tries) == 1


# ------------------------------------------------------------------------------- which programs may go on

COLUMN = {
    "sqlite": "-- works with: 8\nALTER TABLE holdfast_job ADD COLUMN more INTEGER NOT NULL DEFAULT 0;",
    "postgres": "-- works with: 9\nALTER TABLE {schema}.job ADD COLUMN more integer NOT NULL DEFAULT 0;",
}
TABLE = {"sqlite": "CREATE TABLE holdfast_new (x);", "postgres": "CREATE TABLE {schema}.new (x integer);"}
SHUT = {kind: f"-- works with: {len(MODULES[kind]._MIGRATIONS) + 1}\n{TABLE[kind]}" for kind in MODULES}


@pytest.fixture(params=MODULES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(kind: str, tmp_path: Path, schema: str, request: pytest.FixtureRequest) -> str:
    if kind == "postgres":
        server: PostgresServer = request.getfixturevalue("server")
        return f"{server.url}?schema={schema}"
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url, clock=FakeClock())
    opened.migrate()
    yield opened
    opened.close()


def newer(url: str, texts: dict[str, str], monkeypatch: pytest.MonkeyPatch, clock: Clock | None = None) -> None:
    """Let a newer program migrate the store."""
    kind = url.partition(":")[0].replace("postgresql", "postgres")
    with monkeypatch.context() as later, closing(open_store(url, clock=clock or FakeClock())) as opened:
        later.setattr(MODULES[kind], "_MIGRATIONS", with_another(kind, texts))
        opened.migrate()


def with_another(kind: str, texts: dict[str, str]) -> list[Migration]:
    migrations = MODULES[kind]._MIGRATIONS
    return [*migrations, parse_migration(len(migrations) + 1, texts[kind])]


def test_an_older_program_starts_and_works_on_a_schema_that_only_has_more_in_it(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer(url, COLUMN, monkeypatch)
    schema = store.migrate()
    assert schema.found == schema.wanted + 1
    job = add(store)
    assert [each.id for each in claim(store, enrol(store))] == [job.id]


def test_an_older_program_cannot_start_on_a_schema_that_is_not_for_it(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer(url, TABLE, monkeypatch)
    with pytest.raises(SchemaMismatch, match="upgrade"):
        store.migrate()
    with pytest.raises(SchemaMismatch, match="upgrade"):
        enrol(store)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration that has to wait says so at once."""
    monkeypatch.setattr("holdfast.stores.sql.WAIT_S", 0.0)
    monkeypatch.setattr("holdfast.stores.sql.RETRY_S", 0.0)


@pytest.mark.usefixtures("impatient")
def test_older_workers_claim_nothing_and_settle_what_they_run_before_a_migration_shuts_them_out(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = enrol(store, name="old")
    job = start(store, worker)
    waiting = add(store)
    settle(store, start(store, worker), Succeeded())  # what has ended is not waited for
    with pytest.raises(StoreUnavailable, match=r"older version: old \(1\)"):
        newer(url, SHUT, monkeypatch)
    assert store.schema().is_too_new
    with pytest.raises(StoreError, match="too old"):
        claim(store, worker)
    assert settle(store, job, Succeeded()) is Reply.ACCEPTED
    newer(url, SHUT, monkeypatch)
    assert store.schema().found == store.schema().wanted + 1
    [gone] = store.workers(gone=True)
    assert gone.gone_at is not None
    assert row(store, waiting.id).state is State.READY
    with pytest.raises(SchemaMismatch):
        enrol(store)


@pytest.mark.usefixtures("impatient")
def test_a_lease_that_has_run_out_does_not_hold_a_migration_up(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = start(store, enrol(store, name="dead"))
    clock = FakeClock()
    clock.advance(job.lease_s + 1)
    newer(url, SHUT, monkeypatch, clock)
    assert store.schema().is_too_new


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_is_gone_does_not_hold_a_migration_up_and_keeps_its_cause(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = enrol(store, name="gone")
    start(store, worker)
    store.retire(worker, "killed")
    newer(url, SHUT, monkeypatch)
    [gone] = store.workers(gone=True)
    assert gone.gone_cause == "killed"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_worker_of_another_boot_does_not_hold_a_migration_up(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(store, enrol(store, name="before the restart", boot_id="another"))
    newer(url, SHUT, monkeypatch)
    assert store.schema().is_too_new


@pytest.mark.usefixtures("impatient")
def test_workers_of_the_new_version_claim_while_and_after_older_ones_are_shut_out(
    kind: str, url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = enrol(store, name="old")
    held_up = start(store, old)
    job = add(store)
    with pytest.raises(StoreUnavailable, match=r"older version: old \(1\)"):
        newer(url, SHUT, monkeypatch)
    monkeypatch.setattr(MODULES[kind], "_MIGRATIONS", with_another(kind, SHUT))
    new = enrol(store, name="new")
    assert [each.id for each in claim(store, new)] == [job.id]
    settle(store, held_up, Succeeded())
    store.migrate()
    assert [worker.name for worker in store.workers()] == ["new"]
    assert triggers(kind, url) == [], "a claim costs what it did before"
    later = add(store)
    assert [each.id for each in claim(store, new)] == [later.id]


def triggers(kind: str, url: str) -> list[tuple[Any, ...]]:
    """Return the triggers that look at claims."""
    if kind == "sqlite":
        asked = "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'holdfast_job'"
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            return file.execute(asked).fetchall()
    server, _, schema = url.partition("?schema=")
    with psycopg.connect(server) as db:
        return db.execute(
            "SELECT tgname FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND tgname LIKE '%%too_old'",
            [f"{schema}.job"],
        ).fetchall()


# ------------------------------------------------------------------------------------------- in pieces

PIECES = """-- works with: 8
ALTER TABLE holdfast_job ADD COLUMN twice INTEGER NOT NULL DEFAULT 0;
-- pages of job
UPDATE holdfast_job SET twice = twice + 2 * seq WHERE seq > :after AND seq <= :upto;
-- piece
CREATE TABLE holdfast_new (x);
"""


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_migration_that_stops_anywhere_goes_on_where_it_stood(
    url: str, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.stores.sql.PAGE", 3)
    for _ in range(10):
        add(store)
    transactions = 0

    def stop(name: str) -> None:
        nonlocal transactions
        if name == "migrate.middle":
            transactions += 1
            if transactions % 2:  # before every commit once
                raise RuntimeError("stopped")

    monkeypatch.setattr("holdfast.stores.sql.point", stop)
    for _ in range(6):
        with pytest.raises(RuntimeError, match="stopped"):
            newer(url, BY_PAGES, monkeypatch)
    newer(url, BY_PAGES, monkeypatch)
    assert transactions == 2 * 6  # the column, four pages, the table
    with store._db.reading() as db:
        assert all(seq * 2 == twice for seq, twice in db.execute("SELECT seq, twice FROM holdfast_job"))
        assert db.execute("SELECT count(*) FROM holdfast_migration").fetchone() == (0,)
    assert store.schema().found == store.schema().wanted + 1


# ------------------------------------------------------------------------------------- killed, on every store

BY_PAGES = {
    "sqlite": PIECES,
    "postgres": """-- works with: 9
ALTER TABLE {schema}.job ADD COLUMN twice bigint NOT NULL DEFAULT 0;
-- pages of job
UPDATE {schema}.job SET twice = twice + 2 * seq
WHERE state IN ('ready', 'running', 'waiting', 'held', 'done', 'dead', 'cancelled', 'rolled_back')
    AND seq > %(after)s AND seq <= %(upto)s;
-- piece
CREATE TABLE {schema}.new (x integer);
""",
}
MIGRATE = """
import sys
from importlib import import_module
from holdfast.stores import open_store, sql
kind, url, text = sys.argv[1:]
sql.PAGE = 3
migrations = import_module(f"holdfast.stores.{kind}.store")._MIGRATIONS
migrations.append(sql.parse_migration(len(migrations) + 1, text))
store = open_store(url)
store.migrate()
store.close()
"""


def test_a_migration_by_pages_of_rows_that_is_killed_goes_on_where_it_stood(
    kind: str, url: str, schema: str, request: pytest.FixtureRequest
) -> None:
    server: PostgresServer | None = request.getfixturevalue("server") if kind == "postgres" else None

    def execute(statement: str) -> list[tuple[Any, ...]]:
        if server is not None:
            return server.execute(statement.replace("holdfast_", f"{schema}."))
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as db:
            return db.execute(statement).fetchall()

    with closing(open_store(url)) as store:
        store.migrate()
        for number in range(1, 11):  # far apart, as after a purge
            job = add(store)
            if server is None:
                execute(f"UPDATE holdfast_job SET seq = {100 * number} WHERE id = '{job.id}'")
            else:
                execute(f"SELECT setval(pg_get_serial_sequence('{schema}.job', 'seq'), {100 * number})")
    kills, env = 0, {**os.environ, "HOLDFAST_POINT": "migrate.middle=kill:2"}  # one step further each time
    command = [sys.executable, "-c", MIGRATE, kind, url, BY_PAGES[kind]]
    while (done := subprocess.run(command, env=env, capture_output=True, text=True, check=False)).returncode:
        assert done.returncode == -9, done.stderr
        kills += 1
        assert kills < 6, "the column, four pages, the table"
    assert kills == 5
    rows = execute("SELECT seq, twice FROM holdfast_job ORDER BY seq")
    assert len(rows) == 10
    assert rows[-1][0] > 900
    assert all(twice == 2 * seq for seq, twice in rows), "each row once"
    assert execute("SELECT count(*) FROM holdfast_migration") == [(0,)]
