"""A mess, and the command that answers each question of a person on call."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from datetime import UTC, datetime
from fcntl import ioctl
from pathlib import Path

import pytest

from holdfast import insight
from holdfast.cli.top import screen
from holdfast.core.machine import State
from holdfast.core.records import Published, Schedule
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Failed, Lost, Succeeded, judge
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.cli.conftest import PAST_S, Run, lose
from tests.factory import add, enrol, job_in, make_job, settle, start

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def mess(store: Store, clock: FakeClock) -> Store:
    """A store in which everything has gone wrong at once."""
    lose(store, task="slow", queue="slow")
    clock.advance(PAST_S)
    clock.set_wall(clock.wall() - 4000)
    daily = Schedule(key="nightly", spec="* * * * *", tz="UTC", missed="last", job=make_job(task="reports.nightly"))
    store.schedule([daily])
    add(store, queue="mail", task="mail.send")
    add(store, queue="orphans", task="old.task")
    enrol(store, name="mail-2", queues=["mail"], boot_id="another", beat_s=1.0)
    clock.set_wall(clock.wall() + 4000)
    for number in range(3):
        text = f"ValueError: no luck with order {number}"
        settle(store, start(store, task="pay", attempts_max=1, queue="pay"), Failed(text, error_kind="ValueError"))
    settle(store, start(store, task="pay", queue="pay", on_crash="hold"), Lost("exit", "it was killed"))
    store.pause("pay", True, actor="ann@box")
    enrol(store, name="mail-1", queues=["mail", "pay", "slow"], release="2.4.1")
    return store


def test_status_names_what_is_broken_with_the_worst_first(run: Run, mess: Store) -> None:
    view = run.json("status", code=7)
    assert not view["healthy"]
    harms = [trouble["harm"] for trouble in view["troubles"]]
    assert harms == sorted(harms, key=["lost", "stopped", "late", "failing", "waiting"].index)
    said = " | ".join(trouble["text"] for trouble in view["troubles"])
    assert "1 lease ran out up to" in said
    assert "no worker serves queue orphans" in said
    assert "worker mail-2" in said
    assert "schedule nightly is" in said
    assert "3 jobs died in the last hour: 3 pay" in said
    assert "1 job is held, and a person must decide" in said
    assert view["summary"].startswith("Unhealthy: work is at risk")
    assert (view["jobs"]["dead"], view["jobs"]["held"], view["lost"]) == (3, 1, 1)
    assert view["errors"][0]["attempts"] == 3
    assert "ann@box paused pay" in [change["text"] for change in view["changes"]]
    assert "release 2.4.1 started on 1 worker" in [change["text"] for change in view["changes"]]


def test_status_fits_on_a_screen_and_names_a_command_for_each_trouble(run: Run, mess: Store) -> None:
    text = run("status", code=7).stdout
    assert len(text.splitlines()) <= 40
    assert mess.counts()
    troubles = run.json("status", code=7)["troubles"]
    assert [trouble["command"] for trouble in troubles if f"see: {trouble['command']}\n" not in text] == []
    for trouble in troubles:  # none of them is an invention
        words = trouble["command"].split()[1:]
        assert run(*words[: 2 if words[0] not in ("errors", "zombies", "scan", "doctor") else 1], "--help").stdout


def test_a_store_without_trouble_is_healthy(run: Run, store: Store, clock: FakeClock) -> None:
    clock.advance(PAST_S)
    enrol(store, name="a", queues=["mail"])
    settle(store, start(store, queue="mail"), Succeeded())
    found = run("status")
    assert found.stdout.startswith("Healthy: ")
    assert run.json("status")["troubles"] == []


def test_a_paused_queue_is_no_trouble_at_first_and_nobody_works_is(run: Run, store: Store) -> None:
    add(store, queue="mail")
    assert "no worker claims jobs" in run.json("status", code=7)["troubles"][0]["text"]
    store.pause("mail", True)
    assert run.json("status")["healthy"]


def test_queues_behind_are_counted_and_the_worst_are_named(run: Run, store: Store, clock: FakeClock) -> None:
    clock.set_wall(clock.wall() - 3000)
    for number in range(6):
        add(store, queue=f"q{number}")
        clock.advance(1)
    clock.set_wall(clock.wall() + 3000)
    clock.advance(PAST_S)
    enrol(store, queues=[f"q{number}" for number in range(6)])
    texts = [trouble["text"] for trouble in run.json("status", code=7)["troubles"]]
    assert [text[:8] for text in texts if text.startswith("queue ")] == ["queue q0", "queue q1", "queue q2"]
    assert "3 more queues are behind" in texts


def test_queues_without_a_worker_are_counted_and_the_oldest_are_named(run: Run, store: Store, clock: FakeClock) -> None:
    for number in range(6):
        add(store, queue=f"q{number}", task="old.task")
        clock.advance(1)
    clock.advance(PAST_S)
    enrol(store, queues=["mail"])
    texts = [trouble["text"] for trouble in run.json("status", code=7)["troubles"]]
    assert [text[:22] for text in texts[:3]] == [f"no worker serves queue {n}"[:22] for n in ("q0", "q1", "q2")]
    assert texts[3] == "3 more queues are without a worker for their jobs"


@pytest.mark.parametrize(("done", "is_trouble"), [(4, True), (30, False)])
def test_a_task_of_which_most_attempts_fail_is_trouble_before_its_jobs_die(
    run: Run, store: Store, clock: FakeClock, done: int, is_trouble: bool
) -> None:
    clock.advance(PAST_S)
    worker = enrol(store, queues=["mail"], tasks={"pay": Published(queue="mail")})
    for number in range(20 + done):
        job = start(store, worker, task="pay", queue="mail", attempts_max=10, base_s=3600.0)
        settle(store, job, Succeeded() if number >= 20 else Failed("ConnectionError: no bank", error_kind="E"))
    view = run.json("status", code=7 if is_trouble else 0)
    said = [trouble["text"] for trouble in view["troubles"]]
    assert said == ([f"20 of about {20 + done} attempts of pay failed in the last 10 min"] if is_trouble else [])


def test_status_says_since_when_an_error_is_there_and_on_which_release(run: Run, store: Store) -> None:
    job = start(store, task="pay", attempts_max=1)
    verdict = judge(Failed("ValueError: no", error_kind="E"), job, store.now().wall, chance=0.5, release="2.4.1")
    store.settle([settlement(job, verdict)])
    at = datetime.fromtimestamp(store.now().wall, UTC)
    [error] = run.json("status", code=7)["errors"]
    assert (error["releases"], error["example"]) == (["2.4.1"], job.id)
    assert f"pay: ValueError: no; since {at:%H:%M}Z; on release 2.4.1" in run("status", code=7).stdout


def test_the_list_of_queues_has_rates_and_the_time_to_drain(run: Run, store: Store) -> None:
    enrol(store, queues=["mail"])
    for _ in range(4):
        settle(store, start(store, queue="old"), Succeeded())
    add(store, queue="mail")
    found = {queue["queue"]: queue for queue in run.json("queues", "list")}
    assert found["old"]["in_per_s"] == found["old"]["out_per_s"] == pytest.approx(4 / 300, rel=0.1)
    assert found["mail"]["out_per_s"] == 0
    assert found["mail"]["drain_s"] is None
    assert "never" in run("queues", "list").stdout


def test_top_prints_one_look_without_a_terminal(run: Run, mess: Store) -> None:
    text = run("top").stdout
    for part in ("QUEUE", "WORKER", "LEASE", "LOST AT", "orphans", "no worker", "overdue"):
        assert part in text
    view = run.json("top", "--once")
    assert {"queues", "workers", "leases", "detections", "lost"} <= set(view)
    run("top", "--interval", "0.01", code=2)


@pytest.mark.parametrize("wide", [40, 80, 100, 160])
@pytest.mark.parametrize("high", [12, 24, 60])
def test_top_fits_every_terminal(mess: Store, wide: int, high: int) -> None:
    lines = screen(insight.live_view(mess), wide, high)
    assert len(lines) <= high
    assert wide < 80 or max(len(ESCAPE.sub("", line)) for line in lines) <= wide


@pytest.mark.slow  # a real terminal and a real process
def test_top_follows_the_size_of_the_terminal_and_q_ends_it(mess: Store, folder: Path) -> None:
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    command = [sys.executable, "-m", "holdfast", "top", "--interval", "0.2"]
    env = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=folder)
    try:
        assert "QUEUE" in _read_until(ours, b"q quits")
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 60, 0, 0))
        os.write(ours, b" ")
        assert "paused" in _read_until(ours, b"space continues")
        os.write(ours, b"q")
        assert "\x1b[?1049l" in _read_until(ours, b"\x1b[?1049l")
        assert process.wait(60) == 0
        assert termios.tcgetattr(theirs)[3] == before[3]
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def _read_until(end: int, wanted: bytes) -> str:
    found, give_up_at = b"", time.monotonic() + 90
    while wanted not in found and time.monotonic() < give_up_at:
        if select.select([end], [], [], 1)[0]:
            found += os.read(end, 65_536)
    return found.decode(errors="replace")


def test_a_worker_that_beats_is_healthy_and_others_are_not(run: Run, store: Store, clock: FakeClock) -> None:
    run("worker-health", "--name", "nobody", code=5)
    clock.advance(PAST_S)
    alive = enrol(store, name="mail/1", supervisor="s", queues=["mail"])
    view = run.json("worker-health", "--name", "mail")
    assert (view["healthy"], [each["name"] for each in view["processes"]]) == (True, ["mail/1"])
    assert "1 process beats" in run("worker-health", "--name", "mail").stdout
    clock.set_wall(clock.wall() - 100)
    enrol(store, name="mail/2", supervisor="s", queues=["mail"], beat_s=1.0)
    assert "mail/2, pid" in run("worker-health", "--name", "mail", code=7).stdout
    clock.set_wall(clock.wall() + 100)
    store.retire(alive, "it was killed")
    enrol(store, name="solo")
    store.retire(next(each.id for each in store.workers() if each.name == "solo"), "it was killed")
    gone = run.json("worker-health", "--name", "solo", code=7)
    assert (gone["healthy"], gone["processes"]) == (False, [])
    assert "it was killed" in gone["reason"]


def test_a_probe_may_ignore_an_outage_of_the_store(run: Run, folder: Path) -> None:
    run("worker-health", code=3)
    assert json.loads(run("worker-health", "--outage-ok", "--json").stdout)["healthy"] is None


def test_a_schedule_shows_its_newest_jobs(run: Run, store: Store) -> None:
    job = make_job(task="reports.nightly")
    store.schedule([Schedule(key="nightly", spec="0 3 * * *", tz="UTC", missed="last", job=job)])
    settle(store, start(store, task="reports.nightly", attempts_max=1), Failed("ValueError: no paper"))
    [shown] = run.json("schedules", "show", "nightly")["jobs"]
    assert (shown["state"], shown["error"]) == ("dead", "ValueError: no paper")
    assert "no paper" in run("schedules", "show", "nightly").stdout
    assert job_in(store, State.DONE).id
