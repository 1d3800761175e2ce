"""Copy a store into another one, of any kind but memory and remote: resumable, and verified by checksums.

A pass compares both stores page by page, and writes what differs. The copy is complete when a pass finds no difference,
so a copy that was interrupted continues when it is started again. A doubt in both stores keeps workers from claiming:
in the target until the copy is complete, in the source for good. Attempts that run in the source have no worker any
more; in the target they are settled as lost, at no cost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.acts.workers import order_workers
from holdfast.clock import Clock, SystemClock, pause
from holdfast.core.continuity import Doubt
from holdfast.core.machine import State
from holdfast.core.orders import parent_name
from holdfast.core.records import Filter, Job, Worker
from holdfast.core.rollups import FOLD_MAX
from holdfast.core.settlement import settlement
from holdfast.core.text import counted, listed
from holdfast.core.verdict import Lost, judge
from holdfast.errors import Refused, SchemaMismatch, StoreError, UsageError
from holdfast.failpoints import point
from holdfast.stores import open_store
from holdfast.stores.copying import TABLES, HasTables, Key, Row, Table, Tables, one_form
from holdfast.stores.protocol import Reply, Store, schema_too_new
from holdfast.stores.urls import shown_url

PAGE = 500  # rows that are compared, and written, at once
PASSES_MAX = 5  # a store that changes all the time cannot be copied
LOOK_S = 0.5
LEASE_S = 86_400.0  # until the copy is complete no reaper may find the attempts that ran in the source
CAUSE = "the store was copied while the job ran; its worker had gone"


class CopiedTable(NamedTuple):
    """A table as the last pass found it in both stores."""

    name: str
    rows: int
    sha256: str


class CopyReport(NamedTuple):
    """The result of a copy. `written`: rows that this run wrote. `lost`: attempts that were settled as lost."""

    tables: list[CopiedTable]
    written: int
    lost: int


class StoreCopy:
    """One copy, from its checks to its end. `advance` gets the number of rows that were compared."""

    def __init__(
        self,
        source: Store,
        target: Store,
        clock: Clock | None = None,
        advance: Callable[[int], object] = lambda _: None,
    ) -> None:
        self.source, self.target = source, target
        self._from, self._to = _tables_of(source), _tables_of(target)
        self._clock = clock or SystemClock()
        self.advance = advance
        self._identity = source.standing("", (), None).identity
        self._target_identity = target.standing("", (), None).identity
        self._written = 0

    def total(self) -> int:
        """Return about how many rows the first pass compares."""
        return sum(self._from.count(table) for table in TABLES)

    def check(self) -> None:
        """Raise `Refused` where nothing must be copied: from a store that is in use, or into one that has jobs."""
        if self._identity == self._target_identity:
            raise UsageError("both addresses are of the same store; name another one to copy to")
        for doubt in self.source.doubts():
            if doubt.evidence != "moved":
                raise Refused("a worker has reported the source as changed; look at `holdfast db check` first")
            if doubt.seen != self._target_identity:
                raise Refused(f"the source was copied to {doubt.found}; to use it again: holdfast db accept")
        self._check_target()
        self._check_still()

    def _check_still(self) -> None:
        if alive := living(self.source):
            raise Refused(
                f"{counted(len(alive), 'worker')} of the source still beat: {_names(alive)}; stop them first, or copy "
                "with --drain"
            )
        if alive := living(self.target):
            raise Refused(f"workers of the target beat already: {_names(alive)}; start them after the copy")

    def drain(self, actor: str, within_s: float, waiting: Callable[[list[Worker]], object] = lambda _: None) -> None:
        """Ask all workers of the source to stop, and wait until they have. The orders are then taken back."""
        give_up_at = self._clock.lease() + within_s
        asked: set[str] = set()
        try:
            while alive := living(self.source):
                for name in sorted({_ordered(worker) for worker in alive} - asked):
                    asked.add(name)
                    order_workers(self.source, name, "stop", actor, "the store is copied")
                if self._clock.lease() >= give_up_at:
                    raise Refused(f"{_names(alive)} did not stop within {within_s:g} s; nothing was copied")
                waiting(alive)
                pause(LOOK_S)
        finally:  # they would stand in the copy, too; and without a copy the workers go on
            for name in asked:
                self.source.order(name, None, actor=actor, note="the store is copied")

    def run(self, actor: str) -> CopyReport:
        """Copy, verify, and let workers claim from the target. If it is interrupted, start it again."""
        here, there = shown_url(self.source.url), shown_url(self.target.url)
        _doubt(self.source, Doubt("replaced", "moved", self._target_identity, there))
        _doubt(self.target, Doubt("replaced", "copy", self._identity, here))
        self._check_still()  # a worker that starts from here on sees the doubt before it claims
        begun_at = self.target.now().wall
        changed: list[str] = []
        _fold(self.source)
        for _ in range(PASSES_MAX):
            before, changed, tables = self._written, [], list[CopiedTable]()
            for table in TABLES:
                written = self._written
                tables.append(self._pass(table, begun_at))
                changed += [table.name] * (self._written > written)
            point("copy.passed")
            if self._written == before:
                break
        else:
            raise Refused(
                f"the source differed in each of {PASSES_MAX} passes, in the last one in: {listed(changed)}; stop the "
                "programs that use it, and repeat; if nothing uses it, see holdfast db check"
            )
        self._to.finish()
        lost = self._settle_running()
        _fold(self.target)
        point("copy.settled")
        self.target.accept(self.target.standing("", (), None).incarnation, actor, f"copied from {here}")
        return CopyReport(tables, self._written, lost)

    def _check_target(self) -> None:
        doubts = self.target.doubts()
        if any(doubt.evidence == "copy" and doubt.seen == self._identity for doubt in doubts):
            return
        if doubts:
            raise Refused("the target holds an unfinished copy of another store, or was reported as changed")
        rows = sum(self._to.count(table) for table in TABLES if not table.settings)
        if rows and any(doubt.evidence == "moved" for doubt in self.source.doubts()):
            raise Refused("the copy is complete already; its workers may claim")
        if rows:
            raise Refused("the target is not empty; name a store without jobs")

    def _pass(self, table: Table, begun_at: float) -> CopiedTable:
        """Make the target's table the same as the source's; return what it has."""
        number, digest = 0, hashlib.sha256()
        for after, upto, rows in self._pages(table):
            theirs = {table.key_of(row): row for row in self._to.rows(table, after, upto)}
            mine = {table.key_of(row): row for row in rows}
            gone = [] if table.settings else [key for key in theirs if key not in mine]
            if table.name == "job":
                _check_own(
                    [theirs[key] for key in theirs if theirs[key]["id"] not in {row["id"] for row in rows}], begun_at
                )
            changed = [key for key, row in mine.items() if theirs.get(key) != row]
            if gone or changed:
                there = [key for key in changed if key in theirs]
                self._to.write(
                    table, [*gone, *there], [self._as_written(table, mine[key]) for key in changed], self._identity
                )
                self._written += len(gone) + len(changed)
            if table.name == "incarnation":  # a doubt is about the last one
                _doubt(self.target, Doubt("replaced", "copy", self._identity, shown_url(self.source.url)))
            number += len(rows)
            for key in sorted(mine):
                digest.update(one_form(dict(sorted(mine[key].items()))).encode() + b"\n")
            self.advance(len(rows))
        return CopiedTable(table.name, number, digest.hexdigest())

    def _pages(self, table: Table) -> Iterator[tuple[Key | None, Key | None, list[Row]]]:
        after: Key | None = None
        while True:
            rows = self._from.rows(table, after, None, PAGE)
            is_last = not table.in_pages or len(rows) < PAGE
            upto = None if is_last else table.key_of(rows[-1])
            yield after, upto, rows
            if is_last:
                return
            after = upto

    def _as_written(self, table: Table, row: Row) -> Row:
        if table.name == "job" and row["state"] == State.RUNNING.value:
            return {**row, "lease_until": self.target.now().lease + LEASE_S}
        return row

    def _settle_running(self) -> int:
        names = {worker.id: worker.name for worker in self.target.workers(gone=True)}
        lost, where = 0, Filter(states=(State.RUNNING,), limit=PAGE)
        while jobs := self.target.find(where):
            settled = [settlement(job, self._verdict(job, names.get(job.worker or ""))) for job in jobs]
            for job, answer in zip(jobs, self.target.settle(settled), strict=True):
                if answer not in (Reply.ACCEPTED, Reply.ALREADY):
                    raise StoreError(f"job {job.id} could not be settled in the copy ({answer.value}); copy again")
            lost += len(jobs)
            where = replace(where, before=jobs[-1].id)
        return lost

    def _verdict(self, job: Job, worker: str | None) -> Any:
        lost = Lost("restart", CAUSE, excused=True, started=job.begun, worker=worker or job.worker)
        return judge(lost, job, self.target.now().wall, chance=0.0)


def copy_store(source_url: str, target_url: str, actor: str, clock: Clock | None = None) -> CopyReport:
    """Copy the store at one address to another address, where there may be none yet."""
    with closing(open_store(source_url, create=False)) as source, closing(open_store(target_url)) as target:
        prepare(source, target)
        copy = StoreCopy(source, target, clock)
        copy.check()
        return copy.run(actor)


def prepare(source: Store, target: Store) -> None:
    """Make the target if there is none; raise for stores that cannot be copied as they are."""
    for store in (source, target):
        _tables_of(store)
    for what, store in (("source", source), ("target", target)):
        schema = store.schema()
        if schema.is_too_new:
            raise schema_too_new(store.url, schema)
        if schema.found > schema.wanted:
            raise SchemaMismatch(
                f"the {what}'s schema is version {schema.found}, this program knows {schema.wanted}; copy with the "
                "newest Holdfast that uses these stores"
            )
        if schema.found and schema.is_stale:
            raise SchemaMismatch(
                f"the {what}'s schema is version {schema.found}, this program wants {schema.wanted}; run "
                f"holdfast db migrate --db {shown_url(store.url)}"
            )
    target.migrate()


def living(store: Store) -> list[Worker]:
    """Return the workers that have not missed several beats."""
    now = store.now().wall
    return [worker for worker in store.workers() if worker.is_alive(now)]


def _ordered(worker: Worker) -> str:
    """Return the name that an order is given to: that of its supervisor, if it has one."""
    return (parent_name(worker.name) if worker.supervisor else None) or worker.name


def _tables_of(store: Store) -> Tables:
    if not isinstance(store, HasTables):
        raise UsageError(
            f"{shown_url(store.url)} cannot be copied; only SQLite, PostgreSQL and Redis can: for a "
            "server name the store behind it"
        )
    return store.tables


def _fold(store: Store) -> None:
    """Fold what settlements have counted: it is not copied as it is, and charts would miss it."""
    while store.figures.fold({}) == FOLD_MAX:
        pass


def _doubt(store: Store, doubt: Doubt) -> None:
    store.doubt(store.standing("", (), None).incarnation, doubt)


def _check_own(strange: list[Row], begun_at: float) -> None:
    """Raise where a program has stored a job in the target: the copy would delete it."""
    new = [row["id"] for row in strange if row["created_at"] >= begun_at]
    if new:
        raise Refused(
            f"a program stores jobs in the target, which would be lost: {listed(new)}; stop it, delete them, copy again"
        )


def _names(workers: list[Worker]) -> str:
    return listed(sorted({worker.name for worker in workers}))
