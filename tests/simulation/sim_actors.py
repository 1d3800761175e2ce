"""Who acts in the simulated fleet: workers as `worker/` has them, the parent that sees them end, the people around."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import cast

from msgspec.structs import replace

from holdfast.core import acts
from holdfast.core.lease import TrustWindow, trust
from holdfast.core.machine import State
from holdfast.core.policy import OnCrash, Policy, Retry
from holdfast.core.records import Filter, Job, Lease, NewJob, Pulse, Worker
from holdfast.core.settlement import settlement
from holdfast.core.verdict import (
    Cancelled,
    Failed,
    Outcome,
    Released,
    Snoozed,
    Stalled,
    Succeeded,
    TimedOut,
    Verdict,
    judge,
)
from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import DutyLost, HoldfastError, IllegalMove, Refused, StoreError, WorkerGone
from holdfast.runtime.duties import DutyHolder
from holdfast.runtime.hooks import Hooks
from holdfast.stores.protocol import Reply
from holdfast.upkeep.reaper import Reaper
from tests.factory import move
from tests.simulation.simulation import Fleet, Process

QUEUES, TASKS = ["q"], ["t"]
ALWAYS = 1_000_000  # looks at a free lock
BACKOFF = Retry(attempts_max=4, base_s=0.5, cap_s=2.0, jitter=False)  # no jitter: a seed tells everything


def start_actors(fleet: Fleet) -> None:
    """Start every actor of the fleet, and the faults."""
    replicas = fleet.dice.choice((0, 1, 2))
    supervisor = Supervisor(fleet, "supervisor", all_reap=replicas == 0 or fleet.dice.random() < 0.3)
    for number in range(fleet.dice.choice((2, 3))):
        SimWorker(fleet, f"w{number}", supervisor)
    for number in range(replicas):
        Replica(fleet, f"r{number}")
    Client(fleet, "client")
    for number in range(2):
        Person(fleet, f"p{number}")
    Stranger(fleet, "stranger")
    fleet.inject_faults(lambda: [each for each in fleet.processes if isinstance(each, SimWorker)])


@dataclass(slots=True)
class Run:
    """One attempt as its worker sees it."""

    job: Job
    window: TrustWindow
    stubborn: bool = False  # the handler does not stop when it is asked to
    ended: bool = True


class SimWorker(Process):
    """One process of a worker. Its threads are loops: claim, keep, watch, settle, reap."""

    def __init__(self, fleet: Fleet, name: str, supervisor: Supervisor) -> None:
        super().__init__(fleet, name)
        fleet.processes.append(self)
        self.supervisor = supervisor
        self.slots = fleet.dice.choice((1, 2, 3))
        self.id = ""
        self.ids: list[str] = []  # all its incarnations, and those that it tried to enrol
        self.runs: dict[Lease, Run] = {}
        self.endings: list[tuple[Run, Outcome]] = []
        self.claims = count(1)
        self.claim_id = ""
        self.asked_at: float | None = None
        self.store = self.store_for("attempt")
        self.reaper = Reaper(self.store_for("reaper"), fleet.clock, name=name)
        fleet.after(0.0, self, self._enroll)

    def _enroll(self) -> None:
        new = f"{self.name}.{next(self.fleet.names)}"
        self.ids.append(new)
        try:
            self.store.enroll(Worker(id=new, name=self.name, host="h", pid=1, boot_id=self.fleet.clock.boot_id))
        except HoldfastError:
            self.fleet.after(0.3, self, self._enroll)
            return
        first, self.id = not self.id, new
        self.claim_id, self.asked_at = f"{new}/{next(self.claims)}", None
        if first:
            for turn, every_s in ((self._claim, 0.3), (self._keep, 0.25), (self._watch, 0.25), (self._settle, 0.1)):
                self.loop(turn, every_s)
            if self.supervisor.all_reap:
                self.loop(lambda: cast(None, self.reaper.once()), 0.4)

    # ------------------------------------------------------------------------------------- its threads

    def _claim(self) -> None:
        free = self.slots - len(self.runs)
        if self.asked_at is None and (free <= 0 or not self._is_due()):
            return
        worker_id, claim_id = self.id, self.claim_id
        sent_at = self.asked_at = self.fleet.now() if self.asked_at is None else self.asked_at
        try:
            jobs = self.store.claim(worker_id, claim_id, QUEUES, TASKS, max(free, 1))
        except WorkerGone:
            self._was_declared_dead(worker_id)
            return
        if self.claim_id == claim_id:  # it may have enrolled anew while the answer was on its way
            self.claim_id, self.asked_at = f"{worker_id}/{next(self.claims)}", None
        for job in sorted(jobs, key=lambda job: job.id):  # a repeated claim promises the jobs, not their order
            self._begin(job, trust(sent_at, job.lease_s, job.beat_s))

    def _is_due(self) -> bool:
        due = self.store.due(QUEUES, TASKS)
        return due is not None and due <= self.fleet.clock.wall()

    def _begin(self, job: Job, window: TrustWindow) -> None:
        run = self.runs[job.lease] = Run(job, window)
        self._believe(run)
        if job.cancel_requested:
            self.endings.append((run, Cancelled("cancelled before it started")))
        elif window.must_stop(self.fleet.now()):
            self.endings.append((run, Released(started=False, cause="its lease was about to end before it began")))
            self.fleet.sometimes["leases too old to begin with"] += 1
        else:
            run.ended = False
            run.stubborn = self.fleet.dice.random() < 0.1
            self.fleet.checker.starts(job.lease)
            seconds, outcome = self._draw_handler(job)
            self.fleet.after(seconds, self, lambda: self._end(run, outcome))

    def _draw_handler(self, job: Job) -> tuple[float, Outcome]:
        dice = self.fleet.dice
        outcome = self.fleet.pick(
            (6, Succeeded(f'"{job.fence}"')), (2, Failed("no luck")), (1, TimedOut("too slow")),
            (1, Stalled("no progress")), (1, Snoozed(dice.uniform(0.0, 2.0))),
        )  # fmt: skip
        return job.lease_s * dice.choice((0.02, 0.5, 1.0, 2.0)), cast(Outcome, outcome)

    def _end(self, run: Run, outcome: Outcome) -> None:
        if not run.ended:
            run.ended = True
            self.endings.append((run, outcome))

    def _believe(self, run: Run) -> None:
        self.fleet.beliefs[run.job.lease] = (self, run.window.end_at)

    def _keep(self) -> None:
        due = [run for run in self.runs.values() if run.window.must_renew(self.fleet.now())]
        if not due:
            return
        worker_id, sent_at = self.id, self.fleet.now()
        answer = self.store.beat(worker_id, [Pulse(run.job.lease) for run in due])
        if answer.gone:
            self._was_declared_dead(worker_id)
            return
        for run in due:
            if run.job.id in answer.lost:
                self.fleet.beliefs.pop(run.job.lease, None)
                self._end(run, Released(started=True, cause="another attempt has taken over"))
            else:
                run.window = trust(sent_at, run.job.lease_s, run.job.beat_s)
                self._believe(run)
            if run.job.id in answer.cancelled:
                run.job = replace(run.job, cancel_requested=True)
                self._end(run, Cancelled("cancelled while running"))

    def _watch(self) -> None:
        now = self.fleet.now()
        for run in list(self.runs.values()):
            if not run.ended and run.window.must_stop(now):
                if not run.stubborn:
                    self.fleet.sometimes["handlers that fenced themselves"] += 1
                    self._end(run, Released(started=True, cause="no beat got through"))
                elif run.window.is_over(now):
                    self.fleet.kill(self, fenced=True)
                    return

    def _settle(self) -> None:
        batch = list(self.endings)
        if not batch:
            return
        wall = self.store.now().wall
        for run, outcome in batch:
            self.fleet.checker.reports(run.job.lease, outcome)
        answers = self.store.settle([settlement(run.job, judge(out, run.job, wall, chance=0.5)) for run, out in batch])
        for ending, answer in zip(batch, answers, strict=True):
            if answer is Reply.AGAIN:
                ending[0].job = replace(ending[0].job, cancel_requested=True)
                continue
            self.endings.remove(ending)
            self.runs.pop(ending[0].job.lease, None)
            self.fleet.beliefs.pop(ending[0].job.lease, None)

    # --------------------------------------------------------------------------------------- its end

    def _was_declared_dead(self, worker_id: str) -> None:
        if worker_id == self.id:
            self.fleet.sometimes["workers that enrolled anew"] += 1
            for run in self.runs.values():
                self._end(run, Released(started=True, cause="this worker was declared dead"))
            self._enroll()

    def was_declared_dead_wrongly(self) -> None:
        """Be declared dead while living: by a second free look at a lock, a clock that jumped, a hasty person."""
        self.fleet.checker.dies(*self.ids)
        self.fleet.freed.update(dict.fromkeys(self.ids, ALWAYS))
        for run in self.runs.values():
            self.fleet.beliefs.pop(run.job.lease, None)

    def died(self, fenced: bool) -> None:
        """Leave it to chance who notices: the parent, the kernel's lock, or nobody before the lease ends."""
        fleet = self.fleet
        fleet.processes.remove(self)
        fleet.checker.dies(*self.ids, excused=fenced)
        notice = fleet.dice.choice(("exit", "lock", "nobody"))
        if fenced or notice == "exit":
            self.supervisor.sees(self.ids, fenced)
        elif notice == "lock":
            fleet.freed.update(dict.fromkeys(self.ids, ALWAYS))
        successor = fleet.dice.uniform(0.1, 3.0)
        fleet.after(successor, self.supervisor, lambda: cast(None, SimWorker(fleet, self.name, self.supervisor)))


class Supervisor(Process):
    """Sees children end, and settles what they held. `all_reap`: its children have reapers of their own."""

    def __init__(self, fleet: Fleet, name: str, *, all_reap: bool) -> None:
        super().__init__(fleet, name)
        self.all_reap = all_reap

    def sees(self, ids: list[str], fenced: bool) -> None:
        """Bury them soon; keep trying while the store fails."""
        store = self.store_for("reaper")

        def bury() -> None:
            try:
                for worker in [each for each in store.workers() if each.id in ids]:
                    reaper = Reaper(store, self.fleet.clock, name=worker.name)
                    reaper.recover_worker(worker, "its process was killed", WorkerExit("exit", excused=fenced))
            except HoldfastError:
                self.fleet.after(0.5, self, bury)

        self.fleet.after(self.fleet.dice.uniform(0.01, 0.3), self, bury)


class Replica(Process):
    """`holdfast reaper`: one of several, of which one is active under a duty."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        super().__init__(fleet, name)
        fleet.processes.append(self)
        store = self.store_for("reaper")
        self.post = DutyHolder(store, fleet.clock, "reaper", name, 1.5, Hooks())
        self.reaper = Reaper(store, fleet.clock)
        self.loop(self._pass, 0.5)

    def _pass(self) -> None:
        try:
            duty = self.post.duty()
            if duty is not None:
                self.reaper.once(under=duty)
        except DutyLost:
            self.fleet.sometimes["acts under an old term"] += 1
            self.post.refused()


class Client(Process):
    """Adds jobs; one whose answer was lost is sent again under its id."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        super().__init__(fleet, name)
        self.store = self.store_for("attempt")
        self.unanswered: list[NewJob] = []
        self.ids = count(1)
        self.loop(self._send, 1.5)

    def _send(self) -> None:
        dice = self.fleet.dice
        if self.fleet.stormy and not self.unanswered:
            self.unanswered = [self._draw_job() for _ in range(dice.choice((1, 1, 2)))]
        if self.unanswered:
            self.store.add(self.unanswered)
            self.unanswered = []

    def _draw_job(self) -> NewJob:
        dice = self.fleet.dice
        on_crash = cast(OnCrash, self.fleet.pick((4, "retry"), (2, "hold"), (1, "fail")))
        lease_s = dice.choice((1.5, 3.0, 6.0))
        policy = Policy(retry=BACKOFF, crashes_max=dice.choice((1, 2, 3)), on_crash=on_crash, lease_s=lease_s)
        key = dice.choice((None, None, "k"))
        return NewJob(
            id=f"job-{next(self.ids):03}", task="t", payload="{}", queue="q", key=key,
            priority=dice.choice((0, 5)), delay_s=dice.choice((0.0, 0.0, 2.0)), policy=policy,
        )  # fmt: skip


class Person(Process):
    """Looks at a job, thinks, and acts on what was seen; acts again when no answer came."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        super().__init__(fleet, name)
        self.store = self.store_for("attempt")
        self.loop(self._look, 1.0)

    def _look(self) -> None:
        jobs = self.store.find(Filter()) if self.fleet.stormy else []
        if jobs:
            job = self.fleet.dice.choice(jobs)
            try:
                verdict = self._decide(job)
            except IllegalMove:
                return
            if verdict is not None:
                self.fleet.after(self.fleet.dice.choice((0.0, 1.0, 5.0)), self, lambda: self._act(job, verdict, 1))

    def _decide(self, job: Job) -> Verdict | None:
        dice, wall = self.fleet.dice, self.fleet.clock.wall()
        match job.state:
            case State.HELD:
                return acts.resolve(job, dice.choice(("retry", "retry", "done", "fail")), wall, actor=self.name)
            case State.READY:
                earlier = acts.reschedule(job, actor=self.name, priority=dice.choice((0, 9)))
                return dice.choice((acts.hold(job, actor=self.name), acts.cancel(job, actor=self.name), earlier))
            case State.RUNNING | State.WAITING:
                return acts.cancel(job, actor=self.name) if dice.random() < 0.3 else None
            case _:
                return acts.revive(job, wall, actor=self.name) if dice.random() < 0.3 else None

    def _act(self, job: Job, verdict: Verdict, times: int) -> None:
        try:
            move(self.store, job.id, job.state, job.fence, verdict)
        except StoreError:
            if times < 6:
                self.fleet.sometimes["acts repeated"] += 1
                self.fleet.after(self.fleet.dice.choice((0.1, 2.0)), self, lambda: self._act(job, verdict, times + 1))
        except Refused:
            self.fleet.sometimes["acts refused for a key"] += 1


class Stranger(Process):
    """Shows leases that no claim gave: parts of two claims of one job, as after a restored backup."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        super().__init__(fleet, name)
        self.store = self.store_for("attempt")
        self.seen: dict[str, list[Lease]] = {}
        self.loop(self._try, 1.0)

    def _try(self) -> None:
        dice = self.fleet.dice
        running = self.store.find(Filter(states=(State.RUNNING,))) if self.fleet.stormy else []
        for job in running:
            older = self.seen.setdefault(job.id, [])
            for old in older:
                fence, claim_id = dice.choice(((job.fence, old.claim_id), (old.fence, job.lease.claim_id)))
                mixed = Lease(job.id, fence, claim_id)
                if mixed not in (job.lease, old):
                    self.fleet.sometimes["leases made of two"] += 1
                    self.store.settle([replace(settlement(job, judge(Succeeded(), job, 0.0, chance=0.5)), lease=mixed)])
            if job.lease not in older:
                older.append(job.lease)
