"""A workflow on the event loop: its operations are awaited, and what it waits for stands still until nothing moves.

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
from holdfast.core.replay import Scope
from holdfast.errors import Dropped, Interrupted, Misused, Parking, Rewinding, StepFailed, UsageError
from holdfast.stores.protocol import Answer
from holdfast.tracebacks import calls_user_code
from holdfast.workflow.caught import Place, calling_place, is_on_its_way, place_of
from holdfast.workflow.effects import Do, Effect, Operation, Pause, Read, Wait, Write, merged
from holdfast.workflow.ledger import FlowCall
from holdfast.workflow.recorder import Recorder
from holdfast.workflow.run import Run, here, inside
from holdfast.workflow.sync_driver import StepTimeout, Stoppable, too_long

T = TypeVar("T")
CLEANUP_S = 1.0  # how long code may clean up that is parked, before it is cancelled again
TURN_HOPS = 8  # so many turns of the loop has the code of a replay for one result before it gets the next
READS_MAX = 64  # reads of the store that run at once, for all workflows of the process
STEPS_MAX = 64  # blocking functions that run at once, for each workflow
HOPS = 32  # so many turns of the loop without a call of the flow: nothing of this workflow runs any more
INSTEAD = (
    "run calls side by side with flow.gather(…), and limit one with flow.step(…, timeout_s=…) or "
    "flow.wait(…, timeout=…)"
)


class Aside:
    """The threads of the process that work for async workflows. Steps have as many as they need: each workflow keeps to
    its own bound, so none waits for the steps of another."""

    def __init__(self) -> None:
        self.reads = ThreadPoolExecutor(READS_MAX, thread_name_prefix="holdfast-reads")
        self.steps = ThreadPoolExecutor(sys.maxsize, thread_name_prefix="holdfast-step")

    def close(self) -> None:
        self.reads.shutdown(wait=False, cancel_futures=True)
        self.steps.shutdown(wait=False, cancel_futures=True)


class Mailbox:
    """Brings answers of the recorder to the event loop: many with one knock, which costs more than all the rest."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._answers: deque[tuple[asyncio.Future[Answer], Answer | Exception]] = deque()
        self._knocked = False

    def put(self, future: asyncio.Future[Answer], answer: Answer | Exception) -> None:
        """Answer, from any thread."""
        self._answers.append((future, answer))
        if not self._knocked:
            self._knocked = True
            self._loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        self._knocked = False  # first: an answer that comes from now on calls this again
        while self._answers:
            _set(*self._answers.popleft())


@dataclass(slots=True)
class _Gather:
    """A `flow.gather` that has not ended."""

    lines: list[Scope]  # of its branches; the owner of each is its task
    waits_at: list[str] = field(default_factory=list)  # paths of the calls that dropped branches waited in

    def has_failed(self) -> bool:
        """Say whether one of its branches has."""
        tasks: list[Any] = [line.owner for line in self.lines]
        ended = [task for task in tasks if task.done() and not task.cancelled()]
        return any(task.exception() is not None for task in ended)


@dataclass(slots=True, eq=False)
class _Made:
    """A call of the flow that was made and is not awaited yet."""

    line: Scope  # whose owner must await it
    place: Place  # of the code that made it
    coroutine: Coroutine[Any, Any, Any] | None = None
    handed: list[_Made | None] = field(default_factory=list)  # of a gather: the calls among its branches

    def close(self) -> None:
        """Let nobody await it any more; or Python would complain that nobody has."""
        if self.coroutine is not None:
            self.coroutine.close()
        for each in self.handed:
            if each is not None:
                each.close()


class AsyncDriver:
    """Carries out the operations of one workflow whose function is async."""

    def __init__(self, run: Run, recorder: Recorder, aside: Aside, mailbox: Mailbox) -> None:
        self.run = run
        self._mailbox = mailbox
        self.parking: Parking | None = None
        self._recorder = recorder
        self._aside = aside
        self._places = asyncio.Semaphore(STEPS_MAX)
        self._loop = asyncio.get_running_loop()
        self._main: asyncio.Task[Any] | None = asyncio.current_task()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._active = 0
        self._turn = 0
        self._waits: dict[asyncio.Future[None], tuple[Parking, Scope]] = {}
        self._replays = False  # until the code has got every result on record that it asks for
        self._turns: dict[asyncio.Future[None], tuple[bool, float, int]] = {}  # whose turn is next: the least
        self._gathers: dict[str, _Gather] = {}  # by path, the newest last: those inside others come behind them
        self._cancelled: dict[Any, asyncio.CancelledError] = {}  # by task: with what its line was parked
        self._again: asyncio.TimerHandle | None = None
        self._has_ended = False
        self._made: dict[Scope, list[_Made]] = {}  # by line, in their order

    async def load(self) -> None:
        """Read what is recorded."""
        await self._loop.run_in_executor(self._aside.reads, self.run.load)
        self._replays = not self.run.replay.is_empty

    def scope(self) -> Scope:
        """Return the line that the calling code is on."""
        scope = self.run.line()
        if scope is None:
            raise UsageError("the flow is used where it does not run: in a thread, or on another event loop")
        self._check_goes_on(scope)
        self._check_owner(scope)
        return scope

    def drive(self, operation: Operation[T], call: FlowCall | None = None) -> Coroutine[Any, Any, T]:
        """Return the operation as something to await. Its number is taken already, when it was called."""
        made = self._make()
        made.coroutine = coroutine = self._drive(operation, call, made)
        return coroutine

    def _make(self) -> _Made:
        made = _Made(self._line(), calling_place())
        self._made.setdefault(made.line, []).append(made)
        return made

    def _begin(self, made: _Made) -> None:
        """Let a call begin, if the line that made it awaits it, and in its turn."""
        self._check_goes_on(made.line)
        self._check_owner(made.line, made.place)
        self._check_awaited(takewhile(lambda each: each is not made, self._made[made.line]))
        self._made[made.line].remove(made)

    def _check_owner(self, line: Scope, place: Place | None = None) -> None:
        """Raise if this is not the task of the line. `place`: where the call was made, if not here and now."""
        if line.owner is not _current_task():
            raise self._refuse(
                f"the call of the flow at {_said(place or calling_place())} runs in an asyncio task of its own "
                "(create_task, TaskGroup, asyncio.gather, wait_for, shield) or in a thread: a replay could not repeat "
                f"the order of such calls; {INSTEAD}"
            )

    def _check_awaited(self, calls: Iterable[_Made]) -> None:
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
        """Cancel code that waits for what was refused. Steps that are at work come to their end first."""
        if self._active:
            self._schedule(self._leave)
        else:
            self._cancel_lines()

    def _schedule(self, what: Callable[[], None]) -> None:
        if self._again is not None:
            self._again.cancel()
        if not self._has_ended:
            self._again = self._loop.call_later(CLEANUP_S, what)

    def _check_goes_on(self, scope: Scope) -> None:
        """Raise if no call is carried out any more. All lines park together: then every further call is cancelled."""
        if self.run.stopped is not None:
            raise self.run.stopped
        if scope.dropped:
            raise asyncio.CancelledError
        if self.parking is not None:
            if not is_on_its_way(asyncio.CancelledError):
                self._note_caught(calling_place())
            raise asyncio.CancelledError

    def _note_caught(self, otherwise: Place) -> None:
        """Note where this line caught the cancellation that parked it, as far as that is known."""
        if self.run.caught_at is None and self.run.attempt.interrupt is None:
            self.run.caught_at = place_of(self._cancelled.get(asyncio.current_task())) or otherwise

    @contextlib.contextmanager
    def _seeing_cancellation(self, place: Place) -> Iterator[None]:
        """See who cancels a call: the worker, a wait, a `gather` that has failed, or else the code itself, which would
        go on by something that is not on record."""
        try:
            yield
        except asyncio.CancelledError as error:
            if self.parking is not None:
                self._cancelled.setdefault(asyncio.current_task(), error)
            elif not self._line().dropped and self.run.attempt.interrupt is None and self.run.stopped is None:
                raise self._refuse(
                    f"the call of the flow at {_said(place)} was cancelled by the code itself (asyncio.timeout, "
                    f"wait_for, Task.cancel), which is not recorded: a replay would go another way; {INSTEAD}"
                ) from error
            raise

    async def _drive(self, operation: Operation[T], call: FlowCall | None, made: _Made) -> T:
        self._begin(made)
        with self._seeing_cancellation(made.place):
            if call is not None:
                await self._turn_of(call)
            return await self._driven(operation)

    def _line(self) -> Scope:
        """Return the line that this task is on, whose call it may have begun: the main line if it is on none."""
        return self.run.line() or self.run.main

    async def _driven(self, operation: Operation[T]) -> T:
        self._active += 1
        self._turn += 1
        try:
            wish = next(operation)
            while True:
                try:
                    answer = await self._carry_out(wish)
                except BaseException as error:
                    wish = operation.throw(error)
                else:
                    wish = operation.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        except Dropped as dropped:
            self._drop_again(dropped)
            raise asyncio.CancelledError from None
        finally:
            self._active -= 1
            self._turn += 1
            self._look_whether_all_wait()

    async def _carry_out(self, wish: Effect) -> Any:
        match wish:
            case Do():
                with self.run.attempt.inside(*wish.at), inside(wish):
                    return await self._do(wish)
            case Write():
                return await self._write(wish.record)
            case Read():
                return await self._loop.run_in_executor(self._aside.reads, wish.fn)
            case Pause():
                return await asyncio.sleep(wish.seconds)
            case Wait():
                return await self._stand_still(wish)

    @calls_user_code
    async def _do(self, wish: Do) -> Any:
        self.run.check_goes_on()
        fn = getattr(wish.fn, "fn", wish.fn)
        if inspect.iscoroutinefunction(fn):
            running = fn(*wish.args, **wish.kwargs)
            return await (running if wish.timeout_s is None else self._in_time(running, wish.timeout_s))
        async with self._places:
            value = await self._blocking(Stoppable(_called, (fn, wish), {}, self.run.check_goes_on), wish.timeout_s)
        return await value if inspect.isawaitable(value) else value

    async def _blocking(self, call: Stoppable, timeout_s: float | None) -> Any:
        """Run a function in a thread. If it is to stop, wait for its end all the same: what comes after it,
        above all its undo, must not run beside it."""
        context = contextvars.copy_context()
        running = self._loop.run_in_executor(self._aside.steps, context.run, call)
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

    async def _write(self, record: Record) -> Answer:
        future: asyncio.Future[Answer] = self._loop.create_future()
        tell = partial(self._mailbox.put, future)
        self.run.hand_over(record, lambda whole: self._recorder.put(whole, tell))
        return await future

    # ----------------------------------------------------------------------------------------- waiting

    async def _stand_still(self, wish: Wait) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        line = self._line()
        self._waits[future] = (wish.until, line)
        line.waits_at.append(wish.path)
        self._active -= 1
        self._look_whether_all_wait()
        try:
            await future
        finally:
            self._active += 1
            line.waits_at.remove(wish.path)
            self._waits.pop(future, None)

    async def _turn_of(self, call: FlowCall) -> None:
        """Wait until this call may go on. In a replay, results come in the order in which they were recorded, each when
        the code has made of the last one what it can; then comes what is not on record. So whatever was first in a race
        is first in every replay."""
        call.is_beside = asyncio.current_task() is not self._main
        ended_at = self.run.ended_at(call)
        if not self._replays or (ended_at is not None and not call.is_beside):
            return
        future: asyncio.Future[None] = self._loop.create_future()
        position = call.known.position if call.known is not None else 0
        self._turns[future] = (ended_at is None, ended_at or 0.0, position)
        self._turn += 1
        self._look_whether_all_wait()
        try:
            await future
        finally:
            self._turns.pop(future, None)
            self._look_whether_all_wait()

    def _give_turn(self) -> None:
        """Let the next result on record be had, or, if there is none, begin what is not on record."""
        self._replays = any(not is_new for is_new, *_ in self._turns.values())
        given = [min(self._turns, key=lambda future: self._turns[future])] if self._replays else list(self._turns)
        for future in given:
            del self._turns[future]
            if not future.done():
                future.set_result(None)
        self._turn += 1
        self._look_whether_all_wait()

    def _look_whether_all_wait(self) -> None:
        if (self._waits or self._turns) and self._active == 0 and self.parking is None:
            self._loop.call_soon(self._hop, self._turn, HOPS)

    def _hop(self, turn: int, left: int) -> None:
        """Let everybody else have a turn: who was just answered may make the next call."""
        if turn != self._turn or self._active or not (self._waits or self._turns) or self.parking is not None:
            return
        if left == HOPS - TURN_HOPS and self._replays and not all(is_new for is_new, *_ in self._turns.values()):
            self._give_turn()
        elif left:
            self._loop.call_soon(self._hop, turn, left - 1)
        elif self._turns:
            self._give_turn()
        else:
            self._fail_or_park()

    def _fail_or_park(self) -> None:
        """End a gather that has failed, now that nothing moves, the innermost first; if there is none, park."""
        failed = [path for path, gather in self._gathers.items() if gather.has_failed()]
        if failed:
            self._drop(failed[-1], self._gathers[failed[-1]].lines)
            return
        self.parking = merged([until for until, _ in self._waits.values()])
        self.run.park(self.parking)
        self._cancel_lines()

    def _cancel_lines(self) -> None:
        """Cancel what runs of the workflow, and again after a while what is not at its end then."""
        for task in (self._main, *self._tasks):
            if task is not None and not task.done():
                task.cancel()
        if self.run.lingers():
            self._loop.run_in_executor(self._aside.reads, self.run.tell_caught)
        self._schedule(self._cancel_lines)

    async def ended_by(self, error: BaseException | None) -> BaseException | None:
        """Return what the attempt ends with when its code has returned, or raised `error`."""
        if self.parking is not None:
            await self._end_lines(error)
        elif error is None and self.run.stopped is None:
            with contextlib.suppress(Misused):  # the run keeps it
                self._check_awaited(self._made.get(self.run.main, ()))
        if self.run.caught_at is None:
            return self.run.ended_by(error)
        return await self._loop.run_in_executor(self._aside.reads, self.run.ended_by, error)

    async def _end_lines(self, error: BaseException | None) -> None:
        """Wait a moment for the other lines that were parked with the main line."""
        if not isinstance(error, asyncio.CancelledError):
            code = self.run.attempt.task.fn.__code__
            self._note_caught((code.co_filename, code.co_firstlineno))
        self._main = None  # it is not cancelled again
        left = [task for task in self._tasks if not task.done() and task is not asyncio.current_task()]
        if left:
            await asyncio.wait(left, timeout=3 * CLEANUP_S)

    # --------------------------------------------------------------------------------------- branches

    def gather(self, branches: Sequence[Any]) -> Coroutine[Any, Any, list[Any]]:
        """Run the branches side by side, each on its own line, and return what they return once all have ended."""
        scope = self.scope()
        path = self.run.gather(scope)
        waiting = {id(made.coroutine): made for made in self._made.get(scope, ())}
        handed = [waiting.pop(id(branch), None) for branch in branches]
        self._check_awaited(waiting.values())
        self._made[scope] = []
        made = self._make()
        made.handed = handed
        made.coroutine = coroutine = self._gather(path, branches, made)
        return coroutine

    async def _gather(self, path: str, branches: Sequence[Any], made: _Made) -> list[Any]:
        self._begin(made)
        scope = self._line()
        with self._seeing_cancellation(made.place):
            await self._driven(self.run.write_caught(scope.take_failed()))
        tasks = []
        gather = self._gathers[path] = _Gather([])
        for number, (branch, handed) in enumerate(zip(branches, made.handed, strict=True), 1):
            line = scope.branch(path, number)
            if handed is not None:
                handed.line = line
                self._made[line] = [handed]
            context = contextvars.copy_context()
            context.run(here.set, line)
            tasks.append(self._loop.create_task(self._branch(branch, line), context=context))
            line.owner = tasks[-1]
            gather.lines.append(line)
        self._tasks.update(tasks)
        try:
            with self._seeing_cancellation(made.place):
                results = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            del self._gathers[path]
        errors = [result for result in results if isinstance(result, BaseException)]
        others = [error for error in errors if not isinstance(error, Rewinding | asyncio.CancelledError)]
        if others:
            raise self.run.fail_gather(path, scope, gather.waits_at, others[0])
        if any(isinstance(error, Rewinding) for error in errors):
            raise next(error for error in errors if isinstance(error, Rewinding))
        self.run.end_gather(path)
        if errors:
            raise errors[0]
        return results

    async def _branch(self, branch: Awaitable[Any] | Callable[[], Awaitable[Any]], line: Scope) -> Any:
        found = branch() if callable(branch) else branch
        value = await found if inspect.isawaitable(found) else found
        if not line.dropped and self.parking is None:
            self._check_awaited(self._made.get(line, ()))
            await self._driven(self.run.write_caught(line.take_failed()))
        return value

    async def undo_all(self) -> None:
        """Undo what is to be undone."""
        await self._driven(self.run.undo_all())

    def _drop_again(self, dropped: Dropped) -> None:
        """End the branch that has come to a call in which it was dropped."""
        gather, this = self._gathers.get(dropped.gather), self._line()
        lines = gather.lines if gather is not None else []
        line = next((line for line in lines if any(each is this for each in line.lines())), None)
        if line is None:
            raise self.run.stop(self.run.no_gather(dropped))
        self._drop(dropped.gather, [line])

    def _drop(self, path: str, lines: list[Scope]) -> None:
        """Let these branches of a gather do nothing more. Cancel them, and again after a while."""
        gather = self._gathers.get(path)
        if gather is None:
            return
        for line in lines:
            gather.waits_at += line.drop()
            owners: list[Any] = [each.owner for each in line.lines()]
            for task in owners:
                if task is not None and task is not asyncio.current_task():
                    task.cancel()
        for future, (_, line) in self._waits.items():
            if line.dropped:
                future.cancel()
        self._loop.call_later(CLEANUP_S, self._drop, path, lines)

    def end(self) -> None:
        """Let nothing of the workflow go on behind its end."""
        self.run.end()
        self._cancelled.clear()  # they hold the frames of the code
        self._has_ended = True
        if self._again is not None:
            self._again.cancel()
        for made in [made for line in self._made.values() for made in line]:
            made.close()
        for task in self._tasks:
            task.cancel()
        for future in (*self._waits, *self._turns):
            future.cancel()


def _called(fn: Callable[..., Any], wish: Do) -> Any:
    """Call a function that blocks. No future can carry a StopIteration: before Python 3.12 it would never end."""
    try:
        return fn(*wish.args, **wish.kwargs)
    except StopIteration as error:
        raise StepFailed(wish.at[1], "StopIteration", str(error)) from error


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


def _said(place: Place) -> str:
    return "{}:{}".format(*place)


def _set(future: asyncio.Future[Answer], answer: Answer | Exception) -> None:
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
    before = here.set(run.main)
    try:
        if not run.rewinds:
            return await _forward(driver, code)
        if run.replay.has_undos_ahead:
            try:
                await code()
            except* (Rewinding, Exception):  # noqa: S110  it comes as far as it ever did; a TaskGroup wraps its signal
                pass
        run.check_goes_on()
        await driver.undo_all()
        return None
    except Exception as error:
        if run.is_recorded(error):
            run.attempt.fatal = error
        raise
    finally:
        driver.end()
        here.reset(before)


async def _forward(driver: AsyncDriver, code: Callable[[], Any]) -> Any:
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
    driver.run.replay.check_all_met()
    return value
