"""The machine learns workflows: steps, signals, children, waiting and waking, and what a person says of steps."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from holdfast.core import acts
from holdfast.core.machine import State
from holdfast.core.policy import Policy
from holdfast.core.records import Filter, Inbox, Job, NewEvent, NewJob, Record, Signal, Step
from holdfast.core.verdict import Failed, Outcome, Parked
from holdfast.errors import HoldfastError
from holdfast.stores.protocol import Reply, Store
from tests.agreement.machine import KEYS, MOMENT_S, Pair, Stores, informed, judged, mixtures, policies, rarely, some
from tests.factory import awaiting, move

NAMES = ["go", "stop"]
states = st.sampled_from(["started", "recorded", "recorded", "undone"])
positions = st.integers(1, 4)
open_steps = st.sampled_from([None, None, "", "charge", "mail"])
nth = st.integers(0, 9)


class Workflows(Stores):
    """See the module's docstring."""

    def __init__(self) -> None:
        super().__init__()
        self.signals: list[Signal] = []  # every one that was ever sent
        self.children: list[NewJob] = []
        self.inboxes: list[Inbox] = [Inbox(0)]  # what somebody has read, perhaps long ago

    # -------------------------------------------------------------------------------------- what is written

    @rule(targets=(Stores.attempts, Stores.seen), worker=Stores.workers, policy=policies, many=st.integers(1, 2),
          parent=Stores.attempts, has_parent=rarely)  # fmt: skip
    def start_flows(self, worker: str, policy: Policy, many: int, parent: Pair, has_parent: bool) -> Any:
        given = {"workflow": True, "parent": parent.memory.id if has_parent else None}
        self._add([self._new(policy, priority=7, **given) for _ in range(many)])
        return self._claim(worker, queues=["a"], tasks=["t"], limit=many)

    @rule(targets=(Stores.attempts, Stores.seen), worker=Stores.workers, parent=Stores.attempts, policy=policies)
    def start_a_child(self, worker: str, parent: Pair, policy: Policy) -> Any:
        self._add([self._new(policy, priority=8, parent=parent.memory.id)])
        return self._claim(worker, queues=["a"], tasks=["t"], limit=1)

    @rule(pair=Stores.attempts, other=Stores.attempts, many=some, position=positions, state=states,
          has_undo=st.booleans(), opened=open_steps, undoable=st.booleans(), nth=nth, repeat=rarely,
          what=st.sets(st.sampled_from(["take", "start", "send"])), key=st.sampled_from(KEYS),
          live=st.sampled_from([True, True, False]))  # fmt: skip
    def record(
        self, pair: Pair, other: Pair, many: int, position: int, state: Any, has_undo: bool, opened: str | None,
        undoable: bool, nth: int, what: set[str], key: str | None, repeat: bool, live: bool,
    ) -> None:  # fmt: skip
        """One attempt, or two, of any workflow and of any time, write steps; one takes, starts and sends as well."""
        number = next(self.numbers)
        running = self.memory.find(Filter(states=(State.RUNNING,), limit=10_000))
        job = running[nth % len(running)] if live and running else pair.memory
        step = Step(
            position=position, path=str(position), kind="step", name=f"s{position}", state=state, attempt=number,
            fence=number, has_undo=has_undo, result=str(number), started_at=float(number), ended_at=float(number),
        )  # fmt: skip
        own = [signal for signal in self.signals if signal.job_id == job.id]
        signals = own if own and nth % 3 else self.signals  # mostly one that it may take
        taken = (signals[nth % len(signals)].id,) if "take" in what and signals else ()
        jobs: tuple[NewJob, ...] = ()
        if "start" in what:
            old = self.children[nth % len(self.children)] if self.children and repeat else None
            new = old or NewJob(id=f"child-{number}", task="t", payload="{}", queue="a", key=key)
            jobs = (msgspec.structs.replace(new, parent=job.id),)  # the id of an old one is taken, unless it is its own
        sent = (self._signal(other.memory, nth, repeat),) if "send" in what else ()
        first = Record(
            lease=job.lease, worker=job.worker, steps=(step,), open_step=opened, undoable=undoable, taken=taken,
            jobs=jobs, sent=sent,
        )  # fmt: skip
        second = Record(lease=other.memory.lease, worker="w", steps=(step,), open_step="other" if has_undo else None)
        ended = msgspec.structs.replace(first, steps=(msgspec.structs.replace(step, state="recorded", result="end"),))
        batch = [first, second, ended][:many]
        answers = self.agree(lambda store, _: store.record(batch))
        if answers[0] is Reply.ACCEPTED:
            self.children += jobs

    @rule(target_flow=Stores.attempts, position=positions, alone=st.booleans())
    def every_zombie_records(self, target_flow: Pair, position: int, alone: bool) -> None:
        """Every attempt that was ever given and does not run any more writes a step, and every mixture of two; unless
        it is alone it also sends a signal and starts a child."""
        current = {job.lease for job in self.memory.find(Filter(states=(State.RUNNING,), limit=10_000))}
        leases = [lease for job in self.kept for lease in mixtures(job, self.kept) if lease not in current]
        number = next(self.numbers)
        step = Step(position=position, path="1", kind="step", name="late", state="recorded", attempt=9, fence=number)
        signal = Signal(id=f"late-{number}", job_id=target_flow.memory.id, name="go")
        child = NewJob(id=f"late-{number}", task="t", payload="{}")
        more: dict[str, Any] = {} if alone else {"jobs": (child,), "sent": (signal,)}
        batch = [Record(lease=lease, steps=(step,), open_step="late", undoable=True, **more) for lease in leases]
        answers = self.agree(lambda store, _: store.record(batch))
        assert set(answers) <= {Reply.REFUSED}

    @rule(pair=Stores.attempts, name=st.sampled_from(NAMES), nth=nth, repeat=rarely, answers=st.booleans())
    def send(self, pair: Pair, name: str, nth: int, repeat: bool, answers: bool) -> None:
        fence = pair.memory.fence if answers else None
        signal = msgspec.structs.replace(self._signal(pair.memory, nth, repeat), seen_fence=fence)
        self.agree(lambda store, _: store.signal(signal if repeat else msgspec.structs.replace(signal, name=name)))

    @rule(pair=Stores.attempts)
    def look_into_the_inbox(self, pair: Pair) -> None:
        self.inboxes.append(self.agree(lambda store, _: store.inbox(pair.memory.id)))

    # ------------------------------------------------------------------------------------- waiting, waking

    @rule(pair=Stores.attempts, child=Stores.attempts, names=st.sets(st.sampled_from(NAMES)), of_child=st.booleans(),
          wake_s=st.sampled_from([None, 0.0, 0.5, 1.5]), question=st.sampled_from([None, "Ship it?"]),
          seen=st.sampled_from(["now", "now", "once", None]), nth=nth, knows=st.booleans())  # fmt: skip
    def park(
        self, pair: Pair, child: Pair, names: set[str], of_child: bool, wake_s: float | None, seen: str | None,
        nth: int, question: str | None, knows: bool,
    ) -> None:  # fmt: skip
        awaits = [f"signal:{name}" for name in sorted(names)] + [f"job:{child.memory.id}"] * of_child
        wake_at = self.clock.wall() + wake_s if wake_s is not None else None

        def call(store: Store, job: Job) -> list[Reply]:
            count = self.inboxes[nth % len(self.inboxes)].count if seen == "once" else store.inbox(job.id).count
            outcome = Parked("waits", wake_at, awaiting(*awaits), question, count if seen is not None else None)
            return store.settle([judged(store, informed(store, job) if knows else job, outcome)])

        self.agree(call, pair)

    @rule(pair=Stores.attempts, name=st.sampled_from(NAMES), worker=Stores.workers, target=Stores.attempts)
    def wait_and_be_woken(self, pair: Pair, name: str, worker: str) -> Any:
        """The usual course, so that the rest of it is met often."""
        outcome: Outcome = Parked("waits", None, awaiting(f"signal:{name}"))
        self.agree(lambda store, job: store.settle([judged(store, informed(store, job), outcome)]), pair)
        signal = msgspec.structs.replace(self._signal(pair.memory, 0, False), name=name)
        self.agree(lambda store, _: store.signal(signal))
        return self._claim(worker, queues=[pair.memory.queue], tasks=[pair.memory.task], limit=2)

    @rule(limit=st.sampled_from([1, 2, 500]), off_s=st.sampled_from([-MOMENT_S, 0.0, 0.0, MOMENT_S]))
    def wake_due(self, limit: int, off_s: float) -> None:
        """At the instant of the first timer, a little before it or a little after. Which of two that are due at one
        instant comes first is nobody's promise."""
        timers = sorted(job.wake_at for job in self.memory.find(Filter(limit=10_000)) if job.wake_at is not None)
        if timers:
            self.clock.advance(max(0.0, timers[0] + off_s - self.clock.wall()))
        due = [wake_at for wake_at in timers if wake_at <= self.clock.wall()]
        if len(set(due)) < len(due):
            limit = 500
        self.agree(lambda store, _: store.wake_due(limit))

    # --------------------------------------------------------------------------------------------- people

    @rule(pair=Stores.seen, act=st.sampled_from(["rollback", "from", "happened", "revive"]), nth=nth)
    def say_of_a_flow(self, pair: Pair, act: str, nth: int) -> None:
        """Act on what is there now."""

        def call(store: Store, job: Job) -> Any:
            now = store.get(job.id)
            if now is None:
                return None
            steps, wall = store.steps(job.id), self.clock.wall()
            try:
                if act == "rollback":
                    verdict = acts.rollback(now, wall, actor="ann")
                elif act == "happened":
                    verdict = acts.resolve(now, "done", wall, actor="ann", result="7", steps=steps)
                elif act == "from" and steps:
                    verdict = acts.retry_from(now, steps[nth % len(steps)], steps, wall, actor="ann", repeat_step=True)
                else:
                    verdict = acts.revive(now, wall, actor="ann", repeat_step=nth % 2 == 0)
                return move(store, now.id, now.state, now.fence, verdict)
            except HoldfastError as error:
                return type(error).__name__

        self.agree(call, pair)

    @rule(pair=Stores.attempts, nth=nth, forks=st.booleans())
    def go_on_from_a_step(self, pair: Pair, nth: int, forks: bool) -> None:
        """The usual course: two steps, an end, and a person who runs it again from one of them, or forks it there."""
        number = next(self.numbers)
        new = NewJob(id=f"fork-{number}", task="t", payload="{}", queue="a", workflow=True)
        steps = [
            Step(position=each, path=str(each), kind="step", name=f"s{each}", state="recorded", attempt=1, fence=number)
            for each in (1, 2)
        ]

        def call(store: Store, job: Job) -> Any:
            written = store.record([Record(lease=job.lease, steps=tuple(steps))])
            ended = store.settle([judged(store, informed(store, job), Failed("no", final=True))])
            now, known = store.get(job.id), store.steps(job.id)
            if now is None or not known:
                return written, ended
            first = known[nth % len(known)]
            if forks:
                return written, ended, store.fork(new, job.id, now.fence, first.position, NewEvent("moved", {}, "ann"))
            try:
                verdict = acts.retry_from(now, first, known, self.clock.wall(), actor="ann", repeat_step=True)
            except HoldfastError as error:
                return written, ended, type(error).__name__
            return written, ended, move(store, now.id, now.state, now.fence, verdict)

        self.agree(call, pair)

    @rule(pair=Stores.seen, before=st.integers(0, 5), key=st.sampled_from(KEYS), knows=st.booleans())
    def fork(self, pair: Pair, before: int, key: str | None, knows: bool) -> None:
        """By what is there now, or by what was seen once."""
        new = NewJob(id=f"fork-{next(self.numbers)}", task="t", payload="{}", queue="a", key=key, workflow=True)
        note = NewEvent("moved", {"forked_from": "x"}, "ann")

        def call(store: Store, job: Job) -> Any:
            now = store.get(job.id) if knows else job
            return store.fork(new, job.id, now.fence if now is not None else 0, before, note)

        self.agree(call, pair)

    # ------------------------------------------------------------------------------------------------ reading

    @rule(pair=Stores.attempts, after=st.integers(0, 3), limit=st.integers(0, 3), aside=st.booleans(),
          workflow=st.sampled_from([None, True, False]), asking=st.sampled_from([None, True, False]),
          state=st.sampled_from([None, *State]))  # fmt: skip
    def read_flows(
        self, pair: Pair, after: int, limit: int, aside: bool, state: State | None, **given: bool | None
    ) -> None:
        self.agree(lambda store, _: store.steps(pair.memory.id, after, limit, aside=aside))
        self.agree(lambda store, _: store.find(Filter(states=(state,) if state else (), **given)))

    @invariant()
    def every_flow_is_the_same(self) -> None:
        for job in self.memory.find(Filter(limit=10_000)):
            self.agree(lambda store, _, job=job: (store.steps(job.id, aside=True), store.inbox(job.id)))

    more_records, still_more_records, more_parking, more_flows = record, record, park, start_flows

    # -------------------------------------------------------------------------------------------------- parts

    def _signal(self, job: Job, nth: int, repeat: bool) -> Signal:
        """A new one, or one that was sent before."""
        if repeat and self.signals:
            return self.signals[nth % len(self.signals)]
        signal = Signal(id=f"signal-{next(self.numbers)}", job_id=job.id, name=NAMES[nth % 2], value=str(nth))
        self.signals.append(signal)
        return signal
