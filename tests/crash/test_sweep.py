"""kill -9 before, inside and after every step and every undo of an order, with a ledger outside of the store.

Whatever was interrupted: every order ends done or rolled back; a step that was recorded is not run again; one that must
not be repeated is begun once for each time that somebody allowed it; undos run in reverse, each until it was recorded.
"""

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.core.machine import State
from holdfast.core.records import Step
from tests.crash.world import Process, World, on_sql_stores, until

FLOWS = Path(__file__).parent / "flows.py"
KILLED = -signal.SIGKILL
WORKERS = 2
PATIENCE_S = 480.0
STEPS = ("reserve", "charge", "pack", "label", "ship", "mail")
UNDONE = ("reserve", "charge", "label")
ONCE = ("charge", "ship")
RECORDS = 10  # one for each step, and one more for those with an undo and those that must not be repeated


class Case(NamedTuple):
    """Where an order dies, and how it goes on."""

    task: str
    kill: str
    fails: bool = False


class Line(NamedTuple):
    """One line of the ledger."""

    event: str  # begin, end; undo, undone; comes
    step: str
    job: str
    fence: int
    value: Any
    pid: int
    at: float


def places(*names: str, passings: int) -> list[str]:
    return [f"{name}:{nth}" for name in names for nth in range(1, passings + 1)]


IN_A_STEP = places("step.before", "inside", "step.after", passings=len(STEPS))
CASES = [
    *(Case("order", kill) for kill in IN_A_STEP),
    *(Case("order", kill) for kill in places("between", passings=len(STEPS))),
    *(Case("order", kill) for kill in places("record.before", "record.after", passings=RECORDS)),
    *(Case("order", kill, True) for kill in places("undo.before", "undoing", "undo.after", passings=len(UNDONE))),
    *(Case("order", kill, True) for kill in places("undo record.before", "undo record.after", passings=len(UNDONE))),
    *(Case("order_or_nothing", kill) for kill in IN_A_STEP),
]

PLAYED = {case.kill.split(":")[0] for case in CASES if "." in case.kill and " " not in case.kill}


@pytest.fixture
def world(tmp_path: Path, db: str) -> Iterator[World]:
    made = World(tmp_path, url=db, source=FLOWS)
    yield made
    try:
        trouble = made.store.check()
    finally:
        made.close()
    assert trouble == []


class Sweep:
    """Orders that die each at its own place; workers that come after those that died, and a person who answers."""

    def __init__(self, world: World, cases: list[Case]) -> None:
        self.world = world
        self.cases: dict[str, Case] = {}
        self.allowed: dict[tuple[str, str], int] = {}  # how often somebody said that a step may be run again
        self.told: set[tuple[str, str]] = set()  # of which steps somebody said that they happened
        self._workers: list[Process] = []
        for case in cases:
            given = {"fails": True} if case.fails else {}
            self.cases[getattr(world.tasks, case.task).enqueue(case.kill, **given).id] = case

    def run(self) -> None:
        until(self._go_on, "every order ends", PATIENCE_S)

    def _go_on(self) -> bool:
        self._workers = [each for each in self._workers if not self._is_dead(each)]
        while len(self._workers) < WORKERS:
            self._workers.append(self.world.lone_worker("w", slots=1))
        for job in self.world.app.find(state="held"):
            self._answer(job.id)
        counts = self.world.store.counts()["default"]
        return not set(counts) & {State.READY, State.RUNNING, State.WAITING, State.HELD}

    def _is_dead(self, worker: Process) -> bool:
        code = worker.popen.poll()
        assert code in (None, KILLED), worker.log.read_text()
        return code is not None

    def _answer(self, job_id: str) -> None:
        """Say what the ledger says: it happened, or it did not, and may be run."""
        row, case = self.world.row(job_id), self.cases[job_id]
        assert row.open_step in ONCE, row.error
        if case.task == "order_or_nothing":
            self.world.app.resolve(job_id, "rollback", fence=row.fence)
            return
        ends = [line for line in ledger(self.world, job_id) if (line.event, line.step) == ("end", row.open_step)]
        if ends:
            self.told.add((job_id, row.open_step))
            self.world.app.resolve(job_id, "done", result=ends[0].value, fence=row.fence)
        else:
            self.allowed[job_id, row.open_step] = self.allowed.get((job_id, row.open_step), 0) + 1
            self.world.app.resolve(job_id, "retry", fence=row.fence)

    # -------------------------------------------------------------------------------------------- afterwards

    def check(self, job_id: str) -> None:
        case, row = self.cases[job_id], self.world.row(job_id)
        lines, steps = ledger(self.world, job_id), self.world.store.steps(job_id)
        assert (self.world.folder / f"killed-{job_id}").exists(), f"it has not died at its place: {case}"
        rolls_back = case.fails or case.task == "order_or_nothing"
        assert row.state is (State.ROLLED_BACK if rolls_back else State.DONE)
        self._check_steps(job_id, lines, steps)
        self._check_undos(lines, steps, undoes=rolls_back)
        if row.state is State.DONE:
            assert json.loads(row.result or "") == [f"{name} is done" for name in STEPS]
            assert [(step.name, step.state) for step in steps] == [(name, "recorded") for name in STEPS]
        elif case.fails:
            assert row.error == "Rollback: the house does not exist", "the cause is kept"
        assert "stale_report" not in self.world.kinds(job_id)

    def _check_steps(self, job_id: str, lines: list[Line], steps: list[Step]) -> None:
        begun = [line.step for line in lines if line.event == "begin"]
        in_order = list(dict.fromkeys(begun))
        assert in_order == list(STEPS[: len(in_order)])
        assert begun == sorted(begun, key=STEPS.index), "no step is run after the next one: it was recorded"
        assert len(begun) <= len(in_order) + 1, "only what was interrupted is run again"
        for name in ONCE:
            assert begun.count(name) <= 1 + self.allowed.get((job_id, name), 0)
        for step in steps:
            fences = [line.fence for line in lines if (line.event, line.step) == ("begin", step.name)]
            if step.state == "recorded" and (job_id, step.name) not in self.told:
                assert fences[-1:] == [step.fence], "the run that is recorded is the last"
                assert fences.count(step.fence) == 1
            assert all(fence <= step.fence for fence in fences), "none after the record"

    def _check_undos(self, lines: list[Line], steps: list[Step], *, undoes: bool) -> None:
        undos = [line for line in lines if line.event == "undo"]
        names = [line.step for line in undos]
        assert names == sorted(names, key=STEPS.index, reverse=True), "in reverse, and none after the next one"
        assert len(names) <= len(set(names)) + 1, "only what was interrupted is undone again"
        for step in steps:
            own = [line for line in undos if line.step == step.name]
            wanted = undoes and step.name in UNDONE
            assert (step.state == "undone", bool(own)) == (wanted, wanted), step
            assert all(line.fence <= step.fence for line in own), "none after its record"
            recorded = f"{step.name} is done"
            assert {line.value for line in own} <= ({recorded} if step.result is not None else {None})
        if undos:
            first = lines.index(undos[0])
            assert not [line for line in lines[first:] if line.event == "begin"], "nothing is begun any more"


def ledger(world: World, job: str | None = None) -> list[Line]:
    """What the steps have written, oldest first."""
    path = world.folder / "orders"
    lines = []
    for text in path.read_bytes().split(b"\n") if path.exists() else []:
        with contextlib.suppress(ValueError):
            lines.append(Line(**json.loads(text)))
    return [line for line in lines if job in (None, line.job)]


@pytest.mark.slow  # some ninety processes die, and as many come after them
@pytest.mark.timeout(300)
@on_sql_stores
def test_an_order_that_dies_anywhere_is_done_or_rolled_back(world: World) -> None:
    sweep = Sweep(world, CASES)
    sweep.run()
    for job_id in sweep.cases:
        sweep.check(job_id)


DEEDS = ("step", "signal", "start", "transaction")


@pytest.mark.slow  # a lease has to run out
@on_sql_stores
def test_a_zombie_that_returns_can_neither_record_nor_signal_nor_start(world: World) -> None:
    with contextlib.closing(world.connect()) as db:
        world.store.counts()  # its tables, and the schema that they are in, are there
        db.execute("CREATE TABLE effect (job TEXT, fence INTEGER)")
    zombie, other = world.tasks.zombie, world.tasks.other.enqueue().id
    frozen = world.worker("ann", "--slots", "8")
    jobs = {deed: zombie.using(lease_s=6).enqueue(deed, other).id for deed in DEEDS}
    until(lambda: {line.step for line in ledger(world) if line.event == "comes"} == set(DEEDS), "all are in the middle")
    world.until_state(other, "waiting")
    world.worker("bob", "--slots", "8").until_ready()
    world.freeze(frozen)
    world.go()
    before = {deed: world.until_state(job, "done") for deed, job in jobs.items()}
    row = before["step"]
    assert {(each.result, each.attempt, each.zombies) for each in before.values()} == {(str(row.fence), 2, 1)}
    assert world.until_state(other, "done").result == f'"{row.fence}"'
    children = world.app.find(task="child")
    world.until_state(children[0].id, "done")
    frozen.signal_group(signal.SIGCONT)
    for job in jobs.values():
        until(lambda job=job: "stale_report" in world.kinds(job), "the zombie reports")  # type: ignore[misc]
    fine = world.tasks.child.enqueue().id  # it goes on working; its threads have come to an end
    world.until_state(fine, "done")
    for deed, job in jobs.items():
        assert world.row(job) == before[deed], "nothing has changed"
        assert [event.fence for event in world.events(job, "stale_report")] == [1]
        fences = [step.fence for step in world.store.steps(job)]
        assert fences == ([1, row.fence] if len(fences) > 1 else [1])
    assert len(world.store.steps(jobs["step"])) == 2
    assert [job.id for job in world.app.find(task="child")] == [fine, children[0].id]
    assert len(world.events(other, "signalled")) == 1
    with contextlib.closing(world.connect()) as db:
        effects = [tuple(each) for each in db.execute("SELECT job, fence FROM effect")]
    assert effects == [(jobs["transaction"], row.fence)]
