"""The demo is run for real, once from end to end; and its check is shown to fail when something is lost."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from rich.console import Console

from holdfast.app import App
from holdfast.cli import demo as command
from holdfast.cli import output
from holdfast.clock import SystemClock, pause
from holdfast.core.machine import State
from holdfast.core.records import Job, Moment, Worker
from holdfast.demo.book import Book, Death, Ledger, check, lost
from holdfast.demo.observer import DemoLine, Observer
from holdfast.demo.pages import PagesServer, wait_for_key
from holdfast.demo.processes import Processes
from holdfast.demo.script import ACTS
from holdfast.demo.summary import sum_up
from holdfast.demo.view import HEIGHT_MIN, WIDTH_MIN, frame
from tests.cli.conftest import Run
from tests.factory import a_job, delete

CLOCK = SystemClock()

# --------------------------------------------------------------------------------------- a real run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the demo with everything it makes under tmp_path; end it whatever the test does."""
    started: list[subprocess.Popen[str]] = []

    def starts(*args: str) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "demo", *args],
            env={**environment, "TMPDIR": str(tmp_path), "HOLDFAST_WORKER_QUEUES": "none", "PYTHONUNBUFFERED": "1"},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield starts
    for process in started:
        process.kill()
        process.communicate()


def processes_left(folder: Path) -> list[str]:
    """Return the processes of a demo that was started with this folder as TMPDIR: all of them inherit that."""
    marker = f"TMPDIR={folder}"
    if sys.platform == "darwin":
        listed = subprocess.run(["ps", "-axwwE", "-o", "command="], capture_output=True, text=True, check=True).stdout
        return [line for line in listed.splitlines() if marker in line]
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended, or belongs to somebody else
            if marker.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def until_it_says(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"the demo ended before it said {words!r}: {process.communicate()}")


@pytest.mark.slow  # about 17 s: real processes that are killed, frozen and started again
def test_the_demo_plays_every_act_and_loses_nothing(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    demo = start("--json", "--plain", "--pages")
    err = "".join(lines_of(demo))
    out, _ = demo.communicate(timeout=240)
    assert demo.returncode == 0, (out, err)
    summary = json.loads(out)
    assert summary["ok"] is True
    assert summary["trouble"] == []
    assert summary["acts"] == list(ACTS)
    check_jobs(summary)
    check_recoveries({recovery["act"]: recovery for recovery in summary["recoveries"]})
    assert [(each["task"], each["fence"], each["fence_now"]) for each in summary["stale_reports"]] == [
        ("invoice", 1, 3)
    ]
    assert [(each["task"], each["attempts"]) for each in summary["held"]] == [("charge", 2)]
    assert [(each["task"], each["attempts"]) for each in summary["dead"]] == [("poison", 3)]
    assert "crashes_max=3" in summary["dead"][0]["reason"]
    assert [each["task"] for each in summary["failed"]] == ["flaky"]
    check_lines(err)
    assert processes_left(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def lines_of(demo: subprocess.Popen[str]) -> Iterator[str]:
    """Yield the lines of a demo. At its first crash, look at the pages: they show it while the demo goes on."""
    assert demo.stderr is not None
    address = ""
    for line in demo.stderr:
        if found := re.search(r"the pages are at (http://127\.0\.0\.1:\d+/)", line):
            address = found[1]
        if "zombie render: found by exit" in line:
            page = httpx.get(address + "zombies", headers={"accept": "text/html"}).text
            assert ">render<" in page
            assert ">exit<" in page
        yield line


def check_jobs(summary: dict[str, Any]) -> None:
    assert summary["jobs_lost"] == 0
    assert summary["jobs_submitted"] > 100
    assert summary["jobs_dead"] == 1
    assert summary["jobs_done"] == summary["accepted_once"] == summary["jobs_submitted"] - 1
    assert 0 < summary["jobs_per_s"] < 1000
    assert summary["approved"] == 1
    assert summary["processes_killed"] in (7, 8)  # act 2 kills the group of one worker or that of two
    assert summary["zombies_found"] >= 4 + 3
    assert summary["zombies_left"] == 0


def check_recoveries(by_act: dict[int, dict[str, Any]]) -> None:
    assert {act: each["detector"] for act, each in by_act.items()} == {
        1: "exit",
        2: "vanished",
        3: "expired",
        4: "exit",
    }
    for act in (1, 2, 4):
        assert 0 <= by_act[act]["found_after_s"] < by_act[act]["lease_left_s"] <= 30
    assert by_act[3]["found_after_s"] > 0.5
    assert by_act[4]["runs_again_after_s"] is None
    for act in (1, 2, 3):
        assert by_act[act]["found_after_s"] <= by_act[act]["runs_again_after_s"]
        assert by_act[act]["fence_before"] < by_act[act]["fence_after"]


def check_lines(text: str) -> None:
    """Every line has its time, and the story is told in order."""
    lines = text.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d\.\d\d\d  \S", line) for line in lines), lines
    wanted = [
        r"worker alpha/1 is ready",
        r"the pages are at http://",
        r"Act 1 of 5",
        r"kill -9 \w+/\d \(pid \d+\) during render; lease left \d\d\.\d s",
        r"zombie render: found by exit in \d+ ms, retry, fence 1->2",
        r"render: attempt 2 on \w+/\d, fence 3, \d",
        r"Act 2 of 5",
        r"zombie export: found by vanished in",
        r"Act 3 of 5",
        r"SIGSTOP",
        r"zombie invoice: found by expired in",
        r"SIGCONT",
        r"stale_report: .* with fence 1; the fence is 3: refused",
        r"Act 4 of 5",
        r"charge: held: .* a person decides",
        r"charge: revived by demo: no money has moved",
        r"charge: done",
        r"Act 5 of 5",
        r"poison: dead: .*crashed 3 times",
        r"SIGTERM",
    ]
    left = iter(lines)
    missing = [pattern for pattern in wanted if not any(re.search(pattern, line) for line in left)]
    assert missing == [], text


@pytest.mark.slow  # about 2 s: real processes
def test_ctrl_c_ends_it_cleanly(start: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    demo = start("--plain")
    until_it_says(demo, "Act 1 of 5")
    assert len(processes_left(tmp_path)) == 1 + 2 + 3  # the demo, two supervisors, three workers
    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=120)
    assert (demo.returncode, err) == (130, "holdfast: interrupted\n")
    assert processes_left(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # about 2 s: real processes
def test_workers_and_pages_do_not_outlive_a_demo_that_is_killed(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    demo = start("--plain", "--pages")
    until_it_says(demo, "the pages are at")
    demo.kill()
    give_up_at = CLOCK.lease() + 60
    while processes_left(tmp_path) and CLOCK.lease() < give_up_at:
        pause(0.1)
    assert processes_left(tmp_path) == []


def test_pages_are_opened_for_a_person_with_a_screen_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    PagesServer(tmp_path, "", opens=True).show("http://a/")
    monkeypatch.setenv("DISPLAY", ":0")
    PagesServer(tmp_path, "", opens=False).show("http://b/")
    PagesServer(tmp_path, "", opens=True).show("http://c/")
    assert opened == ["http://c/"]


def test_the_pages_stay_until_a_key_is_pressed_without_enter() -> None:
    ours, theirs = os.openpty()
    try:
        waiting = Thread(target=wait_for_key, args=(theirs,), daemon=True)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        os.write(ours, b"q")
        waiting.join(30)
        assert not waiting.is_alive()
    finally:
        os.close(ours)
        os.close(theirs)


# --------------------------------------------------------------------------------------- the check


def a_book() -> Book:
    book = Book()
    book.submitted(["a", "b"])
    book.submitted(["p"], State.DEAD)
    job = a_job(id="a", task="render")
    book.deaths["a"] = Death(act=1, by="kill -9", expected="exit", at=0.0, job=job, victim="alpha/1", lease_left_s=29.0)
    book.recoveries["a"] = {"detector": "exit"}
    return book


def jobs() -> list[Job]:
    return [a_job(State.DONE, id="a"), a_job(State.DONE, id="b"), a_job(State.DEAD, id="p")]


def a_ledger(**changes: Any) -> Ledger:
    given: dict[str, Any] = {"jobs": jobs(), "counts": {"done": 2, "dead": 1, "ready": 0}}
    given |= {"accepted": {"a": 1, "b": 1}, "zombies": 0}
    return Ledger(**given | changes)


def test_books_that_agree_show_no_trouble() -> None:
    assert check(a_book(), a_ledger()) == []
    assert lost(a_book(), a_ledger()) == 0


@pytest.mark.parametrize(
    ("changes", "words", "number"),
    [
        ({"jobs": jobs()[1:]}, "job a was acknowledged and is not in the store", 1),
        ({"jobs": [*jobs(), a_job(State.DONE, id="x")]}, "job x is in the store and was never submitted", 0),
        ({"jobs": [*jobs(), jobs()[0]]}, "job a is in the store 2 times", 0),
        ({"jobs": [a_job(State.READY, id="a"), *jobs()[1:]]}, "is ready and should be done", 1),
        ({"jobs": [a_job(State.DEAD, id="a"), *jobs()[1:]]}, "is dead and should be done", 1),
        ({"jobs": [*jobs()[:2], a_job(State.DONE, id="p")]}, "is done and should be dead", 1),
        ({"accepted": {"a": 2, "b": 1}}, "2 successes were accepted", 0),
        ({"accepted": {"a": 1}}, "0 successes were accepted", 0),
        ({"accepted": {"a": 1, "b": 1, "p": 1}}, "1 successes were accepted", 0),
        ({"counts": {"done": 3, "dead": 1}}, "the store counts 3 jobs as done, and 2 are there", 0),
        ({"zombies": 2}, "2 zombies are left", 0),
        ({"jobs": [a_job(State.DONE, id="a", on_crash="hold", attempt=2), *jobs()[1:]]}, "started 2 times with 0", 0),
    ],
)
def test_what_does_not_fit_is_said(changes: dict[str, Any], words: str, number: int) -> None:
    ledger = a_ledger(**changes)
    assert any(words in trouble for trouble in check(a_book(), ledger)), check(a_book(), ledger)
    assert lost(a_book(), ledger) == number


def test_a_death_that_nobody_found_is_said() -> None:
    book = a_book()
    book.recoveries.clear()
    assert check(book, a_ledger()) == ["render lost its worker alpha/1 in act 1, and was not recovered"]


def test_a_death_found_by_the_wrong_detector_is_said() -> None:
    book = a_book()
    book.recoveries["a"]["detector"] = "expired"
    [trouble] = check(book, a_ledger())
    assert trouble.endswith("it was found by expired, not by exit")


@pytest.fixture
def failed() -> dict[str, Any]:
    """The summary of a real store that has lost a job."""
    app = App("memory://")

    @app.task(name="t")
    def task() -> None: ...

    book = Book()
    kept, gone = task.enqueue(), task.enqueue()
    book.submitted([kept.id, gone.id], State.READY)
    assert delete(app.store, gone.id, State.READY, 0)
    return sum_up(app, book, acts=[], story={}, seconds=1.0, trouble=[])


def test_a_store_that_lost_a_job_fails_the_demo(failed: dict[str, Any]) -> None:
    assert not failed["ok"]
    assert failed["jobs_lost"] == 1
    [trouble] = failed["trouble"]
    assert trouble.endswith("is not in the store: lost")


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_the_command_fails_when_something_was_lost(
    failed: dict[str, Any], run: Run, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    monkeypatch.setattr(command, "_play", lambda *_, **__: failed)
    out = run("demo", *flags, code=1).stdout
    assert "is not in the store: lost" in out
    assert "Nothing was lost" not in out


def test_pages_need_a_way_to_say_where_they_are(run: Run) -> None:
    assert "add --plain" in run("demo", "--json", "--pages", code=2).stderr


def test_it_does_not_take_a_store(run: Run) -> None:
    assert "a store of its own" in run("demo", "--db", "sqlite:///mine.db", code=2).stderr


# ---------------------------------------------------------------------------------------- the view


def a_story(actors: int, folder: Path) -> Observer:
    app = App("memory://")
    running = a_job(task="a-task-with-a-long-name", progress=0.4, lease_until=25.0, worker="w")
    held = a_job(State.HELD, error="its process was killed by SIGKILL; " * 5)
    seen = Observer(app, Book(), Processes(folder, "memory://", app.clock), print)
    seen.now = Moment(wall=100.0, lease=10.0)
    seen.act, seen.title, seen.words = "Act 3 of 5: ", "a title " * 9, "words " * 30
    seen.workers = {"w": Worker(id="w", name="alpha/1", host="h", pid=1234567, boot_id="b", slots=4)}
    seen.running = [running] * 4
    seen.story = {f"actor-{number}": f"id-{number}" for number in range(actors)}
    seen.rows = {f"actor-{number}": running if number % 2 else held for number in range(1, actors)}
    seen.counts = {"ready": 1, "running": 2, "held": 1, "done": 12_340, "dead": 1}
    seen.lines.extend(DemoLine(float(number), f"line {number} " * (number % 12), "bold red") for number in range(60))
    return seen


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("actors", [0, 6])
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (WIDTH_MIN, HEIGHT_MIN), (250, 70)])
def test_a_frame_fills_the_terminal_and_no_more(
    size: tuple[int, int], actors: int, encoding: str, tmp_path: Path
) -> None:
    width, height = size
    out = io.BytesIO()
    file = io.TextIOWrapper(out, encoding)
    console = Console(file=file, width=width, height=height, color_system=None, legacy_windows=False)
    console.print(frame(a_story(actors, tmp_path), console))
    file.flush()
    lines = out.getvalue().decode(encoding).splitlines()
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    assert any("line 59" in line for line in lines), "the newest event is always there"
    assert any("alpha/1" in line and "4/4 slots" in line for line in lines), "a worker stands beside its jobs"


def test_a_summary_is_wrapped_beside_its_labels(
    failed: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    command._show(failed)
    lines = capsys.readouterr().out.splitlines()
    [jobs] = [number for number, line in enumerate(lines) if line.startswith("  jobs      2 submitted")]
    assert lines[jobs + 1].startswith(" " * 12)
    assert all(len(line) <= 60 for line in lines[jobs : jobs + 5])
