"""A person on call, at three in the morning: each question has one command, with its exit code and `--json`."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from holdfast.core.machine import State
from holdfast.core.records import EndedAttempt, Published, Recent, Schedule
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Failed, Lost, Outcome, Succeeded, judge
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.cli.conftest import PAST_S, Run
from tests.factory import add, enrol, make_job, row, settle, start

DEPLOY = "2026.11.19"


class Night(NamedTuple):
    """What the night has left behind."""

    store: Store
    worker: str
    bank: list[str]  # dead of the bank, since the deploy
    held: list[str]
    crashed: str
    batch: list[str]
    fingerprint: str


@pytest.fixture
def night(store: Store, clock: FakeClock) -> Night:
    job = make_job(id="", task="reports.nightly")
    clock.set_wall(clock.wall() - 400)  # an instant counts as late a minute after it came
    store.schedule([Schedule(key="nightly", spec="* * * * *", tz="UTC", missed="last", job=job)])
    clock.set_wall(clock.wall() + 400)
    tasks = {task: Published(queue="shop") for task in ("shop.pay", "shop.ship", "shop.import")}
    worker = enrol(
        store, name="box/1", supervisor="s", queues=["shop"], tasks=tasks, release=DEPLOY, slots=20, beat_s=120.0
    )
    enrol(store, name="frozen/1", queues=["shop"], boot_id="another", beat_s=1.0)

    def ends(outcome: Outcome, release: str | None = DEPLOY, **given: Any) -> str:
        job = start(store, worker, **{"task": "shop.pay", "queue": "shop", "attempts_max": 1} | given)
        store.settle([settlement(job, judge(outcome, job, store.now().wall, chance=0.5, release=release))])
        return job.id

    failed = Failed("ConnectionError: bank 7 is down", error_kind="ConnectionError", origin="shop.bank")
    lost = Lost("vanished", "killed by SIGKILL", {"seconds_since_beat": 0.8, "worker": "box/1"})
    ends(Failed("ValueError: no card 4711", error_kind="ValueError", origin="shop.cards"), "2026.11.18")
    bank = [ends(failed) for _ in range(3)]
    held = [ends(lost, on_crash="hold", attempts_max=3) for _ in range(2)]
    crashed = ends(lost, task="shop.ship", attempts_max=3)
    batch = [add(store, task="shop.import", queue="imports").id for _ in range(3)]
    add(store, task="shop.gone", queue="shop")
    settle(store, start(store, worker, task="shop.ship2", queue="shop"), Succeeded())
    clock.advance(PAST_S)
    fingerprint = row(store, bank[0]).fingerprint
    assert fingerprint is not None
    store.pause("mail", True, actor="ann@box", note="the relay is down")
    ending = EndedAttempt(bank[0], "shop.pay", "failed", State.DEAD, clock.wall(), 0.4)
    store.beat(worker, [], recent=Recent(endings=(ending,), log="cannot reach the bank"))
    return Night(store, worker, bank, held, crashed, batch, fingerprint)


def test_what_is_broken_right_now_in_order_of_harm(run: Run, night: Night) -> None:
    view = run.json("status", code=7)
    said = " | ".join(trouble["text"] for trouble in view["troubles"])
    for words in (
        "queue imports",
        "shop.gone",
        "worker frozen/1",
        "schedule nightly",
        "4 jobs died",
        "2 jobs are held",
    ):
        assert words in said, words
    assert "ann@box paused mail: the relay is down" in [change["text"] for change in view["changes"]]
    assert run("doctor", code=7).stdout


def test_which_errors_how_many_since_when_on_which_release(run: Run, night: Night) -> None:
    first = run.json("errors", "--since", "2h")[0]
    assert (first["task"], first["attempts"], first["releases"]) == ("shop.pay", 3, [DEPLOY])
    assert (first["fingerprint"], first["example"]) == (night.fingerprint, night.bank[-1])
    assert first["first_seen"] <= first["last_seen"]


def test_which_deploy_began_it(run: Run, night: Night) -> None:
    assert {each["id"] for each in run.json("jobs", "list", "--release", DEPLOY, "--state", "dead")} == set(night.bank)
    assert run.json("workers", "show", "box/1")[0]["release"] == DEPLOY


def test_revive_what_failed_with_one_error_dry_run_first(run: Run, night: Night) -> None:
    chosen = ["--task", "pay", "--error", night.fingerprint, "--since", "2h"]
    plan = run.json("dead", "revive", *chosen, "--dry-run")
    assert plan["count"] == 3
    assert {row(night.store, each).state for each in night.bank} == {State.DEAD}
    assert run.json("dead", "revive", *chosen, "--yes", "--note", "the bank is back")["done"] == 3
    assert {row(night.store, each).state for each in night.bank} == {State.READY}


def test_answer_many_held_jobs_at_once(run: Run, night: Night) -> None:
    assert run.json("held", "approve", "--task", "pay", "--yes", "--note", "nothing was paid")["done"] == 2
    assert {row(night.store, each).state for each in night.held} == {State.READY}
    notes = [act["note"] for act in run.json("audit") if act["job"] in night.held]
    assert notes == ["nothing was paid"] * 2, "one line for each job"


def test_cancel_a_bad_batch_move_jobs_and_change_their_priority_and_time(run: Run, night: Night) -> None:
    first, *rest = night.batch
    assert run("jobs", "move", first, "--to-queue", "slow").exit_code == 0
    assert run.json("jobs", "set", "--queue", "slow", "--priority", "9", "--yes")["done"] == 1
    assert (row(night.store, first).queue, row(night.store, first).priority) == ("slow", 9)
    assert run.json("jobs", "cancel", "--queue", "imports", "--yes", "--note", "bad batch")["done"] == len(rest)
    assert {row(night.store, each).state for each in rest} == {State.CANCELLED}


def test_drain_one_host_before_maintenance(run: Run, night: Night) -> None:
    run("workers", "drain", "box", "--by", "ann", "--note", "new disk")
    [order] = night.store.orders()
    assert (order.name, order.act, order.actor, order.note) == ("box", "drain", "ann", "new disk")
    assert run.json("workers", "show", "box/1")[0]["order"]["act"] == "drain"
    run("workers", "resume", "box", "--by", "ann")
    assert night.store.orders() == []


def test_how_long_until_the_backlog_is_gone_and_how_fast_are_we(run: Run, night: Night) -> None:
    queues = {queue["queue"]: queue for queue in run.json("queues", "list")}
    assert {"in_per_s", "out_per_s", "drain_s", "oldest_due_s"} <= set(queues["imports"])
    assert queues["imports"]["oldest_due_s"] >= PAST_S
    assert {"queues", "workers", "leases", "detections"} <= set(run.json("top", "--once"))


def test_what_a_worker_did_before_it_died(run: Run, night: Night) -> None:
    night.store.retire(night.worker, "killed by SIGKILL")
    [report] = run.json("workers", "show", "box/1")
    assert report["release"] == DEPLOY
    assert night.bank[0] in json.dumps(report)
    assert "cannot reach the bank" in json.dumps(report)
    run("workers", "show", "nobody", code=5)


def test_who_paused_this_queue_and_why(run: Run, night: Night) -> None:
    queue = next(queue for queue in run.json("queues", "list") if queue["queue"] == "mail")
    assert (queue["paused_by"], queue["paused_note"]) == ("ann@box", "the relay is down")
    assert [act["note"] for act in run.json("audit", "--by", "ann@box")] == ["the relay is down"]


def test_is_this_worker_healthy(run: Run, night: Night) -> None:
    assert run.json("worker-health", "--name", "box/1")["healthy"]
    assert not run.json("worker-health", "--name", "frozen/1", code=7)["healthy"]
    run("worker-health", "--name", "nobody", code=5)


def test_did_my_schedule_run(run: Run, night: Night) -> None:
    [schedule] = run.json("schedules", "list")
    assert (schedule["key"], schedule["last"]) == ("nightly", None)
    assert schedule["late_s"] is not None
    assert "nightly" in run("schedules", "show", "nightly").stdout


def test_which_jobs_crashed_last_night_by_which_detector(run: Run, night: Night) -> None:
    crashed = {*night.held, night.crashed}
    assert {each["id"] for each in run.json("zombies", "--list", "--detector", "vanished", "--since", "12h")} == crashed
    found = run.json("jobs", "list", "--crashed", "--detector", "vanished", "--since", "12h")
    assert {each["id"] for each in found} == crashed


def test_the_whole_night_in_one_file(run: Run, night: Night) -> None:
    page = run("report", "--since", "2h").stdout
    for words in ("ConnectionError: bank # is down", "killed by SIGKILL", "the relay is down", DEPLOY, "frozen/1"):
        assert words in page, words
