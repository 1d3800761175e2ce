"""A file that is full, and one key from many processes at once."""

import errno
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.core.machine import State
from holdfast.errors import StoreFull, StoreUnavailable
from holdfast.stores.sqlite.store import SqliteStore
from tests.crash.world import World, on_every_store, until
from tests.factory import delete

TEXT = "x" * 20_000


def fill(world: World) -> list[str]:
    """Enqueue until there is no room; return what was acknowledged."""
    stored: list[str] = []
    while len(stored) < 200:
        try:
            stored.append(world.tasks.bulky.enqueue(TEXT).id)
        except StoreFull:
            return stored
    raise AssertionError("the file never became full")


@pytest.mark.slow  # the worker runs into it a few times
def test_a_full_file_is_said_loudly_and_kills_nobody(tmp_path: Path) -> None:
    """P14: an enqueue raises StoreFull and stores nothing; the worker waits, and goes on when there is room."""
    world = World(tmp_path, "?max_mb=1")
    try:
        worker = world.worker("w").until_ready()
        running = world.tasks.wait.using(lease_s=9).enqueue().id
        world.until_started(running)
        world.store.pause("default", True)
        stored = fill(world)
        assert len(stored) > 20
        with pytest.raises(StoreFull, match="no room left"):
            world.app.enqueue_many([world.tasks.bulky.job(TEXT) for _ in range(5)])
        assert sum(sum(states.values()) for states in world.store.counts().values()) == len(stored) + 1
        world.store.pause("default", False)
        until(lambda: worker.said("no room left"), "the worker runs into it as well, and says so")
        for job in stored[-10:]:  # the last to be claimed
            row = world.row(job)
            delete(world.store, job, row.state, row.fence)  # False: it was running just then
        world.go()
        for job in [running, *stored[:-10]]:
            world.until_state(job, "done")
            assert world.kinds(job).count("succeeded") == 1
        assert world.row(running).attempt == 1, "it was renewed all the while"
        world.store.purge([State.DONE], before=2**40, limit=1000)
        world.until_state(world.tasks.bulky.enqueue(TEXT).id, "done")
        assert worker.popen.poll() is None
    finally:
        world.close()


@pytest.mark.slow  # the worker runs into it a few times
def test_a_worker_whose_file_is_full_keeps_its_endings_until_there_is_room(tmp_path: Path) -> None:
    """The results do not fit. They are kept, the leases too; a larger limit lets them in."""
    world = World(tmp_path)
    try:
        assert world.store.schema().found > 0
        pages = 4096
        size = world.db.stat().st_size
        small = f"{world.url}?max_mb={(size + 30 * pages) / 1_048_576}"
        jobs = [world.tasks.large_result.using(lease_s=2).enqueue().id for _ in range(8)]
        worker = world.run("w", ["-m", "holdfast", "--db", small, "worker", "crash_tasks:app", "--name", "w"])
        until(lambda: worker.said("no room left"), "it says so")
        until(lambda: worker.said("trying again"), "it goes on trying")
        assert worker.popen.poll() is None
        worker.kill()
        world.worker("larger")
        for job in jobs:
            world.until_state(job, "done")
            assert world.kinds(job).count("succeeded") == 1
    finally:
        world.close()


ON_A_FULL_DISK = """
import os, sqlite3, subprocess, sys
from contextlib import closing
from pathlib import Path
from holdfast.errors import StoreFull
from holdfast.stores.sqlite.store import SqliteStore

URL = f"sqlite:///{Path.cwd()}/jobs.db"

def doctor():
    command = [sys.executable, "-m", "holdfast", "--db", URL, "doctor", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "500"})
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    print(done.returncode, done.stdout.count("The disk is full:"), done.stdout.count("cannot be read"))

def fill():
    with open("fill", "wb", buffering=0) as file:
        try:
            while True: file.write(b"x" * 4096)
        except OSError: pass

with closing(SqliteStore(URL)) as store:
    store.migrate()
fill()
doctor()
os.unlink("fill")
with closing(SqliteStore(URL)) as store:
    store.ping()
    fill()
    doctor()
    try:
        for _ in range(5000): store.ping()  # what is left of the WAL is filled up soon
    except StoreFull as error: print("StoreFull", error)
    doctor()
    os.unlink("fill")
    store.ping()
    with closing(sqlite3.connect("jobs.db")) as db:
        print(db.execute("SELECT count(*) FROM holdfast_meta WHERE name = 'ping'").fetchone()[0])
"""


def test_a_full_disk_is_called_that_by_the_doctor_and_by_a_ping(tmp_path: Path, mounting: list[str]) -> None:
    """A ping decides whether a silent process is replaced, and whether a lease that nobody could renew is over."""
    script = 'mount -t tmpfs -o size=2m tmpfs "$1" && cd "$1" && exec "$2" -c "$3"'
    command = [*mounting, "sh", "-c", script, "sh", str(tmp_path), sys.executable, ON_A_FULL_DISK]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    unopened, opened, full, written, left = done.stdout.splitlines()
    assert unopened == "3 1 0", "SQLite cannot make its -shm file, and calls that an I/O error"
    assert opened == written == "7 1 0"
    assert full.startswith("StoreFull")
    assert "no room left" in full
    assert left == "0"


AT_A_LIMIT = """
import resource
from contextlib import closing
from pathlib import Path
from holdfast.errors import StoreFull
from holdfast.stores.sqlite.store import SqliteStore

with closing(SqliteStore(f"sqlite:///{Path.cwd()}/jobs.db")) as store:
    store.migrate()
    store.ping(durably=True)
    before = Path("jobs.db-wal").stat().st_size
    for _ in range(100): store.ping()
    print(Path("jobs.db-wal").stat().st_size == before)
    no_limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
    store.ping()
    try:
        for _ in range(5000): store.ping(durably=True)
    except StoreFull as error: print("StoreFull", error)
    store.ping()
    resource.setrlimit(resource.RLIMIT_FSIZE, (no_limit, hard))
    store.ping(durably=True)
"""


def test_a_file_that_may_not_grow_is_full_and_a_durable_ping_says_so(tmp_path: Path) -> None:
    """The disk has room, and a ping that writes nothing works: only a write meets the limit of the process."""
    command = [sys.executable, "-c", AT_A_LIMIT]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    unwritten, full = done.stdout.splitlines()
    assert unwritten == "True"
    assert full.startswith("StoreFull")
    assert "ulimit -f" in full


@pytest.mark.parametrize(
    ("number", "is_full"), [(errno.EDQUOT, True), (errno.EFBIG, True), (errno.ENOSPC, True), (errno.EIO, False)]
)
def test_a_quota_that_is_used_up_is_a_full_disk_and_a_broken_disk_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_full: bool
) -> None:
    """SQLite calls both an I/O error."""
    with closing(SqliteStore(f"sqlite:///{tmp_path}/jobs.db")) as store:
        store.migrate()
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
        assert not isinstance(store._db.explain(error), StoreFull)

        def fail(_: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("holdfast.stores.sqlite.connection.os.fsync", fail)
        assert isinstance(store._db.explain(error), StoreFull) is is_full
        assert isinstance(store._db.explain(error), StoreUnavailable) is not is_full


@on_every_store
def test_one_key_from_eight_processes_is_one_job(world: World) -> None:
    """160 enqueues at once, exact (15.14)."""
    code = (
        "import sys, crash_tasks\n"
        "crash_tasks.app.store\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "for _ in range(20):\n"
        "    job = crash_tasks.quick.using(key='the only one').enqueue()\n"
        "    print(job.id, job.existed, flush=True)\n"
    )
    clients = [world.run(f"client-{n}", ["-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for n in range(8)]
    for client in clients:
        assert client.popen.stdout is not None
        assert client.popen.stdout.readline() == b"ready\n"
    for client in clients:
        assert client.popen.stdin is not None
        client.popen.stdin.write(b"go\n")
        client.popen.stdin.flush()
    answers = []
    for client in clients:
        assert client.popen.stdout is not None
        answers += [line.split() for line in client.popen.stdout]
        assert client.wait() == 0
    assert len(answers) == 160
    assert len({job for job, _ in answers}) == 1
    assert [existed for _, existed in answers].count(b"False") == 1
    assert world.store.counts() == {"default": {State.READY: 1}}
