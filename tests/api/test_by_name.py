"""app.enqueue_by_name: jobs of tasks whose code the program does not have."""

import asyncio
import dataclasses
import datetime
import inspect
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypedDict

import pytest
from msgspec.structs import replace

from holdfast import App, Context, Flow, PayloadError, PolicyError, Retry, UnknownTask, UsageError
from holdfast.core.payload import JsonCodec
from holdfast.core.published import SCHEMA_MAX
from holdfast.enqueueing.by_name import NamedTask, publish
from holdfast.errors import StoreUnavailable
from holdfast.stores.memory import MemoryStore
from holdfast.tasks import EnqueueOptions, Sender
from holdfast.worker.options import WorkerOptions
from holdfast.worker.runner import Runner


@dataclasses.dataclass
class Item:
    name: str
    count: int = 1


class Options(TypedDict, total=False):
    retries: int


def declare(app: App) -> None:
    @app.task(
        name="billing.charge",
        queue="money",
        priority=7,
        retry=Retry(attempts_max=4, on=(OSError,)),
        on_crash="hold",
        crashes_max=2,
        lease_s=12,
        timeout_s=60,
        stall_s=50,
    )
    def charge(ctx: Context, order: int, cents: int = 5, *, note: Literal["a", "b"] = "a") -> None: ...

    @app.task(name="mixed")
    def mixed(first: int, /, second: str = "x", *rest: int, **more: float) -> None: ...

    @app.task(name="rich")
    def rich(
        items: list[Item], at: datetime.datetime, options: Options | None = None, anything: Any = None
    ) -> None: ...

    @app.task(name="keyed", key=lambda order: f"order-{order}")
    def keyed(order: int) -> None: ...

    @app.task(name="fixed", key="only-one")
    def fixed() -> None: ...

    @app.workflow(name="checkout", on_crash="rollback")
    def checkout(flow: Flow, order: int) -> None: ...


@pytest.fixture
def fleet(app: App) -> App:
    """An app without tasks, on a store to which workers have published some."""
    theirs = App(app.url, clock=app.clock)
    theirs.opener = lambda: app.store
    declare(theirs)
    publish(app.store, theirs.tasks)
    return app


def arguments(fleet: App, name: str, given: Any = (), **options: Any) -> Any:
    """Enqueue by name, and return the arguments as a worker reads them."""
    theirs = App("memory://")
    declare(theirs)
    row = fleet.enqueue_by_name(name, given, **options).row
    return theirs.tasks[name].decode(row.payload)


def test_a_job_by_name_has_the_policy_of_its_task(fleet: App) -> None:
    theirs = App("memory://", clock=fleet.clock)
    declare(theirs)
    job = fleet.enqueue_by_name("billing.charge", {"order": 42})
    own = theirs.tasks["billing.charge"].enqueue(order=42)
    same = ("id", "created_at", "run_at")
    assert replace(job.row, **{name: getattr(own.row, name) for name in same}) == own.row
    assert (job.row.queue, job.row.on_crash, job.row.attempts_max, job.row.lease_s) == ("money", "hold", 4, 12)
    assert fleet.enqueue_by_name("checkout", [1]).row.workflow
    assert fleet.enqueue_by_name("checkout", [1]).row.on_crash == "rollback"


def test_arguments_come_by_position_or_by_name(fleet: App) -> None:
    big = 2**70 + 1
    assert arguments(fleet, "billing.charge", [big, 3]) == ((), {"order": big, "cents": 3})
    assert arguments(fleet, "billing.charge", {"order": 1, "note": "b"}) == ((), {"order": 1, "note": "b"})
    assert arguments(fleet, "mixed", [1, "a", 2, 3]) == ((1, "a", 2, 3), {})
    assert arguments(fleet, "mixed", (1,)) == ((1,), {})
    when = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    seen = arguments(fleet, "rich", {"items": [{"name": "a"}], "at": when, "options": {"retries": 1}, "anything": [1]})
    assert seen == ((), {"items": [Item("a")], "at": when, "options": {"retries": 1}, "anything": [1]})
    assert arguments(fleet, "rich", {"items": [Item("b", 2)], "at": "2026-01-02T00:00:00Z"})[1]["items"] == [
        Item("b", 2)
    ]
    assert arguments(fleet, "fixed") == ((), {})


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        (
            "billing.charge",
            {},
            r"task billing.charge: missing argument 'order'; it takes \(order, cents=…, \*, note=…\)",
        ),
        ("billing.charge", {"order": 1, "oder": 2}, "unexpected argument 'oder'; it takes"),
        ("billing.charge", [1, 2, 3], r"too many positional arguments \(3, at most 2\)"),
        ("billing.charge", {"order": "1"}, "task billing.charge: argument 'order': Expected `int`, got `str`"),
        ("billing.charge", {"order": 1.0}, "argument 'order': Expected `int`, got `float`"),
        ("billing.charge", {"order": True}, "argument 'order': Expected `int`, got `bool`"),
        ("billing.charge", {"order": 1, "note": "c"}, "argument 'note': Invalid value 'c'; choose one of 'a', 'b'"),
        ("billing.charge", {"order": 10**5000}, "argument 'order': an integer has too many digits"),
        ("mixed", {"first": 1}, r"missing argument 'first'; it takes \(first, /, second=…, \*rest, \*\*more\)"),
        ("mixed", [1, "a", "b"], r"argument 'rest': Expected `int`, got `str` at `\[0\]`"),
        (
            "rich",
            {"items": [{"nam": "x"}], "at": "2026-01-02T00:00:00Z"},
            r"'items': Object missing required field `name` at",
        ),
        ("rich", {"items": [], "at": "soon"}, "argument 'at': Invalid RFC3339 encoded datetime"),
        ("rich", {"items": [], "at": "2026-01-02T00:00:00Z", "anything": (1,)}, "a tuple would come back as a list"),
        ("rich", {"items": [], "at": object()}, "an object of type object cannot travel as JSON"),
        ("rich", {"items": [], "at": "2026-01-02T00:00:00Z", "anything": [[]] * 1}, None),
        ("fixed", [1], r"too many positional arguments \(1, at most 0\)"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_and_nothing_is_stored(
    fleet: App, name: str, given: Any, words: str | None
) -> None:
    if words is None:
        fleet.enqueue_by_name(name, given)
        return
    with pytest.raises(PayloadError, match=words):
        fleet.enqueue_by_name(name, given)
    assert not any(fleet.counts().values())


@pytest.mark.parametrize("given", ["text", b"bytes", 5, None, {1, 2}])
def test_arguments_are_a_list_or_a_mapping(fleet: App, given: Any) -> None:
    with pytest.raises(UsageError, match="must be a list of positional or a mapping of keyword arguments, not"):
        fleet.enqueue_by_name("mixed", given)


def test_options_are_those_of_using(fleet: App) -> None:
    job = fleet.enqueue_by_name(
        "billing.charge", [1], queue="slow", key="k", priority=1, group="acme", id="mine", run_after=60, lease_s=5
    )
    row = job.row
    assert (row.queue, row.key, row.priority, row.group, row.id, row.lease_s) == ("slow", "k", 1, "acme", "mine", 5)
    assert (row.on_crash, row.run_at) == ("hold", row.created_at + 60)
    assert fleet.enqueue_by_name("billing.charge", [2], key="k").existed
    with pytest.raises(PolicyError, match="only workflows have"):
        fleet.enqueue_by_name("billing.charge", [1], on_crash="rollback")
    with pytest.raises(TypeError, match="nice"):
        fleet.enqueue_by_name("billing.charge", [1], nice=1)  # type: ignore[call-arg]
    wanted = set(inspect.signature(Sender.using).parameters) - {"self"}
    assert wanted == EnqueueOptions.__annotations__.keys(), "enqueue_by_name takes every option of using"


def test_an_unknown_task_is_refused_unless_the_policy_is_stated(fleet: App) -> None:
    with pytest.raises(
        UnknownTask, match=r"no worker has published a task 'billing.chrge'; did you mean billing.charge"
    ):
        fleet.enqueue_by_name("billing.chrge", {"order": 1})
    with pytest.raises(UnknownTask, match=r"did you mean billing.charge"):
        fleet.enqueue_by_name("charge")
    with pytest.raises(UnknownTask, match=r"'zzz'; start a worker that has it, or state on_crash="):
        fleet.enqueue_by_name("zzz")
    assert not any(fleet.counts().values())
    row = fleet.enqueue_by_name("zzz", {"a": 1, "b": [2]}, on_crash="hold", queue="q").row
    assert (row.task, row.queue, row.on_crash, row.payload) == ("zzz", "q", "hold", '{"a":1,"b":[2]}')
    with pytest.raises(UsageError, match="give its arguments by their names"):
        fleet.enqueue_by_name("zzz", [1], on_crash="hold")
    with pytest.raises(PayloadError, match=r"task zzz: argument 'a': a tuple"):
        fleet.enqueue_by_name("zzz", {"a": (1,)}, on_crash="retry")
    with pytest.raises(PolicyError, match="only workflows have"):
        fleet.enqueue_by_name("zzz", {}, on_crash="rollback")


def test_a_key_that_is_made_by_code_must_be_stated(fleet: App) -> None:
    with pytest.raises(UsageError, match=r"a function makes the keys of its jobs.*state the key of this one: key=…"):
        fleet.enqueue_by_name("keyed", [1])
    assert fleet.enqueue_by_name("keyed", [1], key="order-1").row.key == "order-1"
    assert fleet.enqueue_by_name("fixed").row.key == "only-one"
    assert fleet.enqueue_by_name("fixed").existed


def test_many_jobs_are_made_of_a_task_that_was_named_once(fleet: App) -> None:
    task = fleet.task_named("billing.charge")
    assert isinstance(task, NamedTask)
    assert repr(task) == "<NamedTask billing.charge>"
    jobs = fleet.enqueue_many([task.job(n) for n in range(3)] + [task.using(on_crash="fail").job(9)])
    assert [job.row.on_crash for job in jobs] == ["hold", "hold", "hold", "fail"]
    assert [progress.stored for progress in fleet.enqueue_stream(task.job(n) for n in range(2))] == [2]


def test_a_task_that_only_this_program_declares_is_known_by_name(app: App) -> None:
    declare(app)
    assert app.enqueue_by_name("billing.charge", [1]).row.on_crash == "hold"
    assert app.task_named("fixed") is app.tasks["fixed"]


def test_it_is_awaited(fleet: App) -> None:
    async def program() -> None:
        job = await fleet.aio.enqueue_by_name("billing.charge", [1])
        task = await fleet.aio.task_named("billing.charge")
        other = await task.aenqueue(2)
        assert job.row.on_crash == other.row.on_crash == "hold"

    asyncio.run(program())


def test_a_codec_of_its_own_is_not_bypassed(app: App) -> None:
    class Reversed(JsonCodec):
        def encode(self, plain: Any) -> str:
            return super().encode(plain)[::-1]

        def decode(self, text: str) -> Any:
            return super().decode(text[::-1])

    theirs = App("memory://", codec=Reversed())
    declare(theirs)
    publish(app.store, theirs.tasks)
    with pytest.raises(UsageError, match=r"read arguments as a codec of their own.*same codec="):
        app.enqueue_by_name("billing.charge", [1])
    other = App("memory://", codec=Reversed())
    other.opener = lambda: app.store
    assert other.enqueue_by_name("billing.charge", [1]).row.payload == '}1:"redro"{'
    declare(app)
    publish(app.store, app.tasks)
    with pytest.raises(UsageError, match="read arguments as JSON"):
        other.enqueue_by_name("billing.charge", [1])


def test_it_takes_part_in_the_callers_transaction(tmp_path: Path) -> None:
    with App(f"sqlite:///{tmp_path}/jobs.db") as app:
        declare(app)
        publish(app.store, app.tasks)
        connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        connection.execute("BEGIN")
        app.enqueue_by_name("billing.charge", [1], connection=connection)
        connection.execute("ROLLBACK")
        assert app.counts()["ready"] == 0


def test_a_schema_that_is_too_large_is_left_out(app: App) -> None:
    @app.task(name="large")
    def large(word: Literal["x"]) -> None: ...

    large._signature._shapes["word"].hint = Literal[tuple(f"{n:0100}" for n in range(SCHEMA_MAX // 100))]  # type: ignore[attr-defined]
    publish(app.store, app.tasks)
    [known] = app.store.published()
    assert known.schema == {}
    assert app.enqueue_by_name("large", {"word": 5}).row.payload == '{"word":5}'


# --- what workers publish -----------------------------------------------------------------------------


class Counting(MemoryStore):
    """Counts what is written, and fails as often as it is told to."""

    writes = 0
    failures = 0

    def publish(self, tasks: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("not now")
        self.writes += 1
        super().publish(tasks)


@pytest.fixture
def counting() -> Iterator[App]:
    app = App("memory://")
    store = Counting()
    app.opener = lambda: store
    declare(app)
    with app:
        yield app


def the_store(app: App) -> Counting:
    assert isinstance(app.store, Counting)
    return app.store


def test_a_worker_publishes_at_its_start_and_only_what_is_new(counting: App) -> None:
    counting.tick(1)
    assert len(counting.store.published()) == len(counting.tasks)
    with counting.worker(slots=1):
        pass
    assert the_store(counting).writes == 1

    @counting.task(name="new")
    def new() -> None: ...

    counting.tick(1)
    assert the_store(counting).writes == 2
    assert counting.store.published(["new"])


def test_a_worker_starts_although_it_cannot_publish_and_tries_again(
    counting: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.publisher.AGAIN_S", 0.01)
    the_store(counting).failures = 2

    @counting.task(name="quick")
    def quick() -> int:
        return os.getpid()

    with counting.worker(slots=1):
        assert quick.enqueue().result(30) == os.getpid()
        deadline = counting.clock.lease() + 30
        while not counting.store.published() and counting.clock.lease() < deadline:
            counting.clock.wait(__import__("threading").Event(), 0.01)
    assert counting.store.published(["quick"])
    assert "enqueues by name see this worker's tasks as they were published before" in caplog.text


def test_nothing_is_published_for_an_app_without_tasks() -> None:
    app = App("memory://")
    store = Counting()
    app.opener = lambda: store
    with app:
        Runner(app, WorkerOptions(reaper=False), until_idle=True).run()
    assert store.writes == 0
