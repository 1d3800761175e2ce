"""Run a workflow on the event loop: await its operations, and park it when nothing of it runs.

Its calls belong to the workflow's own task and to the branches of `flow.gather`: only their numbers are the same in
every replay. A call in any other task fails the attempt (ADR 0013).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar

from holdfast.core.records import Record
from holdfast.core.replay import FlowCall, Scope
from holdfast.errors import Dropped, Interrupted, Misused, Parking, Rewinding, StepFailed, UsageError
from holdfast.runtime.tracebacks import calls_user_code
from holdfast.stores.protocol import Reply
from holdfast.workflow.caught import Location, calling_place, is_on_its_way, place_of
from holdfast.workflow.effects import Do, Effect, Operation, Pause, Read, Wait, Write, current_scope, inside, merged
from holdfast.workflow.recorder import Recorder
from holdfast.workflow.run import Run
from holdfast.workflow.sync_driver import StepTimeout, Stoppable, too_long

T = TypeVar("T")
CLEANUP_S = 1.0  # how long code may clean up that is parked, before it is cancelled again
REPLAY_ITERATIONS = 8  # turns of the loop that the code of a replay has for one result before it gets the next
READS_MAX = 64  # reads of the store that run at once, for all workflows of the process
STEPS_MAX = 64  # blocking functions that run at once, for each workflow
IDLE_ITERATIONS = 32  # turns of the loop without a call of the flow after which nothing of this workflow runs
INSTEAD = (
    "run calls side by side with flow.gather(…), and limit one with flow.step(…, timeout_s=…) or "
    "flow.wait(…, timeout=…)"
)


class ThreadPools:
    """The threads of the process that work for async workflows. Steps have as many as they need: each workflow keeps to
    its own bound, so none waits for the steps of another."""

    def __init__(self) -> None:
        self.reads = ThreadPoolExecutor(READS_MAX, thread_name_prefix="holdfast-reads")
        self.steps = ThreadPoolExecutor(sys.maxsize, thread_name_prefix="holdfast-step")

    def close(self) -> None:
        self.reads.shutdown(wait=False, cancel_futures=True)
        self.steps.shutdown(wait=False, cancel_futures=True)


class Mailbox:
    """Brings answers of the recorder to the event loop, many at once: waking the loop costs more than all the rest."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._answers: deque[tuple[asyncio.Future[Reply], Reply | Exception]] = deque()
        self._is_scheduled = False

    def put(self, future: asyncio.Future[Reply], answer: Reply | Exception) -> None:
        """Hand over the reply, from any thread."""
        self._answers.append((future, answer))
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        self._is_scheduled = False  # first: an answer that comes from now on calls this again
        while self._answers:
            _set(*self._answers.popleft())


@dataclass(slots=True)
class _Gather:
    """A `flow.gather` that has not ended."""

    scopes: list[Scope]  # of its branches; the owner of each is its task
    waits_at: list[str] = field(default_factory=list)  # paths of the calls that dropped branches waited in

    def has_failed(self) -> bool:
        """Say whether one of its branches has."""
        tasks: list[Any] = [scope.owner for scope in self.scopes]
        ended = [task for task in tasks if task.done() and not task.cancelled()]
        return any(task.exception() is not None for task in ended)


@dataclass(slots=True, eq=False)
class _PendingCall:
    """A call of the flow that was made and is not awaited yet."""

    scope: Scope  # whose owner must await it
    place: Location  # of the code that made it
    coroutine: Coroutine[Any, Any, Any] | None = None
    handed: list[_PendingCall | None] = field(default_factory=list)  # of a gather: the calls among its branches

    def close(self) -> None:
        """Let nobody await it any more; or Python would complain that nobody has."""
        if self.coroutine is not None:
            self.coroutine.close()
        for each in self.handed:
            if each is not None:
                each.close()


class AsyncDriver:
    """Carries out the operations of one workflow whose function is async."""

    def __init__(self, run: Run, recorder: Recorder, pools: ThreadPools, mailbox: Mailbox) -> None:
        self.run = run
        self._mailbox = mailbox
        self.parking: Parking | None = None
        self._recorder = recorder
        self._pools = pools
        self._step_slots = asyncio.Semaphore(STEPS_MAX)
        self._loop = asyncio.get_running_loop()
        self._main: asyncio.Task[Any] | None = asyncio.current_task()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._active = 0
        self._activity = 0
        self._waits: dict[asyncio.Future[None], tuple[Parking, Scope]] = {}
        self._replays = False  # until the code has got every result on record that it asks for
        self._turns: dict[asyncio.Future[None], tuple[bool, float, int]] = {}  # whose turn is next: the least
        self._gathers: dict[str, _Gather] = {}  # by path, the newest last: those inside others come behind them
        self._cancelled: dict[Any, asyncio.CancelledError] = {}  # by task: with what its scope was parked
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False
        self._pending: dict[Scope, list[_PendingCall]] = {}  # by scope, in their order

    async def load(self) -> None:
        """Read what is recorded."""
        await self._loop.run_in_executor(self._pools.reads, self.run.load)
        self._replays = not self.run.replay.is_empty

    def scope(self) -> Scope:
        """Return the scope that the calling code is in."""
        scope = self.run.scope()
        if scope is None:
            raise UsageError("the flow is used where it does not run: in a thread, or on another event loop")
        self._check_goes_on(scope)
        self._check_owner(scope)
        return scope

    def drive(self, operation: Operation[T], call: FlowCall | None = None) -> Coroutine[Any, Any, T]:
        """Return the operation as something to await. Its number is taken already, when it was called."""
        pending = self._new_call()
        pending.coroutine = coroutine = self._drive(operation, call, pending)
        return coroutine

    def _new_call(self) -> _PendingCall:
        pending = _PendingCall(self._scope(), calling_place())
        self._pending.setdefault(pending.scope, []).append(pending)
        return pending

    def _begin(self, pending: _PendingCall) -> None:
        """Let a call begin, if the scope that made it awaits it, and in its turn."""
        self._check_goes_on(pending.scope)
        self._check_owner(pending.scope, pending.place)
        self._check_awaited(takewhile(lambda each: each is not pending, self._pending[pending.scope]))
        self._pending[pending.scope].remove(pending)

    def _check_owner(self, scope: Scope, place: Location | None = None) -> None:
        """Raise if this is not the task of the scope. `place`: where the call was made, if not here and now."""
        if scope.owner is not _current_task():
            raise self._refuse(
                f"the call of the flow at {_said(place or calling_place())} runs in an asyncio task of its own "
                "(create_task, TaskGroup, asyncio.gather, wait_for, shield) or in a thread: a replay could not repeat "
                f"the order of such calls; {INSTEAD}"
            )

    def _check_awaited(self, calls: Iterable[_PendingCall]) -> None:
        """Raise if there is one among the calls that should have been awaited by now."""
        if (first := next(iter(calls), None)) is not None:
            raise self._refuse(
                f"the call of the flow at {_said(first.place)} is not awaited, so it was not carried out: write "
                "`await`, or hand it to flow.gather(…)"
            )

    def _refuse(self, why: str) -> BaseException:
        """Return what is raised by a call that no replay could repeat. The attempt fails by it, whatever the code
        catches: it might go on by something that is not on record."""
        if self.run.rewinds:
            return Rewinding(why)  # it comes no further; whether all undos were seen is checked
        self._loop.call_soon_threadsafe(self._schedule, self._leave)
        return self.run.stop(Misused(why))

    def _leave(self) -> None:
        """Cancel code that waits for what was refused. Steps that are running end first."""
        if self._active:
            self._schedule(self._leave)
        else:
            self._cancel_tasks()

    def _schedule(self, what: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._has_ended:
            self._timer = self._loop.call_later(CLEANUP_S, what)

    def _check_goes_on(self, scope: Scope) -> None:
        """Raise if no call is carried out any more. All scopes park together: then every further call is cancelled."""
        if self.run.stopped is not None:
            raise self.run.stopped
        if scope.dropped:
            raise asyncio.CancelledError
        if self.parking is not None:
            if not is_on_its_way(asyncio.CancelledError):
                self._note_caught(calling_place())
            raise asyncio.CancelledError

    def _note_caught(self, otherwise: Location) -> None:
        """Note where this scope caught the cancellation that parked it, as far as that is known."""
        if self.run.caught_at is None and self.run.attempt.handler.interrupt is None:
            self.run.caught_at = place_of(self._cancelled.get(asyncio.current_task())) or otherwise

    @contextlib.contextmanager
    def _seeing_cancellation(self, place: Location) -> Iterator[None]:
        """See who cancels a call: the worker, a wait, a `gather` that has failed, or else the code itself, which would
        go on by something that is not on record."""
        try:
            yield
        except asyncio.CancelledError as error:
            if self.parking is not None:
                self._cancelled.setdefault(asyncio.current_task(), error)
            elif not self._scope().dropped and self.run.attempt.handler.interrupt is None and self.run.stopped is None:
                raise self._refuse(
                    f"the call of the flow at {_said(place)} was cancelled by the code itself (asyncio.timeout, "
                    f"wait_for, Task.cancel), which is not recorded: a replay would take another path; {INSTEAD}"
                ) from error
            raise

    async def _drive(self, operation: Operation[T], call: FlowCall | None, pending: _PendingCall) -> T:
        self._begin(pending)
        with self._seeing_cancellation(pending.place):
            if call is not None:
                await self._await_turn(call)
            return await self.carry_out(operation)

    def _scope(self) -> Scope:
        """Return the scope of this task, whose call it may have begun: the main one if it has none."""
        return self.run.scope() or self.run.main

    async def carry_out(self, operation: Operation[T]) -> T:
        """Carry the operation out, and return its value."""
        self._active += 1
        self._activity += 1
        try:
            effect = next(operation)
            while True:
                try:
                    answer = await self._carry_out(effect)
                except BaseException as error:
                    effect = operation.throw(error)
                else:
                    effect = operation.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        except Dropped as dropped:
            self._drop_again(dropped)
            raise asyncio.CancelledError from None
        finally:
            self._active -= 1
            self._activity += 1
            self._check_idle()

    async def _carry_out(self, effect: Effect) -> Any:
        match effect:
            case Do():
                with self.run.attempt.inside(*effect.at), inside(effect):
                    return await self._do(effect)
            case Write():
                return await self._write(effect.record)
            case Read():
                return await self._loop.run_in_executor(self._pools.reads, effect.fn)
            case Pause():
                return await asyncio.sleep(effect.seconds)
            case Wait():
                return await self._wait(effect)

    @calls_user_code
    async def _do(self, effect: Do) -> Any:
        self.run.check_goes_on()
        fn = getattr(effect.fn, "fn", effect.fn)
        if inspect.iscoroutinefunction(fn):
            running = fn(*effect.args, **effect.kwargs)
            return await (running if effect.timeout_s is None else self._in_time(running, effect.timeout_s))
        call = Stoppable(partial(_called, fn, effect), self.run.check_goes_on)
        async with self._step_slots:
            value = await self._blocking(call, effect.timeout_s)
        return await value if inspect.isawaitable(value) else value

    async def _blocking(self, call: Stoppable, timeout_s: float | None) -> Any:
        """Run a function in a thread. If it is to stop, still wait for its end: what comes after it,
        above all its undo, must not run at the same time."""
        context = contextvars.copy_context()
        running = self._loop.run_in_executor(self._pools.steps, context.run, call)
        try:
            done, _ = await asyncio.wait([running], timeout=timeout_s)
        except asyncio.CancelledError:
            call.stop(Interrupted)
            await _ended(running)
            raise
        if not done:
            call.stop(StepTimeout)
            await _ended(running)
            if isinstance(running.exception(), StepTimeout):
                raise too_long(timeout_s) from None
        return running.result()

    async def _in_time(self, running: Awaitable[Any], timeout_s: float) -> Any:
        try:
            return await asyncio.wait_for(running, timeout_s)
        except TimeoutError:
            raise too_long(timeout_s) from None

    async def _write(self, record: Record) -> Reply:
        future: asyncio.Future[Reply] = self._loop.create_future()
        tell = partial(self._mailbox.put, future)
        self.run.hand_over(record, lambda whole: self._recorder.put(whole, tell))
        return await future

    # ----------------------------------------------------------------------------------------- waiting

    async def _wait(self, effect: Wait) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        scope = self._scope()
        self._waits[future] = (effect.until, scope)
        scope.waits_at.append(effect.path)
        self._active -= 1
        self._check_idle()
        try:
            await future
        finally:
            self._active += 1
            scope.waits_at.remove(effect.path)
            self._waits.pop(future, None)

    async def _await_turn(self, call: FlowCall) -> None:
        """Wait until this call may go on. In a replay, results come in the order in which they were recorded, each when
        the code has made of the last one what it can; then comes what is not on record. So whatever was first in a race
        is first in every replay."""
        call.is_concurrent = asyncio.current_task() is not self._main
        ended_at = self.run.ended_at(call)
        if not self._replays or (ended_at is not None and not call.is_concurrent):
            return
        future: asyncio.Future[None] = self._loop.create_future()
        position = call.known.position if call.known is not None else 0
        self._turns[future] = (ended_at is None, ended_at or 0.0, position)
        self._activity += 1
        self._check_idle()
        try:
            await future
        finally:
            self._turns.pop(future, None)
            self._check_idle()

    def _give_turn(self) -> None:
        """Let the next result on record be had, or, if there is none, begin what is not on record."""
        self._replays = any(not is_new for is_new, *_ in self._turns.values())
        given = [min(self._turns, key=lambda future: self._turns[future])] if self._replays else list(self._turns)
        for future in given:
            del self._turns[future]
            if not future.done():
                future.set_result(None)
        self._activity += 1
        self._check_idle()

    def _check_idle(self) -> None:
        if (self._waits or self._turns) and self._active == 0 and self.parking is None:
            self._loop.call_soon(self._count_idle, self._activity, IDLE_ITERATIONS)

    def _count_idle(self, activity: int, left: int) -> None:
        """Let the event loop run: code that just got a result may make the next call. If none comes, nothing runs."""
        if activity != self._activity or self._active or not (self._waits or self._turns) or self.parking is not None:
            return
        has_recorded = self._replays and not all(is_new for is_new, *_ in self._turns.values())
        if has_recorded and left == IDLE_ITERATIONS - REPLAY_ITERATIONS:
            self._give_turn()
        elif left:
            self._loop.call_soon(self._count_idle, activity, left - 1)
        elif self._turns:
            self._give_turn()
        else:
            self._fail_or_park()

    def _fail_or_park(self) -> None:
        """End a gather that has failed, now that nothing moves, the innermost first; if there is none, park."""
        failed = [path for path, gather in self._gathers.items() if gather.has_failed()]
        if failed:
            self._drop(failed[-1], self._gathers[failed[-1]].scopes)
            return
        self.parking = merged([until for until, _ in self._waits.values()])
        self.run.park(self.parking)
        self._cancel_tasks()

    def _cancel_tasks(self) -> None:
        """Cancel what runs of the workflow, and again after a while what is not at its end then."""
        for task in (self._main, *self._tasks):
            if task is not None and not task.done():
                task.cancel()
        if self.run.lingers():
            self._loop.run_in_executor(self._pools.reads, self.run.report_caught)
        self._schedule(self._cancel_tasks)

    async def ended_by(self, error: BaseException | None) -> BaseException | None:
        """Return what the attempt ends with when its code has returned, or raised `error`."""
        if self.parking is not None:
            await self._end_tasks(error)
        elif error is None and self.run.stopped is None:
            with contextlib.suppress(Misused):  # the run keeps it
                self._check_awaited(self._pending.get(self.run.main, ()))
        if self.run.caught_at is None:
            return self.run.ended_by(error)
        return await self._loop.run_in_executor(self._pools.reads, self.run.ended_by, error)

    async def _end_tasks(self, error: BaseException | None) -> None:
        """Wait a moment for the branches that were parked with the main scope."""
        if not isinstance(error, asyncio.CancelledError):
            code = self.run.attempt.task.fn.__code__
            self._note_caught((code.co_filename, code.co_firstlineno))
        self._main = None  # it is not cancelled again
        left = [task for task in self._tasks if not task.done() and task is not asyncio.current_task()]
        if left:
            await asyncio.wait(left, timeout=3 * CLEANUP_S)

    # --------------------------------------------------------------------------------------- branches

    def gather(self, branches: Sequence[Any]) -> Coroutine[Any, Any, list[Any]]:
        """Run the branches side by side, each in its own scope, and return what they return once all have ended."""
        scope = self.scope()
        path = self.run.gather(scope)
        waiting = {id(pending.coroutine): pending for pending in self._pending.get(scope, ())}
        handed = [waiting.pop(id(branch), None) for branch in branches]
        self._check_awaited(waiting.values())
        self._pending[scope] = []
        pending = self._new_call()
        pending.handed = handed
        pending.coroutine = coroutine = self._gather(path, branches, pending)
        return coroutine

    async def _gather(self, path: str, branches: Sequence[Any], pending: _PendingCall) -> list[Any]:
        self._begin(pending)
        scope = self._scope()
        with self._seeing_cancellation(pending.place):
            await self.carry_out(self.run.write_caught(scope.take_failed()))
        tasks = []
        gather = self._gathers[path] = _Gather([])
        for number, (branch, handed) in enumerate(zip(branches, pending.handed, strict=True), 1):
            below = scope.branch(path, number)
            if handed is not None:
                handed.scope = below
                self._pending[below] = [handed]
            context = contextvars.copy_context()
            context.run(current_scope.set, below)
            tasks.append(self._loop.create_task(self._branch(branch, below), context=context))
            below.owner = tasks[-1]
            gather.scopes.append(below)
        self._tasks.update(tasks)
        try:
            with self._seeing_cancellation(pending.place):
                results = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            del self._gathers[path]
        errors = [result for result in results if isinstance(result, BaseException)]
        self.run.end_gather(path, scope, errors, asyncio.CancelledError, lambda: gather.waits_at)
        if errors:
            raise errors[0]
        return results

    async def _branch(self, branch: Awaitable[Any] | Callable[[], Awaitable[Any]], scope: Scope) -> Any:
        found = branch() if callable(branch) else branch
        value = await found if inspect.isawaitable(found) else found
        if not scope.dropped and self.parking is None:
            self._check_awaited(self._pending.get(scope, ()))
            await self.carry_out(self.run.write_caught(scope.take_failed()))
        return value

    def _drop_again(self, dropped: Dropped) -> None:
        """End the branch that has come to a call in which it was dropped."""
        gather, this = self._gathers.get(dropped.gather), self._scope()
        scopes = gather.scopes if gather is not None else []
        scope = next((scope for scope in scopes if any(each is this for each in scope.with_branches())), None)
        if scope is None:
            raise self.run.stop(self.run.made_outside_gather(dropped))
        self._drop(dropped.gather, [scope])

    def _drop(self, path: str, scopes: list[Scope]) -> None:
        """Let these branches of a gather do nothing more. Cancel them, and again after a while."""
        gather = self._gathers.get(path)
        if gather is None:
            return
        for scope in scopes:
            gather.waits_at += scope.drop()
            owners: list[Any] = [each.owner for each in scope.with_branches()]
            for task in owners:
                if task is not None and task is not asyncio.current_task():
                    task.cancel()
        for future, (_, scope) in self._waits.items():
            if scope.dropped:
                future.cancel()
        self._loop.call_later(CLEANUP_S, self._drop, path, scopes)

    def end(self) -> None:
        """Stop every part of the workflow that still runs."""
        self.run.end()
        self._cancelled.clear()  # they hold the frames of the code
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        for each in [each for calls in self._pending.values() for each in calls]:
            each.close()
        for task in self._tasks:
            task.cancel()
        for future in (*self._waits, *self._turns):
            future.cancel()


def _called(fn: Callable[..., Any], effect: Do) -> Any:
    """Call a function that blocks. No future can carry a StopIteration: before Python 3.12 it would never end."""
    try:
        return fn(*effect.args, **effect.kwargs)
    except StopIteration as error:
        raise StepFailed(effect.at[1], "StopIteration", str(error)) from error


async def _ended(running: asyncio.Future[Any]) -> None:
    """Wait for the end of a function, however often the task is cancelled meanwhile."""
    while not running.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([running])
    if not running.cancelled():
        running.exception()  # or asyncio would complain that nobody has asked for it


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return None


def _said(place: Location) -> str:
    return "{}:{}".format(*place)


def _set(future: asyncio.Future[Reply], answer: Reply | Exception) -> None:
    if future.done():
        return  # who waited for it was stopped
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)


async def play(driver: AsyncDriver, code: Callable[[], Any]) -> Any:
    """Run a workflow from its beginning, or undo it."""
    run = driver.run
    await driver.load()
    run.main.owner = asyncio.current_task()
    before = current_scope.set(run.main)
    try:
        if not run.rewinds:
            return await _run_code(driver, code)
        if run.replay.has_undos_ahead:
            try:
                await code()
            except* (Rewinding, Exception):  # noqa: S110  it comes as far as it ever did; a TaskGroup wraps its signal
                pass
        run.check_goes_on()
        await driver.carry_out(run.undo_all())
        return None
    except Exception as error:
        if run.is_recorded(error):
            run.state.fatal = error
        raise
    finally:
        driver.end()
        current_scope.reset(before)


async def _run_code(driver: AsyncDriver, code: Callable[[], Any]) -> Any:
    """Run the code, and return what it returns, or raise what the attempt ends with."""
    try:
        value = await code()
    except BaseException as error:
        end = await driver.ended_by(error)
        if end is None or end is error:
            raise
        raise end from None
    if (end := await driver.ended_by(None)) is not None:
        raise end
    driver.run.replay.check_all_matched()
    return value
