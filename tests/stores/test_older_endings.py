"""Rows that an older program has ended: it knows nothing of columns that are newer than it is."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from holdfast.core.machine import State
from holdfast.core.records import Job
from holdfast.core.stop_reason import full_reason
from holdfast.core.verdict import Failed, Lost
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.conftest import open_store
from tests.factory import again, revive, row, settle, start

LOST = Lost(detector="expired", cause="its lease ran out", autopsy={})
OLD_WORDS = "ValueError: no; failed or crashed 10 times (attempts_max=10)"

Execute = Callable[[str], None]


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> Iterator[tuple[Store, Execute]]:
    """A store, and what runs a statement of an older program there."""
    url = request.getfixturevalue("postgres") if request.param == "postgres" else ""
    store = open_store(request.param, clock, tmp_path, url)
    store.migrate()

    def execute(statement: str) -> None:
        if url:
            with psycopg.connect(url, autocommit=True) as server:
                server.execute(statement.format(job="holdfast.job"))  # type: ignore[arg-type]
        else:
            with closing(sqlite3.connect(tmp_path / "jobs.db", timeout=60)) as file, file:
                file.execute(statement.format(job="holdfast_job"))

    yield store, execute
    store.close()


def older_revives(execute: Execute, job: Job) -> None:
    execute(
        f"UPDATE {{job}} SET state = 'ready', fence = fence + 1, claim_id = NULL, ended_at = NULL WHERE id = '{job.id}'"
    )


def older_ends(execute: Execute, job: Job, state: str) -> None:
    execute(
        f"UPDATE {{job}} SET state = '{state}', error = '{OLD_WORDS}', worker = NULL, lease_until = NULL, "
        f"started = false, ended_at = {'NULL' if state == 'held' else '1'} WHERE id = '{job.id}'"
    )


@pytest.mark.parametrize("state", ["held", "dead"])
def test_a_job_that_an_older_program_ends_again_does_not_give_the_reason_of_its_earlier_ending(
    shared: tuple[Store, Execute], state: str
) -> None:
    store, execute = shared
    job = start(store, on_crash="hold")
    settle(store, job, LOST)
    assert row(store, job.id).stop_reason == "on_crash"
    older_revives(execute, job)
    assert row(store, job.id).stop_reason is None
    taken = again(store, row(store, job.id))
    older_ends(execute, taken, state)
    ended = row(store, job.id)
    assert (ended.state, ended.stop_reason, full_reason(ended)) == (State(state), None, OLD_WORDS)


def test_a_job_that_is_ended_again_by_this_version_gives_its_own_reason(shared: tuple[Store, Execute]) -> None:
    store, execute = shared
    job = start(store, on_crash="hold", attempts_max=2)
    settle(store, job, LOST)
    older_revives(execute, job)
    taken = again(store, row(store, job.id))
    settle(store, taken, Failed("boom"))
    assert row(store, job.id).stop_reason == "attempts_max"
    assert revive(store, row(store, job.id))
    assert row(store, job.id).stop_reason is None
