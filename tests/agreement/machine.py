"""Memory and a second store get the same calls; every answer and all that can be read must agree after each of them.

What makes it find things: a lease that was drawn once is never used up, so zombies come back often; time moves to
exactly the end of a lease, a little before it and a little after; few keys and queues, so that calls meet. Instants are
multiples of 1/32 s, which every store keeps exactly (SQLite's JSON has fifteen digits).
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from holdfast.core import acts
from holdfast.core.acts import Move
from holdfast.core.batches import Batch, Then, then_text
from holdfast.core.callbacks import Callback, with_callbacks
from holdfast.core.dependencies import things
from holdfast.core.limits import Limits, setting
from holdfast.core.machine import ENDED, State
from holdfast.core.policy import Policy, Retry
from holdfast.core.records import Event, Filter, Job, KeyRule, Lease, NewJob, Pulse, Worker
from holdfast.core.settlement import Settlement, settlement
from holdfast.core.verdict import (
    Cancelled,
    Failed,
    Lost,
    Outcome,
    Parked,
    Released,
    Snoozed,
    Stalled,
    Succeeded,
    TimedOut,
    Verdict,
    judge,
)
from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import HoldfastError, IllegalMove
from holdfast.stores.memory import MemoryStore
from holdfast.stores.protocol import Reply, Store
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import FakeClock
from holdfast.upkeep.dependents import start_dependents
from holdfast.upkeep.reaper import Reaper
from tests.factory import delete, move

MOMENT_S = 1 / 32
QUEUES, TASKS, KEYS = ["a", "b"], ["t", "u"], [None, None, "k", "l"]
LEASES_S = [1.5, 3.0]
GROUPS = ["g", "h", "i"]
BATCHES = ["x", "y"]
CALLBACKS = with_callbacks(  # of jobs whose ending stores another job, which may be claimed like any other
    None,
    *(Callback(NewJob(id="", task="u", payload="", queue="b"), ("job_id", "error_kind", "error")) for _ in range(2)),
)
DAY_S = 86_400.0  # a store forgets workers that are gone for longer; a run is shorter

outcomes = st.sampled_from([
    *(Succeeded('"fine"'), Succeeded('"fine"'), Succeeded(None), Failed("no luck", {"traceback": "…"})),
    *(TimedOut("too slow"), Stalled("no progress")),
    *(Snoozed(1.5), Parked("for a signal"), Cancelled(), Released(True, "stopping"), Released(False, "stopping")),
    *(Lost("exit", "killed", suspects=2), Lost("exit", "cut off", excused=True)),
])  # fmt: skip
policies = st.builds(
    Policy,
    retry=st.builds(Retry, st.integers(1, 4), st.just(0.5), st.just(1.0), st.booleans()),
    crashes_max=st.integers(1, 3),
    on_crash=st.sampled_from(["retry", "retry", "retry", "hold", "fail", "rollback"]),
    lease_s=st.sampled_from(LEASES_S),
)
key_rules = st.builds(
    KeyRule,
    scope=st.sampled_from(["queued", "queued", "live", "live", "ever", 1.5]),
    on_taken=st.sampled_from(["keep", "replace", "cancel"]),
    wait_max_s=st.sampled_from([None, 0.5]),
)
queues = st.sampled_from([["a", "b"], ["a", "b"], ["b", "a"], ["b"], []])
tasks = st.sampled_from([["t", "u"], ["t", "u"], ["u"]])
at_once = st.sampled_from([["cancel"], ["cancel"], ["revive"], ["hold", "retry"], ["done"], ["delete"]])
some = st.sampled_from([1, 1, 2, 3])
settings_of_a_queue = st.sampled_from([
    *(setting(limit=1), setting(limit=3), setting(limit=2, group_limit=1), setting(group_limit=1)),
    *(setting(rate="2/1s", burst=2), setting(limit=4, rate="1/0.5s"), setting(limit=50)),
])  # fmt: skip
rarely = st.sampled_from([False, False, False, True])


class Pair(NamedTuple):
    """One row, as each store gave it."""

    memory: Job
    second: Job


class Stores(RuleBasedStateMachine):
    """See the module's docstring. The second store is SQLite, unless a subclass opens another."""

    rounding = 1e-5  # what SQLite's JSON rounds off

    workers, attempts, overdue, seen = Bundle("workers"), Bundle("attempts"), Bundle("overdue"), Bundle("seen")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="agreement-"))
        self.clock = FakeClock()
        self.memory: Store = MemoryStore(clock=self.clock)
        self.second = self.open_second()
        self.second.migrate()
        self.reapers = [Reaper(store, self.clock, lots=lambda: 0.5) for store in (self.memory, self.second)]
        self.kept: list[Job] = []  # every attempt that was given
        self.sights: dict[tuple[str, State, int], Job] = {}  # every state and fence that a row has had
        self.numbers = iter(range(1_000_000))
        self.most: dict[tuple[str, str | None], int] = {}  # how many ran at the last look, by queue and group

    def open_second(self) -> Store:
        """Open the other store, with nothing in it."""
        return SqliteStore(f"sqlite:///{self.folder}/jobs.db?synchronous=normal", clock=self.clock)

    def teardown(self) -> None:
        for worker in self.second.workers():
            self.second.retire(worker.id, "the run is over")  # drops its liveness lock
        self.second.close()
        shutil.rmtree(self.folder)

    def both(self, call: Callable[[Store, Any], Any], given: Pair | Sequence[Pair] | None = None) -> list[Any]:
        """Make one call of each store, with its own rows; return the answers, or the errors."""
        answers = []
        for number, store in enumerate((self.memory, self.second)):
            rows = given[number] if isinstance(given, Pair) else [pair[number] for pair in given or ()]
            try:
                answers.append(call(store, rows))
            except HoldfastError as error:
                answers.append(type(error))
        return answers

    def agreed(self, call: Callable[[Store, Any], Any], given: Pair | Sequence[Pair] | None = None) -> list[Any]:
        """The same, and the two agree."""
        memory, second = self.both(call, given)
        assert same(memory, second, self.rounding), f"memory: {memory}\nsecond: {second}"
        return [memory, second]

    def agree(self, call: Callable[[Store, Any], Any], given: Pair | Sequence[Pair] | None = None) -> Any:
        return self.agreed(call, given)[0]

    # ------------------------------------------------------------------------------------- life of a job

    @initialize(target=workers)
    def first_workers(self) -> Any:
        return multiple(*(self._enroll() for _ in range(2)))

    @initialize(targets=(attempts, seen), worker=workers, one=policies, other=policies)
    def first_attempts(self, worker: str, one: Policy, other: Policy) -> Any:
        self._add([self._new(one), self._new(other)])
        return self._claim(worker, queues=["a"], tasks=["t"], limit=2)

    @rule(policy=policies, queue=st.sampled_from(QUEUES), task=st.sampled_from(TASKS),
          key=st.sampled_from(KEYS), priority=st.sampled_from([0, 0, 5]), delay_s=st.sampled_from([0.0, 0.0, 1.5]),
          twice=rarely, callbacks=st.sampled_from([None, CALLBACKS]),
          expires_s=st.sampled_from([None, None, 1.5]))  # fmt: skip
    def add(self, twice: bool, policy: Policy, **given: Any) -> None:
        new = self._new(policy, **given)
        self._add([new, self._new(policy, **given), new] if twice else [new])

    @rule(many=st.lists(key_rules, min_size=1, max_size=2), policy=policies, off_s=st.sampled_from([None, 0.0, 1.5]))
    def add_keyed(self, many: list[KeyRule], policy: Policy, off_s: float | None) -> None:
        """Jobs that want one key, each with a rule of its own, and a plain one."""
        delay_s = off_s or 0.0
        new = [self._new(policy, key=key, key_rule=rule, delay_s=delay_s) for rule in many for key in ("k", "l")]
        self._add([*new, self._new(policy, key="k")])
        self.agree(lambda store, _: store.purge_keys("", 1))

    @rule(targets=(attempts, seen), worker=workers, policy=policies, jobs=st.integers(1, 2),
          limit=st.sampled_from([1, 1, 0]), queue=st.sampled_from(QUEUES),
          callbacks=st.sampled_from([None, CALLBACKS]))  # fmt: skip
    def start(self, worker: str, policy: Policy, jobs: int, limit: int, queue: str, callbacks: str | None) -> Any:
        """Jobs that are claimed at once, or ahead: most calls want an attempt."""
        self._add([self._new(policy, priority=5, queue=queue, callbacks=callbacks) for _ in range(jobs)])
        return self._claim(worker, queues=[queue], tasks=["t"], limit=limit, ahead=jobs - limit)

    @rule(target=attempts, pair=attempts, again=rarely, worker=workers, queues=queues, tasks=tasks,
          limit=st.sampled_from([2, 1, 3, 0]), ahead=st.sampled_from([0, 0, 2]))  # fmt: skip
    def claim(self, pair: Pair, again: bool, worker: str, **given: Any) -> Any:
        """`again`: the answer to a claim was lost."""
        job = pair.memory
        return self._claim(job.worker or "", job.claim_id, **given) if again else self._claim(worker, **given)

    @rule(pair=attempts, other=attempts, third=attempts, many=some, of_another=rarely, worker=workers,
          started=st.booleans(), progress=st.sampled_from([None, 0.5]), note=st.sampled_from([None, "n"]),
          log=st.sampled_from([None, "l"]), still_s=st.sampled_from([None, 0.0, 0.5]),
          beat_data=st.sampled_from([None, '{"a":1}']))  # fmt: skip
    def beat(
        self, pair: Pair, other: Pair, third: Pair, many: int, of_another: bool, worker: str, **pulse: Any
    ) -> None:
        who = worker if of_another else pair.memory.worker or ""

        def call(store: Store, jobs: list[Job]) -> Any:
            answer = store.beat(who, [Pulse(job.lease, **pulse) for job in jobs], 12.5)
            return sorted(answer.lost), answer.skipped, sorted(answer.cancelled), answer.gone

        self.agree(call, unique([pair, other, third][:many]))

    @rule(pair=attempts, other=attempts, third=attempts, many=some, outcome=outcomes, knows=st.booleans())
    def settle(self, pair: Pair, other: Pair, third: Pair, many: int, outcome: Outcome, knows: bool) -> None:
        """`knows`: the attempt has heard whether it was asked to stop, and knows its steps."""

        def call(store: Store, jobs: list[Job]) -> list[Reply]:
            now = [informed(store, job) if knows else job for job in jobs]
            return store.settle([judged(store, job, outcome) for job in now])

        self.agree(call, unique([pair, other, third][:many]))

    # --------------------------------------------------------------------------------- finding the dead

    @rule(target=overdue, off_s=st.sampled_from([-MOMENT_S, 0.0, 0.0, MOMENT_S, 1.5]),
          grace_s=st.sampled_from([0.0, 0.0, 1.5]), skip=st.sampled_from([0, 0, 1]))  # fmt: skip
    def look(self, off_s: float, **given: Any) -> Any:
        """Look for what is overdue at the end of the first lease, a little before it or a little after."""
        deadline = self.agree(lambda store, _: store.deadline())
        if deadline is not None:
            self.clock.advance(max(0.0, deadline + off_s - self.clock.lease()))
        memory, second = self.agreed(lambda store, _: store.overdue(limit=3, **given))
        return multiple(*map(Pair, memory, second))

    @rule(pair=overdue, other=overdue, many=some, excused=rarely, renewed=st.booleans())
    def reap(self, pair: Pair, other: Pair, many: int, excused: bool, renewed: bool) -> None:
        """Settle what was seen, perhaps long ago, perhaps just before it was renewed."""
        if renewed:
            self.agree(lambda store, job: store.beat(job.worker or "", [Pulse(job.lease)]), pair)
        lost = Lost("expired", "its lease ran out", excused=excused)

        def call(store: Store, jobs: list[Job]) -> list[Reply]:
            return store.settle([judged(store, job, lost, seen_lease=True) for job in jobs])

        self.agree(call, unique([pair, other][:many]))

    @rule(target=attempts, pair=attempts, by_fence=st.booleans(), worker=workers)
    def lose(self, pair: Pair, by_fence: bool, worker: str) -> Any:
        """Give up an attempt that is kept, and start the next: it comes back as a zombie."""
        self.clock.advance(pair.memory.lease_s)

        def call(store: Store, job: Job) -> list[Reply]:
            now = store.get(job.id)
            lost = Lost("exit" if by_fence else "expired", "lost")
            if now is None or now.state is not State.RUNNING or now.lease != job.lease:
                return []
            return store.settle([judged(store, now, lost, seen_lease=not by_fence)])

        self.agree(call, pair)
        self.clock.advance(1.0)
        return self._claim(worker, queues=[pair.memory.queue], tasks=[pair.memory.task], limit=2)

    @rule(off_s=st.sampled_from([0.0, MOMENT_S, 1.5]))
    def expire(self, off_s: float) -> None:
        """End what was not claimed in time."""
        self.clock.advance(off_s)
        self.agree(lambda store, _: sorted(job.id for job in store.expired()))

        def call(store: Store, _: Any) -> list[Reply]:
            found = sorted(store.expired(), key=lambda job: job.id)
            return store.move([Move(job.seen, acts.expire(job)) for job in found])

        self.agree(call)

    @rule(pair=attempts, other=attempts, many=st.integers(1, 2), if_failed=st.sampled_from(["cancel", "hold", "run"]),
          policy=policies, expires_s=st.sampled_from([None, 1.5]))  # fmt: skip
    def add_after(
        self, pair: Pair, other: Pair, many: int, if_failed: str, policy: Policy, expires_s: float | None
    ) -> None:
        """A job that runs after others, and one that runs after that."""
        ids = [each.memory.id for each in (pair, other)[:many]]
        first = self._new(policy, awaits=things(ids, if_failed), expires_s=expires_s)
        self._add([first, self._new(policy, awaits=things([first.id]))])
        self.agree(lambda store, _: store.dependents(ids))

    @rule(page=st.integers(1, 3))
    def start_those_after(self, page: int) -> None:
        self.agree(lambda store, _: store.dependents(limit=page))
        self.agree(lambda store, _: start_dependents(store, [each.id for each in store.dependents() if each.is_over]))

    @rule()
    def pass_of_the_real_reaper(self) -> None:
        memory, second = (reaper.once() for reaper in self.reapers)
        assert {zombie.job.id for zombie in memory.zombies} == {zombie.job.id for zombie in second.zombies}
        assert memory.recovered == second.recovered

    @rule(target=workers, worker=workers, how=st.sampled_from([WorkerExit("exit", -9), WorkerExit("released"), None]),
          buried=st.booleans())  # fmt: skip
    def retire(self, worker: str, how: WorkerExit | None, buried: bool) -> Any:
        """Mark a worker gone and perhaps settle what it holds by fence alone; another one comes."""
        self.agree(lambda store, _: store.retire(worker, "it ended", how=how))

        def bury(store: Store, _: Any) -> list[Reply]:
            jobs = store.find(Filter(states=(State.RUNNING,), worker=worker))
            return store.settle([judged(store, job, Lost("exit", "killed", suspects=len(jobs))) for job in jobs])

        if buried:
            self.agree(bury)
        return self._enroll()

    # ------------------------------------------------------------------------------------------- people

    @rule(target=seen, pair=attempts)
    def see(self, pair: Pair) -> Any:
        memory, second = self.agreed(lambda store, _: store.get(pair.memory.id))
        return Pair(memory, second) if memory is not None else multiple()

    @rule(pair=seen, act=st.sampled_from(["cancel", "cancel", "revive", "hold", "fail", "later", "delete"]))
    def act(self, pair: Pair, act: str) -> None:
        """Act on what was seen, perhaps long ago."""
        self.agree(lambda store, job: self._act(store, job, act), pair)

    @rule(pair=attempts, acts=at_once, outcome=st.one_of(st.none(), outcomes))
    def act_at_once(self, pair: Pair, acts: list[str], outcome: Outcome | None) -> None:
        """Act on what is there now; perhaps the attempt ends at the same time, and does not know."""

        def call(store: Store, job: Job) -> Any:
            done = []
            for act in acts:
                now = store.get(job.id)
                try:
                    done += [self._act(store, now, act)] if now is not None else []
                except HoldfastError as error:
                    done += [type(error).__name__]
            return done, store.settle([judged(store, job, outcome)] if outcome else [])

        self.agree(call, pair)

    @rule(states=st.sets(st.sampled_from(sorted(ENDED)), min_size=2), queue=st.sampled_from(QUEUES),
          off_s=st.sampled_from([0.0, 0.0, MOMENT_S]), paused=st.booleans())  # fmt: skip
    def keep_house(self, states: set[State], off_s: float, queue: str, paused: bool) -> None:
        """Purge up to the instant at which one of the jobs ended, or a little later."""
        ends = sorted(job.ended_at for job in self.memory.find(Filter(limit=10_000)) if job.ended_at is not None)
        before = (ends[len(ends) // 2] if ends else self.clock.wall()) + off_s
        self.agree(lambda store, _: store.purge(sorted(states), before))
        self.agree(lambda store, _: store.batches.purge(before, 1))
        self.agree(lambda store, _: store.pause(queue, paused))
        self._do_a_duty("r1" if paused else "r2", 1.5 * len(states))

    def _do_a_duty(self, holder: str, seconds: float) -> None:
        duty = self.agree(lambda store, _: store.acquire("sweep", holder, 1.5))
        self.clock.advance(seconds)
        self.agree(lambda store, _: store.acquire("sweep", "r3", 1.5, holder) and None)
        self.agree(lambda store, _: [(each.name, each.holder, each.term, each.note) for each in store.duties()])
        if duty is not None:
            self.agree(lambda store, _: store.retire("nobody", "swept", under=duty))
            self.agree(lambda store, _: store.resign(duty, holder if seconds > 1.5 else None))

    @rule(queue=st.sampled_from(QUEUES), held=settings_of_a_queue, declared=rarely)
    def limit(self, queue: str, declared: bool, **given: Any) -> None:
        self.agree(lambda store, _: store.limit(queue, given["held"], declared=declared, actor="ann"))

    @rule(queue=st.sampled_from(QUEUES), group=st.sampled_from([None, *GROUPS]), paused=st.booleans(),
          pause_s=st.sampled_from([None, 0.5, 1.5]))  # fmt: skip
    def pause(self, queue: str, group: str | None, paused: bool, pause_s: float | None) -> None:
        until = None if pause_s is None else self.clock.wall() + pause_s
        self.agree(lambda store, _: store.pause(queue, paused, group=group, until=until, actor="bob"))

    @rule(queue=st.sampled_from(QUEUES), held=settings_of_a_queue, groups=st.lists(st.sampled_from([None, *GROUPS]),
          min_size=2, max_size=6), worker=workers, limit=st.integers(1, 4), policy=policies)  # fmt: skip
    def claim_by_turns(
        self, queue: str, groups: list[str | None], worker: str, limit: int, policy: Policy, **given: Any
    ) -> None:
        """Jobs with groups only where limits are: elsewhere each worker of a real server turns for itself."""
        self.agree(lambda store, _: store.limit(queue, given["held"], actor="ann"))
        self._add([self._new(policy, queue=queue, group=group) for group in groups])
        for many in (1, limit):
            self._claim(worker, queues=[queue], tasks=["t"], limit=many, ahead=2)
        self.agree(lambda store, _: sorted(job.id for job in store.ghosts(QUEUES)))

    @rule(batch=st.sampled_from(BATCHES), jobs=st.integers(0, 2), policy=policies, key=st.sampled_from(KEYS),
          closes=rarely, complete=st.booleans())  # fmt: skip
    def batch(self, batch: str, jobs: int, policy: Policy, key: str | None, closes: bool, complete: bool) -> None:
        """Fill a batch, or find that it is closed; and close it, perhaps."""
        last = then_text(Then(NewJob(id="", task="u", payload="{}", queue="b"), ("counts", "complete")))
        self.agree(lambda store, _: store.batches.open(Batch(id=batch, then=last, abandon_s=60.0)))
        new = [self._new(policy, key=key) for _ in range(jobs)]
        self.agree(lambda store, _: store.batches.add(batch, new))
        if closes:
            self.agree(lambda store, _: store.batches.close(batch, complete=complete))

    @rule(seconds=st.sampled_from([MOMENT_S, 0.5, 1.0, *LEASES_S]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # ------------------------------------------------------------------------------------- all at once

    @rule(outcome=outcomes)
    def every_zombie_comes_back(self, outcome: Outcome) -> None:
        """Every attempt that was ever given and does not run any more reports and beats, and every mixture of two."""
        current = {job.lease for job in self.memory.find(Filter(states=(State.RUNNING,), limit=10_000))}
        kept = [(job, lease) for job in self.kept for lease in mixtures(job, self.kept) if lease not in current]

        def call(store: Store, _: Any) -> Any:
            ends = [msgspec.structs.replace(judged(store, job, outcome), lease=lease) for job, lease in kept]
            beats = [store.beat(job.worker or "", [Pulse(lease, progress=0.9)]) for job, lease in kept]
            return beats, store.settle(ends)

        self.agree(call)

    @rule(act=st.sampled_from(["cancel", "hold", "revive", "delete"]))
    def every_person_acts_on_what_was_true_once(self, act: str) -> None:
        """Every (state, fence) that a row ever had and has no more is acted upon: nothing may come of it."""
        rows = {job.id: (job.state, job.fence) for job in self.memory.find(Filter(limit=10_000))}

        def call(store: Store, _: Any) -> list[Any]:
            done: list[Any] = []
            for (job_id, state, fence), job in self.sights.items():
                try:
                    done += [self._act(store, job, act)] if rows.get(job_id) != (state, fence) else []
                except HoldfastError as error:
                    done += [type(error).__name__]
            return done

        self.agree(call)

    # ------------------------------------------------------------------------------------------ reading

    @rule(pair=attempts, states=st.sets(st.sampled_from(list(State)), max_size=2), worker=workers,
          limit=st.integers(1, 4), cancel_requested=st.sampled_from([None, True, False]),
          queue=st.sampled_from([None, *QUEUES]))  # fmt: skip
    def read(self, pair: Pair, worker: str, states: set[State], **given: Any) -> None:
        chosen = tuple(sorted(states))
        self.agree(lambda store, _: store.find(Filter(states=chosen, **given)))
        self.agree(lambda store, _: store.find(Filter(states=chosen, worker=worker)))
        self.agree(lambda store, _: store.find(Filter(key="k", states=chosen)))
        for tried in (None, True, False):
            part = Filter(states=chosen, tried=tried, later=self.clock.wall())
            self.agree(lambda store, _, part=part: store.find(part))
        for queues in (QUEUES, QUEUES[:1], QUEUES[1:]):
            if not self.agree(lambda store, _: sorted(job.id for job in store.expired())):  # `due` may count those
                self.agree(lambda store, _, queues=queues: [store.due(queues, [task]) for task in TASKS])
            self.agree(lambda store, _, queues=queues: dict(store.unserved(queues, ["u"])))
        self.agree(lambda store, _: store.due_waits())

        self.agree(lambda store, _: store.find(Filter(before=pair.memory.id, limit=given["limit"])))
        for kinds in ((), ("zombie",), ("stale_report", "moved")):
            self.agree(lambda store, _, kinds=kinds: by_job(store.journal(pair.memory.id, kinds, given["limit"])))

    @invariant()
    def everything_is_the_same(self) -> None:
        assert self.clock.lease() < 1_000.0 + DAY_S
        for job in self.agree(lambda store, _: store.find(Filter(limit=10_000))):
            self.sights[job.id, job.state, job.fence] = job
        self.agree(lambda store, _: by_job(store.journal(limit=10_000)))
        self.agree(lambda store, _: store.counts())
        self.agree(lambda store, _: sorted(store.workers(gone=True), key=lambda worker: worker.id))
        self.agree(lambda store, _: sorted((found.worker.id, found.evidence) for found in store.vanished()))
        self.agree(lambda store, _: store.paused())
        for batch in self.agree(lambda store, _: store.batches.find()):
            self.agree(lambda store, _, id=batch.id: store.batches.counts(id))
        self._limits_hold()
        assert self.memory.check() == []

    def _limits_hold(self) -> None:
        """Only a claim raises the number of places, and never above the limit. One that was lowered may be exceeded."""
        set_for = {queue.name: queue.limits for queue in self.agree(lambda store, _: store.queues())}
        running = self.memory.find(Filter(states=(State.RUNNING,), limit=10_000))
        for queue in QUEUES:
            held, now = set_for.get(queue, Limits()), [job for job in running if job.queue == queue]
            groups = Counter(job.group for job in now)
            for name, most in ((None, held.limit), *((group, held.group_limit) for group in GROUPS)):
                number, key = len(now) if name is None else groups[name], (queue, name)
                assert most is None or number <= max(most, self.most.get(key, 0))
                self.most[key] = number

    # What most runs want more of: a rule is drawn as often as it has names.
    more_starts, more_claims, more_settles, still_more_settles, more_losses = start, claim, settle, settle, lose

    # -------------------------------------------------------------------------------------------- parts

    def _act(self, store: Store, job: Job, act: str) -> bool:
        if act == "delete":
            return delete(store, job.id, job.state, job.fence)
        return move(store, job.id, job.state, job.fence, decided(act, job, self.clock))

    def _new(self, policy: Policy, *, queue: str = "a", task: str = "t", **given: Any) -> NewJob:
        number = next(self.numbers)
        return NewJob(id=f"job-{number}", task=task, payload="{}", queue=queue, policy=policy, **given)

    def _add(self, jobs: list[NewJob]) -> None:
        self.agree(lambda store, _: store.add(jobs))

    def _enroll(self) -> str:
        name = f"worker-{next(self.numbers)}"
        worker = Worker(id=name, name=name, host="h", pid=1, boot_id=self.clock.boot_id, slots=2)
        self.agree(lambda store, _: store.enroll(worker))
        return name

    def _claim(self, worker: str, claim_id: str | None = None, **given: Any) -> Any:
        claim_id = claim_id or f"claim-{next(self.numbers)}"

        def call(store: Store, _: Any) -> list[Job]:
            return sorted(store.claim(worker, claim_id, **given), key=lambda job: job.id)  # the order is conformance's

        memory, second = self.agreed(call)
        if not isinstance(memory, list):
            return multiple()
        self.kept += memory
        return multiple(*map(Pair, memory, second))


def judged(store: Store, job: Job, outcome: Outcome, *, seen_lease: bool = False) -> Settlement:
    return settlement(job, judge(outcome, job, store.now().wall, chance=0.5), seen_lease=seen_lease)


def informed(store: Store, job: Job) -> Job:
    """The attempt, with what its row says by now of what a judge looks at."""
    row = store.get(job.id)
    if row is None:
        return job
    facts = {"cancel_requested": row.cancel_requested, "open_step": row.open_step, "undoable": row.undoable}
    return msgspec.structs.replace(job, **facts)


def decided(act: str, job: Job, clock: FakeClock) -> Verdict:
    wall = clock.wall()
    match act:
        case "cancel":
            return acts.cancel(job, actor="ann")
        case "revive":
            return acts.revive(job, wall, actor="ann")
        case "hold":
            return acts.hold(job, actor="ann")
        case "retry" | "done" | "fail":
            return acts.resolve(job, act, wall, actor="ann", reason="so", result='"it happened"')  # type: ignore[arg-type]
        case "move":
            return acts.reschedule(job, actor="ann", priority=9)
        case "later":
            return acts.reschedule(job, actor="ann", run_at=wall + 1.5)
    raise IllegalMove(act)


def unique(pairs: list[Pair]) -> list[Pair]:
    """One settlement or pulse per attempt; several attempts of one job may meet in a batch."""
    return list({pair.memory.lease: pair for pair in pairs}.values())


def mixtures(job: Job, others: list[Job]) -> list[Lease]:
    """Return the job's lease, and what its fence makes with the claim_id of its other attempts."""
    same_job = [other.lease for other in others if other.id == job.id]
    return list(dict.fromkeys(Lease(job.id, job.fence, other.claim_id) for other in same_job))


def by_job(events: list[Event]) -> list[Event]:
    """The lines of each job in their order; a batch writes those of several jobs in an order of its own."""
    return sorted((msgspec.structs.replace(event, seq=0) for event in events), key=lambda event: event.job_id)


def same(one: Any, other: Any, rounding: float) -> bool:
    """Compare, with what a store may round off."""
    if one == other:
        return True
    if isinstance(one, type) or isinstance(other, type):
        return False  # an error, and not the same
    return _alike(msgspec.to_builtins(one), msgspec.to_builtins(other), rounding)


def _alike(one: Any, other: Any, rounding: float) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=0.0, abs_tol=rounding)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key], rounding) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_alike(*both, rounding) for both in zip(one, other, strict=True))
    return bool(one == other)
