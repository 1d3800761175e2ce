"""Every exit code, and the one sentence on stderr that goes with it. Nothing is changed by a command that fails."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.cli.exit_codes import Exit, code_of
from holdfast.core.machine import State
from holdfast.stores.protocol import Store
from holdfast.stores.sql import parse_migration
from holdfast.stores.sqlite import store as sqlite
from holdfast.testing import FakeClock
from tests.cli.conftest import PAST_S, Run, lose
from tests.factory import EXPIRED, add, again, job_in, picture, row, settle

READS = [
    ("jobs", "list"),
    ("jobs", "show", "job-1"),
    ("held", "list"),
    ("dead", "list"),
    ("queues", "list"),
    ("schedules", "list"),
    ("workers", "list"),
    ("scan",),
    ("scan", "--fix"),
    ("db", "status"),
    ("db", "check"),
]
ACTS = [
    ("jobs", "retry", "job-1"),
    ("jobs", "cancel", "job-1"),
    ("jobs", "delete", "-y", "job-1"),
    ("held", "approve", "job-1"),
    ("held", "done", "job-1"),
    ("held", "fail", "job-1"),
    ("dead", "revive", "job-1"),
    ("dead", "revive", "--all", "-y"),
    ("dead", "purge", "-y", "--older-than", "1d"),
    ("queues", "pause", "default"),
    ("queues", "resume", "default"),
    ("schedules", "pause", "nightly"),
    ("schedules", "fire", "nightly"),
    ("db", "migrate"),
    ("db", "prune", "--older-than", "1d"),
]


def test_each_kind_of_error_has_its_code() -> None:
    kinds = {
        errors.UsageError: 2,
        errors.BadURL: 2,
        errors.PayloadError: 2,
        errors.UnknownTask: 2,
        errors.StoreUnavailable: 3,
        errors.StoreFull: 3,
        errors.StoreReadOnly: 3,
        errors.StoreMissing: 3,
        errors.StoreLost: 3,
        errors.FileReplaced: 3,
        errors.SchemaMismatch: 4,
        errors.NotFound: 5,
        errors.Refused: 6,
        errors.IllegalMove: 6,
        errors.KeyTaken: 6,
        errors.WorkerGone: 1,
    }
    assert {kind: int(code_of(kind("x"))) for kind in kinds} == kinds
    assert Exit.UNHEALTHY == 7


@pytest.mark.parametrize("command", [*READS, *ACTS])
def test_a_store_that_is_not_there_is_3_and_is_not_made(run: Run, folder: Path, command: tuple[str, ...]) -> None:
    result = run(*command, code=3)
    assert result.stderr.startswith("holdfast: there is no store at ")
    assert "holdfast db init" in result.stderr
    assert result.stdout == ""
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("command", [("jobs", "list"), ("jobs", "cancel", "x"), ("db", "status"), ("db", "migrate")])
def test_a_file_that_holds_no_store_is_3_and_is_left_alone(run: Run, folder: Path, command: tuple[str, ...]) -> None:
    with closing(sqlite3.connect(folder / "other.db")) as other:
        other.execute("CREATE TABLE mine (x)")
    before = (folder / "other.db").read_bytes()
    result = run("--db", "sqlite:///other.db", *command, code=3)
    assert "there is no Holdfast store in sqlite:///other.db" in result.stderr
    assert (folder / "other.db").read_bytes() == before
    assert [path.name for path in folder.iterdir()] == ["other.db"]


def test_a_file_that_is_no_database_is_3(run: Run, folder: Path) -> None:
    (folder / "x.db").write_bytes(b"not a database, and long enough to be read as a header of one" * 20)
    assert "not a SQLite file" in run("jobs", "list", "--db", "sqlite:///x.db", code=3).stderr


@pytest.mark.parametrize("command", [*READS, *ACTS])
def test_a_schema_that_is_too_new_is_4(run: Run, store: Store, folder: Path, command: tuple[str, ...]) -> None:
    with sqlite3.connect(folder / "jobs.db") as db:
        db.execute("UPDATE holdfast_meta SET value = '99' WHERE name IN ('schema', 'works_with')")
    db.close()
    assert "upgrade" in run(*command, code=4).stderr


@pytest.mark.parametrize("command", [*READS, *(act for act in ACTS if act != ("db", "migrate"))])
def test_an_older_schema_is_4_and_says_how_to_migrate(
    run: Run, store: Store, url: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    new = parse_migration(2, "CREATE TABLE holdfast_new (x);")
    monkeypatch.setattr(sqlite, "_MIGRATIONS", [*sqlite._MIGRATIONS, new])
    assert f"holdfast db migrate --db {url}" in run(*command, code=4).stderr


@pytest.mark.parametrize("job_id", ["unknown", "", "01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d", "'; DROP", "\udcff", "☃"])
@pytest.mark.parametrize("command", [("jobs", "show"), ("jobs", "cancel"), ("held", "approve"), ("dead", "revive")])
def test_an_unknown_or_malformed_id_is_5(run: Run, store: Store, command: tuple[str, ...], job_id: str) -> None:
    result = run(*command, "--", job_id, code=5)
    assert result.stderr.startswith("holdfast: there is no job")
    assert result.stderr.endswith("; see `holdfast jobs list`\n")


def test_an_id_is_exact(run: Run, store: Store) -> None:
    add(store, id="abcdef")
    run("jobs", "show", "abcde", code=5)
    run("jobs", "show", "ABCDEF", code=5)
    run("jobs", "show", "abcdef")


def test_a_page_after_an_unknown_job_is_5(run: Run, store: Store) -> None:
    run("jobs", "list", "--before", "nobody", code=5)


@pytest.mark.parametrize(
    ("state", "command"),
    [
        (State.READY, ("jobs", "retry")),
        (State.DONE, ("jobs", "retry")),
        (State.RUNNING, ("jobs", "retry")),
        (State.DONE, ("jobs", "cancel")),
        (State.DEAD, ("jobs", "cancel")),
        (State.RUNNING, ("jobs", "delete", "-y")),
        (State.DEAD, ("held", "approve")),
        (State.READY, ("held", "done")),
        (State.DONE, ("held", "fail")),
        (State.ROLLED_BACK, ("dead", "revive")),
    ],
)
def test_an_act_that_the_state_does_not_allow_is_6(
    run: Run, store: Store, state: State, command: tuple[str, ...]
) -> None:
    job = job_in(store, state)
    before = picture(store)
    result = run(*command, job.id, code=6)
    assert state.value in result.stderr
    assert picture(store) == before


def test_a_job_that_moved_on_between_look_and_act_is_6_with_its_present_state(
    run: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = job_in(store, State.HELD)
    run("held", "approve", held.id)
    stale = [held]  # the second person looked before the first one answered
    get = sqlite.SqliteStore.get
    monkeypatch.setattr(sqlite.SqliteStore, "get", lambda self, id: stale.pop() if stale else get(self, id))
    before = picture(store)
    result = run("held", "approve", held.id, code=6)
    assert "is ready" in result.stderr
    assert picture(store) == before


def test_a_key_that_another_live_job_has_is_6(run: Run, store: Store) -> None:
    dead = job_in(store, State.DEAD, key="order-42")
    add(store, key="order-42")
    assert "key" in run("dead", "revive", dead.id, code=6).stderr


def test_a_second_approval_is_6_and_starts_nothing(run: Run, store: Store) -> None:
    held = job_in(store, State.HELD)
    run("held", "approve", held.id)
    run("held", "approve", held.id, code=6)
    assert [event.kind for event in store.journal(held.id)].count("revived") == 1


@pytest.mark.parametrize(
    ("state", "command"),
    [
        (State.HELD, ("held", "approve")),
        (State.HELD, ("held", "done")),
        (State.HELD, ("held", "fail")),
        (State.HELD, ("jobs", "retry")),
        (State.READY, ("jobs", "cancel")),
        (State.RUNNING, ("jobs", "cancel")),
        (State.DEAD, ("dead", "revive")),
        (State.DEAD, ("jobs", "delete", "-y")),
    ],
)
def test_an_act_on_another_fence_than_the_present_one_is_6(
    run: Run, store: Store, state: State, command: tuple[str, ...]
) -> None:
    job = job_in(store, state)
    before = picture(store)
    for fence in {job.fence + 1, max(0, job.fence - 1)} - {job.fence}:
        told = run(*command, job.id, "--fence", str(fence), code=6).stderr
        assert f"job {job.id} is {state.value} with fence {job.fence} by now" in told
    assert picture(store) == before
    run(*command, job.id, "--fence", str(job.fence))
    assert picture(store) != before


def test_an_approval_meant_for_an_earlier_time_starts_no_second_run(run: Run, store: Store, clock: FakeClock) -> None:
    held = job_in(store, State.HELD)
    clock.advance(2 * PAST_S)
    run("held", "approve", held.id, "--fence", str(held.fence))
    settle(store, again(store, row(store, held.id)), EXPIRED)
    assert row(store, held.id).state is State.HELD  # and looks as it did before
    run("held", "approve", held.id, "--fence", str(held.fence), code=6)
    assert row(store, held.id).state is State.HELD


def test_of_several_jobs_each_is_tried_and_the_first_trouble_is_the_code(run: Run, store: Store) -> None:
    first, second = job_in(store, State.DEAD), job_in(store, State.DEAD)
    result = run("jobs", "retry", first.id, "nobody", job_in(store, State.DONE).id, second.id, code=5)
    assert result.stdout.split() == [first.id, "ready", second.id, "ready"]
    assert result.stderr.count("holdfast: ") == 2


def test_check_is_7_when_zombies_were_found_and_0_otherwise(run: Run, store: Store) -> None:
    run("scan", "--check")
    lose(store)
    run("scan")
    run("scan", "--check", code=7)
    run("scan", "--check", "--fix", code=7)
    run("scan", "--check")


def test_a_damaged_store_is_7(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite.SqliteStore, "damage", lambda self: ["row 3 missing from index"])
    assert "holdfast: row 3 missing from index" in run("db", "check", code=7).stderr
    assert run.json("db", "check", code=7) == {"ok": False, "findings": ["row 3 missing from index"]}


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["jobs"],
        ["jobs", "show"],
        ["jobs", "list", "--state", "sleeping"],
        ["jobs", "list", "--limit", "0"],
        ["jobs", "list", "--queue", "\udcff"],
        ["scan", "--grace", "soon"],
        ["scan", "--grace", "-1"],
        ["worker", "jobs:app", "--slots", "0"],
        ["dead", "revive"],
        ["dead", "revive", "x", "--all"],
        ["dead", "revive", "x", "--queue", "q"],
        ["dead", "revive", "--all", "--fence", "2", "-y"],
        ["jobs", "retry", "x", "y", "--fence", "2"],
        ["jobs", "cancel", "x", "y", "--fence", "2"],
        ["jobs", "delete", "x", "y", "--fence", "2", "-y"],
        ["held", "approve", "x", "--fence", "new"],
        ["dead", "purge"],
        ["db", "prune", "--older-than", "1d", "--states", "running"],
        ["--db", "mysql://nowhere", "jobs", "list"],
        ["--db", "sqlite:///x.db?color=blue", "jobs", "list"],
    ],
)
def test_what_was_written_wrongly_is_2(run: Run, folder: Path, words: list[str]) -> None:
    result = run(*words, code=2)
    assert result.stderr
    assert result.stdout == ""
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("command", [("jobs", "delete", "x"), ("dead", "purge", "--older-than", "1d")])
def test_what_cannot_be_undone_wants_a_yes_where_nobody_can_be_asked(
    run: Run, store: Store, command: tuple[str, ...]
) -> None:
    assert "add -y" in run(*command, code=2).stderr


def test_a_mistake_shows_a_traceback_only_when_asked_to(run: Run, store: Store) -> None:
    assert "Traceback" not in run("jobs", "show", "x", code=5).stderr
    assert "Traceback" in run("-v", "jobs", "show", "x", code=5).stderr
    assert "Traceback" in run("jobs", "show", "x", "-v", code=5).stderr


def test_no_zombie_is_changed_without_fix(run: Run, store: Store) -> None:
    lose(store)
    before = picture(store)
    run("scan")
    run("scan", "--check", code=7)
    assert picture(store) == before
