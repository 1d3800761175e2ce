"""P14 on SQLite: the `-wal` and `-shm` files that somebody removes under a live store."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from holdfast import App
from holdfast.errors import FileReplaced, NotFound, StoreError
from holdfast.stores.protocol import in_words
from holdfast.stores.sqlite import wal
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.worker.options import WorkerOptions
from holdfast.worker.runner import Runner
from tests.factory import add, make_job
from tests.worker.house import until

BESIDE = [("-wal",), ("-shm",), ("-wal", "-shm")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(file: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(f"sqlite:///{file}")
    store.migrate()
    checkpoint(file)
    yield store
    store.close()


def checkpoint(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)


def remove(file: Path, *ends: str) -> None:
    for end in ends:
        file.with_name(file.name + end).unlink()


def python(code: str, *arguments: object) -> str:
    """What another process prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def add_elsewhere(file: Path) -> set[str]:
    """Let another process store three jobs."""
    code = (
        "import json, sys; from holdfast import App; from tests.factory import make_job\n"
        "with App(f'sqlite:///{sys.argv[1]}') as app: app.store.add(jobs := [make_job() for _ in range(3)])\n"
        "print(json.dumps([job.id for job in jobs]))"
    )
    return set(json.loads(python(code, file)))


def jobs_seen_elsewhere(file: Path) -> set[str]:
    code = (
        "import json, sqlite3, sys; db = sqlite3.connect(sys.argv[1])\n"
        "assert db.execute('PRAGMA integrity_check').fetchall() == [('ok',)]\n"
        "print(json.dumps([id for id, in db.execute('SELECT id FROM holdfast_job')]))"
    )
    return set(json.loads(python(code, file)))


def doubts_seen_elsewhere(file: Path) -> list[list[str]]:
    code = (
        "import json, sys; from holdfast.stores.sqlite.store import SqliteStore\n"
        "store = SqliteStore(f'sqlite:///{sys.argv[1]}')\n"
        "print(json.dumps([[each.kind, each.evidence] for each in store.doubts()])); store.close()"
    )
    found: list[list[str]] = json.loads(python(code, file))
    return found


# ---------------------------------------------------------------------------------------- one process


def test_what_was_committed_into_a_deleted_wal_is_saved_and_found_by_others(
    file: Path, store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = {add(store).id for _ in range(10)}
    remove(file, "-wal")
    with caplog.at_level(logging.ERROR, "holdfast.stores"), pytest.raises(FileReplaced):
        add(store)
    assert "everything that was committed into it was copied into the database" in caplog.text
    assert jobs_seen_elsewhere(file) == jobs
    assert doubts_seen_elsewhere(file) == [["rewound", "wal"]]


def test_a_commit_into_a_deleted_wal_is_refused_and_what_was_there_before_is_saved(
    file: Path, store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    kept = {add(store).id}
    transaction = store._db.writing()
    transaction.__enter__().execute("UPDATE holdfast_job SET priority = 7")
    remove(file, "-wal")
    with pytest.raises(FileReplaced):
        transaction.__exit__(None, None, None)
    assert "everything that was committed into it was copied into the database" in caplog.text
    assert jobs_seen_elsewhere(file) == kept


def test_a_write_that_fails_says_that_its_files_were_removed(file: Path, store: SqliteStore) -> None:
    """A worker that the old files do not know would enrol again and again."""
    add(store)
    remove(file, "-wal")
    with pytest.raises(FileReplaced):
        store.claim("unknown", "claim", ["default"], ["t"], 1)


def test_a_read_says_that_its_files_were_removed(file: Path, store: SqliteStore) -> None:
    job = add(store)
    assert store.get(job.id) is not None
    remove(file, "-wal")
    with pytest.raises(FileReplaced):
        store.get(job.id)


def test_a_write_that_waits_for_a_removed_file_says_that_it_was_removed(file: Path, store: SqliteStore) -> None:
    impatient = SqliteStore(f"sqlite:///{file}?busy_s=0.1")
    add(impatient)
    with closing(sqlite3.connect(file, isolation_level=None)) as another:
        another.execute("BEGIN IMMEDIATE")
        remove(file, "-wal")
        with pytest.raises(FileReplaced):
            add(impatient)
    impatient.close()


@pytest.mark.parametrize("ends", BESIDE, ids=" ".join)
def test_a_process_whose_files_were_removed_never_writes_again(
    file: Path, store: SqliteStore, ends: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Both groups of programs would overwrite each other's commits, also when the old process ends gracefully."""
    add(store)
    remove(file, *ends)
    for _ in range(2):
        with pytest.raises(FileReplaced, match="was deleted or replaced while in use; start again"):
            add(store)
    assert len([record for record in caplog.records if record.name == "holdfast.stores"]) == 1
    again = SqliteStore(f"sqlite:///{file}")  # of another app of the same process
    with pytest.raises(FileReplaced):
        add(again)
    jobs = add_elsewhere(file)
    again.close()
    store.close()
    assert jobs <= jobs_seen_elsewhere(file)


@pytest.mark.parametrize("ends", [("-shm",), ("-wal", "-shm")], ids=" ".join)
def test_closing_a_store_whose_files_were_removed_keeps_the_jobs_of_others(
    file: Path, store: SqliteStore, ends: tuple[str, ...]
) -> None:
    """Nothing has used the store in between: it is looked at before it is closed."""
    add(store)
    with closing(sqlite3.connect(file)) as own:
        own.execute("SELECT count(*) FROM holdfast_job").fetchone()
        remove(file, *ends)
        jobs = add_elsewhere(file)
        store.close()
    assert jobs <= jobs_seen_elsewhere(file)


def test_a_program_that_ends_without_closing_its_app_keeps_the_jobs_of_others(file: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from holdfast import App; from tests.factory import make_job\n"
        "app = App(f'sqlite:///{sys.argv[1]}'); app.store.add([make_job()]); print('ready', flush=True); input()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, str(file)], stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        remove(file, "-wal", "-shm")
        jobs = add_elsewhere(file)
        program.communicate("\n")
    assert program.returncode == 0
    assert jobs <= jobs_seen_elsewhere(file)
    assert doubts_seen_elsewhere(file) == [["rewound", "shm"]]


def test_a_wal_that_sqlite_itself_has_emptied_or_made_again_is_not_lost(file: Path, store: SqliteStore) -> None:
    add(store)
    checkpoint(file)
    add(store)
    store.close()
    again = SqliteStore(f"sqlite:///{file}")
    add(again)
    assert again.doubts() == []
    again.close()


@pytest.mark.parametrize("opened", [False, True])
def test_a_database_that_was_truncated_is_told_as_such_and_nothing_is_copied_into_it(
    file: Path, store: SqliteStore, opened: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite itself deletes the -wal of an empty database, when the next program opens it."""
    add(store)
    os.truncate(file, 0)
    if opened:
        python("import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT * FROM sqlite_master')", file)
        assert not file.with_name("jobs.db-wal").exists()
    for _ in range(2):
        with pytest.raises(FileReplaced, match=r"jobs\.db was truncated to 0 bytes while in use; start again"):
            add(store)
    [said] = [record.getMessage() for record in caplog.records]
    assert "was truncated to 0 bytes while in use; restore it from a backup" in said
    store.close()
    assert file.stat().st_size == 0
    assert (note := wal.read_note(file)) is not None
    assert in_words(note) == "the store was emptied: its file was truncated to 0 bytes while it was in use"


def test_a_process_that_notices_after_the_store_was_accepted_raises_no_new_doubt(
    file: Path, store: SqliteStore
) -> None:
    add(store)
    remove(file, "-wal", "-shm")
    code = (
        "import sys; from holdfast.core.continuity import Doubt; from holdfast.stores.sqlite.store import SqliteStore\n"
        "store = SqliteStore(f'sqlite:///{sys.argv[1]}'); store.doubt(1, Doubt('rewound', 'shm', '', ''))\n"
        "store.accept(1, 'ann', 'looked'); store.close()"
    )
    python(code, file)
    with pytest.raises(FileReplaced):
        add(store)
    assert doubts_seen_elsewhere(file) == []
    assert wal.read_note(file) is None


# -------------------------------------------------------------------------------- the caller's connection


@pytest.mark.parametrize("used_before", [True, False])
@pytest.mark.parametrize("ends", BESIDE, ids=" ".join)
def test_a_connection_of_the_callers_is_refused_when_its_files_were_removed(
    file: Path, ends: tuple[str, ...], used_before: bool
) -> None:
    """Without a use before, only the descriptors of this process tell that its connection has older files."""
    if not used_before and sys.platform != "linux":
        pytest.skip("the system does not tell which files are open")
    with App(f"sqlite:///{file}") as first:
        first.store.migrate()
    with App(f"sqlite:///{file}") as app, closing(sqlite3.connect(file, isolation_level=None)) as own:

        @app.task(name="t")
        def task() -> None: ...

        own.execute("SELECT count(*) FROM holdfast_job").fetchone()
        if used_before:
            task.using(connection=own).enqueue()
        remove(file, *ends)
        if "-shm" in ends:
            add_elsewhere(file)
        for _ in range(2):
            with pytest.raises(FileReplaced):
                task.using(connection=own).enqueue()


# ---------------------------------------------------------------------------------------- a real worker

JOBS = """
from holdfast import App
app = App("sqlite:///jobs.db")

@app.task(name="t", lease_s=3)
def t(n: int) -> int: return n
"""


class Program:
    """`holdfast worker` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.file, self._log = folder / "jobs.db", folder / "worker.log"
        (folder / "jobs.py").write_text(JOBS)
        command = [sys.executable, "-m", "holdfast", "worker", "jobs:app", "--name", "w"]
        with self._log.open("w") as log:
            self.popen = subprocess.Popen(command, cwd=folder, stderr=log, start_new_session=True)

    def said(self, words: str) -> int:
        return self._log.read_text().count(words)

    def until_said(self, words: str, times: int = 1) -> None:
        until(lambda: self.said(words) >= times or self.popen.poll() is not None, f"it says {words!r}")
        assert self.said(words) >= times, self._log.read_text()

    def enqueue(self) -> str:
        return add_elsewhere_as(self.file, "t", {"n": 1})

    def state(self, job_id: str) -> str:
        with App(f"sqlite:///{self.file}") as app, suppress(StoreError, NotFound):
            return str(app.get(job_id).state)
        return "missing"

    def holdfast(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "holdfast", "--db", f"sqlite:///{self.file}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)


def add_elsewhere_as(file: Path, task: str, payload: dict[str, object]) -> str:
    with App(f"sqlite:///{file}") as app:
        app.store.add([job := make_job(task=task, payload=json.dumps(payload))])
    return job.id


@contextmanager
def worker(folder: Path) -> Iterator[Program]:
    program = Program(folder)
    try:
        yield program
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.popen.pid, signal.SIGKILL)
        program.popen.wait()


def remove_both(file: Path) -> None:
    remove(file, "-wal", "-shm")


def restore_by_copy(file: Path) -> None:
    shutil.copyfile(file.with_name("backup.db"), file)
    remove(file, "-wal", "-shm")


def restore_by_rename(file: Path) -> None:
    file.with_name("backup.db").rename(file)
    remove(file, "-wal", "-shm")


def truncate(file: Path) -> None:
    os.truncate(file, 0)


@pytest.mark.slow
@pytest.mark.parametrize("act", [remove_both, restore_by_copy, restore_by_rename, truncate])
def test_a_worker_starts_again_when_its_files_were_removed_and_no_later_job_is_lost(
    tmp_path: Path, act: Callable[[Path], None]
) -> None:
    """Slow: a real worker is started, and starts itself again."""
    with worker(tmp_path) as program:
        program.until_said(" is ready")
        pid = program.popen.pid
        assert program.holdfast("db", "backup", str(tmp_path / "backup.db")).returncode == 0
        first = program.enqueue()
        until(lambda: program.state(first) == "done", "the first job ends")
        act(program.file)
        program.until_said(" is ready", times=2)
        waiting = [program.enqueue() for _ in range(3)]
        checked = program.holdfast("db", "check")
        assert checked.returncode == 7
        assert checked.stderr.count("while in use") + checked.stderr.count("while it was in use") == 1
        program.until_said("This worker claims no jobs")
        assert {program.state(each) for each in waiting} == {"ready"}
        assert program.holdfast("db", "accept", "--by", "ann", "--note", "looked").returncode == 0
        until(lambda: {program.state(each) for each in waiting} == {"done"}, "the jobs run after the acceptance")
        later = program.enqueue()
        until(lambda: program.state(later) == "done", "later ones too")
        assert program.popen.pid == pid
        assert program.popen.poll() is None
        program.popen.send_signal(signal.SIGTERM)
        assert program.popen.wait(60) == 0
        assert {program.state(each) for each in [*waiting, later]} == {"done"}
        assert program.holdfast("db", "check").returncode == 0
        assert program.said("the store fails") == 0


@pytest.mark.slow
def test_a_worker_whose_database_was_deleted_ends_and_makes_no_empty_one(tmp_path: Path) -> None:
    """Slow: a real worker is started."""
    with worker(tmp_path) as program:
        program.until_said(" is ready")
        program.file.rename(moved := tmp_path / "moved.db")
        assert program.popen.wait(60) == 3
        assert program.said("jobs.db was deleted while in use; restore it, or remove ") == 1
        assert program.said("the store fails") == 0
        assert not program.file.exists()
        moved.rename(program.file)
        assert "while it was in use" in program.holdfast("db", "check").stderr


# ------------------------------------------------------------------------------------ other programs


def test_a_tick_raises_when_its_files_were_removed(file: Path) -> None:
    with App(f"sqlite:///{file}") as app:
        app.tick(5)
        remove(file, "-wal", "-shm")
        with pytest.raises(FileReplaced):
            app.tick(5)


def test_a_worker_inside_another_program_stops_and_says_why(file: Path) -> None:
    with App(f"sqlite:///{file}") as app:

        @app.task(name="t", lease_s=3)
        def task() -> None:
            remove(file, "-wal", "-shm")
            while True:  # until it is interrupted: only the thread that beats asks the store meanwhile
                time.sleep(0.01)

        task.enqueue()
        with pytest.raises(FileReplaced):
            Runner(app, WorkerOptions(name="w", slots=1)).run()


def test_a_reaper_ends_when_its_files_were_removed(file: Path, store: SqliteStore) -> None:
    add(store)
    command = [sys.executable, "-m", "holdfast", "--db", f"sqlite:///{file}", "reaper", "--interval", "50ms"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as reaper:
        try:
            with closing(sqlite3.connect(file)) as db:
                until(lambda: db.execute("SELECT * FROM holdfast_duty").fetchall(), "it has the duty")
            remove(file, "-wal", "-shm")
            _, said = reaper.communicate(timeout=60)
        finally:
            reaper.kill()
    assert reaper.returncode == 3
    assert "was deleted or replaced while in use; start again" in said
