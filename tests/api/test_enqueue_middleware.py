"""@app.enqueue_middleware: code of the user's before every enqueue."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast import App, Task, UsageError
from holdfast.enqueueing.by_name import publish
from holdfast.tasks import Draft


@pytest.fixture
def send(app: App) -> Task[[int], None]:
    @app.task(name="send", queue="mail", on_crash="hold")
    def send(n: int) -> None: ...

    return send


def groups(app: App) -> list[str | None]:
    return [job.row.group for job in reversed(app.find())]


def test_a_layer_changes_every_kind_of_enqueue(app: App, send: Task[[int], None]) -> None:
    @app.enqueue_middleware
    def with_group(draft: Draft[Any]) -> Draft[Any]:
        assert (draft.task.name, draft.arguments.keys()) == ("send", {"n"})
        return draft.using(group=f"g{draft.arguments['n']}", priority=3)

    publish(app.store, app.tasks)
    send.enqueue(1)
    app.enqueue_many([send.job(2), send.using(queue="other").job(3)])
    list(app.enqueue_stream(send.job(n) for n in (4, 5)))
    app.enqueue_by_name("send", [6])
    app.task_named("send").enqueue(7)

    async def program() -> None:
        async def some() -> AsyncIterator[Draft[None]]:
            yield send.job(11)

        await send.aenqueue(8)
        await app.aio.enqueue_many([send.job(9)])
        async for _ in app.aio.enqueue_stream([send.job(10)]):
            pass
        async for _ in app.aio.enqueue_stream(some()):
            pass
        await app.aio.enqueue_by_name("send", [12])

    asyncio.run(program())
    assert groups(app) == [f"g{n}" for n in range(1, 13)]
    rows = [job.row for job in reversed(app.find())]
    assert {(row.priority, row.on_crash) for row in rows} == {(3, "hold")}
    assert [row.queue for row in rows[:3]] == ["mail", "mail", "other"]


def test_layers_come_in_their_order_and_async_ones_only_where_they_can_be_awaited(
    app: App, send: Task[[int], None]
) -> None:
    heard: list[str] = []

    @app.enqueue_middleware
    def first(draft: Draft[Any]) -> Draft[Any]:
        heard.append("first")
        return draft.using(group="first")

    @app.enqueue_middleware
    async def second(draft: Draft[Any]) -> Draft[Any]:
        await asyncio.sleep(0)
        heard.append(f"second after {draft.new.group}")
        return draft.using(group="second")

    @app.enqueue_middleware
    def third(draft: Draft[Any]) -> Draft[Any]:
        heard.append("third")
        return draft

    send.enqueue(1)
    assert heard == ["first", "third"]
    heard.clear()

    async def program() -> None:
        await send.aenqueue(2)
        async for _ in app.aio.enqueue_stream([send.job(3)]):
            pass

    asyncio.run(program())
    assert heard == ["first", "second after first", "third"] * 2
    assert groups(app) == ["first", "second", "second"]


def test_a_layer_refuses_a_job_and_nothing_of_the_call_is_stored(app: App, send: Task[[int], None]) -> None:
    @app.enqueue_middleware
    def small(draft: Draft[Any]) -> Draft[Any]:
        if draft.arguments["n"] > 9:
            raise PermissionError("too large")
        return draft

    publish(app.store, app.tasks)
    for call in (
        lambda: send.enqueue(10),
        lambda: app.enqueue_many([send.job(1), send.job(10)]),
        lambda: app.enqueue_by_name("send", [10]),
        lambda: list(app.enqueue_stream([send.job(1), send.job(10)])),
        lambda: asyncio.run(app.aio.enqueue_many([send.job(1), send.job(10)])),
    ):
        with pytest.raises(PermissionError, match="too large"):
            call()
        assert app.counts()["ready"] == 0


@pytest.mark.parametrize("answer", [None, "text", "another draft"])
def test_a_layer_must_return_the_draft(app: App, send: Task[[int], None], answer: Any) -> None:
    @app.enqueue_middleware
    def wrong(draft: Draft[Any]) -> Draft[Any]:
        return send.job(2) if answer == "another draft" else answer

    with pytest.raises(UsageError, match=r"enqueue middleware wrong returned .*; return the draft"):
        send.enqueue(1)
    assert app.counts()["ready"] == 0


def test_what_is_no_layer_is_refused(app: App) -> None:
    def generator(draft: Draft[Any]) -> Any:
        yield

    for wrong in (generator, 5):
        with pytest.raises(UsageError, match="must be a function that takes a draft and returns it"):
            app.enqueue_middleware(wrong)  # type: ignore[type-var]


def test_a_draft_with_other_options_keeps_the_rest(app: App, send: Task[[int], None]) -> None:
    draft = send.using(key="k", lease_s=7, run_after=60).job(1)
    changed = draft.using(timeout_s=5.0, queue="other")
    assert (changed.new.id, changed.new.key, changed.new.payload) == (draft.new.id, "k", draft.new.payload)
    assert (changed.new.policy.lease_s, changed.new.policy.timeout_s, changed.new.delay_s) == (7, 5.0, 60)
    assert (changed.new.queue, changed.new.policy.on_crash, draft.new.queue) == ("other", "hold", "mail")
    for name in ("id", "connection"):
        with pytest.raises(UsageError, match=f"a draft keeps its {name}"):
            draft.using(**{name: "x"})  # type: ignore[misc]
    with pytest.raises(UsageError, match="queue"):
        draft.using(queue="")
