"""Who acts in a model: each is a value, and offers the steps that it could take next; a step is one call at most."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from holdfast.core import acts
from holdfast.core.lease import TrustWindow, trust
from holdfast.core.machine import State
from holdfast.core.records import Filter, Job, Pulse, Record
from holdfast.core.verdict import Cancelled, Failed, Lost, Outcome, Released, Succeeded, Verdict
from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import WorkerGone
from holdfast.stores.protocol import Reply
from tests.factory import move

if TYPE_CHECKING:
    from tests.simulation.model_check import Model

QUEUES, TASKS = ["q"], ["t"]


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker with one slot: idle, asking, running or ending; or dead, with a claim perhaps still on the wire.

    An answer is heard in a step of its own, so that time may pass on its way.
    """

    name: str
    born: int = 1
    phase: Literal["idle", "asking", "running", "ending", "dead"] = "idle"
    claims: int = 0
    asked_at: float | None = None  # a claim was sent
    given: tuple[Job, ...] | None = None  # its answer is on the way
    job: Job | None = None
    window: TrustWindow | None = None
    outcome: Outcome | None = None
    beat_at: float | None = None
    beaten: tuple[bool, bool] | None = None  # the answer to its beat is on the way: lost, cancelled
    writing: str | None = None  # a record is on the wire: the step that it opens, or "" when it ends it
    has_stepped: bool = False

    @property
    def id(self) -> str:
        return f"{self.name}.{self.born}"

    @property
    def claim_id(self) -> str:
        return f"{self.id}/{self.claims}"

    def key(self, model: Model) -> Hashable:
        if self.phase == "dead" or (self._is_asking() and model.is_used_up()):
            sent = self.job.lease if self.job is not None and self.writing is not None else None
            return (self.id, self.claim_id if self._is_asking() else None, sent, self.writing)
        if self.job is not None and not model.is_current(self.job.lease):
            return (self.id, self.claims, self.job.lease)
        job = self.job
        seen = (job.lease, job.cancel_requested, job.open_step, self.has_stepped) if job is not None else None
        given = None if self.given is None else tuple(job.lease for job in self.given)
        until = None if self.window is None else model.left_s(self.window.end_at)
        asked, beat = model.age_s(self.asked_at), model.age_s(self.beat_at)
        told = (repr(self.outcome), beat, self.beaten, self.writing)
        return (self.id, self.phase, self.claims, asked, given, seen, until, *told)

    def steps(self, model: Model) -> Iterator[tuple[str, Callable[[], Actor]]]:
        if self._is_asking() and model.may_arrive(self):
            yield "its claim arrives", partial(self._claim, model)
        if self.writing is not None:
            yield "its record arrives", partial(self._record, model)
        if self.phase == "dead":
            if model.has_work():
                yield "starts again", partial(model.enrol, Worker(name=self.name, born=self.born + 1))
            return
        if model.left["deaths"] and self.phase != "idle":
            yield "dies", partial(self._die, model)
        if self.phase == "idle" and model.has_work() and model.is_next(self):
            yield "asks", partial(replace, self, phase="asking", asked_at=model.now(), claims=self.claims + 1)
        if self.given is not None:
            yield "hears of its claim", partial(self._hear_claim, model)
            if model.left["losses"]:
                yield "loses the answer to its claim", partial(model.spend, "losses", replace(self, given=None))
        if self.job is not None and not model.is_current(self.job.lease):
            yield "reports too late", self._end(self.outcome or Released(started=True, cause="lost")).reporting(model)
        elif self.job is not None and self.window is not None:
            yield from self._holding(model, self.window)

    def _holding(self, model: Model, window: TrustWindow) -> Iterator[tuple[str, Callable[[], Actor]]]:
        now = model.now()
        if self.beaten is None and window.must_renew(now):
            yield "beats", partial(self._beat, model)
        if self.beaten is not None:
            yield "hears of its beat", partial(self._hear_beat, model)
        if self.phase == "ending":
            yield "settles", self.reporting(model)
            if model.left["losses"]:
                yield "settles, and loses the answer", lambda: model.spend("losses", self._settle(model) and self)
        elif window.must_stop(now):
            yield "stops its handler", partial(self._end, Released(started=True, cause="no beat got through"))
        elif self.job is not None and self.job.workflow and not self.has_stepped:
            if self.writing is None and self.job.open_step is None:
                yield "begins its step", partial(replace, self, writing="s", job=replace(self.job, open_step="s"))
            elif self.writing is None:
                yield "ends its step", partial(replace, self, writing="")
        else:
            yield "succeeds", partial(self._end, Succeeded('"fine"'))
            if model.left["failures"]:
                yield "fails", lambda: model.spend("failures", self._end(Failed("no luck")))

    def _is_asking(self) -> bool:
        return self.asked_at is not None and self.given is None

    def trusting(self, sent_at: float, now: float, job: Job) -> TrustWindow:
        """Return what it may believe after a call that was sent then and is answered now."""
        return trust(sent_at, job.lease_s, job.beat_s)

    def _claim(self, model: Model) -> Actor:
        try:
            jobs = model.attempts.claim(self.id, self.claim_id, QUEUES, TASKS, 1)
        except WorkerGone:
            return replace(self, asked_at=None) if self.phase == "dead" else model.enrol(self._next_life())
        return replace(self, asked_at=None) if self.phase == "dead" else replace(self, given=tuple(jobs))

    def _hear_claim(self, model: Model) -> Actor:
        rested = replace(self, phase="idle", asked_at=None, given=None)
        if not self.given or self.asked_at is None:
            return rested
        [job], now = self.given, model.now()
        window = self.trusting(self.asked_at, now, job)
        held = replace(rested, phase="running", job=job, window=window)
        if job.cancel_requested:
            return held._end(Cancelled())
        if window.must_stop(now):
            return held._end(Released(started=False, cause="its lease was about to end before it began"))
        model.checker.starts(job.lease)
        return held

    def _end(self, outcome: Outcome) -> Worker:
        return replace(self, phase="ending", outcome=outcome)

    def _beat(self, model: Model) -> Actor:
        job = model.sure(self.job)
        answer = model.attempts.beat(self.id, [Pulse(job.lease)])
        if answer.gone:
            return model.enrol(self._next_life())
        return replace(self, beat_at=model.now(), beaten=(job.id in answer.lost, job.id in answer.cancelled))

    def _hear_beat(self, model: Model) -> Actor:
        job, sent_at, (lost, cancelled) = model.sure(self.job), model.sure(self.beat_at), model.sure(self.beaten)
        heard, ended = replace(self, beat_at=None, beaten=None), self.phase == "ending"
        if lost:
            return heard if ended else heard._end(Released(started=True, cause="another attempt has taken over"))
        heard = replace(heard, window=self.trusting(sent_at, model.now(), job))
        if cancelled:
            heard = replace(heard, job=replace(job, cancel_requested=True))
            return heard if ended else heard._end(Cancelled())
        return heard

    def _record(self, model: Model) -> Actor:
        job, written = model.sure(self.job), replace(self, writing=None)
        [answer] = model.attempts.record([Record(lease=job.lease, open_step=self.writing)])
        if self.phase == "dead":
            return replace(written, job=None)
        if answer is Reply.REFUSED:
            lost = Released(started=True, cause="another attempt has taken over")
            return written if self.phase == "ending" else written._end(lost)
        if self.writing == "":
            return replace(written, job=replace(job, open_step=None), has_stepped=True)
        return written

    def reporting(self, model: Model) -> Callable[[], Actor]:
        """Return the last step of an attempt."""
        return partial(self._settle, model)

    def _settle(self, model: Model) -> Worker:
        job, outcome = model.sure(self.job), self.outcome or Cancelled()
        model.checker.reports(job.lease, outcome)
        [answer] = model.attempts.settle([model.judged(job, outcome)])
        if answer is Reply.AGAIN:
            row = model.sure(model.store.get(job.id))
            return replace(self, job=replace(job, cancel_requested=row.cancel_requested, open_step=row.open_step))
        return Worker(name=self.name, born=self.born, claims=self.claims)

    def _die(self, model: Model) -> Actor:
        model.checker.dies(self.id)
        on_the_wire = self.asked_at if self.given is None else None
        dead = Worker(name=self.name, born=self.born, phase="dead", claims=self.claims, asked_at=on_the_wire)
        if self.writing is not None:
            dead = replace(dead, job=self.job, writing=self.writing)
        return model.spend("deaths", dead)

    def _next_life(self) -> Worker:
        """It was declared dead: it enrols anew, and what it ran is stopped and reported under its old lease."""
        anew = Worker(name=self.name, born=self.born + 1)
        if self.job is None:
            return anew
        outcome = self.outcome or Released(started=True, cause="this worker was declared dead")
        return replace(anew, phase="ending", job=self.job, window=self.window, outcome=outcome)


class ReaperActor(msgspec.Struct, frozen=True, kw_only=True):
    """A reaper, which may stop between what it reads and what it writes."""

    name: str
    saw: tuple[Job, ...] = ()

    def key(self, model: Model) -> Hashable:
        rows = model.checker.rows
        saw = [job for job in self.saw if model.is_current(job.lease)]
        seen = tuple((*_seen(job), job.lease_until == rows[job.id].lease_until) for job in saw)
        return bool(self.saw), seen

    def steps(self, model: Model) -> Iterator[tuple[str, Callable[[], Actor]]]:
        if self.saw:
            yield "settles what it saw", partial(self._settle, model)
        elif overdue := model.store.overdue():
            yield "sees what is overdue", partial(replace, self, saw=tuple(overdue))

    def _settle(self, model: Model) -> Actor:
        lost = Lost("expired", "its lease ran out")
        model.reapers.settle([model.judged(job, lost, seen_lease=True) for job in self.saw])
        return replace(self, saw=())


class SupervisorActor(msgspec.Struct, frozen=True, kw_only=True):
    """The one who knows that a worker is dead: it marks it gone, then reads and settles what it held."""

    name: str
    whom: str | None = None
    saw: tuple[Job, ...] = ()

    def key(self, model: Model) -> Hashable:
        seen = tuple(_seen(job) for job in self.saw if model.is_current(job.lease))
        return self.whom, bool(self.saw), seen

    def steps(self, model: Model) -> Iterator[tuple[str, Callable[[], Actor]]]:
        if self.saw:
            yield "settles what the dead one held", partial(self._settle, model)
        elif self.whom is not None:
            yield "reads what the dead one held", partial(self._look, model)
        else:
            for dead in sorted(model.checker.dead - model.checker.gone):
                yield f"marks {dead} gone", partial(self._retire, model, dead)
            for worker in model.store.workers() if model.left["slanders"] else []:
                yield f"declares {worker.id} dead", partial(self._declare_dead_wrongly, model, worker.id)

    def _retire(self, model: Model, worker: str) -> Actor:
        model.reapers.retire(worker, "it was killed", how=WorkerExit("exit"))
        return replace(self, whom=worker)

    def _declare_dead_wrongly(self, model: Model, worker: str) -> Actor:
        model.checker.dies(worker)
        return model.spend("slanders", self._retire(model, worker))

    def _look(self, model: Model) -> Actor:
        jobs = model.store.find(Filter(states=(State.RUNNING,), worker=self.whom))
        return replace(self, saw=tuple(jobs), whom=self.whom if jobs else None)

    def _settle(self, model: Model) -> Actor:
        model.reapers.settle([model.judged(job, Lost("exit", "it was killed")) for job in self.saw])
        return replace(self, saw=())


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """Decides about what was seen, and sends the decision again when its answer was lost."""

    name: str
    decided: tuple[Job, Verdict] | None = None

    def key(self, model: Model) -> Hashable:
        return None if self.decided is None else (self.decided[0].state, self.decided[0].fence, self.decided[1].move)

    def steps(self, model: Model) -> Iterator[tuple[str, Callable[[], Actor]]]:
        if self.decided is not None:
            yield "acts", partial(self._act, model)
            if model.left["losses"]:
                yield "acts, and loses the answer", lambda: model.spend("losses", self._act(model) and self)
            return
        for job in model.checker.rows.values():
            if job.state is State.HELD and model.left["approve"]:
                verdict = acts.resolve(job, "retry", model.clock.wall(), actor="ann")
                yield "decides to approve", partial(model.spend, "approve", replace(self, decided=(job, verdict)))
            if job.state is State.READY and model.left["hold"]:
                verdict = acts.hold(job, actor="ann")
                yield "decides to hold", partial(model.spend, "hold", replace(self, decided=(job, verdict)))
            if job.state is State.RUNNING and model.left["cancel"]:
                verdict = acts.cancel(job, actor="ann")
                yield "decides to cancel", partial(model.spend, "cancel", replace(self, decided=(job, verdict)))

    def _act(self, model: Model) -> Actor:
        job, verdict = model.sure(self.decided)
        move(model.attempts, job.id, job.state, job.fence, verdict)
        return replace(self, decided=None)


def _seen(job: Job) -> tuple[Hashable, ...]:
    """Return what of a row decides about its verdict, and whether that is taken."""
    return job.lease, job.cancel_requested, job.open_step


Actor = Worker | ReaperActor | SupervisorActor | Person
