"""Real programs on a store that was replaced, rewound or emptied under them (P14)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.core.machine import State
from tests.crash.world import Process, World, on_sql_stores, until
from tests.servers import PostgresServer

pytestmark = pytest.mark.slow  # beats of a worker have to pass


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of its own, whose data may be exchanged."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def world_on_server(server: PostgresServer, tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, url=f"{server.url}?options=-csearch_path%3Dholdfast")
    yield world
    world.close()


def run(world: World, *commands: str) -> list[int]:
    """Run commands of `holdfast` at the same time; return their exit codes."""
    running = [world.run(each.split()[0], ["-m", "holdfast", *each.split()]) for each in commands]
    return [each.wait() for each in running]


def beats(world: World) -> int:
    [worker] = world.worker_rows("w")
    return worker.beats


def until_beaten(world: World, times: int) -> None:
    before = beats(world)
    until(lambda: beats(world) >= before + times, "it beats on")


def assert_nothing_is_claimed_until_it_is_accepted(world: World, worker: Process) -> None:
    until(lambda: worker.said("This worker claims no jobs"), "the worker says so")
    waiting = world.tasks.quick.enqueue().id
    until_beaten(world, 3)
    assert world.row(waiting).state is State.READY
    assert run(world, "db check", "doctor") == [7, 7]
    assert run(world, "db accept --by ann --note looked") == [0]
    world.until_state(waiting, "done")
    assert world.store.doubts() == []


def test_a_server_that_was_replaced_by_an_older_backup_is_noticed_within_two_beats(
    server: PostgresServer, world_on_server: World
) -> None:
    world = world_on_server
    worker = world.worker("w").until_ready()
    kept = world.tasks.quick.enqueue().id
    world.until_state(kept, "done")
    server.back_up()
    backed_up = beats(world)
    lost = world.tasks.quick.enqueue().id
    world.until_state(lost, "done")
    until_beaten(world, 3)
    server.restore()
    [doubt] = until(lambda: [each for each in world.store.doubts() if each.worker == "w/1"], "the worker notices")
    assert doubt.kind == "rewound"
    assert int(doubt.found) <= backed_up + 2, "two beats"
    assert world.store.get(lost) is None
    assert_nothing_is_claimed_until_it_is_accepted(world, worker)
    assert world.row(kept).attempt == 1


@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_a_table_that_was_truncated_under_a_worker_stops_its_claims(world: World) -> None:
    worker = world.worker("w").until_ready()
    world.until_state(world.tasks.quick.enqueue().id, "done")
    with closing(world.connect()) as db:
        db.execute("TRUNCATE job")
    until_beaten(world, 3)
    assert worker.said("This worker claims no jobs"), "after two whole beats at most"
    assert_nothing_is_claimed_until_it_is_accepted(world, worker)


@on_sql_stores
def test_a_supervisor_says_that_the_store_is_not_what_it_was(world: World) -> None:
    worker = world.worker("w").until_ready()
    meta = "meta" if world.kind == "postgres" else "holdfast_meta"
    with closing(world.connect()) as db:
        db.execute(f"UPDATE {meta} SET value = '-1' WHERE name = 'removals'")  # an older copy has fewer
    until(lambda: worker.said("Workers claim no jobs. Check the jobs"), "the supervisor says so")
    until(lambda: worker.said("This worker claims no jobs"), "its child says so")
    until(lambda: len(world.store.doubts()) == 2, "each of them has found it")
    assert {(each.worker, each.kind, each.evidence) for each in world.store.doubts()} == {
        ("w", "rewound", "removals"),
        ("w/1", "rewound", "removals"),
    }
