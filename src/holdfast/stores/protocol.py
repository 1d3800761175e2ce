"""The contract of a store: its verbs, each one transaction, each safe to repeat when its answer was lost.

The docstrings are the contract; `tests/conformance/` has a file for each verb. A store passes the whole suite or
it is not a store. Fenced verbs (`beat`, `settle`, `record`) never raise for a stale lease: they refuse it, say so in
their answer, change nothing, and leave one `stale_report` event per (job, fence). Text holds no NUL; callers see to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol

from holdfast.core.access import Token
from holdfast.core.acts import Move
from holdfast.core.batches import Batch
from holdfast.core.continuity import Doubt, Standing
from holdfast.core.dependencies import Dependent
from holdfast.core.error_fingerprint import ErrorGroup
from holdfast.core.figures import FLOW_MAX, LINES_MAX, SAMPLE, Backlog, Counters, Flow, Lost
from holdfast.core.limits import Places, Queue, Setting
from holdfast.core.machine import State
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
)
from holdfast.core.rollups import FOLD_MAX, Rollup
from holdfast.core.settlement import Settlement
from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import DutyLost, SchemaMismatch, StoreError


class Added(NamedTuple):
    """The result of an enqueue. `existed`: the id or the live key was taken, and `id` is that job."""

    id: str
    existed: bool


class Reply(StrEnum):
    """A store's reply to one settlement, record, signal or act."""

    ACCEPTED = "accepted"
    ALREADY = "already"  # this very settlement was accepted before; its answer was lost
    REFUSED = "refused"  # the lease is not the current one
    AGAIN = "again"  # what the judge looked at has changed since: look, and judge again
    LOCKED = "locked"  # another transaction has locked the row: nothing was looked at or changed; try again later
    TAKEN = "taken"  # the key belongs to another live job, or the id of a child to a job that is not this child
    GONE = "gone"  # there is no live workflow that a signal could reach


Fired = Added | Literal[Reply.LOCKED] | None  # what a store says to one firing


class Schema(NamedTuple):
    """The version of a store's schema and the one that this program wants. `found` 0: nothing there yet.

    `works_with`: the version that a program must know at least to work on this schema.
    """

    found: int
    wanted: int
    works_with: int = 0

    @property
    def is_stale(self) -> bool:
        """Say whether the schema lacks what this program needs."""
        return self.found < self.wanted

    @property
    def is_too_new(self) -> bool:
        """Say whether this program is too old for the schema. A newer schema that only has more in it is fine."""
        return self.wanted < self.works_with


def schema_too_new(url: str, schema: Schema) -> SchemaMismatch:
    """Say, for every store with the same words, that this program is too old."""
    return SchemaMismatch(
        f"{url} has schema {schema.found}, for programs that know {schema.works_with} or newer; this Holdfast knows "
        f"{schema.wanted}: upgrade it"
    )


def in_words(doubt: Doubt) -> str:
    """Say what was found, and what it means."""
    match doubt.evidence:
        case "identity":
            what = "another store is at this address now"
        case "worker":
            what = f"the row of worker {doubt.worker} is missing"
        case "settled job":
            what = "a job whose outcome was acknowledged runs again under the same claim"
        case "writes":
            what = f"{doubt.found} writes that it had acknowledged are missing"
        case "known job":
            what = f"job {doubt.seen} is missing, although no program has removed jobs"
        case "truncate":
            what = f"the table {doubt.seen} was truncated by {doubt.found}"
        case "wal" | "shm":
            what = f"its -{doubt.evidence} file was deleted or replaced while in use"
        case "file" if doubt.kind == "emptied":
            what = "its file was truncated to 0 bytes while it was in use"
        case "file":
            what = "another file was put in its place while it was in use"
        case "copy":
            return f"a copy of {doubt.found} into this store is not complete: run the same `holdfast db copy` again"
        case "moved":
            return f"the store was copied to {doubt.found}, where its jobs continue"
        case "incarnation":
            what = f"its incarnation was {doubt.seen} and is {doubt.found}, and no operator has accepted it since"
        case name:
            what = f"its count of {name} went back from {doubt.seen} to {doubt.found}"
    return f"the store was {doubt.kind}: {what}"


def duty_lost(duty: Duty | None) -> DutyLost:
    """Say, in every store with the same words, that an act came under an old term."""
    name, term = (duty.name, duty.term) if duty is not None else ("", 0)
    return DutyLost(f"the duty {name!r} of term {term} has passed to another process")


def rows_of(store: Store, ids: Sequence[str], at_once: int) -> Iterator[Job]:
    """Yield these jobs, as far as they exist, a few for each query: a row may be a few megabytes."""
    for start in range(0, len(ids), at_once):
        yield from store.find(Filter(ids=tuple(ids[start : start + at_once]), limit=at_once))


class Transaction(Protocol):
    """The caller's writes and the settlement, in one commit. See `Store.transaction`."""

    @property
    def connection(self) -> Any:
        """Return the driver's own connection, inside an open transaction."""
        ...

    @property
    def outage(self) -> StoreError | None:
        """Return the store's own failure, if the last operation met one: nothing that the caller did is to blame."""
        ...

    def hand_over(self) -> None:
        """Say that the caller's part is over, and that another thread will settle: this one may wait for it."""
        ...

    def settle(self, settlement: Settlement) -> Reply:
        """Settle and commit; if the lease is not the current one, roll everything back. While another transaction has
        locked a row that it needs, it waits, and at the end of its time raises `StoreUnavailable`."""
        ...

    def record(self, record: Record) -> Reply:
        """Write the record and commit; the rest is as in `settle`."""
        ...

    def rollback(self) -> None:
        """Undo the caller's writes. Safe to call more than once."""
        ...


class Tokens(Protocol):
    """The tokens of the HTTP API, as rows. `core/access.py` decides what each allows."""

    def add(self, token: Token) -> bool:
        """Store a token; False, and nothing is changed, when there is one of that name."""
        ...

    def all(self) -> list[Token]:
        """Return every token, by name. One that cannot be read is left out."""
        ...

    def revoke(self, name: str) -> bool:
        """Remove a token; False when there is none."""
        ...

    def used(self, at: Mapping[str, float]) -> None:
        """Note when tokens were last used (wall time), by their names. The instant never goes back."""
        ...


class Figures(Protocol):
    """The reads behind lists, rates, charts and counters. Each reads a bounded number of rows; only `fold` writes."""

    def backlog(self, sample: int = SAMPLE) -> dict[str, Backlog]:
        """Return what is due in each queue that has any, paused queues too.

        Looks at the `sample` jobs that became due first, of each priority of a queue and of its jobs with a group.
        """
        ...

    def flow(self, since: float, sample: int = FLOW_MAX) -> list[Flow]:
        """Return how many jobs of each task were added to each queue, and ended in it, since that wall time.

        Looks at the `sample` jobs that were added last, and at those of each state that ended last: where there were
        more, the instant in the answer is later. Jobs that were deleted meanwhile are not counted.
        """
        ...

    def lost(self, since: float, limit: int = LINES_MAX) -> Lost:
        """Return the attempts that were lost since that wall time: the newest `limit` in full, and counts of all.

        `total` and `late` count lines of the journal. `counts` are made when the lines are written, so they stay when
        jobs are deleted; they go by the minute, and the whole minute of `since` counts.
        """
        ...

    def counters(self) -> Counters:
        """Return how many jobs ever ended, and how many attempts were ever lost or reported too late, since the store
        counts them. They never fall."""
        ...

    def rollups(self, span: int, since: float) -> list[Rollup]:
        """Return what happened in each queue in the slots of this span from this wall time on, by slot and queue.

        The slot of that instant counts as a whole. Attempts count from the commit of their settlement on, jobs that
        arrived from the next `fold` on. A slot or a queue without either is left out. Deleted jobs stay counted.
        """
        ...

    def fold(self, came: Mapping[str, int], limit: int = FOLD_MAX, under: Duty | None = None) -> int:
        """Add up to `limit` deltas to their rollups, and return how many; delete rollups that are old enough.

        came: how many jobs there are and have ended in each queue; more than at the last fold have arrived since. A
        delta counts once, however many programs fold. Raises `DutyLost` if the duty has passed to another process.
        """
        ...


class Batches(Protocol):
    """Batches of jobs, as rows. `core/batches.py` decides what they store at their end."""

    def open(self, batch: Batch) -> Batch:
        """Store a batch, and return it. One that is there already under its id stays as it is, and is returned."""
        ...

    def add(self, batch_id: str, jobs: Sequence[NewJob]) -> list[Added] | None:
        """Store jobs as `Store.add` does, all or none, as jobs of the batch; None, and store none, if it is closed or
        not there. A job that was there before does not become one of the batch."""
        ...

    def close(self, batch_id: str, *, complete: bool, unless_added_since: float | None = None) -> bool:
        """Let nothing be added any more; False if it is closed or not there.

        With `unless_added_since` only if nothing was added after that wall time.
        """
        ...

    def get(self, ids: Sequence[str]) -> list[Batch]:
        """Return these batches, as far as they exist; by id."""
        ...

    def find(self, after: str = "", limit: int = 100, *, unended: bool = False) -> list[Batch]:
        """Return the batches behind this id, by id; with `unended` only those that have not ended."""
        ...

    def newest(self, limit: int = 100) -> list[Batch]:
        """Return the batches that were opened last, newest first."""
        ...

    def counts(self, batch_id: str) -> dict[str, int]:
        """Return how many of its jobs are in each state. Those that were deleted count as what they were then."""
        ...

    def jobs(self, batch_id: str, states: Sequence[State], limit: int) -> list[Job]:
        """Return jobs of the batch that are in these states (any, if none is named), in any order."""
        ...

    def end(self, batch_id: str, counts: Mapping[str, int], job: NewJob | None) -> bool:
        """End a batch: keep its counts and store its last job, in one commit.

        False, and nothing is changed, unless it is closed, has not ended, and none of its jobs is live.
        """
        ...

    def purge(self, before: float, limit: int) -> int:
        """Delete up to `limit` batches that ended before that wall time and have no jobs any more; return how many."""
        ...


class Store(Protocol):
    """See the module's docstring."""

    url: str
    confirm_s: float  # how long a liveness lock must be seen free before that is a death
    commits_may_hang: bool  # reads, and writes that change nothing, may work while no commit ends
    look_s: float  # how often a worker looks for the dead
    row_locks: bool  # another transaction may lock the row of one job
    add_at_once: int  # the most jobs that one `add` should store, lest other writers wait; it may change
    # A larger `add`, `record` or `batches.add` raises `UsageError`, and stores nothing; None: no bound.
    add_max: int | None
    is_served: bool  # a server runs reaper, scheduler, timers and pruning for it: this process runs none of them
    hints_of_work: bool  # a hint says that a job became ready, and not only that something changed: claim at once

    @property
    def tokens(self) -> Tokens:
        """Return the tokens of the HTTP API."""
        ...

    @property
    def figures(self) -> Figures:
        """Return the reads of lists, rates and counters."""
        ...

    @property
    def batches(self) -> Batches:
        """Return the batches of jobs."""
        ...

    @property
    def connections_made(self) -> int:
        """Return how often the connections of a worker were made: each new one may lead to another server."""
        ...

    def now(self) -> Moment:
        """Return the instant on the store's own clocks."""
        ...

    # ---------------------------------------------------------------------------- the life of a job

    def add(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Added]:
        """Store the jobs, all or none, and answer in their order.

        A job whose id is known, or whose key belongs to a live job, is not stored: the answer names the job that is
        there. A job with neither run_at nor delay is ready now.
        A job whose key has a rule (`KeyRule`) takes it while it is queued, for a time or for ever, and what happens to
        the job that has the key is decided by `core/keys.py`. Such keys and live ones do not meet. The answer names the
        job that has the key unless the new one is stored; that job may have been deleted.
        A job that `awaits` others is waiting, and no claim gives it.
        With `connection`, an open one of the caller to this very store, the jobs are stored by its transaction; one is
        begun if none is open. Raises `UsageError` for a connection to anything else, and `StoreUnsupported` where
        there is none to be had.
        """
        ...

    def claim(
        self,
        worker_id: str,
        claim_id: str,
        queues: Sequence[str],
        tasks: Sequence[str],
        limit: int,
        ahead: int = 0,
    ) -> list[Job]:
        """Give the worker leases on up to `limit` due jobs, and on up to `ahead` more that it will start later.

        Within a queue larger priority first, then earlier run_at, then first come. Every queue gets an even share of
        `limit` before any gets more; the order of `queues` decides who gets the odd one. Jobs of other tasks and of
        paused queues, and jobs that have expired, stay where they are. Only jobs with on_crash="retry" are taken
        `ahead`; they come back with `started` False. Setting the lease, raising the fence and counting the attempt are
        one statement.
        Groups of one queue and priority take turns, and jobs without a group take one turn together; within a turn the
        order is as above. At no commit do more attempts of a queue run than its `limit`, or more of a group in it than
        its `group_limit`, unless they ran before the limit was set; running rows are counted, those whose lease has run
        out included. A `rate` counts every claimed job; a repeated claim counts none. Nothing is taken `ahead` from a
        queue with a limit or a rate. A group that is full or paused is passed over.
        The caller makes `claim_id`; a repeated claim with it returns the same jobs and takes no more.
        Raises `WorkerGone`, and gives nothing, when the worker is not enrolled or was marked gone.
        """
        ...

    def beat(
        self,
        worker_id: str,
        pulses: Sequence[Pulse],
        rss_mb: float | None = None,
        *,
        stopping: bool = False,
        recent: Recent | None = None,
    ) -> BeatReply:
        """Prove the worker's life and extend the given leases by their `lease_s` from now. Fenced.

        A lease never gets shorter. An attempt that has already settled itself is neither lost nor an error; one whose
        row another transaction has locked is `skipped`: not renewed this time, and not lost. A worker marked gone
        extends nothing, and the answer says so. `cancelled` lists all of the worker's running jobs that were asked to
        stop. `stopping`: the worker claims nothing more. `recent` replaces what the worker has said of itself before;
        None leaves it, and writes nothing. The answer names the order that is in force for the worker, if any.
        """
        ...

    def settle(self, settlements: Sequence[Settlement], under: Duty | None = None) -> list[Reply]:
        """End attempts: apply each verdict whose lease is the current one, and answer in order. Fenced.

        Also writes the verdict's events to the journal, under the fence of the lease, counts finished jobs, and counts
        the verdict's `fault` (`errors`); the row keeps its fingerprint, release and instant. With
        `seen_lease_until`, a lease that was renewed meanwhile is REFUSED without a stale_report: the caller was a
        reaper, not a zombie.
        A verdict whose judge saw another row is answered with AGAIN, and nothing changed: one other than done, made
        before the job was asked to stop (`seen_cancel`), and one with `seen_open_step`, `seen_undoable` or `inbox` that
        are not what is on the row by now.
        The end of a job with a parent raises the parent's inbox, and wakes it if it awaits that; all verdicts of the
        call are applied before parents are notified.
        A job whose row, or whose parent's row, another transaction has locked is LOCKED: nothing was changed for it,
        and the others do not wait. With `under`, raises `DutyLost` and applies nothing when that duty has a newer term
        or another holder. Either all accepted settlements are durable on return, or the call raised.
        """
        ...

    def transaction(self, lease: Lease, max_s: float) -> AbstractContextManager[Transaction]:
        """Open a transaction for the caller's own writes, if the lease is the current one.

        Raises `LeaseLost` otherwise. After `max_s` it is rolled back and every use raises `TransactionExpired`.
        Stores without SQL raise `StoreUnsupported`.
        """
        ...

    # ------------------------------------------------------------------------------------- workflows

    def record(self, records: Sequence[Record]) -> list[Reply]:
        """Write what attempts of workflows did, each record all or nothing, and answer in order. Fenced.

        A recorded step does not change any more, unless it is undone; so a repeated record changes nothing, and is
        accepted. Children and signals that are stored already are not stored twice. TAKEN: the key of a child belongs
        to another live job, or its id to a job of another parent or task. GONE: a signal's workflow is not there, or
        has ended. LOCKED: another transaction has locked a row or a key that the record needs; later records of the
        same job are LOCKED too, so that their order stays. Either all accepted records are durable on return, or the
        call raised.
        """
        ...

    def steps(self, job_id: str, after: int = 0, limit: int = 1000, *, aside: bool = False) -> list[Step]:
        """Return the steps behind position `after`, in their order; with `aside` also those that were set aside."""
        ...

    def signal(self, signal: Signal) -> Reply:
        """Keep the signal until its workflow takes it, and wake the workflow if it awaits it.

        ALREADY: the workflow has had a signal of this id. GONE: there is no such workflow, or it has ended; or the
        signal is an answer (`seen_fence`), and that workflow does not await it any more.
        """
        ...

    def inbox(self, job_id: str, name: str | None = None, limit: int = 1000) -> Inbox:
        """Return the first `limit` signals that the workflow has not taken, with `name` only those of that name, oldest
        first; and how many things have come for it in all."""
        ...

    def wake_due(self, limit: int = 500) -> float | None:
        """Make up to `limit` waiting jobs ready whose `wake_at` has come; return the earliest that is left, if any."""
        ...

    def expired(self, limit: int = 500) -> list[Job]:
        """Return ready jobs that nobody has claimed or acted on before their `expires_at`, longest ago first."""
        ...

    def dependents(self, on: Sequence[str] | None = None, after: str = "", limit: int = 1000) -> list[Dependent]:
        """Return jobs that wait for other jobs and were never claimed, by id, those behind `after`: all of them, or
        with `on` those that wait for one of these."""
        ...

    def due_waits(self) -> list[DueWaits]:
        """Return the waiting workflows whose `wake_at` has come, by queue and task: the 1,000 that came first."""
        ...

    def fork(self, new: NewJob, source: str, seen_fence: int, before: int, event: NewEvent) -> Added | None:
        """Store a workflow that begins with what another one has recorded before that position, and write the event.

        The copies have no undo: what they did belongs to the other one. An id or key that is taken: as in `add`. None:
        the other one has not ended with that fence, or is gone; nothing was stored.
        """
        ...

    # ------------------------------------------------------------------------------ finding the dead

    def overdue(self, grace_s: float = 0.0, limit: int = 500, skip: int = 0) -> list[Job]:
        """Return running jobs whose lease ended at least `grace_s` ago, longest ago first, without the first `skip`.

        Only reads. A row that cannot be read is left out, so fewer than `limit` may come although there are more; none
        at all come only when there are no more. `skip` counts the rows that cannot be read. `StoreTimeout`: ask for
        fewer.
        """
        ...

    def locked(self, job_ids: Sequence[str]) -> list[str]:
        """Return those of the jobs whose rows another transaction has locked at this moment. Changes nothing."""
        ...

    def ghosts(self, queues: Sequence[str]) -> list[Job]:
        """Return the overdue jobs, at most 100, that hold places of these queues: of those that have limits.

        Only reads. Their places are free once a reaper has settled them, and not before.
        """
        ...

    def deadline(self) -> float | None:
        """Return the earliest lease end of all running jobs, on the lease clock; None when nothing runs."""
        ...

    def stands_by(self) -> Standby | None:
        """Return what a worker knows that leaves the search for the dead to another process. None: look yourself.

        Asks nobody. It is called by the thread that looks all the time; who calls it wants to be asked when nobody else
        looks.
        """
        ...

    def vanished(self) -> list[Vanished]:
        """Return the workers that are provably dead, and those marked gone that still hold leases. Only reads.

        Evidence `lock` or `session`: the liveness lock is free. Look again a moment later before you believe it, and
        compare `beats` and `beat_at`: a worker that beats lives. A lock that cannot be judged is not listed.
        """
        ...

    def holds_lock(self, worker_id: str) -> bool:
        """Say whether the liveness lock of this worker of ours is surely held, or is not needed here. Asks nobody.

        While it is not, other processes see a free lock: only beats show that the worker lives.
        """
        ...

    def enroll(self, worker: Worker) -> None:
        """Take the worker's liveness lock, then write its row and the tasks that it has. Its id must be new.

        Raises `SchemaMismatch` when this program is too old for the schema.
        """
        ...

    def retire(self, worker_id: str, cause: str, under: Duty | None = None, how: WorkerExit | None = None) -> bool:
        """Mark a worker gone: from now on its claims and beats do nothing. False when it was gone already.

        Its leases stay until a reaper settles them. If it is our own, its liveness lock is dropped. `under` is checked
        as in `settle`. `cause` is for people, `how` for the reaper that settles its jobs.
        """
        ...

    def acquire(self, name: str, holder: str, ttl_s: float, note: str | None = None) -> Duty | None:
        """Take the duty, or renew it if it is ours; None while another process's has not run out.

        Taking it raises the term; renewing keeps it, also late, as long as nobody took it in between. Either returns
        the note that is there. `note` is for the next holder, and is left only by a holder that renews.
        """
        ...

    def resign(self, duty: Duty, note: str | None = None) -> bool:
        """Give the duty up at once; False when it was not ours any more.

        `note` is for the next holder. Without one, the note that is there stays.
        """
        ...

    def duties(self) -> list[Duty]:
        """Return every duty that was ever taken, by name, with the newest note.

        Nobody has one whose holder is empty, or whose `until` has passed. `until` is 0 after a restart of the host of a
        file.
        """
        ...

    # --------------------------------------------------------------------------- the operator's door

    def move(self, moves: Sequence[Move]) -> list[Reply]:
        """Apply each act whose job still has the state and the fence that the person saw, and answer in order.

        REFUSED: the job is another by now, or is not there; nothing changed. TAKEN: the job would come alive onto a key
        that another live job held before this call, or that an earlier one of this call gets. LOCKED: another
        transaction has locked the row, its parent's row or its key; the others do not wait. No job may come twice.
        The events of a verdict are written under the fence that the person saw, its steps as in `record`; steps from
        `aside_from` on are set aside under that fence, and the signals that they took wait to be taken again, except
        answers of people (`approve:…`): these are asked again. A parent is woken as in `settle`.
        """
        ...

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
        """Stop or resume claims from a queue, or of a group in it, `until` a wall time or until it is resumed.

        Running jobs go on. A change is written to the journal, under the job id "".
        """
        ...

    def limit(
        self,
        queue: str,
        setting: Setting,
        *,
        declared: bool = False,
        actor: str | None = None,
        note: str | None = None,
    ) -> None:
        """Set the limits of a queue: those that an app has `declared`, or those that a person chooses, which win.

        Limits that the setting does not name are taken back. It is in force when the call returns, for every claim that
        has not been answered by then; what runs already counts. A change is written to the journal, as by `pause`.
        """
        ...

    def order(self, name: str, act: OrderAct | None, *, actor: str | None = None, note: str | None = None) -> bool:
        """Ask the workers of this name, and the children of a supervisor of this name (`name/1`, `name/2`, …), to drain
        or to stop. None takes that back, for the name and for its children.

        An order stands whatever workers come and go, and replaces an earlier one of that name; the same act again keeps
        the first. A worker obeys a stop before a drain. A change is written to the journal, under the job id "".
        Returns whether anything changed.
        """
        ...

    def purge(self, states: Sequence[State], before: float, limit: int = 1000, under: Duty | None = None) -> int:
        """Delete up to `limit` jobs that ended in these states before that wall time, with their history.

        One state after the other, in each of them the oldest first. `under` is checked as in `settle`: an old term
        deletes nothing.
        """
        ...

    def purge_keys(self, after: str = "", limit: int = 1000) -> str | None:
        """Look at the next `limit` keys with rules, those behind `after`, and remove the ones that nobody has any more.
        Return the last key that was looked at; None: there are no more."""
        ...

    def delete(self, jobs: Sequence[Seen], act: NewEvent | None = None) -> list[Reply]:
        """Delete each job that is still what the person saw and not running, with its history, and answer in order.

        `act` is written to the journal, under the job id "", with the number of the deleted `jobs` and their first
        `ids`; not if none was deleted.

        REFUSED: it is another by now, runs, or is not there. LOCKED: as in `move`. Raises `Refused`, and deletes none,
        when a row of another table refers to one of them. No job may come twice.
        """
        ...

    def note_act(self, act: NewEvent) -> None:
        """Write the act of a person on the store itself to the journal, under the job id ""."""
        ...

    def audit(
        self, limit: int = 1000, *, since: float | None = None, before: int | None = None, actor: str | None = None
    ) -> list[Event]:
        """Return the newest events that have an actor, oldest first.

        `since` and `before` as in `journal`; `actor`: only those of this one.
        """
        ...

    # ------------------------------------------------------------------------------------- schedules

    def declare(self, schedules: Sequence[Schedule], again: bool = False) -> None:
        """Write down what a program declares: of each schedule the key, spec, tz, missed and job.

        A new one has its mark at now: what was before it counts for nothing. One whose spec or tz is another than
        before has its mark moved up to when it was last declared; mark and pause stay otherwise. Those that are not
        named stay as they are, and so do those that were made at run time.
        With `again`, of those that are there, only note that the ones that are still the same, field for field, are
        declared; at most twice a minute, so that a large fleet may say it often. One that is another by now is
        declared again if nobody has declared it for `ABANDONED_S`, and stays as it is until then.
        """
        ...

    def schedule(self, schedules: Sequence[Schedule]) -> list[Reply]:
        """Store schedules that need no declaration, or change them; answer in order. No key may come twice.

        A new one has its mark at now. One whose spec or tz is another than before, or that a program declared, has its
        mark moved up to now; mark and pause stay otherwise. REFUSED, and nothing is changed, when a program that lives
        declares it.
        """
        ...

    def schedules(self, keys: Sequence[str] | None = None) -> list[Schedule]:
        """Return every schedule, or those with these keys; by key. One that cannot be read is left out."""
        ...

    def fire(self, firings: Sequence[Firing], under: Duty) -> list[Fired]:
        """Store the job of each instant and move its schedule's mark up to it, both or neither; answer in order.

        None, and nothing is changed, when the mark is there already or beyond, when the schedule is paused, or when
        there is none. Where the job's key belongs to a live job the instant counts as fired, and the answer names that
        job. LOCKED, and nothing is changed, when another transaction has locked the schedule, or holds the job's key in
        a transaction that is still open; then all that were to be fired with it may be LOCKED too: fire them one by
        one. Raises `DutyLost`, and changes nothing, when the duty has a newer term or another holder.
        """
        ...

    def pause_schedule(self, key: str, paused: bool) -> bool:
        """Stop or resume a schedule; False when there is none. Instants in between are not made up for."""
        ...

    def forget_schedule(self, key: str) -> bool:
        """Remove a schedule; False when there is none. One that is declared again under the key begins with that."""
        ...

    # ------------------------------------------------------------------------------- published tasks

    def publish(self, tasks: Sequence[PublishedTask]) -> None:
        """Write down what a worker says of its tasks. It replaces what was known of tasks of these names; a task that
        is published as it is known keeps its `published_at`. No name may come twice."""
        ...

    def published(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        """Return the tasks that any worker has published, or those of them with these names; by name.

        A task stays known when no worker has it any more, until `forget_task`. One that cannot be read is left out.
        """
        ...

    def forget_task(self, name: str) -> bool:
        """Remove what was published of a task; False when there is nothing. A worker that has it publishes it again at
        its start."""
        ...

    # ---------------------------------------------------------------------------------- the read side

    def get(self, job_id: str) -> Job | None:
        """Return the job, or None."""
        ...

    def find(self, where: Filter) -> list[Job]:
        """Return the jobs that match, newest first, at most `where.limit`."""
        ...

    def counts(self) -> dict[str, dict[State, int]]:
        """Return per queue how many jobs are in each state. States with none are left out."""
        ...

    def errors(self, since: float, task: str | None = None, limit: int = 1000) -> list[ErrorGroup]:
        """Return how often attempts ended with which error since that wall time; those with the most attempts first.

        An accepted settlement whose verdict has a `fault` counts one attempt, by the task and the fingerprint. Errors
        are added up by the minute, and the whole minute of `since` counts. They are kept for `KEPT_S` seconds, whether
        or not their jobs are. `releases` has each release once, sorted; `job_id` is that of the last attempt, and of
        several at one instant the largest id.
        """
        ...

    def journal(
        self,
        job_id: str | None = None,
        kinds: Sequence[str] = (),
        limit: int = 1000,
        *,
        since: float | None = None,
        before: int | None = None,
    ) -> list[Event]:
        """Return events, oldest first; of one job the first `limit`, of all the newest.

        `since`: only those of that wall time and later. `before`: only those with a smaller seq, for the page before.
        """
        ...

    def journals(self, job_ids: Sequence[str], limit: int) -> dict[str, list[Event]]:
        """Return the first `limit` events of each of these jobs, oldest first. A job without events is left out."""
        ...

    def workers(self, gone: bool = False) -> list[Worker]:
        """Return the enrolled workers, oldest first; with `gone` also those marked gone, without their tasks.

        Each that is not gone comes with the order that is in force for it.
        """
        ...

    def orders(self) -> list[Order]:
        """Return the orders that stand, by name; also those for which no worker is there."""
        ...

    def recent(self, worker_ids: Sequence[str]) -> dict[str, Recent]:
        """Return what these workers said of themselves last. One that has said nothing is left out. It stays as long as
        the row of the worker."""
        ...

    def paused(self) -> list[str]:
        """Return the names of paused queues."""
        ...

    def queues(self) -> list[Queue]:
        """Return what is set for queues, by name. A queue for which nothing was ever set is left out."""
        ...

    def places(self, queue: str, group: str | None = None) -> Places:
        """Return how many attempts of the queue run, and how many of the group in it."""
        ...

    def unserved(self, queues: Sequence[str], tasks: Sequence[str]) -> Mapping[str, int]:
        """Return due jobs in these queues whose task is not among `tasks`: task name and how many (at most 1,000)."""
        ...

    # ------------------------------------------------------------------------------------ hints and house

    def due(self, queues: Sequence[str], tasks: Sequence[str], *, sleeps: bool = False) -> float | None:
        """Return the earliest run_at (wall) of the jobs that a claim could give; None when there are none.

        For a queue that is paused until an instant, or has a rate, nothing is earlier than its pause and its next
        permit. Limits, and groups that are full or paused, are not looked at. A job that has expired may count until a
        reaper has ended it.

        `sleeps`: the caller is a worker that calls `wait` next if nothing is due. Where producers have to send hints,
        the store tells them that a worker sleeps: a job that is committed from now on ends that `wait`.
        """
        ...

    def wait(self, timeout_s: float) -> bool:
        """Return early, with True, when something may have changed. A hint: polling is the truth."""
        ...

    def wake(self) -> None:
        """Make a `wait` of this process return now."""
        ...

    def is_woken(self) -> bool:
        """Say whether another process looks for what is due, timers of workflows too, and wakes this one. Asks nobody.

        False: look yourself, and call `wake_sleepers` about once a second.
        """
        ...

    def wake_sleepers(self) -> bool:
        """Wake sleeping workers for due jobs that nobody has told them of, if that is for this process to do on behalf
        of the fleet; return whether it is."""
        ...

    def stop_waking(self) -> None:
        """Leave it to another process to look for what is due, at once: this one claims no more. Waits for nothing."""
        ...

    def ping(self, *, durably: bool = False) -> None:
        """Return once the store takes writes; raise `StoreUnavailable` when it does not in time, or `StoreFull`.

        It costs no write, and so cannot notice everything. With `durably` something is written and committed: that
        waits for a standby which must confirm it, and needs room in the file. It gives up after a few seconds.
        """
        ...

    def standing(self, worker_id: str, known: Sequence[str], settled: Lease | None) -> Standing:
        """Return what the store says about itself. Only reads.

        `known`: the ids of jobs that were there; `settled`: a lease whose outcome was acknowledged.
        """
        ...

    def doubt(self, seen: int, doubt: Doubt) -> None:
        """Write down, once for each incarnation, that the store is not what the worker knew.

        Nothing is written when a person has begun another incarnation after `seen`: the doubt is answered.
        """
        ...

    def doubts(self) -> list[Doubt]:
        """Return what was found of this incarnation, oldest first. Empty: nobody has noticed anything."""
        ...

    def accept(self, seen: int, actor: str, note: str | None) -> int:
        """Begin another incarnation after `seen`: a person accepts the store as it is. Return the current number."""
        ...

    def schema(self) -> Schema:
        """Return the schema's version. Creates nothing."""
        ...

    def migrate(self) -> Schema:
        """Bring the schema up to date, in short transactions; return what was found before. Safe to run from many at
        once, and to repeat after it was killed. Raises `SchemaMismatch` when this program is too old for the schema."""
        ...

    def missing(self) -> list[str]:
        """Return the names of tables that should be there and are not; none where there is no store."""
        ...

    def check(self) -> list[str]:
        """Verify the store's integrity; return what is wrong, in words."""
        ...

    def close(self) -> None:
        """Close every connection. The store is of no use afterwards."""
        ...
