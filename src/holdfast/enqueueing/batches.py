"""`app.batch(…)`: adds jobs to a batch, and closes it."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from holdfast.core.batches import FACTS, Then, checked_abandon_s, then_text
from holdfast.core.batches import Batch as Row
from holdfast.core.callbacks import derived_id
from holdfast.core.dependencies import check_no_after
from holdfast.core.durations import iso
from holdfast.core.keys import check_no_key_rule
from holdfast.core.payload import JSON
from holdfast.enqueueing.many import ADD_AT_ONCE, ADD_CHARACTERS, check_draft, first_chunk
from holdfast.errors import PayloadError, Refused, StoreError, UsageError
from holdfast.ids import new_job_id
from holdfast.tasks import Draft, JobOptions, Sender, Task
from holdfast.upkeep.batch_ends import end_batches
from holdfast.upkeep.dependents import looked_up

if TYPE_CHECKING:
    from holdfast.app import App

ThenTask = Sender[..., Any] | Draft[Any] | str | None


class Batch:
    """A batch that is being filled; see `App.batch`. `existed`: it was closed before, and nothing is stored again."""

    def __init__(self, app: App, then: ThenTask, id: str | None, abandon_s: float) -> None:
        self._app = app
        self._then = None if then is None else then_text(then_of(app, then))
        self._abandon_s = checked_abandon_s(abandon_s)
        self._is_repeatable = JobOptions(id=id).id is not None  # it refuses what cannot be an id
        self.id = id if id is not None else new_job_id(app.clock)
        self.existed = False
        self.added = 0  # jobs that are stored
        self._drafts: dict[str, Draft[Any]] = {}  # those that are not, by the ids that they were added with
        self._characters = self._number = 0
        self._lock = threading.Lock()  # for the three above: an async batch stores while its loop adds
        self._is_stored = self._has_left = False

    def __repr__(self) -> str:
        return f"<Batch {self.id}>"

    def add(self, *drafts: Draft[Any]) -> None:
        """Add jobs, made by `task.job(…)`. They are stored a thousand at a time, and the rest at the end of the block.

        A job whose key or id is taken is not one of the batch. Raises `Refused` if the batch was closed meanwhile. If
        the store fails, the jobs stay added: the next `add` or the end of the block stores them.
        """
        for draft in drafts:
            self.check(draft)
            self.keep(self._app.enqueue_layers.apply(draft))
        if self.is_full:
            self.store()

    def check(self, draft: Draft[Any]) -> None:
        """Raise `UsageError` for what cannot be added."""
        check_draft(self._app, draft)
        if self._has_left:
            raise UsageError(f"batch {self.id} is closed: add jobs inside the `with` block")
        _check_joins_nothing(draft)
        check_no_key_rule(draft.new, "a job of a batch")

    def keep(self, draft: Draft[Any]) -> None:
        """Keep a job that has passed the enqueue middleware."""
        _check_joins_nothing(draft)
        with self._lock:
            if (given := draft.new.id) in self._drafts:
                return  # added again, after the store has failed
            self._number += 1
            if self._is_repeatable and not draft.has_own_id:  # so that a repetition stores nothing twice
                new = msgspec.structs.replace(draft.new, id=derived_id(self.id, "job", self._number))
                draft = dataclasses.replace(draft, new=new)
            self._drafts[given] = draft
            self._characters += len(draft.new.payload)

    @property
    def is_full(self) -> bool:
        """Say whether what was kept is enough for a transaction."""
        return len(self._drafts) >= self._at_once or self._characters >= ADD_CHARACTERS

    @property
    def _at_once(self) -> int:
        return min(ADD_AT_ONCE, self._app.store.add_at_once)

    def store(self) -> None:
        """Store what was kept. After an error it is still there: the next call stores it."""
        self._open()
        left = self._take()
        stored = 0
        try:
            while stored < len(left) and not self.existed:
                chunk = first_chunk([draft.new for _, draft in left[stored : stored + self._at_once]])
                added = self._app.store.batches.add(self.id, looked_up(self._app.store, chunk))
                stored += len(chunk)
                if added is None:
                    self._was_closed()
                    return
                self.added += sum(not each.existed for each in added)
                self._app._note_added(added[-1].id)
        except StoreError:
            self._put_back(left[stored:])
            raise

    def _take(self) -> list[tuple[str, Draft[Any]]]:
        with self._lock:
            taken, self._drafts, self._characters = self._drafts, {}, 0
        return list(taken.items())

    def _put_back(self, left: list[tuple[str, Draft[Any]]]) -> None:
        with self._lock:
            self._drafts = dict(left) | self._drafts
            self._characters = sum(len(each.new.payload) for each in self._drafts.values())

    def _was_closed(self) -> None:
        """Take a batch that another run of the block has completed as one that existed; refuse any other."""
        row = self._row()
        if row is None or not row.complete:
            raise self._refused(row)
        self.existed = True

    def finish(self, error: BaseException | None) -> None:
        """Close the batch. After an error, one that can be repeated stays open for that."""
        self._has_left = True
        if error is not None and (self._is_repeatable or not self._is_stored):
            return
        if error is None:
            self.store()
        if not self.existed:
            self._app.store.batches.close(self.id, complete=error is None)
            if not self._app.store.is_served:  # else the reaper of the server does it: a producer's token may not
                end_batches(self._app.store, self._app.store.batches.get([self.id]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.finish(error)

    def _open(self) -> None:
        if self._is_stored:
            return
        row = self._app.store.batches.open(Row(id=self.id, then=self._then, abandon_s=self._abandon_s))
        self._is_stored = True
        self.existed = row.closed_at is not None
        if self.existed and not row.complete:
            raise self._refused(row)

    def _row(self) -> Row | None:
        found = self._app.store.batches.get([self.id])
        return found[0] if found else None

    def _refused(self, row: Row | None) -> Refused:
        if row is None:
            return Refused(f"batch {self.id} was deleted meanwhile")
        return Refused(
            f"batch {self.id} was closed at {iso(row.closed_at)}, because nobody had added to it for "
            f"{row.abandon_s:g} s; choose a longer abandon_s, and begin another batch"
        )


class AsyncBatch:
    """A batch that is being filled, with `async with` and `await`; see `App.batch`."""

    def __init__(self, app: App, batch: Batch) -> None:
        self._app = app
        self._batch = batch

    @property
    def id(self) -> str:
        """Return its id."""
        return self._batch.id

    @property
    def existed(self) -> bool:
        """Say whether it was closed before; then nothing is stored again."""
        return self._batch.existed

    @property
    def added(self) -> int:
        """Return how many jobs are stored."""
        return self._batch.added

    async def add(self, *drafts: Draft[Any]) -> None:
        for draft in drafts:
            self._batch.check(draft)
            self._batch.keep(await self._app.enqueue_layers.aapply(draft))
        if self._batch.is_full:
            await asyncio.to_thread(self._batch.store)

    add.__doc__ = Batch.add.__doc__

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        await asyncio.to_thread(self._batch.finish, error)


def then_of(app: App, target: object) -> Then:
    """Return what a row needs to store this job at the end of a batch. Raises `UsageError` for what could never run."""
    if isinstance(target, str):
        target = app.named(target)
    if isinstance(target, Draft):
        of, new = target.task, target.new
    elif isinstance(target, Sender):
        of, new = target._task, target._template()
    else:
        of, new = None, None
    if new is None or not isinstance(of, Task) or of.app is not app:
        raise UsageError(f"then={target!r} must be a task of this app, its name, task.using(…) or task.job(…)")
    if app.codec is not JSON:
        raise UsageError("a batch needs an App without codec=: its last job is stored by programs without your code")
    check_no_after(new.awaits, "the last job of a batch")
    new = msgspec.structs.replace(new, id="", key=None)
    given: dict[str, Any] = msgspec.json.decode(new.payload)
    free = {name: value for name, value in FACTS.items() if name not in given}
    try:
        takes = of.takes(free, new.payload)
    except PayloadError as error:
        raise UsageError(
            f"then={of.name}: the last job of a batch gets {', '.join(FACTS)} by name, as far as it takes them, such "
            f"as {FACTS}: {error}"
        ) from error
    return Then(new, takes)


def _check_joins_nothing(draft: Draft[Any]) -> None:
    """Raise `UsageError` for a job that a transaction of the caller's is to store."""
    if draft.connection is not None:
        raise UsageError(
            "a batch commits its jobs itself, and cannot join a transaction of yours (using(connection=…), or Django's "
            "atomic()): open it after the commit, with Django in transaction.on_commit(…)"
        )
