"""Every way in which a handler without isolation can go wrong: its exact ending, its words, and what it costs others.

One worker lives through all that leaves its process alone, with two neighbours in it: one in a thread, one on the event
loop. What takes the process along has a worker of its own for each: the neighbours run again, and are not charged.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Job
from holdfast.core.records import Job as Row
from holdfast.errors import Refused
from tests.crash import misbehaving
from tests.crash.misbehaving import CANCEL, CASES, DEADLY, DEAF, HELD_S, LOOP_ENDS, NOT_STOPPED, TIMED_OUT
from tests.crash.world import Process, World, is_alive, on_sql_stores, schema_of_its_own, until
from tests.worker import bad

ROOT = Path(__file__).parents[2]
CAUSES = {"failed": "error", "timed_out": "error", "cancelled": "reason"}


class Street:
    """A real worker with two neighbours in it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.app = misbehaving.declare(App(world.url, journal="full"))
        self.worker = self.start("w", "--slots", "20", "--grace-period", "1")
        self.over = world.folder / "over"
        self.neighbours = [self.enqueue(name, str(self.over)) for name in ("neighbour", "a_neighbour")]
        self.homes = [int(until(lambda job=job: self.row(job).note, "a neighbour moves in")) for job in self.neighbours]  # type: ignore[misc]
        assert self.homes == [*self.worker.children()] * 2

    def start(self, name: str, *flags: str) -> Process:
        path = os.pathsep.join([str(ROOT), self.world.env["PYTHONPATH"]])
        command = ["-m", "holdfast", "worker", "tests.crash.misbehaving:app", "--name", name, *flags]
        return self.world.run(name, command, {"PYTHONPATH": path}).until_ready()

    def enqueue(self, name: str, *arguments: Any) -> Job[Any]:
        job: Job[Any] = self.app.tasks[name].enqueue(*arguments)
        return job

    def row(self, job: Job[Any]) -> Row:
        return self.world.row(job.id)

    def assert_undisturbed(self) -> None:
        for job, home in zip(self.neighbours, self.homes, strict=True):
            row = self.row(job)
            assert (row.state, row.attempt, row.note) == ("running", 1, str(home))
            assert is_alive(home)

    def let_finish(self) -> list[Row]:
        self.over.touch()
        return [self.world.until_state(job.id, "done") for job in self.neighbours]

    def close(self) -> None:
        self.app.close()


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def street(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Street]:
    folder = tmp_path_factory.mktemp("street")
    with contextlib.ExitStack() as stack:
        url = f"sqlite:///{folder}/jobs.db"
        if request.param == "postgres":
            server = request.getfixturevalue("postgres_server")
            url = stack.enter_context(schema_of_its_own(server, f"street_{secrets.token_hex(4)}"))
        world = World(folder, url=url)
        stack.callback(world.close)
        street = Street(world)
        stack.callback(street.close)
        yield street
        assert world.store.check() == []


@pytest.fixture
def own_street(world: World) -> Iterator[Street]:
    street = Street(world)
    yield street
    street.close()


# --------------------------------------------------------------------------- what leaves its process alone


@pytest.mark.parametrize("name", CASES)
def test_its_ending_is_its_own(street: Street, name: str) -> None:
    _, case = CASES[name]
    job = street.enqueue(name)
    if case is CANCEL:
        until(lambda: street.row(job).note, "it has begun")
        job.cancel()
    row = street.world.until_state(job.id, case.state)
    assert (row.attempt, row.crashes, row.zombies, row.suspects) == (1, 0, 0, 0)
    assert row.failures == (0 if case is CANCEL else 1)
    assert row.error is not None
    assert row.error.startswith(case.words), row.error
    events = [event for event in street.world.store.journal(job.id) if event.kind != "claimed"]
    assert [event.kind for event in events] == (["moved"] if case is CANCEL else []) + list(case.kinds)
    ending = next(event for event in events if event.kind == case.kinds[0])
    assert row.error.startswith(ending.detail[CAUSES[case.kinds[0]]])
    assert case.stack is None or case.stack in ending.detail["stack"]
    street.assert_undisturbed()


def test_what_a_handler_started_goes_on_when_it_has_returned(street: Street, tmp_path: Path) -> None:
    """Nobody ends it: only the processes of an isolated task are its worker's business."""
    job = street.enqueue("start_a_grandchild", str(tmp_path / "pid"), "return")
    assert street.world.until_state(job.id, "done").attempt == 1
    grandchild = int((tmp_path / "pid").read_text())
    try:
        assert is_alive(grandchild)
        street.assert_undisturbed()
    finally:
        os.kill(grandchild, signal.SIGKILL)


@pytest.mark.parametrize("name", ["fork_and_return", "a_fork_and_await", "fork_inside"])
def test_a_process_that_a_handler_forks_is_not_a_worker(street: Street, tmp_path: Path, name: str) -> None:
    """It comes back from the handler as well, and ends there: it settles nothing, and runs no other job."""
    with contextlib.closing(street.world.connect()) as db:
        db.execute("CREATE TABLE IF NOT EXISTS effect (job_id text, fence integer)")
    job = street.enqueue(name, str(tmp_path / "pid"))
    row = street.world.until_state(job.id, "done")
    assert (row.attempt, row.result) == (1, '"parent"')
    child = int((tmp_path / "pid").read_text())
    until(lambda: not is_alive(child), "the child ends")
    assert street.world.kinds(job.id) == ["succeeded"]
    if name == "fork_inside":
        with contextlib.closing(street.world.connect()) as db:
            found = db.execute(f"SELECT fence FROM effect WHERE job_id = '{job.id}'").fetchall()
        assert [fence for (fence,) in found] == [1]
    street.assert_undisturbed()


@pytest.mark.slow  # Python's lock is held for several leases
def test_a_lock_held_for_several_leases_is_a_death_and_its_late_result_is_refused(street: Street) -> None:
    """Nothing of the process moves, so no beat comes: from outside it is dead. Neighbours with longer leases live."""
    other = street.start("other", "--queues", "elsewhere")
    for _ in range(5):
        job = street.enqueue("hold_the_lock", HELD_S)
        until(lambda job=job: street.row(job).state in ("dead", "done"), "it is settled")  # type: ignore[misc]
        row = street.row(job)
        if (row.state, row.attempt) == ("dead", 1):
            break
        # Another thread was inside a write to the file: nobody could renew or judge, so that costs nothing (DESIGN 14),
        # and the attempt goes on, or the next one is the one that counts.
        assert (street.world.kind, row.failures) == ("sqlite", 0)
        assert row.crashes == (1 if row.state == "dead" else 0), street.world.kinds(job.id)
        beats = {each.name: each.beats for each in street.world.store.workers()}
        until(
            lambda beats=beats: any(
                each.name == "w/1" and each.beats > beats.get("w/1", 0) for each in street.world.store.workers()
            ),
            "it beats",
        )  # type: ignore[misc]
    assert (row.attempt, row.failures, row.crashes, row.zombies) == (1, 0, 1, 1)
    assert (row.error, row.stop_reason) == ("worker w/1 was lost: its lease ran out", "crashes_max")
    until(lambda: street.world.events(job.id, "stale_report"), "it comes back, and is refused")
    assert street.world.kinds(job.id) == ["zombie", "dead", "stale_report"]
    [zombie] = street.world.events(job.id, "zombie")
    assert (zombie.detail["detector"], zombie.detail["worker"]) == ("expired", "w/1")
    assert street.row(job) == row
    street.assert_undisturbed()
    other.kill()


def test_at_the_end_the_neighbours_finish_where_they_began(street: Street) -> None:
    street.assert_undisturbed()
    rows = street.let_finish()
    assert [int(row.result or 0) for row in rows] == street.homes
    assert [street.world.kinds(job.id) for job in street.neighbours] == [["succeeded"]] * 2


# ------------------------------------------------------------------------------ what takes its process along


@on_sql_stores
@pytest.mark.parametrize("way", ["", "a_"], ids=["sync", "async"])
@pytest.mark.parametrize("fn", DEADLY, ids=lambda fn: fn.__name__)
def test_the_process_dies_and_nobody_else_is_charged(own_street: Street, fn: Callable[[], None], way: str) -> None:
    world, how = own_street.world, f"its process {DEADLY[fn]}"
    job = own_street.enqueue(f"{way}{fn.__name__}")
    until(lambda: own_street.row(job).state == "running", "it is there too")
    (world.folder / "strike").touch()
    row = world.until_state(job.id, "dead")
    assert (row.attempt, row.failures, row.crashes, row.zombies) == (2, 0, 2, 2)
    assert (row.error, row.stop_reason) == (how, "crashes_max")
    assert world.kinds(job.id) == ["zombie", "zombie", "dead"]
    among_others, alone = world.events(job.id, "zombie")
    assert among_others.detail["cause"] == how
    assert among_others.detail["pid"] == own_street.homes[0]
    assert (alone.detail["cause"], alone.detail["isolated"]) == (how, True)
    assert {each.detail["detector"] for each in (among_others, alone)} == {"exit"}
    for neighbour in own_street.let_finish():
        assert (neighbour.attempt, neighbour.zombies) == (2, 1)
        assert (neighbour.failures, neighbour.crashes, neighbour.suspects) == (0, 0, 0)
        assert world.kinds(neighbour.id) == ["zombie", "succeeded"]
    own_street.worker.until_said(f"child w/1 {DEADLY[fn]}; starting it again in 0.2 s")


@on_sql_stores
@pytest.mark.parametrize("fn", LOOP_ENDS, ids=lambda fn: fn.__name__)
def test_one_that_ends_the_event_loop_ends_its_process(own_street: Street, fn: Callable[[], None]) -> None:
    world, how = own_street.world, "its process exited with code 78: a required thread had died"
    job = own_street.enqueue(fn.__name__)
    until(lambda: own_street.row(job).state == "running", "it is there too")
    (world.folder / "strike").touch()
    row = world.until_state(job.id, "dead")
    assert (row.attempt, row.failures, row.crashes, row.zombies) == (2, 0, 2, 2)
    lost = f"its process lost its event loop ({LOOP_ENDS[fn]})"
    assert (row.error, row.stop_reason) == (lost, "crashes_max")
    among_others, alone = world.events(job.id, "zombie")
    assert among_others.detail["cause"] == how
    assert (alone.detail["cause"], alone.detail["isolated"]) == (lost, True)
    for neighbour in own_street.let_finish():
        assert (neighbour.attempt, neighbour.crashes, neighbour.suspects) == (2, 0, 0)
        assert world.kinds(neighbour.id) == ["zombie", "succeeded"]
    own_street.worker.until_said(f"the thread holdfast-loop of worker w/1 has died ({LOOP_ENDS[fn]})")


@on_sql_stores
@pytest.mark.parametrize("fn", DEAF, ids=lambda fn: fn.__name__)
def test_one_that_holds_the_event_loop_is_ended_with_its_process(own_street: Street, fn: Callable[[], None]) -> None:
    world = own_street.world
    job = own_street.enqueue(f"deaf_{fn.__name__}")
    row = world.until_state(job.id, "dead")
    assert (row.attempt, row.failures, row.crashes, row.zombies) == (1, 1, 0, 0)
    assert (row.error or "").startswith(f"ran longer than timeout_s=1.5; {NOT_STOPPED}")
    assert world.kinds(job.id) == list(TIMED_OUT)
    [event] = world.events(job.id, "timed_out")
    assert f"in {DEAF[fn]}" in event.detail["stack"]
    own_street.worker.until_ready(times=2)
    for neighbour in own_street.let_finish():
        assert (neighbour.attempt, neighbour.failures, neighbour.crashes, neighbour.zombies) == (2, 0, 0, 0)
        assert world.kinds(neighbour.id) == ["released", "succeeded"]
    until(lambda: own_street.worker.said("handlers did not stop, or results could not be saved"), "it says why")


@on_sql_stores
def test_a_death_is_seen_though_a_grandchild_lives_on(own_street: Street, tmp_path: Path) -> None:
    """It has inherited nothing by which a death is told."""
    world = own_street.world
    job = own_street.enqueue("start_a_grandchild", str(tmp_path / "pid"), "crash")
    until(lambda: own_street.row(job).zombies, "it is found")
    grandchild = int((tmp_path / "pid").read_text())
    try:
        assert is_alive(grandchild)
        assert world.events(job.id, "zombie")[0].detail["detector"] == "exit"
        assert {(row.crashes, row.zombies) for row in own_street.let_finish()} == {(0, 1)}
    finally:
        os.kill(grandchild, signal.SIGKILL)
        with contextlib.suppress(Refused):  # it crashes again, perhaps once too often, meanwhile
            job.cancel()


def test_every_handler_that_misbehaves_is_shown() -> None:
    """A new one in tests/worker/bad.py wants its ending here too, unless it behaves, or is for cells alone."""
    shown = {fn.__name__ for fn, _ in CASES.values()} | {fn.__name__ for fn in DEADLY}
    elsewhere = {"hold_the_lock", "hold_the_lock_for_long", "start_a_grandchild", "fork_and_return", "stall"}
    elsewhere |= {"fork_and_await", "fork_inside", "exit_endlessly_in_a_callback"} | {fn.__name__ for fn in LOOP_ENDS}
    cells = {
        "leave_a_thread",
        "hear_a_thread",
        "recurse_in_c",
        "ignore_the_end",
        "talk_nonsense",
        "return_a_gibibyte",
        "ignore_everything",
    }
    fine = {"neighbour", "polite_neighbour", "pid", "tell", "snooze_once", "pay", "wait_to_be_stopped", "keep_memory"}
    logs = {"tell_and_spin", "tell_and_kill_itself", "tell_and_raise"}  # in tests/worker/test_log_capture.py
    assert set(bad.ASYNC) == {name for name in shown if not name.startswith("a_")} | elsewhere | cells | fine | logs
