"""The checker's own checker: what every call and answer means, and whether a store may have said so.

It believes no row. From the calls alone it knows the newest claim of each job, when its lease ends, what it has cost,
and whether it may be started; then it compares: the answers with what it knows, and the rows with the answers. Asking
"is each job done once?" is not enough: the harm of a missing fence is that the *wrong attempt* decides.

Calls reach the store through a `CheckedStore`, below anything that loses answers: the checker knows what was done even
when the caller does not. What breaks a promise raises `Violation`, with the promise's number from DESIGN.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from holdfast.core.acts import Move
from holdfast.core.machine import ENDED, LIVE, State, Transition
from holdfast.core.policy import OnCrash
from holdfast.core.records import BeatReply, Duty, Filter, Job, Lease, NewJob, Pulse, Record, Worker
from holdfast.core.settlement import Settlement
from holdfast.core.verdict import Cancelled, Failed, Outcome, Released, Stalled, TimedOut, Verdict
from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import HoldfastError
from holdfast.stores.protocol import Added, Reply, Store

Role = Literal["attempt", "reaper"]  # who speaks: a worker about its own attempt, or somebody about another's
WRITES = ("add", "claim", "beat", "settle", "enroll", "retire", "acquire", "resign", "move", "record")
KEPT = ("expectations", "rows", "gone", "dead", "excused", "duties", "decisions", "reported", "settled")
ENDINGS = ["failed", "timed_out", "stalled", "zombie", "released", "snoozed"]
FORGIVEN_MAX = 10  # losses of a suspect in company
ROUNDING_S = 1e-5  # SQLite's JSON has fifteen digits


class Violation(AssertionError):
    """A promise was broken. `steps_taken`: the steps that led there, where somebody has counted them."""

    def __init__(self, promise: str, what: str) -> None:
        self.promise = promise
        self.steps_taken: list[str] = []
        super().__init__(f"{promise}: {what}")


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What the checker knows of one job."""

    on_crash: OnCrash
    key: str | None
    lease_s: float
    crashes_max: int
    attempts_max: int
    state: State = State.READY
    fence: int = 0  # the highest that was ever seen
    lease: Lease | None = None  # the newest claim
    worker: str | None = None  # who has it
    lease_until: float = 0.0  # by the checker's own reckoning
    by_itself: bool = False  # the newest attempt ended itself; nobody else did
    failures: int = 0
    crashes: int = 0
    losses: int = 0
    suspects: int = 0  # how many were in the process with it when it was lost last
    cancel_asked: bool = False
    started: bool = False  # since the last approval, and it has not come to an end of its own
    opened: Lease | None = None  # which attempt began a step that must not be repeated, and has not recorded it


class Checker:
    """See the module's docstring. `trusted` says whether a living worker still believes in a lease.

    Nothing in it is changed in place, so that a snapshot costs nothing.
    """

    def __init__(self, store: Store, trusted: Callable[[Lease], bool]) -> None:
        self._store = store
        self._trusted = trusted
        self.expectations: dict[str, Expected] = {}
        self.rows: dict[str, Job] = {}  # as they were after the last call
        self.gone: frozenset[str] = frozenset()  # workers that were retired
        self.dead: frozenset[str] = frozenset()  # workers that died, or were declared dead on purpose
        self.excused: frozenset[str] = frozenset()  # of these, who ended themselves because the store was out of reach
        self.settled: frozenset[Lease] = frozenset()  # attempts that ended themselves
        self.decisions: frozenset[tuple[str, State, int, Transition]] = frozenset()
        self.duties: dict[str, tuple[str, int]] = {}
        self.reported: dict[Lease, Outcome] = {}
        self.recent: deque[tuple[object, ...]] = deque(maxlen=50)  # the last calls, for whoever has to find out
        self.sometimes: Counter[str] = Counter()

    def snapshot(self) -> tuple[Any, ...]:
        """Return everything but the counters."""
        return tuple(getattr(self, name) for name in KEPT)

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Set the checker back."""
        for name, value in zip(KEPT, snapshot, strict=True):
            setattr(self, name, value)

    # --------------------------------------------------------------------- what only the actors know

    def reports(self, lease: Lease, outcome: Outcome) -> None:
        """Note how an attempt says that it ended, before it tells the store."""
        self.reported = {**self.reported, lease: outcome}

    def dies(self, *workers: str, excused: bool = False) -> None:
        """Note that these workers are dead, or are declared dead on purpose; `excused`: they ended themselves."""
        self.dead |= set(workers)
        self.excused |= set(workers if excused else ())

    def starts(self, lease: Lease) -> None:
        """Note that a handler begins."""
        expected = self.expectations[lease.job_id]
        if expected.on_crash == "hold" and expected.started:
            raise Violation("P7", f"job {lease.job_id} was started again without an approval")
        self._put(lease.job_id, replace(expected, started=True))

    # ------------------------------------------------------------------------------ one verb after another

    def note(self, verb: str, role: Role, answer: Any, *arguments: Any, **named: Any) -> None:
        """Check an answer of the store, and the rows that it left."""
        self.recent.append((self._store.now().lease, role, verb, arguments, named, answer))
        touched: set[str] = getattr(self, f"_{verb}")(role, answer, *arguments, **named)
        self._compare_rows(verb, touched)

    def note_refusal(self, verb: str) -> None:
        """Check that a call that raised has changed nothing."""
        self._compare_rows(verb, set())

    def _add(self, role: Role, answers: list[Added], jobs: Sequence[NewJob]) -> set[str]:
        touched = set()
        for new, added in zip(jobs, answers, strict=True):
            there = self.expectations.get(added.id)
            if added.existed:
                same = there is not None and (added.id == new.id or (there.key == new.key and there.state in LIVE))
                self._expect(same, "P2", "job {} is said to exist as {}, and does not", new.id, added.id)
                self.sometimes["adds that existed"] += 1
                continue
            self._expect(there is None, "P2", "job {} was stored twice", new.id)
            policy = new.policy
            self._put(new.id, Expected(
                on_crash=policy.on_crash, key=new.key, lease_s=policy.lease_s,
                crashes_max=policy.crashes_max, attempts_max=policy.retry.attempts_max,
            ))  # fmt: skip
            touched.add(new.id)
        return touched

    def _claim(self, role: Role, jobs: list[Job], worker: str, claim_id: str, *_: Any) -> set[str]:
        mine = [e.lease for e in self.expectations.values() if e.state is State.RUNNING and e.worker == worker]
        given = {lease for lease in mine if lease is not None and lease.claim_id == claim_id}
        if given:
            self._expect({job.lease for job in jobs} == given, "P2", "a repeated claim of {} got other jobs", worker)
            self.sometimes["claims repeated"] += 1
            return set()
        self._expect(not jobs or worker not in self.gone, "race 2", "{} is gone and was given leases", worker)
        now = self._store.now().lease
        for job in jobs:
            self._claimed(job, worker, now)
        return {job.id for job in jobs}

    def _claimed(self, job: Job, worker: str, now: float) -> None:
        expected = self.expectations[job.id]
        self._expect(expected.state is not State.RUNNING, "P4", "job {} was claimed under an attempt's nose", job.id)
        self._expect(expected.state is State.READY, "P5", "job {} was claimed; it is {}", job.id, expected.state.value)
        self._expect(
            job.fence > expected.fence, "P4", "job {}: fence {} is not above {}", job.id, job.fence, expected.fence
        )
        spent = (
            expected.crashes >= expected.crashes_max or expected.crashes + expected.failures >= expected.attempts_max
        )
        self._expect(not spent, "budget", "a job was claimed whose budget is spent: {}", expected)
        self._put(job.id, replace(
            expected, state=State.RUNNING, fence=job.fence, lease=job.lease, worker=worker,
            lease_until=now + expected.lease_s, by_itself=False,
        ))  # fmt: skip

    def _beat(self, role: Role, answer: BeatReply, worker: str, pulses: Sequence[Pulse], *_: Any) -> set[str]:
        if answer.gone:
            self.sometimes["beats of the gone"] += 1
            self._expect(worker in self.gone, "P9", "{} was told that it is gone, and is not", worker)
            return set()
        self._expect(worker not in self.gone, "race 2", "{} is gone, and its beat counted", worker)
        now = self._store.now().lease
        touched, lost = set(), set()
        for pulse in pulses:
            expected = self.expectations[pulse.lease.job_id]
            newest, runs = expected.lease == pulse.lease, expected.state is State.RUNNING
            if newest and runs:
                self._put(pulse.lease.job_id, replace(expected, lease_until=now + expected.lease_s))
                touched.add(pulse.lease.job_id)
            elif not (newest and expected.by_itself):
                lost.add(pulse.lease.job_id)
        self._expect(lost == set(answer.lost), "P3", "a beat for {}: {} is not {}", pulses, answer, lost)
        self.sometimes["beats of the lost"] += len(lost)
        return touched

    def _settle(
        self, role: Role, answers: list[Reply], settlements: Sequence[Settlement], under: Duty | None = None
    ) -> set[str]:
        self._check_term(under)
        touched = set()
        for settlement, answer in zip(settlements, answers, strict=True):
            if self._settled(role, settlement, answer):
                touched.add(settlement.lease.job_id)
        return touched

    def _settled(self, role: Role, settlement: Settlement, answer: Reply) -> bool:
        lease = settlement.lease
        expected = self.expectations[lease.job_id]
        newest, runs = expected.lease == lease, expected.state is State.RUNNING
        seen, row = settlement.seen_lease_until, self.rows[lease.job_id]
        renewed = seen is not None and row.lease_until is not None and row.lease_until > seen + ROUNDING_S
        match answer:
            case Reply.ACCEPTED:
                self._expect(newest, "P3", "{} was accepted; the newest claim is {}", lease, expected.lease)
                self._expect(runs, "P4", "{} was given a second outcome", lease)
                if role == "reaper":
                    self._check_death(expected, lease)
                self._put(lease.job_id, self._ended(role, expected, settlement))
                self.settled |= {lease} if role == "attempt" else set()
                return True
            case Reply.ALREADY:
                self._expect(lease in self.settled, "P3", "{} was told that it had settled; it had not", lease)
                self.sometimes["settles already accepted"] += 1
            case Reply.AGAIN:
                changed = expected.cancel_asked != settlement.seen_cancel
                changed |= settlement.seen_open_step is not None and bool(settlement.seen_open_step) != bool(
                    expected.opened
                )
                self._expect(newest and runs and changed, "race 11", "{} was told to judge again for nothing", lease)
                self.sometimes["settles judged again"] += 1
            case Reply.REFUSED:
                rightful = newest and runs and not renewed
                self._expect(not rightful, "P3", "{} is the newest claim, and was refused", lease)
                late = "stale settles" if role == "attempt" else "reapers that came second"
                self.sometimes["reapers that met a beat" if newest and runs else late] += 1
        return False

    def _record(self, role: Role, answers: list[Reply], records: Sequence[Record]) -> set[str]:
        touched = set()
        for record, answer in zip(records, answers, strict=True):
            lease, expected = record.lease, self.expectations[record.lease.job_id]
            rightful = expected.lease == lease and expected.state is State.RUNNING
            self._expect((answer is Reply.ACCEPTED) is rightful, "P3", "a record of {} was {}", lease, answer.value)
            if not rightful or record.open_step is None:
                continue
            repeated = bool(record.open_step) and expected.opened not in (None, lease)
            self._expect(not repeated, "P13", "{} began a step that {} may have done", lease, expected.opened)
            self._put(lease.job_id, replace(expected, opened=lease if record.open_step else None))
            touched.add(lease.job_id)
            self.sometimes["steps begun or ended"] += 1
        return touched

    def _check_death(self, expected: Expected, lease: Lease) -> None:
        now = self._store.now().lease
        if expected.worker in self.dead:
            return
        early_s = expected.lease_until - now
        self._expect(early_s < ROUNDING_S, "P9", "{} was taken {:g} s before its end", lease, early_s)
        self._expect(not self._trusted(lease), "P9", "{} was taken while its worker believed in it", lease)
        self.sometimes["leases that ran out under the living"] += 1

    def _ended(self, role: Role, expected: Expected, settlement: Settlement) -> Expected:
        """Return what is expected after an accepted settlement, by what was reported and not by what was decided."""
        verdict, lease = settlement.verdict, settlement.lease
        outcome = self.reported.get(lease) if role == "attempt" else None
        short = outcome is None or isinstance(outcome, TimedOut | Stalled)
        short = short or (isinstance(outcome, Released) and outcome.started)
        cancelled = verdict.state is State.CANCELLED
        if expected.cancel_asked:
            ends = cancelled or verdict.state is State.DONE
            self._expect(ends, "race 11", "{} was asked to stop, and became {}", lease, verdict.state.value)
        elif short and expected.on_crash == "fail":
            self._expect(verdict.state is State.DEAD, "on_crash", "{} became {}, not dead", lease, verdict.state.value)
        if expected.opened is not None and not expected.cancel_asked:
            known = verdict.state in (State.HELD, State.DONE)
            self._expect(known, "P13", "{} was in a step, and became {}, not held", lease, verdict.state.value)
        failures = 0 if cancelled else int(isinstance(outcome, Failed | TimedOut | Stalled))
        self.sometimes[f"{'ended' if outcome is not None else 'lost'}: {verdict.state.value}"] += 1
        if outcome is None:
            crashes = 0 if cancelled else self._crashes(expected, verdict)
            suspects = expected.suspects if verdict.suspects is None else verdict.suspects
            expected = replace(expected, losses=expected.losses + 1, suspects=suspects)
        elif expected.suspects > 1 and not isinstance(outcome, Released | Cancelled):
            crashes = -expected.crashes  # it was not the one
            expected = replace(expected, suspects=0)
            self.sometimes["suspects that were innocent"] += 1
        else:
            crashes = 0
        return replace(
            expected, state=verdict.state, by_itself=outcome is not None,
            failures=expected.failures + failures, crashes=expected.crashes + crashes,
            started=expected.started and short,
        )  # fmt: skip

    def _crashes(self, expected: Expected, verdict: Verdict) -> int:
        """A death that was seen counts; only what ran out may be excused, in a gap of the store's. But a suspect is not
        blamed once more for a death in company, unless that goes on and on."""
        detector = verdict.events[0].detail.get("detector") if verdict.events else None
        self.sometimes[f"found by {detector}"] += 1
        known = expected.crashes > 0 and expected.suspects > 0  # it runs apart since then
        if known and verdict.suspects is None and expected.losses < FORGIVEN_MAX:
            return 0
        return verdict.crashes if detector == "expired" or expected.worker in self.excused else 1

    def _enroll(self, role: Role, answer: None, worker: Worker) -> set[str]:
        return set()

    def _retire(
        self, role: Role, done: bool, worker: str, cause: str, under: Duty | None = None, how: WorkerExit | None = None
    ) -> set[str]:
        self._check_term(under)
        self._expect(role == "attempt" or worker in self.dead, "P9", "{} lives, and was retired ({})", worker, cause)
        self._expect(done == (worker not in self.gone), "race 2", "{}: retire answered {}", worker, done)
        self.gone |= {worker}
        return set()

    def _acquire(
        self, role: Role, duty: Duty | None, name: str, holder: str, ttl_s: float, note: str | None = None
    ) -> set[str]:
        if duty is not None:
            before = self.duties.get(name, ("", 0))
            rises = duty.term > before[1] or before == (duty.holder, duty.term)
            self._expect(rises and duty.holder == holder, "P12", "{} follows {}", duty, before)
            self.duties = {**self.duties, name: (duty.holder, duty.term)}
        return set()

    def _resign(self, role: Role, done: bool, duty: Duty, note: str | None = None) -> set[str]:
        if done:
            self.duties = {**self.duties, duty.name: ("", duty.term)}
        return set()

    def _check_term(self, under: Duty | None) -> None:
        if under is not None:
            current = self.duties.get(under.name)
            self._expect(current == (under.holder, under.term), "P12", "an act under {}; current is {}", under, current)

    def _move(self, role: Role, answers: list[Reply], moves: Sequence[Move]) -> set[str]:
        touched = (self._moved(answer, *move.seen, move.verdict) for answer, move in zip(answers, moves, strict=True))
        return set().union(*touched)

    def _moved(self, answer: Reply, job_id: str, seen_state: State, seen_fence: int, verdict: Verdict) -> set[str]:
        if answer is not Reply.ACCEPTED:
            self.sometimes["acts that came too late"] += 1
            return set()
        expected, row = self.expectations[job_id], self.rows[job_id]
        seen, met = (seen_state, seen_fence), (row.state, row.fence)
        self._expect(seen == met, "race 8", "an act on {} met {}", seen, met)
        if verdict.state is not seen_state:
            decision = (job_id, seen_state, seen_fence, verdict.move)
            self._expect(decision not in self.decisions, "race 8", "carried out twice: {}", decision)
            self.decisions |= {decision}
        revived = verdict.move is Transition.REVIVE
        self._expect(revived or seen_state not in ENDED, "P5", "job {} had ended, {}", job_id, verdict.state)
        expected = replace(expected, state=verdict.state, by_itself=expected.by_itself and not verdict.raises_fence)
        if revived:
            expected = replace(expected, failures=0, crashes=0, cancel_asked=False, started=False, opened=None)
        elif verdict.state is State.RUNNING:
            expected = replace(expected, cancel_asked=True)
        self._put(job_id, expected)
        self.sometimes[f"acts: {verdict.move.value}"] += 1
        return {job_id}

    # ------------------------------------------------------------------------------------- the rows

    def _compare_rows(self, verb: str, touched: set[str]) -> None:
        rows = {job.id: job for job in self._store.find(Filter(limit=10_000))}
        if rows.keys() != self.expectations.keys():
            lost, phantoms = self.expectations.keys() - rows.keys(), rows.keys() - self.expectations.keys()
            raise Violation("P1" if lost else "P2", f"after {verb}: lost {sorted(lost)}, phantoms {sorted(phantoms)}")
        keys: Counter[str] = Counter()
        for job_id, row in rows.items():
            old = self.rows.get(job_id)
            if row is not old and row != old:
                self._expect(job_id in touched, "P3", "{} changed job {}, and did not say so", verb, job_id)
                self._compare_row(verb, row, old.fence if old is not None else 0)
            if row.key is not None and row.state in LIVE:
                keys[row.key] += 1
        self._expect(all(times == 1 for times in keys.values()), "keys", "after {}: live jobs per key: {}", verb, keys)
        self.rows = rows

    def _compare_row(self, verb: str, row: Job, fence_before: int) -> None:
        expected = self.expectations[row.id]
        self._expect(row.fence >= fence_before, "P4", "after {}: the fence fell to {}", verb, row.fence)
        self._expect(row.state is expected.state, "P1", "after {}: {} is not {}", verb, row, expected.state.value)
        costs = (row.failures, row.crashes) == (expected.failures, expected.crashes)
        self._expect(costs, "budget", "after {}: {} did not cost {}", verb, row, expected)
        if row.state is State.RUNNING:
            holder = (row.lease, row.worker) == (expected.lease, expected.worker)
            self._expect(holder, "P3", "after {}: {} is not held by {}", verb, row, expected.lease)
            until = row.lease_until if row.lease_until is not None else math.nan
            same = abs(until - expected.lease_until) < ROUNDING_S
            self._expect(
                same, "P9", "after {}: the lease ends at {}, promised was {}", verb, until, expected.lease_until
            )
        self._put(row.id, replace(expected, fence=max(expected.fence, row.fence)))

    def close(self) -> None:
        """Check what can be checked at the end only."""
        trouble = self._store.check()
        self._expect(not trouble, "P14", "the store says: {}", trouble)
        recount = Counter((row.queue, row.state) for row in self.rows.values())
        counts = {(queue, state): n for queue, states in self._store.counts().items() for state, n in states.items()}
        self._expect(counts == recount, "P1", "the store counts {}, its rows are {}", counts, recount)
        for promise, kinds in (("P3", ["stale_report"]), ("P4", ENDINGS)):
            events = self._store.journal(kinds=kinds, limit=100_000)
            lines = Counter((event.job_id, event.fence) for event in events)
            once = all(times == 1 for times in lines.values())
            self._expect(once, promise, "more than one of {} for an attempt: {}", kinds, lines)

    def _put(self, job_id: str, expected: Expected) -> None:
        self.expectations = {**self.expectations, job_id: expected}

    def _expect(self, holds: bool, promise: str, words: str, *values: object) -> None:
        if not holds:
            raise Violation(promise, words.format(*values))


class CheckedStore:
    """Any store, with every write of it told to the checker."""

    def __init__(self, store: Store, checker: Checker, role: Role) -> None:
        self._store = store
        self._book = checker
        self._voice: Role = role

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return partial(self._call, name, found) if name in WRITES else found

    def _call(self, verb: str, act: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            answer = act(*arguments, **named)
        except HoldfastError:
            self._book.note_refusal(verb)
            raise
        self._book.note(verb, self._voice, answer, *arguments, **named)
        return answer
