"""What an app can do to workflows beside what it can do to every job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.core import acts
from holdfast.core.flow import first_named
from holdfast.core.payload import Codec, encode_value
from holdfast.core.policy import Policy
from holdfast.core.records import Job as Row
from holdfast.core.records import NewJob, Signal, Step
from holdfast.core.verdict import Verdict
from holdfast.errors import NotFound, Refused, UsageError
from holdfast.identity import new_id, new_job_id
from holdfast.stores.protocol import Answer, Store
from holdfast.workflow.values import checked_name

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.jobs import Job
    from holdfast.tasks import Task

STEPS_MAX = 1_000_000


class Verbs:
    """See the module's docstring."""

    codec: Codec
    clock: Clock
    tasks: dict[str, Task[..., Any]]

    def signal(self, id: str, name: str, value: Any = None, *, by: str = "app", signal_id: str | None = None) -> bool:
        """Send a signal to a workflow; `flow.wait(name)` returns the value. It is kept until the workflow asks for it.

        signal_id: the caller's own, for repeating a call whose answer was lost: the signal is delivered once. Returns
        False if it was sent before. Raises `NotFound`, and `Refused` if the job has ended or is no workflow.
        """
        text = encode_value(value, f"signal {name!r}: the value", codec=self.codec)
        signal = Signal(id=signal_id or new_id(), job_id=id, name=checked_name(name), value=text, actor=by)
        answer = self.store.signal(signal)
        if answer is Answer.GONE:
            row = self._row(id)
            what = f"has ended ({row.state.value})" if row.workflow else "is no workflow"
            raise Refused(f"job {id} {what}: no signal can reach it")
        self.store.wake()
        return answer is Answer.ACCEPTED

    def approve(self, id: str, yes: bool = True, *, by: str = "app") -> None:
        """Answer the question of a workflow that asks a person with `flow.approve`. Raises `Refused` if none does."""
        row = self._row(id)
        asked = [what for what in row.awaits or () if what.startswith("signal:approve:")]
        if not asked or row.question is None:
            raise Refused(f"job {id} is {row.state.value} and asks nobody")
        self.signal(id, asked[0].removeprefix("signal:"), yes, by=by, signal_id=f"{id}:{asked[0]}")

    def rollback(self, id: str, *, by: str = "app", note: str | None = None, fence: int | None = None) -> Job[Any]:
        """Undo what a workflow did, in the reverse order, and return it. A running one is stopped first.

        fence: as in `cancel`. Raises `NotFound`; `IllegalMove` when it is no workflow, or is done; `Refused` when it
        moved on meanwhile.
        """
        now = self.store.now().wall
        return self._act(id, fence, lambda row: acts.rollback(row, now, actor=by, reason=note))

    def retry_from(
        self, id: str, step: str, *, by: str = "app", note: str | None = None, fence: int | None = None
    ) -> Job[Any]:
        """Run a held, dead or cancelled workflow again from a step, by its name or path, and return it.

        What is recorded before that step stays; that step and what came later are set aside. Raises `NotFound` for a
        step that is not on record, and otherwise as `revive` does.
        """
        now = self.store.now().wall
        steps = self.steps(id)

        def judged(row: Row) -> Verdict:
            return acts.retry_from(row, _named(id, steps, step), steps, now, actor=by, reason=note)

        return self._act(id, fence, judged)

    def fork(self, id: str, step: str, *args: Any, **kwargs: Any) -> Job[Any]:
        """Start a new workflow with the records of an ended one, up to a step, and return it.

        With arguments it is called with these; without, with those of the old one. Raises `NotFound`, and `Refused` if
        the old one has not ended.
        """
        from holdfast.jobs import Job

        row = self._row(id)
        task = self.tasks.get(row.task)
        if not row.workflow or row.ended_at is None:
            raise Refused(f"job {id} is {row.state.value}: only a workflow that has ended can be forked")
        first = _named(id, self.steps(id), step)
        new = _copied(row, new_job_id(self.clock))
        if args or kwargs:
            if task is None:
                raise UsageError(f"this app has no workflow {row.task!r}, so its arguments cannot be checked")
            new = replace(new, payload=task.encode(args, kwargs))
        added = self.store.fork(new, id, first.position)
        self.store.wake()
        return Job(cast("App", self), added.id, existed=added.existed)

    def steps(self, id: str, *, aside: bool = False) -> list[Step]:
        """Return the recorded steps of a workflow, in their order; with `aside` also those that were set aside."""
        self._row(id)
        return self.store.steps(id, limit=STEPS_MAX, aside=aside)

    # Of the app itself:

    @property
    def store(self) -> Store:
        raise NotImplementedError

    def _row(self, id: str) -> Row:
        raise NotImplementedError

    def _act(self, id: str, seen_fence: int | None, judged: Callable[[Row], Verdict]) -> Job[Any]:
        raise NotImplementedError


def _copied(row: Row, id: str) -> NewJob:
    limits = {
        name: getattr(row, name) for name in ("crashes_max", "on_crash", "lease_s", "beat_s", "timeout_s", "stall_s")
    }
    policy = Policy(retry=row.retry, **limits)
    names = ("task", "payload", "queue", "priority")
    return NewJob(id=id, policy=policy, workflow=True, **{name: getattr(row, name) for name in names})


def _named(id: str, steps: list[Step], name: str) -> Step:
    found = first_named(steps, name)
    if found is None:
        known = ", ".join(dict.fromkeys(step.name for step in steps)) or "none"
        raise NotFound(f"workflow {id} has no step {name!r} on record; known: {known}")
    return found
