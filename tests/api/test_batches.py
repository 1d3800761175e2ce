"""app.batch: jobs that belong together, and one that is stored when all of them have ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import App, Context, GiveUp, NotFound, Refused, StoreUnavailable, UsageError
from holdfast.core.payload import JsonCodec
from holdfast.enqueueing.many import ADD_AT_ONCE
from holdfast.errors import PayloadError
from holdfast.tasks import Draft
from holdfast.testing import FakeClock

Said = list[dict[str, Any]]


@pytest.fixture
def app() -> App:
    app = App("memory://")

    @app.task(name="resize")
    def resize(path: str) -> str:
        if path == "bad.mov":
            raise GiveUp("cannot be read")
        return path

    return app


@pytest.fixture
def said(app: App) -> Said:
    """What the task `summarise` was called with."""
    calls: Said = []

    @app.task(name="summarise", queue="after")
    def summarise(ctx: Context, batch_id: str, counts: dict[str, int], complete: bool, title: str = "") -> str:
        calls.append({"batch_id": batch_id, "counts": counts, "complete": complete, "title": title})
        return f"{counts['done']} fine"

    return calls


def drafts(app: App, *paths: str) -> list[Any]:
    return [app.tasks["resize"].job(path) for path in paths]


def work(app: App) -> None:
    for _ in range(3):
        app.tick(budget_s=60)


def counts(**given: int) -> dict[str, int]:
    return {"done": 0, "dead": 0, "cancelled": 0, "rolled_back": 0} | given


def test_the_last_job_runs_once_with_the_counts(app: App, said: Said) -> None:
    with app.batch(then="summarise") as batch:
        batch.add(*drafts(app, "a.mov", "bad.mov"))
        batch.add(*drafts(app, "b.mov"))
    work(app)
    assert said == [{"batch_id": batch.id, "counts": counts(done=2, dead=1), "complete": True, "title": ""}]
    assert app.get(f"{batch.id}:then:0").result(timeout=1) == "2 fine"
    work(app)
    assert len(said) == 1


def test_a_worker_ends_it_as_soon_as_its_last_job_has_ended(app: App, said: Said) -> None:
    with app.worker(slots=2, queues=["default", "after"], reaper=False):
        with app.batch(then=app.tasks["summarise"]) as batch:
            batch.add(*drafts(app, "a.mov", "b.mov"))
        last = app.get_batch(batch.id).then
        assert last is not None
        deadline = app.clock.lease() + 10
        while app.get_batch(batch.id).state != "ended":
            assert app.clock.lease() < deadline
        assert app.get(last).result(timeout=10) == "2 fine"


def test_a_draft_keeps_its_own_arguments(app: App, said: Said) -> None:
    again = app.tasks["summarise"].using(priority=9)

    @app.task(name="report", queue="after")
    def report(title: str, counts: dict[str, int] | None = None) -> None:
        said.append({"title": title, "counts": counts})

    with app.batch(then=report.job("films")):
        pass
    with app.batch(then=again) as batch:
        pass
    assert app.get(f"{batch.id}:then:0").row.priority == 9
    work(app)
    assert [each["title"] for each in said] == ["", "films"] or [each["title"] for each in said] == ["films", ""]
    assert {"title": "films", "counts": counts()} in said


def test_its_progress_is_seen(app: App, said: Said) -> None:
    with app.batch(then="summarise") as batch:
        batch.add(*drafts(app, "a.mov"))
        batch.store()
        assert app.get_batch(batch.id).state == "open"
        batch.add(*drafts(app, "bad.mov"))
    seen = app.get_batch(batch.id)
    assert (seen.state, seen.jobs, seen.progress, seen.complete) == ("running", 2, 0.0, True)
    assert (seen.then, seen.then_task, seen.counts["ready"]) == (f"{batch.id}:then:0", "summarise", 2)
    app.tick(budget_s=60, queues=["default"])
    seen = app.get_batch(batch.id)
    assert (seen.state, seen.progress, seen.counts_at_end) == ("ended", 1.0, {"done": 1, "dead": 1})
    assert [job.row.payload for job in app.batch_jobs(batch.id, "dead")] == ['{"path":"bad.mov"}']
    assert len(app.batch_jobs(batch.id)) == 2
    assert [each.id for each in app.admin.batches()] == [batch.id]
    assert asyncio.run(app.aio.get_batch(batch.id)).state == "ended"
    with pytest.raises(NotFound, match="no batch 'x'"):
        app.get_batch("x")


def test_an_error_in_a_small_block_stores_nothing(app: App, said: Said) -> None:
    batch = app.batch(then="summarise")

    def produce() -> None:
        with batch:
            batch.add(*drafts(app, "a.mov"))
            raise ValueError("oh")

    with pytest.raises(ValueError, match="oh"):
        produce()
    assert app.find() == []
    with pytest.raises(NotFound):
        app.get_batch(batch.id)


def test_an_error_after_a_chunk_ends_the_batch_as_not_complete(app: App, said: Said) -> None:
    def produce() -> None:
        with app.batch(then="summarise") as batch:
            batch.add(*drafts(app, *(str(number) for number in range(ADD_AT_ONCE))))
            batch.add(*drafts(app, "one more"))
            raise ValueError("oh")

    with pytest.raises(ValueError, match="oh"):
        produce()
    app.tick(budget_s=60, slots=100)
    work(app)
    assert [(each["complete"], each["counts"]) for each in said] == [(False, counts(done=ADD_AT_ONCE))]


@pytest.mark.parametrize("id", [None, "import-8"])
def test_jobs_that_a_store_could_not_take_stay_in_the_batch(
    app: App, said: Said, monkeypatch: pytest.MonkeyPatch, id: str | None
) -> None:
    real, failures = app.store.batches.add, iter([True, False, True, True])

    def add(batch_id: str, jobs: Any) -> Any:
        if next(failures, False):
            raise StoreUnavailable("away")
        return real(batch_id, jobs)

    monkeypatch.setattr(app.store.batches, "add", add)
    first, rest = drafts(app, *map(str, range(ADD_AT_ONCE))), drafts(app, "a.mov", "b.mov")
    with app.batch(then="summarise", id=id) as batch:
        with pytest.raises(StoreUnavailable):
            batch.add(*first)
        batch.add(first[-1])  # the caller tries again
        assert batch.added == ADD_AT_ONCE
        batch.add(*rest)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                batch.store()
    app.tick(budget_s=60, slots=100)
    work(app)
    assert [(each["complete"], each["counts"]) for each in said] == [(True, counts(done=ADD_AT_ONCE + 2))]


def test_a_block_that_another_run_completes_meanwhile_finds_its_batch(app: App, said: Said) -> None:
    def produce(meanwhile: Callable[[], None]) -> bool:
        with app.batch(then="summarise", id="import-9") as batch:
            batch.add(*drafts(app, "a.mov"))
            batch.store()
            meanwhile()
            batch.add(*drafts(app, "b.mov"))
        return batch.existed

    assert produce(lambda: print(produce(lambda: None)))
    work(app)
    assert [each["counts"] for each in said] == [counts(done=2)]


def test_a_block_with_an_id_may_be_repeated(app: App, said: Said) -> None:
    def produce(fails: bool) -> None:
        with app.batch(then="summarise", id="import-7") as batch:
            batch.add(*drafts(app, "a.mov", "b.mov"))
            batch.store()
            if fails:
                raise ValueError("oh")
            batch.add(*drafts(app, "c.mov"))

    with pytest.raises(ValueError, match="oh"):
        produce(True)
    work(app)
    assert (said, app.get_batch("import-7").state) == ([], "open")
    produce(False)
    produce(False)  # its answer was lost
    assert sorted(job.id for job in app.batch_jobs("import-7")) == [f"import-7:job:{number}" for number in (1, 2, 3)]
    work(app)
    produce(False)
    assert [each["counts"] for each in said] == [counts(done=3)]


def test_a_producer_that_comes_back_too_late_is_told(said: Said, app: App) -> None:
    app.clock = clock = FakeClock()
    with app.batch(then="summarise", abandon_s=60) as batch:
        batch.add(*drafts(app, "a.mov"))
        batch.store()
        clock.advance(61)
        app.reap()
        batch.add(*drafts(app, "b.mov"))
        with pytest.raises(Refused, match="nobody had added to it for 60 s"):
            batch.store()
    late = app.batch(then="summarise", id=batch.id)
    late.add(*drafts(app, "c.mov"))
    with pytest.raises(Refused, match="choose a longer abandon_s"):
        late.store()


def test_an_abandoned_batch_is_in_the_log(app: App, said: Said, caplog: pytest.LogCaptureFixture) -> None:
    app.clock = clock = FakeClock()
    batch = app.batch(then="summarise", abandon_s=60)
    batch.add(*drafts(app, "a.mov"))
    batch.store()
    clock.advance(61)
    with caplog.at_level(logging.WARNING, "holdfast.batches"):
        app.reap()
    assert f"batch {batch.id} is closed: nobody has added to it for 60 s" in caplog.text


def test_the_async_batch_does_the_same(app: App, said: Said) -> None:
    async def produce() -> str:
        async with app.aio.batch(then="summarise") as batch:
            await batch.add(*drafts(app, *(str(number) for number in range(ADD_AT_ONCE + 2))))
            assert (batch.added, batch.existed) == (ADD_AT_ONCE + 2, False)
        return batch.id

    name = asyncio.run(produce())
    assert app.get_batch(name).jobs == ADD_AT_ONCE + 2


def test_enqueue_middleware_sees_its_jobs(app: App, said: Said) -> None:
    seen: list[str] = []

    @app.enqueue_middleware
    def note(draft: Draft[Any]) -> Draft[Any]:
        seen.append(draft.task.name)
        return draft

    with app.batch() as batch:
        batch.add(*drafts(app, "a.mov"))
    assert seen == ["resize"]


def unknown(app: App) -> None:
    app.batch(then="nobody")


def a_function(app: App) -> None:
    app.batch(then=print)  # type: ignore[arg-type]


def wrong_argument(app: App) -> None:
    @app.task(name="x")
    def x(counts: str) -> None: ...

    app.batch(then=x)


def another_argument(app: App) -> None:
    app.batch(then=app.tasks["resize"])


def another_app(app: App) -> None:
    app.batch(then=App("memory://").task(name="y")(lambda: None))


def never(app: App) -> None:
    app.batch(abandon_s=0)


def no_id(app: App) -> None:
    app.batch(id="a b")


def connected(app: App) -> None:
    app.batch().add(app.tasks["resize"].using(connection=object()).job("a"))


def too_late(app: App) -> None:
    with app.batch() as batch:
        pass
    batch.add(app.tasks["resize"].job("a"))


def own_codec(app: App) -> None:
    own = App("memory://", codec=JsonCodec())
    own.task(name="y")(lambda: None)
    own.batch(then="y")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (unknown, "nobody"),
        (a_function, "must be a task of this app"),
        (wrong_argument, "counts"),
        (another_argument, "path"),
        (another_app, "must be a task of this app"),
        (never, "abandon_s=0"),
        (no_id, "id='a b'"),
        (connected, "connection"),
        (too_late, "inside the `with` block"),
        (own_codec, "codec"),
    ],
)
def test_what_could_never_run_is_refused(app: App, call: Callable[[App], None], words: str) -> None:
    with pytest.raises((UsageError, PayloadError), match=words):
        call(app)
    assert app.find() == []
