"""Workers in this process: each is a real `Runner` on a thread, over a real store behind a `Meddler`."""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from holdfast import App
from holdfast.core.records import Event
from holdfast.core.records import Job as Row
from holdfast.errors import FileReplaced
from holdfast.worker.options import WorkerOptions
from holdfast.worker.runner import Runner
from tests.worker.meddler import Meddler

T = TypeVar("T")

# For a test in which the store has a part.
on_every_store = pytest.mark.parametrize("house", ["memory", "sqlite", "postgres", "redis"], indirect=True)

PATIENCE_S = 60.0  # how long a test waits for what must happen, on a machine that is busy with something else


def until(condition: Callable[[], T], what: str = "", timeout_s: float = PATIENCE_S) -> T:
    """Wait until the condition holds and return what it returned; fail when the time is up."""
    give_up_at = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > give_up_at:
            raise AssertionError(f"waited {timeout_s:g} s in vain: {what or condition}")
        time.sleep(0.003)
    return found


class House:
    """One app and the workers that a test started for it."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.store = Meddler(app.store)
        app._store = self.store  # type: ignore[assignment]
        self._workers: dict[Runner, tuple[threading.Thread, list[int | FileReplaced]]] = {}

    def start(self, *, name: str = "w", **options: Any) -> Runner:
        """Start a worker and return it once it is enrolled."""
        runner = self.launch(name=name, **options)
        until(lambda: runner.worker_id, "the worker enrols")
        return runner

    def launch(self, *, name: str = "w", app_ref: str | None = None, **options: Any) -> Runner:
        """Start a worker and return it at once."""
        runner = Runner(self.app, WorkerOptions(name=name, **options), app_ref=app_ref)
        codes: list[int | FileReplaced] = []

        def run() -> None:
            try:
                codes.append(runner.run())
            except FileReplaced as error:
                codes.append(error)

        thread = threading.Thread(target=run, name=f"test-{name}", daemon=True)
        self._workers[runner] = (thread, codes)
        thread.start()
        return runner

    def join(self, runner: Runner) -> int:
        """Wait for the end of a worker; return its exit code, or raise why it left by itself."""
        thread, codes = self._workers.pop(runner)
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the worker did not stop"
        if isinstance(codes[0], FileReplaced):
            raise codes[0]
        return codes[0]

    def stop(self, runner: Runner) -> int:
        runner.stop()
        return self.join(runner)

    def close(self) -> None:
        for runner in list(self._workers):
            runner.stop_now()
            self.join(runner)
        self.app.close()

    def row(self, job_id: str) -> Row:
        row = self.store.get(job_id)
        assert row is not None
        return row

    def events(self, job_id: str, *kinds: str) -> list[Event]:
        return list(self.store.journal(job_id, kinds))

    def kinds(self, job_id: str) -> list[str]:
        """What happened to the job, without its claims."""
        return [event.kind for event in self.store.journal(job_id) if event.kind != "claimed"]

    def until_state(self, job_id: str, state: str, timeout_s: float = PATIENCE_S) -> Row:
        """Wait until the job is in this state and return its row."""
        until(lambda: self.row(job_id).state == state, f"the job becomes {state}", timeout_s)
        return self.row(job_id)
