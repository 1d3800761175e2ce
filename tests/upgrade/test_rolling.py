"""A fleet of the earlier program is upgraded while producers and workers continue: no job is lost, none runs twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from holdfast import App
from holdfast.core.machine import State
from holdfast.core.records import Filter
from holdfast.stores import open_store
from tests.servers import PostgresServer
from tests.worker.house import until

pytestmark = pytest.mark.slow  # programs of two versions, one after the other

HERE = Path(__file__).parent
[WHEEL] = HERE.glob("*.whl")
TASKS = """
import os
from holdfast import App, Flow

app = App(os.environ["FLEET_DB"])

def note(what: str) -> None:
    descriptor = os.open(os.environ["FLEET_BOOK"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{what}\\n".encode())
    os.close(descriptor)

@app.task(name="count", lease_s=10)
def count(number: int) -> None:
    note(f"count {number}")

@app.workflow(name="order", lease_s=10)
def order(flow: Flow, number: int) -> str:
    flow.step(note, f"reserve {number}")
    flow.wait("go")
    flow.step(note, f"ship {number}")
    return "sent"

def produce() -> None:
    number = 0
    while not os.path.exists(os.environ["FLEET_BOOK"] + ".stop"):
        for _ in range(5):
            count.enqueue(number)
            number += 1
    print(number)

if __name__ == "__main__":
    produce()
"""


class Fleet:
    """Programs of both versions on one store."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.book = folder / "book"
        self.book.touch()
        (folder / "fleet.py").write_text(TASKS)

    def environment(self, *, old: bool) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        path = {"PYTHONPATH": str(WHEEL)} if old else {}
        return {**kept, **path, "FLEET_DB": self.url, "FLEET_BOOK": str(self.book)}

    @contextmanager
    def program(self, *words: str, old: bool) -> Iterator[subprocess.Popen[str]]:
        """Run a program; it is asked to end at the end of the block."""
        environment = self.environment(old=old)
        with (self.folder / "log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=self.folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=120)

    def worker(self, name: str, stack: ExitStack, *, old: bool) -> subprocess.Popen[str]:
        """Start a worker, and wait until it is ready."""
        words = ["-m", "holdfast", "worker", "fleet:app", "--name", name, "--slots", "4"]
        process = stack.enter_context(self.program(*words, old=old))
        until(lambda: f"worker {name}/1 is ready" in (self.folder / "log").read_text(), f"{name} is ready")
        return process

    def lines(self) -> Counter[str]:
        return Counter(self.book.read_text().splitlines())


@pytest.fixture(params=["sqlite", "postgres"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    if request.param == "sqlite":
        yield Fleet(tmp_path, f"sqlite:///{tmp_path}/jobs.db?synchronous=normal")
        return
    server = PostgresServer()
    try:
        yield Fleet(tmp_path, server.url)
    finally:
        server.close()


def version_of(fleet: Fleet) -> int:
    with closing(open_store(fleet.url)) as store:
        return store.schema().found


def test_a_fleet_is_upgraded_under_load_without_a_lost_or_doubled_job(fleet: Fleet) -> None:
    with ExitStack() as stack:
        first = fleet.worker("first", stack, old=True)
        second = fleet.worker("second", stack, old=True)
        before = version_of(fleet)
        producer = stack.enter_context(fleet.program("fleet.py", old=True))
        until(lambda: len(fleet.lines()) > 100, "the old fleet works")
        with closing(open_store(fleet.url)) as store:
            wanted = store.schema().wanted
            assert before < wanted, "the wheel is of an older schema"
        migrate = [sys.executable, "-m", "holdfast", "db", "migrate", "--db", fleet.url]
        done = subprocess.run(migrate, env=fleet.environment(old=False), check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert version_of(fleet) == wanted
        seen = len(fleet.lines())
        until(lambda: len(fleet.lines()) > seen + 100, "the old fleet continues on the new schema")
        assert (first.poll(), second.poll()) == (None, None)
        with closing(App(fleet.url)) as app:
            orders = [app.enqueue_by_name("order", [number]).id for number in range(3)]
            until(lambda: all(app.get(each).state == "waiting" for each in orders), "an old worker took the workflows")
            fleet.worker("third", stack, old=False)
            for old in (first, second):
                old.terminate()
                assert old.wait(120) == 0
            later = len(fleet.lines())
            until(lambda: len(fleet.lines()) > later + 100, "the new worker does the rest")
            for each in orders:
                app.signal(each, "go")
            until(
                lambda: all(app.get(each).state == "done" for each in orders), "workflows continue in the new program"
            )
        Path(f"{fleet.book}.stop").touch()
        number = int(producer.communicate(timeout=120)[0])
        with closing(open_store(fleet.url)) as store:
            live = Filter(states=(State.READY, State.RUNNING), limit=1)
            until(lambda: not store.find(live), "everything is done")
            ended = Counter(job.state for job in store.find(Filter(limit=100_000)))
            assert ended == {State.DONE: number + 3}
            assert store.journal(kinds=["zombie", "stale_report"]) == []
            assert store.check() == []
    wanted_lines = [f"count {each}" for each in range(number)]
    wanted_lines += [f"{step} {each}" for each in range(3) for step in ("reserve", "ship")]
    assert fleet.lines() == Counter(wanted_lines), "each ran exactly once"
