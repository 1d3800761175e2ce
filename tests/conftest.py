"""What every test may ask for: a clock that stands still, each store in turn, and the servers behind them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from holdfast.stores.memory import MemoryStore
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.servers import PostgresServer, RedisServer

# A landing is judged by what changed, not by what was drawn; docs/guarantees.md names the commands that draw anew.
settings.register_profile("suite", derandomize=True, database=None, deadline=None)
settings.load_profile("suite")
# Hypothesis also tries constants of the loaded modules: what is drawn would depend on which tests are near.
providers._get_local_constants = lambda: providers._local_constants
# A shell in the background lets this ignore Ctrl-C, and `nohup` SIGHUP; so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

SPEAKING = ("tests/simulation/", "tests/crash/test_recovery.py", "tests/crash/test_storm.py")

SERVERS = ("postgres", "redis")  # kinds of stores that have a server
TABLES = ("job", "journal", "step", "signal", "worker", "published", "beat_aside", "duty", "tally", "schedule")
TABLES += ("queue", "paused_group", "turn", "task", "token", "worker_order", "worker_recent", "error", "crash")
TABLES += ("batch", "batch_removed", "key", "delta", "rollup")
# TRUNCATE makes forty files; to delete the few rows of a test is ten times as fast. The lock waits for writers.
EMPTY = f"""
DO $$
BEGIN
    IF to_regnamespace('holdfast') IS NULL THEN
        RETURN;
    END IF;
    LOCK TABLE {", ".join(f"holdfast.{name}" for name in TABLES)} IN EXCLUSIVE MODE;
    IF pg_relation_size('holdfast.job') + pg_relation_size('holdfast.journal') > 512 * 1024 THEN
        TRUNCATE {", ".join(f"holdfast.{name}" for name in TABLES)};
    ELSE
        {" ".join(f"DELETE FROM holdfast.{name};" for name in TABLES)}
    END IF;
    PERFORM setval(pg_get_serial_sequence('holdfast.' || name, 'seq'), 1, false)
    FROM unnest(ARRAY['job', 'journal', 'signal']) AS name;
    INSERT INTO holdfast.rollup (span, slot, queue, arrived, came, endings) VALUES (0, 0, '', 0, 0, '[]');
    DELETE FROM holdfast.doubt;
    DELETE FROM holdfast.incarnation WHERE number > 1;
END $$
"""

_kept: dict[str, psycopg.Connection[Any]] = {}  # sessions that have planned EMPTY already


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print in every run what searches and measurements have found: seeds, counts of states, seconds."""
    passed = [each for each in terminalreporter.getreports("passed") if each.nodeid.startswith(SPEAKING)]
    lines = [line for report in passed for line in report.capstdout.splitlines() if line]
    if lines:
        terminalreporter.section("what was found")
        terminalreporter.write("\n".join([*lines, ""]))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
def commits_that_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the reapers of this process the proof that commits end: where time stands still they would wait for ever.
    Tests of that proof ask for it, and real programs give it."""
    from holdfast.stores.postgres.store import PostgresStore
    from holdfast.stores.sqlite.store import SqliteStore

    monkeypatch.setattr(SqliteStore, "commits_may_hang", False)
    monkeypatch.setattr(PostgresStore, "commits_may_hang", False)


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> Iterator[Store]:
    url = request.getfixturevalue(request.param) if request.param in SERVERS else ""
    opened = open_store(request.param, clock, tmp_path, url)
    opened.migrate()
    yield opened
    trouble = opened.check()
    for worker in opened.workers():
        opened.retire(worker.id, "the test is over")  # drops its liveness lock
    opened.close()
    assert trouble == []


def open_store(kind: str, clock: FakeClock, folder: Path, url: str = "") -> Store:
    """Open an empty store of this kind; `url` says where the server of one that has a server is."""
    if kind == "memory":
        return MemoryStore(clock=clock)
    if kind == "postgres":
        from holdfast.stores.postgres.store import PostgresStore

        return PostgresStore(url, clock=clock)
    if kind == "redis":
        from holdfast.stores.redis.store import RedisStore

        return RedisStore(url, clock=clock)
    from holdfast.stores.sqlite.store import SqliteStore

    # What survives a power cut is no matter of conformance, and the suite is a third faster without the wait.
    return SqliteStore(f"sqlite:///{folder}/jobs.db?synchronous=normal", clock=clock)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address of a PostgreSQL database that belongs to this run of the tests."""
    given = os.environ.get("HOLDFAST_TEST_POSTGRES")
    server = PostgresServer() if not given else None
    yield server.url if server is not None else str(given)
    while _kept:
        _kept.popitem()[1].close()
    if server is not None:
        server.close()


@pytest.fixture
def postgres(postgres_server: str) -> str:
    """The address of a store in which nothing has been done yet: its tables are there, and empty."""
    empty(postgres_server)
    return postgres_server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Valkey server that belongs to this run of the tests."""
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def redis(redis_server: RedisServer) -> str:
    """The address of a server in which nothing is stored."""
    with closing(redis_server.client()) as client:
        client.flushall()
    return redis_server.url


def empty(url: str) -> None:
    """Remove everything that is stored in a PostgreSQL database, if there is anything yet."""
    if (kept := _kept.get(url)) is not None:
        with suppress(psycopg.OperationalError):  # a test may have ended the session
            kept.execute(EMPTY)
            return
        kept.close()
    _kept[url] = psycopg.connect(url, autocommit=True)
    _kept[url].execute(EMPTY)


@pytest.fixture
def mounting() -> Iterator[list[str]]:
    """The beginning of a command that may mount: `sh -c SCRIPT` follows."""
    for ways in (["unshare", "-m"], ["unshare", "-rm"]):
        trial = [*ways, "sh", "-c", "mount -t tmpfs tmpfs /tmp"]
        if sys.platform == "linux" and subprocess.run(trial, capture_output=True, check=False).returncode == 0:
            yield ways
            return
    pytest.skip("this machine does not let us mount")
