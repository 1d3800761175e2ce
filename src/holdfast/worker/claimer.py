"""The claim loop of one worker process: it asks the store for as many jobs as there is room for."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from holdfast.clock import Clock
from holdfast.continuity import Continuity
from holdfast.core.records import Job, nobody_has
from holdfast.core.recovery import SECOND_LOOK_S
from holdfast.errors import FileReplaced, HoldfastError, UsageError, WorkerGone
from holdfast.ids import new_id
from holdfast.runtime.store_backoff import StoreBackoff
from holdfast.stores.protocol import Store
from holdfast.tasks import Task
from holdfast.worker.admission import Admission
from holdfast.worker.attempt import Attempt
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.isolated.task_locator import TaskLocator
from holdfast.worker.orders import Orders
from holdfast.worker.prefetch import Prefetch
from holdfast.worker.settler import Settler
from holdfast.worker.slots import Slots
from holdfast.worker.sweep import Sweep
from holdfast.workflow.timers import Timers

log = logging.getLogger("holdfast.worker")

POLL_S = 1.0  # how often to look for work when no notification came
WOKEN_POLL_S = 10.0  # the same where another process looks for all, and wakes those who sleep
SLOT_S = 0.02  # how often to ask for a due job that may only be claimed when a slot is free
DOUBT_S = 0.25  # how often to look whether an operator has accepted the store, or has let the worker resume
BUFFERED_MAX_S = 1.0  # a job claimed ahead that has not begun by then is given back
UNSERVED_S = 60.0  # how often to log the tasks that no worker has


class Claimer:
    """Claims until `stopping` is set, or until nothing is due if `until_idle`.

    `gone` is called when the store says that this incarnation of the worker was declared dead, `replaced` when another
    file is in the place of the store.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        tasks: dict[str, Task[..., Any]],
        queues: list[str],
        slots: Slots,
        heartbeat: Heartbeat,
        settler: Settler,
        continuity: Continuity,
        task_locator: TaskLocator,
        sweep: Sweep,
        orders: Orders,
        backoff: StoreBackoff,
        stopping: threading.Event,
        gone: Callable[[str], None],
        replaced: Callable[[FileReplaced], None],
        *,
        until_idle: bool,
    ) -> None:
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._queues = list(queues)  # in the order of the next claim
        self._slots = slots
        self._heartbeat = heartbeat
        self._settler = settler
        self._continuity = continuity
        self._task_locator = task_locator
        self._sweep = sweep
        self._orders = orders
        self._backoff = backoff
        self._stopping = stopping
        self._until_idle = until_idle
        self._gone = gone
        self._replaced = replaced
        self._admission = Admission(store, clock, tasks, settler.put)
        self._timers = Timers(store, clock, tasks, resident=not until_idle)
        self._prefetch = Prefetch()
        self._due_in_s: float | None = None
        self._pause_s = 0.0  # how long to wait when a job is due and cannot be claimed

    def run(self) -> None:
        """Claim until stopped. A store that fails is asked again."""
        # Not a `Service`: a turn may repeat the claim of the turn before, and its pause depends on what it found.
        said_at = self._clock.lease() - UNSERVED_S + 5.0
        claim_id: str = new_id()
        asked_at: float | None = None  # when this claim was first sent: a lease counts from then
        likely = False  # there was some the last time, or a hint of more: asking first would cost a round trip
        while not self._stopping.is_set():
            asked_as = self._heartbeat.worker_id  # the worker may be declared dead and enrol again while we ask
            try:
                if self._continuity.is_outdated:
                    self._continuity.look(asked_as)
                if not self._continuity.in_doubt:
                    self._sweep.look_again()
                    self._timers.wake_due()
                if (cause := self._why_not()) is not None:
                    if asked_at is not None:  # ask only for what a lost answer gave: nobody else keeps it
                        self._claim(asked_as, claim_id, asked_at, 0, 0)
                        claim_id, asked_at = new_id(), None
                    self._give_back(0.0, cause)
                    if self._until_idle:
                        return
                    self._clock.wait(self._stopping, DOUBT_S)
                    continue
                limit, ahead = self._room()
                if limit + ahead == 0:
                    self._slots.has_room.clear()
                    if self._room() == (0, 0):
                        self._clock.wait(self._slots.has_room, 0.25)
                    self._give_back(BUFFERED_MAX_S, "claimed ahead, but no slot became free")
                    continue
                was_idle = self._is_idle()  # before looking what is due: the last ending may have made a job due again
                if asked_at is not None or likely or self._is_due():
                    asked_at = self._clock.lease() if asked_at is None else asked_at
                    jobs = self._claim(asked_as, claim_id, asked_at, limit, ahead)
                    claim_id, asked_at = new_id(), None  # only after an answer: a lost one is asked for again
                    guessed, likely = likely, bool(jobs)
                    if not jobs and limit and self._sweep.settle_ghosts(self._queues):
                        continue
                    if not jobs and not guessed:  # due, but another has it, its queue is full, or it needs a free slot
                        self._pause_s = min(max(0.005, self._pause_s * 2), POLL_S if limit else SLOT_S)
                    if jobs:
                        self._pause_s = 0.0
                        self._prefetch.add(self._settler.settled, self._clock.lease())
                    if jobs or guessed:  # wrongly: then look when the next one is due
                        continue
                if self._clock.lease() - said_at >= UNSERVED_S and not self._store.is_served:
                    said_at = self._clock.lease()
                    self._say_what_nobody_serves()
                self._backoff.recovered()
                if self._until_idle and was_idle and not self._sweep.has_unconfirmed:
                    return
                likely = self._wait_for_work() and self._store.hints_of_work
            except WorkerGone:
                self._gone(asked_as)
                claim_id, asked_at = new_id(), None
            except FileReplaced as error:
                self._replaced(error)
            except UsageError:  # the app was closed under this worker, or is to be closed here: waiting does not help
                raise
            except HoldfastError as error:
                self._clock.wait(self._stopping, self._backoff.failed(error))
            except Exception as error:
                log.exception("the claim loop failed unexpectedly; the thread continues")
                self._clock.wait(self._stopping, self._backoff.failed(error))

    def _why_not(self) -> str | None:
        """Return why nothing may be claimed now, if so."""
        if self._continuity.in_doubt:
            return "the store may not be what it was"
        return "the worker was asked to drain" if self._orders.drained else None

    def _room(self) -> tuple[int, int]:
        return self._slots.room(self._prefetch.ahead(self._settler.settled, self._clock.lease()))

    def _is_due(self) -> bool:
        due = self._store.due(self._queues, self._task_locator.claimable(), sleeps=not self._until_idle)
        self._due_in_s = None if due is None else due - self._store.now().wall
        return self._due_in_s is not None and self._due_in_s <= 0

    def _claim(self, worker_id: str, claim_id: str, sent_at: float, limit: int, ahead: int) -> list[Job]:
        self._queues.append(self._queues.pop(0))  # the next claim begins with another queue
        jobs = self._store.claim(worker_id, claim_id, self._queues, self._task_locator.claimable(), limit, ahead)
        if self._continuity.is_outdated:  # if the look fails, the claim is asked again, and gives the same jobs
            self._continuity.look(worker_id)
        attempts = [Attempt(job, self._tasks[job.task], sent_at) for job in jobs]
        self._heartbeat.keep(attempts)
        self._slots.add(self._admission.admit(attempts))
        return jobs

    def _give_back(self, older_s: float, cause: str) -> None:
        if self._slots.give_back(older_s, cause):
            self._prefetch.reset()

    def _wait_for_work(self) -> bool:
        poll_s = max(POLL_S, WOKEN_POLL_S) if self._timers.is_woken else POLL_S
        timeout_s = poll_s if self._due_in_s is None else min(poll_s, max(0.001, self._due_in_s, self._pause_s))
        most_s = poll_s if not self._until_idle else SECOND_LOOK_S if self._sweep.has_unconfirmed else 0.02
        give_up_at = self._clock.lease() + min(timeout_s, most_s)
        while True:
            left_s = give_up_at - self._clock.lease()
            if self._store.wait(max(0.0, min(left_s, self._timers.in_s()))):
                return True
            is_over = self._clock.lease() >= give_up_at or self._stopping.is_set()
            if is_over or not self._timers.is_due or not self._store.hints_of_work:
                return False
            self._timers.wake_due()  # what it wakes sends a hint, to this process as well

    def _is_idle(self) -> bool:
        return self._slots.is_empty and self._settler.is_idle

    def _say_what_nobody_serves(self) -> None:
        """Log the tasks of due jobs that no living worker has, in our queues and in those that nobody serves. The jobs
        of another worker's tasks are left to it."""
        now, due_waits = self._store.now().wall, self._store.due_waits()
        living = [worker for worker in self._store.workers() if worker.claims(now)]
        served = {queue for worker in living for queue in worker.queues}
        used = {*self._store.counts(), *(each.queue for each in due_waits)}
        missing: Counter[str] = Counter()
        for queue in {*self._queues, *used - served - set(self._store.paused())}:
            due = Counter(self._store.unserved([queue], list(self._tasks)))
            due.update({each.task: each.jobs for each in due_waits if each.queue == queue})
            missing.update({task: jobs for task, jobs in due.items() if nobody_has(living, queue, task)})
        for task, jobs in sorted(missing.items()):
            log.warning("no living worker has task %r: %d due jobs wait for one that has it", task, jobs)
