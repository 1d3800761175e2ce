"""ctx.heartbeat(**metadata): people see it while the job runs; the event of the attempt's end keeps it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import App, Context, Retry, Snooze, UsageError, insight
from tests.worker.house import until


def test_it_is_on_the_row_while_the_job_runs_and_gone_after_a_success() -> None:
    gate = threading.Event()
    with App("memory://") as app:

        @app.task
        def copy(ctx: Context) -> None:
            ctx.heartbeat(key="a", number=1)
            ctx.heartbeat(key="b", number=2)
            ctx.heartbeat()
            gate.wait(60)

        job = copy.enqueue()
        with app.worker(slots=1):
            try:
                until(lambda: job.refresh().row.beat_data is not None, "a beat has carried it")
                assert job.row.beat_data == '{"key":"b","number":2}', "the last call that said something counts"
                assert insight.job_story(app.store, job.row)["beat_data"] == {"key": "b", "number": 2}
            finally:
                gate.set()
            job.result(timeout=30)
        assert job.refresh().row.beat_data is None
        assert job.events() == []


@pytest.mark.parametrize(("ending", "kind"), [(ValueError("no"), "failed"), (Snooze(60), "snoozed")])
def test_the_event_of_the_end_keeps_what_no_beat_has_carried(ending: BaseException, kind: str) -> None:
    with App("memory://") as app:

        @app.task(retry=Retry(attempts_max=2, base_s=60))
        def copy(ctx: Context) -> None:
            ctx.heartbeat(key="a")
            raise ending

        job = copy.enqueue()
        app.tick(budget_s=60)
        [event, *_] = [event for event in job.events() if event.kind == kind]
        assert event.detail["beat_data"] == {"key": "a"}
        assert job.refresh().row.beat_data is None


def test_an_attempt_that_said_nothing_has_nothing_in_its_event() -> None:
    with App("memory://") as app:

        @app.task(retry=Retry(attempts_max=1))
        def fail(ctx: Context) -> None:
            ctx.heartbeat()
            raise ValueError("no")

        job = fail.enqueue()
        app.tick(budget_s=60)
        assert all("beat_data" not in event.detail for event in job.events())


@pytest.mark.parametrize("bad", ["x" * 2_000, datetime(2026, 1, 1, tzinfo=UTC), object(), "\ud800", float("nan")])
def test_metadata_that_is_too_long_or_not_json_is_refused(bad: Any) -> None:
    with App("memory://") as app:
        raised: list[str] = []

        @app.task
        def copy(ctx: Context) -> None:
            try:
                ctx.heartbeat(bad=bad)
            except UsageError as error:
                raised.append(str(error))

        copy.enqueue()
        app.tick(budget_s=60)
        [text] = raised
        assert "ctx.heartbeat" in text
