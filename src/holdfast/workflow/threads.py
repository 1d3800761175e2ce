"""A workflow in threads: its operations are carried out where its code runs, its branches in threads of their own."""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from holdfast.clock import Clock
from holdfast.core.flow import Scope
from holdfast.core.records import Record
from holdfast.errors import Interrupted, Parking, Rewinding, UsageError
from holdfast.shield import calm, interrupt, shielded
from holdfast.stores.protocol import Answer
from holdfast.worker.recorder import Recorder
from holdfast.workflow.effects import Do, Effect, Operation, Pause, Read, Wait, Write, merged
from holdfast.workflow.run import Run, here

T = TypeVar("T")
LOOK_S = 0.1  # how soon a thread that waits notices that it was interrupted


class StepTimeout(Exception):
    """Raised in the thread of a step whose time is up."""


class Threaded:
    """Carries out the operations of one workflow whose function is not async."""

    def __init__(self, run: Run, recorder: Recorder, clock: Clock) -> None:
        self.run = run
        self._recorder = recorder
        self._clock = clock

    def scope(self) -> Scope:
        """Return the line that the calling code is on."""
        scope = here.get()
        if scope is None:
            raise UsageError("the flow is used in a thread that it does not know; run branches with flow.gather(…)")
        return scope

    def drive(self, operation: Operation[T]) -> T:
        """Carry the operation out, and return its value."""
        try:
            wish = next(operation)
            while True:
                try:
                    answer = self._carry_out(wish)
                except BaseException as error:
                    wish = operation.throw(error)
                else:
                    wish = operation.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value

    def _carry_out(self, wish: Effect) -> Any:
        match wish:
            case Do():
                return self._do(wish)
            case Write():
                return self._write(wish.record)
            case Read():
                with shielded():
                    return wish.fn()
            case Pause():
                return self._pause(wish.seconds)
            case Wait():
                raise wish.until

    def _do(self, wish: Do) -> Any:
        fn = getattr(wish.fn, "fn", wish.fn)
        if inspect.iscoroutinefunction(fn):
            raise UsageError(f"{wish.what} {fn!r} is async; use it in an async workflow")
        with self.run.attempt.inside(*wish.at), _time_limit(wish.timeout_s, self.run):
            return wish.fn(*wish.args, **wish.kwargs)

    def _write(self, record: Record) -> Answer:
        answers: list[Answer | Exception] = []
        done = threading.Lock()
        done.acquire()

        def tell(answer: Answer | Exception) -> None:
            answers.append(answer)
            done.release()

        with shielded():  # the recorder has a lock that every workflow of this process needs
            self.run.hand_over(record, lambda whole: self._recorder.put(whole, tell))
        while not done.acquire(timeout=LOOK_S):
            pass  # between two of these an interrupt gets through
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    def _pause(self, seconds: float) -> None:
        until, never = self._clock.lease() + seconds, threading.Event()
        while (left := until - self._clock.lease()) > 0:
            self._clock.wait(never, min(left, LOOK_S))

    # --------------------------------------------------------------------------------------- branches

    def gather(self, branches: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run the branches side by side, each on its own line, and return what they return once all have ended."""
        scope = self.scope()
        path = scope.next()
        lines = [_Branch(fn, scope.branch(path, number)) for number, fn in enumerate(branches, 1)]
        for line in lines:
            line.start()
        try:
            for line in lines:
                while line.is_alive():
                    line.join(LOOK_S)
        except BaseException as error:  # we were interrupted; nobody goes on without us
            for line in lines:
                line.interrupt(error)
            for line in lines:
                line.join(self.run.attempt.job.lease_s)
            raise
        errors = [line.error for line in lines if line.error is not None]
        waits = [error for error in errors if isinstance(error, Parking)]
        others = [error for error in errors if not isinstance(error, Parking | Rewinding)]
        if others:
            raise others[0]
        if len(waits) < len(errors):
            raise next(error for error in errors if isinstance(error, Rewinding))
        if waits:
            raise merged(waits)
        return [line.value for line in lines]


class _Branch(threading.Thread):
    """One branch of a `flow.gather`."""

    def __init__(self, fn: Callable[[], Any], scope: Scope) -> None:
        super().__init__(name="holdfast-branch", daemon=True)
        self._fn = fn
        self._context = contextvars.copy_context()
        self._context.run(here.set, scope)
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            try:
                self.value = self._context.run(self._fn)
            finally:
                calm()  # an interrupt must not outlive the thread that it was for
        except BaseException as error:
            self.error = error

    def interrupt(self, why: BaseException) -> None:
        if self.is_alive() and self.ident is not None:
            interrupt(self.ident, type(why) if isinstance(why, Interrupted) else Interrupted)


@contextmanager
def _time_limit(timeout_s: float | None, run: Run) -> Iterator[None]:
    """Raise `TimeoutError` in this thread if the block takes longer."""
    if timeout_s is None:
        yield
        return
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
                timer.join()  # or it comes when nobody reckons with it any more
                calm()  # one that comes too late hits nobody
            if run.attempt.interrupt is not None:
                raise run.attempt.interrupt
    except StepTimeout:
        raise TimeoutError(f"the step took longer than {timeout_s:g} s") from None


def play(driver: Threaded, code: Callable[[], Any]) -> Any:
    """Run a workflow from its beginning, or undo it."""
    run = driver.run
    with shielded():
        run.load()
    before = here.set(run.main)
    try:
        if not run.rewinds:
            value = code()
            run.replay.check_all_met()
            return value
        if run.replay.has_undos_ahead:
            with suppress(Rewinding, Parking, Exception):  # it comes as far as it ever did
                code()
        driver.drive(run.undo_all())
        return None
    except Exception as error:
        if run.is_recorded(error):
            run.attempt.fatal = error
        raise
    finally:
        here.reset(before)
