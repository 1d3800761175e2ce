"""What people see of workflows, and do to them. Steps are written by the store's own verbs, as a worker would."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import App, Flow, insight
from holdfast.cli import steps as laid_out
from holdfast.core.durations import iso
from holdfast.core.machine import State
from holdfast.core.records import Filter, Job, Pulse, Record, Signal, Step
from holdfast.core.row_text import current_steps
from holdfast.core.verdict import Failed, Lost, Parked, Succeeded
from holdfast.errors import Refused, UsageError
from holdfast.insight.steps import step_view
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from tests.cli.conftest import PAST_S, Run, shown_choices
from tests.factory import again, awaiting, enrol, row, settle, start

STEP = {"name", "state", "attempt", "tries", "started_at", "ended_at", "result", "error", "arguments_bytes"}
MORE = {"path", "kind", "has_undo", "repeatable", "retry_at", "undone_at", "deaths", "ahead"}
KILLED = Lost("exit", "its process was killed by SIGKILL", worker="box/1")


def begin(store: Store, **given: Any) -> Job:
    """A workflow that is running."""
    return start(store, enrol(store, name="box/1"), workflow=True, **{"task": "shop.checkout"} | given)


def step(store: Store, job: Job, position: int, name: str, **given: Any) -> Step:
    """A step as its worker would write it down."""
    wall = store.now().wall
    known: dict[str, Any] = {"path": str(position), "kind": "step", "state": "recorded", "result": '"ok"'}
    known |= {"attempt": job.attempt, "fence": job.fence, "started_at": wall, "ended_at": wall}
    if given.get("state") == "started":
        known |= {"result": None, "ended_at": None}
    return Step(position=position, name=name, **known | given)


def put(store: Store, job: Job, *steps: Step, **facts: Any) -> None:
    record = Record(lease=job.lease, worker=job.worker, steps=steps, **facts)
    assert store.record([record]) == [Reply.ACCEPTED]


def checkout(store: Store, **given: Any) -> Job:
    """A workflow that has recorded three steps, the first with an undo."""
    job = begin(store, **given)
    steps = [step(store, job, 1, "reserve", has_undo=True), step(store, job, 2, "charge"), step(store, job, 3, "ship")]
    put(store, job, *steps, undoable=True)
    return job


def failed(store: Store, **given: Any) -> Job:
    """The same, given up: its undo was done before it came to have one."""
    job = begin(store, attempts_max=1, **given)
    put(store, job, *(step(store, job, at, name) for at, name in enumerate(("reserve", "charge", "ship"), 1)))
    settle(store, job, Failed("no such address"))
    assert row(store, job.id).state is State.DEAD
    return row(store, job.id)


def with_open_step(store: Store, *names: str) -> Job:
    """A workflow that is held because its worker died in steps that must not be repeated."""
    job = begin(store)
    put(store, job, step(store, job, 1, "reserve", has_undo=True), undoable=True)
    for position, name in enumerate(names, 2):
        opened = step(store, job, position, name, state="started", repeatable=False)
        put(store, job, opened, open_step=names[0])
    settle(store, row(store, job.id), KILLED)
    held = row(store, job.id)
    assert (held.state, held.open_step) == (State.HELD, names[0])
    return held


def asking(store: Store, question: str = "Ship it?", path: str = "2") -> Job:
    job = begin(store)
    settle(store, job, Parked("asks", awaits=awaiting(f"signal:approve:{path}"), question=question, inbox=0))
    return row(store, job.id)


# ---------------------------------------------------------------------------------------------- seeing


def test_only_workflows_are_listed_with_what_they_wait_for(run: Run, store: Store) -> None:
    plain, done, asks = start(store), checkout(store), asking(store)
    waits = begin(store)
    later = store.now().wall + 7200
    settle(store, waits, Parked("waits", later, awaiting("signal:paid", "job:j1"), inbox=0))
    sleeps = begin(store)
    settle(store, sleeps, Parked("sleeps", wake_at=store.now().wall + 7200))
    shown = {line.split()[0]: line for line in run("workflows", "list").stdout.splitlines()[1:]}
    assert [*shown] == [sleeps.id, waits.id, asks.id, done.id]
    assert plain.id not in shown
    assert 'asks "Ship it?"' in shown[asks.id]
    assert "the signal paid, job j1, at most 1 h 59 min" in shown[waits.id]
    assert "its time, in 1 h 58 min" in shown[sleeps.id]
    assert [job["id"] for job in run.json("workflows", "list", "--state", "running")] == [done.id]
    assert run("workflows", "list", "--task", "shop.chekout").stderr.splitlines() == [
        "No such workflows.",
        "Did you mean the task shop.checkout?",
    ]


def test_the_steps_are_a_tree(run: Run, store: Store, clock: FakeClock) -> None:
    job = begin(store)
    clock.advance(2)
    wall = store.now().wall
    put(
        store,
        job,
        step(store, job, 1, "reserve", started_at=wall - 1.5),
        step(store, job, 2, "print", path="2.2.1"),
        step(store, job, 3, "mail", path="2.1.1", result='{"to": "ann"}', attempt=2),
        step(store, job, 4, "nap", path="2.1.2", kind="sleep", result=str(wall)),
        step(store, job, 5, "aside", path="~1.1", error="ValueError: no\nluck", result=None),
        step(store, job, 6, "charge", path="3", state="started", repeatable=False),
        open_step="charge",
    )
    lines = run("workflows", "show", job.id).stdout.splitlines()
    at = lines.index("Steps  (step 6 of 6 known)")
    until = step_view(the(store, job, "nap"))["result"].replace("T", " ")
    *shown, last = lines[at + 1 :]
    assert shown == [
        "         STEP            STATE            TOOK  ATTEMPT  RESULT",
        '  1      reserve         recorded        1.5 s        1  "ok"',
        "  2      side by side",
        "           branch 1",
        '  2.1.1      mail        recorded         0 ms        2  {"to": "ann"}',
        f"  2.1.2      sleep nap   recorded            -        1  until {until}",
        "           branch 2",
        '  2.2.1      print       recorded         0 ms        1  "ok"',
        "         beside, task 1",
        "  ~1.1     aside         recorded         0 ms        1",
        r"             raised ValueError: no\nluck",
    ]
    assert re.fullmatch(r"  3      charge          started   1 min \d+ s…        1", last)


def the(store: Store, job: Job, name: str) -> Step:
    return next(each for each in store.steps(job.id, aside=True) if each.name == name)


def test_the_shapes_of_json(run: Run, store: Store) -> None:
    job = with_open_step(store, "charge")
    story = run.json("jobs", "show", job.id)
    assert [each.keys() for each in story["steps"]] == [STEP, STEP]
    assert [each["state"] for each in story["steps"]] == ["recorded", "started"]
    assert story["steps"][0]["result"] == "ok"
    shown = run.json("workflows", "show", job.id)
    assert shown.keys() - story.keys() == {
        *(
            "at_step",
            "known_steps",
            "rolling_back",
            "open_step",
            "in_steps",
            "parent",
            "waits_for",
            "deaths",
            "warnings",
            "set_aside",
        ),
    }
    assert [each.keys() for each in shown["steps"]] == [STEP | MORE] * 2
    assert (shown["open_step"], shown["rolling_back"], shown["waits_for"]) == ("charge", False, None)
    [death] = shown["steps"][1]["deaths"]
    assert (death["worker"], death["inside"], death["cause"]) == ("box/1", True, KILLED.cause)
    asks = run.json("workflows", "show", asking(store).id)
    assert asks["waits_for"] == {
        "until": None,
        "signals": ["approve:2"],
        "jobs": [],
        "tries": [],
        "question": "Ship it?",
    }


def test_arguments_of_steps_are_shown_and_exported_as_sizes_unless_they_are_asked_for(run: Run, store: Store) -> None:
    job = begin(store)
    put(store, job, step(store, job, 1, "charge", arguments='{"positional":1,"arguments":{"card":"4711"}}'))
    for words in (("workflows", "show", job.id), ("workflows", "show", job.id, "--json"), ("jobs", "export")):
        assert "4711" not in run(*words).stdout
        assert "4711" in run(*words, "--step-arguments").stdout
    assert run.json("workflows", "show", job.id)["steps"][0]["arguments_bytes"] == 44
    assert "4711" not in run("jobs", "show", job.id, "--json").stdout


def test_code_that_caught_the_signal_to_park_is_shown_with_file_and_line(run: Run, store: Store) -> None:
    job = begin(store)
    settle(store, job, Parked("waits", None, awaiting("signal:go"), inbox=0, caught_at=("/srv/shop.py", 42)))
    assert "/srv/shop.py:42 caught the signal" in " ".join(run("workflows", "show", job.id).stdout.split())
    [told] = run.json("workflows", "show", job.id)["warnings"]
    assert (told["about"], told["file"], told["line"]) == ("caught_park", "/srv/shop.py", 42)


def test_a_plain_job_has_no_steps(run: Run, store: Store) -> None:
    job = start(store)
    assert run.json("jobs", "show", job.id)["steps"] == []
    assert "Steps" not in run("jobs", "show", job.id).stdout
    assert f"holdfast jobs show {job.id}" in run("workflows", "show", job.id, code=6).stderr
    run("workflows", "show", "nobody", code=5)
    for words in ("retry", "rollback", "cancel"):
        run("workflows", words, job.id, code=6)


def test_an_export_has_the_steps(run: Run, store: Store) -> None:
    job = checkout(store)
    [line] = run("jobs", "export").stdout.splitlines()
    shown = json.loads(line)
    assert (shown["id"], [each["name"] for each in shown["steps"]]) == (job.id, ["reserve", "charge", "ship"])


def shown_steps(run: Run, job: Job) -> list[str]:
    """The lines of its steps."""
    lines = run("workflows", "show", job.id).stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("Steps  ("))
    return lines[at + 2 : lines.index("", at) if "" in lines[at:] else None]


def test_what_it_waits_for_is_a_line_of_the_tree(run: Run, store: Store) -> None:
    soon = store.now().wall + PAST_S + 7200.5
    asks = asking(store, "Ship it?", "1")
    [line, below] = shown_steps(run, asks)
    assert re.fullmatch(r"  1  approve Ship it\?  waiting  1 min \d+ s…        1", line)
    assert below == "       waits for a person's answer, for as long as it takes"
    timed = begin(store)
    put(store, timed, step(store, timed, 1, "Ship it?", kind="approve", state="started", result=str(soon)))
    awaits = awaiting("signal:approve:1", "signal:approve:2", "signal:note", "job:child-7")
    put(store, timed, step(store, timed, 2, "shop.pack", kind="start", path="3", result='"child-7"'))
    settle(store, timed, Parked("asks", wake_at=soon, awaits=awaits, question="Ship it?", inbox=0))
    until = insight.moment(soon)
    lines = shown_steps(run, timed)
    assert re.fullmatch(r"  1  approve Ship it\?            waiting   1 min \d+ s…        1", lines[0])
    assert lines[1].startswith(f"       waits for a person's answer, until {until}, ")
    assert lines[2:] == [
        '  3  start shop.pack             recorded         0 ms        1  "child-7"',
        "  2  approve (another question)  waiting             -        1",
        "       waits for a person's answer, for as long as it takes",
        "     wait note                   waiting             -        1",
        "       waits for this signal, for as long as it takes",
        "     result shop.pack            waiting             -        1",
        "       waits for the end of job child-7, for as long as it takes",
    ]
    assert [each["name"] for each in run.json("workflows", "show", timed.id)["steps"]] == ["Ship it?", "shop.pack"]
    sleeps = begin(store)
    put(store, sleeps, step(store, sleeps, 1, "sleep", kind="sleep", result=str(soon)))
    settle(store, sleeps, Parked("sleeps", wake_at=soon))
    [line, below] = shown_steps(run, sleeps)
    assert line == "  1  sleep  waiting     -        1"
    assert below.startswith(f"       waits until {until}, ")


def test_the_step_that_it_is_in_is_a_line_of_the_tree(run: Run, store: Store) -> None:
    job = begin(store, lease_s=600.0)
    put(store, job, step(store, job, 1, "reserve"))
    store.beat(job.worker or "", [Pulse(job.lease, in_steps=current_steps(["1 reserve", "2.1.1 mail"]))])
    assert shown_steps(run, job)[1:] == [
        "  2      side by side",
        "           branch 1",
        "  2.1.1      mail      started      -        1",
    ]
    assert "now in      reserve (1), mail (2.1.1)" in run("jobs", "show", job.id).stdout
    assert run.json("workflows", "show", job.id)["in_steps"] == ["1 reserve", "2.1.1 mail"]
    assert "in reserve, in mail, on box/1" in run("workflows", "list").stdout


def test_the_undo_that_is_run_is_named(run: Run, store: Store, clock: FakeClock) -> None:
    job = row(store, checkout(store).id)
    settle(store, job, Failed("no", rollback=True))
    clock.advance(2 * PAST_S)
    job = again(store, row(store, job.id))
    store.beat(job.worker or "", [Pulse(job.lease, in_steps=current_steps(["1 reserve"]))])
    told = run("workflows", "show", job.id).stdout
    assert "It undoes what it did." in told
    assert "undoing     reserve (1)" in told
    assert "Steps  (rolling back: 0 of 1 undone)" in told


def test_a_question_took_as_long_as_its_answer_did_not_come(run: Run, store: Store, clock: FakeClock) -> None:
    """Whoever was away afterwards, and whether a worker was there to take it up, is not its time."""
    job, asked_at = begin(store), store.now().wall
    first = step(store, job, 1, "Ship it?", kind="approve", state="started", result=str(asked_at + 7200))
    put(store, job, first)
    settle(store, job, Parked("asks", asked_at + 7200, awaiting("signal:approve:1"), "Ship it?"))
    clock.advance(5)
    store.signal(Signal(id="yes", job_id=job.id, name="approve:1", value="true"))
    clock.advance(40)
    job = again(store, row(store, job.id))
    put(store, job, replace(first, state="recorded", result="true", ended_at=store.now().wall, fence=job.fence))
    put(store, job, step(store, job, 2, "Sure?", kind="approve", result="true"))  # nobody wrote down when it was asked
    settle(store, job, Parked("asks", awaits=awaiting("signal:approve:3"), question="Really?", inbox=1))
    clock.advance(7)
    store.signal(Signal(id="really", job_id=job.id, name="approve:3", value="true"))
    clock.advance(40)
    job = again(store, row(store, job.id))
    last = step(store, job, 3, "Really?", kind="approve", result="true", ended_at=store.now().wall)
    put(store, job, replace(last, started_at=last.ended_at))
    shown = shown_steps(run, job)
    assert [line.split()[-3] for line in shown] == ["s", "-", "s"]
    assert "recorded  5.0 s" in shown[0]
    assert "recorded  7.0 s" in shown[2], "without a time limit it is on record only when it is answered"


def test_what_a_step_took_is_the_time_of_its_own_run(run: Run, store: Store, clock: FakeClock) -> None:
    job = begin(store)
    began = store.now().wall
    put(store, job, step(store, job, 1, "pay", has_undo=True, started_at=began, ended_at=began + 2.5))
    opened = step(store, job, 2, "charge", state="started", repeatable=False, started_at=began)
    put(store, job, opened, open_step="charge")
    clock.advance(3)
    settle(store, row(store, job.id), KILLED)
    assert re.search(r"charge  started   3\.0 s…  ", shown_steps(run, job)[1])
    clock.advance(20)
    run("held", "done", job.id, "--result", "1")  # that somebody said so later does not make it longer
    assert re.search(r"charge  answered  3\.0 s…  +\d+  1$", shown_steps(run, job)[1])
    clock.advance(2 * PAST_S)
    job = again(store, row(store, job.id))
    put(store, job, step(store, job, 1, "pay", state="undone", ended_at=began + 2.5, undone_at=store.now().wall))
    assert re.search(r"pay     undone     2\.5 s  ", shown_steps(run, job)[0])
    assert run.json("workflows", "show", job.id)["steps"][0]["undone_at"] is not None


def test_the_tries_of_a_step_and_the_time_of_the_next_one_are_shown(run: Run, store: Store) -> None:
    job = begin(store)
    retry_at = store.now().wall + 3600
    paused = {"state": "started", "error": "OSError: down", "error_kind": "OSError", "retry_at": retry_at}
    put(store, job, step(store, job, 1, "fetch", tries=3), step(store, job, 2, "mail", tries=1, **paused))
    settle(store, row(store, job.id), Parked(retry_at))
    first, tries, second, waits, error, once = shown_steps(run, job)
    assert "fetch" in first
    assert tries.strip() == "tried 3 times"
    assert re.search(r"mail   waiting  ", second)
    assert re.search(rf"^ +tried again at {insight.moment(retry_at)}, in \d+ min$", waits)
    assert error.strip() == "raised OSError: down"
    assert once.strip() == "tried once"
    shown = run.json("workflows", "show", job.id)["steps"]
    assert [(each["tries"], each["retry_at"]) for each in shown] == [(3, None), (1, iso(retry_at))]


def test_a_workflow_between_two_tries_of_a_step_says_which_step_failed(run: Run, store: Store) -> None:
    job = begin(store)
    retry_at = store.now().wall + 3600
    paused = {"state": "started", "error": "OSError: down\nmore", "error_kind": "OSError", "retry_at": retry_at}
    put(store, job, step(store, job, 1, "mail: all", tries=2, **paused))
    settle(store, row(store, job.id), Parked("waits", retry_at, awaiting("step:2/3:mail: all")))
    [line] = [line for line in run("workflows", "list").stdout.splitlines() if job.id in line]
    assert re.search(r"step mail: all failed, tried 2 of 3 times; next try in \d+ min", line)
    shown = run("workflows", "show", job.id).stdout
    assert re.search(
        r"Step mail: all failed \(OSError: down\), tried 2 of 3 times; next try in \d+ min( \d+ s)?\. "
        r"It holds no slot meanwhile\.",
        " ".join(shown.split()),
    )
    assert shown_steps(run, job)[-1].strip() == "tried 2 of 3 times"
    assert "signal" not in shown, "the next try is not a signal that somebody could send"
    waits = run.json("workflows", "show", job.id)["waits_for"]
    assert (waits["signals"], waits["tries"]) == ([], [{"name": "mail: all", "tries": 2, "tries_max": 3}])
    kept = run("workflows", "signal", job.id, "paid")
    assert "it waits for the next try of step mail: all, at most" in kept.stderr


def test_a_branch_between_two_tries_is_told_beside_the_signal_that_another_one_awaits(store: Store) -> None:
    job = begin(store)
    settle(store, job, Parked("waits", store.now().wall + 60, awaiting("signal:paid", "step:1/3:mail"), inbox=0))
    waits = insight.explain(store, row(store, job.id))
    assert re.match(
        r"It waits for the signal paid and the next try of step mail, at most .*, and holds", waits.sentence
    )
    assert [words for words, _ in shown_choices(waits)] == ["send paid"]


def test_a_try_that_is_due_while_no_worker_runs_says_so(store: Store) -> None:
    job = begin(store)
    settle(store, job, Parked("waits", store.now().wall - 5, awaiting("step:1/3:mail")))
    sentence = insight.explain(store, row(store, job.id)).sentence
    assert re.match(r"Step mail failed, tried 1 of 3 times; the next try has been due for 5\..* s\. It", sentence)
    assert "No worker serves its queue" in sentence


def test_a_question_whose_time_is_over_says_so_in_the_list_of_the_held(run: Run, store: Store) -> None:
    job = begin(store)
    over = store.now().wall - 5
    settle(store, job, Parked("asks", over, awaiting("signal:approve:1"), question="Ship it?", inbox=0))
    assert re.search(r'asks "Ship it\?", whose time was over .* ago', run("held", "list").stdout)


def test_a_very_long_workflow_is_shown_by_its_ends(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laid_out, "_ENDS", 2)
    job = begin(store)
    put(store, job, *(step(store, job, at, f"step-{at}") for at in range(1, 8)))
    told = run("workflows", "show", job.id).stdout
    assert [f"step-{at} " in told for at in range(1, 8)] == [True, True, False, False, False, True, True]
    assert "… 3 more; all of them with --json" in told
    assert len(run.json("workflows", "show", job.id)["steps"]) == 7


def test_progress_goes_by_what_was_set_aside_and_by_the_last_one_that_was_done(run: Run, store: Store) -> None:
    def far(job: Job) -> tuple[int, int]:
        shown = run.json("workflows", "show", job.id)
        return shown["at_step"], shown["known_steps"]

    job = begin(store)
    assert far(job) == (1, 1)
    put(store, job, step(store, job, 1, "reserve"))
    assert far(job) == (2, 2)
    before = checkout(store)
    settle(store, before, Succeeded())
    assert far(row(store, before.id)) == (3, 3)
    assert far(job) == (2, 3)
    other = failed(store, task="shop.other")
    run("workflows", "retry", other.id, "--from-step", "charge")
    assert far(row(store, other.id)) == (2, 3)


# ---------------------------------------------------------------------------------------- who died where


def test_the_death_is_told_below_its_step(run: Run, store: Store) -> None:
    job = with_open_step(store, "charge")
    told = run("workflows", "show", job.id).stdout.splitlines()
    [at] = [number for number, line in enumerate(told) if line.startswith("  2  charge")]
    assert told[at + 1].strip().startswith("worker box/1 died in it, ")
    assert told[at + 1].endswith(": its process was killed by SIGKILL")


def test_a_death_that_was_none_and_one_in_a_cell_are_told_as_such(run: Run, store: Store, clock: FakeClock) -> None:
    job = begin(store)
    settle(store, job, Lost("expired", "its lease ran out", {"attempt": 1}, worker="box/1"))
    store.beat(job.worker or "", [Pulse(job.lease)])  # it comes back
    settle(
        store, again(store, row(store, job.id)), Lost("exit", "its process was killed by SIGSEGV", {"isolated": True})
    )
    told = run("workflows", "show", job.id).stdout
    assert "worker box/1 was taken for dead behind everything that is recorded, attempt 1, " in told
    assert re.search(
        r"its process on \S+ died behind everything that is recorded, .* ago: its process was killed", told
    )


def test_a_death_before_its_steps_were_set_aside_is_told_with_them(run: Run, store: Store, clock: FakeClock) -> None:
    job = begin(store, crashes_max=1)
    put(store, job, step(store, job, 1, "reserve"), step(store, job, 2, "charge"))
    clock.advance(1)
    settle(store, job, KILLED)
    run("workflows", "retry", job.id, "--from-step", "charge")
    clock.advance(2 * PAST_S)
    job = again(store, row(store, job.id))
    put(store, job, step(store, job, 2, "charge"))
    lines = run("workflows", "show", job.id).stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("Set aside"))
    died = [number for number, line in enumerate(lines) if "died behind everything that is recorded" in line]
    assert died == [at + 3]
    assert [each["path"] for each in run.json("workflows", "show", job.id)["deaths"]] == [None]


# ---------------------------------------------------------------------------------------------- acting


def test_a_retry_from_a_step_keeps_what_came_before(run: Run, store: Store) -> None:
    job = failed(store)
    result = run("workflows", "retry", job.id, "--from-step", "charge", "--by", "ann", "--note", "new card")
    assert result.stdout == f"{job.id}  ready\n"
    assert [each.name for each in store.steps(job.id)] == ["reserve"]
    assert [each.aside for each in store.steps(job.id, aside=True)] == [0, job.fence, job.fence]
    moved = store.journal(job.id)[-1]
    assert (moved.kind, moved.actor, moved.detail["set_aside"]) == ("moved", "ann", ["charge", "ship"])
    told = run("workflows", "show", job.id).stdout
    assert f"Set aside  (at fence {job.fence}" in told
    shown = run.json("workflows", "show", job.id)
    assert [each["name"] for each in shown["steps"]] == ["reserve"]
    assert [(each["name"], each["fence"]) for each in shown["set_aside"]] == [
        ("charge", job.fence),
        ("ship", job.fence),
    ]
    assert [each["name"] for each in run.json("jobs", "show", job.id)["steps"]] == ["reserve"]


def test_a_retry_without_a_step_goes_on_behind_the_last(run: Run, store: Store) -> None:
    job = failed(store)
    run("workflows", "retry", job.id)
    assert (row(store, job.id).state, len(store.steps(job.id))) == (State.READY, 3)


def test_a_retry_that_cannot_be(run: Run, store: Store) -> None:
    job = failed(store)
    said = run("workflows", "retry", job.id, "--from-step", "pack", code=5).stderr
    assert "known: reserve, charge, ship" in said
    run("workflows", "retry", job.id, "--from-step", "ship", "--fence", "9", code=6)
    running, done = checkout(store), checkout(store)
    settle(store, done, Succeeded())
    run("workflows", "retry", running.id, "--from-step", "ship", code=6)
    assert "fork it" in run("workflows", "retry", done.id, "--from-step", "ship", code=6).stderr
    assert {each.aside for one in (job, running, done) for each in store.steps(one.id, aside=True)} == {0}


def test_rollback_and_cancel(run: Run, store: Store) -> None:
    held, kept, undone, running = with_open_step(store, "charge"), asking(store), asking(store), checkout(store)
    assert run("workflows", "rollback", held.id, "--note", "withdrawn").stdout == f"{held.id}  ready (rolling back)\n"
    assert (row(store, held.id).rolling_back, row(store, held.id).error) == (True, "withdrawn")
    assert "It will undo" in run("workflows", "show", held.id).stdout
    assert run("workflows", "cancel", kept.id).stdout == f"{kept.id}  cancelled\n"
    assert run("workflows", "cancel", undone.id, "--rollback").stdout == f"{undone.id}  ready (rolling back)\n"
    assert run("workflows", "cancel", running.id, "--rollback").stdout == f"{running.id}  running (asked to stop)\n"
    assert row(store, running.id).undo_requested
    run("workflows", "rollback", held.id, code=6)
    done = checkout(store)
    settle(store, done, Succeeded())
    for words in ("workflows rollback", "workflows cancel --rollback"):
        assert "run a workflow that takes back what it did" in run(*words.split(), done.id, code=6).stderr


def test_a_signal_is_delivered_once(run: Run, store: Store) -> None:
    job = begin(store)
    settle(store, job, Parked("waits", awaits=awaiting("signal:paid"), inbox=0))
    words = ("workflows", "signal", job.id, "paid", '{"cents": 5}', "--id", "bank-7", "--note", "from the bank")
    assert run(*words).stdout == f"{job.id}  signalled\n"
    assert run(*words).stdout == f"{job.id}  had this signal already\n"
    assert row(store, job.id).state is State.READY
    [kept] = store.inbox(job.id).signals
    assert (kept.name, kept.value) == ("paid", '{"cents":5}')
    [event] = store.journal(job.id, kinds=["signalled"])
    assert event.detail == {"name": "paid", "note": "from the bank"}
    run("workflows", "signal", job.id, "ready")
    assert store.inbox(job.id).signals[-1].value == "null"
    shown = run.json("workflows", "signal", job.id, "ready")
    assert (shown["id"], shown["sent"]) == (job.id, True)


def test_a_signal_that_no_workflow_waits_for_says_so(run: Run, store: Store) -> None:
    waits, asks, runs = begin(store), asking(store), begin(store)
    settle(store, waits, Parked("waits", awaits=awaiting("signal:paid"), inbox=0))

    def said(job: Job, name: str) -> str:
        return run("workflows", "signal", job.id, name).stderr

    assert said(waits, "payed") == "Kept: it does not wait for 'payed' now; it waits for the signal paid.\n"
    assert said(asks, "paid") == "Kept: it does not wait for 'paid' now; it waits for an answer to \"Ship it?\".\n"
    assert said(runs, "paid") == "Kept: it does not wait for 'paid' now; it is running.\n"
    undoes = begin(store)
    put(store, undoes, step(store, undoes, 1, "pay", has_undo=True), undoable=True)
    settle(store, row(store, undoes.id), Failed("no luck", final=True))
    assert row(store, undoes.id).rolling_back
    assert said(undoes, "paid") == "Kept: it does not wait for 'paid' now; it is rolling back.\n"
    assert said(waits, "paid") == ""
    assert [signal.name for signal in store.inbox(waits.id).signals] == ["payed", "paid"]


@pytest.mark.parametrize("name", ["approve:2", "Approve:2", " approve:"])
def test_an_answer_is_no_signal_for_anybody_to_send(run: Run, store: Store, url: str, name: str) -> None:
    job = asking(store)
    assert "let a person approve the job" in run("workflows", "signal", job.id, name, "true", code=2).stderr
    with App(url) as app, pytest.raises(UsageError, match=r"flow\.approve"):
        app.signal(job.id, name, True)
    assert store.inbox(job.id).signals == []


def test_a_signal_that_cannot_arrive(run: Run, store: Store) -> None:
    ended = failed(store)
    assert "has ended" in run("workflows", "signal", ended.id, "paid", code=6).stderr
    run("workflows", "signal", start(store).id, "paid", code=6)
    run("workflows", "signal", "nobody", "paid", code=5)
    run("workflows", "signal", ended.id, "paid", "{oops", code=2)


# ------------------------------------------------------------------------------------------------ forks


def test_a_fork_begins_with_what_was_recorded(run: Run, store: Store) -> None:
    old = checkout(store, payload='{"order": 1}', priority=3, lease_s=60.0)
    settle(store, old, Succeeded())
    [shown] = run.json("workflows", "fork", old.id, '{"order": 2}', "--from-step", "ship", "--by", "ann")
    new = row(store, shown["id"])
    assert (new.state, new.workflow, new.payload) == (State.READY, True, '{"order":2}')
    assert (new.task, new.priority, new.lease_s, new.undoable) == (old.task, 3, 60.0, False)
    copies = [(each.name, each.state, each.attempt, each.has_undo) for each in store.steps(new.id)]
    assert copies == [("reserve", "recorded", 0, False), ("charge", "recorded", 0, False)]
    assert len(store.steps(old.id)) == 3
    [event] = store.journal(new.id)
    assert (event.kind, event.actor) == ("moved", "ann")
    assert (event.detail["forked_from"], event.detail["from_step"]) == (old.id, "ship")
    told = run("workflows", "show", new.id).stdout
    assert "copied" in told
    [same] = run.json("workflows", "fork", old.id, "--from-step", "3")
    assert row(store, same["id"]).payload == old.payload


def test_a_fork_that_cannot_be(run: Run, store: Store) -> None:
    live, old = checkout(store), checkout(store)
    settle(store, old, Succeeded())
    assert "has ended" in run("workflows", "fork", live.id, "--from-step", "ship", code=6).stderr
    run("workflows", "fork", old.id, "--from-step", "pack", code=5)
    run("workflows", "fork", old.id, "[2]", "--from-step", "ship", code=2)  # names are known to the app only
    run("workflows", "fork", old.id, "7", "--from-step", "ship", code=2)
    run("workflows", "fork", start(store).id, "--from-step", "ship", code=6)


def test_what_must_not_be_repeated_is_so_for_a_fork_and_a_retry_from_an_earlier_step(run: Run, store: Store) -> None:
    def paid() -> Job:
        job = begin(store)
        put(store, job, step(store, job, 1, "mail"), step(store, job, 2, "charge", repeatable=False))
        settle(store, row(store, job.id), Failed("no", final=True))
        return row(store, job.id)

    for verb in ("fork", "retry"):
        job = paid()
        words = ("workflows", verb, job.id, "--from-step")
        assert "'charge' happened, or may have" in run(*words, "mail", code=6).stderr
        assert row(store, job.id) == job
        [shown] = run.json(*words, "charge")
        assert shown["state"] == "ready"
        job = paid()
        [shown] = run.json("workflows", verb, job.id, "--from-step", "mail", "--repeat-step")
        assert shown["state"] == "ready"


APP = """
from holdfast import App, Flow
app = App()

@app.workflow(name="shop.checkout")
def checkout(flow: Flow, order: int, express: bool = False) -> int:
    return order
"""


def test_a_fork_with_arguments_that_are_checked(run: Run, store: Store, folder: Path, url: str) -> None:
    (folder / "forkshop.py").write_text(APP)
    old = checkout(store, payload='{"order":1,"express":true}')
    settle(store, old, Succeeded())
    words = ("--db", url, "workflows", "fork", "--from-step", "ship", "--app", "forkshop:app")
    [new] = run.json(*words, old.id, "[2]")
    assert row(store, new["id"]).payload == '{"order":2,"express":true}'
    misfit = checkout(store, payload='{"number":1}')
    settle(store, misfit, Succeeded())
    for given, message in {
        (old.id, '{"oder": 2}'): "unexpected argument 'oder'; it takes (order, express=False)",
        (old.id, '{"order": "two"}'): "argument 'order': Expected `int`, got `str`",
        (misfit.id,): "missing argument 'order'",  # what it had is checked, too
        (misfit.id, '{"order": 2}'): "unexpected argument 'number'",
    }.items():
        sys.modules.pop("forkshop")  # each command is a program of its own
        assert message in run(*words, *given, code=2).stderr
    assert len(store.find(Filter())) == 3


def test_a_fork_keeps_the_arguments_that_are_not_given(run: Run, store: Store) -> None:
    old = checkout(store, payload='{"order":1,"street":"old"}')
    settle(store, old, Succeeded())
    [new] = run.json("workflows", "fork", old.id, '{"street": "new", "express": true}', "--from-step", "ship")
    assert row(store, new["id"]).payload == '{"order":1,"street":"new","express":true}'
    odd = checkout(store, payload="[1]")
    settle(store, odd, Succeeded())
    assert (
        "another codec" in run("workflows", "fork", odd.id, '{"street": "new"}', "--from-step", "ship", code=2).stderr
    )


def test_no_fork_is_built_on_what_was_undone_or_is_not_finished(run: Run, store: Store) -> None:
    undone = begin(store)
    put(store, undone, step(store, undone, 1, "reserve", state="undone"), step(store, undone, 2, "charge"))
    settle(store, undone, Succeeded())
    assert "was undone" in run("workflows", "fork", undone.id, "--from-step", "charge", code=6).stderr
    child, parent = begin(store), begin(store)
    started = step(store, parent, 1, "child", kind="start", result=f'"{child.id}"')
    put(store, parent, started, step(store, parent, 2, "next"))
    settle(store, parent, Succeeded())
    assert child.id in run("workflows", "fork", parent.id, "--from-step", "next", code=6).stderr
    settle(store, child, Succeeded())
    run("workflows", "fork", parent.id, "--from-step", "next")


# ----------------------------------------------------------------------------------------------- answers


def test_an_open_step_is_named_and_needs_a_result(run: Run, store: Store, clock: FakeClock) -> None:
    job = with_open_step(store, "charge")
    assert "step charge: " in run("held", "list").stdout
    [shown] = run.json("held", "list")
    assert (shown["id"], shown["open_step"], shown["question"]) == (job.id, "charge", None)
    said = run("held", "done", job.id, code=6).stderr
    assert "'charge'" in said
    assert "on the command line: --result JSON" in said
    assert row(store, job.id) == job
    for words in (f"held done {job.id}", f"held approve {job.id}", f"rollback {job.id}", f"held fail {job.id}"):
        assert f"{words} --fence {job.fence}" in run("jobs", "show", job.id).stdout
    run("held", "done", job.id, "--result", '"receipt 7"', "--by", "ann")
    assert (row(store, job.id).state, row(store, job.id).open_step) == (State.READY, None)
    said_so = the(store, job, "charge")
    assert (said_so.state, said_so.result) == ("started", '"receipt 7"')  # a worker records it
    clock.advance(2 * PAST_S)
    settle(store, again(store, row(store, job.id)), Succeeded())
    assert "It succeeded" in run("jobs", "show", job.id).stdout  # the answer was about the step, not about the job


def test_a_step_that_returns_nothing_happened_too(run: Run, store: Store) -> None:
    job = with_open_step(store, "charge")
    run("held", "done", job.id, "--result", "null")
    assert the(store, job, "charge").result == "null"


def test_each_of_several_open_steps_has_its_own_question(run: Run, store: Store) -> None:
    job = with_open_step(store, "charge", "ship")
    words = ("held", "done", job.id, "--result", "1", "--fence", str(job.fence))
    assert run(*words).stdout == f"{job.id}  held\n"
    assert row(store, job.id).open_step == "ship"
    run(*words, code=6)  # a repeated answer is not one about the next step
    run("held", "done", job.id, "--result", "2")
    assert row(store, job.id).state is State.READY
    assert [the(store, job, name).result for name in ("charge", "ship")] == ["1", "2"]


def test_of_several_open_steps_of_one_name_it_is_said_which_one_is_asked_about(run: Run, store: Store) -> None:
    job = begin(store)
    for position in (1, 2, 3):
        pay = step(store, job, position, "pay", path=f"1.{position}.1", state="started", repeatable=False)
        put(store, job, pay, open_step="pay")
    settle(store, row(store, job.id), KILLED)

    def said() -> list[str | None]:
        return [each["ahead"] for each in run.json("workflows", "show", job.id)["steps"]]

    told = " ".join(run("workflows", "show", job.id).stdout.split())
    assert "answer about step pay (1.1.1): worker" in told
    assert "Then it asks about step pay (1.2.1) and step pay (1.3.1)." in told
    assert "step pay (1.1.1) happened holdfast held done" in told
    assert "open step pay (1.1.1): started" in told
    assert said() == ["asked about now", "asked about later", "asked about later"]
    run("held", "approve", job.id)
    told = " ".join(run("workflows", "show", job.id).stdout.split())
    assert "answer about step pay (1.2.1): worker" in told
    assert said() == ["to be run again", "asked about now", "asked about later"]
    assert [line.strip() for line in shown_steps(run, job) if "to be run again" in line] == ["to be run again"]
    run("held", "done", job.id, "--result", "1")
    assert "step pay (1.3.1) happened" in run("workflows", "show", job.id).stdout
    assert said() == ["to be run again", None, "asked about now"]
    run("held", "approve", job.id)
    assert said() == [None, None, None]  # it is held no more


def test_a_step_that_pauses_beside_an_open_one_is_run_again_without_a_question(run: Run, store: Store) -> None:
    job = begin(store)
    pay = step(store, job, 1, "pay", path="1.1.1", state="started", repeatable=False)
    fetch = step(store, job, 2, "fetch", path="1.2.1", state="started", repeatable=False, tries=1, retry_at=9.0)
    put(store, job, pay, fetch, open_step="pay")
    settle(store, row(store, job.id), KILLED)
    shown = run.json("workflows", "show", job.id)["steps"]
    assert [each["ahead"] for each in shown] == ["asked about now", "to be run again"]
    run("held", "done", job.id, "--result", "1")
    assert row(store, job.id).state is State.READY


@pytest.mark.parametrize("words", ["approve ID", "done ID --result 1"])
def test_the_step_that_is_named_is_the_one_that_the_answer_is_for(run: Run, store: Store, words: str) -> None:
    job = begin(store)
    for position, name in enumerate(("pay", "mail", "ship"), 1):
        opened = step(store, job, position, name, state="started", repeatable=False)
        put(store, job, opened, open_step="ship")  # it may be another than the first
    settle(store, row(store, job.id), KILLED)
    for name in ("ship (3)", "pay (1)", "mail (2)"):
        assert f"step {name} happened" in run("workflows", "show", job.id).stdout
        run("held", *words.replace("ID", job.id).split())
        answered = store.journal(job.id, kinds=["resolved", "revived"])[-1].detail
        assert (answered.get("step") or answered["repeat_step"]) == name.partition(" ")[0]
    assert row(store, job.id).state is State.READY


def test_nobody_is_offered_to_end_a_whole_workflow_by_saying_that_it_happened(run: Run, store: Store) -> None:
    job, plain = begin(store, on_crash="hold"), start(store, on_crash="hold")
    for one in (job, plain):
        settle(store, one, KILLED)
    assert "held done" not in run("workflows", "show", job.id).stdout
    assert f"it happened   holdfast held done {plain.id}" in run("jobs", "show", plain.id).stdout


def test_what_was_given_up_half_undone_goes_on_undoing(run: Run, store: Store, clock: FakeClock) -> None:
    job = begin(store)
    put(store, job, *(step(store, job, at, f"step-{at}", has_undo=True) for at in (1, 2, 3)), undoable=True)
    settle(store, row(store, job.id), Failed("it does not fit", rollback=True))
    assert [each["ahead"] for each in run.json("workflows", "show", job.id)["steps"]] == ["to be undone"] * 3
    clock.advance(2 * PAST_S)
    claimed = again(store, row(store, job.id))
    put(store, claimed, replace(the(store, job, "step-3"), state="undone", fence=claimed.fence))
    settle(store, replace(claimed, failures=9), Failed("the undo failed"))
    coming = [each["ahead"] for each in run.json("workflows", "show", job.id)["steps"]]
    assert coming == ["to be undone", "its undo is next", None]
    run("held", "fail", job.id)
    told = run("workflows", "show", job.id).stdout
    assert f"continue to undo  holdfast dead revive {job.id}" in told
    assert "bring it back" not in told
    assert "ago, while it was rolling back: " in told
    assert re.search(r"on crash +retry, rolling back\n", told)
    assert [line.strip() for line in shown_steps(run, job)].count("not undone") == 2


def test_the_other_answers_about_an_open_step(run: Run, store: Store) -> None:
    again_, gone = with_open_step(store, "charge"), with_open_step(store, "charge")
    run("held", "approve", again_.id)
    assert (row(store, again_.id).state, row(store, again_.id).open_step) == (State.READY, None)
    run("held", "fail", gone.id, "--note", "fraud")
    assert (row(store, gone.id).state, row(store, gone.id).error) == (State.DEAD, "fraud")


def test_what_was_given_up_with_an_open_step_is_not_run_again_by_the_way(run: Run, store: Store) -> None:
    job, plain = with_open_step(store, "charge"), failed(store)
    run("held", "fail", job.id)
    for words in ("dead revive", "jobs retry", "workflows retry"):
        said = run(*words.split(), job.id, code=6).stderr
        assert "'charge' was started and not recorded" in said
        assert "on the command line: --repeat-step" in said
    run("workflows", "retry", job.id, "--from-step", "reserve", code=6)
    assert (row(store, job.id).state, row(store, job.id).open_step) == (State.DEAD, "charge")
    told = run("workflows", "show", job.id).stdout
    assert f"run it, and charge again  holdfast dead revive {job.id} --fence {job.fence + 1} --repeat-step" in told
    run("dead", "revive", "--all", "--repeat-step", "-y", code=2)
    result = run("dead", "revive", "--all", "-y")
    assert result.stdout == "1 job revived\n"
    assert "Left alone, because each needs an answer of its own: 1 job." in result.stderr
    assert f"{job.id}: its step 'charge' may have happened and must not be repeated" in result.stderr
    assert row(store, plain.id).state is State.READY
    again = run.json("dead", "revive", "--all", "-y")
    assert (again["done"], again["refused"], again["left_alone"]) == (0, 0, 1)
    run("dead", "revive", job.id, "--repeat-step", "--by", "ann", "--note", "not on the card")
    assert (row(store, job.id).state, row(store, job.id).open_step) == (State.READY, None)
    revived = store.journal(job.id, kinds=["revived"])[-1]
    assert (revived.actor, revived.detail["repeat_step"]) == ("ann", "charge")


@pytest.mark.parametrize("words", ["jobs retry ID --repeat-step", "workflows retry ID --from-step charge"])
def test_an_open_step_runs_again_when_the_person_allows_it(run: Run, store: Store, words: str) -> None:
    job = with_open_step(store, "charge")
    run("workflows", "cancel", job.id)
    run(*words.replace("ID", job.id).split())
    assert (row(store, job.id).state, row(store, job.id).open_step) == (State.READY, None)


def test_a_workflow_that_is_being_undone_is_never_done(run: Run, store: Store, clock: FakeClock) -> None:
    job = with_open_step(store, "charge")
    run("workflows", "rollback", job.id)
    clock.advance(2 * PAST_S)
    settle(store, replace(again(store, row(store, job.id)), failures=9), Failed("the undo failed"))
    held = row(store, job.id)
    assert (held.state, held.rolling_back) == (State.HELD, True)
    assert "rolled back" in run("held", "done", job.id, "--result", "1", code=6).stderr
    told = run("jobs", "show", job.id).stdout
    assert "continue to undo" in told
    assert "Nothing is left" not in told
    assert "The undo of reserve (1) is next." in told
    assert f"undo of reserve (1) was done by hand  holdfast held done {job.id} --fence {held.fence}" in told
    assert "workflows rollback" not in told
    assert "its undo is next" in shown_steps(run, job)[1]
    assert run("held", "done", job.id).stdout == f"{job.id}  ready (rolling back)\n"
    assert the(store, job, "reserve").state == "undone"


def test_questions_are_among_what_waits_for_people(run: Run, store: Store, clock: FakeClock) -> None:
    held = with_open_step(store, "charge")
    clock.advance(1)
    asks = asking(store)
    assert [job["id"] for job in run.json("held", "list")] == [asks.id, held.id]
    assert run.json("held", "list", "--limit", "1")[0]["question"] == "Ship it?"
    assert [job["id"] for job in run.json("held", "list", "--before", asks.id)] == [held.id]
    assert [job["id"] for job in run.json("held", "list", "--task", "other")] == []
    assert run.json("jobs", "list", "--state", "waiting")[0]["id"] == asks.id
    told = run("workflows", "show", asks.id).stdout
    assert f"yes  holdfast held approve {asks.id} --fence {asks.fence}" in told
    assert f"no   holdfast held fail {asks.id} --fence {asks.fence}" in told


@pytest.mark.parametrize(("word", "value"), [("approve", "true"), ("fail", "false")])
def test_a_question_is_answered_once(run: Run, store: Store, clock: FakeClock, word: str, value: str) -> None:
    job = asking(store)
    run("held", word, job.id, "--fence", "9", code=6)
    run("held", "done", job.id, code=6)
    said = "yes" if word == "approve" else "no"
    shown = run("held", word, job.id, "--by", "ann", "--note", "it looks good").stdout
    assert shown == f'{job.id}  ready  {said} to "Ship it?"\n'
    run("held", word, job.id, code=6)
    [sent] = store.inbox(job.id).signals
    assert (sent.name, sent.value, sent.actor) == ("approve:2", value, "ann")
    assert store.journal(job.id)[-1].detail == {"name": "approve:2", "answer": value == "true", "note": "it looks good"}
    answer = {"approve": "yes", "fail": "no"}[word]
    shown = run("workflows", "show", job.id).stdout
    assert re.search(
        rf"signalled +fence 1, by ann\n +name +approve:2\n +answer +{answer}\n +note +it looks good", shown
    )
    clock.advance(2 * PAST_S)
    put(store, again(store, row(store, job.id)), step(store, job, 2, "Ship it?", kind="approve", result=value))
    assert shown_steps(run, job)[-1].split()[-1] == answer


def test_an_answer_that_was_repeated_does_not_count_for_the_next_question(
    store: Store, url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = asking(store)
    with App(url) as app:
        app.approve(job.id, fence=job.fence)
        with monkeypatch.context() as patch:  # two people look at the same moment
            patch.setattr(app, "_seen", lambda *_: job)
            with pytest.raises(Refused, match="answered before"):
                app.approve(job.id)
        clock.advance(2 * PAST_S)
        claimed = again(store, row(store, job.id))
        put(
            store, claimed, step(store, claimed, 1, "asked", kind="approve"), taken=(store.inbox(job.id).signals[0].id,)
        )
        parked = Parked("asks again", awaits=awaiting("signal:approve:2"), question="Sure?", inbox=1)
        settle(store, claimed, parked)
        assert row(store, job.id).question == "Sure?"
        app.approve(job.id, False)
        assert [each.value for each in store.inbox(job.id).signals] == ["false"]


# ----------------------------------------------------------------------------------- with the real engine


def shop(url: str) -> App:
    app = App(url)

    @app.workflow(name="shop.checkout")
    def checkout(flow: Flow, order: int) -> str:
        flow.step(str, order, name="reserve", undo=lambda result, order: None)
        ship = flow.approve("Ship it?")
        note = flow.wait("note")
        return flow.step(lambda: f"{order} {ship} {note}", name="ship")

    return app


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_from_the_question_to_a_fork(
    run: Run, kind: str, url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue("postgres") if kind == "postgres" else url
    monkeypatch.setenv("HOLDFAST_DB", url)
    with shop(url) as app:
        job = app.tasks["shop.checkout"].enqueue(1)
        app.tick(10)
        assert [one["question"] for one in run.json("held", "list")] == ["Ship it?"]
        run("held", "approve", job.id)
        run("workflows", "signal", job.id, "note", '"quick"')
        app.tick(10)
        assert job.result(timeout=60) == "1 True quick"
        names = [each["name"] for each in run.json("workflows", "show", job.id)["steps"]]
        assert names == ["reserve", "Ship it?", "note", "ship"]
        [fork] = run.json("workflows", "fork", job.id, '{"order": 2}', "--from-step", "ship")
        [other] = run.json("workflows", "fork", job.id, "--from-step", "Ship it?")
        again_from = other["id"]
        app.tick(10)
        assert app.get(fork["id"]).result(timeout=60) == "2 True quick"
        run("workflows", "cancel", again_from)
        run("workflows", "retry", again_from, "--from-step", "reserve")
        app.tick(10)
        assert app.get(again_from).state == "waiting"
        run("workflows", "rollback", again_from, "--note", "enough")
        app.tick(10)
        ended = run.json("workflows", "show", again_from)
        assert (ended["state"], ended["error"]) == ("rolled_back", "enough")
        assert [each["state"] for each in ended["steps"]] == ["undone"]
        assert len(ended["set_aside"]) == 1


def test_a_question_that_was_set_aside_is_asked_again(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DB", url)
    with shop(url) as app:
        job = app.tasks["shop.checkout"].enqueue(1)
        app.tick(10)
        run("held", "fail", job.id)
        app.tick(10)
        run("workflows", "cancel", job.id)
        run("workflows", "retry", job.id, "--from-step", "Ship it?")
        app.tick(10)
        assert [one["id"] for one in run.json("held", "list")] == [job.id]
        run("held", "approve", job.id)
        run("workflows", "signal", job.id, "note")
        app.tick(10)
        assert job.result(timeout=60) == "1 True None"
