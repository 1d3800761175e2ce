"""Cells of real workers, and kill -9: of a cell, of its worker, of everything. Nothing is lost; nothing stays."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.machine import State
from tests.crash.world import World, is_alive, on_sql_stores, until


@on_sql_stores
def test_a_killed_cell_costs_its_own_attempt_and_nothing_else(world: World) -> None:
    worker = world.worker("w", "--isolate", "--slots", "3").until_ready()
    victim, neighbour = world.tasks.wait.enqueue().id, world.tasks.wait.enqueue().id
    cells = [world.until_started(job).pid for job in (victim, neighbour)]
    children = worker.children()
    assert len({*cells, *children}) == 3
    assert all(os.getsid(pid) == pid for pid in cells)
    os.kill(cells[0], signal.SIGKILL)
    again = world.until_started(victim, times=2)
    assert again.pid not in cells
    world.go()
    assert world.until_state(victim, "done").crashes == 1
    row = world.until_state(neighbour, "done")
    assert (row.attempt, row.crashes, row.zombies) == (1, 0, 0)
    assert world.kinds(victim) == ["zombie", "succeeded"]
    [event] = world.events(victim, "zombie")
    assert event.detail["cause"] == "its process was killed by SIGKILL"
    assert (event.detail["detector"], event.detail["pid"]) == ("exit", cells[0])
    assert worker.children() == children, "the worker itself was not touched"


@on_sql_stores
def test_cells_and_what_they_started_die_with_their_worker(world: World) -> None:
    worker = world.worker("w", "--isolate", "--slots", "2").until_ready()
    job = world.tasks.breed.enqueue().id
    cell = world.until_started(job).pid
    grandchild = int((world.folder / "grandchild").read_text())
    [child] = worker.children()
    os.kill(child, signal.SIGKILL)
    until(lambda: not is_alive(cell) and not is_alive(grandchild), "the cell and its child are gone")
    assert world.until_started(job, times=2).pid != cell
    world.go()
    assert world.until_state(job, "done").crashes == 1
    assert world.kinds(job) == ["zombie", "succeeded"]


def test_when_everything_is_killed_no_cell_is_left(world: World) -> None:
    """Cells are in sessions of their own: the kill of the group does not reach them."""
    worker = world.worker("w", "--isolate", "--slots", "2").until_ready()
    job = world.tasks.breed.enqueue().id
    cell = world.until_started(job).pid
    grandchild = int((world.folder / "grandchild").read_text())
    worker.kill()
    until(lambda: not is_alive(cell) and not is_alive(grandchild), "the cell and its child are gone")
    world.worker("other").until_ready()
    world.go()
    assert world.until_state(job, "done").crashes == 1


@pytest.fixture
def narrow() -> Iterator[Path]:
    """A memory cgroup with room for a worker and not for a hog; not every machine lets us make one."""
    places = [line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own = next((path for names, path in places if "memory" in names.split(",")), None)
    if own is None:
        pytest.skip("there is no memory controller of version 1")
    group = Path(f"/sys/fs/cgroup/memory{own}", f"holdfast-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(600 << 20))
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    yield group
    until(lambda: not (group / "cgroup.procs").read_text(), "everybody has left")
    group.rmdir()


def test_a_kill_for_want_of_memory_is_told_from_any_other(world: World, narrow: Path) -> None:
    enter = f"import os; open({str(narrow / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    run = (
        "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_module('holdfast', run_name='__main__', alter_sys=True)"
    )
    command = ["-c", enter + run, "holdfast", "worker", "crash_tasks:app", "--name", "w", "--isolate", "--slots", "1"]
    worker = world.run("w", command).until_ready()
    children = worker.children()
    try:
        hog = world.tasks.hog.enqueue().id
        world.until_state(hog, "dead")
        [event] = world.events(hog, "zombie")
        assert re.fullmatch(r"its process was killed by SIGKILL; out of memory at \d+ MiB", event.detail["cause"])
        killed = world.tasks.wait.enqueue().id
        os.kill(world.until_started(killed).pid, signal.SIGKILL)
        world.until_started(killed, times=2)
        [event] = world.events(killed, "zombie")
        assert event.detail["cause"] == "its process was killed by SIGKILL"
        assert worker.children() == children, "the worker itself was not touched"
    finally:
        worker.kill()


@on_sql_stores
def test_an_isolated_job_finishes_within_the_grace_period_and_no_cell_is_left(world: World) -> None:
    worker = world.worker("w", "--isolate", "--slots", "2", "--grace-period", "50").until_ready()
    job = world.tasks.wait.enqueue().id
    cell = world.until_started(job).pid
    worker.signal_leader(signal.SIGTERM)
    until(lambda: worker.said("may continue for 50 s"), "it is stopping")
    world.go()
    assert worker.wait() == 0
    assert world.row(job).state is State.DONE
    assert not is_alive(cell)


def test_what_will_not_stop_is_given_back_and_its_cell_is_ended(world: World) -> None:
    worker = world.worker("w", "--isolate", "--grace-period", "0.1").until_ready()
    job = world.tasks.blocks.enqueue(600.0).id
    cell = world.until_started(job).pid
    worker.signal_leader(signal.SIGTERM)
    assert worker.wait() == 0
    assert not is_alive(cell)
    row = world.row(job)
    assert (row.state, row.crashes, row.zombies) == (State.READY, 0, 0)
    assert world.kinds(job) == ["released"]
