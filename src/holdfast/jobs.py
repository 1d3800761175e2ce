"""The handle of one stored job: where it is, what it returned, how to stop it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.core.labels import meta_of, tags_of
from holdfast.core.machine import ENDED, State
from holdfast.core.payload import decode_value
from holdfast.core.records import Event
from holdfast.core.records import Job as Row
from holdfast.core.stop_reason import full_reason
from holdfast.errors import JobCancelled, JobDead, JobEnded, JobRolledBack, NotFound, UsageError

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.tasks import Task

R_co = TypeVar("R_co", covariant=True)

_LOOK_MIN_S = 0.005  # the shortest pause between two looks: a busy store sends hints all the time
_LOOK_MAX_S = 0.5  # and look as often as this without any hint

_WITHOUT_RESULT: dict[State, type[JobEnded]] = {
    State.DEAD: JobDead,
    State.CANCELLED: JobCancelled,
    State.ROLLED_BACK: JobRolledBack,
}


class Job(Generic[R_co]):
    """A job as it was when last looked at; `refresh` looks again.

    `existed`: the enqueue found its key or id taken, and this is the job that has it. `answered`: the question that
    `app.approve` or `app.resolve` has just answered.
    """

    __slots__ = ("_app", "_row", "answered", "existed", "id")

    def __init__(self, app: App, job_id: str, *, row: Row | None = None, existed: bool = False) -> None:
        self.id = job_id
        self.existed = existed
        self.answered: str | None = None
        self._app = app
        self._row = row

    def __repr__(self) -> str:
        seen = f" {self._row.task} {self._row.state.value}" if self._row is not None else ""
        return f"<Job {self.id}{seen}>"

    @property
    def row(self) -> Row:
        """Return everything that is known of the job, as last seen; the first use looks."""
        row = self._row
        return row if row is not None else self.refresh().row

    @property
    def task(self) -> str:
        """Return the name of its task."""
        return self.row.task

    @property
    def queue(self) -> str:
        """Return the name of its queue."""
        return self.row.queue

    @property
    def tags(self) -> list[str]:
        """Return its tags."""
        return tags_of(self.row.tags)

    @property
    def meta(self) -> dict[str, str]:
        """Return its metadata."""
        return meta_of(self.row.meta)

    @property
    def state(self) -> State:
        """Return its state, as last seen. A state equals its own name: `job.state == "done"`."""
        return self.row.state

    @property
    def error(self) -> str | None:
        """Return the last error, as last seen; a job that succeeded in the end keeps it."""
        return self.row.error

    def refresh(self) -> Job[R_co]:
        """Look again, and return the handle itself. Raises `NotFound` when retention has removed the job."""
        row = self._app.store.get(self.id)
        if row is None:
            raise NotFound(f"there is no job {self.id!r}")
        self._row = row
        return self

    def result(self, timeout: float | None = None) -> R_co:
        """Wait until the job has ended and return what its task returned, as the type that it is annotated with.

        Raises `JobDead`, `JobCancelled` or `JobRolledBack`, with the job's error, when it ended without a result, and
        `TimeoutError` when `timeout` seconds have passed; a held job has not ended. Without `timeout` it waits on.
        A task that this app does not have gives plain JSON types.
        """
        clock = self._app.clock
        give_up_at = self._give_up_at(timeout)
        never = threading.Event()
        look_s = _LOOK_MIN_S
        while not self._has_ended():
            before = clock.lease()
            left = self._time_left(give_up_at, timeout)
            self._app.store.wait(min(left, look_s))
            look_s = min(look_s * 1.5, _LOOK_MAX_S)
            waited = clock.lease() - before
            if waited < _LOOK_MIN_S:
                clock.wait(never, _LOOK_MIN_S - waited)
        return self._outcome()

    async def aresult(self, timeout: float | None = None) -> R_co:
        """Do as `result` does, without blocking the event loop or holding a thread while it waits."""
        import asyncio

        give_up_at = self._give_up_at(timeout)
        look_s = _LOOK_MIN_S
        while not await asyncio.to_thread(self._has_ended):
            await asyncio.sleep(min(look_s, self._time_left(give_up_at, timeout)))
            look_s = min(look_s * 1.5, _LOOK_MAX_S)
        return self._outcome()

    def cancel(self, *, by: str = "app", note: str | None = None) -> Job[R_co]:
        """Stop the job as `app.cancel` does, and return the handle, refreshed."""
        self._row = self._app.cancel(self.id, by=by, note=note).row
        return self

    def events(self) -> list[Event]:
        """Return the job's history, oldest first."""
        return self._app.store.journal(self.id)

    def _has_ended(self) -> bool:
        return self.refresh().row.state in ENDED

    def _give_up_at(self, timeout: float | None) -> float | None:
        if timeout is not None and not timeout >= 0:
            raise UsageError(f"timeout={timeout!r} must be a number of seconds, or None to wait for ever")
        return None if timeout is None else self._app.clock.lease() + timeout

    def _time_left(self, give_up_at: float | None, timeout: float | None) -> float:
        if give_up_at is None:
            return _LOOK_MAX_S
        left = give_up_at - self._app.clock.lease()
        if left <= 0:
            raise TimeoutError(f"job {self.id} is still {self.state.value} after {timeout:g} s")
        return left

    def _outcome(self) -> R_co:
        row = self.row
        error = ended_error(row)
        if error is not None:
            raise error
        value: Any = None
        if row.result is not None:
            task: Task[..., R_co] | None = self._app.tasks.get(row.task)
            if task is not None:
                return task.decode_result(row.result)
            value = decode_value(row.result, None, f"job {self.id}: the result", codec=self._app.codec)
        outcome: R_co = value
        return outcome


def ended_error(row: Row) -> JobEnded | None:
    """Return what `result` raises for a job that ended without one."""
    kind = _WITHOUT_RESULT.get(row.state)
    return kind(row.id, full_reason(row)) if kind is not None else None
