"""Every way in which an isolated handler can go wrong: its exact ending, its words, and neighbours who do not notice.

One worker lives through all of it, with two long jobs beside: one in-process, one in a cell. At the end of each test
both still run in the processes that they were started in.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from holdfast import App, Job, Retry
from holdfast.worker.isolated import memory, pool
from tests.conftest import empty
from tests.worker import bad
from tests.worker.conftest import sqlite_url
from tests.worker.house import House, until

ONCE = Retry(attempts_max=1)
HELD_S = 9.0  # two leases, each long enough for a machine that is busy with something else


class Street:
    """A worker with two neighbours in it."""

    def __init__(self, house: House, folder: Path) -> None:
        self.house = house
        self.folder = folder
        self.over = folder / "over"
        app = house.app
        self._tasks: dict[str, Any] = {}
        near = app.task(name="near", lease_s=30.0)(bad.neighbour)
        apart = app.task(name="apart", lease_s=30.0, isolate=True)(bad.neighbour)
        for name in ("sync", "async"):
            for fn in CASES:
                self.task(fn, name)
        self.holds = app.task(name="holds", isolate=True, lease_s=HELD_S / 2)(bad.hold_the_lock)
        self.huge = app.task(name="huge", isolate=True, retry=ONCE)(bad.return_a_gibibyte)
        house.start(slots=4)
        self.neighbours = [near.enqueue(str(self.over)), apart.enqueue(str(self.over))]
        self.homes = [until(lambda job=job: house.row(job.id).note, "a neighbour moves in") for job in self.neighbours]  # type: ignore[misc]
        assert self.homes[0] == str(os.getpid()) != self.homes[1]

    def task(self, fn: Callable[..., Any], way: str) -> Any:
        name = f"{fn.__name__}.{way}"
        if name not in self._tasks:
            options = {"retry": ONCE, "crashes_max": 1, "isolate": True, **CASES[fn].options}
            handler = bad.ASYNC[fn.__name__] if way == "async" else fn
            self._tasks[name] = self.house.app.task(name=name, **options)(handler)
        return self._tasks[name]

    def assert_undisturbed(self) -> None:
        for job, home in zip(self.neighbours, self.homes, strict=True):
            row = self.house.row(job.id)
            assert (row.state, row.attempt, row.note) == ("running", 1, home)


class Case(NamedTuple):
    kinds: list[str]
    words: str  # the error begins so
    options: Mapping[str, Any] = MappingProxyType({})
    detail: Mapping[str, Any] = MappingProxyType({})
    stack: str | None = None


LOST, FAILED, TIMED_OUT = ["zombie", "dead"], ["failed", "dead"], ["timed_out", "dead"]
LIMIT = {"timeout_s": 1}

CASES: dict[Callable[..., Any], Case] = {
    bad.segfault: Case(LOST, "its process was killed by SIGSEGV", stack="in segfault"),
    bad.leave_at_once: Case(LOST, "its process exited with code 3", detail={"exit_code": 3}),
    bad.kill_itself: Case(LOST, "its process was killed by SIGKILL", detail={"signal": "SIGKILL"}),
    bad.recurse_in_c: (  # Python 3.12 counts the stack of C as well
        Case(LOST, "its process was killed by SIGSEGV", detail={"signal": "SIGSEGV"})
        if sys.version_info < (3, 12)
        else Case(FAILED, "RecursionError: maximum recursion depth exceeded")
    ),
    bad.hog: Case(FAILED, "MemoryError", {"memory_max_mb": 256}),
    bad.spin: Case(TIMED_OUT, "ran longer than timeout_s=1", LIMIT, stack="in spin"),
    bad.hold_the_lock_for_long: Case(TIMED_OUT, "ran longer than timeout_s=1", LIMIT, stack="in hold_the_lock"),
    bad.read_from_silence: Case(TIMED_OUT, "ran longer than timeout_s=1", LIMIT, stack="in read_from_silence"),
    bad.ignore_everything: Case(TIMED_OUT, "ran longer than timeout_s=1", LIMIT, stack="in ignore_everything"),
    bad.ignore_the_end: Case(
        TIMED_OUT, "ran longer than timeout_s=1", LIMIT, {"process": "was killed by SIGKILL"}, "in ignore_everything"
    ),
    bad.recurse: Case(FAILED, "RecursionError: maximum recursion depth exceeded"),
    bad.return_too_much: Case(FAILED, "the result could not be stored:"),
    bad.raise_mute: Case(FAILED, "Mute: (its text could not be read)"),
    bad.raise_stuffed: Case(FAILED, "Stuffed: (<unlocked _thread.lock object at "),
    bad.leave_a_generator_open: Case(FAILED, "the result could not be stored:"),
    bad.leave_by_exit: Case(FAILED, "SystemExit: 7"),
    bad.interrupt_by_keyboard: Case(FAILED, "KeyboardInterrupt"),
}
CAUSES = {"zombie": "cause", "failed": "error", "timed_out": "error"}


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def street(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Street]:
    folder = tmp_path_factory.mktemp("street")
    if request.param == "postgres":
        url = str(request.getfixturevalue("postgres_server"))
        empty(url)
    else:
        url = sqlite_url(folder)
    patience = pytest.MonkeyPatch()
    patience.setattr(pool, "moments", lambda why, lease_s: pool.Moments(0.15, 0.15))
    patience.setattr(memory, "make_group", lambda _: None)  # where the system would keep the limit, a hog is killed
    house = House(App(url, journal="full"))
    try:
        yield Street(house, folder)
    finally:
        trouble = house.store.check()
        house.close()
        patience.undo()
    assert trouble == []


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_its_ending_is_its_own(street: Street, fn: Callable[..., Any], way: str) -> None:
    case, house = CASES[fn], street.house
    job: Job[Any] = street.task(fn, way).enqueue()
    row = house.until_state(job.id, "dead")
    assert row.attempt == 1
    assert (row.failures, row.crashes) == ((0, 1) if case.kinds is LOST else (1, 0))
    assert row.suspects == (1 if case.kinds is LOST else 0)
    assert row.error is not None
    assert row.error.startswith(case.words), row.error
    assert house.kinds(job.id) == case.kinds
    [event] = house.events(job.id, case.kinds[0])
    said = event.detail[CAUSES[case.kinds[0]]]
    assert row.error.startswith(said)
    if case.kinds is LOST:
        assert (event.detail["detector"], event.detail["worker"]) == ("exit", "w")
        assert event.detail["pid"] not in (os.getpid(), int(street.homes[1]))
    if case.kinds is TIMED_OUT and way == "sync":
        assert '/worker/bad.py", line ' in event.detail["stack"]
    if case.stack is not None:
        assert case.stack in event.detail["stack"]
        assert "isolated/child.py" not in event.detail["stack"]  # only the thread of the handler
    assert case.detail.items() <= event.detail.items()
    street.assert_undisturbed()


def test_a_lock_held_for_two_leases_costs_nothing(street: Street) -> None:
    job = street.holds.enqueue(HELD_S + 0.1)
    assert job.result(60) == "let go"
    row = street.house.row(job.id)
    assert (row.attempt, row.crashes, row.zombies) == (1, 0, 0)
    street.assert_undisturbed()


@pytest.mark.slow  # a gibibyte is made, and made into JSON
@pytest.mark.parametrize("street", ["sqlite"], indirect=True)
def test_a_gibibyte_is_refused_in_the_cell(street: Street) -> None:
    job = street.huge.enqueue()
    row = street.house.until_state(job.id, "dead")
    assert (row.error or "").startswith("the result could not be stored:")
    assert (row.failures, row.crashes) == (1, 0)
    street.assert_undisturbed()


def test_at_the_end_the_neighbours_finish_where_they_began(street: Street) -> None:
    street.assert_undisturbed()
    street.over.touch()
    assert [str(job.result(60)) for job in street.neighbours] == street.homes
    assert [house_kinds for job in street.neighbours for house_kinds in street.house.kinds(job.id)] == ["succeeded"] * 2


def test_a_store_that_is_away_when_an_isolated_task_opens_its_transaction_costs_no_budget(file_house: House) -> None:
    task = file_house.app.task(name="writes", isolate=True, retry=ONCE)(bad.write_while_the_store_is_away_at_first)
    job = task.enqueue()
    file_house.start()
    assert job.result(60) == 2
    assert (file_house.row(job.id).failures, file_house.row(job.id).crashes) == (0, 0)
