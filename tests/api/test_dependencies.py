"""after= and after_failed=: chosen by using, checked at the enqueue, over every way in."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import App, Flow, JobCancelled, NotFound, Retry, UsageError
from holdfast.cli.main import cli
from holdfast.core.machine import State
from holdfast.enqueueing.by_name import publish
from holdfast.insight.explain import explain
from holdfast.tasks import Task
from holdfast.upkeep.dependents import start_dependents
from tests.factory import claim


@pytest.fixture
def app() -> App:
    return App("memory://")


@pytest.fixture
def step(app: App) -> Task[[int], int]:
    @app.task(name="step", retry=Retry(attempts_max=1))
    def step(n: int) -> int:
        if n < 0:
            raise ValueError("too small")
        return n

    return step


def test_a_chain_and_a_join_run_in_order(app: App, step: Task[[int], int]) -> None:
    first = step.enqueue(1)
    left, right = step.using(after=first).enqueue(2), step.using(after=first.id).enqueue(3)
    last = step.using(after=[left, right]).enqueue(4)
    assert len(app.find("waiting")) == 3
    for _ in range(3):
        app.tick(budget_s=5)
        start_dependents(app.store, [job.id for job in app.find("waiting")])
    assert last.result(timeout=5) == 4
    for before, then in ((first, left), (first, right), (left, last), (right, last)):
        assert (before.refresh().row.ended_at or 1e20) <= (then.refresh().row.claimed_at or 0)


def test_a_worker_starts_the_next_at_once(app: App, step: Task[[int], int]) -> None:
    """The sweep of the reaper looks once a second: a chain of ten would take it five seconds and more."""
    with app.worker(slots=2):
        step.using(after=step.enqueue(0)).enqueue(0).result(timeout=30)  # from now on the worker knows of such jobs
        drafts = [step.job(1)]
        for number in range(10):
            drafts.append(step.using(after=drafts[-1]).job(number))
        kept = step.using(after=step.using(run_after=600).enqueue(1)).enqueue(2)
        began = time.monotonic()
        app.enqueue_many(drafts)[-1].result(timeout=30)
        assert time.monotonic() - began < 4
        assert kept.refresh().state is State.WAITING


def test_a_job_whose_predecessor_fails_is_cancelled_and_says_why(app: App, step: Task[[int], int]) -> None:
    bad = step.enqueue(-1)
    then = step.using(after=bad).enqueue(1)
    held = step.using(after=bad, after_failed="hold").enqueue(2)
    anyway = step.using(after=bad, after_failed="run").enqueue(3)
    with app.worker(slots=2):
        with pytest.raises(JobCancelled, match=f"it was to run after job {bad.id}, which is dead"):
            then.result(timeout=30)
        assert anyway.result(timeout=30) == 3
        assert app.resolve(held.id, "retry", by="ann").result(timeout=30) == 2


def test_a_job_after_jobs_that_are_done_is_ready_at_once(app: App, step: Task[[int], int]) -> None:
    first = step.enqueue(1)
    app.tick()
    assert step.using(after=[first]).enqueue(2).state is State.READY
    other = step.using(run_after=60).enqueue(1)
    assert step.using(after=[first, other]).enqueue(2).state is State.WAITING
    assert step.using(after=[]).enqueue(2).state is State.READY


def test_it_says_what_it_waits_for(app: App, step: Task[[int], int]) -> None:
    first = step.enqueue(1)
    job = step.using(after=first).enqueue(2)
    said = f"It waits for the success of job {first.id}, and holds no slot meanwhile."
    assert explain(app.store, job.row).sentence == said


def test_the_order_within_one_call(app: App, step: Task[[int], int]) -> None:
    first = step.job(1)
    then = step.using(after=first).job(2)
    with pytest.raises(UsageError, match="comes later in this call"):
        app.enqueue_many([then, first])
    own = step.using(id="own", after="own").job(3)
    with pytest.raises(UsageError, match="comes later in this call"):
        app.enqueue_many([own])
    keyed = step.using(key="k").job(4)
    with pytest.raises(UsageError, match="has a key and may not be stored"):
        app.enqueue_many([keyed, step.using(after=keyed).job(5)])
    assert app.find() == []
    [stored] = app.enqueue_many([keyed])
    assert [job.state.value for job in app.enqueue_many([first, then])] == ["ready", "waiting"]
    assert step.using(after=stored).enqueue(5).state is State.WAITING


def test_every_way_to_enqueue_has_the_option(app: App, step: Task[[int], int]) -> None:
    publish(app.store, app.tasks)
    first = step.enqueue(1)
    jobs = [
        asyncio.run(step.using(after=first).aenqueue(2)),
        app.enqueue_by_name("step", [2], after=first, after_failed="hold"),
        *app.enqueue_many([step.job(2).using(after=first)]),
    ]
    list(app.enqueue_stream([step.using(after=first, id="s").job(2)]))
    with app.batch() as batch:
        batch.add(step.using(after=first, id="b").job(2))
    assert {job.id: job.state for job in app.find("waiting")} == {
        **{job.id: State.WAITING for job in jobs},
        **dict.fromkeys("sb", State.WAITING),
    }


def test_the_callers_transaction_stores_both(tmp_path: Path) -> None:
    with App(f"sqlite:///{tmp_path}/jobs.db") as app:

        @app.task
        def step() -> None: ...

        app.counts()
        own = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        own.execute("BEGIN")
        first = step.using(connection=own).enqueue()
        then = step.using(connection=own, after=first).enqueue()
        own.execute("ROLLBACK")
        assert app.find() == []
        own.execute("BEGIN")
        first = step.using(connection=own).enqueue()
        then = step.using(connection=own, after=first).enqueue()
        own.execute("COMMIT")
        own.close()
        assert (first.refresh().state, then.refresh().state) == (State.READY, State.WAITING)


def test_a_repeated_enqueue_is_no_error_when_the_earlier_job_is_gone(app: App, step: Task[[int], int]) -> None:
    first = step.enqueue(1)
    then = step.using(after=first, id="then")
    then.enqueue(2)
    app.tick()
    [row] = app.store.find(where_ids(first.id))
    app.store.delete([row.seen])
    assert then.enqueue(2).existed
    with pytest.raises(NotFound, match="there is no job"):
        step.using(after=first).enqueue(2)


def where_ids(*ids: str) -> Any:
    from holdfast.core.records import Filter

    return Filter(ids=ids)


def test_a_job_runs_after_a_hundred_others_at_most(step: Task[[int], int]) -> None:
    names = [f"x{number}" for number in range(101)]
    assert len(step.using(after=names[:100]).job(1).new.awaits) == 101
    with pytest.raises(UsageError, match="at most 100"):
        step.using(after=names)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"after": 5}, "must be a job, a draft or an id"),
        ({"after": [None]}, "must be a job, a draft or an id"),
        ({"after": ["no such id!"]}, "must be a job, a draft or an id"),
        ({"after_failed": "run"}, "give them, too"),
        ({"after": "x", "after_failed": "retry"}, "must be one of cancel, hold, run"),
    ],
)
def test_what_makes_no_sense_is_refused(step: Task[[int], int], options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        step.using(**options)


def test_what_holdfast_stores_by_itself_runs_after_nothing(app: App, step: Task[[int], int]) -> None:
    later = step.using(after="x")

    @app.task
    def last() -> None: ...

    @app.workflow(name="w")
    def w(flow: Flow) -> None:
        flow.start(later, 1)

    for declare in (
        lambda: app.task(name="t", on_done=last.using(after="x"))(lambda: None),
        lambda: app.batch(then=last.using(after="x").job()),
        lambda: app.schedule("s", "* * * * *", later, [1]),
    ):
        with pytest.raises(UsageError, match="cannot run after others"):
            declare()
    job = w.enqueue()
    app.tick()
    assert "cannot run after others" in (job.refresh().error or "")


def test_the_command_line_has_both_options(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path}/jobs.db"
    with App(db) as app:

        @app.task(name="step")
        def step(n: int = 0) -> None: ...

        publish(app.store, app.tasks)
        first = step.enqueue()
        run = CliRunner().invoke
        command = ["--db", db, "enqueue", "--by-name", "step"]
        done = run(cli, [*command, "--after", first.id, "--after-failed", "hold", "--json"])
        assert done.exit_code == 0, done.output
        told = json.loads(done.stdout)
        assert told["state"] == "waiting"
        assert "the success of job" in run(cli, ["--db", db, "jobs", "show", told["id"]]).output
        shown = json.loads(run(cli, ["--db", db, "jobs", "show", told["id"], "--json"]).stdout)
        assert shown["after"] == [first.id]
        assert run(cli, [*command, "--after", "nobody"]).exit_code == 5
        assert [job.id for job in claim(app.store, tasks=["step"])] == [first.id]
