"""The verbs of workflows over plain dicts: the readable specification of what steps and signals do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import islice
from threading import RLock
from typing import Any

from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.core import transitions
from holdfast.core.machine import ENDED, LIVE, State
from holdfast.core.records import Inbox, Job, Lease, NewJob, Note, Record, Signal, Step, Unroused
from holdfast.core.row_text import ANSWER, Awaited
from holdfast.core.verdict import Verdict
from holdfast.stores.protocol import Added, Answer

UNROUSED_MAX = 1000  # how many jobs `unroused` looks at


class Workflows(ABC):
    """The part of `MemoryStore` that knows steps and signals. See `stores/protocol.py: Store` for every promise."""

    _lock: RLock
    _clock: Clock
    _jobs: dict[str, Job]

    def __init__(self) -> None:
        self._steps: dict[str, dict[tuple[int, int], Step]] = {}  # by job, then by (aside, position)
        self._signals: dict[tuple[str, str], Signal] = {}  # by (workflow, id), in the order in which they came
        self._taken: dict[tuple[str, str], int] = {}  # signal -> the position of the step that took it

    def record(self, records: Sequence[Record]) -> list[Answer]:
        with self._lock:
            answers = [self._record_one(record) for record in records]
            self.wake()
            return answers

    def _record_one(self, record: Record) -> Answer:
        job = self._jobs.get(record.lease.job_id)
        if job is None or not transitions.owns(job, record.lease):
            name = record.steps[0].name if record.steps else ""
            self._report_stale(record.lease, record.worker, step=name)
            return Answer.REFUSED
        if job.state is not State.RUNNING:
            return Answer.REFUSED
        if self._are_taken(record.jobs):
            return Answer.TAKEN
        if not all(self._takes(signal) for signal in record.sent):
            return Answer.GONE
        opened = record.open_step if record.open_step is not None else job.open_step
        self._jobs[job.id] = replace(job, undoable=job.undoable or record.undoable, open_step=opened or None)
        for step in record.steps:
            self._put_step(job.id, step)
        for signal_id in record.taken:
            if (job.id, signal_id) in self._signals:
                self._taken.setdefault((job.id, signal_id), record.steps[0].position)
        for new in record.jobs:
            self._jobs.setdefault(new.id, transitions.first_row(new, self._clock.wall()))
        for signal in record.sent:
            self._deliver(signal)
        return Answer.ACCEPTED

    def steps(self, job_id: str, after: int = 0, limit: int = 1000, *, aside: bool = False) -> list[Step]:
        with self._lock:
            known = self._steps.get(job_id, {}).values()
            wanted = [step for step in known if step.position > after and (aside or not step.aside)]
            return sorted(wanted, key=lambda step: (step.position, step.aside))[:limit]

    def signal(self, signal: Signal) -> Answer:
        with self._lock:
            if (signal.job_id, signal.id) in self._signals:
                return Answer.ALREADY
            if not self._takes(signal):
                return Answer.GONE
            self._deliver(signal)
            self.wake()
            return Answer.ACCEPTED

    def inbox(self, job_id: str, name: str | None = None, limit: int = 1000) -> Inbox:
        with self._lock:
            job = self._jobs.get(job_id)
            waiting = (each for key, each in self._signals.items() if key[0] == job_id and key not in self._taken)
            wanted = (each for each in waiting if name is None or each.name == name)
            return Inbox(job.inbox if job is not None else 0, list(islice(wanted, limit)))

    def rouse(self, limit: int = 500) -> float | None:
        with self._lock:
            wall = self._clock.wall()
            timed = sorted((job.wake_at, job.id) for job in self._jobs.values() if job.wake_at is not None)
            due = [job_id for wake_at, job_id in timed if wake_at <= wall][:limit]
            for job_id in due:
                self._jobs[job_id] = transitions.roused(self._jobs[job_id], wall)
            if due:
                self.wake()
            return timed[len(due)][0] if len(timed) > len(due) else None

    def unroused(self) -> list[Unroused]:
        with self._lock:
            timed = sorted((job.wake_at, job.queue, job.task) for job in self._jobs.values() if job.wake_at is not None)
            found: dict[tuple[str, str], list[float]] = {}
            for wake_at, queue, task in timed[:UNROUSED_MAX]:
                if wake_at <= self._clock.wall():
                    found.setdefault((queue, task), []).append(wake_at)
            return [Unroused(*key, len(times), times[0]) for key, times in sorted(found.items())]

    def fork(self, new: NewJob, source: str, seen_fence: int, before: int, note: Note) -> Added | None:
        with self._lock:
            old = self._jobs.get(source)
            is_as_seen = old is not None and old.state in ENDED and old.fence == seen_fence
            if not is_as_seen and new.id not in self._jobs:
                return None
            [added] = self.add([new])
            if not added.existed:
                for step in self.steps(source, limit=before):
                    if step.position < before and step.state == "recorded":
                        self._put_step(new.id, replace(step, fence=0, attempt=0, has_undo=False))
                self._write(new.id, note, 0, None)
            return added

    # ------------------------------------------------------------------- what other verbs do to workflows

    def _say_of_steps(self, job: Job, verdict: Verdict) -> None:
        """Write down what a person says of steps, and set aside what is to be run again."""
        for step in verdict.steps:
            self._put_step(job.id, step)
        if verdict.aside_from is None:
            return
        for step in self.steps(job.id, verdict.aside_from - 1, limit=len(self._steps.get(job.id, ()))):
            del self._steps[job.id][0, step.position]
            self._put_step(job.id, replace(step, aside=job.fence))
        for key, each in self._signals.items():
            at = self._taken.get(key, verdict.aside_from)
            if each.job_id != job.id or at < verdict.aside_from:
                continue
            if each.name.startswith(ANSWER):  # a person is asked again, and a late answer is not for that question
                self._taken[key] = at
            else:  # whoever took it does not count any more: it waits to be taken again
                self._taken.pop(key, None)

    def _tell_parent(self, job_id: str) -> None:
        """Tell the workflow that started the job, if any, that it has ended, if it has."""
        job = self._jobs[job_id]
        parent = self._jobs.get(job.parent or "")
        if job.state in ENDED and parent is not None and parent.workflow and parent.state in LIVE:
            self._jobs[parent.id] = transitions.reached(parent, Awaited("job", job.id), self._clock.wall())

    def _forget_workflow(self, job_id: str) -> None:
        self._steps.pop(job_id, None)
        self._signals = {key: each for key, each in self._signals.items() if each.job_id != job_id}
        self._taken = {key: at for key, at in self._taken.items() if key in self._signals}

    def _put_step(self, job_id: str, step: Step) -> None:
        known = self._steps.setdefault(job_id, {})
        place = step.aside, step.position
        known[place] = transitions.recorded(known.get(place), step)

    def _are_taken(self, jobs: Sequence[NewJob]) -> bool:
        """Say whether one of these cannot be stored because its id or its key belongs to another job, or its key to one
        beside it."""
        known = [(new, self._jobs[new.id]) for new in jobs if new.id in self._jobs]
        if any((job.parent, job.task) != (new.parent, new.task) for new, job in known):
            return True
        keys = [new.key for new in jobs if new.key is not None and new.id not in self._jobs]
        return len(set(keys)) < len(keys) or any(self._holder(key) is not None for key in keys)

    def _takes(self, signal: Signal) -> bool:
        job = self._jobs.get(signal.job_id)
        if (signal.job_id, signal.id) in self._signals:
            return True
        if job is None or not job.workflow or job.state not in LIVE:
            return False
        awaited = signal.awaited in (job.awaits or ())
        return signal.seen_fence is None or (signal.seen_fence == job.fence and awaited)

    def _deliver(self, signal: Signal) -> None:
        if (signal.job_id, signal.id) in self._signals:
            return
        job, wall = self._jobs[signal.job_id], self._clock.wall()
        self._signals[job.id, signal.id] = replace(signal, sent_at=wall, note=None, seen_fence=None, answer=None)
        self._jobs[job.id] = transitions.reached(job, signal.awaited, wall)
        self._write(job.id, signal.line, job.fence, None)

    # Of the store itself:

    @abstractmethod
    def add(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Added]: ...

    @abstractmethod
    def wake(self) -> None: ...

    @abstractmethod
    def _holder(self, key: str | None) -> Job | None: ...

    @abstractmethod
    def _write(self, job_id: str, note: Note, fence: int, worker: str | None) -> None: ...

    @abstractmethod
    def _report_stale(
        self, lease: Lease, worker_id: str | None, reported: State | None = None, step: str | None = None
    ) -> None: ...
