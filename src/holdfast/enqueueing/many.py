"""Many jobs at once: `app.enqueue_many` and `app.enqueue_stream`, in short transactions."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.records import NewJob
from holdfast.errors import StoreError, UsageError
from holdfast.stores.protocol import Added, Store
from holdfast.tasks import Draft
from holdfast.upkeep.dependents import looked_up

if TYPE_CHECKING:
    from holdfast.app import App

ADD_AT_ONCE = 1_000  # jobs in one transaction of `enqueue_many`,
ADD_CHARACTERS = 4_000_000  # and characters of their payloads, unless one job has more


class StreamProgress(NamedTuple):
    """The result of one transaction of `app.enqueue_stream`."""

    stored: int  # new jobs
    existed: int  # jobs whose id or key was taken: those are stored already
    total: int  # jobs of the stream that are stored by now, new or not


OnProgress = Callable[[StreamProgress], object]


class EnqueueStream(Iterator[StreamProgress]):
    """Stores drafts as it is iterated over; see `App.enqueue_stream`."""

    def __init__(self, app: App, drafts: Iterable[Draft[Any]], chunk: int, on_progress: OnProgress | None) -> None:
        if not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1:
            raise UsageError(f"chunk={chunk!r} must be a whole number of at least 1")
        self._app = app
        self._drafts = iter(drafts)
        self._chunk = chunk
        self._on_progress = on_progress
        self._batch: list[NewJob] = []  # what is not stored yet
        self._characters = 0
        self._one_at_a_time = threading.Lock()
        self.apply: Callable[[Draft[Any]], Draft[Any]] = app.enqueue_layers.apply
        self.began = False
        self.total = 0

    def __next__(self) -> StreamProgress:
        self.began = True
        if not self._one_at_a_time.acquire(blocking=False):
            raise UsageError("this enqueue_stream is being iterated over already; give each thread a stream of its own")
        try:
            self._fill()
            if not self._batch:
                raise StopIteration
            return self._store_batch()
        finally:
            self._one_at_a_time.release()

    def _fill(self) -> None:
        while not self.is_full:
            try:
                draft = next(self._drafts)
            except StopIteration:
                return
            except Exception as error:
                self.note_failure(error)
                raise
            self.take(draft)

    @property
    def is_full(self) -> bool:
        """Say whether what was taken is enough for a transaction."""
        most = min(self._chunk, self._app.store.add_at_once)
        return len(self._batch) >= most or self._characters >= ADD_CHARACTERS

    def note_failure(self, error: Exception) -> None:
        """Add to an error of the drafts how many jobs are stored."""
        error.add_note(f"{self.total:,} jobs of the stream are stored; those of this chunk are not")

    def take(self, draft: Draft[Any]) -> None:
        """Keep a job for the next transaction."""
        check_draft(self._app, draft)
        self.keep(self.apply(draft))

    def keep(self, draft: Draft[Any]) -> None:
        """Keep a job that has passed the enqueue middleware."""
        if draft.connection is not None:
            raise UsageError(
                "enqueue_stream commits chunk by chunk, and cannot join a transaction of yours (using(connection=…), "
                "or Django's atomic()): use app.enqueue_many inside of it, or begin the stream after its commit"
            )
        self._batch.append(draft.new)
        self._characters += len(draft.new.payload)

    def _store_batch(self) -> StreamProgress:
        """Store what was taken. After an error it is still there: the next call stores it."""
        batch = self._batch
        try:
            added = self._app.store.add(looked_up(self._app.store, batch))
        except StoreError as error:
            error.stored_count = self.total
            error.args = (
                f"{self.total:,} jobs of the stream are stored. The next {len(batch):,} failed, and to enqueue them "
                f"again with the same ids is safe: {error}",
            )
            raise
        self._batch, self._characters = [], 0
        self._app._note_added(added[0].id)
        existed = sum(each.existed for each in added)
        self.total += len(added)
        progress = StreamProgress(len(added) - existed, existed, self.total)
        if self._on_progress is not None:
            self._on_progress(progress)
        return progress

    def __del__(self) -> None:
        if not getattr(self, "began", True):
            words = "app.enqueue_stream(…) was never iterated over: nothing is stored"
            with contextlib.suppress(Exception):
                warnings.warn(words, RuntimeWarning, stacklevel=2, source=self)


def store_many(app: App, jobs: Sequence[NewJob], connection: Any = None) -> list[Added]:
    """Store jobs in short transactions, and say how many are stored if one fails. With a connection of the caller, its
    commit stores them and wakes the workers."""
    jobs = looked_up(app.store, jobs, joins=connection is not None)
    if connection is not None:
        return app.store.add(jobs, connection)
    stored: list[Added] = []
    for chunk in _chunks(jobs, at_once(app.store)):
        try:
            stored += app.store.add(chunk)
        except StoreError as error:
            if stored:
                error.stored_ids = tuple(each.id for each in stored)
                error.args = (
                    f"{len(stored):,} of {len(jobs):,} jobs are stored. To enqueue the same drafts again is safe, "
                    f"and stores nothing twice. The next {len(chunk):,} failed: {error}",
                )
            raise
        app._note_added(stored[-1].id)
    return stored


def check_draft(app: App, draft: object) -> None:
    """Raise unless this is a job of the app that is not stored yet."""
    if not isinstance(draft, Draft) or draft.task.app is not app:
        raise UsageError(f"{draft!r} is not a job of this app; make it with task.job(…)")


def at_once(store: Store) -> int:
    """Return how many jobs of a call share a transaction: fewer on a store with a bound."""
    return ADD_AT_ONCE if store.add_max is None else min(ADD_AT_ONCE, store.add_at_once)


def first_chunk(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Return the first jobs, as many as a store can take in one short transaction: other writers wait for its end."""
    characters = 0
    for place, job in enumerate(jobs[:ADD_AT_ONCE]):
        characters += len(job.payload)
        if place and characters > ADD_CHARACTERS:
            return jobs[:place]
    return jobs[:ADD_AT_ONCE]


def _chunks(jobs: Sequence[NewJob], most: int) -> Iterator[Sequence[NewJob]]:
    first = 0
    while first < len(jobs):
        chunk = first_chunk(jobs[first : first + most])
        yield chunk
        first += len(chunk)
