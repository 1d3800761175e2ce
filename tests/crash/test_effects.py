"""What a task writes inside ctx.transaction() commits with its settle, or not at all: under kill -9 (P6, 15.10)."""

import contextlib
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.core.machine import State
from tests.crash.world import World, is_stopped, on_sql_stores, until


@pytest.fixture
def effects(world: World) -> Iterator[Any]:
    """A connection to the user's own table in the same database."""
    assert world.store.schema().found
    with contextlib.closing(world.connect()) as connection:
        connection.execute("CREATE TABLE effect (job TEXT, fence INTEGER)")
        yield connection


def seen(effects: Any) -> list[tuple[str, int]]:
    return [(job, fence) for job, fence in effects.execute("SELECT job, fence FROM effect")]


@on_sql_stores
@pytest.mark.parametrize("point", ["handler.after", "handler.before"])
def test_killed_before_the_commit_the_effect_is_there_once(world: World, effects: Any, point: str) -> None:
    job = world.tasks.pay.enqueue().id
    worker = world.worker("w", point=f"{point}=kill")
    until(lambda: worker.said("was killed by SIGKILL"), "the child dies")
    row = world.until_state(job, "done")
    assert seen(effects) == [(job, int(row.result or 0))]
    assert row.attempt == 2


@pytest.fixture
def orm_effects(world: World) -> Iterator[Any]:
    """The same with the columns that the ORMs know."""
    assert world.store.schema().found
    with contextlib.closing(world.connect()) as connection:
        connection.execute("CREATE TABLE effect (job VARCHAR(64), fence INTEGER, at TIMESTAMP WITH TIME ZONE)")
        yield connection


@on_sql_stores
@pytest.mark.parametrize("orm", ["session", "connection", "django"])
def test_killed_between_the_flush_of_an_orm_and_the_settle_the_effect_is_there_once(
    world: World, orm_effects: Any, orm: str
) -> None:
    job = world.tasks.pay_with.enqueue(orm).id
    worker = world.worker("w", point="handler.after=kill")
    until(lambda: worker.said("was killed by SIGKILL"), "the child dies")
    row = world.until_state(job, "done")
    assert seen(orm_effects) == [(job, int(row.result or 0))]
    assert row.attempt == 2


@pytest.mark.slow  # children are killed again and again
def test_every_effect_is_there_exactly_once_after_any_kill(world: World, effects: Any) -> None:
    """Each job holds the file's only write lock for some milliseconds: most kills hit an open transaction.
    On PostgreSQL `test_storm.py` does this, and kills the server too."""
    lots = random.Random(3)
    jobs = [job.id for job in world.app.enqueue_many([world.tasks.pay.job(0.01) for _ in range(150)])]
    worker = world.worker("w", "--slots", "4", processes=2).until_ready(2)
    for number in range(5):
        children = until(worker.children, "somebody lives")
        os.kill(lots.choice(sorted(children)), signal.SIGKILL)
        worker.until_ready(3 + number)
    until(lambda: world.store.counts() == {"default": {State.DONE: 150}}, "all are done")
    assert sorted(seen(effects)) == sorted((job, int(world.row(job).result or 0)) for job in jobs)
    assert all(world.kinds(job).count("succeeded") == 1 for job in jobs)


@pytest.mark.slow  # the file is locked for longer than a beat
def test_a_process_frozen_inside_its_write_is_no_zombie_for_the_others(world: World, effects: Any) -> None:
    """DESIGN 14: the documented exception. Nobody can write until it goes on or dies; then all go on, and nobody who
    lived has been taken for dead (15.5)."""
    ann, bob = (world.worker(name).until_ready() for name in ("ann", "bob"))
    waiting = [world.tasks.wait.using(lease_s=15).enqueue().id for _ in range(3)]
    for job in waiting:
        world.until_started(job)
    frozen = world.tasks.stops_inside.using(lease_s=30).enqueue().id
    pid = world.until_started(frozen).pid
    until(lambda: is_stopped(pid), "it is frozen, and holds the file")
    frozen_at = os.times().elapsed
    until(lambda: os.times().elapsed > frozen_at + 5.5)
    assert not world.is_writable()
    os.kill(pid, signal.SIGKILL)
    row = world.until_state(frozen, "done")
    assert seen(effects) == [(frozen, int(row.result or 0))]
    world.go()
    for job in waiting:
        row = world.until_state(job, "done")
        if world.starts(job)[0].pid != pid:
            assert (row.attempt, row.zombies) == (1, 0), "its process lived all the time"
    assert [ann.popen.poll(), bob.popen.poll()] == [None, None]
