"""The context of a running handler: its own attempt."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from contextvars import ContextVar
from typing import Any, TypeVar, overload

from holdfast.clock import Clock
from holdfast.core.payload import JSON
from holdfast.core.records import Job
from holdfast.core.text import clean
from holdfast.errors import Cancelled, HoldfastError, LeaseLost, StoreError, UsageError, is_outage
from holdfast.failpoints import point
from holdfast.interrupts import shielded
from holdfast.runtime.log_fields import current_attempt
from holdfast.stores.protocol import Store
from holdfast.worker.activity import TaskTransaction
from holdfast.worker.attempt import Attempt
from holdfast.worker.sessions import Sessions, check_kind

T = TypeVar("T")

NOTE_MAX = 1_000  # characters of a progress note
METADATA_MAX = 2_000  # characters of what a heartbeat carries, as JSON
TRANSACTION_MAX_S = 5.0  # however long the lease: others wait for the lock meanwhile, and have leases of their own


context_maker: ContextVar[Callable[[Attempt], Context] | None] = ContextVar("holdfast_context", default=None)


def current_job() -> Context | None:
    """Return the context of the job that runs this code; None outside of jobs.

    Code that the job calls finds it, also in `asyncio` tasks and `asyncio.to_thread`. Threads that a handler starts by
    itself do not; give them the context.
    """
    attempt, make = current_attempt.get(), context_maker.get()
    return make(attempt) if attempt is not None and make is not None else None


class Context:
    """The first argument of a task that asks for it: `def transcode(ctx: Context, path: str)`."""

    __slots__ = ("_attempt", "_beat", "_clock", "_store", "log")

    def __init__(
        self, attempt: Attempt, store: Store, clock: Clock, beat: Callable[[], None], logger: logging.Logger
    ) -> None:
        self._attempt = attempt
        self._store = store
        self._clock = clock
        self._beat = beat
        self.log = logging.LoggerAdapter(logger, {"job_id": attempt.job.id, "task": attempt.job.task})

    @property
    def job(self) -> Job:
        """Return the job's row as it was claimed."""
        return self._attempt.job

    @property
    def attempt(self) -> int:
        """Return how many times the job was claimed, this time included; an earlier worker may not have begun it."""
        return self._attempt.job.attempt

    @property
    def fence(self) -> int:
        """Return a number that only ever rises; pass it on so that others can refuse a zombie."""
        return self._attempt.lease.fence

    @property
    def cancelled(self) -> bool:
        """Say whether this job was asked to stop."""
        return isinstance(self._attempt.handler.interrupt, Cancelled)

    @property
    def deadline(self) -> float | None:
        """Return when the attempt runs into its `timeout_s`, on the worker's lease clock; None without one."""
        return self._attempt.activity.deadline

    def time_left(self) -> float | None:
        """Return the seconds until `timeout_s` is reached; None without one."""
        deadline = self._attempt.activity.deadline
        return None if deadline is None else max(0.0, deadline - self._clock.lease())

    def progress(self, fraction: float | None = None, *, note: str | None = None) -> None:
        """Tell how far the work is, from 0 to 1; it also proves that the work moves. Raises if it must stop."""
        self._check_runs()
        self._attempt.move(self._clock.lease(), _checked_fraction(fraction), _checked_note(note))
        point("progress", note or "")
        self._check()

    def heartbeat(self, **metadata: Any) -> None:
        """Send a beat soon, without waiting for it. Leases renew by themselves; few tasks need this.

        `metadata`, JSON of at most 2,000 characters, replaces what the last such call said: people see it while the job
        runs, and the event of the attempt's end keeps it.
        """
        self._check_runs()
        self._attempt.move(self._clock.lease(), None, None, _checked_metadata(metadata) if metadata else None)
        with shielded():  # it wakes a thread, which takes a lock for a moment
            self._beat()
        self._check()

    def resource(self, kind: type[T]) -> T:
        """Return what `app.resource` declares for this class, opened if it is not."""
        return self._attempt.task.app.resources.get(kind)

    async def aresource(self, kind: type[T]) -> T:
        """Do as `resource` does in an async task, also for what is opened with await."""
        return await self._attempt.task.app.resources.aget(kind)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Yield a connection of the store's driver (`sqlite3`, `psycopg`) inside an open transaction.

        Writes through it commit together with the end of this attempt, when the task returns, or not at all.
        Put it last and keep it short: it holds locks that others wait for. Only stores with SQL have it.
        """
        self._check_runs()
        if self._attempt.transaction is not None and self._attempt.transaction.current is not None:
            raise UsageError("ctx.transaction() was opened before in this attempt; do all writes in one")
        opened = self._attempt.transaction = self._attempt.transaction or TaskTransaction("ctx.transaction()")
        opened.opened_by = "ctx.transaction()"
        max_s = min(self._attempt.job.beat_s / 2, TRANSACTION_MAX_S)
        try:
            manager = self._store.transaction(self._attempt.lease, max_s)  # an isolated task opens its store here
            transaction = manager.__enter__()
        except StoreError as error:
            opened.outage = error if is_outage(error) else None
            raise
        opened.current, opened.manager = transaction, manager
        try:
            yield transaction.connection
        except BaseException as error:
            opened.outage = None
            opened.roll_back(error)
            raise

    @overload
    def session(self) -> AbstractContextManager[Any]: ...
    @overload
    def session(self, kind: type[T]) -> AbstractContextManager[T]: ...
    @contextmanager
    def session(self, kind: type[Any] = object) -> Iterator[Any]:
        """Yield a session of the app's ORM inside `transaction()`: its writes commit with the end of this attempt.

        An integration installs it: `install_sessions(app)` of `holdfast.integrations.sqlalchemy`. kind: the class of
        the session, which type checkers then know.
        """
        sessions = self._sessions("ctx.session")
        with self.transaction() as connection, sessions.session(connection) as made:
            check_kind(made, kind, "ctx.session")
            yield made

    @overload
    def asession(self) -> AbstractAsyncContextManager[Any]: ...
    @overload
    def asession(self, kind: type[T]) -> AbstractAsyncContextManager[T]: ...
    @asynccontextmanager
    async def asession(self, kind: type[Any] = object) -> AsyncIterator[Any]:
        """Do as `session` does in an async task, with a session that is awaited. Each statement blocks the loop."""
        sessions = self._sessions("ctx.asession")
        with self.transaction() as connection:
            async with sessions.asession(connection) as made:
                check_kind(made, kind, "ctx.asession")
                yield made

    def _sessions(self, call: str) -> Sessions:
        resources = self._attempt.task.app.resources
        if Sessions not in resources:
            raise UsageError(
                f"{call}() needs an ORM: call install_sessions(app) of holdfast.integrations.sqlalchemy where the app "
                "is declared; with Django's, use ctx.transaction() and transaction(db) of holdfast.integrations.django"
            )
        return resources.get(Sessions)  # type: ignore[type-abstract]

    def _check_runs(self) -> None:
        """Refuse what the handler has left behind, in threads or tasks of its own."""
        if self._attempt.handler.ended:
            raise self._attempt.handler.interrupt or LeaseLost(f"this attempt of job {self._attempt.job.id} has ended")

    def _check(self) -> None:
        if self._attempt.handler.interrupt is not None:
            raise self._attempt.handler.interrupt


def _checked_fraction(fraction: float | None) -> float | None:
    """Return it as a plain number: it travels in one beat with the leases of others, and must not spoil that."""
    if fraction is None:
        return None
    with suppress(TypeError, ValueError):
        if 0.0 <= (number := float(fraction)) <= 1.0:
            return number
    raise UsageError(f"ctx.progress({fraction!r}): the fraction must be a number from 0 to 1")


def _checked_metadata(metadata: dict[str, Any]) -> str:
    try:
        text = JSON.encode(metadata)
        text.encode()
    except (HoldfastError, ValueError, TypeError) as error:
        raise UsageError(f"ctx.heartbeat(…): its metadata must be JSON: {error}") from error
    if len(text) > METADATA_MAX:
        raise UsageError(
            f"ctx.heartbeat(…): its metadata has {len(text):,} characters of JSON; at most {METADATA_MAX:,}"
        )
    return text


def _checked_note(note: str | None) -> str | None:
    if note is None:
        return None
    if not isinstance(note, str):
        raise UsageError(f"ctx.progress(note={note!r}): the note must be text")
    return clean(str(note)[:NOTE_MAX], NOTE_MAX)
