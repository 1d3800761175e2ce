"""What one attempt of a workflow has on record: read at its begin, written under its fence.

As in `run.py`, nothing here waits: what is to be written is yielded (`effects.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from holdfast.core.json_types import JsonType
from holdfast.core.payload import decode_value, encode_value
from holdfast.core.records import Record, Step, StepKind
from holdfast.core.replay import OLD_CODE, Replay, Scope, is_paused
from holdfast.errors import Diverged, Interrupted, LeaseLost, PayloadError, StoreError, is_passing
from holdfast.stores.protocol import Answer, Store
from holdfast.tracebacks import describe
from holdfast.workflow.effects import Operation, Read, Write
from holdfast.workflow.raised import as_recorded, kind_of, raised, shortened, written
from holdfast.workflow.values import shown

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.worker.attempt import Attempt

PAGE = 1_000
ASK_AGAIN_S = 1.0  # the longest pause between two tries to read
T = TypeVar("T")
ERROR_MAX = 2_000
MEND = "mend the annotation of its function and go on (`holdfast held approve ID`)"
STUCK = (
    "mend the code and go on (`holdfast held approve ID`), or undo by hand the last step that is not undone, and say "
    "so (`holdfast held done ID`)"
)


@dataclass(slots=True)
class FlowCall:
    """One call of the code: where it is, what is recorded of it, and what failed before it and was caught."""

    path: str
    kind: StepKind
    name: str
    scope: Scope
    known: Step | None
    caught: list[Step] = field(default_factory=list)
    was_passed: bool = False  # something behind it is recorded
    is_beside: bool = False  # it is awaited in a task of its own, beside others


class Ledger:
    """See the module's docstring."""

    def __init__(self, attempt: Attempt, store: Store, app: App) -> None:
        self.attempt = attempt
        self.store = store
        self.app = app
        self.replay = Replay()
        self.rewinds = attempt.job.rolling_back  # the code is only run to learn which undos there are
        self.stopped: Interrupted | None = None  # why no call is carried out any more, whatever the code catches
        self._lock = threading.RLock()
        self._open: dict[str, Step] = {}  # by path: steps that must not be repeated, and are in progress
        self.dropped: dict[str, str] = {}  # paths of calls that are never ended -> path of the gather that dropped them
        self._recorded: list[BaseException] = []  # what was raised and is on record: it would come again

    def load(self) -> None:
        """Read what is recorded, in pages."""
        steps: list[Step] = []
        while page := self.ask(self._page_after(steps[-1].position if steps else 0)):
            steps += page
            if len(page) < PAGE:
                break
        self.replay = Replay(steps)
        gathers = (step for step in steps if step.kind == "gather")
        self.dropped = {path: step.path for step in gathers for path in self._decode(step.result)}

    def _page_after(self, position: int) -> Callable[[], list[Step]]:
        return lambda: self.store.steps(self.attempt.job.id, position, PAGE)

    def ask(self, question: Callable[[], T]) -> T:
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
        """Return the wish to ask the store this."""
        return Read(lambda: self.ask(question))

    def is_recorded(self, error: BaseException) -> bool:
        """Say whether this very exception is on record: then it would leave the workflow in every replay."""
        return any(error is known for known in self._recorded)

    def stop(self, why: Interrupted) -> Interrupted:
        """Carry out no call from now on, on no line; return the first reason for that, to be raised."""
        self.stopped = self.stopped or why
        return self.stopped

    def end(self) -> None:
        """Refuse from now on whatever the code has left behind: threads or tasks of its own."""
        self.stop(LeaseLost("the attempt of this workflow has ended"))

    def check_goes_on(self) -> None:
        """Raise if the attempt has ended or must stop: nothing of it may begin any more."""
        if self.stopped is not None:
            raise self.stopped
        if self.attempt.interrupt is not None:
            raise self.attempt.interrupt

    # --------------------------------------------------------------------------------------- writing

    def _base(self, call: FlowCall, *, has_undo: bool = False, repeatable: bool = True) -> Step:
        job = self.attempt.job
        if call.known is not None:
            begun: dict[str, Any] = {"attempt": job.attempt, "fence": self.attempt.lease.fence}
            if call.kind == "step":  # what it takes is what this run of it takes; a wait began when it was first met
                begun["started_at"] = self._wall()
            return replace(call.known, has_undo=has_undo, repeatable=repeatable, **begun)
        with self._lock:
            position = self.replay.next_position()
        return Step(
            position=position, path=call.path, kind=call.kind, name=call.name, state="started", attempt=job.attempt,
            fence=self.attempt.lease.fence, has_undo=has_undo, repeatable=repeatable, started_at=self._wall(),
        )  # fmt: skip

    def _answered(self, call: FlowCall, said: Step, shape: JsonType | None) -> Operation[Any]:
        """Record what a person says that the step returned. If it cannot be read it was no answer: the step is open."""
        try:
            value = self._decode(said.result, shape, where_of(call))
        except PayloadError as error:
            yield from self._begin(call, replace(said, result=None, ended_at=None))  # held, because it is open
            why = f"{shown(said.result)} was given for the step {call.name!r}: {error}"
            raise self.stop(Diverged(why)) from error
        record = self._written([*call.caught, replace(said, state="recorded")], undoable=said.has_undo)
        call.caught = []
        yield from self._write(record)
        self._note(record.steps)
        return value

    def _begin(self, call: FlowCall, base: Step) -> Operation[None]:
        """Write down that a step, or another try of it, begins, or that a try has failed."""
        self.attempt.learn(undoable=base.has_undo or None)  # before: it may have arrived
        started = self._written([*call.caught, base], undoable=base.has_undo)
        call.caught = []
        yield from self._write(started)
        self._note(started.steps)

    def _record(
        self, call: FlowCall, *, base: Step | None = None, result: str | None = None, taken: tuple[str, ...] = ()
    ) -> Operation[None]:
        """Write down how a step ended."""
        step = base if base is not None else self._base(call)
        step = replace(step, state="recorded", result=result, ended_at=self._wall())
        steps = [step, *call.caught] if taken else [*call.caught, step]
        record = self._written(steps, taken=taken)
        call.caught = []
        yield from self._write(record)
        self._note(record.steps)

    def _failed(self, call: FlowCall, base: Step, error: Exception, *, at_once: bool) -> Operation[Exception]:
        """Keep what went wrong until the code has gone on by it; write it at once if it must not come again. Return
        what the code gets: what every replay raises."""
        said, whole = written(error)
        try:
            text = self._encode(call, said)
        except PayloadError:
            said, whole = shortened(said), False
            text = self._encode(call, said)
        again = as_recorded(error, call.name, said, whole)
        failed = replace(
            base,
            state="recorded",
            result=text,
            error=describe(error)[:ERROR_MAX],
            error_kind=kind_of(error),
            ended_at=self._wall(),
        )
        self.attempt.failed[call.path] = failed
        if not at_once:
            call.scope.failed += [*call.caught, failed]
            return again
        self._recorded.append(again)
        yield from self._record(call, base=failed, result=text)
        return again

    def write_caught(self, caught: list[Step]) -> Operation[None]:
        """Write down what failed and was caught, now that the code has gone on by it."""
        if caught:
            yield from self._write(self._written(caught))
            self._note(tuple(caught))

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

    def _written(self, steps: list[Step], **more: Any) -> Record:
        return Record(lease=self.attempt.lease, worker=self.attempt.job.worker, steps=tuple(steps), **more)

    def _write(self, record: Record) -> Operation[Answer]:
        answer: Answer = yield Write(record)
        if answer is Answer.REFUSED:
            raise self.stop(LeaseLost("the store refused a record: another attempt has taken over"))
        return answer

    def _note(self, steps: tuple[Step, ...]) -> None:
        self.attempt.moved_at = self.app.clock.lease()  # what is recorded is progress
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
        """Return the exception that is on record. Older versions recorded only its class and its message."""
        text = step.error or ""
        said = {"kinds": [step.error_kind], "text": text.partition(": ")[2] or text}
        with suppress(PayloadError):
            said = self._decode(step.result) or said
        return raised(step.name, said)

    def _encode(self, call: FlowCall, value: Any) -> str:
        return encode_value(value, where_of(call), codec=self.app.codec)

    def _read(self, step: Step, shape: JsonType | None) -> Any:
        """Return the result that is on record. One that the code cannot read is a divergence, and no failure."""
        try:
            return self._decode(step.result, shape, f"{step.kind} {step.name!r}: the result")
        except PayloadError as error:
            ways = STUCK if self.rewinds else f"{MEND}, or {OLD_CODE}"
            why = f"{shown(step.result)} is recorded as number {step.path}: {error}; {ways}"
            raise self.stop(Diverged(why)) from error

    def _decode(self, text: str | None, shape: JsonType | None = None, where: str = "a recorded value") -> Any:
        return None if text is None else decode_value(text, shape, where, codec=self.app.codec)

    def _wall(self) -> float:
        return self.store.now().wall


def is_recorded(step: Step | None) -> bool:
    return step is not None and step.state != "started"


def where_of(call: FlowCall) -> str:
    return f"{call.kind} {call.name!r}: the result"
