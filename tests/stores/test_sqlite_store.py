"""What is special about a store that is a file: its guards, its locks, its clock (P14; DESIGN 11, 15.1, 15.4)."""

import contextlib
import json
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import App
from holdfast.clock import SystemClock, pause
from holdfast.core.machine import State
from holdfast.core.records import Filter, Published, Pulse
from holdfast.core.recovery import SECOND_LOOK_S
from holdfast.core.verdict import Succeeded
from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import (
    BadURL,
    FileReplaced,
    HoldfastError,
    SchemaMismatch,
    StoreLost,
    StoreMissing,
    StoreUnavailable,
    StoreUnsupported,
)
from holdfast.stores.protocol import in_words
from holdfast.stores.sql import load_migrations
from holdfast.stores.sqlite import connection as connections
from holdfast.stores.sqlite import liveness
from holdfast.stores.sqlite.statements import Q
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import FakeClock
from holdfast.upkeep.reaper import Reaper
from tests.factory import OLD_JOB, OLD_STEP, a_worker, add, claim, enrol, make_job, row, settle, start
from tests.worker.house import House

BOOT = SystemClock().boot_id
MIGRATIONS = load_migrations("holdfast.stores.sqlite")
READS: list[Callable[[SqliteStore], Any]] = [
    lambda store: store.get("x"),
    lambda store: store.find(Filter()),
    lambda store: store.counts(),
    lambda store: store.journal(),
    lambda store: store.workers(),
    lambda store: store.overdue(),
    lambda store: store.deadline(),
    lambda store: store.vanished(),
    lambda store: store.paused(),
    lambda store: store.unserved(["default"], ["t"]),
    lambda store: store.due_waits(),
    lambda store: store.due(["default"], ["t"]),
]
WRITES: list[Callable[[SqliteStore], Any]] = [
    lambda store: store.add([make_job()]),
    lambda store: store.claim("w", "c", ["default"], ["t"], 1),
    lambda store: store.beat("w", []),
    lambda store: store.retire("w", "x"),
    lambda store: store.pause("default", True),
    lambda store: store.purge([State.DONE], 0.0),
    lambda store: store.ping(),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path, clock: FakeClock) -> Iterator[SqliteStore]:
    opened = SqliteStore(f"sqlite:///{path}", clock=clock)
    opened.migrate()
    yield opened
    opened.close()


def python(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; it must end well."""
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done


# ------------------------------------------------------------------------------------------ the file


def test_only_its_owner_may_read_or_write_it(path: Path, store: SqliteStore) -> None:
    enrol(store)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    folder = path.with_name("jobs.db-workers")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(lock.stat().st_mode) for lock in folder.iterdir()} == {0o600}
    for beside in path.parent.glob("jobs.db-*"):
        assert stat.S_IMODE(beside.stat().st_mode) in (0o600, 0o700), beside


def test_a_missing_folder_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match="does not exist; create it first"):
        SqliteStore(f"sqlite:///{tmp_path}/no/jobs.db")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match="is a folder"):
        SqliteStore(f"sqlite:///{tmp_path}")


def test_without_create_a_missing_file_is_refused_and_not_made(path: Path) -> None:
    with pytest.raises(StoreMissing, match="there is no store at"):
        SqliteStore(f"sqlite:///{path}", create=False)
    assert not path.exists()


def test_a_number_sign_in_a_file_name_is_written_as_an_escape(tmp_path: Path) -> None:
    with pytest.raises(BadURL, match="write %23"):
        SqliteStore(f"sqlite:///{tmp_path}/h#x.db", clock=SystemClock())
    assert list(tmp_path.iterdir()) == []
    with closing(SqliteStore(f"sqlite:///{tmp_path}/h%23x.db", clock=SystemClock())):
        assert (tmp_path / "h#x.db").exists()


OUT_OF_FILES = """
import os, resource, sys
from holdfast.clock import SystemClock
from holdfast.errors import StoreUnavailable
from holdfast.stores.sqlite.store import SqliteStore
from tests.factory import a_worker

store = SqliteStore(sys.argv[1], clock=SystemClock())
store.migrate()
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
taken = []
while True:
    try:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        break
try:
    SqliteStore(sys.argv[1], clock=SystemClock()).schema()
except StoreUnavailable as error:
    print(error, flush=True)
try:
    store.enroll(a_worker())
except StoreUnavailable as error:
    print(error, flush=True)
os._exit(0)
"""


def test_a_process_that_can_open_no_more_files_says_so(path: Path) -> None:
    command = [sys.executable, "-c", OUT_OF_FILES, f"sqlite:///{path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.count("the limit of this process is 64; raise it (ulimit -n)") == 2, done


@pytest.mark.parametrize("query", ["?x=1", "?synchronous=off", "?busy_s=soon", "?max_mb=lots"])
def test_an_address_that_means_nothing_is_refused(path: Path, query: str) -> None:
    with pytest.raises(BadURL):
        SqliteStore(f"sqlite:///{path}{query}")
    assert not path.exists()


@pytest.mark.parametrize(("query", "value"), [("", 2), ("?synchronous=full", 2), ("?synchronous=normal", 1)])
def test_how_durable_an_acknowledged_job_is(path: Path, query: str, value: int) -> None:
    store = SqliteStore(f"sqlite:///{path}{query}")
    store.migrate()
    with store._db.reading() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == value
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    store.close()


READ_ONLY = """
import os, sys
from holdfast import App
from holdfast.errors import StoreReadOnly
from holdfast.stores.sqlite.store import SqliteStore
import holdfast.stores.sqlite.liveness
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)  # root may write everywhere
try:
    store = SqliteStore("sqlite:///" + sys.argv[1])
    store.migrate()
except StoreReadOnly as error:
    print(error)
else:
    sys.exit("nobody objected")
"""


@pytest.mark.parametrize("what", ["the folder of a new file", "the folder", "the file"])
def test_what_cannot_be_written_is_refused_loudly(tmp_path: Path, what: str) -> None:
    """P14"""
    folder = Path(f"/tmp/holdfast-test-{os.getpid()}-{tmp_path.name[-12:]}") if os.getuid() == 0 else tmp_path / "f"
    folder.mkdir(mode=0o777)
    try:
        path = folder / "jobs.db"
        if what != "the folder of a new file":
            made = SqliteStore(f"sqlite:///{path}")
            made.migrate()
            made.close()
        if path.exists():
            path.chmod(0o444 if what == "the file" else 0o666)
        folder.chmod(0o777 if what == "the file" else 0o555)
        before = sorted(folder.iterdir())
        said = python(READ_ONLY, path).stdout
        assert "cannot" in said
        assert sorted(folder.iterdir()) == before
    finally:
        folder.chmod(0o777)
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()


def test_a_file_that_is_no_database_is_said_to_be_lost(path: Path) -> None:
    path.write_bytes(b"this is no database, but somebody's letter to somebody else\n" * 50)
    before = path.read_bytes()
    store = SqliteStore(f"sqlite:///{path}")
    with pytest.raises(StoreLost, match="damaged or not a SQLite file"):
        store.migrate()
    assert path.read_bytes() == before
    store.close()


@pytest.mark.parametrize("verb", READS + WRITES)
@pytest.mark.parametrize("act", ["deleted", "replaced"])
def test_a_file_deleted_or_replaced_while_in_use_is_lost_not_empty(
    path: Path, store: SqliteStore, act: str, verb: Callable[[SqliteStore], Any]
) -> None:
    """P14: never taken for an empty healthy one."""
    add(store)
    lose(path, act)
    with pytest.raises(StoreLost, match=f"was {act} while in use"):
        verb(store)
    assert path.exists() == (act == "replaced"), "nothing is made in its place"


def test_a_file_that_took_the_place_of_one_in_use_is_doubted_until_it_is_accepted(
    path: Path, store: SqliteStore
) -> None:
    """P14: whoever opens it now cannot know; so a program that used the old one writes it down."""
    lose(path, "replaced")
    for _ in range(2):
        with pytest.raises(StoreLost):
            store.counts()
    new = SqliteStore(f"sqlite:///{path}", create=False)
    [doubt] = new.doubts()
    assert (doubt.kind, doubt.evidence) == ("replaced", "file")
    assert in_words(doubt) == "the store was replaced: another file was put in its place while it was in use"
    assert new.standing("", [], None).doubts == 1
    new.accept(1, "ann", "restored the backup")
    with pytest.raises(StoreLost):
        store.counts()
    assert new.doubts() == []
    new.close()


def test_no_empty_store_is_made_in_place_of_a_file_that_was_deleted_while_in_use(
    path: Path, store: SqliteStore
) -> None:
    add(store)
    path.rename(moved := path.with_name("moved.db"))
    for _ in range(2):
        with pytest.raises(FileReplaced, match=r"jobs\.db was deleted while in use; restore it, then start again"):
            store.counts()
    with pytest.raises(StoreMissing, match=r"restore it, or remove .*jobs\.db-doubt to begin with an empty store"):
        SqliteStore(f"sqlite:///{path}")
    assert not path.exists()
    moved.rename(path)
    restored = SqliteStore(f"sqlite:///{path}")
    assert [(each.kind, each.evidence) for each in restored.doubts()] == [("replaced", "file")]
    restored.close()


def test_a_file_that_is_deleted_before_its_store_is_closed_leaves_no_note(path: Path, store: SqliteStore) -> None:
    """Nobody has used it since: a program that makes a store for a moment, and throws it away."""
    add(store)
    lose(path, "deleted")
    store.close()
    again = SqliteStore(f"sqlite:///{path}")
    again.migrate()
    assert again.doubts() == []
    again.close()


def lose(path: Path, act: str) -> None:
    take_away(path, act)
    remove_beside(path)


def take_away(path: Path, act: str) -> None:
    """Delete or replace the database alone, in one move: whoever looks meanwhile finds nothing else."""
    if act == "replaced":
        fresh = SqliteStore(f"sqlite:///{path}.new")
        fresh.migrate()
        fresh.close()
        path.with_name("jobs.db.new").replace(path)
    else:
        path.unlink()


def remove_beside(path: Path) -> None:
    for beside in ("-wal", "-shm"):
        path.with_name(path.name + beside).unlink(missing_ok=True)


@pytest.mark.parametrize("act", ["deleted", "replaced"])
def test_a_worker_whose_file_is_lost_says_so_and_touches_nothing(
    path: Path, act: str, caplog: pytest.LogCaptureFixture
) -> None:
    house = House(App(f"sqlite:///{path}"))

    @house.app.task
    def fine() -> str:
        return "fine"

    runner = house.start()
    assert fine.enqueue().result(60) == "fine"
    take_away(path, act)
    with pytest.raises(FileReplaced, match=f"was {act} while in use"):
        house.join(runner)
    house.close()
    remove_beside(path)
    assert "the store fails" not in caplog.text
    if act == "deleted":
        assert not path.exists()
    else:
        with sqlite3.connect(path) as connection:
            assert connection.execute("SELECT count(*) FROM holdfast_worker").fetchone() == (0,)
        connection.close()


def test_what_a_forgotten_worker_published_is_deleted_with_it(path: Path, store: SqliteStore, clock: FakeClock) -> None:
    forgotten, living = (enrol(store, tasks={"t": Published("default")}) for _ in range(2))
    store.retire(forgotten, "gone")
    clock.advance(86_401.0)
    store.retire("nobody", "a reason to look")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT worker FROM holdfast_published").fetchall() == [(living,)]


# --------------------------------------------------------------------------------------- the schema


def set_schema(path: Path, version: int) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE holdfast_meta SET value = ? WHERE name IN ('schema', 'works_with')", (str(version),))
    connection.close()


def test_a_schema_that_is_too_new_is_refused_and_left_alone(path: Path, store: SqliteStore) -> None:
    wanted = store.schema().wanted
    set_schema(path, wanted + 1)
    before = path.read_bytes()
    with pytest.raises(SchemaMismatch, match="upgrade"):
        store.migrate()
    with pytest.raises(SchemaMismatch), App(f"sqlite:///{path}") as app:
        app.counts()
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
def test_a_file_of_any_earlier_version_is_brought_up_to_date_with_what_is_in_it(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    with monkeypatch.context() as earlier:
        earlier.setattr("holdfast.stores.sqlite.store._MIGRATIONS", MIGRATIONS[:version])
        old = SqliteStore(url)
        old.migrate()
        old.close()
    with closing(sqlite3.connect(tmp_path / "old.db", isolation_level=None)) as db:
        db.execute(f"INSERT INTO holdfast_job ({OLD_JOB[0]}) VALUES ({OLD_JOB[1]})")
    new = SqliteStore(url)
    assert new.migrate()[:2] == (version, len(MIGRATIONS))
    assert [each.id for each in claim(new, enrol(new))] == ["old"]
    new.close()


def test_what_was_undone_before_steps_said_when_keeps_its_instant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    with monkeypatch.context() as earlier:
        earlier.setattr("holdfast.stores.sqlite.store._MIGRATIONS", MIGRATIONS[:7])
        old = SqliteStore(url)
        old.migrate()
        old.close()
    with closing(sqlite3.connect(tmp_path / "old.db", isolation_level=None)) as db:
        for position, state in enumerate(("undone", "recorded"), 1):
            db.execute(OLD_STEP.format(table="holdfast_step", position=position, state=state))
    new = SqliteStore(url)
    new.migrate()
    assert [(step.ended_at, step.undone_at) for step in new.steps("old")] == [(None, 7.0), (7.0, None)]
    new.close()


def test_an_older_schema_is_refused_when_migrate_is_off(path: Path, store: SqliteStore) -> None:
    for version, command in ((1, "db migrate"), (0, "db init")):
        set_schema(path, version)
        with pytest.raises(SchemaMismatch, match=command), App(f"sqlite:///{path}", migrate=False) as app:
            app.counts()


MAKE_AND_READ = """
import sys
from holdfast import App
app = App("sqlite:///" + sys.argv[1])
app.store
print("ready", flush=True)
sys.stdin.readline()
assert app.store.schema().found == app.store.schema().wanted
app.counts()
app.close()
"""


@pytest.mark.parametrize("what", ["a new file", "a file left by kill -9"])
def test_eight_programs_may_open_one_file_at_once(path: Path, what: str) -> None:
    """Under a lock, and with patience: one makes or recovers it, the others wait for that one."""
    if what != "a new file":
        victim = subprocess.Popen(
            [sys.executable, "-c", MAKE_AND_READ, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert victim.stdout is not None
        assert victim.stdin is not None
        assert victim.stdout.readline() == b"ready\n"
        victim.kill()
        victim.wait()
        victim.stdout.close()
        victim.stdin.close()
    command = [sys.executable, "-W", "error", "-c", MAKE_AND_READ, str(path)]
    programs = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(8)]
    errors = [program.communicate(b"go\n", timeout=60)[1] for program in programs]
    assert [program.returncode for program in programs] == [0] * 8, b"\n".join(errors).decode()


# ------------------------------------------------------------------------------------- the journal mode


@pytest.mark.parametrize("migrate", [True, False])
def test_a_file_that_was_switched_out_of_wal_mode_is_switched_back(path: Path, migrate: bool) -> None:
    """Another program did so while nobody used it; readers and writers would block each other."""
    url = f"sqlite:///{path}?busy_s=0.5"
    with App(url) as app:
        app.counts()
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)
    with App(url, migrate=migrate) as app:
        app.counts()
        with closing(sqlite3.connect(path)) as other:
            assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_file_that_cannot_be_switched_back_is_refused_with_the_reason(path: Path) -> None:
    url = f"sqlite:///{path}?busy_s=0.5"
    with App(url) as app:
        app.counts()
    reads = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('PRAGMA journal_mode=DELETE'); db.execute('BEGIN')\n"
        "db.execute('SELECT * FROM holdfast_job').fetchall(); print('reads', flush=True); input()"
    )
    command = [sys.executable, "-c", reads, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "reads\n"
        refused = "is not in WAL mode, and cannot be switched to it while another program uses it"
        with App(url) as app, pytest.raises(StoreUnavailable, match=refused):
            app.counts()
        other.communicate("\n", timeout=60)
    with App(url) as app:
        app.counts()


def test_the_journal_mode_of_a_file_that_is_not_a_store_is_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE mine (x)")
        store = SqliteStore(f"sqlite:///{path}", create=False)
        assert store.schema().found == 0
        store.close()
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("delete",)


# --------------------------------------------------------------------------------- one writer at a time


def test_a_write_waits_for_another_writer_and_then_gives_up(path: Path, store: SqliteStore) -> None:
    hasty = SqliteStore(f"sqlite:///{path}?busy_s=0.2")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="stayed locked by another transaction of this process"):
        hasty.ping()
    assert 0.2 <= time.monotonic() - began < 60
    hasty.counts()  # reads go on
    other.execute("ROLLBACK")
    hasty.ping()
    other.close()
    hasty.close()


def test_a_write_that_failed_leaves_the_lock_and_the_store_usable(store: SqliteStore) -> None:
    with pytest.raises(HoldfastError):
        store.claim("nobody", "c", ["default"], ["t"], 1)
    with pytest.raises(HoldfastError):
        store.enroll(a_worker(id=enrol(store)))
    assert add(store).state is State.READY


def test_two_stores_in_one_process_do_not_disturb_each_other(path: Path) -> None:
    """Closing a descriptor drops the POSIX locks of the whole process; neither store may suffer from the other."""
    store, other = SqliteStore(f"sqlite:///{path}"), SqliteStore(f"sqlite:///{path}")
    store.migrate()
    job = start(store, worker := enrol(store, boot_id=BOOT))
    assert row(other, job.id) == job
    busy = other._db.begin()  # the other store is writing
    with pytest.raises(StoreUnavailable), store._db.writing(busy_s=0.05):
        pass
    other._db.undo(busy)
    other._db.end(busy)
    other.close()
    assert look_from_outside(path, worker) == "alive"
    assert not store.beat(worker, [Pulse(job.lease)]).lost
    settle(store, job, Succeeded())
    assert store.check() == []
    store.close()


# ---------------------------------------------------------------------------------------------- forks


FORK = """
import gc, os, sqlite3, sys, threading
from holdfast.core.machine import State
from holdfast.core.records import Filter, NewJob, Worker
from holdfast.stores.sqlite.store import SqliteStore

store = SqliteStore("sqlite:///" + sys.argv[1])
store.migrate()
def add(name, count):
    for n in range(count):
        store.add([NewJob(id=f"{name}-{n}", task="t", payload="{}")])
add("before", 5)
store.wait(0)
store.counts()
inherited = [each for each in gc.get_objects() if isinstance(each, sqlite3.Connection)]
assert len(inherited) >= 2, inherited
turn = None
if sys.argv[2] == "while another thread writes":
    entered, go_on = threading.Event(), threading.Event()
    def write():
        with store._db.writing() as db:
            entered.set()
            go_on.wait()
    turn = threading.Thread(target=write)
    turn.start()
    entered.wait()
    threading.Timer(0.2, go_on.set).start()  # the fork waits for that write
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads is what is being tested
    pid = os.fork()
if pid == 0:
    used = []
    for each in inherited:
        each.set_trace_callback(used.append)
    add("child", 50)
    store.wait(0)
    store.find(Filter())
    store.enroll(Worker(id="child", name="c", host="h", pid=os.getpid(), boot_id=store._clock.boot_id))
    assert len(store.claim("child", "c", ["default"], ["t"], 3)) == 3
    store.close()
    assert used == [], used
    os._exit(0)
if turn is not None:
    turn.join()
add("parent", 50)
_, status = os.waitpid(pid, 0)
assert status == 0, status
store.wait(0)
assert store.counts() == {"default": {State.READY: 102, State.RUNNING: 3}}, store.counts()
assert store.check() == []
store.close()
"""


@pytest.mark.parametrize("when", ["quietly", "while another thread writes"])
def test_a_fork_carries_no_connection_over(path: Path, when: str) -> None:
    """Parent and child go on with the same store object; each has connections of its own."""
    python(FORK, path, when)


HOLD_AND_FORK = """
import os, sys, time
from holdfast.core.records import Worker
from holdfast.stores.sqlite.store import SqliteStore
store = SqliteStore("sqlite:///" + sys.argv[1])
store.migrate()
store.enroll(Worker(id="w", name="w", host="h", pid=os.getpid(), boot_id=store._clock.boot_id))
pid = os.fork()
if pid == 0:
    time.sleep(600)
print(pid, flush=True)
time.sleep(600)
"""


def test_a_forked_child_does_not_keep_its_parents_liveness_lock(path: Path) -> None:
    """15.1: the worker is dead when its process is, whoever it has forked."""
    parent = subprocess.Popen(
        [sys.executable, "-c", HOLD_AND_FORK, str(path)], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        store = SqliteStore(f"sqlite:///{path}")
        assert store.vanished() == []
        parent.kill()
        parent.wait()
        os.kill(child, 0)  # it lives
        [vanished] = store.vanished()
        assert (vanished.worker.id, vanished.evidence) == ("w", "lock")
        store.close()
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()


# -------------------------------------------------------------------------------------- liveness locks

LOOK = """
import json, sys
from holdfast.stores.sqlite.store import SqliteStore
store = SqliteStore("sqlite:///" + sys.argv[1])
from holdfast.stores.protocol import Schema
from holdfast.stores.sql import load_migrations
from holdfast.stores.sqlite import liveness
with store._db.reading() as db:
    [inode] = db.execute("SELECT lock_inode FROM holdfast_worker WHERE id = ?", (sys.argv[2],)).fetchone()
print(liveness.look(store._lock_path(sys.argv[2]), inode).value)
store.close()
"""

ENROL_AND_DIE = """
import os, sys
from holdfast.core.records import NewJob, Worker
from holdfast.core.policy import Policy
from holdfast.stores.sqlite.store import SqliteStore
store = SqliteStore("sqlite:///" + sys.argv[1])
store.migrate()
name, boot_id = sys.argv[2:4]
store.enroll(Worker(id=name, name=name, host="h", pid=os.getpid(), boot_id=boot_id))
store.add([NewJob(id=f"job-of-{name}", task=name, payload="{}", policy=Policy(lease_s=600))])
assert len(store.claim(name, name, ["default"], [name], 1)) == 1
os._exit(0)
"""


def look_from_outside(path: Path, worker: str) -> str:
    return python(LOOK, path, worker).stdout.strip()


def lock_of(path: Path, worker: str) -> Path:
    return path.with_name("jobs.db-workers") / f"{worker}.lock"


def test_looking_at_ones_own_lock_never_drops_it(path: Path, store: SqliteStore) -> None:
    """15.1: closing any descriptor of a file drops the process's lock on it."""
    worker = enrol(store, boot_id="boot-1")
    other = SqliteStore(f"sqlite:///{path}", clock=FakeClock())
    for _ in range(5):
        assert store.vanished() == []
        assert other.vanished() == []
    other.close()
    store.counts()
    assert look_from_outside(path, worker) == "alive"


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_folder_of_locks_that_others_may_write_is_refused(path: Path, store: SqliteStore, mode: int) -> None:
    folder = path.with_name("jobs.db-workers")
    folder.mkdir(exist_ok=True)
    folder.chmod(mode)
    with pytest.raises(StoreUnsupported, match=f"mode {mode:o}.*chmod go-w"):
        enrol(store)
    assert list(folder.iterdir()) == []
    folder.chmod(0o755)
    enrol(store)


def test_two_addresses_of_one_file_are_the_same_worker(path: Path, store: SqliteStore, tmp_path: Path) -> None:
    """A link, or a path with dots in it, must not make a process take its own lock for a stranger's."""
    worker = enrol(store)
    folder = tmp_path / "link"
    folder.symlink_to(tmp_path)
    other = SqliteStore(f"sqlite:///{folder}/../{tmp_path.name}/jobs.db", clock=FakeClock())
    assert other.vanished() == []
    other.close()
    assert look_from_outside(path, worker) == "alive"


def test_a_process_that_ended_leaves_a_free_lock(path: Path) -> None:
    python(ENROL_AND_DIE, path, "ann", BOOT)
    assert look_from_outside(path, "ann") == "free"


@pytest.mark.parametrize("what", ["missing", "another inode", "unreadable"])
def test_a_lock_that_cannot_be_judged_is_unknown_and_not_dead(path: Path, what: str) -> None:
    """15.1"""
    python(ENROL_AND_DIE, path, "ann", BOOT)
    lock = lock_of(path, "ann")
    if what == "missing":
        lock.unlink()
    elif what == "another inode":
        lock.rename(lock.with_suffix(".old"))
        lock.touch()
    else:
        lock.unlink()
        lock.symlink_to(lock)
    assert look_from_outside(path, "ann") == "unknown"
    store = SqliteStore(f"sqlite:///{path}")
    assert store.vanished() == []
    assert row(store, "job-of-ann").state is State.RUNNING
    store.close()


def test_a_free_lock_is_believed_at_the_second_look(path: Path) -> None:
    python(ENROL_AND_DIE, path, "ann", BOOT)
    store = SqliteStore(f"sqlite:///{path}")
    reaper = Reaper(store, SystemClock())
    assert reaper.once().zombies == []
    pause(SECOND_LOOK_S)
    [zombie] = reaper.once().zombies
    assert (zombie.detector, zombie.recovered) == ("vanished", True)
    assert store.vanished() == []
    assert not lock_of(path, "ann").exists(), "its lock file is tidied away"
    store.close()


def test_two_looks_in_the_same_moment_are_one(path: Path) -> None:
    """ADR 5: at least a tenth of a second apart, however fast the passes follow each other."""
    real = SystemClock()
    clock = FakeClock(real.wall(), real.lease(), BOOT)
    python(ENROL_AND_DIE, path, "ann", BOOT)
    store = SqliteStore(f"sqlite:///{path}", clock=clock)
    reaper = Reaper(store, clock)
    for _ in range(5):
        assert reaper.once().zombies == []
        clock.advance(SECOND_LOOK_S / 10)
    clock.advance(SECOND_LOOK_S)
    assert reaper.once().recovered == 1
    store.close()


def test_what_an_earlier_process_of_the_same_name_left_is_a_restart(path: Path) -> None:
    """DESIGN 4.5"""
    python(ENROL_AND_DIE, path, "ann", BOOT)
    store = SqliteStore(f"sqlite:///{path}")
    reaper = Reaper(store, SystemClock(), name="ann")
    reaper.once()
    pause(SECOND_LOOK_S)
    [zombie] = reaper.once().zombies
    assert zombie.detector == "restart"
    [event] = store.journal("job-of-ann")
    assert "an earlier process of this worker died" in event.detail["cause"]
    store.close()


def test_a_live_worker_of_the_same_name_is_left_alone(path: Path, store: SqliteStore) -> None:
    """15.4: a name alone never proves a death."""
    start(store, enrol(store, name="ann"))
    reaper = Reaper(store, FakeClock(), name="ann")
    for _ in range(3):
        assert reaper.once().zombies == []


def test_a_lock_is_taken_before_the_row_is_written(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """15.1: a row whose lock is not taken yet would look dead."""
    rows_then: list[int] = []
    take = liveness.take

    def spy(lock: Path) -> int:
        rows_then.append(len(store.workers()))
        return take(lock)

    monkeypatch.setattr(liveness, "take", spy)
    enrol(store)
    assert rows_then == [0]
    assert len(store.workers()) == 1


# ------------------------------------------------------------------------------------- rows that are damaged


@pytest.mark.parametrize("queues", ["not JSON", '{"a": 1}', "[1]", "null", ""])
def test_a_worker_whose_row_is_damaged_hides_nobody(
    path: Path, store: SqliteStore, queues: str, caplog: pytest.LogCaptureFixture
) -> None:
    """P10: it is left out, and said so once; without that no reaper passes and no worker starts."""
    ann, bob = enrol(store, name="ann"), enrol(store, name="bob")
    job, other = start(store, ann), start(store, bob)
    change(path, "UPDATE holdfast_worker SET queues = ? WHERE id = ?", queues, ann)
    store.retire(bob, "it was killed", how=WorkerExit("exit"))
    for _ in range(3):
        assert [each.id for each in store.workers(gone=True)] == [bob]
        assert [each.worker.id for each in store.vanished()] == [bob]
    assert [record.levelname for record in caplog.records if ann in record.getMessage()] == ["ERROR"]
    assert Reaper(store, FakeClock()).once().recovered == 1
    assert (row(store, job.id).state, row(store, other.id).state) == (State.RUNNING, State.READY)


def test_a_job_whose_worker_has_no_row_is_found_when_its_lease_ends(
    path: Path, store: SqliteStore, clock: FakeClock
) -> None:
    """Nothing else can find it; it counts as one of this boot."""
    job = start(store, worker := enrol(store), lease_s=30.0)
    start(store)
    assert store.check() == []
    change(path, "DELETE FROM holdfast_worker WHERE id = ?", worker)
    assert store.check() == [f"job {job.id} runs under worker {worker}, which has no row"]
    assert store.deadline() == job.lease_until
    clock.advance(29)
    assert store.overdue() == []
    clock.advance(1)
    assert job.id in [each.id for each in store.overdue()]
    reaper = Reaper(store, clock)
    reaper.once()
    clock.advance(0.2)
    assert job.id in [zombie.job.id for zombie in reaper.once().zombies if zombie.recovered]
    assert store.check() == []


def test_a_file_without_tables_can_be_checked(tmp_path: Path) -> None:
    store = SqliteStore(f"sqlite:///{tmp_path}/new.db")
    assert store.check() == []
    store.close()


def test_an_empty_answer_means_that_nothing_else_is_overdue(path: Path, store: SqliteStore, clock: FakeClock) -> None:
    """However many rows in front cannot be read."""
    bad = [start(store, lease_s=10.0) for _ in range(5)]
    good = start(store, lease_s=20.0)
    change(path, "UPDATE holdfast_job SET id = CAST(CAST(id AS BLOB) || x'ff' AS TEXT) WHERE id <> ?", good.id)
    clock.advance(30)
    for skip in range(len(bad) + 1):
        assert [job.id for job in store.overdue(limit=2, skip=skip)] == [good.id]
    assert store.overdue(limit=2, skip=len(bad) + 1) == []


@pytest.mark.parametrize("name", ["../victim", "{folder}/victim", "x/../../victim", "\0", "\ud800", "y" * 5_000])
def test_the_id_of_a_worker_names_no_file_elsewhere(path: Path, store: SqliteStore, name: str) -> None:
    """A client of a server may choose it."""
    enrol(store)
    name, victim = name.format(folder=path.parent), path.with_name("victim.lock")
    victim.touch()
    with contextlib.suppress(UnicodeEncodeError):
        store.retire(name, "gone")
    assert victim.exists()
    assert liveness.path_of(path, name).parent == path.with_name(f"{path.name}-workers")
    assert len(liveness.path_of(path, name).name) < 255


def test_an_enrolment_that_fails_leaves_no_lock(path: Path, store: SqliteStore) -> None:
    """Each try has a new id: during an outage their files and descriptors would pile up."""
    enrol(store)
    hasty = SqliteStore(f"sqlite:///{path}?busy_s=0.01")
    hasty.workers()
    mine = dict(liveness._mine)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            enrol(hasty)
    other.execute("ROLLBACK")
    other.close()
    assert liveness._mine == mine
    assert len(list(path.with_name("jobs.db-workers").iterdir())) == 1
    enrol(hasty)
    assert len(list(path.with_name("jobs.db-workers").iterdir())) == 2
    hasty.close()


def change(path: Path, statement: str, *values: object) -> None:
    """Write what no program of ours would."""
    with sqlite3.connect(path, timeout=60) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(statement, values)
    connection.close()


# ------------------------------------------------------------------------------------ clocks and boots


def test_a_jump_of_the_wall_clock_neither_kills_leases_nor_keeps_them_alive(
    store: SqliteStore, clock: FakeClock
) -> None:
    """DESIGN 11"""
    job = start(store, lease_s=30.0)
    clock.set_wall(clock.wall() + 10_000_000)
    assert store.overdue() == []
    clock.set_wall(0.0)
    clock.advance(29)
    assert store.overdue() == []
    clock.advance(1.5)
    assert [each.id for each in store.overdue()] == [job.id]


@pytest.fixture
def after_a_reboot(path: Path, store: SqliteStore, clock: FakeClock) -> Iterator[tuple[SqliteStore, FakeClock, str]]:
    """The same file under another boot id, whose clock began anew; and a job that runs under the old one."""
    job = start(store, enrol(store, name="ann", boot_id="boot-1", beat_s=10.0), lease_s=30.0)
    other_clock = FakeClock(wall=clock.wall() + 1, lease=5.0, boot_id="boot-2")
    other = SqliteStore(f"sqlite:///{path}", clock=other_clock)
    yield other, other_clock, job.id
    other.close()


def test_a_lease_under_another_boot_is_dead_after_one_silent_beat(
    after_a_reboot: tuple[SqliteStore, FakeClock, str],
) -> None:
    """15.4"""
    other, clock, job = after_a_reboot
    assert other.vanished() == []
    clock.advance(9.9)
    assert other.vanished() == []
    assert row(other, job).state is State.RUNNING
    clock.advance(0.2)
    [vanished] = other.vanished()
    assert (vanished.evidence, vanished.worker.name) == ("boot", "ann")
    [zombie] = Reaper(other, clock, name="ann").once().zombies
    assert (zombie.detector, zombie.recovered) == ("restart", True)
    assert row(other, job).state is State.READY


def test_a_lease_under_another_boot_is_dead_at_once_when_a_whole_lease_has_passed_in_silence(
    after_a_reboot: tuple[SqliteStore, FakeClock, str],
) -> None:
    """The machine was away for longer than that; nobody has to wait for a beat that cannot come."""
    other, clock, _ = after_a_reboot
    clock.set_wall(clock.wall() + 30)
    [vanished] = other.vanished()
    assert vanished.evidence == "boot"


def test_a_lease_under_another_boot_is_on_another_clock(after_a_reboot: tuple[SqliteStore, FakeClock, str]) -> None:
    """Its end is a number of that clock and means nothing on this one."""
    other, clock, _ = after_a_reboot
    clock.advance(10_000)
    assert other.overdue() == []
    assert other.deadline() is None


def test_a_worker_of_another_boot_that_beats_means_two_hosts_and_the_file_is_refused(
    store: SqliteStore, after_a_reboot: tuple[SqliteStore, FakeClock, str]
) -> None:
    """15.4, P14: SQLite's locks do not reach from one host to another."""
    other, clock, job = after_a_reboot
    other.vanished()
    clock.advance(5)
    assert not store.beat(row(store, job).worker or "", []).gone
    with pytest.raises(StoreLost, match="SQLite is for one host"):
        other.vanished()
    for verb in READS + WRITES:
        with pytest.raises(StoreLost):
            verb(other)
    assert row(store, job).state is State.RUNNING, "nothing was taken from the worker that lives"


def test_workers_of_another_boot_are_remembered_apart(
    store: SqliteStore, after_a_reboot: tuple[SqliteStore, FakeClock, str]
) -> None:
    other, clock, _ = after_a_reboot
    other.vanished()
    clock.advance(8)
    store._clock.advance(8)  # type: ignore[attr-defined]
    enrol(store, name="bob", boot_id="boot-1", beat_s=10.0)
    other.vanished()
    clock.advance(3)
    assert [each.worker.name for each in other.vanished()] == ["ann"]
    clock.advance(8)
    assert sorted(each.worker.name for each in other.vanished()) == ["ann", "bob"]


# --------------------------------------------------------------------------------------------- threads


def test_a_signal_is_taken_by_its_id_however_many_its_workflow_has(store: SqliteStore) -> None:
    values = {"id": "j", "position": 1, "signals": '["s"]'}
    with store._db.reading() as db:
        plan = "\n".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {Q['record_taken']}", values))
    assert "(id=?)" in plan
    assert "holdfast_signal_job" not in plan


def test_many_threads_share_one_store(store: SqliteStore) -> None:
    """Eight threads add, claim and settle through the same object; nothing is lost or done twice."""
    done: list[str] = []
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            worker = enrol(store, name=f"w{number}")
            for n in range(20):
                store.add([make_job(id=f"{number}-{n}")])
            while jobs := claim(store, worker, limit=3):
                for job in jobs:
                    settle(store, job, Succeeded(json.dumps(number)))
                    done.append(job.id)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert sorted(done) == sorted(f"{number}-{n}" for number in range(8) for n in range(20))
    assert store.counts() == {"default": {State.DONE: 160}}


def test_a_lock_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    """Its owner can remove lock files, and so make a living worker look dead."""
    me = os.geteuid()
    stranger, friend = me + 1, me + 2

    def check(owner: int, mode: int = 0o40700) -> None:
        found = os.stat_result((mode, 1, 1, 1, owner, 0, 0, 0, 0, 0))
        liveness._check(tmp_path, found, owner_above=friend)

    for owner in (0, me, friend):
        check(owner)
    with pytest.raises(StoreUnsupported, match=rf"another user \(uid {stranger}\) owns .*run `chown {me} "):
        check(stranger)
    with pytest.raises(StoreUnsupported, match="chmod go-w"):
        check(me, mode=0o40770)


def test_a_store_that_is_opened_during_a_fork_does_not_disturb_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = [SqliteStore(f"sqlite:///{tmp_path / 'jobs.db'}")]

    def open_another(_: connections.Connections) -> None:
        if len(opened) == 1:
            opened.append(SqliteStore(f"sqlite:///{tmp_path / 'others.db'}"))

    monkeypatch.setattr(connections.Connections, "_before_fork", open_another)
    connections._before_fork()
    for store in opened:
        store.close()
    assert len(opened) == 2


def test_what_people_list_all_day_reads_no_table_of_a_million_jobs(tmp_path: Path) -> None:
    """The plans of the rare states: each leads to an index that other jobs are not in."""
    store = SqliteStore(f"sqlite:///{tmp_path}/jobs.db")
    store.migrate()
    plans = {
        "counts": ["holdfast_job_aside"],
        "find_tried": ["holdfast_job_tried"],
        "find_later": ["holdfast_job_ready"],
        "find_running": ["holdfast_job_running", "holdfast_job_worker", "holdfast_job_places"],
    }
    with store._db.reading() as db:
        for query, indexes in plans.items():
            values = dict.fromkeys(re.findall(r":(\w+)", Q[query]), None)
            lines = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {Q[query]}", values)]
            assert not [line for line in lines if re.fullmatch(r"SCAN (holdfast_job|holdfast_row)", line)], lines
            assert any(index in line for line in lines for index in indexes), lines
    store.close()


def test_many_jobs_that_are_not_due_are_listed_like_a_few(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for delay_s in (0.0, 60.0, 60.0):
        add(store, delay_s=delay_s)
    where = Filter(states=(State.READY,), later=store.now().wall)
    few = store.find(where)
    monkeypatch.setattr("holdfast.stores.sqlite.store.LATER_MAX", 1)
    assert (store.find(where), len(few)) == (few, 2)
