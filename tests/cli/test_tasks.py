"""holdfast tasks, and enqueue --by-name: what workers have published."""

from __future__ import annotations

import pytest

from holdfast import App, insight
from holdfast.core.machine import State
from holdfast.core.records import Filter, Published
from holdfast.enqueueing.by_name import publish
from holdfast.stores.protocol import Store
from tests.cli.conftest import Run
from tests.factory import enrol


@pytest.fixture(autouse=True)
def published(store: Store) -> None:
    app = App("memory://")

    @app.task(name="billing.charge", on_crash="hold", queue="money", timeout_s=60)
    def charge(order: int, *rest: str, note: str = "a") -> None: ...

    @app.task(name="tidy")
    def tidy() -> None: ...

    publish(store, app.tasks)


def test_the_list_shows_each_task_with_its_policy(run: Run, store: Store) -> None:
    views = run.json("tasks", "list")
    assert [(view["task"], view["queue"], view["on_crash"]) for view in views] == [
        ("billing.charge", "money", "hold"),
        ("tidy", "default", "retry"),
    ]
    enrol(store, tasks={"tidy": Published("default")})
    assert [view["workers"] for view in insight.task_views(store)] == [0, 1]
    text = run("tasks", "list").stdout
    assert "ON CRASH" in text
    assert "billing.charge" in text


def test_one_task_is_shown_with_its_arguments(run: Run) -> None:
    view = run.json("tasks", "show", "billing.charge")
    assert view["arguments"]["properties"]["order"] == {"type": "integer"}
    assert view["parameters"][0] == ["order", "positional_or_keyword", True]
    text = run("tasks", "show", "billing.charge").stdout
    assert "on crash: hold" in text
    assert '  order: {"type": "integer"}\n  *rest: ' in text
    assert '  note: {"type": "string"}, optional' in text
    assert "timeout: 60 s" in text
    assert "arguments: none" in run("tasks", "show", "tidy").stdout


def test_an_unknown_task_is_not_found_and_nothing_is_forgotten(run: Run, store: Store) -> None:
    assert "did you mean billing.charge?" in run("tasks", "show", "charge", code=5).stderr
    run("tasks", "forget", "tidy", "no-such", code=5)
    assert len(store.published()) == 2


def test_a_task_is_forgotten(run: Run, store: Store) -> None:
    assert "tidy forgotten" in run("tasks", "forget", "tidy").output
    assert [task.name for task in store.published()] == ["billing.charge"]
    assert run.json("tasks", "forget", "billing.charge") == [{"task": "billing.charge", "forgotten": True}]
    assert "No worker has published tasks yet" in run("tasks", "list").stderr
    run("enqueue", "--by-name", "tidy", code=2)


def test_enqueue_by_name_needs_no_app(run: Run, store: Store) -> None:
    made = run.json("enqueue", "--by-name", "billing.charge", '{"order": 42}', "--key", "o-42")
    [job] = store.find(Filter(states=(State.READY,)))
    assert (job.id, job.on_crash, job.queue, job.key, job.payload) == (
        made["id"],
        "hold",
        "money",
        "o-42",
        '{"order":42}',
    )
    assert "no second one was added" in run("enqueue", "--by-name", "billing.charge", "[1]", "--key", "o-42").stderr
    run("enqueue", "--by-name", "tidy")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--by-name", "billing.charge", '["x"]'], "argument 'order': Expected `int`, got `str`"),
        (["--by-name", "billing.charge", "nonsense"], "it is not valid JSON"),
        (["--by-name", "billing.charge", "5"], "the arguments must be a JSON array"),
        (["--by-name", "billing.charg", "[1]"], "did you mean billing.charge?"),
        (["--by-name", "tidy", "[]", "more"], "unexpected extra argument (more)"),
        ([], "Missing argument 'APP'"),
        (["jobs:app"], "Missing argument 'TASK'"),
        (["jobs:app", "a", "[]", "b"], "unexpected extra argument (b)"),
    ],
)
def test_a_wrong_enqueue_by_name_stores_nothing(run: Run, store: Store, arguments: list[str], words: str) -> None:
    assert words in run("enqueue", *arguments, code=2).stderr
    assert store.find(Filter()) == []


def test_a_task_that_nobody_published_needs_its_policy(run: Run, store: Store) -> None:
    run("enqueue", "--by-name", "zzz", '{"a": 1}', code=2)
    run("enqueue", "--by-name", "zzz", '{"a": 1}', "--on-crash", "hold")
    [job] = store.find(Filter())
    assert (job.task, job.on_crash, job.payload) == ("zzz", "hold", '{"a":1}')
