"""holdfast jobs export: all of it, in bounded memory, in a form that other programs can trust."""

from __future__ import annotations

import csv
import io
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from holdfast import insight
from holdfast.core.machine import State
from holdfast.core.verdict import Failed, Succeeded
from holdfast.insight import Selection, views
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.cli.conftest import Run
from tests.factory import add, delete, job_in, make_job, settle, start

RECORD = {
    *("id", "task", "queue", "state", "attempt", "fence", "failures", "crashes", "run_at", "worker", "lease_until"),
    *("stop_reason", "rollback_cause", "fingerprint", "release"),
    *("error", "result", "progress", "log", "key", "group", "priority", "arguments", "on_crash", "zombies"),
    *(
        "created_at",
        "claimed_at",
        "ended_at",
        "events",
        "steps",
        "batch",
        "key_scope",
        "beat_data",
        "expires_at",
        "tags",
        "after",
        "meta",
    ),
}


def lines(run: Run, *args: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("jobs", "export", *args).stdout.splitlines()]


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_every_job_with_its_arguments_and_history(run: Run, store: Store) -> None:
    jobs = [job_in(store, state, payload='{"n": 12345678901234567890}') for state in State]
    found = lines(run)
    assert [record["id"] for record in found] == [job.id for job in reversed(jobs)]
    assert all(set(record) == RECORD for record in found)
    assert {record["state"] for record in found} == {state.value for state in State}
    assert all(record["arguments"] == {"n": 12345678901234567890} for record in found)
    held = next(record for record in found if record["state"] == "held")
    assert [event["kind"] for event in held["events"]] == ["zombie", "held"]
    assert run("jobs", "export").stderr == "8 jobs exported.\n"
    assert run("-q", "jobs", "export").stderr == ""


def test_a_job_with_many_events_is_exported_with_all_of_them(
    run: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "_FEW_EVENTS", 1)
    jobs = [job_in(store, state).id for state in (State.DEAD, State.READY, State.HELD)]
    found = {line["id"]: [event["kind"] for event in line["events"]] for line in lines(run)}
    assert found == {job_id: [event.kind for event in store.journal(job_id)] for job_id in jobs}
    assert found[jobs[0]] == ["failed", "dead"]


def test_nothing_is_an_empty_file(run: Run, store: Store) -> None:
    assert run("jobs", "export").stdout == run("jobs", "export", "--format", "csv").stdout == ""


def test_filters(run: Run, store: Store, clock: FakeClock) -> None:
    old = add(store, queue="mail")
    clock.advance(50)
    mail, media = add(store, queue="mail", task="send"), add(store, queue="media", delay_s=1000.0)
    dead = job_in(store, State.DEAD)

    def ids(*args: str) -> list[str]:
        return [record["id"] for record in lines(run, *args)]

    assert ids("--queue", "mail") == [mail.id, old.id]
    assert ids("--task", "send") == [mail.id]
    assert ids("--state", "dead") == [dead.id]
    assert ids("--state", "scheduled") == [media.id]
    assert ids("--state", "ready", "--state", "dead") == [dead.id, media.id, mail.id, old.id]
    assert ids("--since", "75s") == [dead.id, media.id, mail.id]
    assert ids("--since", "75s", "--queue", "mail") == [mail.id]


def test_the_time_is_that_of_the_end_and_else_of_the_enqueue(run: Run, store: Store, clock: FakeClock) -> None:
    old, ended = add(store), start(store)
    clock.advance(50)
    settle(store, ended, Succeeded("7"))
    assert [record["id"] for record in lines(run, "--since", "75s")] == [ended.id]
    assert [record["id"] for record in lines(run, "--until", "75s")] == [old.id]


def test_a_file_appears_when_it_is_complete_and_is_private(run: Run, store: Store, folder: Path) -> None:
    add(store)
    assert run("jobs", "export", "-o", "out.jsonl").stderr == "1 job exported to out.jsonl.\n"
    assert (folder / "out.jsonl").read_text().count("\n") == 1
    assert (folder / "out.jsonl").stat().st_mode & 0o777 == 0o600
    assert not (folder / "out.jsonl.part").exists()
    assert "cannot write" in run("jobs", "export", "-o", "nowhere/out.jsonl", code=2).stderr


def test_an_export_refuses_a_file_that_another_user_prepared(run: Run, store: Store, folder: Path) -> None:
    add(store)
    victim, trap = folder / "victim", folder / "out.jsonl.part"
    victim.write_text("precious")
    trap.symlink_to(victim)
    run("jobs", "export", "-o", "out.jsonl")
    assert victim.read_text() == "precious"
    assert trap.is_symlink()
    assert (folder / "out.jsonl").read_text().count("\n") == 1
    assert not (folder / "out.jsonl").is_symlink()
    assert [path for path in folder.glob("*.part") if path != trap] == []


def test_an_export_replaces_no_file_unless_it_is_forced(run: Run, store: Store, folder: Path) -> None:
    add(store)
    old = folder / "out.jsonl"
    old.write_text("precious")
    said = run("jobs", "export", "-o", "out.jsonl", code=2).stderr
    assert said == "holdfast: out.jsonl exists; name a new file, or replace it with --force\n"
    assert old.read_text() == "precious"
    run("jobs", "export", "-o", "out.jsonl", "--force")
    assert old.read_text().count("\n") == 1
    assert not list(folder.glob("*.part"))


def test_an_export_replaces_no_file_that_was_made_meanwhile(
    run: Run, store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, target = os.link, folder / "out.jsonl"

    def late(source: Path, name: Path) -> None:
        target.write_text("precious")
        link(source, name)

    add(store)
    monkeypatch.setattr(os, "link", late)
    assert "out.jsonl exists" in run("jobs", "export", "-o", "out.jsonl", code=2).stderr
    assert target.read_text() == "precious"
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "forced"])
@pytest.mark.parametrize(
    "name", ["jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db-journal", "jobs.db-doubt", "jobs.db-workers/new.lock"]
)
def test_an_export_never_becomes_a_file_of_the_store(
    run: Run, store: Store, folder: Path, name: str, force: list[str]
) -> None:
    job = start(store)
    before = {path: path.stat().st_ino for path in folder.rglob("*")}
    (folder / "link").symlink_to(folder)
    for path in (name, f"link/{name}", str(folder / name)):
        said = run("jobs", "export", "-o", path, *force, code=2).stderr
        assert said == f"holdfast: {path} is a name of the store's own files; choose another\n"
    (folder / "link").unlink()
    assert {path: path.stat().st_ino for path in folder.rglob("*")} == before
    assert store.check() == []
    assert run.json("jobs", "show", job.id)["id"] == job.id


def test_an_export_never_replaces_the_store_by_another_name(run: Run, store: Store, folder: Path) -> None:
    add(store)
    alias = folder / "alias"
    alias.symlink_to(folder / "jobs.db")
    assert "the store's own files" in run("jobs", "export", "-o", "alias", "--force", code=2).stderr
    assert alias.is_symlink()


def test_a_forced_export_replaces_regular_files_only(run: Run, store: Store, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(folder / "nowhere")
    for name in ("pipe", "link"):
        assert f"{name} is not a regular file" in run("jobs", "export", "-o", name, "--force", code=2).stderr
    assert (folder / "pipe").is_fifo()
    assert (folder / "link").is_symlink()


def test_an_export_to_a_dash_goes_to_stdout(run: Run, store: Store, folder: Path) -> None:
    add(store)
    found = run("jobs", "export", "-o", "-")
    assert found.stdout.count("\n") == 1
    assert found.stderr == "1 job exported.\n"


def test_an_export_that_fails_leaves_the_old_file(
    run: Run, store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store)
    (folder / "out.jsonl").write_text("the old one")

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(insight, "job_records", fail)
    run("jobs", "export", "-o", "out.jsonl", "--force", code=130)
    assert (folder / "out.jsonl").read_text() == "the old one"
    assert sorted(os.listdir(folder))[-1] == "out.jsonl"


def test_a_table_for_spreadsheets(run: Run, store: Store) -> None:
    job = start(store, payload='{"a": [1, 2]}', key="k", priority=-3)
    settle(store, job, Failed('line one\nline "two"'))
    [found] = table(run("jobs", "export", "--format", "csv").stdout)
    assert set(found) == RECORD - {"steps"}
    assert (found["id"], found["key"], found["priority"], found["events"]) == (job.id, "k", "-3", "1")
    assert (found["arguments"], found["error"]) == ('{"a": [1, 2]}', 'line one\nline "two"')
    assert (found["result"], found["worker"]) == ("", "")


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "=cmd|' /C calc'!A0"])
def test_no_text_is_a_formula(run: Run, store: Store, text: str) -> None:
    add(store, key=text, task=f"t{text}")
    job = start(store, payload=json.dumps(text))
    settle(store, job, Succeeded(json.dumps(text)))
    done, ready = table(run("jobs", "export", "--format", "csv").stdout)
    assert done["result"] == done["arguments"] == ready["key"] == f"'{text}"
    assert ready["task"] == f"t{text}"


@pytest.mark.parametrize(
    ("value", "cell"), [(True, "true"), (False, "false"), (-5, "-5"), (0.5, "0.5"), ("", ""), ("plain", "plain")]
)
def test_numbers_and_flags_stay_what_they_are(run: Run, store: Store, value: object, cell: str) -> None:
    settle(store, start(store), Succeeded(json.dumps(value)))
    [found] = table(run("jobs", "export", "--format", "csv").stdout)
    assert found["result"] == cell


def test_what_a_terminal_would_obey_is_escaped(run: Run, store: Store) -> None:
    add(store, task="a\x1b[31mb\x9bc\u202ed")
    out = run("jobs", "export").stdout
    assert "\x1b" not in out
    assert "\x9b" not in out
    assert "\u202e" not in out
    assert json.loads(out)["task"] == "a\x1b[31mb\x9bc\u202ed"


@pytest.mark.slow  # forty megabytes, and every allocation is traced
def test_any_number_of_rows_in_bounded_memory(store: Store, run: Run, folder: Path) -> None:
    payload = json.dumps("x" * 20_000)
    for _ in range(10):
        store.add([make_job(payload=payload) for _ in range(200)])
    tracemalloc.start()
    run("jobs", "export", "-o", "out.jsonl")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (folder / "out.jsonl").stat().st_size > 40_000_000
    assert peak < 25_000_000


def test_jobs_that_come_or_go_meanwhile_do_not_disturb(store: Store) -> None:
    jobs = [add(store) for _ in range(9)][::-1]
    found = []
    for record in insight.job_records(store, insight.selected(store, Selection(), page=3), 3):
        found.append(record["id"])
        add(store)
        if len(found) == 3:
            delete(store, jobs[2].id, State.READY, 0)
    assert found == [job.id for job in jobs]
