"""The verbs of the store, for `stores/remote/`: one route for each line of its table.

A worker's token may only do what its own jobs need. Its requests name the workers that the client has enrolled, in the
header `holdfast-workers`: ids are random, and only who has enrolled a worker knows its id.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from holdfast.core.access import WORKERS
from holdfast.core.batches import Batch, checked_abandon_s, conclusion
from holdfast.core.callbacks import callback, is_filled_in
from holdfast.core.machine import State
from holdfast.core.records import REMOTE_BOOT, Filter, Job, NewEvent, NewJob, Worker
from holdfast.core.settlement import Settlement
from holdfast.core.verdict import ENDING_EVENT
from holdfast.errors import SchemaMismatch, UsageError
from holdfast.ids import new_id
from holdfast.server.attempts import WAIT_MAX_S, Names, check_wanted
from holdfast.server.call import Call
from holdfast.server.new_jobs import check_id, check_new, need_own_jobs
from holdfast.server.problems import Problem
from holdfast.server.routes import Answer, Route
from holdfast.stores.remote.verbs import BATCH_MAX, VERBS, Verb, codec, fields_known
from holdfast.tasks import check_name

SERVER_ID = new_id()  # of this process: a client that hears another one looks at the store
BODY_MAX = 64 << 20  # a batch of results, each of which may be a few megabytes
_EVENTS = frozenset({*ENDING_EVENT.values(), "held", "dead", "rolled_back", "asked", "warning"})  # of an attempt

Given = dict[str, Any]  # the arguments of a verb


class WaitBody(msgspec.Struct, forbid_unknown_fields=True):
    """Wait until these queues may have a due job of these tasks."""

    queues: Names
    tasks: Names
    wait_s: Annotated[float, Meta(ge=0.0, le=WAIT_MAX_S)]


async def wait(call: Call) -> dict[str, Any]:
    """Answer when the queues may have a due job; a hint, and nothing is claimed."""
    body: WaitBody = call.body
    check_wanted(call, body.queues, body.tasks)
    group = tuple(sorted(body.queues)), tuple(sorted(body.tasks))
    return {"due": await call.server.polls.hint(group, body.wait_s, call.receive)}


def _handler(verb: Verb) -> Callable[[Call], Answer]:
    known = codec(verb.name)
    check = _CHECKS.get(verb.name)

    def handle(call: Call) -> Answer:
        _check_version(call)
        given = known.given(call.body)
        _check_sizes(given)
        if check is not None:
            check(call, given)
        kept = attrgetter(verb.name)(call.store)(**given)
        if verb.name in _NARROWED:
            kept = _NARROWED[verb.name](call, kept)
        elif verb.name == "beat":
            call.server.liveness.beaten(given["worker_id"], counted=kept.counted and not kept.gone)
        elif verb.name == "claim" and kept:
            call.server.polls.soon((tuple(sorted(given["queues"])), tuple(sorted(given["tasks"]))))
        elif not verb.reads:
            call.store.wake()
        now = call.store.now()
        return Answer(content=known.write_answer(kept, now.wall, now.lease, SERVER_ID))

    handle.__doc__ = f"Carry out the verb `{verb.name}` of the store."
    return handle


def _check_version(call: Call) -> None:
    said = call.headers.get("holdfast-fields", "")
    if said.isdigit() and len(said) < 10 and int(said) > fields_known():
        raise SchemaMismatch("this client is newer than the server, which would not see all of it: upgrade the server")


def _check_sizes(given: Given) -> None:
    for name, value in given.items():
        if isinstance(value, list | tuple) and len(value) > BATCH_MAX:
            raise UsageError(f"{name} has {len(value)} items; send at most {BATCH_MAX} at once")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise UsageError(f"{name}={value} is a number that no store can hold")


# --------------------------------------------------------------------------- what each role may ask


def _is_narrow(call: Call) -> bool:
    """Say whether the user is limited to its own workers: it has the role, or a mounted one like it."""
    return call.user.role == "worker"


def _own_workers(call: Call) -> frozenset[str]:
    return frozenset(call.headers.get("holdfast-workers", "").split(",")) - {""}


def _is_own(call: Call, job: Job | None) -> bool:
    return job is not None and job.state is State.RUNNING and job.worker in _own_workers(call)


def _not_there(what: str) -> Problem:
    return Problem("not_found", f"there is no {what} that this token may see")


def _need_queues(call: Call, queues: Collection[str]) -> None:
    for queue in queues:
        call.need_queue(queue, f"queue {queue!r}")


def _rows(call: Call, ids: Collection[str]) -> dict[str, Job]:
    unique = tuple(sorted(set(ids)))
    return {row.id: row for row in call.store.find(Filter(ids=unique, limit=max(1, len(unique))))} if unique else {}


def _need_jobs(call: Call, ids: Collection[str]) -> None:
    """Refuse jobs of queues that the token does not see."""
    if call.user.queues is not None:
        _need_queues(call, {row.queue for row in _rows(call, ids).values()})


def _enroll(call: Call, given: Given) -> None:
    worker: Worker = given["worker"]
    check_name("worker", worker.name)
    _need_queues(call, worker.queues)
    given["worker"] = replace(worker, boot_id=REMOTE_BOOT)  # its death shows as a closed connection, or by its lease


def _claim(call: Call, given: Given) -> None:
    _need_queues(call, given["queues"])
    if given["limit"] + given["ahead"] > BATCH_MAX:
        raise UsageError(f"claim at most {BATCH_MAX} jobs at once")


def _beat(call: Call, given: Given) -> None:
    _need_jobs(call, [pulse.lease.job_id for pulse in given["pulses"]])


def _settle(call: Call, given: Given) -> None:
    settlements: list[Settlement] = given["settlements"]
    _need_jobs(call, [each.lease.job_id for each in settlements])
    if not _is_narrow(call):
        return
    _need_no_duty(given)
    storing = [each for each in settlements if each.verdict.jobs]
    rows = _rows(call, [each.lease.job_id for each in storing])
    for each in settlements:
        _need_own_events(each.verdict.events)
        for new in each.verdict.jobs:
            _need_callback(each, new, rows)


def _need_own_events(events: Collection[NewEvent]) -> None:
    for event in events:
        if event.actor is not None or event.kind not in _EVENTS:
            raise Problem("forbidden", f"a worker does not write the event {event.kind!r} of a person")


def _need_callback(each: Settlement, new: NewJob, rows: Mapping[str, Job]) -> None:
    """Refuse a job that is not the callback on the row: the callback may go to a queue that the token does not see.

    The worker fills in the error, and nothing else.
    """
    row = rows.get(each.lease.job_id)
    declared = None
    if row is not None:
        declared = callback(replace(row, fence=each.lease.fence), each.verdict.state, None, None)
    if row is not None and row.lease != each.lease:
        return  # the store refuses it
    if declared is None or not is_filled_in(declared, new):
        raise Problem("forbidden", "an ending stores only the callback that is on the row of its job")


def _need_no_duty(given: Given) -> None:
    if given.get("under") is not None:
        raise Problem("forbidden", "a worker's token has no duty")


def _record(call: Call, given: Given) -> None:
    _check_jobs(call, [new for each in given["records"] for new in each.jobs])
    ids = [each.lease.job_id for each in given["records"]]
    ids += [signal.job_id for each in given["records"] for signal in each.sent]
    _need_jobs(call, ids)


def _retire(call: Call, given: Given) -> None:
    _need_no_duty(given) if _is_narrow(call) else None
    if _is_narrow(call) and given["worker_id"] not in _own_workers(call):
        raise _not_there(f"worker {given['worker_id']!r}")
    if call.user.queues is not None:
        known = {worker.id: worker for worker in call.store.workers()}.get(given["worker_id"])
        if known is None or not all(call.user.sees(queue) for queue in known.queues):
            raise _not_there(f"worker {given['worker_id']!r}")


def _of_job(call: Call, given: Given) -> None:
    """Let a worker read what belongs to a job that it runs, and others what is in their queues."""
    row = call.store.get(given["job_id"]) if _is_narrow(call) or call.user.queues is not None else None
    if _is_narrow(call) and not _is_own(call, row):
        raise _not_there(f"job {given['job_id']!r}")
    if row is not None:
        call.need_queue(row.queue, f"job {row.id!r}")


def _add(call: Call, given: Given) -> None:
    _check_jobs(call, given["jobs"])
    if call.user.role != "admin" and any(new.parent is not None for new in given["jobs"]):
        raise Problem("forbidden", "only a running workflow starts children")


def _check_jobs(call: Call, jobs: Collection[NewJob]) -> None:
    """Refuse what no App would send. The conformance suite, which is an admin, stores odd rows on purpose."""
    if call.user.role != "admin":
        for new in jobs:
            check_new(call, new)
    _need_queues(call, {new.queue for new in jobs})
    need_own_jobs(call, jobs)


def _batch(call: Call, given: Given) -> None:
    _check_jobs(call, given["jobs"])


def _open_batch(call: Call, given: Given) -> None:
    """Refuse a batch whose last job no App would store: each reaper would try again and again."""
    batch: Batch = given["batch"]
    if call.user.role == "admin":  # the conformance suite
        return
    check_id(batch.id)
    checked_abandon_s(batch.abandon_s)
    try:
        last = conclusion(batch, {})
    except ValueError as error:
        raise UsageError(f"the last job of the batch cannot be read: {error}") from None
    if last is not None:
        check_new(call, last)


def _find(call: Call, given: Given) -> None:
    if _is_narrow(call) and given["where"].limit > BATCH_MAX:
        raise UsageError(f"ask for at most {BATCH_MAX} jobs at once")


def _due(call: Call, given: Given) -> None:
    _need_queues(call, given["queues"])


def _seen_job(call: Call, job: Job | None) -> Job | None:
    """Return a job that the user may see; a worker sees its own, and their children."""
    if job is None or not call.user.sees(job.queue):
        return None
    if not _is_narrow(call) or _is_own(call, job):
        return job
    parent = call.store.get(job.parent) if job.parent is not None else None
    return job if _is_own(call, parent) else None


def _seen_jobs(call: Call, jobs: list[Job]) -> list[Job]:
    if call.user.queues is None and not _is_narrow(call):
        return jobs
    return [job for job in jobs if _seen_job(call, job) is not None]


_CHECKS: Mapping[str, Callable[[Call, Given], None]] = {
    "enroll": _enroll,
    "claim": _claim,
    "beat": _beat,
    "settle": _settle,
    "record": _record,
    "retire": _retire,
    "steps": _of_job,
    "inbox": _of_job,
    "add": _add,
    "batches.open": _open_batch,
    "batches.add": _batch,
    "find": _find,
    "due": _due,
}
_NARROWED: Mapping[str, Callable[[Call, Any], Any]] = {"get": _seen_job, "find": _seen_jobs}

STORE_ROUTES: tuple[Route, ...] = (
    *(
        Route(
            *("POST", f"/v1/store/{verb.name}", f"Carry out the verb {verb.name}", _handler(verb)),
            *(verb.roles, verb.scope),
            body=codec(verb.name).arguments,
            body_max=BODY_MAX,
            while_read_only=verb.reads,
            internal=True,
            repeat="as the store's own verb: ids and fences make it safe",
        )
        for verb in VERBS
    ),
    Route(
        *("POST", "/v1/store/wait", "Wait for due jobs", wait, WORKERS, "refuse"),
        body=WaitBody,
        while_read_only=True,
        internal=True,
        repeat="it changes nothing",
    ),
)
