"""Find the ghosts of a table, judge them, and write what was decided, row by row."""

from __future__ import annotations

import getpass
import logging
import socket
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from holdfast.errors import BadURL, StoreMissing, StoreUnavailable, StoreUnsupported, UsageError
from holdfast.rescue.judging import Finding, Known, examine
from holdfast.rescue.map import Map
from holdfast.rescue.report import Report, Told
from holdfast.rescue.tables import LOCK_S, PostgresTable, SqliteTable, Table, check

log = logging.getLogger("holdfast.rescue")

ROWS_MAX = 10_000  # running rows that one look gives: those that began first
BUSY_S = 2.0  # how long SQLite waits for another writer


def sweep(
    connection: Any,
    map: Map | Mapping[str, Any] | str | Path,
    *,
    only_process: bool = False,
    worker: str | None = None,
    fix: bool = True,
) -> Report:
    """Rescue the rows of a jobs table whose worker died. Call it at the start, before the application accepts work.

    `map` is a `Map`, a mapping or the path of a TOML file. `connection` is one of sqlite3, psycopg or SQLAlchemy,
    without an open transaction; each rescued row is a transaction of its own. Rows past `stale_after_s` are rescued.
    With `only_process=True` every running row is: use it only where no other process runs jobs of this table. With
    `worker` so are the rows of that worker, whose name this process has taken over. With `fix=False` nothing is
    changed. Logs how many rows were recovered.
    """
    table = Map.of(map)
    if worker is not None and table.worker is None:
        raise UsageError(
            f"worker={worker!r} needs the key worker in the map: the column that names the worker of a row"
        )
    report = rescue(table_of(connection), table, Known(only_process, worker), fix=fix)
    tell(report)
    return report


def rescue(opened: Table, table: Map, known: Known, *, fix: bool) -> Report:
    """Examine the running rows. Without `fix` nothing is changed, and only the first `ROWS_MAX` are examined."""
    check(opened, table)
    now = opened.now()
    told: list[Told] = []
    while True:
        before = {str(each.finding.row.id) for each in told}
        rows = opened.running(table, ROWS_MAX)
        findings = [examine(table, row, now, known) for row in rows if str(row.id) not in before]
        if not told and fix and any(finding.rescue is not None for finding in findings):
            opened.make_journal(table)
        looked = list(_treated(opened, table, findings, now, fix))
        told += looked
        complete = len(rows) < ROWS_MAX
        if complete or not any(each.outcome == "rescued" for each in looked):
            return Report(table, now, tuple(told), fixed=fix, complete=complete)


def _treated(opened: Table, table: Map, findings: Sequence[Finding], now: float, fix: bool) -> Iterator[Told]:
    wait_s, by = LOCK_S, actor()
    for finding in findings:
        if finding.rescue is None:
            yield Told(finding, "alive")
        elif not fix:
            yield Told(finding, "found")
        else:
            told = _rescued(opened, table, finding, now, by, wait_s)
            wait_s = 0.0 if told.outcome == "locked" else wait_s  # a thousand locked rows must not take an hour
            yield told


def _rescued(opened: Table, table: Map, finding: Finding, now: float, by: str, wait_s: float) -> Told:
    assert finding.rescue is not None  # noqa: S101 - only ghosts come here
    try:
        return Told(finding, opened.rescue(table, finding.row, finding.rescue, now, by, wait_s))
    except StoreUnavailable:
        raise  # no other row can be written either
    except Exception as error:  # of any driver: one row that cannot be written must not keep the others
        words = " ".join(str(error).split())
        log.error("row %s of %s could not be rescued: %s", finding.row.id, table.table, words)
        return Told(finding, "failed", words)


def tell(report: Report) -> None:
    """Log what a pass has done."""
    table, places = report.map.table, report.places
    if not report.ghosts:
        log.info("no orphaned rows in %s", table)
        return
    limit = f" of {places['limit']}" if places["limit"] is not None else ""
    if report.fixed:
        log.warning(
            "recovered %d orphaned rows of %s (%d run again, %d held, %d dead); %d%s places are free again",
            *(len(report.rescued), table, *(report.count(state) for state in ("ready", "held", "dead"))),
            *(places["freed"], limit),
        )
    else:
        log.warning("found %d orphaned rows of %s; nothing was changed", len(report.ghosts), table)


def actor() -> str:
    """Return who rescues, for the journal."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user
        user = "?"
    return f"{user}@{socket.gethostname()}"


# ------------------------------------------------------------------------------------------- connections


def table_of(connection: Any) -> Table:
    """Return the table behind a connection of the caller's."""
    if made := _table_of_driver(connection):
        return made
    if "sqlalchemy" in sys.modules and isinstance(connection, sys.modules["sqlalchemy"].Connection):
        from holdfast.rescue.alchemy import AlchemyTable

        made = AlchemyTable(connection)  # refuses an open transaction
        return _table_of_driver(connection.connection.dbapi_connection) or made
    raise UsageError(
        f"connection={type(connection).__name__} is not a plain connection of sqlite3, psycopg or SQLAlchemy"
    )


def _table_of_driver(connection: Any) -> Table | None:
    if isinstance(connection, sqlite3.Connection):
        return SqliteTable(connection)
    if "psycopg" in sys.modules and isinstance(connection, sys.modules["psycopg"].Connection):
        return PostgresTable(connection)
    return None


@contextmanager
def opened(url: str) -> Iterator[Table]:
    """Open a connection to a database: sqlite:///jobs.db, postgresql://…, or mysql://… through SQLAlchemy."""
    scheme = url.partition(":")[0].partition("+")[0].lower()
    if scheme == "sqlite":
        with closing(_sqlite(url)) as connection:
            yield SqliteTable(connection)
    elif scheme in ("postgresql", "postgres"):
        with _postgres(url) as connection:
            yield PostgresTable(connection)
    elif scheme in ("mysql", "mariadb"):
        with _alchemy(url) as table:
            yield table
    else:
        raise BadURL("--url must be an address such as sqlite:///jobs.db, postgresql://user@host/database or mysql://…")


def _sqlite(url: str) -> sqlite3.Connection:
    head, _, path = url.partition(":///")
    if head.lower() != "sqlite" or not path:
        raise BadURL("write sqlite:///jobs.db for a relative path, sqlite:////var/lib/jobs.db for an absolute one")
    file = Path(unquote(path.partition("?")[0]))
    if not file.is_file():
        raise StoreMissing(f"there is no file {file}")
    try:
        return sqlite3.connect(file, timeout=BUSY_S, isolation_level=None)
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{file} cannot be opened: {error}") from error


def _postgres(url: str) -> Any:
    try:
        import psycopg
    except ModuleNotFoundError:
        raise StoreUnsupported("install the PostgreSQL driver: pip install 'psycopg[binary]>=3.2'") from None
    try:
        return psycopg.connect(url, autocommit=True, connect_timeout=10, application_name="holdfast rescue")
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"PostgreSQL cannot be reached: {' '.join(str(error).split())}") from error
    except psycopg.Error as error:
        raise BadURL(f"--url cannot be read: {' '.join(str(error).split())}") from error


@contextmanager
def _alchemy(url: str) -> Iterator[Table]:
    try:
        import sqlalchemy
        from sqlalchemy.exc import ArgumentError, OperationalError

        from holdfast.rescue.alchemy import AlchemyTable
    except ModuleNotFoundError:
        raise StoreUnsupported("MySQL needs SQLAlchemy and a driver: pip install sqlalchemy pymysql") from None
    head, separator, rest = url.partition("://")
    driver = head if "+" in head else f"{head}+pymysql"
    try:
        engine = sqlalchemy.create_engine(f"{driver}{separator}{rest}", poolclass=sqlalchemy.NullPool)
    except (ArgumentError, ModuleNotFoundError) as error:
        raise BadURL(f"--url cannot be used: {error}; for MySQL: pip install sqlalchemy pymysql") from None
    try:
        connection = engine.connect()
    except OperationalError as error:
        raise StoreUnavailable(f"MySQL cannot be reached: {' '.join(str(error.orig).split())}") from error
    with connection:
        yield AlchemyTable(connection)
