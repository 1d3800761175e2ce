"""The pool of cells: it hears everybody who calls, and what keeps it from starting a cell keeps nobody else."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import App, Retry
from holdfast.worker.executors import ERROR_MAX
from holdfast.worker.homes import Homes
from holdfast.worker.options import WorkerOptions
from holdfast.worker.pool import Hands, Pool
from tests.worker.house import House, until

ONCE = Retry(attempts_max=1)


@pytest.fixture
def pool() -> Iterator[Pool]:
    """A pool that has no cells and expects no attempts: only a call can wake it."""
    app = App("memory://")
    hands = Hands(*[lambda *_: None] * 4)
    pool = Pool(app.clock, Homes(app, None, worker_wide=False), WorkerOptions(), hands, "w")
    yield pool
    pool.close()


def test_a_pool_that_many_threads_call_hears_every_one(pool: Pool) -> None:
    unheard: list[int] = []

    def call(times: int) -> None:
        for turn in range(times):
            heard = threading.Event()
            pool._do(heard.set)
            if not heard.wait(5):
                unheard.append(turn)
                return

    threads = [threading.Thread(target=call, args=(1000,)) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert unheard == []


# --- Words ------------------------------------------------------------------------------------------------


LEAKY = """raise OSError(20 * ("no answer from postgresql://me:hunter2@db/shop\\0 " + 900 * "x"))\n"""


@pytest.mark.parametrize("app_ref", [None, "leaky:app"])
def test_a_module_that_cannot_be_imported_gives_no_secret_away(
    file_house: House,
    app_ref: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def late() -> None: ...

    (tmp_path / "leaky.py").write_text(LEAKY)
    monkeypatch.syspath_prepend(tmp_path)
    late.__module__, late.__qualname__ = "leaky", "late"
    task = file_house.app.task(isolate=True, retry=ONCE)(late)
    file_house.start(app_ref=app_ref)
    job = task.enqueue()
    [event, *_] = until(lambda: file_house.events(job.id, "failed", "released"), "it is said")
    said = event.detail.get("error") or event.detail["cause"]
    assert "postgresql://me:***@db/shop" in said
    assert len(said) <= ERROR_MAX
    for text in (said, caplog.text):
        assert "hunter2" not in text
        assert "\0" not in text
