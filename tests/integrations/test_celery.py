"""The guard of Celery tasks, with real workers that are killed. The broker's visibility timeout is 5 s."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from celery import Celery
from celery.exceptions import Retry
from msgspec.structs import replace

from holdfast import App
from holdfast.clock import pause
from holdfast.core.records import NewJob
from holdfast.errors import UsageError
from holdfast.integrations.celery import LOOK_SHARE, PAGE, Guard, _Session, policy_of
from holdfast.testing import FakeClock
from tests.integrations.celery_scene import CLOCK, PATIENCE_S, Scene, scene
from tests.servers import RedisServer

VISIBILITY_S = 5.0
TWO = ("-c", "2")  # Celery itself takes up to 5 s to replace a child that was killed; the other one works meanwhile
pytestmark = pytest.mark.slow  # each test starts Celery workers, which take seconds


@pytest.fixture(scope="module")
def broker() -> Iterator[RedisServer]:
    with closing(RedisServer()) as server:
        yield server


@pytest.fixture(scope="module", params=[False, True], ids=["early_ack", "acks_late"])
def shop(request: pytest.FixtureRequest, tmp_path_factory: Any, broker: RedisServer) -> Iterator[Scene]:
    """A shop with one worker, which tests share because its start takes seconds. They leave it alive."""
    with scene(tmp_path_factory.mktemp("shop"), broker, late=request.param) as made:
        made.worker(*TWO)
        yield made


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Scene]:
    """A shop without a worker."""
    with closing(RedisServer()) as broker, scene(tmp_path, broker) as made:
        yield made


only_early = pytest.mark.parametrize("shop", [False], indirect=True, ids=["early_ack"])


def kill_child(shop: Scene, name: str) -> None:
    os.kill(shop.starts(name)[-1], signal.SIGKILL)


def begin(shop: Scene, task: str, name: str) -> str:
    """Send a task that waits, and return its id once it runs."""
    shop.send(task, name, f"id-{name}", waits=True)
    shop.until(lambda: shop.starts(name), f"{name} does not start")
    return f"id-{name}"


def keeper_of(worker: Any, shop: Scene, name: str) -> int | None:
    found = {each.pid for each in psutil.Process(worker.pid).children() if each.status() != psutil.STATUS_ZOMBIE}
    return next(iter(found - set(shop.starts(name))), None)


def ignored(shop: Scene, task_id: str) -> int:
    return shop.logs().count(f"delivery of task {task_id} is ignored")


def test_a_task_whose_prefork_child_is_killed_runs_again_and_ends_once(shop: Scene) -> None:
    task_id = begin(shop, "retried", "a")
    kill_child(shop, "a")
    shop.until(lambda: len(shop.starts("a")) == 2, "it does not run again")
    before = ignored(shop, task_id)
    shop.send("retried", "a", task_id)  # a second delivery while it is leased, behind the one that runs
    shop.release("a")
    shop.until(lambda: shop.state(task_id) == "done", "it does not end")
    shop.until(lambda: ignored(shop, task_id) > before, "the second delivery was not ignored")
    shop.send("retried", "a", task_id)  # and one after its end
    shop.until(lambda: ignored(shop, task_id) > before + 1, "the late delivery was not ignored")
    assert (len(shop.starts("a")), shop.ends("a")) == (2, 1)
    row = shop.job(task_id)
    assert (row.queue, row.zombies, row.crashes, row.result) == ("celery", 1, 1, '"a is done"')


@pytest.mark.parametrize("late", [False, True], ids=["early_ack", "acks_late"])
def test_a_task_of_a_worker_that_is_killed_as_a_whole_runs_on_another_one(tmp_path: Path, late: bool) -> None:
    with closing(RedisServer()) as own, scene(tmp_path, own, late=late) as shop:
        first = shop.worker()
        task_id = begin(shop, "retried", "b")
        killed_at = CLOCK.lease()
        shop.kill_all_of(first)
        shop.worker()
        shop.until(lambda: len(shop.starts("b")) == 2, "it does not run again")
        if late:  # the broker, too, delivers it again: real time, which the start of the worker has used up in part
            pause(max(0.0, killed_at + VISIBILITY_S + 0.5 - CLOCK.lease()))
        shop.release("b")
        shop.until(lambda: shop.state(task_id) == "done", "it does not end")
        shop.send("failed", "after", "id-after")  # whatever was delivered meanwhile has been dealt with before this
        shop.until(lambda: shop.state("id-after") == "done", "the worker is stuck")
        assert (len(shop.starts("b")), shop.ends("b")) == (2, 1)


def test_on_crash_holds_or_fails_a_task_as_declared(shop: Scene) -> None:
    begin(shop, "failed", "f")
    kill_child(shop, "f")
    shop.until(lambda: shop.state("id-f") == "dead", "it is not dead")
    begin(shop, "held", "h")
    kill_child(shop, "h")
    shop.until(lambda: shop.state("id-h") == "held", "it is not held")
    for name in ("f", "h"):
        shop.release(name)
        shop.send("held" if name == "h" else "failed", name, f"id-{name}")
        shop.until(lambda name=name: ignored(shop, f"id-{name}"), "the second delivery was not ignored")
        assert len(shop.starts(name)) == 1
    shop.app.resolve("id-h", "retry", by="ann")
    shop.until(lambda: shop.state("id-h") == "done", "what a person approved does not run")
    assert len(shop.starts("h")) == 2


@only_early
def test_a_task_that_raises_is_dead_and_one_that_celery_retries_runs_on(shop: Scene) -> None:
    shop.send("wrong", "w", "id-w")
    shop.send("flaky", "y", "id-y")
    shop.until(lambda: shop.state("id-w") == "dead", "it is not dead")
    shop.until(lambda: shop.state("id-y") == "done", "it does not end")
    assert shop.job("id-w").error == "ValueError: no such order"
    assert len(shop.starts("y")) == 3
    assert shop.job("id-y").failures == 0


@only_early
def test_without_the_guard_a_killed_task_is_lost(shop: Scene) -> None:
    """What the guard is for: Celery has acknowledged the message before."""
    begin(shop, "unguarded", "u")
    kill_child(shop, "u")
    shop.send("retried", "next", "id-next")
    shop.until(lambda: shop.state("id-next") == "done", "the worker does not go on")
    assert len(shop.starts("u")) == 1
    assert shop.ends("u") == 0


def test_a_step_on_a_celery_worker_survives_the_death_of_either_side(empty: Scene) -> None:
    empty.worker()
    engine = empty.holdfast("worker", "tests.integrations.celery_shop:app")
    (empty.folder / "wait-step").touch()
    asked = empty.holdfast("enqueue", "tests.integrations.celery_shop:app", "order", '{"name": "step"}', "--id", "flow")
    assert asked.wait(PATIENCE_S) == 0
    empty.until(lambda: empty.starts("step"), "the step does not start")
    empty.kill_all_of(engine)
    kill_child(empty, "step")
    empty.until(lambda: len(empty.starts("step")) == 2, "the step does not run again")
    empty.holdfast("worker", "tests.integrations.celery_shop:app")
    empty.release("step")
    empty.until(lambda: empty.state("flow") == "done", "the workflow does not end")
    assert empty.effects.count("workflow step is done") == 1
    assert empty.ends("step") == 1


def test_a_holdfast_worker_sends_what_dead_celery_workers_left(empty: Scene) -> None:
    only = empty.worker()
    task_id = begin(empty, "retried", "k")
    empty.kill_all_of(only)
    empty.holdfast("worker", "tests.integrations.celery_shop:app")
    empty.until(lambda: empty.messages, "no message was sent")
    empty.release("k")
    empty.worker()
    empty.until(lambda: empty.state(task_id) == "done", "it does not end")
    assert (len(empty.starts("k")), empty.ends("k")) == (2, 1)


def test_a_keeper_that_is_killed_is_started_again(empty: Scene) -> None:
    worker = empty.worker()
    begin(empty, "retried", "r")
    [keeper] = {each.pid for each in psutil.Process(worker.pid).children()} - set(empty.starts("r"))
    os.kill(keeper, signal.SIGKILL)
    empty.until(lambda: keeper_of(worker, empty, "r") not in (None, keeper), "no other keeper is started")
    again = psutil.Process(keeper_of(worker, empty, "r"))
    assert not [each for each in again.net_connections() if each.raddr and each.raddr.port == empty.broker.port], (
        "the keeper keeps the connection of a worker that may be killed"
    )
    kill_child(empty, "r")
    empty.until(lambda: len(empty.starts("r")) == 2, "it does not run again")
    empty.release("r")
    empty.until(lambda: empty.state("id-r") == "done", "it does not end")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_S) == 0


def test_a_frozen_child_that_wakes_up_ends_itself(tmp_path: Path) -> None:
    with closing(RedisServer()) as broker, scene(tmp_path, broker, late=True) as shop:
        shop.env["SHOP_LEASE_S"] = (
            "5"  # much longer than a loaded machine keeps a worker that is not frozen from its beat
        )
        shop.worker()
        task_id = begin(shop, "retried", "z")
        frozen = psutil.Process(shop.starts("z")[0])
        frozen.suspend()
        shop.worker()
        shop.until(lambda: len(shop.starts("z")) == 2, "another worker does not take it over")
        frozen.resume()
        shop.until(lambda: not frozen.is_running() or frozen.status() == psutil.STATUS_ZOMBIE, "the zombie runs on")
        shop.release("z")
        shop.until(lambda: shop.state(task_id) == "done", "it does not end")
        assert (len(shop.starts("z")), shop.ends("z")) == (2, 1)


@only_early
def test_a_task_that_is_revoked_while_it_runs_is_cancelled(shop: Scene) -> None:
    task_id = begin(shop, "retried", "v")
    shop.client.control.revoke(task_id, terminate=True, signal="SIGKILL")
    shop.until(lambda: shop.state(task_id) == "cancelled", "it is not cancelled")


@only_early
def test_a_retry_whose_child_is_killed_runs_again_with_its_own_arguments(shop: Scene) -> None:
    (shop.folder / "wait-c-again").touch()
    shop.send("changing", "c", "id-c")
    shop.until(lambda: shop.starts("c-again"), "the retry does not start")
    kill_child(shop, "c-again")
    shop.until(lambda: len(shop.starts("c-again")) == 2, "the retry does not run again")
    shop.release("c-again")
    shop.until(lambda: shop.state("id-c") == "done", "it does not end")
    assert [line for line in shop.effects if line.startswith("run c")] == ["run c 0", *["run c-again 1"] * 2]


@only_early
def test_a_retry_that_is_revoked_while_it_waits_is_cancelled(shop: Scene) -> None:
    shop.send("changing", "later", "id-later")
    shop.until(lambda: "id-later] retry: Retry in 600s" in shop.logs(), "it does not ask for a retry")
    shop.client.control.revoke("id-later", reply=True, timeout=30, limit=1)
    job = shop.job("id-later")
    assert job.state == "ready"
    # Celery throws the message away when it is due, or when another copy comes, such as one that the keeper sends.
    shop.send("changing", "later", "id-later")
    shop.until(lambda: shop.state("id-later") == "cancelled", "it is not cancelled")


@only_early
def test_a_task_that_began_in_time_runs_again_after_its_expiry(shop: Scene) -> None:
    shop.send("retried", "e", "id-e", waits=True, expires=3)
    shop.until(lambda: shop.starts("e"), "it does not start")
    pause(3.5)  # real time: Celery reads the expiry from the message
    kill_child(shop, "e")
    shop.until(lambda: len(shop.starts("e")) == 2, "it does not run again")
    shop.release("e")
    shop.until(lambda: shop.state("id-e") == "done", "it does not end")


def test_tasks_that_begin_at_the_same_moment_are_not_taken_for_second_deliveries(empty: Scene) -> None:
    names = [f"t{number}" for number in range(40)]
    for name in names:
        empty.send("retried", name, f"id-{name}")
    empty.worker("-P", "threads", "-c", "10", "--prefetch-multiplier", "4")
    empty.until(lambda: all(empty.state(f"id-{name}") == "done" for name in names), "they do not end")
    assert [name for name in names if len(empty.starts(name)) != 1] == []
    assert "is ignored" not in empty.logs()
    assert "is sent to Celery" not in empty.logs()


@pytest.mark.parametrize("store", ["postgres", "redis"])
def test_the_guard_keeps_its_promises_on_a_server(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with closing(RedisServer()) as broker, ExitStack() as closes:
        server = closes.enter_context(closing(RedisServer("--appendonly", "yes"))) if store == "redis" else None
        url = server.url if server is not None else request.getfixturevalue("postgres")
        shop = closes.enter_context(scene(tmp_path, broker, store=url))
        shop.worker(*TWO)
        task_id = begin(shop, "retried", "a")
        kill_child(shop, "a")
        shop.until(lambda: len(shop.starts("a")) == 2, "it does not run again")
        shop.send("retried", "a", task_id)
        shop.release("a")
        shop.until(lambda: shop.state(task_id) == "done", "it does not end")
        shop.until(lambda: ignored(shop, task_id), "the second delivery was not ignored")
        assert (len(shop.starts("a")), shop.ends("a")) == (2, 1)
        begin(shop, "held", "h")
        kill_child(shop, "h")
        shop.until(lambda: shop.state("id-h") == "held", "it is not held")
        if server is not None:
            server.stop(signal.SIGKILL)
            shop.send("retried", "s", "id-s")
            shop.until(lambda: "task id-s cannot be leased" in shop.logs(), "the store is not missed")
            assert shop.starts("s") == []
            server.start()
            shop.until(lambda: shop.starts("s"), "it is not sent again")


class Counter(Celery):  # type: ignore[misc]
    """A Celery application that counts the messages it is given to send, by their ids."""

    def send_task(self, *args: Any, task_id: str = "", **options: Any) -> Any:
        vars(self).setdefault("sent", []).append(task_id)


def test_a_keeper_sends_what_is_due_behind_others_that_wait_and_beside_one_that_is_broken(tmp_path: Path) -> None:
    celery = Counter("x", broker="memory://")
    guard = Guard(celery, f"sqlite:///{tmp_path}/guard.db")

    @celery.task(name="t")
    @guard()
    def task(number: int) -> None: ...

    policy = policy_of(task)
    assert policy is not None
    with App(guard.url) as app:

        def job(name: str, payload: str, **more: Any) -> NewJob:
            return NewJob(id=name, task="t", queue="celery", policy=policy, payload=payload, **more)

        app.store.add([job("due", '{"number": 1}'), job("broken", "[[], 1")])
        app.store.add([job(f"waits-{number}", '{"number": 2}', delay_s=3600) for number in range(PAGE + 5)])
        keeper = guard.keeper()
        keeper.publish()
        keeper.stop()
        assert vars(celery)["sent"] == ["due"]
        assert app.get("broken").row.run_at > app.get("due").row.created_at


def test_a_keeper_reads_nothing_if_no_job_is_due_and_reads_a_large_queue_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    celery = Counter("x", broker="memory://")
    guard = Guard(celery, f"sqlite:///{tmp_path}/guard.db")

    @celery.task(name="counted", shared=False)
    @guard()
    def task(number: int) -> None: ...

    policy = policy_of(task)
    assert policy is not None
    keeper, clock = guard.keeper(), FakeClock()
    keeper._clock = clock
    store_type = type(keeper._app.store)
    found, looks = store_type.find, []

    def slow(self: Any, where: Any) -> Any:
        if where.task == "counted":  # Celery shares the tasks of other tests
            looks.append(where)
            clock.advance(1)
        return found(self, where)

    monkeypatch.setattr(store_type, "find", slow)
    with App(guard.url) as app:
        new = NewJob(id="", task="counted", queue="celery", policy=policy, payload='{"number": 1}')
        app.store.add([replace(new, id="waits", delay_s=3600)])
        keeper.publish()
        assert looks == []
        app.store.add([replace(new, id="first")])
        keeper.publish()
        assert (vars(celery)["sent"], len(looks)) == (["first"], 2)
        app.store.add([replace(new, id="second")])
        clock.advance(2 / LOOK_SHARE - 1)
        keeper.publish()
        assert len(looks) == 2
        clock.advance(2)
        keeper.publish()
        assert vars(celery)["sent"] == ["first", "second"]
    keeper.stop()


def test_a_retry_whose_arguments_are_not_json_stays_a_retry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    celery = Celery("x", broker="memory://")
    guard = Guard(celery, f"sqlite:///{tmp_path}/guard.db")

    @celery.task(name="asking", bind=True, shared=False)
    @guard()
    def task(self: Any, number: int) -> None:
        raise Retry(sig=self.signature(args=[object()]))

    session = _Session(guard)
    task.push_request(id="one", args=[1], kwargs={}, called_directly=False, delivery_info={})
    try:
        with pytest.raises(Retry):
            session.run(task, lambda: task.run(1))
    finally:
        session.close()
    with App(guard.url) as app:
        assert app.get("one").state == "ready"
    assert "the retry of task one was not recorded" in caplog.text


def test_a_guard_that_could_not_work_is_refused() -> None:
    celery = Celery("x")
    guard = Guard(celery, "memory://")
    with pytest.raises(UsageError, match="has a Guard already"):
        Guard(celery, "memory://")
    with pytest.raises(UsageError, match="choose one of"):
        guard(on_crash="rollback")  # type: ignore[arg-type]

    @celery.task(name="t")
    def task() -> None: ...

    with pytest.raises(UsageError, match=r"below @app\.task"):
        guard()(task)
    with pytest.raises(UsageError, match="republish_s"):
        Guard(Celery("y"), "memory://", republish_s=0)
