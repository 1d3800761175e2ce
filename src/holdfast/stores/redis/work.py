"""One verb at work: what it reads, what it decides by `core/transitions.py`, and one commit.

A verb reads rows, makes new ones of them in Python, as the store in memory does, and sends both to `commit.lua`. That
writes everything or, if a row that was read is another by now, nothing; then the verb begins again. So the rules for
rows stand once, in `core`, no program waits for a lock, and whatever a verb does is one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core import transitions
from holdfast.core.error_fingerprint import KEPT_S, slot_of
from holdfast.core.machine import ENDED, LIVE, State
from holdfast.core.records import Duty, Event, Job, Lease, Moment, NewEvent, NewJob, Signal, Step
from holdfast.core.row_text import ANSWER, Awaited
from holdfast.core.settlement import Settlement, stale_report
from holdfast.core.verdict import Verdict
from holdfast.errors import StoreUnavailable, UsageError
from holdfast.stores.protocol import Added, duty_lost
from holdfast.stores.redis import rows
from holdfast.stores.redis.connection import Connections
from holdfast.stores.redis.rows import NUL, Stored

T = TypeVar("T")
TRIES = 200  # each try that fails means that another program has committed
AT_ONCE = 50  # rows in one script,
ONE_PIECE_MAX = 700  # and in one that must be one piece: others wait while it runs

encode = msgspec.json.Encoder().encode
_decode_event = msgspec.json.Decoder(list[Any])


def check_size(number: int, what: str, of: str = "jobs") -> None:
    """Refuse what is too much for one script."""
    if number > ONE_PIECE_MAX:
        raise UsageError(
            f"{what} {number:,} {of}, and on Redis at most {ONE_PIECE_MAX}: other programs wait while a script runs. "
            "Nothing was changed"
        )


class Entry(msgspec.Struct, frozen=True):
    """A signal as its workflow keeps it. `place`: when it came. `taken`: the position of the step that took it."""

    place: int
    signal: Signal
    taken: int | None = None


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode(text: bytes, kind: Any) -> Any:
    """Read a value that was written by `encode`."""
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(kind)
    return _decoders[kind].decode(text)


def event_of(line: bytes) -> Event:
    """Read a line of the journal, which begins with its number."""
    return Event(int(line[:16]), *_decode_event.decode(line[16:]))


class Conflict(Exception):
    """Something that was read is another by now."""


class Work:
    """One try of a verb: the rows that it has read and those that it will write.

    `blind`: it takes for granted that jobs and fields that it asks for are not there; the commit finds out.
    """

    def __init__(self, db: Connections, *, blind: bool = False) -> None:
        self.db = db
        self.blind = blind
        self.removed = 0
        self.grows = False  # it stores more than it frees: a server that is full refuses it
        self._seqs: dict[str, int] = {}  # of jobs that a copy stores
        self._now: Moment | None = None
        self._stored: dict[str, Stored | None] = {}
        self._jobs: dict[str, Job | None] = {}
        self._fields: dict[tuple[str, str], bytes | None] = {}
        self._written: dict[tuple[str, str], bytes | None] = {}
        self._seen: list[list[Any]] = []
        self._todo: list[list[Any]] = []
        self._events: list[tuple[str, str, int]] = []

    # -------------------------------------------------------------------------------------- reading

    @property
    def now(self) -> Moment:
        if self._now is None:
            self._now = self.db.moment()
        return self._now

    def load(self, ids: Iterable[str]) -> None:
        """Read the rows of these jobs, those that are not known yet."""
        wanted = [each for each in dict.fromkeys(ids) if each not in self._stored]
        if self.blind:
            self._stored.update(dict.fromkeys(wanted))
            self._jobs.update(dict.fromkeys(wanted))
            return
        for start in range(0, len(wanted), AT_ONCE):
            page = wanted[start : start + AT_ONCE]
            now, found = read_rows(self.db, page)
            self._now = self._now or now
            for job_id, (there, each) in zip(page, found, strict=True):
                if there is not None and each is None:  # damaged: nobody may act on it
                    self._seen.append(["row", f"j:{job_id}", "", there])
                self._stored[job_id] = each
                self._jobs[job_id] = None if each is None else each.job

    def job(self, job_id: str) -> Job | None:
        """Return the job as it is, or as this try has made it."""
        if job_id not in self._jobs:
            self.load([job_id])
        return self._jobs[job_id]

    def fields(self, key: str, names: Iterable[str]) -> list[bytes | None]:
        """Read fields of a hash."""
        asked = list(names)
        wanted = [name for name in dict.fromkeys(asked) if (key, name) not in self._fields]
        if wanted:
            found = [None] * len(wanted) if self.blind else self.db.ask(("HMGET", key, *wanted))[0]
            self._fields.update({(key, name): each for name, each in zip(wanted, found, strict=True)})
        return [self._written.get((key, name), self._fields[key, name]) for name in asked]

    def field(self, key: str, name: str, kind: Any = None) -> Any:
        """Read a field of a hash, as a value of this kind."""
        [text] = self.fields(key, [name])
        return text if text is None or kind is None else decode(text, kind)

    def history(self, job_id: str, most: int = 1_000_000) -> list[Event]:
        """Read what the journal says of a job; it must not say more by the time of the commit."""
        lines = self.db.run("history", most, job_id)[0]
        self._seen.append(["length", f"h:{job_id}", "", self.db.ask(("LLEN", f"h:{job_id}"))[0]])
        return [event_of(line) for line in lines]

    def expect(self, what: str, key: str, member: str, value: Any) -> None:
        """Let the commit compare something else: `member`, `score`, `size`."""
        self._seen.append([what, key, member, value])

    # -------------------------------------------------------------------------------------- writing

    def put(self, job: Job) -> Job:
        """Change a job."""
        self._jobs[job.id] = job
        return job

    def remove(self, job_id: str) -> None:
        """Delete a job, with all that belongs to it."""
        job = self._jobs[job_id]
        if job is None:
            return
        lines = self.db.ask(("LRANGE", f"h:{job_id}", 0, -1))[0]
        self._seen.append(["length", f"h:{job_id}", "", len(lines)])
        for line in lines:
            number, kind = line[:16].decode(), line[16:].decode()
            self.do("ZREMRANGEBYSCORE", f"v:{kind}", number, number)
            self.do("ZREM", "acts", line)
        if job.batch is not None:
            self.do("HINCRBY", f"br:{job.batch}", job.state.value, 1)
        for key in (f"h:{job_id}", f"s:{job_id}", f"sg:{job_id}"):
            self.do("UNLINK", key)
        self.drop(job_id)
        self.removed += 1

    def drop(self, job_id: str) -> None:
        """Delete the row of a job, and nothing that belongs to it."""
        for key in (f"j:{job_id}", f"b:{job_id}"):
            self.do("UNLINK", key)
        self._jobs[job_id] = None

    def put_copy(self, seq: int, job: Job) -> None:
        """Store a job of another store, with its number of arrival."""
        self._seqs[job.id] = seq
        self.put(job)

    def set(self, key: str, name: str, value: Any) -> None:
        """Write a field of a hash that was read before; None removes it."""
        self._written[key, name] = None if value is None else encode(value)

    def do(self, command: str, key: str, *args: Any) -> None:
        """Let the commit run a command whose effect depends on nothing that was read."""
        self._todo.append([command, key, *args])

    def event(self, job_id: str, event: NewEvent, fence: int, worker: str | None) -> None:
        """Write a line of the journal."""
        line = encode([job_id, self.now.wall, event.kind, fence, worker, event.actor, event.detail]).decode()
        self._todo.append(["event", event.kind, job_id, line, event.actor is not None])
        self._events.append((job_id, event.kind, fence))
        if event.kind in ("zombie", "stale_report"):
            self._count_crash(job_id, event)

    def _count_crash(self, job_id: str, event: NewEvent) -> None:
        job, detail = self.job(job_id) if job_id else None, event.detail if event.kind == "zombie" else {}
        task, queue = (job.task, job.queue) if job is not None else ("", "")
        what = (event.kind, task, queue, str(detail.get("detector", "")), str(detail.get("decision", "")))
        slot = slot_of(self.now.wall)
        self.do("ZADD", "crashes", slot, str(slot))
        self.do("HINCRBY", f"cr:{slot}", NUL.join(what), 1)
        self.do("HINCRBY", "lost", NUL.join(what), 1)

    # --------------------------------------------------------------------------------- the commit

    def commit(self, *, acknowledged: bool = True) -> None:
        """Write everything, or raise `Conflict`. `acknowledged`: wait for those whom the address names."""
        # The journal and new entries first, then rows, then old entries: whatever is left behind by a failure in the
        # middle, the row is right, and who reads an entry compares it with the row.
        first, then, last = self._todo, list[list[Any]](), list[list[Any]]()
        seen, grows = self._seen, self.grows
        for job_id, before in self._stored.items():
            seen.append(["row", f"j:{job_id}", "", False if before is None else before.row])
            job = self._jobs[job_id]
            if before is None and job is not None:
                grows = True
                by_arrival = rows.places_by_arrival(job)  # their scores are not known yet
                others = [place for place in rows.places_of(job, 0) if place.key not in by_arrival]
                then += map(_entry, others)
                number = [self._seqs[job_id]] if job_id in self._seqs else []
                then.append(["new", job_id, rows.row_of(0, job), rows.body_of(job), by_arrival, *number])
            elif before is not None and job is not before.job:
                self._change(before, job, first, then, last)
        last += self._keys()
        for (key, name), text in self._written.items():
            if key == "keys":
                continue  # only for what this try looks up
            if text is None:
                last.append(["HDEL", key, name])
            else:
                then.append(["HSET", key, name, text])
        for (key, name), was in self._fields.items():
            seen.append(["field", key, name, False if was is None else was])
        todo = first + then + last
        if self.removed:
            todo.append(["HINCRBY", "meta", "removals", self.removed])
        if not todo and not (acknowledged and self.db.options.ack is not None):
            return  # else the write of an earlier try may wait for its replicas
        script = "commit_more" if grows else "commit"
        packed = rows.packed_lists(seen), rows.packed_lists(todo)
        done, number = self.db.run(script, *packed, acknowledged=acknowledged)
        if not done:
            raise Conflict(seen[number - 1][:2])

    def _change(
        self, before: Stored, job: Job | None, first: list[list[Any]], then: list[list[Any]], last: list[list[Any]]
    ) -> None:
        old, seq = before.job, before.seq
        was, now = rows.places_of(old, seq), set() if job is None else rows.places_of(job, seq)
        first += map(_entry, now - was)
        stays = {(place.key, place.member) for place in now}
        for place in was - now:
            if (place.key, place.member) not in stays:
                last.append(["SREM" if place.score is None else "ZREM", place.key, place.member])
        if job is not None:
            row, body = rows.packed(rows.row_of(seq, job)), rows.body_of(job)
            if row != before.row:
                then.append(["SET", f"j:{job.id}", row])
            if body != before.body:
                then.append(["SET", f"b:{job.id}", body])
        lane, lane_before = None if job is None else rows.lane_of(job), rows.lane_of(old)
        if lane != lane_before:
            if lane_before is not None:
                last.append(["leave", old.id, rows.row_of(seq, old)])
            if lane is not None and job is not None:
                last.append(["enter", job.id, rows.row_of(seq, job)])
        elif lane is not None and job is not None and (job.expires_at, job.fence) != (old.expires_at, old.fence):
            last.append(["enter", job.id, rows.row_of(seq, job)])  # a claim may have passed it by as expired

    def _keys(self) -> Iterator[list[Any]]:
        """Give keys to jobs that come alive, and take them from those that do not live any more."""
        freed, taken = set[str](), dict[str, str]()
        for job_id, before in self._stored.items():
            job = self._jobs[job_id]
            was = None if before is None else rows.live_key(before.job)
            now = None if job is None else rows.live_key(job)
            if was is not None and was != now:
                freed.add(was)
            if now is not None and was != now:
                taken[now] = job_id
        yield from (["HSET", "keys", key, job_id] for key, job_id in taken.items())
        yield from (["HDEL", "keys", key] for key in freed - taken.keys())

    # ------------------------------------------------------------------- what several verbs have in common

    def check_duty(self, duty: Duty | None) -> None:
        """Raise `DutyLost` when the duty has passed to another process."""
        if duty is None:
            return
        now = self.field("duties", duty.name, Duty)
        if now is None or (now.holder, now.term) != (duty.holder, duty.term):
            raise duty_lost(duty)

    def add(self, jobs: Sequence[NewJob], batch: str | None = None) -> list[Added]:
        """Store jobs; those whose id or live key is taken are not stored."""
        self.load(new.id for new in jobs)
        self.fields("keys", [new.key for new in jobs if new.key is not None])
        answers = []
        for new in jobs:
            there = self.job(new.id)
            if there is None and new.key is not None:
                there = self.live(new.key)
            if there is None:
                self.put(replace(transitions.first_row(new, self.now.wall), batch=batch))
                if new.key is not None:
                    self._written["keys", new.key] = new.id.encode()
            answers.append(Added(there.id if there else new.id, there is not None))
        return answers

    def live(self, key: str) -> Job | None:
        """Return the live job that has the key."""
        holder = self.field("keys", key)
        job = None if holder is None else self.job(holder.decode())
        return job if job is not None and rows.live_key(job) == key else None

    def apply(self, job: Job, verdict: Verdict, worker: str | None) -> None:
        """Make the job what the verdict says, and write down why."""
        after = self.put(transitions.apply_verdict(job, verdict, self.now.wall))
        if after.state in ENDED and job.state is not after.state:
            self.do("HINCRBY", "ended", f"{after.queue}{NUL}{after.state.value}", 1)
        self._say_of_steps(job, verdict)
        if verdict.jobs:
            self.add(verdict.jobs)
        for event in verdict.events:
            self.event(job.id, event, job.fence, worker)

    def count_error(self, settlement: Settlement, task: str) -> None:
        """Count an attempt that ended with an error."""
        verdict, fault = settlement.verdict, settlement.verdict.fault
        if fault is not None:
            at = self.now.wall
            name = NUL.join((task, fault.fingerprint, verdict.release or ""))
            facts = encode([fault.kind, fault.origin, fault.message, at]).decode()
            oldest = slot_of(at - KEPT_S)
            self._todo.append(["error", slot_of(at), oldest, name, facts, at, settlement.lease.job_id])

    def report_stale(
        self, lease: Lease, worker: str | None, reported: State | None = None, step: str | None = None
    ) -> None:
        """Write down, once per fence, that an attempt came back after it had been given up."""
        job = self.job(lease.job_id)
        if job is None:
            return
        known: set[tuple[str, int]] = {(event.kind, event.fence) for event in self.history(job.id)}
        known |= {(kind, fence) for each, kind, fence in self._events if each == job.id}
        if ("stale_report", lease.fence) not in known:
            self.event(job.id, stale_report(job.state, job.fence, reported, step), lease.fence, worker)

    def tell_parent(self, job_id: str) -> None:
        """Tell the workflow that started the job, if any, that it has ended, if it has."""
        job = self.job(job_id)
        if job is None or job.state not in ENDED or job.parent is None:
            return
        parent = self.job(job.parent)
        if parent is not None and parent.workflow and parent.state in LIVE:
            self.put(transitions.wake_on(parent, Awaited("job", job.id), self.now.wall))

    def put_step(self, job_id: str, step: Step) -> None:
        """Write a step, as far as it may still change."""
        place = f"{step.aside} {step.position}"
        known = self.field(f"s:{job_id}", place, Step)
        merged = transitions.merge_step(known, step)
        if merged != known:
            self.set(f"s:{job_id}", place, merged)

    def all_steps(self, job_id: str) -> dict[str, Step]:
        """Read every step of a workflow, those that were set aside too."""
        key = f"s:{job_id}"
        return {name: decode(text, Step) for name, text in self._all(key).items()}

    def signals(self, job_id: str) -> dict[str, Entry]:
        """Read every signal of a workflow, in the order in which they came."""
        found = {name: decode(text, Entry) for name, text in self._all(f"sg:{job_id}").items()}
        return dict(sorted(found.items(), key=lambda each: each[1].place))

    def _all(self, key: str) -> Mapping[str, bytes]:
        """Read all fields of a hash that changes only together with a row that was read."""
        found = {} if self.blind else {each.decode(): text for each, text in pairs(self.db.ask(("HGETALL", key))[0])}
        for (own, name), text in self._written.items():
            if own == key and text is not None:
                found[name] = text
            elif own == key:
                found.pop(name, None)
        return found

    def takes(self, signal: Signal) -> bool:
        """Say whether there is a live workflow that the signal can reach, or has reached."""
        job = self.job(signal.job_id)
        if self.field(f"sg:{signal.job_id}", signal.id) is not None:
            return True
        if job is None or not job.workflow or job.state not in LIVE:
            return False
        awaited = signal.awaited in (job.awaits or ())
        return signal.seen_fence is None or (signal.seen_fence == job.fence and awaited)

    def deliver(self, signal: Signal) -> None:
        """Keep a signal, and wake its workflow if it awaits it."""
        key = f"sg:{signal.job_id}"
        job = self.job(signal.job_id)
        if job is None or self.field(key, signal.id) is not None:
            return
        kept = replace(signal, sent_at=self.now.wall, note=None, seen_fence=None, answer=None)
        self.set(key, signal.id, Entry(job.inbox, kept))  # each arrival raises the inbox
        self.put(transitions.wake_on(job, signal.awaited, self.now.wall))
        self.event(job.id, signal.line, job.fence, None)

    def _say_of_steps(self, job: Job, verdict: Verdict) -> None:
        """Write down what a person says of steps, and set aside what is to be run again."""
        for step in verdict.steps:
            self.put_step(job.id, step)
        if verdict.aside_from is None:
            return
        key = f"s:{job.id}"
        for name, step in self.all_steps(job.id).items():
            if not step.aside and step.position >= verdict.aside_from:
                self.field(key, name)
                self.set(key, name, None)
                self.put_step(job.id, replace(step, aside=job.fence))
        for signal_id, entry in self.signals(job.id).items():
            at = verdict.aside_from if entry.taken is None else entry.taken
            if at < verdict.aside_from:
                continue
            # A person is asked again, and a late answer is not for that question; other signals wait to be taken again.
            taken = at if entry.signal.name.startswith(ANSWER) else None
            if taken != entry.taken:
                self.field(f"sg:{job.id}", signal_id)
                self.set(f"sg:{job.id}", signal_id, replace(entry, taken=taken))


def _entry(place: rows.Place) -> list[Any]:
    """Return the command that makes an entry of an index."""
    if place.score is None:
        return ["SADD", place.key, place.member]
    return ["ZADD", place.key, place.score, place.member]


def pairs(flat: Any) -> Iterable[tuple[bytes, bytes]]:
    """Yield the fields of a hash, as the driver returns them."""
    return flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)


def read_rows(db: Connections, ids: Sequence[str]) -> tuple[Moment, list[tuple[bytes | None, Stored | None]]]:
    """Read rows, with the instant of the store's clocks: for each id the bytes of the row, and the job."""
    wall, lease, *found = db.run("rows", *ids)
    read = []
    for place, job_id in enumerate(ids):
        row, body, ends = found[3 * place : 3 * place + 3]
        read.append((row, None if row is None else rows.read(job_id, row, body or b"", ends)))
    return Moment(float(wall), float(lease)), read


def committed(db: Connections, act: Callable[[Work], T], *, blind: bool = False, acknowledged: bool = True) -> T:
    """Act until nothing that was read has changed before the commit."""
    for attempt in range(TRIES):
        work = Work(db, blind=blind and attempt == 0)
        answer = act(work)
        try:
            work.commit(acknowledged=acknowledged)
        except Conflict:
            continue
        return answer
    raise StoreUnavailable(f"{db.options.shown}: other programs have changed the same rows {TRIES} times meanwhile")
