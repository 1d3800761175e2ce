"""The heartbeat renews all leases of this worker in one call, on a thread and connection of its own.

A handler that blocks the event loop or holds a thread cannot stop it. Short jobs cost no beat: only a lease that has
used up a third of itself is renewed. An attempt is kept until the store has acknowledged its end.

While the worker's liveness lock may be free, a beat at every look is what shows others that it lives.
"""

from __future__ import annotations

import logging
import resource
import threading
from collections.abc import Callable, Iterable, Sequence

from holdfast.clock import Clock
from holdfast.continuity import Continuity
from holdfast.core.lease import trust
from holdfast.core.machine import State
from holdfast.core.records import Filter, Order
from holdfast.errors import Cancelled, FileLocked, FileReplaced, HoldfastError, LeaseLost, StoreTimeout
from holdfast.runtime.store_backoff import StoreBackoff
from holdfast.runtime.vital_threads import Died, VitalThread
from holdfast.stores.protocol import Store
from holdfast.worker.attempt import Attempt
from holdfast.worker.isolated.memory import peak_mb
from holdfast.worker.measuring import Measures
from holdfast.worker.recent import RecentWork

log = logging.getLogger("holdfast.worker")

LOOK_S = 0.5  # how soon a request to stop reaches a handler
PROGRESS_S = 1.0  # how soon progress, new log lines and other steps reach the store
LOCKED_BEATS = 1.5  # after this many beats without an answer; the next try would still end within the lease
TALKERS_MAX = 50  # how many attempts send their lines in one beat: it must stay a short write


class Heartbeat:
    """See the module's docstring. `worker_id` names the incarnation that it speaks for.

    `gone` is called when the store says that this incarnation was declared dead, `start` with attempts whose start the
    store knows of by now, `on_beat` after each beat that reached the store, with the pause before the next, `locked`
    when a process kept it from beating for too long, `replaced` when it can never beat again, `obey` after each beat,
    with the order that is in force for this worker, `measures` counts beats.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        beat_s: float,
        gone: Callable[[str], None],
        continuity: Continuity,
        start: Callable[[Sequence[Attempt]], None],
        recent: RecentWork | None = None,
        obey: Callable[[Order | None], None] = lambda _: None,
        on_beat: Callable[[float], None] = lambda _: None,
        locked: Callable[[FileLocked], None] = lambda _: None,
        replaced: Callable[[FileReplaced], None] = lambda _: None,
        measures: Measures | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._beat_s = beat_s
        self._gone = gone
        self._continuity = continuity
        self._start = start
        self._on_beat, self._locked, self._replaced, self._obey = on_beat, locked, replaced, obey
        self._measures = measures
        self._recent = recent or RecentWork()
        self._told_at = float("-inf")  # what this worker says of itself
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._wake = threading.Event()
        self._closing = False
        self._beat_at = self._heard_at = self._progress_at = float("-inf")
        self._looked_at = float("-inf")  # at what the store says about itself
        self._backoff = StoreBackoff(log, clock, "handlers are stopped before their leases end")
        self._thread = VitalThread("holdfast-heartbeat", self._serve, lambda: self._closing)
        self.worker_id = ""
        self._stopping = False

    def start(self, died: Died) -> None:
        self._heard_at = self._clock.lease()  # the worker has just enrolled
        self._thread.begin(died)

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._thread.finish(1.0)

    def keep(self, attempts: Iterable[Attempt]) -> None:
        """Renew these leases from now on."""
        for attempt in attempts:
            self._attempts[attempt.key] = attempt
            if attempt.job.beat_s < self._beat_s:  # a job may have a shorter lease than its task declares
                self._beat_s = attempt.job.beat_s
                self._wake.set()

    def forget(self, attempts: Iterable[Attempt]) -> None:
        """Stop renewing: the store has acknowledged their end."""
        for attempt in attempts:
            self._attempts.pop(attempt.key, None)

    def all(self) -> list[Attempt]:
        """Return every attempt that is not settled yet."""
        return list(self._attempts.values())

    def announce(self, attempts: Iterable[Attempt]) -> None:
        """Tell the store that these are about to begin; start them when it knows."""
        for attempt in attempts:
            attempt.announcing = True
            self._wake.set()

    def beat_soon(self) -> None:
        """Beat at the next opportunity."""
        self._beat_at = float("-inf")
        self._wake.set()

    def publish_stopping(self, stopping: bool = True) -> None:
        """Let the store know whether this worker claims nothing more, though it still beats."""
        self._stopping = stopping
        self.beat_soon()

    def say_last(self) -> None:
        """Beat once more if there is news of this worker: it is about to leave. For after the thread has ended."""
        if self.worker_id and (news := self._recent.take()) is not None:
            self._store.beat(self.worker_id, (), stopping=True, recent=news)

    # ------------------------------------------------------------------------------------- the thread

    def _serve(self) -> None:
        # Not a `Service`: it is woken before its time, and never pauses longer than half a beat, whatever has failed.
        while not self._closing:
            pause_s = LOOK_S
            try:
                self._beat()
                self._look_for_cancellations()
                self._look_at_store()  # last: a store that cannot answer this still takes requests to stop
                self._backoff.recovered()
            except HoldfastError as error:
                pause_s = self._backoff.failed(error)
                self._beat_at = float("-inf")  # a full disk can be read: only a beat shows that the trouble is over
                silent_s = self._clock.lease() - self._heard_at
                if isinstance(error, FileLocked) and silent_s >= self._beat_s * LOCKED_BEATS:
                    self._locked(error)
                if isinstance(error, FileReplaced):
                    self._replaced(error)
            except Exception:
                log.exception("the heartbeat failed unexpectedly; the thread continues")
            self._clock.wait(self._wake, min(pause_s, self._beat_s / 2))
            self._wake.clear()

    def _beat(self) -> None:
        now = self._clock.lease()
        attempts = self._newest()
        self._begin_stopped()
        due = {attempt for attempt in attempts if attempt.announcing or attempt.window.must_renew(now)}
        talkers = _talkers(attempts, now)
        if now - self._progress_at >= PROGRESS_S:
            due |= {each for each in attempts if not each.activity.reported or _has_other_steps(each, now)} | talkers
            due |= {each for each in attempts if each.has_begun_unseen(now)}
            self._progress_at = now
        if not due and now - self._beat_at < self._beat_s and self._store.holds_lock(self.worker_id):
            return
        self._renew([attempt for attempt in attempts if attempt in due], talkers)

    def _renew(self, due: list[Attempt], talkers: set[Attempt]) -> None:
        worker_id = self.worker_id
        sent_at = self._clock.lease()
        news = self._recent.take() if sent_at - self._told_at >= self._beat_s else None
        try:
            rss_mb = peak_mb(resource.getrusage(resource.RUSAGE_SELF))
            pulses = {attempt: attempt.pulse(sent_at, talks=attempt in talkers) for attempt in due}
            answer = self._store.beat(worker_id, list(pulses.values()), rss_mb, stopping=self._stopping, recent=news)
        except Exception as error:
            if news is not None:
                self._recent.unheard()
            for attempt in due:
                attempt.unheard()
            if self._measures is not None:
                self._measures.beaten("failed")
            if not isinstance(error, StoreTimeout) or len(due) < 2:
                raise
            middle = len(due) // 2  # the store stopped it at its time limit
            try:
                self._renew(due[:middle], talkers)
            finally:  # one that is always too slow must not keep the others from being renewed
                self._renew(due[middle:], talkers)
            return
        if self._measures is not None:
            self._measure(self._measures, due, sent_at - self._heard_at, refused=answer.gone)
        self._beat_at = self._heard_at = sent_at
        if news is not None:
            self._told_at = sent_at
        self._on_beat(self._beat_s)
        if answer.lock_lost:
            log.error(
                "this worker had lost its liveness lock, because code in this process opened or closed the lock file; "
                "the lock is taken again, but others may have declared this worker dead"
            )
        if answer.gone:
            self._gone(worker_id)
            self._begin_stopped()
            return
        self._obey(answer.order)
        if answer.counted:
            self._continuity.beaten(worker_id)
        lost, skipped = set(answer.lost), set(answer.skipped)
        for attempt in due:
            if attempt.job.id in lost:
                attempt.handler.stop(LeaseLost("the store says that another attempt has taken over"))
            elif attempt.job.id in skipped:
                attempt.unheard()  # it is asked for again at the next look
            else:
                attempt.window = trust(sent_at, attempt.job.lease_s, attempt.job.beat_s)
                attempt.known_started = attempt.known_started or pulses[attempt].started
        self._cancel(answer.cancelled)
        self._begin([attempt for attempt in due if attempt.announcing and attempt.known_started])
        self._begin_stopped()

    def _measure(self, measures: Measures, due: list[Attempt], s: float, *, refused: bool) -> None:
        """Report a beat that was answered, `s` seconds after the last one; two intervals later is late."""
        left = [attempt.window.end_at for attempt in due]
        headroom_s = min(left) - self._clock.lease() if left else None
        is_late = s > 2 * self._beat_s or (headroom_s is not None and headroom_s < 0)
        measures.beaten("refused" if refused else "late" if is_late else "ok", headroom_s)

    def _begin(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            attempt.announcing = False
        self._start(attempts)

    def _begin_stopped(self) -> None:
        """Let those end that were to begin, and were stopped first: their handlers are not called."""
        self._begin([attempt for attempt in self.all() if attempt.announcing and attempt.handler.interrupt is not None])

    def _look_at_store(self) -> None:
        """Once for every beat, ask the store whether it still is what it was."""
        if self._clock.lease() - self._looked_at >= self._beat_s:
            self._continuity.look(self.worker_id)
            self._looked_at = self._clock.lease()

    def _newest(self) -> list[Attempt]:
        """Return one attempt for each job. An older one of the same job is a zombie of our own: it is stopped."""
        newest: dict[str, Attempt] = {}
        for attempt in sorted(self.all(), key=lambda each: each.lease.fence):
            if (older := newest.get(attempt.job.id)) is not None:
                older.handler.stop(LeaseLost("a newer attempt of this job runs here"))
            newest[attempt.job.id] = attempt
        return list(newest.values())

    def _look_for_cancellations(self) -> None:
        if not any(attempt.activity.started_at is not None for attempt in self.all()):
            return
        where = Filter(states=(State.RUNNING,), worker=self.worker_id, cancel_requested=True, limit=1000)
        self._cancel([job.id for job in self._store.find(where)])

    def _cancel(self, job_ids: list[str]) -> None:
        if not job_ids:
            return
        wanted = set(job_ids)
        for attempt in self._newest():
            if attempt.job.id in wanted and attempt.handler.interrupt is None:
                row = self._store.get(attempt.job.id) if attempt.job.workflow else None
                attempt.ask_to_stop(row)
                attempt.handler.stop(Cancelled("cancelled while running"))


def _has_other_steps(attempt: Attempt, now: float) -> bool:
    return attempt.workflow is not None and attempt.workflow.has_other_steps(now)


def _talkers(attempts: list[Attempt], now: float) -> set[Attempt]:
    """Return whose new log lines may go with a beat now: those who were heard of least recently come first."""
    talking = [attempt for attempt in attempts if attempt.has_lines(now)]
    return set(sorted(talking, key=lambda attempt: attempt.window.sent_at)[:TALKERS_MAX])
