"""`flow`, the interface of a workflow's code.

One class for both kinds of workflow: in an `async def` the same names are awaited. `run.py` has their behaviour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, TypeVarTuple, overload

from holdfast.core.dependencies import check_no_after
from holdfast.core.keys import check_no_key_rule
from holdfast.core.payload import encode_value
from holdfast.core.policy import Retry
from holdfast.core.records import Job as Row
from holdfast.core.records import Signal, StepKind
from holdfast.core.replay import FlowCall, Scope
from holdfast.core.row_text import ANSWER
from holdfast.errors import UsageError
from holdfast.ids import chance, new_id, new_uuid
from holdfast.jobs import Job
from holdfast.workflow.effects import Operation
from holdfast.workflow.run import DeclaredUndo, Run
from holdfast.workflow.values import NOTHING, checked_name, name_of, signal_name

if TYPE_CHECKING:
    from holdfast.tasks import Sender
    from holdfast.worker.context import Context

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")
SLEEP_MAX_S = 10.0**10
Coro: TypeAlias = Coroutine[Any, Any, R]  # type checkers tell when one is not awaited


class Driver(Protocol):
    """Carries operations out: in threads, or on the event loop."""

    run: Run

    def scope(self) -> Scope: ...

    def drive(self, operation: Operation[Any], call: FlowCall | None = None) -> Any: ...

    def gather(self, branches: Any) -> Any: ...


class Flow:
    """The first argument of a workflow: `def checkout(flow: Flow, order_id: int)`.

    Everything that goes through it is recorded under the attempt's fence, and is not done again when the workflow is
    run from its beginning after a death or a wait. Code between two calls runs again: keep it free of effects.
    """

    __slots__ = ("_driver", "_run", "ctx")

    def __init__(self, driver: Driver, ctx: Context) -> None:
        self._driver = driver
        self._run = driver.run
        self.ctx = ctx  # the attempt: log, progress, deadline, …

    @property
    def id(self) -> str:
        """Return the id of this workflow: where its signals go."""
        return self._run.attempt.job.id

    @property
    def job(self) -> Row:
        """Return the job's row as it was claimed."""
        return self._run.attempt.job

    # A type checker sees the function's own arguments. No signature can check arguments by name beside options: where
    # both are needed, give the arguments by position.
    @overload
    def step(
        self,
        fn: Callable[[*Ts], R],
        /,
        *args: *Ts,
        undo: Callable[[R | None, *Ts], object] | None = None,
        retry: Retry | None = None,
        timeout_s: float | timedelta | None = None,
        repeatable: bool = True,
        name: str | None = None,
    ) -> R: ...
    @overload
    def step(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def step(  # type: ignore[misc]  # it does accept them; mypy rejects *Ts
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        undo: Callable[..., Any] | None = None,
        retry: Retry | None = None,
        timeout_s: float | timedelta | None = None,
        repeatable: bool = True,
        name: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run `fn(*args, **kwargs)` once, and return its result, now and in every replay.

        undo: called as `undo(result, *args, **kwargs)` if the workflow rolls back; with None if it is not known whether
        the step happened. retry: how often it is tried; a pause of more than a second between two tries needs no slot.
        Without it, what it raises goes to your code. repeatable: False for what is dangerous to do twice: if the worker
        dies in it, a person decides. name: what it is recorded by, the function's name by default.
        """
        call = self._run.call("step", name_of(fn, name), self._driver.scope())
        limit_s = _limit("timeout_s", timeout_s)
        if limit_s == 0:
            raise UsageError("timeout_s=0 must be more than 0 seconds")
        if undo is not None:  # now: a rollback ends the code once it has made all calls to undo
            self._run.undos[call.path] = DeclaredUndo(undo, fn, args, kwargs)
        options: dict[str, Any] = {"undo": undo, "retry": retry, "timeout_s": limit_s, "repeatable": repeatable}
        return self._driver.drive(self._run.step(call, fn, args, kwargs, **options), call)

    @overload
    def transaction(self, fn: Callable[[Any, *Ts], R], /, *args: *Ts, name: str | None = None) -> R: ...
    @overload
    def transaction(self, fn: Callable[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def transaction(  # type: ignore[misc]  # as above
        self, fn: Callable[..., Any], /, *args: Any, name: str | None = None, **kwargs: Any
    ) -> Any:
        """Run `fn(connection, *args, **kwargs)` inside a transaction of the store; its writes and the record of the
        step are one commit: exactly once. Only stores with SQL have it. Keep it short."""
        make = partial(self._run.transaction, fn=fn, args=args, kwargs=kwargs)
        return self._made("transaction", name_of(fn, name), make)

    def gather(self, *branches: Callable[[], Any]) -> list[Any]:
        """Run functions without arguments side by side, and return what they return, in order, once all have ended.

        Each may use the flow: `flow.gather(lambda: flow.step(a), lambda: flow.step(b))`. In an async workflow they may
        be awaitables too. The first error, in their order, is raised once the others have ended or wait; those that
        wait do nothing more, in no replay.
        """
        results: list[Any] = self._driver.gather(branches)
        return results

    def sleep(
        self, seconds: float | timedelta = 0.0, *, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0
    ) -> None:
        """Wait for this time, without a slot."""
        more = 60.0 * minutes + 3600.0 * hours + 86_400.0 * days
        length = _seconds("flow.sleep", _seconds("flow.sleep: seconds", seconds) + more)
        return self._made("sleep", "sleep", lambda call: self._run.sleep(call, lambda now: now + length))

    def sleep_until(self, instant: datetime) -> None:
        """Wait until an instant with a time zone, without a slot."""
        if not isinstance(instant, datetime) or instant.utcoffset() is None:
            raise UsageError(f"flow.sleep_until({instant!r}): give a datetime with a time zone")
        return self._made("sleep", "sleep", lambda call: self._run.sleep(call, lambda _: instant.timestamp()))

    def wait(self, signal: str, timeout: float | timedelta | None = None, *, default: Any = NOTHING) -> Any:
        """Return the value of the next signal of this name, sent by `app.signal(id, name, value)`; wait without a slot.

        One that came before is kept; each is delivered once. Raises `TimeoutError` after `timeout` seconds, or returns
        `default` if that is given.
        """
        name = signal_name(signal)
        return self._made("wait", name, lambda call: self._run.wait(call, name, _limit("timeout", timeout), default))

    def approve(self, question: str, timeout: float | timedelta | None = None, *, default: Any = NOTHING) -> bool:
        """Ask a person, and return the answer: true or false. It shows in the list of what waits for people."""

        def asked(call: FlowCall) -> Operation[bool]:
            return self._run.wait(call, f"{ANSWER}{call.path}", _limit("timeout", timeout), default, question)

        return self._made("approve", checked_name(question), asked)

    def signal(self, id: str, name: str, value: Any = None) -> None:
        """Send a signal to another workflow, once. Raises `NotFound` if it does not exist or has ended."""

        def sent(call: FlowCall) -> Operation[None]:
            text = encode_value(value, f"signal {name!r}: the value", codec=self._run.app.codec)
            signal = Signal(id=new_id(), job_id=id, name=name, value=text, actor=f"workflow {self.id}")
            return self._run.signal(call, signal)

        return self._made("signal", signal_name(name), sent)

    def start(self, task: Sender[P, R], *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Start a job or another workflow, once, and return its handle. `flow.result(job)` waits for its end.

        Raises `KeyTaken` if another live job has its key, or a job that is not this child has its id.
        """
        if not hasattr(task, "job"):
            name = getattr(task, "__qualname__", repr(task))
            raise UsageError(f"flow.start takes a task or a workflow, not {name}; run a function with flow.step")
        draft = task.job(*args, **kwargs)
        if draft.task.app is not self._run.app:
            raise UsageError(f"{draft.task.name} belongs to another app; a child lives in the same store")
        check_no_key_rule(draft.new, "a child of a workflow")
        check_no_after(draft.new.awaits, "a child of a workflow")
        return self._made("start", draft.task.name, lambda call: self._child(call, draft.new))

    def result(self, job: Job[R]) -> R:
        """Return what a job that this workflow has started returned; wait for it without a slot.

        Raises `JobDead`, `JobCancelled` or `JobRolledBack` if it ended without a result.
        """
        if job.id not in self._run.children:
            raise UsageError(f"job {job.id} was not started by this workflow; flow.start(…) does that")
        return self._made("result", self._run.children[job.id], lambda call: self._run.result(call, job))

    def now(self) -> datetime:
        """Return the instant at which the code came here first, in UTC."""
        return self._made("now", "now", self._instant)

    def random(self) -> float:
        """Return a random number from 0 up to 1, drawn once."""
        return self._made("random", "random", lambda call: self._run.value(call, chance))

    def uuid(self) -> str:
        """Return a random UUID as text, made once."""
        return self._made("uuid", "uuid", lambda call: self._run.value(call, new_uuid))

    def patched(self, marker: str) -> bool:
        """Say whether this run has the change: true if it comes here first with the new code, false if it was further
        when the code was changed. Put the new code under it, and the old code under its opposite."""
        answer: bool = self._driver.drive(self._run.patched(checked_name(marker), self._driver.scope()))
        return answer

    # ---------------------------------------------------------------------------------------- inside

    def _made(self, kind: StepKind, name: str, operation: Callable[[FlowCall], Operation[R]]) -> R:
        """Make a call, and return its value; in an async workflow, return what to await for it."""
        call = self._run.call(kind, name, self._driver.scope())
        value: R = self._driver.drive(operation(call), call)
        return value

    def _child(self, call: FlowCall, new: Any) -> Operation[Job[Any]]:
        job_id = yield from self._run.start(call, new)
        self._run.children[job_id] = new.task
        return Job(self._run.app, job_id)

    def _instant(self, call: FlowCall) -> Operation[datetime]:
        wall = yield from self._run.value(call, lambda: self._run.store.now().wall)
        return datetime.fromtimestamp(wall, UTC)


class AsyncFlow(Flow):
    """The flow of an `async def` workflow: every name of `Flow`, awaited. For type checkers; at run time it is given to
    async workflows whichever of the two they name."""

    __slots__ = ()

    if TYPE_CHECKING:
        # fmt: off
        @overload  # type: ignore[override]
        def step(self, fn: Callable[[*Ts], Awaitable[R]], /, *args: *Ts,
                 undo: Callable[[R | None, *Ts], object] | None = None, retry: Retry | None = None,
                 timeout_s: float | timedelta | None = None, repeatable: bool = True,
                 name: str | None = None) -> Coro[R]: ...
        @overload
        def step(self, fn: Callable[[*Ts], R], /, *args: *Ts,
                 undo: Callable[[R | None, *Ts], object] | None = None, retry: Retry | None = None,
                 timeout_s: float | timedelta | None = None, repeatable: bool = True,
                 name: str | None = None) -> Coro[R]: ...
        @overload
        def step(self, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> Coro[R]: ...
        @overload
        def step(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coro[R]: ...
        def step(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any: ...  # type: ignore[misc]
        @overload  # type: ignore[override]
        def transaction(self, fn: Callable[[Any, *Ts], R], /, *args: *Ts, name: str | None = None) -> Coro[R]: ...
        @overload
        def transaction(self, fn: Callable[Concatenate[Any, P], R], /, *args: P.args,
                        **kwargs: P.kwargs) -> Coro[R]: ...
        def transaction(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any: ...  # type: ignore[misc]
        def gather(self, *branches: Any) -> Coro[list[Any]]: ...  # type: ignore[override]
        def sleep(self, seconds: float | timedelta = 0.0, *, minutes: float = 0.0,  # type: ignore[override]
                  hours: float = 0.0, days: float = 0.0) -> Coro[None]: ...
        def sleep_until(self, instant: datetime) -> Coro[None]: ...  # type: ignore[override]
        def wait(self, signal: str, timeout: float | timedelta | None = None, *,
                 default: Any = NOTHING) -> Coro[Any]: ...
        def approve(self, question: str, timeout: float | timedelta | None = None, *,  # type: ignore[override]
                    default: Any = NOTHING) -> Coro[bool]: ...
        def signal(self, id: str, name: str, value: Any = None) -> Coro[None]: ...  # type: ignore[override]
        def start(self, task: Sender[P, R], *args: P.args,  # type: ignore[override]
                  **kwargs: P.kwargs) -> Coro[Job[R]]: ...
        def result(self, job: Job[R]) -> Coro[R]: ...  # type: ignore[override]
        def now(self) -> Coro[datetime]: ...  # type: ignore[override]
        def random(self) -> Coro[float]: ...  # type: ignore[override]
        def uuid(self) -> Coro[str]: ...  # type: ignore[override]
        def patched(self, marker: str) -> Coro[bool]: ...  # type: ignore[override]
        # fmt: on


def _seconds(name: str, length: float | timedelta) -> float:
    """Return a length of time in seconds, if it is one."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if not isinstance(seconds, int | float) or not 0 <= seconds <= SLEEP_MAX_S:
        raise UsageError(f"{name}={length!r} must be a number of seconds, not negative, or a timedelta")
    return float(seconds)


def _limit(name: str, length: float | timedelta | None) -> float | None:
    return None if length is None else _seconds(name, length)
