"""ignore_result: what the function returns is not stored, whatever it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Flow, UsageError
from holdfast.core.machine import State


@pytest.fixture(params=["memory://", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> App:
    return App(request.param if request.param == "memory://" else f"sqlite:///{tmp_path}/jobs.db")


def test_nothing_is_stored_and_the_result_is_none(app: App) -> None:
    @app.task(name="plain", ignore_result=True)
    def plain() -> Any:
        return object()  # it could not be stored

    @app.task(name="awaited", ignore_result=True)
    async def awaited() -> str:
        return "x" * 10_000_000

    @app.workflow(name="flow", ignore_result=True)
    def flow(flow: Flow) -> Any:
        return flow.step(len, "abc"), object()

    jobs = [plain.enqueue(), awaited.enqueue(), flow.enqueue()]
    app.tick()
    for job in jobs:
        assert job.result(timeout=10) is None
        assert (job.state, job.row.result) == (State.DONE, None)


def test_a_failure_keeps_its_error(app: App) -> None:
    @app.task(name="plain", ignore_result=True)
    def plain() -> None:
        raise ValueError("no luck")

    job = plain.enqueue()
    app.tick()
    assert "no luck" in str(job.refresh().error)


def test_only_true_and_false_are_taken(app: App) -> None:
    with pytest.raises(UsageError, match="True or False"):
        app.task(name="t", ignore_result="yes")(lambda: None)  # type: ignore[call-overload]
