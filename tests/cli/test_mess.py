"""A person on call cleans up after a bad night: each question has one command."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest

from holdfast.core.machine import State
from holdfast.core.records import Filter, Job
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Failed, Lost, Outcome, judge
from holdfast.ids import new_job_id
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.cli.conftest import Run
from tests.factory import a_step, add, park, record, row, start, start_flow

BANK = Failed("ConnectionError: bank 7 is down", error_kind="ConnectionError", origin="shop.pay")
CARD = Failed("ValueError: no card 4711", error_kind="ValueError", origin="shop.pay")
VANISHED = Lost("vanished", "the process died")
EXITED = Lost("exit", "died", {"signal": "SIGKILL"})


def ends(store: Store, outcome: Outcome, release: str | None = None, **given: Any) -> Job:
    job = start(store, **{"attempts_max": 1, "task": "shop.pay"} | given)
    store.settle([settlement(job, judge(outcome, job, store.now().wall, chance=0.5, release=release))])
    return row(store, job.id)


class Mess(NamedTuple):
    """What the night has left behind."""

    early: Job  # dead of the bank, before the deploy
    bank: list[Job]  # dead of the bank
    card: Job  # dead of a bad card
    held: list[Job]  # held after a crash
    opened: Job  # held with a step that may have happened
    asking: Job  # asks a person
    crashed: Job  # crashed, found by its parent, and runs again
    batch: list[Job]  # a bad batch, ready
    deployed: float  # when


@pytest.fixture
def mess(store: Store, clock: FakeClock) -> Mess:
    early = ends(store, BANK, "1.0")
    clock.advance(30)
    deployed = clock.wall() - 1
    bank = [ends(store, BANK, "1.1") for _ in range(3)]
    card = ends(store, CARD, "1.1")
    held = [ends(store, VANISHED, on_crash="hold", attempts_max=5) for _ in range(4)]
    flow = start_flow(store, task="shop.order", on_crash="hold")
    record(store, flow, a_step(1, "started", name="charge", repeatable=False), open_step="charge")
    store.settle([settlement(row(store, flow.id), judge(VANISHED, row(store, flow.id), clock.wall(), chance=0.5))])
    asking = park(store, start_flow(store, task="shop.order"), "signal:approve:1", question="Ship it?")
    crashed = ends(store, EXITED, attempts_max=5, task="shop.ship")
    batch = [add(store, task="shop.mail", queue="mail", id=new_job_id(clock)) for _ in range(3)]
    return Mess(early, bank, card, held, row(store, flow.id), asking, crashed, batch, deployed)


def ids(jobs: list[Job]) -> set[str]:
    return {job.id for job in jobs}


def listed(run: Run, *args: str) -> set[str]:
    return {job["id"] for job in run.json(*args)}


def iso(wall: float) -> str:

    return datetime.fromtimestamp(wall, UTC).isoformat()


# ------------------------------------------------------------------------------------------ who crashed


def test_which_jobs_crashed_and_how_was_that_found(run: Run, mess: Mess) -> None:
    vanished = {*ids(mess.held), mess.opened.id}
    assert listed(run, "jobs", "list", "--crashed") == {*vanished, mess.crashed.id}
    assert listed(run, "jobs", "list", "--crashed", "--detector", "vanished") == vanished
    assert listed(run, "jobs", "list", "--detector", "exit") == {mess.crashed.id}
    assert listed(run, "jobs", "list", "--crashed", "--state", "held", "--task", "shop.pay") == ids(mess.held)
    assert listed(run, "jobs", "list", "--crashed", "--until", iso(mess.deployed)) == set()
    assert run.json("jobs", "list", "--detector", "stuck") == []


def test_crashed_jobs_are_listed_page_by_page_from_the_last_crash_on(run: Run, mess: Mess) -> None:
    first = [job["id"] for job in run.json("jobs", "list", "--crashed", "--limit", "4")]
    rest = [job["id"] for job in run.json("jobs", "list", "--crashed", "--before", first[-1])]
    assert first[0] == mess.crashed.id
    assert {*first, *rest} == {*ids(mess.held), mess.opened.id, mess.crashed.id}
    assert len(first) + len(rest) == 6


def test_a_crash_is_found_after_the_job_went_well(run: Run, store: Store, mess: Mess) -> None:
    store.settle([settlement(job := start(store, task="shop.ship2"), judge(EXITED, job, 0.0, chance=0.5))])
    assert job.id in listed(run, "jobs", "list", "--crashed", "--task", "ship2")


# ---------------------------------------------------------------------------- revive what failed with this error


def test_dead_jobs_with_one_error_since_the_deploy_are_revived(run: Run, store: Store, mess: Mess) -> None:
    [fingerprint] = {job.fingerprint for job in mess.bank}
    chosen = ["--task", "pay", "--error", str(fingerprint), "--since", iso(mess.deployed)]
    plan = run.json("dead", "revive", *chosen, "--dry-run")
    assert (plan["count"], plan["done"], plan["dry_run"]) == (3, 0, True)
    assert {job["id"] for job in plan["sample"]} == ids(mess.bank)
    assert plan["tasks"] == {"shop.pay": 3}
    assert {row(store, job.id).state for job in mess.bank} == {State.DEAD}
    done = run.json("dead", "revive", *chosen, "--yes", "--by", "ann", "--note", "the bank is back")
    assert (done["count"], done["done"], done["refused"]) == (3, 3, 0)
    assert {row(store, job.id).state for job in mess.bank} == {State.READY}
    assert {row(store, job.id).state for job in (mess.early, mess.card)} == {State.DEAD}
    events = [store.journal(job.id)[-1] for job in mess.bank]
    assert {(event.kind, event.actor, event.detail["note"]) for event in events} == {
        ("revived", "ann", "the bank is back")
    }
    assert run.json("dead", "revive", *chosen, "--yes")["count"] == 0, "what is done is not done again"


def test_the_release_chooses_too(run: Run, mess: Mess) -> None:
    assert listed(run, "jobs", "list", "--release", "1.0") == {mess.early.id}
    assert listed(run, "dead", "list", "--release", "1.1") == {*ids(mess.bank), mess.card.id}


def test_a_dry_run_shows_the_number_the_tasks_and_a_sample(run: Run, mess: Mess) -> None:
    said = run("dead", "revive", "--all", "--dry-run").stdout
    assert said.startswith("Revive: 5 jobs (5 of shop.pay). Nothing was changed.\n")
    assert mess.card.id in said


def test_an_act_on_many_asks_first_and_demands_yes_where_nobody_can_answer(run: Run, store: Store, mess: Mess) -> None:
    assert "add -y" in run("dead", "revive", "--all", code=2).stderr
    assert row(store, mess.card.id).state is State.DEAD


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["dead", "revive"], "choose them by options"),
        (["dead", "revive", "abc", "--task", "t"], "not both"),
        (["jobs", "cancel", "abc", "--dry-run"], "--dry-run goes with options"),
        (["jobs", "retry", "--all", "--repeat-step", "-y"], "one by one"),
        (["jobs", "retry", "--state", "done", "-y"], "cannot be chosen for retry"),
        (["jobs", "delete", "--state", "running", "-y"], "cannot be chosen for delete"),
        (["jobs", "move", "--all", "--to-queue", "", "-y"], "queue"),
        (["jobs", "set", "--all", "-y"], "say what to set"),
        (["jobs", "set", "--all", "--priority", "2000000", "-y"], "priority"),
        (["jobs", "set", "--all", "--run-at", "soon", "-y"], "--run-at"),
        (["jobs", "list", "--since", "1h", "--until", "2h"], "later than"),
        (["jobs", "list", "--detector", "smell"], "smell"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(run: Run, mess: Mess, args: list[str], words: str) -> None:
    assert words in " ".join(run(*args, code=2).stderr.split())


# --------------------------------------------------------------------------------------- answers for held jobs


def test_all_held_jobs_of_a_task_are_approved_at_once_with_a_line_each(run: Run, store: Store, mess: Mess) -> None:
    done = run.json("held", "approve", "--task", "pay", "--yes", "--by", "ann", "--note", "nothing was paid")
    assert (done["done"], done["left_alone"]) == (4, 0)
    for job in mess.held:
        event = store.journal(job.id)[-1]
        assert row(store, job.id).state is State.READY
        assert (event.kind, event.actor, event.detail["note"]) == ("revived", "ann", "nothing was paid")


def test_what_needs_an_answer_of_its_own_is_left_out_and_listed(run: Run, store: Store, mess: Mess) -> None:
    done = run.json("held", "approve", "--all", "--yes")
    assert (done["done"], done["left_alone"]) == (4, 2)
    assert "'charge' may have happened" in done["reasons"][mess.opened.id]
    assert done["reasons"][mess.asking.id] == 'it asks "Ship it?"'
    assert row(store, mess.opened.id).state is State.HELD
    assert row(store, mess.asking.id).state is State.WAITING
    said = run("held", "fail", "--all", "--yes").stderr
    assert "each needs an answer of its own: 2 jobs" in said
    assert mess.opened.id in said


def test_held_jobs_are_given_up_by_the_time_of_their_crash(run: Run, store: Store, mess: Mess) -> None:
    assert run.json("held", "fail", "--crashed", "--until", iso(mess.deployed), "-y")["done"] == 0
    assert run.json("held", "fail", "--detector", "vanished", "--since", iso(mess.deployed), "-y")["done"] == 4
    assert {row(store, job.id).state for job in mess.held} == {State.DEAD}


# ----------------------------------------------------------------------------------- a bad batch; another queue


def test_a_bad_batch_is_cancelled(run: Run, store: Store, mess: Mess) -> None:
    assert run("jobs", "cancel", "--task", "mail", "-y").stdout == "3 jobs cancelled, or asked to stop\n"
    assert {row(store, job.id).state for job in mess.batch} == {State.CANCELLED}
    assert run.json("jobs", "retry", "--task", "mail", "-y")["count"] == 0, "cancelled jobs must be asked for"
    assert run.json("jobs", "retry", "--task", "mail", "--state", "cancelled", "-y")["done"] == 3


def test_a_bad_batch_is_deleted(run: Run, store: Store, mess: Mess) -> None:
    assert run.json("jobs", "delete", "--task", "mail", "-y")["count"] == 0, "it has not ended"
    assert run.json("jobs", "delete", "--task", "mail", "--state", "ready", "-y")["done"] == 3
    assert store.find(Filter(task="shop.mail")) == []


def test_jobs_are_moved_to_another_queue_by_their_ids_and_by_choice(run: Run, store: Store, mess: Mess) -> None:
    first = mess.batch[0].id
    assert run("jobs", "move", first, "--to-queue", "slow", "--by", "ann").stdout == f"{first}  ready\n"
    assert run.json("jobs", "move", "--queue", "mail", "--to-queue", "slow", "-y")["done"] == 2
    assert {row(store, job.id).queue for job in mess.batch} == {"slow"}
    event = store.journal(first)[-1]
    assert (event.kind, event.actor, event.detail) == ("moved", "ann", {"queue": "slow", "from_queue": "mail"})
    assert "cannot be rescheduled" in run("jobs", "move", mess.card.id, "--to-queue", "slow", code=6).stderr


def test_priority_and_time_are_set_by_ids_and_by_choice(run: Run, store: Store, mess: Mess) -> None:
    run("jobs", "set", mess.batch[0].id, "--priority", "9")
    assert row(store, mess.batch[0].id).priority == 9
    assert run.json("jobs", "set", "--task", "mail", "--run-at", "2h", "-y")["done"] == 3
    assert {job["state"] for job in run.json("jobs", "list", "--task", "mail")} == {"scheduled"}
    assert run.json("jobs", "set", "--task", "mail", "--state", "scheduled", "--run-at", "now", "-y")["done"] == 3
    assert {job["state"] for job in run.json("jobs", "list", "--task", "mail")} == {"ready"}


# -------------------------------------------------------------------------------------------- names in short


def test_an_id_may_be_given_by_its_first_part(run: Run, store: Store, clock: FakeClock) -> None:
    one = add(store, id="0193aaaa-0000-7000-8000-000000000001").id
    two = add(store, id="0193aaaa-0000-7000-8000-000000000002").id
    other = add(store, id="0193bbbb-0000-7000-8000-000000000003").id
    assert run.json("jobs", "show", "0193bb")["id"] == other
    assert run("jobs", "cancel", "0193bb").stdout == f"{other}  cancelled\n"
    for command in (["jobs", "show"], ["jobs", "cancel"], ["held", "approve"], ["workflows", "show"]):
        said = " ".join(run(*command, "0193aaaa", code=5).stderr.split())
        assert "several jobs have an id that begins with '0193aaaa'" in said
        assert one in said
        assert two in said
    assert {row(store, each).state for each in (one, two)} == {State.READY}
    assert "there is no job" in run("jobs", "cancel", "019", code=5).stderr, "too short"


def test_only_ids_that_holdfast_has_made_may_be_shortened(run: Run, store: Store) -> None:
    add(store, id="abcd-12")
    assert "there is no job 'abcd-1'" in run("jobs", "cancel", "abcd-1", code=5).stderr
    assert row(store, "abcd-12").state is State.READY


def test_the_full_name_of_a_task_wins_over_a_short_one(run: Run, store: Store, mess: Mess) -> None:
    add(store, task="pay")
    assert {job["task"] for job in run.json("jobs", "list", "--task", "pay")} == {"pay"}
