"""The nouns: plain, frozen data that every layer passes around.

`Job` is a row. The order of its fields is the order of the columns in every store (a test compares
them), so that a store can hand over many rows as one JSON array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast.core.machine import State
from holdfast.core.policy import Jitter, OnCrash, Policy, Retry
from holdfast.core.row_text import Awaited, Awaits, CurrentSteps

EventKind = Literal[
    "claimed",
    "succeeded",
    "failed",
    "timed_out",
    "stalled",
    "zombie",
    "released",
    "snoozed",
    "held",
    "dead",
    "revived",
    "resolved",
    "cancelled",
    "stale_report",
    "rolled_back",
    "asked",
    "signalled",
    "moved",
    "warning",
    "limited",
    "paused",
    "resumed",
    "ordered",
    "deleted",
    "purged",
    "fired",
    "scheduled",
    "forgotten",
    "accepted",
    "token_added",
    "token_revoked",
]
StepKind = Literal[
    "step",
    "transaction",
    "sleep",
    "wait",
    "approve",
    "signal",
    "start",
    "result",
    "now",
    "random",
    "uuid",
    "patch",
    "gather",
]
OrderAct = Literal["drain", "stop"]
KeyScope = Literal["queued", "live", "ever"]
OnTaken = Literal["keep", "replace", "cancel"]
StepState = Literal["started", "recorded", "undone"]
GONE_KEPT_S = 86_400.0  # the row of a worker that is gone and holds nothing is deleted after this
REMOTE_BOOT = "remote"  # the boot id of a worker without a liveness lock: it speaks to a server, not to the store
SILENT_BEATS = 3  # a worker that missed this many beats is silent
Detector = Literal["exit", "vanished", "expired", "stuck", "restart"]
ExitKind = Detector | Literal["released"]
StopReason = Literal[
    "attempts_max", "crashes_max", "final", "on_crash", "open_step", "still_running", "suspected", "diverged"
]


class Moment(msgspec.Struct, frozen=True):
    """One instant on both clocks of a store."""

    wall: float
    lease: float


class Lease(msgspec.Struct, frozen=True):
    """Proof of the right to run one attempt. A worker that shows an older one is a zombie."""

    job_id: str
    fence: int
    claim_id: str


class Seen(NamedTuple):
    """A job as a person saw it. The decision counts only while the job has this state and this fence."""

    job_id: str
    state: State
    fence: int


class KeyRule(msgspec.Struct, frozen=True):
    """The time for which a job has its key, and the effect of an enqueue that finds it taken; see `core/keys.py`.

    scope: while no worker has claimed it, while it is live, for this many seconds, or for ever. wait_max_s: the longest
    time by which replacements may put it off.
    """

    scope: KeyScope | float = "live"
    on_taken: OnTaken = "keep"
    wait_max_s: float | None = None


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is not stored yet. The client made its id, so that sending it twice stores it once."""

    id: str
    task: str
    payload: str
    queue: str = "default"
    key: str | None = None
    priority: int = 0
    run_at: float | None = None  # wall time; None: as soon as possible
    delay_s: float = 0.0  # counted by the store's own clock, added to now when run_at is None
    policy: Policy = Policy()
    workflow: bool = False
    parent: str | None = None  # the workflow that started it, and is woken by its end
    group: str | None = None  # whose work it is: groups of a queue take turns
    callbacks: str | None = None  # the jobs that are stored when it ends (core/callbacks.py)
    key_rule: KeyRule | None = None  # None: it has its key while it is live, and an enqueue returns it
    expires_s: float | None = None  # counted by the store's own clock from the enqueue; see `Job.expires_at`
    tags: str | None = None  # JSON, as the next one: core/labels.py
    meta: str | None = None
    awaits: tuple[Awaited, ...] = ()  # the jobs that it runs after (core/dependencies.py)

    @property
    def is_keyed(self) -> bool:
        """Say whether its key has a rule of its own."""
        return self.key_rule is not None and self.key is not None


def has_keyed(jobs: Sequence[NewJob]) -> bool:
    """Say whether the key of one of these has a rule of its own."""
    return any(job.key_rule is not None and job.key is not None for job in jobs)


class Job(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A stored request to run a task, as its row is now."""

    id: str
    task: str
    queue: str
    payload: str
    key: str | None
    priority: int
    state: State
    run_at: float
    created_at: float
    attempt: int  # claims so far
    fence: int
    claim_id: str | None
    worker: str | None
    lease_until: float | None  # on the store's lease clock
    claimed_at: float | None
    started: bool  # False: claimed ahead of a free slot, the handler has perhaps not begun
    failures: int
    crashes: int
    zombies: int
    suspects: int  # how many jobs were in the process that died with the last attempt
    cancel_requested: bool
    rolling_back: bool
    attempts_max: int
    backoff_base_s: float
    backoff_cap_s: float
    backoff_jitter: bool
    crashes_max: int
    on_crash: OnCrash
    lease_s: float
    beat_s: float
    timeout_s: float | None
    stall_s: float | None
    error: str | None
    result: str | None
    progress: float | None
    note: str | None
    ended_at: float | None
    log: str | None = None  # the last lines that the running attempt has logged, as of its last beat
    moved_at: float | None = None  # wall time of the last progress that a beat reported
    workflow: bool = False
    parent: str | None = None
    undoable: bool = False  # a step with an undo was begun
    open_step: str | None = None  # a step that must not be repeated was begun and not recorded
    inbox: int = 0  # how many signals and ended children have come for it
    wake_at: float | None = None  # wall time; the next three only while it is waiting
    awaits: Awaits | None = None
    question: str | None = None  # what a person is asked
    undo_requested: bool = False  # the person who asked it to stop wants its steps undone
    in_steps: CurrentSteps | None = None  # the steps that its attempt reported last
    backoff_full: bool = False  # all of each pause between two tries is random, not only half of it
    releases: int = 0  # how often in a row it has come back at no cost after its handler had begun
    stop_reason: StopReason | None = None  # why it is held, dead or rolled back, apart from its error
    rollback_cause: str | None = None  # why it is rolled back, once its error is that of an undo
    group: str | None = None
    error_kind: str | None = None  # the class of the exception that its error tells of, if it was one
    callbacks: str | None = None  # the jobs that are stored when it ends (core/callbacks.py)
    fingerprint: str | None = None  # of the error of its last attempt that failed or was lost; see error_fingerprint.py
    release: str | None = None  # of the worker that ran that attempt, if it was told one
    erred_at: float | None = None  # wall time of that ending
    batch: str | None = None  # of which it is a job (core/batches.py)
    key_scope: str | None = None  # None: "live"; else "queued", "ever", seconds, or "passed" (to a newer job)
    beat_data: str | None = None  # JSON: what the running handler has given to its last ctx.heartbeat(…)
    expires_at: float | None = None  # wall time from which on it is not started any more, if it never was
    tags: str | None = None  # JSON, as the next one: core/labels.py
    meta: str | None = None

    @property
    def lease(self) -> Lease:
        """Return the token of the current attempt; only a running job has a valid one."""
        return Lease(self.id, self.fence, self.claim_id or "")

    @property
    def seen(self) -> Seen:
        """Return what an act on this job is compared with."""
        return Seen(self.id, self.state, self.fence)

    @property
    def begun(self) -> bool:
        """Return whether the handler is known to have begun: a beat said so, or it has begun a step on record."""
        return self.started or self.open_step is not None

    def is_expired(self, now: float) -> bool:
        """Say whether it is not started any more: nobody has claimed it, and no person has acted on it, in time."""
        in_time = self.expires_at is None or now < self.expires_at
        return not in_time and self.state is State.READY and self.fence == 0

    @property
    def retry(self) -> Retry:
        jitter: Jitter = "none" if not self.backoff_jitter else "full" if self.backoff_full else "equal"
        return Retry(self.attempts_max, self.backoff_base_s, self.backoff_cap_s, jitter)

    @property
    def policy(self) -> Policy:
        """Return what it was declared with, for another job like it."""
        times = self.lease_s, self.beat_s, self.timeout_s, self.stall_s
        return Policy(self.retry, self.crashes_max, self.on_crash, *times)

    def shown_state(self, now: float) -> str:
        """Return the word that people see: a `ready` job with a later `run_at` is scheduled or retrying."""
        return shown_state(self.state, self.run_at, self.failures + self.crashes, now)


def shown_state(state: State, run_at: float, tries: int, now: float) -> str:
    """Return the word that people see for a job in this state that was tried this often."""
    if state is State.READY and run_at > now:
        return "retrying" if tries else "scheduled"
    return state.value


class DamagedJob(Job, frozen=True, kw_only=True, array_like=True):
    """A job whose row was damaged by another program. Each column that cannot be read has a stand-in.

    It must not run: its arguments may be stand-ins. `damage` names the column and the reason.
    """

    damage: str


def damaged(job: Job, damage: str) -> DamagedJob:
    """Return the job as one that must not run, for this reason."""
    return DamagedJob(**msgspec.structs.asdict(job), damage=damage)


class NewEvent(msgspec.Struct, frozen=True):
    """An event that is not written to the journal yet."""

    kind: EventKind
    detail: dict[str, Any] = {}
    actor: str | None = None


class Event(msgspec.Struct, frozen=True):
    """A line in a job's history."""

    seq: int
    job_id: str
    at: float
    kind: EventKind
    fence: int
    worker: str | None
    actor: str | None
    detail: dict[str, Any]


class Step(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A recorded unit of a workflow. `path` is what it is known by, `position` the order of the first writing."""

    position: int
    path: str
    kind: StepKind
    name: str
    state: StepState
    attempt: int
    fence: int
    has_undo: bool = False
    repeatable: bool = True
    arguments: str | None = None
    result: str | None = None
    error: str | None = None
    error_kind: str | None = None  # the class of the exception
    started_at: float | None = None
    ended_at: float | None = None
    aside: int = 0  # the fence at which a person set it aside; 0: it counts
    undone_at: float | None = None
    tries: int = 0  # how often its function has returned or raised; only a step counts that
    retry_at: float | None = None  # a try has failed, and this is when the next one begins


class Signal(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A message for a workflow. The sender made its id, so that sending it twice delivers it once."""

    id: str
    job_id: str
    name: str
    value: str | None = None
    actor: str | None = None
    sent_at: float = 0.0
    note: str | None = None  # why it was sent: for the journal, and not kept with it
    # The next two are not kept either: the fence of the workflow that it answers (one that has continued since is not
    # reached), and the answer of a person to a question, for the journal.
    seen_fence: int | None = None
    answer: bool | None = None

    @property
    def awaited(self) -> Awaited:
        """Return what a workflow waits for that this signal wakes."""
        return Awaited("signal", self.name)

    @property
    def line(self) -> NewEvent:
        """Return what the journal says of it. Its value is not there: it may be large, or a secret."""
        answer = {"answer": self.answer} if self.answer is not None else {}
        note = {"note": self.note} if self.note else {}
        return NewEvent("signalled", {"name": self.name, **answer, **note}, self.actor)


class Inbox(msgspec.Struct, frozen=True):
    """The signals that a workflow has not taken, oldest first; `count` is what parking compares."""

    count: int
    signals: list[Signal] = []


class DueWaits(msgspec.Struct, frozen=True, array_like=True):
    """Waiting workflows of one task in one queue whose time has come: how many, and since when (wall time)."""

    queue: str
    task: str
    jobs: int
    since: float


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Records of a workflow's attempt: written all or nothing, and only if its lease is the current one."""

    lease: Lease
    worker: str | None = None
    steps: tuple[Step, ...] = ()
    open_step: str | None = None  # None: leave it; "": none is open
    undoable: bool = False
    taken: tuple[str, ...] = ()  # signals that the first step takes
    jobs: tuple[NewJob, ...] = ()  # children that it starts
    sent: tuple[Signal, ...] = ()  # signals to other workflows


class Published(msgspec.Struct, frozen=True, omit_defaults=True):
    """The description of a task that a worker publishes."""

    queue: str
    own_codec: bool = False  # its app has a codec of its own: an answer in plain JSON could not be read


class Order(msgspec.Struct, frozen=True, array_like=True):
    """The order of a person for all workers of a name. It stands until it is taken back."""

    name: str  # of workers, or of a supervisor and so of its children
    act: OrderAct
    actor: str | None
    note: str | None
    at: float  # wall time


class EndedAttempt(msgspec.Struct, frozen=True, array_like=True):
    """The end of one attempt, as its worker remembers it."""

    job_id: str
    task: str
    outcome: str
    state: State  # what became of the job
    at: float  # wall time
    took_s: float | None  # None: its handler had not begun


class Recent(msgspec.Struct, frozen=True, array_like=True):
    """The last endings and the last log lines of a worker, oldest first, as it reports them with a beat."""

    endings: tuple[EndedAttempt, ...] = ()
    log: str = ""


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """One incarnation of a named worker."""

    id: str
    name: str
    host: str
    pid: int
    boot_id: str
    supervisor: str | None = None  # the id that the parent gave to its children
    queues: list[str] = []
    slots: int = 0
    beat_s: float = 10.0
    version: str = ""
    started_at: float = 0.0
    beat_at: float = 0.0
    beats: int = 0
    running: int = 0
    rss_mb: float | None = None
    gone_at: float | None = None
    gone_cause: str | None = None
    exit_kind: ExitKind | None = None  # this and the next two: see core/worker_exit.py
    exit_code: int | None = None
    exit_excused: bool = False
    stopping: bool = False  # it claims nothing more, and lets its running jobs finish
    release: str | None = None  # the release of the user's code that it runs, as it was told
    tasks: dict[str, Published] | None = None  # None: it is gone, or its version does not publish them
    order: Order | None = None  # that is in force for it; only as `Store.workers` answers

    @property
    def is_remote(self) -> bool:
        """Say whether it has no liveness lock: only its lease, or a server that saw it leave, proves its death."""
        return self.boot_id == REMOTE_BOOT

    def is_alive(self, now: float) -> bool:
        """Say whether it is not gone and has not missed several beats."""
        return self.gone_at is None and now - self.beat_at <= SILENT_BEATS * self.beat_s

    def claims(self, now: float) -> bool:
        """Say whether it is alive and claims jobs."""
        return self.is_alive(now) and not self.stopping

    def may_run(self, queue: str, task: str) -> bool:
        """Say whether it claims jobs of this task from this queue, as far as it has published its tasks."""
        return queue in self.queues and (self.tasks is None or task in self.tasks)


def nobody_has(living: Sequence[Worker], queue: str, task: str) -> bool:
    """Say whether no living worker that serves the queue has the task or, if nobody serves it, no living worker at all.

    False when no worker is alive: nobody knows which tasks the next one will have.
    """
    serving = [worker for worker in living if queue in worker.queues] or living
    return bool(living) and all(worker.tasks is not None and task not in worker.tasks for worker in serving)


class Pulse(msgspec.Struct, frozen=True):
    """The part of a beat that renews one lease."""

    lease: Lease
    started: bool = True
    progress: float | None = None
    note: str | None = None
    log: str | None = None  # all the last lines; None: there are no new ones
    still_s: float | None = None  # how long ago the handler said last that it moves; None: it has not
    in_steps: CurrentSteps | None = None  # the steps that a workflow is in; None: the same as it reported before
    beat_data: str | None = None  # JSON; None: the same as before


class Firing(msgspec.Struct, frozen=True):
    """One instant of a schedule, and the job that it stores."""

    schedule: str
    instant: float
    job: NewJob


class BeatReply(msgspec.Struct, frozen=True):
    """The store's reply to a beat."""

    lost: list[str] = []  # job ids whose lease is no longer ours
    skipped: list[str] = []  # job ids whose row was locked by another transaction: not renewed this time
    cancelled: list[str] = []  # job ids that were asked to stop
    gone: bool = False  # this worker was declared dead; nothing was renewed
    lock_lost: bool = False  # its liveness lock was gone, and was taken again
    counted: bool = True  # False: the worker's own row was locked, and does not know of this beat
    order: Order | None = None  # what a person has asked of this worker


class Standby(msgspec.Struct, frozen=True):
    """The knowledge of a process that leaves the search for the dead to another one. It asked with a write that changes
    nothing, which counts as its own ping."""

    asked_at: float  # on the lease clock of the process
    answered_at: float
    store_now: float  # on the lease clock of the store
    deadline: float | None  # when the earliest lease ends
    every_s: float  # how long it may take until it is asked again


class Vanished(msgspec.Struct, frozen=True):
    """A worker that is dead by the evidence, or that was marked gone and still holds leases.

    lock: the host has freed its lock, so its process has ended. session: the server has freed it, because the process
    has ended or its connection was cut. boot: the machine was restarted.
    """

    worker: Worker
    evidence: Literal["lock", "session", "boot", "gone"]


class Duty(msgspec.Struct, frozen=True):
    """The right to do a fleet-wide chore. The term only ever rises; an act under an old one is refused."""

    name: str
    holder: str
    term: int
    until: float  # on the store's lease clock
    note: str | None = None  # what a holder has left for the next one


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule: the job to enqueue, its instants, and its progress. Fields are in the order of the columns.

    One that is `kept` was made at run time: it is fired until it is removed, whatever programs declare.
    """

    key: str
    spec: str  # a cron expression of five fields
    tz: str
    missed: Literal["last", "skip"] = "last"
    job: NewJob  # what each instant stores, under an id and a run_at of its own
    mark: float = 0.0  # wall time: instants up to here are dealt with; only ever rises
    fired_at: float | None = None  # the last instant that was fired
    job_id: str | None = None  # the job that it stored, or found to have the key
    paused: bool = False
    declared_at: float = 0.0  # when a program last said that it still declares it
    missed_max: int = 1  # with missed="last": how many of the missed instants are fired, the last ones
    jitter_s: float = 0.0  # the job of an instant becomes due up to this much later; see `core/schedule.py: run_at`
    kept: bool = False


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of a search for jobs; newest first."""

    states: tuple[State, ...] = ()
    queue: str | None = None
    task: str | None = None
    worker: str | None = None
    key: str | None = None
    cancel_requested: bool | None = None
    ids: tuple[str, ...] | None = None
    workflow: bool | None = None
    asking: bool | None = None  # waiting for a person's answer
    later: float | None = None  # of the ready jobs only those whose run_at is after this wall time
    tried: bool | None = None  # of the ready jobs only those that have, or have not, failed or crashed
    before: str | None = None  # the id of the last job of the page before
    limit: int = 100
    group: str | None = None
    prefix: str | None = None  # what the id begins with
    fingerprint: str | None = None  # of the last error; see core/error_fingerprint.py
    release: str | None = None  # of the worker that ran the attempt with the last error
    since: float | None = None  # wall time of `instant_of`, this or later
    until: float | None = None  # the same, earlier than this
    tags: tuple[str, ...] = ()  # all of these
    meta: tuple[tuple[str, str], ...] = ()  # all of these names with these values

    @property
    def of_errors(self) -> bool:
        """Say whether it asks for the last error, so that `since` and `until` are about the time of that error."""
        return self.fingerprint is not None or self.release is not None

    def instant_of(self, job: Job) -> float | None:
        """Return the instant of a job that `since` and `until` are compared with: of its last error if the filter asks
        for errors; else of its end, or of its last error if it has not ended, or of its enqueue."""
        if self.of_errors:
            return job.erred_at
        known = (at for at in (job.ended_at, job.erred_at, job.created_at) if at is not None)
        return next(known)
