"""One attempt of a workflow: replay, record, undo. It compares the calls of the code with the records.

Nothing here waits, runs threads or knows an event loop: an operation yields what it wants done (`effects.py`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from holdfast.core.json_types import JsonType
from holdfast.core.machine import LIVE
from holdfast.core.payload import decode_value, encode_value
from holdfast.core.policy import Retry
from holdfast.core.records import Filter, Inbox, NewJob, Record, Signal, Step, StepKind
from holdfast.core.records import Job as Row
from holdfast.core.replay import STEPS_MAX, FlowCall, Replay, Scope, does_not_fit, is_answered, is_paused
from holdfast.core.row_text import Awaited
from holdfast.errors import (
    Diverged,
    Dropped,
    GiveUp,
    Interrupted,
    KeyTaken,
    LeaseLost,
    NotFound,
    Parking,
    PayloadError,
    RetryLater,
    Rewinding,
    StoreError,
    StoreLocked,
    UsageError,
    is_outage,
    is_passing,
)
from holdfast.failpoints import point
from holdfast.ids import chance
from holdfast.jobs import Job, ended_error
from holdfast.runtime.tracebacks import describe
from holdfast.stores.protocol import Reply, Store
from holdfast.workflow.caught import LINGER_S, Location, report_once
from holdfast.workflow.effects import Do, Operation, Pause, Read, Wait, Write, current_scope
from holdfast.workflow.raised import as_recorded, name_of_class, raised, shortened, written
from holdfast.workflow.values import NOTHING, nothing_to_do, shape_of, shown, signature_of

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.worker.attempt import Attempt

SHORT_S = 1.0  # a pause that is shorter stays in its slot: to park and to replay costs more
LOOK_AGAIN_S = 30.0  # how long a fork waits before it looks again at a child that its original started
TRANSACTION_MAX_S = 5.0
SIGNALS_READ = 500  # signals of one name that are read at once
PAGE = 1_000  # steps that are read at once
ASK_AGAIN_S = 1.0  # the longest pause between two tries to read
ERROR_MAX = 2_000
T = TypeVar("T")
_PLAIN = (str, int, float, bool, type(None))

log = logging.getLogger("holdfast.worker")


@dataclass(frozen=True, slots=True)
class DeclaredUndo:
    """The undo of one step, as today's code declares it."""

    fn: Callable[..., Any]
    of: Callable[..., Any]  # the step's own function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Run:
    """See the module's docstring."""

    def __init__(self, attempt: Attempt, store: Store, app: App, *, in_order: bool = True) -> None:
        self.attempt = attempt
        self.state = attempt.begin_workflow()
        self.store = store
        self.app = app
        self.replay = Replay()
        self.rewinds = attempt.job.rolling_back  # the code is only run to learn which undos there are
        self.stopped: Interrupted | None = None  # why no call is carried out any more, whatever the code catches
        self._lock = threading.RLock()
        self._open: dict[str, Step] = {}  # by path: steps that must not be repeated, and are in progress
        self.dropped: dict[str, str] = {}  # paths of calls that are never ended -> path of the gather that dropped them
        self._recorded: list[BaseException] = []  # what was raised and is on record: it would come again
        self.main = Scope()
        self.in_order = in_order  # in each scope a call begins when the one before it has ended
        self.caught_at: Location | None = None  # where the code first caught the signal that parks it
        self._reported_caught = False
        self.undos: dict[str, DeclaredUndo] = {}  # by path, noted when the step is called
        self._signals: dict[str, deque[Signal]] = {}  # by name: those that were read and not taken
        self._signals_taken: set[str] = set()
        self._taking = 0  # how many of them are not recorded yet
        self.children: dict[str, str] = {}  # id -> task, of those that were started

    def load(self) -> None:
        """Read what is recorded, in pages."""
        steps: list[Step] = []
        page_full = True
        while page_full:
            after = steps[-1].position if steps else 0
            page = self.query(partial(self.store.steps, self.attempt.job.id, after, PAGE))
            steps += page
            page_full = len(page) == PAGE
        self.replay = Replay(steps)
        gathers = (step for step in steps if step.kind == "gather")
        self.dropped = {path: step.path for step in gathers for path in self._decode(step.result)}

    def query(self, question: Callable[[], T]) -> T:
        """Ask the store, and again while it is in trouble: the workflow has not failed. The watch stops the
        attempt before its lease ends."""
        pause_s = 0.05
        while True:
            try:
                return question()
            except StoreError as error:
                if not is_passing(error):
                    raise
            self.check_goes_on()
            self.app.clock.wait(threading.Event(), pause_s)
            pause_s = min(2 * pause_s, ASK_AGAIN_S)

    def read(self, question: Callable[[], T]) -> Read:
        """Return the effect to ask the store this."""
        return Read(lambda: self.query(question))

    def is_recorded(self, error: BaseException) -> bool:
        """Say whether this very exception is on record: then it would leave the workflow in every replay."""
        return any(error is known for known in self._recorded)

    def stop(self, why: Interrupted) -> Interrupted:
        """Carry out no call from now on, in no scope; return the first reason for that, to be raised."""
        self.stopped = self.stopped or why
        return self.stopped

    def end(self) -> None:
        """Refuse from now on whatever the code has left behind: threads or tasks of its own."""
        self.stop(LeaseLost("the attempt of this workflow has ended"))

    def check_goes_on(self) -> None:
        """Raise if the attempt has ended or must stop: nothing of it may begin any more."""
        if self.stopped is not None:
            raise self.stopped
        if self.attempt.handler.interrupt is not None:
            raise self.attempt.handler.interrupt

    # ----------------------------------------------------------------------------------------- calls

    def scope(self) -> Scope | None:
        """Return the scope of this workflow that the calling code is in; None: it is in none.

        Raises `UsageError` in the function of a step, and in another workflow: what they called would be recorded out
        of its order.
        """
        scope = current_scope.get()
        if isinstance(scope, Do):
            self.check_goes_on()  # an interrupt may hit just before the function, or just behind it
            raise UsageError(
                f"the flow was used inside the {scope.what} {scope.at[1]!r}, which is one call of it: the functions of "
                "steps, transactions and undos cannot use the flow; make the call in the workflow itself"
            )
        if scope is not None and scope.main is not self.main:
            raise UsageError(
                f"the flow of workflow {self.attempt.job.id} was used in another workflow; each run must use the flow "
                "that it was called with"
            )
        return scope

    def call(self, kind: StepKind, name: str, scope: Scope) -> FlowCall:
        """Take the number of a call, now: whatever is faster later, this is what it is known by."""
        with self._lock:
            self._stop_when_undos_are_known()
            path = scope.next()
            known = self._match(path, kind, name)
            passed = self.replay.at(scope.peek()) is not None
            return FlowCall(path, kind, name, scope, known, scope.take_failed(), passed)

    def patched(self, marker: str, scope: Scope) -> Operation[bool]:
        """See `Flow.patched`."""
        with self._lock:
            there = self.replay.at(scope.peek())
            if there is not None and (there.kind, there.name) != ("patch", marker):
                return nothing_to_do(False)
            call = self.call("patch", marker, scope)
        return self.value(call, lambda: True)

    def value(self, call: FlowCall, make: Callable[[], T]) -> Operation[T]:
        """Make a value once, and return the same one ever after."""
        if call.is_recorded:
            known: T = self._replayed(call, None)
            return known
        self._check_may_run(call)
        made = make()
        yield from self._record(call, result=self._encode(call, made))
        return made

    def step(
        self,
        call: FlowCall,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        undo: Callable[..., Any] | None,
        retry: Retry | None,
        timeout_s: float | None,
        repeatable: bool,
    ) -> Operation[Any]:
        """Run the function, unless that is recorded; return once its result is."""
        shape = shape_of(fn)
        if undo is not None:
            self._stop_when_undos_are_known()
        if call.is_recorded:
            return self._replayed(call, shape)
        self._check_may_run(call)
        if call.known is not None and is_answered(call.known):
            said = replace(call.known, has_undo=undo is not None)
            return (yield from self._answered(call, said, shape))
        base = self._base(call, has_undo=undo is not None, repeatable=repeatable)
        if undo is not None:  # before anything happens: the undo gets these, and not what the code passes by then
            base = replace(base, arguments=signature_of(fn, self.app.codec).encode(args, kwargs))
        run_it = Do((call.path, call.name), fn, args, kwargs, timeout_s)
        base, value, text = yield from self._tries(call, base, run_it, retry)
        yield from self._record(call, base=base, result=text)
        return self._returned(value, replace(base, result=text), shape)

    def transaction(
        self, call: FlowCall, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Operation[Any]:
        """Run the function with a connection of the store; its writes and the record are one commit."""
        shape = shape_of(fn)
        if call.is_recorded:
            return self._replayed(call, shape)
        self._check_may_run(call)
        base, caught = self._base(call), call.caught
        max_s = min(self.attempt.job.beat_s / 2, TRANSACTION_MAX_S)

        def commit() -> tuple[Any, Step, Reply]:
            with self.store.transaction(self.attempt.lease, max_s) as open_one:
                try:
                    value = fn(open_one.connection, *args, **kwargs)
                except Exception as error:
                    if open_one.outage is not None:
                        raise open_one.outage from error
                    raise
                step = self._ended(base, self._encode(call, value))
                answer = open_one.record(self._new_record((*caught, step)))
                if answer in (Reply.LOCKED, Reply.AGAIN):  # recorded without its writes, the step would lose them
                    raise StoreLocked(f"the row of {self.attempt.job.id} has changed or is locked; step undone")
                return value, step, answer

        try:
            value, step, answer = yield Do((call.path, call.name), commit, what="transaction")
        except StoreError as error:
            self.attempt.met_outage("flow.transaction", error if is_outage(error) else None)
            raise
        except Exception as error:
            raise (yield from self._failed(call, base, error, at_once=False))  # noqa: B904  it keeps its own cause
        if answer is Reply.ACCEPTED:
            self._remember((*caught, step))
        else:  # it was rolled back; let that be journalled
            yield from self._write((*caught, step))
        return self._returned(value, step, shape)

    # ----------------------------------------------------------------------------------------- waits

    def sleep(self, call: FlowCall, due: Callable[[float], float]) -> Operation[None]:
        """Wait until an instant that is recorded before anything else."""
        self._check_not_dropped(call)
        if call.known is None:
            self._check_may_run(call)
            wake_at = due(self._wall())
            text = self._encode(call, wake_at)
            if self.in_order:
                yield from self._record(call, result=text)
            else:
                yield from self._begin(call, replace(self._base(call), result=text))
        else:
            wake_at = float(self._decode(call.known.result))
        is_over = self.in_order and call.was_passed  # a clock that was set back does not start it again
        if is_over or self.rewinds or self.ended_at(call) is not None:
            return
        yield from self._until(call, Parking(wake_at))
        yield from self._end_sleep(call, wake_at)

    def _end_sleep(self, call: FlowCall, wake_at: float) -> Operation[None]:
        """Record the end of a sleep if concurrent calls may end before or after it: at once, or with the next call if
        no call is concurrent."""
        step = self.replay.at(call.path)
        if step is None or step.state != "started":
            return
        ended = replace(step, state="recorded", ended_at=max(self._wall(), wake_at))
        if call.is_concurrent:
            yield from self.write_caught([ended])
        else:
            call.scope.failed.append(ended)

    def ended_at(self, call: FlowCall) -> float | None:
        """Return when a call ended; None: it has not. A sleep may be recorded when it begins."""
        step = call.known
        if step is None or step.state == "started" or step.ended_at is None:
            return None
        if step.kind == "sleep" and step.ended_at < float(self._decode(step.result)):
            return None
        return step.ended_at

    def wait(
        self, call: FlowCall, signal: str, timeout: float | None, default: Any, question: str | None = None
    ) -> Operation[Any]:
        """Take a signal of that name, the oldest first; wait for one if there is none."""
        if call.is_recorded:
            if call.known is not None and call.known.error_kind == "TimeoutError":
                return self._too_late(call, default)
            return self._replayed(call, None)
        self._check_may_run(call)
        found, count = self._take(signal, ()), 0
        if found is None:  # many are read at once: one by one, each look would cost as much as all that wait
            limit = SIGNALS_READ + self._taking
            inbox: Inbox = yield self.read(lambda: self.store.inbox(self.attempt.job.id, signal, limit))
            found, count = self._take(signal, inbox.signals), inbox.count
        base = self._base(call)
        if found is not None:
            yield from self._record(call, base=base, result=found.value, taken=(found.id,))
            with self._lock:
                self._taking -= 1
            return self._decode(found.value)
        deadline = None
        if timeout is not None:
            if call.known is None:
                deadline = self._wall() + timeout
                base = replace(base, result=self._encode(call, deadline))
                yield from self._begin(call, base)
            else:
                deadline = float(self._decode(call.known.result))
            if self._wall() >= deadline:
                late = replace(base, result=None, error=f"nothing came within {timeout:g} s", error_kind="TimeoutError")
                yield from self._record(call, base=late)
                return self._too_late(call, default)
        yield from self._park(call, Parking(deadline, (Awaited("signal", signal),), question, count))

    def result(self, call: FlowCall, job: Job[T]) -> Operation[T]:
        """Return what a child returned; wait for its end."""
        if call.is_recorded:
            value: T = self._child_value(call)
            return value
        job_id = job.id
        self._check_may_run(call)
        count: int = (yield self.read(lambda: self.store.inbox(self.attempt.job.id, limit=0))).count  # before the look
        row = yield self.read(lambda: self.store.get(job_id))
        base = self._base(call)
        if row is None:
            error: Exception = NotFound(f"there is no job {job_id!r}")
            raise (yield from self._failed(call, base, error, at_once=False))
        if row.ended_at is None:
            # The end of a job wakes only the workflow that started it. A fork has its children from another one.
            wake_at = None if row.parent == self.attempt.job.id else self._wall() + LOOK_AGAIN_S
            yield from self._park(call, Parking(wake_at, (Awaited("job", job_id),), inbox=count))
        ended = ended_error(row)
        if ended is not None:
            raise (yield from self._failed(call, base, ended, at_once=True))
        yield from self._record(call, base=base, result=row.result)
        return Job[T](self.app, job_id, row=row).result(0)

    # ---------------------------------------------------------------------------------------- others

    def start(self, call: FlowCall, new: NewJob) -> Operation[str]:
        """Store a child with the record that it was started."""
        if call.is_recorded:
            return str(self._replayed(call, None))
        self._check_may_run(call)
        child = replace(new, parent=self.attempt.job.id)
        step = self._ended(self._base(call), self._encode(call, new.id))
        answer = yield from self._write((*call.caught, step), jobs=(child,))
        if answer is not Reply.TAKEN:
            return new.id
        if (own := (yield from self._own_child(new))) is None:
            raise (yield from self._failed(call, self._base(call), (yield from self._taken(new)), at_once=False))
        yield from self._write((*call.caught, replace(step, result=self._encode(call, own))))
        return own

    def _own_child(self, new: NewJob) -> Operation[str | None]:
        """Return the living child with the same key that this workflow started at a step that was set aside since."""
        own, where = self.attempt.job.id, Filter(key=new.key, task=new.task, states=tuple(LIVE), limit=1)
        found: list[Row] = [] if new.key is None else (yield self.read(lambda: self.store.find(where)))
        if not found or found[0].parent != own:
            return None
        steps: list[Step] = yield self.read(lambda: self.store.steps(own, limit=STEPS_MAX))
        started = {step.result for step in steps if step.kind == "start"}
        return None if encode_value(found[0].id, "a child", codec=self.app.codec) in started else found[0].id

    def _taken(self, new: NewJob) -> Operation[KeyTaken]:
        """Return why a child was not started. Its end would wake another workflow, or nobody."""
        why = f"the key {new.key!r} belongs to another live job"
        if (yield self.read(lambda: self.store.get(new.id))) is not None:
            why = f"job {new.id!r} exists, and is not a {new.task!r} that this workflow started"
        return KeyTaken(f"{why}; the child was not started")

    def signal(self, call: FlowCall, signal: Signal) -> Operation[None]:
        """Send a signal with the record that it was sent."""
        if call.is_recorded:
            self._replayed(call, None)
            return
        self._check_may_run(call)
        step = self._ended(self._base(call), "null")
        answer = yield from self._write((*call.caught, step), sent=(signal,))
        if answer is Reply.GONE:
            error = NotFound(f"there is no workflow {signal.job_id!r} that is still live")
            raise (yield from self._failed(call, self._base(call), error, at_once=False))

    def gather(self, scope: Scope) -> str:
        """Take the number of a gather, and return it."""
        with self._lock:
            path = scope.next()
            self._match(path, "gather", "gather")
            return path

    def end_gather(
        self,
        path: str,
        scope: Scope,
        errors: list[BaseException],
        waits: type[BaseException],
        drop: Callable[[], list[str]],
    ) -> None:
        """Raise what the gather raises whose branches ended with `errors`; those that wait ended with `waits`.

        If one has failed, `drop` ends those that wait, and returns the paths of their calls. That is recorded as soon
        as the code goes on by the error: they do nothing more, in no replay.
        """
        others = [error for error in errors if not isinstance(error, (Rewinding, waits))]
        if others:
            waits_at, error = drop(), others[0]
            if waits_at and isinstance(error, Exception) and self.replay.at(path) is None:
                base = self._base(FlowCall(path, "gather", "gather", scope, None))
                result = encode_value(waits_at, "the branches", codec=self.app.codec)
                scope.failed.append(self._ended(base, result, error))
            raise error
        if rewinding := next((error for error in errors if isinstance(error, Rewinding)), None):
            raise rewinding
        try:
            self.replay.check_failed(path)
        except Diverged as diverged:
            raise self.stop(diverged) from None

    def undo_all(self) -> Operation[None]:
        """Undo what happened, or may have, in the reverse order; each undo is recorded."""
        self.replay.check_undos_matched()
        for step in self.replay.to_undo():
            if step.path not in self.undos:
                raise Diverged(f"step {step.name!r} ({step.path}) is to be undone, and the code has no undo for it")
            undo = self.undos[step.path]
            args, kwargs = self._arguments_of(step, undo)
            happened = (step.state == "recorded" and step.error is None) or is_answered(step)
            result = self._read(step, shape_of(undo.of)) if happened else None
            point("undo.before")
            yield Do((step.path, step.name), undo.fn, (result, *args), kwargs, what="undo")
            point("undo.after")
            lease, job = self.attempt.lease, self.attempt.job
            undone = replace(step, state="undone", attempt=job.attempt, fence=lease.fence, undone_at=self._wall())
            yield from self._write((undone,))

    def _arguments_of(self, step: Step, undo: DeclaredUndo) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the step: its undo is called with them, after the result."""
        if step.arguments is None:
            log.warning(
                "workflow %s: step %r (%s) was recorded by an older version without its arguments; its undo is called "
                "with what the code passes today",
                *(self.attempt.job.id, step.name, step.path),
            )
            return undo.args, undo.kwargs
        try:
            return signature_of(undo.of, self.app.codec).decode(step.arguments)
        except PayloadError as error:
            why = f"the arguments of number {step.path} cannot be read: {error}"
            raise self.stop(Diverged(why)) from error

    # ---------------------------------------------------------------------------------------- inside

    def _check_may_run(self, call: FlowCall) -> None:
        """Refuse a call without a record while the code is only run to learn which undos there are, and in a branch
        that was dropped."""
        self._check_not_dropped(call)
        if self.rewinds:
            raise Rewinding("the first call without a record")
        self.check_goes_on()

    def made_outside_gather(self, dropped: Dropped) -> Diverged:
        """Return what is wrong with a call that was dropped, and is not made in the branch that it was made in."""
        gather = f"the gather at number {dropped.gather}, which has failed"
        return does_not_fit(f"a call that belonged to {gather}, is made outside of it")

    def _match(self, path: str, kind: StepKind, name: str) -> Step | None:
        try:
            return self.replay.match(path, kind, name)
        except Diverged as error:
            raise self.stop(error) from None

    def _check_not_dropped(self, call: FlowCall) -> None:
        if call.path in self.dropped:
            raise Dropped(self.dropped[call.path])

    def _park(self, call: FlowCall, until: Parking) -> Operation[None]:
        """Wait. In a scope that makes one call after the other nothing behind it can be on record."""
        if call.was_passed and self.in_order:
            raise self.stop(self.replay.too_early(call.path, call.kind, call.name, call.scope.peek()))
        caught, call.caught = call.caught, []
        yield from self.write_caught(caught)
        yield Wait(until, call.path)

    def ended_by(self, error: BaseException | None) -> BaseException | None:
        """Return what the attempt ends with when its code has returned, or raised `error`. Once it waits or must stop,
        its code cannot make anything else of that."""
        if self.stopped is not None:
            return self.stopped
        parked = self.main.parked
        if isinstance(parked, Dropped):
            return self.stop(self.made_outside_gather(parked))
        if parked is None or self.attempt.handler.interrupt is not None:
            return error if parked is None else self.attempt.handler.interrupt
        self.report_caught()
        return parked.with_traceback(None)

    def park(self, until: Parking) -> None:
        """Park the main scope: nothing of the workflow goes on."""
        self.main.parked = until
        self.state.park(until, self.app.clock.lease())

    def lingers(self) -> bool:
        """Say whether the code has caught the signal to park, has gone on for a while, and was not warned yet."""
        if self.caught_at is None or self._reported_caught:
            return False
        return self.app.clock.lease() - self.state.parked_at >= LINGER_S

    def report_caught(self) -> None:
        """Tell where the code caught the signal to park, if it did: in the log now, in the journal when it parks."""
        if self.caught_at is None or self.main.parked is None or self._reported_caught:
            return
        self._reported_caught = True
        if report_once(self.caught_at, self.attempt.job, self.store):
            self.main.parked.caught_at = self.caught_at

    def _stop_when_undos_are_known(self) -> None:
        """Stop the code once the last step to undo is known: a rollback does not need the rest."""
        if self.rewinds and not self.replay.has_undos_ahead:
            raise Rewinding("nothing is left to be undone")

    def _returned(self, value: Any, step: Step, shape: JsonType | None) -> Any:
        """Return what a step returned as every replay will, or stop as it would: if the value does not fit the
        annotation of its function, that comes out now, and the step is not done again."""
        if type(value) in _PLAIN and (shape is None or shape.is_kept(value)):
            return value
        return self._read(step, shape)

    def _tries(self, call: FlowCall, base: Step, run_it: Do, retry: Retry | None) -> Operation[tuple[Step, Any, str]]:
        """Run a step until it succeeds or has used up its tries; return the step, its value, and that as text. A try
        that failed is on record before the pause, so the worker that runs the next one continues the count."""
        while True:
            if base.retry_at is not None:
                tries_max = base.tries + 1 if retry is None else retry.attempts_max
                what = Awaited("step", call.name, base.tries, tries_max)
                yield from self._until(call, Parking(base.retry_at, (what,)))
                self._check_may_run(call)
                base = replace(base, retry_at=None, error=None, error_kind=None, started_at=self._wall())
            if base.has_undo or not base.repeatable:
                yield from self._begin(call, base)
            base = replace(base, tries=base.tries + 1)
            try:
                point("step.before", call.name)
                value = yield run_it
                point("step.after", call.name)
                retry = None  # it has happened, and is not repeated because its result cannot be recorded
                return base, value, self._encode(call, value)
            except Exception as error:
                if retry is None or base.tries >= retry.attempts_max or not _may_repeat(retry, error):
                    if base.tries > 1 and base.repeatable:  # if the workflow is run again, it counts from one
                        yield from self._begin(call, replace(base, tries=0))
                    raise (yield from self._failed(call, base, error, at_once=not base.repeatable))  # noqa: B904
                retry_at = self._wall() + _pause_s(retry, base.tries, error)
                base = replace(base, retry_at=retry_at, **_why(error))
            yield from self._begin(call, base)

    def _until(self, call: FlowCall, until: Parking) -> Operation[None]:
        """Wait for an instant: a short pause stays in its slot, a long one parks the workflow."""
        left = (until.wake_at or 0.0) - self._wall()
        if left > SHORT_S:
            yield from self._park(call, until)
        if left > 0:
            yield Pause(left)

    def _too_late(self, call: FlowCall, default: Any) -> Any:
        if default is not NOTHING:
            return default
        raise TimeoutError(f"{call.kind} {call.name!r}: nothing came in time")

    def _child_value(self, call: FlowCall) -> Any:
        task = self.app.tasks.get(call.name)
        step = call.known
        if task is not None and step is not None and step.error_kind is None and step.result is not None:
            return task.decode_result(step.result)
        return self._replayed(call, None)

    def _take(self, name: str, read: Sequence[Signal]) -> Signal | None:
        """Return the oldest signal of that name that no other branch has taken, among those that were read."""
        with self._lock:
            if not self._signals.get(name):
                self._signals[name] = deque(each for each in read if each.id not in self._signals_taken)
            if not self._signals[name]:
                return None
            found = self._signals[name].popleft()
            self._signals_taken.add(found.id)
            self._taking += 1
            return found

    # --------------------------------------------------------------------------------------- writing

    def _base(self, call: FlowCall, *, has_undo: bool = False, repeatable: bool = True) -> Step:
        job = self.attempt.job
        if call.known is not None:
            begun: dict[str, Any] = {"attempt": job.attempt, "fence": self.attempt.lease.fence}
            if call.kind == "step":  # what it takes is what this run of it takes; a wait began with its first call
                begun["started_at"] = self._wall()
            return replace(call.known, has_undo=has_undo, repeatable=repeatable, **begun)
        with self._lock:
            position = self.replay.next_position()
        return Step(
            position=position, path=call.path, kind=call.kind, name=call.name, state="started", attempt=job.attempt,
            fence=self.attempt.lease.fence, has_undo=has_undo, repeatable=repeatable, started_at=self._wall(),
        )  # fmt: skip

    def _answered(self, call: FlowCall, said: Step, shape: JsonType | None) -> Operation[Any]:
        """Record what a person says that the step returned. If it cannot be read it was not an answer: the step is
        open."""
        try:
            value = self._decode(said.result, shape, call.where)
        except PayloadError as error:
            yield from self._begin(call, replace(said, result=None, ended_at=None))  # held, because it is open
            why = f"{shown(said.result)} was given for the step {call.name!r}: {error}"
            raise self.stop(Diverged(why)) from error
        yield from self._save(call, replace(said, state="recorded"), undoable=said.has_undo)
        return value

    def _begin(self, call: FlowCall, base: Step) -> Operation[None]:
        """Write down that a step, or another try of it, begins, or that a try has failed."""
        self.attempt.learn(undoable=base.has_undo or None)  # before: it may have arrived
        yield from self._save(call, base, undoable=base.has_undo)

    def _record(
        self, call: FlowCall, *, base: Step | None = None, result: str | None = None, taken: tuple[str, ...] = ()
    ) -> Operation[None]:
        """Write down how a step ended."""
        step = self._ended(base if base is not None else self._base(call), result)
        yield from self._save(call, step, taken=taken)

    def _save(self, call: FlowCall, step: Step, **more: Any) -> Operation[None]:
        """Write a step of a call, with what failed before the call and was caught."""
        caught, call.caught = call.caught, []
        yield from self._write((step, *caught) if more.get("taken") else (*caught, step), **more)

    def _ended(self, step: Step, result: str | None, error: BaseException | None = None) -> Step:
        why = {} if error is None else _why(error)
        return replace(step, state="recorded", result=result, ended_at=self._wall(), **why)

    def _failed(self, call: FlowCall, base: Step, error: Exception, *, at_once: bool) -> Operation[Exception]:
        """Keep the error of a call until the code has continued after it; record it at once if the call must not be
        repeated. Return what the code gets: the exception that every replay raises."""
        said, whole = written(error)
        try:
            text = self._encode(call, said)
        except PayloadError:
            said, whole = shortened(said), False
            text = self._encode(call, said)
        again = as_recorded(error, call.name, said, whole)
        failed = self._ended(base, text, error)
        self.state.failed[call.path] = failed
        if not at_once:
            call.scope.failed += [*call.caught, failed]
            return again
        self._recorded.append(again)
        yield from self._record(call, base=failed, result=text)
        return again

    def write_caught(self, caught: list[Step]) -> Operation[None]:
        """Write down what failed and was caught, now that the code has gone on by it."""
        if caught:
            yield from self._write(tuple(caught))

    def hand_over(self, record: Record, put: Callable[[Record], None]) -> None:
        """Let the record say which step is open now, and put it where it is written from: both at once, since branches
        begin and end steps side by side, and the row must hear last what was so last."""
        with self._lock:
            changed = [step for step in record.steps if self._opens_or_closes(step)]
            if changed:
                first = min(self._open.values(), key=lambda step: step.position, default=None)
                record = replace(record, open_step=first.name if first is not None else "")
                self.attempt.learn(open_step=record.open_step)  # before: it may have arrived
            put(record)

    def _opens_or_closes(self, step: Step) -> bool:
        if step.repeatable:
            return False
        if step.state == "started" and not is_paused(step):
            self._open[step.path] = step
            return True
        return self._open.pop(step.path, None) is not None

    def _new_record(self, steps: tuple[Step, ...], **more: Any) -> Record:
        return Record(lease=self.attempt.lease, worker=self.attempt.job.worker, steps=steps, **more)

    def _write(self, steps: tuple[Step, ...], **more: Any) -> Operation[Reply]:
        answer: Reply = yield Write(self._new_record(steps, **more))
        if answer is Reply.REFUSED:
            raise self.stop(LeaseLost("the store refused a record: another attempt has taken over"))
        if answer not in (Reply.TAKEN, Reply.GONE):
            self._remember(steps)
        return answer

    def _remember(self, steps: tuple[Step, ...]) -> None:
        self.attempt.activity.moved_at = self.app.clock.lease()  # what is recorded is progress
        with self._lock:
            for step in steps:
                self.replay.put(step)

    # --------------------------------------------------------------------------------------- reading

    def _replayed(self, call: FlowCall, shape: JsonType | None) -> Any:
        """Return, or raise, what is recorded."""
        step = call.known
        if step is None:  # pragma: no cover
            raise AssertionError("nothing is recorded")
        if step.error_kind is not None:
            error = self._raised(step)
            self._recorded.append(error)
            raise error
        return self._read(step, shape)

    def _raised(self, step: Step) -> Exception:
        """Return the exception on record; if its data cannot be read, one of its class with the error's text."""
        said = {"kinds": [step.error_kind], "text": step.error or ""}
        with suppress(PayloadError):
            said = self._decode(step.result) or said
        return raised(step.name, said)

    def _encode(self, call: FlowCall, value: Any) -> str:
        return encode_value(value, call.where, codec=self.app.codec)

    def _read(self, step: Step, shape: JsonType | None) -> Any:
        """Return the result that is on record. One that the code cannot read is a divergence, and no failure."""
        try:
            return self._decode(step.result, shape, f"{step.kind} {step.name!r}: the result")
        except PayloadError as error:
            why = f"{shown(step.result)} is recorded as number {step.path}: {error}"
            raise self.stop(Diverged(why)) from error

    def _decode(self, text: str | None, shape: JsonType | None = None, where: str = "a recorded value") -> Any:
        return None if text is None else decode_value(text, shape, where, codec=self.app.codec)

    def _wall(self) -> float:
        return self.store.now().wall


def _may_repeat(retry: Retry, error: Exception) -> bool:
    return isinstance(error, RetryLater) or (not isinstance(error, GiveUp) and retry.covers(error))


def _pause_s(retry: Retry, tries: int, error: Exception) -> float:
    """Return the pause before the next try: what the step asks for, what `backoff` chooses, or what doubles."""
    if isinstance(error, RetryLater):
        return error.delay_s
    try:
        chosen = retry.chosen_delay_s(tries)
    except Exception as trouble:
        log.error("the backoff of a step failed, and the default one is used: %s", describe(trouble))
        chosen = None
    return retry.delay_s(tries, chance()) if chosen is None else chosen


def _why(error: BaseException) -> dict[str, str]:
    """Return what the record of a step says of its error."""
    return {"error": describe(error)[:ERROR_MAX], "error_kind": name_of_class(type(error))}
