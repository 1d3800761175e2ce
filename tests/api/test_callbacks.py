"""on_done and on_dead: declared on a task, chosen by using, stored with the job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import App, Context, Flow, GiveUp, Retry, Rollback, UsageError
from holdfast.core.callbacks import ERROR_BYTES_MAX, ID_MAX, derived_id
from holdfast.core.payload import JsonCodec
from holdfast.enqueueing.by_name import publish

ONCE = Retry(attempts_max=1)
Said = list[dict[str, Any]]


@pytest.fixture
def app() -> App:
    return App("memory://")


@pytest.fixture
def said(app: App) -> Said:
    """What the task `notify` was called with."""
    calls: Said = []

    @app.task(name="notify", queue="alerts")
    def notify(ctx: Context, job_id: str, state: str, error_kind: str | None, error: str | None) -> None:
        calls.append({"job_id": job_id, "state": state, "error_kind": error_kind, "error": error})

    return calls


def work(app: App) -> None:
    """Run everything, callbacks included."""
    for _ in range(3):
        app.tick(budget_s=60)


def test_the_worker_calls_them_with_the_job_and_its_error(app: App, said: Said) -> None:
    @app.task(retry=ONCE, on_done="notify", on_dead="notify")
    def divide(by: int) -> float:
        return 1 / by

    fine, bad = divide.enqueue(2), divide.enqueue(0)
    work(app)
    assert sorted(said, key=lambda each: str(each["state"])) == [
        {"job_id": bad.id, "state": "dead", "error_kind": "ZeroDivisionError", "error": bad.refresh().error},
        {"job_id": fine.id, "state": "done", "error_kind": None, "error": None},
    ]
    assert bad.row.error_kind == "ZeroDivisionError"


def test_giving_up_names_its_own_class(app: App, said: Said) -> None:
    @app.task(on_dead="notify")
    def stop() -> None:
        raise GiveUp("no use")

    stop.enqueue()
    work(app)
    assert [each["error_kind"] for each in said] == ["GiveUp"]


def test_a_workflow_that_is_rolled_back_calls_on_dead(app: App, said: Said) -> None:
    @app.workflow(on_dead="notify")
    def book(flow: Flow) -> None:
        flow.step(str, undo=lambda result: None, name="reserve")
        raise Rollback("sold out")

    book.enqueue()
    work(app)
    assert [(each["state"], each["error_kind"]) for each in said] == [("rolled_back", "Rollback")]


def test_using_overrides_one_and_keeps_the_other(app: App, said: Said) -> None:
    other: list[str] = []

    @app.task
    def cheer(job_id: str) -> None:
        other.append(job_id)

    @app.task(retry=ONCE, on_done="notify", on_dead="notify")
    def divide(by: int) -> float:
        return 1 / by

    changed = divide.using(on_done=cheer)
    fine, bad = changed.enqueue(2), asyncio.run(changed.aenqueue(0))
    work(app)
    assert other == [fine.id]
    assert [each["job_id"] for each in said] == [bad.id]


def test_a_draft_can_get_one_later(app: App, said: Said) -> None:
    @app.task
    def nothing() -> None: ...

    [job] = app.enqueue_many([nothing.job().using(on_done="notify")])
    work(app)
    assert [each["job_id"] for each in said] == [job.id]


def test_an_enqueue_by_name_keeps_those_of_the_task(app: App, said: Said) -> None:
    @app.task(name="nothing", on_done="notify")
    def nothing() -> None: ...

    publish(app.store, app.tasks)
    job = app.enqueue_by_name("nothing")
    work(app)
    assert [each["job_id"] for each in said] == [job.id]


def test_a_callback_has_the_options_of_its_own_task(app: App) -> None:
    @app.task(queue="alerts", priority=9, retry=Retry(attempts_max=2), key="one")
    def cheer() -> None: ...

    @app.task(on_done=cheer.using(run_after=60))
    def nothing() -> None: ...

    first, second = nothing.enqueue(), nothing.enqueue()
    now = app.store.now().wall
    for _ in range(2):
        app.tick(budget_s=60)
    made = app.find(queue="alerts")
    assert {job.id for job in made} == {f"{first.id}:done:1", f"{second.id}:done:1"}, "its key does not merge them"
    assert all(job.row.run_at >= now + 60 for job in made)
    assert {(job.row.priority, job.row.attempts_max, job.row.key) for job in made} == {(9, 2, None)}


def test_a_callback_has_callbacks_of_its_own(app: App, said: Said) -> None:
    @app.task(name="middle", on_done="notify")
    def middle(job_id: str) -> None: ...

    @app.task(on_done=middle)
    def first() -> None: ...

    job = first.enqueue()
    work(app)
    assert [each["job_id"] for each in said] == [f"{job.id}:done:1"]


def test_a_long_error_is_cut(app: App, said: Said) -> None:
    @app.task(retry=ONCE, on_dead="notify")
    def fail() -> None:
        raise ValueError("ß" * 5000)

    fail.enqueue()
    work(app)
    [error] = [str(each["error"]) for each in said]
    assert error.startswith("ValueError: ßß")
    assert ERROR_BYTES_MAX - 2 <= len(error.encode()) <= ERROR_BYTES_MAX


def test_ids_stay_short_and_differ() -> None:
    names = [
        derived_id(job, kind, fence)
        for job in ("a" * 64, "b" * 64, "a")
        for kind in ("done", "dead")
        for fence in (1, 2)
    ]
    assert len(set(names)) == 12
    assert all(len(name) <= ID_MAX for name in names)
    assert derived_id("a" * 57, "done", 1) == "a" * 57 + ":done:1"


def wrong_name(app: App) -> None:
    app.task(name="x", on_dead="nobody")(lambda: None)


def not_a_task(app: App) -> None:
    app.task(name="x", on_dead=print)(lambda: None)  # type: ignore[arg-type]


def other_app(app: App) -> None:
    app.task(name="x", on_done=App("memory://").task(name="y")(lambda: None))(lambda: None)


def other_arguments(app: App) -> None:
    app.task(name="y")(lambda path: None)
    app.task(name="x", on_done="y")(lambda: None)


def no_none(app: App) -> None:
    @app.task(name="y")
    def y(error_kind: str) -> None: ...

    app.task(name="x", on_dead="y")(lambda: None)


def by_using(app: App) -> None:
    app.task(name="z")(lambda: None).using(on_done="nobody")


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (wrong_name, "nobody"),
        (not_a_task, "must be a task of this app"),
        (other_app, "must be a task of this app"),
        (other_arguments, "job_id, state, error_kind, error"),
        (no_none, "error_kind"),
        (by_using, "nobody"),
    ],
)
def test_what_could_never_run_is_refused_at_the_declaration(
    app: App, declare: Callable[[App], None], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        declare(app)
    assert "x" not in app.tasks


def test_a_codec_of_ones_own_is_refused() -> None:
    app = App("memory://", codec=JsonCodec())
    app.task(name="y")(lambda: None)
    with pytest.raises(UsageError, match="codec"):
        app.task(on_dead="y")(lambda: None)
