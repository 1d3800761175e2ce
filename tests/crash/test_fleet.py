"""One process of a fleet looks for the dead and for what is due. It may be frozen, with its session and its locks."""

import signal

import pytest

from holdfast.stores.postgres.connection import Options
from tests.crash.world import Process, World, now, until

pytestmark = [
    pytest.mark.slow,  # real processes, and a frozen one is noticed after a few seconds
    pytest.mark.parametrize("db", ["postgres"], indirect=True),
]

HOLDER = """
    SELECT worker.pid FROM worker
    JOIN pg_locks AS own ON own.granted AND own.locktype = 'advisory'
        AND ((own.classid::bigint << 32) | own.objid::bigint) = hashtextextended(worker.id, 0)
    JOIN pg_locks AS role ON role.granted AND role.locktype = 'advisory' AND role.pid = own.pid
        AND ((role.classid::bigint << 32) | role.objid::bigint) = hashtextextended(%s, %s)
"""
DEAD, DUE = 1, 2


@pytest.fixture
def fleet(world: World) -> World:
    """Three groups, each with a supervisor of its own."""
    for name in ("ann", "bob", "cat"):
        world.worker(name, "--slots", "2")
    for process in world.processes:
        process.until_ready()
    return world


def freeze_the_holder(world: World, role: int) -> Process:
    """Freeze the whole group with the process that has the role."""
    schema = Options.parse(world.url).schema
    with world.connect() as db:
        db.execute(f"SET search_path = {schema}")
        [pid] = until(lambda: db.execute(HOLDER, [schema, role]).fetchone(), "one has the role")
    group = group_of(world, pid)
    group.signal_group(signal.SIGSTOP)
    return group


def group_of(world: World, pid: int) -> Process:
    [group] = [each for each in world.processes if pid in each.children()]
    return group


def test_a_death_is_found_though_the_process_that_looks_is_frozen(fleet: World) -> None:
    """Long before the lease ends, and without a supervisor that sees it."""
    freeze_the_holder(fleet, DEAD)
    job = fleet.tasks.first_hangs.using(lease_s=60).enqueue().id
    victim = group_of(fleet, fleet.until_started(job).pid)
    killed_at = now()
    victim.kill()
    assert fleet.until_started(job, 2).at - killed_at < 20.0
    [zombie] = fleet.store.journal(kinds=["zombie"])
    assert zombie.detail["detector"] == "vanished"


def test_a_lease_ends_in_time_though_the_process_that_looks_is_frozen(fleet: World) -> None:
    """The victim is frozen as well: nothing but its lease can show that it is lost."""
    freeze_the_holder(fleet, DEAD)
    job = fleet.tasks.first_hangs.using(lease_s=4).enqueue().id
    group_of(fleet, fleet.until_started(job).pid).signal_group(signal.SIGSTOP)
    assert fleet.until_started(job, 2)
    [zombie] = fleet.store.journal(kinds=["zombie"])
    assert zombie.detail["detector"] == "expired"
    assert zombie.detail["seconds_overdue"] < 2.5, "one second, and some for a busy machine"


def test_jobs_and_timers_without_a_hint_are_found_though_the_process_that_looks_is_frozen(fleet: World) -> None:
    freeze_the_holder(fleet, DUE)
    frozen_at = now()
    with fleet.connect() as connection:
        job = fleet.tasks.quick.using(connection=connection).enqueue().id
    sleeper = fleet.tasks.naps.enqueue().id
    assert fleet.until_started(job).at - frozen_at < 15.0
    until(lambda: fleet.row(sleeper).state == "done", "it has slept", 15.0)
