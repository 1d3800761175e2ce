"""Running a handler: async tasks on one event loop, sync tasks in threads. Both end in an `Outcome`.

Whatever a handler does, its attempt gets exactly one outcome and the worker goes on: an exception whose text
cannot be read, `sys.exit`, a result that cannot be stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from holdfast import errors
from holdfast.clock import Clock
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
from holdfast.points import point
from holdfast.worker.attempt import Attempt
from holdfast.worker.context import Context
from holdfast.worker.frames import trace_of

log = logging.getLogger("holdfast.worker")

ERROR_MAX = 8_000  # characters of an error's text
TRACE_MAX = 32_000  # characters of a traceback in the journal

_NOTHING = object()
MakeContext = Callable[[Attempt], Context]
Commit = Callable[[Attempt, Outcome], Outcome | None]  # with the task's own transaction; None: settled
Report = Callable[[Attempt, Outcome | None], None]


class Flows(Protocol):
    """Who runs the functions of workflows."""

    def play(self, attempt: Attempt) -> Any: ...

    def aplay(self, attempt: Attempt) -> Coroutine[Any, Any, Any]: ...


class Threads:
    """Runs sync handlers, each in a thread; as many threads as were ever needed at once."""

    def __init__(
        self, clock: Clock, make_context: MakeContext, commit: Commit, report: Report, flows: Flows | None = None
    ) -> None:
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
        while (attempt := self._work.get()) is not None:
            outcome = self._commit(attempt, self._run(attempt))
            self._idle.release()
            self._report(attempt, outcome)

    def _run(self, attempt: Attempt) -> Outcome:
        attempt.start(self._clock.lease())
        point("handler.before")
        value: object = _NOTHING
        try:
            try:
                attempt.enter_thread()
                if attempt.task.is_workflow:
                    value = _flows(self._flows).play(attempt)
                else:
                    arguments, named = _arguments(attempt, self._make_context)
                    value = attempt.task.fn(*arguments, **named)
            finally:
                attempt.leave_thread()  # from here on nothing interrupts us
            outcome = _success(attempt, value)
        except BaseException as error:
            late = value is not _NOTHING and isinstance(error, errors.Interrupted)  # it came in after the handler's end
            outcome = _success(attempt, value) if late else conclude(attempt, error)
        point("handler.after")
        return outcome


class Loop:
    """Runs async handlers on an event loop in a thread of its own."""

    def __init__(
        self, clock: Clock, make_context: MakeContext, commit: Commit, report: Report, flows: Flows | None = None
    ) -> None:
        self._flows = flows
        self._clock = clock
        self._make_context = make_context
        self._commit = commit
        self._report = report
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="holdfast-loop", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread.start()

    def start(self, attempts: Sequence[Attempt]) -> None:
        if not attempts:
            return
        if threading.get_ident() == self._thread.ident:
            self._spawn(attempts)
        else:
            self._loop.call_soon_threadsafe(self._spawn, attempts)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(1.0)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _spawn(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            task = self._loop.create_task(self._run(attempt))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, attempt: Attempt) -> None:
        outcome: Outcome | None
        attempt.start(self._clock.lease())
        point("handler.before")
        task = asyncio.current_task()
        try:
            try:
                if task is not None:
                    attempt.enter_loop(self._loop, task)
                if attempt.task.is_workflow:
                    value = await _flows(self._flows).aplay(attempt)
                else:
                    arguments, named = _arguments(attempt, self._make_context)
                    value = await attempt.task.fn(*arguments, **named)
            finally:
                attempt.leave_loop()
            outcome = _success(attempt, value)
        except BaseException as error:  # cancellation and sys.exit end the attempt, not the loop
            outcome = conclude(attempt, error)
        point("handler.after")
        if attempt.transaction is not None:
            outcome = await self._commit_aside(attempt, outcome)
        self._report(attempt, outcome)

    async def _commit_aside(self, attempt: Attempt, outcome: Outcome) -> Outcome | None:
        """Commit in a thread. A cancellation that comes only now finds the handler gone: there is nothing to stop."""
        commit = asyncio.ensure_future(asyncio.to_thread(self._commit, attempt, outcome))
        while not commit.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([commit])
        return commit.result()


def _flows(flows: Flows | None) -> Flows:
    if flows is None:
        raise errors.UsageError("nobody here can run a workflow")
    return flows


def _arguments(attempt: Attempt, make_context: MakeContext) -> tuple[tuple[Any, ...], dict[str, Any]]:
    task = attempt.task
    arguments, named = attempt.arguments()
    if task.takes_context:
        return (make_context(attempt), *arguments), named
    return tuple(arguments), named


def _success(attempt: Attempt, value: object) -> Outcome:
    try:
        return Succeeded(attempt.task.encode_result(value))
    except errors.PayloadError as error:
        return Failed(f"the result could not be stored: {error}", finished=True)


def conclude(attempt: Attempt, error: BaseException) -> Outcome:
    """Turn whatever left the handler into an outcome; never raises."""
    if attempt.transaction is not None:
        attempt.transaction.rollback()
        attempt.transaction = None
    if isinstance(error, errors.Interrupted | asyncio.CancelledError) and attempt.interrupt is not None:
        return interrupted(attempt, attempt.interrupt)
    if isinstance(error, errors.Interrupted):
        return interrupted(attempt, error)
    if isinstance(error, errors.Snooze) and error is not attempt.fatal:  # a step that is on record comes no other way
        return Snoozed(error.delay_s)
    if isinstance(error, asyncio.CancelledError):
        return Failed("the task was cancelled from inside (asyncio.CancelledError)")
    undo = isinstance(error, errors.Rollback) and attempt.task.is_workflow
    return Failed(describe(error), {"traceback": _trace(error)}, final=error is attempt.fatal, rollback=undo)


def interrupted(attempt: Attempt, why: errors.Interrupted, given_up: str = "") -> Outcome:
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
            return Released(started=True, cause=str(why) or type(why).__name__)


def describe(error: BaseException) -> str:
    """Say what was raised, whatever its text does."""
    kind = type(error).__name__
    try:
        text = str(error)
    except BaseException:
        return f"{kind}: (its text could not be read)"
    return clean((f"{kind}: {text}" if text else kind)[:ERROR_MAX], ERROR_MAX)


def _stack_of(why: errors.Interrupted) -> dict[str, Any]:
    return {"stack": clean(why.stack, TRACE_MAX)} if why.stack else {}


def _trace(error: BaseException) -> str:
    try:
        return clean(trace_of(error), TRACE_MAX)
    except BaseException:
        return "(the traceback could not be written)"
