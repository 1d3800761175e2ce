"""Deaths of workers on purpose, without a process: nothing that the attempt does from then on reaches the store.

For the store such a death looks as a real one: the job stays running under a lease that nobody renews, its worker is
gone, and the next tick recovers it. The process lives on, so `finally` blocks run, which a real death skips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args

from holdfast.core.records import Lease, Record
from holdfast.core.settlement import Settlement
from holdfast.errors import LeaseLost, UsageError
from holdfast.failpoints import watch
from holdfast.runtime.log_fields import current_attempt
from holdfast.stores.protocol import Reply, Store
from holdfast.tasks import Task
from holdfast.worker.attempt import Attempt

At = Literal["start", "end", "saved"]

_Key = tuple[str, int]


@dataclass(slots=True)
class Crash:
    """One or more deaths that a test has asked for. `happened`: how often its worker died."""

    during: str  # the name of a task or of a step
    is_task: bool
    at: At
    note: str | None
    times: int
    happened: int = 0

    def __str__(self) -> str:
        where = f"note={self.note!r}" if self.note is not None else f"at={self.at!r}"
        return f"crash(during={self.during!r}, {where})"

    def is_due(self, name: str, at: At, note: str | None = None) -> bool:
        """Say whether a worker that is here must die; count it."""
        if self.happened >= self.times or (self.during, self.at, self.note) != (name, at, note):
            return False
        self.happened += 1
        return True


class Crashes:
    """The deaths that a test has asked for, on all of its stores."""

    def __init__(self) -> None:
        self._asked: list[Crash] = []
        self._dead: set[_Key] = set()
        self._unwatch: Callable[[], None] | None = None

    def ask(self, during: Task[..., Any] | Callable[..., Any] | str, at: At, note: str | None, times: int) -> Crash:
        """Let a worker die there."""
        is_task = isinstance(during, Task)
        name = during if isinstance(during, str) else getattr(during, "name" if is_task else "__name__", None)
        if not isinstance(name, str):
            raise UsageError(f"during={during!r} must be a task, the function of a step, or the name of a step")
        if at not in get_args(At):
            raise UsageError(f'at={at!r} must be "start", "end" or "saved"')
        if is_task and at == "saved":
            raise UsageError('at="saved" is for steps: when the result of a task is saved, its job is done')
        if note is not None and not is_task:
            raise UsageError("note is for tasks: they call ctx.progress(note=…), and steps do not")
        if self._unwatch is None:
            self._unwatch = watch(self._passed)
        crash = Crash(name, is_task, at, note, times)
        self._asked.append(crash)
        return crash

    def end(self) -> list[Crash]:
        """Ask for no more deaths; return those that never happened."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        return [crash for crash in self._asked if crash.happened < crash.times]

    @property
    def happened(self) -> int:
        """Return how many workers have died."""
        return sum(crash.happened for crash in self._asked)

    def strikes(self, name: str, at: At, *, is_task: bool, note: str | None = None) -> bool:
        """Say whether a worker that is here must die."""
        return any(crash.is_task == is_task and crash.is_due(name, at, note) for crash in self._asked)

    def strikes_end(self, lease: Lease, task: str) -> bool:
        """Say whether the report of this attempt gets lost, because its worker is dead."""
        if not self.is_dead(lease) and self.strikes(task, "end", is_task=True):
            self.bury(lease)
        return self.is_dead(lease)

    def bury(self, lease: Lease) -> None:
        """Let nothing of this attempt reach a store from now on."""
        self._dead.add((lease.job_id, lease.fence))

    def is_dead(self, lease: Lease) -> bool:
        """Say whether the worker of this attempt has died."""
        return (lease.job_id, lease.fence) in self._dead

    def _passed(self, point: str, about: str) -> None:
        """Let the attempt die that passes this point of the program, if a test has asked for that."""
        attempt = current_attempt.get()
        if attempt is None:
            return
        if self.is_dead(attempt.lease):
            _die(attempt)
        task = attempt.task.name
        if (point == "step.before" and self.strikes(about, "start", is_task=False)) or (
            point == "step.after" and self.strikes(about, "end", is_task=False)
        ):
            self.kill(attempt)
        if point == "progress" and self.strikes(task, "end", is_task=True, note=about):
            self.kill(attempt)

    def kill(self, attempt: Attempt) -> NoReturn:
        """End an attempt here, as if its worker had died."""
        self.bury(attempt.lease)
        _die(attempt)


def _die(attempt: Attempt) -> NoReturn:
    error = LeaseLost("the worker died (a test asked for it)")
    attempt.handler.interrupt = error  # whatever the code catches: the next call of Holdfast raises again
    raise error


class MortalStore:
    """A store whose workers may die. It passes on all that the living ask of it."""

    def __init__(self, store: Store, crashes: Crashes, added: Callable[[list[str]], None]) -> None:
        self._store = store
        self._crashes = crashes
        self._added = added

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add(self, *arguments: Any, **named: Any) -> Any:
        answers = self._store.add(*arguments, **named)
        self._added([each.id for each in answers])
        return answers

    def claim(self, *arguments: Any, **named: Any) -> Any:
        """Claim jobs; of an attempt whose worker died at its start, the store knows and nobody else."""
        claimed = self._store.claim(*arguments, **named)
        living = []
        for job in claimed:
            if self._crashes.strikes(job.task, "start", is_task=True):
                self._crashes.bury(job.lease)
            else:
                living.append(job)
        return living

    def settle(self, settlements: Sequence[Settlement], *arguments: Any, **named: Any) -> list[Reply]:
        reported = "under" not in named and not arguments  # a reaper says under which duty, a worker has none
        lost = [reported and self._crashes.strikes_end(each.lease, each.task) for each in settlements]
        rest = [each for each, is_lost in zip(settlements, lost, strict=True) if not is_lost]
        answers = iter(self._store.settle(rest, *arguments, **named) if rest else [])
        return [Reply.REFUSED if is_lost else next(answers) for is_lost in lost]

    def record(self, records: Sequence[Record]) -> list[Reply]:
        return [self._recorded(*each) for each in zip(records, self._store.record(records), strict=True)]

    def _recorded(self, record: Record, answer: Reply) -> Reply:
        """Keep the answer from a worker that died when its step was saved."""
        saved = [step.name for step in record.steps if step.kind == "step" and step.state == "recorded"]
        if any(self._crashes.strikes(name, "saved", is_task=False) for name in saved):
            self._crashes.bury(record.lease)
            return Reply.REFUSED
        return answer

    @contextmanager
    def transaction(self, lease: Lease, max_s: float) -> Iterator[Any]:
        with self._store.transaction(lease, max_s) as transaction:
            yield _MortalTransaction(transaction, self._crashes, lease)


class _MortalTransaction:
    def __init__(self, transaction: Any, crashes: Crashes, lease: Lease) -> None:
        self._transaction = transaction
        self._crashes = crashes
        self._lease = lease

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    def settle(self, settlement: Settlement) -> Reply:
        if self._crashes.strikes_end(self._lease, settlement.task):
            self._transaction.rollback()
            return Reply.REFUSED
        answer: Reply = self._transaction.settle(settlement)
        return answer
