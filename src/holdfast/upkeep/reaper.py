"""The reaper is a query, not a service: find lost attempts, judge them, settle them.

    overdue · vanished (read)  ──▶  core/recovery.py, judge() (pure)  ──▶  settle() (compare-and-set)

Reading and then writing is safe because every settlement carries the fence that was read. So any number of reapers may
run at once, anywhere, without the user's code. The same pass serves the thread inside each worker, `app.reap()`,
`holdfast scan`, and the supervisor that saw a child end.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from socket import gethostname

import msgspec

from holdfast.clock import Clock, pause
from holdfast.continuity import check_whole
from holdfast.core import recovery
from holdfast.core.machine import State
from holdfast.core.records import Detector, Duty, Filter, Job, Lease, Moment, Standby, Vanished, Worker, damaged
from holdfast.core.recovery import RENEW_S, SECOND_LOOK_S, WorkerDeath, overdue_key
from holdfast.core.settlement import Settlement, settlement
from holdfast.core.verdict import Verdict, judge
from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import HoldfastError, PolicyError, StoreError, StoreLocked, StoreTimeout, is_passing
from holdfast.failpoints import point
from holdfast.ids import chance
from holdfast.runtime.hooks import Hooks
from holdfast.runtime.log_fields import about
from holdfast.runtime.tracebacks import describe
from holdfast.stores.protocol import Reply, Store
from holdfast.upkeep.batch_ends import BatchSweep
from holdfast.upkeep.dependents import DependentSweep
from holdfast.upkeep.expiry import ExpirySweep

log = logging.getLogger("holdfast.reaper")

PAGE = 500
SILENT_LOOK_S = 3600.0  # how often to look for workers that are silent for long
LOOK_S = 1.0  # how often to look while a worker that beats is given its time
COMPLAIN_S = 60.0  # how often to say that a row is damaged
TIMEOUTS_MAX = 10  # in a row; then the whole store is slow, and the pass ends
GOES_ON = frozenset({Reply.ACCEPTED, Reply.AGAIN})  # after these the next page is another one; some is judged again


class Zombie(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose attempt lost its worker, and what becomes of it."""

    job: Job
    worker: Worker | None
    detector: Detector | None  # None: its worker was asked to stop, and the job is only given back
    verdict: Verdict
    answer: Reply | None = None  # what the store said to the verdict; None: it was not asked, or could not say

    @property
    def recovered(self) -> bool:
        """Say whether it was settled here. Otherwise it was a dry run, or another process was first."""
        return self.answer is Reply.ACCEPTED


class Report(msgspec.Struct, frozen=True):
    """The result of one pass."""

    zombies: list[Zombie] = []

    @property
    def recovered(self) -> int:
        """Count the jobs that this pass settled itself."""
        return sum(zombie.recovered for zombie in self.zombies)

    @property
    def locked(self) -> int:
        """Count the jobs whose rows another transaction had locked. They are unchanged; the next pass looks at them
        again."""
        return sum(zombie.answer is Reply.LOCKED for zombie in self.latest)

    @property
    def latest(self) -> list[Zombie]:
        """Return each lost attempt once, as the last look at it found it."""
        return list({(zombie.job.id, zombie.job.fence): zombie for zombie in self.zombies}.values())


class Reaper:
    """Passes over one store. `recovery.Observations` remembers what the last ones saw."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        hooks: Hooks | None = None,
        grace_s: float = 0.0,
        name: str | None = None,
        pace_s: float = 0.25,
        lots: Callable[[], float] = chance,
        on_settled: Callable[[int], object] | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._hooks = hooks or Hooks()
        self._grace_s = grace_s
        self._name = name  # of our own worker: what an earlier process of it left is a restart
        self._random = lots
        self._on_settled = on_settled  # called after each page with the number of jobs that were settled
        self._under: Duty | None = None
        self.observed = recovery.Observations(pace_s)
        self._logged_locked: set[recovery.OverdueKey] = set()
        self._holders: dict[str, Worker] = {}
        self._complained: dict[str, float] = {}
        self._unwritable: dict[Lease, float] = {}  # of rows that the store could not write, and when
        self.deadline: float | None = None  # when the earliest lease ends, as the last pass found it before it settled
        self._watches = False  # a lease that ends soon is late
        self._stood_by_at = self._called_at = float("-inf")
        self._timeouts = 0  # one after the other
        self._batches = BatchSweep(store, clock)
        self._expiry = ExpirySweep(store, clock)
        self._dependents = DependentSweep(store, clock)
        self._swept_at = float("-inf")  # when workers that are silent for long were last looked for

    def once(self, *, fix: bool = True, under: Duty | None = None) -> Report:
        """Make one pass; act only on deaths that the pass before has seen too. Raises `StoreError` when the store does.

        With `under`, every act carries that duty's term; raises `DutyLost` when it is an old one.
        """
        self._under, self._timeouts = under, 0
        self._forget_complaints()
        self.observed.begin()
        if fix:
            self._check_writes()  # before anything is judged
        vanished = self.observed.confirmed_vanished(
            self._store.vanished(), self._store.now().lease, self._store.confirm_s
        )
        spread_s = self._spread_s([each.worker for each in vanished])
        found: list[Zombie] = []
        for each in vanished:
            try:
                found += self._recover_vanished(each, spread_s, fix)
            except (StoreLocked, StoreTimeout) as error:  # the next pass finds it again
                self._tolerate(error)
                log.warning("worker %s cannot be recovered yet: %s", each.worker.name, error)
            except HoldfastError:
                raise
            except Exception:  # an unexpected error; recover the others
                if each.worker.id not in self._complained:
                    self._complained[each.worker.id] = self._clock.lease()
                    log.exception("worker %s cannot be recovered, and a person must look", each.worker.name)
        found += self._recover_expired(fix, {zombie.job.id for zombie in found})
        if fix:
            self._end_expired()
            self._end_batches()
            self._start_dependents()
        if fix and self._clock.lease() - self._swept_at >= SILENT_LOOK_S:
            try:
                self._retire_the_silent(under)
            except StoreError as error:  # what was recovered is still reported
                log.warning("could not mark silent workers as gone (%s); trying again in an hour", error)
        return Report([zombie for zombie in found if zombie.detector is not None])

    def _end_expired(self) -> None:
        try:
            self._expiry.once()
        except StoreError as error:  # what was recovered is still reported
            log.warning("could not look for jobs that have expired (%s); trying again with the next pass", error)

    def _end_batches(self) -> None:
        try:
            self._batches.once()
        except StoreError as error:  # what was recovered is still reported
            log.warning("could not look at batches (%s); trying again with the next pass", error)

    def _start_dependents(self) -> None:
        try:
            self._dependents.once()
        except StoreError as error:  # what was recovered is still reported
            log.warning("could not look for jobs that run after others (%s); trying again with the next pass", error)

    def complete(self, *, fix: bool = True, within_s: float = float("inf")) -> Report:
        """Make a pass, and look again until nothing is in doubt, for at most `within_s` seconds.

        A free lock and an overdue lease take a moment; an overdue job whose worker still beats takes one beat.
        """
        report = self.once(fix=fix)
        waited_s, within_s = 0.0, min(within_s, self.observed.patience_s + SECOND_LOOK_S)
        while self.observed.recheck_s and waited_s < within_s:
            pause_s = min(self.observed.recheck_s, within_s - waited_s, LOOK_S)
            pause(pause_s)
            waited_s += pause_s
            later = self.once(fix=fix)
            report = Report(report.zombies + later.zombies) if fix else later
        return report

    def stand_by(self) -> None:
        """Ping the store instead of making a pass. So time without the duty is not taken for a gap, and a real gap is
        noticed.

        Raises `StoreError` when the store does.
        """
        self.observed.forget()
        self._check_writes()

    def is_called(self, standby: Standby) -> bool:
        """Stand by, while another process looks all the time; say whether to make a pass nevertheless.

        A pass is needed when a lease ends, or ends soon and is late: the other process may be frozen.
        """
        if self.observed.unconfirmed or self._watches:
            return True
        if standby.answered_at != self._stood_by_at:
            self._stood_by_at = standby.answered_at
            self.observed.pinged(standby.asked_at, standby.answered_at, standby.store_now, standby.every_s)
            self._compare_clocks(standby.store_now, standby.answered_at)
        since_s = self._clock.lease() - standby.answered_at
        soon_s = RENEW_S if self._store.commits_may_hang else 0.0
        ends = standby.deadline is not None and standby.deadline + self._grace_s - soon_s <= standby.store_now + since_s
        if ends and self._called_at != standby.answered_at:  # once for each answer: a row may stay overdue
            self._called_at = standby.answered_at
            return True
        self.observed.forget()
        return False

    def recover_worker(self, worker: Worker, cause: str, how: WorkerExit) -> Report:
        """Declare a worker dead and settle its jobs. For callers that saw its process end.

        If it raises, the row of the worker says how it ended: repeat the call, or leave it to any other reaper.
        """
        return Report(self._retire(worker, cause, how))

    def release_worker(self, worker: Worker, cause: str) -> int:
        """Give back the jobs of a worker that was asked to stop and has ended; return how many.

        If it raises: as for `recover_worker`.
        """
        return Report(self._retire(worker, cause, WorkerExit("released"))).recovered

    def _retire(self, worker: Worker, cause: str, how: WorkerExit) -> list[Zombie]:
        self._store.retire(worker.id, cause, how=how)
        return self._settle_all_of(worker, WorkerDeath(cause, how, worker, spread_s=self._spread_s([worker])))

    def _check_writes(self) -> None:
        """Check that the store takes writes: reads may work while no worker can renew.

        Every pass does this, so that a gap is measured in full.
        """
        asked_at = self._clock.lease()
        self._store.ping()  # if it raises, the gap goes on
        answered_at, store_now = self._clock.lease(), self._store.now().lease
        self.observed.pinged(asked_at, answered_at, store_now)
        self._compare_clocks(store_now, self._clock.lease())

    def watch(self) -> None:
        """Look at the leases that end soon. If one has not been renewed in time, begin to commit writes, so that it can
        be judged as soon as it ends.

        For a resident reaper, when a lease ends within `RENEW_S`. Raises `StoreError` when the store does.
        """
        page, _ = _overdue(self._store, self._grace_s - RENEW_S, 0, PAGE)
        late = recovery.late(page, self._store.now().lease, self._grace_s)
        self._watches = bool(late)
        self._prove_commits(late)

    def _prove_commits(self, jobs: Sequence[Job]) -> None:
        """Commit a write before these late leases are judged: while no commit ends, their workers could not renew."""
        if not self._store.commits_may_hang or not self.observed.wants_proof(jobs, self._store.now().lease):
            return
        asked_at = self._clock.lease()
        try:
            self._store.ping(durably=True)
        except StoreError:
            self.observed.unproven()
            raise
        self.observed.proven(asked_at, self._clock.lease(), self._store.now().lease, jobs)

    def _compare_clocks(self, store_now: float, now: float) -> None:
        if jump_s := self.observed.clock_jump_s(store_now, now):
            log.warning("the store's clock was set ahead by %.0f s; living workers get one beat to renew", jump_s)

    def _retire_the_silent(self, under: Duty | None) -> None:
        """Mark workers gone that the store cannot prove dead, as behind a pooler: those that hold nothing and have not
        beaten for a day. One that lives after all learns of it, and enrols again.

        An earlier process of our own worker is seen to be gone, and is not waited for: a restored SQLite file has the
        rows of workers that were alive when it was copied, and their locks are not there any more.
        """
        self._swept_at = self._clock.lease()
        wall = self._store.now().wall
        for worker in self._store.workers():
            death = recovery.death_of_silent(worker, wall, has_ended=self._has_ended(worker))
            try:
                if death is not None:
                    self._store.retire(worker.id, death.cause, under, death.exit)
            except (StoreLocked, StoreTimeout) as error:
                log.warning(
                    "could not mark the silent worker %s as gone (%s); trying again in an hour", worker.name, error
                )

    def _has_ended(self, worker: Worker) -> bool:
        """Say whether it was a process of our own worker's name on this machine, where no process has its pid now."""
        if (worker.name, worker.host, worker.boot_id) != (self._name, gethostname(), self._clock.boot_id):
            return False
        try:
            os.kill(worker.pid, 0)
        except OSError as error:  # any other error: it is another user's
            return isinstance(error, ProcessLookupError)
        return False

    def _recover_vanished(self, vanished: Vanished, spread_s: float, fix: bool) -> list[Zombie]:
        worker, death = vanished.worker, recovery.death_of(vanished, self._name, spread_s)
        if not fix:
            return self._judge_all(list(self._jobs_of(worker)), death)
        if vanished.evidence != "gone":
            self._store.retire(worker.id, death.cause, self._under, death.exit)
            point("reap.retired")
        return self._settle_all_of(worker, death)

    def _settle_all_of(self, worker: Worker, death: WorkerDeath) -> list[Zombie]:
        zombies: dict[str, Zombie] = {}
        where = Filter(states=(State.RUNNING,), worker=worker.id, limit=PAGE)
        while jobs := self._store.find(where):
            page = self._judge_all(jobs, death, [zombie.job for zombie in zombies.values()])
            page = self._settle(page, seen_lease=False)
            zombies |= {zombie.job.id: zombie for zombie in page}
            if not GOES_ON.intersection(zombie.answer for zombie in page):  # a locked row must not hide the others
                where = msgspec.structs.replace(where, before=jobs[-1].id)
            point("reap.middle")
        return list(zombies.values())

    def _jobs_of(self, worker: Worker) -> Iterator[Job]:
        where = Filter(states=(State.RUNNING,), worker=worker.id, limit=PAGE)
        while page := self._store.find(where):
            yield from page
            where = msgspec.structs.replace(where, before=page[-1].id)

    def _spread_s(self, workers: Sequence[Worker]) -> float:
        if sum(worker.running for worker in workers) <= recovery.STORM:
            return 0.0
        begun = (job for worker in workers for job in self._jobs_of(worker) if job.begun)
        return recovery.spread_s(sum(1 for _ in islice(begun, recovery.STORM + 1)))

    def _recover_expired(self, fix: bool, done: set[str]) -> list[Zombie]:
        zombies: list[Zombie] = []
        self.deadline, self._watches = self._store.deadline(), False
        if self.deadline is None or self.deadline + self._grace_s > self._store.now().lease:
            self.observed.finish()
            return []
        skip, limit = 0, PAGE
        living: dict[str, Worker] | None = None
        while True:
            page, limit = _overdue(self._store, self._grace_s, skip, limit)
            if not page:
                break
            self._compare_clocks(self._store.now().lease, self._clock.lease())
            if living is None:
                living = {each.id: each for each in self._store.workers()} if self._store.row_locks else {}
            beating = recovery.beating(page, living, self._store.now().wall)
            locked = self._store.locked(sorted(beating)) if beating else []
            open_jobs = [job for job in page if job.id not in done]
            if fix:
                self._prove_commits([job for job in open_jobs if job.id not in self._complained.keys() | locked])
            now = self._store.now()
            expired = self.observed.confirmed_expired(open_jobs, now.lease, beating, locked)
            if fix:
                self._say_locked([job for job in page if job.id in locked])
            spread_s = recovery.spread_s(sum(job.begun for job in expired))
            death = replace(recovery.LEASE_RAN_OUT, spread_s=spread_s)
            judged = self._judge_all(expired, death)
            if fix:
                judged = self._settle(judged, seen_lease=True)
            zombies += judged
            done |= {zombie.job.id for zombie in judged}
            # Skip the rows that stay (not due yet, renewed, unreadable), so that they do not hide the next page.
            skip += limit - sum(zombie.recovered for zombie in judged)
            point("reap.middle")
        self.observed.finish()
        return zombies

    def _say_locked(self, jobs: Sequence[Job]) -> None:
        """Log once per lease that its row is locked: its worker is alive, and no other program reports it."""
        for job in jobs:
            if overdue_key(job) not in self._logged_locked:
                log.warning(
                    "job %s (%s): its lease ran out because another transaction has locked its row; its worker cannot "
                    "save the result before that transaction ends",
                    *(job.id, job.task),
                )
        self._logged_locked &= self.observed.overdue.keys()
        self._logged_locked |= {overdue_key(job) for job in jobs}

    def _judge_all(self, jobs: Sequence[Job], death: WorkerDeath, others: Sequence[Job] = ()) -> list[Zombie]:
        """Judge each job. Hold a job with a damaged policy, and skip a row that the store could not write a moment ago.
        A job that cannot be judged is left for the next pass.

        `others`: jobs of the same worker that were judged before.
        """
        zombies, together = [], recovery.suspects([*jobs, *others])
        holders = self._holders_of(jobs) if death.worker is None else {}
        for job in (job for job in jobs if job.lease not in self._unwritable):
            now, holder = self._store.now(), death.worker or holders.get(job.worker or "")
            try:
                verdict = self._verdict(job, death, holder, now, suspects=together[job.worker])
            except Exception as error:  # an unexpected error; recover the others
                self._complain(job.id, error)
                continue
            zombies.append(Zombie(job=job, worker=holder, detector=death.exit.detector, verdict=verdict))
        return zombies

    def _verdict(self, job: Job, death: WorkerDeath, holder: Worker | None, now: Moment, *, suspects: int) -> Verdict:
        in_gap, release = self.observed.is_in_gap(job), holder.release if holder is not None else None
        outcome = recovery.outcome_of(job, death, holder, now, suspects=suspects, in_gap=in_gap)
        try:
            return judge(outcome, job, now.wall, chance=self._random(), release=release)
        except PolicyError as error:
            return judge(outcome, damaged(job, str(error)), now.wall, chance=0.0, release=release)

    def _holders_of(self, jobs: Sequence[Job]) -> dict[str, Worker]:
        """Return the workers, by id. They are asked for once for each page that has new ones: some may have no row."""
        if any(job.worker not in self._holders for job in jobs):
            self._holders = {worker.id: worker for worker in self._store.workers(gone=True)}
        return self._holders

    def _settle(self, zombies: list[Zombie], *, seen_lease: bool) -> list[Zombie]:
        batch = [settlement(zombie.job, zombie.verdict, seen_lease=seen_lease) for zombie in zombies]
        settled = [
            msgspec.structs.replace(zombie, answer=answer)
            for zombie, answer in zip(zombies, self._answers(batch), strict=True)
        ]
        recovered = [zombie for zombie in settled if zombie.recovered]
        for zombie in recovered:
            try:
                self._tell(zombie)
            except Exception:  # it is settled, and the others want to be told
                log.exception("job %s was settled, but hooks and alerts were not told", zombie.job.id)
        if recovered and self._on_settled is not None:
            self._on_settled(len(recovered))
        return settled

    def _answers(self, batch: list[Settlement]) -> list[Reply | None]:
        """Settle a page. If that takes too long, or fails on a row, whatever the error, settle it in halves, so that
        the row does not stop the rest: its answer is None."""
        if not batch:
            return []
        try:
            answers: list[Reply | None] = [*self._store.settle(batch, under=self._under)]
        except Exception as error:
            is_ours = isinstance(error, HoldfastError)
            is_of_a_row = not is_ours or (isinstance(error, StoreError) and not is_passing(error))
            if not is_of_a_row and not isinstance(error, StoreTimeout):
                raise
            failed = error
        else:
            self.observed.wrote(self._clock.lease())
            self._timeouts = 0
            return answers
        if len(batch) == 1:
            self._tolerate(failed)
            if is_of_a_row:
                self._unwritable[batch[0].lease] = self._clock.lease()
            self._complain(batch[0].lease.job_id, failed)
            return [None]
        middle = len(batch) // 2
        return self._answers(batch[:middle]) + self._answers(batch[middle:])

    def _tolerate(self, error: Exception) -> None:
        """Let the pass go on after one row took too long; raise the error when the whole store seems to be slow."""
        self._timeouts += isinstance(error, StoreTimeout)
        if self._timeouts > TIMEOUTS_MAX:
            raise error

    def _complain(self, job_id: str, error: Exception) -> None:
        if job_id not in self._complained:
            self._complained[job_id] = self._clock.lease()
            unforeseen = None if isinstance(error, HoldfastError) else error  # its traceback says where
            what = describe(error) if unforeseen is not None else str(error)
            log.error("job %s cannot be settled, and a person must look: %s", job_id, what, exc_info=unforeseen)

    def _forget_complaints(self) -> None:
        since = self._clock.lease() - COMPLAIN_S
        self._complained = {one: at for one, at in self._complained.items() if at > since}
        self._unwritable = {lease: at for lease, at in self._unwritable.items() if at > since}

    def _tell(self, zombie: Zombie) -> None:
        job, state = zombie.job, zombie.verdict.state
        if zombie.detector is None:
            stopped = (job.id, job.task, state)
            log.warning("job %s (%s) had to stop with its worker, now %s", *stopped, extra=about(job))
        else:
            worker = zombie.worker.name if zombie.worker else job.worker
            found = (job.id, job.task, worker, zombie.detector, state)
            fields = about(job, victim=worker, detector=zombie.detector)
            log.warning("zombie: job %s (%s) of %s found by %s, now %s", *found, extra=fields)
        self._hooks.tell(job, zombie.verdict)


def reap(
    store: Store,
    clock: Clock,
    *,
    hooks: Hooks | None = None,
    grace_s: float = 0.0,
    fix: bool = True,
    on_settled: Callable[[int], object] | None = None,
) -> Report:
    """Make one complete pass (`Reaper.complete`). Without `fix` nothing is changed.

    `on_settled` is called after each page with the number of jobs that were settled or given back.
    """
    if fix:
        check_whole(store)
    reaper = Reaper(store, clock, hooks=hooks, grace_s=grace_s, on_settled=on_settled)
    report = reaper.complete(fix=fix)
    if hooks is not None:
        hooks.flush()
    return report


def suspected(store: Store, grace_s: float = 0.0) -> int:
    """Count what a pass would look at: jobs of workers that seem dead, and others whose lease has run out. Only reads.

    Quicker than a dry run, for nothing is judged; and nothing is looked at twice, so a pass may settle fewer.
    """
    vanished = {each.worker.id: each.worker.running for each in store.vanished()}
    number, skip, limit = sum(vanished.values()), 0, PAGE
    while True:
        page, limit = _overdue(store, grace_s, skip, limit)
        if not page:
            return number
        number += sum(job.worker not in vanished for job in page)
        skip += limit


def _overdue(store: Store, grace_s: float, skip: int, limit: int) -> tuple[list[Job], int]:
    """Return a page of jobs, and how many rows it is of: a page that takes too long is asked for in smaller pieces."""
    while True:
        try:
            return store.overdue(grace_s, limit, skip=skip), limit
        except StoreTimeout:
            if limit < 2:
                raise
            limit //= 2
