"""What people see: nothing that a job carries may reach the terminal raw, and a table fits it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.cli import output
from holdfast.cli.output import Column
from holdfast.clock import SystemClock
from holdfast.core.machine import State
from holdfast.core.records import Pulse, Schedule
from holdfast.core.stop_reason import full_reason
from holdfast.core.verdict import Failed, Lost, Outcome, Succeeded
from holdfast.errors import StoreError
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.cli.conftest import PAST_S, Run, lose
from tests.factory import (
    EXPIRED,
    a_step,
    add,
    again,
    enrol,
    job_in,
    make_job,
    park,
    record,
    row,
    settle,
    start,
    start_flow,
)

# A title change, a colour, a carriage return that overwrites, a C1 escape, a bidi override, a bell, a line of its own.
EVIL = "\x1b]0;owned\x07\x1b[31mred\x1b[0m\rover\x9b2J\u202edrawkcab\nfaked line\x7f"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 世界 🙂", "plain é 世界 🙂"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b\x7f\x00", "\\x9b\\x7f\\x00"),
        ("\u202e\u2028\ufeff", "\\u202e\\u2028\\ufeff"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    assert output.clean(text) == shown


@pytest.fixture
def hostile(store: Store) -> str:
    """A job that has poison in every place that takes text."""
    worker = enrol(store, name=EVIL, host=EVIL, queues=[EVIL])
    job = start(store, worker, id="evil", task=EVIL, queue=EVIL, key=EVIL, payload=json.dumps({"x": EVIL}))
    store.beat(worker, [Pulse(job.lease, progress=0.5, note=EVIL, log=EVIL)])
    settle(store, job, Lost("expired", EVIL, {"note": EVIL, EVIL: EVIL, "stack": EVIL, "log": [EVIL]}))
    store.pause(EVIL, True)
    store.declare([Schedule(key=EVIL, spec=EVIL, tz=EVIL, job=make_job(id="", task=EVIL, queue=EVIL))])
    running = start(store, worker, id="evil2", task=EVIL, queue="b")
    store.beat(worker, [Pulse(running.lease, progress=0.5, note=EVIL, log=EVIL)])
    dead = start(store, worker, id="evil3", task=EVIL, queue="c", attempts_max=1)
    settle(store, dead, Failed(EVIL, {"traceback": EVIL, "log": [EVIL, EVIL]}))
    done = start(store, worker, id="evil4", task=EVIL, queue="d")
    settle(store, done, Succeeded(json.dumps(EVIL)))
    return job.id


LOOKS = [
    ("jobs", "list"),
    ("jobs", "show", "evil"),
    ("jobs", "show", "evil2"),
    ("jobs", "show", "evil3"),
    ("jobs", "show", "evil4"),
    ("dead", "list"),
    ("queues", "list"),
    ("schedules", "list"),
    ("workers", "list", "--gone"),
    ("db", "status"),
    ("queues", "resume", EVIL),
    ("schedules", "resume", EVIL),
    ("jobs", "cancel", "evil2", "--by", EVIL),
    ("scan", "--fix"),
]


@pytest.mark.parametrize("command", LOOKS)
@pytest.mark.parametrize("how", [(), ("--json",)])
def test_a_job_cannot_write_to_the_terminal(
    run: Run, store: Store, hostile: str, command: tuple[str, ...], how: tuple[str, ...]
) -> None:
    if how and command[1] == "resume":
        how = ()
    result = run(*command, *how)
    for text in (result.stdout, result.stderr):
        assert not re.search(r"[^\n\x20-\x7e\xa1-\u1fff]", text), repr(text)
        assert not any(line.lstrip().startswith("faked") and line[0] != " " for line in text.splitlines())


def test_errors_are_escaped_too(run: Run, store: Store) -> None:
    result = run("jobs", "show", EVIL, code=5)
    assert "\x1b" not in result.stderr
    assert "\r" not in result.stderr


def test_json_stays_json_and_says_the_same(run: Run, store: Store, hostile: str) -> None:
    shown = run.json("jobs", "show", "evil4")
    assert (shown["task"], shown["result"]) == (EVIL, EVIL)


def test_plain_text_for_a_pipe_is_aligned_and_whole(run: Run, store: Store) -> None:
    long = "a.very.long.module.path.with.a.task.name.that.no.terminal.is.wide.enough.for.it.to.be.shown.whole"
    job = add(store, task=long)
    head, line = run("jobs", "list").stdout.splitlines()
    assert head.split() == ["ID", "STATE", "TASK", "QUEUE", "ATTEMPT", "AGE", "DETAIL"]
    assert line.startswith(f"{job.id}  ready  {long}  default")
    assert head.index("TASK") == line.index(long)


@pytest.mark.parametrize("room", [50, 60, 80, 100, 120, 200])
def test_a_table_fits_its_terminal_and_never_cuts_what_must_stay(room: int) -> None:
    columns = [
        Column("ID", lambda r: r[0], keep=True),
        Column("TASK", lambda r: r[1], least=8),
        Column("QUEUE", lambda r: r[2], rank=1),
        Column("DETAIL", lambda r: r[3], rank=2),
    ]
    table = [["x" * 36, "task" * 10, "queue" * 5, "detail " * 20]]
    kept, widths = output._fitted(columns, table, room)
    assert sum(widths) + 2 * (len(kept) - 1) <= room
    assert widths[0] == 36
    assert [column.head for column in kept[:2]] == ["ID", "TASK"]


@pytest.mark.parametrize(("room", "is_below"), [(60, True), (200, False)])
def test_what_a_person_must_read_goes_below_its_row_only_where_it_would_be_cut(room: int, is_below: bool) -> None:
    columns = [Column("ID", lambda r: r[0], keep=True), Column("DETAIL", lambda r: r[1], rank=1, below=True)]
    kept, _, below = output._placed(columns, [["x" * 36, "why " * 20]], room)
    assert [column.head for column in kept] == (["ID"] if is_below else ["ID", "DETAIL"])
    assert [column.head for column in below] == (["DETAIL"] if is_below else [])


@pytest.mark.parametrize(
    ("room", "below"),
    [(22, ["WHY", "RELEASE", "EXAMPLE"]), (40, ["WHY", "EXAMPLE"]), (60, ["WHY"]), (200, [])],
)
def test_the_longest_text_goes_below_its_row_first(room: int, below: list[str]) -> None:
    columns = [
        Column("ID", lambda r: r[0], keep=True),
        Column("WHY", lambda r: r[1], grows=True, below=True),
        Column("RELEASE", lambda r: r[2], keep=True, rank=1, below=True, word="release"),
        Column("EXAMPLE", lambda r: r[3], keep=True, rank=2, below=True, word="example"),
    ]
    row = ["x" * 12, "why " * 20, "2026.11.19", "y" * 30]
    found = output._placed(columns, [row], room)[2]
    assert [column.head for column in found] == below
    told = " ".join(output._beneath(found, output._cells(found, [row])[0], room)).replace(" yyyy", "yyyy")
    assert ("release 2026.11.19; example" in told) == (len(below) == 3)


# ------------------------------------------------------------------------------------ a real terminal


def on_a_terminal(
    folder: Path, *words: str, columns: int = 80, into: Path | None = None, code: int = 0, **env: str
) -> str:
    """Run the program on a terminal, and return what it wrote there; `into`: its stdout goes to this file instead."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, columns))
    settings = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", **env}
    out = theirs if into is None else os.open(into, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    child = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words], cwd=folder, env=settings, stdout=out, stderr=theirs, stdin=theirs
    )
    for descriptor in {theirs, out}:
        os.close(descriptor)
    written = b""
    while select.select([ours], [], [], 20)[0]:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the other side has closed: that is how a terminal ends on Linux
            break
        if not chunk:
            break
        written += chunk
    os.close(ours)
    assert child.wait(60) == code, written
    return written.decode().replace("\r\n", "\n")


def test_only_a_state_has_the_colour_of_a_state(folder: Path, store: Store, url: str) -> None:
    add(store, task="dead", queue="held")
    shown = on_a_terminal(folder, "jobs", "list", columns=120, HOLDFAST_DB=url)
    [row] = [line for line in shown.splitlines() if "held" in line]
    assert re.findall(r"\x1b\[\d+m(\w+) *\x1b\[0m", row) == ["ready"]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_table_on_a_terminal_has_colours_and_whole_ids(folder: Path, store: Store, columns: int) -> None:
    job = job_in(store, State.DEAD, id="01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d", task="mail.send")
    shown = on_a_terminal(folder, "jobs", "list", columns=columns, HOLDFAST_DB=f"sqlite:///{folder}/jobs.db")
    assert "\x1b[31m" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert job.id in plain
    assert all(len(line) <= columns for line in plain.splitlines())
    assert ("no luck" in plain) is (columns == 120)


@pytest.mark.parametrize("command", ["held", "dead"])
def test_on_a_narrow_terminal_a_list_keeps_the_function_the_detail_and_the_fence(
    folder: Path, store: Store, url: str, command: str
) -> None:
    job_id = "01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d"
    job = start(store, id=job_id, task="shop.orders.payments.jobs.charge", on_crash="hold", attempts_max=1)
    settle(store, job, EXPIRED if command == "held" else Failed("MailDown: no route to it"))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal(folder, command, "list", HOLDFAST_DB=url))
    head, line, detail = plain.splitlines()
    assert head.split() == ["ID", "TASK", "FENCE" if command == "held" else "QUEUE", "AGE"]
    assert line.startswith(f"{job_id}  ")
    assert line.split()[1].endswith("jobs.charge")
    held, dead = (
        "the lease ran out; on_crash=hold: a person decides",
        "MailDown: no route to it; failed or crashed once",
    )
    assert detail.startswith(f"  {held if command == 'held' else dead}")


def test_a_question_is_shown_whole_on_a_narrow_terminal(folder: Path, store: Store, url: str) -> None:
    question = "Ship order 4711 to Hamburg although its address could not be verified by the carrier?"
    park(store, start_flow(store, id="01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d"), "signal:approve:2", question=question)
    shown = on_a_terminal(folder, "held", "list", HOLDFAST_DB=url)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert " ".join(line.strip() for line in lines[2:]) == f'asks "{question}"'
    wide = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal(folder, "held", "list", columns=250, HOLDFAST_DB=url))
    assert len(wide.splitlines()) == 2, "where there is room it stays in its row"


def test_a_list_shows_what_a_person_must_read_whole_on_a_narrow_terminal(
    folder: Path, store: Store, url: str, clock: FakeClock
) -> None:
    def lines(*words: str) -> list[str]:
        shown = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal(folder, *words, HOLDFAST_DB=url)).splitlines()
        assert all(len(line) <= 80 for line in shown)
        return [line.strip() for line in shown]

    refused = "PaymentError: the provider refused the card of order 4711 and asks to try again tomorrow"
    clock.advance(PAST_S)
    settle(store, start(store, id="01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d"), Failed(refused))
    assert " ".join(lines("jobs", "list", "--state", "retrying")[2:]).endswith(f": {refused}")

    question = "Ship order 4711 to Hamburg although its address could not be verified by the carrier?"
    start_flow(store, id="01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4e")  # it has no detail, and needs no line for it
    park(store, start_flow(store, id="01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4f"), "signal:approve:2", question=question)
    flows = lines("workflows", "list")
    assert " ".join(flows[2:4]) == f'asks "{question}"'
    assert flows[4].startswith("01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4e")

    enrol(store, name="alive")
    store.retire(enrol(store, name="warehouse-7.eu-central.example.org/1"), "its process was killed by SIGKILL")
    workers = lines("workers", "list", "--gone")
    assert workers[-1] == "its process was killed by SIGKILL"


@pytest.mark.parametrize("command", [("jobs", "list"), ("jobs", "show", "x")])
def test_no_color_is_honoured(folder: Path, store: Store, command: tuple[str, ...]) -> None:
    job_in(store, State.DEAD, id="x")
    shown = on_a_terminal(folder, *command, NO_COLOR="1", HOLDFAST_DB=f"sqlite:///{folder}/jobs.db")
    assert "dead" in shown
    assert not re.search(r"\x1b\[[0-9;]*(3|4|9)[0-9]", shown), "a colour was set"


def test_a_dumb_terminal_gets_plain_text(folder: Path, store: Store) -> None:
    job_in(store, State.DEAD, id="x")
    shown = on_a_terminal(folder, "jobs", "list", TERM="dumb", HOLDFAST_DB=f"sqlite:///{folder}/jobs.db")
    assert "\x1b" not in shown


def test_a_backup_to_a_name_that_is_taken_is_refused_without_a_bar(folder: Path, store: Store, url: str) -> None:
    (folder / "copy.db").touch()
    shown = on_a_terminal(folder, "db", "backup", "copy.db", HOLDFAST_DB=url, code=2)
    assert "exists; name a new file" in shown
    assert "copying" not in shown


def test_a_scan_shows_a_progress_bar_in_a_terminal(folder: Path, store: Store, url: str) -> None:
    worker = enrol(store, boot_id=SystemClock().boot_id)
    for _ in range(3):
        start(store, worker)
    assert "recovering" not in on_a_terminal(folder, "scan", HOLDFAST_DB=url), "a dry run has nothing to wait for"
    shown = on_a_terminal(folder, "scan", "--fix", HOLDFAST_DB=url)
    assert re.search(r"recovering .* 0%.*recovering .*#.* 100%", shown, re.DOTALL)
    assert "3 of 3 jobs recovered" in shown
    assert "recovering" not in on_a_terminal(folder, "scan", "--fix", HOLDFAST_DB=url), "there is nothing left"


@pytest.mark.parametrize("option", ["--json", "-q"])
def test_programs_and_quiet_users_see_no_progress_bar(folder: Path, store: Store, url: str, option: str) -> None:
    lose(store)
    assert "recovering" not in on_a_terminal(folder, "scan", "--fix", option, HOLDFAST_DB=url)


def test_acts_on_many_jobs_show_a_bar_where_they_do_not_show_each(folder: Path, store: Store, url: str) -> None:
    ids = [add(store).id for _ in range(20)]
    said = folder / "said.txt"
    first = on_a_terminal(folder, "jobs", "cancel", *ids, into=said, HOLDFAST_DB=url)
    assert re.search(r"acting .*#.* 100%", first)
    assert len(said.read_text().splitlines()) == 20
    assert "acting" not in on_a_terminal(folder, "jobs", "retry", *ids[:19], into=said, HOLDFAST_DB=url), "too few"
    assert "acting" not in on_a_terminal(folder, "jobs", "delete", "-y", *ids, HOLDFAST_DB=url), "each has its line"


def test_a_complaint_is_not_written_behind_a_bar(folder: Path, store: Store, url: str) -> None:
    ids = [add(store).id for _ in range(20)]
    shown = on_a_terminal(folder, "jobs", "cancel", "nobody", *ids, into=folder / "said.txt", code=5, HOLDFAST_DB=url)
    assert "\r\x1b[Kholdfast: there is no job 'nobody'" in shown


@pytest.mark.parametrize("fails", [False, True])
def test_a_bar_is_full_at_the_end_unless_it_went_wrong(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    monkeypatch.setattr(output, "is_watched", lambda: True)
    with suppress(StoreError), output.Progress("doing", 10) as progress:
        progress.advance(4)
        if fails:
            raise StoreError("no luck")
    assert progress._bar is not None
    assert progress._bar.pos == (4 if fails else 10)


def test_the_story_of_a_job_whose_start_was_not_recorded_does_not_say_that_it_had_not_begun(
    run: Run, store: Store
) -> None:
    job = start(store)
    settle(store, job, Lost("exit", "killed by SIGKILL", {"started": False}, started=False))
    told = run("jobs", "show", job.id).stdout
    assert re.search(r"had begun +not recorded", told)
    assert re.search(r"not counted +1 loss of its worker before its start was recorded: perhaps it had begun", told)
    assert "not its doing" not in told


def test_the_story_of_a_job_lays_out_the_autopsy(run: Run, store: Store) -> None:
    worker = enrol(store, name="w1")
    job = start(store, worker, on_crash="hold", payload='{"order": 42}', key="order-42", priority=3)
    autopsy = {"host": "h", "pid": 7, "seconds_since_beat": 61.5, "rss_mb": 31.2, "exit_code": -9, "new_fact": [1, 2]}
    autopsy |= {
        "log": ["INFO shop: one", "INFO shop: two"],
        "stack": "File x\n  line 3",
        "fence_before": 1,
        "fence_after": 2,
        "progress": 0.4,
        "started": True,
    }
    settle(store, job, Lost("exit", "killed by SIGKILL", autopsy))
    told = run("jobs", "show", job.id).stdout
    assert told.startswith(f"{job.task}  held  {job.id}\n")
    for label, value in {
        "run it again": f"holdfast held approve {job.id} --fence 2",
        "queue": "default, priority 3",
        "key": "order-42",
        "arguments": '{"order": 42}',
        "found by": "exit",
        "cause": "killed by SIGKILL",
        "decision": "hold",
        "pid": "7",
        "silent for": "1 min 1 s",
        "memory": "31 MB",
        "exit code": "-9",
        "progress": "40%",
        "had begun": "yes",
        "fence": "1 before, 2 after",
        "new fact": "[1, 2]",
        "last lines": "INFO shop: one",
        "stack": "File x",
    }.items():
        assert re.search(rf"^ +{label} +{re.escape(value)}$", told, re.MULTILINE), label
    assert re.search(r"^ {18}  line 3$", told, re.MULTILINE)
    assert re.search(r"^ {18}INFO shop: two$", told, re.MULTILINE)
    assert row(store, job.id).state is State.HELD


def test_the_story_of_a_running_and_of_a_done_job(run: Run, store: Store) -> None:
    worker = enrol(store, name="w1")
    job = start(store, worker, lease_s=600.0)
    store.beat(worker, [Pulse(job.lease, progress=0.25, note="chunk 3", log="INFO shop: one\nINFO shop: two")])
    told = run("jobs", "show", job.id).stdout
    assert re.search(r"^  worker +w1$", told, re.MULTILINE)
    assert re.search(r"^  progress +25% chunk 3$", told, re.MULTILINE)
    assert re.search(r"^  last lines  INFO shop: one\n {14}INFO shop: two$", told, re.MULTILINE)
    settle(store, job, Succeeded(json.dumps("x" * 5000)))
    told = run("jobs", "show", job.id).stdout
    assert "It succeeded at attempt 1" in told
    assert "all of it with --json" in told


@pytest.mark.parametrize("outcome", [EXPIRED, Failed("MailDown: no route to it")], ids=["held", "dead"])
def test_the_story_of_a_job_that_stopped_gives_the_reason_once(run: Run, store: Store, outcome: Outcome) -> None:
    job = start(store, on_crash="hold", attempts_max=1)
    settle(store, job, outcome)
    said = full_reason(row(store, job.id))
    shown = " ".join(run("jobs", "show", job.id).stdout.split())
    assert said is not None
    assert shown.count(said) == 1


def test_the_story_of_a_failure_has_its_last_lines(run: Run, store: Store) -> None:
    job = start(store)
    settle(store, job, Failed("no", {"log": ["INFO shop: one", "INFO shop: two"]}))
    told = run("jobs", "show", job.id).stdout
    assert re.search(r"^ {6}last lines  INFO shop: one\n {18}INFO shop: two$", told, re.MULTILINE)


def test_the_story_of_a_job_that_a_person_resolved(run: Run, store: Store) -> None:
    job, other = job_in(store, State.HELD), job_in(store, State.HELD)
    run("held", "done", job.id, "--by", "ann", "--note", "seen on the card.\nTwice.")
    told = run("jobs", "show", job.id).stdout
    assert re.search(
        r"\n  ann resolved it as done [\d.]+ m?s ago: seen on the card. No attempt reported success.\n", told
    )
    assert "It succeeded" not in told
    run("held", "done", other.id, "--by", "bo")
    assert re.search(r"  bo resolved it as done [\d.]+ m?s ago. No attempt", run("jobs", "show", other.id).stdout)


def test_the_story_of_a_job_that_was_revived_and_then_succeeded(run: Run, store: Store, clock: FakeClock) -> None:
    job = job_in(store, State.HELD)
    clock.advance(2 * PAST_S)
    run("held", "fail", job.id)
    run("dead", "revive", job.id)
    settle(store, again(store, row(store, job.id)), Succeeded())
    assert "It succeeded at attempt 2" in run("jobs", "show", job.id).stdout


@pytest.mark.parametrize("columns", [80, 120])
def test_a_workflow_on_a_terminal_has_straight_columns_and_whole_commands(
    folder: Path, store: Store, columns: int
) -> None:
    job = start_flow(store, id="01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d", task="shop.checkout")
    names = ["reserve", "\u8377\u7269\u3092\u9001\u308b", "print the label and glue it to the parcel of the customer"]
    steps = [a_step(place, name=name, result=f'"{name * 3}"') for place, name in enumerate(names, 1)]
    opened = a_step(4, "started", name="charge", repeatable=False)
    record(store, job, *steps, opened, open_step="charge")
    settle(store, row(store, job.id), EXPIRED)
    shown = on_a_terminal(
        folder, "workflows", "show", job.id, columns=columns, HOLDFAST_DB=f"sqlite:///{folder}/jobs.db"
    )
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert all(output.columns(line) <= columns for line in lines if "holdfast " not in line)
    assert any(line.strip().endswith(f"holdfast held approve {job.id} --fence 2") for line in lines)
    head = next(line for line in lines if line.split() == ["STEP", "STATE", "TOOK", "ATTEMPT", "RESULT"])
    rows = [line for line in lines if re.match(r"  [1234]  ", line)]
    for word in ("recorded", "started"):
        places = {output.columns(line[: line.index(word)]) for line in rows if word in line}
        assert places == {head.index("STATE")}
    assert len(rows) == 4


def test_cells_are_measured_in_columns() -> None:
    assert [output.columns(text) for text in ("abc", "\u65e5\u672c", "e\u0301")] == [3, 4, 1]
    assert [output.fitted("\u65e5\u672c\u8a9e", room) for room in (6, 5, 4)] == [
        "\u65e5\u672c\u8a9e",
        "\u65e5\u672c\u2026",
        "\u65e5\u2026",
    ]
    assert (output.padded("\u65e5", 3), output.padded("a", 3, right=True)) == ("\u65e5 ", "  a")
