"""The store in plain dicts: the readable specification of `stores/protocol.py`, and the oracle of its tests.

Everything is one dict of jobs, one of workers, one of events, and one lock around each verb. A job is never
changed in place: a new record takes the old one's place, so what a caller was given stays what it was.
Nothing outlives the process, and nobody outside it can see the store.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

from msgspec.structs import replace

from holdfast.clock import Clock, SystemClock
from holdfast.core import audit, dependencies, limits, orders, transitions
from holdfast.core.acts import Move
from holdfast.core.continuity import Doubt, Standing
from holdfast.core.dependencies import Dependent
from holdfast.core.error_fingerprint import ErrorGroup
from holdfast.core.limits import GHOSTS_MAX, UNGROUPED, Group, Places, Queue, Setting
from holdfast.core.machine import ENDED, LIVE, State
from holdfast.core.published import PublishedTask
from holdfast.core.records import (
    BeatReply,
    DueWaits,
    Duty,
    Event,
    Filter,
    Firing,
    Inbox,
    Job,
    Lease,
    Moment,
    NewEvent,
    NewJob,
    Order,
    OrderAct,
    Pulse,
    Recent,
    Record,
    Schedule,
    Seen,
    Signal,
    Standby,
    Step,
    Vanished,
    Worker,
    has_keyed,
)
from holdfast.core.row_text import ANSWER, Awaited
from holdfast.core.settlement import Settlement, is_as_judged, own_event, stale_report
from holdfast.core.verdict import Verdict
from holdfast.core.worker_exit import WorkerExit, gone
from holdfast.errors import StoreUnsupported, UsageError, WorkerGone
from holdfast.forks import renew_in_child
from holdfast.stores import keyed_jobs
from holdfast.stores.memory.batches import MemoryBatches
from holdfast.stores.memory.errors import ErrorCounts
from holdfast.stores.memory.figures import MemoryFigures
from holdfast.stores.memory.keys import MemoryKeys, live_key
from holdfast.stores.memory.one_at_a_time import Forked, one_at_a_time
from holdfast.stores.memory.tokens import MemoryTokens
from holdfast.stores.protocol import Added, Fired, Reply, Schema, Transaction, duty_lost
from holdfast.stores.wakeups import Wakeups

UNSERVED_MAX = 1000  # how many jobs `unserved` counts before it stops
DUE_WAITS_MAX = 1000  # how many jobs `due_waits` looks at


@one_at_a_time
class MemoryStore:
    """See `stores/protocol.py: Store` for every promise."""

    confirm_s = 0.1
    commits_may_hang = False
    look_s = 0.25
    row_locks = False
    is_served = False
    hints_of_work = False
    add_at_once = 10_000
    add_max: int | None = None
    connections_made = 0

    def __init__(self, url: str = "memory://", *, clock: Clock | None = None) -> None:
        self.url = url
        self._clock: Clock = clock if clock is not None else SystemClock()
        self.lock: Any = threading.RLock()
        renew_in_child(self)
        self._jobs: dict[str, Job] = {}  # in the order in which they were added
        self._workers: dict[str, Worker] = {}  # in the order in which they enrolled
        self._events: dict[str, list[Event]] = {}  # by job
        self._seqs = itertools.count(1)
        self._errors = ErrorCounts()
        self._queues: dict[str, Queue] = {}  # what was set for queues
        self._saw_all = True  # whether the claim at work has looked at all groups
        self._cursors: dict[tuple[str, int], str] = {}  # by queue and priority: the group that had the last turn
        self._incarnation = 1
        self._accepted_at = 0.0
        self._removals = 0
        self._doubts: dict[tuple[str, str], Doubt] = {}
        self._duties: dict[str, Duty] = {}
        self._schedules: dict[str, Schedule] = {}
        self._published: dict[str, PublishedTask] = {}
        self._orders: list[Order] = []
        self._recent: dict[str, Recent] = {}  # by worker
        self._hints = Wakeups()
        self.tokens = MemoryTokens(self.lock)
        self.figures = MemoryFigures(self.lock, self._clock, self._jobs, self._journal_of, self._check_duty)
        self.batches = MemoryBatches(self.lock, self._clock, self._jobs.values, self.add, self._join)
        self._keys = MemoryKeys(self._clock, self._jobs, self._add, self.move)
        self._steps: dict[str, dict[tuple[int, int], Step]] = {}  # by job, then by (aside, position)
        self._signals: dict[tuple[str, str], Signal] = {}  # by (workflow, id), in the order in which they came
        self._taken: dict[tuple[str, str], int] = {}  # signal -> the position of the step that took it

    def after_fork_in_child(self) -> None:
        """Refuse every verb: the parent does not see what is done to the copy."""
        self.lock = Forked()

    def now(self) -> Moment:
        return Moment(self._clock.wall(), self._clock.lease())

    # ---------------------------------------------------------------------------- the life of a job

    def add(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Added]:
        if connection is not None:
            raise StoreUnsupported(
                "memory:// has no transactions to take part in; use sqlite:///…, in tests @pytest.mark.holdfast(store="
                '"sqlite")'
            )
        answers = keyed_jobs.add(self._keys, jobs) if has_keyed(jobs) else self._add(jobs)
        self.wake()
        return answers

    def _add(self, jobs: Sequence[NewJob]) -> list[Added]:
        wall = self._clock.wall()
        answers = []
        for new in jobs:
            there = self._jobs.get(new.id) or (self._keys.live(new.key) if new.key is not None else None)
            if there is None:
                self._jobs[new.id] = transitions.first_row(new, wall)
                self._has_come(self._jobs[new.id])
            answers.append(Added(there.id if there else new.id, there is not None))
        return answers

    def _has_come(self, job: Job) -> None:
        """Note that a queue has a job with a group."""
        if job.group is not None and not self._queue(job.queue).grouped:
            self._queues[job.queue] = replace(self._queue(job.queue), grouped=True)

    def claim(
        self,
        worker_id: str,
        claim_id: str,
        queues: Sequence[str],
        tasks: Sequence[str],
        limit: int,
        ahead: int = 0,
    ) -> list[Job]:
        if not self._lives(worker_id):
            raise WorkerGone(f"worker {worker_id} is not enrolled, or was declared dead")
        if given := [job for job in self._held_by(worker_id) if job.claim_id == claim_id]:
            return given  # the answer was lost
        now = self.now()
        known = set(tasks)
        open_queues = [name for name in dict.fromkeys(queues) if not self._queue(name).is_paused(now.wall)]

        def take(most: int, *, started: bool) -> list[Job]:
            taken: list[Job] = []
            for name, share in transitions.shares(open_queues, most):
                wanted = min(share, most - len(taken))
                if not wanted and not self._queue(name).takes_turns:
                    continue
                ready = [job for job in self._ready([name]) if job.task in known and not job.is_expired(now.wall)]
                # The only policy that a claim looks at: a job claimed ahead may be lost before it starts.
                willing = [job for job in ready if started or job.on_crash == "retry"]
                if self._queue(name).takes_turns:
                    chosen = self._by_turns(self._queue(name), willing, wanted, now.wall, started=started)
                else:
                    chosen = transitions.in_order([job for job in willing if job.run_at <= now.wall])[:wanted]
                taken += [self._put(transitions.apply_claim(job, worker_id, claim_id, now, started)) for job in chosen]
            return taken

        taken: list[Job] = []
        for _ in range(limits.REPEATS_MAX):
            self._saw_all = True
            taken = take(limit, started=True)
            taken += take(ahead, started=False) if len(taken) == limit else []
            if taken or self._saw_all:
                break
        return taken

    def _by_turns(self, queue: Queue, willing: Sequence[Job], wanted: int, wall: float, *, started: bool) -> list[Job]:
        """Choose among the willing jobs of a queue, and move its cursors and its rate on."""
        held = queue.limits
        if held.any and not started:
            return []
        free = limits.room(held, self.places(queue.name).queue, queue.booked_until, wall, wanted)
        running = Counter(job.group for job in self._running() if job.queue == queue.name)
        chosen: list[Job] = []
        for priority in sorted({job.priority for job in self._ready([queue.name])}, reverse=True):
            left = free - len(chosen)
            lane = [job for job in self._ready([queue.name]) if job.priority == priority]
            open_groups, walked = self._walk(queue, lane, running, left, wall)
            due: dict[str, list[Job]] = {}
            for job in transitions.in_order(job for job in willing if job.priority == priority):
                if job.run_at <= wall:
                    due.setdefault(job.group or UNGROUPED, []).append(job)
            turns = list(limits.take_turns(open_groups, due, left))
            cursor = self._cursors.get((queue.name, priority), UNGROUPED)
            names = [name for name, _ in turns]
            whole = limits.saw_all(len(open_groups), len(walked), left)
            last = walked[-1] if walked else None
            self._cursors[queue.name, priority] = limits.next_cursor(cursor, names, left, last, whole=whole)
            running.update(name for name in names if name != UNGROUPED)
            chosen += [job for _, job in turns]
            self._saw_all = self._saw_all and whole
        if held.rate is not None:
            mark = limits.mark_after(held.rate, held.burst, queue.booked_until, wall, len(chosen))
            self._queues[queue.name] = replace(queue, booked_until=queue.booked_until if mark is None else mark)
        return chosen

    def _walk(
        self, queue: Queue, lane: Sequence[Job], running: Mapping[str | None, int], free: int, wall: float
    ) -> tuple[list[Group], list[str]]:
        """Look at the groups of one priority in the order of their turns, until enough of them are open."""
        first: dict[str, float] = {}
        for job in lane:
            name = job.group or UNGROUPED
            first[name] = min(job.run_at, first.get(name, job.run_at))
        most = queue.limits.group_limit
        names = limits.walk(list(first), self._cursors.get((queue.name, lane[0].priority), UNGROUPED))
        found: list[Group] = []
        walked: list[str] = []
        for name in names:
            if free <= 0 or not limits.saw_all(len(found), len(walked), free):
                break
            walked.append(name)
            places = None if most is None or name == UNGROUPED else most - running[name]
            is_due = name in first and first[name] <= wall
            if is_due and not queue.is_group_paused(name, wall) and (places is None or places > 0):
                found.append(Group(name, places))
        return found, walked

    def beat(
        self,
        worker_id: str,
        pulses: Sequence[Pulse],
        rss_mb: float | None = None,
        *,
        stopping: bool = False,
        recent: Recent | None = None,
    ) -> BeatReply:
        if not self._lives(worker_id):
            return BeatReply(gone=True)
        now = self.now()
        self._workers[worker_id] = transitions.apply_beat(self._workers[worker_id], now.wall, rss_mb, stopping)
        lost = []
        for pulse in pulses:
            job = self._jobs.get(pulse.lease.job_id)
            if job is None or not transitions.owns(job, pulse.lease):
                lost.append(pulse.lease.job_id)
                self._report_stale(pulse.lease, worker_id)
            elif job.state is State.RUNNING:
                self._put(transitions.apply_pulse(job, pulse, now))
        asked = [job.id for job in self._held_by(worker_id) if job.cancel_requested]
        if recent is not None:
            self._recent[worker_id] = recent
        return BeatReply(lost=lost, cancelled=asked, order=orders.in_force(self._orders, self._workers[worker_id]))

    def settle(self, settlements: Sequence[Settlement], under: Duty | None = None) -> list[Reply]:
        self._check_duty(under)
        answers = [self._settle_one(settlement) for settlement in settlements]
        for settlement, answer in zip(settlements, answers, strict=True):
            if answer is Reply.ACCEPTED:
                self._tell_parent(settlement.lease.job_id)
        done = zip(settlements, answers, strict=True)
        self.figures.count_attempts([each for each, answer in done if answer is Reply.ACCEPTED])
        self.wake()
        return answers

    def _settle_one(self, settlement: Settlement) -> Reply:
        job, seen = self._jobs.get(settlement.lease.job_id), settlement.seen_lease_until
        if job is None or not transitions.owns(job, settlement.lease):
            if self._is_repeat(settlement):
                return Reply.ALREADY  # this very ending was accepted, and the job has moved on since
            # A second reaper is refused, but only an attempt that comes back makes a stale report.
            if seen is None and not settlement.verdict.raises_fence:
                self._report_stale(settlement.lease, settlement.worker, settlement.verdict.state)
            return Reply.REFUSED
        if job.state is not State.RUNNING:
            return Reply.ALREADY
        if seen is not None and job.lease_until != seen:
            return Reply.REFUSED  # it beat after the reaper looked: it lives
        if not is_as_judged(settlement, job.cancel_requested, job.open_step, job.undoable, job.inbox):
            return Reply.AGAIN
        self._apply(job, settlement.verdict, settlement.worker)
        if (fault := settlement.verdict.fault) is not None:
            self._errors.add(job.task, fault, settlement.verdict.release, job.id, self._clock.wall())
        return Reply.ACCEPTED

    def _is_repeat(self, settlement: Settlement) -> bool:
        own, fence = own_event(settlement.verdict), settlement.lease.fence
        events = self._events.get(settlement.lease.job_id, [])
        same = (event for event in events if own and (event.fence, event.kind) == (fence, own.kind))
        return any(own is not None and event.detail == own.detail for event in same)

    def transaction(self, lease: Lease, max_s: float) -> AbstractContextManager[Transaction]:
        raise StoreUnsupported(
            "memory:// has no SQL, so ctx.transaction() and flow.transaction cannot work there; use sqlite:///…, in "
            'tests @pytest.mark.holdfast(store="sqlite")'
        )

    # ------------------------------------------------------------------------------ finding the dead

    def overdue(self, grace_s: float = 0.0, limit: int = 500, skip: int = 0) -> list[Job]:
        latest = self._clock.lease() - grace_s
        ended = [job for job in self._running() if transitions.lease_end(job) <= latest]
        return sorted(ended, key=transitions.lease_end)[skip : skip + limit]

    def locked(self, job_ids: Sequence[str]) -> list[str]:
        return []

    def ghosts(self, queues: Sequence[str]) -> list[Job]:
        overdue = self.overdue(limit=len(self._jobs))
        return [job for job in overdue if job.queue in queues and self._queue(job.queue).limits.counts][:GHOSTS_MAX]

    def deadline(self) -> float | None:
        return min(map(transitions.lease_end, self._running()), default=None)

    def stands_by(self) -> Standby | None:
        return None

    def vanished(self) -> list[Vanished]:
        """A worker of this store lives in this process, so only one that was marked gone can be dead."""
        holding = {job.worker for job in self._running()}
        gone = [worker for worker in self.workers(gone=True) if worker.gone_at is not None]
        return [Vanished(worker, "gone") for worker in gone if worker.id in holding]

    def holds_lock(self, worker_id: str) -> bool:
        """Nobody looks for locks."""
        return True

    def enroll(self, worker: Worker) -> None:
        if worker.id in self._workers:
            raise UsageError(f"worker {worker.id} is enrolled already; every start needs a new id")
        wall = self._clock.wall()
        self._workers[worker.id] = replace(worker, started_at=wall, beat_at=wall)

    def retire(self, worker_id: str, cause: str, under: Duty | None = None, how: WorkerExit | None = None) -> bool:
        self._check_duty(under)
        if not self._lives(worker_id):
            return False
        worker = self._workers[worker_id]
        self._workers[worker_id] = replace(worker, gone_at=self._clock.wall(), **gone(cause, how))
        self.wake()
        return True

    def acquire(self, name: str, holder: str, ttl_s: float, note: str | None = None) -> Duty | None:
        now, duty = self._clock.lease(), self._duties.get(name)
        ours = duty is not None and duty.holder == holder
        if duty is not None and not ours and duty.holder and duty.until > now:
            return None
        term = (duty.term if duty is not None else 0) + (not ours)
        left = duty.note if duty is not None else None
        note = note if ours and note is not None else left
        self._duties[name] = Duty(name, holder, term, now + ttl_s, note)
        return self._duties[name]

    def resign(self, duty: Duty, note: str | None = None) -> bool:
        if not self._is_current(duty):
            return False
        note = note if note is not None else self._duties[duty.name].note
        self._duties[duty.name] = replace(duty, holder="", note=note)  # the row stays: its term must not fall
        return True

    def duties(self) -> list[Duty]:
        return [self._duties[name] for name in sorted(self._duties)]

    # --------------------------------------------------------------------------- the operator's door

    def move(self, moves: Sequence[Move]) -> list[Reply]:
        keys = {live_key(job) for job in self._jobs.values() if job.state in LIVE}
        answers = [self._may_move(move, keys) for move in moves]
        for move, answer in zip(moves, answers, strict=True):
            if answer is Reply.ACCEPTED:
                self._apply(self._jobs[move.seen.job_id], move.verdict, None)
                self._has_come(self._jobs[move.seen.job_id])
                self._tell_parent(move.seen.job_id)
        self.wake()
        return answers

    def _may_move(self, move: Move, keys: set[str | None]) -> Reply:
        """Reply to one act, and take its key if it comes alive onto one. `keys`: those that are taken."""
        job = self._as_seen(move.seen)
        if job is None:
            return Reply.REFUSED
        key = live_key(job)
        if key is not None and job.state not in LIVE and move.verdict.state in LIVE:
            if key in keys:
                return Reply.TAKEN
            keys.add(key)
        return Reply.ACCEPTED

    def pause(
        self,
        queue: str,
        paused: bool,
        *,
        group: str | None = None,
        until: float | None = None,
        actor: str | None = None,
        note: str | None = None,
    ) -> None:
        self._set(self._queue(queue), limits.with_pause(self._queue(queue), paused, group, until), actor, note)

    def limit(
        self,
        queue: str,
        setting: Setting,
        *,
        declared: bool = False,
        actor: str | None = None,
        note: str | None = None,
    ) -> None:
        self._set(self._queue(queue), limits.with_setting(self._queue(queue), setting, declared=declared), actor, note)

    def _set(self, before: Queue, after: Queue, actor: str | None, note: str | None = None) -> None:
        self._queues[after.name] = after
        for event in limits.events(before, after, actor, note):
            self._write("", event, 0, None)
        self.wake()

    def order(self, name: str, act: OrderAct | None, *, actor: str | None = None, note: str | None = None) -> bool:
        order = None if act is None else Order(name, act, actor, note, self._clock.wall())
        self._orders, changed = orders.given(self._orders, name, order)
        for event in orders.events(name, act, actor, note) if changed else ():
            self._write("", event, 0, None)
        return changed

    def purge(self, states: Sequence[State], before: float, limit: int = 1000, under: Duty | None = None) -> int:
        self._check_duty(under)
        old: list[str] = []
        for state in dict.fromkeys(states):
            jobs = [job for job in self._jobs.values() if job.state is state]
            ended = sorted((job.ended_at, job.id) for job in jobs if job.ended_at is not None)
            old += [job_id for ended_at, job_id in ended if ended_at < before]
        for job_id in old[:limit]:
            self._forget(job_id)
        return len(old[:limit])

    def purge_keys(self, after: str = "", limit: int = 1000) -> str | None:
        return self._keys.purge(after, limit)

    def delete(self, jobs: Sequence[Seen], act: NewEvent | None = None) -> list[Reply]:
        answers = [self._delete_one(seen) for seen in jobs]
        gone = [seen.job_id for seen, answer in zip(jobs, answers, strict=True) if answer is Reply.ACCEPTED]
        if act is not None and gone:
            self.note_act(audit.about_jobs(act, gone))
        return answers

    def _delete_one(self, seen: Seen) -> Reply:
        job = self._as_seen(seen)
        if job is None or job.state is State.RUNNING:
            return Reply.REFUSED
        self._forget(job.id)
        return Reply.ACCEPTED

    def note_act(self, act: NewEvent) -> None:
        self._write("", act, 0, None)

    def audit(
        self, limit: int = 1000, *, since: float | None = None, before: int | None = None, actor: str | None = None
    ) -> list[Event]:
        events = [event for lines in self._events.values() for event in lines if event.actor is not None]
        wanted = [event for event in events if actor in (None, event.actor)]
        wanted = [event for event in wanted if since is None or event.at >= since]
        wanted = [event for event in wanted if before is None or event.seq < before]
        return sorted(wanted, key=lambda event: event.seq)[max(0, len(wanted) - limit) :]

    # ------------------------------------------------------------------------------------- schedules

    def declare(self, schedules: Sequence[Schedule], again: bool = False) -> None:
        wall = self._clock.wall()
        for new in schedules:
            self._schedules[new.key] = transitions.merge_schedule(self._schedules.get(new.key), new, wall, again)

    def schedule(self, schedules: Sequence[Schedule]) -> list[Reply]:
        wall = self._clock.wall()
        kept = [transitions.keep_schedule(self._schedules.get(new.key), new, wall) for new in schedules]
        self._schedules.update({each.key: each for each in kept if each is not None})
        return [Reply.REFUSED if each is None else Reply.ACCEPTED for each in kept]

    def schedules(self, keys: Sequence[str] | None = None) -> list[Schedule]:
        return [self._schedules[key] for key in sorted(self._schedules) if keys is None or key in keys]

    def fire(self, firings: Sequence[Firing], under: Duty) -> list[Fired]:
        self._check_duty(under)
        return [self._fire(each) for each in firings]

    def _fire(self, firing: Firing) -> Added | None:
        schedule, instant = self._schedules.get(firing.schedule), firing.instant
        if schedule is None or schedule.paused or schedule.mark >= instant:
            return None
        [added] = self.add([firing.job])
        self._schedules[schedule.key] = replace(schedule, mark=instant, fired_at=instant, job_id=added.id)
        return added

    def pause_schedule(self, key: str, paused: bool) -> bool:
        schedule = self._schedules.get(key)
        if schedule is not None:
            resumed = schedule.paused and not paused
            mark = max(schedule.mark, self._clock.wall()) if resumed else schedule.mark
            self._schedules[key] = replace(schedule, paused=paused, mark=mark)
        return schedule is not None

    def forget_schedule(self, key: str) -> bool:
        return self._schedules.pop(key, None) is not None

    # ------------------------------------------------------------------------------- published tasks

    def publish(self, tasks: Sequence[PublishedTask]) -> None:
        for task in tasks:
            if not task.is_same(self._published.get(task.name)):
                self._published[task.name] = replace(task, published_at=self._clock.wall())

    def published(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        return [self._published[name] for name in sorted(self._published) if names is None or name in names]

    def forget_task(self, name: str) -> bool:
        return self._published.pop(name, None) is not None

    # ---------------------------------------------------------------------------------- the read side

    def get(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    def find(self, where: Filter) -> list[Job]:
        newest_first = list(reversed(self._jobs.values()))
        if where.before is not None:
            ids = [job.id for job in newest_first]
            newest_first = newest_first[ids.index(where.before) + 1 :] if where.before in ids else []
        return list(islice((job for job in newest_first if transitions.matches(job, where)), where.limit))

    def counts(self) -> dict[str, dict[State, int]]:
        counts: dict[str, dict[State, int]] = {}
        for (queue, state), jobs in Counter((job.queue, job.state) for job in self._jobs.values()).items():
            counts.setdefault(queue, {})[state] = jobs
        return counts

    def errors(self, since: float, task: str | None = None, limit: int = 1000) -> list[ErrorGroup]:
        return self._errors.groups(since, task, limit)

    def journal(
        self,
        job_id: str | None = None,
        kinds: Sequence[str] = (),
        limit: int = 1000,
        *,
        since: float | None = None,
        before: int | None = None,
    ) -> list[Event]:
        lists = self._events.values() if job_id is None else [self._events.get(job_id, [])]
        events = sorted((event for events in lists for event in events), key=lambda event: event.seq)
        wanted = [event for event in events if not kinds or event.kind in kinds]
        wanted = [event for event in wanted if since is None or event.at >= since]
        wanted = [event for event in wanted if before is None or event.seq < before]
        return wanted[:limit] if job_id is not None else wanted[max(0, len(wanted) - limit) :]

    def journals(self, job_ids: Sequence[str], limit: int) -> dict[str, list[Event]]:
        return {job_id: self._events[job_id][:limit] for job_id in job_ids if job_id in self._events}

    def workers(self, gone: bool = False) -> list[Worker]:
        running = Counter(job.worker for job in self._running())
        listed = [worker for worker in self._workers.values() if gone or worker.gone_at is None]
        return [
            replace(one, running=running[one.id], tasks=None)
            if one.gone_at is not None
            else replace(one, running=running[one.id], order=orders.in_force(self._orders, one))
            for one in listed
        ]

    def orders(self) -> list[Order]:
        return sorted(self._orders, key=lambda order: order.name)

    def recent(self, worker_ids: Sequence[str]) -> dict[str, Recent]:
        return {each: self._recent[each] for each in worker_ids if each in self._recent}

    def paused(self) -> list[str]:
        wall = self._clock.wall()
        return sorted(queue.name for queue in self._queues.values() if queue.is_paused(wall))

    def queues(self) -> list[Queue]:
        return [self._queues[name] for name in sorted(self._queues)]

    def places(self, queue: str, group: str | None = None) -> Places:
        running = [job for job in self._running() if job.queue == queue]
        return Places(len(running), sum(group is not None and job.group == group for job in running))

    def unserved(self, queues: Sequence[str], tasks: Sequence[str]) -> Mapping[str, int]:
        due = [job for job in self._ready(queues) if job.run_at <= self._clock.wall()]
        return Counter([job.task for job in due if job.task not in tasks][:UNSERVED_MAX])

    # ------------------------------------------------------------------------------------ hints and house

    def due(self, queues: Sequence[str], tasks: Sequence[str], *, sleeps: bool = False) -> float | None:
        wall = self._clock.wall()
        opens = {name: at for name in queues if (at := self._queue(name).opens_at(wall)) is not None}
        ready = (job for job in self._ready(list(opens)) if job.task in tasks)
        return min((max(job.run_at, opens[job.queue]) for job in ready), default=None)

    def wait(self, timeout_s: float) -> bool:
        return self._hints.wait(self._clock, timeout_s)

    def wake(self) -> None:
        self._hints.wake()

    def is_woken(self) -> bool:
        return False

    def wake_sleepers(self) -> bool:
        """Every worker looks for itself."""
        return False

    def stop_waking(self) -> None:
        """Nobody relies on this process."""

    def ping(self, *, durably: bool = False) -> None:
        """Memory always takes writes."""

    def standing(self, worker_id: str, known: Sequence[str], settled: Lease | None) -> Standing:
        worker = self._workers.get(worker_id)
        job = self._jobs.get(settled.job_id) if settled is not None else None
        return Standing(
            schema=1,
            works_with=1,
            identity=self.url,
            at=self._clock.wall(),
            incarnation=self._incarnation,
            accepted_at=self._accepted_at,
            removals=self._removals,
            beats=worker.beats if worker is not None else None,
            beats_of_all=sum(each.beats + 1 for each in self._workers.values()),
            newest=heapq.nlargest(2, self._jobs),
            missing=[job_id for job_id in known if job_id not in self._jobs],
            runs_again=job is not None and job.state is State.RUNNING and job.lease == settled,
            doubts=len(self._doubts),
        )

    def doubt(self, seen: int, doubt: Doubt) -> None:
        noted = replace(doubt, at=self._clock.wall())
        if seen == self._incarnation:
            self._doubts.setdefault((doubt.evidence, doubt.worker), noted)

    def doubts(self) -> list[Doubt]:
        return list(self._doubts.values())

    def accept(self, seen: int, actor: str, note: str | None) -> int:
        if seen == self._incarnation:
            self._doubts.clear()
            self._incarnation += 1
            self._accepted_at = self._clock.wall()
        return self._incarnation

    def schema(self) -> Schema:
        return Schema(found=1, wanted=1)

    def migrate(self) -> Schema:
        return self.schema()

    def missing(self) -> list[str]:
        return []

    def check(self) -> list[str]:
        wrong = [
            f"job {job.id} {violation}" for job in self._jobs.values() for violation in transitions.violations(job)
        ]
        keys = Counter(key for job in self._jobs.values() if (key := live_key(job)) and job.state in LIVE)
        return wrong + [f"key {key!r} has {times} live jobs" for key, times in keys.items() if times > 1]

    def close(self) -> None:
        self._hints.wake()

    # ------------------------------------------------------------------- what several verbs have in common

    def _queue(self, name: str) -> Queue:
        return self._queues.get(name) or Queue(name=name)

    def _put(self, job: Job) -> Job:
        self._jobs[job.id] = job
        return job

    def _is_current(self, duty: Duty) -> bool:
        now = self._duties.get(duty.name)
        return now is not None and (now.holder, now.term) == (duty.holder, duty.term)

    def _check_duty(self, duty: Duty | None) -> None:
        if duty is not None and not self._is_current(duty):
            raise duty_lost(duty)

    def _as_seen(self, seen: Seen) -> Job | None:
        job = self._jobs.get(seen.job_id)
        return job if job is not None and job.seen == seen else None

    def _join(self, job_id: str, batch_id: str) -> None:
        self._put(replace(self._jobs[job_id], batch=batch_id))

    def _forget(self, job_id: str) -> None:
        self.batches.removed(self._jobs.pop(job_id))
        self._removals += 1
        self._events.pop(job_id, None)
        self._steps.pop(job_id, None)
        self._signals = {key: each for key, each in self._signals.items() if each.job_id != job_id}
        self._taken = {key: at for key, at in self._taken.items() if key in self._signals}

    def _apply(self, job: Job, verdict: Verdict, worker_id: str | None) -> None:
        """Make the job what the verdict says, and write down why."""
        self.figures.count_ending(job, self._put(transitions.apply_verdict(job, verdict, self._clock.wall())))
        self._say_of_steps(job, verdict)
        self.add(verdict.jobs)
        for event in verdict.events:
            self._write(job.id, event, job.fence, worker_id)

    def _write(self, job_id: str, event: NewEvent, fence: int, worker: str | None) -> None:
        wall, events = self._clock.wall(), self._events.setdefault(job_id, [])
        events.append(Event(next(self._seqs), job_id, wall, event.kind, fence, worker, event.actor, event.detail))
        self.figures.count_event(events[-1])

    def _journal_of(self, kinds: tuple[str, ...]) -> list[Event]:
        found = [event for events in self._events.values() for event in events if event.kind in kinds]
        return sorted(found, key=lambda event: event.seq)

    def _report_stale(
        self, lease: Lease, worker_id: str | None, reported: State | None = None, step: str | None = None
    ) -> None:
        """Write down, once per fence, that an attempt came back after it had been given up."""
        job = self._jobs.get(lease.job_id)
        known = self._events.get(lease.job_id, [])
        if job is None or any(event.kind == "stale_report" and event.fence == lease.fence for event in known):
            return
        self._write(job.id, stale_report(job.state, job.fence, reported, step), lease.fence, worker_id)

    def _lives(self, worker_id: str) -> bool:
        worker = self._workers.get(worker_id)
        return worker is not None and worker.gone_at is None

    def _running(self) -> Iterable[Job]:
        return (job for job in self._jobs.values() if job.state is State.RUNNING)

    def _held_by(self, worker_id: str) -> Iterable[Job]:
        return (job for job in self._running() if job.worker == worker_id)

    def _ready(self, queues: Sequence[str]) -> list[Job]:
        return [job for job in self._jobs.values() if job.state is State.READY and job.queue in queues]

    # ---------------------------------------------------------------------------- workflows

    def record(self, records: Sequence[Record]) -> list[Reply]:
        answers = [self._record_one(record) for record in records]
        self.wake()
        return answers

    def _record_one(self, record: Record) -> Reply:
        job = self._jobs.get(record.lease.job_id)
        if job is None or not transitions.owns(job, record.lease):
            name = record.steps[0].name if record.steps else ""
            self._report_stale(record.lease, record.worker, step=name)
            return Reply.REFUSED
        if job.state is not State.RUNNING:
            return Reply.REFUSED
        if self._are_taken(record.jobs):
            return Reply.TAKEN
        if not all(self._takes(signal) for signal in record.sent):
            return Reply.GONE
        opened = record.open_step if record.open_step is not None else job.open_step
        self._jobs[job.id] = replace(job, undoable=job.undoable or record.undoable, open_step=opened or None)
        for step in record.steps:
            self._put_step(job.id, step)
        for signal_id in record.taken:
            if (job.id, signal_id) in self._signals:
                self._taken.setdefault((job.id, signal_id), record.steps[0].position)
        for new in record.jobs:
            self._jobs.setdefault(new.id, transitions.first_row(new, self._clock.wall()))
        for signal in record.sent:
            self._deliver(signal)
        return Reply.ACCEPTED

    def steps(self, job_id: str, after: int = 0, limit: int = 1000, *, aside: bool = False) -> list[Step]:
        known = self._steps.get(job_id, {}).values()
        wanted = [step for step in known if step.position > after and (aside or not step.aside)]
        return sorted(wanted, key=lambda step: (step.position, step.aside))[:limit]

    def signal(self, signal: Signal) -> Reply:
        if (signal.job_id, signal.id) in self._signals:
            return Reply.ALREADY
        if not self._takes(signal):
            return Reply.GONE
        self._deliver(signal)
        self.wake()
        return Reply.ACCEPTED

    def inbox(self, job_id: str, name: str | None = None, limit: int = 1000) -> Inbox:
        job = self._jobs.get(job_id)
        waiting = (each for key, each in self._signals.items() if key[0] == job_id and key not in self._taken)
        wanted = (each for each in waiting if name is None or each.name == name)
        return Inbox(job.inbox if job is not None else 0, list(islice(wanted, limit)))

    def wake_due(self, limit: int = 500) -> float | None:
        wall = self._clock.wall()
        timed = sorted((job.wake_at, job.id) for job in self._jobs.values() if job.wake_at is not None)
        due = [job_id for wake_at, job_id in timed if wake_at <= wall][:limit]
        for job_id in due:
            self._jobs[job_id] = transitions.woken(self._jobs[job_id], wall)
        if due:
            self.wake()
        return timed[len(due)][0] if len(timed) > len(due) else None

    def expired(self, limit: int = 500) -> list[Job]:
        wall = self._clock.wall()
        found = [(job.expires_at, job) for job in self._jobs.values() if job.is_expired(wall)]
        return [job for _, job in sorted(found, key=lambda each: each[0] or 0.0)[:limit]]

    def dependents(self, on: Sequence[str] | None = None, after: str = "", limit: int = 1000) -> list[Dependent]:
        live = {job.id for job in self._jobs.values() if job.state in LIVE}
        found = []
        for job in sorted(self._jobs.values(), key=lambda job: job.id):
            ids = dependencies.ids_of(job.awaits)
            if dependencies.waits_for_others(job) and job.id > after and (on is None or not set(on).isdisjoint(ids)):
                found.append(Dependent(job.id, live.isdisjoint(ids)))
        return found[:limit]

    def due_waits(self) -> list[DueWaits]:
        timed = sorted((job.wake_at, job.queue, job.task) for job in self._jobs.values() if job.wake_at is not None)
        found: dict[tuple[str, str], list[float]] = {}
        for wake_at, queue, task in timed[:DUE_WAITS_MAX]:
            if wake_at <= self._clock.wall():
                found.setdefault((queue, task), []).append(wake_at)
        return [DueWaits(*key, len(times), times[0]) for key, times in sorted(found.items())]

    def fork(self, new: NewJob, source: str, seen_fence: int, before: int, event: NewEvent) -> Added | None:
        old = self._jobs.get(source)
        is_as_seen = old is not None and old.state in ENDED and old.fence == seen_fence
        if not is_as_seen and new.id not in self._jobs:
            return None
        [added] = self.add([new])
        if not added.existed:
            for step in self.steps(source, limit=before):
                if step.position < before and step.state == "recorded":
                    self._put_step(new.id, replace(step, fence=0, attempt=0, has_undo=False))
            self._write(new.id, event, 0, None)
        return added

    def _say_of_steps(self, job: Job, verdict: Verdict) -> None:
        """Write down what a person says of steps, and set aside what is to be run again."""
        for step in verdict.steps:
            self._put_step(job.id, step)
        if verdict.aside_from is None:
            return
        for step in self.steps(job.id, verdict.aside_from - 1, limit=len(self._steps.get(job.id, ()))):
            del self._steps[job.id][0, step.position]
            self._put_step(job.id, replace(step, aside=job.fence))
        for key, each in self._signals.items():
            at = self._taken.get(key, verdict.aside_from)
            if each.job_id != job.id or at < verdict.aside_from:
                continue
            if each.name.startswith(ANSWER):  # a person is asked again, and a late answer is not for that question
                self._taken[key] = at
            else:  # the attempt that took it does not count any more: it waits to be taken again
                self._taken.pop(key, None)

    def _tell_parent(self, job_id: str) -> None:
        """Tell the workflow that started the job, if any, that it has ended, if it has."""
        job = self._jobs[job_id]
        parent = self._jobs.get(job.parent or "")
        if job.state in ENDED and parent is not None and parent.workflow and parent.state in LIVE:
            self._jobs[parent.id] = transitions.wake_on(parent, Awaited("job", job.id), self._clock.wall())

    def _put_step(self, job_id: str, step: Step) -> None:
        known = self._steps.setdefault(job_id, {})
        place = step.aside, step.position
        known[place] = transitions.merge_step(known.get(place), step)

    def _are_taken(self, jobs: Sequence[NewJob]) -> bool:
        """Say whether one of these cannot be stored because its id or its key belongs to another job, or its key to
        another one of these."""
        known = [(new, self._jobs[new.id]) for new in jobs if new.id in self._jobs]
        if any((job.parent, job.task) != (new.parent, new.task) for new, job in known):
            return True
        keys = [new.key for new in jobs if new.key is not None and new.id not in self._jobs]
        return len(set(keys)) < len(keys) or any(self._keys.live(key) is not None for key in keys)

    def _takes(self, signal: Signal) -> bool:
        job = self._jobs.get(signal.job_id)
        if (signal.job_id, signal.id) in self._signals:
            return True
        if job is None or not job.workflow or job.state not in LIVE:
            return False
        awaited = signal.awaited in (job.awaits or ())
        return signal.seen_fence is None or (signal.seen_fence == job.fence and awaited)

    def _deliver(self, signal: Signal) -> None:
        if (signal.job_id, signal.id) in self._signals:
            return
        job, wall = self._jobs[signal.job_id], self._clock.wall()
        self._signals[job.id, signal.id] = replace(signal, sent_at=wall, note=None, seen_fence=None, answer=None)
        self._jobs[job.id] = transitions.wake_on(job, signal.awaited, wall)
        self._write(job.id, signal.line, job.fence, None)
