"""The store over Redis or Valkey: the verbs of `stores/protocol.py` over the scripts in `scripts/`.

Most verbs are a `Work`: they read, decide as the store in memory does, and commit by one script. A claim is one script.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.clock import Clock, SystemClock
from holdfast.core import audit, limits, orders, transitions
from holdfast.core.acts import Move
from holdfast.core.continuity import Doubt, Standing
from holdfast.core.dependencies import Dependent
from holdfast.core.error_fingerprint import ErrorGroup
from holdfast.core.limits import GHOSTS_MAX, Places, Queue, Setting
from holdfast.core.machine import ENDED, State
from holdfast.core.published import PublishedTask
from holdfast.core.records import (
    GONE_KEPT_S,
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
from holdfast.core.settlement import Settlement
from holdfast.core.worker_exit import WorkerExit, gone
from holdfast.errors import OutcomeUnknown, StoreLost, StoreMissing, StoreUnsupported, UsageError, WorkerGone
from holdfast.failpoints import point
from holdfast.forks import renew_in_child
from holdfast.ids import new_id
from holdfast.stores import keyed_jobs, row_json
from holdfast.stores.protocol import Added, Fired, Reply, Schema, Transaction, schema_too_new
from holdfast.stores.redis import acts, check, keys, rows
from holdfast.stores.redis.address import Options
from holdfast.stores.redis.batches import RedisBatches
from holdfast.stores.redis.condition import facts_of
from holdfast.stores.redis.connection import Connections
from holdfast.stores.redis.copying import RedisTables
from holdfast.stores.redis.facts import RedisFacts
from holdfast.stores.redis.figures import RedisFigures, scored
from holdfast.stores.redis.keys import WorkKeys
from holdfast.stores.redis.liveness import LivenessSubscription
from holdfast.stores.redis.reading import Reader, names_of
from holdfast.stores.redis.rows import NUL
from holdfast.stores.redis.tokens import RedisTokens
from holdfast.stores.redis.work import (
    AT_ONCE,
    ONE_PIECE_MAX,
    Work,
    check_size,
    committed,
    decode,
    encode,
    pairs,
)
from holdfast.stores.wakeups import Wakeups

log = logging.getLogger("holdfast.stores")

T = TypeVar("T")
R = TypeVar("R")
SCHEMA = 1
UNSERVED_MAX = 1000  # how many jobs `unserved` counts before it stops
DUE_WAITS_MAX = 1000  # how many jobs `due_waits` looks at
_NO_TRANSACTION = (
    "Redis has no transactions that ctx.transaction() or flow.transaction could take part in; make the effect "
    "repeatable with an id of the job (ctx.job.id), or use postgresql://… or sqlite:///…"
)
_NO_CONNECTION = (
    "using(connection=…) needs a store in the same database, and this one is on Redis; enqueue after your commit, with "
    "an id of your own: using(id=…)"
)


class RedisStore:
    """See `stores/protocol.py: Store` for every promise."""

    confirm_s = 1.5
    commits_may_hang = False
    look_s = 0.5
    row_locks = False
    is_served = False
    hints_of_work = False
    add_at_once = AT_ONCE
    add_max: int | None = ONE_PIECE_MAX

    def __init__(self, url: str, *, clock: Clock | None = None, create: bool = True) -> None:
        options = Options.parse(url)
        self.url = options.shown
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._db = Connections(options, self._clock)
        self._create = create
        self._incarnation = 0  # the last that this process has seen
        self._hints = Wakeups()
        self._liveness = LivenessSubscription(self._db, self.wake, self._has_lock)
        self._read = Reader(self._db)
        self.tokens = RedisTokens(self._db)
        self.figures = RedisFigures(self._db, self._read.rows, self._read.lines)
        self.batches = RedisBatches(self._db)
        self.tables = RedisTables(self._db, self._read)
        renew_in_child(self)

    def after_fork_in_child(self) -> None:
        """Share no connection and no lock with the parent."""
        self._db.forget()
        self._hints = Wakeups()

    @property
    def connections_made(self) -> int:
        """Return how often the liveness connection was made, and how many writes were forgotten: both call for a look
        at what the store says about itself."""
        return self._liveness.made + self._db.forgotten

    def now(self) -> Moment:
        return self._db.moment()

    # ---------------------------------------------------------------------------- the life of a job

    def add(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Added]:
        if connection is not None:
            raise StoreUnsupported(_NO_CONNECTION)
        if not jobs:
            return []
        check_size(len(jobs), "one call stores")
        point("add.before")
        try:
            if has_keyed(jobs):
                answers = committed(self._db, lambda work: keyed_jobs.add(WorkKeys(work), jobs))
            else:
                answers = committed(self._db, lambda work: work.add(jobs), blind=True)
        except OutcomeUnknown as error:
            raise OutcomeUnknown(str(error), tuple(job.id for job in jobs)) from error
        point("add.after")
        self.wake()
        return answers

    def claim(
        self,
        worker_id: str,
        claim_id: str,
        queues: Sequence[str],
        tasks: Sequence[str],
        limit: int,
        ahead: int = 0,
    ) -> list[Job]:
        point("claim.before")
        names = list(dict.fromkeys(queues))
        taken: list[Job] = []
        part = repeats = 0
        while True:
            begun = min(limit, AT_ONCE)
            more = min(ahead, AT_ONCE - begun) if begun == limit else 0
            asked = rows.packed([names, list(tasks), begun, more, part])
            word, *answer = self._db.run("claim", worker_id, claim_id, asked, acknowledged=True)
            if word == b"gone":
                raise WorkerGone(f"worker {worker_id} is not enrolled, or was declared dead")
            saw_all, started, *found = answer
            page = _claimed(found)
            taken += page
            if word == b"held":
                break
            repeats += 1
            if not taken and not saw_all and repeats < limits.REPEATS_MAX:
                continue
            limit, ahead = limit - started, ahead - (len(page) - started)
            if len(page) < begun + more or limit + ahead <= 0:
                break
            part += 1
        point("claim.after")
        return taken

    def beat(
        self,
        worker_id: str,
        pulses: Sequence[Pulse],
        rss_mb: float | None = None,
        *,
        stopping: bool = False,
        recent: Recent | None = None,
    ) -> BeatReply:
        point("beat.before")
        lost: list[str] = []
        for start in range(AT_ONCE, len(pulses), AT_ONCE):
            page = partial(acts.pulse, worker_id, pulses[start : start + AT_ONCE])
            lost += committed(self._db, page, acknowledged=False) or []

        def beat(work: Work) -> BeatReply:
            worker = work.field("workers", worker_id, Worker)
            if worker is None or worker.gone_at is not None:
                return BeatReply(gone=True)
            missed = acts.pulse(worker_id, pulses[:AT_ONCE], work) or []
            work.set("workers", worker_id, transitions.apply_beat(worker, work.now.wall, rss_mb, stopping))
            if recent is not None:
                work.field("recent", worker_id)
                work.set("recent", worker_id, recent)
            asked, standing = self._db.ask(("SMEMBERS", f"asked:{worker_id}"), ("HGET", "meta", "orders"))
            given = [] if standing is None else decode(standing, list[Order])
            cancelled = sorted(each.decode() for each in asked)
            return BeatReply(lost=missed, cancelled=cancelled, order=orders.in_force(given, worker))

        reply = committed(self._db, beat, acknowledged=False)
        return reply if reply.gone else msgspec.structs.replace(reply, lost=[*reply.lost, *lost])

    def settle(self, settlements: Sequence[Settlement], under: Duty | None = None) -> list[Reply]:
        if not settlements:
            return []
        point("settle.before")
        answers: list[Reply] = []
        for start in range(0, len(settlements), AT_ONCE):
            answers += committed(self._db, partial(acts.settle, settlements[start : start + AT_ONCE], under))
        point("settle.after")
        self.wake()
        return answers

    def transaction(self, lease: Lease, max_s: float) -> AbstractContextManager[Transaction]:
        raise StoreUnsupported(_NO_TRANSACTION)

    # ------------------------------------------------------------------------------ finding the dead

    def overdue(self, grace_s: float = 0.0, limit: int = 500, skip: int = 0) -> list[Job]:
        latest = self._db.moment().lease - grace_s
        while True:
            page = self._read.until("leases", latest, limit, skip)
            found = [each.job for each in page or () if each is not None and each.job.state is State.RUNNING]
            if found or not page:
                return found
            skip += limit  # not one of them can be read; those behind them must not suffer

    def locked(self, job_ids: Sequence[str]) -> list[str]:
        return []

    def ghosts(self, queues: Sequence[str]) -> list[Job]:
        counting = {queue.name for queue in self.queues() if queue.name in queues and queue.limits.counts}
        found: list[Job] = []
        skip = 0
        while counting and len(found) < GHOSTS_MAX:
            page = self.overdue(limit=AT_ONCE, skip=skip)
            found += [job for job in page if job.queue in counting]
            skip += AT_ONCE
            if len(page) < AT_ONCE:
                break
        return found[:GHOSTS_MAX]

    def deadline(self) -> float | None:
        first = self._db.ask(("ZRANGE", "leases", 0, 0, "WITHSCORES"))[0]
        return float(first[1]) if first else None

    def stands_by(self) -> Standby | None:
        return None

    def vanished(self) -> list[Vanished]:
        workers = self.workers(gone=True)
        found = [Vanished(worker, "gone") for worker in workers if worker.gone_at is not None and worker.running]
        living = [worker for worker in workers if worker.gone_at is None]
        if not living or not self._liveness.may_judge():
            return found
        runs = self._db.ask(("HMGET", "locks", *(worker.id for worker in living)))[0]
        locks = self._liveness.look([worker.id for worker in living])
        if locks is None:
            return found
        return found + [
            Vanished(worker, "session")
            for worker, run, held in zip(living, runs, locks.held, strict=True)
            if run is not None and run.decode() == locks.run and not held
        ]

    def holds_lock(self, worker_id: str) -> bool:
        return self._liveness.holds(worker_id)

    def enroll(self, worker: Worker) -> None:
        schema = self.schema()
        if schema.is_too_new:
            raise schema_too_new(self.url, schema)
        if self._db.ask(("HEXISTS", "workers", worker.id))[0]:
            raise UsageError(f"worker {worker.id} is enrolled already; every start needs a new id")
        run = None if worker.is_remote else self._liveness.hold(worker.id)

        def enroll(work: Work) -> None:
            if work.field("workers", worker.id) is not None:
                raise UsageError(f"worker {worker.id} is enrolled already; every start needs a new id")
            wall = work.now.wall
            number = work.field("meta", "enrolled")
            work.do("HINCRBY", "meta", "enrolled", 1)
            work.do("ZADD", "enrolled", int(number or 0), worker.id)
            work.do("SADD", "alive", worker.id)
            if run is not None:
                work.do("HSET", "locks", worker.id, run)
            work.set("workers", worker.id, replace(worker, started_at=wall, beat_at=wall, order=None))

        try:
            committed(self._db, enroll)
        except BaseException:
            self._liveness.drop(worker.id)
            raise

    def _has_lock(self, worker_id: str, run: str) -> None:
        """Note which run of the server has the lock of a worker, unless that is gone."""
        alive, lock = ["member", "alive", worker_id, 1], ["HSET", "locks", worker_id, run]
        self._db.run("commit", rows.packed_lists([alive]), rows.packed_lists([lock]))

    def retire(self, worker_id: str, cause: str, under: Duty | None = None, how: WorkerExit | None = None) -> bool:
        def retire(work: Work) -> bool:
            work.check_duty(under)
            worker = work.field("workers", worker_id, Worker)
            if worker is None or worker.gone_at is not None:
                return False
            work.set("workers", worker_id, replace(worker, gone_at=work.now.wall, **gone(cause, how)))
            work.do("ZADD", "gone", work.now.wall, worker_id)
            work.do("SREM", "alive", worker_id)
            work.do("UNLINK", f"claims:{worker_id}")
            work.do("HDEL", "locks", worker_id)
            return True

        changed = committed(self._db, retire)
        self._liveness.drop(worker_id)
        before = repr(self._db.moment().wall - GONE_KEPT_S)
        for old in names_of(self._db.ask(("ZRANGE", "gone", "-inf", before, "BYSCORE", "LIMIT", 0, AT_ONCE))[0]):
            committed(self._db, partial(acts.forget_worker, old))
        self.wake()
        return changed

    def acquire(self, name: str, holder: str, ttl_s: float, note: str | None = None) -> Duty | None:
        def acquire(work: Work) -> Duty | None:
            now, duty = work.now.lease, work.field("duties", name, Duty)
            ours = duty is not None and duty.holder == holder
            if duty is not None and not ours and duty.holder and duty.until > now:
                return None
            term = (duty.term if duty is not None else 0) + (not ours)
            left = duty.note if duty is not None else None
            duty = Duty(name, holder, term, now + ttl_s, note if ours and note is not None else left)
            work.set("duties", name, duty)
            return duty

        return committed(self._db, acquire)

    def resign(self, duty: Duty, note: str | None = None) -> bool:
        def resign(work: Work) -> bool:
            now = work.field("duties", duty.name, Duty)
            if now is None or (now.holder, now.term) != (duty.holder, duty.term):
                return False
            left = note if note is not None else now.note
            work.set("duties", duty.name, replace(duty, holder="", note=left))  # it stays: its term must not fall
            return True

        return committed(self._db, resign)

    def duties(self) -> list[Duty]:
        found = self._read.table("duties", Duty, None)
        return [found[name] for name in sorted(found)]

    # --------------------------------------------------------------------------- the operator's door

    def move(self, moves: Sequence[Move]) -> list[Reply]:
        answers = self._in_pages(moves, lambda page, work: keys.moved(work, page))
        self.wake()
        return answers

    def _in_pages(self, wanted: Sequence[T], act: Callable[[Sequence[T], Work], list[R]]) -> list[R]:
        """Act on a few of these in each commit, and return the answers in their order."""
        pages = (wanted[start : start + AT_ONCE] for start in range(0, len(wanted), AT_ONCE))
        return [answer for page in pages for answer in committed(self._db, partial(act, page))]

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
        self._set_queue(queue, lambda before: limits.with_pause(before, paused, group, until), actor, note)

    def limit(
        self,
        queue: str,
        setting: Setting,
        *,
        declared: bool = False,
        actor: str | None = None,
        note: str | None = None,
    ) -> None:
        self._set_queue(queue, lambda before: limits.with_setting(before, setting, declared=declared), actor, note)

    def _set_queue(
        self, name: str, change: Callable[[Queue], Queue], actor: str | None, note: str | None = None
    ) -> None:
        def set_queue(work: Work) -> None:
            before = work.field("queues", name, Queue) or Queue(name=name)
            after = change(before)
            if len(after.paused_groups) > len(before.paused_groups):
                check_size(len(after.paused_groups), f"queue {name} has", "paused groups")
            acts.put_queue(after, work)
            for event in limits.events(before, after, actor, note):
                work.event("", event, 0, None)

        committed(self._db, set_queue)
        self.wake()

    def order(self, name: str, act: OrderAct | None, *, actor: str | None = None, note: str | None = None) -> bool:
        def order(work: Work) -> bool:
            given = None if act is None else Order(name, act, actor, note, work.now.wall)
            standing, changed = orders.given(work.field("meta", "orders", list[Order]) or [], name, given)
            if changed:
                work.set("meta", "orders", standing)
                for event in orders.events(name, act, actor, note):
                    work.event("", event, 0, None)
            return changed

        return committed(self._db, order)

    def purge(self, states: Sequence[State], before: float, limit: int = 1000, under: Duty | None = None) -> int:
        committed(self._db, lambda work: work.check_duty(under))
        purged = 0
        for state in dict.fromkeys(states):
            skip = 0
            while purged < limit:
                page = ("LIMIT", skip, min(AT_ONCE, limit - purged))
                ended = ("ZRANGE", f"e:{state.value}", "-inf", f"({before!r}", "BYSCORE", *page)
                ids = names_of(self._db.ask(ended)[0])
                if not ids:
                    break
                done = committed(self._db, partial(acts.purge, ids, state, before, under))
                purged += done
                skip += len(ids) - done
        return purged

    def purge_keys(self, after: str = "", limit: int = 1000) -> str | None:
        least = f"({after}" if after else "-"
        page = names_of(self._db.ask(("ZRANGE", keys.NAMES, least, "+", "BYLEX", "LIMIT", 0, limit))[0])
        for start in range(0, len(page), AT_ONCE):
            committed(self._db, partial(acts.purge_keys, page[start : start + AT_ONCE]))
        return page[-1] if page else None

    def delete(self, jobs: Sequence[Seen], act: NewEvent | None = None) -> list[Reply]:
        def delete(jobs: Sequence[Seen], work: Work) -> list[Reply]:
            work.load(seen.job_id for seen in jobs)
            answers = []
            for seen in jobs:
                job = work.job(seen.job_id)
                fits = job is not None and job.seen == seen and job.state is not State.RUNNING
                answers.append(Reply.ACCEPTED if fits else Reply.REFUSED)
                if fits:
                    work.remove(seen.job_id)
            gone = [seen.job_id for seen, answer in zip(jobs, answers, strict=True) if answer is Reply.ACCEPTED]
            if act is not None and gone:
                work.event("", audit.about_jobs(act, gone), 0, None)
            return answers

        return self._in_pages(jobs, delete)

    def note_act(self, act: NewEvent) -> None:
        committed(self._db, lambda work: work.event("", act, 0, None))

    def audit(
        self, limit: int = 1000, *, since: float | None = None, before: int | None = None, actor: str | None = None
    ) -> list[Event]:
        return self._read.audit(limit, since, before, actor)

    # ------------------------------------------------------------------------------------- schedules

    def declare(self, schedules: Sequence[Schedule], again: bool = False) -> None:
        def declare(schedules: Sequence[Schedule], work: Work) -> list[None]:
            work.fields("schedules", [new.key for new in schedules])
            for new in schedules:
                there = work.field("schedules", new.key, Schedule)
                merged = transitions.merge_schedule(there, new, work.now.wall, again)
                if merged != there:
                    work.set("schedules", new.key, merged)
            return []

        self._in_pages(schedules, declare)

    def schedule(self, schedules: Sequence[Schedule]) -> list[Reply]:
        def keep(schedules: Sequence[Schedule], work: Work) -> list[Reply]:
            work.fields("schedules", [new.key for new in schedules])
            answers = []
            for new in schedules:
                kept = transitions.keep_schedule(work.field("schedules", new.key, Schedule), new, work.now.wall)
                if kept is not None:
                    work.set("schedules", new.key, kept)
                answers.append(Reply.REFUSED if kept is None else Reply.ACCEPTED)
            return answers

        return self._in_pages(schedules, keep)

    def schedules(self, keys: Sequence[str] | None = None) -> list[Schedule]:
        found = self._read.table("schedules", Schedule, keys)
        return [found[key] for key in sorted(found)]

    def fire(self, firings: Sequence[Firing], under: Duty) -> list[Fired]:
        def fire(work: Work) -> list[Fired]:
            work.check_duty(under)
            answers: list[Fired] = []
            for firing in firings:
                schedule = work.field("schedules", firing.schedule, Schedule)
                if schedule is None or schedule.paused or schedule.mark >= firing.instant:
                    answers.append(None)
                    continue
                [added] = keyed_jobs.add(WorkKeys(work), [firing.job])
                fired = replace(schedule, mark=firing.instant, fired_at=firing.instant, job_id=added.id)
                work.set("schedules", schedule.key, fired)
                answers.append(added)
            return answers

        point("fire.before")
        answers = committed(self._db, fire)
        point("fire.after")
        self.wake()
        return answers

    def pause_schedule(self, key: str, paused: bool) -> bool:
        def pause(work: Work) -> bool:
            schedule = work.field("schedules", key, Schedule)
            if schedule is not None:
                resumed = schedule.paused and not paused
                mark = max(schedule.mark, work.now.wall) if resumed else schedule.mark
                work.set("schedules", key, replace(schedule, paused=paused, mark=mark))
            return schedule is not None

        return committed(self._db, pause)

    def forget_schedule(self, key: str) -> bool:
        return committed(self._db, partial(acts.forget, "schedules", key))

    # ------------------------------------------------------------------------------- published tasks

    def publish(self, tasks: Sequence[PublishedTask]) -> None:
        def publish(tasks: Sequence[PublishedTask], work: Work) -> list[None]:
            work.fields("published", [task.name for task in tasks])
            for task in tasks:
                if not task.is_same(work.field("published", task.name, PublishedTask)):
                    work.set("published", task.name, replace(task, published_at=work.now.wall))
            return []

        self._in_pages(tasks, publish)

    def published(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        found = self._read.table("published", PublishedTask, names)
        return [found[name] for name in sorted(found)]

    def forget_task(self, name: str) -> bool:
        return committed(self._db, partial(acts.forget, "published", name))

    # ---------------------------------------------------------------------------------- the read side

    def get(self, job_id: str) -> Job | None:
        found = self._read.rows([job_id])
        return found[0] if found else None

    def find(self, where: Filter) -> list[Job]:
        return self._read.find(where)

    def counts(self) -> dict[str, dict[State, int]]:
        return self._read.counts()

    def errors(self, since: float, task: str | None = None, limit: int = 1000) -> list[ErrorGroup]:
        return self._read.errors(since, task, limit)

    def journal(
        self,
        job_id: str | None = None,
        kinds: Sequence[str] = (),
        limit: int = 1000,
        *,
        since: float | None = None,
        before: int | None = None,
    ) -> list[Event]:
        return self._read.journal(job_id, kinds, limit, since, before)

    def journals(self, job_ids: Sequence[str], limit: int) -> dict[str, list[Event]]:
        return self._read.journals(job_ids, limit)

    def workers(self, gone: bool = False) -> list[Worker]:
        found, enrolled, text = self._db.ask(
            ("HGETALL", "workers"), ("ZRANGE", "enrolled", 0, -1), ("HGET", "meta", "orders")
        )
        known = {name.decode(): row for name, row in pairs(found)}
        standing = [] if text is None else decode(text, list[Order])
        listed: list[Worker] = []
        for name in names_of(enrolled):
            try:
                worker = decode(known[name], Worker) if name in known else None
            except msgspec.DecodeError as error:
                row_json.log_once(f"the row of worker {name} cannot be read and is left out: {error}")
                continue
            if worker is not None and (gone or worker.gone_at is None):
                listed.append(worker)
        held = self._db.ask(*(("SCARD", f"held:{worker.id}") for worker in listed)) if listed else []
        return [
            replace(one, running=running, tasks=None)
            if one.gone_at is not None
            else replace(one, running=running, order=orders.in_force(standing, one))
            for one, running in zip(listed, held, strict=True)
        ]

    def orders(self) -> list[Order]:
        text = self._db.ask(("HGET", "meta", "orders"))[0]
        standing: list[Order] = [] if text is None else decode(text, list[Order])
        return sorted(standing, key=lambda order: order.name)

    def recent(self, worker_ids: Sequence[str]) -> dict[str, Recent]:
        return self._read.table("recent", Recent, worker_ids)

    def paused(self) -> list[str]:
        wall = self._db.moment().wall
        return [queue.name for queue in self.queues() if queue.is_paused(wall)]

    def queues(self) -> list[Queue]:
        found, booked, grouped = self._db.ask(("HGETALL", "queues"), ("HGETALL", "booked"), ("SMEMBERS", "grouped"))
        known: dict[str, Queue] = {name.decode(): decode(row, Queue) for name, row in pairs(found)}
        for queue in names_of(grouped):
            known[queue] = replace(known.get(queue) or Queue(name=queue), grouped=True)
        marks = {name.decode(): float(at) for name, at in pairs(booked)}
        for queue in marks.keys() & known.keys():
            known[queue] = replace(known[queue], booked_until=marks[queue])
        return [known[name] for name in sorted(known)]

    def places(self, queue: str, group: str | None = None) -> Places:
        of_queue = self._read.sets([State.RUNNING], queue)
        of_group = f"pg:{queue}{NUL}{group}"
        in_group, *sizes = self._db.ask(("SCARD", of_group), *(("ZCARD", each) for each in of_queue))
        return Places(sum(sizes), 0 if group is None else in_group)

    def unserved(self, queues: Sequence[str], tasks: Sequence[str]) -> Mapping[str, int]:
        wall = repr(self._db.moment().wall)
        names = list(dict.fromkeys(queues))
        lanes = self._db.ask(*(("ZRANGE", f"d:{name}", "-inf", wall, "BYSCORE") for name in names)) if names else []
        found = Counter[str]()
        for name, paths in zip(names, lanes, strict=True):
            for path in names_of(paths):
                task = path.split(NUL)[2]
                left = UNSERVED_MAX - found.total()
                if task not in tasks and left > 0:
                    found[task] += min(left, self._db.ask(("ZCOUNT", f"l:{name}{NUL}{path}", "-inf", wall))[0])
        return found

    # ------------------------------------------------------------------------------------ hints and house

    def due(self, queues: Sequence[str], tasks: Sequence[str], *, sleeps: bool = False) -> float | None:
        if sleeps:
            self._liveness.start()
        wall, names = self._db.moment().wall, list(dict.fromkeys(queues))
        if not names:
            return None
        set_for = {queue.name: queue for queue in self.queues()}
        opens = {name: set_for[name].opens_at(wall) if name in set_for else 0.0 for name in names}
        found = [
            max(at, opened)
            for name in names
            if (opened := opens[name]) is not None and (at := self._first(name, tasks)) is not None
        ]
        return min(found, default=None)

    def _first(self, queue: str, tasks: Sequence[str]) -> float | None:
        """Return when the first ready job of these tasks is due."""
        skip = 0
        while page := self._db.ask(("ZRANGE", f"d:{queue}", skip, skip + AT_ONCE - 1, "WITHSCORES"))[0]:
            for path, at in scored(page):
                if path.decode().split(NUL)[2] in tasks:
                    return float(at)
            skip += AT_ONCE
        return None

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
        number = self._db.run("commit_more" if durably else "commit", rows.packed([]), rows.packed([]))[1]
        log.debug("%s takes writes (%d)", self.url, number)

    def standing(self, worker_id: str, known: Sequence[str], settled: Lease | None) -> Standing:
        workers = {worker.id: worker for worker in self.workers(gone=True)}
        jobs = {each.job.id: each.job for each in self._read.stored([*known, *([settled.job_id] if settled else [])])}
        meta = {name.decode(): text.decode() for name, text in pairs(self._db.ask(("HGETALL", "meta"))[0])}
        job = jobs.get(settled.job_id) if settled is not None else None
        newest = self._db.run("newest", "+inf", 2, *sets)[1::2] if (sets := self._read.sets()) else []
        doubts, incarnation = self._db.ask(("HLEN", "doubts"))[0], int(meta["incarnation"])
        if incarnation > self._incarnation:  # a person has accepted the store as it is
            self._incarnation, self._db.forgotten = incarnation, self._db.forgotten if not self._incarnation else 0
        return Standing(
            schema=int(meta["schema"]),
            works_with=int(meta.get("works_with", SCHEMA)),
            identity=meta["epoch"],
            at=self._db.moment().wall,
            incarnation=incarnation,
            accepted_at=float(meta["accepted_at"]),
            removals=int(meta["removals"]),
            beats=workers[worker_id].beats if worker_id in workers else None,
            beats_of_all=sum(each.beats + 1 for each in workers.values()),
            newest=heapq.nlargest(2, names_of(newest)),
            missing=[job_id for job_id in known if job_id not in jobs],
            runs_again=job is not None and job.state is State.RUNNING and job.lease == settled,
            doubts=doubts,
            forgotten=self._db.forgotten,
        )

    def doubt(self, seen: int, doubt: Doubt) -> None:
        def note(work: Work) -> None:
            name = f"{doubt.evidence}{NUL}{doubt.worker}"
            if int(work.field("meta", "incarnation")) == seen and work.field("doubts", name) is None:
                work.set("doubts", name, replace(doubt, at=work.now.wall))

        committed(self._db, note)

    def doubts(self) -> list[Doubt]:
        return sorted(self._read.table("doubts", Doubt, None).values(), key=lambda doubt: doubt.at)

    def accept(self, seen: int, actor: str, note: str | None) -> int:
        def accept(work: Work) -> int:
            number = int(work.field("meta", "incarnation"))
            if number != seen:
                return number
            work.do("UNLINK", "doubts")
            work.do("HSET", "incarnations", str(number + 1), encode([work.now.wall, actor, note]))
            work.set("meta", "incarnation", number + 1)
            work.field("meta", "accepted_at")
            work.set("meta", "accepted_at", work.now.wall)
            return number + 1

        return committed(self._db, accept)

    def schema(self) -> Schema:
        found, works_with = self._db.look(("HMGET", "meta", "schema", "works_with"))[0]
        return Schema(int(found or 0), SCHEMA, int(works_with or found or 0))

    def migrate(self) -> Schema:
        self._db.check_server()
        schema = self.schema()
        if schema.is_too_new:
            raise schema_too_new(self.url, schema)
        if schema.found == 0:
            if self._db.epoch:
                raise StoreLost(f"{self.url} was emptied: the store {self._db.epoch} is not there any more")
            if not self._create:
                raise StoreMissing(f"there is no store at {self.url}; run holdfast db init")
            self._db.run("migrate", new_id(), SCHEMA, first=True)
            log.info("made a new, empty store at %s", self.url)
        self._db.ask()
        return schema

    def missing(self) -> list[str]:
        return []

    def check(self) -> list[str]:
        return check.found_wrong(self._db, self._read)

    def condition(self) -> RedisFacts:
        """Say what is known of the server and of our keys."""
        return facts_of(self._db, self._read.sets())

    def close(self) -> None:
        self.wake()
        self._liveness.close()
        self._db.close()

    # ---------------------------------------------------------------------------- workflows

    def record(self, records: Sequence[Record]) -> list[Reply]:
        if not records:
            return []
        for each in records:
            check_size(len(each.jobs) + len(each.steps) + len(each.sent), "one step of a workflow writes", "rows")
        point("record.before")
        answers = [committed(self._db, partial(acts.record, record)) for record in records]
        point("record.after")
        self.wake()
        return answers

    def steps(self, job_id: str, after: int = 0, limit: int = 1000, *, aside: bool = False) -> list[Step]:
        known = Work(self._db).all_steps(job_id).values()
        wanted = [step for step in known if step.position > after and (aside or not step.aside)]
        return sorted(wanted, key=lambda step: (step.position, step.aside))[:limit]

    def signal(self, signal: Signal) -> Reply:
        def send(work: Work) -> Reply:
            if work.field(f"sg:{signal.job_id}", signal.id) is not None:
                return Reply.ALREADY
            if not work.takes(signal):
                return Reply.GONE
            work.deliver(signal)
            return Reply.ACCEPTED

        answer = committed(self._db, send)
        self.wake()
        return answer

    def inbox(self, job_id: str, name: str | None = None, limit: int = 1000) -> Inbox:
        work = Work(self._db)
        job = work.job(job_id)
        waiting = [entry.signal for entry in work.signals(job_id).values() if entry.taken is None]
        wanted = [signal for signal in waiting if name in (None, signal.name)]
        return Inbox(job.inbox if job is not None else 0, wanted[:limit])

    def wake_due(self, limit: int = 500) -> float | None:
        wall, left = repr(self._db.moment().wall), limit
        while left > 0:
            page = ("LIMIT", 0, min(AT_ONCE, left))
            due = names_of(self._db.ask(("ZRANGE", "waits", "-inf", wall, "BYSCORE", *page))[0])
            if not due:
                break
            committed(self._db, partial(acts.wake, due))
            left -= len(due)
        if left < limit:
            self.wake()
        first = self._db.ask(("ZRANGE", "waits", 0, 0, "WITHSCORES"))[0]
        return float(first[1]) if first else None

    def expired(self, limit: int = 500) -> list[Job]:
        wall = self._db.moment().wall
        found = self._read.until("expiries", wall, limit)
        return [each.job for each in found if each is not None and each.job.is_expired(wall)]

    def dependents(self, on: Sequence[str] | None = None, after: str = "", limit: int = 1000) -> list[Dependent]:
        return self._read.dependents(on, after, limit)

    def due_waits(self) -> list[DueWaits]:
        wall = repr(self._db.moment().wall)
        page = ("LIMIT", 0, DUE_WAITS_MAX)
        jobs = self._read.rows(names_of(self._db.ask(("ZRANGE", "waits", "-inf", wall, "BYSCORE", *page))[0]))
        found: dict[tuple[str, str], list[float]] = {}
        for job in jobs:
            if job.wake_at is not None:
                found.setdefault((job.queue, job.task), []).append(job.wake_at)
        return [DueWaits(*key, len(times), min(times)) for key, times in sorted(found.items())]

    def fork(self, new: NewJob, source: str, seen_fence: int, before: int, event: NewEvent) -> Added | None:
        def fork(work: Work) -> Added | None:
            work.load([source, new.id])
            old = work.job(source)
            is_as_seen = old is not None and old.state in ENDED and old.fence == seen_fence
            if not is_as_seen and work.job(new.id) is None:
                return None
            [added] = work.add([new])
            if not added.existed:
                for step in work.all_steps(source).values():
                    if not step.aside and step.position < before and step.state == "recorded":
                        work.put_step(new.id, replace(step, fence=0, attempt=0, has_undo=False))
                work.event(new.id, event, 0, None)
            return added

        answer = committed(self._db, fork)
        self.wake()
        return answer


def _claimed(found: Sequence[Any]) -> list[Job]:
    read = [rows.read(found[at].decode(), *found[at + 1 : at + 4]) for at in range(0, len(found), 4)]
    return [each.job for each in read if each is not None]
