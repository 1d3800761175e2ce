"""A store that lived a hundred seconds ago, and a way to run the command line on it.

The store's clock shows the past of this very boot, so a job claimed through it has lost its lease by the time a command
looks: zombies without waiting.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.commands import command_of
from holdfast.cli.main import cli
from holdfast.clock import SystemClock
from holdfast.core.records import Job
from holdfast.insight.explain import Explanation
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import FakeClock
from tests.factory import enrol, start

PAST_S = 100.0


@pytest.fixture
def clock() -> FakeClock:
    now = SystemClock()
    return FakeClock(now.wall() - PAST_S, now.lease() - PAST_S, now.boot_id)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that the command is run in, without settings from outside."""
    for name in ("HOLDFAST_DB", "HOLDFAST_BY", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def url(folder: Path) -> str:
    return f"sqlite:///{folder}/jobs.db"


@pytest.fixture
def store(url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The store that commands find without being told."""
    monkeypatch.setenv("HOLDFAST_DB", url)
    opened = SqliteStore(f"{url}?synchronous=normal", clock=clock)
    opened.migrate()
    yield opened
    for worker in opened.workers():
        opened.retire(worker.id, "the test is over")  # drops its liveness lock
    opened.close()


def lose(store: Store, **given: Any) -> Job:
    """A job that is running under a lease that has run out."""
    return start(store, enrol(store, boot_id=SystemClock().boot_id), **given)


def shown_choices(why: Explanation) -> list[tuple[str, str]]:
    """What a person may do, in words and as a command."""
    return [(choice.words, command_of(choice)) for choice in why.choices]


class Run:
    """Runs the command line in this process. The result has `exit_code`, `stdout`, `stderr`."""

    def __call__(self, *args: str, code: int = 0, **extra: Any) -> Result:
        result = CliRunner().invoke(cli, [*args], prog_name="holdfast", **extra)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, (result.stdout, result.stderr)
        return result

    def json(self, *args: str, code: int = 0) -> Any:
        return json.loads(self(*args, "--json", code=code).stdout)


@pytest.fixture
def run(folder: Path) -> Run:
    return Run()
