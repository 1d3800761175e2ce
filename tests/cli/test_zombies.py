"""holdfast zombies: the look back, its numbers and its words."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import insight
from holdfast.cli import zombies
from holdfast.clock import SystemClock
from holdfast.core.crash_fingerprint import call_of
from holdfast.core.durations import iso
from holdfast.core.figures import LostLine
from holdfast.core.machine import State
from holdfast.core.records import Job
from holdfast.core.verdict import Failed, Lost, Succeeded
from holdfast.core.worker_exit import WorkerExit
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from holdfast.upkeep.reaper import Reaper
from tests.cli.conftest import PAST_S, Run, lose
from tests.factory import EXPIRED, again, claim, enrol, job_in, row, settle, stale_reports, start

ALONE = Lost("exit", "its process was killed by SIGSEGV", suspects=1)
VIEW = {
    *("since", "until", "zombies", "looked_at", "jobs", "tasks", "detectors", "decisions", "now"),
    *("storms", "repeat_offenders", "groups", "false_positives"),
}


def test_nothing_happened(run: Run, store: Store) -> None:
    job_in(store, State.DONE)
    assert run("zombies").stdout == "No zombies in the last 24 h.\n"
    view = run.json("zombies")
    assert set(view) == VIEW
    assert (view["zombies"], view["jobs"], view["tasks"], view["detectors"]) == (0, 0, [], [])
    assert view["false_positives"] == {"late_reports": 0, "rate": 0.0, "rate_max": 0.05, "too_many": False}


def test_how_many_of_which_tasks_and_what_became_of_them(run: Run, store: Store, clock: FakeClock) -> None:
    lose(store, task="send", queue="mail")
    lose(store, task="send", queue="mail")
    lose(store, task="charge", on_crash="hold")
    lose(store, task="once", on_crash="fail")
    run("scan", "--fix")
    clock.advance(PAST_S + 5)
    [recovered] = claim(store, queues=["mail"], tasks=["send"], limit=1)
    settle(store, recovered, Succeeded())
    view = run.json("zombies")
    assert set(view) == VIEW
    assert (view["zombies"], view["jobs"]) == (4, 4)
    first = view["tasks"][0]
    assert (first["task"], first["queue"], first["zombies"], first["jobs"]) == ("send", "mail", 2, 2)
    assert (first["detectors"], first["now"]) == ({"expired": 2}, {"done": 1, "ready": 1})
    assert [task["task"] for task in view["tasks"]] == ["send", "charge", "once"]
    assert view["decisions"] == {"retry": 2, "hold": 1, "bury": 1, "undo": 0, "cancel": 0}
    assert view["now"] == {"done": 1, "ready": 1, "held": 1, "dead": 1}
    shown = run("zombies").stdout
    assert "In the last 24 h, 4 attempts of 4 jobs lost their worker." in shown
    assert "Decided: 2 run again, 1 held, 1 given up. By now: " in shown
    assert re.search(r"send +mail +2 +2 +2 expired +1 (done|ready), 1 (done|ready)", shown)


def test_one_attempt_lost_its_worker(run: Run, store: Store) -> None:
    crash(store)
    assert "1 attempt of 1 job lost its worker." in run("zombies").stdout


def test_how_they_were_found_and_how_fast(run: Run, store: Store, clock: FakeClock) -> None:
    boot = SystemClock().boot_id
    for silent_s in (1.0, 2.0, 9.0):
        worker = enrol(store, boot_id=boot)
        start(store, worker, lease_s=30.0)
        clock.advance(silent_s)
        [dead] = [one for one in store.workers() if one.id == worker]
        assert Reaper(store, clock).recover_worker(dead, "it was killed", WorkerExit("exit")).recovered == 1
    start(store, enrol(store, boot_id=boot), lease_s=30.0)
    clock.advance(34.0)
    patient = Reaper(store, clock)
    patient.once()
    clock.advance(1.0)
    assert patient.once().recovered == 1
    by = {each["detector"]: each for each in run.json("zombies")["detectors"]}
    assert by["exit"] == {
        "detector": "exit",
        "zombies": 3,
        "looked_at": 3,
        "silent_s": {"median": 2.0, "worst": 9.0},
        "overdue_s": None,
    }
    assert by["expired"]["silent_s"] == {"median": 35.0, "worst": 35.0}
    assert by["expired"]["overdue_s"] == {"median": 5.0, "worst": 5.0}
    shown = run("zombies").stdout
    assert re.search(r"exit +3 +2\.0 s +9\.0 s +- +-\n", shown)
    assert re.search(r"expired +1 +35 s +35 s +5\.0 s +5\.0 s\n", shown)


def test_a_claim_is_a_sign_of_life_too(store: Store, clock: FakeClock) -> None:
    worker = enrol(store)
    clock.advance(20)
    start(store, worker)
    clock.advance(3)
    [dead] = store.workers()
    Reaper(store, clock).recover_worker(dead, "it was killed", WorkerExit("exit"))
    [found] = insight.look_back(store, 3600).found
    assert found.silent_s == pytest.approx(3.0, abs=0.002)


def test_only_since_then(run: Run, store: Store, clock: FakeClock) -> None:
    settle(store, start(store), EXPIRED)
    clock.advance(50)
    settle(store, start(store), EXPIRED)
    assert run.json("zombies")["zombies"] == 2
    assert run.json("zombies", "--since", "75s")["zombies"] == 1
    assert run.json("zombies", "--since", "1s")["zombies"] == 0
    assert "in the last 1.0 s" in run("zombies", "--since", "1s").stdout


def test_those_that_come_again_and_again(run: Run, store: Store, clock: FakeClock) -> None:
    often = start(store, task="poison", crashes_max=99, attempts_max=99, base_s=0.0, cap_s=0.0)
    for _ in range(4):
        settle(store, often, EXPIRED)
        clock.advance(1)
        often = again(store, row(store, often.id))
    lose(store, task="once")
    run("scan", "--fix")
    view = run.json("zombies")
    assert (view["zombies"], view["jobs"]) == (6, 2)
    [offender] = view["repeat_offenders"]
    assert (offender["id"], offender["task"], offender["zombies"]) == (often.id, "poison", 5)
    shown = run("zombies")
    assert re.search(rf"{often.id} +poison +5 ", shown.stdout)
    assert "holdfast jobs show ID" in shown.stderr


def test_a_job_that_crashes_with_default_budgets_is_listed_before_it_is_dead(
    run: Run, store: Store, clock: FakeClock
) -> None:
    job = start(store, base_s=0.0, cap_s=0.0)
    settle(store, job, EXPIRED)
    assert run.json("zombies")["repeat_offenders"] == [], "once may be chance"
    clock.advance(1)
    settle(store, again(store, row(store, job.id)), EXPIRED)
    [offender] = run.json("zombies")["repeat_offenders"]
    assert (offender["id"], offender["zombies"], offender["state"]) == (job.id, 2, "ready")
    assert re.search(rf"{job.id} +\S+ +2 +ready", run("zombies").stdout)


def test_of_very_many_repeat_offenders_the_screen_shows_the_worst(
    run: Run, store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zombies, "_ROWS_MAX", 1)
    jobs = [start(store, base_s=0.0, cap_s=0.0) for _ in range(2)]
    for job in jobs:
        settle(store, job, EXPIRED)
        clock.advance(1)
        settle(store, again(store, row(store, job.id)), EXPIRED)
    assert "… and 1 more; `--json` lists all" in run("zombies").stdout
    assert len(run.json("zombies")["repeat_offenders"]) == 2


# ------------------------------------------------------------------------------- the same call, under new ids


POISON: dict[str, Any] = {"task": "poison", "payload": '{"card": "4111-1111"}'}


def crash(store: Store, outcome: Lost = ALONE, **given: Any) -> Job:
    job = start(store, **POISON | {"crashes_max": 1} | given)
    settle(store, job, outcome)
    return row(store, job.id)


def test_the_same_call_under_one_id_after_the_other(run: Run, store: Store, clock: FakeClock) -> None:
    for _ in range(3):
        crash(store)
        clock.advance(1)
    newest = crash(store, crashes_max=3, queue="apart", base_s=0.0, cap_s=0.0)
    clock.advance(1)
    settle(store, again(store, newest), ALONE)
    clock.advance(1)
    crash(store, payload='{"card": "5500-0000"}')
    crash(store, task="other")
    [group] = run.json("zombies")["groups"]
    digest = call_of(newest).digest
    assert group == {
        "task": "poison",
        "arguments": digest,
        "jobs": 4,
        "last_seen": iso(clock.wall() - 1),
        "example": newest.id,
        "now": {"dead": 3, "ready": 1},
    }
    shown = run("zombies")
    seen = str(iso(clock.wall() - 1)).replace("T", " ")[:19]
    assert re.search(rf"poison +#{digest} +4 +{seen} +3 dead, 1 ready +{newest.id}\n", shown.stdout)
    assert "holdfast jobs show ID" in shown.stderr
    assert "4111" not in shown.stdout + shown.stderr + run("zombies", "--json").stdout


def test_two_of_the_same_call_are_no_pattern_yet(run: Run, store: Store) -> None:
    crash(store)
    often = start(store, **POISON, crashes_max=9, attempts_max=9, base_s=0.0, cap_s=0.0)
    for _ in range(3):
        settle(store, often, ALONE)
        often = again(store, row(store, often.id))
    assert run.json("zombies")["groups"] == []
    assert "Under one id after the other" not in run("zombies").stdout


def test_only_those_that_were_found_guilty_count(run: Run, store: Store) -> None:
    for _ in range(2):
        crash(store)
    suspect = crash(store, Lost("exit", "it was killed", suspects=4), crashes_max=9, base_s=0.0, cap_s=0.0)
    assert run.json("zombies")["groups"] == [], "any of the four may have done it"
    settle(store, again(store, suspect), Failed("boom"))
    assert run.json("zombies")["groups"] == [], "it was not this one"
    once = crash(store, EXPIRED, crashes_max=9, base_s=0.0, cap_s=0.0, queue="q")
    assert run.json("zombies")["groups"] == [], "once may be chance"
    settle(store, again(store, once), EXPIRED)
    assert run.json("zombies")["groups"][0]["jobs"] == 3
    settle(store, again(store, row(store, once.id)), Succeeded())
    assert run.json("zombies")["groups"] == [], "it can be done after all"


def test_jobs_that_were_lost_with_one_worker_died_one_death(run: Run, store: Store) -> None:
    host = enrol(store)
    jobs = [start(store, host, **POISON, on_crash="fail") for _ in range(5)]
    for job in jobs:
        settle(store, job, EXPIRED)
    crash(store)
    assert run.json("zombies")["groups"] == []
    for _ in range(2):  # in processes of their own, under one worker that lives on
        settle(store, start(store, host, **POISON, on_crash="fail"), Lost("exit", "x", {"isolated": True}, suspects=1))
    assert run.json("zombies")["groups"][0]["jobs"] == 8


def test_the_living_that_were_given_up_are_no_group(run: Run, store: Store) -> None:
    zombies = [start(store, **POISON, on_crash="hold") for _ in range(3)]
    for zombie in zombies:
        settle(store, zombie, EXPIRED)
    assert run.json("zombies")["groups"][0]["now"] == {"held": 3}
    settle(store, zombies[0], Succeeded())
    assert run.json("zombies")["groups"] == []


def test_the_worst_group_comes_first_and_an_old_one_not_at_all(run: Run, store: Store, clock: FakeClock) -> None:
    for _ in range(3):
        crash(store, task="old")
    clock.advance(60)
    for task in ("worse", "bad", "worse", "bad", "worse", "worse", "bad"):
        crash(store, task=task)
        clock.advance(0.1)
    groups = run.json("zombies", "--since", "70s")["groups"]
    assert [(group["task"], group["jobs"]) for group in groups] == [("worse", 4), ("bad", 3)]


# --------------------------------------------------------------------------------------------- the living


def test_a_zombie_that_reports_after_all_was_none(run: Run, store: Store) -> None:
    zombies = [start(store) for _ in range(3)]
    for zombie in zombies:
        settle(store, zombie, EXPIRED)
    settle(store, zombies[0], Succeeded())
    view = run.json("zombies")
    assert view["false_positives"] == {"late_reports": 1, "rate": 0.3333, "rate_max": 0.05, "too_many": True}
    assert sum(task["late_reports"] for task in view["tasks"]) == 1
    assert "False positives: 1 of 3 (33%) reported later, which was refused; above 5%" in run("zombies").stdout


def test_one_false_positive_of_twenty_is_allowed(run: Run, store: Store) -> None:
    zombies = [start(store) for _ in range(20)]
    for zombie in zombies:
        settle(store, zombie, EXPIRED)
    settle(store, zombies[0], Succeeded())
    false = run.json("zombies")["false_positives"]
    assert (false["rate"], false["too_many"]) == (0.05, False)
    assert "1 of 20 (5%) reported later, which was refused." in run("zombies").stdout


def test_a_refused_report_of_one_that_was_no_zombie_does_not_count(run: Run, store: Store) -> None:
    settle(store, start(store), EXPIRED)
    first = start(store, base_s=0.0, cap_s=0.0)
    settle(store, first, Failed("boom"))
    again(store, row(store, first.id))
    settle(store, first, Succeeded())
    assert len(stale_reports(store)) == 1
    assert run.json("zombies")["false_positives"]["late_reports"] == 0


def test_deleted_jobs_stay_in_the_numbers_while_their_journal_does(store: Store, monkeypatch: Any) -> None:
    job = job_in(store, State.HELD)
    lost = store.figures.lost(0.0)
    gone = [LostLine(*(getattr(line, name) for name in LostLine.__struct_fields__[:7])) for line in lost.lines]
    monkeypatch.setattr(type(store.figures), "lost", lambda *_: replace(lost, lines=gone))
    view = insight.zombies_view(insight.look_back(store, 3600))
    assert (view["now"], view["tasks"][0]["task"]) == ({"deleted": 1}, None)
    assert job.id


def test_very_many_are_counted_and_the_newest_are_looked_at(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [job_in(store, State.HELD, task=f"t{number % 2}").id for number in range(10)]
    lost = store.figures.lost(0.0, 3)
    monkeypatch.setattr(type(store.figures), "lost", lambda *_: lost)
    look = insight.look_back(store, 3600)
    assert sorted(look.victims) == sorted(jobs[-3:])
    view = insight.zombies_view(look)
    assert (view["zombies"], view["looked_at"], view["jobs"]) == (10, 3, 3)
    assert [(row["task"], row["zombies"]) for row in view["tasks"]] == [("t0", 5), ("t1", 5)]
    assert sum(row["zombies"] for row in view["detectors"]) == 10
    assert sum(view["decisions"].values()) == 10


def test_an_event_with_an_unusual_detail_is_counted_all_the_same(store: Store) -> None:
    settle(store, start(store), Lost("vanished", "x", autopsy={"claimed_at": "?", "seconds_since_beat": "?"}))
    [found] = insight.look_back(store, 3600).found
    assert (found.detector, found.silent_s) == ("vanished", None)


def test_words_of_job_data_cannot_write_to_the_terminal(run: Run, store: Store) -> None:
    settle(store, start(store, task="a\x1b[31mb"), EXPIRED)
    assert "\x1b" not in run("zombies").stdout
    assert "a\\x1b[31mb" in run("zombies").stdout


# ----------------------------------------------------------------------------------------------- storms


def die(store: Store, clock: FakeClock, number: int, pause_s: float, **given: Any) -> None:
    """So many attempts lose their worker, each by a death of its own."""
    for _ in range(number):
        worker = enrol(store, name="box/1", boot_id=SystemClock().boot_id)
        settle(
            store, start(store, worker, on_crash="fail", **given), Lost("exit", "it was killed", {"worker": "box/1"})
        )
        clock.advance(pause_s)


@pytest.mark.parametrize(("number", "pause_s", "is_one"), [(20, 0.1, False), (21, 0.1, True), (25, 30.0, False)])
def test_a_storm_is_more_deaths_in_a_window_than_chance_explains(
    run: Run, store: Store, clock: FakeClock, number: int, pause_s: float, is_one: bool
) -> None:
    clock.set_wall(clock.wall() - 3600)
    die(store, clock, number, pause_s)
    found = run.json("zombies")["storms"]
    assert [(storm["zombies"], storm["concerns"]) for storm in found] == ([(number, "fleet")] if is_one else [])
    shown = run("zombies").stdout
    assert ("Storm: from " in shown) is is_one
    assert ("no single job, task or worker is behind it" in " ".join(shown.split())) is is_one


def test_a_storm_of_one_task_is_told_from_one_of_the_fleet_and_two_are_two(
    run: Run, store: Store, clock: FakeClock
) -> None:
    clock.set_wall(clock.wall() - 7200)
    die(store, clock, 30, 10.0, task="send")
    clock.advance(1200)
    die(store, clock, 21, 0.1)
    first, second = run.json("zombies")["storms"]
    assert (first["concerns"], first["zombies"], first["tasks"]) == ("task", 30, 1)
    assert (second["concerns"], second["zombies"], second["workers"]) == ("fleet", 21, 21)
    assert first["until"] < second["since"]


def test_the_attempts_are_listed_with_the_ids_of_their_jobs_and_their_detector(
    run: Run, store: Store, clock: FakeClock
) -> None:
    expired = lose(store, task="send", queue="mail")
    run("scan", "--fix")
    clock.advance(PAST_S + 5)
    killed = start(store, task="charge", on_crash="hold")
    settle(store, killed, Lost("exit", "it was killed", {"seconds_since_beat": 2.5, "worker": "box/1"}))
    first, second = run.json("zombies", "--list")
    assert (first["id"], first["detector"], first["silent_s"], first["worker"]) == (killed.id, "exit", 2.5, "box/1")
    assert (first["decision"], first["now"], first["reported_later"]) == ("hold", "held", False)
    assert (second["id"], second["detector"], second["task"]) == (expired.id, "expired", "send")
    assert [each["id"] for each in run.json("zombies", "--list", "--detector", "expired")] == [expired.id]
    assert len(run.json("zombies", "--list", "--limit", "1")) == 1
    assert run.json("zombies", "--list", "--detector", "stuck") == []
    said = run("zombies", "--list").stdout
    assert re.search(rf"{killed.id} +charge +exit +2.5 s +box/1 +held +held", said)
    assert "No such zombies" in run("zombies", "--list", "--detector", "stuck").stdout
    assert "--detector needs --list" in run("zombies", "--detector", "exit", code=2).stderr
