"""A worker inside any program: `app.worker(…)` runs it on threads of this process."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.errors import UsageError
from holdfast.runtime.closing import Work
from holdfast.worker.fleet_services import fleet_services
from holdfast.worker.options import WorkerOptions
from holdfast.worker.runner import Runner

if TYPE_CHECKING:
    from holdfast.app import App

FOR_EVER = float("inf")
LEAVE_S = 30.0  # to leave after the grace period: running handlers are stopped, results saved, duties given back


class EmbeddedWorker:
    """One worker on threads of this process; `with` or `async with` starts and stops it.

    It does all that `holdfast worker` does, with one process: it also fires schedules, sends alerts and prunes.

    It has no supervisor. When the process dies, other workers recover its jobs. When a thread that it needs dies, it
    gives its jobs back, and `drain`, `stop` and the end of the block raise `WorkerBroken`.
    """

    def __init__(self, app: App, options: WorkerOptions) -> None:
        if options.processes != 1:
            raise UsageError(f"processes={options.processes}: a worker inside a program has one process; raise slots")
        self._app = app
        self._options = options
        self._runner: Runner | None = None
        self._thread: threading.Thread | None = None
        self._raised: BaseException | None = None
        self._has_left = False  # it needs the store no more, though its thread may not have ended yet
        self._unwanted = threading.Event()  # it was cancelled while it started: nobody could stop it later

    @property
    def name(self) -> str:
        """Return its name in the store."""
        return self._started().name

    @property
    def is_running(self) -> bool:
        """Say whether it claims jobs or still runs some."""
        return self._thread is not None and self._thread.is_alive() and not self._has_left

    def start(self) -> Self:
        """Start it, and return it once it claims jobs. Raises what keeps it from starting."""
        if self._runner is not None:
            raise UsageError("this worker was started before; make another one with app.worker(…)")
        if self._unwanted.is_set():
            return self
        self._runner = runner = Runner(self._app, self._options)
        self._thread = threading.Thread(target=self._run, args=(runner,), name="holdfast-worker", daemon=True)
        self._thread.start()
        try:
            runner.ready.wait()
        except BaseException:  # Ctrl-C: nobody will stop it
            runner.stop_now()
            raise
        if self._unwanted.is_set():
            runner.stop(self._options.grace_period_s)
        self._raise()
        return self

    def drain(self, timeout_s: float | None = None) -> bool:
        """Claim nothing more, and wait until the running jobs have ended; say whether they have.

        After `timeout_s` they are still running: call `drain` again to wait longer, or `stop`.
        """
        runner = self._started()
        self._refuse_a_job_of_its_own(runner)
        if self.is_running:
            runner.stop(FOR_EVER)
        return self._join(timeout_s)

    def stop(self) -> None:
        """Claim nothing more, let the running jobs finish within `grace_period_s`, give the rest back, and leave."""
        runner = self._started()
        self._refuse_a_job_of_its_own(runner)
        if self.is_running:
            runner.stop(self._options.grace_period_s)
        self._join(None)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._leave(error)

    async def __aenter__(self) -> Self:
        try:
            return await asyncio.to_thread(self.start)
        except asyncio.CancelledError as error:
            self._unwanted.set()
            await self._finish(error)
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        await self._finish(error)

    async def _finish(self, error: BaseException | None) -> None:
        """Stop it in a thread, which goes on when this is cancelled."""
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._leave, error))

    def _leave(self, error: BaseException | None) -> None:
        try:
            if self._thread is not None or not self._unwanted.is_set():
                self.stop()
        except BaseException:
            if error is None:  # the block's own error says more
                raise

    def _run(self, runner: Runner) -> None:
        app, name = self._app, runner.name
        work = Work(runner.stop, self._options.grace_period_s + LEAVE_S, runner.runs_the_caller)
        try:
            app.closing.begin(work)
            with fleet_services(app, name):
                runner.run()
        except BaseException as error:
            self._raised = error
        finally:
            self._has_left = True
            app.closing.end(work)
            runner.ready.set()

    def _join(self, timeout_s: float | None) -> bool:
        if self._thread is not None:
            self._thread.join(timeout_s)
        if self.is_running:
            return False
        self._raise()
        return True

    def _raise(self) -> None:
        error, self._raised = self._raised, None
        if error is not None:
            raise error

    def _started(self) -> Runner:
        if self._runner is None:
            raise UsageError("this worker was not started; call .start(), or use it in a `with` block")
        return self._runner

    def _refuse_a_job_of_its_own(self, runner: Runner) -> None:
        if runner.runs_the_caller():
            raise UsageError("a job cannot stop the worker that runs it: both would wait for the other")
