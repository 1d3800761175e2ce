"""The app over each store: enqueue, look, wait, act."""

import asyncio
import inspect
import json
import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from holdfast import (
    App,
    BadURL,
    IllegalMove,
    Job,
    JobCancelled,
    JobDead,
    JobRolledBack,
    KeyTaken,
    NotFound,
    PayloadError,
    Refused,
    SchemaMismatch,
    Task,
    UnknownTask,
    UsageError,
)
from holdfast.aio import AsyncApp
from holdfast.core import acts
from holdfast.core.machine import State
from holdfast.core.payload import JSON
from holdfast.core.records import NewJob
from holdfast.core.verdict import Cancelled, Failed, Succeeded
from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import StoreMissing, StoreUnsupported
from holdfast.stores.memory import MemoryStore
from holdfast.stores.protocol import Added, Schema
from holdfast.testing import FakeClock
from tests.factory import EXPIRED, claim, delete, job_in, park, picture, settle, start_flow


@pytest.fixture
def add(app: App) -> Task[[int, int], int]:
    @app.task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    return add


def run(app: App, job: Job[Any], outcome: Any = None) -> None:
    """Be a worker for one job."""
    [row] = claim(app.store, queues=[job.queue], tasks=[job.task], limit=1)
    assert row.id == job.id
    if outcome is None:
        args, kwargs = app.tasks[row.task].decode(row.payload)
        outcome = Succeeded(app.tasks[row.task].encode_result(app.tasks[row.task].fn(*args, **kwargs)))
    settle(app.store, row, outcome)


def held(app: App, task: Task[[int, int], int], **using: Any) -> Job[int]:
    job = task.using(on_crash="hold", **using).enqueue(1, 2)
    run(app, job, EXPIRED)
    assert job.refresh().state is State.HELD
    return job


def dead(app: App, task: Task[[int, int], int], **using: Any) -> Job[int]:
    job = task.using(on_crash="fail", **using).enqueue(1, 2)
    run(app, job, EXPIRED)
    return job


# --------------------------------------------------------------------------------------------- enqueue


def test_an_enqueued_job_is_found_again(app: App, add: Task[[int, int], int]) -> None:
    job = add.enqueue(1, y=2)
    assert (job.task, job.queue, job.state, job.existed, job.error) == ("add", "default", "ready", False, None)
    again = app.get(job.id)
    assert again.row == job.row
    assert again.row.payload == '{"x":1,"y":2}'
    assert repr(again) == f"<Job {job.id} add ready>"


def test_what_does_not_fit_stores_nothing(app: App, add: Task[[int, int], int]) -> None:
    with pytest.raises(PayloadError, match="task add: argument 'y'"):
        add.enqueue(1, "two")  # type: ignore[arg-type]
    with pytest.raises(PayloadError, match="missing argument 'y'"):
        add.enqueue(1)  # type: ignore[call-arg]
    assert sum(app.counts().values()) == 0


def test_a_taken_key_gives_the_job_that_has_it(app: App, add: Task[[int, int], int]) -> None:
    first = add.using(key="k").enqueue(1, 2)
    second = add.using(key="k", queue="elsewhere").enqueue(3, 4)
    assert (second.id, second.existed, second.queue) == (first.id, True, "default")
    run(app, first)
    assert not add.using(key="k").enqueue(1, 2).existed


def test_an_enqueue_repeated_with_its_id_is_one_job(app: App, add: Task[[int, int], int]) -> None:
    repeated = add.using(id="order-42")
    assert [repeated.enqueue(1, 2).existed for _ in range(3)] == [False, True, True]
    assert app.counts()["ready"] == 1
    assert app.get("order-42").task == "add"


def test_a_later_job_waits_for_its_time(app: App, add: Task[[int, int], int], clock: FakeClock) -> None:
    now = clock.wall()
    job = add.using(run_after=60).enqueue(1, 2)
    assert job.row.run_at == now + 60
    assert claim(app.store, tasks=["add"]) == []


def test_many_jobs_in_order_and_in_batches(url: str, clock: FakeClock) -> None:
    with App(url, clock=clock) as app:

        @app.task
        def work(n: int) -> None: ...

        sizes: list[int] = []
        add = app.store.add

        def counted(jobs: Any) -> list[Added]:
            sizes.append(len(jobs))
            return add(jobs)

        app.store.add = counted  # type: ignore[method-assign]
        drafts = [work.job(n) for n in range(2_500)]
        jobs = app.enqueue_many(iter(drafts))
        assert sizes == [1000, 1000, 500]
        assert [job.id for job in jobs] == [draft.new.id for draft in drafts]
        assert app.get(jobs[1234].id).row.payload == '{"n":1234}'
        assert app.counts()["ready"] == 2_500
        assert all(job.existed for job in app.enqueue_many(drafts[:10]))
        assert app.enqueue_many([]) == []


def test_large_jobs_are_stored_in_short_transactions(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task(name="large")
    def large(text: str) -> None: ...

    sizes: list[int] = []
    real = app.store.add
    monkeypatch.setattr(app.store, "add", lambda jobs, *rest: (sizes.append(len(jobs)), real(jobs, *rest))[1])
    monkeypatch.setattr("holdfast.enqueueing.many.ADD_CHARACTERS", 1_000)
    stored = app.enqueue_many([large.job("x" * length) for length in (400, 400, 400, 5_000, 10, 10)])
    assert sizes == [2, 1, 1, 2]
    assert [app.get(job.id).state for job in stored] == ["ready"] * 6


def test_drafts_of_other_apps_are_refused(app: App, add: Task[[int, int], int]) -> None:
    other = App("memory://")
    stranger = other.task(name="add")(add.fn)
    with pytest.raises(UsageError, match="not a job of this app"):
        app.enqueue_many([add.job(1, 2), stranger.job(1, 2)])
    with pytest.raises(UsageError, match="not a job of this app"):
        app.enqueue_many([add])  # type: ignore[list-item]
    assert app.counts()["ready"] == 0


def test_an_enqueue_wakes_a_worker_in_this_process(app: App, add: Task[[int, int], int]) -> None:
    woken: list[str] = []
    wake = app.store.wake
    app.store.wake = lambda: (woken.append("wake"), wake())[1]  # type: ignore[method-assign,func-returns-value]
    add.enqueue(1, 2)
    assert woken


class Hidden:
    def encode(self, plain: Any) -> str:
        return JSON.encode(plain)[::-1]

    def decode(self, text: str) -> Any:
        return JSON.decode(text[::-1])


def test_another_codec_is_used_for_payloads_and_results(url: str, clock: FakeClock) -> None:
    with App(url, clock=clock, codec=Hidden()) as app:
        task = app.task(name="t")(lambda x: [x])
        job = task.enqueue("abc")
        assert job.row.payload == '}"cba":"x"{'
        run(app, job)
        assert job.result(timeout=0) == ["abc"]
        del app.tasks["t"]
        assert job.result(timeout=0) == ["abc"]


def test_an_app_writes_nothing_that_the_codec_of_a_job_could_not_read(app: App) -> None:
    asks = park(app.store, start_flow(app.store, payload='}1:"x"{'), "signal:approve:1", question="Ship it?")
    held = job_in(app.store, State.HELD, payload='}1:"x"{')
    for act in (
        lambda: app.approve(asks.id),
        lambda: app.resolve(asks.id, "fail"),
        lambda: app.signal(asks.id, "paid", 5),
        lambda: app.resolve(held.id, "done", result=7),
    ):
        before = picture(app.store)
        with pytest.raises(UsageError, match="was stored with another codec"):
            act()
        assert picture(app.store) == before
    app.codec = Hidden()
    app.signal(asks.id, "paid", {"cents": 5})
    assert [signal.value for signal in app.store.inbox(asks.id, "paid").signals] == ['}5:"stnec"{']
    assert app.resolve(held.id, "done", result=[7]).row.result == "]7["
    with pytest.raises(UsageError, match="was stored with another codec"):
        app.signal(start_flow(app.store, payload="{}").id, "paid")


def test_an_app_may_answer_for_jobs_whose_arguments_are_as_deep_as_they_may_be(app: App) -> None:
    deep = "[" * 64 + "]" * 64
    flow = start_flow(app.store, payload=f'{{"x":{deep}}}')
    assert app.signal(flow.id, "paid")


# ------------------------------------------------------------------------------------------ the handle


def test_a_result_is_what_the_task_returned(app: App, add: Task[[int, int], int]) -> None:
    job = add.enqueue(1, 2)
    run(app, job)
    assert job.result(timeout=0) == 3
    assert job.state == "done"


def test_a_result_of_an_unknown_task_is_plain(app: App) -> None:
    @app.task(name="t")
    def pair() -> tuple[int, int]:
        return 1, 2

    job = pair.enqueue()
    run(app, job)
    assert job.result(0) == (1, 2)
    app.tasks = {}
    assert app.get(job.id).result(0) == [1, 2]


def test_a_task_without_a_result(app: App) -> None:
    @app.task
    def nothing() -> None: ...

    job = nothing.enqueue()
    run(app, job)
    assert job.result(timeout=0) is None
    run(app, other := nothing.enqueue(), Succeeded(None))
    assert other.result(timeout=0) is None


@pytest.mark.parametrize(
    ("outcome", "kind", "message"),
    [
        (Failed("no luck"), JobDead, "no luck"),
        (Cancelled("stopped"), JobCancelled, "stopped"),
    ],
)
def test_a_job_that_ended_without_a_result_says_why(
    app: App, add: Task[[int, int], int], outcome: Any, kind: type[Exception], message: str
) -> None:
    from holdfast import Retry

    job = add.using(retry=Retry(attempts_max=1)).enqueue(1, 2)
    run(app, job, outcome)
    with pytest.raises(kind, match=message) as caught:
        job.result()
    assert caught.value.job_id == job.id  # type: ignore[attr-defined]
    assert message in (job.error or "")


def test_a_rolled_back_job_says_so(app: App, add: Task[[int, int], int]) -> None:
    from holdfast.core.policy import Policy

    app.store.add([NewJob(id="saga", task="add", payload="{}", policy=Policy(on_crash="rollback"))])
    job = app.get("saga")
    run(app, job, EXPIRED)
    run(app, job, Succeeded())
    with pytest.raises(JobRolledBack):
        job.result(timeout=0)


@pytest.mark.parametrize("make", [held, lambda app, add: add.enqueue(1, 2)], ids=["held", "ready"])
def test_a_job_that_has_not_ended_times_out(app: App, add: Task[[int, int], int], make: Any) -> None:
    job = make(app, add)
    with pytest.raises(TimeoutError, match=f"job {job.id} is still (held|ready) after 0 s"):
        job.result(timeout=0)
    with pytest.raises(UsageError, match="timeout"):
        job.result(timeout=-1)


def test_waiting_takes_as_long_as_it_was_asked_to(clock: FakeClock) -> None:
    with App("memory://", clock=clock) as app:
        job = app.task(name="t")(lambda: 1).enqueue()
        looks: list[float] = []
        get = app.store.get
        app.store.get = lambda id: (looks.append(clock.lease()), get(id))[1]  # type: ignore[method-assign]
        before = clock.lease()
        with pytest.raises(TimeoutError):
            job.result(timeout=30)
        assert clock.lease() == pytest.approx(before + 30)
        assert len(looks) < 100  # no hot loop


def test_a_store_that_hints_all_the_time_makes_no_hot_loop(clock: FakeClock) -> None:
    with App("memory://", clock=clock) as app:
        job = app.task(name="t")(lambda: 1).enqueue()
        app.store.wait = lambda timeout_s: True  # type: ignore[method-assign]
        before = clock.lease()
        with pytest.raises(TimeoutError):
            job.result(timeout=1)
        assert clock.lease() == pytest.approx(before + 1, abs=0.01)


def test_waiting_ends_when_the_job_does(url: str) -> None:
    with App(url) as app:
        job = app.task(name="t")(lambda: 5).enqueue()
        worker = threading.Thread(target=lambda: (run(app, job), app.store.wake()))
        worker.start()
        assert app.get(job.id).result(timeout=60) == 5
        worker.join()


def test_a_removed_job_is_not_found(app: App, add: Task[[int, int], int]) -> None:
    job = add.enqueue(1, 2)
    assert delete(app.store, job.id, job.state, job.row.fence)
    with pytest.raises(NotFound, match=job.id):
        job.refresh()
    with pytest.raises(NotFound):
        job.result(timeout=0)


def test_events_are_the_history(app: App, add: Task[[int, int], int]) -> None:
    job = add.enqueue(1, 2)
    run(app, job, Failed("at first"))
    job.cancel(by="ann", note="enough")
    assert [(event.kind, event.actor) for event in job.events()] == [("failed", None), ("cancelled", "ann")]
    assert job.state == "cancelled"


# ------------------------------------------------------------------------------------------- read side


def test_nobody_finds_a_job_that_is_not_there(app: App) -> None:
    for verb in (app.get, app.cancel, app.revive, lambda id: app.resolve(id, "done")):
        with pytest.raises(NotFound, match="there is no job 'nope'"):
            verb("nope")


@pytest.mark.parametrize("text", ["a\x00", "a\ud800"])
def test_text_that_no_job_can_have_is_refused_by_every_store(app: App, text: str) -> None:
    asked = (
        *(lambda: app.get(text), lambda: app.cancel(text)),
        *(lambda: app.find(key=text), lambda: app.find(task=text), lambda: app.find(queue=text)),
    )
    for ask in asked:
        with pytest.raises(UsageError, match="holds a character that cannot be stored"):
            ask()


def test_find(app: App, add: Task[[int, int], int]) -> None:
    ready = add.using(queue="a", key="k").enqueue(1, 2)
    waiting = held(app, add)
    gone = dead(app, add)
    assert [job.id for job in app.find()] == [gone.id, waiting.id, ready.id]
    assert [job.id for job in app.find("held")] == [waiting.id]
    assert [job.id for job in app.find(State.HELD)] == [waiting.id]
    assert [job.id for job in app.find(["dead", State.READY])] == [gone.id, ready.id]
    assert [job.id for job in app.find(queue="a", key="k", task="add")] == [ready.id]
    assert app.find(task="other") == app.find(key="other") == []
    assert len(app.find(limit=2)) == 2
    with pytest.raises(UsageError, match="'lost' is not a state; known: ready, running"):
        app.find("lost")


def test_jobs_are_found_by_the_last_part_of_their_tasks_name(app: App) -> None:
    ship = app.task(name="shop.ship")(lambda: None)
    app.task(name="shop.mail.send")(lambda: None)
    app.task(name="shop.news.send")(lambda: None)
    job = ship.enqueue()
    assert (
        [found.id for found in app.find(task="ship")] == [found.id for found in app.find(task="shop.ship")] == [job.id]
    )
    with pytest.raises(
        UnknownTask, match=r"several tasks are called 'send'; known: shop\.mail\.send, shop\.news\.send"
    ):
        app.find(task="send")
    assert app.find(task="of.another.program") == []


def test_counts_have_every_state(app: App, add: Task[[int, int], int]) -> None:
    assert app.counts() == {state.value: 0 for state in State}
    add.enqueue(1, 2)
    add.using(queue="other").enqueue(1, 2)
    dead(app, add, queue="third")
    assert app.counts() == {state.value: 0 for state in State} | {"ready": 2, "dead": 1}


# ------------------------------------------------------------------------------------------------ acts


def test_cancel(app: App, add: Task[[int, int], int]) -> None:
    job = add.enqueue(1, 2)
    assert app.cancel(job.id, by="ann", note="not needed").state == "cancelled"
    with pytest.raises(JobCancelled, match="not needed"):
        job.result(timeout=0)
    with pytest.raises(IllegalMove, match=f"^job {job.id} is cancelled already; revive it"):
        app.cancel(job.id)


def test_cancel_asks_a_running_job_to_stop(app: App, add: Task[[int, int], int]) -> None:
    job = add.enqueue(1, 2)
    [row] = claim(app.store, tasks=["add"])
    assert job.cancel().state == "running"
    assert job.row.cancel_requested
    assert job.row.fence == row.fence


def test_revive(app: App, add: Task[[int, int], int]) -> None:
    job = dead(app, add)
    assert app.revive(job.id, by="ann", note="fixed").state == "ready"
    [event] = [event for event in job.events() if event.kind == "revived"]
    assert (event.actor, event.detail["note"]) == ("ann", "fixed")
    run(app, job)
    assert job.result(timeout=0) == 3
    with pytest.raises(IllegalMove):
        app.revive(job.id)


def test_revive_onto_a_taken_key(app: App, add: Task[[int, int], int]) -> None:
    job = dead(app, add, key="k")
    add.using(key="k").enqueue(1, 2)
    with pytest.raises(KeyTaken):
        app.revive(job.id)


def test_resolve(app: App, add: Task[[int, int], int]) -> None:
    assert app.resolve(held(app, add).id, "done", by="ann", result=7).result(timeout=0) == 7
    assert app.resolve(held(app, add).id, "done").result(timeout=0) is None
    assert app.resolve(held(app, add).id, "retry").state == "ready"
    failed = app.resolve(held(app, add, queue="other").id, "fail", note="it did not happen")
    with pytest.raises(JobDead, match="it did not happen"):
        failed.result(timeout=0)
    with pytest.raises(IllegalMove, match="only a held job"):
        app.resolve(failed.id, "done")


def test_resolve_is_held_to_the_task(app: App, add: Task[[int, int], int]) -> None:
    job = held(app, add)
    with pytest.raises(PayloadError, match="Expected `int`, got `str`"):
        app.resolve(job.id, "done", result="seven")
    with pytest.raises(UsageError, match="goes with"):
        app.resolve(job.id, "fail", result=7)
    with pytest.raises(UsageError, match="is not an answer"):
        app.resolve(job.id, "maybe")  # type: ignore[arg-type]
    assert job.refresh().state == "held"


def test_resolve_takes_any_result_of_a_task_that_is_not_there(app: App, add: Task[[int, int], int]) -> None:
    job = held(app, add)
    app.tasks = {}
    with pytest.raises(PayloadError, match=f"job {job.id}: the result: bytes"):
        app.resolve(job.id, "done", result=b"")
    assert app.resolve(job.id, "done", result=["seven"]).result(timeout=0) == ["seven"]


def test_an_act_that_comes_too_late_is_refused_with_the_present_state(
    app: App, add: Task[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = held(app, add)
    revive = acts.revive

    def slow(row: Any, *args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        app.revive(row.id)  # somebody else is quicker
        return revive(row, *args, **kwargs)

    monkeypatch.setattr(acts, "revive", slow)
    with pytest.raises(Refused, match=r"was held \(fence \d+\) and is ready \(fence \d+\) by now"):
        app.revive(job.id)
    assert len([event for event in job.events() if event.kind == "revived"]) == 1


def test_an_act_on_another_fence_than_the_person_saw_is_refused(app: App, add: Task[[int, int], int]) -> None:
    seen = held(app, add).row
    for act in (app.cancel, app.revive, lambda id, **given: app.resolve(id, "done", **given)):
        for fence in (seen.fence - 1, seen.fence + 1, 0):
            with pytest.raises(
                Refused, match=f"job {seen.id} is held with fence {seen.fence} by now, and you saw fence {fence}"
            ):
                act(seen.id, fence=fence)
    assert app.get(seen.id).row == seen
    assert app.resolve(seen.id, "retry", fence=seen.fence).state == "ready"
    with pytest.raises(Refused, match=rf"is ready with fence {seen.fence + 1} by now"):
        app.revive(seen.id, fence=seen.fence)
    assert app.cancel(seen.id, fence=seen.fence + 1).state == "cancelled"


def test_reap_settles_what_a_dead_worker_left_and_tells_the_hooks(app: App, add: Task[[int, int], int]) -> None:
    told: list[Any] = []
    app.on("zombie", told.append)

    @app.on("zombie")
    def also(event: Any) -> None:
        told.append(event)

    with pytest.raises(UsageError, match="no event 'party'"):
        app.on("party", told.append)  # type: ignore[call-overload]

    job = add.enqueue(1, 2)
    [row] = claim(app.store, tasks=["add"])
    assert row.worker is not None
    app.store.retire(row.worker, "killed", how=WorkerExit("exit"))
    report = app.reap()
    assert (report.recovered, job.refresh().state) == (1, "ready")
    assert [event["id"] for event in told] == [job.id, job.id]


def test_reap_tells_alerts_of_a_job_that_is_held(app: App, tmp_path: Path) -> None:
    told = tmp_path / "told"
    app.alert(command=["sh", "-c", f"cat > {told}"])
    charge = app.task(name="charge", on_crash="hold")(lambda: None)
    job = charge.enqueue()
    [row] = claim(app.store, tasks=["charge"])
    app.store.retire(str(row.worker), "killed", how=WorkerExit("exit"))
    assert app.reap().recovered == 1
    message = json.loads(told.read_text())
    assert (message["kind"], message["task"], message["jobs"][0]["id"]) == ("held", "charge", job.id)


# ------------------------------------------------------------------------------------- opening, closing


def test_making_an_app_does_no_io(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    app = App(f"sqlite:///{path}")
    app.task(name="t")(lambda: 1).job()
    assert not path.exists()
    app.counts()
    assert path.exists()
    app.close()


def test_where_the_url_comes_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOLDFAST_DB", raising=False)
    monkeypatch.chdir(tmp_path)
    assert App().url == f"sqlite:///{tmp_path}/holdfast.db"
    monkeypatch.setenv("HOLDFAST_DB", "memory://")
    assert App().url == "memory://"
    assert App("sqlite:///mine.db?busy_s=1").url == f"sqlite:///{tmp_path}/mine.db?busy_s=1"
    assert App("sqlite:////var/mine.db").url == "sqlite:////var/mine.db"


@pytest.mark.parametrize("name", ["plain", "with space", "100%25", "a?b#c", "caf\u00e9", "\udcff"])
def test_a_relative_address_counts_from_the_folder_of_its_declaration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    for folder in (first := tmp_path / name, second := tmp_path / "second"):
        folder.mkdir()
    monkeypatch.chdir(first)
    app = App("sqlite:///jobs.db")
    late = App("memory://")
    late.url = "sqlite:///late.db"
    monkeypatch.chdir(second)
    with app, late:
        app.counts()
        late.counts()
        app.url = f"sqlite:///{quote(bytes(first))}/jobs.db"  # the same one
    assert (first / "jobs.db").exists()
    assert (first / "late.db").exists()
    assert list(second.iterdir()) == []


def test_an_address_declared_in_a_deleted_folder_is_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert App("sqlite:///jobs.db").url == "sqlite:///jobs.db"


def test_the_url_may_be_set_until_the_store_is_used() -> None:
    app = App("sqlite:///never.db")
    app.url = "memory://"
    assert app.store.url.startswith("memory:")
    with pytest.raises(UsageError, match="before its first use"):
        app.url = "sqlite:///late.db"
    app.close()


def test_a_missing_driver_of_postgresql_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "holdfast.stores.postgres.store", None)  # as if its import of psycopg failed
    with pytest.raises(StoreUnsupported, match=r"install the PostgreSQL driver: pip install 'psycopg\[binary,pool\]"):
        App("postgresql://app@db.example.org/shop").counts()


def test_the_clock_may_be_set_until_the_store_is_used() -> None:
    app, clock = App("memory://"), FakeClock()
    app.clock = clock
    assert app.store.now().wall == clock.wall()
    with pytest.raises(UsageError, match="set the clock before its first use"):
        app.clock = FakeClock()
    app.clock = clock  # the same one
    app.close()


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite://:memory:", "SQLite:///:MEMORY:?busy_s=1"])
def test_the_address_of_a_database_in_memory_is_refused_with_the_right_one(url: str) -> None:
    with pytest.raises(BadURL, match="write memory:// for such a store"):
        App(url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "does not say what kind of store it is"),  # a setting that is empty is no wish for the default
        ("sqlite:s3cret.db", "begins with 'sqlite:', but is not written like such an address; write sqlite:///jobs.db"),
        ("sqlite://s3cret.db", "begins with 'sqlite:', but is not written like such an address"),
        ("sqlite:///", "begins with 'sqlite:', but is not written like such an address"),
        ("sqlite:///?busy_s=1", "begins with 'sqlite:', but is not written like such an address"),
        (
            "postgresql:s3cret@host/shop",
            "begins with 'postgresql:', but is not written like such an address; write sqlite",
        ),
        ("carrier-pigeon://ann:s3cret@coop", "begins with 'carrier-pigeon:', which no store does; write sqlite:///"),
        (
            "jobs.db",
            "does not say what kind of store it is; write sqlite:///jobs.db, postgresql://user@host/database, "
            "redis://server, https://server or memory://",
        ),
    ],
)
def test_an_address_of_no_store_is_refused_at_once_and_without_its_password(url: str, said: str) -> None:
    with pytest.raises(BadURL, match=f"^the store address {said}") as refused:
        App(url)
    assert "s3cret" not in str(refused.value)
    app = App("memory://")
    with pytest.raises(BadURL):
        app.url = url
    assert app.url == "memory://"


def test_an_address_of_no_store_in_the_environment_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DB", "foo://x")
    with pytest.raises(BadURL, match="'foo:'"):
        App()


def test_without_migration_nothing_is_created(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with pytest.raises(StoreMissing):
        App(url, migrate=False).counts()
    assert list(tmp_path.iterdir()) == []
    with App(url) as app:
        app.counts()
    with App(url, migrate=False) as app:
        assert app.counts()["ready"] == 0


def test_without_migration_a_stale_schema_is_refused_and_the_store_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(MemoryStore, "schema", lambda self: Schema(1, 2))
    monkeypatch.setattr(MemoryStore, "close", lambda self: closed.append("closed"))
    app = App("memory://", migrate=False)
    with pytest.raises(SchemaMismatch, match="version 1, this program wants 2"):
        app.counts()
    assert closed == ["closed"]


def test_a_closed_app_does_not_come_back(url: str) -> None:
    app = App(url)
    app.counts()
    app.close()
    app.close()
    with pytest.raises(UsageError, match="closed"):
        app.counts()


def test_the_store_is_opened_once_by_many_threads(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import holdfast.app

    opened: list[Any] = []
    open_store = holdfast.app.open_store

    def counted(*args: Any, **kwargs: Any) -> Any:
        opened.append(args)
        return open_store(*args, **kwargs)

    monkeypatch.setattr(holdfast.app, "open_store", counted)
    with App(url) as app, ThreadPoolExecutor(8) as pool:
        task = app.task(name="t")(lambda n: n)
        jobs = list(pool.map(task.enqueue, range(40)))
        assert len(opened) == 1
        assert app.counts()["ready"] == len({job.id for job in jobs}) == 40
    pool.shutdown()


def test_other_options_of_the_app() -> None:
    logger = logging.getLogger("mine")
    app = App("memory://", logger=logger, journal="full")
    assert (app.logger, app.journal) == (logger, "full")
    assert (App("memory://").logger.name, App("memory://").journal) == ("holdfast", "short")
    with pytest.raises(UsageError, match="journal"):
        App("memory://", journal="long")  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------- async

NOT_AWAITED = {
    "admin",
    "aio",
    "alert",
    "clock",
    "cron",
    "enqueue_middleware",
    "every",
    "middleware",
    "named",
    "on",
    "on_worker_start",
    "on_worker_stop",
    "queue",
    "reaper",
    "resource",
    "store",
    "task",
    "url",
    "worker",
    "workflow",
}  # no I/O, or not a verb


def verbs(kind: type) -> dict[str, Any]:
    """The public names of the class and of what it is made of, without fields that are only declared there."""
    found = {name: value for each in reversed(kind.__mro__[:-1]) for name, value in vars(each).items()}
    return {name: value for name, value in found.items() if not name.startswith("_")}


def test_the_async_facade_has_the_same_verbs() -> None:
    sync, twin = verbs(App), verbs(AsyncApp)
    assert isinstance(twin.pop("admin"), property)  # its verbs are compared in test_admin.py
    assert twin.keys() == sync.keys() - NOT_AWAITED
    for name, fn in twin.items():
        if name in ("enqueue_stream", "batch"):  # iterated over or entered; what is awaited comes after it
            assert not inspect.iscoroutinefunction(fn)
            assert not inspect.isasyncgenfunction(fn)
            assert list(inspect.signature(fn).parameters) == list(inspect.signature(sync[name]).parameters)
        else:
            assert inspect.iscoroutinefunction(fn), name
            assert inspect.signature(fn) == inspect.signature(sync[name]), name
        assert fn.__doc__ == sync[name].__doc__, name
        assert fn.__doc__, name


def test_the_async_facade_does_what_the_app_does(url: str) -> None:
    async def story() -> None:
        app = App(url)
        async with app.aio as aio:
            task = app.task(name="t")(lambda x: x)
            job = await task.using(key="k").aenqueue(1)
            assert (await aio.get(job.id)).row == job.row
            [many] = await aio.enqueue_many([task.using(on_crash="hold", queue="other").job(2)])
            assert (await aio.counts())["ready"] == 2
            assert len(await aio.find("ready", task="t")) == 2
            assert (await aio.cancel(job.id, by="ann")).state == "cancelled"
            with pytest.raises(Refused):
                await aio.revive(job.id, fence=0)
            assert (await aio.revive(job.id, fence=job.refresh().row.fence)).state == "ready"
            run(app, job)
            assert await job.aresult(timeout=60) == 1
            run(app, many, EXPIRED)
            for act in (aio.cancel(many.id, fence=9), aio.resolve(many.id, "done", fence=9)):
                with pytest.raises(Refused):
                    await act
            assert (await aio.resolve(many.id, "done", result=9)).state == "done"
            assert (await aio.reap()).zombies == []
        with pytest.raises(UsageError, match="closed"):
            app.counts()

    asyncio.run(story())


def test_waiting_for_a_result_leaves_the_loop_free(url: str) -> None:
    async def story() -> None:
        app = App(url)
        job = app.task(name="t")(lambda: 5).enqueue()
        waiting = [asyncio.create_task(app.get(job.id).aresult(timeout=60)) for _ in range(50)]
        await asyncio.to_thread(run, app, job)
        assert await asyncio.gather(*waiting) == [5] * 50
        with pytest.raises(TimeoutError, match="is still ready after 0 s"):
            await app.tasks["t"].enqueue().aresult(timeout=0)
        app.close()

    asyncio.run(story())
