"""The PostgreSQL store: the verbs of `stores/protocol.py` over `queries.sql`."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from psycopg import errors

from holdfast.clock import Clock, SystemClock
from holdfast.core.acts import Move
from holdfast.core.continuity import Doubt, Standing
from holdfast.core.dependencies import Dependent
from holdfast.core.error_fingerprint import ErrorGroup, slot_of
from holdfast.core.limits import Places, Queue, Setting, with_pause, with_setting
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
from holdfast.core.settlement import Settlement, stale_report
from holdfast.core.transitions import ABANDONED_S, DECLARED_S, RENEW_S
from holdfast.core.worker_exit import WorkerExit, gone
from holdfast.errors import (
    OutcomeUnknown,
    Refused,
    StoreError,
    StoreLocked,
    StoreLost,
    StoreMissing,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
    WorkerGone,
)
from holdfast.failpoints import point
from holdfast.stores import row_json
from holdfast.stores.postgres import acts, keys, statements
from holdfast.stores.postgres.batches import PostgresBatches
from holdfast.stores.postgres.caller_connection import Callers
from holdfast.stores.postgres.claim_cursor import ClaimCursor
from holdfast.stores.postgres.connection import (
    BEAT_S,
    BULK,
    PROOF,
    Connections,
    Cursor,
    Limits,
    Options,
)
from holdfast.stores.postgres.copying import PostgresTables
from holdfast.stores.postgres.editor import Editor
from holdfast.stores.postgres.facts import PostgresFacts
from holdfast.stores.postgres.figures import PostgresFigures
from holdfast.stores.postgres.liveness import LivenessSession
from holdfast.stores.postgres.purge import Purge, referred_to
from holdfast.stores.postgres.records import send, write_records
from holdfast.stores.postgres.tokens import PostgresTokens
from holdfast.stores.postgres.transaction import PostgresTransaction, Sessions
from holdfast.stores.postgres.turns import Turns, earliest_of_all
from holdfast.stores.postgres.wakeup_sender import LOOK_AGAIN_S, WORTH_COUNTING, WakeupSender
from holdfast.stores.protocol import Added, Fired, Reply, Schema, duty_lost, schema_too_new
from holdfast.stores.rounds import once
from holdfast.stores.sql import Pages, advance, load_migrations, migrate_by, tables_of
from holdfast.stores.wakeups import Wakeups

log = logging.getLogger("holdfast.stores")

_MIGRATIONS = load_migrations("holdfast.stores.postgres")
_TABLES = tables_of(_MIGRATIONS)
_CLOCK_S = 5.0  # how long the difference to the server's clock is believed


class PostgresStore:
    """One schema of a database, many machines. See `stores/protocol.py: Store` for every promise."""

    commits_may_hang = True
    look_s = 0.5  # half as often as on the same host: the grace of a session is what takes the time
    row_locks = True
    is_served = False
    hints_of_work = True
    add_at_once = 10_000
    add_max: int | None = None

    def __init__(self, url: str, *, clock: Clock | None = None, create: bool = True, bulk: bool = False) -> None:
        options = Options.parse(url)
        self.url = options.shown
        self.confirm_s = options.session_grace_s
        self._create = create
        self._fake = clock if clock is not None and not isinstance(clock, SystemClock) else None
        self._clock: Clock = clock or SystemClock()
        self._db = Connections(options)
        if bulk:
            self._db.limits = BULK
        self._hot = Connections(options, often=True)  # what a worker asks for all the time never waits for the rest
        self._db.twin, self._hot.twin = self._hot, self._db
        self._callers = Callers(self._db)
        self.tokens = PostgresTokens(self._db)
        self.figures = PostgresFigures(self._db, self._wall)
        self._sessions = Sessions(self._db)
        self._ahead: tuple[float, float] | None = None  # the server's clock minus ours, and when that was measured
        self._hints = Wakeups()
        self._claim_cursor = ClaimCursor()
        self._turns = Turns(self._db, self._hot)
        self.tables = PostgresTables(self._db, self._turns, self._wall)
        self._unanswered: dict[str, float] = {}  # claims without an answer yet -> when each was last sent
        self._claim_try = 0  # rises when a claim is sent again
        self._batches = 0
        self._beat_s = BEAT_S  # the shortest of this process
        self._identity: str | None = None  # of the tables that our workers were enrolled in
        server = self._db if options.direct is None else Connections(options.to_server())
        self._liveness = LivenessSession(server, self._hear)
        self._sender = WakeupSender(self._db, self._clock)
        self.batches = PostgresBatches(self._db, self._wall, self._turns.note_groups, self._tell_of)
        self._asleep: set[str] = set()  # the queues for which this process has said that it sleeps
        self._serves: set[str] = set()  # those that it has ever said it for
        self._heard = 0  # how many hints
        self._said = threading.local()  # whether this thread has just said so
        self._purge = Purge(self._db, self._clock)
        _forks.add(self)

    @property
    def connections_made(self) -> int:
        return self._hot.made

    def now(self) -> Moment:
        return once(id(self), self._now)

    def _now(self) -> Moment:
        if self._fake is not None:
            return Moment(self._fake.wall(), self._fake.lease())
        local = self._clock.lease()
        if self._ahead is None or local - self._ahead[1] > _CLOCK_S:
            try:
                self._ahead = self._hot.one("now")[0] / 1e6 - self._clock.lease(), local
            except StoreUnavailable:  # the difference that was known is good enough until the server is back
                if self._ahead is None:
                    raise
                self._ahead = self._ahead[0], self._clock.lease()
        server = self._clock.lease() + self._ahead[0]
        return Moment(server, server)

    # ---------------------------------------------------------------------------- the life of a job

    def add(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Added]:
        if not jobs:
            return []
        point("add.before")
        self._turns.note_groups(jobs)
        if connection is not None:
            with self._callers.joined(connection, jobs, self._committed_elsewhere) as joined:
                add = keys.add if has_keyed(jobs) else statements.add
                answers = add(self._db, joined, jobs, self._wall())
        else:
            answers = self._add(jobs)
            self.wake()
        point("add.after")
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
        values: dict[str, Any] = {"worker": worker_id, "claim_id": claim_id, **self._instants()}
        values |= {"queues": list(dict.fromkeys(queues)), "tasks": list(tasks), "try": self._claim_try}
        now = self._clock.lease()
        point("claim.before")

        def claim(db: Cursor) -> list[Job] | None:
            if claim_id in self._unanswered:
                self._claim_try += 1
                values["try"] = self._claim_try
                self._shut_out_earlier_tries(db, values, self._unanswered[claim_id])
            self._unanswered[claim_id] = self._clock.lease()
            return statements.claim(self._hot, db, self._claim_cursor, self._turns, now, values, limit, ahead)

        try:
            jobs = self._hot.run(claim)
        except StoreTimeout:
            if limit + ahead < 2:
                raise
            return self.claim(worker_id, claim_id, queues, tasks, (limit + 1) // 2, ahead // 2)
        self._unanswered.pop(claim_id, None)
        self._keep_beat(job.beat_s for job in jobs or ())
        if jobs:
            self._asleep.clear()  # the next sleep is another one
        point("claim.after")
        if jobs is None:
            raise WorkerGone(f"worker {worker_id} is not enrolled or was declared dead")
        return jobs

    def _shut_out_earlier_tries(self, db: Cursor, values: dict[str, Any], sent_at: float) -> None:
        """Wait for the tries of a claim that the server still works on, and have later ones refused."""
        try:
            with db.connection.transaction():
                db.execute(self._db["claim_again"], values, prepare=False)
        except errors.LockNotAvailable:
            if self._clock.lease() - sent_at <= self._hot.limits.statement_s:
                raise
            # The server has ended every try of ours: another transaction has locked the row. Late tries skip a locked
            # row.

    def beat(
        self,
        worker_id: str,
        pulses: Sequence[Pulse],
        rss_mb: float | None = None,
        *,
        stopping: bool = False,
        recent: Recent | None = None,
    ) -> BeatReply:
        rows = row_json.encode([row_json.pulse(pulse) for pulse in pulses]).decode()
        point("beat.before")
        said = {"worker": worker_id, "pulses": rows, "rss_mb": rss_mb, "stopping": stopping}
        news = None if recent is None else row_json.encode(recent).decode()
        values = {**said, "recent": news, "row_locked": False, **self._instants()}
        try:
            row = self._hot.one("beat", values)
        except StoreLocked:  # the worker's row: its leases must not end for that
            values["row_locked"] = True
            row = self._hot.one("beat", values)
        enrolled, stale, skipped, cancelled, order = row
        if not enrolled:
            return BeatReply(gone=True)
        lost = row_json.rows_from(stale)
        events = [
            line
            for job_id, fence, state, fence_now in lost
            if state is not None
            for line in row_json.journal_lines(job_id, fence, worker_id, (stale_report(state, fence_now),))
        ]
        with _later("write down which attempts have lost their leases"):
            self._write_events(events)
        return BeatReply(
            lost=[job_id for job_id, *_ in lost],
            skipped=row_json.names_from(skipped),
            cancelled=row_json.names_from(cancelled),
            counted=not values["row_locked"],
            order=row_json.order_from(order),
        )

    def settle(self, settlements: Sequence[Settlement], under: Duty | None = None) -> list[Reply]:
        if not settlements:
            return []
        point("settle.before")
        answers = self._hot.run(lambda db: statements.settle(self._hot, db, settlements, self._wall(), under))
        self._batches += 1
        if self._batches % statements.FOLD_EVERY == 0:
            with _later("add up the counts of ended jobs"):
                self._db.run(lambda db: statements.fold(self._db, db, self._wall()), self._hot.limits)
        self.wake()
        point("settle.after")
        return answers

    @contextlib.contextmanager
    def transaction(self, lease: Lease, max_s: float) -> Iterator[PostgresTransaction]:
        transaction = PostgresTransaction(self._sessions, lease, max_s, self._wall)
        try:
            yield transaction
        finally:
            transaction.rollback()

    # ------------------------------------------------------------------------------ finding the dead

    def overdue(self, grace_s: float = 0.0, limit: int = 500, skip: int = 0) -> list[Job]:
        values: dict[str, Any] = {**self._instants(), "grace": grace_s, "limit": limit, "skip": skip}
        while (page := self._hot.one("overdue", values))[0] != "[]":
            if jobs := row_json.jobs_from(page[0]):
                ends = row_json.floats_from(page[1])
                if self._ahead is not None:  # the judge asks the server's clock again: it may have been set
                    self._ahead = self._ahead[0], float("-inf")
                return [msgspec.structs.replace(job, lease_until=ends[job.id]) for job in jobs]
            values["skip"] += limit  # not one of them can be read; those behind them must not suffer
        return []

    def locked(self, job_ids: Sequence[str]) -> list[str]:
        return row_json.names_from(self._hot.one("locked", {"ids": list(job_ids)})[0])

    def ghosts(self, queues: Sequence[str]) -> list[Job]:
        return self._turns.ghosts(queues, self._instants())

    def deadline(self) -> float | None:
        earliest: float | None = self._hot.one("deadline")[0]
        return earliest

    def stands_by(self) -> Standby | None:
        return self._liveness.stands_by() if self._fake is None else None

    def vanished(self) -> list[Vanished]:
        role, watches = self._liveness.dead, self._liveness.watches()
        found, number = self._hot.one("vanished", {"watch": watches, "does": watches and role.is_ours})
        role.looked(number)
        return [
            Vanished(worker, "session" if worker.gone_at is None else "gone")
            for worker, _ in row_json.workers_from(found)
        ]

    def holds_lock(self, worker_id: str) -> bool:
        return self._liveness.holds(worker_id)

    def enroll(self, worker: Worker) -> None:
        self._keep_beat([worker.beat_s])
        values = {
            **{name: getattr(worker, name) for name in ("id", "name", "host", "pid", "boot_id", "supervisor")},
            **{name: getattr(worker, name) for name in ("slots", "beat_s", "version", "release")},
            "queues": row_json.encode(worker.queues).decode(),
            "tasks": row_json.published(worker),
            "schema": len(_MIGRATIONS),
            "wall": self._wall(),
            "server": None if worker.is_remote else self._liveness.hold(worker.id),
        }
        tries = itertools.count(1)

        def write(db: Cursor) -> None:
            number = next(tries)
            try:
                db.execute(self._db["enroll"], values, prepare=False)
            except errors.UniqueViolation:
                if number == 1:
                    raise
                # Otherwise the try before has written it, and its answer was lost.

        try:
            if (schema := self.schema()).is_too_new:
                raise schema_too_new(self.url, schema)
            self._check_same()
            self._db.run(write)
        except BaseException as error:  # every new try has a new id, and would leave one more lock behind
            self._liveness.drop(worker.id)
            if isinstance(error.__cause__, errors.UniqueViolation):
                raise Refused(f"worker {worker.id} is enrolled already; every start of a worker has a new id") from None
            raise

    def retire(self, worker_id: str, cause: str, under: Duty | None = None, how: WorkerExit | None = None) -> bool:
        values = {"worker": worker_id, "wall": self._wall(), "kept_s": GONE_KEPT_S, **gone(cause, how)}
        values |= statements.duty_token(under)
        allowed, marked = self._hot.one("retire", values)
        if not allowed:
            raise duty_lost(under)
        self._liveness.drop(worker_id)
        return bool(marked)

    def acquire(self, name: str, holder: str, ttl_s: float, note: str | None = None) -> Duty | None:
        values = {"name": name, "holder": holder, "ttl": ttl_s, "note": note, **self._instants()}
        row = self._hot.one("acquire", values)
        return Duty(name, holder, *row) if row is not None else None

    def resign(self, duty: Duty, note: str | None = None) -> bool:
        values = {"name": duty.name, "holder": duty.holder, "term": duty.term, "note": note}
        return self._db.run(lambda db: db.execute(self._db["resign"], values, prepare=False).rowcount == 1)

    def duties(self) -> list[Duty]:
        return [Duty(*row) for row in row_json.rows_from(self._hot.one("duties", {})[0])]

    # --------------------------------------------------------------------------- the operator's door

    def move(self, moves: Sequence[Move]) -> list[Reply]:
        answers = self._moved(moves)
        self.wake()
        return answers

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
        change = functools.partial(with_pause, paused=paused, group=group, until=until)
        self._turns.set_queue(queue, change, actor, note, self._wall())

    def limit(
        self,
        queue: str,
        setting: Setting,
        *,
        declared: bool = False,
        actor: str | None = None,
        note: str | None = None,
    ) -> None:
        change = functools.partial(with_setting, setting=setting, declared=declared)
        self._turns.set_queue(queue, change, actor, note, self._wall())

    def order(self, name: str, act: OrderAct | None, *, actor: str | None = None, note: str | None = None) -> bool:
        return self._db.run(lambda db: acts.order(self._db, db, name, act, actor, note, self._wall()))

    def purge(self, states: Sequence[State], before: float, limit: int = 1000, under: Duty | None = None) -> int:
        values = {"states": [state.value for state in states], "before": before, "limit": limit}
        allowed, deleted = self._purge.page(values | statements.duty_token(under))
        if not allowed:
            raise duty_lost(under)
        return deleted

    def purge_keys(self, after: str = "", limit: int = 1000) -> str | None:
        values = {"after": after, "limit": limit, "wall": self._wall()}
        last: str | None = self._db.one("keys_purged", values)[0]
        return last

    def delete(self, jobs: Sequence[Seen], act: NewEvent | None = None) -> list[Reply]:
        try:
            return self._db.run(lambda db: acts.delete(self._db, db, jobs, act, self._wall()), self._hot.limits)
        except StoreError as error:
            if isinstance(error, StoreLocked | StoreTimeout) and len(jobs) > 1:
                return acts.in_halves(functools.partial(self.delete, act=act), jobs)
            if isinstance(error, StoreLocked):
                return [Reply.LOCKED]
            if isinstance(error.__cause__, errors.ForeignKeyViolation):
                which = f"job {jobs[0].job_id}" if len(jobs) == 1 else f"one of {len(jobs)} jobs"
                raise Refused(f"{which} cannot be deleted: {referred_to(error.__cause__)}") from error
            raise

    def note_act(self, act: NewEvent) -> None:
        lines = row_json.journal_lines("", 0, None, (act,))
        self._db.run(lambda db: statements.write_events(self._db, db, lines, self._wall()))

    def audit(
        self, limit: int = 1000, *, since: float | None = None, before: int | None = None, actor: str | None = None
    ) -> list[Event]:
        values = {"limit": limit, "since": since, "before": before, "actor": actor}
        return row_json.events_from(self._db.one("audit", values)[0])

    # ---------------------------------------------------------------------------------- the read side

    def get(self, job_id: str) -> Job | None:
        if "\x00" in job_id:
            return None  # the server knows no such text
        found = row_json.jobs_from(self._db.one("get", {"id": job_id})[0])
        return found[0] if found else None

    def find(self, where: Filter) -> list[Job]:
        states = [state.value for state in where.states or State]
        values: dict[str, Any] = {**msgspec.structs.asdict(where), "states": states, "ready": State.READY in states}
        values["ended"] = [state for state in states if state in ENDED]
        values["others"] = [state for state in states if state not in ENDED and state != State.READY]
        values["ids"] = list(where.ids) if where.ids is not None else None
        values["of_errors"] = where.of_errors
        values |= row_json.labels(where)
        values["prefix_end"] = None if where.prefix is None else row_json.end_of(where.prefix)
        rare = (where.ids, where.worker, where.key, where.cancel_requested, where.prefix)
        few = where.of_errors or any(each is not None for each in rare)
        if not few and (where.workflow or where.asking):  # only a workflow asks
            return row_json.jobs_from(self._db.one("find_workflows", values)[0])
        few = few or (where.workflow, where.asking) != (None, None)
        return row_json.jobs_from(self._db.one("find_these" if few else "find", values)[0])

    def counts(self) -> dict[str, dict[State, int]]:
        result: dict[str, dict[State, int]] = {}
        for queue, state, jobs in row_json.rows_from(self._db.one("counts")[0]):
            result.setdefault(queue, {})[State(state)] = jobs
        return result

    def errors(self, since: float, task: str | None = None, limit: int = 1000) -> list[ErrorGroup]:
        values = {"slot": slot_of(since), "task": task, "limit": limit}
        return row_json.error_groups_from(self._db.one("errors", values)[0])

    def journal(
        self,
        job_id: str | None = None,
        kinds: Sequence[str] = (),
        limit: int = 1000,
        *,
        since: float | None = None,
        before: int | None = None,
    ) -> list[Event]:
        values = {"job_id": job_id, "since": since, "before": before, "limit": limit, "kinds": list(kinds) or None}
        query = "journal_all" if job_id is None else "journal"
        return row_json.events_from(self._db.one(query, values)[0])

    def journals(self, job_ids: Sequence[str], limit: int) -> dict[str, list[Event]]:
        values = {"job_ids": list(job_ids), "limit": limit}
        return row_json.events_by_job(self._db.one("journals", values)[0])

    def workers(self, gone: bool = False) -> list[Worker]:
        return [worker for worker, _ in row_json.workers_from(self._db.one("workers", {"gone": gone})[0])]

    def orders(self) -> list[Order]:
        return row_json.orders_from(self._db.one("orders")[0])

    def recent(self, worker_ids: Sequence[str]) -> dict[str, Recent]:
        return row_json.recent_from(self._db.one("recent", {"workers": list(worker_ids)})[0])

    def paused(self) -> list[str]:
        return row_json.names_from(self._db.one("paused", {"wall": self._wall()})[0])

    def queues(self) -> list[Queue]:
        return row_json.queues_from(self._db.one("queues", {"queue": None})[0])

    def places(self, queue: str, group: str | None = None) -> Places:
        return Places(*self._db.one("places", {"queue": queue, "grp": group}))

    def unserved(self, queues: Sequence[str], tasks: Sequence[str]) -> Mapping[str, int]:
        values = {"queues": list(queues), "tasks": list(tasks), "wall": self._wall()}
        return row_json.counts_from(self._db.one("unserved", values)[0])

    # ------------------------------------------------------------------------------------ hints and house

    def due(self, queues: Sequence[str], tasks: Sequence[str], *, sleeps: bool = False) -> float | None:
        lanes, heard = self._claim_cursor.lanes(self._clock.lease()), self._heard
        says = sleeps and not self._asleep.issuperset(queues)
        if says:
            self._serves.update(queues)  # from now on hints for them are heard
            self._liveness.start()
        values = {"queues": list(queues), "tasks": list(tasks), "lanes": lanes, "sleeps": says, "wall": self._wall()}
        earliest, slept, server, set_for, earliest_of = self._hot.one("due", values)
        self._ahead = server / 1e6 - self._clock.lease(), self._clock.lease()
        if slept is not None and heard == self._heard:
            self._asleep.update(queues)
            self._said.just_now = True
        found: float | None = earliest
        return found if set_for is None else earliest_of_all(found, set_for, earliest_of, self.now().wall)

    def wait(self, timeout_s: float) -> bool:
        self._liveness.start()
        if getattr(self._said, "just_now", False):
            self._said.just_now = False
            timeout_s = min(timeout_s, LOOK_AGAIN_S)
        return self._hints.wait(self._clock, timeout_s)

    def wake(self) -> None:
        self._hints.wake()

    def is_woken(self) -> bool:
        return self._fake is None and self._liveness.is_woken()

    def wake_sleepers(self) -> bool:
        role = self._liveness.due
        if self._fake is not None or not role.is_ours:
            return False
        asked_at = self._clock.lease()
        found, slept, number = self._hot.one("wake_sleepers", {"limit": WORTH_COUNTING})
        role.looked(number)
        self._sender.are_due({queue: due for queue, *due in row_json.rows_from(found)}, slept, asked_at)
        return True

    def _hear(self, news: str | None) -> None:
        """Take the news for all listeners: the queue of a new job, or where jobs have come back; "" is any other
        change, None: we may have missed some."""
        if news is not None and news[:1] == '"' and not self._is_ours(news):
            return
        self._heard += 1
        self._asleep.clear()  # only now: who sent this believes that we are awake
        with contextlib.suppress(msgspec.DecodeError):  # anybody may tell anything
            self._claim_cursor.come_back(news)
        self.wake()

    def _is_ours(self, queue: str) -> bool:
        """Say whether a worker of this process serves the queue; if it has none, whatever is new may be for it."""
        try:
            return not self._serves or msgspec.json.decode(queue, type=str) in self._serves
        except msgspec.DecodeError:
            return True

    def stop_waking(self) -> None:
        self._liveness.stop_waking()

    def ping(self, *, durably: bool = False) -> None:
        if durably:
            self._hot.run(lambda db: db.execute(self._hot["ping_durably"], prepare=False), PROOF)
        else:
            self._hot.run(lambda db: db.execute(self._hot["ping"]))

    def standing(self, worker_id: str, known: Sequence[str], settled: Lease | None) -> Standing:
        values = {"worker": worker_id, "known": list(known), "wall": self._wall()}
        return row_json.standing_from(self._hot.one("standing", values | row_json.lease_token(settled)))

    def doubt(self, seen: int, doubt: Doubt) -> None:
        values = msgspec.structs.asdict(doubt) | {"incarnation": seen, "wall": self._wall()}
        self._db.run(lambda db: db.execute(self._db["doubt"], values, prepare=False))

    def doubts(self) -> list[Doubt]:
        return [Doubt(*row) for row in row_json.rows_from(self._db.one("doubts")[0])]

    def accept(self, seen: int, actor: str, note: str | None) -> int:
        return int(self._db.one("accept", {"seen": seen, "actor": actor, "note": note, "wall": self._wall()})[0])

    def schema(self) -> Schema:
        return self._db.run(self._schema)

    def migrate(self) -> Schema:
        found = self.schema()
        if found.found == 0 and not self._create:
            raise StoreMissing(f"there is no store at {self.url} (schema {self._db.options.schema})")
        if found.is_stale:
            migrate_by(lambda pages: self._db.run(lambda db: self._migrates(db, pages)))
        if found.is_too_new:
            raise schema_too_new(self.url, found)
        return found

    def missing(self) -> list[str]:
        values = {"schema": self._db.options.schema, "tables": list(_TABLES)}
        gone = row_json.names_from(self._db.one("missing", values)[0])
        return gone if len(gone) < len(_TABLES) else []

    def check(self) -> list[str]:
        if gone := self.missing():
            return [f"the table {self._db.options.schema}.{name} is missing" for name in gone]
        return self.orphans()

    def orphans(self) -> list[str]:
        """Name the running jobs whose worker's row another program has removed. They are recovered by their lease."""
        found = row_json.rows_from(self._db.one("check")[0])
        return [f"job {job_id} runs under worker {worker}, which has no row" for job_id, worker in found]

    def condition(self) -> PostgresFacts:
        """Say what is known of the server and of our tables."""
        found = self._db.one("condition", {"schema": self._db.options.schema})
        if found is None:
            raise StoreMissing(f"{self.url}: there are no tables of Holdfast in schema {self._db.options.schema}")
        return msgspec.json.decode(found[0], type=PostgresFacts)

    def close(self) -> None:
        self._liveness.close()
        self._sessions.close()
        self._db.close()
        self._hot.close()
        self.wake()

    # ------------------------------------------------------------------------------------- parts

    def _add(self, jobs: Sequence[NewJob]) -> list[Added]:
        began, wall, slept = self._clock.lease(), self._wall(), None
        try:
            if has_keyed(jobs):
                answers = self._db.run(lambda db: keys.add(self._db, db, jobs, wall))
            elif len(jobs) == 1 and not jobs[0].awaits:
                answers, slept = self._db.run(lambda db: statements.add_one(self._db, db, jobs[0], wall))
            else:
                answers = self._db.run(lambda db: statements.add(self._db, db, jobs, wall))
        except OutcomeUnknown as error:
            ids = tuple(job.id for job in jobs)
            named = f"{', '.join(ids[:3])}{', …' if len(ids) > 3 else ''}"
            raise OutcomeUnknown(
                f"{error}; the outcome of this enqueue is unknown: it may be stored. To repeat it with the same id is "
                f"safe, and stores nothing twice: using(id=…), id {named}",
                ids,
            ) from error
        self._sender.committed({job.queue for job in jobs}, slept, began)
        return answers

    def _tell_of(self, jobs: Sequence[NewJob]) -> None:
        """Wake workers for jobs that were stored."""
        self._sender.committed({job.queue for job in jobs})
        self.wake()

    def _committed_elsewhere(self, queues: set[str]) -> None:
        self._sender.committed_elsewhere(queues)
        self.wake()

    def _keep_beat(self, beats: Iterable[float]) -> None:
        """Let no verb that a worker lives by wait longer than the shortest beat of this process allows."""
        shortest = min(beats, default=self._beat_s)
        if shortest < self._beat_s:
            self._beat_s = shortest
            self._hot.limits = Limits.hot(shortest)

    def _wall(self) -> float | None:
        """Return the instant of a test's clock; None lets the server's own clock measure."""
        return self._fake.wall() if self._fake is not None else None

    def _instants(self) -> dict[str, float | None]:
        return {"wall": self._wall(), "lease": self._fake.lease() if self._fake is not None else None}

    def _check_same(self) -> None:
        """A schema that was dropped and made again is another store, however healthy it looks."""
        row = self._db.one("identity")
        if row is None or row[0] != (self._identity or row[0]):
            raise StoreLost(
                f"{self.url}: the schema {self._db.options.schema} is not the one that was opened: it was dropped or "
                "restored meanwhile. Look what has become of the jobs, then start this program again"
            )
        self._identity = row[0]

    def _write_events(self, events: list[list[Any]]) -> None:
        if events:
            self._db.run(lambda db: statements.write_events(self._db, db, events, self._wall()))

    def _migrates(self, db: Cursor, pages: Pages) -> float | None:
        """Take one step of a migration in a transaction; see `advance`. None: there is nothing left to do."""
        with db.connection.transaction():
            db.execute(self._db["migrate_lock"], {"schema": self._db.options.schema})
            found = self._schema(db)  # another process may have been first
            if not found.is_stale:
                return None
            if found.found == 0:
                self._make_schema(db)
            db.execute(self._db["migrate_limits"])
            return advance(_MIGRATIONS, found, Editor(self._db, db), self._instants(), pages)

    def _make_schema(self, db: Cursor) -> None:
        """Make the schema, unless it exists."""
        schema = self._db.options.schema
        if self._db.row(db.execute(self._db["migrate_schema_exists"], {"schema": schema}))[0]:
            return
        try:
            with db.connection.transaction():
                db.execute(self._db["migrate_schema"])
        except errors.InsufficientPrivilege as error:
            raise StoreReadOnly(
                f"{self.url}: this user may not create the schema {schema}; let the owner of the database run "
                f"CREATE SCHEMA {schema} AUTHORIZATION <this user>"
            ) from error

    def _schema(self, db: Cursor) -> Schema:
        row = db.execute(self._db["schema_exists"], {"schema": self._db.options.schema}).fetchone()
        if row is None or not row[0]:
            return Schema(0, len(_MIGRATIONS))
        found, works_with = self._db.row(db.execute(self._db["schema"]))
        return Schema(found or 0, len(_MIGRATIONS), works_with or found or 0)

    def _after_fork(self) -> None:
        self._liveness.forget()
        self._sessions.forget()
        self._sender.forget()
        self._hints = Wakeups()

    # ---------------------------------------------------------------------------- schedules

    def declare(self, schedules: Sequence[Schedule], again: bool = False) -> None:
        rows = row_json.encode([row_json.declared(schedule) for schedule in schedules]).decode()
        values = {"schedules": rows, "wall": self._wall(), "renew_s": RENEW_S, "abandoned_s": ABANDONED_S}
        if again:  # said all the time, so on a connection that is there
            self._hot.run(lambda db: db.execute(self._hot["declare_again"], values))
        else:
            self._db.run(lambda db: db.execute(self._db["declare"], values, prepare=False))

    def schedule(self, schedules: Sequence[Schedule]) -> list[Reply]:
        rows = row_json.encode([row_json.declared(schedule) for schedule in schedules]).decode()
        values = {"schedules": rows, "wall": self._wall(), "declared_s": DECLARED_S}
        kept = set(row_json.names_from(self._db.one("schedule", values)[0]))
        return [Reply.ACCEPTED if each.key in kept else Reply.REFUSED for each in schedules]

    def schedules(self, keys: Sequence[str] | None = None) -> list[Schedule]:
        found = self._hot.one("schedules", {"keys": None if keys is None else list(keys)})
        return list(row_json.schedules_from(found[0]))

    def fire(self, firings: Sequence[Firing], under: Duty) -> list[Fired]:
        point("fire.before")
        self._turns.note_groups([each.job for each in firings])
        answers: list[Fired] = [
            answer for part in statements.firing_parts(firings) for answer in self._fire(part, under)
        ]
        point("fire.after")
        self.wake()
        return answers

    def _fire(self, firings: list[Firing], under: Duty) -> list[Fired]:
        rows = [[each.schedule, each.instant, row_json.new_job(each.job)] for each in firings]
        values = {
            "firings": row_json.encode(rows).decode(),
            "wall": self._wall(),
            "lock_ms": statements.KEY_LOCK_MS,
            "channel": self._hot.channel,
            **statements.duty_token(under),
        }
        try:
            allowed, found, _ = self._hot.one("fire", values)
        except (StoreLocked, StoreTimeout):
            return [Reply.LOCKED for _ in firings]
        if not allowed:
            raise duty_lost(under)
        return [
            Reply.LOCKED if locked else Added(job_id, not stored) if job_id is not None else None
            for job_id, stored, locked in row_json.rows_from(found)
        ]

    def pause_schedule(self, key: str, paused: bool) -> bool:
        values = {"key": key, "paused": paused, "wall": self._wall()}
        return self._db.run(lambda db: db.execute(self._db["pause_schedule"], values, prepare=False).rowcount == 1)

    def forget_schedule(self, key: str) -> bool:
        query = self._db["forget_schedule"]
        return self._db.run(lambda db: db.execute(query, {"key": key}, prepare=False).rowcount == 1)

    # ---------------------------------------------------------------------------- published tasks

    def publish(self, tasks: Sequence[PublishedTask]) -> None:
        values = {"tasks": row_json.published_tasks(tasks), "wall": self._wall()}
        self._db.run(lambda db: db.execute(self._db["publish"], values, prepare=False))

    def published(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        found = self._db.one("published", {"names": None if names is None else list(names)})
        return row_json.published_from(found[0])

    def forget_task(self, name: str) -> bool:
        query = self._db["forget_task"]
        return self._db.run(lambda db: db.execute(query, {"name": name}, prepare=False).rowcount) == 1

    # ---------------------------------------------------------------------------- workflows

    def record(self, records: Sequence[Record]) -> list[Reply]:
        if not records:
            return []
        point("record.before")
        self._turns.note_groups([new for record in records for new in record.jobs])
        answers = self._hot.run(lambda db: write_records(self._hot, db, records, self._wall()))
        if any(record.jobs or record.sent for record in records):
            self.wake()
        if children := {new.queue for record in records for new in record.jobs}:
            self._sender.committed(children)
        point("record.after")
        return answers

    def steps(self, job_id: str, after: int = 0, limit: int = 1000, *, aside: bool = False) -> list[Step]:
        values = {"id": job_id, "after": after, "limit": limit, "aside": aside}
        return row_json.steps_from(self._db.one("steps", values)[0])

    def signal(self, signal: Signal) -> Reply:
        answer = self._db.run(lambda db: send(self._db, db, signal, self._wall()))
        self.wake()
        return answer

    def inbox(self, job_id: str, name: str | None = None, limit: int = 1000) -> Inbox:
        row = self._db.one("inbox", {"id": job_id, "name": name, "limit": limit})
        return Inbox(row[0], row_json.signals_from(row[1])) if row is not None else Inbox(0)

    def wake_due(self, limit: int = 500) -> float | None:
        values = {"wall": self._wall(), "limit": limit, "channel": self._hot.channel}
        earliest: float | None = self._hot.one("wake_due", values)[0]
        return earliest

    def expired(self, limit: int = 500) -> list[Job]:
        return row_json.jobs_from(self._db.one("expired", {"wall": self._wall(), "limit": limit})[0])

    def dependents(self, on: Sequence[str] | None = None, after: str = "", limit: int = 1000) -> list[Dependent]:
        values = {"on": None if on is None else row_json.awaited_after(on), "after": after, "limit": limit}
        return row_json.dependents_from(self._db.one("dependents" if on is None else "dependents_on", values)[0])

    def due_waits(self) -> list[DueWaits]:
        return row_json.due_waits_from(self._db.one("due_waits", {"wall": self._wall()})[0])

    def fork(self, new: NewJob, source: str, seen_fence: int, before: int, event: NewEvent) -> Added | None:
        values = {"id": new.id, "source": source, "seen_fence": seen_fence, "before": before}

        def fork(db: Cursor) -> Added | None:
            with db.connection.transaction():
                if db.execute(self._db["fork_source"], values, prepare=False).fetchone() is None:
                    return None
                [added] = statements.add(self._db, db, [new], self._wall())
                if not added.existed:
                    db.execute(self._db["fork"], values, prepare=False)
                    lines = row_json.journal_lines(new.id, 0, None, (event,))
                    statements.write_events(self._db, db, lines, self._wall())
            return added

        self._turns.note_groups([new])
        added = self._db.run(fork)
        self._sender.committed([new.queue])
        self.wake()
        return added

    def _moved(self, moves: Sequence[Move]) -> list[Reply]:
        """Apply acts. If that takes too long, or a key is stored just now, in halves: it does not stop the others."""
        try:
            return self._db.run(lambda db: acts.move(self._db, db, moves, self._wall()), self._hot.limits)
        except StoreError as error:
            taken = isinstance(error.__cause__, errors.UniqueViolation)
            if not taken and not isinstance(error, StoreLocked | StoreTimeout):
                raise
            if len(moves) > 1:
                return acts.in_halves(self._moved, moves)
            if isinstance(error, StoreTimeout):
                raise
            return [Reply.TAKEN if taken else Reply.LOCKED]


@contextlib.contextmanager
def _later(what: str) -> Iterator[None]:
    """Go on if housekeeping fails: what the caller asked for is committed, and its answer must not be lost."""
    try:
        yield
    except StoreError as error:
        log.warning("could not %s: %s", what, error)


_forks: weakref.WeakSet[PostgresStore] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for store in _forks:
        store._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
