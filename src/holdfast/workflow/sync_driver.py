"""A workflow in threads: its operations are carried out where its code runs, its branches in threads of their own."""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from holdfast.clock import Clock
from holdfast.core.records import Record
from holdfast.core.replay import FlowCall, Scope
from holdfast.errors import Interrupted, Parking, Rewinding, UsageError
from holdfast.interrupts import clear_interrupt, interrupt, shielded
from holdfast.runtime.tracebacks import calls_user_code
from holdfast.stores.protocol import Reply
from holdfast.workflow.caught import calling_place, is_on_its_way, place_of
from holdfast.workflow.effects import Do, Effect, Operation, Pause, Read, Wait, Write, current_scope, inside, merged
from holdfast.workflow.recorder import Recorder
from holdfast.workflow.run import Run

T = TypeVar("T")
LOOK_S = 0.1  # how soon a thread that waits notices that it was interrupted


class StepTimeout(BaseException):
    """Raised in the thread of a step whose time is up. No `except Exception` of the step swallows it."""


class SyncDriver:
    """Carries out the operations of one workflow whose function is not async."""

    def __init__(self, run: Run, recorder: Recorder, clock: Clock) -> None:
        self.run = run
        self._recorder = recorder
        self._clock = clock

    def scope(self) -> Scope:
        """Return the scope that the calling code is in."""
        scope = self._scope()
        if self.run.stopped is not None:
            raise self.run.stopped
        if scope.parked is not None:
            if not is_on_its_way(scope.parked):
                self._note_caught(scope.parked, None)
            if self.run.lingers():
                with shielded():
                    self.run.report_caught()
            raise scope.parked.with_traceback(None)
        return scope

    def _scope(self) -> Scope:
        scope = self.run.scope()
        if scope is None:
            raise UsageError("the flow is used in a thread that it does not know; run branches with flow.gather(…)")
        return scope

    def _park(self, scope: Scope, until: Parking) -> None:
        """Let the scope make no further call."""
        if scope is self.run.main:
            self.run.park(until)
        else:
            scope.parked = until

    def _note_caught(self, parked: Parking | None, error: BaseException | None) -> None:
        """Note where the code caught the signal to park, if it did: it has ended by another error, or by none."""
        if parked is not None and error is not parked and self.run.caught_at is None:
            self.run.caught_at = place_of(parked) or calling_place()

    def drive(self, operation: Operation[T], call: FlowCall | None = None) -> T:
        """Carry the operation out, and return its value."""
        try:
            effect = next(operation)
            while True:
                try:
                    answer = self._carry_out(effect)
                except BaseException as error:
                    effect = operation.throw(error)
                else:
                    effect = operation.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        except Parking as parked:
            self._park(self._scope(), parked)
            raise

    def ended_by(self, error: BaseException | None) -> BaseException | None:
        """Return what the attempt ends with when its code has returned, or raised `error`."""
        self._note_caught(self.run.main.parked, error)
        with shielded():
            return self.run.ended_by(error)

    def _carry_out(self, effect: Effect) -> Any:
        match effect:
            case Do():
                return self._do(effect)
            case Write():
                return self._write(effect.record)
            case Read():
                with shielded():
                    return effect.fn()
            case Pause():
                return self._pause(effect.seconds)
            case Wait():
                self._scope().waits_at.append(effect.path)
                raise effect.until

    @calls_user_code
    def _do(self, effect: Do) -> Any:
        fn = getattr(effect.fn, "fn", effect.fn)
        if inspect.iscoroutinefunction(fn):
            raise UsageError(f"the {effect.what} {effect.at[1]!r} is an async function; use it in an async workflow")
        self.run.check_goes_on()
        with self.run.attempt.inside(*effect.at), inside(effect), _time_limit(effect.timeout_s, self.run):
            return effect.fn(*effect.args, **effect.kwargs)

    def _write(self, record: Record) -> Reply:
        answers: SimpleQueue[Reply | Exception] = SimpleQueue()
        with shielded():  # the recorder has a lock that every workflow of this process needs
            self.run.hand_over(record, lambda whole: self._recorder.put(whole, answers.put))
        while True:
            with suppress(Empty):  # between two of these an interrupt gets through
                answer = answers.get(timeout=LOOK_S)
                break
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _pause(self, seconds: float) -> None:
        until, never = self._clock.lease() + seconds, threading.Event()
        while (left := until - self._clock.lease()) > 0:
            self._clock.wait(never, min(left, LOOK_S))

    # --------------------------------------------------------------------------------------- branches

    def gather(self, branches: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run the branches side by side, each in its own scope, and return what they return once all have ended."""
        scope = self.scope()
        path = self.run.gather(scope)
        self.drive(self.run.write_caught(scope.take_failed()))
        threads = [_BranchThread(fn, scope.branch(path, number), self) for number, fn in enumerate(branches, 1)]
        try:
            for thread in threads:
                with shielded():  # or it may run, and not be known to
                    thread.start()
            for thread in threads:
                while not thread.has_ended():
                    self._park_if_all_wait(scope, threads)
        except BaseException as error:  # we were interrupted, or have no thread for one: nobody goes on without us
            begun = [thread for thread in threads if thread.ident is not None]
            for thread in begun:
                thread.stop(type(error) if isinstance(error, Interrupted) else Interrupted)
            for thread in begun:
                while not thread.has_ended():  # without a limit: as long as this waits, the attempt counts as at work
                    pass
            raise
        errors = [each for thread in threads if (each := self._error_of(thread)) is not None]
        waits = [error for error in errors if isinstance(error, Parking)]
        self.run.end_gather(
            path, scope, errors, Parking, lambda: [at for thread in threads for at in thread.scope.drop()]
        )
        if waits:
            self._park(scope, parked := merged(waits))
            raise parked
        return [thread.value for thread in threads]

    def _park_if_all_wait(self, scope: Scope, threads: list[_BranchThread]) -> None:
        """Park the scope above branches that all wait or have ended, even if code caught that and goes on."""
        waits = [thread.scope.parked for thread in threads if thread.scope.parked is not None]
        returned = [thread for thread in threads if thread.scope.parked is None and thread.has_returned]
        if scope.parked is None and waits and len(waits) + len(returned) == len(threads):
            self._park(scope, merged(waits))

    def _error_of(self, thread: _BranchThread) -> BaseException | None:
        """Return how a branch ended short of a value. One that waits cannot make anything else of that."""
        self._note_caught(thread.scope.parked, thread.error)
        return thread.scope.parked or thread.error


class _BranchThread(threading.Thread):
    """One branch of a `flow.gather`."""

    def __init__(self, fn: Callable[[], Any], scope: Scope, driver: SyncDriver) -> None:
        super().__init__(name="holdfast-branch", daemon=True)
        self.scope = scope
        self._fn = fn
        self._driver = driver
        self._context = contextvars.copy_context()
        self._context.run(current_scope.set, scope)
        self._call = Stoppable(self._branch, driver.run.check_goes_on)
        self.stop = self._call.stop
        self._ended = False
        self._running = threading.Lock()
        self._running.acquire()
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.value = self._context.run(self._call)
        except BaseException as error:
            self.error = error
        finally:
            self._ended = True
            self._running.release()

    @property
    def has_returned(self) -> bool:
        return self._ended and self.error is None

    def _branch(self) -> Any:
        value = self._fn()
        if self.scope.parked is None:
            self._driver.drive(self._driver.run.write_caught(self.scope.take_failed()))
        return value

    def has_ended(self) -> bool:
        """Wait a moment for its end, and say whether it has come. `join` does not serve: interrupted, Python 3.11 takes
        a thread for ended that goes on."""
        if not self._ended:
            self._running.acquire(timeout=LOOK_S)
        return self._ended


def _time_limit(timeout_s: float | None, run: Run) -> AbstractContextManager[None]:
    """Raise `TimeoutError` in this thread if the block takes longer."""
    return nullcontext() if timeout_s is None else _limit_time(timeout_s, run)


@contextmanager
def _limit_time(timeout_s: float, run: Run) -> Iterator[None]:
    thread = threading.get_ident()
    timer = threading.Timer(timeout_s, interrupt, (thread, StepTimeout))
    timer.daemon = True
    timer.start()
    try:
        try:
            yield
        finally:
            with shielded():
                timer.cancel()
                timer.join()  # otherwise it could interrupt the code after this block
                clear_interrupt()  # drop an interrupt that it has sent too late
            if run.attempt.handler.interrupt is not None:
                raise run.attempt.handler.interrupt
    except StepTimeout:
        raise too_long(timeout_s) from None


def too_long(timeout_s: float | None) -> TimeoutError:
    """Return what the code of a workflow gets when the time of a step is up."""
    return TimeoutError(f"the step took longer than {timeout_s:g} s")


class Stoppable:
    """A call that runs in a thread of another executor, and can be stopped there and nowhere else."""

    def __init__(self, call: Callable[[], Any], check: Callable[[], None]) -> None:
        self._call = call
        self._check = check  # raises if it must not begin any more
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._why: type[BaseException] | None = None

    def __call__(self) -> Any:
        with self._lock:
            if self._why is not None:
                raise self._why
            self._check()
            self._thread = threading.get_ident()
        try:
            return self._call()
        finally:
            self._leave()

    def stop(self, why: type[BaseException]) -> None:
        """Raise this in the call: now, or before it begins. C code it does not reach."""
        with self._lock:
            self._why = why
            if self._thread is not None:
                interrupt(self._thread, why)

    def _leave(self) -> None:
        while True:
            try:
                with self._lock:
                    if self._thread is not None:
                        clear_interrupt()
                    self._thread = None
                return
            except (Interrupted, StepTimeout):  # it came in on the last bytecodes
                continue


def play(driver: SyncDriver, code: Callable[[], Any]) -> Any:
    """Run a workflow from its beginning, or undo it."""
    run = driver.run
    with shielded():
        run.load()
    before = current_scope.set(run.main)
    try:
        if not run.rewinds:
            return _run_code(driver, code)
        if run.replay.has_undos_ahead:
            with suppress(Rewinding, Parking, Exception):  # replay what is recorded, to learn the undos
                code()
        run.check_goes_on()
        driver.drive(run.undo_all())
        return None
    except Exception as error:
        if run.is_recorded(error):
            run.state.fatal = error
        raise
    finally:
        run.end()
        current_scope.reset(before)


def _run_code(driver: SyncDriver, code: Callable[[], Any]) -> Any:
    """Run the code, and return what it returns, or raise what the attempt ends with."""
    try:
        value = code()
    except BaseException as error:
        end = driver.ended_by(error)
        if end is None or end is error:
            raise
        raise end from None
    if (end := driver.ended_by(None)) is not None:
        raise end
    driver.run.replay.check_all_matched()
    return value
