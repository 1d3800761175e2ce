"""What becomes of expiry, metadata, ignore_result, retries by exception, resources and middleware when the worker dies,
and of a worker inside a program. In each test one worker is killed, and another one comes later."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.machine import State
from tests.crash.test_failpoints import KILLED, on
from tests.crash.world import World, on_every_store, until

pytestmark = pytest.mark.slow  # workers are killed and started again
AGAIN = ["before", "opened", "start", "after", "closed"]
TASKS = Path(__file__).with_name("options.py")
EMBEDDED = """
import sys, time
import crash_tasks
with crash_tasks.app.worker(slots=1, name=sys.argv[1]) as worker:
    while worker.is_running:
        time.sleep(0.05)
"""


@pytest.fixture
def world(tmp_path: Path, db: str) -> Iterator[World]:
    made = World(tmp_path, url=db, source=TASKS)
    yield made
    made.close()


def lines(world: World, event: str = "") -> list[dict[str, Any]]:
    path = world.folder / "options"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in found if line["event"].startswith(event)]


def make_expired(world: World, job: str) -> None:
    """Move its expiry into the past: no test waits for it."""
    assert world.row(job).expires_at is not None
    table = "job" if world.kind == "postgres" else "holdfast_job"
    with world.connect() as db:
        db.execute(f"UPDATE {table} SET expires_at = {world.store.now().wall - 1}")
    db.close()


@on({"sqlite": (1,), "postgres": (1,)}, ["claim.before", "claim.after"])
def test_a_job_expires_if_its_worker_died_before_the_claim_and_not_after_it(
    world: World, point: str, passing: int
) -> None:
    job = world.tasks.short.using(expires_s=600).enqueue().id
    assert world.lone_worker("victim", f"{point}=kill:{passing}").wait() == KILLED
    make_expired(world, job)
    world.worker("rescue")
    row = world.until_state(job, "cancelled" if point == "claim.before" else "done")
    if point == "claim.before":
        assert (row.attempt, lines(world, "start")) == (0, [])
        assert [event.detail for event in world.events(job, "cancelled")] == [{"expires_at": row.expires_at}]
    else:
        assert (row.attempt, len(lines(world, "start"))) == (2, 1)


@on_every_store
def test_tags_and_metadata_outlive_a_death_and_reach_the_child_once(world: World) -> None:
    job = world.tasks.begets.using(tags=["import"], meta={"tenant": "acme"}).enqueue().id
    assert world.lone_worker("victim").wait() == KILLED
    world.worker("rescue")
    world.until_state(job, "done")
    world.until_state(f"{job}-child", "done")
    assert sorted(found.id for found in world.app.find(meta={"tenant": "acme"})) == [job, f"{job}-child"]
    assert [found.id for found in world.app.find(tags=["import"])] == [job]
    assert (world.row(job).attempt, len(lines(world, "start"))) == (2, 1)


@on({"sqlite": (1,), "postgres": (1,)}, ["settle.before", "settle.after"])
def test_a_death_beside_the_settle_stores_no_result_that_is_to_be_ignored(
    world: World, point: str, passing: int
) -> None:
    job = world.tasks.silent.enqueue()
    assert world.lone_worker("victim", f"{point}=kill:{passing}").wait() == KILLED
    world.worker("rescue")
    row = world.until_state(job.id, "done")
    assert (row.result, job.result(timeout=60)) == (None, None)
    assert row.attempt == len(lines(world, "start")) == (2 if point == "settle.before" else 1)


@on_every_store
def test_a_death_is_no_exception_to_a_retry_that_names_some(world: World) -> None:
    """The crash is judged by the row, without the task's code; the failures after it by the code."""
    job = world.tasks.picky.enqueue().id
    assert world.lone_worker("victim").wait() == KILLED
    world.worker("rescue")
    row = world.until_state(job, "dead")
    assert "GiveUp: nobody will" in (row.error or "")
    assert (row.attempt, row.failures, row.zombies, row.stop_reason) == (4, 3, 1, "final")
    assert [line["event"] for line in lines(world, "backoff")] == ["backoff 1"]
    assert [line["attempt"] for line in lines(world, "start")] == [1, 2, 3, 4]


@on_every_store
def test_a_resource_is_opened_again_and_middleware_is_around_the_next_attempt(world: World) -> None:
    job = world.tasks.uses.enqueue()
    victim = world.lone_worker("victim")
    assert victim.wait() == KILLED
    assert [line["event"] for line in lines(world)] == ["worker", "before", "opened", "start"]
    rescue = world.worker("rescue")
    assert job.result(timeout=180) is True
    rescue.signal_leader(15)
    assert rescue.wait() == 0
    mine = [line for line in lines(world) if line["pid"] != victim.pid]
    assert [line["event"] for line in mine if line["event"] != "worker"] == AGAIN
    assert {line["attempt"] for line in mine} == {None, 2}


@on_every_store
def test_a_program_that_waits_gets_the_result_after_the_program_that_ran_the_job_was_killed(world: World) -> None:
    """Both workers are inside programs."""
    job = world.tasks.uses.enqueue()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(job.result, 180)
        assert world.run("first", ["-c", EMBEDDED, "first"]).wait() == KILLED
        second = world.run("second", ["-c", EMBEDDED, "second"])
        assert waiting.result() is True
    assert (world.row(job.id).state, world.row(job.id).attempt) == (State.DONE, 2)
    until(lambda: [worker.name for worker in world.store.workers()] == ["second"], "the first one is known to be gone")
    second.kill()
