"""tags and meta: declared on a task, chosen by using, travelling into child jobs and log lines."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from holdfast import App, Context, Flow, UsageError
from holdfast.enqueueing.by_name import publish
from holdfast.runtime.log_fields import about
from holdfast.worker.log_capture import listening


@pytest.fixture
def app() -> App:
    return App("memory://")


def test_jobs_are_found_by_tags_and_metadata(app: App) -> None:
    @app.task(name="t", tags=["nightly"], meta={"team": "data"})
    def task(n: int = 0) -> None: ...

    plain = task.enqueue()
    other = task.using(tags=["b", "a", "b"], meta={"tenant": "acme"}).enqueue()
    assert (plain.tags, plain.meta) == (["nightly"], {"team": "data"})
    assert (other.tags, other.meta) == (["a", "b"], {"team": "data", "tenant": "acme"})
    assert [job.id for job in app.find(tags=["a"], meta={"team": "data"})] == [other.id]
    assert len(app.find(meta={"team": "data"})) == 2
    assert [job.id for job in asyncio.run(app.aio.find(tags=["nightly"]))] == [plain.id]
    publish(app.store, app.tasks)
    assert app.enqueue_by_name("t", meta={"tenant": "b"}).meta == {"team": "data", "tenant": "b"}
    assert task.job().using(tags=["x"]).new.tags == '["x"]'


def test_metadata_travels_into_jobs_that_a_job_enqueues(app: App) -> None:
    @app.task(name="child", tags=["c"])
    def child() -> None: ...

    @app.task(name="parent")
    def parent() -> list[str]:
        return [child.enqueue().id, child.using(meta={"request": "8", "step": "2"}).enqueue().id]

    @app.task(name="awaited")
    async def awaited() -> str:
        return (await child.aenqueue()).id

    @app.workflow(name="flow")
    def flow(flow: Flow) -> str:
        return flow.start(child).id

    meta = {"request": "7", "tenant": "acme"}
    jobs: list[Any] = [task.using(tags=["p"], meta=meta).enqueue() for task in (parent, awaited, flow)]
    app.tick()
    first, second = (app.get(each) for each in jobs[0].result(timeout=5))
    assert (first.meta, first.tags) == (meta, ["c"])
    assert second.meta == {"request": "8", "step": "2", "tenant": "acme"}
    assert app.get(jobs[1].result(timeout=5)).meta == meta
    assert app.get(jobs[2].result(timeout=5)).meta == meta
    assert child.job().new.meta is None  # outside of a job


def test_log_lines_of_a_job_carry_its_metadata(app: App) -> None:
    @app.task(name="t")
    def task(ctx: Context) -> None: ...

    row = task.using(meta={"request": "7"}).enqueue().row
    assert about(row)["holdfast"]["meta"] == {"request": "7"}
    assert "meta" not in about(task.enqueue().row)["holdfast"]
    assert listening is not None
    assert logging.getLogger("holdfast").name == "holdfast"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tags": "nightly"}, "must be a list of text"),
        ({"tags": [""]}, "1 to 100 characters"),
        ({"tags": ["x" * 101]}, "1 to 100 characters"),
        ({"tags": [str(n) for n in range(21)]}, "at most 20"),
        ({"meta": ["a"]}, "must be a dict of text"),
        ({"meta": {"a": 1}}, "1 to 500 characters"),
        ({"meta": {str(n): "x" for n in range(21)}}, "at most 20"),
    ],
)
def test_what_cannot_be_stored_is_refused(app: App, options: dict[str, Any], says: str) -> None:
    @app.task(name="t")
    def task() -> None: ...

    with pytest.raises(UsageError, match=says):
        task.using(**options)
    with pytest.raises(UsageError, match=says):
        app.task(**options)(lambda: None)
