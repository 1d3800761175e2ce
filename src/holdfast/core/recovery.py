"""Decide before `judge` which attempts are lost, when to act, and which jobs are suspects.

A reaper is patient, for these reasons:

- A free lock or an expired lease must be seen twice, so that a worker that was only delayed can renew first.
- A worker that beats while its lock is free lives: it has lost the session that holds the lock, and has no other yet.
- After a gap, in which nobody could renew a lease for longer than a beat, every worker gets one more beat to renew.
  A job that is lost in the gap is excused. A store's clock that is set ahead makes a gap as well: leases end that
  nobody had the time to renew.
- Reads may work while no commit ends, and then nobody can renew a lease. So a reaper commits a write of its own before
  it believes that a lease has run out: from when the lease is late until it is judged. If such a write fails or takes
  long, that is a gap, which began when the oldest of these leases was last renewed. Commits must have worked for a few
  seconds: the living renew first when the trouble has just ended.
- An overdue job whose worker still beats has its row locked by another transaction. It gets one beat after the lock is
  gone. A store without locks on rows has no such case.

Instants are arguments: nothing here asks a clock or a store. Those of leases and gaps are on the store's lease clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.core.autopsy import autopsy, of_worker
from holdfast.core.isolation import ended_itself
from holdfast.core.records import Job, Moment, Vanished, Worker
from holdfast.core.verdict import Lost, Released
from holdfast.core.worker_exit import WorkerExit, exit_facts, exit_of

SECOND_LOOK_S = 0.1
MANY = 500  # a second look at each of more overdue jobs than this would only delay them all
SILENCE_S = 2.0  # a store that does not answer for longer than this makes a gap
RENEW_S = 3.0  # when commits work again, every living worker has renewed its leases within this time
PROOF_S = 1.0  # how often to commit a write while a lease is late
UNBROKEN_S = 2.0  # two writes that were committed with less time between them: commits worked all the time
LATE_S = 1.0  # the same for a process that stands by, beyond the time until its next ping
GAPS = 20  # the number of gaps to remember
STORM = 100  # when a reaper recovers more than this many jobs at once,
STORM_SPREAD_S = 5.0  # they come back over this many seconds
SILENT_MAX_S = 86_400.0  # a worker that holds nothing and has not beaten for longer is gone

OverdueKey = tuple[str, int, float | None]  # of a job: id, fence, end of the lease
LastBeat = tuple[int, float]  # of a worker: how many there were, and when the last one came


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which nobody could renew a lease."""

    began: float
    ended: float


def last_gap(gaps: Iterable[Gap], beat_s: float) -> Gap | None:
    """Return the last gap that was as long as a beat, of gaps in their order.

    Two gaps with less than a beat between them are one: a worker that lives may take a beat to renew.
    """
    found: Gap | None = None
    whole: Gap | None = None
    for gap in gaps:
        whole = Gap(whole.began, gap.ended) if whole is not None and gap.began - whole.ended < beat_s else gap
        if whole.ended - whole.began >= beat_s:
            found = whole
    return found


class Observations:
    """Remembers what a reaper saw, from one pass to the next."""

    def __init__(self, pace_s: float = 0.0) -> None:
        self._pace_s = pace_s  # the reaper's own pause between two passes makes no gap
        self.unconfirmed: list[float] = []  # for each death that this pass could not confirm: seconds until it can
        self.overdue: dict[OverdueKey, float] = {}  # -> since when it is seen so, with its row not locked
        self._seen: dict[OverdueKey, float] = {}  # the same, of this pass alone
        self._free_locks: dict[str, tuple[float, LastBeat]] = {}  # worker -> since when its lock is seen free
        self._gaps: deque[Gap] = deque(maxlen=GAPS)
        self._answered_at: float | None = None  # on the reaper's clock
        self._proven_at: float | None = None  # when a write of our own was last committed
        self._proven_since: float | None = None  # since when commits are known to work without a break
        self._commit_failed = False  # since then
        self._next_s = 0.0  # how long the reaper that stands by meant to leave until its next ping; 0 if it looks
        self._ahead: float | None = None  # the store's clock minus the reaper's, at the last look

    def begin(self) -> None:
        """Begin a pass."""
        self.unconfirmed, self._seen = [], {}

    def finish(self) -> None:
        """Forget the overdue jobs that the pass did not meet."""
        self.overdue = self._seen

    def forget(self) -> None:
        """Forget everything but the gaps: nobody looks for a while."""
        self.unconfirmed, self.overdue, self._free_locks = [], {}, {}

    @property
    def recheck_s(self) -> float:
        """Return the seconds until the next pass can confirm something; 0 if nothing is unconfirmed."""
        return max(min(self.unconfirmed), SECOND_LOOK_S) if self.unconfirmed else 0.0

    @property
    def patience_s(self) -> float:
        """Return the seconds until every death that this pass could not confirm can be settled."""
        return max(self.unconfirmed, default=0.0)

    def confirmed_vanished(self, vanished: Sequence[Vanished], now: float, confirm_s: float) -> list[Vanished]:
        """Return the workers that are dead. A lock must have been seen free for `confirm_s` seconds, and no beat may
        have come in that time: each one begins it again."""
        free = {each.worker.id: _last_beat(each.worker) for each in vanished if each.evidence in ("lock", "session")}
        same = {worker: seen for worker, seen in self._free_locks.items() if free.get(worker) == seen[1]}
        self._free_locks = {worker: same.get(worker, (now, beat)) for worker, beat in free.items()}
        left_s = {worker: confirm_s - (now - since) for worker, (since, _) in self._free_locks.items()}
        self.unconfirmed += [left for left in left_s.values() if left > 0]
        return [each for each in vanished if left_s.get(each.worker.id, 0.0) <= 0]

    def confirmed_expired(
        self, overdue: Sequence[Job], now: float, beating: Collection[str], locked: Collection[str]
    ) -> list[Job]:
        """Return the overdue jobs to settle now. `beating`: jobs whose workers still beat. `locked`: jobs whose rows
        are locked."""
        for job in overdue:
            key = overdue_key(job)
            self._seen[key] = now if job.id in locked else self.overdue.get(key, now)
        self.overdue |= self._seen
        left_s = {job.id: self._left_s(job, now, job.id in beating) for job in overdue}
        self.unconfirmed += [left for job_id, left in left_s.items() if left > 0 and job_id not in locked]
        return [job for job in overdue if left_s[job.id] <= 0]

    def _left_s(self, job: Job, now: float, worker_beats: bool) -> float:
        """Return for how many seconds more an overdue job is left alone."""
        patience_s = 0.0 if len(self._seen) > MANY else SECOND_LOOK_S
        if worker_beats:  # its row was locked, and the worker may have a result in hand
            patience_s = job.beat_s
        left_s = patience_s - (now - self.overdue[overdue_key(job)])
        if self._proven_since is not None:
            left_s = max(left_s, self._proven_since + min(job.beat_s, RENEW_S) - now)
        gap = last_gap(self._gaps, job.beat_s)
        return left_s if gap is None else max(left_s, gap.ended + job.beat_s - now)

    def is_in_gap(self, job: Job) -> bool:
        """Say whether the lease ended during or after the last gap, and was last renewed before the gap was over."""
        gap = last_gap(self._gaps, job.beat_s)
        return gap is not None and gap.began <= (job.lease_until or 0.0) < gap.ended + job.lease_s

    def pinged(self, asked_at: float, answered_at: float, store_now: float, next_s: float = 0.0) -> None:
        """Note that the store took a write, and a gap if it had not for long: during this call or before it.

        `next_s`: the reaper stands by, and leaves this time until its next ping. It may not notice a shorter gap.
        """
        since = self._answered_at if self._answered_at is not None else asked_at
        rested_s, self._answered_at, self._next_s = self._next_s, answered_at, next_s
        if rested_s:
            gap_s, least_s = answered_at - since, rested_s + LATE_S
        else:
            gap_s, least_s = max(answered_at - asked_at, answered_at - since - self._pace_s), SILENCE_S
        if gap_s > least_s:
            self._gaps.append(Gap(store_now - gap_s, store_now))

    def wrote(self, now: float) -> None:
        """Note a write within a pass: a long pass makes no gap. A silence is left for the next ping to find."""
        if self._answered_at is not None and now - self._answered_at <= SILENCE_S:
            self._answered_at = now

    def wants_proof(self, jobs: Sequence[Job], now: float) -> bool:
        """Say whether to commit a write before these late leases are judged: the last one was too long ago."""
        if not jobs or self._proven_at is None or self._commit_failed:
            return bool(jobs)
        return now - self._proven_at >= min(PROOF_S, min(job.beat_s for job in jobs) / 2)

    def unproven(self) -> None:
        """Note that a write of our own could not be committed."""
        self._commit_failed = True

    def proven(self, asked_at: float, answered_at: float, store_now: float, jobs: Sequence[Job]) -> None:
        """Note that a write of our own was committed, before these late leases are judged; and a gap if that took
        long, or had failed before."""
        took_s = answered_at - asked_at
        if took_s > SILENCE_S or self._commit_failed:
            began = min((renewed_at(job) for job in jobs), default=store_now)
            began = began if self._proven_at is None else max(began, self._proven_at)
            self._gaps.append(Gap(min(began, store_now - took_s), store_now))
            self._proven_since = store_now
        elif self._proven_at is None or store_now - self._proven_at > UNBROKEN_S:
            self._proven_since = store_now
        self._proven_at, self._commit_failed = store_now, False

    def clock_jump_s(self, store_now: float, now: float) -> float:
        """Return by how many seconds the store's clock was set ahead since the last look, 0.0 if it was not."""
        ahead, before = store_now - now, self._ahead
        self._ahead = ahead
        if before is None or ahead - before <= SILENCE_S:
            return 0.0
        self._gaps.append(Gap(store_now - (ahead - before), store_now))
        return ahead - before


@dataclass(frozen=True, slots=True)
class WorkerDeath:
    """The end of a worker, before its jobs are judged one by one."""

    cause: str
    exit: WorkerExit
    worker: Worker | None = None  # None: only the lease says so, and jobs may be of several workers
    evidence: str | None = None  # if it was seen just now
    spread_s: float = 0.0


LEASE_RAN_OUT = WorkerDeath("its lease ran out", WorkerExit("expired"))


def death_of(vanished: Vanished, name: str | None, spread_s: float) -> WorkerDeath:
    """Return how the worker ended, as a reaper in the worker of this name sees it."""
    worker, ours = vanished.worker, vanished.worker.name == name
    if vanished.evidence == "gone":
        return WorkerDeath(worker.gone_cause or "marked gone", exit_of(worker), worker, None, spread_s)
    if vanished.evidence == "boot":
        cause = "its machine was restarted"
    else:
        cause = "an earlier process of this worker died" if ours else "its process died"
        cause += " or was cut off from the server" if vanished.evidence == "session" else ""
        cause += f" (pid {worker.pid} on {worker.host})"
    return WorkerDeath(cause, WorkerExit("restart" if ours else "vanished"), worker, vanished.evidence, spread_s)


def death_of_silent(worker: Worker, wall: float, *, has_ended: bool) -> WorkerDeath | None:
    """Return how a worker ended that holds nothing and whose death no store can prove; None: it may live."""
    if worker.running:
        return None
    if has_ended and not worker.is_alive(wall):
        return WorkerDeath("its process has ended, unnoticed", WorkerExit("restart"), worker)
    silent = wall - worker.beat_at > SILENT_MAX_S
    return WorkerDeath("it was silent for a day", WorkerExit("vanished"), worker) if silent else None


def outcome_of(
    job: Job, death: WorkerDeath, holder: Worker | None, now: Moment, *, suspects: int, in_gap: bool
) -> Lost | Released:
    """Return what became of one attempt of a worker that ended. `suspects`: how many jobs its process had."""
    detector, facts = death.exit.detector, exit_facts(death.exit.code)
    if detector is None:
        return Released(job.begun, death.cause)
    if death.evidence is not None:
        facts = {**facts, "evidence": death.evidence}
    return Lost(
        detector=detector,
        cause=death.cause,
        autopsy=autopsy(job, of_worker(holder, job, now), now, facts),
        suspects=suspects if suspects > 1 else int(ended_itself(facts)),
        excused=death.exit.excused or (detector == "expired" and in_gap),
        spread_s=death.spread_s,
        started=job.begun,
        worker=holder.name if holder else job.worker,
    )


def beating(overdue: Sequence[Job], living: Mapping[str, Worker], wall: float) -> set[str]:
    """Return the ids of jobs whose workers live: the last beat is younger than one beat of the job."""
    workers = ((job, living.get(job.worker or "")) for job in overdue)
    return {job.id for job, worker in workers if worker is not None and abs(wall - worker.beat_at) < job.beat_s}


def suspects(jobs: Iterable[Job]) -> Counter[str | None]:
    """Count the jobs of each worker: any of them may have ended its process, or held it up."""
    return Counter({job.id: job.worker for job in jobs}.values())


def spread_s(begun: int) -> float:
    """Return over how many seconds jobs come back. Only those that had begun make a storm."""
    return STORM_SPREAD_S if begun > STORM else 0.0


def _last_beat(worker: Worker) -> LastBeat:
    """Return what changes with every beat; a beat that was noted beside a locked row changes only the instant."""
    return worker.beats, worker.beat_at


def late(jobs: Iterable[Job], now: float, grace_s: float) -> list[Job]:
    """Return the jobs that have missed a beat, and whose time is not up yet."""
    ends = ((job, job.lease_until or 0.0) for job in jobs)
    return [job for job, end in ends if end + grace_s > now and end - now < job.beat_s]


def renewed_at(job: Job) -> float:
    """Return when the lease was last renewed."""
    return (job.lease_until or 0.0) - job.lease_s


def overdue_key(job: Job) -> OverdueKey:
    return job.id, job.fence, job.lease_until
