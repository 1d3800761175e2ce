"""The reaper is a query, not a service: find lost attempts, judge them, settle them.

    overdue · vanished (read)  ──▶  judge() (pure)  ──▶  settle() (compare-and-set)

Reading and then writing is safe because every settlement carries the fence that was read; so any number of reapers may
run at once, anywhere, without the user's code. The same pass serves the thread inside each worker, `app.reap()`,
`holdfast scan`, and the supervisor that saw a child end.

Three things make it patient. A free lock and an overdue lease are believed at the second look, a moment after the
first, so that a worker that was only held up comes first. After a gap, in which the store took no writes for longer
than a beat, the living get one more beat to renew; what is lost in the gap is excused: nobody was at fault. It is a gap
as well when the clock of the store is set ahead: leases end that nobody had the time to renew. And an overdue job whose
worker still beats had its row locked by somebody: it gets one beat from when its row is seen free.
A store without locks on rows knows no such case.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from socket import gethostname
from typing import Any

import msgspec

from holdfast.clock import Clock, pause
from holdfast.core.autopsy import autopsy, of_worker
from holdfast.core.isolation import ended_itself
from holdfast.core.lease import Gap, clock_jump_s, last_gap
from holdfast.core.machine import State
from holdfast.core.records import Detector, Duty, Filter, Job, Vanished, Worker
from holdfast.core.settlement import Settlement, settlement
from holdfast.core.verdict import Lost, Released, Verdict, judge
from holdfast.core.worker_exit import WorkerExit, read_epitaph
from holdfast.errors import HoldfastError, PolicyError, StoreError, StoreLocked, StoreTimeout, is_passing
from holdfast.failpoints import point
from holdfast.hooks import Hooks
from holdfast.ids import chance
from holdfast.stores.protocol import Answer, Store

log = logging.getLogger("holdfast.reaper")

PAGE = 500
FREE = ("lock", "session")  # evidence that must be seen for a while
SILENT_MAX_S = 86_400.0  # a worker that holds nothing and has not beaten for so long is marked gone
SILENT_LOOK_S = 3600.0  # how often to look for such
SECOND_LOOK_S = 0.1
LOOK_S = 1.0  # how often to look while a worker that beats is given its time
COMPLAIN_S = 60.0  # how often to say that a row is damaged
SILENCE_S = 2.0  # when the store does not answer for longer than this, it was a gap
GAPS = 20  # so many of the last gaps are remembered
STORM = 100  # when one pass recovers more than this many jobs,
STORM_SPREAD_S = 5.0  # they come back over so many seconds
GOES_ON = frozenset({Answer.ACCEPTED, Answer.AGAIN})  # after these the next page is another one; some is judged anew


OverdueKey = tuple[str, int, float]  # of a job: id, fence, end of the lease


class WorkerDeath(msgspec.Struct, frozen=True):
    """What is known of the end of a worker, before its jobs are judged one by one."""

    detector: Detector
    cause: str
    worker: Worker | None  # None: only the lease says so, and jobs may be of several workers
    spread_s: float = 0.0
    excused: bool = False
    facts: dict[str, Any] = {}


class Zombie(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose attempt lost its worker, and what becomes of it."""

    job: Job
    worker: Worker | None
    detector: Detector
    verdict: Verdict
    answer: Answer | None = None  # what the store said to the verdict; None: it was not asked, or could not say

    @property
    def recovered(self) -> bool:
        """Say whether it was settled here. Else it was a dry run, or somebody else was first."""
        return self.answer is Answer.ACCEPTED


class Report(msgspec.Struct, frozen=True):
    """What one pass found."""

    zombies: list[Zombie] = []

    @property
    def recovered(self) -> int:
        """Count the jobs that this pass settled itself."""
        return sum(zombie.recovered for zombie in self.zombies)

    @property
    def locked(self) -> int:
        """Count the jobs whose rows somebody else had locked. They are unchanged; the next pass looks at them again."""
        return sum(zombie.answer is Answer.LOCKED for zombie in self.latest)

    @property
    def latest(self) -> list[Zombie]:
        """Return each lost attempt once, as the last look at it found it."""
        return list({(zombie.job.id, zombie.job.fence): zombie for zombie in self.zombies}.values())

    def ended_as(self, state: State) -> int:
        """Count the jobs that this pass sent, or a dry run would send, to a state."""
        return sum(zombie.verdict.state is state for zombie in self.zombies)


class Reaper:
    """Passes over one store, with the memory that makes them patient."""

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
        self._name = name  # of our own worker: what an earlier incarnation of it left is a restart
        self._pace_s = pace_s  # the pause that its driver makes between two passes
        self._lots = lots
        self._on_settled = on_settled  # hears after each page how many jobs of it are no longer lost
        self._under: Duty | None = None
        self._free_locks: dict[str, float] = {}  # worker -> since when its lock is seen free
        self._told_locked: set[OverdueKey] = set()
        self._overdue: dict[OverdueKey, float] = {}  # -> since when it is seen so, with its row not locked
        self._doubts: list[float] = []  # seconds until each thing that the last pass was not sure of can be settled
        self._holders: dict[str, Worker] = {}
        self._contact: float | None = None
        self._complained: dict[str, float] = {}
        self._ahead: float | None = None  # the store's clock minus ours, at the last look
        self._gaps: deque[Gap] = deque(maxlen=GAPS)
        self._swept_at = float("-inf")  # when workers that are silent for long were last looked for

    def once(self, *, fix: bool = True, under: Duty | None = None) -> Report:
        """Make one pass; believe only what the pass before has seen too. Raises `StoreError` when the store does.

        With `under`, every act carries that duty's term; raises `DutyLost` when it is an old one.
        """
        self._under = under
        self._doubts = []
        zombies: list[Zombie] = []
        done: set[str] = set()
        if fix:
            self._feel_for_a_gap()  # before anything is judged
        vanished = self._seen_twice(self._store.vanished())
        spread_s = self._spread([each.worker for each in vanished])
        for each in vanished:
            try:
                zombies += self._recover_worker(each, spread_s) if fix else self._examine_worker(each, spread_s, done)
            except StoreLocked as error:  # the next pass finds it again
                log.warning("worker %s cannot be recovered yet: %s", each.worker.name, error)
        zombies += self._recover_expired(fix, done | {zombie.job.id for zombie in zombies})
        if fix and self._clock.lease() - self._swept_at >= SILENT_LOOK_S:
            try:
                self._retire_the_silent(under)
            except StoreError as error:  # what was recovered is reported all the same
                log.warning("workers that are silent for long are looked for later: %s", error)
        return Report(zombies)

    def complete(self, *, fix: bool = True, within_s: float = float("inf")) -> Report:
        """Make a pass, and look again until nothing is in doubt, for at most `within_s` seconds.

        A free lock and an overdue lease take a moment; an overdue job whose worker still beats takes one beat.
        """
        report = self.once(fix=fix)
        waited_s, within_s = 0.0, min(within_s, self.patience_s + SECOND_LOOK_S)
        while self._doubts and waited_s < within_s:
            pause_s = min(self.doubt_s, within_s - waited_s, LOOK_S)
            pause(pause_s)
            waited_s += pause_s
            later = self.once(fix=fix)
            report = Report(report.zombies + later.zombies) if fix else later
        return report

    def _retire_the_silent(self, under: Duty | None) -> None:
        """Mark workers gone that the store cannot prove dead, as behind a pooler: those that hold nothing and have not
        beaten for a day. One that lives after all is told so, and enrols again.

        An earlier process of our own worker is seen to be gone, and is not waited for: a restored SQLite file has the
        rows of workers that were alive when it was copied, and their locks are not there any more.
        """
        self._swept_at = self._clock.lease()
        wall = self._store.now().wall
        for worker in self._store.workers():
            ended = not worker.is_alive(wall) and self._has_ended(worker)
            if (ended or wall - worker.beat_at > SILENT_MAX_S) and not worker.running:
                cause = "its process has ended, unnoticed" if ended else "it was silent for a day"
                try:
                    self._store.retire(worker.id, str(WorkerExit(cause, "restart" if ended else "vanished")), under)
                except StoreLocked as error:
                    log.warning("worker %s, which is silent, is marked gone later: %s", worker.name, error)

    def _has_ended(self, worker: Worker) -> bool:
        """Say whether it was a process of our own worker's name on this machine, where no process has its pid now."""
        if (worker.name, worker.host, worker.boot_id) != (self._name, gethostname(), self._clock.boot_id):
            return False
        try:
            os.kill(worker.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:  # it is somebody else's
            return False
        return False

    @property
    def doubt_s(self) -> float:
        """Return how long to wait before another look can settle something that the last pass was not sure of; 0 if it
        was sure of everything."""
        return max(min(self._doubts), SECOND_LOOK_S) if self._doubts else 0.0

    @property
    def patience_s(self) -> float:
        """Return how long it takes until everything can be settled that the last pass was not sure of."""
        return max(self._doubts, default=0.0)

    def stand_by(self) -> None:
        """Keep in touch with the store instead of a pass: a pause without a duty is no gap, and a gap in it is one.

        Raises `StoreError` when the store does.
        """
        self._free_locks, self._overdue, self._doubts = {}, {}, []
        self._feel_for_a_gap()

    def recover_worker(self, worker: Worker, detector: Detector, cause: str, *, excused: bool = False) -> Report:
        """Declare a worker dead and settle what it held. For those who saw it end with their own eyes.

        If it raises, the row says in what manner to go on: repeat it, or leave it to any other reaper.
        """
        worker_exit = WorkerExit(cause, detector, excused)
        self._store.retire(worker.id, str(worker_exit))
        return Report(self._settle_all_of(worker, _death(worker_exit, worker, self._spread([worker]))))

    def release_worker(self, worker: Worker, cause: str) -> int:
        """Give back what a worker held that was told to stop and has ended; return how many jobs that were.

        If it raises: as for `recover_worker`.
        """
        self._store.retire(worker.id, str(WorkerExit(cause, None)))
        return self._release_all_of(worker, cause)

    def _release_all_of(self, worker: Worker, cause: str) -> int:
        released = 0
        where = Filter(states=(State.RUNNING,), worker=worker.id, limit=PAGE)
        while jobs := self._store.find(where):
            wall = self._store.now().wall
            batch = [settlement(job, judge(Released(job.begun, cause), job, wall, chance=self._lots())) for job in jobs]
            answers = self._answers(batch)
            for job, each, answer in zip(jobs, batch, answers, strict=True):
                if answer is Answer.ACCEPTED:
                    log.warning("job %s (%s) had to stop with its worker, now %s", job.id, job.task, each.verdict.state)
                    self._hooks.tell(job, each.verdict)
            released += self._count(answers)
            if not GOES_ON.intersection(answers):  # what stays, as a locked row does, must not hide the others
                where = msgspec.structs.replace(where, before=jobs[-1].id)
        return released

    # ------------------------------------------------------------------------------------- vanished

    def _seen_twice(self, vanished: Sequence[Vanished]) -> list[Vanished]:
        now = self._store.now().lease
        free = [each.worker.id for each in vanished if each.evidence in FREE]
        self._free_locks = {worker: self._free_locks.get(worker, now) for worker in free}
        left_s = {worker: self._store.believe_s - (now - since) for worker, since in self._free_locks.items()}
        self._doubts += [left for left in left_s.values() if left > 0]
        return [each for each in vanished if left_s.get(each.worker.id, 0.0) <= 0]

    def _recover_worker(self, vanished: Vanished, spread_s: float) -> list[Zombie]:
        worker, worker_exit = vanished.worker, self._worker_exit(vanished)
        if vanished.evidence != "gone":
            self._store.retire(worker.id, str(worker_exit), under=self._under)
            point("reap.retired")
        if worker_exit.detector is None:
            self._release_all_of(worker, worker_exit.cause)
            return []
        return self._settle_all_of(worker, _death(worker_exit, worker, spread_s, vanished.evidence))

    def _examine_worker(self, vanished: Vanished, spread_s: float, done: set[str]) -> list[Zombie]:
        """Tell what would become of its jobs, and add them to `done`; one that is only given back is no zombie."""
        worker, worker_exit = vanished.worker, self._worker_exit(vanished)
        jobs = list(self._jobs_of(worker))
        done |= {job.id for job in jobs}
        if worker_exit.detector is None:
            return []
        return self._judge_all(jobs, _death(worker_exit, worker, spread_s, vanished.evidence), suspects=len(jobs))

    def _jobs_of(self, worker: Worker) -> Iterator[Job]:
        where = Filter(states=(State.RUNNING,), worker=worker.id, limit=PAGE)
        while page := self._store.find(where):
            yield from page
            where = msgspec.structs.replace(where, before=page[-1].id)

    def _spread(self, workers: Sequence[Worker]) -> float:
        """Return over how many seconds the jobs of these workers come back. Only those that had begun make a storm."""
        if sum(worker.running for worker in workers) <= STORM:
            return 0.0
        begun = (job for worker in workers for job in self._jobs_of(worker) if job.begun)
        return _spread(sum(1 for _ in islice(begun, STORM + 1)))

    def _worker_exit(self, vanished: Vanished) -> WorkerExit:
        worker = vanished.worker
        if vanished.evidence == "gone":
            return read_epitaph(worker.gone_cause)
        ours = worker.name == self._name
        detector: Detector = "restart" if ours else "vanished"
        if vanished.evidence == "boot":
            return WorkerExit("the machine was started anew under it", detector)
        words = "an earlier process of this worker died" if ours else "its process died"
        if vanished.evidence == "session":
            words += " or was cut off from the server"
        return WorkerExit(f"{words} (pid {worker.pid} on {worker.host})", detector)

    def _settle_all_of(self, worker: Worker, death: WorkerDeath) -> list[Zombie]:
        zombies: dict[str, Zombie] = {}
        where = Filter(states=(State.RUNNING,), worker=worker.id, limit=PAGE)
        while jobs := self._store.find(where):
            page = self._judge_all(jobs, death, suspects=len({job.id for job in jobs} | zombies.keys()))
            page = self._settle(page, seen_lease=False)
            zombies |= {zombie.job.id: zombie for zombie in page}
            if not GOES_ON.intersection(zombie.answer for zombie in page):
                where = msgspec.structs.replace(where, before=jobs[-1].id)
            point("reap.middle")
        return list(zombies.values())

    # -------------------------------------------------------------------------------------- expired

    def _recover_expired(self, fix: bool, done: set[str]) -> list[Zombie]:
        zombies: list[Zombie] = []
        seen: dict[OverdueKey, float] = {}
        skip, limit = 0, PAGE
        living: dict[str, Worker] | None = None
        while True:
            page, limit = _overdue(self._store, self._grace_s, skip, limit)
            if not page:
                break
            now = self._store.now()
            self._compare_clocks(now.lease)
            if living is None:
                living = {each.id: each for each in self._store.workers()} if self._store.row_locks else {}
            kept = {job.id for job in page if _beats(living.get(job.worker or ""), job, now.wall)}
            locked = self._store.locked(sorted(kept)) if kept else []
            for key in map(_key, page):
                seen[key] = now.lease if key[0] in locked else self._overdue.get(key, now.lease)
            self._overdue |= seen
            if fix:
                self._say_locked([job for job in page if job.id in locked])
            left_s = {job.id: self._left_s(job, now.lease, job.id in kept) for job in page if job.id not in done}
            self._doubts += [left for job_id, left in left_s.items() if left > 0 and job_id not in locked]
            ripe = [job for job in page if left_s.get(job.id, 1.0) <= 0]
            death = WorkerDeath("expired", "its lease ran out", None, _spread(sum(job.begun for job in ripe)))
            judged = [each for jobs in _by_worker(ripe) for each in self._judge_all(jobs, death, suspects=len(jobs))]
            if fix:
                judged = self._settle(judged, seen_lease=True)
            zombies += judged
            done |= {zombie.job.id for zombie in judged}
            # What stays, not ripe, renewed, or not even readable and so not in the page, must not hide what comes next.
            skip += limit - sum(zombie.recovered for zombie in judged)
            point("reap.middle")
        recovered = {_key(zombie.job) for zombie in zombies if zombie.recovered}
        self._overdue = {key: since for key, since in seen.items() if key not in recovered}
        return zombies

    def _say_locked(self, jobs: Sequence[Job]) -> None:
        """Say once of each lease that its row is locked: its worker lives, and nobody else would notice."""
        for job in jobs:
            if _key(job) not in self._told_locked:
                log.warning(
                    "job %s (%s): its lease ran out because another transaction has locked its row; its worker cannot "
                    "save the result before that transaction ends",
                    *(job.id, job.task),
                )
        self._told_locked = {key for key in self._told_locked if key in self._overdue} | {_key(job) for job in jobs}

    def _left_s(self, job: Job, now: float, worker_beats: bool) -> float:
        """Return for how many seconds more an overdue job is left alone."""
        many = len(self._overdue) > PAGE  # a second look at each of very many would only delay them all
        patience_s = 0.0 if many else SECOND_LOOK_S
        if worker_beats:  # its row was locked, and the worker may have a result in hand
            patience_s = job.beat_s
        left_s = patience_s - (now - self._overdue[_key(job)])
        gap = last_gap(self._gaps, job.beat_s)
        return left_s if gap is None else max(left_s, gap.ended + job.beat_s - now)

    # ----------------------------------------------------------------------------------------- gaps

    def _reaches_into_the_gap(self, job: Job) -> bool:
        """Say whether the lease ended during or after the last gap, and was last renewed before the gap was over."""
        gap = last_gap(self._gaps, job.beat_s)
        return gap is not None and gap.began <= (job.lease_until or 0.0) < gap.ended + job.lease_s

    def _feel_for_a_gap(self) -> None:
        """Take the store's write lock for an instant: reads may work while nobody can renew.

        Every pass does, so that the length of a gap is known and not only the part of it that a lease outlived.
        """
        asked_at = self._clock.lease()
        since = self._contact if self._contact is not None else asked_at
        self._store.ping()  # if it raises, the gap goes on
        now = self._contact = self._clock.lease()
        silent_s = now - since - self._pace_s  # our own pause between two passes is no gap
        gap_s = max(now - asked_at, silent_s)
        if gap_s > SILENCE_S:
            ended = self._store.now().lease
            self._gaps.append(Gap(ended - gap_s, ended))
        self._compare_clocks(self._store.now().lease)

    def _compare_clocks(self, theirs: float) -> None:
        """Take it for a gap when the store's clock has gone further since the last look than our own."""
        ahead = theirs - self._clock.lease()
        jump_s = clock_jump_s(self._ahead, ahead)
        self._ahead = ahead
        if jump_s > SILENCE_S:
            log.warning("the store's clock was set ahead by %.0f s; living workers get one beat to renew", jump_s)
            self._gaps.append(Gap(theirs - jump_s, theirs))

    def _keep_in_touch(self) -> None:
        """Note that a write was answered: a pass over very many is long, and no gap. A silence is left to be found."""
        now = self._clock.lease()
        if self._contact is not None and now - self._contact <= SILENCE_S:
            self._contact = now

    # ------------------------------------------------------------------------------------------ both

    def _judge_all(self, jobs: Sequence[Job], death: WorkerDeath, suspects: int = 0) -> list[Zombie]:
        """Judge each; leave out, and say so, what nobody can judge: a damaged policy does not stop the rest."""
        zombies = []
        for job in jobs:
            try:
                zombies.append(self._judge(job, death, suspects))
            except PolicyError as error:
                self._complain(job.id, error)
        return zombies

    def _judge(self, job: Job, death: WorkerDeath, suspects: int) -> Zombie:
        now = self._store.now()
        holder = death.worker or self._holder(job)
        in_gap = death.detector == "expired" and self._reaches_into_the_gap(job)
        outcome = Lost(
            detector=death.detector,
            cause=f"worker {holder.name if holder else job.worker} was lost: {death.cause}",
            autopsy=autopsy(job, of_worker(holder, job, now), now, death.facts),
            suspects=suspects if suspects > 1 else int(ended_itself(death.facts)),
            excused=death.excused or in_gap,
            spread_s=death.spread_s,
            started=job.begun,
        )
        verdict = judge(outcome, job, now.wall, chance=self._lots())
        return Zombie(job=job, worker=holder, detector=death.detector, verdict=verdict)

    def _holder(self, job: Job) -> Worker | None:
        if job.worker not in self._holders:
            self._holders = {worker.id: worker for worker in self._store.workers(gone=True)}
        return self._holders.get(job.worker or "")

    def _settle(self, zombies: list[Zombie], *, seen_lease: bool) -> list[Zombie]:
        batch = [settlement(zombie.job, zombie.verdict, seen_lease=seen_lease) for zombie in zombies]
        settled = [
            msgspec.structs.replace(zombie, answer=answer)
            for zombie, answer in zip(zombies, self._answers(batch), strict=True)
        ]
        for zombie in settled:
            if zombie.recovered:
                self._tell(zombie)
        self._count([zombie.answer for zombie in settled])
        return settled

    def _count(self, answers: Sequence[Answer | None]) -> int:
        accepted = answers.count(Answer.ACCEPTED)
        if accepted and self._on_settled is not None:
            self._on_settled(accepted)
        return accepted

    def _answers(self, batch: list[Settlement]) -> list[Answer | None]:
        """Settle a page; if the store stumbles over a row, one by one, so that it does not stop the rest: None. If the
        page takes too long, in halves."""
        if not batch:
            return []
        try:
            answers: list[Answer | None] = [*self._store.settle(batch, under=self._under)]
        except StoreTimeout:
            if len(batch) == 1:
                raise
            middle = len(batch) // 2
            return self._answers(batch[:middle]) + self._answers(batch[middle:])
        except StoreError as error:
            if is_passing(error):
                raise
            answers = [self._answer(each) for each in batch]
        self._keep_in_touch()
        return answers

    def _answer(self, each: Settlement) -> Answer | None:
        try:
            return self._store.settle([each], under=self._under)[0]
        except StoreError as error:
            if is_passing(error):
                raise
            self._complain(each.lease.job_id, error)
            return None

    def _complain(self, job_id: str, error: HoldfastError) -> None:
        now = self._clock.lease()
        self._complained = {each: at for each, at in self._complained.items() if now - at < COMPLAIN_S}
        if job_id not in self._complained:
            self._complained[job_id] = now
            log.error("job %s cannot be settled, and a person must look: %s", job_id, error)

    def _tell(self, zombie: Zombie) -> None:
        job, verdict = zombie.job, zombie.verdict
        log.warning(
            "zombie: job %s (%s) of %s found by %s, now %s",
            *(job.id, job.task, zombie.worker.name if zombie.worker else job.worker, zombie.detector, verdict.state),
        )
        self._hooks.tell(job, verdict)


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


def _death(worker_exit: WorkerExit, worker: Worker, spread_s: float, evidence: str = "gone") -> WorkerDeath:
    detector = worker_exit.detector or "vanished"
    facts = worker_exit.facts if evidence == "gone" else {**worker_exit.facts, "evidence": evidence}
    return WorkerDeath(detector, worker_exit.cause, worker, spread_s, worker_exit.excused, facts)


def _beats(worker: Worker | None, job: Job, wall: float) -> bool:
    """Say whether the worker of an overdue job is alive: its last beat is younger than one beat of the job."""
    return worker is not None and abs(wall - worker.beat_at) < job.beat_s


def _key(job: Job) -> OverdueKey:
    return job.id, job.fence, job.lease_until or 0.0


def _by_worker(jobs: Sequence[Job]) -> list[list[Job]]:
    """Put those together that were in one process: one of them may have held it up."""
    together: dict[str | None, list[Job]] = {}
    for job in jobs:
        together.setdefault(job.worker, []).append(job)
    return list(together.values())


def _spread(jobs: int) -> float:
    return STORM_SPREAD_S if jobs > STORM else 0.0
