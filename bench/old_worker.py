"""A worker of the first version (commit c86b432) while programs of today change the schema under it.

    .venv/bin/python bench/old_worker.py [--store postgres] [--jobs 400]

The old program comes from the history of this repository, so this needs a full clone. The old worker makes the store
and works. Then a program of today migrates the store, and a worker of today works beside the old one. At last a
migration that shuts old programs out begins while the old worker runs a job. What is printed was checked.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.factory import make_job
from tests.servers import PostgresServer

from holdfast.core.machine import State
from holdfast.stores import open_store
from holdfast.stores.protocol import Store
from holdfast.stores.sql import parse_migration

ROOT = Path(__file__).parent.parent
COMMIT = "c86b432"
NEW = ROOT / "src"
PATIENCE_S = 120.0
TASKS = """
import os
import time
from pathlib import Path

from holdfast import App

FOLDER = Path(os.environ["TRIAL_FOLDER"])
app = App(os.environ["HOLDFAST_DB"])


@app.task(name="quick", lease_s=6)
def quick() -> None:
    with (FOLDER / "ledger").open("a") as ledger:
        ledger.write(os.environ["TRIAL_NAME"] + "\\n")
    time.sleep(0.01)


@app.task(name="wait", lease_s=6)
def wait() -> None:
    (FOLDER / "waits").touch()
    while not (FOLDER / "go").exists():
        time.sleep(0.05)
    (FOLDER / "waits").unlink()
    (FOLDER / "go").unlink()
"""
SHUT = {
    "sqlite": "-- works with: {number}\nCREATE TABLE holdfast_new (x);",
    "postgres": "-- works with: {number}\nCREATE TABLE {{schema}}.new (x integer);",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--jobs", type=int, default=400)
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = f"sqlite:///{folder}/jobs.db"
        if given.store == "postgres":
            url = stack.enter_context(closing(PostgresServer())).url
        trial = Trial(url, folder)
        with trial.worker("old", trial.old):
            store = stack.enter_context(closing(open_store(url)))
            add_to_the_schema(trial, store, given.jobs)
            shut_out(trial, store, given.store)


def add_to_the_schema(trial: Trial, store: Store, jobs: int) -> None:
    [held_up] = trial.enqueue(trial.old, "wait")
    until(trial.waits, "the old worker runs a job")
    before = store.migrate().found
    say(f"migrated from schema {before} to {store.schema().found} while the old worker ran a job")
    trial.go()
    until(lambda: are_done(store, [held_up]), "its job is settled")
    ids = trial.enqueue(NEW, "quick", 20)
    until(lambda: are_done(store, ids), "the old worker goes on")
    check(trial.ran("old") == 20, "the old worker settled the job, and ran 20 more")
    with trial.worker("new", NEW):
        ids = trial.enqueue(NEW, "quick", jobs)
        until(lambda: are_done(store, ids), "both work")
    old, new = trial.ran("old") - 20, trial.ran("new")
    check(
        old + new == jobs,
        f"beside a new worker: {jobs} jobs, each run once; {old} by the old one, {new} by the new one",
    )
    check(store.doubts() == [], "nobody took the store for one that was rewound or emptied")
    ended = trial.run(trial.old, "-m", "holdfast", "worker", "trial_tasks:app")
    check(ended.returncode == 4, f"an old worker that starts now ends with exit code {ended.returncode}")


def shut_out(trial: Trial, store: Store, kind: str) -> None:
    [held_up] = trial.enqueue(NEW, "wait")
    until(trial.waits, "the old worker runs a job")
    migrations = sys.modules[f"holdfast.stores.{kind}.store"]._MIGRATIONS  # type: ignore[attr-defined]
    number = len(migrations) + 1
    ran = trial.ran("old")
    [late] = trial.enqueue(NEW, "quick")
    until(lambda: are_done(store, [late]), "the old worker claims while nothing is to be shut out")
    migrations.append(parse_migration(number, SHUT[kind].format(number=number)))
    migrating = threading.Thread(target=store.migrate)
    migrating.start()
    until(lambda: store.schema().works_with == number, "the migration waits")
    late_ids = [new_job(store) for _ in range(5)]
    time.sleep(5.0)  # in which it would claim them many times
    rows = [store.get(each) for each in late_ids]
    check(
        all(row is not None and row.attempt == 0 for row in rows), "5 jobs were enqueued, and the old worker got none"
    )
    check(migrating.is_alive(), "the migration waits for the job that the old worker runs")
    trial.go()
    until(lambda: are_done(store, [held_up]), "its job is settled")
    migrating.join(PATIENCE_S)
    check(store.schema().found == number, "its job was settled, and then the store was migrated")
    time.sleep(5.0)
    check(trial.ran("old") == ran + 1, "the old worker ran nothing more")
    ends = trial.processes["old"].poll()
    say(f"the old worker {'lives and tries again' if ends is None else f'ended with exit code {ends}'}; its log ends:")
    for line in trial.log("old").splitlines()[-3:]:
        say(f"    {line}")


class Trial:
    """One store, and the programs of both versions on it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.old = folder / "old" / "src"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        archive = subprocess.run(["git", "archive", COMMIT, "src"], cwd=ROOT, capture_output=True, check=False)
        if archive.returncode:
            raise SystemExit(f"the history of this clone does not reach {COMMIT}: git fetch --unshallow")
        (folder / "old").mkdir()
        subprocess.run(["tar", "-x", "-C", folder / "old"], input=archive.stdout, check=True)
        (folder / "trial_tasks.py").write_text(TASKS)

    @contextmanager
    def worker(self, name: str, source: Path) -> Iterator[None]:
        command = [sys.executable, "-m", "holdfast", "worker", "trial_tasks:app", "--name", name]
        with (self.folder / f"{name}.log").open("wb") as log:
            worker = subprocess.Popen(command, **self._settings(name, source), stderr=log, start_new_session=True)
        self.processes[name] = worker
        try:
            until(lambda: "is ready" in self.log(name), f"{name} is ready")
            yield
        finally:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGTERM if name == "new" else signal.SIGKILL)
            worker.wait(PATIENCE_S)

    def run(self, source: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, **self._settings("run", source), capture_output=True, text=True, check=False)

    def enqueue(self, source: Path, task: str, times: int = 1) -> list[str]:
        """Enqueue as a program of that version does; return the ids."""
        code = f"import trial_tasks; print(*[trial_tasks.{task}.enqueue().id for _ in range({times})])"
        ran = self.run(source, "-c", code)
        if ran.returncode:
            raise SystemExit(f"FAILED: {task} could not be enqueued: {ran.stderr}")
        return ran.stdout.split()

    def waits(self) -> bool:
        return (self.folder / "waits").exists()

    def go(self) -> None:
        (self.folder / "go").touch()

    def ran(self, name: str) -> int:
        ledger = self.folder / "ledger"
        return ledger.read_text().split().count(name) if ledger.exists() else 0

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _settings(self, name: str, source: Path) -> Any:
        facts = {"HOLDFAST_DB": self.url, "TRIAL_FOLDER": str(self.folder), "TRIAL_NAME": name}
        path = f"{source}{os.pathsep}{self.folder}"
        return {"cwd": self.folder, "env": {**os.environ, **facts, "PYTHONPATH": path}}


def new_job(store: Store) -> str:
    """Enqueue without a program of its own: while a migration waits, one of this version cannot start either."""
    new = make_job(task="quick")
    store.add([new])
    return new.id


def are_done(store: Store, ids: list[str]) -> bool:
    rows = [store.get(each) for each in ids]
    return all(row is not None and row.state is State.DONE for row in rows)


def until(condition: Callable[[], Any], what: str) -> float:
    """Wait until the condition holds; return how long it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > PATIENCE_S:
            raise SystemExit(f"FAILED: not within {PATIENCE_S:g} s: {what}")
        time.sleep(0.02)
    return time.monotonic() - began


def check(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"FAILED: {what}")
    say(what)


def say(what: str) -> None:
    print(what, flush=True)


if __name__ == "__main__":
    main()
