"""holdfast schedules: what a person on call sees and does."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdfast import App
from holdfast.core.machine import State
from holdfast.core.records import Filter, Firing, Schedule
from holdfast.core.schedule import LATE_S
from holdfast.core.transitions import DECLARED_S
from holdfast.enqueueing.by_name import publish
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.cli.conftest import PAST_S, Run
from tests.factory import delete, make_job, picture, row

VIEW = {
    *("key", "spec", "tz", "missed", "missed_max", "jitter_s", "task", "queue", "paused", "declared", "kept"),
    *("next", "next_s", "late_s", "late_instants", "last", "last_s", "job", "job_state"),
}


@pytest.fixture
def nightly(store: Store) -> Schedule:
    return declare(store)


def declare(store: Store, key: str = "nightly", **given: Any) -> Schedule:
    job = make_job(id="", task="jobs.report", queue="slow", payload='{"kind":"all"}', **given)
    made = Schedule(key=key, spec="* * * * *", tz="UTC", job=job)
    store.declare([made])
    return made


def fire(store: Store, instant: float) -> None:
    duty = store.acquire("scheduler", "a", 30.0)
    assert duty is not None
    assert store.fire([Firing("nightly", instant, make_job(id="fired", run_at=instant))], duty) != [None]


def test_the_list_says_what_was_and_what_comes(run: Run, store: Store, nightly: Schedule, clock: FakeClock) -> None:
    [before] = run.json("schedules", "list")
    assert set(before) == VIEW
    assert (before["key"], before["task"], before["queue"]) == ("nightly", "jobs.report", "slow")
    assert (before["declared"], before["paused"], before["last"], before["job"]) == (True, False, None, None)
    assert 0 <= before["next_s"] <= 60
    fire(store, clock.wall() + 1)
    [after] = run.json("schedules", "list")
    assert (after["job"], after["job_state"]) == ("fired", "ready")
    assert PAST_S - 2 <= after["last_s"] <= PAST_S + 60
    assert delete(store, "fired", State.READY, 0)
    assert run.json("schedules", "list")[0]["job_state"] == "deleted"


def test_the_table(run: Run, store: Store, nightly: Schedule, clock: FakeClock) -> None:
    fire(store, clock.wall() + PAST_S)
    head, line = run("schedules", "list").stdout.splitlines()
    assert head.split() == ["KEY", "CRON", "ZONE", "TASK", "NOW", "NEXT", "MISSED", "LAST", "JOB"]
    assert line.startswith("nightly")
    assert "* * * * *" in line
    assert " on " in line
    assert line.rstrip().endswith("ready")


def test_a_schedule_that_nobody_fires_is_shown_as_late(run: Run, store: Store, clock: FakeClock) -> None:
    clock.set_wall(clock.wall() - 70)
    declare(store)
    [view] = run.json("schedules", "list")
    assert view["declared"]
    assert LATE_S < view["late_s"] <= 70 + PAST_S
    assert 1 <= view["late_instants"] <= 2
    shown = run("schedules", "list")
    assert re.search(r" late +\d+ (s|min) late ", shown.stdout)
    assert "holdfast doctor" in shown.stderr
    run("schedules", "pause", "nightly")
    assert run.json("schedules", "list")[0]["late_s"] is None
    assert "doctor" not in run("schedules", "list").stderr


def test_what_nobody_declares_any_more_is_shown_so(run: Run, store: Store, clock: FakeClock) -> None:
    clock.set_wall(clock.wall() - DECLARED_S)
    declare(store)
    [view] = run.json("schedules", "list")
    assert (view["declared"], view["next"]) == (False, None)
    assert "not declared" in run("schedules", "list").stdout


def test_a_zone_that_is_not_known_here_hides_nothing(run: Run, store: Store, nightly: Schedule) -> None:
    store.declare([Schedule(key="foreign", spec="* * * * *", tz="Mars/Olympus", job=nightly.job)])
    assert [(view["key"], view["next"] is None) for view in run.json("schedules", "list")] == [
        ("foreign", True),
        ("nightly", False),
    ]


def test_pause_and_resume(run: Run, store: Store, nightly: Schedule) -> None:
    declare(store, "other")
    assert run("schedules", "pause", "nightly", "other").stdout == "nightly paused\nother paused\n"
    assert [each.paused for each in store.schedules()] == [True, True]
    [view, _] = run.json("schedules", "list")
    assert (view["paused"], view["next"]) == (True, None)
    assert "paused" in run("schedules", "list").stdout
    run("schedules", "resume", "nightly")
    assert [each.paused for each in store.schedules()] == [False, True]


def test_pause_and_resume_print_what_is_so_now_as_json(run: Run, store: Store, nightly: Schedule) -> None:
    declare(store, "other")
    assert run.json("schedules", "pause", "nightly", "other", "nightly") == [
        {"key": "nightly", "paused": True},
        {"key": "other", "paused": True},
    ]
    assert run.json("schedules", "resume", "nightly", "-q") == [{"key": "nightly", "paused": False}]
    assert [each.paused for each in store.schedules()] == [False, True]
    assert run("schedules", "pause", "nightyl", "--json", code=5).stdout == ""


def test_forgetting_removes_a_schedule_and_says_when_it_may_come_back(
    run: Run, store: Store, nightly: Schedule, clock: FakeClock
) -> None:
    declare(store, "other")
    done = run("schedules", "forget", "nightly")
    assert done.stdout == "nightly forgotten\n"
    assert "If that program still runs, the schedule comes back." in done.stderr
    assert [each.key for each in store.schedules()] == ["other"]
    clock.advance(3600)
    assert run.json("schedules", "forget", "other") == [{"key": "other", "forgotten": True}]
    assert store.schedules() == []


def test_an_unknown_key_changes_nothing_and_is_5(run: Run, store: Store, nightly: Schedule) -> None:
    before = picture(store), store.schedules()
    for words in (
        ("pause", "nightly", "nightyl"),
        ("resume", "nightyl"),
        ("fire", "nightyl"),
        ("forget", "nightly", "nightyl"),
    ):
        assert "did you mean nightly?" in run("schedules", *words, code=5).stderr
    assert (picture(store), store.schedules()) == before


def test_firing_by_hand_adds_one_job_and_leaves_the_instants_alone(run: Run, store: Store, nightly: Schedule) -> None:
    before = store.schedules()
    run("schedules", "pause", "nightly")
    job_id = run("schedules", "fire", "nightly").stdout.strip()
    job = row(store, job_id)
    assert (job.task, job.queue, job.payload, job.state) == ("jobs.report", "slow", '{"kind":"all"}', State.READY)
    run("schedules", "fire", "nightly")
    assert len(store.find(Filter())) == 2
    assert [each.mark for each in store.schedules()] == [each.mark for each in before]


def test_firing_by_hand_while_a_job_has_the_key_adds_none(run: Run, store: Store) -> None:
    declare(store, key="nightly")
    store.declare([Schedule(key="k", spec="* * * * *", tz="UTC", job=make_job(id="", key="one"))])
    first = run.json("schedules", "fire", "k")
    assert first["existed"] is False
    assert run.json("schedules", "fire", "k") == {"id": first["id"], "existed": True}
    assert "no second one" in run("schedules", "fire", "k").stderr


def test_without_any_it_says_how_to_make_one(run: Run, store: Store) -> None:
    result = run("schedules", "list")
    assert result.stdout == ""
    assert "app.cron" in result.stderr


# --- add, show -------------------------------------------------------------------------------------------


@pytest.fixture
def published(store: Store) -> None:
    """A worker has published a task `jobs.report` with one argument."""
    app = App("memory://")

    @app.task(name="jobs.report", queue="slow")
    def report(kind: str = "daily") -> None: ...

    publish(store, app.tasks)


def test_a_schedule_is_added_changed_and_forgotten_from_the_shell(run: Run, store: Store, published: None) -> None:
    done = run("schedules", "add", "tenant-7", "0 3 * * *", "jobs.report", '["weekly"]', "--tz", "Europe/Berlin")
    assert re.fullmatch(r"tenant-7: At 03:00 every day, Europe/Berlin; next in .+\n", done.stdout)
    [made] = store.schedules()
    assert (made.kept, made.job.queue, made.job.payload, made.missed) == (True, "slow", '{"kind":"weekly"}', "last")
    options = ("--missed", "24", "--jitter", "10m", "--queue", "fast")
    changed = run.json("schedules", "add", "tenant-7", "@hourly", "jobs.report", *options)
    assert (changed["spec"], changed["missed"], changed["missed_max"], changed["jitter_s"]) == (
        *("0 * * * *", "all", 24, 600.0),
    )
    assert (changed["kept"], changed["declared"], changed["queue"]) == (True, False, "fast")
    assert " on " in run("schedules", "list").stdout
    forgotten = run("schedules", "forget", "tenant-7")
    assert (forgotten.stdout, forgotten.stderr) == ("tenant-7 forgotten\n", "")
    assert store.schedules() == []


def test_what_cannot_be_added_is_refused_with_its_exit_code(
    run: Run, store: Store, published: None, clock: FakeClock
) -> None:
    clock.advance(PAST_S)
    declare(store)
    before = store.schedules()
    for words, code, said in (
        (("k", "every day", "jobs.report"), 2, "is not a cron expression"),
        (("k", "* * * * *", "jobs.reprot"), 2, "jobs.reprot"),
        (("k", "* * * * *", "jobs.report", "{"), 2, "write an array"),
        (("k", "* * * * *", "jobs.report", '{"kind": 1}'), 2, "kind"),
        (("k", "* * * * *", "jobs.report", "--missed", "all"), 2, "is not last, skip or a number"),
        (("k", "* * * * *", "jobs.report", "--missed", "0"), 2, "a whole number from 1 to 1000"),
        (("k", "* * * * *", "jobs.report", "--jitter", "2d"), 2, "jitter_s"),
        (("nightly", "* * * * *", "jobs.report"), 6, "a running program declares the schedule 'nightly'"),
    ):
        assert said in run("schedules", "add", *words, code=code).stderr
    assert store.schedules() == before


def test_one_schedule_is_shown_in_plain_words(run: Run, store: Store, published: None, clock: FakeClock) -> None:
    run("schedules", "add", "k", "0 3 * * *", "jobs.report", "--tz", "Asia/Tokyo", "--missed", "5", "--jitter", "60")
    lines = run("schedules", "show", "k").stdout.splitlines()
    assert lines[:5] == [
        "k: jobs.report on queue slow, on",
        "when: At 03:00 every day, Asia/Tokyo (0 3 * * *)",
        "missed: missed instants are made up for, at most the last 5",
        "jitter: each job becomes due up to 60 s after its instant",
        "made: at run time",
    ]
    assert len(lines) == 10
    assert all(re.fullmatch(r"next: \w{3} \d{4}-\d\d-\d\d 03:00 JST \(in .+\)", line) for line in lines[5:])
    view = run.json("schedules", "show", "k")
    assert (set(view), view["when"], len(view["next_runs"])) == (
        *(VIEW | {"when", "next_runs", "jobs"}, "At 03:00 every day, Asia/Tokyo", 5),
    )
    run("schedules", "pause", "k")
    assert "next:" not in run("schedules", "show", "k").stdout
    clock.set_wall(clock.wall() - 130)
    declare(store, "nightly")
    shown = run("schedules", "show", "nightly").stdout
    assert "made: by a program that declares it" in shown
    assert "late: " in shown
    assert "did you mean nightly?" in run("schedules", "show", "nightyl", code=5).stderr
