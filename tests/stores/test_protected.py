"""Code inside a worker cannot open the files of its own SQLite store (DESIGN 15.26)."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import App
from tests.factory import make_job
from tests.worker.house import until

COPIER = """
import shutil
from pathlib import Path
from holdfast import App

app = App("sqlite:///jobs.db")

@app.task
def copy(target: str) -> str:
    try:
        shutil.copytree(".", target)
    except shutil.Error as error:
        return str(error)
    return "copied"

@app.task(isolate=True)
def copy_apart(target: str) -> str:
    app.counts()  # from here on the process has the store open
    return copy.fn(target)

@app.task
def other() -> str:
    return Path("copier.py").read_text()[:6]
"""


@contextmanager
def worker(folder: Path, app: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """`holdfast worker` in this folder, until the block ends."""
    log = (folder.parent / f"{folder.name}.log").open("w+")
    command = [sys.executable, "-m", "holdfast", "worker", app, "--name", "w", *flags]
    started = subprocess.Popen(command, cwd=folder, stderr=log, text=True, start_new_session=True)
    try:
        yield started
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == 0, (log.seek(0), log.read())
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
        log.close()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["copy", "copy_apart"])
def test_a_job_that_copies_the_stores_folder_harms_neither_the_store_nor_its_worker(tmp_path: Path, task: str) -> None:
    """Slow: a worker is started. Without the refusal the worker loses its lock and SQLite all of its own."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "copier.py").write_text(COPIER)
    with App(f"sqlite:///{folder}/jobs.db") as app:
        names = {"copy": f"copier.{task}", "other": "copier.other"}
        app.store.add([make_job(id="copy", task=names["copy"], payload=json.dumps({"target": f"{tmp_path}/copy"}))])
        app.store.add([make_job(id="other", task=names["other"])])
        with worker(folder, "copier:app"):
            until(lambda: all(app.get(each).state == "done" for each in ("copy", "other")), "both jobs end", 60)
            [enrolled] = app.store.workers()
            assert app.store.vanished() == [], "its lock is still held"
            assert [(enrolled.name, enrolled.gone_at)] == [("w/1", None)]
        result = app.get("copy").result()
        assert "holdfast db backup" in result
        for name in ("jobs.db'", "jobs.db-wal'", "jobs.db-shm'"):
            assert name in result
        assert (f"{enrolled.id}.lock" in result) is (task == "copy"), "a cell has no lock of its own"
        assert app.get("other").result() == "\nimpor"
        assert app.store.check() == []
    assert (tmp_path / "copy" / "copier.py").exists(), "what is not the store's is copied"


WAYS = """
import io, os, sqlite3, sys
from pathlib import Path
from holdfast.core.records import Worker
from holdfast.errors import ProtectedFile
from holdfast.stores.sqlite import protected
from holdfast.stores.sqlite.store import SqliteStore

folder = Path(sys.argv[1])
os.chdir(folder)
protected.install()
(folder / "harmless").write_text("x")
assert (folder / "harmless").read_text() == "x"
store = SqliteStore(f"sqlite:///{folder}/jobs.db")
store.migrate()
WAYS = {
    "open": lambda path: open(path, "rb").close(),
    "to write": lambda path: open(path, "r+b").close(),
    "os.open": lambda path: os.close(os.open(path, os.O_RDONLY)),
    "Path": lambda path: Path(path).read_bytes(),
    "bytes": lambda path: io.open(os.fsencode(path)).close(),
    "relative": lambda path: open(os.path.relpath(path)).close(),
    "a Path to os.open": lambda path: os.close(os.open(Path(path), os.O_RDONLY)),
}
refused = 0
for name in ("jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db-workers/w.lock"):
    path = folder / name
    if path.suffix == ".lock":
        store.enroll(Worker(id="w", name="w", host="h", pid=os.getpid(), boot_id=store._clock.boot_id))
    link, twin = folder / "link", folder / "twin"
    link.symlink_to(path)
    os.link(path, twin)
    for each in (path, link, twin):
        for how, open_it in WAYS.items():
            try:
                open_it(str(each))
            except ProtectedFile as error:
                assert "holdfast db backup" in str(error), error
                assert isinstance(error, PermissionError)
                refused += 1
            else:
                sys.exit(f"{each} was opened by {how}")
    link.unlink()
    twin.unlink()
sqlite3.connect(folder / "jobs.db").close()
SqliteStore(f"sqlite:///{folder}/jobs.db").close()
try:
    os.open(folder / "jobs.db", os.O_RDWR | os.O_CREAT | os.O_EXCL)
except FileExistsError:
    pass
assert (folder / "harmless").read_text() == "x"
(folder / "elsewhere").mkdir()
(folder / "elsewhere" / "jobs.db").write_text("y")
assert (folder / "elsewhere" / "jobs.db").read_text() == "y", "a name alone is not refused"
store.retire("w", "the test is over")
store.close()
assert (folder / "jobs.db").read_bytes()[:6] == b"SQLite", "a store that is closed is a file like any other"
print(refused)
"""


def test_every_way_to_open_a_file_of_an_open_store_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WAYS, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 4 * 3 * 7


LOOKS = """
import os, sys
from holdfast.stores.sqlite import protected
from holdfast.stores.sqlite.store import SqliteStore
folder = sys.argv[1]
store = SqliteStore(f"sqlite:///{folder}/jobs.db")
store.migrate()
protected.install()
looks = []
real = protected._identity
protected._now = lambda: 0.0  # no second passes
protected.refresh()
protected._identity = lambda path: looks.append(path) or real(path)
plain = f"{folder}/plain"
open(plain, "w").close()
for way in (open, lambda path: os.fdopen(os.open(path, os.O_RDONLY))):
    for _ in range(1000):
        way(plain).close()
print(looks.count(plain), len(looks))
store.close()
"""


def test_a_path_that_is_opened_often_costs_one_look_at_its_file_each_second(tmp_path: Path) -> None:
    """A look is a system call. All other opens cost less than a microsecond: see `bench/opens.py`."""
    done = subprocess.run([sys.executable, "-c", LOOKS, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 2\n", "one before the file was there, and one after"


MEANS_ANOTHER = """
import os, subprocess, sys
from holdfast.errors import ProtectedFile
from holdfast.stores.sqlite import protected
from holdfast.stores.sqlite.store import SqliteStore

folder, way = sys.argv[1:]
os.mkdir(f"{folder}/other")
os.symlink(f"{folder}/jobs.db", f"{folder}/link")
os.symlink(f"{folder}/jobs.db", f"{folder}/latest")
os.chdir(f"{folder}/other")
store = SqliteStore(f"sqlite:///{folder}/jobs.db")
store.migrate()
seconds = 0.0
protected._now = lambda: seconds
protected.install()
open("latest", "w").close()
open("latest").close()
assert "latest" in protected._harmless, "it is remembered"
if way == "chdir":
    os.chdir(folder)
elif way == "replace":
    os.replace("../link", "latest")
elif way == "program":
    subprocess.run(["ln", "-sf", "../jobs.db", "latest"], check=True)
else:
    os.unlink("latest")
    if way == "symlink":
        os.symlink("../jobs.db", "latest")
    elif way == "link":
        os.link("../jobs.db", "latest")
    elif way == "another process":
        os.symlink("../jobs.db", "latest")
        protected._harmless.add("latest")  # as if the hook had not seen it
        seconds = protected.REMEMBERED_S
try:
    open("latest").close()
    print("opened")
except ProtectedFile:
    print("refused")
store.close()
"""


@pytest.mark.parametrize("way", ["chdir", "replace", "program", "symlink", "link", "another process"])
def test_a_path_that_has_become_a_link_to_the_store_is_refused(tmp_path: Path, way: str) -> None:
    command = [sys.executable, "-W", "error", "-c", MEANS_ANOTHER, str(tmp_path), way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "refused\n"


def test_a_process_that_is_not_a_worker_may_open_what_it_likes(tmp_path: Path) -> None:
    """Embedded use: the application's own files are its own business."""
    code = "import sys, holdfast; app = holdfast.App('sqlite:///jobs.db'); app.counts(); open('jobs.db').close()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=tmp_path)
