"""The guard of Celery tasks, with real workers that are killed. The broker's visibility timeout is 5 s."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from holdfast.clock import pause
from holdfast.integrations.celery import Guard
from tests.integrations.celery_scene import PATIENCE_S, Scene, scene
from tests.servers import RedisServer

VISIBILITY_S = 5.0
pytestmark = pytest.mark.slow  # each test starts Celery workers, which take seconds


@pytest.fixture(params=[False, True], ids=["early_ack", "acks_late"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer) -> Iterator[Scene]:
    with scene(tmp_path, redis_server, late=request.param) as made:
        yield made


@pytest.fixture
def early(tmp_path: Path, redis_server: RedisServer) -> Iterator[Scene]:
    with scene(tmp_path, redis_server) as made:
        yield made


def kill_child(shop: Scene, name: str) -> None:
    os.kill(shop.starts(name)[-1], signal.SIGKILL)


def begin(shop: Scene, task: str, name: str) -> str:
    """Send a task that waits, and return its id once it runs."""
    shop.send(task, name, f"id-{name}", waits=True)
    shop.until(lambda: shop.starts(name), f"{name} does not start")
    return f"id-{name}"


def ignored(shop: Scene, task_id: str) -> int:
    return shop.logs().count(f"delivery of task {task_id} is ignored")


def test_a_task_whose_prefork_child_is_killed_runs_again_and_ends_once(shop: Scene) -> None:
    shop.worker()
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


def test_a_task_of_a_worker_that_is_killed_as_a_whole_runs_on_another_one(shop: Scene) -> None:
    first = shop.worker()
    task_id = begin(shop, "retried", "b")
    shop.kill_all_of(first)
    if shop.env["SHOP_ACKS_LATE"] == "1":
        pause(VISIBILITY_S + 0.5)  # the broker, too, delivers it again to the next worker: real time
    shop.worker()
    shop.until(lambda: len(shop.starts("b")) == 2, "it does not run again")
    shop.release("b")
    shop.until(lambda: shop.state(task_id) == "done", "it does not end")
    shop.send("failed", "after", "id-after")  # whatever was delivered meanwhile has been dealt with before this
    shop.until(lambda: shop.state("id-after") == "done", "the worker is stuck")
    assert (len(shop.starts("b")), shop.ends("b")) == (2, 1)


def test_on_crash_holds_or_fails_a_task_as_declared(shop: Scene) -> None:
    shop.worker()
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


def test_a_task_that_raises_is_dead_and_one_that_celery_retries_runs_on(early: Scene) -> None:
    early.worker()
    early.send("wrong", "w", "id-w")
    early.send("flaky", "y", "id-y")
    early.until(lambda: early.state("id-w") == "dead", "it is not dead")
    early.until(lambda: early.state("id-y") == "done", "it does not end")
    assert early.job("id-w").error == "ValueError: no such order"
    assert len(early.starts("y")) == 3
    assert early.job("id-y").failures == 0


def test_without_the_guard_a_killed_task_is_lost(early: Scene) -> None:
    """What the guard is for: Celery has acknowledged the message before."""
    early.worker()
    begin(early, "unguarded", "u")
    kill_child(early, "u")
    early.send("retried", "next", "id-next")
    early.until(lambda: early.state("id-next") == "done", "the worker does not go on")
    assert len(early.starts("u")) == 1
    assert early.ends("u") == 0


def test_a_step_on_a_celery_worker_survives_the_death_of_either_side(early: Scene) -> None:
    early.worker()
    engine = early.holdfast("worker", "tests.integrations.celery_shop:app")
    (early.folder / "wait-step").touch()
    asked = early.holdfast("enqueue", "tests.integrations.celery_shop:app", "order", '{"name": "step"}', "--id", "flow")
    assert asked.wait(PATIENCE_S) == 0
    early.until(lambda: early.starts("step"), "the step does not start")
    early.kill_all_of(engine)
    kill_child(early, "step")
    early.until(lambda: len(early.starts("step")) == 2, "the step does not run again")
    early.holdfast("worker", "tests.integrations.celery_shop:app")
    early.release("step")
    early.until(lambda: early.state("flow") == "done", "the workflow does not end")
    assert early.effects.count("workflow step is done") == 1
    assert early.ends("step") == 1


def test_a_holdfast_worker_sends_what_dead_celery_workers_left(early: Scene) -> None:
    only = early.worker()
    task_id = begin(early, "retried", "k")
    early.kill_all_of(only)
    early.holdfast("worker", "tests.integrations.celery_shop:app")
    with closing(early.broker.client()) as client:
        early.until(lambda: client.llen("celery"), "no message was sent")
    early.release("k")
    early.worker()
    early.until(lambda: early.state(task_id) == "done", "it does not end")
    assert (len(early.starts("k")), early.ends("k")) == (2, 1)


def test_a_keeper_that_is_killed_is_started_again(early: Scene) -> None:
    worker = early.worker()
    begin(early, "retried", "r")
    [keeper] = {each.pid for each in psutil.Process(worker.pid).children()} - set(early.starts("r"))
    os.kill(keeper, signal.SIGKILL)
    kill_child(early, "r")
    early.until(lambda: len(early.starts("r")) == 2, "it does not run again")
    early.release("r")
    early.until(lambda: early.state("id-r") == "done", "it does not end")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_S) == 0


def test_a_frozen_child_that_wakes_up_ends_itself(tmp_path: Path, redis_server: RedisServer) -> None:
    with scene(tmp_path, redis_server, late=True) as shop:
        shop.env["SHOP_LEASE_S"] = "2"
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


def test_a_task_that_is_revoked_while_it_runs_is_cancelled(early: Scene) -> None:
    early.worker()
    task_id = begin(early, "retried", "v")
    early.client.control.revoke(task_id, terminate=True, signal="SIGKILL")
    early.until(lambda: early.state(task_id) == "cancelled", "it is not cancelled")


def test_a_guard_that_could_not_work_is_refused() -> None:
    from celery import Celery

    from holdfast.errors import UsageError

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
