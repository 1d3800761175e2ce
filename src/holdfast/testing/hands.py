"""Who acts in a walk: each is a value, and offers the steps that it could take next; a step is one call at most."""

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
from holdfast.errors import WorkerGone
from holdfast.stores.protocol import Answer

if TYPE_CHECKING:
    from holdfast.testing.walk import Walk

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

    def key(self, walk: Walk) -> Hashable:
        if self.phase == "dead" or (self._is_asking() and walk.is_used_up()):
            sent = self.job.lease if self.job is not None and self.writing is not None else None
            return (self.id, self.claim_id if self._is_asking() else None, sent, self.writing)
        if self.job is not None and not walk.is_current(self.job.lease):
            return (self.id, self.claims, self.job.lease)
        job = self.job
        seen = (job.lease, job.cancel_requested, job.open_step, self.has_stepped) if job is not None else None
        given = None if self.given is None else tuple(job.lease for job in self.given)
        until = None if self.window is None else walk.left_s(self.window.end_at)
        asked, beat = walk.age_s(self.asked_at), walk.age_s(self.beat_at)
        told = (repr(self.outcome), beat, self.beaten, self.writing)
        return (self.id, self.phase, self.claims, asked, given, seen, until, *told)

    def steps(self, walk: Walk) -> Iterator[tuple[str, Callable[[], Hand]]]:
        if self._is_asking() and walk.may_arrive(self):
            yield "its claim arrives", partial(self._claim, walk)
        if self.writing is not None:
            yield "its record arrives", partial(self._record, walk)
        if self.phase == "dead":
            if walk.has_work():
                yield "starts again", partial(walk.enrol, Worker(name=self.name, born=self.born + 1))
            return
        if walk.left["deaths"] and self.phase != "idle":
            yield "dies", partial(self._die, walk)
        if self.phase == "idle" and walk.has_work() and walk.is_next(self):
            yield "asks", partial(replace, self, phase="asking", asked_at=walk.now(), claims=self.claims + 1)
        if self.given is not None:
            yield "hears of its claim", partial(self._hear_claim, walk)
            if walk.left["losses"]:
                yield "loses the answer to its claim", partial(walk.spend, "losses", replace(self, given=None))
        if self.job is not None and not walk.is_current(self.job.lease):
            yield "reports too late", self._end(self.outcome or Released(started=True, cause="lost")).reporting(walk)
        elif self.job is not None and self.window is not None:
            yield from self._holding(walk, self.window)

    def _holding(self, walk: Walk, window: TrustWindow) -> Iterator[tuple[str, Callable[[], Hand]]]:
        now = walk.now()
        if self.beaten is None and window.must_renew(now):
            yield "beats", partial(self._beat, walk)
        if self.beaten is not None:
            yield "hears of its beat", partial(self._hear_beat, walk)
        if self.phase == "ending":
            yield "settles", self.reporting(walk)
            if walk.left["losses"]:
                yield "settles, and loses the answer", lambda: walk.spend("losses", self._settle(walk) and self)
        elif window.must_stop(now):
            yield "stops its handler", partial(self._end, Released(started=True, cause="no beat got through"))
        elif self.job is not None and self.job.workflow and not self.has_stepped:
            if self.writing is None and self.job.open_step is None:
                yield "begins its step", partial(replace, self, writing="s", job=replace(self.job, open_step="s"))
            elif self.writing is None:
                yield "ends its step", partial(replace, self, writing="")
        else:
            yield "succeeds", partial(self._end, Succeeded('"fine"'))
            if walk.left["failures"]:
                yield "fails", lambda: walk.spend("failures", self._end(Failed("no luck")))

    def _is_asking(self) -> bool:
        return self.asked_at is not None and self.given is None

    def trusting(self, sent_at: float, now: float, job: Job) -> TrustWindow:
        """Return what it may believe after a call that was sent then and is answered now."""
        return trust(sent_at, job.lease_s, job.beat_s)

    def _claim(self, walk: Walk) -> Hand:
        try:
            jobs = walk.attempts.claim(self.id, self.claim_id, QUEUES, TASKS, 1)
        except WorkerGone:
            return replace(self, asked_at=None) if self.phase == "dead" else walk.enrol(self._next_life())
        return replace(self, asked_at=None) if self.phase == "dead" else replace(self, given=tuple(jobs))

    def _hear_claim(self, walk: Walk) -> Hand:
        rested = replace(self, phase="idle", asked_at=None, given=None)
        if not self.given or self.asked_at is None:
            return rested
        [job], now = self.given, walk.now()
        window = self.trusting(self.asked_at, now, job)
        held = replace(rested, phase="running", job=job, window=window)
        if job.cancel_requested:
            return held._end(Cancelled())
        if window.must_stop(now):
            return held._end(Released(started=False, cause="its lease was about to end before it began"))
        walk.book.starts(job.lease)
        return held

    def _end(self, outcome: Outcome) -> Worker:
        return replace(self, phase="ending", outcome=outcome)

    def _beat(self, walk: Walk) -> Hand:
        job = walk.sure(self.job)
        answer = walk.attempts.beat(self.id, [Pulse(job.lease)])
        if answer.gone:
            return walk.enrol(self._next_life())
        return replace(self, beat_at=walk.now(), beaten=(job.id in answer.lost, job.id in answer.cancelled))

    def _hear_beat(self, walk: Walk) -> Hand:
        job, sent_at, (lost, cancelled) = walk.sure(self.job), walk.sure(self.beat_at), walk.sure(self.beaten)
        heard, ended = replace(self, beat_at=None, beaten=None), self.phase == "ending"
        if lost:
            return heard if ended else heard._end(Released(started=True, cause="another attempt has taken over"))
        heard = replace(heard, window=self.trusting(sent_at, walk.now(), job))
        if cancelled:
            heard = replace(heard, job=replace(job, cancel_requested=True))
            return heard if ended else heard._end(Cancelled())
        return heard

    def _record(self, walk: Walk) -> Hand:
        job, written = walk.sure(self.job), replace(self, writing=None)
        [answer] = walk.attempts.record([Record(lease=job.lease, open_step=self.writing)])
        if self.phase == "dead":
            return replace(written, job=None)
        if answer is Answer.REFUSED:
            lost = Released(started=True, cause="another attempt has taken over")
            return written if self.phase == "ending" else written._end(lost)
        if self.writing == "":
            return replace(written, job=replace(job, open_step=None), has_stepped=True)
        return written

    def reporting(self, walk: Walk) -> Callable[[], Hand]:
        """Return the last step of an attempt."""
        return partial(self._settle, walk)

    def _settle(self, walk: Walk) -> Worker:
        job, outcome = walk.sure(self.job), self.outcome or Cancelled()
        walk.book.reports(job.lease, outcome)
        [answer] = walk.attempts.settle([walk.judged(job, outcome)])
        if answer is Answer.AGAIN:
            row = walk.sure(walk.store.get(job.id))
            return replace(self, job=replace(job, cancel_requested=row.cancel_requested, open_step=row.open_step))
        return Worker(name=self.name, born=self.born, claims=self.claims)

    def _die(self, walk: Walk) -> Hand:
        walk.book.dies(self.id)
        on_the_wire = self.asked_at if self.given is None else None
        dead = Worker(name=self.name, born=self.born, phase="dead", claims=self.claims, asked_at=on_the_wire)
        if self.writing is not None:
            dead = replace(dead, job=self.job, writing=self.writing)
        return walk.spend("deaths", dead)

    def _next_life(self) -> Worker:
        """It was declared dead: it enrols anew, and what it ran is stopped and reported under its old lease."""
        anew = Worker(name=self.name, born=self.born + 1)
        if self.job is None:
            return anew
        outcome = self.outcome or Released(started=True, cause="this worker was declared dead")
        return replace(anew, phase="ending", job=self.job, window=self.window, outcome=outcome)


class ReaperHand(msgspec.Struct, frozen=True, kw_only=True):
    """A reaper, which may stop between what it reads and what it writes."""

    name: str
    saw: tuple[Job, ...] = ()

    def key(self, walk: Walk) -> Hashable:
        rows = walk.book.rows
        saw = [job for job in self.saw if walk.is_current(job.lease)]
        seen = tuple((*_seen(job), job.lease_until == rows[job.id].lease_until) for job in saw)
        return bool(self.saw), seen

    def steps(self, walk: Walk) -> Iterator[tuple[str, Callable[[], Hand]]]:
        if self.saw:
            yield "settles what it saw", partial(self._settle, walk)
        elif overdue := walk.store.overdue():
            yield "sees what is overdue", partial(replace, self, saw=tuple(overdue))

    def _settle(self, walk: Walk) -> Hand:
        lost = Lost("expired", "its lease ran out")
        walk.reapers.settle([walk.judged(job, lost, seen_lease=True) for job in self.saw])
        return replace(self, saw=())


class SupervisorHand(msgspec.Struct, frozen=True, kw_only=True):
    """The one who knows that a worker is dead: it marks it gone, then reads and settles what it held."""

    name: str
    whom: str | None = None
    saw: tuple[Job, ...] = ()

    def key(self, walk: Walk) -> Hashable:
        seen = tuple(_seen(job) for job in self.saw if walk.is_current(job.lease))
        return self.whom, bool(self.saw), seen

    def steps(self, walk: Walk) -> Iterator[tuple[str, Callable[[], Hand]]]:
        if self.saw:
            yield "settles what the dead one held", partial(self._settle, walk)
        elif self.whom is not None:
            yield "reads what the dead one held", partial(self._look, walk)
        else:
            for dead in sorted(walk.book.dead - walk.book.gone):
                yield f"marks {dead} gone", partial(self._retire, walk, dead)
            for worker in walk.store.workers() if walk.left["slanders"] else []:
                yield f"declares {worker.id} dead", partial(self._slander, walk, worker.id)

    def _retire(self, walk: Walk, worker: str) -> Hand:
        walk.reapers.retire(worker, "exit: it was killed")
        return replace(self, whom=worker)

    def _slander(self, walk: Walk, worker: str) -> Hand:
        walk.book.dies(worker)
        return walk.spend("slanders", self._retire(walk, worker))

    def _look(self, walk: Walk) -> Hand:
        jobs = walk.store.find(Filter(states=(State.RUNNING,), worker=self.whom))
        return replace(self, saw=tuple(jobs), whom=self.whom if jobs else None)

    def _settle(self, walk: Walk) -> Hand:
        walk.reapers.settle([walk.judged(job, Lost("exit", "it was killed")) for job in self.saw])
        return replace(self, saw=())


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """Decides about what was seen, and sends the decision again when its answer was lost."""

    name: str
    decided: tuple[Job, Verdict] | None = None

    def key(self, walk: Walk) -> Hashable:
        return None if self.decided is None else (self.decided[0].state, self.decided[0].fence, self.decided[1].move)

    def steps(self, walk: Walk) -> Iterator[tuple[str, Callable[[], Hand]]]:
        if self.decided is not None:
            yield "acts", partial(self._act, walk)
            if walk.left["losses"]:
                yield "acts, and loses the answer", lambda: walk.spend("losses", self._act(walk) and self)
            return
        for job in walk.book.rows.values():
            if job.state is State.HELD and walk.left["approve"]:
                verdict = acts.revive(job, walk.clock.wall(), actor="ann", repeat_step=True)
                yield "decides to approve", partial(walk.spend, "approve", replace(self, decided=(job, verdict)))
            if job.state is State.READY and walk.left["hold"]:
                verdict = acts.hold(job, actor="ann")
                yield "decides to hold", partial(walk.spend, "hold", replace(self, decided=(job, verdict)))
            if job.state is State.RUNNING and walk.left["cancel"]:
                verdict = acts.cancel(job, actor="ann")
                yield "decides to cancel", partial(walk.spend, "cancel", replace(self, decided=(job, verdict)))

    def _act(self, walk: Walk) -> Hand:
        job, verdict = walk.sure(self.decided)
        walk.attempts.move(job.id, job.state, job.fence, verdict)
        return replace(self, decided=None)


def _seen(job: Job) -> tuple[Hashable, ...]:
    """Return what of a row decides about its verdict, and whether that is taken."""
    return job.lease, job.cancel_requested, job.open_step


Hand = Worker | ReaperHand | SupervisorHand | Person
