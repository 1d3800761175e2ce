"""Running a handler: async tasks on one event loop, sync tasks in threads. Both end in an `Outcome`.

Whatever a handler does, its attempt gets exactly one outcome and the worker goes on: an exception whose text
cannot be read, `sys.exit`, a result that cannot be stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeGuard

import msgspec

from holdfast import errors
from holdfast.clock import Clock
from holdfast.core.records import Step
from holdfast.core.text import clean
from holdfast.core.verdict import (
    Cancelled,
    Diverged,
    Failed,
    Outcome,
    Parked,
    Released,
    Snoozed,
    Stalled,
    Succeeded,
    TimedOut,
)
from holdfast.failpoints import point
from holdfast.forks import end_if_forked
from holdfast.runtime.log_fields import current_attempt
from holdfast.runtime.tracebacks import (
    FRAME_MAX,
    FRAMES_MAX,
    came_from,
    describe,
    kind_of,
    origin_of,
    trace_of,
    user_frames,
)
from holdfast.runtime.vital_threads import Died, VitalThread
from holdfast.worker.activity import TaskTransaction
from holdfast.worker.attempt import Attempt
from holdfast.worker.context import Context, context_maker

log = logging.getLogger("holdfast.worker")

COMMITTERS = 8  # threads that commit the transactions of async handlers
STEPS_TOLD = 10  # of a workflow that failed
TRACE_MAX = 32_000  # characters of a traceback in the journal

MakeContext = Callable[[Attempt], Context]
Commit = Callable[[Attempt, Outcome], Outcome | None]  # with the task's own transaction; None: settled
ReportOutcome = Callable[[Attempt, Outcome | None], None]


class Flows(Protocol):
    """Runs the functions of workflows."""

    def play(self, attempt: Attempt) -> Any: ...

    def aplay(self, attempt: Attempt) -> Coroutine[Any, Any, Any]: ...


class Threads:
    """Runs sync handlers, each in a thread; as many threads as were ever needed at once."""

    def __init__(
        self, clock: Clock, make_context: MakeContext, commit: Commit, report: ReportOutcome, flows: Flows | None = None
    ) -> None:
        self._pid = os.getpid()
        self._flows = flows
        self._clock = clock
        self._make_context = make_context
        self._commit = commit
        self._report = report
        self._work: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0

    def start(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            if not self._idle.acquire(blocking=False):
                self._count += 1
                threading.Thread(target=self._loop, name=f"holdfast-job-{self._count}", daemon=True).start()
            self._work.put(attempt)

    def close(self) -> None:
        for _ in range(self._count):
            self._work.put(None)

    def _loop(self) -> None:
        context_maker.set(self._make_context)
        while (attempt := self._work.get()) is not None:
            outcome = _committed(self._commit, attempt, self._run(attempt))
            self._idle.release()
            self._report(attempt, outcome)

    def _run(self, attempt: Attempt) -> Outcome:
        attempt.start(self._clock.lease())
        point("handler.before")
        ended: Outcome | Raised = _NOT_YET
        try:
            try:
                current_attempt.set(attempt)
                attempt.handler.enter_thread()
                ended = self._call(attempt)
            finally:
                end_if_forked(self._pid)
                attempt.handler.leave_thread()  # from here on nothing interrupts us
                current_attempt.set(None)
                attempt.unlimit()
        except BaseException as error:  # an interrupt; it has no effect if the handler has ended by then
            ended = Raised(error) if ended is _NOT_YET else ended
        outcome = conclude(attempt, ended) if isinstance(ended, Raised) else ended
        del ended  # an error holds on to its frames with all that is in them, and they to ours
        point("handler.after")
        return outcome

    def _call(self, attempt: Attempt) -> Outcome | Raised:
        """Run the handler and read what it returned or raised: all that may run its author's code."""
        try:
            layers = attempt.task.app.layers
            if not layers:
                value = self._call_task(attempt)
            else:
                value = layers.call(self._make_context(attempt), lambda: self._call_task(attempt))
            return _success(attempt, value)
        except BaseException as error:
            return _raised(attempt, error)

    def _call_task(self, attempt: Attempt) -> Any:
        if attempt.task.is_workflow:
            return _flows(self._flows).play(attempt)
        arguments, named = _arguments(attempt, self._make_context)
        if attempt.task.injected:
            resources = attempt.task.app.resources
            named = {**named, **{name: resources.get(kind) for name, kind in attempt.task.injected.items()}}
        return attempt.task.fn(*arguments, **named)


class Loop:
    """Runs async handlers on an event loop in a thread of its own."""

    def __init__(
        self,
        clock: Clock,
        make_context: MakeContext,
        commit: Commit,
        report: ReportOutcome,
        flows: Flows | None = None,
        *,
        died: Died,
    ) -> None:
        self._pid = os.getpid()
        self._flows = flows
        self._clock = clock
        self._make_context = make_context
        self._commit = commit
        self._report = report
        self._loop = asyncio.new_event_loop()
        self._closing = self._is_dead = False
        self._committers = ThreadPoolExecutor(COMMITTERS, "holdfast-commit")  # not asyncio's: handlers may fill that up
        self._thread = VitalThread("holdfast-loop", self._serve, lambda: self._closing)
        self._attempts: set[Attempt] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread.begin(died)
        _loops.add(self)

    def start(self, attempts: Sequence[Attempt]) -> None:
        if not attempts:
            return
        self._attempts.update(attempts)
        if self.is_current:
            self._spawn(attempts)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: they are stranded
                self._loop.call_soon_threadsafe(self._spawn, attempts)

    def stranded(self) -> list[Attempt]:
        """Return the attempts that will never end, because the loop has died; once."""
        if not self._is_dead:
            return []
        stranded, self._attempts = list(self._attempts), set()
        for attempt in stranded:
            attempt.handler.leave_loop()
        return stranded

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(1.0)
        self._committers.shutdown(wait=False)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._is_dead = True
            self._loop.close()

    def after_fork_in_child(self) -> None:
        """End the child when its code gives way to the loop: what comes next there is the worker's business."""
        is_ours = threading.get_ident() == self._thread.ident  # or was, in a worker that has ended
        if is_ours and not self._loop.is_closed():
            self._loop.call_soon(end_if_forked, self._pid)
            ready: deque[Any] | None = getattr(self._loop, "_ready", None)
            if ready is not None:
                ready.rotate(1)  # before what other handlers have to do

    def run(self, awaitable: Awaitable[Any], timeout_s: float | None = None) -> None:
        """Await this on the loop, from another thread; raise what it raises."""

        async def wait() -> None:
            await awaitable

        asyncio.run_coroutine_threadsafe(wait(), self._loop).result(timeout_s)

    @property
    def is_current(self) -> bool:
        """Say whether this is the loop's own thread."""
        return threading.get_ident() == self._thread.ident

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call this after the handlers that are about to run; for the loop's own thread."""
        self._loop.call_soon(call)

    def _spawn(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            self._tasks.add(self._loop.create_task(self._run(attempt)))

    async def _run(self, attempt: Attempt) -> None:
        attempt.start(self._clock.lease())
        context_maker.set(self._make_context)
        point("handler.before")
        task = asyncio.current_task()
        ended: Outcome | Raised
        try:
            try:
                current_attempt.set(attempt)
                if task is not None:
                    attempt.handler.enter_loop(self._loop, task)
                ended = await self._call(attempt)
            finally:
                end_if_forked(self._pid)
                attempt.handler.leave_loop()
                current_attempt.set(None)
                attempt.unlimit()
        except BaseException as error:
            if self._is_cleared_away(error):
                raise
            ended = Raised(error)
        outcome = conclude(attempt, ended) if isinstance(ended, Raised) else ended
        del ended  # as above
        point("handler.after")
        settled = await self._commit_in_thread(attempt, outcome) if attempt.transaction is not None else outcome
        self._attempts.discard(attempt)
        if task is not None:
            self._tasks.discard(task)
        self._report(attempt, settled)

    async def _call(self, attempt: Attempt) -> Outcome | Raised:
        """Run the handler and read what it returned or raised: all that may run its author's code."""
        try:
            layers = attempt.task.app.layers
            if not layers:
                value = await self._call_task(attempt)
            else:
                value = await layers.acall(self._make_context(attempt), lambda: self._call_task(attempt))
            return _success(attempt, value)
        except BaseException as error:  # cancellation and sys.exit end the attempt, not the loop
            if self._is_cleared_away(error):
                raise
            return _raised(attempt, error)

    def _call_task(self, attempt: Attempt) -> Awaitable[Any]:
        if attempt.task.is_workflow:
            return _flows(self._flows).aplay(attempt)
        arguments, named = _arguments(attempt, self._make_context)
        if attempt.task.injected:
            return _call_with_resources(attempt, arguments, named)
        called: Awaitable[Any] = attempt.task.fn(*arguments, **named)
        return called

    def _is_cleared_away(self, error: BaseException) -> bool:
        """Say whether Python closes a coroutine that a dead loop left. A handler may raise the same exception."""
        return self._is_dead and isinstance(error, GeneratorExit)

    async def _commit_in_thread(self, attempt: Attempt, outcome: Outcome) -> Outcome | None:
        """Commit in a thread of our own, which starts at once: the next handler may block the loop until the commit.

        A cancellation that comes only now finds the handler gone: there is nothing to stop.
        """
        if attempt.transaction is not None and attempt.transaction.current is not None:
            attempt.transaction.current.hand_over()
        try:
            commit = asyncio.wrap_future(self._committers.submit(_committed, self._commit, attempt, outcome))
        except RuntimeError:  # the system gives no more threads
            return _committed(self._commit, attempt, outcome)
        while not commit.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([commit])
        return commit.result()


_RUNNERS = tuple(
    (f'  File "{code.co_filename}", line ', f" in {code.co_name}")
    for code in (Threads._run.__code__, Loop._run.__code__)
)


def runs_handler(stack: str) -> bool:
    """Say whether a thread is running a handler, by its stack as `faulthandler` writes it."""
    lines = stack.splitlines()
    return any(line.startswith(file) and line.endswith(name) for line in lines for file, name in _RUNNERS)


_loops: weakref.WeakSet[Loop] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for loop in _loops:
        loop.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _committed(commit: Commit, attempt: Attempt, outcome: Outcome) -> Outcome | None:
    """Return what the commit returns; a commit that raises is an outcome too."""
    try:
        return commit(attempt, outcome)
    except BaseException as error:
        return Failed(describe(error), finished=True)


def _flows(flows: Flows | None) -> Flows:
    if flows is None:
        raise errors.UsageError("this process cannot run workflows")
    return flows


def _arguments(attempt: Attempt, make_context: MakeContext) -> tuple[tuple[Any, ...], dict[str, Any]]:
    task = attempt.task
    arguments, named = attempt.arguments()
    if task.takes_context:
        return (make_context(attempt), *arguments), named
    return tuple(arguments), named


async def _call_with_resources(attempt: Attempt, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    resources = attempt.task.app.resources
    given: dict[str, Any] = {name: await resources.aget(kind) for name, kind in attempt.task.injected.items()}
    return await attempt.task.fn(*arguments, **named, **given)


def _success(attempt: Attempt, value: object) -> Outcome:
    if attempt.task.ignore_result:
        return Succeeded()
    try:
        return Succeeded(attempt.task.encode_result(value))
    except errors.PayloadError as error:
        return Failed(f"the result could not be stored: {error}", finished=True)


class Raised(NamedTuple):
    """The exception that left a handler and, after a failure, its outcome."""

    error: BaseException
    said: Failed | None = None


_NOT_YET = Raised(errors.Stopping("it was stopped before it began"))


def _raised(attempt: Attempt, error: BaseException) -> Raised:
    """Read the text of an error while the handler can still be stopped: `__str__` is user code, and may never
    return."""
    attempt.unlimit()
    signals = errors.Snooze | asyncio.CancelledError
    if (isinstance(error, signals) or _is_asked_for(error, attempt)) and not attempt.is_final(error):
        return Raised(error)
    text = describe(error)  # first: to write a traceback swallows an interrupt
    final, delay_s = _again(attempt, error)
    kind, frames = clean(kind_of(error), FRAME_MAX), user_frames(error, FRAMES_MAX)
    said = Failed(text, {"traceback": _trace(error)}, final=final, delay_s=delay_s, error_kind=kind)
    return Raised(error, msgspec.structs.replace(said, origin=origin_of(error), frames=frames))


def _again(attempt: Attempt, error: BaseException) -> tuple[bool, float | None]:
    """Return whether the task gives up, and otherwise the pause that its code chooses, if it does."""
    retry = attempt.task.policy.retry
    if isinstance(error, errors.RetryLater):
        return False, error.delay_s
    if isinstance(error, errors.GiveUp) or not retry.covers(error):
        return True, None
    try:
        return False, retry.chosen_delay_s(attempt.job.failures + 1)
    except Exception as trouble:
        log.error("task %s: its backoff failed, and the default one is used: %s", attempt.task.name, describe(trouble))
        return False, None


def conclude(attempt: Attempt, raised: Raised) -> Outcome:
    """Turn what left the handler into an outcome; never raises, though an author's class of errors may raise whenever
    it is looked at."""
    try:
        return _concluded(attempt, raised)
    except BaseException:
        kind = kind_of(raised.error)
        return Failed(f"{kind}: (it could not be read)", error_kind=clean(kind, FRAME_MAX))


def _concluded(attempt: Attempt, raised: Raised) -> Outcome:
    error = raised.error
    opened, asked = attempt.transaction, attempt.handler.interrupt
    if opened is not None:
        opened.roll_back(error)
    if isinstance(error, errors.Interrupted | asyncio.CancelledError) and asked is not None:
        return interrupted(asked)
    if _is_asked_for(error, attempt):
        return interrupted(error)
    if isinstance(error, errors.Snooze) and not attempt.is_final(error):  # a step that is on record comes no other way
        return Snoozed(error.delay_s)
    if isinstance(error, asyncio.CancelledError):
        return Failed("the task was cancelled from inside (asyncio.CancelledError)")
    said = raised.said or Failed(describe(error), error_kind=clean(kind_of(error), FRAME_MAX))
    if opened is not None and opened.outage is not None and any(each is opened.outage for each in _behind(error)):
        return outage(opened, said)
    if any(isinstance(each, errors.StoreLocked) and each.neighbour for each in _behind(error)):
        return msgspec.structs.replace(said, outage=True)
    undo = isinstance(error, errors.Rollback) and attempt.task.is_workflow
    failed = attempt.workflow.failed if attempt.workflow is not None else None
    detail = {**said.detail, "steps": _told(failed)} if failed else said.detail
    final = said.final or attempt.is_final(error)
    return msgspec.structs.replace(said, detail=detail, final=final, rollback=undo)


def _told(failed: dict[str, Step]) -> list[dict[str, Any]]:
    """Return what raised in this run of a workflow, the last at most: most of it is on no other record."""
    said = ("path", "kind", "name", "attempt", "tries", "error")
    return [{name: getattr(step, name) for name in said} for step in list(failed.values())[-STEPS_TOLD:]]


def _is_asked_for(error: BaseException, attempt: Attempt) -> TypeGuard[errors.Interrupted]:
    """Say whether this is a signal of the worker or of the flow. One that the handler raises by itself is a failure: as
    a release it would cost nothing, and the job would run again at once, for ever."""
    asked = attempt.handler.interrupt is not None or isinstance(error, errors.Parking | errors.Diverged)
    return asked and isinstance(error, errors.Interrupted)


def outage(opened: TaskTransaction, said: Failed) -> Failed:
    """Say of a failure that the store failed in the middle of a transaction, which is not the job's fault."""
    error = f"the store failed inside {opened.opened_by}: {said.error}"
    return msgspec.structs.replace(said, error=error, outage=True)


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception and those that it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = came_from(error)


def interrupted(why: errors.Interrupted, given_up: str = "") -> Outcome:
    """Turn the signal that stopped a handler into an outcome; with `given_up` it was to stop it, and did not."""
    words = f"{why}; {given_up}" if given_up else str(why)
    goes_on = bool(given_up)
    match why:
        case errors.Cancelled():
            return Cancelled(words or "cancelled", goes_on)
        case errors.TimeLimit():
            return TimedOut(words, _stack_of(why), goes_on)
        case errors.NoProgress():
            return Stalled(words, _stack_of(why), goes_on)
        case errors.Parking():
            return Parked(str(why), why.wake_at, why.awaits, why.question, why.inbox, why.caught_at)
        case errors.Diverged():
            return Diverged(str(why))
        case _:
            spent = isinstance(why, errors.BudgetSpent)
            return Released(started=True, cause=str(why) or type(why).__name__, budget_spent=spent)


def _stack_of(why: errors.Interrupted) -> dict[str, Any]:
    return {"stack": clean(why.stack, TRACE_MAX)} if why.stack else {}


def _trace(error: BaseException) -> str:
    try:
        return clean(trace_of(error), TRACE_MAX)
    except BaseException:
        return "(the traceback could not be written)"
