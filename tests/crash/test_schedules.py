"""P12 with real workers: the holder of the scheduler's duty is frozen or killed around an instant, fired once.

The schedule comes once a year and was declared years ago, so the instant of this year is due when a worker starts.
"""

from __future__ import annotations

import contextlib
import signal
from datetime import UTC, datetime

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.clock import SystemClock
from holdfast.core.machine import State
from holdfast.core.records import Filter, Job
from holdfast.core.schedule import run_at
from holdfast.ids import fired_job_id
from holdfast.stores import open_store
from holdfast.stores.protocol import Reply
from holdfast.testing import FakeClock
from holdfast.upkeep.scheduler import DUTY
from tests.crash.world import MODULE, Process, World, is_stopped, on_every_store, until

pytestmark = pytest.mark.slow  # a duty has to run out
DECLARING = """
import crash_tasks
app = crash_tasks.app
app.cron("0 0 1 1 *", crash_tasks.quick, key="yearly")
"""


def declare(world: World) -> str:
    """Let a program declare the schedule years ago; return the id of the job that is due now."""
    (world.folder / "yearly.py").write_text(DECLARING.replace("crash_tasks", MODULE))
    world.app.cron("0 0 1 1 *", world.tasks.quick, key="yearly")
    world.store.schema()  # makes it
    clock = SystemClock()
    past = open_store(world.url, clock=FakeClock(1.5e9, clock.lease(), clock.boot_id))
    past.declare(list(world.app.schedules.values()))
    past.close()
    instant = datetime(datetime.now(UTC).year, 1, 1, tzinfo=UTC).timestamp()
    return fired_job_id("yearly", instant)


def worker(world: World, name: str, point: str | None = None) -> Process:
    command = ["-m", "holdfast", "worker", "yearly:app", "--name", name]
    return world.run(name, command, {"HOLDFAST_POINT": point} if point else {})


def frozen_holder(world: World) -> Process:
    """Start a worker that takes the duty and is frozen just before it fires, but not while another thread of it is
    inside a write: SQLite has one writer (DESIGN 14)."""
    for number in range(10):
        set_paused(world, True)
        old = worker(world, f"old{number}", "fire.before=stop").until_ready()
        set_paused(world, False)
        until(lambda: is_stopped(old.pid), "it has the duty, and is frozen before it fires")  # noqa: B023
        if world.kind != "sqlite" or world.is_writable():
            return old
        old.kill()
    raise AssertionError("it is always inside a write")


def set_paused(world: World, paused: bool) -> None:
    """Pause or resume as nobody can: the instants in between stay due."""
    if world.kind == "redis":
        with contextlib.closing(world.connect()) as client:
            for each in world.store.schedules():
                text = msgspec.json.encode(replace(each, paused=paused))
                client.hset("{holdfast}:schedules", each.key, text)
        return
    table = "schedule" if world.kind == "postgres" else "holdfast_schedule"
    with contextlib.closing(world.connect()) as db:
        db.execute(f"UPDATE {table} SET paused = {'true' if paused else 'false'}")


def until_done(world: World, job: str) -> None:
    until(lambda: (row := world.store.get(job)) is not None and row.state is State.DONE, "it is fired, and done")


def jobs(world: World) -> list[Job]:
    return world.store.find(Filter())


@on_every_store
def test_a_holder_that_was_frozen_over_its_instant_is_refused_when_it_wakes(world: World) -> None:
    job = declare(world)
    old = frozen_holder(world)
    assert jobs(world) == []
    new = worker(world, "new").until_ready()
    until_done(world, job)
    assert new.said(f"took the duty '{DUTY}', term") >= 1
    before = world.store.schedules()[0]
    assert (before.job_id, before.mark) == (job, before.fired_at)
    old.signal_leader(signal.SIGCONT)
    until(lambda: old.said(f"an act was refused: the duty '{DUTY}' of term"), "the old one is told")
    new.signal_leader(signal.SIGTERM)
    assert new.wait() == 0
    until(lambda: old.said(f"took the duty '{DUTY}', term") >= 2, "it goes on, and takes over in its turn")
    assert [each.id for each in jobs(world)] == [job]
    assert len(world.starts(job)) == 1
    assert world.store.schedules()[0].mark == before.mark


@on_every_store
@pytest.mark.parametrize("point", ["fire.before", "fire.after"])
def test_a_worker_without_schedules_fires_one_of_run_time_after_the_holder_was_killed(world: World, point: str) -> None:
    """Nobody declares it, and its jitter puts the job's time after the instant, the same in both workers."""
    declare(world)
    for each in world.store.schedules():
        world.store.forget_schedule(each.key)
    clock = SystemClock()
    past = open_store(world.url, clock=FakeClock(1.5e9, clock.lease(), clock.boot_id))
    [made] = [replace(each, jitter_s=60.0) for each in world.app.schedules.values()]
    assert past.schedule([made]) == [Reply.ACCEPTED]
    past.close()
    command = ["-m", "holdfast", "worker", f"{MODULE}:app"]
    old = world.run("old", [*command, "--name", "old"], {"HOLDFAST_POINT": f"{point}=kill"})
    assert old.wait() == -signal.SIGKILL
    instant = datetime(datetime.now(UTC).year, 1, 1, tzinfo=UTC).timestamp()
    job = fired_job_id("yearly", instant)
    assert [each.id for each in jobs(world)] == ([job] if point == "fire.after" else [])
    new = world.run("new", [*command, "--name", "new"]).until_ready()
    until_done(world, job)
    new.signal_leader(signal.SIGTERM)
    assert new.wait() == 0
    [fired] = jobs(world)
    assert fired.id == job
    assert instant < run_at(made, instant) == fired.run_at < instant + 60


@on_every_store
@pytest.mark.parametrize("point", ["fire.before", "fire.after"])
def test_another_one_takes_over_from_a_holder_that_was_killed(world: World, point: str) -> None:
    job = declare(world)
    old = worker(world, "old", f"{point}=kill")
    assert old.wait() == -signal.SIGKILL
    assert [each.id for each in jobs(world)] == ([job] if point == "fire.after" else [])
    new = worker(world, "new").until_ready()
    until(lambda: new.said(f"took the duty '{DUTY}', term 2"), "the other one takes over")
    until_done(world, job)
    new.signal_leader(signal.SIGTERM)
    assert new.wait() == 0
    assert [each.id for each in jobs(world)] == [job]
    assert len({start.fence for start in world.starts(job)}) == len(world.starts(job)) <= 2
    assert world.store.schedules()[0].job_id == job
