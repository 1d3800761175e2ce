"""holdfast doctor: each finding can be made to appear, says what to do, and decides the exit code."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest
from msgspec.structs import replace

from holdfast.app import App
from holdfast.cli.commands import command_of
from holdfast.cli.main import cli
from holdfast.core import acts
from holdfast.core.crash_fingerprint import call_of
from holdfast.core.limits import setting
from holdfast.core.machine import State
from holdfast.core.records import Published, Schedule
from holdfast.core.schedule import LATE_S
from holdfast.core.text import listed
from holdfast.core.verdict import Failed, Lost, Succeeded
from holdfast.insight import diagnosis, postgres_findings, sqlite_findings, tuning
from holdfast.insight.explain import explain
from holdfast.insight.findings import Finding
from holdfast.insight.format import moment, size
from holdfast.stores import open_store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite import facts, names
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import FakeClock
from tests.cli.conftest import Run, lose
from tests.factory import (
    EXPIRED,
    a_step,
    add,
    again,
    claim,
    delete,
    enrol,
    job_in,
    make_job,
    move,
    park,
    record,
    row,
    settle,
    start,
    start_flow,
)


@pytest.fixture
def calm(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store whose surroundings are as they should be, whatever machine this is."""
    surroundings(monkeypatch)
    monkeypatch.setattr("holdfast.upkeep.reaper.SECOND_LOOK_S", 0.0)
    return store


def surroundings(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    usual = {"has_the_defect": False, "free_bytes": 10**10, "filesystem": "ext4"}
    real = facts.look

    def look(db: Any) -> facts.SqliteFacts:
        return replace(real(db), **usual | changes)

    monkeypatch.setattr(facts, "look", look)


def diagnose(store: Store, clock: FakeClock, app: App | None = None) -> dict[str, Finding]:
    """The findings by their titles, with the store's own clock."""
    return {finding.title: finding for finding in diagnosis.diagnose(store, clock, app)}


def trouble(store: Store, clock: FakeClock, app: App | None = None) -> dict[str, str]:
    return {title: each.severity for title, each in diagnose(store, clock, app).items() if each.severity != "ok"}


def test_an_empty_store_is_well(run: Run, calm: Store, url: str) -> None:
    view = run.json("doctor")
    assert set(view) == {"store", "ok", "findings"}
    assert (view["ok"], view["store"]) == (True, url)
    assert all(set(finding) == {"severity", "title", "evidence", "fix"} for finding in view["findings"])
    assert {finding["severity"] for finding in view["findings"]} == {"ok"}
    shown = run("doctor")
    assert shown.stdout.count("✓ ok ") == len(view["findings"])
    assert shown.stderr == "Nothing to do.\n"
    assert run("doctor", "-q").output == ""
    assert run.json("doctor", "-q") == view


def test_quiet_shows_only_what_is_not_ok(run: Run, calm: Store) -> None:
    lose(calm)
    shown = run("doctor", "-q", code=7)
    assert "Zombies wait for a reaper: 1 job lost its worker: " in shown.stdout
    assert (shown.stdout.count(" ok "), shown.stderr) == (0, "")


def test_a_problem_ends_with_seven_and_stands_first(run: Run, calm: Store) -> None:
    add(calm)
    shown = run("doctor", code=7)
    assert shown.stdout.startswith("✗ problem  No worker is alive: jobs are due in default, the oldest for 1 min 4")
    assert "\n           fix: start one: holdfast worker APP\n" in shown.stdout
    assert shown.stderr == "1 problem.\n"
    assert run.json("doctor", code=7)["ok"] is False


def test_a_warning_ends_with_seven_too(run: Run, calm: Store) -> None:
    job_in(calm, State.DEAD)
    for worker in calm.workers():
        calm.retire(worker.id, "stopped")
    assert run("doctor", code=7).stderr == "1 warning.\n"


def test_where_there_is_no_store_it_makes_none(run: Run, folder: Path) -> None:
    shown = run("doctor", "--db", "sqlite:///nothing.db", code=3)
    assert "✗ problem  The store cannot be read: there is no store at" in shown.stdout
    assert list(folder.iterdir()) == []
    view = run.json("doctor", "--db", "sqlite:///nothing.db", code=3)
    fix = "if there was one, restore it from a backup; otherwise make one: holdfast db init"
    assert (view["ok"], [finding["fix"] for finding in view["findings"]]) == (False, [fix])


def test_a_schema_that_does_not_fit(run: Run, folder: Path, store: Store) -> None:
    with closing(sqlite3.connect(folder / "jobs.db", isolation_level=None)) as db:
        db.execute("UPDATE holdfast_meta SET value = '1' WHERE name = 'schema'")
        [finding] = run.json("doctor", code=7)["findings"]
        assert (finding["title"], finding["fix"]) == ("The schema is old", "holdfast db migrate")
        db.execute("UPDATE holdfast_meta SET value = '999' WHERE name IN ('schema', 'works_with')")
        [finding] = run.json("doctor", code=7)["findings"]
        assert (finding["title"], finding["fix"]) == ("The schema is too new for this program", "upgrade Holdfast")
    sqlite3.connect(folder / "other.db").close()
    (folder / "other.db").touch()
    [finding] = run.json("doctor", "--db", "sqlite:///other.db", code=7)["findings"]
    fix = "if there was one, restore it from a backup; otherwise make one: holdfast db init"
    assert (finding["title"], finding["fix"]) == ("There is no store here", fix)
    assert finding["evidence"].endswith("/other.db has no tables of Holdfast")


def test_a_store_that_takes_no_writes(run: Run, calm: Store, folder: Path) -> None:
    with closing(sqlite3.connect(folder / "jobs.db", isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        view = run.json("doctor", "--db", "sqlite:///jobs.db?busy_s=0.1", code=7)
    assert view["findings"][0]["title"] == "The store takes no writes"
    assert "locked by another transaction of this process" in view["findings"][0]["evidence"]
    assert "fuser" in view["findings"][0]["fix"]


def test_a_store_that_breaks_in_the_middle_still_shows_what_was_found(
    run: Run, calm: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: SqliteStore) -> list[str]:
        self._db.refuse("worker w uses it from another host")

    monkeypatch.setattr(SqliteStore, "queues", fail)
    view = run.json("doctor", code=3)
    assert view["findings"][0]["title"] == "The store cannot be read"
    assert "The schema is current" in [finding["title"] for finding in view["findings"]]


# ------------------------------------------------------------------------------------------ the medium


def test_the_size_of_a_store_includes_its_wal(calm: Store, clock: FakeClock, folder: Path) -> None:
    add(calm)
    wal = size((folder / "jobs.db-wal").stat().st_size)
    assert diagnose(calm, clock)["The file is sound"].evidence.endswith(f", with {wal} more in jobs.db-wal")


def test_damage(store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    surroundings(monkeypatch)
    monkeypatch.setattr(SqliteStore, "damage", lambda self: ["row 7 is missing from an index"])
    assert diagnose(store, clock)["The file is damaged"].severity == "problem"
    monkeypatch.setattr(sqlite_findings, "CHECKED_MAX", 1)
    assert "holdfast db check" in diagnose(store, clock)["Not checked for damage"].evidence


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_job_whose_worker_has_no_row_needs_no_backup(
    request: pytest.FixtureRequest, run: Run, folder: Path, kind: str
) -> None:
    address = f"sqlite:///{folder}/jobs.db" if kind == "sqlite" else str(request.getfixturevalue("postgres"))
    with closing(open_store(address)) as store:
        store.migrate()
        job = start(store, worker := enrol(store), lease_s=3600.0)
        remove = "DELETE FROM {table} WHERE id = '" + worker + "'"
        if kind == "sqlite":
            with closing(sqlite3.connect(folder / "jobs.db", isolation_level=None)) as connection:
                connection.execute(remove.format(table="holdfast_worker"))
        else:
            with psycopg.connect(address, autocommit=True) as connection:
                connection.execute(remove.format(table="holdfast.worker"))
        findings = run.json("doctor", "--db", address, code=7)["findings"]
        [found] = [each for each in findings if each["title"] == "A running job has a worker without a row"]
        assert job.id in found["evidence"]
        assert "holdfast scan --fix" in found["fix"]
        assert "backup" not in str([each["fix"] for each in findings if each["severity"] == "problem"])
        checked = run("db", "check", "--db", address, code=7)
        assert "restore it" not in checked.stderr
        assert "wait until the lease has run out" in checked.stderr


def test_a_row_that_cannot_be_read_is_named_with_what_removes_it(store: Store, clock: FakeClock, folder: Path) -> None:
    job = add(store)
    with sqlite3.connect(folder / "jobs.db") as connection:
        connection.execute("UPDATE holdfast_job SET payload = CAST(x'ff' AS TEXT)")
    connection.close()
    found = diagnose(store, clock)["A row cannot be read"]
    assert (found.severity, found.fix) == ("problem", f"holdfast jobs delete {job.id} removes it")
    assert "payload is not UTF-8" in found.evidence
    assert "The file is damaged" not in diagnose(store, clock)


def test_durability_is_explained(run: Run, calm: Store, url: str) -> None:
    def titles(address: str) -> list[str]:
        return [finding["title"] for finding in run.json("doctor", "--db", address)["findings"]]

    assert "Acknowledged jobs survive a power cut" in titles(url)
    assert "Acknowledged jobs survive kill -9" in titles(f"{url}?synchronous=normal")


def test_the_wal_reset_defect(store: Store, clock: FakeClock, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    surroundings(monkeypatch, has_the_defect=True, version="3.40.1")
    finding = diagnose(store, clock)["SQLite has a defect that Holdfast avoids"]
    assert (finding.severity, "SQLite 3.40.1 has the WAL-reset defect" in finding.evidence) == ("ok", True)
    with closing(sqlite3.connect(folder / "jobs.db")) as own:
        own.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    finding = diagnose(store, clock)["SQLite has a defect that concerns your own connections"]
    assert (finding.severity, "orders" in finding.evidence) == ("ok", True), "nobody sees whether they have it"
    assert "must run PRAGMA wal_autocheckpoint=0, which the doctor cannot see" in finding.evidence
    surroundings(monkeypatch)
    assert diagnose(store, clock)["SQLite is recent enough"].severity == "ok"


@pytest.mark.parametrize(
    ("changes", "title", "severity"),
    [
        ({"free_bytes": 10}, "The disk is full", "problem"),
        ({"free_bytes": 5 * 10**8}, "The disk is nearly full", "warning"),
        ({"max_mb": 1.0, "file_bytes": 10**6}, "The store is nearly full", "warning"),
        ({"wal_bytes": 10**8}, "The WAL cannot be copied back", "warning"),
        ({"events": 10**7}, "The journal is long", "warning"),
        ({"filesystem": "nfs4"}, "The file is on a network drive", "problem"),
        ({"links": 2}, "The file has more than one name", "problem"),
        ({"journal_mode": "delete"}, "The file is not in WAL mode", "problem"),
    ],
)
def test_the_surroundings(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, changes: Any, title: str, severity: str
) -> None:
    surroundings(monkeypatch, **changes)
    assert trouble(store, clock) == {title: severity}


def test_permissions(calm: Store, clock: FakeClock, folder: Path) -> None:
    folder.chmod(0o755)
    (folder / "jobs.db").chmod(0o644)
    finding = diagnose(calm, clock)["Other users may read the store"]
    assert (finding.severity, finding.fix) == ("warning", f"chmod go-rwx {folder}/jobs.db")
    folder.chmod(0o700)
    assert "Other users may read the store" not in diagnose(calm, clock), "nobody gets that far"
    folder.chmod(0o777)
    assert diagnose(calm, clock)["Other users may change the store"].severity == "problem"
    folder.chmod(0o1777)
    assert "Other users may change the store" not in diagnose(calm, clock), "a sticky folder is like /tmp"


def test_the_real_surroundings_can_be_read(store: Store, folder: Path) -> None:
    assert isinstance(store, SqliteStore)
    found = store.condition()
    assert (found.path, found.journal_mode, found.version) == (folder / "jobs.db", "wal", sqlite3.sqlite_version)
    assert (found.file_bytes > 0, found.free_bytes > 0, found.other_tables, found.events) == (True, True, [], 0)
    assert str(folder / "jobs.db-wal") in found.modes
    job_in(store, State.HELD)
    assert store.condition().events == 2


def test_the_file_system_is_found_by_its_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mounts"
    table.write_text(
        "22 1 8:1 / / rw - ext4 /dev/a rw\n"
        "23 22 0:5 / /srv/my\\040share rw,nosuid shared:1 - nfs4 host:/x rw\n"
        "24 22 0:6 / /srv/my rw - tmpfs tmpfs rw\n"
    )
    monkeypatch.setattr(names, "_MOUNTS", table)
    assert facts._filesystem(Path("/srv/my share/jobs.db")) == "nfs4"
    assert facts._filesystem(Path("/srv/my/jobs.db")) == "tmpfs"
    assert facts._filesystem(Path("/srv/mine/jobs.db")) == "ext4"
    monkeypatch.setattr(names, "_MOUNTS", tmp_path / "nothing")
    assert facts._filesystem(Path("/srv/jobs.db")) is None


def test_a_store_in_memory(clock: FakeClock) -> None:
    assert trouble(MemoryStore(clock=clock), clock) == {"Jobs are kept only in memory": "warning"}


# ------------------------------------------------------------------------------- workers, queues, tasks


def test_workers_that_live_are_silent_or_share_a_name(calm: Store, clock: FakeClock) -> None:
    add(calm)
    assert trouble(calm, clock) == {"No worker is alive": "problem"}
    enrol(calm, name="quiet", queues=["default"], beat_s=10.0, boot_id=clock.boot_id)
    clock.advance(60.5)
    enrol(calm, name="twin", queues=["default"])
    enrol(calm, name="twin", queues=["default"])
    found = diagnose(calm, clock)
    assert found["Workers are alive"].evidence == "2: twin, twin"
    assert found["A worker is silent"].evidence.startswith("quiet, pid 1 on h: last beat 1 min ago, one every 10 s")
    assert found["Living workers share a name"].severity == "ok"
    assert trouble(calm, clock) == {"A worker is silent": "warning"}


def test_a_worker_that_is_stopping_is_neither_silent_nor_counted(calm: Store, clock: FakeClock) -> None:
    stopping = enrol(calm, name="old", queues=["default"], version="1.0.0", beat_s=10.0)
    clock.advance(5)
    calm.beat(stopping, [], stopping=True)
    assert trouble(calm, clock) == {}
    assert diagnose(calm, clock)["Every worker is stopping"].evidence == "and nothing is due"
    add(calm)
    assert trouble(calm, clock) == {"Every worker is stopping": "problem"}
    enrol(calm, name="new", queues=["default"], version="1.1.0")
    found = diagnose(calm, clock)
    assert found["Workers are alive"].evidence == "1: new"
    assert found["Workers are stopping"].evidence == "old (0 running)"
    assert trouble(calm, clock) == {}


def test_a_standing_order_is_named_when_nobody_claims(calm: Store, clock: FakeClock) -> None:
    job = add(calm)
    calm.order("box", "drain", actor="ann", note="maintenance")
    found = diagnose(calm, clock)["No worker is alive"]
    assert found.evidence.endswith("; ann asked box to drain: maintenance")
    assert found.fix.startswith("let them claim again: holdfast workers resume box; or start one of another name")
    told = explain(calm, job)
    assert told.sentence.endswith("Workers that come claim nothing: ann asked box to drain: maintenance.")
    assert [command_of(act) for act in told.choices] == ["holdfast workers resume box"]
    enrol(calm, name="other", queues=["default"])
    assert trouble(calm, clock) == {}
    assert "ann" not in explain(calm, job).sentence


def test_workers_of_several_versions(calm: Store, clock: FakeClock) -> None:
    enrol(calm, version="1.0.0")
    enrol(calm, version="1.1.0")
    assert diagnose(calm, clock)["Workers run several versions"].evidence == "1.0.0, 1.1.0"


def test_queues(calm: Store, clock: FakeClock) -> None:
    enrol(calm, queues=["mail"])
    add(calm, queue="media")
    finding = diagnose(calm, clock)["No worker serves a queue"]
    assert (finding.severity, finding.fix) == ("problem", "holdfast worker APP --queues media")
    calm.pause("media", True)
    assert trouble(calm, clock) == {}
    clock.advance(3601)
    enrol(calm, queues=["mail"])
    assert diagnose(calm, clock)["A queue is paused"].fix == "if that is over: holdfast queues resume media"
    add(calm, queue="mail")
    clock.advance(601.5)
    enrol(calm, queues=["mail"])
    assert diagnose(calm, clock)["Due jobs wait for a free slot"].evidence.startswith(
        "mail: the oldest job has been due for 10 min"
    )


def test_limits_that_two_apps_declare_in_turn_are_named(calm: Store, clock: FakeClock, url: str) -> None:
    """A deploy that changes a limit once is no finding, nor is what a person chooses."""
    assert "Apps declare different limits for a queue" not in diagnose(calm, clock)
    calm.limit("mail", setting(limit=5), declared=True)
    calm.limit("mail", setting(limit=7, rate="5/s"), declared=True)
    for _ in range(3):
        calm.limit("mail", setting(limit=1), actor="ann")
        calm.limit("mail", setting(limit=2), actor="ann")
    assert "Apps declare different limits for a queue" not in diagnose(calm, clock)
    calm.limit("mail", setting(limit=5), declared=True)
    found = diagnose(calm, clock)["Apps declare different limits for a queue"]
    assert "mail: no limits and limit=5 and limit=7, rate=5/1s" in found.evidence
    assert "holdfast queues limit mail" in found.fix
    clock.advance(90_000)
    assert "Apps declare different limits for a queue" not in diagnose(calm, clock)


def test_an_app_that_declares_other_limits_than_hold_is_told(calm: Store, clock: FakeClock, url: str) -> None:
    app = App(url)
    app.queue("mail", limit=5)
    title = "The app declares other limits than hold"
    assert title not in diagnose(calm, clock, app)  # no worker of it has started yet
    calm.limit("mail", setting(limit=5), declared=True)
    assert title not in diagnose(calm, clock, app)
    calm.limit("mail", setting(limit=7), declared=True)
    assert "this app declares limit=5, and limit=7 holds" in diagnose(calm, clock, app)[title].evidence
    app.close()


def test_a_workflow_that_waits_for_a_deleted_job_is_named(calm: Store, clock: FakeClock) -> None:
    enrol(calm)
    parent = start_flow(calm, id="order-1", task="order")
    done, gone = (add(calm, parent=parent.id, run_at=clock.wall() + 60) for _ in range(2))
    park(calm, parent, f"job:{done.id}", f"job:{gone.id}", "signal:go")
    park(calm, start_flow(calm), "signal:go")
    assert trouble(calm, clock) == {}
    assert delete(calm, gone.id, gone.state, gone.fence)
    assert trouble(calm, clock) == {"A workflow waits for a job that does not exist": "problem"}
    finding = diagnose(calm, clock)["A workflow waits for a job that does not exist"]
    assert finding.evidence == f"order-1 (order) waits for {gone.id}"
    assert finding.fix.endswith("holdfast jobs cancel order-1; holdfast jobs retry order-1")


def test_a_task_that_no_living_worker_has_needs_no_more_slots(calm: Store, clock: FakeClock) -> None:
    add(calm, queue="mail", task="mail.old")
    clock.advance(601.5)
    enrol(calm, queues=["mail"], tasks={"mail.send": Published("mail")})
    assert trouble(calm, clock) == {"No worker serves a task": "problem"}
    finding = diagnose(calm, clock)["No worker serves a task"]
    assert finding.evidence == "mail: no living worker has mail.old (1 due job)"
    add(calm, queue="mail", task="mail.send")
    clock.advance(601.5)
    enrol(calm, queues=["mail"], tasks={"mail.send": Published("mail")})
    assert diagnose(calm, clock)["Due jobs wait for a free slot"].evidence.startswith(
        "mail: the oldest job has been due for 10 min,"
    )


def test_a_task_that_nobody_has_is_named_also_where_nobody_serves_its_queue(
    calm: Store, clock: FakeClock, url: str
) -> None:
    app = App(url)
    app.task(name="known")(lambda: None)
    add(calm, queue="mail", task="mail.old")
    clock.advance(5)
    found = diagnose(calm, clock, app)
    assert found["No worker is alive"].severity == "problem"
    assert found["Tasks are due that the app does not have"].evidence == "mail.old (1 job)"
    enrol(calm, queues=["default"], tasks={"known": Published("default")})
    for mine in (None, app):
        found = diagnose(calm, clock, mine)
        assert "No worker serves a queue" not in found, "a worker of that code would not help"
        finding = found["No worker serves a task"]
        assert finding.evidence == ("mail: no worker serves the queue, and no living worker has mail.old (1 due job)")
        assert finding.fix.startswith("run a worker of the code that has the task")
    assert found["Tasks are due that the app does not have"].evidence == "mail.old (1 job)"


def test_a_worker_is_started_from_an_app_that_has_the_task(calm: Store, clock: FakeClock, url: str) -> None:
    add(calm, queue="mail", task="mail.send")
    enrol(calm, queues=["default"], tasks={"known": Published("default")})
    app = App(url)
    app.task(name="mail.send", queue="mail")(lambda: None)
    found = diagnose(calm, clock, app)
    assert "No worker serves a task" not in found
    assert found["No worker serves a queue"].fix == "holdfast worker APP --queues mail"
    enrol(calm, queues=["other"], tasks={"mail.send": Published("mail")})
    assert diagnose(calm, clock, App(url))["No worker serves a queue"].fix == (
        "start a worker of the code that has mail.send: holdfast worker APP --queues mail"
    )


def test_a_workflow_whose_time_has_come_is_reported_like_a_due_job(calm: Store, clock: FakeClock) -> None:
    park(calm, start_flow(calm, queue="mail", task="mail.flow"), wake_at=clock.wall() + 60)
    clock.advance(120)
    finding = diagnose(calm, clock)["No worker is alive"]
    assert (finding.severity, finding.evidence) == ("problem", "jobs are due in mail, the oldest for 1 min")
    enrol(calm, queues=["other"])
    finding = diagnose(calm, clock)["No worker serves a queue"]
    assert finding.evidence == (
        "mail: the oldest job has been due for 1 min, 0 are ready, and 1 workflow has waited long enough"
    )
    enrol(calm, queues=["mail"], tasks={"mail.send": Published("mail")})
    finding = diagnose(calm, clock)["No worker serves a task"]
    assert finding.evidence == "mail: no living worker has mail.flow (1 due job)"
    clock.advance(601)
    enrol(calm, queues=["mail"], tasks={"mail.flow": Published("mail")})
    assert diagnose(calm, clock)["Due jobs wait for a free slot"].evidence.endswith(
        "and 1 workflow has waited long enough"
    )


def test_a_worker_without_tasks_is_not_healthy(calm: Store, clock: FakeClock) -> None:
    enrol(calm, name="box", queues=["default"], tasks={})
    finding = diagnose(calm, clock)["A worker has no tasks"]
    assert (finding.severity, finding.evidence) == ("warning", "box will run no jobs")


def test_tasks_that_the_app_does_not_have(calm: Store, clock: FakeClock, url: str) -> None:
    app = App(url)
    app.task(name="known")(lambda: None)
    enrol(calm, queues=["default"])
    for task, queue in (("known", "default"), ("elsewhere", "another")):
        park(calm, start_flow(calm, queue=queue, task=task), wake_at=clock.wall())
    add(calm, task="known")
    assert diagnose(calm, clock, app)["The app knows every task that is due"].severity == "ok"
    add(calm, task="renamed")
    add(calm, task="elsewhere", queue="another")
    park(calm, start_flow(calm, task="flow"), wake_at=clock.wall())
    finding = diagnose(calm, clock, app)["Tasks are due that the app does not have"]
    assert (finding.severity, finding.evidence) == ("problem", "flow (1 job), renamed (1 job)")


def test_an_app_brings_its_own_store(run: Run, calm: Store, url: str, folder: Path) -> None:
    (folder / "clinic.py").write_text(f"import holdfast\napp = holdfast.App({url!r})\n@app.task\ndef f(): ...\n")
    view = run.json("doctor", "clinic:app", "--db", url)
    assert "The app knows every task that is due" in [finding["title"] for finding in view["findings"]]
    run("doctor", "clinic:nothing", code=2)
    add(calm, task="clinic.f")
    [fix] = [each["fix"] for each in run.json("doctor", "clinic:app", "--db", url, code=7)["findings"] if each["fix"]]
    assert fix == "start one: holdfast worker clinic:app", "for all queues of the app, not only those that are behind"


# ------------------------------------------------------------------------------------------------ jobs


def test_jobs_that_wait_because_the_clock_was_set_back(run: Run, calm: Store, clock: FakeClock) -> None:
    add(calm, run_at=clock.wall() + 3 * 86_400)
    jobs = [add(calm) for _ in range(24)]
    clock.set_wall(clock.wall() - 59)
    assert trouble(calm, clock) == {}
    clock.set_wall(clock.wall() - 3550)
    add(calm, run_at=clock.wall() + 86_400)
    finding = diagnose(calm, clock)["The clock of the store was set back"]
    assert finding.severity == "warning"
    assert finding.evidence.startswith(
        "25 ready jobs were enqueued up to 1 h later than now, and will not start before"
    )
    assert jobs[-1].id in finding.evidence
    why = explain(calm, jobs[0]).sentence
    assert "The clock of the store was set back: the job was enqueued 1 h later than now." in why


def test_a_job_that_waits_because_the_clock_was_set_back_can_be_started_at_once(
    calm: Store, clock: FakeClock, url: str
) -> None:
    job = add(calm)
    clock.set_wall(clock.wall() - 3600)
    with App(url, clock=clock) as app:
        app.cancel(job.id)
        assert app.revive(job.id).row.run_at == pytest.approx(clock.wall(), abs=0.001)
    assert "The clock of the store was set back" not in trouble(calm, clock)


def test_zombies_that_nobody_reaps(run: Run, calm: Store) -> None:
    job = lose(calm)
    finding = run.json("doctor", code=7)["findings"][0]
    assert (finding["title"], job.id in finding["evidence"]) == ("Zombies wait for a reaper", True)
    assert row(calm, job.id).state is State.RUNNING, "nothing is changed"


def test_held_jobs(calm: Store, clock: FakeClock) -> None:
    first, _ = job_in(calm, State.HELD), job_in(calm, State.HELD)
    clock.advance(3600.5)
    finding = diagnose(calm, clock)["Held jobs wait for an answer"]
    assert (finding.severity, finding.evidence) == ("warning", f"2 held, {first.id} ({first.task}) for 1 h")
    assert finding.fix == "decide: holdfast held list"


def test_an_open_question_is_ok_and_still_something_to_do(run: Run, calm: Store) -> None:
    worker = enrol(calm)
    park(calm, start_flow(calm, worker), "signal:approve:2", question="Ship it?")
    calm.retire(worker, "stopped")
    shown = run("doctor")
    assert "Workflows wait for an answer" in shown.stdout
    assert "\n           fix: decide: holdfast held list\n" in shown.stdout
    assert shown.stderr == "Nothing is wrong; a job waits for a person's answer.\n"


def test_questions_to_people(calm: Store, clock: FakeClock) -> None:
    asks = park(calm, start_flow(calm), "signal:approve:2", question="Ship it?")
    clock.advance(3600.5)
    finding = diagnose(calm, clock)["Workflows wait for an answer"]
    assert (finding.severity, finding.evidence) == ("ok", f"1 asks a person, {asks.id} ({asks.task}) for 1 h")
    held = job_in(calm, State.HELD)
    clock.advance(86_400.5)
    finding = diagnose(calm, clock)["Held jobs wait for an answer"]
    evidence = f"1 held, {held.id} ({held.task}) for 1 d; 1 asks a person, {asks.id} ({asks.task}) for 1 d 1 h"
    assert (finding.severity, finding.evidence) == ("warning", evidence)


def test_the_fix_for_dead_jobs_is_a_whole_command(run: Run, calm: Store, clock: FakeClock) -> None:
    job = job_in(calm, State.DEAD)
    fix = str(diagnose(calm, clock)["More jobs died than the day before"].fix)
    run(*fix.rpartition("holdfast ")[2].split(), "-y")
    assert row(calm, job.id).state is State.READY


def test_dead_jobs_with_an_open_step_are_not_to_be_revived_with_the_others(calm: Store, clock: FakeClock) -> None:
    job = start_flow(calm)
    record(calm, job, a_step(1, "started", repeatable=False, name="charge"), open_step="charge")
    settle(calm, row(calm, job.id), EXPIRED)
    held = row(calm, job.id)
    move(calm, held.id, held.state, held.fence, acts.resolve(held, "fail", clock.wall(), actor="ann"))
    fix = str(diagnose(calm, clock)["More jobs died than the day before"].fix)
    assert "that leaves 1 alone, in which a step may have happened that must not be repeated" in fix


def test_dead_jobs_are_named_by_task_and_revived_task_by_task(
    run: Run, calm: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = moment(clock.wall())
    mails = [job_in(calm, State.DEAD, task="mail.send") for _ in range(2)]
    clock.advance(30)
    charge = job_in(calm, State.DEAD, task="charge it")
    finding = diagnose(calm, clock)["More jobs died than the day before"]
    tasks = f"mail.send (2 since {began}), charge it (1 since {moment(clock.wall())})"
    assert finding.evidence == f"3 dead; 3 gave up in 24 h, 0 in the day before; {tasks}"
    why, revive, other = str(finding.fix).split("; ")
    assert why == "see why: holdfast dead list --task mail.send"
    assert other == "holdfast dead revive --all --task 'charge it'"
    run(*revive.rpartition("holdfast ")[2].split(), "-y")
    assert [row(calm, job.id).state for job in (*mails, charge)] == [State.READY, State.READY, State.DEAD]
    monkeypatch.setattr(diagnosis, "DEAD_MAX", 1)
    assert (
        "; among the newest 1: charge it (1 since "
        in diagnose(calm, clock)["More jobs died than the day before"].evidence
    )


def test_jobs_that_fail_again_and_again_are_named_before_they_are_dead(calm: Store, clock: FakeClock) -> None:
    assert diagnose(calm, clock)["No job is retried after a failure"].severity == "ok"
    once = start(calm, task="shop.mail")
    settle(calm, once, Failed("ConnectionError: mail is away"))
    found = diagnose(calm, clock)["Jobs are retried after failures"]
    assert (found.severity, found.evidence) == ("ok", "shop.mail (1 job; ConnectionError: mail is away)")
    for _ in range(3):
        settle(calm, start(calm, task="shop.charge"), Failed("CardError: an older one"))
    clock.advance(60)
    for number, job in enumerate(claim(calm, tasks=["shop.charge"])):
        settle(calm, job, Failed(f"CardError: refused {number}\nTraceback"))
    settle(calm, again(calm, once), Succeeded())
    found = diagnose(calm, clock)["Jobs are retried after failures"]
    assert (found.severity, found.evidence) == ("warning", "shop.charge (3 jobs; CardError: refused 2)")
    assert found.fix == "see the errors: holdfast jobs list --state retrying --task shop.charge"
    clock.advance(diagnosis.FAILED_S + 1)
    assert "No job is retried after a failure" in diagnose(calm, clock)


def test_dead_jobs_that_grow_in_number(calm: Store, clock: FakeClock) -> None:
    for _ in range(2):
        job_in(calm, State.DEAD)
    assert "More jobs died than the day before" in trouble(calm, clock)
    clock.advance(86_401)
    job_in(calm, State.DEAD)
    found = diagnose(calm, clock)["No more jobs died than the day before"]
    assert found.evidence == "3 dead; 1 gave up in 24 h, 2 in the day before"


@pytest.mark.parametrize("most", [3, 4, 5])
def test_deaths_that_are_not_all_counted_are_told_as_the_least(
    calm: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(diagnosis, "DEATHS_MAX", most)
    monkeypatch.setattr(diagnosis, "_PAGE", 1)
    for _ in range(2):
        job_in(calm, State.DEAD)
    clock.advance(86_401)
    for _ in range(3):
        job_in(calm, State.DEAD)
    told = {3: "at least 3 gave up in 24 h", 4: "3 gave up in 24 h, at least 1 in the day before"}
    evidence = diagnose(calm, clock)["More jobs died than the day before"].evidence
    assert evidence.startswith(f"5 dead; {told.get(most, '3 gave up in 24 h, at least 2 in the day before')}; ")
    monkeypatch.setattr(diagnosis, "DEATHS_MAX", 6)
    evidence = diagnose(calm, clock)["More jobs died than the day before"].evidence
    assert evidence.startswith("5 dead; 3 gave up in 24 h, 2 in the day before; ")


def test_a_schedule_that_nobody_fires(run: Run, calm: Store, clock: FakeClock) -> None:
    clock.set_wall(minute := clock.wall() // 60 * 60)
    nightly = Schedule(key="nightly", spec="* * * * *", tz="UTC", job=make_job(id="", task="report"))
    calm.declare([nightly])
    clock.advance(LATE_S * 2)
    assert diagnose(calm, clock)["No schedule is late"].evidence == "nightly"
    clock.advance(1)
    finding, first = diagnose(calm, clock)["A schedule is late"], moment(minute + 60)
    assert (finding.severity, finding.evidence) == ("problem", f"nightly (report): no program fired {first}")
    assert str(finding.fix).endswith("to add its job now: holdfast schedules fire nightly")
    clock.advance(60)
    finding = diagnose(calm, clock)["A schedule is late"]
    assert f"no program fired {first} and 1 instant after it; the last program that declared" in finding.evidence
    assert finding.evidence.endswith("it did so 3 min 1 s ago")
    fix = str(finding.fix)
    run(*fix.rpartition("holdfast ")[2].split())
    assert "A schedule is late" not in diagnose(calm, clock)


def test_many_ended_jobs(calm: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "ENDED_MAX", 2)
    for state in (State.DONE, State.CANCELLED, State.DONE):
        job_in(calm, state)
    assert "holdfast db prune" in str(diagnose(calm, clock)["Many ended jobs are kept"].fix)


# -------------------------------------------------------------------------------------------- settings


def run_jobs(store: Store, clock: FakeClock, seconds: list[float], **given: Any) -> None:
    worker = enrol(store, name="busy", beat_s=1e6)
    for took in seconds:
        job = start(store, worker, **given)
        clock.advance(took)
        settle(store, job, Succeeded())


def test_a_lease_that_is_longer_than_needed(calm: Store, clock: FakeClock) -> None:
    run_jobs(calm, clock, [1.0], task="slow", lease_s=299.0)
    assert trouble(calm, clock) == {}
    run_jobs(calm, clock, [2.0], task="slow", lease_s=3600.0)
    finding = diagnose(calm, clock)["A lease is longer than needed"]
    assert finding.evidence == "slow: lease_s=3600, and runs take 2.0 s (95 of 100)"
    assert "lease_s=30 is enough" in str(finding.fix)


def test_a_time_limit_that_is_missing(calm: Store, clock: FakeClock) -> None:
    uneven = [2.0] * 19 + [70.0]
    run_jobs(calm, clock, uneven, task="limited", timeout_s=100.0)
    run_jobs(calm, clock, [2.0] * 18 + [70.0], task="rare")
    run_jobs(calm, clock, [2.0] * 19 + [59.0], task="short")
    run_jobs(calm, clock, [8.0] * 19 + [70.0], task="even")
    assert trouble(calm, clock) == {}
    run_jobs(calm, clock, uneven, task="uneven")
    finding = diagnose(calm, clock)["A time limit is missing"]
    assert finding.evidence.startswith("uneven: half of the runs take 2.0 s, 95 of 100 2.0 s, the longest took 1 min")
    assert finding.fix == "declare timeout_s=300 for the task"


def test_a_job_that_seems_to_hang(calm: Store, clock: FakeClock) -> None:
    run_jobs(calm, clock, [1.0] * 20, task="quick")
    job = start(calm, enrol(calm, beat_s=1e6, boot_id=clock.boot_id), task="quick", lease_s=10_000.0, beat_s=1000.0)
    clock.advance(59)
    assert "A job seems to hang" not in diagnose(calm, clock)
    clock.advance(2.5)
    finding = diagnose(calm, clock)["A job seems to hang"]
    assert f"{job.id} has run for 1 min 1 s; the longest before took 1.0 s" in finding.evidence


def test_beats_that_come_late(calm: Store, clock: FakeClock) -> None:
    worker = enrol(calm, name="busy", beat_s=10.0, boot_id=clock.boot_id)
    start(calm, worker, lease_s=30.0)
    clock.advance(19)
    assert trouble(calm, clock) == {}
    clock.advance(2.5)
    finding = diagnose(calm, clock)["Heartbeats are late"]
    assert finding.evidence == "worker busy gave no sign for 21 s; its shortest lease is 30 s"
    assert "lease_s=120" in str(finding.fix)
    start(calm, worker, lease_s=30.0)
    assert trouble(calm, clock) == {}, "a claim is a sign of life"


def test_a_worker_that_vanished_is_not_told_to_beat_sooner(calm: Store, clock: FakeClock) -> None:
    """Its machine was started again, so nobody beats any more."""
    start(calm, enrol(calm, name="lost", beat_s=10.0, boot_id="an earlier one"), lease_s=30.0)
    assert calm.vanished() == [], "it is looked at for a beat"
    clock.advance(21.5)
    found = diagnose(calm, clock)
    assert "Heartbeats are late" not in found
    assert found["No worker is alive"].severity == "ok"
    assert found["A worker vanished"].evidence.startswith("lost, pid 1 on h: last beat 21 s ago; its process has ended")
    assert "holdfast scan --fix" in str(found["A worker vanished"].fix)


def test_the_living_that_were_given_up(calm: Store, clock: FakeClock) -> None:
    zombies = [start(calm, enrol(calm), task="busy", lease_s=3.0) for _ in range(4)]
    clock.advance(4)
    for zombie in zombies:
        settle(calm, zombie, EXPIRED)
    assert diagnose(calm, clock)["Workers that were declared dead were dead"].severity == "ok"
    settle(calm, zombies[0], Succeeded())
    finding = diagnose(calm, clock)["Living workers are declared dead"]
    assert finding.evidence == "1 of 4 zombies in a day reported later; more than 5% is too many"
    assert str(finding.fix).startswith("lease_s=5 for busy (now 3)")


def test_crashes_that_are_no_chance(calm: Store, clock: FakeClock) -> None:
    for _ in range(4):
        job = start(calm, task="fragile", base_s=0.0, cap_s=0.0)
        settle(calm, job, EXPIRED)
        settle(calm, again(calm, row(calm, job.id)), Succeeded())
    finding = diagnose(calm, clock)["Workers die often"]
    assert finding.evidence == "4 attempts in 24 h; 4 of the newest 4 done jobs (100%) had lost a worker"
    worker = enrol(calm)
    for _ in range(400):
        settle(calm, start(calm, worker), Succeeded())
    assert diagnose(calm, clock)["Workers die rarely"].evidence == "4 attempts in 24 h lost their worker"
    for _ in range(5):
        settle(calm, start(calm, worker), EXPIRED)
    finding = diagnose(calm, clock)["Workers die often"]
    assert finding.evidence == "9 attempts in 24 h; 9 of all 409 jobs (2%) had lost a worker"


def test_a_job_that_kills_its_workers(calm: Store, clock: FakeClock) -> None:
    job = start(calm, task="poison", crashes_max=99, attempts_max=99, base_s=0.0, cap_s=0.0)
    for _ in range(4):
        settle(calm, job, EXPIRED)
        clock.advance(1)
        job = again(calm, row(calm, job.id))
    finding = diagnose(calm, clock)["Jobs keep losing their worker"]
    assert finding.evidence == f"over their life: {job.id} (poison, 4 times)"
    assert finding.fix == f"find out what kills it: holdfast jobs show {job.id}"


def test_a_call_that_crashes_under_one_id_after_the_other(calm: Store, clock: FakeClock) -> None:
    title, alone = "The same call crashes under new ids", Lost("exit", "it was killed by SIGSEGV", suspects=1)
    for _ in range(2):
        settle(calm, start(calm, task="poison", payload='{"n":7}', on_crash="fail"), alone)
    assert title not in diagnose(calm, clock)
    job = start(calm, task="poison", payload='{"n":7}', on_crash="fail")
    settle(calm, job, alone)
    clock.advance(5)
    finding = diagnose(calm, clock)[title]
    digest = call_of(job).digest
    assert finding.severity == "warning"
    assert finding.evidence == f"3 jobs of poison with arguments #{digest}; last seen 5.0 s ago"
    assert str(finding.fix).startswith(f"see what kills them: holdfast jobs show {job.id}; ")


@pytest.mark.parametrize(("seconds", "chosen"), [(0.5, 5), (5, 5), (29.9, 30), (31, 60), (90_000.4, 90_000)])
def test_lengths_that_people_would_choose(seconds: float, chosen: float) -> None:
    assert tuning.nice(seconds) == chosen


def test_a_sample_leaves_out_what_the_clock_made_negative(calm: Store, clock: FakeClock) -> None:
    job = start(calm, task="t1")
    clock.set_wall(clock.wall() - 1000)
    settle(calm, job, Succeeded())
    assert tuning.sample(calm).runs == {}
    assert tuning.sample(calm).jobs == 1


# ------------------------------------------------------------------------------------------------ words


def test_every_command_in_a_fix_is_one(calm: Store) -> None:
    sources = [
        Path(str(module.__file__)).read_text() for module in (diagnosis, sqlite_findings, postgres_findings, tuning)
    ]
    commands = {match[1] for source in sources for match in re.finditer(r"(holdfast [a-z]+(?: [a-z]+)?)", source)}
    named = {command for command in commands if command.split()[1] not in ("does", "cannot")}
    assert len(named) > 8
    for command in named:
        _, noun, *verb = command.split()
        found = cli.get_command(click.Context(cli), noun)
        assert found is not None, command
        if isinstance(found, click.Group):
            assert verb, command
            assert found.get_command(click.Context(found), verb[0]) is not None, command


def test_words_of_job_data_cannot_write_to_the_terminal(run: Run, calm: Store) -> None:
    lose(calm, id="a\x1b[31mb\nc")
    shown = run("doctor", code=7).stdout
    assert "\x1b" not in shown
    assert "a\\x1b[31mb\\nc" in shown


def test_without_unicode_the_signs_are_plain(store: Store, url: str) -> None:
    add(store)
    words = [sys.executable, "-m", "holdfast", "doctor", "--db", url]
    result = subprocess.run(words, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert result.returncode == 7
    assert result.stdout.startswith(b"x problem  No worker is alive")
    assert b"\n+ ok       The schema is current" in result.stdout


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (42_000, "42 kB"), (1e6, "1.0 MB"), (5e13, "50 TB")],
)
def test_sizes(number: float, words: str) -> None:
    assert size(number) == words


def test_many_words_are_cut_short() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed(list("abcdefg"), 3) == "a, b, c and 4 more"
