"""Jobs, steps, signals and the journal of a Redis store as rows; see `copying.py`."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core.records import Job, Signal, Step
from holdfast.core.row_text import from_row, texts_of
from holdfast.errors import Refused, StoreDamaged
from holdfast.stores.copying import Key, Row, check_kept, one_form
from holdfast.stores.redis import rows as redis_rows
from holdfast.stores.redis.connection import Connections
from holdfast.stores.redis.reading import Reader, names_of
from holdfast.stores.redis.work import AT_ONCE, Entry, Work, committed, decode, encode, pairs, read_rows

T = TypeVar("T")
Command = tuple[Any, ...]
NUMBERED = 2**53  # the place of a signal that has a number is that number minus this: before all that have none yet
VALUES_MAX = 1000  # in one command
_COLUMN = {"group": "grp"}  # where a row calls a field of `Job` otherwise
_TEXTS = ("awaits", "in_steps")
_LABELS = ("tags", "meta")


def chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield as many as one command may handle."""
    for start in range(0, len(values), AT_ONCE):
        yield values[start : start + AT_ONCE]


def to_plain(value: Any, kind: Any) -> Any:
    """Return plain data as a record, or a value of a record as plain data when `kind` is Any."""
    if kind is Any:
        return int(value) if isinstance(value, bool) else value
    return msgspec.convert(value, kind, strict=False)


class Part:
    """The rows of one table."""

    table = ""
    columns: Sequence[str] = ()

    def __init__(self, db: Connections, read: Reader) -> None:
        self.db = db
        self.read = read

    def count(self) -> int:
        """Return how many rows there are."""
        raise NotImplementedError

    def rows(self, after: Key | None, upto: Key | None, limit: int | None) -> list[Row]:
        """See `Tables.rows`."""
        raise NotImplementedError

    def check(self, row: Row) -> None:
        """Raise for a row that cannot be kept as it is."""

    def delete(self, work: Work, gone: Sequence[Key]) -> None:
        """Delete rows."""
        raise NotImplementedError

    def insert(self, work: Work, rows: Sequence[Row]) -> None:
        """Store rows."""
        raise NotImplementedError

    def following(self) -> Iterator[Command]:
        """Yield the commands that write what follows from all rows; each may be carried out twice."""
        return iter(())


class SortedSets(Part):
    """Rows in several sorted sets, each with a number of its own."""

    def sets(self) -> list[str]:
        raise NotImplementedError

    def count(self) -> int:
        sizes = [("ZCARD", name) for name in self.sets()]
        return sum(sum(self.db.ask(*lot)) for lot in chunks(sizes))

    def members(self, after: Key | None, upto: Key | None, limit: int | None) -> list[tuple[int, bytes, str]]:
        """Return number, member and set of entries between two numbers, lowest first."""
        sets, found = self.sets(), list[tuple[int, bytes, str]]()
        least, most = "-inf" if after is None else f"({after[0]}", "+inf" if upto is None else str(upto[0])
        page = AT_ONCE if limit is None else limit // max(1, len(sets)) + 10
        while sets:
            bound, round_ = None, list[tuple[int, bytes, str]]()
            for lot in chunks(sets):
                asked = (("ZRANGE", name, least, most, "BYSCORE", "LIMIT", 0, page, "WITHSCORES") for name in lot)
                for name, flat in zip(lot, self.db.ask(*asked), strict=True):
                    each = [
                        (int(float(score)), member, name) for member, score in zip(flat[::2], flat[1::2], strict=True)
                    ]
                    round_ += each
                    if len(each) == page:  # what follows in this set is not known yet
                        bound = each[-1][0] if bound is None else min(bound, each[-1][0])
            found += sorted(each for each in round_ if bound is None or each[0] <= bound)
            if bound is None or (limit is not None and len(found) >= limit):
                break
            least = f"({bound}"
        return found[:limit]


class Jobs(SortedSets):
    table = "job"
    columns = ("seq", *(_COLUMN.get(name, name) for name in Job.__struct_fields__))

    def sets(self) -> list[str]:
        return self.read.sets()

    def ids(self) -> Iterator[str]:
        """Yield the id of every job."""
        after: Key | None = None
        while page := self.members(after, None, 10 * AT_ONCE):
            yield from (member.decode() for _, member, _ in page)
            after = (page[-1][0],)

    def rows(self, after: Key | None, upto: Key | None, limit: int | None) -> list[Row]:
        found: list[Row] = []
        while limit is None or len(found) < limit:  # a job may be deleted meanwhile, or in the sets of two states
            wanted = None if limit is None else limit - len(found)
            page = self.members(after, upto, wanted)
            found += self._rows_of(page)
            if wanted is None or len(page) < wanted:
                break
            after = (page[-1][0],)
        return sorted(found, key=lambda row: row["seq"])

    def _rows_of(self, page: Sequence[tuple[int, bytes, str]]) -> Iterator[Row]:
        ids = list(dict.fromkeys(member.decode() for _, member, _ in page))
        gone = set[str]()
        for lot in chunks(ids):
            for job_id, (there, stored) in zip(lot, read_rows(self.db, lot)[1], strict=True):
                if there is not None and stored is None:
                    raise StoreDamaged(f"the row of job {job_id} was damaged by another program; holdfast db check")
                if stored is None:
                    gone.add(job_id)
                else:
                    yield _job_row(stored.seq, stored.job)
        for entries in chunks([each for each in page if each[1].decode() in gone]):
            scores = self.db.ask(*(("ZSCORE", name, member) for _, member, name in entries))
            for (number, member, _), score in zip(entries, scores, strict=True):
                if score is not None and int(float(score)) == number:  # nobody has deleted it
                    raise StoreDamaged(
                        f"job {member.decode()} has lost its row, so it cannot be copied; holdfast db check names such "
                        "jobs"
                    )

    def check(self, row: Row) -> None:
        job = _job_of(row)
        try:
            stored = redis_rows.stored(row["seq"], job)
        except (OverflowError, msgspec.MsgspecError) as error:
            raise Refused(f"the target cannot keep job {job.id}: {error}") from error
        known = redis_rows.read(job.id, stored.row, stored.body, None)
        check_kept(self.table, {**row, "lease_until": None}, {} if known is None else _job_row(row["seq"], known.job))

    def delete(self, work: Work, gone: Sequence[Key]) -> None:
        for (seq,) in gone:
            among = self.members((seq - 1,), (seq,), None)
            ids = [member.decode() for _, member, _ in among]
            work.load(ids)
            for job_id in dict.fromkeys(ids):
                if work.job(job_id) is not None:
                    work.drop(job_id)

    def insert(self, work: Work, rows: Sequence[Row]) -> None:
        work.load(row["id"] for row in rows)
        for row in rows:
            if work.job(row["id"]) is not None:
                raise Refused(f"job {row['id']} is in the target already; another program stores jobs there: stop it")
            work.put_copy(row["seq"], _job_of(row))
        _raise_number(work, "seq", max(row["seq"] for row in rows))


def _raise_number(work: Work, name: str, least: int) -> None:
    """Let no new row get a number that a copied one has."""
    if int(work.field("meta", name) or 0) < least:
        work.set("meta", name, least)


def _job_of(row: Row) -> Job:
    values = [row[_COLUMN.get(name, name)] for name in Job.__struct_fields__]
    for place, name in enumerate(Job.__struct_fields__):
        if name in _TEXTS and values[place] is not None:
            values[place] = json.loads(values[place])
    try:
        return msgspec.convert(values, Job, strict=False, dec_hook=from_row)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreDamaged(
            f"job {row['id']} was damaged by another program, so it cannot be copied: {error}; holdfast db check"
        ) from error


def _job_row(seq: int, job: Job) -> Row:
    row: Row = {"seq": seq}
    for name in Job.__struct_fields__:
        value = getattr(job, name)
        if value is not None and name in _TEXTS:
            value = one_form(texts_of(value))
        elif value is not None and name in _LABELS:
            value = one_form(json.loads(value))
        row[_COLUMN.get(name, name)] = int(value) if isinstance(value, bool) else value
    row["state"] = job.state.value
    row["lease_until"] = None
    return row


class PerJobRows(Part):
    """Rows in a hash for each job: `prefix` and its id."""

    prefix = ""

    def __init__(self, db: Connections, read: Reader, jobs: Jobs) -> None:
        super().__init__(db, read)
        self.jobs = jobs

    def owners(self) -> list[str]:
        """Return the ids of jobs that have such a hash."""
        found: list[str] = []
        for lot in chunks(list(self.jobs.ids())):
            there = self.db.ask(*(("EXISTS", self.prefix + job_id) for job_id in lot))
            found += [job_id for job_id, exists in zip(lot, there, strict=True) if exists]
        return sorted(found)

    def count(self) -> int:
        owners = self.owners()
        return sum(sum(self.db.ask(*(("HLEN", self.prefix + each) for each in lot))) for lot in chunks(owners))

    def with_jobs(self, work: Work, rows: Sequence[Row]) -> list[Row]:
        """Leave out rows of jobs that are not there; the next pass compares them again."""
        work.load(row["job_id"] for row in rows)
        return [row for row in rows if work.job(row["job_id"]) is not None]


class Steps(PerJobRows):
    table, prefix = "step", "s:"
    columns = ("job_id", *Step.__struct_fields__)

    def __init__(self, db: Connections, read: Reader, jobs: Jobs) -> None:
        super().__init__(db, read, jobs)
        self._owners: list[str] = []

    def rows(self, after: Key | None, upto: Key | None, limit: int | None) -> list[Row]:
        if after is None:
            self._owners = self.owners()
        begin = 0 if after is None else bisect_left(self._owners, after[0])
        end = len(self._owners) if upto is None else bisect_right(self._owners, upto[0])
        found: list[Row] = []
        for lot in chunks(self._owners[begin:end]):
            if limit is not None and len(found) >= limit:
                break
            for job_id, fields in zip(lot, self.db.ask(*(("HGETALL", f"s:{each}") for each in lot)), strict=True):
                page = [_step_row(job_id, text) for _, text in pairs(fields)]
                for place, row in sorted((_place(row), row) for row in page):
                    if (after is None or place > after) and (upto is None or place <= upto):
                        found.append(row)
        return found[:limit]

    def delete(self, work: Work, gone: Sequence[Key]) -> None:
        for job_id, aside, position in gone:
            work.do("HDEL", f"s:{job_id}", f"{aside} {position}")

    def insert(self, work: Work, rows: Sequence[Row]) -> None:
        for row in self.with_jobs(work, rows):
            job_id = row["job_id"]
            step = msgspec.convert([row[name] for name in Step.__struct_fields__], Step, strict=False)
            work.do("HSET", f"s:{job_id}", f"{step.aside} {step.position}", encode(step))
            place = bisect_left(self._owners, job_id)
            if self._owners[place : place + 1] != [job_id]:
                self._owners.insert(place, job_id)


def _place(row: Row) -> Key:
    return row["job_id"], row["aside"], row["position"]


def _step_row(job_id: str, text: bytes) -> Row:
    try:
        step = decode(text, Step)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreDamaged(f"a step of job {job_id} was damaged by another program; holdfast db check") from error
    fields = {name: getattr(step, name) for name in Step.__struct_fields__}
    return {"job_id": job_id, **{name: int(each) if isinstance(each, bool) else each for name, each in fields.items()}}


class Signals(PerJobRows):
    """Signals have a number in a copy, and none of their own here: they get one when they are copied first."""

    table, prefix = "signal", "sg:"
    columns = ("seq", "id", "job_id", "name", "value", "actor", "sent_at", "taken")

    def __init__(self, db: Connections, read: Reader, jobs: Jobs) -> None:
        super().__init__(db, read, jobs)
        self._numbers: list[tuple[int, str, str]] = []  # with the job and the id

    def rows(self, after: Key | None, upto: Key | None, limit: int | None) -> list[Row]:
        if after is None:
            self._numbers = self._numbered()
        begin = 0 if after is None else bisect_right(self._numbers, after[0], key=lambda each: each[0])
        end = len(self._numbers) if upto is None else bisect_right(self._numbers, upto[0], key=lambda each: each[0])
        found: list[Row] = []
        for start in range(begin, end, AT_ONCE):
            if limit is not None and len(found) >= limit:
                break
            lot = self._numbers[start : min(start + AT_ONCE, end)]
            texts = self.db.ask(*(("HGET", f"sg:{job_id}", name) for _, job_id, name in lot))
            entries = [(job_id, _entry(job_id, text)) for (_, job_id, _), text in zip(lot, texts, strict=True) if text]
            found += [_signal_row(job_id, entry) for job_id, entry in entries]
        return found[:limit]

    def _numbered(self) -> list[tuple[int, str, str]]:
        found, unnumbered = list[tuple[int, str, str]](), list[tuple[str, int, str]]()
        for lot in chunks(self.owners()):
            for job_id, fields in zip(lot, self.db.ask(*(("HGETALL", f"sg:{each}") for each in lot)), strict=True):
                for name, text in pairs(fields):
                    entry = _entry(job_id, text)
                    if entry.place < 0:
                        found.append((entry.place + NUMBERED, job_id, name.decode()))
                    else:
                        unnumbered.append((job_id, entry.place, name.decode()))
        top = max((number for number, _, _ in found), default=0)
        new = [(top + each, job_id, name) for each, (job_id, _, name) in enumerate(sorted(unnumbered), 1)]
        for some in chunks(new):
            committed(self.db, partial(_number, some))
        return sorted([*found, *new])

    def delete(self, work: Work, gone: Sequence[Key]) -> None:
        numbers = {number for (number,) in gone}
        for number, job_id, name in self._numbers:
            if number in numbers:
                work.do("HDEL", f"sg:{job_id}", name)

    def insert(self, work: Work, rows: Sequence[Row]) -> None:
        for row in self.with_jobs(work, rows):
            fields = {name: row[name] for name in self.columns if name not in ("seq", "taken")}
            entry = Entry(row["seq"] - NUMBERED, Signal(**fields), row["taken"])
            work.do("HSET", f"sg:{row['job_id']}", row["id"], encode(entry))
            number = row["seq"], row["job_id"], row["id"]
            place = bisect_left(self._numbers, number)
            if self._numbers[place : place + 1] != [number]:
                self._numbers.insert(place, number)


def _number(new: Iterable[tuple[int, str, str]], work: Work) -> None:
    for number, job_id, name in new:
        entry = work.field(f"sg:{job_id}", name, Entry)
        if entry is not None and entry.place >= 0:
            work.set(f"sg:{job_id}", name, replace(entry, place=number - NUMBERED))


def _entry(job_id: str, text: bytes) -> Entry:
    try:
        found: Entry = decode(text, Entry)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreDamaged(f"a signal of job {job_id} was damaged by another program; holdfast db check") from error
    return found


def _signal_row(job_id: str, entry: Entry) -> Row:
    one = entry.signal
    said = (entry.place + NUMBERED, one.id, job_id, one.name, one.value, one.actor, one.sent_at, entry.taken)
    return dict(zip(Signals.columns, said, strict=True))


class Journal(SortedSets):
    """The lines of the journal: one set for each kind, and for each job the list of its own."""

    table = "journal"
    columns = ("seq", "job_id", "at", "kind", "fence", "worker", "actor", "detail")

    def sets(self) -> list[str]:
        return [f"v:{kind}" for kind in sorted(names_of(self.db.ask(("SMEMBERS", "kinds"))[0]))]

    def rows(self, after: Key | None, upto: Key | None, limit: int | None) -> list[Row]:
        return [_line_row(line) for _, line, _ in self.members(after, upto, limit)]

    def check(self, row: Row) -> None:
        check_kept(self.table, row, _line_row(_line(row)))

    def delete(self, work: Work, gone: Sequence[Key]) -> None:
        for (number,) in gone:
            for _, line, name in self.members((number - 1,), (number,), None):
                row = _line_row(line)
                work.do("ZREMRANGEBYSCORE", name, number, number)
                work.do("ZREMRANGEBYSCORE", "acts", number, number)
                work.do("LREM", f"h:{row['job_id']}", 0, f"{number:016d}{row['kind']}")

    def insert(self, work: Work, rows: Sequence[Row]) -> None:
        lines: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            number, kind = row["seq"], row["kind"]
            name = f"{number:016d}{kind}"
            work.do("ZADD", f"v:{kind}", number, _line(row))
            work.do("SADD", "kinds", kind)
            if row["actor"] is not None:
                work.do("ZADD", "acts", number, name)
            lines[row["job_id"]].append(name)
        for job_id, names in lines.items():
            self._append(work, f"h:{job_id}", sorted(names))
        _raise_number(work, "event", max(row["seq"] for row in rows))

    def _append(self, work: Work, key: str, names: list[str]) -> None:
        """Add lines to a history, which is in their order."""
        length, last = self.db.ask(("LLEN", key), ("LRANGE", key, -1, -1))
        work.expect("length", key, "", length)
        if last and last[0].decode() >= names[0]:  # a line in the middle was deleted, or is written again
            names = sorted({*names, *names_of(self.db.ask(("LRANGE", key, 0, -1))[0])})
            work.do("UNLINK", key)
        for start in range(0, len(names), VALUES_MAX):
            work.do("RPUSH", key, *names[start : start + VALUES_MAX])


def _line(row: Row) -> bytes:
    said = [row["job_id"], row["at"], row["kind"], row["fence"], row["worker"], row["actor"]]
    return b"%016d" % row["seq"] + encode([*said, msgspec.Raw(row["detail"].encode())])


def _line_row(line: bytes) -> Row:
    try:
        job_id, at, kind, fence, worker, actor, detail = msgspec.json.decode(line[16:], type=list[msgspec.Raw])
        said = [msgspec.json.decode(each) for each in (job_id, kind, fence, worker, actor)]
        said.insert(1, float(bytes(at)))
        values = (int(line[:16]), *said, one_form(json.loads(bytes(detail))))
    except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
        raise StoreDamaged(f"line {line[:16]!r} of the journal was damaged by another program") from error
    return dict(zip(Journal.columns, values, strict=True))
