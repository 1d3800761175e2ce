"""A connection of the user's own that keeps the only write lock of a SQLite file, inside a process of ours."""

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from holdfast import App
from holdfast.clock import SystemClock
from holdfast.continuity import Continuity
from holdfast.errors import FileLocked
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite import locks
from holdfast.worker.heartbeat import LOCKED_BEATS, Heartbeat
from tests.stores.test_protected import worker
from tests.worker.house import until

LEASE_S = 3.0

FORGETFUL = """
import sqlite3, time
from holdfast import App

app = App("sqlite:///jobs.db?busy_s=600")
leaked = []

def leak(name):
    db = sqlite3.connect("jobs.db", isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    db.execute("CREATE TABLE IF NOT EXISTS mine (x)")
    leaked.append(db)
    with open("leaks", "a") as file:
        file.write(name + "\\n")

def once(name):
    with open("leaks", "a+") as file:
        file.seek(0)
        return name not in file.read()

@app.task(lease_s=3)
def plain() -> None:
    if once("plain"):
        leak("plain")

@app.task(lease_s=3)
def always(hangs: bool) -> None:
    leak("always")
    if hangs:
        time.sleep(600)

@app.task(lease_s=3, isolate=True)
def isolated() -> None:
    if once("isolated"):
        leak("isolated")

@app.task(lease_s=3)
def innocent() -> None: ...
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "isolated"])
def test_a_handler_that_leaves_a_transaction_of_its_own_open_stops_the_store_for_a_lease_at_most(
    tmp_path: Path, kind: str
) -> None:
    """Slow: the worker must first be sure. Nobody could write while that process lived."""
    (tmp_path / "forgetful.py").write_text(FORGETFUL)
    with App(f"sqlite:///{tmp_path}/jobs.db?busy_s=50") as app:
        leaky = app.task(name=f"forgetful.{kind}", lease_s=3)(lambda: None)
        innocent = app.task(name="forgetful.innocent", lease_s=3)(lambda: None)
        with worker(tmp_path, "forgetful:app"):
            innocent.enqueue().result(60)
            first = leaky.enqueue()
            leaks = tmp_path / "leaks"
            until(lambda: leaks.exists() and leaks.read_text(), "the handler leaks it", 60)
            second = innocent.enqueue()  # waits for the lock
            locked_s = time.time() - leaks.stat().st_mtime
            second.result(60)
            first.result(60)
        assert locked_s < 10 * LEASE_S, "a lease, on a machine that is not busy; otherwise busy_s=50"
        causes = [event.detail["cause"] for event in app.store.journal(first.id, ["zombie"])]
        if kind == "plain":
            assert (len(causes), app.get(first.id).row.crashes) == (1, 1)
            assert "a handler had left a transaction of its own open" in causes[0]
        else:
            assert (causes, app.get(first.id).row.crashes) == ([], 0), "its result was in hand"


@pytest.mark.slow
@pytest.mark.parametrize(("hangs", "end"), [(False, "done"), (True, "dead")])
def test_a_handler_that_leaves_a_transaction_open_every_time_comes_to_an_end(
    tmp_path: Path, hangs: bool, end: str
) -> None:
    """P10: as a suspect it runs in a process of its own. Slow: the worker must first be sure, each time."""
    (tmp_path / "forgetful.py").write_text(FORGETFUL)
    with App(f"sqlite:///{tmp_path}/jobs.db?busy_s=50") as app:
        leaky = app.task(name="forgetful.always", lease_s=3, crashes_max=2)(lambda hangs: None)
        innocent = app.task(name="forgetful.innocent", lease_s=3)(lambda: None)
        with worker(tmp_path, "forgetful:app"):
            innocent.enqueue().result(60)
            poison = leaky.enqueue(hangs)
            until(lambda: app.get(poison.id).row.state == end, "it ends", 90)
            innocent.enqueue().result(60)
        first = next(event for event in app.store.journal(poison.id, ["zombie"]))
        assert "a handler had left a transaction of its own open" in first.detail["cause"]


def test_a_worker_is_sure_before_it_ends_a_process() -> None:
    """A transaction of the user's own that is short must not cost the process."""

    class Locked:
        def beat(self, *_: object, **__: object) -> None:
            raise FileLocked("locked", os.getpid())

    told: list[float] = []
    clock = SystemClock()
    heartbeat = Heartbeat(
        *(cast(Store, Locked()), clock, 0.4, lambda _: None, cast(Continuity, None), lambda _: None),
        locked=lambda _: told.append(clock.lease()),
    )
    began = clock.lease()
    heartbeat.start(lambda *_: None)
    until(lambda: told, "it says so")
    heartbeat.close()
    assert told[0] - began >= 0.4 * LOCKED_BEATS


FORGETS = """
import sqlite3, sys, time
from holdfast import App
from holdfast.errors import FileLocked
app = App("sqlite:///jobs.db?busy_s=50")
task = app.task(name="t")(lambda: None)
app.counts()
db = sqlite3.connect("jobs.db")
db.execute("CREATE TABLE mine (x)")
db.execute("INSERT INTO mine VALUES (1)")
began = time.monotonic()
try:
    task.enqueue()
except FileLocked as error:
    print(error, flush=True)
assert time.monotonic() - began < 40, "it cannot end by waiting"
task.using(connection=db).enqueue()
db.commit()
db.close()
assert app.counts()["ready"] == 1
app.close()
"""


def test_forgetting_connection_in_ones_own_transaction_is_named(tmp_path: Path) -> None:
    """A process with one thread waits for itself: it is told at once, and not after busy_s."""
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", FORGETS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "jobs.db stayed locked by another transaction of this process for " in done.stdout
    assert "pass its connection on: task.using(connection=db).enqueue(…)" in done.stdout


def test_with_other_threads_it_waits_and_then_says_the_same(tmp_path: Path) -> None:
    """Another thread may be the one whose transaction is open, and about to commit."""
    with App(f"sqlite:///{tmp_path}/jobs.db?busy_s=0.2") as app, closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        app.counts()
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(FileLocked, match=r"by another transaction of this process for 0\.2 s") as refused:
            app.store.ping()
        assert refused.value.holder == os.getpid()


HOLD = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("has_list", [True, False], ids=["by the kernel's list", "by a child process"])
def test_another_process_that_keeps_the_lock_is_named(
    tmp_path: Path, has_list: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_list:
        monkeypatch.setattr(locks, "_LIST", tmp_path / "nothing")
    with App(f"sqlite:///{tmp_path}/jobs.db?busy_s=0.2") as app:
        app.counts()
        assert locks.writer_of(tmp_path / "jobs.db") is None
        command = [sys.executable, "-c", HOLD, str(tmp_path / "jobs.db")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            try:
                assert other.stdout.readline() == "held\n"
                with pytest.raises(FileLocked, match=f"by another writer, process {other.pid}, for") as refused:
                    app.store.ping()
                assert refused.value.holder == other.pid
            finally:
                other.kill()


@pytest.mark.parametrize("has_list", [True, False], ids=["by the kernel's list", "by a child process"])
def test_this_process_is_found_as_the_holder(tmp_path: Path, has_list: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_list:
        monkeypatch.setattr(locks, "_LIST", tmp_path / "nothing")
    with App(f"sqlite:///{tmp_path}/jobs.db") as app, closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        app.counts()
        assert locks.writer_of(tmp_path / "jobs.db") is None
        db.execute("BEGIN IMMEDIATE")
        assert locks.writer_of(tmp_path / "jobs.db") == os.getpid()
        db.rollback()
        assert locks.writer_of(tmp_path / "jobs.db") is None
        assert locks.writer_of(tmp_path / "other.db") is None
