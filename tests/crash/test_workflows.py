"""kill -9 on the way of an order, seen by the one who comes after it (P13). Every place is swept in test_sweep.py.

The world outside is a ledger that only grows. Whatever was interrupted: the order is done, or rolled back; what is
recorded was done once; what must not be repeated was done once, because a person who looks at the ledger says whether
it happened; undos run in reverse, and only the one that was interrupted runs twice.
"""

import signal
from collections import Counter

import pytest

from holdfast import insight
from holdfast.core.machine import State
from tests.crash.world import World, until

STEPS = ["reserve", "charge", "pack", "invoice", "ship", "mail"]
UNDOABLE = ["reserve", "charge", "invoice", "ship"]
RECORDS = len(STEPS) + len(UNDOABLE)  # those with an undo are written down when they begin, too
KILLED = -signal.SIGKILL

# Each passing of a point: (point, nth). The second step must not be repeated, the third one may be.
OF_STEPS = [(f"step.{when}", nth) for when in ("before", "after") for nth in (2, 3)]
OF_RECORDS = [("record.before", 1), ("record.after", RECORDS)]
OF_UNDOS = [("undo.before", 1), ("undo.after", 2)]
OF_UNDO_RECORDS = [("record.before", RECORDS + 1), ("record.after", RECORDS + len(UNDOABLE))]


def on_every_store(plays: list[tuple[str, int]]) -> pytest.MarkDecorator:
    given = [(db, point, nth) for db in ("sqlite", "postgres", "redis") for point, nth in plays]
    return pytest.mark.parametrize(("db", "point", "nth"), given, indirect=["db"])


def entries(world: World, job: str) -> list[str]:
    path = world.folder / f"order-{job}"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def rescue(world: World, job: str) -> State:
    """Work in this process until the order has ended; answer for it like somebody who looks at the ledger."""

    def ended() -> bool:
        world.app.tick(20)
        row = world.row(job)
        if row.state is State.HELD:
            assert row.open_step in ("charge", "ship")
            if row.open_step in entries(world, job):
                world.app.resolve(job, "done", result=f"{row.open_step}!", by="ann")
            else:
                world.app.resolve(job, "retry", by="ann")
        return row.ended_at is not None

    until(ended, "the order has ended")
    return world.row(job).state


def play(world: World, point: str, nth: int, *, wanted: bool) -> tuple[list[str], State]:
    job = world.tasks.order.using(id="o1").enqueue("o1", wanted).id
    assert world.lone_worker("victim", f"{point}=kill:{nth}").wait() == KILLED
    state = rescue(world, job)
    steps = world.app.steps(job)
    assert [step.name for step in steps] == STEPS
    assert not any(kind == "stale_report" for kind in world.kinds(job))
    return entries(world, job), state


def assert_done_once(lines: list[str], may_repeat: str | None) -> None:
    done = [line for line in lines if not line.startswith("undo")]
    assert list(dict.fromkeys(done)) == STEPS
    for step, times in Counter(done).items():
        assert times == 1 or (times == 2 and step == may_repeat and step not in ("charge", "ship")), lines


@pytest.mark.slow  # each starts a worker and kills it
@on_every_store(OF_STEPS + OF_RECORDS)
def test_an_order_whose_worker_is_killed_on_the_way_is_done(world: World, point: str, nth: int) -> None:
    lines, state = play(world, point, nth, wanted=True)
    assert state is State.DONE
    inside = lines[: len(lines) - len(STEPS) + 1][-1] if len(lines) > len(STEPS) else None
    repeated = [step for step, times in Counter(lines).items() if times == 2]
    assert len(repeated) <= 1
    assert_done_once(lines, repeated[0] if repeated else inside)
    assert [step.state for step in world.app.steps("o1")] == ["recorded"] * len(STEPS)


@pytest.mark.slow  # each starts a worker and kills it
@on_every_store(OF_UNDOS + OF_UNDO_RECORDS)
def test_an_order_whose_worker_is_killed_while_it_is_undone_is_undone(world: World, point: str, nth: int) -> None:
    lines, state = play(world, point, nth, wanted=False)
    assert state is State.ROLLED_BACK
    assert_done_once(lines, None)
    undone = [line.split()[1] for line in lines if line.startswith("undo")]
    assert list(dict.fromkeys(undone)) == UNDOABLE[::-1]
    assert sum(Counter(undone).values()) <= len(UNDOABLE) + 1, "only the one that was interrupted runs twice"
    assert all(line == f"undo {line.split()[1]} {line.split()[1]}!" for line in lines if line.startswith("undo"))
    assert Counter(step.state for step in world.app.steps("o1")) == {"undone": 4, "recorded": 2}
    assert world.row("o1").error == "Rollback: nobody wants it"


@pytest.mark.slow  # each starts a worker and kills it
@on_every_store([("step.after", nth) for nth in (1, 3, 4, 6)])
def test_with_on_crash_rollback_a_death_undoes(world: World, point: str, nth: int) -> None:
    """A step that was begun and not recorded may have happened: it is undone with nothing known of it."""
    job = world.tasks.order.using(id="o1", on_crash="rollback").enqueue("o1").id
    assert world.lone_worker("victim", f"{point}=kill:{nth}").wait() == KILLED
    assert rescue(world, job) is State.ROLLED_BACK
    lines = entries(world, job)
    begun = STEPS[:nth]
    assert [line for line in lines if not line.startswith("undo")] == begun
    wanted = [step for step in begun[::-1] if step in UNDOABLE]
    results = {step: f"{step}!" if step != begun[-1] else "None" for step in wanted}
    assert [line for line in lines if line.startswith("undo")] == [f"undo {step} {results[step]}" for step in wanted]


@pytest.mark.slow  # each starts a worker and kills it
@pytest.mark.parametrize("careful", [False, True], ids=["repeatable", "not repeatable"])
@on_every_store([("record.after", 2)])
def test_a_step_whose_worker_is_killed_between_two_tries_has_the_rest_of_them(
    world: World, point: str, nth: int, careful: bool
) -> None:
    """Its function had raised, so nobody is asked, not even about a step that must not be repeated."""
    job = world.tasks.stubborn.using(id="o1").enqueue("o1", careful)
    assert world.lone_worker("victim", f"{point}=kill:{nth}").wait() == KILLED
    assert len(entries(world, "o1")) == (1 if careful else 2)
    until(lambda: world.app.tick(20) and world.row(job.id).ended_at is not None, "the workflow has ended")
    assert job.result(0) == "tried"
    [step] = world.app.steps(job.id)
    assert (entries(world, "o1"), step.tries, world.row(job.id).crashes) == (["try"] * 3, 3, 1)
    assert "held" not in world.kinds(job.id)


@pytest.mark.slow  # starts a worker and its cells
@pytest.mark.parametrize("db", ["sqlite", "postgres"], indirect=True)
def test_a_workflow_in_a_process_of_its_own_costs_nobody_else_anything(world: World) -> None:
    world.worker("w", "--isolate")
    jobs = {
        name: world.tasks.deadly.using(id=name).enqueue(name, *given).id
        for name, given in {"once": (1,), "always": (9,), "careful": (1, True)}.items()
    }
    plain = world.tasks.order.using(id="o1").enqueue("o1")
    assert plain.result(60) == "mail!"
    world.until_state(jobs["once"], "done")
    world.until_state(jobs["always"], "dead")
    held = world.until_state(jobs["careful"], "held")
    assert held.stop_reason == "open_step"
    assert entries(world, "once") == ["begin", "die", "die"]
    assert entries(world, "always") == ["begin", "die", "die", "die"]
    assert entries(world, "careful") == ["begin", "die"]
    assert world.row(plain.id).crashes == 0
    world.app.resolve(jobs["careful"], "done", result="it happened", by="ann")
    assert world.app.get(jobs["careful"]).result(60) == "it happened"


@pytest.mark.slow  # starts a worker, which tells of a step only after a second in it
@pytest.mark.parametrize("flags", [(), ("--isolate",)], ids=["in the worker", "in a cell"])
@pytest.mark.parametrize("db", ["sqlite", "postgres"], indirect=True)
def test_the_autopsy_names_the_plain_step_in_which_the_worker_died(world: World, flags: tuple[str, ...]) -> None:
    world.worker("w", *flags)
    job = world.tasks.lingering.using(id="l1").enqueue("l1").id
    until(lambda: world.row(job).in_steps == (("2", "linger"),), "the beat has told of the step")
    world.go()
    world.until_state(job, "done")
    [event] = world.events(job, "zombie")
    assert (event.detail["step"], event.detail["in_steps"]) == ("linger", ["2 linger"])
    [death] = insight.deaths(world.app.steps(job), [event])
    assert (death.place, death.inside) == ("in linger (2)", True)
    assert entries(world, "l1") == ["begin", "linger", "linger", "end"]
