"""A store of the first version that people had is brought up to date, whatever is in it, however often it is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.machine import State
from holdfast.core.policy import Retry
from holdfast.core.records import Filter, Job
from holdfast.core.verdict import Succeeded
from holdfast.stores import open_store
from holdfast.stores.protocol import Reply, Store
from tests.factory import a_signal, enrol, revive, row, settle
from tests.servers import PostgresServer
from tests.stores import landed

ALL = Filter(limit=1000)


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(kind: str, tmp_path: Path, request: pytest.FixtureRequest, schema: str) -> str:
    """The address of a store of that time."""
    if kind == "sqlite":
        landed.make_sqlite(tmp_path / "jobs.db")
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    server: PostgresServer = request.getfixturevalue("server")
    landed.make_postgres(server.url, schema)
    return f"{server.url}?schema={schema}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = open_store(url)
    store.migrate()
    yield store
    store.close()


def before(kind: str, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """What that version has written."""
    held = landed.rows_of(kind)[{"sqlite": f"holdfast_{table}", "postgres": table}[kind]]
    places = [held["columns"].index(column) for column in columns]
    return [tuple(each[place] for place in places) for each in held["rows"]]


def test_every_job_is_what_it_was(kind: str, store: Store) -> None:
    jobs = {job.id: job for job in store.find(ALL)}
    kept = before(kind, "job", "id", "state", "error", "result", "attempt", "fence", "failures", "crashes", "run_at")
    assert {state for _, state, *_ in kept} == {state.value for state in State}
    for job_id, *facts in kept:
        job = jobs.pop(job_id)
        ended = [job.state, job.error, job.result]
        assert [*ended, job.attempt, job.fence, job.failures, job.crashes, job.run_at] == facts
    assert not jobs
    assert store.check() == []
    assert store.counts()


def test_every_job_keeps_the_policy_it_was_stored_with(kind: str, store: Store) -> None:
    """Its delays were all random then; today's default is half of that."""
    jobs = {job.id: job for job in store.find(ALL)}
    kept = before(kind, "job", "id", "attempts_max", "backoff_base_s", "backoff_cap_s", "crashes_max", "on_crash")
    assert len(jobs) == len(kept)
    for job_id, attempts_max, base_s, cap_s, crashes_max, on_crash in kept:
        assert jobs[job_id].retry == Retry(attempts_max, base_s, cap_s, "full")
        assert (jobs[job_id].crashes_max, jobs[job_id].on_crash) == (crashes_max, on_crash)


def test_its_history_workers_and_schedules_are_there(kind: str, store: Store) -> None:
    assert len(store.journal(limit=1000)) == len(before(kind, "journal", "seq"))
    assert {worker.id for worker in store.workers(gone=True)} == {each[0] for each in before(kind, "worker", "id")}
    gone = [worker for worker in store.workers(gone=True) if worker.gone_at is not None]
    shut_out = ("released", "its program is too old for the schema")  # those of that time could not work any more
    told = {(each.exit_kind, each.gone_cause) for each in gone}
    assert told == {("exit", "its process was killed by SIGKILL"), shut_out}
    assert [schedule.key for schedule in store.schedules()] == ["nightly"]
    assert store.paused() == ["paused-queue"]


def test_what_ran_can_still_be_settled(store: Store) -> None:
    assert settle(store, row(store, "in-running"), Succeeded()) is Reply.ACCEPTED


def test_what_was_ready_is_claimed_and_what_was_held_comes_back(store: Store) -> None:
    assert revive(store, row(store, "in-held"))
    tasks = sorted({job.task for job in store.find(ALL)})
    claimed = store.claim(enrol(store), "claim", ["default"], tasks, 100)
    assert {"in-ready", "in-held"} <= {job.id for job in claimed}


def test_a_workflow_in_the_middle_goes_on(store: Store) -> None:
    steps = store.steps("flow-steps")
    assert [(step.name, step.state) for step in steps] == [("charge", "recorded"), ("ship", "started")]
    assert row(store, "flow-steps").open_step
    assert row(store, "flow-asks").question == "May it cost 500?"
    assert [signal.id for signal in store.inbox("flow-waits").signals] == ["signal-other"]
    waits: Job = row(store, "flow-waits")
    assert store.signal(a_signal(waits, "other", id="signal-other")) is Reply.ALREADY
    assert store.signal(a_signal(waits, "paid")) is Reply.ACCEPTED
    assert row(store, "flow-waits").state is State.READY


def test_a_migration_that_is_killed_before_any_commit_is_repeated(kind: str, url: str) -> None:
    code = f"from holdfast.stores import open_store; store = open_store({url!r}); store.migrate(); store.close()"
    kills = 0
    while True:
        env = {**os.environ, "HOLDFAST_POINT": "migrate.middle=kill:2"}  # one step further each time
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -9, done.stderr
        kills += 1
    assert kills >= 2
    store = open_store(url)
    assert store.schema().found == store.schema().wanted
    test_every_job_is_what_it_was(kind, store)
    store.close()
