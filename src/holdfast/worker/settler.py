"""The thread that ends attempts: it judges outcomes and settles them in batches.

While one batch is being written the next one gathers, so a busy worker pays one commit for many jobs and an idle one
answers at once. An outcome is kept until the store has acknowledged it, through any outage; its lease renews meanwhile.
One whose row another transaction has locked is tried again by itself, and holds up nobody else's.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from holdfast.clock import Clock
from holdfast.core.autopsy import beat_data
from holdfast.core.durations import iso
from holdfast.core.machine import ENDED, State, Transition
from holdfast.core.records import EndedAttempt, Job, Lease, Moment, NewEvent
from holdfast.core.settlement import Settlement
from holdfast.core.settlement import settlement as addressed
from holdfast.core.text import clean, escaped
from holdfast.core.verdict import Failed, Outcome, Stalled, Succeeded, TimedOut, Verdict, judge
from holdfast.errors import HoldfastError, StoreLocked, StoreTimeout, StoreUnavailable, is_outage, is_passing
from holdfast.ids import chance, new_id
from holdfast.runtime.hooks import Hooks
from holdfast.runtime.locked_rows import LockedRows
from holdfast.runtime.log_fields import about
from holdfast.runtime.store_backoff import StoreBackoff
from holdfast.runtime.tracebacks import ERROR_MAX, describe, logged
from holdfast.runtime.vital_threads import Died, VitalThread
from holdfast.stores.protocol import Reply, Store
from holdfast.upkeep.batch_ends import BatchEnder
from holdfast.upkeep.dependents import DependentStarter
from holdfast.worker.attempt import Attempt
from holdfast.worker.executors import outage
from holdfast.worker.measuring import Measures
from holdfast.worker.recent import ENDINGS_MAX, RecentWork, outcome_word

log = logging.getLogger("holdfast.worker")

BATCH = 1000  # outcomes of one commit: the thread waits for the interpreter a few times in each, a busy one 5 ms a time
AttemptEnd = tuple[Attempt, Outcome]


class Settler:
    """See the module's docstring."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        forget: Callable[[list[Attempt]], None],
        hooks: Hooks,
        recent: RecentWork | None = None,
        release: str | None = None,
        *,
        journal_all: bool = False,
        measures: Measures | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._forget = forget
        self._hooks = hooks
        self._recent = recent or RecentWork()
        self._release = release
        self._batches = BatchEnder(store, clock)
        self._dependents = DependentStarter(store, clock)
        self._journal_all = journal_all
        self._measures = measures
        self._outcomes: deque[AttemptEnd] = deque()
        self._locked: LockedRows[AttemptEnd] = LockedRows(clock)
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._closing = False
        self._backoff = StoreBackoff(log, clock, "outcomes are kept until the store takes them")
        self.settled = 0
        self.last: Lease | None = None  # whose outcome was accepted
        self._in_hand: list[AttemptEnd] = []  # what is being written
        self._outdated: set[Attempt] = set()  # whose rows have changed since they were judged
        self._unsaved = 0  # how many were given up, because the store failed at the end
        self._thread = VitalThread("holdfast-settler", self._serve, lambda: self._closing)

    def start(self, died: Died) -> None:
        self._thread.begin(died)

    def put(self, attempt: Attempt, outcome: Outcome) -> None:
        """Take an outcome; it is stored within milliseconds."""
        attempt.activity.ended_at = self._clock.lease()
        self._outcomes.append((attempt, _with_log(attempt, outcome)))
        if self._idle.is_set():  # after the append: otherwise the thread could call itself idle in between
            self._idle.clear()
        if not self._wake.is_set():
            self._wake.set()

    @property
    def is_idle(self) -> bool:
        """Say whether every outcome that was put has been stored."""
        return self._idle.is_set()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is written; False when the time was up first, or something could not be written. If the
        thread has died, write it here."""
        give_up_at = self._clock.lease() + timeout_s
        if self._thread is not threading.current_thread():
            while self._thread.is_alive():  # it may be about to die, and would write nothing more
                left_s = give_up_at - self._clock.lease()
                if self._clock.wait(self._idle, min(0.05, max(0.0, left_s))) or left_s <= 0:
                    return self._idle.is_set()
        self._closing = True
        self._write_all()
        while (retry_s := self._locked.next_s()) is not None and self._clock.lease() + retry_s < give_up_at:
            self._clock.wait(threading.Event(), retry_s)
            self._write_all()
        if self._locked:
            self._say_locked()
            return False
        self._idle.set()
        return not self._unsaved

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._thread.finish(1.0)
        self._batches.close(1.0)
        self._dependents.close(1.0)

    def commit(self, attempt: Attempt, outcome: Outcome) -> Outcome | None:
        """Commit the task's own writes, if it has any, with its success. None: settled; else the outcome to report."""
        opened = attempt.transaction
        transaction = None if opened is None else opened.take()
        if opened is None or transaction is None:
            return outcome
        try:
            if not isinstance(outcome, Succeeded):
                return outcome
            answer = transaction.settle(self._judge(attempt, outcome, self._store.now().wall))
            if answer in (Reply.LOCKED, Reply.AGAIN):  # reported without its writes, the success would lose them
                raise StoreLocked(f"the row of job {attempt.job.id} has changed or is locked; the writes were undone")
        except Exception as error:
            # Nothing was committed, or the answer to the commit was lost: then the report is answered with ALREADY.
            why = clean(str(error), ERROR_MAX) if isinstance(error, HoldfastError) else describe(error)
            if transaction.outage is not None or (isinstance(error, StoreUnavailable) and is_outage(error)):
                return outage(opened, Failed(why))
            return Failed(why, finished=True)
        finally:
            transaction.rollback()
        if answer not in (Reply.ACCEPTED, Reply.ALREADY):
            return outcome  # the report will be refused as well, and journalled
        self.settled_itself(attempt)
        return None

    def settled_itself(self, attempt: Attempt) -> None:
        """Note that the store has acknowledged an outcome that came with the task's own writes."""
        self._forget([attempt])
        self.last = attempt.lease
        self._remember(done := [(attempt, "succeeded", State.DONE)])
        self.settled += 1
        self._note_ends(done)

    # ------------------------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        while True:
            retry_s = self._locked.next_s()
            if retry_s is None:
                self._wake.wait()
            else:
                self._clock.wait(self._wake, retry_s)
            self._wake.clear()
            self._write_all()
            if not self._locked:
                self._idle.set()
                if self._outcomes:  # one came in while the flag was set
                    self._idle.clear()
                    self._wake.set()
                elif self._closing:
                    return
            elif self._closing:
                self._say_locked()
                return

    def _say_locked(self) -> None:
        log.error("shutting down with %d results not saved: their rows are locked or too slow", len(self._locked))

    def _write_all(self) -> None:
        while in_hand := self._in_hand or self._next_batch():
            self._in_hand = in_hand  # until it is written: if this thread dies, another one goes on with it
            self._settle_for_good(in_hand)
            self._in_hand = []

    def _next_batch(self) -> list[AttemptEnd]:
        if slow := self._locked.take_slow():
            return slow
        batch = self._locked.take_due()
        while self._outcomes and len(batch) < BATCH:
            batch.append(self._outcomes.popleft())
        return batch

    def _settle_for_good(self, batch: list[AttemptEnd]) -> None:
        while batch:
            try:
                batch = self._settle(batch)
                self._backoff.recovered()
            except Exception as error:
                passing = is_passing(error) or (len(batch) == 1 and not self._takes_outcomes())
                if passing and not _is_too_much(error, batch):
                    if self._closing:
                        self._unsaved += len(batch)
                        log.error(
                            "stopping with %d results not stored; their jobs are recovered when their leases end: %s",
                            len(batch),
                            error,
                        )
                        return
                    if isinstance(error, StoreTimeout):
                        self._put_aside(batch[0], error)
                        return
                    self._clock.wait(threading.Event(), self._backoff.failed(error))
                    continue
                if len(batch) == 1:
                    self._give_up_on(batch[0], error)
                    return
                why = escaped(str(error))
                log.warning("a batch of %d outcomes cannot be stored (%s); splitting it", len(batch), why)
                middle = len(batch) // 2
                self._settle_for_good(batch[:middle])
                self._settle_for_good(batch[middle:])
                return

    def _takes_outcomes(self) -> bool:
        """Say whether the store takes outcomes at all. If it refuses all of them, the job in hand is not at fault. The
        outcomes of jobs that do not exist go the same way, and change nothing."""
        try:
            self._store.settle([_of_nobody(Transition.FINISH, State.DONE), _of_nobody(Transition.BURY, State.DEAD)])
        except Exception:
            return False
        return True

    def _put_aside(self, ending: AttemptEnd, error: StoreTimeout) -> None:
        job_id = ending[0].job.id
        log.warning(
            "job %s: its result is not saved yet, and is tried again apart from the others: %s",
            *(job_id, error),
            extra=about(ending[0].job),
        )
        self._locked.put(job_id, ending, slow=True)

    def _settle(self, batch: list[AttemptEnd]) -> list[AttemptEnd]:
        """Write them once; return those that must be judged again."""
        wall = self._store.now().wall
        for attempt, _ in batch:
            if attempt.job.workflow and (attempt.handler.is_elsewhere or attempt in self._outdated):
                self._catch_up(attempt)
        self._outdated.clear()
        settlements = [self._judge(attempt, outcome, wall) for attempt, outcome in batch]
        answers = self._store.settle(settlements)
        again: list[AttemptEnd] = []
        settled: list[Attempt] = []
        ended: list[tuple[Attempt, str, State]] = []
        for (attempt, outcome), settlement, answer in zip(batch, settlements, answers, strict=True):
            if answer is Reply.LOCKED:
                self._locked.put(attempt.job.id, (attempt, outcome))
                continue
            self._locked.free(attempt.job.id)
            if answer is Reply.AGAIN:
                again.append((attempt, outcome))
                if attempt.job.workflow:
                    self._outdated.add(attempt)
                else:
                    attempt.ask_to_stop()
                continue
            settled.append(attempt)
            if answer is Reply.REFUSED:
                log.warning(
                    "job %s: attempt %d reported too late and was refused",
                    *(attempt.job.id, attempt.job.attempt),
                    extra=about(attempt.job),
                )
                continue
            self.last = attempt.lease
            ended.append((attempt, outcome_word(outcome), settlement.verdict.state))
            if settlement.verdict.events:  # also of one that was ALREADY accepted: the answer to it was lost
                self._tell(attempt.job, outcome, settlement.verdict)
        self._forget(settled)
        self._remember(ended)
        self.settled += len(settled)
        self._note_ends(ended)
        return again

    def _note_ends(self, ended: Sequence[tuple[Attempt, str, State]]) -> None:
        """Look soon at what these jobs were part of, and at what runs after them."""
        if self._store.is_served:
            return  # the reaper of the server does that
        jobs = [each.job for each, _, state in ended if state in ENDED]
        if batches := {job.batch for job in jobs if job.batch is not None}:
            self._batches.note(batches)
        if jobs:
            self._dependents.note(job.id for job in jobs)

    def _remember(self, ended: Sequence[tuple[Attempt, str, State]]) -> None:
        """Keep the last endings for people: the next beat carries them."""
        if self._measures is not None:
            self._measures.ended(ended)
        now = Moment(self._clock.wall(), self._clock.lease())
        self._recent.add(_ending(attempt, word, state, now) for attempt, word, state in ended[-ENDINGS_MAX:])

    def _catch_up(self, attempt: Attempt) -> None:
        """Learn what is on the row of a workflow by now: whether it is to stop, and what was recorded for it elsewhere,
        in another process or by a thread that goes on although it was given up."""
        row = self._store.get(attempt.job.id)
        if row is None:
            return
        attempt.learn(open_step=row.open_step or "", undoable=row.undoable, inbox=row.inbox)
        if row.cancel_requested:
            attempt.ask_to_stop(row)

    def _judge(self, attempt: Attempt, outcome: Outcome, wall: float) -> Settlement:
        succeeded = isinstance(outcome, Succeeded)
        lot = 0.0 if succeeded else chance()  # only a retry needs one
        verdict = judge(outcome, attempt.job, wall, chance=lot, release=self._release)
        activity = attempt.activity
        if activity.progress is not None or activity.note is not None:  # a beat may not have carried it
            verdict = msgspec.structs.replace(verdict, progress=activity.progress, note=activity.note)
        if activity.beat_data is not None:
            verdict = _with_beat_data(verdict, activity.beat_data)
        if self._journal_all:
            release = {"release": self._release} if self._release else {}
            at = iso(attempt.job.claimed_at)
            claimed = NewEvent("claimed", {"at": at, "attempt": attempt.job.attempt, **release})
            returned = (NewEvent("succeeded"),) if succeeded else ()
            verdict = msgspec.structs.replace(verdict, events=(claimed, *returned, *verdict.events))
        if activity.started_at is None:
            return addressed(attempt.job, verdict, began_after_s=None)
        ended_at = self._clock.lease() if activity.ended_at is None else activity.ended_at
        began_after_s = activity.started_at - attempt.claimed_at
        return addressed(attempt.job, verdict, began_after_s=began_after_s, ran_s=ended_at - activity.started_at)

    def _tell(self, job: Job, outcome: Outcome, verdict: Verdict) -> None:
        """Say what ended otherwise than by success, in the log and to hooks."""
        if verdict.error is not None:
            again = "to be rolled back" if verdict.move is Transition.UNDO else "to be run again"
            state = again if verdict.state is State.READY else verdict.state.value
            said = logged(verdict.reason or verdict.error, outcome.frames if isinstance(outcome, Failed) else ())
            log.warning(
                "job %s (%s): attempt %d ended, now %s: %s",
                *(job.id, job.task, job.attempt, state, said),
                extra=about(job),
            )
        self._hooks.tell(job, verdict)

    def _give_up_on(self, ending: AttemptEnd, error: Exception) -> None:
        """End the attempt as failed, with the reason: no store will ever take its outcome."""
        attempt, outcome = ending
        log.error(
            "the outcome of job %s cannot be stored: %s", attempt.job.id, escaped(str(error)), extra=about(attempt.job)
        )
        if isinstance(outcome, Failed) and outcome.unwritten:
            self._forget([attempt])  # not even that: its lease runs out
            return
        why = f"its outcome could not be stored: {describe(error)}"
        failed = Failed(why, finished=isinstance(outcome, Succeeded), unwritten=True)
        self._settle_for_good([(attempt, failed)])


def _ending(attempt: Attempt, outcome: str, state: State, now: Moment) -> EndedAttempt:
    began = attempt.activity.started_at
    took_s = None if began is None else round(max(0.0, now.lease - began), 3)
    return EndedAttempt(attempt.job.id, attempt.job.task, outcome, state, now.wall, took_s)


def _of_nobody(move: Transition, state: State) -> Settlement:
    """Return an ending of a job that does not exist."""
    lease = Lease(new_id(), 1, new_id())
    return Settlement(lease=lease, queue="default", worker=None, verdict=Verdict(move=move, state=state))


def _is_too_much(error: Exception, batch: list[AttemptEnd]) -> bool:
    """Say whether the store stopped a batch at its time limit: in smaller pieces it may be in time."""
    return isinstance(error, StoreTimeout) and len(batch) > 1


def _with_log(attempt: Attempt, outcome: Outcome) -> Outcome:
    """Add what the attempt has logged to an ending that is its own and not a success. Once: repeats say the same."""
    lines = attempt.activity.lines
    if lines is None or not isinstance(outcome, Failed | TimedOut | Stalled):
        return outcome
    return msgspec.structs.replace(outcome, detail={**outcome.detail, "log": lines.all()})


def _with_beat_data(verdict: Verdict, text: str) -> Verdict:
    """Keep what the handler has said with its heartbeats in the event of its end, if there is one."""
    if not verdict.events:
        return verdict
    first, *others = verdict.events
    first = msgspec.structs.replace(first, detail={**first.detail, "beat_data": beat_data(text)})
    return msgspec.structs.replace(verdict, events=(first, *others))
