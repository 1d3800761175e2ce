"""Jobs, workers and settlements for tests, made through the public protocol only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.core import acts
from holdfast.core.acts import Move
from holdfast.core.machine import State
from holdfast.core.policy import Policy, Retry
from holdfast.core.records import Event, Filter, Job, Lease, NewJob, Record, Seen, Signal, Step, Worker
from holdfast.core.row_text import Awaits, awaited
from holdfast.core.settlement import Settlement
from holdfast.core.settlement import settlement as addressed
from holdfast.core.verdict import Cancelled, Failed, Lost, Outcome, Parked, Succeeded, Verdict, judge
from holdfast.errors import KeyTaken
from holdfast.stores.memory import MemoryStore
from holdfast.stores.protocol import Added, Reply, Store
from holdfast.testing import FakeClock

_numbers = itertools.count(1)

RETRY_FIELDS = {"attempts_max", "base_s", "cap_s", "jitter"}
POLICY_FIELDS = {"crashes_max", "on_crash", "lease_s", "beat_s", "timeout_s", "stall_s"}
EXPIRED = Lost("expired", "the lease ran out")
# A job in the tables of the first version, in SQL that every store takes.
OLD_JOB = (
    "id, task, queue, payload, run_at, created_at, attempts_max, backoff_base_s, backoff_cap_s, backoff_jitter,"
    " crashes_max, on_crash, lease_s, beat_s",
    "'old', 't', 'default', '{}', 1, 1, 3, 1, 60, '1', 3, 'retry', 30, 10",
)
# A step in the tables of the version that brought workflows.
OLD_STEP = (
    "INSERT INTO {table} (job_id, aside, position, path, kind, name, state, attempt, fence, has_undo, repeatable,"
    " started_at, ended_at) VALUES ('old', 0, {position}, '{position}', 'step', 's', '{state}', 1, 1, '1', '1', 5, 7)"
)
WAY_TO: dict[State, tuple[dict[str, Any], Outcome | None]] = {
    State.RUNNING: ({}, None),
    State.WAITING: ({}, Parked("for a signal")),
    State.HELD: ({"on_crash": "hold"}, EXPIRED),
    State.DONE: ({}, Succeeded('"fine"')),
    State.DEAD: ({"attempts_max": 1}, Failed("no luck")),
    State.CANCELLED: ({}, Cancelled()),
    State.ROLLED_BACK: ({"on_crash": "rollback"}, Succeeded()),
}


def make_job(**given: Any) -> NewJob:
    """A job with a new id; every field of `NewJob`, `Policy` and `Retry` may be given by its name."""
    retry = Retry(**{name: given.pop(name) for name in RETRY_FIELDS & given.keys()})
    policy = Policy(retry=retry, **{name: given.pop(name) for name in POLICY_FIELDS & given.keys()})
    named: dict[str, Any] = {"id": f"job-{next(_numbers)}", "task": "t", "payload": "{}", "policy": policy}
    return NewJob(**named | given)


def add(store: Store, **given: Any) -> Job:
    """Add one job and return its row."""
    new = make_job(**given)
    [added] = store.add([new])
    assert (added.id, added.existed) == (new.id, False)
    return row(store, new.id)


def add_many(store: Store, jobs: Sequence[NewJob]) -> list[Added]:
    """Add jobs in as few calls as the store takes."""
    most = store.add_max or len(jobs)
    return [each for start in range(0, len(jobs), most) for each in store.add(jobs[start : start + most])]


def row(store: Store, job_id: str) -> Job:
    job = store.get(job_id)
    assert job is not None
    return job


def a_worker(**given: Any) -> Worker:
    named: dict[str, Any] = {"id": f"worker-{next(_numbers)}", "name": "w", "host": "h", "pid": 1}
    named |= {"boot_id": "boot-1", "slots": 4}
    return Worker(**named | given)


def enrol(store: Store, **given: Any) -> str:
    """Enrol a new worker and return its id."""
    worker = a_worker(**given)
    store.enroll(worker)
    return worker.id


def claim(
    store: Store,
    worker: str | None = None,
    *,
    claim_id: str | None = None,
    queues: Sequence[str] = ("default",),
    tasks: Sequence[str] = ("t",),
    limit: int = 10,
    ahead: int = 0,
) -> list[Job]:
    worker = worker or enrol(store)
    return store.claim(worker, claim_id or f"claim-{next(_numbers)}", queues, tasks, limit, ahead)


def start(store: Store, worker: str | None = None, **given: Any) -> Job:
    """Add a job and claim it, and nothing else: its task has a name of its own unless one is given."""
    job = add(store, **{"task": f"task-{next(_numbers)}"} | given)
    return again(store, job, worker)


def again(store: Store, job: Job, worker: str | None = None) -> Job:
    """Claim a job that is ready."""
    [claimed] = claim(store, worker, queues=[job.queue], tasks=[job.task], limit=1)
    assert claimed.id == job.id
    return claimed


def settlement(job: Job, outcome: Outcome, *, now: float = 0.0, seen_lease: bool = False) -> Settlement:
    """Judge the outcome of the attempt that `job` shows."""
    return addressed(job, judge(outcome, job, now, chance=0.5), seen_lease=seen_lease)


def settle(store: Store, job: Job, outcome: Outcome, *, seen_lease: bool = False) -> Reply:
    now = store.now().wall
    [answer] = store.settle([settlement(job, outcome, now=now, seen_lease=seen_lease)])
    return answer


def settle_for_good(store: Store, each: Settlement) -> Reply:
    """Settle as the settler does: a row that somebody else has locked is tried again."""
    while (answer := store.settle([each])[0]) is Reply.LOCKED:
        pass
    return answer


def job_in(store: Store, state: State, **given: Any) -> Job:
    """A job that came into this state as jobs do."""
    if state is State.READY:
        return add(store, **given)
    policy, outcome = WAY_TO[state]
    job = start(store, **policy | given)
    if state is State.ROLLED_BACK:
        assert settle(store, job, EXPIRED) is Reply.ACCEPTED
        job = again(store, row(store, job.id))
    if outcome is not None:
        assert settle(store, job, outcome) is Reply.ACCEPTED
    job = row(store, job.id)
    assert job.state is state
    return job


def a_job(state: State = State.RUNNING, **changes: Any) -> Job:
    """A job in this state that no store knows, with any of its fields changed."""
    return msgspec.structs.replace(job_in(MemoryStore(clock=FakeClock()), state), **changes)


def move(store: Store, job_id: str, state: State, fence: int, verdict: Verdict) -> bool:
    """Act on one job as it was seen; return whether it still was so."""
    while (answer := store.move([Move(Seen(job_id, state, fence), verdict)])[0]) is Reply.LOCKED:
        pass  # another transaction has the row for a moment
    if answer is Reply.TAKEN:
        raise KeyTaken(f"job {job_id}")
    assert answer in (Reply.ACCEPTED, Reply.REFUSED)
    return answer is Reply.ACCEPTED


def delete(store: Store, job_id: str, state: State, fence: int) -> bool:
    """Delete one job as it was seen; return whether it still was so."""
    [answer] = store.delete([Seen(job_id, state, fence)])
    assert answer in (Reply.ACCEPTED, Reply.REFUSED)
    return answer is Reply.ACCEPTED


def revive(store: Store, job: Job) -> bool:
    verdict = acts.revive(job, store.now().wall, actor="ann")
    return move(store, job.id, job.state, job.fence, verdict)


def picture(store: Store) -> Any:
    """Everything that can be read from the store. Two that are equal: nothing was changed in between."""
    jobs = store.find(Filter(limit=10_000))
    flows = [(store.steps(job.id, aside=True), store.inbox(job.id)) for job in jobs if job.workflow]
    return jobs, flows, store.journal(limit=10_000), store.counts(), store.workers(gone=True), store.paused()


# Of workflows:


def start_flow(store: Store, worker: str | None = None, **given: Any) -> Job:
    """Add a workflow and claim it, and nothing else."""
    return start(store, worker, **{"workflow": True} | given)


def a_step(position: int = 1, state: str = "recorded", **given: Any) -> Step:
    named: dict[str, Any] = {"path": str(position), "kind": "step", "name": f"step-{position}"}
    named |= {"attempt": 1, "fence": 1, "started_at": 8.0, "ended_at": None if state == "started" else 9.0}
    return Step(position=position, state=state, **named | given)  # type: ignore[arg-type]


def a_record(job: Job | Lease, *steps: Step, **given: Any) -> Record:
    """What the attempt that has this lease wants to be written."""
    lease = job.lease if isinstance(job, Job) else job
    return Record(lease=lease, worker="w", steps=steps, **given)


def record(store: Store, job: Job | Lease, *steps: Step, **given: Any) -> Reply:
    [answer] = store.record([a_record(job, *steps, **given)])
    return answer


def a_signal(job: Job, name: str = "go", **given: Any) -> Signal:
    return Signal(id=given.pop("id", f"signal-{next(_numbers)}"), job_id=job.id, name=name, **given)


def awaiting(*texts: str) -> Awaits:
    """Return what a workflow waits for: `signal:go`, `job:ID`."""
    return Awaits(map(awaited, texts))


def park(store: Store, job: Job, *texts: str, **given: Any) -> Job:
    """Let a workflow wait for these things, as the settler does; return its row, whatever became of it."""
    outcome = Parked("waits", awaits=awaiting(*texts), **given)
    if settle(store, job, outcome) is Reply.AGAIN:
        assert settle(store, row(store, job.id), outcome) is Reply.ACCEPTED
    return row(store, job.id)


def stale_reports(store: Store, job_id: str | None = None) -> list[Event]:
    return store.journal(job_id, kinds=["stale_report"])


# Every way to hold a lease that is not the current one, by name: the lease, and the job as it is by now.


def _after_the_reap(store: Store) -> Lease:
    zombie = start(store)
    settle(store, zombie, EXPIRED)
    return zombie.lease


def _after_a_reap_that_held(store: Store) -> Lease:
    zombie = start(store, on_crash="hold")
    settle(store, zombie, EXPIRED)
    return zombie.lease


def _after_a_reap_that_buried(store: Store) -> Lease:
    zombie = start(store, on_crash="fail")
    settle(store, zombie, EXPIRED)
    return zombie.lease


def _after_a_reap_that_cancelled(store: Store) -> Lease:
    zombie = start(store)
    move(store, zombie.id, State.RUNNING, zombie.fence, acts.cancel(zombie, actor="ann"))
    settle(store, row(store, zombie.id), EXPIRED)
    return zombie.lease


def _after_a_successor_claimed(store: Store) -> Lease:
    zombie = start(store)
    settle(store, zombie, EXPIRED)
    again(store, row(store, zombie.id))
    return zombie.lease


def _after_a_successor_claimed_under_the_same_worker(store: Store) -> Lease:
    zombie = start(store)
    settle(store, zombie, EXPIRED)
    again(store, row(store, zombie.id), zombie.worker)
    return zombie.lease


def _after_a_successor_was_done(store: Store) -> Lease:
    zombie = start(store)
    settle(store, zombie, EXPIRED)
    settle(store, again(store, row(store, zombie.id)), Succeeded('"the successor\'s"'))
    return zombie.lease


def _after_its_own_release_and_a_new_claim(store: Store) -> Lease:
    first = start(store, base_s=0.0, cap_s=0.0)
    settle(store, first, Failed("at first"))
    again(store, row(store, first.id))
    return first.lease


def _with_another_claim_id(store: Store) -> Lease:
    running = start(store)
    return Lease(running.id, running.fence, "somebody else's")


def _with_an_empty_claim_id_after_the_reap(store: Store) -> Lease:
    lease = _after_the_reap(store)
    return Lease(lease.job_id, lease.fence + 1, "")


def _with_another_claim_id_after_it_was_done(store: Store) -> Lease:
    done = job_in(store, State.DONE)
    return Lease(done.id, done.fence, "somebody else's")


def _with_an_older_fence_and_the_right_claim_id(store: Store) -> Lease:
    running = start(store)
    return Lease(running.id, running.fence - 1, running.lease.claim_id)


def _with_a_fence_of_the_future(store: Store) -> Lease:
    running = start(store)
    return Lease(running.id, running.fence + 1, running.lease.claim_id)


def _of_a_job_never_claimed(store: Store) -> Lease:
    return Lease(add(store).id, 0, "")


STALE: dict[str, Callable[[Store], Lease]] = {
    name.strip("_").replace("_", " "): make
    for name, make in list(globals().items())
    if name.startswith(("_after_", "_with_", "_of_a_"))
}
