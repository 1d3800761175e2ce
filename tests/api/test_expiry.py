"""expires_s: declared on a task, chosen by using, by name and over the command line."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import App, JobCancelled, UsageError
from holdfast.core.machine import State
from holdfast.enqueueing.by_name import publish
from holdfast.testing import FakeClock
from tests.factory import claim


@pytest.fixture
def app(clock: FakeClock) -> App:
    return App("memory://", clock=clock)


def test_a_job_that_waits_too_long_is_cancelled_and_never_runs(app: App, clock: FakeClock) -> None:
    @app.task(name="greet", expires_s=60)
    def greet(n: int) -> None: ...

    late, short, plain = greet.enqueue(1), greet.using(expires_s=timedelta(seconds=5)).enqueue(2), greet.enqueue(3)
    clock.advance(30)
    app.reap()
    assert short.refresh().state is State.CANCELLED
    assert [job.id for job in claim(app.store, tasks=["greet"])] == [late.id, plain.id]
    with pytest.raises(JobCancelled, match="not started before its expiry"):
        short.result()


def test_every_way_to_enqueue_has_the_option(app: App, clock: FakeClock) -> None:
    @app.task(name="t", expires_s=10)
    def task() -> None: ...

    publish(app.store, app.tasks)
    [draft] = app.enqueue_many([task.job().using(priority=3)])
    awaited = asyncio.run(task.using(expires_s=20).aenqueue())
    named = app.enqueue_by_name("t")
    wanted = [clock.wall() + seconds for seconds in (10, 20, 10)]
    assert [job.row.expires_at for job in (draft, awaited, named)] == wanted


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"expires_s": 0}, "above 0"),
        ({"expires_s": "soon"}, "above 0"),
        ({"expires_s": float("inf")}, "above 0"),
        ({"expires_s": 60, "run_after": 60}, "before run_after lets it start"),
    ],
)
def test_what_can_never_work_is_refused(app: App, options: dict[str, Any], says: str) -> None:
    @app.task
    def task() -> None: ...

    with pytest.raises(UsageError, match=says):
        task.using(**options)
    if "run_after" not in options:
        with pytest.raises(UsageError, match=says):
            app.task(**options)(lambda: None)
