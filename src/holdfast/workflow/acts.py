"""What an app can do to workflows beside what it can do to every job."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.clock import Clock
from holdfast.core import acts
from holdfast.core.payload import JSON, LIMITS, Codec, decode_plain, decode_value, encode_value
from holdfast.core.records import Job as Row
from holdfast.core.records import NewJob, Signal, Step
from holdfast.core.replay import answer_to, first_named
from holdfast.core.text import check_storable
from holdfast.core.verdict import Verdict
from holdfast.errors import NotFound, PayloadError, Refused, UsageError
from holdfast.ids import new_id, new_job_id
from holdfast.stores.protocol import Answer, Store
from holdfast.workflow.values import signal_name

if TYPE_CHECKING:
    from holdfast.jobs import Job
    from holdfast.tasks import Task

STEPS_MAX = 1_000_000
SIGNAL_ID_MAX = 255


class WorkflowActs(ABC):
    """See the module's docstring."""

    codec: Codec
    clock: Clock
    tasks: dict[str, Task[..., Any]]

    def signal(
        self,
        id: str,
        name: str,
        value: Any = None,
        *,
        by: str = "app",
        note: str | None = None,
        signal_id: str | None = None,
    ) -> bool:
        """Send a signal to a workflow; `flow.wait(name)` returns the value. It is kept until the workflow asks for it.

        signal_id: the caller's own, for repeating a call whose answer was lost: each workflow gets one signal of that
        id. Returns False if this workflow had it already. Raises `NotFound`, and `Refused` if the job has ended or is
        not a workflow; `UsageError` if it was stored with another codec.
        """
        check_storable(by=by, note=note)
        check_storable(SIGNAL_ID_MAX, signal_id=signal_id)
        text = self._encoded(self._row(id), value, f"signal {name!r}: the value")
        signal = Signal(id=signal_id or new_id(), job_id=id, name=signal_name(name), value=text, actor=by, note=note)
        return self._send(signal)

    def _send(self, signal: Signal) -> bool:
        id = signal.job_id
        answer = self.store.signal(signal)
        if answer is Answer.GONE:
            row = self._row(id)
            if row.workflow and row.ended_at is None and signal.seen_fence is not None:
                raise Refused(f"workflow {id} is {row.state.value} and does not ask that any more; look again")
            what = f"has ended ({row.state.value})" if row.workflow else "is not a workflow"
            raise Refused(f"job {id} {what}: no signal can reach it")
        self.store.wake()
        return answer is Answer.ACCEPTED

    def approve(
        self, id: str, yes: bool = True, *, by: str = "app", note: str | None = None, fence: int | None = None
    ) -> Job[Any]:
        """Answer the question of a workflow that asks a person with `flow.approve`, and return it.

        The first answer counts. fence: as in `cancel`. Raises `NotFound`, and `Refused` if it asks nobody, was answered
        before, or did not wait for it any longer; `UsageError` if it was stored with another codec.
        """
        return self._answer(self._seen(id, fence), yes, by, note)

    def _answer(self, row: Row, yes: bool, by: str, note: str | None) -> Job[Any]:
        check_storable(by=by, note=note)
        id = row.id
        name = answer_to(row.awaits or ())
        if name is None or row.question is None:
            raise Refused(f"job {id} is {row.state.value} and asks nobody")
        # Two answers to one question are one signal; the fence is in its name because it may be asked again.
        once = f"{id}:signal:{name}:{row.fence}"
        text = self._encoded(row, yes, "the answer")
        signal = Signal(
            id=once, job_id=id, name=name, value=text, actor=by, note=note, seen_fence=row.fence, answer=yes
        )
        if not self._send(signal):
            raise Refused(f"the question of workflow {id} was answered before; look again")
        job = self.get(id)
        job.answered = row.question
        return job

    def rollback(self, id: str, *, by: str = "app", note: str | None = None, fence: int | None = None) -> Job[Any]:
        """Undo what a workflow did, in the reverse order, and return it. A running one is stopped first.

        fence: as in `cancel`. Raises `NotFound`; `IllegalMove` when it is not a workflow, or is done; `Refused` when it
        moved on meanwhile.
        """
        now = self.store.now().wall
        row = self._seen(id, fence)
        return self._move(row, acts.rollback(row, now, actor=by, reason=note))

    def retry_from(
        self,
        id: str,
        step: str,
        *,
        by: str = "app",
        note: str | None = None,
        fence: int | None = None,
        repeat_step: bool = False,
    ) -> Job[Any]:
        """Run a held, dead or cancelled workflow again from a step, by its name or path, and return it.

        What is recorded before that step stays; that step and what came later are set aside, and never undone.
        repeat_step: as in `revive`, and also of those that are recorded; not needed for the step that is named. Raises
        `NotFound` for a step that is not on record, and otherwise as `revive` does.
        """
        now = self.store.now().wall
        row = self._seen(id, fence)
        steps = self.store.steps(id, limit=STEPS_MAX)  # after the row: if they change meanwhile, its fence does, too
        first = _named(id, steps, step)
        return self._move(row, acts.retry_from(row, first, steps, now, actor=by, reason=note, repeat_step=repeat_step))

    def fork(
        self,
        id: str,
        step: str,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        by: str = "app",
        note: str | None = None,
        repeat_step: bool = False,
    ) -> Job[Any]:
        """Start a new workflow with what an ended one has recorded before a step, by its name or path, and return it.

        It is called with the arguments of the old one, but for those that `args` and `kwargs` give anew. What the
        copied steps did belongs to the old one: the new one never undoes it. repeat_step: as in `retry_from`. Raises
        `NotFound`; `PayloadError` if this app has the workflow, and the arguments do not fit it; `Refused` if the old
        one has not ended, or what it began with is not finished, or what must not be repeated would be.
        """
        row = self._row(id)
        acts.check_forkable(row)
        steps = self.store.steps(id, limit=STEPS_MAX)
        first = _named(id, steps, step)
        line = acts.fork(row, first, steps, actor=by, reason=note, repeat_step=repeat_step)
        self._check_children(row, steps, first)
        new = NewJob(
            id=new_job_id(self.clock),
            task=row.task,
            payload=self._payload(row, tuple(args), dict(kwargs or {})),
            queue=row.queue,
            priority=row.priority,
            policy=row.policy,
            workflow=True,
        )
        added = self.store.fork(new, id, row.fence, first.position, line)
        if added is None:
            raise Refused(f"workflow {id} was run again meanwhile; nothing was forked, look again")
        self.store.wake()
        return self.get(added.id)

    def _payload(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        task = self.tasks.get(row.task)
        if task is not None:
            return task.change(row.payload, args, kwargs)
        if args:
            raise UsageError(f"this app has no workflow {row.task!r}: give its arguments by their names")
        if not kwargs:
            return row.payload
        return encode_value({**self._arguments(row), **kwargs}, f"{row.task}: the arguments", codec=self.codec)

    def _check_children(self, row: Row, steps: list[Step], first: Step) -> None:
        """Raise if a child that the new one would wait for is still on its way: its end wakes the old one only."""
        for each in steps:
            if each.kind == "start" and each.position < first.position and each.result is not None:
                self._check_codec(row)
                child = self.store.get(str(decode_value(each.result, None, "a child", codec=self.codec)))
                if child is not None and child.ended_at is None:
                    raise Refused(f"job {child.id}, which it started, is {child.state.value}; wait for its end")

    def _encoded(self, row: Row, value: Any, where: str) -> str:
        """Return an answer to a job as text that the job's own app can read."""
        self._check_codec(row)
        return encode_value(value, where, codec=self.codec)

    def _check_codec(self, row: Row) -> None:
        if row.task not in self.tasks:
            self._arguments(row)

    def _arguments(self, row: Row) -> dict[str, Any]:
        """Return a job's plain arguments. Raises `UsageError` if it was stored with another codec than this app has."""
        plain = None
        if self.codec is not JSON or not self._has_own_codec(row.task):
            with contextlib.suppress(PayloadError):
                plain = decode_plain(row.payload, "the arguments", LIMITS, self.codec, outer=1)
        if isinstance(plain, dict):
            return plain
        raise UsageError(
            f"job {row.id} was stored with another codec than this app has; its workers could not read what this app "
            f"writes, so nothing was changed. Use the app that declares {row.task!r}: on the command line, "
            "add --app MODULE:NAME"
        )

    def _has_own_codec(self, task: str) -> bool:
        """Say whether living workers have another codec for this task than JSON; its text may be JSON all the same."""
        known = (worker.tasks or {} for worker in self.store.workers())
        return any(task in tasks and tasks[task].own_codec for tasks in known)

    def steps(self, id: str, *, aside: bool = False) -> list[Step]:
        """Return the recorded steps of a workflow, in their order; with `aside` also those that were set aside."""
        self._row(id)
        return self.store.steps(id, limit=STEPS_MAX, aside=aside)

    # Of the app itself:

    @property
    @abstractmethod
    def store(self) -> Store: ...

    @abstractmethod
    def _row(self, id: str) -> Row: ...

    @abstractmethod
    def _seen(self, id: str, seen_fence: int | None) -> Row: ...

    @abstractmethod
    def get(self, id: str) -> Job[Any]: ...

    @abstractmethod
    def _move(self, row: Row, verdict: Verdict) -> Job[Any]: ...


def _named(id: str, steps: list[Step], name: str) -> Step:
    found = first_named(steps, name)
    if found is None:
        known = ", ".join(dict.fromkeys(step.name for step in steps)) or "none"
        raise NotFound(f"workflow {id} has no step {name!r} on record; known: {known}")
    return found
