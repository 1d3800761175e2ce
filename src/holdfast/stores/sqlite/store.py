"""The SQLite store: the verbs of `stores/protocol.py` over `queries.sql`."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import msgspec

from holdfast.clock import Clock, SystemClock, pause
from holdfast.core import orders
from holdfast.core.acts import Move
from holdfast.core.audit import about_jobs
from holdfast.core.continuity import Doubt, Standing
from holdfast.core.dependencies import Dependent
from holdfast.core.error_fingerprint import ErrorGroup, slot_of
from holdfast.core.limits import GHOSTS_MAX, REPEATS_MAX, Places, Queue, Setting, with_pause, with_setting
from holdfast.core.machine import State
from holdfast.core.policy import BEATS_PER_LEASE
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
    Refused,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnsupported,
    WorkerGone,
)
from holdfast.failpoints import point
from holdfast.stores import row_json
from holdfast.stores.protocol import Added, Fired, Reply, Schema, schema_too_new
from holdfast.stores.sql import Pages, advance, load_migrations, migrate_by, tables_of
from holdfast.stores.sqlite import facts, keys, liveness, locks, names, statements, unreadable, wal
from holdfast.stores.sqlite.backup import backup
from holdfast.stores.sqlite.batches import SqliteBatches
from holdfast.stores.sqlite.commit_watch import CommitWatch
from holdfast.stores.sqlite.connection import Connections, Options, has_little_room, out_of_files
from holdfast.stores.sqlite.copying import SqliteTables
from holdfast.stores.sqlite.facts import SqliteFacts
from holdfast.stores.sqlite.figures import SqliteFigures
from holdfast.stores.sqlite.records import send, write_records
from holdfast.stores.sqlite.rows import Q, row_of, text_of
from holdfast.stores.sqlite.tokens import SqliteTokens
from holdfast.stores.sqlite.transaction import SqliteTransaction
from holdfast.stores.sqlite.unreadable import UnreadableRow

_MIGRATIONS = load_migrations("holdfast.stores.sqlite")
_TABLES = tables_of(_MIGRATIONS)
LATER_MAX = 20_000  # ready jobs that are not due, and that a list sorts; among more it walks
ADD_LOCK_S = 0.02  # how long a stream of new jobs may hold the write lock,
ADD_LEAST, ADD_MAX = 20, 10_000  # with at least and at most this many of them


class SqliteStore:
    """One file, many processes of one host. See `stores/protocol.py: Store` for every promise."""

    confirm_s = 0.1
    commits_may_hang = True
    look_s = 0.25
    row_locks = False
    hints_of_work = is_served = False
    add_at_once = 200
    add_max: int | None = None
    connections_made = 0

    def __init__(self, url: str, *, clock: Clock | None = None, create: bool = True) -> None:
        self.url = url
        self._clock = clock or SystemClock()
        self._db = Connections(Options.parse(url), self._clock, create=create)
        self._commit_watch = CommitWatch(self._db.options.path)
        self._wakes = 0
        self.tokens = SqliteTokens(self._db)
        self.figures = SqliteFigures(self._db, self._clock)
        self.batches = SqliteBatches(self._db, self._clock)
        self.tables = SqliteTables(self._db)
        self._beat_wait_s = self._db.options.busy_s  # how long a beat waits for the write lock: at most until the next
        self._seen = threading.local()  # what each waiting thread saw last
        self._foreign: dict[str, tuple[int, float]] = {}  # workers of another boot: beats when first seen, and when

    def now(self) -> Moment:
        return Moment(self._clock.wall(), self._clock.lease())

    # ---------------------------------------------------------------------------- the life of a job

    def add(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Added]:
        if not jobs:
            return []
        point("add.before")
        add = partial(keys.add, jobs=jobs) if has_keyed(jobs) else statements.NewRows(jobs).add
        if connection is not None:
            with self._db.joining(connection) as db:
                answers = add(db, wall=self._clock.wall())
        else:
            with self._db.writing() as db:
                locked_at = self._clock.lease()
                answers = add(db, wall=self._clock.wall())
            if len(jobs) >= self.add_at_once // 2:
                self._note_lock(len(jobs), self._clock.lease() - locked_at)
        point("add.after")
        return answers

    def _note_lock(self, jobs: int, held_s: float) -> None:
        """Choose how many jobs to store at once, so that the write lock is held for half of what is allowed."""
        fitting = int(jobs * ADD_LOCK_S / 2 / max(held_s, 1e-6))
        self.add_at_once = max(ADD_LEAST, min(fitting, self.add_at_once * 2, ADD_MAX))

    def claim(
        self,
        worker_id: str,
        claim_id: str,
        queues: Sequence[str],
        tasks: Sequence[str],
        limit: int,
        ahead: int = 0,
    ) -> list[Job]:
        token = {"worker": worker_id, "claim_id": claim_id, "tasks": row_json.encode(tasks).decode()}
        point("claim.before")
        taken = "[]"
        for _ in range(REPEATS_MAX):  # each time with a turn of its own at the write lock
            taken, whole = self._claim(token, list(dict.fromkeys(queues)), limit, ahead)
            if taken != "[]" or whole:
                break
        point("claim.after")
        return row_json.jobs_from(taken)

    def _claim(self, token: dict[str, Any], queues: list[str], limit: int, ahead: int) -> tuple[str, bool]:
        """Claim once; return the rows, and whether all groups were looked at."""
        with self._db.writing() as db:
            if db.execute(Q["claim_worker"], token).fetchone() is None:
                raise WorkerGone(f"worker {token['worker']} is not enrolled or was declared dead")
            taken: str = text_of(db, "claim_answers", token)
            if taken != "[]":
                return taken, True
            wall = self._clock.wall()
            clock = {"wall": wall, "lease": self._clock.lease(), **token}
            lanes, set_for = self._lanes(db, queues)
            if paused := {name for name, queue in set_for.items() if queue.is_paused(wall)}:
                queues = [name for name in queues if name not in paused]
                lanes = [lane for lane in lanes if lane[0] not in paused]
            by_turns = {name: queue for name, queue in set_for.items() if queue.takes_turns}
            begun, whole = statements.take(db, lanes, queues, by_turns, limit, {**clock, "started": 1})
            if begun == limit:
                _, saw_all = statements.take(db, lanes, queues, by_turns, ahead, {**clock, "started": 0})
                whole = whole and saw_all
            return text_of(db, "claim_answers", token), whole

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
        said = {"worker": worker_id, "pulses": rows, "wall": self._clock.wall(), "rss_mb": rss_mb, "stopping": stopping}
        point("beat.before")
        lock_lost = not liveness.renew(self._lock_path(worker_id))
        with self._db.writing(self._beat_wait_s) as db:
            if (living := db.execute(Q["beat_worker"], said).fetchone()) is None:
                return BeatReply(gone=True, lock_lost=lock_lost)
            if recent is not None:
                db.execute(Q["beat_recent"], {"worker": worker_id, "recent": row_json.encode(recent).decode()})
            lost: list[str] = []
            if pulses and db.execute(Q["beat"], {**said, "lease": self._clock.lease()}).rowcount < len(pulses):
                stale = row_json.rows_from(db.execute(Q["beat_lost"], said).fetchone()[0])
                lost = [job_id for job_id, *_ in stale]
                events = [
                    line
                    for job_id, fence, state, fence_now in stale
                    if state is not None
                    for line in row_json.journal_lines(job_id, fence, worker_id, (stale_report(state, fence_now),))
                ]
                statements.write_events(db, events, self._clock.wall())
            cancelled = row_json.names_from(db.execute(Q["beat_cancelled"], said).fetchone()[0])
        order = row_json.order_from(living[0])
        return BeatReply(lost=lost, cancelled=cancelled, lock_lost=lock_lost, order=order)

    def settle(self, settlements: Sequence[Settlement], under: Duty | None = None) -> list[Reply]:
        if not settlements:
            return []
        point("settle.before")
        with self._db.writing() as db:
            statements.check_duty(db, under)
            answers = statements.settle(db, settlements, self._clock.wall())
        point("settle.after")
        return answers

    @contextlib.contextmanager
    def transaction(self, lease: Lease, max_s: float) -> Iterator[SqliteTransaction]:
        transaction = SqliteTransaction(self._db, lease, max_s, self._clock)
        try:
            yield transaction
        finally:
            transaction.rollback()

    # ------------------------------------------------------------------------------ finding the dead

    def overdue(self, grace_s: float = 0.0, limit: int = 500, skip: int = 0) -> list[Job]:
        values: dict[str, Any] = {
            "lease": self._clock.lease(),
            "boot_id": self._clock.boot_id,
            "grace": grace_s,
            "limit": limit,
            "skip": skip,
        }
        while (page := self._one("overdue", values)) != "[]":
            if jobs := row_json.jobs_from(page):
                return jobs
            values["skip"] += limit  # not one of them can be read; those behind them must not suffer
        return []

    def locked(self, job_ids: Sequence[str]) -> list[str]:
        return []  # there is one writer, and a lock is on the whole file

    def ghosts(self, queues: Sequence[str]) -> list[Job]:
        counting = [queue.name for queue in self.queues() if queue.name in queues and queue.limits.counts]
        if not counting:
            return []
        names = row_json.encode(counting).decode()
        clock = {"lease": self._clock.lease(), "boot_id": self._clock.boot_id}
        return row_json.jobs_from(self._one("ghosts", {"queues": names, "limit": GHOSTS_MAX, **clock}))

    def deadline(self) -> float | None:
        with self._db.reading() as db:
            row = db.execute(Q["deadline"], {"boot_id": self._clock.boot_id}).fetchone()
        return row[0] if row is not None else None

    def stands_by(self) -> Standby | None:
        return None

    def vanished(self) -> list[Vanished]:
        found = []
        for worker, [inode] in row_json.workers_from(self._one("vanished")):
            if worker.gone_at is not None:
                found.append(Vanished(worker, "gone"))
            elif worker.is_remote:
                continue
            elif worker.boot_id != self._clock.boot_id:
                if self._is_of_a_dead_boot(worker):
                    found.append(Vanished(worker, "boot"))
            elif liveness.look(self._lock_path(worker.id), inode) is liveness.LockState.FREE:
                found.append(Vanished(worker, "lock"))
        return found

    def holds_lock(self, worker_id: str) -> bool:
        return True  # a lock is lost only with its process; `beat` sees to one that the process itself has dropped

    def enroll(self, worker: Worker) -> None:
        values = {
            **{name: getattr(worker, name) for name in ("id", "name", "host", "pid", "boot_id", "supervisor")},
            **{name: getattr(worker, name) for name in ("slots", "beat_s", "version", "release")},
            "queues": row_json.encode(worker.queues).decode(),
            "schema": len(_MIGRATIONS),
            "wall": self._clock.wall(),
            "lock_inode": 0 if worker.is_remote else self._take_lock(worker.id),
        }
        self._beat_wait_s = min(self._beat_wait_s, worker.beat_s)
        try:
            with self._db.writing() as db:
                if (schema := self._schema(db)).is_too_new:
                    raise schema_too_new(str(self._db.options.path), schema)
                db.execute(Q["enroll"], values)
                if worker.tasks is not None:
                    db.execute(Q["enroll_tasks"], {"id": worker.id, "tasks": row_json.published(worker)})
        except BaseException:  # every new try has a new id, and would leave one more lock behind
            with contextlib.suppress(OSError):
                liveness.drop(self._lock_path(worker.id))
            raise

    def retire(self, worker_id: str, cause: str, under: Duty | None = None, how: WorkerExit | None = None) -> bool:
        with self._db.writing() as db:
            statements.check_duty(db, under)
            values = {"worker": worker_id, "wall": self._clock.wall(), **gone(cause, how)}
            changed = db.execute(Q["retire"], values).rowcount == 1
            if db.execute(Q["retire_old"], {"wall": self._clock.wall(), "kept_s": GONE_KEPT_S}).rowcount:
                db.execute(Q["retire_recent"])
                db.execute(Q["standing_removed"])
        liveness.drop(self._lock_path(worker_id))
        self._foreign.pop(worker_id, None)
        return changed

    def acquire(self, name: str, holder: str, ttl_s: float, note: str | None = None) -> Duty | None:
        values = {"name": name, "holder": holder, "ttl": ttl_s, "note": note, "lease": self._clock.lease()}
        with self._db.writing() as db:
            row = db.execute(Q["acquire"], {**values, "boot_id": self._clock.boot_id}).fetchone()
        return Duty(name, holder, *row) if row is not None else None

    def resign(self, duty: Duty, note: str | None = None) -> bool:
        with self._db.writing() as db:
            return db.execute(Q["resign"], {**statements.duty_token(duty), "note": note}).rowcount == 1

    def duties(self) -> list[Duty]:
        with self._db.reading() as db:
            return [Duty(*row) for row in db.execute(Q["duties"], {"boot_id": self._clock.boot_id})]

    # --------------------------------------------------------------------------- the operator's door

    def move(self, moves: Sequence[Move]) -> list[Reply]:
        with self._db.writing() as db:
            return statements.move(db, moves, self._clock.wall())

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
        self._set_queue(queue, lambda before: with_pause(before, paused, group, until), actor, note)

    def limit(
        self,
        queue: str,
        setting: Setting,
        *,
        declared: bool = False,
        actor: str | None = None,
        note: str | None = None,
    ) -> None:
        self._set_queue(queue, lambda before: with_setting(before, setting, declared=declared), actor, note)

    def _set_queue(
        self, name: str, change: Callable[[Queue], Queue], actor: str | None, note: str | None = None
    ) -> None:
        with self._db.writing() as db:
            found = row_json.queues_from(text_of(db, "queues", {"queue": name}))
            before = found[0] if found else Queue(name=name)
            statements.set_queue(db, before, change(before), actor, note, self._clock.wall())

    def order(self, name: str, act: OrderAct | None, *, actor: str | None = None, note: str | None = None) -> bool:
        wall = self._clock.wall()
        with self._db.writing() as db:
            values = {"name": name, "act": act, "actor": actor, "note": note, "wall": wall}
            changed = db.execute(Q["order_end" if act is None else "order"], values).rowcount > 0
            if changed:
                lines = row_json.journal_lines("", 0, None, orders.events(name, act, actor, note))
                statements.write_events(db, lines, wall)
        return changed

    def purge(self, states: Sequence[State], before: float, limit: int = 1000, under: Duty | None = None) -> int:
        with self._db.writing() as db:
            statements.check_duty(db, under)
            deleted = 0
            for state in states:
                values = {"state": state.value, "before": before, "limit": limit - deleted}
                deleted += len(statements.remove(db, text_of(db, "purge", values)))
            if deleted:
                db.execute(Q["standing_removed"])
        return deleted

    def purge_keys(self, after: str = "", limit: int = 1000) -> str | None:
        with self._db.reading() as db:
            last: str | None = db.execute(Q["keys_page"], {"after": after, "limit": limit}).fetchone()[0]
        if last is not None:
            with self._db.writing() as db:
                db.execute(Q["keys_purged"], {"after": after, "last": last, "wall": self._clock.wall()})
        return last

    def delete(self, jobs: Sequence[Seen], act: NewEvent | None = None) -> list[Reply]:
        with self._db.writing() as db:
            found = text_of(db, "delete", {"seen": row_json.encode(jobs).decode()})
            deleted = set(statements.remove(db, found))
            if deleted:
                db.execute(Q["standing_removed"])
            if deleted and act is not None:
                gone = [seen.job_id for seen in jobs if seen.job_id in deleted]
                statements.note_act(db, about_jobs(act, gone), self._clock.wall())
        return [Reply.ACCEPTED if seen.job_id in deleted else Reply.REFUSED for seen in jobs]

    def note_act(self, act: NewEvent) -> None:
        with self._db.writing() as db:
            statements.note_act(db, act, self._clock.wall())

    def audit(
        self, limit: int = 1000, *, since: float | None = None, before: int | None = None, actor: str | None = None
    ) -> list[Event]:
        values = {"limit": limit, "since": since, "before": before, "actor": actor}
        return row_json.events_from(self._one("audit", values))

    # ---------------------------------------------------------------------------------- the read side

    def get(self, job_id: str) -> Job | None:
        found = row_json.jobs_from(self._one("get", {"id": job_id}))
        return found[0] if found else None

    def find(self, where: Filter) -> list[Job]:
        values: dict[str, Any] = msgspec.structs.asdict(where)
        values["states"] = row_json.encode(where.states).decode() if where.states else None
        values["ids"] = row_json.encode(where.ids).decode() if where.ids is not None else None
        values["of_errors"] = where.of_errors
        values |= row_json.labels(where)
        if where.prefix is not None:
            return row_json.jobs_from(self._one("find_prefix", {**values, "prefix_end": row_json.end_of(where.prefix)}))
        if where.ids is not None:
            return row_json.jobs_from(self._one("find_ids", values))
        if where.worker is not None and where.states and State.RUNNING not in where.states:
            return []  # only a running job has a worker
        if where.worker is not None:
            return row_json.jobs_from(self._one("find_worker", values))
        if where.states == (State.RUNNING,):
            return row_json.jobs_from(self._one("find_running", values))
        if where.workflow or where.asking:  # only a workflow asks
            return row_json.jobs_from(self._one("find_workflows", values))
        if where.tried and where.states == (State.READY,):
            return row_json.jobs_from(self._one("find_tried", values))
        if where.later is not None and where.states == (State.READY,) and self._are_few_later(where.later):
            return row_json.jobs_from(self._one("find_later", values))
        if len(where.states) == 1 and where.states[0] not in (State.READY, State.DONE):
            return row_json.jobs_from(self._one("find_aside", {**values, "state": where.states[0].value}))
        if where.of_errors:
            query = "find_erred" if where.fingerprint is None else "find_fingerprint"
            return row_json.jobs_from(self._one(query, values))
        return row_json.jobs_from(self._one("find", values))

    def _are_few_later(self, later: float) -> bool:
        """Say whether so few ready jobs are not due by then that they may be sorted. If not, a walk soon meets some."""
        return self._one("find_later_few", {"later": later, "most": LATER_MAX}) == "1"

    def counts(self) -> dict[str, dict[State, int]]:
        result: dict[str, dict[State, int]] = {}
        for queue, state, jobs in row_json.rows_from(self._one("counts")):
            result.setdefault(queue, {})[State(state)] = jobs
        return result

    def errors(self, since: float, task: str | None = None, limit: int = 1000) -> list[ErrorGroup]:
        return row_json.error_groups_from(self._one("errors", {"slot": slot_of(since), "task": task, "limit": limit}))

    def journal(
        self,
        job_id: str | None = None,
        kinds: Sequence[str] = (),
        limit: int = 1000,
        *,
        since: float | None = None,
        before: int | None = None,
    ) -> list[Event]:
        values: dict[str, Any] = {"job_id": job_id, "since": since, "before": before, "limit": limit}
        values["kinds"] = row_json.encode(kinds).decode() if kinds else None
        recent = "journal_since" if kinds and since is not None else "journal_all"
        query = recent if job_id is None else "journal"
        return row_json.events_from(self._one(query, values))

    def journals(self, job_ids: Sequence[str], limit: int) -> dict[str, list[Event]]:
        values = {"job_ids": row_json.encode(job_ids).decode(), "limit": limit}
        return row_json.events_by_job(self._one("journals", values))

    def workers(self, gone: bool = False) -> list[Worker]:
        return [worker for worker, _ in row_json.workers_from(self._one("workers", {"gone": gone}))]

    def orders(self) -> list[Order]:
        return row_json.orders_from(self._one("orders"))

    def recent(self, worker_ids: Sequence[str]) -> dict[str, Recent]:
        return row_json.recent_from(self._one("recent", {"workers": row_json.encode(worker_ids).decode()}))

    def paused(self) -> list[str]:
        return row_json.names_from(self._one("paused", {"wall": self._clock.wall()}))

    def queues(self) -> list[Queue]:
        return row_json.queues_from(self._one("queues", {"queue": None}))

    def places(self, queue: str, group: str | None = None) -> Places:
        with self._db.reading() as db:
            return Places(*db.execute(Q["places"], {"queue": queue, "grp": group}).fetchone())

    def unserved(self, queues: Sequence[str], tasks: Sequence[str]) -> Mapping[str, int]:
        values = {
            "queues": row_json.encode(queues).decode(),
            "tasks": row_json.encode(tasks).decode(),
            "wall": self._clock.wall(),
        }
        return row_json.counts_from(self._one("unserved", values))

    # ------------------------------------------------------------------------------------ hints and house

    def due(self, queues: Sequence[str], tasks: Sequence[str], *, sleeps: bool = False) -> float | None:
        known, wall = row_json.encode(tasks).decode(), self._clock.wall()
        instants: list[float] = []
        with self._db.reading() as db:
            lanes, set_for = self._lanes(db, queues)
            opens = {name: queue.opens_at(wall) for name, queue in set_for.items()}
            asked = [("due", {"queue": queue, "priority": priority}) for queue, priority in lanes]
            asked += [("due_grouped", {"queue": name}) for name, queue in set_for.items() if queue.grouped]
            for query, values in asked:
                if (opens_at := opens.get(values["queue"], 0.0)) is None:
                    continue
                if (row := db.execute(Q[query], {**values, "tasks": known}).fetchone()) is not None:
                    instants.append(max(row[0], opens_at))
        return min(instants, default=None)

    def wait(self, timeout_s: float) -> bool:
        return self._commit_watch.wait_for(self._has_changed, timeout_s, self._clock)

    def wake(self) -> None:
        self._wakes += 1
        self._commit_watch.set()

    def is_woken(self) -> bool:
        return False

    def wake_sleepers(self) -> bool:
        """Every worker looks for itself."""
        return False

    def stop_waking(self) -> None:
        """Nobody relies on this process."""

    def ping(self, *, durably: bool = False) -> None:
        with self._db.writing() as db:  # as a rule the lock is all that is asked for: nothing is written or synced
            if durably or has_little_room(self._db.options.path):
                db.execute(Q["ping"])
                db.execute(Q["ping_undo"])

    def standing(self, worker_id: str, known: Sequence[str], settled: Lease | None) -> Standing:
        asked = {"worker": worker_id, "known": row_json.encode(known).decode(), "wall": self._clock.wall()}
        values = asked | row_json.lease_token(settled)
        self._take_note()
        with self._db.reading() as db:
            return row_json.standing_from(row_of(db, "standing", values))

    def doubt(self, seen: int, doubt: Doubt) -> None:
        values = msgspec.structs.asdict(doubt) | {"incarnation": seen, "wall": self._clock.wall()}
        with self._db.writing() as db:
            db.execute(Q["doubt"], values)

    def doubts(self) -> list[Doubt]:
        self._take_note()
        return [Doubt(*row) for row in row_json.rows_from(self._one("doubts"))]

    def accept(self, seen: int, actor: str, note: str | None) -> int:
        with self._db.writing() as db:
            db.execute(Q["accept"], {"seen": seen, "actor": actor, "note": note, "wall": self._clock.wall()})
            return int(db.execute(Q["accept_answer"]).fetchone()[0])

    def schema(self) -> Schema:
        with self._db.reading() as db:
            found = self._schema(db)
            mode = db.execute("PRAGMA journal_mode").fetchone()[0]
        if found.found and mode != "wal":
            self._use_wal()  # another program has switched it, while nobody had it open in WAL mode
        return found

    def migrate(self) -> Schema:
        found = self.schema()
        if found.found < found.wanted:
            self._use_wal()
            migrate_by(self._migrates)
        if found.is_too_new:
            raise schema_too_new(str(self._db.options.path), found)
        return found

    def missing(self) -> list[str]:
        with self._db.reading() as db:
            there = row_json.names_from(db.execute(Q["missing"]).fetchone()[0])
        gone = [name for name in _TABLES if name not in there]
        return gone if len(gone) < len(_TABLES) else []

    def check(self) -> list[str]:
        return self.damage() + self.orphans() + [str(row) for row in self.unreadable()]

    def damage(self) -> list[str]:
        """Say what is wrong with the file."""
        if gone := self.missing():
            return [f"the table {name} is missing" for name in gone]
        return facts.damage(self._db)

    def orphans(self) -> list[str]:
        """Name the running jobs whose worker's row another program has removed. They are recovered by their lease."""
        return [] if self.missing() else facts.orphans(self._db)

    def unreadable(self) -> list[UnreadableRow]:
        """Read every row, and name those that another program has damaged."""
        return [] if self.missing() or not self.schema().found else unreadable.find(self._db)

    def condition(self) -> SqliteFacts:
        """Say what is known of the file and of what surrounds it."""
        return facts.look(self._db)

    def owns(self, path: Path) -> bool:
        """Say whether a path is one of the store's own files, or would become one."""
        return names.owns(self._db.options.path, path)

    def backup(self, target: Path, copied: Callable[[int], None]) -> int:
        """Copy the store, while others use it; see `backup.py`."""
        return backup(self._db, target, copied)

    def close(self) -> None:
        self._db.close()

    # ------------------------------------------------------------------------------------- parts

    def _take_note(self) -> None:
        """Write down what a process has noted that may not use the store any more, unless a person has accepted the
        store since that process last saw it."""
        path = self._db.options.path
        if (noted := wal.read_note(path)) is not None:
            with self._db.writing() as db:
                db.execute(Q["doubt_noted"], msgspec.structs.asdict(noted) | {"wall": self._clock.wall()})
            wal.remove_note(path)

    def _one(self, query: str, values: Mapping[str, Any] | None = None) -> str:
        with self._db.reading() as db:
            return text_of(db, query, values)

    def _lanes(self, db: sqlite3.Connection, queues: Sequence[str]) -> tuple[list[list[Any]], dict[str, Queue]]:
        """Return the (queue, priority) pairs that have ready jobs without a group, and what is set for the queues."""
        lanes, set_for = row_of(db, "claim_lanes", {"queues": row_json.encode(queues).decode()})
        return row_json.rows_from(lanes), {queue.name: queue for queue in row_json.queues_from(set_for)}

    def _is_of_a_dead_boot(self, worker: Worker) -> bool:
        """Boot ids have no order. A worker of another boot is dead when it stays silent for a beat while we look, or
        was silent for a whole lease before we came; if it beats, two hosts use this file at once, and SQLite's locks do
        not reach that far."""
        now = self._clock.lease()
        beats, since = self._foreign.setdefault(worker.id, (worker.beats, now))
        if worker.beats != beats:
            self._db.refuse(
                f"worker {worker.name} on {worker.host} uses {self._db.options.path} from another host, boot or "
                "time namespace; SQLite is for one host and one clock: give each of them a file of its own"
            )
        silent_s = self._clock.wall() - worker.beat_at
        return now - since >= worker.beat_s or silent_s >= worker.beat_s * BEATS_PER_LEASE

    def _take_lock(self, worker_id: str) -> int:
        try:
            return liveness.take(self._lock_path(worker_id))
        except FileExistsError:
            raise Refused(f"worker {worker_id} is enrolled already; every start of a worker has a new id") from None
        except OSError as error:
            why = out_of_files() or StoreReadOnly(f"cannot write {self._lock_path(worker_id)}: {error.strerror}")
            raise why from error

    def _lock_path(self, worker_id: str) -> Path:
        return liveness.path_of(self._db.options.path, worker_id)

    def _has_changed(self) -> bool:
        """Compare with what this thread saw last."""
        before = getattr(self._seen, "value", None)
        self._seen.value = (self._db.version(), self._wakes)
        return bool(before != self._seen.value)

    def _use_wal(self) -> None:
        mode = None
        give_up_at = self._clock.lease() + self._db.options.busy_s
        while mode is None:
            try:
                with self._db.reading() as db:
                    mode = db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            except StoreUnavailable as error:  # others make the same file; here SQLite does not wait
                if self._clock.lease() >= give_up_at:
                    raise self._not_in_wal() from error
                pause(0.01)
        if mode != "wal":
            raise StoreUnsupported(
                f"{self._db.options.path}: SQLite could not switch to WAL (it stayed in {mode}); "
                "is the file on a network drive?"
            )

    def _not_in_wal(self) -> StoreUnavailable:
        path = self._db.options.path
        said = f"{path} is not in WAL mode, and cannot be switched to it while"
        if locks.is_listed(locks.file_of(str(path))):
            return StoreUnavailable(
                f"{said} this program has a transaction open on it; open the store before that transaction: "
                "call app.counts(), or run `holdfast db init` once"
            )
        return StoreUnavailable(
            f"{said} another program uses it; end that program, and leave PRAGMA journal_mode alone"
        )

    def _schema(self, db: sqlite3.Connection) -> Schema:
        if db.execute(Q["schema_exists"]).fetchone() is None:
            return Schema(0, len(_MIGRATIONS))
        found, works_with = db.execute(Q["schema"]).fetchone()
        return Schema(found or 0, len(_MIGRATIONS), works_with or found or 0)

    def _migrates(self, pages: Pages) -> float | None:
        """Take one step of a migration in a transaction; see `advance`. None: there is nothing left to do."""
        with self._db.writing(busy_s=60) as db:
            found = self._schema(db)  # another process may have been first
            if not found.is_stale:
                return None
            instants = {"wall": self._clock.wall(), "lease": self._clock.lease(), "boot_id": self._clock.boot_id}
            return advance(_MIGRATIONS, found, _Editor(db), instants, pages)

    # ---------------------------------------------------------------------------- schedules

    def declare(self, schedules: Sequence[Schedule], again: bool = False) -> None:
        rows = row_json.encode([row_json.declared(schedule) for schedule in schedules]).decode()
        limits = {"again": again, "renew_s": RENEW_S, "abandoned_s": ABANDONED_S}
        with self._db.writing() as db:
            db.execute(Q["declare"], {"schedules": rows, "wall": self._clock.wall(), **limits})

    def schedule(self, schedules: Sequence[Schedule]) -> list[Reply]:
        rows = row_json.encode([row_json.declared(schedule) for schedule in schedules]).decode()
        values = {"schedules": rows, "wall": self._clock.wall(), "declared_s": DECLARED_S}
        with self._db.writing() as db:
            kept = {key for (key,) in db.execute(Q["schedule"], values)}
        return [Reply.ACCEPTED if each.key in kept else Reply.REFUSED for each in schedules]

    def schedules(self, keys: Sequence[str] | None = None) -> list[Schedule]:
        values = {"keys": None if keys is None else row_json.encode(list(keys)).decode()}
        with self._db.reading() as db:
            return list(row_json.schedules_from(text_of(db, "schedules", values)))

    def fire(self, firings: Sequence[Firing], under: Duty) -> list[Fired]:
        point("fire.before")
        with self._db.writing() as db:
            statements.check_duty(db, under)
            answers: list[Fired] = [self._fire(db, each) for each in firings]
        point("fire.after")
        return answers

    def _fire(self, db: Connection, firing: Firing) -> Added | None:
        if db.execute(Q["fire"], {"key": firing.schedule, "instant": firing.instant}).rowcount == 0:
            return None
        [added] = statements.add(db, [firing.job], self._clock.wall())
        db.execute(Q["fire_job"], {"key": firing.schedule, "job_id": added.id})
        return added

    def pause_schedule(self, key: str, paused: bool) -> bool:
        values = {"key": key, "paused": paused, "wall": self._clock.wall()}
        with self._db.writing() as db:
            return db.execute(Q["pause_schedule"], values).rowcount == 1

    def forget_schedule(self, key: str) -> bool:
        with self._db.writing() as db:
            return db.execute(Q["forget_schedule"], {"key": key}).rowcount == 1

    # ---------------------------------------------------------------------------- published tasks

    def publish(self, tasks: Sequence[PublishedTask]) -> None:
        values = {"tasks": row_json.published_tasks(tasks), "wall": self._clock.wall()}
        with self._db.writing() as db:
            db.execute(Q["publish"], values)

    def published(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        values = {"names": None if names is None else row_json.encode(list(names)).decode()}
        return row_json.published_from(self._one("published", values))

    def forget_task(self, name: str) -> bool:
        with self._db.writing() as db:
            return db.execute(Q["forget_task"], {"name": name}).rowcount == 1

    # ---------------------------------------------------------------------------- workflows

    def record(self, records: Sequence[Record]) -> list[Reply]:
        if not records:
            return []
        point("record.before")
        with self._db.writing() as db:
            answers = write_records(db, records, self._clock.wall())
        point("record.after")
        return answers

    def steps(self, job_id: str, after: int = 0, limit: int = 1000, *, aside: bool = False) -> list[Step]:
        values = {"id": job_id, "after": after, "limit": limit}
        with self._db.reading() as db:
            return row_json.steps_from(text_of(db, "steps_aside" if aside else "steps", values))

    def signal(self, signal: Signal) -> Reply:
        with self._db.writing() as db:
            return send(db, signal, self._clock.wall())

    def inbox(self, job_id: str, name: str | None = None, limit: int = 1000) -> Inbox:
        values = {"id": job_id, "name": name, "limit": limit}
        with self._db.reading() as db:
            # The count first: what comes in between is then among the signals, and only looks newer than it is.
            row = db.execute(Q["inbox"], {"id": job_id}).fetchone()
            signals = row_json.signals_from(text_of(db, "inbox_signals", values))
        return Inbox(row[0] if row is not None else 0, signals)

    def wake_due(self, limit: int = 500) -> float | None:
        wall, earliest = self._clock.wall(), self._next_wake()
        if earliest is not None and earliest <= wall:
            with self._db.writing() as db:
                db.execute(Q["wake_due"], {"wall": wall, "limit": limit})
            earliest = self._next_wake()
        return earliest

    def expired(self, limit: int = 500) -> list[Job]:
        return row_json.jobs_from(self._one("expired", {"wall": self._clock.wall(), "limit": limit}))

    def dependents(self, on: Sequence[str] | None = None, after: str = "", limit: int = 1000) -> list[Dependent]:
        awaited = None if on is None else row_json.encode(row_json.awaited_after(on)).decode()
        with self._db.reading() as db:
            found = text_of(db, "dependents", {"on": awaited, "after": after, "limit": limit})
            return row_json.dependents_from(found)

    def due_waits(self) -> list[DueWaits]:
        with self._db.reading() as db:
            return row_json.due_waits_from(text_of(db, "due_waits", {"wall": self._clock.wall()}))

    def fork(self, new: NewJob, source: str, seen_fence: int, before: int, event: NewEvent) -> Added | None:
        wall = self._clock.wall()
        values = {"id": new.id, "source": source, "seen_fence": seen_fence, "before": before}
        with self._db.writing() as db:
            if db.execute(Q["fork_source"], values).fetchone() is None:
                return None
            [added] = statements.add(db, [new], wall)
            if not added.existed:
                db.execute(Q["fork"], values)
                statements.write_events(db, row_json.journal_lines(new.id, 0, None, (event,)), wall)
        return added

    def _next_wake(self) -> float | None:
        with self._db.reading() as db:
            earliest: float | None = db.execute(Q["wake_due_next"]).fetchone()[0]
        return earliest


class _Editor:
    """See `stores/sql.py: Editor`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def ask(self, query: str, values: Mapping[str, Any] | None = None) -> Any:
        return self._db.execute(Q[query], values or {}).fetchone()

    def run(self, script: str, values: Mapping[str, Any] | None = None) -> None:
        for statement in _statements(script):
            self._db.execute(statement, values or {})


def _statements(script: str) -> Iterator[str]:
    """Split a migration into statements; the driver's own script call would commit in between."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
