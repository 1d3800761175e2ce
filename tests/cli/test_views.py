"""What programs read: the shapes of JSON, exactly, and what is in them."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, cast

import pytest

from holdfast import insight
from holdfast.clock import SystemClock
from holdfast.core.durations import iso
from holdfast.core.machine import State
from holdfast.core.records import Filter, Published, Pulse
from holdfast.core.verdict import Failed, Succeeded
from holdfast.errors import StoreError
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite import store as sqlite
from holdfast.testing import FakeClock
from holdfast.testing.faults import FaultyStore
from holdfast.upkeep.reaper import Reaper, Report
from tests.cli.conftest import PAST_S, Run, lose, shown_choices
from tests.factory import EXPIRED, add, claim, delete, enrol, job_in, make_job, park, row, settle, start, start_flow

JOB = {
    *("id", "task", "queue", "group", "batch", "state", "attempt", "fence", "failures", "crashes"),
    *("created_at", "run_at", "ended_at", "worker", "lease_until"),
    *("error", "fingerprint", "release", "stop_reason", "rollback_cause", "result", "progress"),
    *("tags", "meta", "after"),
}
EVENT = {"at", "kind", "fence", "worker", "actor", "detail"}
SCAN = {"zombies_found", "zombies_recovered", "zombies_locked", "held", "dead", "rolled_back", "zombies"}
ZOMBIE = {"id", "task", "queue", "worker", "lease_until", "last_beat", "detector", "crashes", "decision", "answer"}
WORKER = {
    *("id", "name", "state", "host", "pid", "queues", "tasks", "slots", "running", "rss_mb", "version"),
    *("started_at", "last_beat", "gone_at", "gone_cause", "exit_kind", "exit_code", "order", "release"),
}
QUEUE = {
    *("queue", "paused", "served", "unserved", "missing", "unroused", "oldest_due_s", "oldest_served_s"),
    *(
        "limit",
        "group_limit",
        "rate",
        "burst",
        "paused_until",
        "paused_groups",
        "in_per_s",
        "out_per_s",
        "drain_s",
        "lasts_s",
    ),
    *("paused_by", "paused_at", "paused_note"),
    *map(str, State),
}


def test_a_list_of_jobs(run: Run, store: Store) -> None:
    for state in State:
        job_in(store, state)
    found = run.json("jobs", "list")
    assert [set(job) for job in found] == [JOB] * len(State)
    assert {job["state"] for job in found} == {state.value for state in State}
    assert [job["id"] for job in found] == [job.id for job in store.find(Filter())]


def test_an_empty_list_is_a_list(run: Run, store: Store) -> None:
    for command in (
        ("jobs", "list"),
        ("held", "list"),
        ("dead", "list"),
        ("queues", "list"),
        ("workers", "list"),
        ("schedules", "list"),
    ):
        assert run.json(*command) == []


def test_one_job_with_its_history(run: Run, store: Store) -> None:
    worker = enrol(store, name="w1", boot_id=SystemClock().boot_id)
    job = start(store, worker, on_crash="hold")
    running = run.json("jobs", "show", job.id)
    assert set(running) == JOB | {"health", "log", "beat_data", "events", "endings", "steps"}
    assert running["log"] is None
    store.beat(worker, [Pulse(job.lease, log="one\ntwo")])
    assert run.json("jobs", "show", job.id)["log"] == ["one", "two"]
    assert running["state"] == "running"
    assert running["worker"] == "w1"
    assert (running["attempt"], running["fence"]) == (1, 1)
    assert (running["events"], running["steps"]) == ([], [])
    run("scan", "--fix")
    held = run.json("jobs", "show", job.id)
    assert (held["state"], held["crashes"], held["fence"], held["worker"]) == ("held", 1, 2, None)
    assert [set(event) for event in held["events"]] == [EVENT, EVENT]
    assert [event["kind"] for event in held["events"]] == ["zombie", "held"]
    zombie = held["events"][0]
    assert (zombie["detail"]["log"], held["log"]) == (["one", "two"], None)
    assert (zombie["worker"], zombie["fence"]) == ("w1", 1)
    assert zombie["detail"]["detector"] == "expired"
    assert zombie["detail"]["decision"] == "hold"


def test_what_a_handler_said_with_its_beats_is_shown_while_it_runs_and_in_its_autopsy(run: Run, store: Store) -> None:
    worker = enrol(store, name="w1", boot_id=SystemClock().boot_id)
    job = start(store, worker)
    store.beat(worker, [Pulse(job.lease, beat_data='{"key":"a\\u001b[31m","number":7}')])
    said = {"key": "a\x1b[31m", "number": 7}
    assert run.json("jobs", "show", job.id)["beat_data"] == said
    page = run("jobs", "show", job.id).stdout
    assert "it says" in page
    assert "\x1b" not in page, "what a handler says never reaches the terminal raw"
    run("scan", "--fix")
    after = run.json("jobs", "show", job.id)
    assert after["beat_data"] is None
    assert after["events"][0]["detail"]["beat_data"] == said
    assert "it had said" in run("jobs", "show", job.id).stdout


def test_damaged_beat_data_does_not_hide_a_job(run: Run, store: Store) -> None:
    worker = enrol(store, name="w1", boot_id=SystemClock().boot_id)
    job = start(store, worker)
    store.beat(worker, [Pulse(job.lease, beat_data="{not json")])
    assert run.json("jobs", "show", job.id)["beat_data"] is None
    run("scan", "--fix")
    assert "beat_data" not in run.json("jobs", "show", job.id)["events"][0]["detail"]


def test_a_long_label_does_not_touch_its_value(run: Run, store: Store) -> None:
    job = start(store)
    run("jobs", "cancel", job.id)
    assert "\n      cancel requested yes\n" in run("jobs", "show", job.id).stdout


def test_a_lease_is_shown_by_the_clock_on_the_wall(run: Run, store: Store, clock: FakeClock) -> None:
    job = start(store, lease_s=300.0)
    shown = run.json("jobs", "show", job.id)["lease_until"]
    assert shown.endswith("Z")
    assert at(shown) == pytest.approx(SystemClock().wall() + 300.0 - PAST_S, abs=1.0)


def test_results_are_parsed_and_numbers_stay_exact(run: Run, store: Store) -> None:
    job = start(store)
    settle(store, job, Succeeded('{"big": 123456789012345678901234567890, "half": 0.5, "text": "é"}'))
    shown = run.json("jobs", "show", job.id)
    assert shown["result"] == {"big": 123456789012345678901234567890, "half": 0.5, "text": "é"}


def test_a_result_that_is_no_json_is_shown_as_it_is(run: Run, store: Store) -> None:
    job = start(store)
    settle(store, job, Succeeded("<own codec>"))
    assert run.json("jobs", "show", job.id)["result"] == "<own codec>"


@pytest.mark.parametrize(
    ("retry", "words"),
    [
        ({}, "10 failed and crashed in all; its retries span 21 min to 42 min"),
        ({"jitter": "full"}, "10 failed and crashed in all; its retries span up to 42 min"),
        ({"attempts_max": 2, "jitter": "none"}, "2 failed and crashed in all; its retries span 5.0 s"),
        ({"attempts_max": 1}, "1 failed and crashed in all\n"),
    ],
)
def test_a_job_says_how_long_its_retries_last(run: Run, store: Store, retry: dict[str, Any], words: str) -> None:
    assert words in run("jobs", "show", add(store, **retry).id).output


def test_a_ready_job_goes_by_the_name_of_its_time(run: Run, store: Store) -> None:
    due = add(store)
    scheduled = add(store, delay_s=1000.0)
    failed = start(store, base_s=1000.0, cap_s=1000.0, jitter=False)
    settle(store, failed, Failed("boom"))
    shown = {job["id"]: job["state"] for job in run.json("jobs", "list")}
    assert shown == {due.id: "ready", scheduled.id: "scheduled", failed.id: "retrying"}
    assert ids(run, "--state", "scheduled") == [scheduled.id]
    assert ids(run, "--state", "retrying") == [failed.id]
    assert ids(run, "--state", "ready") == [failed.id, scheduled.id, due.id]
    assert ids(run, "--state", "ready", "--state", "scheduled") == [failed.id, scheduled.id, due.id]


def test_shown_states_are_found_over_many_pages(store: Store, clock: FakeClock) -> None:
    store.add([make_job(id="first", delay_s=1000.0), *(make_job(id=f"n{i}") for i in range(1500))])
    clock.advance(1)
    assert [job.id for job in insight.find_jobs(store, ["scheduled"], Filter(limit=5))] == ["first"]
    assert len(insight.find_jobs(store, ["ready"], Filter(limit=5))) == 5


@pytest.mark.parametrize("word", ["scheduled", "retrying"])
def test_a_short_list_is_one_read_however_many_jobs_are_due(store: Store, word: str) -> None:
    store.add([make_job() for _ in range(50)])
    reads: list[str] = []
    counted = cast(Store, FaultyStore(store, lambda verb: reads.append(verb) if verb == "find" else None))
    assert insight.find_jobs(counted, [word], Filter(limit=3)) == []
    assert reads == ["find"]


def test_lists_of_what_waits_or_gave_up_say_since_when(run: Run, store: Store, clock: FakeClock) -> None:
    clock.set_wall(clock.wall() - 3900)
    held, dead, asks = start(store, on_crash="hold"), start(store, attempts_max=1), start_flow(store)
    clock.advance(3600)
    settle(store, held, EXPIRED)
    settle(store, dead, Failed("boom"))
    park(store, asks, "signal:approve:2", question="Ship it?")
    then, added = iso(clock.wall()), iso(clock.wall() - 3600)
    waiting = {job["id"]: (job["created_at"], job["since"]) for job in run.json("held", "list")}
    assert waiting == {held.id: (added, then), asks.id: (added, then)}
    [gave_up] = run.json("dead", "list")
    assert (gave_up["created_at"], gave_up["ended_at"]) == (added, then)
    for command, lines in (("held", 2), ("dead", 1)):
        told = run(command, "list").stdout.splitlines()[1:]
        assert [line.count("6 min") for line in told] == [1] * lines
    assert "6 min 4" in run("workflows", "show", asks.id).stdout


def test_filters_and_pages(run: Run, store: Store) -> None:
    mail = add(store, queue="mail", task="send", key="k", group="acme")
    other = [add(store) for _ in range(3)]
    assert ids(run, "--queue", "mail") == ids(run, "--task", "send") == ids(run, "--key", "k") == [mail.id]
    assert ids(run, "--group", "acme") == [mail.id]
    assert ids(run, "--limit", "2") == [other[2].id, other[1].id]
    assert ids(run, "--limit", "2", "--before", other[1].id) == [other[0].id, mail.id]
    assert f"--before {other[1].id}" in run("jobs", "list", "--limit", "2").stderr
    assert ids(run, "--state", "held", "--state", "dead") == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sned", "Did you mean the task shop.send?"),
        ("shop.sned", "Did you mean the task shop.send?"),
        ("remnd", "Did you mean the task old.remind or shop.remind?"),
        ("chrge", "Did you mean the task shop.charge?"),  # only held ones, and long ago
        ("send", ""),  # short for shop.send, which exists, just not in this state
        ("xyzzy", ""),
        ("shop.send", ""),  # it exists, just not in this state
    ],
)
def test_a_task_that_finds_nothing_gets_a_guess(run: Run, store: Store, name: str, said: str) -> None:
    job_in(store, State.HELD, task="shop.charge")
    add(store, task="old.remind")
    store.add([make_job(task="shop.bulk") for _ in range(300)])
    add(store, task="shop.send")
    add(store, task="shop.remind")
    words = ("jobs", "list", "--task", name, "--state", "held")
    shown = run(*words)
    assert (shown.stdout, {*shown.stderr.splitlines()}) == ("", {"No such jobs.", said} - {""})
    asked = run(*words, "--json")
    assert (asked.stdout, asked.stderr.strip()) == ("[]\n", said)
    assert run(*words, "-q").stderr == ""


def test_the_guess_is_made_wherever_a_task_is_named(run: Run, store: Store) -> None:
    job = job_in(store, State.DEAD, task="shop.send")
    for words in (("dead", "list"), ("held", "list"), ("jobs", "export"), ("dead", "revive", "--all", "-y")):
        assert "Did you mean the task shop.send?" in run(*words, "--task", "sned").stderr, words
    assert row(store, job.id).state is State.DEAD


def test_a_task_may_be_named_by_its_last_parts(run: Run, store: Store) -> None:
    job, old = add(store, task="shop.mail.send"), add(store, task="old.mail.remind")
    add(store, task="shop.remind")
    for name in ("send", "mail.send", "shop.mail.send"):
        assert ids(run, "--task", name) == [job.id]
    assert ids(run, "--task", "mail.remind") == [old.id]
    assert (
        "task old.mail.remind or shop.remind: write the full" in run("jobs", "list", "--task", "remind", code=5).stderr
    )


def test_a_guess_never_reads_all_jobs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []
    find = type(store).find
    monkeypatch.setattr(type(store), "find", lambda self, where: (limits.append(where.limit), find(self, where))[1])
    add(store, task="shop.send")
    assert insight.near_tasks(store, "send", ["held"]) == ["shop.send"]
    assert len(limits) <= 2
    assert max(limits) <= 200


def test_a_held_job_is_listed_with_its_fence(run: Run, store: Store) -> None:
    job = job_in(store, State.HELD)
    head, line = run("held", "list").stdout.splitlines()
    assert line.split()[head.split().index("FENCE")] == str(job.fence)
    assert run.json("held", "list")[0]["fence"] == run.json("jobs", "show", job.id)["fence"] == job.fence


def test_a_scan_counts_what_it_would_do_and_what_it_did(run: Run, store: Store) -> None:
    lost = {
        "retry": lose(store).id,
        "hold": lose(store, on_crash="hold").id,
        "bury": lose(store, on_crash="fail").id,
        "undo": lose(store, on_crash="rollback").id,
    }
    living = start(store, enrol(store, boot_id=SystemClock().boot_id), lease_s=1000.0)
    dry = run.json("scan")
    assert set(dry) == SCAN
    assert all(set(zombie) == ZOMBIE for zombie in dry["zombies"])
    counts = {"zombies_found": 4, "zombies_recovered": 0, "held": 1, "dead": 1, "rolled_back": 1}
    assert {key: dry[key] for key in counts} == counts
    assert {zombie["decision"]: zombie["id"] for zombie in dry["zombies"]} == lost
    fixed = run.json("scan", "--fix")
    assert {key: fixed[key] for key in counts} == counts | {"zombies_recovered": 4}
    assert {zombie["id"]: zombie for zombie in fixed["zombies"]} == {
        zombie["id"]: {**zombie, "lease_until": fixed_end(fixed, zombie), "answer": "accepted"}
        for zombie in dry["zombies"]
    }
    assert run.json("scan", "--fix") == {**dict.fromkeys(SCAN, 0), "zombies": []}
    assert row(store, living.id).state is State.RUNNING
    states = [row(store, job_id).state.value for job_id in lost.values()]
    assert states == ["ready", "held", "dead", "ready"]


def test_a_scan_counts_once_and_only_what_it_settled_itself(store: Store, clock: FakeClock) -> None:
    lose(store, on_crash="hold")
    clock.advance(PAST_S)
    reaper = Reaper(store, clock)
    reaper.once(fix=False)
    clock.advance(1)
    [found] = reaper.once(fix=False).zombies
    lost_the_race = insight.scan_view(Report([found, found]), store.now(), fixed=True)
    assert (lost_the_race["zombies_found"], lost_the_race["zombies_recovered"], lost_the_race["held"]) == (1, 0, 0)
    dry = insight.scan_view(Report([found, found]), store.now(), fixed=False)
    assert (dry["zombies_found"], dry["held"], len(dry["zombies"])) == (1, 1, 1)


def test_a_zombie_names_its_worker_and_the_time_of_its_claim(run: Run, store: Store) -> None:
    job = start(store, enrol(store, name="w1", boot_id=SystemClock().boot_id), queue="mail", task="send", lease_s=30.0)
    [zombie] = run.json("scan")["zombies"]
    assert (zombie["id"], zombie["task"], zombie["queue"], zombie["worker"]) == (job.id, "send", "mail", "w1")
    assert (zombie["detector"], zombie["crashes"], zombie["decision"]) == ("expired", 1, "retry")
    now = SystemClock().wall()
    assert at(zombie["lease_until"]) == pytest.approx(now - PAST_S + 30.0, abs=1.0)
    assert at(zombie["last_beat"]) == pytest.approx(now - PAST_S, abs=1.0)


def test_grace_leaves_what_is_barely_late(run: Run, store: Store) -> None:
    lose(store)
    assert run.json("scan", "--grace", "1h")["zombies_found"] == 0
    assert run.json("scan", "--grace", "10s")["zombies_found"] == 1


def test_workers(run: Run, store: Store, clock: FakeClock) -> None:
    silent = enrol(store, name="silent", queues=["default"], boot_id=SystemClock().boot_id)
    gone = enrol(store, name="gone")
    store.retire(gone, "stopped")
    clock.advance(PAST_S)
    alive = enrol(store, name="alive", queues=["mail"])
    claim(store, silent)
    found = run.json("workers", "list")
    assert [set(worker) for worker in found] == [WORKER, WORKER]
    assert {worker["id"]: worker["state"] for worker in found} == {silent: "silent", alive: "alive"}
    everyone = run.json("workers", "list", "--gone")
    assert {worker["name"]: worker["gone_cause"] for worker in everyone} == {
        "silent": None,
        "alive": None,
        "gone": "stopped",
    }


def test_queues(run: Run, store: Store, clock: FakeClock) -> None:
    add(store, queue="mail", task="a")
    clock.advance(50)
    add(store, queue="mail", task="b", priority=5)
    add(store, queue="mail", delay_s=1000.0)
    add(store, queue="later", delay_s=1000.0)
    add(store, queue="shut")
    job_in(store, State.DONE, queue="old")
    run("queues", "pause", "shut", "empty")
    clock.advance(50)
    enrol(store, queues=["mail"])
    found = {queue["queue"]: queue for queue in run.json("queues", "list")}
    assert list(found) == ["empty", "later", "mail", "old", "shut"]
    assert all(set(queue) == QUEUE for queue in found.values())
    assert (found["mail"]["ready"], found["mail"]["paused"], found["mail"]["served"]) == (3, False, True)
    assert found["mail"]["oldest_due_s"] == pytest.approx(PAST_S, abs=1.0)
    assert (found["later"]["ready"], found["later"]["oldest_due_s"]) == (1, None)
    assert found["shut"]["paused"]
    assert found["shut"]["oldest_due_s"] == pytest.approx(50, abs=1.0)
    assert (found["old"]["done"], found["old"]["oldest_due_s"]) == (1, None)


def test_a_task_that_no_living_worker_has_is_named(run: Run, store: Store, clock: FakeClock) -> None:
    enrol(store, name="before the deploy", queues=["mail"], tasks={"mail.old": Published("mail")})
    clock.advance(PAST_S - 5)
    enrol(store, queues=["mail"], tasks={"mail.send": Published("mail")})
    enrol(store, queues=["other"], tasks={"mail.old": Published("mail")})
    for task in ("mail.send", "mail.old", "mail.old"):
        job = add(store, queue="mail", task=task)
    clock.advance(5)
    why = insight.explain(store, job)
    assert why.sentence == "It has been due for 5.0 s. No living worker has its task, mail.old."
    assert shown_choices(why) == [("start one that has it", "holdfast worker APP")]
    [queue] = [view for view in run.json("queues", "list") if view["queue"] == "mail"]
    assert (queue["served"], queue["unserved"]) == (True, {"mail.old": 2})
    shown = run("queues", "list")
    assert re.search(r"mail +task unserved +3 .* mail\.old\n", shown.stdout)
    enrol(store, queues=["mail"], tasks=None)
    assert "waits for a free slot" in insight.explain(store, job).sentence, "an older version does not say what it has"


def test_a_worker_that_is_stopping_serves_nobody(run: Run, store: Store, clock: FakeClock) -> None:
    clock.advance(PAST_S - 5)
    old = enrol(store, name="old", queues=["mail"], tasks={"mail.old": Published("mail")})
    job = add(store, queue="mail", task="mail.old")
    clock.advance(5)
    store.beat(old, [], stopping=True)
    assert [worker["state"] for worker in run.json("workers", "list")] == ["stopping"]
    assert re.search(r"old +stopping ", run("workers", "list").stdout)
    leaving = "A worker that would run it is stopping, and claims nothing more."
    why = insight.explain(store, job)
    assert why.sentence == f"It has been due for 5.0 s. No worker serves its queue, mail. {leaving}"
    assert shown_choices(why) == [("start one", "holdfast worker APP")]
    [queue] = run.json("queues", "list")
    assert (queue["served"], queue["unserved"]) == (False, {"mail.old": 1})
    assert run("workers", "forget", "old", code=6).stderr == "holdfast: worker old beats; stop its process instead\n"
    enrol(store, name="new", queues=["mail"], tasks={"mail.send": Published("mail")})
    why = insight.explain(store, job)
    assert why.sentence == f"It has been due for 5.0 s. No living worker has its task, mail.old. {leaving}"
    assert [queue["missing"] for queue in run.json("queues", "list")] == [{"mail.old": 1}]


def test_a_task_that_no_living_worker_has_is_named_also_where_nobody_serves_its_queue(
    run: Run, store: Store, clock: FakeClock
) -> None:
    clock.advance(PAST_S)
    job = add(store, queue="mail", task="mail.old", run_at=clock.wall() - 5)
    [queue] = run.json("queues", "list")
    assert (queue["served"], queue["unserved"], queue["missing"]) == (False, {"mail.old": 1}, {}), (
        "the next may have it"
    )
    assert "NO WORKER HAS" not in run("queues", "list").stdout
    enrol(store, queues=["other"], tasks={"other.send": Published("other")})
    why = insight.explain(store, job)
    assert why.sentence == (
        "It has been due for 5.0 s. No worker serves its queue, mail, and no living worker has its task, mail.old."
    )
    assert shown_choices(why) == [("start one that has it", "holdfast worker APP")]
    [queue, _] = run.json("queues", "list")
    assert (queue["served"], queue["missing"]) == (False, {"mail.old": 1})
    shown = run("queues", "list")
    assert re.search(r"mail +no worker +1 .* mail\.old\n", shown.stdout)
    assert "Start a worker of the code that has the task" in shown.stderr
    enrol(store, queues=["third"], tasks={"mail.old": Published("mail")})
    why = insight.explain(store, job)
    assert why.sentence == "It has been due for 5.0 s. No worker serves its queue, mail."
    assert shown_choices(why) == [("start one", "holdfast worker APP --queues mail")]
    assert run.json("queues", "list")[0]["missing"] == {}


def test_a_workflow_whose_time_has_come_is_due_although_nobody_makes_it_ready(
    run: Run, store: Store, clock: FakeClock
) -> None:
    clock.advance(PAST_S - 10)
    flow = park(store, start_flow(store, queue="mail", task="mail.old"), wake_at=clock.wall() + 5)
    enrol(store, queues=["mail"], tasks={"mail.send": Published("mail")})
    assert insight.explain(store, flow).sentence == "It waits for its time, in 5.0 s, and holds no slot meanwhile."
    [queue] = insight.queue_views(store)
    assert (queue["unserved"], queue["unroused"], queue["oldest_due_s"]) == ({}, 0, None)
    clock.advance(10)
    why = insight.explain(store, flow)
    assert why.sentence == (
        "It waits for its time, which came 5.0 s ago, and holds no slot meanwhile. "
        "No living worker has its task, mail.old."
    )
    assert shown_choices(why) == [("start one that has it", "holdfast worker APP")]
    add(store, queue="mail", task="mail.old", run_at=clock.wall() - 1)
    [queue] = insight.queue_views(store)
    assert (queue["unserved"], queue["unroused"]) == ({"mail.old": 2}, 1)
    assert (queue["oldest_due_s"], queue["oldest_served_s"]) == (5.0, None)
    assert run.json("queues", "list")[0]["unroused"] == 1
    assert re.search(r"mail +task unserved +1 .* mail\.old\n", run("queues", "list").stdout)
    enrol(store, queues=["mail"], tasks={"mail.old": Published("mail")})
    [queue] = insight.queue_views(store)
    assert (queue["unserved"], queue["oldest_served_s"]) == ({}, 5.0)
    store.pause("mail", True)
    assert "Its queue, mail, is paused." in insight.explain(store, flow).sentence
    [queue] = insight.queue_views(store)
    assert (queue["unserved"], queue["oldest_due_s"], queue["oldest_served_s"]) == ({}, 5.0, None)


def test_a_question_that_was_not_answered_in_time_names_the_missing_worker(store: Store, clock: FakeClock) -> None:
    flow = park(store, start_flow(store), "signal:x", wake_at=clock.wall() + 60, question="Ship it?")
    assert "more, and holds no slot meanwhile." in insight.explain(store, flow).sentence
    clock.advance(PAST_S)
    why = insight.explain(store, flow)
    assert "holds no slot meanwhile. Its time was over " in why.sentence
    assert why.sentence.endswith(" ago. No worker serves its queue, default.")
    assert [words for words, _ in shown_choices(why)] == ["yes", "no", "start one"]


def test_the_oldest_due_job_is_found_behind_many_of_another_task(store: Store) -> None:
    store.add([make_job(id=f"n{i}", task="loud", priority=5) for i in range(1200)])
    store.add([make_job(task="quiet", run_at=store.now().wall - 500.0)])
    [queue] = insight.queue_views(store)
    assert queue["oldest_due_s"] == 500.0


def test_the_state_of_the_store(run: Run, store: Store, url: str) -> None:
    add(store)
    job_in(store, State.DEAD)
    store.pause("mail", True)
    found = run.json("db", "status")
    assert found == {
        "url": url,
        "schema": len(sqlite._MIGRATIONS),
        "schema_wanted": len(sqlite._MIGRATIONS),
        "jobs": {state.value: {"ready": 1, "dead": 1}.get(state.value, 0) for state in State},
        "workers": len(store.workers()),
        "paused": ["mail"],
    }


def test_the_sentence_for_each_state_says_what_to_do(store: Store) -> None:
    enrol(store, queues=["default"])
    told = {state: insight.explain(store, job_in(store, state)) for state in State}
    assert all(why.sentence.endswith(".") for why in told.values())
    commands = {state: [command.rsplit(" ", 3)[0] for _, command in shown_choices(why)] for state, why in told.items()}
    assert {command.rsplit(" ", 2)[1] for why in told.values() for _, command in shown_choices(why)} == {"--fence"}
    assert {state: words for state, words in commands.items() if words} == {
        State.HELD: ["holdfast held approve", "holdfast held done", "holdfast held fail"],
        State.DEAD: ["holdfast dead revive"],
        State.CANCELLED: ["holdfast jobs retry"],
    }
    assert "the lease ran out" in told[State.HELD].sentence
    assert "no luck" in told[State.DEAD].sentence


def test_the_sentence_knows_what_stands_in_the_way(store: Store, clock: FakeClock) -> None:
    job = add(store, queue="mail")
    clock.advance(1)
    why = insight.explain(store, job)
    assert "No worker serves its queue, mail." in why.sentence
    assert shown_choices(why) == [("start one", "holdfast worker APP")], "as the doctor says"
    enrol(store, queues=["other"])
    assert shown_choices(insight.explain(store, job)) == [("start one", "holdfast worker APP --queues mail")]
    enrol(store, queues=["mail"])
    assert "waits for a free slot." in insight.explain(store, job).sentence
    store.pause("mail", True)
    assert shown_choices(insight.explain(store, job)) == [("let it run", "holdfast queues resume mail")]
    running = start(store, lease_s=30.0)
    assert "Its lease ends in 30 s" in insight.explain(store, running).sentence
    clock.advance(45)
    late = insight.explain(store, running)
    assert "Its worker vanished" in late.sentence
    assert shown_choices(late) == [("recover it now", "holdfast scan --fix")]


@pytest.mark.parametrize(
    ("seconds", "words", "short"),
    [
        (-5, "0 ms", "0 s"),
        (0.25, "250 ms", "0 s"),
        (2.34, "2.3 s", "2 s"),
        (59.9, "59 s", "59 s"),
        (61, "1 min 1 s", "61 s"),
        (3599, "59 min", "59 min"),
        (3700, "1 h 1 min", "61 min"),
        (86_400 * 1.5, "1 d 12 h", "36 h"),
        (86_400 * 400, "400 d", "400 d"),
    ],
)
def test_lengths_of_time_in_words(seconds: float, words: str, short: str) -> None:
    assert (insight.duration(seconds), insight.brief(seconds)) == (words, short)


def test_an_address_is_shown_without_its_password() -> None:
    assert insight.shown_url("postgresql://ann:s3cret@db/x") == "postgresql://ann:***@db/x"
    assert insight.shown_url("postgresql://ann:p@s:s@db/x?password=s3cret") == "postgresql://ann:***@db/x?password=***"
    assert insight.shown_url("sqlite:///jobs.db") == "sqlite:///jobs.db"


# ----------------------------------------------------------------------------------------------- parts


def ids(run: Run, *options: str) -> list[str]:
    return [job["id"] for job in json.loads(run("jobs", "list", "--json", *options).stdout)]


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def fixed_end(scan: dict[str, Any], wanted: dict[str, Any]) -> str:
    """The same end of a lease, which two looks may place a millisecond apart."""
    [end] = [zombie["lease_until"] for zombie in scan["zombies"] if zombie["id"] == wanted["id"]]
    assert at(end) == pytest.approx(at(wanted["lease_until"]), abs=0.1)
    return str(end)


def test_a_walk_over_all_jobs_survives_deletions_at_its_pages_ends(store: Store) -> None:
    jobs = [add(store) for _ in range(7)][::-1]
    found: list[str] = []
    for job in insight.all_jobs(store, Filter(limit=3)):
        found.append(job.id)
        if len(found) == 3:  # the last two of the page, and two that would come next
            for gone in jobs[1:5]:
                delete(store, gone.id, gone.state, gone.fence)
    assert found == [job.id for job in (*jobs[:3], *jobs[5:])]


def test_a_walk_whose_whole_page_was_deleted_does_not_pass_for_complete(store: Store) -> None:
    jobs = [add(store) for _ in range(5)][::-1]
    walk = insight.all_jobs(store, Filter(limit=2))
    assert [next(walk).id, next(walk).id] == [job.id for job in jobs[:2]]
    for gone in jobs[:2]:
        delete(store, gone.id, gone.state, gone.fence)
    with pytest.raises(StoreError, match="deleted faster"):
        next(walk)
