"""Real workers that can read and cannot write: they live, and cannot renew a lease (DESIGN 15.5)."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.world import Process, World, on_sql_stores
from tests.servers import PostgresServer

SMALL_FILE = 64 * 1024  # the ledger and the logs of the workers are smaller

pytestmark = pytest.mark.slow  # leases have to end


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server whose commits wait for a standby, once it is told to have one."""
    server = PostgresServer(("fsync=off", "full_page_writes=off"))
    yield server
    server.close()


@pytest.fixture
def world_on_server(server: PostgresServer, tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, url=server.url)
    yield world
    world.close()


def test_jobs_that_ended_while_a_synchronous_standby_was_gone_run_once(
    world_on_server: World, server: PostgresServer
) -> None:
    world = world_on_server
    start_workers(world)
    jobs = start_jobs(world, 6.0)
    server.lose_standby()
    time.sleep(12.0)
    assert len(world.ledger("end")) == len(jobs), "they have ended, and no result is stored"
    server.find_standby()
    assert_each_ran_once(world, jobs)


def test_jobs_that_ended_while_no_file_could_grow_run_once(world: World) -> None:
    """A quota that is used up does the same to all processes of a user."""
    workers = start_workers(world)
    for _ in range(300):
        world.store.ping(durably=True)  # so the log of the database has no room left in what it has
    jobs = start_jobs(world, 15.0)
    limits = [(pid, resource.prlimit(pid, resource.RLIMIT_FSIZE)) for each in workers for pid in each.members()]
    for pid, (_, hard) in limits:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (SMALL_FILE, hard))
    time.sleep(24.0)
    assert len(world.ledger("end")) == len(jobs), "they have ended, and no result is stored"
    assert all(world.row(job).state == "running" for job in jobs)
    for pid, limit in limits:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)
    assert_each_ran_once(world, jobs)


@on_sql_stores
def test_a_worker_that_hangs_is_found_by_its_lease_alone_within_its_bound(world: World) -> None:
    """P8, where commits work: the reaper has shown that before the lease ends, and need not wait for another 3 s."""
    first = world.lone_worker("first").until_ready()
    job = world.tasks.first_hangs.using(lease_s=12).enqueue().id
    world.until_started(job)
    world.worker("second").until_ready()
    world.freeze(first)
    world.until_state(job, "done")
    [event] = world.events(job, "zombie")
    assert event.detail["detector"] == "expired"
    assert event.detail["seconds_overdue"] < 2.0, "twice the bound, for a busy machine"
    assert world.row(job).crashes == 1


def start_workers(world: World) -> list[Process]:
    return [world.worker(f"w{number}").until_ready() for number in range(3)]


def start_jobs(world: World, lease_s: float) -> list[str]:
    jobs = [world.tasks.quick.using(lease_s=lease_s).enqueue(1.5).id for _ in range(9)]
    for job in jobs:
        world.until_started(job)
    return jobs


def assert_each_ran_once(world: World, jobs: list[str]) -> None:
    """Their leases are over when commits work again. The workers that keep their results come first, and no reaper
    takes the jobs for lost: neither one that looked all the time, nor one that is started just now."""
    scan = world.run("scan", ["-m", "holdfast", "scan", "--fix"])
    for job in jobs:
        world.until_state(job, "done")
    assert scan.wait() == 0
    assert [len(world.starts(job)) for job in jobs] == [1] * len(jobs)
    assert [world.kinds(job) for job in jobs] == [["succeeded"]] * len(jobs)
