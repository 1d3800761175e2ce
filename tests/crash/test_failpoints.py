"""kill -9 at every named point of the program (P1, P2, P4, P7, P10; DESIGN 15.2, 15.9).

Whatever was interrupted: afterwards another worker finishes everything. Nothing is lost, each job is accepted exactly
once, and a job that is dangerous to repeat has been started at most once.
"""

import signal
from collections.abc import Sequence

import pytest

from holdfast.core.machine import State
from holdfast.failpoints import POINTS
from tests.crash.test_sweep import PLAYED as OF_WORKFLOWS
from tests.crash.world import World, on_sql_stores, until

OF_A_WORKER = [point for point in POINTS if point.split(".")[0] in ("claim", "handler", "settle", "beat")]
KILLED = -signal.SIGKILL
SHORT_LEASE_S = 0.6


def on(stores: dict[str, Sequence[int]], points: Sequence[str]) -> pytest.MarkDecorator:
    """Play each point on each store, killed when it is passed for the nth time."""
    plays = [(db, point, passing) for db, passings in stores.items() for point in points for passing in passings]
    return pytest.mark.parametrize(("db", "point", "passing"), plays, indirect=["db"])


def submit(world: World) -> tuple[list[str], list[str]]:
    """Some short jobs, on threads and on the loop, one that is long enough for beats, and three careful ones."""
    tasks = world.tasks
    drafts = [tasks.quick.job(0.02) for _ in range(5)] + [tasks.aquick.job(0.02) for _ in range(4)]
    drafts.append(tasks.quick.using(lease_s=SHORT_LEASE_S).job(0.5))
    plain = [job.id for job in world.app.enqueue_many(drafts)]
    careful = [job.id for job in world.app.enqueue_many([tasks.careful.job(0.02) for _ in range(3)])]
    return plain, careful


def assert_all_is_well(world: World, plain: list[str], careful: list[str]) -> None:
    until(lambda: all(world.row(job).state is State.DONE for job in plain), "all that may be repeated is done")
    until(lambda: all(world.row(job).state in (State.DONE, State.HELD) for job in careful), "the others ended or wait")
    for job in plain + careful:
        row, starts = world.row(job), world.starts(job)
        fences = [start.fence for start in starts]
        assert fences == sorted(set(fences)), "fences rise strictly (P4)"
        succeeded = [event.fence for event in world.events(job, "succeeded")]
        assert len(succeeded) == (row.state is State.DONE), "accepted exactly once"
        if succeeded:
            assert succeeded == [fences[-1]], "the newest attempt decided"
            assert row.result == str(fences[-1])
        if row.lease_s > SHORT_LEASE_S:  # a busy machine may be too late to renew the other
            assert "stale_report" not in world.kinds(job)
    for job in careful:
        assert len(world.starts(job)) <= 1, "started at most once (P7)"
    assert sum(len(states) for states in world.store.counts().values()) <= 2
    assert sum(sum(states.values()) for states in world.store.counts().values()) == len(plain) + len(careful), "P1"


@on({"sqlite": (1, 2), "postgres": (1,), "redis": (1,)}, OF_A_WORKER)
def test_a_worker_that_nobody_watches(world: World, point: str, passing: int) -> None:
    """It dies alone; another one comes later and finds what it left."""
    plain, careful = submit(world)
    victim = world.lone_worker("victim", f"{point}=kill:{passing}")
    assert victim.wait() == KILLED
    world.worker("rescue")
    assert_all_is_well(world, plain, careful)


@pytest.mark.parametrize(
    ("db", "point"),
    [("sqlite", point) for point in OF_A_WORKER]
    + [("postgres", "claim.after"), ("postgres", "settle.after")]
    + [("redis", "claim.after"), ("redis", "settle.after")],
    indirect=["db"],
)
def test_a_child_whose_supervisor_sees_it_end(world: World, point: str) -> None:
    """The supervisor settles what it left and starts another."""
    plain, careful = submit(world)
    worker = world.worker("w", point=f"{point}=kill")
    until(lambda: worker.said("was killed by SIGKILL"), "the child dies at its point")
    assert_all_is_well(world, plain, careful)


@on({"sqlite": (1, 2), "postgres": (1,), "redis": (1,)}, ["reap.retired", "reap.middle"])
def test_a_reaper_in_the_middle_of_its_work(world: World, point: str, passing: int) -> None:
    """Two workers die; the reaper that finds them dies between marking them gone and settling, or between two
    settlements. The next one goes on where it stopped."""
    tasks = world.tasks
    plain = [tasks.first_hangs.using(lease_s=600).enqueue().id for _ in range(6)]
    careful = [tasks.careful.using(lease_s=600).enqueue(600).id for _ in range(2)]
    victims = [world.lone_worker("first"), world.lone_worker("second")]  # four slots each
    for job in plain + careful:
        world.until_started(job)
    for victim in victims:
        victim.signal_group(signal.SIGKILL)
    for victim in victims:
        victim.wait()
    reaper = world.lone_worker("reaper", f"{point}=kill:{passing}")
    assert reaper.wait() == KILLED
    world.worker("rescue")
    assert_all_is_well(world, plain, careful)
    assert all(world.row(job).state is State.HELD for job in careful)
    assert {(world.row(job).crashes, world.row(job).zombies) for job in careful} == {(1, 1)}
    assert {(world.row(job).crashes, world.row(job).zombies) for job in plain} == {(0, 1)}, "it was none of them"


@on({"sqlite": (1, 3), "postgres": (3,), "redis": (3,)}, ["add.before", "add.after"])
def test_a_client_in_the_middle_of_an_enqueue(world: World, point: str, passing: int) -> None:
    """P1: what was acknowledged is there. P2: what was not is repeated with the same ids, and is there once."""
    code = (
        "import sys, crash_tasks\n"
        "for n in range(5):\n"
        "    job = crash_tasks.quick.using(id=f'job-{n}').enqueue(0.01)\n"
        "    print(job.id, job.existed, flush=True)\n"
    )
    client = world.run("client", ["-c", code], {"HOLDFAST_POINT": f"{point}=kill:{passing}"})
    assert client.wait() == KILLED
    acknowledged = [line.split()[0] for line in client.log.read_text().splitlines()]
    assert acknowledged == [f"job-{n}" for n in range(passing - 1)]
    stored = {job.id for job in world.app.find()}
    assert set(acknowledged) <= stored
    assert stored - set(acknowledged) == ({f"job-{passing - 1}"} if point == "add.after" else set())
    again = world.run("again", ["-c", code])
    assert again.wait() == 0
    existed = [line.split()[1] for line in again.log.read_text().splitlines()]
    assert existed.count("True") == len(stored)
    world.worker("w")
    assert_all_is_well(world, [f"job-{n}" for n in range(5)], [])


@on_sql_stores
def test_a_migration_in_the_middle(world: World) -> None:
    """Nothing of a half-made schema is left; the next program makes it anew."""
    code = "import crash_tasks; crash_tasks.app.store"
    assert world.run("client", ["-c", code], {"HOLDFAST_POINT": "migrate.middle=kill"}).wait() == KILLED
    job = world.tasks.quick.enqueue()
    world.worker("w")
    assert_all_is_well(world, [job.id], [])


def test_every_point_is_played_here() -> None:
    played = {*OF_A_WORKER, "reap.retired", "reap.middle", "add.before", "add.after", "migrate.middle"}
    played |= {"prune.before", "fire.before", "fire.after"}  # in test_pruning.py and test_schedules.py
    played |= {"end_batch.before", "end_batch.after"}  # in test_batches.py
    played |= {"key.middle", "dependents.before"}  # in test_keys.py and test_dependencies.py
    played |= {"copy.page", "copy.passed", "copy.settled"}  # in stores/test_copy.py
    played |= {"rescue.middle", "effect.after"}  # in tests/rescue and in cli/test_torture.py
    assert played | OF_WORKFLOWS == set(POINTS)
