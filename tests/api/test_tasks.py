"""Declaring tasks, and what `using` may choose. Nothing here needs a store."""

import asyncio
import functools
import math
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Context, PayloadError, PolicyError, Retry, UnknownTask, UsageError
from holdfast.core.policy import Policy
from holdfast.core.records import NewJob
from holdfast.testing import FakeClock


@pytest.fixture
def app() -> App:
    return App("memory://", clock=FakeClock())


def plain(x: int, y: str = "a") -> str:
    """Say it."""
    return f"{x}{y}"


# ------------------------------------------------------------------------------------------- declaring


def test_a_task_stays_a_function(app: App) -> None:
    task = app.task(plain)
    assert task(1) == "1a"
    assert task(2, y="b") == "2b"
    assert task.__doc__ == "Say it."
    assert task.__name__ == "plain"
    assert task.fn is plain


def test_with_and_without_parentheses(app: App) -> None:
    @app.task
    def one(x: int) -> int:
        return x

    @app.task()
    def two(x: int) -> int:
        return x

    @app.task(name="third")
    def three(x: int) -> int:
        return x

    assert list(app.tasks.values()) == [one, two, three]
    assert app.tasks["third"] is three
    assert (one(1), two(2), three(3)) == (1, 2, 3)


def test_the_name_is_where_the_function_is(app: App) -> None:
    assert app.task(plain).name == f"{__name__}.plain"

    @app.task
    def inner() -> None: ...

    assert inner.name == f"{__name__}.test_the_name_is_where_the_function_is.<locals>.inner"


SCRIPT = """
from holdfast import App
app = App("memory://")

@app.task
def work() -> None: ...

if __name__ == "__main__":
    print(work.name)
"""


@pytest.mark.slow  # a second interpreter
@pytest.mark.parametrize("as_module", [False, True])
def test_a_script_and_its_importers_agree_on_names(tmp_path: Path, as_module: bool) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "jobs.py").write_text(SCRIPT)
    command = ["-m", "shop.jobs"] if as_module else ["shop/jobs.py"]
    ran = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ("shop.jobs.work" if as_module else "jobs.work")


def test_two_tasks_of_one_name_are_refused(app: App) -> None:
    app.task(plain)
    with pytest.raises(UsageError, match=r"has a task '.*plain' already; give one of them another name="):
        app.task(plain)
    app.task(name="other")(plain)


def test_a_task_is_found_by_its_name_or_the_last_part_of_it(app: App) -> None:
    task = app.task(name="a.work")(plain)
    app.task(name="a.twice")(plain)
    app.task(name="b.twice")(plain)
    assert app.named("a.work") is app.named("work") is task
    with pytest.raises(UnknownTask, match=r"several tasks are called 'twice'; known: a.twice, b.twice"):
        app.named("twice")
    with pytest.raises(UnknownTask, match=r"no task 'none'; known: a.twice, a.work, b.twice"):
        app.named("none")


def test_what_the_worker_needs_to_know(app: App) -> None:
    @app.task(queue="media", retry=Retry(attempts_max=2), on_crash="hold", lease_s=9, timeout_s=60, priority=3)
    async def work(ctx: Context, path: str) -> list[Path | None] | tuple[int, ...]:  # not for JSON: read as plain
        return (1,)

    assert work.is_async
    assert work.takes_context
    assert work.queue == "media"
    assert work.priority == 3
    assert work.policy == Policy(Retry(attempts_max=2), on_crash="hold", lease_s=9, timeout_s=60)
    assert work.decode('{"path":"a"}') == ((), {"path": "a"})
    assert work.decode_result(work.encode_result((1, 2))) == [1, 2]
    plainly = app.task(plain)
    assert not plainly.is_async
    assert not plainly.takes_context


def test_a_result_is_read_by_its_annotation(app: App) -> None:
    @app.task
    def when() -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    assert when.decode_result(when.encode_result(when())) == datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(PayloadError, match="the result"):
        when.encode_result(b"")


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


class Klass:
    def method(self) -> None: ...

    @classmethod
    def of_class(cls) -> None: ...

    @staticmethod
    def static(x: int) -> int:
        return x


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (generator, "is a generator"),
        (async_generator, "is a generator"),
        (Klass, "Klass is a class"),
        (Klass(), "is not a function"),
        (Klass.method, "is a method"),
        (Klass.__dict__["of_class"], "is not a function"),
        (5, "5 is not a function"),
        ("name", "'name' is not a function"),
        (lambda: 1, "has no name"),
        (functools.partial(plain, 1), "has no name"),
        (dict.update, "is built in"),
    ],
    ids=[
        "generator",
        "async generator",
        "class",
        "object",
        "method",
        "classmethod",
        "int",
        "str",
        "lambda",
        "partial",
        "builtin",
    ],
)
def test_what_cannot_be_a_task_is_refused(app: App, thing: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        app.task(thing)
    assert app.tasks == {}


def test_a_task_cannot_be_declared_twice(app: App) -> None:
    with pytest.raises(UsageError, match="is a task already"):
        app.task(name="again")(app.task(plain))


def test_other_functions_may_be_tasks_under_a_name(app: App) -> None:
    assert app.task(name="partial")(functools.partial(plain, 1))(y="b") == "1b"
    assert app.task(name="lambda")(lambda x: x)(5) == 5
    assert app.task(Klass.__dict__["static"])(5) == 5


def test_local_types_in_annotations_that_are_text(app: App) -> None:
    from dataclasses import dataclass

    @dataclass
    class Local:
        n: int

    @app.task
    def work(x: "Local") -> None: ...

    assert work.decode(work.encode((Local(1),), {})) == ((), {"x": Local(1)})


BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"on_crash": "rollback"}, PolicyError, "only workflows have"),
    ({"on_crash": "explode"}, PolicyError, "on_crash"),
    ({"retry": 5}, PolicyError, "not a Retry"),
    ({"crashes_max": 0}, PolicyError, "crashes_max"),
    ({"lease_s": 0}, PolicyError, "lease_s"),
    ({"timeout_s": -1}, PolicyError, "timeout_s"),
    ({"stall_s": math.nan}, PolicyError, "stall_s"),
    ({"queue": ""}, UsageError, "queue"),
    ({"queue": " mail"}, UsageError, "queue"),
    ({"queue": "a\nb"}, UsageError, "printable"),
    ({"queue": "q" * 201}, UsageError, "1 to 200"),
    ({"queue": 5}, UsageError, "queue"),
    ({"priority": 1_000_001}, UsageError, "priority"),
    ({"priority": 1.5}, UsageError, "priority"),
    ({"priority": True}, UsageError, "priority"),
    ({"key": ""}, UsageError, "key"),
    ({"key": "k" * 256}, UsageError, "1 to 255"),
    ({"key": "\ud800"}, UsageError, "cannot be stored"),
    ({"key": "\0"}, UsageError, "cannot be stored"),
    ({"key": 5}, UsageError, "key"),
]


@pytest.mark.parametrize(("options", "kind", "message"), BAD_OPTIONS, ids=[str(case[0]) for case in BAD_OPTIONS])
def test_options_are_checked_where_they_are_given(
    app: App, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        app.task(**options)(plain)
    assert app.tasks == {}
    task = app.task(plain)
    with pytest.raises(kind, match=message):
        task.using(**options)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\0b", " ", 5])
def test_task_names_are_checked(app: App, name: Any) -> None:
    with pytest.raises(UsageError, match="task name"):
        app.task(name=name)(plain)


def test_an_annotation_that_cannot_travel_is_refused_with_the_argument(app: App) -> None:
    def work(thing: Klass) -> None: ...

    with pytest.raises(PayloadError, match=r"task t: argument 'thing': the annotation Klass cannot travel"):
        app.task(name="t")(work)
    assert app.tasks == {}


# ---------------------------------------------------------------------------------------------- drafts


def draft(app: App, **using: Any) -> NewJob:
    return app.tasks["t"].using(**using).job(1).new


@pytest.fixture
def task(app: App) -> Any:
    return app.task(name="t", queue="q", priority=2, lease_s=30.0, key=None)(plain)


def test_a_draft_has_what_was_declared(app: App, task: Any) -> None:
    new = task.job(1, y="b").new
    assert (new.task, new.queue, new.priority, new.payload) == ("t", "q", 2, '{"x":1,"y":"b"}')
    assert (new.key, new.run_at, new.delay_s, new.policy) == (None, None, 0.0, Policy(lease_s=30.0))
    assert new.id != task.job(1).new.id


def test_using_overrides_what_was_declared(app: App, task: Any) -> None:
    new = draft(
        app, queue="other", priority=-5, key="k", id="my-id:1", retry=Retry(attempts_max=9), crashes_max=7,
        on_crash="hold", lease_s=12.0, timeout_s=5.0, stall_s=2.0,
    )  # fmt: skip
    assert (new.queue, new.priority, new.key, new.id) == ("other", -5, "k", "my-id:1")
    policy = Policy(Retry(attempts_max=9), 7, "hold", 12.0, timeout_s=5.0, stall_s=2.0)
    assert new.policy == policy
    assert task.job(1).new.policy == Policy(lease_s=30.0)


def test_using_may_be_chained_and_kept(app: App, task: Any) -> None:
    urgent = task.using(priority=9)
    later = urgent.using(run_after=60)
    assert (urgent.job(1).new.priority, urgent.job(1).new.delay_s) == (9, 0.0)
    assert (later.job(1).new.priority, later.job(1).new.delay_s) == (9, 60.0)
    instant = datetime(2030, 1, 1, tzinfo=UTC)
    moved = later.using(run_at=instant).job(1).new
    assert (moved.run_at, moved.delay_s) == (instant.timestamp(), 0.0)


def test_when(app: App, task: Any) -> None:
    assert draft(app, run_after=1.5).delay_s == 1.5
    assert draft(app, run_after=timedelta(minutes=2)).delay_s == 120.0
    assert draft(app, run_after=0).delay_s == 0.0
    past = datetime(2001, 1, 1, tzinfo=UTC)
    assert draft(app, run_at=past).run_at == past.timestamp()


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"run_after": -1}, "run_after"),
        ({"run_after": 10**400}, "run_after"),
        ({"run_after": math.nan}, "run_after"),
        ({"run_after": math.inf}, "run_after"),
        ({"run_after": 1e11}, "run_after"),
        ({"run_after": True}, "run_after"),
        ({"run_after": "60"}, "run_after"),
        ({"run_after": timedelta(seconds=-1)}, "run_after"),
        ({"run_at": NOW.replace(tzinfo=None)}, "time zone"),
        ({"run_at": 5}, "time zone"),
        ({"run_at": NOW.replace(year=1)}, "1970"),
        ({"run_at": NOW, "run_after": 5}, "contradict"),
        ({"id": ""}, "id="),
        ({"id": "a b"}, "id="),
        ({"id": "x" * 65}, "id="),
        ({"id": "ä"}, "id="),
        ({"id": "a\n"}, "id="),
        ({"id": 5}, "id="),
    ],
    ids=str,
)
def test_what_using_refuses(task: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        task.using(**options)


def test_beats_must_fit_into_an_overridden_lease(app: App) -> None:
    task = app.task(beat_s=10.0)(plain)
    with pytest.raises(PolicyError, match="beat_s"):
        task.using(lease_s=5.0)


def test_a_key_may_depend_on_the_arguments(app: App) -> None:
    @app.task(key=lambda user, again=False: None if again else f"user-{user}")
    def welcome(user: int, again: bool = False) -> None: ...

    assert welcome.job(5).new.key == "user-5"
    assert welcome.job(5, again=True).new.key is None
    assert welcome.using(key="mine").job(5).new.key == "mine"

    bad: Any = lambda user: user  # noqa: E731
    wrong = app.task(name="wrong", key=bad)(welcome.fn)
    with pytest.raises(UsageError, match="key=5"):
        wrong.job(5)


def test_a_wrong_argument_makes_no_draft(task: Any) -> None:
    with pytest.raises(PayloadError, match="task t: argument 'x'"):
        task.job("one")
    with pytest.raises(PayloadError, match="unexpected argument 'z'"):
        task.job(1, z=1)


def test_a_sender_is_not_called_but_says_what_to_call(task: Any) -> None:
    with pytest.raises(TypeError, match=r"task t: using\(…\) only chooses options; call \.enqueue\(…\) on it"):
        task.using(priority=3)(1)
    assert task.using(priority=3).job(1).new.priority == 3


def test_async_functions_can_be_called(app: App) -> None:
    @app.task
    async def double(x: int) -> int:
        return 2 * x

    assert asyncio.run(double(2)) == 4


def test_an_option_that_is_not_there_is_refused_by_the_name_that_people_know() -> None:
    app = App("memory://")
    task = app.task(name="t")(lambda: None)
    for call, name in (
        (app.task, "App.task"),
        (app.workflow, "App.workflow"),
        (app.cron, "App.cron"),
        (task.using, "Task.using"),
    ):
        with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'nice'"):
            call(nice=1)  # type: ignore[call-overload,operator]
