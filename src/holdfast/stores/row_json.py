"""Between records and the JSON that SQL stores take and give: one value for many rows."""

from __future__ import annotations

import json
import logging
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from holdfast.core.access import Token
from holdfast.core.acts import Move
from holdfast.core.batches import Batch
from holdfast.core.continuity import Standing
from holdfast.core.dependencies import Dependent
from holdfast.core.error_fingerprint import ErrorGroup
from holdfast.core.figures import Counters, DueTask, Flow, Lost, LostCount, LostLine, crash_totals
from holdfast.core.limits import Queue, Setting
from holdfast.core.machine import ENDED, LIVE, State
from holdfast.core.policy import Policy
from holdfast.core.published import PublishedTask
from holdfast.core.records import (
    DamagedJob,
    DueWaits,
    Event,
    Filter,
    Job,
    Lease,
    NewEvent,
    NewJob,
    Order,
    Published,
    Pulse,
    Recent,
    Record,
    Schedule,
    Signal,
    Step,
    Worker,
)
from holdfast.core.rollups import Delta, Rollup, bucket_of
from holdfast.core.row_text import Awaited, from_row, texts_of
from holdfast.core.settlement import Settlement
from holdfast.core.verdict import Verdict
from holdfast.errors import PolicyError, StoreDamaged

log = logging.getLogger("holdfast.stores")

T = TypeVar("T")

_STRING_OR_INFINITY = re.compile(r'(?P<string>"(?:[^"\\]|\\.)*")|(?P<sign>-?)Inf\b')

encode = msgspec.json.Encoder().encode
_jobs = msgspec.json.Decoder(list[Job], strict=False, dec_hook=from_row)  # not strict: SQLite has no booleans
_job = msgspec.json.Decoder(Job, strict=False, dec_hook=from_row)
_numbered = msgspec.json.Decoder(list[tuple[int, Job]], strict=False, dec_hook=from_row)
_error_groups = msgspec.json.Decoder(list[ErrorGroup])
_due_tasks = msgspec.json.Decoder(list[DueTask]).decode
_flows = msgspec.json.Decoder(list[Flow]).decode
_lost_lines = msgspec.json.Decoder(list[LostLine], strict=False).decode
_rollups = msgspec.json.Decoder(list[Rollup]).decode
_deltas = msgspec.json.Decoder(list[Delta]).decode
_lost_counts = msgspec.json.Decoder(list[LostCount]).decode
_published = msgspec.json.Decoder(dict[str, Published])
_TOKEN = ("name", "role", "queues", "sha256", "created_at", "used_at", "expires_at")
_order = msgspec.json.Decoder(Order)
_orders = msgspec.json.Decoder(list[Order])
_recent = msgspec.json.Decoder(Recent)
_published_task = msgspec.json.Decoder(PublishedTask)
_instants = msgspec.json.Decoder(dict[str, float | None])
_counts = msgspec.json.Decoder(list[tuple[str, int]])

_settings = msgspec.json.Decoder(Setting)

_FIELDS = msgspec.structs.fields(Job)
_IDENTITY = ("id", "state", "fence")
_SURROGATE = re.compile("[\ud800-\udfff]+")

names_or_nulls_from = msgspec.json.Decoder(list[str | None]).decode  # some of which are not known
numbers_from = msgspec.json.Decoder(list[int]).decode
_rows = msgspec.json.Decoder(list[list[Any]]).decode
_names = msgspec.json.Decoder(list[str]).decode
_steps = msgspec.json.Decoder(list[Step], strict=False).decode
_due_waits = msgspec.json.Decoder(list[DueWaits]).decode
_signals = msgspec.json.Decoder(list[Signal]).decode


def jobs_from(text: str) -> list[Job]:
    """Read rows of jobs. One with a column that cannot be read is a `DamagedJob`, so that it does not hide the others,
    and is logged once. One whose id, state or fence cannot be read is left out."""
    try:
        return _jobs.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return [job for row in _loose(text) if (job := _job_from(row)) is not None]


def damaged_jobs(text: str) -> Iterator[tuple[int, str, str | None]]:
    """Read pairs of a number and the row of a job; yield the number, the id and what is damaged."""
    try:
        yield from ((seq, job.id, None) for seq, job in _numbered.decode(text))
        return
    except (msgspec.DecodeError, UnicodeError):
        pass  # at least one of them
    for seq, row in _loose(text):
        job = _salvaged(row)
        yield seq, _readable(row[0]), job if isinstance(job, str) else job.damage or None


def damaged_rows(key: str) -> Callable[[str], Iterator[tuple[Any, dict[str, Any], str | None]]]:
    """Return a reader of rows with the names of their columns: it yields the key, the mended row and the damage."""

    def read(text: str) -> Iterator[tuple[Any, dict[str, Any], str | None]]:
        for row in _loose(text):
            mended = _mend(row)
            yield mended[key], mended, next(_unsound(row), None)

    return read


def _unsound(row: dict[str, Any]) -> Iterator[str]:
    for name, value in row.items():
        try:
            _sound(value)
        except _Unsound as error:
            yield f"{name} {error}"


def _loose(text: str) -> list[Any]:
    """Read JSON with text that is not UTF-8, whose bytes are surrogates here, and with numbers that are infinite."""
    spelled = _STRING_OR_INFINITY.sub(lambda found: found["string"] or f"{found['sign']}Infinity", text)
    try:
        rows: list[Any] = json.loads(spelled)
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from None
    return rows


def _job_from(row: list[Any]) -> Job | None:
    try:
        _sound(row)
        return msgspec.convert(row, Job, strict=False, dec_hook=from_row)
    except (msgspec.MsgspecError, ValueError):
        job = _salvaged(row)
    whose = f"job {_readable(row[0])}"
    if isinstance(job, str):
        _complain(whose, job)
        return None
    log_once(f"the row of {whose} cannot be read, so it does not run: {job.damage}")
    return job


def _salvaged(row: list[Any]) -> DamagedJob | str:
    """Read each column alone. Return why the row cannot be used if one of those that tell jobs apart is damaged."""
    values, damage = {}, ""
    for field, value in zip(_FIELDS, row, strict=False):
        try:
            _sound(value)
            values[field.name] = msgspec.convert(value, field.type, strict=False, dec_hook=from_row)
        except (msgspec.MsgspecError, ValueError) as error:
            damage = damage or f"{field.name} {error}" if isinstance(error, _Unsound) else f"{field.name}: {error}"
            if field.name in _IDENTITY:
                return damage
            values[field.name] = _stand_in(field.type, value)
    return DamagedJob(**values, damage=damage)


class _Unsound(ValueError):
    """A value of a row that no program of ours writes."""


def _sound(value: Any) -> None:
    if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
        raise _Unsound("is not UTF-8")
    if isinstance(value, float) and not math.isfinite(value):
        raise _Unsound("is an infinite number")
    if isinstance(value, list):
        for each in value:
            _sound(each)


def _stand_in(kind: Any, value: Any) -> Any:
    for stand_in in (_readable(value), None, 0, "hold"):
        try:
            return msgspec.convert(stand_in, kind, strict=False, dec_hook=from_row)
        except (msgspec.MsgspecError, ValueError):
            continue
    raise AssertionError(kind)  # pragma: no cover


def _readable(value: Any) -> Any:
    return _SURROGATE.sub("\ufffd", value) if isinstance(value, str) else None


def rows_from(text: str) -> list[list[Any]]:
    """Read rows of anything. In those that another program has damaged, text is mended with U+FFFD, and an infinite
    number is null."""
    return _mended(_rows, text)


def names_from(text: str) -> list[str]:
    """Read names, mended as in `rows_from`."""
    return _mended(_names, text)


def due_waits_from(text: str) -> list[DueWaits]:
    """Read which waits are due, mended as in `rows_from`."""
    return _mended(_due_waits, text)


def steps_from(text: str) -> list[Step]:
    """Read the steps of a workflow. Raises `StoreDamaged` when one cannot be read: without it, it would run again."""
    return _undamaged(_steps, text, "a recorded step")


def signals_from(text: str) -> list[Signal]:
    """Read the signals of a workflow. Raises `StoreDamaged` when one cannot be read."""
    return _undamaged(_signals, text, "a signal")


def is_whole(text: str) -> bool:
    """Say whether this text is as it was stored, and not mended."""
    return "\ufffd" not in text


def _mended(decode: Callable[[str], T], text: str) -> T:
    try:
        return decode(text)
    except (msgspec.DecodeError, UnicodeError):
        log_once(f"a row of the store was damaged by another program, and is read as well as it can be: {text!a:.200}")
        return decode(json.dumps(_mend(_loose(text))))


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return _readable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_mend(each) for each in value]
    return {_readable(name): _mend(each) for name, each in value.items()} if isinstance(value, dict) else value


def _undamaged(decode: Callable[[str], T], text: str, what: str) -> T:
    try:
        return decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise StoreDamaged(f"{what} was damaged by another program; holdfast db check names it") from error


def floats_from(text: str) -> dict[str, float]:
    """Read a float for each name, written bit by bit: no setting of a server can round it."""
    return {name: struct.unpack("!d", bytes.fromhex(bits))[0] for name, bits in rows_from(text)}


def instants_from(text: str) -> dict[str, float | None]:
    """Read an instant for each name."""
    return _instants.decode(text)


def counts_from(text: str) -> dict[str, int]:
    """Read pairs of a name and how many there are of it."""
    return dict(_counts.decode(text))


def workers_from(text: str) -> Iterator[tuple[Worker, list[Any]]]:
    """Read rows of workers: each worker, and the columns beyond the record's fields.

    One that cannot be read is left out, so that it does not hide the others, and logged once.
    """
    names = Worker.__struct_fields__
    for row in rows_from(text):
        fields = dict(zip(names, row, strict=False))
        if not is_whole(fields["id"]):
            _complain(f"worker {fields['id']}", "its id is not UTF-8")
            continue
        try:
            fields["queues"] = names_from(fields["queues"])
            if fields["tasks"] is not None:
                fields["tasks"] = _published.decode(fields["tasks"])
            if fields["order"] is not None:
                fields["order"] = _order.decode(fields["order"])
            yield msgspec.convert(fields, Worker, strict=False), row[len(names) :]
        except msgspec.DecodeError as error:
            _complain(f"worker {fields['id']}", str(error))


def order_from(text: str | None) -> Order | None:
    """Read the order that is in force for a worker."""
    return None if text is None else _order.decode(text)


def orders_from(text: str) -> list[Order]:
    """Read all orders."""
    return _orders.decode(text)


def recent_from(text: str) -> dict[str, Recent]:
    """Read what workers said of themselves, by worker. A report that cannot be read is left out."""
    found = {}
    for worker, recent in rows_from(text):
        try:
            found[worker] = _recent.decode(recent)
        except msgspec.DecodeError as error:
            _complain(f"the last report of worker {worker}", str(error))
    return found


def published(worker: Worker) -> str | None:
    """Flatten the tasks that a worker has; None when it does not say."""
    return None if worker.tasks is None else encode(worker.tasks).decode()


def published_tasks(tasks: Iterable[PublishedTask]) -> str:
    """Flatten what a worker says of its tasks; each stays text."""
    rows = [[task.name, encode(msgspec.structs.replace(task, published_at=0.0)).decode()] for task in tasks]
    return encode(rows).decode()


def token(given: Token) -> dict[str, Any]:
    """Flatten a new token into the values of a statement."""
    queues = None if given.queues is None else encode(given.queues).decode()
    return {
        "name": given.name,
        "role": given.role,
        "queues": queues,
        "sha256": given.sha256,
        "created_at": given.created_at,
        "expires_at": given.expires_at,
    }


def tokens_from(text: str) -> list[Token]:
    """Read tokens. One that cannot be read is left out: it lets nobody in."""
    found = []
    for row in rows_from(text):
        fields = dict(zip(_TOKEN, row, strict=True))
        try:
            fields["queues"] = None if fields["queues"] is None else names_from(fields["queues"])
            found.append(msgspec.convert(fields, Token))
        except msgspec.DecodeError as error:
            _complain(f"token {fields['name']}", str(error))
    return found


def batches_from(text: str) -> list[Batch]:
    """Read rows of batches. One that cannot be read is left out, so that it does not hide the others."""
    found = []
    for row in rows_from(text):
        try:
            *head, counts, live = row
            seen = None if counts is None else msgspec.json.decode(counts)
            found.append(msgspec.convert([*head, seen, live], Batch, strict=False))
        except msgspec.MsgspecError as error:
            _complain(f"batch {row[0]}", str(error))
    return found


def published_from(text: str) -> list[PublishedTask]:
    """Read published tasks. One that cannot be read is left out, so that it does not hide the others."""
    found = []
    for task, published_at in rows_from(text):
        try:
            found.append(msgspec.structs.replace(_published_task.decode(task), published_at=published_at))
        except (msgspec.DecodeError, PolicyError) as error:
            _complain(f"published task {task[:200]!r}", str(error))
    return found


def declared(schedule: Schedule) -> list[Any]:
    """Flatten what a program declares of a schedule; the job stays text."""
    job = encode(schedule.job).decode()
    fields = (schedule.key, schedule.spec, schedule.tz, schedule.missed, job, schedule.missed_max, schedule.jitter_s)
    return list(fields)


def schedules_from(text: str) -> Iterator[Schedule]:
    """Read rows of schedules. One that cannot be read is left out, so that it does not hide the others."""
    for row in rows_from(text):
        fields = dict(zip(Schedule.__struct_fields__, row, strict=True))
        try:
            fields["job"] = _scheduled_job(fields["job"])
            yield msgspec.convert(fields, Schedule, strict=False)
        except (msgspec.DecodeError, PolicyError) as error:
            _complain(f"schedule {fields['key']}", str(error))


@lru_cache(maxsize=10_000)  # the scheduler reads them every few seconds
def _scheduled_job(text: str) -> NewJob:
    return msgspec.json.decode(text, type=NewJob)


@lru_cache(maxsize=1000)  # the same row is read several times a second
def _complain(whose: str, error: str) -> None:
    log.error("the row of %.250s cannot be read and is left out: %s", whose, error)


@lru_cache(maxsize=1000)
def log_once(said: str) -> None:
    """Log an error that is found again at each read."""
    log.error("%.1000s", said)


def events_from(text: str) -> list[Event]:
    """Read lines of the journal. One without an instant is left out, so that it does not hide the others."""
    return [_event_from(row) for row in rows_from(text) if _has_an_instant(row)]


def _event_from(row: list[Any]) -> Event:
    event, detail = Event(*row), row[-1]
    return event if isinstance(detail, dict) else msgspec.structs.replace(event, detail={"unreadable": detail})


def _has_an_instant(row: list[Any]) -> bool:
    seq, _, at, *_ = row
    if at is None:
        _complain(f"the journal with number {seq}", "its instant is an infinite number")
    return at is not None


def events_by_job(text: str) -> dict[str, list[Event]]:
    """Read lines of the journal, for each job in their order."""
    found: dict[str, list[Event]] = {}
    for event in events_from(text):
        found.setdefault(event.job_id, []).append(event)
    return found


def new_job(job: NewJob) -> list[Any]:
    """Flatten a job that is to be stored."""
    return [
        *(job.id, job.task, job.queue, job.payload, job.key, job.priority, job.run_at, job.delay_s),
        *policy(job.policy),
        *(job.workflow, job.parent, job.group, job.callbacks, job.expires_s, job.tags, job.meta),
    ]


_OWN = ("id", "payload", "key")
_shared = attrgetter(*(name for name in NewJob.__struct_fields__ if name not in _OWN))


def are_alike(jobs: Sequence[NewJob]) -> bool:
    """Say whether the jobs differ in their id, payload and key only."""
    first = _shared(jobs[0])
    return all(_shared(job) == first for job in jobs)


def own_part(job: NewJob) -> tuple[str, str, str | None]:
    """Return what jobs that are alike differ in."""
    return job.id, job.payload, job.key


def policy(declared: Policy) -> list[Any]:
    """Flatten what a task declares about its recovery."""
    retry = declared.retry
    return [
        *(retry.attempts_max, retry.base_s, retry.cap_s, retry.jitter != "none"),
        *(declared.crashes_max, declared.on_crash),
        *(declared.lease_s, declared.beat_every_s, declared.timeout_s, declared.stall_s, retry.jitter == "full"),
    ]


def lease_token(lease: Lease | None) -> dict[str, Any]:
    """Write the lease whose outcome was acknowledged, if any, as `standing` asks for it."""
    if lease is None:
        return {"settled": None, "fence": None, "claim_id": None}
    return {"settled": lease.job_id, "fence": lease.fence, "claim_id": lease.claim_id}


def standing_from(row: Iterable[Any]) -> Standing:
    """Read what a store says about itself, in the order of the record's fields."""
    said = dict(zip(Standing.__struct_fields__, row, strict=False))
    jobs = {name: names_from(said[name]) for name in ("newest", "missing")}
    return msgspec.convert(said | jobs, Standing, strict=False)


def pulse(beat: Pulse) -> list[Any]:
    """Flatten what a beat says about one lease."""
    lease = beat.lease
    in_steps = None if beat.in_steps is None else texts_of(beat.in_steps)
    said = [beat.started, beat.progress, beat.note, beat.log, beat.still_s, in_steps, beat.beat_data]
    return [lease.job_id, lease.fence, lease.claim_id, *said]


def is_plain_success(settlement: Settlement) -> bool:
    """Say whether nothing but `done`, a result and the last progress is to be written."""
    verdict = settlement.verdict
    is_done = verdict.state is State.DONE and not verdict.raises_fence and verdict.suspects is None
    saw_steps = settlement.seen_open_step is not None or settlement.seen_undoable is not None
    return is_done and settlement.seen_lease_until is None and not saw_steps


def success_row(settlement: Settlement) -> list[Any]:
    """Flatten a plain success. Only PostgreSQL reads the last two: the buckets of its rollups."""
    lease, verdict = settlement.lease, settlement.verdict
    buckets = bucket_of(settlement.waited_s), bucket_of(settlement.ran_s)
    return [lease.job_id, lease.fence, lease.claim_id, verdict.result, verdict.progress, verdict.note, *buckets]


def settlement_row(settlement: Settlement) -> list[Any]:
    """Flatten any settlement."""
    lease, verdict = settlement.lease, settlement.verdict
    return [
        *(lease.job_id, lease.fence, lease.claim_id, settlement.seen_lease_until, settlement.seen_cancel),
        *(verdict.state, verdict.state in ENDED, verdict.run_at, verdict.error, verdict.result),
        *(verdict.failures, verdict.crashes, verdict.zombies, verdict.suspects, verdict.rolling_back),
        *(verdict.cancel_requested, verdict.priority, verdict.fresh_budgets, verdict.raises_fence),
        *(verdict.open_step, verdict.undo_requested, verdict.wake_at, awaits(verdict), verdict.question, verdict.inbox),
        *(settlement.seen_open_step, settlement.seen_undoable, verdict.progress, verdict.note, verdict.releases),
        *(verdict.stop_reason, verdict.rollback_cause, verdict.error_kind),
        *(None if verdict.fault is None else verdict.fault.fingerprint, verdict.release),
        *(bucket_of(settlement.waited_s), bucket_of(settlement.ran_s), settlement.detector),
    ]


def error_line(settlement: Settlement) -> list[Any] | None:
    """Flatten the error of an attempt; None if it had none."""
    verdict, fault = settlement.verdict, settlement.verdict.fault
    if fault is None:
        return None
    said = [fault.fingerprint, verdict.release or "", fault.kind, fault.origin, fault.message]
    return [settlement.lease.job_id, settlement.task, *said]


def error_groups_from(text: str) -> list[ErrorGroup]:
    """Read groups of errors, each with its releases in order."""
    return [msgspec.structs.replace(each, releases=sorted(each.releases)) for each in _error_groups.decode(text)]


def due_tasks_from(text: str) -> list[DueTask]:
    """Read what stands first in each lane."""
    return _mended(_due_tasks, text)


def flows_from(text: str) -> list[Flow]:
    """Read how many jobs came and ended."""
    return _mended(_flows, text)


def lost_from(lines: str, total: int, late: int, counts: str) -> Lost:
    """Read lost attempts."""
    return Lost(total, late, _mended(_lost_lines, lines), _mended(_lost_counts, counts))


def counters_from(ended: str, crashes: str) -> Counters:
    """Read the counters that never fall."""
    queues: dict[str, dict[State, int]] = {}
    for queue, state, jobs in rows_from(ended):
        queues.setdefault(queue, {})[State(state)] = jobs
    return Counters(queues, *crash_totals(_mended(_lost_counts, crashes)))


def rollups_from(text: str) -> list[Rollup]:
    """Read rollups."""
    return _mended(_rollups, text)


def deltas_from(text: str) -> list[Delta]:
    """Read what batches of settlements add to rollups."""
    return _mended(_deltas, text)


def awaits(verdict: Verdict) -> str | None:
    """Flatten what a job waits for; only one that waits has any."""
    return encode(texts_of(verdict.awaits)).decode() if verdict.state == "waiting" else None


def step(job_id: str, one: Step) -> list[Any]:
    """Flatten a step of a job."""
    return [job_id, *msgspec.to_builtins(one)]


def facts(records: Iterable[Record]) -> list[list[Any]]:
    """Flatten what records say of the rows of their jobs: one line for each job, in which the last word counts."""
    lines: dict[str, list[Any]] = {}
    for record in records:
        if record.open_step is not None or record.undoable:
            line = lines.setdefault(record.lease.job_id, [record.lease.job_id, None, False])
            line[1] = record.open_step if record.open_step is not None else line[1]
            line[2] = line[2] or record.undoable
    return list(lines.values())


def signal(one: Signal) -> dict[str, Any]:
    """Flatten a signal that is sent."""
    flat = {"signal": one.id, "id": one.job_id, "name": one.name, "value": one.value, "actor": one.actor}
    return {**flat, "what": one.awaited.text, "seen_fence": one.seen_fence}


def awaiting(jobs: Sequence[NewJob], added: Iterable[tuple[str, bool]]) -> str | None:
    """Write what new jobs await that run after others; None if there are none. `added`: ids, and which existed."""
    if not any(job.awaits for job in jobs):
        return None
    new = {job_id for job_id, existed in added if not existed}
    rows = [[job.id, encode(texts_of(job.awaits)).decode()] for job in jobs if job.awaits and job.id in new]
    return encode(rows).decode()


def awaited_after(ids: Sequence[str]) -> list[str]:
    """Write the end of these jobs as rows have it that await it."""
    return texts_of(Awaited("after", each) for each in ids)


def dependents_from(text: str) -> list[Dependent]:
    """Read which jobs wait for others."""
    return [Dependent(job_id, bool(is_over)) for job_id, is_over in rows_from(text)]


def labels(where: Filter) -> dict[str, str | None]:
    """Write the tags and the metadata that a filter asks for; None: any."""
    tags = encode(where.tags).decode() if where.tags else None
    return {"tags": tags, "meta": encode(dict(where.meta)).decode() if where.meta else None}


def end_of(prefix: str) -> str:
    """Return a text behind all texts with this prefix, in the order of their bytes."""
    return prefix + chr(0x10FFFF)


def move(one: Move) -> list[Any]:
    """Flatten an act of a person."""
    seen, verdict = one
    return [
        *(seen.job_id, seen.state, seen.fence, verdict.state, verdict.state in ENDED),
        *(seen.state not in LIVE and verdict.state in LIVE, verdict.run_at, verdict.error, verdict.stop_reason),
        *(verdict.rollback_cause, verdict.result, verdict.rolling_back, verdict.cancel_requested),
        *(verdict.undo_requested, verdict.open_step, verdict.priority, verdict.fresh_budgets, verdict.raises_fence),
        verdict.queue,
    ]


def queue(one: Queue) -> dict[str, Any]:
    """Flatten what is set for a queue; groups that are paused have rows of their own."""
    texts = {"declared": encode(one.declared).decode(), "chosen": encode(one.chosen).decode()}
    return {"queue": one.name, "paused": one.paused, "paused_until": one.paused_until, **texts}


def queues_from(text: str) -> list[Queue]:
    """Read what is set for queues, by name. A setting that cannot be read counts as one that says nothing."""
    return [] if text == "[]" else sorted(map(_queue_from, rows_from(text)), key=lambda queue: queue.name)


def _queue_from(row: list[Any]) -> Queue:
    name, paused, paused_until, groups, declared, chosen, booked_until, grouped = row
    return Queue(
        name=name,
        paused=bool(paused),
        paused_until=paused_until,
        paused_groups=groups or {},
        declared=_setting(declared),
        chosen=_setting(chosen),
        booked_until=booked_until if isinstance(booked_until, int | float) else 0.0,  # it was infinite, and is damage
        grouped=bool(grouped),
    )


@lru_cache(maxsize=1000)
def _setting(text: str) -> Setting:
    try:
        return _settings.decode(text)
    except msgspec.DecodeError as error:
        _complain(f"a queue, with the setting {text!r}", str(error))
        return Setting()


def journal_lines(job_id: str, fence: int, worker: str | None, events: Iterable[NewEvent]) -> list[list[Any]]:
    """Flatten the new events of one job."""
    return [
        [job_id, event.kind, fence, worker, event.actor, encode(event.detail).decode()]  # the detail stays text
        for event in events
    ]
