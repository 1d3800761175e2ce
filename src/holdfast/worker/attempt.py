"""One run of a job inside this process: what the threads of a worker share about it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.lease import TrustWindow, trust
from holdfast.core.records import Job, Lease, Pulse
from holdfast.core.row_text import CurrentSteps
from holdfast.errors import Diverged, PayloadError
from holdfast.worker.activity import SHORT_S, Activity, TaskTransaction, WorkflowActivity
from holdfast.worker.handler import Handler

if TYPE_CHECKING:
    from holdfast.tasks import Task

log = logging.getLogger("holdfast.worker")


class Attempt:
    """One claim of a job: its row, its lease and the trust in it. Its parts: `handler` stops the handler, `activity`,
    `workflow` and `transaction` hold the handler's work.

    Written by several threads: `window` by the heartbeat, `activity` by the handler, `job` and `handler` under `_lock`.
    """

    __slots__ = (
        "_lock",
        "activity",
        "announcing",
        "claimed_at",
        "handler",
        "job",
        "key",
        "known_started",
        "lease",
        "task",
        "transaction",
        "window",
        "workflow",
    )

    def __init__(self, job: Job, task: Task[..., object], sent_at: float) -> None:
        self.job = job
        self.task = task
        self.lease: Lease = job.lease
        self.key: tuple[str, int] = (job.id, job.fence)
        self.claimed_at = sent_at
        self.window: TrustWindow = trust(sent_at, job.lease_s, job.beat_s)
        self.known_started = job.started  # the store knows that the handler has begun, or is about to
        self.announcing = False  # the handler begins when the store knows
        self._lock = threading.Lock()
        self.handler = Handler(self._lock)
        self.activity = Activity(sent_at)
        self.workflow: WorkflowActivity | None = None  # from the first call of a workflow's function
        self.transaction: TaskTransaction | None = None  # if its code opened one

    @property
    def must_announce(self) -> bool:
        """Say whether the store must know of the start before it happens. A job that was claimed ahead costs its budget
        nothing when its worker dies, because it may not have begun. If it had, and was what killed the worker, that
        must be known the next time."""
        return not self.known_started and self.job.zombies > 0

    def start(self, now: float) -> None:
        """Note that the handler begins."""
        self.activity.start(now, self.job.timeout_s)

    def move(self, now: float, progress: float | None, note: str | None, beat_data: str | None = None) -> None:
        """Note that the handler moves."""
        self.activity.move(now, progress, note, beat_data)

    def pulse(self, now: float, *, talks: bool = False) -> Pulse:
        """Return what the next beat reports about this attempt; with `talks` also its new log lines."""
        activity = self.activity
        activity.reported = True
        news = activity.lines.take() if talks and activity.lines is not None else None
        started = self.announcing or activity.started_at is not None
        newly_in = None if self.workflow is None else self.workflow.newly_in()
        said = started, activity.progress, activity.note, news, activity.still_s(now), newly_in, activity.beat_data
        return Pulse(self.lease, *said)

    def unheard(self) -> None:
        """Note that the last pulse may not have reached the store, so that the next one repeats it."""
        self.activity.reported = False
        if self.activity.lines is not None:
            self.activity.lines.fresh = True
        if self.workflow is not None:
            self.workflow.unheard()

    def has_lines(self, now: float) -> bool:
        """Say whether it has log lines that no beat has sent, and has run for a second: then a beat is due."""
        lines, started_at = self.activity.lines, self.activity.started_at
        if lines is None or not lines.fresh or started_at is None:
            return False
        return self.window.must_renew(now) or now - started_at >= SHORT_S

    def has_begun_unseen(self, now: float) -> bool:
        """Say whether it was claimed ahead and began a second ago or more, and no beat has reported that."""
        started_at = self.activity.started_at
        return not self.known_started and started_at is not None and now - started_at >= SHORT_S

    @contextmanager
    def inside(self, path: str, name: str) -> Iterator[None]:
        """Say that the handler is in a step during the block. Several may be, side by side."""
        steps = self.begin_workflow().steps
        steps[path] = name
        try:
            yield
        finally:
            steps.pop(path, None)

    def begin_workflow(self) -> WorkflowActivity:
        """Return what only a workflow keeps. The first call, from the thread that starts it, makes it."""
        if self.workflow is None:
            self.workflow = WorkflowActivity(self.claimed_at)
        return self.workflow

    def is_final(self, error: BaseException) -> bool:
        """Say whether this would leave the workflow in every replay."""
        return self.workflow is not None and error is self.workflow.fatal

    def met_outage(self, opened_by: str, outage: BaseException | None) -> None:
        """Note what the store raised inside a transaction of the code; None: nothing that the store is to blame for."""
        self.transaction = self.transaction or TaskTransaction(opened_by)
        self.transaction.opened_by, self.transaction.outage = opened_by, outage

    def as_seen(self) -> Job:
        """Return the job's row as the newest beat would make it."""
        lines = self.activity.lines
        return msgspec.structs.replace(
            self.job,
            started=True,
            progress=self.activity.progress,
            note=self.activity.note,
            beat_data=self.activity.beat_data,
            log=None if lines is None else "\n".join(lines.all()),
            in_steps=CurrentSteps() if self.workflow is None else self.workflow.in_steps(),
        )

    def ask_to_stop(self, row: Job | None = None) -> None:
        """Note that the job was asked to stop: every ending but success is a cancellation from now on.

        If its `row` says so, they want what a workflow did to be undone, and said why.
        """
        undo = row is not None and row.undo_requested
        self.learn(cancel_requested=True, undo_requested=undo or None, error=row.error if row and undo else None)

    def learn(self, **facts: Any) -> None:
        """Note what has changed on the row: the judge must know. None: as it was."""
        known = {name: value for name, value in facts.items() if value is not None}
        with self._lock:
            self.job = msgspec.structs.replace(self.job, **known)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what the handler is called with, without the context.

        A call that does not fit the signature is a failure as any other: in the middle of a deploy the next attempt may
        meet a worker whose code it fits. But a workflow that has something to undo could not even do that; it is held
        until the code fits again. So is a workflow that is a plain task by now, which would repeat its steps.
        """
        if self.job.workflow and not self.task.is_workflow:
            raise Diverged(f"it was stored as a workflow, and {self.task.name!r} is a plain task here")
        try:
            return self.task.decode(self.job.payload)
        except PayloadError as error:
            if self.job.undoable or self.job.rolling_back:
                raise Diverged(f"the code does not fit the arguments: {error}") from error
            raise

    def unlimit(self) -> None:
        """Lift the limits of the handler, if it has any: it has ended, and what it died of must be written down."""

    def stack(self) -> str | None:
        """Return where the handler is now, for the journal; None: it is not known."""
        try:
            return self.handler.stack()
        except Exception:  # Python asks the loader of the user's own module for its source
            log.exception("job %s: could not read the stack of its handler", self.job.id)
            return None
