"""What a job said before its process was killed is in its autopsy, whoever finds the death (DESIGN 4)."""

import os
import signal
from collections.abc import Callable

import pytest

from tests.crash.world import Process, World, on_sql_stores, until

LEASE_S = 4.5  # long enough for a busy machine to renew it in time


Groups = dict[str, Process]


def see_the_child_end(world: World, groups: Groups, job: str) -> None:
    os.kill(world.until_started(job).pid, signal.SIGKILL)


def find_the_lock_free(world: World, groups: Groups, job: str) -> None:
    groups[world.holder(job).name.split("/")[0]].kill()


def start_again(world: World, groups: Groups, job: str) -> None:
    for name, group in groups.items():
        group.kill()
        world.worker(name)


def see_the_lease_run_out(world: World, groups: Groups, job: str) -> None:
    world.freeze(groups[world.holder(job).name.split("/")[0]])


SCENES: dict[str, tuple[Callable[[World, Groups, str], None], int]] = {
    "exit": (see_the_child_end, 1),
    "vanished": (find_the_lock_free, 2),
    "restart": (start_again, 1),
    "expired": (see_the_lease_run_out, 2),
}


@on_sql_stores
@pytest.mark.slow  # a beat has to carry the lines; a lease has to run out
@pytest.mark.parametrize("detector", SCENES)
def test_the_autopsy_has_what_the_victim_said(world: World, detector: str) -> None:
    end, workers = SCENES[detector]
    groups = {name: world.worker(name).until_ready() for name in ("ann", "bob")[:workers]}
    lease_s = LEASE_S if detector == "expired" else 600
    job = world.tasks.chatty.using(lease_s=lease_s).enqueue().id
    world.until_started(job)
    until(lambda: "shop.till" in (world.row(job).log or ""), "a beat carries the lines")
    end(world, groups, job)
    world.until_state(job, "done")
    [event] = world.events(job, "zombie")
    assert event.detail["detector"] == detector
    [first, second] = event.detail["log"]
    assert first.endswith(" INFO holdfast.job: attempt 1 opened postgresql://ann:***@db/shop")
    assert second.endswith(" WARNING shop.till: attempt 1 has token=***")
    assert world.row(job).log is None


def shown(world: World, job: str) -> str:
    """What `holdfast jobs show` prints."""
    process = world.run("show", ["-m", "holdfast", "jobs", "show", job])
    assert process.wait() == 0
    return process.log.read_text()


@on_sql_stores
@pytest.mark.slow  # a beat has to carry the lines
def test_people_can_read_them(world: World) -> None:
    world.worker("ann").until_ready()
    job = world.tasks.chatty.using(lease_s=600).enqueue().id
    world.until_started(job)
    until(lambda: "shop.till" in (world.row(job).log or ""), "a beat carries the lines")
    running = shown(world, job)
    assert "last lines" in running
    assert "INFO holdfast.job: attempt 1 opened postgresql://ann:***@db/shop" in running
    see_the_child_end(world, {}, job)
    world.until_state(job, "done")
    assert "WARNING shop.till: attempt 1 has token=***" in shown(world, job)
    assert "hunter2" not in shown(world, job)
