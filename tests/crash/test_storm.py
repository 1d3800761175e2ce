"""Must be shown, 3, as far as a test suite has time for it: `bench/storm.py` runs the whole of it."""

import contextlib
import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.core.records import NewEvent
from tests.crash.book import Book, Figures, check
from tests.crash.storm import Plan, storm
from tests.crash.world import World, now
from tests.factory import delete
from tests.servers import PostgresServer


@pytest.mark.slow  # six hundred jobs and eight kills
def test_every_job_is_done_once_by_its_newest_attempt_after_any_kill(tmp_path: Path) -> None:
    """P1, P3, P4, P9, P10"""
    figures = storm(tmp_path, Plan(jobs=600, kills=8, seed=7))
    print("\n" + "\n".join(figures.lines()))
    assert figures.wrong == []
    assert figures.done == 600
    assert figures.kills.total() >= 8
    assert figures.events["stale_report"] == 0


@pytest.mark.slow  # workers and their server are killed and started again
def test_every_effect_is_there_once_after_any_kill_even_of_the_server(tmp_path: Path) -> None:
    """P1, P3, P4, P6, P9, P10, under jobs that come in all the while"""
    # What a killed server wrote is in the system's cache: it is safe without fsync, and back in a fraction of the time.
    server = PostgresServer(settings=("fsync=off",))
    try:
        plan = Plan(jobs=150, refill=True, kills=8, seed=5, effects=True, server_share=0.4, lease_s=5.0)
        plan = replace(plan, back_s=60.0)  # a worker that was killed with the server is started first: busy machines
        figures = storm(tmp_path, plan, f"{server.url}?options=-csearch_path%3Dholdfast", server)
    finally:
        server.close()
    print("\n" + "\n".join(figures.lines()))
    assert figures.wrong == []
    assert figures.done >= 150
    assert figures.effects == figures.paying > 0
    assert figures.kills["servers"] > 0, "this seed kills the server within the first eight"


@pytest.mark.slow  # a worker is started
def test_the_checker_can_fail(world: World) -> None:
    """A net is trusted only after something was thrown into it."""
    jobs = [world.tasks.quick.enqueue().id for _ in range(6)]
    world.worker("w")
    for job in jobs:
        world.until_state(job, "done")

    def wrong(killed: dict[int, float] | None = None, paying: set[str] | None = None) -> list[str]:
        figures = Figures()
        check(world, Book(jobs=jobs, killed=killed or {}, paying=paying or set()), figures)
        return [line.split(": ", 1)[1] for line in figures.wrong]

    assert wrong() == []
    [start] = world.starts(jobs[0])
    world.tasks.write("start", Fake(jobs[0], start.fence + 1))  # a newer attempt that the store let not decide
    assert any("P3: attempt 1 was accepted" in line for line in wrong())
    assert any("P9" in line for line in wrong())
    assert any("before the kill" in line for line in wrong({start.pid: now() + 60}))
    _journal(world, jobs[0], NewEvent("released"))
    world.tasks.write("start", Fake(jobs[1], 1))
    assert any("P4: its fences did not rise" in line for line in wrong())
    row = world.row(jobs[2])
    assert delete(world.store, jobs[2], row.state, row.fence)
    assert any("P1: it is lost" in line for line in wrong())
    _journal(world, jobs[3], NewEvent("zombie", {"detector": "expired", "pid": 1}))
    assert any("P9: a false zombie" in line for line in wrong())
    _journal(world, jobs[4], NewEvent("succeeded"))
    assert any("P4: it was accepted 2 times" in line for line in wrong())
    _journal(world, jobs[5], NewEvent("stale_report"))
    assert any("unexpected: stale_report" in line for line in wrong())
    with contextlib.closing(world.connect()) as connection:
        connection.execute("CREATE TABLE effect (job TEXT, fence INTEGER)")
        assert any("P6: its effects are of the attempts [], not [1]" in line for line in wrong(paying={jobs[5]}))
        for _ in range(2):
            connection.execute("INSERT INTO effect VALUES (?, 1)", (jobs[5],))
        assert any("P6: its effects are of the attempts [1, 1]" in line for line in wrong(paying={jobs[5]}))
    told = wrong(paying={jobs[0]})
    assert any("P9: attempt 1 was taken over" in line for line in told), "it was given back, and the server was there"
    _journal(world, jobs[5], NewEvent("failed"))
    assert any("it failed, and the server was there" in line for line in wrong(paying={jobs[5]}))


def test_the_checker_knows_when_nobody_could_renew_a_lease() -> None:
    book = Book(lease_s=6.0, outages=[(10.0, 12.0), (12.5, 14.5)])
    assert [book.could_renew(until) for until in (9.0, 13.0, 15.0, 18.0, 19.0)] == [True, False, False, False, True]


def test_the_checker_knows_whether_the_server_was_away_while_a_handler_ran() -> None:
    book = Book(outages=[(10.0, 12.0)])
    ran = [(8.0, 9.0), (9.0, 13.0), (11.0, 11.5), (11.0, 13.0), (13.5, 15.0), (14.0, 15.0)]
    assert [book.was_away_between(*each) for each in ran] == [False, True, True, True, True, False]


class Fake:
    """What `write` needs of a context."""

    def __init__(self, job: str, fence: int) -> None:
        self.job, self.fence, self.attempt, self.id = self, fence, fence, job


def _journal(world: World, job: str, note: NewEvent) -> None:
    """Write a line that nobody has earned."""
    with sqlite3.connect(world.db, timeout=30) as connection:
        connection.execute(
            "INSERT INTO holdfast_journal (job_id, at, kind, fence, detail) VALUES (?, 0, ?, 1, ?)",
            (job, note.kind, json.dumps(note.detail)),
        )
    connection.close()
