"""Every exception of Holdfast. The type shows whose fault it is.

    HoldfastError
    ├── UsageError                 the caller's mistake; nothing was changed
    │   ├── PolicyError            a policy that contradicts itself
    │   ├── PayloadError           arguments or a result that cannot travel
    │   ├── UnknownTask            a task that this app does not have
    │   ├── BadURL                 a store address that means nothing
    │   └── ProtectedFile          a file of the store, opened by code inside a worker
    ├── StoreError                 the store's trouble; the call may be repeated where it says so
    │   ├── StoreUnavailable       cannot be reached, or stayed locked for too long: repeat later
    │   │   ├── StoreDenied        the server does not let this user in
    │   │   ├── StoreLocked        another transaction holds a lock that the call needs; nothing was changed
    │   │   ├── FileLocked         another transaction kept the only write lock of a SQLite file
    │   │   ├── StoreTimeout       the server stopped the call at its time limit: repeat it in smaller pieces
    │   │   └── OutcomeUnknown     the answer was lost: the call may have been carried out; repeating it is safe
    │   ├── StoreFull              no room left: repeat when there is room
    │   ├── StoreReadOnly          the store takes no writes
    │   ├── StoreMissing           there is no store at this address
    │   ├── StoreLost              deleted, replaced or shared by two hosts: stop, a person must look
    │   │   ├── StoreDamaged       a row or a page of it cannot be read or written; the others can
    │   │   └── FileReplaced       a SQLite file, -wal or -shm was deleted or replaced: only a new process can use it
    │   ├── StoreUnsupported       the library or server below is too old, or set up in a way that cannot work
    │   └── SchemaMismatch         the schema is newer or older than this program
    ├── NotFound                   no such job, queue or worker
    │   └── AmbiguousName          a shortened name or id that fits several
    ├── Refused                    the state or the fence has moved on; nothing was changed
    │   ├── IllegalMove            the machine has no such transition
    │   ├── KeyTaken               another live job holds the key, or another job has the id of a child
    │   └── DutyLost               the duty has a newer term: another process has the duty now
    ├── WorkerGone                 this worker was declared dead; enrol again
    ├── WorkerBroken               a thread of this worker has died; it has stopped, start another
    ├── TransactionExpired         a transaction of the job was open for too long and was rolled back
    ├── StepFailed                 a step failed with an exception that a replay could not raise again
    └── JobEnded                   job.result() of a job that gave none
        ├── JobDead
        ├── JobCancelled
        └── JobRolledBack

`Snooze`, `RetryLater`, `GiveUp` and `Rollback` are requests that a task or a workflow may raise. They are not errors.

Signals, not errors: they derive from BaseException so that `except Exception` in a task
does not swallow them.

    Interrupted
    ├── LeaseLost                  the right to run this attempt is gone
    ├── Cancelled                  a person or a program asked the job to stop
    ├── TimeLimit                  the attempt ran longer than its `timeout_s`
    ├── NoProgress                 the attempt did not move for its `stall_s`
    ├── Stopping                   the worker is going away; the attempt is given back
    │   └── BudgetSpent            the budget of its tick is spent
    ├── Parking                    the workflow waits without a slot
    │   └── Dropped                this branch waited when another one failed, and does nothing more
    ├── Rewinding                  a replay that only looks for undos has seen all there is
    ├── Misused                    the flow is used in a way that no replay could repeat: the attempt fails
    └── Diverged                   the code does not fit what is recorded
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.core.row_text import Awaited


class HoldfastError(Exception):
    """The root of all errors of Holdfast."""


class UsageError(HoldfastError):
    """The caller's mistake; nothing was changed."""


class PolicyError(UsageError):
    """A policy contradicts itself or is out of range."""


class PayloadError(UsageError):
    """Arguments or a result cannot travel as JSON, or do not fit the signature."""


class UnknownTask(UsageError):
    """The app has no task of this name."""


class BadURL(UsageError):
    """The address of a store cannot be understood."""


class ProtectedFile(UsageError, PermissionError):
    """Code inside `holdfast worker` tried to open a file of the store; the file was not opened."""


class StoreError(HoldfastError):
    """The store could not do what was asked.

    `stored_ids`: after an `enqueue_many` that failed on the way, the ids of the jobs that were stored. `stored_count`:
    after an `enqueue_stream` that failed on the way, how many jobs of the stream are stored.
    """

    stored_ids: tuple[str, ...] = ()
    stored_count: int | None = None


class StoreUnavailable(StoreError):
    """The store cannot be reached, or stayed locked for too long. The call may be repeated."""


class StoreDenied(StoreUnavailable):
    """The server does not let this user in: an unknown user, a wrong password, no right to connect."""


class StoreLocked(StoreUnavailable):
    """Another transaction holds a lock that the call needs. Nothing was changed; the call may be repeated.

    `neighbour`: another job on the same event loop has that transaction; a failure of that cause costs no budget.
    """

    def __init__(self, message: str, *, neighbour: bool = False) -> None:
        self.neighbour = neighbour
        super().__init__(message)


class FileLocked(StoreUnavailable):
    """A process kept the only write lock of a SQLite file for too long. `holder` is its pid, where that is known."""

    def __init__(self, message: str, holder: int | None = None) -> None:
        self.holder = holder
        super().__init__(message)


class StoreTimeout(StoreUnavailable):
    """The server stopped the call at its time limit and undid it. The call may be repeated, in smaller pieces."""


class OutcomeUnknown(StoreUnavailable):
    """The answer was lost: the call may have been carried out, or not. To repeat it with the same ids is safe.

    `job_ids`: of an enqueue, the ids of the jobs that may be stored; give them to `using(id=…)`.
    """

    def __init__(self, message: str, job_ids: tuple[str, ...] = ()) -> None:
        self.job_ids = job_ids
        super().__init__(message)


class StoreFull(StoreError):
    """The store has no room left. Nothing was written; the call may be repeated when there is room."""


class StoreReadOnly(StoreError):
    """The store takes no writes."""


class StoreMissing(StoreError):
    """There is no store at this address, and this call does not create one."""


class StoreLost(StoreError):
    """The store is not the one that was opened: deleted, replaced, or shared by two hosts."""


class StoreDamaged(StoreLost):
    """The store reports damage to what the call needs. Calls that need other rows may work."""


class FileReplaced(StoreLost):
    """A SQLite file, or its `-wal` or `-shm` file, is not the one that this process has open. This process can never
    use the store again; restart it."""


class StoreUnsupported(StoreError):
    """The library or server below is too old for what Holdfast needs, or set up in a way that it cannot work with."""


class SchemaMismatch(StoreError):
    """The store's schema is newer than this program, or older and migration was not allowed."""


class NotFound(HoldfastError):
    """There is no such job, queue or worker."""


class AmbiguousName(NotFound):
    """A shortened id or name fits several jobs or tasks; nothing was changed."""


class Refused(HoldfastError):
    """The state or the fence has moved on; nothing was changed."""


class IllegalMove(Refused):
    """The machine has no such transition. `needs`: the argument that would allow it, if there is one."""

    def __init__(self, message: str, needs: str | None = None) -> None:
        super().__init__(message)
        self.needs = needs


class KeyTaken(Refused):
    """Another live job holds the key; or, in `flow.start`, another job has the id of the child."""


class DutyLost(Refused):
    """The duty has a newer term; the act of the old holder was refused and nothing was changed."""


class WorkerGone(HoldfastError):
    """The worker was declared dead; a living one enrols again under a new id."""


class WorkerBroken(HoldfastError):
    """A required thread of the worker has died. The worker has given back its jobs where it could, and stopped."""


class TransactionExpired(HoldfastError):
    """A transaction of the job (`ctx.transaction()`, `flow.transaction`) was open for too long and was rolled back."""


class StepFailed(HoldfastError):
    """A step of a workflow failed with an exception that cannot be raised again from its record; `kind` names it."""

    def __init__(self, step: str, kind: str, text: str) -> None:
        self.step = step
        self.kind = kind
        super().__init__(f"step {step!r} failed: {kind}: {text}")


class JobEnded(HoldfastError):
    """The job ended without a result; `job_id` names it and the message carries its error."""

    def __init__(self, job_id: str, error: str | None) -> None:
        self.job_id = job_id
        self.error = error
        super().__init__(f"job {job_id}: {error or 'no reason was recorded'}")


class JobDead(JobEnded):
    """The job gave up."""


class JobCancelled(JobEnded):
    """The job was cancelled."""


class JobRolledBack(JobEnded):
    """The workflow was rolled back."""


class Snooze(Exception):
    """Raise it in a task to be run again after `delay_s` seconds; it costs neither a failure nor a crash."""

    def __init__(self, delay_s: float) -> None:
        if not 0 <= delay_s <= 10**10:
            raise UsageError(f"Snooze({delay_s!r}): the delay must be a number of seconds from now")
        self.delay_s = float(delay_s)
        super().__init__(f"snooze for {delay_s:g} s")


class RetryLater(Exception):
    """Raise it in a task to be run again after `delay_s` seconds. It counts as a failure, so it cannot go on for
    ever."""

    def __init__(self, delay_s: float, reason: str = "") -> None:
        if not 0 <= delay_s <= 10**9:
            raise UsageError(f"RetryLater({delay_s!r}): the delay must be a number of seconds from now")
        self.delay_s = float(delay_s)
        super().__init__(reason or f"run again in {delay_s:g} s")


class GiveUp(Exception):
    """Raise it in a task that must not be tried again: the job is dead at once, with this as its error."""


class Rollback(Exception):
    """Raise it in a workflow to undo its recorded steps now; the job ends as rolled_back with this as its error."""


class Interrupted(BaseException):
    """The attempt must stop now. `stack` is where the handler was, when that is known."""

    stack: str | None = None


class LeaseLost(Interrupted):
    """The right to run this attempt is gone; its reports will be refused."""


class Cancelled(Interrupted):
    """A person or a program asked the job to stop."""


class TimeLimit(Interrupted):
    """The attempt ran longer than its `timeout_s`."""


class NoProgress(Interrupted):
    """The attempt did not move for its `stall_s`."""


class Stopping(Interrupted):
    """The worker is going away; the attempt is given back."""


class BudgetSpent(Stopping):
    """The budget of its tick is spent; the attempt is given back, behind the jobs that wait."""


class Parking(Interrupted):
    """The workflow waits without a slot: until `wake_at`, for any of `awaits`.

    `inbox`: how much had come for it when it looked; None: it does not wait for anything that could come.
    `caught_at`: the file and the line of code that caught this, and went on.
    """

    caught_at: tuple[str, int] | None = None

    def __init__(
        self,
        wake_at: float | None = None,
        awaits: tuple[Awaited, ...] = (),
        question: str | None = None,
        inbox: int | None = None,
    ) -> None:
        self.wake_at = wake_at
        self.awaits = awaits
        self.question = question
        self.inbox = inbox
        super().__init__(f"waits for {', '.join(each.text for each in awaits) or 'a timer'}")


class Dropped(Parking):
    """This branch of the `flow.gather` at path `gather` waited when another one failed: it does nothing more."""

    def __init__(self, gather: str) -> None:
        super().__init__()
        self.gather = gather


class Rewinding(Interrupted):
    """A replay that looks for undos has come to the first call without a record."""


class Misused(Interrupted):
    """An async workflow used the flow in a way that no replay could repeat. The attempt fails by it."""


class Diverged(Interrupted):
    """The code asks for something else than what is recorded."""


def is_final(error: StoreError) -> bool:
    """Say whether an address that was never opened can never work, unless a person changes something."""
    never = (StoreMissing, StoreDenied, StoreReadOnly, StoreUnsupported, StoreLost, SchemaMismatch)
    return isinstance(error, never) or not is_passing(error)


def is_outage(error: BaseException) -> bool:
    """Say whether the store could not be reached or written to, so that no code of the user's is to blame. A SQLite
    file that stays locked is not an outage: the holder may be the task itself, and it would wait again each time."""
    return isinstance(error, StoreUnavailable | StoreFull | StoreReadOnly) and not isinstance(error, FileLocked)


def is_passing(error: Exception) -> bool:
    """Say whether the whole store is in trouble, and the same call may work later. Anything else is about what was
    sent, and will be wrong again."""
    return isinstance(error, StoreError) and type(error) not in (StoreError, StoreDamaged)
