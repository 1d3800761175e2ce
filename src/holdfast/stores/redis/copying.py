"""Read and write the contents of a Redis store as rows; see `stores/copying.py`. Jobs are in `copying_jobs.py`.

Each table is a `Part`: it reads rows, and writes fifty of them in one commit. A row that is rewritten is deleted first.
Keys that follow from all rows of a table, such as the order of batches, are written at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.access import Token
from holdfast.core.batches import Batch
from holdfast.core.continuity import Doubt
from holdfast.core.keys import KeyHold
from holdfast.core.limits import Queue, Setting
from holdfast.core.machine import ENDED
from holdfast.core.published import PublishedTask
from holdfast.core.records import Duty, NewJob, Order, Recent, Schedule, Worker
from holdfast.core.rollups import EVER, KEPT_S, Endings, Rollup
from holdfast.errors import StoreDamaged
from holdfast.failpoints import point
from holdfast.stores.copying import Key, Row, Table, check_kept, check_open, neutral, one_form
from holdfast.stores.redis import acts, batches, keys
from holdfast.stores.redis.connection import Connections
from holdfast.stores.redis.copying_jobs import Command, Jobs, Journal, Part, Signals, Steps, chunks, to_plain
from holdfast.stores.redis.reading import Reader, names_of
from holdfast.stores.redis.rows import NUL
from holdfast.stores.redis.tokens import TOKENS
from holdfast.stores.redis.work import Work, committed, encode, pairs

INCARNATIONS = "incarnations"


def _read(text: bytes | str, kind: Any, what: str) -> Any:
    """Read a value; raise `StoreDamaged` when another program has damaged it."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreDamaged(f"{what} was damaged by another program, so it cannot be copied: {error}") from error


def _ints(row: Row) -> Row:
    return {name: int(value) if isinstance(value, bool) else value for name, value in row.items()}


class Fields(Part):
    """Rows that are each a value in one hash, by their name."""

    hash = ""
    kind: Any = None

    def value_of(self, row: Row) -> Any:
        """Return the value that is stored for a row."""
        return to_plain(row, self.kind)

    def row_of(self, name: str, value: Any) -> Row:
        """Return the row of a value."""
        return {each: to_plain(getattr(value, each), Any) for each in self.columns}

    def note(self, work: Work, name: str, value: Any) -> None:
        """Bring other keys up to date; None: it is deleted."""

    def count(self) -> int:
        return int(self.db.ask(("HLEN", self.hash))[0])

    def rows(self, after: Key | None, upto: Key | None, limit: int | None) -> list[Row]:
        return list(self._read_all(pairs(self.db.ask(("HGETALL", self.hash))[0])))

    def _read_all(self, found: Iterable[tuple[bytes, bytes]]) -> Iterator[Row]:
        for name, text in found:
            yield self.row_of(name.decode(), _read(text, self.kind, f"{self.table} {name!r}"))

    def check(self, row: Row) -> None:
        value = _read(encode(self.value_of(row)), self.kind, self.table)
        check_kept(self.table, row, self.row_of(row[self.columns[0]], value))

    def delete(self, work: Work, gone: Sequence[Key]) -> None:
        work.fields(self.hash, [name for (name,) in gone])
        for (name,) in gone:
            work.set(self.hash, name, None)
            self.note(work, name, None)

    def insert(self, work: Work, rows: Sequence[Row]) -> None:
        names = [row[self.columns[0]] for row in rows]
        work.fields(self.hash, names)
        for name, row in zip(names, rows, strict=True):
            value = self.value_of(row)
            work.set(self.hash, name, value)
            self.note(work, name, value)


class NamedFields(Fields):
    """The same, with a set of the names in their order, so that they can be read in pages."""

    names = ""

    def rows(self, after: Key | None, upto: Key | None, limit: int | None) -> list[Row]:
        least: str | bytes = "-" if after is None else f"({after[0]}"
        most = "+" if upto is None else f"[{upto[0]}"
        found: list[Row] = []
        while limit is None or len(found) < limit:  # a name may have lost its value
            wanted = -1 if limit is None else limit - len(found)
            names = self.db.ask(("ZRANGE", self.names, least, most, "BYLEX", "LIMIT", 0, wanted))[0]
            for lot in chunks(names):
                texts = self.db.ask(("HMGET", self.hash, *lot))[0]
                found += self._read_all((name, text) for name, text in zip(lot, texts, strict=True) if text is not None)
            if limit is None or len(names) < wanted:
                break
            least = b"(" + names[-1]
        return found

    def note(self, work: Work, name: str, value: Any) -> None:
        _set_member(work, self.names, name, value is not None)


def _set_member(work: Work, key: str, name: str, is_in: bool) -> None:
    if is_in:
        work.do("ZADD", key, 0, name)
    else:
        work.do("ZREM", key, name)


class Schedules(Fields):
    table, hash, kind = "schedule", "schedules", Schedule
    columns = Schedule.__struct_fields__

    def value_of(self, row: Row) -> Schedule:
        job = _read(row["job"], NewJob, f"schedule {row['key']!r}")
        return msgspec.convert({**row, "job": job}, Schedule, strict=False)

    def row_of(self, name: str, value: Schedule) -> Row:
        fields = {each: getattr(value, each) for each in self.columns}
        return _ints({**fields, "job": encode(value.job).decode()})


class Tasks(Fields):
    table, hash, kind = "task", "published", PublishedTask
    columns = ("name", "task", "published_at")

    def value_of(self, row: Row) -> PublishedTask:
        task: PublishedTask = _read(row["task"], PublishedTask, f"published task {row['name']!r}")
        return replace(task, published_at=row["published_at"])

    def row_of(self, name: str, value: PublishedTask) -> Row:
        text = encode(replace(value, published_at=0.0)).decode()
        return {"name": name, "task": text, "published_at": value.published_at}


class Tokens(Fields):
    table, hash, kind = "token", TOKENS, Token
    columns = Token.__struct_fields__

    def value_of(self, row: Row) -> Token:
        queues = None if row["queues"] is None else tuple(_read(row["queues"], list[str], f"token {row['name']!r}"))
        return Token(**{**row, "queues": queues})

    def row_of(self, name: str, value: Token) -> Row:
        queues = None if value.queues is None else encode(value.queues).decode()
        return {**{each: getattr(value, each) for each in self.columns}, "queues": queues}


class Duties(Fields):
    table, hash, kind = "duty", "duties", Duty
    columns = ("name", "holder", "term", "until", "note")

    def value_of(self, row: Row) -> Duty:
        return Duty(row["name"], "", row["term"], 0.0, row["note"])

    def row_of(self, name: str, value: Duty) -> Row:
        return neutral(self.table, {"name": name, "term": value.term, "note": value.note})


class Recents(Fields):
    table, hash, kind = "recent", "recent", Recent
    columns = ("worker", "recent")

    def value_of(self, row: Row) -> Any:
        return msgspec.Raw(row["recent"].encode())

    def row_of(self, name: str, value: Recent) -> Row:
        return {"worker": name, "recent": encode(value).decode()}


class Keys(NamedFields):
    table, hash, names, kind = "key", keys.HOLDS, keys.NAMES, KeyHold
    columns = ("key", "job_id", "scope", "until")

    def value_of(self, row: Row) -> KeyHold:
        return KeyHold(row["job_id"], row["scope"], row["until"])

    def row_of(self, name: str, value: KeyHold) -> Row:
        return {"key": name, **value._asdict()}


class Batches(NamedFields):
    table, hash, names, kind = "batch", batches.BATCHES, batches.NAMES, Batch
    columns = ("id", "then_job", "abandon_s", "created_at", "added_at", "closed_at", "ended_at", "complete", "counts")

    def value_of(self, row: Row) -> Batch:
        *head, complete, counts = (row[name] for name in self.columns)
        seen = None if counts is None else _read(counts, dict[str, int], f"batch {row['id']}")
        batch: Batch = msgspec.convert([*head, bool(complete), seen], Batch)
        return batch

    def row_of(self, name: str, value: Batch) -> Row:
        fields = [getattr(value, each) for each in Batch.__struct_fields__[: len(self.columns) - 1]]
        counts = None if value.counts is None else encode(value.counts).decode()
        return _ints(dict(zip(self.columns, [*fields, counts], strict=True)))

    def note(self, work: Work, name: str, value: Batch | None) -> None:
        super().note(work, name, value)
        is_open = value is not None and value.ended_at is None
        _set_member(work, batches.OPEN, name, is_open)
        if value is None:
            work.do("ZREM", batches.OPENED, name)

    def following(self) -> Iterator[Command]:
        """Number the batches in the order in which they were opened."""
        opened = sorted((row["created_at"], row["id"]) for row in self.rows(None, None, None))
        yield "HSET", "meta", "batches", len(opened)
        for number, (_, name) in enumerate(opened):
            yield "ZADD", batches.OPENED, number, name


class Workers(Fields):
    """Workers of the source, all of them gone."""

    table, hash, kind = "worker", "workers", Worker
    columns = tuple(name for name in Worker.__struct_fields__ if name not in ("running", "tasks", "order"))

    def value_of(self, row: Row) -> Worker:
        queues = _read(row["queues"], list[str], f"worker {row['id']}")
        return msgspec.convert({**row, "queues": queues}, Worker, strict=False)

    def row_of(self, name: str, value: Worker) -> Row:
        fields = {each: getattr(value, each) for each in self.columns}
        return neutral(self.table, _ints({**fields, "queues": one_form(value.queues)}))

    def note(self, work: Work, name: str, value: Worker | None) -> None:
        work.do("SREM", "alive", name)
        work.do("HDEL", "locks", name)
        if value is None:
            work.do("ZREM", "gone", name)
            work.do("ZREM", "enrolled", name)
        else:
            work.do("ZADD", "gone", value.gone_at, name)

    def following(self) -> Iterator[Command]:
        """Number the workers in the order in which they started."""
        started = sorted((row["started_at"], row["id"]) for row in self.rows(None, None, None))
        yield "HSET", "meta", "enrolled", len(started)
        for number, (_, name) in enumerate(started):
            yield "ZADD", "enrolled", number, name


class Incarnations(Fields):
    """The incarnations of the store. Only the last one counts; `meta` has its number."""

    table, hash, kind = "incarnation", INCARNATIONS, tuple[float, str | None, str | None]
    columns = ("number", "at", "actor", "note")

    def value_of(self, row: Row) -> Any:
        return row["at"], row["actor"], row["note"]

    def row_of(self, name: str, value: Any) -> Row:
        return dict(zip(self.columns, (int(name), *value), strict=True))

    def count(self) -> int:
        return len(self.rows(None, None, None))

    def rows(self, after: Key | None, upto: Key | None, limit: int | None) -> list[Row]:
        found = {row["number"]: row for row in super().rows(after, upto, limit)}
        number, at = self.db.ask(("HMGET", "meta", "incarnation", "accepted_at"))[0]
        now = {"number": int(number), "at": float(at), "actor": None, "note": None}
        return list(({now["number"]: now} | found).values())

    def delete(self, work: Work, gone: Sequence[Key]) -> None:
        super().delete(work, [(str(number),) for (number,) in gone])

    def insert(self, work: Work, rows: Sequence[Row]) -> None:
        super().insert(work, [{**row, "number": str(row["number"])} for row in rows])
        last = max(rows, key=lambda row: row["number"])
        work.field("meta", "accepted_at")
        if last["number"] >= int(work.field("meta", "incarnation")):
            work.set("meta", "incarnation", last["number"])
            work.set("meta", "accepted_at", last["at"])


class Orders(Part):
    """The orders of people to workers: one list."""

    table, columns = "order", Order.__struct_fields__

    def count(self) -> int:
        return len(self.rows(None, None, None))

    def rows(self, after: Key | None, upto: Key | None, limit: int | None) -> list[Row]:
        text = self.db.ask(("HGET", "meta", "orders"))[0]
        given = [] if text is None else _read(text, list[Order], "the orders of workers")
        return [{name: getattr(order, name) for name in self.columns} for order in given]

    def delete(self, work: Work, gone: Sequence[Key]) -> None:
        standing = work.field("meta", "orders", list[Order]) or []
        work.set("meta", "orders", [order for order in standing if (order.name,) not in gone])

    def insert(self, work: Work, rows: Sequence[Row]) -> None:
        standing = work.field("meta", "orders", list[Order]) or []
        work.set("meta", "orders", [*standing, *(Order(**row) for row in rows)])


class Queues(Part):
    """Settings of queues, and which queues have jobs with groups."""

    table, columns = "queue", ("name", "paused", "paused_until", "declared", "chosen", "booked_until", "grouped")

    def count(self) -> int:
        return len(self.rows(None, None, None))

    def rows(self, after: Key | None, upto: Key | None, limit: int | None) -> list[Row]:
        found, booked, grouped = self.db.ask(("HGETALL", "queues"), ("HGETALL", "booked"), ("SMEMBERS", "grouped"))
        marks, groups = {name.decode(): float(at) for name, at in pairs(booked)}, set(names_of(grouped))
        known = {name.decode(): _read(text, Queue, f"queue {name!r}") for name, text in pairs(found)}
        rows = []
        for name in sorted(known.keys() | groups | marks.keys()):
            queue = known.get(name) or Queue(name=name)
            texts = [encode(queue.declared).decode(), encode(queue.chosen).decode()]
            said = (name, queue.paused, queue.paused_until, *texts, marks.get(name, 0.0), name in groups)
            rows.append(_ints(dict(zip(self.columns, said, strict=True))))
        return rows

    def check(self, row: Row) -> None:
        for name in ("declared", "chosen"):
            _read(row[name], Setting, f"queue {row['name']!r}")

    def delete(self, work: Work, gone: Sequence[Key]) -> None:
        """Leave it to `insert`: settings are never only deleted, and the groups that are paused stay."""

    def insert(self, work: Work, rows: Sequence[Row]) -> None:
        for row in rows:
            name, declared, chosen = row["name"], *(_read(row[each], Setting, "") for each in ("declared", "chosen"))
            before = work.field("queues", name, Queue) or Queue(name=name)
            paused = {"paused": bool(row["paused"]), "paused_until": row["paused_until"]}
            acts.put_queue(replace(before, declared=declared, chosen=chosen, **paused), work)
            work.do("HSET", "booked", name, repr(row["booked_until"]))
            work.do("SADD" if row["grouped"] else "SREM", "grouped", name)


class PausedGroups(Part):
    table, columns = "paused_group", ("queue", "grp", "paused_until")

    def count(self) -> int:
        return len(self.rows(None, None, None))

    def rows(self, after: Key | None, upto: Key | None, limit: int | None) -> list[Row]:
        found = pairs(self.db.ask(("HGETALL", "queues"))[0])
        queues = [_read(text, Queue, f"queue {name!r}") for name, text in found]
        lines = [(queue.name, *each) for queue in queues for each in queue.paused_groups.items()]
        return [dict(zip(self.columns, line, strict=True)) for line in lines]

    def delete(self, work: Work, gone: Sequence[Key]) -> None:
        self._set(work, [(queue, group, False) for queue, group in gone])

    def insert(self, work: Work, rows: Sequence[Row]) -> None:
        self._set(work, [(row["queue"], row["grp"], row["paused_until"]) for row in rows])

    def _set(self, work: Work, lines: Iterable[tuple[str, str, Any]]) -> None:
        for name, group, ends in lines:
            queue = work.field("queues", name, Queue) or Queue(name=name)
            others = {each: until for each, until in queue.paused_groups.items() if each != group}
            acts.put_queue(replace(queue, paused_groups=others if ends is False else {**others, group: ends}), work)


class Turns(Part):
    table, columns = "turn", ("queue", "priority", "grp")

    def count(self) -> int:
        return int(self.db.ask(("HLEN", "cursors"))[0])

    def rows(self, after: Key | None, upto: Key | None, limit: int | None) -> list[Row]:
        found = []
        for name, group in pairs(self.db.ask(("HGETALL", "cursors"))[0]):
            queue, priority = name.decode().split(NUL)
            found.append({"queue": queue, "priority": int(priority), "grp": group.decode()})
        return found

    def delete(self, work: Work, gone: Sequence[Key]) -> None:
        for queue, priority in gone:
            work.do("HDEL", "cursors", f"{queue}{NUL}{priority}")

    def insert(self, work: Work, rows: Sequence[Row]) -> None:
        for row in rows:
            work.do("HSET", "cursors", f"{row['queue']}{NUL}{row['priority']}", row["grp"])


class BatchesRemoved(Part):
    """Counts of the deleted jobs of a batch, by state."""

    table, columns = "batch_removed", ("batch", "state", "jobs")

    def count(self) -> int:
        return len(self.rows(None, None, None))

    def rows(self, after: Key | None, upto: Key | None, limit: int | None) -> list[Row]:
        found: list[Row] = []
        for lot in chunks(names_of(self.db.ask(("ZRANGE", batches.NAMES, 0, -1))[0])):
            for name, fields in zip(lot, self.db.ask(*(("HGETALL", f"br:{each}") for each in lot)), strict=True):
                found += [{"batch": name, "state": state.decode(), "jobs": int(jobs)} for state, jobs in pairs(fields)]
        return found

    def delete(self, work: Work, gone: Sequence[Key]) -> None:
        for batch, state in gone:
            work.do("HDEL", f"br:{batch}", state)

    def insert(self, work: Work, rows: Sequence[Row]) -> None:
        for row in rows:
            work.do("HSET", f"br:{row['batch']}", row["state"], row["jobs"])


class Tallies(Part):
    """Counts of jobs that have ended in each state, and of those that are still stored, which follows from the jobs."""

    table, columns = "tally", ("queue", "state", "jobs", "ended")

    def count(self) -> int:
        return len(self.rows(None, None, None))

    def rows(self, after: Key | None, upto: Key | None, limit: int | None) -> list[Row]:
        ended = {name.decode(): int(jobs) for name, jobs in pairs(self.db.ask(("HGETALL", "ended"))[0])}
        states = {(queue, state.value): jobs for queue, of in self.read.counts().items() for state, jobs in of.items()}
        found = {(queue, state) for queue, state in states if state in ENDED}
        for name in ended:
            queue, _, state = name.rpartition(NUL)
            found.add((queue, state))
        lines = [(*each, states.get(each, 0), ended.get(NUL.join(each), 0)) for each in sorted(found)]
        return [dict(zip(self.columns, line, strict=True)) for line in lines]

    def delete(self, work: Work, gone: Sequence[Key]) -> None:
        for each in gone:
            work.do("HDEL", "ended", NUL.join(each))

    def insert(self, work: Work, rows: Sequence[Row]) -> None:
        for row in rows:
            work.do("HSET", "ended", f"{row['queue']}{NUL}{row['state']}", row["ended"])


class Slots(Part):
    """Counts by the minute: a hash for each, and a sorted set of the minutes."""

    slots = ""
    prefix = ""

    def count(self) -> int:
        sizes = [("HLEN", self.prefix + slot) for slot in self._slots()]
        return sum(sum(self.db.ask(*lot)) for lot in chunks(sizes))

    def rows(self, after: Key | None, upto: Key | None, limit: int | None) -> list[Row]:
        found: list[Row] = []
        for lot in chunks(self._slots()):
            for slot, fields in zip(lot, self.db.ask(*(("HGETALL", self.prefix + each) for each in lot)), strict=True):
                found += self.rows_of(int(slot), {name.decode(): text for name, text in pairs(fields)})
        return found

    def rows_of(self, slot: int, fields: dict[str, bytes]) -> Iterator[Row]:
        raise NotImplementedError

    def _slots(self) -> list[str]:
        return names_of(self.db.ask(("ZRANGE", self.slots, 0, -1))[0])

    def _put(self, work: Work, slot: int, **fields: Any) -> None:
        work.do("ZADD", self.slots, slot, str(slot))
        for name, value in fields.items():
            work.do("HSET", f"{self.prefix}{slot}", name, value)


class Errors(Slots):
    table, slots, prefix = "error", "slots", "er:"
    columns = (
        *("slot", "task", "fingerprint", "release", "kind", "origin", "message", "attempts"),
        *("first_at", "last_at", "job_id"),
    )

    def count(self) -> int:
        return super().count() // 3

    def rows_of(self, slot: int, fields: dict[str, bytes]) -> Iterator[Row]:
        for name in fields:
            if name.startswith("n"):
                what = _read(fields[f"f{name[1:]}"], tuple[str, str | None, str, float], f"error {name[1:]!r}")
                last_at, _, job_id = fields[f"l{name[1:]}"].decode().partition(" ")
                head = (slot, *name[1:].split(NUL), *what[:3], int(fields[name]), what[3])
                yield dict(zip(self.columns, (*head, float(last_at), job_id), strict=True))

    def delete(self, work: Work, gone: Sequence[Key]) -> None:
        for slot, *names in gone:
            for kind in "nfl":
                work.do("HDEL", f"er:{slot}", kind + NUL.join(names))

    def insert(self, work: Work, rows: Sequence[Row]) -> None:
        for row in rows:
            name = NUL.join((row["task"], row["fingerprint"], row["release"]))
            facts = encode([row[each] for each in ("kind", "origin", "message", "first_at")])
            last = f"{row['last_at']!r} {row['job_id']}"
            self._put(work, row["slot"], **{f"f{name}": facts, f"l{name}": last, f"n{name}": row["attempts"]})


class Crashes(Slots):
    table, slots, prefix = "crash", "crashes", "cr:"
    columns = ("slot", "kind", "task", "queue", "detector", "decision", "attempts")

    def rows_of(self, slot: int, fields: dict[str, bytes]) -> Iterator[Row]:
        for name, attempts in fields.items():
            yield dict(zip(self.columns, (slot, *name.split(NUL), int(attempts)), strict=True))

    def delete(self, work: Work, gone: Sequence[Key]) -> None:
        for slot, *names in gone:
            work.do("HDEL", f"cr:{slot}", NUL.join(names))

    def insert(self, work: Work, rows: Sequence[Row]) -> None:
        for row in rows:
            self._put(work, row["slot"], **{NUL.join(row[name] for name in self.columns[1:-1]): row["attempts"]})

    def following(self) -> Iterator[Command]:
        """Add up all minutes: the counters that never fall."""
        lost = Counter[str]()
        for row in self.rows(None, None, None):
            lost[NUL.join(row[name] for name in self.columns[1:-1])] += row["attempts"]
        for name, attempts in lost.items():
            yield "HSET", "lost", name, attempts


class Rollups(Part):
    table, columns = "rollup", ("span", "slot", "queue", "arrived", "came", "endings")

    def count(self) -> int:
        names = [f"ro:{span}:{slot}" for span, slot in self._slots(None)]
        return sum(sum(self.db.ask(*(("HLEN", name) for name in lot))) for lot in chunks(names))

    def rows(self, after: Key | None, upto: Key | None, limit: int | None) -> list[Row]:
        found: list[Row] = []
        for lot in chunks(self._slots(after)):
            if limit is not None and len(found) >= limit:
                break
            if upto is not None and lot[0] > tuple(upto[:2]):
                break
            for fields in self.db.ask(*(("HGETALL", f"ro:{span}:{slot}") for span, slot in lot)):
                page = [self._row(_read(text, Rollup, f"rollup {name!r}")) for name, text in pairs(fields)]
                for row in sorted(page, key=lambda row: row["queue"].encode()):
                    place = row["span"], row["slot"], row["queue"]
                    if (after is None or place > after) and (upto is None or place <= upto):
                        found.append(row)
        return found[:limit]

    def _slots(self, after: Key | None) -> list[tuple[int, int]]:
        found = []
        for span in sorted({EVER, *KEPT_S}):
            if after is None or span >= after[0]:
                least = after[1] if after is not None and span == after[0] else "-inf"
                slots = self.db.ask(("ZRANGE", f"ro:{span}", least, "+inf", "BYSCORE"))[0]
                found += [(span, int(slot)) for slot in slots]
        return found

    def _row(self, rollup: Rollup) -> Row:
        fields = {name: getattr(rollup, name) for name in self.columns}
        return {**fields, "endings": encode(rollup.endings).decode()}

    def _value(self, row: Row) -> Rollup:
        return Rollup(**{**row, "endings": _read(row["endings"], list[Endings], f"rollup of {row['queue']!r}")})

    def check(self, row: Row) -> None:
        check_kept(self.table, row, self._row(self._value(row)))

    def delete(self, work: Work, gone: Sequence[Key]) -> None:
        for span, slot, queue in gone:
            work.do("HDEL", f"ro:{span}:{slot}", queue)

    def insert(self, work: Work, rows: Sequence[Row]) -> None:
        for row in rows:
            span, slot, queue = (row[name] for name in self.columns[:3])
            work.do("ZADD", f"ro:{span}", slot, str(slot))
            work.do("HSET", f"ro:{span}:{slot}", queue, encode(self._value(row)))


_PARTS: tuple[type[Part], ...] = (Incarnations, Queues, PausedGroups, Turns, Schedules, Tasks, Tokens, Orders, Duties)
_PARTS += (Batches, BatchesRemoved, Keys, Tallies, Errors, Crashes, Rollups, Workers, Recents)


class RedisTables:
    """See `stores/copying.py: Tables`."""

    def __init__(self, db: Connections, read: Reader) -> None:
        self._db = db
        jobs = Jobs(db, read)
        hanging = [Steps(db, read, jobs), Signals(db, read, jobs), Journal(db, read)]
        self._parts = {part.table: part for part in [jobs, *hanging, *(part(db, read) for part in _PARTS)]}

    def columns(self) -> dict[str, list[str]]:
        return {name: list(part.columns) for name, part in self._parts.items()}

    def count(self, table: Table) -> int:
        return self._parts[table.name].count()

    def rows(
        self, table: Table, after: Key | None = None, upto: Key | None = None, limit: int | None = None
    ) -> list[Row]:
        return self._parts[table.name].rows(after, upto, limit)

    def write(self, table: Table, gone: Sequence[Key], rows: Sequence[Row], source: str) -> None:
        part = self._parts[table.name]
        for row in rows:
            part.check(row)
        for keys_of in chunks(gone):
            self._commit(source, partial(part.delete, gone=keys_of))
        for lot in chunks(rows):
            self._commit(source, partial(part.insert, rows=lot))
        point("copy.page")

    def finish(self) -> None:
        for part in self._parts.values():
            for commands in chunks(list(part.following())):
                committed(self._db, partial(_carry_out, commands))

    def _commit(self, source: str, write: Callable[[Work], None]) -> None:
        def act(work: Work) -> None:
            doubt = work.field("doubts", f"copy{NUL}", Doubt)
            check_open(doubt is not None and doubt.seen == source)
            work.grows = True
            write(work)

        committed(self._db, act)


def _carry_out(commands: Sequence[Command], work: Work) -> None:
    work.grows = True
    for command, key, *args in commands:
        work.do(command, key, *args)
