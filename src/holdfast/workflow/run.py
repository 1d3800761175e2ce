"""One attempt of a workflow: replay, record, undo. What the code asks for is held against what is recorded.

Nothing here waits, runs threads or knows an event loop: an operation yields what it wants done (`effects.py`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.core.json_types import JsonType
from holdfast.core.machine import LIVE
from holdfast.core.payload import encode_value
from holdfast.core.policy import Retry
from holdfast.core.records import Filter, Inbox, NewJob, Record, Signal, Step, StepKind
from holdfast.core.records import Job as Row
from holdfast.core.replay import OLD_CODE, Scope, is_answered
from holdfast.core.row_text import Awaited
from holdfast.errors import (
    Diverged,
    Dropped,
    KeyTaken,
    NotFound,
    Parking,
    PayloadError,
    Rewinding,
    StoreError,
    UsageError,
    is_outage,
)
from holdfast.failpoints import point
from holdfast.ids import chance
from holdfast.stores.protocol import Answer, Store
from holdfast.tracebacks import describe
from holdfast.workflow.caught import LINGER_S, Place, tell_once
from holdfast.workflow.effects import Do, Operation, Pause, Wait
from holdfast.workflow.ledger import ERROR_MAX, STUCK, FlowCall, Ledger, is_recorded
from holdfast.workflow.raised import kind_of
from holdfast.workflow.values import NOTHING, nothing_to_do, shape_of, signature_of

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.worker.attempt import Attempt

SHORT_S = 1.0  # a pause that is shorter stays in its slot: to park and to replay costs more
LOOK_AGAIN_S = 30.0  # how long a fork waits before it looks again at a child that its original started
TRANSACTION_MAX_S = 5.0
SIGNALS_READ = 500  # signals of one name that are read at once
_PLAIN = (str, int, float, bool, type(None))

log = logging.getLogger("holdfast.worker")
here: ContextVar[Scope | Do | None] = ContextVar("holdfast_scope", default=None)


@contextmanager
def inside(wish: Do) -> Iterator[None]:
    """Say that the user's function of a step, a transaction or an undo runs during the block."""
    token = here.set(wish)
    try:
        yield
    finally:
        with suppress(ValueError):  # a dead event loop left the block, and it is cleared away somewhere else
            here.reset(token)


@dataclass(frozen=True, slots=True)
class _Undo:
    """What today's code says of one step that has an undo."""

    fn: Callable[..., Any]
    of: Callable[..., Any]  # the step's own function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: JsonType | None


class Run(Ledger):
    """See the module's docstring."""

    def __init__(self, attempt: Attempt, store: Store, app: App, *, in_order: bool = True) -> None:
        super().__init__(attempt, store, app)
        self.main = Scope()
        self.in_order = in_order  # on each line a call begins when the one before it has ended
        self.caught_at: Place | None = None  # where the code first caught the signal that parks it
        self._told_caught = False
        self._undos: dict[str, _Undo] = {}  # by path
        self._signals: dict[str, deque[Signal]] = {}  # by name: those that were read and not taken
        self._signals_taken: set[str] = set()
        self._taking = 0  # how many of them are not recorded yet
        self.children: dict[str, str] = {}  # id -> task, of those that were started

    # ----------------------------------------------------------------------------------------- calls

    def line(self) -> Scope | None:
        """Return the line of this workflow that the calling code is on; None: it is on none. Raises `UsageError` in the
        function of a step, and in another workflow: what they called would be recorded out of its order."""
        scope = here.get()
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
            self._stop_if_all_is_seen()
            path = scope.next()
            known = self._meet(path, kind, name)
            passed = self.replay.at(scope.coming()) is not None
            return FlowCall(path, kind, name, scope, known, scope.take_failed(), passed)

    def patched(self, marker: str, scope: Scope) -> Operation[bool]:
        """See `Flow.patched`."""
        with self._lock:
            there = self.replay.at(scope.coming())
            if there is not None and (there.kind, there.name) != ("patch", marker):
                return nothing_to_do(False)
            call = self.call("patch", marker, scope)
        return self.value(call, lambda: True)

    def value(self, call: FlowCall, make: Callable[[], Any]) -> Operation[Any]:
        """Make a value once, and return the same one ever after."""
        if is_recorded(call.known):
            return self._replayed(call, None)
        self._forward(call)
        made = make()
        yield from self._record(call, result=self._encode(call, made))
        return made

    def learn_undo(
        self,
        call: FlowCall,
        undo: Callable[..., Any],
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Note what undoes a step, when it is called: a rollback ends the code once it has made all calls to undo."""
        self._undos[call.path] = _Undo(undo, fn, args, kwargs, shape_of(fn))

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
            self._stop_if_all_is_seen()
        if is_recorded(call.known):
            return self._replayed(call, shape)
        self._forward(call)
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
        if is_recorded(call.known):
            return self._replayed(call, shape)
        self._forward(call)
        base, caught = self._base(call), call.caught
        max_s = min(self.attempt.job.beat_s / 2, TRANSACTION_MAX_S)

        def commit() -> tuple[Any, str, Answer, Record]:
            with self.store.transaction(self.attempt.lease, max_s) as open_one:
                try:
                    value = fn(open_one.connection, *args, **kwargs)
                except Exception as error:
                    if open_one.outage is not None:
                        raise open_one.outage from error
                    raise
                text = self._encode(call, value)
                step = replace(base, state="recorded", result=text, ended_at=self._wall())
                record = self._written([*caught, step])
                return value, text, open_one.record(record), record

        try:
            value, text, answer, record = yield Do((call.path, call.name), commit, what="transaction")
        except StoreError as error:
            self.attempt.outage = error if is_outage(error) else None
            self.attempt.opened_by = "flow.transaction"
            raise
        except Exception as error:
            raise (yield from self._failed(call, base, error, at_once=False))  # noqa: B904  it keeps its own cause
        if answer is not Answer.ACCEPTED:  # it was rolled back; let that be journalled
            yield from self._write(record)
        self._note(record.steps)
        return self._returned(value, replace(base, result=text), shape)

    # ----------------------------------------------------------------------------------------- waits

    def sleep(self, call: FlowCall, due: Callable[[float], float]) -> Operation[None]:
        """Wait until an instant that is recorded before anything else."""
        self._check_not_dropped(call)
        if call.known is None:
            self._forward(call)
            wake_at = due(self._wall())
            text = self._encode(call, wake_at)
            if self.in_order:
                yield from self._record(call, result=text)
            else:
                yield from self._begin(call, replace(self._base(call), result=text))
        else:
            wake_at = float(self._decode(call.known.result))
        is_over = self.in_order and call.was_passed  # a clock that was set back does not begin it anew
        if is_over or self.rewinds or self.ended_at(call) is not None:
            return
        left = wake_at - self._wall()
        if left > SHORT_S:
            yield from self._park(call, Parking(wake_at))
        if left > 0:
            yield Pause(left)
        yield from self._end_sleep(call, wake_at)

    def _end_sleep(self, call: FlowCall, wake_at: float) -> Operation[None]:
        """Record the end of a sleep, if what is called beside it may end before or after it: at once, or with the next
        call if there is nothing beside it."""
        step = self.replay.at(call.path)
        if step is None or step.state != "started":
            return
        ended = replace(step, state="recorded", ended_at=max(self._wall(), wake_at))
        if call.is_beside:
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
        if is_recorded(call.known):
            if call.known is not None and call.known.error_kind == "TimeoutError":
                return self._too_late(call, default)
            return self._replayed(call, None)
        self._forward(call)
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

    def result(self, call: FlowCall, job_id: str) -> Operation[Any]:
        """Return what a child returned; wait for its end."""
        if is_recorded(call.known):
            return self._child_value(call)
        self._forward(call)
        count: int = (yield self.read(lambda: self.store.inbox(self.attempt.job.id, limit=0))).count  # before the look
        row = yield self.read(lambda: self.store.get(job_id))
        from holdfast.jobs import Job, ended_error

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
        return Job[Any](self.app, job_id, row=row).result(0)

    # ---------------------------------------------------------------------------------------- others

    def start(self, call: FlowCall, new: NewJob) -> Operation[str]:
        """Store a child with the record that it was started."""
        if is_recorded(call.known):
            return str(self._replayed(call, None))
        self._forward(call)
        child = replace(new, parent=self.attempt.job.id)
        step = replace(self._base(call), state="recorded", result=self._encode(call, new.id), ended_at=self._wall())
        answer = yield from self._write(self._written([*call.caught, step], jobs=(child,)))
        if answer is not Answer.TAKEN:
            return new.id
        own = yield from self._own_child(new)
        if own is None:
            error = yield from self._taken(new)
            raise (yield from self._failed(call, self._base(call), error, at_once=False))
        yield from self._write(self._written([*call.caught, replace(step, result=self._encode(call, own))]))
        return own

    def _own_child(self, new: NewJob) -> Operation[str | None]:
        """Return the living child that an earlier run of this workflow started with the same key."""
        where = Filter(key=new.key, task=new.task, states=tuple(LIVE), limit=1)
        found: list[Row] = [] if new.key is None else (yield self.read(lambda: self.store.find(where)))
        return next((job.id for job in found if job.parent == self.attempt.job.id), None)

    def _taken(self, new: NewJob) -> Operation[KeyTaken]:
        """Return why a child was not started. Its end would wake another workflow, or nobody."""
        if (yield self.read(lambda: self.store.get(new.id))) is not None:
            why = f"job {new.id!r} exists, and is not a {new.task!r} that this workflow started"
        else:
            why = f"the key {new.key!r} belongs to another live job"
        return KeyTaken(f"{why}; the child was not started")

    def signal(self, call: FlowCall, signal: Signal) -> Operation[None]:
        """Send a signal with the record that it was sent."""
        if is_recorded(call.known):
            self._replayed(call, None)
            return
        self._forward(call)
        step = replace(self._base(call), state="recorded", result="null", ended_at=self._wall())
        answer = yield from self._write(self._written([*call.caught, step], sent=(signal,)))
        if answer is Answer.GONE:
            error = NotFound(f"there is no workflow {signal.job_id!r} that goes on")
            raise (yield from self._failed(call, self._base(call), error, at_once=False))

    def gather(self, scope: Scope) -> str:
        """Take the number of a gather, and return it."""
        with self._lock:
            path = scope.next()
            self._meet(path, "gather", "gather")
            return path

    def fail_gather(self, path: str, scope: Scope, waits_at: list[str], error: BaseException) -> BaseException:
        """Return what a gather raises. If branches of it waited, that is recorded as soon as the code goes on by it:
        they do nothing more, in no replay."""
        if waits_at and isinstance(error, Exception) and self.replay.at(path) is None:
            base = self._base(FlowCall(path, "gather", "gather", scope, None))
            result = encode_value(waits_at, "the branches", codec=self.app.codec)
            why = {"error": describe(error)[:ERROR_MAX], "error_kind": kind_of(error)}
            scope.failed.append(replace(base, state="recorded", result=result, ended_at=self._wall(), **why))
        return error

    def end_gather(self, path: str) -> None:
        """Raise if a gather that has not failed is recorded as failed."""
        try:
            self.replay.check_failed(path)
        except Diverged as error:
            raise self.stop(error) from None

    def undo_all(self) -> Operation[None]:
        """Undo what happened, or may have, in the reverse order; each undo is recorded."""
        self.replay.check_undos_met()
        for step in self.replay.to_undo():
            if step.path not in self._undos:
                raise Diverged(f"step {step.name!r} ({step.path}) is to be undone, and the code has no undo for it")
            undo = self._undos[step.path]
            args, kwargs = self._arguments_of(step, undo)
            happened = (step.state == "recorded" and step.error is None) or is_answered(step)
            result = self._read(step, undo.shape) if happened else None
            point("undo.before")
            yield Do((step.path, step.name), undo.fn, (result, *args), kwargs, what="undo")
            point("undo.after")
            lease, job = self.attempt.lease, self.attempt.job
            undone = replace(step, state="undone", attempt=job.attempt, fence=lease.fence, undone_at=self._wall())
            yield from self._write(self._written([undone]))
            self._note((undone,))

    def _arguments_of(self, step: Step, undo: _Undo) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what the undo of a step is called with, beside the result: what the step was called with."""
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
            why = f"the arguments of number {step.path} cannot be read: {error}; {STUCK}"
            raise self.stop(Diverged(why)) from error

    # ---------------------------------------------------------------------------------------- inside

    def _forward(self, call: FlowCall) -> None:
        """What is not recorded is not done while the code is only run to learn which undos there are, nor on a line
        that was dropped."""
        self._check_not_dropped(call)
        if self.rewinds:
            raise Rewinding("the first call without a record")
        self.check_goes_on()

    def no_gather(self, dropped: Dropped) -> Diverged:
        """Return what is wrong with a call that was dropped, and is not made in the branch that it was made in."""
        return Diverged(
            f"the code does not fit the record: a call that belonged to the gather at number {dropped.gather}, which "
            f"has failed, is made outside of it; {OLD_CODE}"
        )

    def _meet(self, path: str, kind: StepKind, name: str) -> Step | None:
        try:
            return self.replay.meet(path, kind, name)
        except Diverged as error:
            raise self.stop(error) from None

    def _check_not_dropped(self, call: FlowCall) -> None:
        if call.path in self.dropped:
            raise Dropped(self.dropped[call.path])

    def _park(self, call: FlowCall, until: Parking) -> Operation[None]:
        """Wait. In a line that makes one call after the other nothing behind it can be on record."""
        if call.was_passed and self.in_order:
            raise self.stop(Diverged(self.replay.too_early(call.path, call.kind, call.name, call.scope.coming())))
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
            return self.stop(self.no_gather(parked))
        if parked is None or self.attempt.interrupt is not None:
            return error if parked is None else self.attempt.interrupt
        self.tell_caught()
        return parked.with_traceback(None)

    def park(self, until: Parking) -> None:
        """Park the main line: nothing of the workflow goes on."""
        self.main.parked = until
        self.attempt.park(until, self.app.clock.lease())

    def lingers(self) -> bool:
        """Say whether the code has caught the signal to park, has gone on for a while, and was not told yet."""
        if self.caught_at is None or self._told_caught:
            return False
        return self.app.clock.lease() - self.attempt.parked_at >= LINGER_S

    def tell_caught(self) -> None:
        """Tell where the code caught the signal to park, if it did: in the log now, in the journal when it parks."""
        if self.caught_at is None or self.main.parked is None or self._told_caught:
            return
        self._told_caught = True
        if tell_once(self.caught_at, self.attempt.job, self.store):
            self.main.parked.caught_at = self.caught_at

    def _stop_if_all_is_seen(self) -> None:
        """What comes behind the last step that is to be undone is of no interest to a rollback."""
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
        that failed is on record before the pause, so whoever runs the next one goes on counting."""
        while True:
            if base.retry_at is not None:
                tries_max = base.tries + 1 if retry is None else retry.attempts_max
                yield from self._next_try(call, base.retry_at, Awaited("step", call.name, base.tries, tries_max))
                base = replace(base, retry_at=None, error=None, error_kind=None, started_at=self._wall())
            if base.has_undo or not base.repeatable:
                yield from self._begin(call, base)
            base = replace(base, tries=base.tries + 1)
            try:
                point("step.before")
                value = yield run_it
                point("step.after")
                retry = None  # it has happened, and is not repeated because its result cannot be recorded
                return base, value, self._encode(call, value)
            except Exception as error:
                if retry is None or base.tries >= retry.attempts_max:
                    if base.tries > 1 and base.repeatable:  # if the workflow is run again, it counts from one
                        yield from self._begin(call, replace(base, tries=0))
                    raise (yield from self._failed(call, base, error, at_once=not base.repeatable))  # noqa: B904
                why = {"error": describe(error)[:ERROR_MAX], "error_kind": kind_of(error)}
                base = replace(base, retry_at=self._wall() + retry.delay_s(base.tries, chance()), **why)
            yield from self._begin(call, base)

    def _next_try(self, call: FlowCall, instant: float, what: Awaited) -> Operation[None]:
        """Wait until a step is tried again: a short pause stays in its slot, a long one parks the workflow."""
        left = instant - self._wall()
        if left > SHORT_S:
            yield from self._park(call, Parking(instant, (what,)))
        if left > 0:
            yield Pause(left)
        self._forward(call)

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
