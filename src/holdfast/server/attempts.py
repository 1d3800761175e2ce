"""The worker protocol: enrol, claim, beat, settle, leave. Any language can speak it; see docs/http-api.md.

A worker reports an outcome, and the server judges it: policies stay in `core/verdict.py`. Fence and claim id travel
with every call, so a worker that lost its lease is refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from holdfast import insight
from holdfast.core.machine import State
from holdfast.core.records import REMOTE_BOOT, Filter, Job, Lease, Published, Pulse, Record, Step, Worker
from holdfast.core.settlement import Settlement, settlement
from holdfast.core.text import check_storable, clean
from holdfast.core.verdict import Cancelled, Failed, Outcome, Released, Snoozed, Succeeded, judge
from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import NotFound
from holdfast.ids import chance, new_id
from holdfast.server.call import Call
from holdfast.server.problems import Problem
from holdfast.stores.protocol import Reply
from holdfast.tasks import check_name

BATCH_MAX = 1_000
WAIT_MAX_S = 30.0
WAIT_S = 20.0
STEPS_MAX = 100  # in one request
TRIES = 5  # to judge a job that changes meanwhile
ERROR_MAX = 100_000

Id = Annotated[str, Meta(min_length=1, max_length=64)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # what every store can hold
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\u0000]*$")]
Names = Annotated[list[Name], Meta(max_length=1_000)]


class WorkerBody(msgspec.Struct, forbid_unknown_fields=True):
    """A worker that begins its work. `id` is new for every start, `name` stays."""

    name: str
    id: Id | None = None
    queues: Names = msgspec.field(default_factory=lambda: ["default"])
    tasks: Names = []
    slots: Annotated[int, Meta(ge=1, le=100_000)] = 1
    host: str = ""
    pid: Count = 0
    beat_s: Annotated[float, Meta(ge=0.1, le=3_600)] = 10.0


class ClaimBody(msgspec.Struct, forbid_unknown_fields=True):
    """Leases for a worker. `claim_id`: the caller's own; a repeated claim with it returns the same jobs."""

    worker: Id
    queues: Names
    tasks: Names
    claim_id: Id | None = None
    limit: Annotated[int, Meta(ge=1, le=BATCH_MAX)] = 1
    wait_s: Annotated[float, Meta(ge=0.0, le=WAIT_MAX_S)] = WAIT_S
    integers: Literal["number", "string"] = "number"


class LeaseBody(msgspec.Struct, forbid_unknown_fields=True):
    """Proof of the right to run one attempt."""

    id: Id
    fence: Count
    claim_id: Id


class PulseBody(LeaseBody, forbid_unknown_fields=True):
    """A lease to extend, with the progress of its job."""

    progress: float | None = None
    note: Annotated[str, Meta(max_length=1_000)] | None = None


class BeatBody(msgspec.Struct, forbid_unknown_fields=True):
    """A beat of a worker, for all of its leases."""

    worker: Id
    leases: Annotated[list[PulseBody], Meta(max_length=BATCH_MAX)] = []
    stopping: bool = False


class SucceededBody(msgspec.Struct, forbid_unknown_fields=True, tag="succeeded", tag_field="outcome"):
    """The handler returned."""

    lease: LeaseBody
    result: Any = None


class FailedBody(msgspec.Struct, forbid_unknown_fields=True, tag="failed", tag_field="outcome"):
    """The handler failed. `final`: it must not be tried again. `delay_s`: the pause before the next try."""

    lease: LeaseBody
    error: Annotated[str, Meta(max_length=ERROR_MAX)]
    final: bool = False
    delay_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class ReleasedBody(msgspec.Struct, forbid_unknown_fields=True, tag="released", tag_field="outcome"):
    """The worker gives the job back, at no cost. `started`: the handler had begun."""

    lease: LeaseBody
    started: bool = True


class SnoozedBody(msgspec.Struct, forbid_unknown_fields=True, tag="snoozed", tag_field="outcome"):
    """The job asks to be run again later, at no cost."""

    lease: LeaseBody
    delay_s: Annotated[float, Meta(ge=0, le=1e9)]


class CancelledBody(msgspec.Struct, forbid_unknown_fields=True, tag="cancelled", tag_field="outcome"):
    """The handler stopped because a person asked for it."""

    lease: LeaseBody


OutcomeBody = SucceededBody | FailedBody | ReleasedBody | SnoozedBody | CancelledBody


class SettleBody(msgspec.Struct, forbid_unknown_fields=True):
    """The outcomes of attempts."""

    outcomes: Annotated[list[OutcomeBody], Meta(min_length=1, max_length=BATCH_MAX)]


class StepBody(msgspec.Struct, forbid_unknown_fields=True):
    """The result of a part of a job. `name`: its own within the job."""

    name: Name
    result: Any = None


class RecordBody(msgspec.Struct, forbid_unknown_fields=True):
    """Steps that an attempt has done, so that the next attempt leaves them out. Without steps it only reads."""

    lease: LeaseBody
    worker: Id | None = None
    steps: Annotated[list[StepBody], Meta(max_length=STEPS_MAX)] = []
    integers: Literal["number", "string"] = "number"


class BeatAnswer(msgspec.Struct):
    """The ids of jobs that are lost, that were not renewed this time, and that were asked to stop."""

    lost: list[str]
    skipped: list[str]
    cancelled: list[str]


class SettleAnswer(msgspec.Struct):
    """One answer for each outcome: accepted, already, refused, or locked."""

    answers: list[str]


# ------------------------------------------------------------------------------------------- workers


def enrol(call: Call) -> dict[str, Any]:
    """Enrol a worker. It has no liveness lock: its death is found when its lease ends, or when it leaves."""
    body: WorkerBody = call.body
    check_name("worker", body.name)
    check_storable(200, host=body.host, id=body.id)
    for queue in body.queues:
        check_name("queue", queue)
        call.need_queue(queue, f"queue {queue!r}")
    worker = Worker(
        id=body.id or new_id(),
        name=body.name,
        host=body.host,
        pid=body.pid,
        boot_id=REMOTE_BOOT,
        queues=body.queues,
        slots=body.slots,
        beat_s=body.beat_s,
        version="http",
        tasks={task: Published(body.queues[0]) for task in body.tasks} if body.queues else {},
    )
    call.store.enroll(worker)
    return {"id": worker.id, "name": worker.name, "beat_s": worker.beat_s}


def leave(call: Call) -> dict[str, Any]:
    """Retire a worker that stops. Jobs that it still runs are recovered at once."""
    worker_id = call.path["id"]
    if "\0" in worker_id:
        raise NotFound(f"there is no worker {worker_id!r}")
    if call.user.queues is not None:
        known = {worker.id: worker for worker in call.store.workers()}.get(worker_id)
        if known is None or not all(call.user.sees(queue) for queue in known.queues):
            raise NotFound(f"there is no worker {worker_id!r}")
    retired = call.store.retire(worker_id, "it said that it leaves", how=WorkerExit("released"))
    return {"id": worker_id, "retired": retired}


# -------------------------------------------------------------------------------- claim, beat, settle


def check_wanted(call: Call, queues: list[str], tasks: list[str]) -> None:
    """Refuse names that no store can be asked for: all long polls wait behind one question."""
    for name in (*queues, *tasks):
        check_storable(200, name=name)
    for queue in queues:
        call.need_queue(queue, f"queue {queue!r}")


async def claim(call: Call) -> dict[str, Any]:
    """Claim due jobs; without any, wait for some."""
    body: ClaimBody = call.body
    check_wanted(call, body.queues, body.tasks)
    claim_id = body.claim_id or new_id()
    check_storable(64, worker=body.worker, claim_id=claim_id)
    server = call.server

    def take() -> list[Job]:
        return call.store.claim(body.worker, claim_id, body.queues, body.tasks, body.limit)

    jobs = await server.pool.run(take)
    clock = server.app.clock
    deadline = clock.lease() + body.wait_s
    while not jobs and (left_s := deadline - clock.lease()) > 0 and not server.stopping.is_set():
        gone = await server.polls.wait((tuple(sorted(body.queues)), tuple(sorted(body.tasks))), left_s, call.receive)
        if gone:
            break  # nobody would run what is claimed now
        if not await server.still_admits(call):
            server.polls.more((tuple(sorted(body.queues)), tuple(sorted(body.tasks))))
            raise Problem("unauthenticated", "the token was revoked or has expired meanwhile")
        jobs = await server.pool.run(take)
        if jobs:
            server.polls.more((tuple(sorted(body.queues)), tuple(sorted(body.tasks))))
    return {"claim_id": claim_id, "jobs": [_claimed(job) for job in jobs]}


def _claimed(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "arguments": insight.parsed(job.payload),
        "attempt": job.attempt,
        "fence": job.fence,
        "claim_id": job.claim_id,
        "lease_s": job.lease_s,
        "beat_s": job.beat_s,
        "timeout_s": job.timeout_s,
        "on_crash": job.on_crash,
        "failures": job.failures,
        "crashes": job.crashes,
    }


def beat(call: Call) -> dict[str, Any]:
    """Prove the life of a worker, and extend its leases."""
    body: BeatBody = call.body
    check_storable(64, worker=body.worker)
    for each in body.leases:
        check_storable(1_000, note=each.note, id=each.id, claim_id=each.claim_id)
    _in_scope(call, [each.id for each in body.leases])
    pulses = [
        Pulse(Lease(each.id, each.fence, each.claim_id), progress=each.progress, note=each.note) for each in body.leases
    ]
    reply = call.store.beat(body.worker, pulses, stopping=body.stopping)
    call.server.liveness.beaten(body.worker, counted=reply.counted and not reply.gone)
    if reply.gone:
        raise Problem("worker_gone", f"worker {body.worker} is not enrolled or was declared dead; enrol with a new id")
    return {"lost": reply.lost, "skipped": reply.skipped, "cancelled": reply.cancelled}


def settle(call: Call) -> dict[str, Any]:
    """End attempts by their outcomes. The server decides what becomes of the jobs."""
    body: SettleBody = call.body
    ids = [each.lease.id for each in body.outcomes]
    if len(set(ids)) != len(ids):
        raise Problem("invalid", "a job comes twice", pointer="/outcomes")
    for each in body.outcomes:
        check_storable(64, id=each.lease.id, claim_id=each.lease.claim_id)
    rows = _in_scope(call, ids)
    outcomes = {each.lease.id: each for each in body.outcomes}
    answers = dict.fromkeys(ids, Reply.REFUSED)
    left = [job_id for job_id in ids if job_id in rows]
    for _ in range(TRIES):
        batch = [_settlement(call, outcomes[job_id], rows[job_id]) for job_id in left]
        answers.update(zip(left, call.store.settle(batch), strict=True))
        left = [job_id for job_id in left if answers[job_id] is Reply.AGAIN]
        if not left:
            break
        rows = _in_scope(call, left)
        left = [job_id for job_id in left if job_id in rows]
    said = [Reply.LOCKED if answers[job_id] is Reply.AGAIN else answers[job_id] for job_id in ids]
    if Reply.ACCEPTED in said:
        call.store.wake()
    return {"answers": [answer.value for answer in said]}


def record(call: Call) -> dict[str, Any]:
    """Record steps of an attempt, and return all that its job has on record, those of earlier attempts first."""
    body: RecordBody = call.body
    lease = Lease(body.lease.id, body.lease.fence, body.lease.claim_id)
    check_storable(64, id=lease.job_id, claim_id=lease.claim_id, worker=body.worker)
    row = _in_scope(call, [lease.job_id]).get(lease.job_id)
    if row is None or row.lease != lease:
        [reply] = call.store.record([Record(lease=lease, worker=body.worker)])  # it notes the report
        return {"answer": reply.value, "steps": []}
    known = insight.steps_of(call.store, row, asks=True)
    given = {each.name: each.result for each in body.steps}
    wall, taken = call.store.now().wall, {step.path for step in known}
    fresh = [name for name in given if name not in taken]
    steps = tuple(
        Step(
            position=len(known) + at,
            path=name,
            kind="step",
            name=name,
            state="recorded",
            attempt=row.attempt,
            fence=lease.fence,
            result=None if given[name] is None else msgspec.json.encode(given[name]).decode(),
            started_at=wall,
            ended_at=wall,
            tries=1,
        )
        for at, name in enumerate(fresh, start=1)
    )
    reply = call.store.record([Record(lease=lease, worker=body.worker, steps=steps)])[0] if steps else Reply.ACCEPTED
    found = [*known, *steps] if reply is Reply.ACCEPTED else known
    return {
        "answer": reply.value,
        "steps": [{"name": step.path, "attempt": step.attempt, "result": insight.result_of(step)} for step in found],
    }


def _settlement(call: Call, given: OutcomeBody, row: Job) -> Settlement:
    """Judge as the worker would. A lease that is not the current one goes to the store as well: it notes the report."""
    lease = given.lease
    job = replace(row, state=State.RUNNING, fence=lease.fence, claim_id=lease.claim_id)
    verdict = judge(_outcome(given), job, call.store.now().wall, chance=chance())
    return settlement(job, verdict)


def _outcome(given: OutcomeBody) -> Outcome:
    match given:
        case SucceededBody():
            return Succeeded(None if given.result is None else msgspec.json.encode(given.result).decode())
        case FailedBody():
            return Failed(clean(given.error, ERROR_MAX), final=given.final, delay_s=given.delay_s)
        case ReleasedBody():
            return Released(given.started, "its worker gave it back")
        case SnoozedBody():
            return Snoozed(given.delay_s)
        case CancelledBody():
            return Cancelled()


def _in_scope(call: Call, ids: list[str]) -> dict[str, Job]:
    """Return the jobs; raise `not_found` if one of them is outside the scope of the user."""
    if call.user.queues is None and call.route.path == "/v1/beat":
        return {}
    wanted = tuple(sorted(set(ids)))
    rows = {row.id: row for row in call.store.find(Filter(ids=wanted, limit=max(1, len(wanted))))} if wanted else {}
    for row in rows.values():
        call.need_queue(row.queue, f"job {row.id!r}")
    return rows
