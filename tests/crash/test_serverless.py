"""Calls of `app.tick()` in processes that a platform kills, and several of them at once."""

from __future__ import annotations

import json
import signal

import pytest

from tests.crash.test_failpoints import KILLED, on
from tests.crash.world import Process, World, on_every_store, until

pytestmark = pytest.mark.slow  # processes are started and killed

CALL = """if True:
    import json, sys, crash_tasks
    app = crash_tasks.app
    for number in range(30):
        app.every(seconds=1, task=crash_tasks.aquick.job(0.0), key=f"every-{number}", missed="last")
    report = app.tick(float(sys.argv[1]))
    print(json.dumps([report.settled, report.recovered, report.fired, report.finished]))
"""


def report_of(call: Process) -> list[int]:
    """What the call has printed, between the lines of its log."""
    [line] = [line for line in call.log.read_text().splitlines() if line.startswith("[")]
    report: list[int] = json.loads(line)
    return report


@on_every_store
def test_four_calls_at_once_run_each_job_and_fire_each_instant_once(world: World) -> None:
    assert world.run("declares", ["-c", CALL, "30"]).wait() == 0
    before = len(world.app.find(task="aquick", limit=1000))  # a slow start fires the first instants itself
    since = world.store.now().wall
    until(lambda: world.store.now().wall > since + 1.5, "an instant of each schedule is due")
    jobs = [world.tasks.quick.enqueue(0.01) for _ in range(60)]
    calls = [world.run(f"call-{number}", ["-c", CALL, "40"]) for number in range(4)]
    assert [call.wait() for call in calls] == [0, 0, 0, 0], [call.log.read_text() for call in calls]
    reports = [report_of(call) for call in calls]
    assert {(row.state, row.attempt, row.zombies) for row in (job.refresh().row for job in jobs)} == {("done", 1, 0)}
    fired = world.app.find(task="aquick", limit=1000)
    assert len(fired) >= before + 30
    assert sum(report[2] for report in reports) == len(fired) - before
    assert {job.row.attempt for job in fired} <= {0, 1}


@on_every_store
def test_the_call_after_one_that_was_killed_in_a_job_recovers_the_job(world: World) -> None:
    job, other = world.tasks.quick.enqueue(600), world.tasks.quick.enqueue(0.01)
    victim = world.run("victim", ["-c", CALL, "300"])
    world.until_started(job.id)
    until(lambda: other.refresh().state == "done", "the other job is done")
    victim.signal_group(signal.SIGKILL)
    victim.wait()
    rescue = world.run("rescue", ["-c", CALL, "6"])
    assert rescue.wait() == 0, rescue.log.read_text()
    assert report_of(rescue)[1] == 1
    row = job.refresh().row
    assert (row.zombies, row.attempt) == (1, 2), "recovered, and started again"
    assert other.refresh().row.attempt == 1


@on({"sqlite": (1,), "postgres": (1,)}, ["fire.before", "fire.after", "settle.before", "settle.after"])
def test_a_call_that_dies_beside_a_commit(world: World, point: str, passing: int) -> None:
    assert world.run("declares", ["-c", CALL, "30"]).wait() == 0
    since = world.store.now().wall
    until(lambda: world.store.now().wall > since + 1.5, "an instant of each schedule is due")
    jobs = [world.tasks.quick.enqueue(0.01) for _ in range(10)]
    victim = world.run("victim", ["-c", CALL, "60"], {"HOLDFAST_POINT": f"{point}=kill:{passing}"})
    assert victim.wait() == KILLED
    assert world.run("rescue", ["-c", CALL, "60"]).wait() == 0
    assert {job.refresh().state for job in jobs} == {"done"}
