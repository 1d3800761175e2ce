"""`ctx.transaction()` on SQLite: the task's own writes and its settlement in one commit.

It holds the only write lock of the file, so it has an end: after `max_s` a timer rolls it back, and from then on every
use of the connection raises. The connection refuses to begin, commit or roll back by hand, because a commit in the
middle would part the writes from the settlement.

The timer's thread and the task's thread never use the connection at once: every operation holds `_use`, and one that
runs on when the time is over is stopped from inside. Only the task's side closes the connection.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.clock import Clock
from holdfast.core.records import Lease, Record
from holdfast.core.settlement import Settlement
from holdfast.errors import LeaseLost, StoreError, TransactionExpired
from holdfast.forks import refuse_if_forked
from holdfast.interrupts import shielded
from holdfast.stores.protocol import Reply
from holdfast.stores.sqlite import statements
from holdfast.stores.sqlite.connection import Connections, WriteConnection, is_outage
from holdfast.stores.sqlite.records import write_records
from holdfast.stores.sqlite.rows import Q


class SqliteTransaction:
    """See `stores/protocol.py: Transaction`."""

    def __init__(self, db: Connections, lease: Lease, max_s: float, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._ending = threading.Lock()
        self._open = True
        why = f"the transaction was open for more than {max_s:g} s and was rolled back; keep it short"
        self._timer = threading.Timer(max_s, self._expire, (why,))
        self._timer.daemon = True
        with shielded():
            self.connection = db.open(FencedConnection)
            try:
                db.begin(connection=self.connection)
                token = {"id": lease.job_id, "fence": lease.fence, "claim_id": lease.claim_id}
                if self.connection.execute(Q["transaction"], token).fetchone() is None:
                    raise LeaseLost(f"job {lease.job_id}: this attempt no longer holds the lease")
                self.connection.lend()
                self._timer.start()
            except BaseException:
                self.rollback()
                raise

    @property
    def outage(self) -> StoreError | None:
        last_error = self.connection.last_error
        return self._db.explain(last_error) if last_error is not None and is_outage(last_error) else None

    def hand_over(self) -> None:
        self._db.hand_over(self.connection)

    def settle(self, settlement: Settlement) -> Reply:
        return self._end(lambda db: statements.settle(db, [settlement], self._clock.wall())[0])

    def record(self, record: Record) -> Reply:
        return self._end(lambda db: write_records(db, [record], self._clock.wall())[0])

    def _end(self, write: Callable[[sqlite3.Connection], Reply]) -> Reply:
        with shielded():
            self.connection.take_back()
            with self.connection.to_ourselves():
                try:
                    answer = write(self.connection)
                    if answer is Reply.ACCEPTED:
                        self._db.commit(self.connection)
                except sqlite3.Error as error:
                    raise self._db.explain(error) from error
                finally:
                    self.rollback()  # after the commit it only cleans up
            return answer

    def rollback(self) -> None:
        if self.connection.is_forked:
            return  # it is the parent's: nothing of it may be touched here
        with shielded():
            with self._ending:
                self._timer.cancel()
                if self._open:
                    self._open = False
                    try:
                        self.connection.take_back(force=True)
                        self._db.undo(self.connection)
                    finally:  # whatever the user's code did to the connection, others must be able to write
                        self._db.let_the_next_writer_in(self.connection)
            self.connection.end()

    def _expire(self, why: str) -> None:
        with self._ending:
            if self._open and self.connection.expire(why):
                self._open = False
                self._db.let_the_next_writer_in(self.connection)


class FencedConnection(WriteConnection):
    """A connection lent to the user's code for one transaction."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._use = threading.RLock()
        self._whose = threading.Lock()  # guards the two below: the task's end and the timer race for them
        self._expired: str | None = None
        self._lent = False
        self.last_error: sqlite3.Error | None = None  # how the last operation failed
        self._pid = os.getpid()

    @property
    def is_forked(self) -> bool:
        """Say whether this is another process than the one that opened it."""
        return os.getpid() != self._pid

    def lend(self) -> None:
        """Hand the connection to the user's code: no transaction control from now on."""
        self._set_rules(_no_transaction_control, lambda: self._expired is not None)
        self._lent = True

    def take_back(self, force: bool = False) -> None:
        """End the user's part; raises if the time is over, unless forced. The timer does nothing from now on."""
        with self._whose:
            if self._expired is not None and not force:
                raise TransactionExpired(self._expired)
            self._lent = False
        with self._use:
            try:
                self._set_rules(None, None)
            except sqlite3.ProgrammingError as error:  # closed past `close`: SQLite has rolled back
                if not force:
                    raise TransactionExpired("the connection of the transaction was closed by hand") from error

    def to_ourselves(self) -> threading.RLock:
        """Return the lock that keeps a thread of the task, if it still has the connection, out until it is closed: what
        it wrote after our commit would belong to no attempt."""
        return self._use

    def expire(self, why: str) -> bool:
        """Roll back and refuse every further use, if the user's code still has the connection; say whether it had."""
        with self._whose:
            if not self._lent:
                return False
            self._lent, self._expired = False, why
        with self._use, contextlib.suppress(sqlite3.ProgrammingError):  # closed past `close`: SQLite has rolled back
            self._set_rules(None, None)  # soon: a statement that runs on is stopped by the progress handler
            if self.in_transaction:
                super().rollback()
        return True

    def _set_rules(self, authorizer: Any, is_over: Any) -> None:
        self.set_authorizer(authorizer)
        self.set_progress_handler(is_over, 10_000)

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Do one operation; raises when the time is over, before or during it."""
        self._check()
        with self._use:
            self._check()
            self.last_error = None
            try:
                yield
            except sqlite3.Error as error:
                self._check()  # it was stopped because the time is over
                self.last_error = error
                raise
            finally:
                if self._lent and not self.in_transaction:
                    # INSERT OR ROLLBACK, a trigger, a full disk: from here on every statement would commit by itself.
                    self._lent, self._expired = (
                        False,
                        "SQLite rolled the transaction back; nothing more can be written",
                    )

    def _check(self) -> None:
        refuse_if_forked(self._pid)
        if self._expired is not None:
            raise TransactionExpired(self._expired)

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(FencedCursor if factory is None else _fenced(factory))

    def execute(self, *arguments: Any) -> Any:
        return self.cursor().execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        return self.cursor().executemany(*arguments)

    def executescript(self, *_: Any) -> sqlite3.Cursor:
        raise sqlite3.ProgrammingError("executescript() commits by itself; use execute()")

    def commit(self) -> None:
        raise sqlite3.ProgrammingError("Holdfast commits the transaction; do not commit by hand")

    def rollback(self) -> None:
        raise sqlite3.ProgrammingError("raise an exception to roll the transaction back")

    def close(self) -> None:
        raise sqlite3.ProgrammingError("Holdfast closes the connection; do not close it by hand")

    def end(self) -> None:
        """Close the connection: the user's part is over."""
        super().close()


class FencedCursor(sqlite3.Cursor):
    """A cursor that works only while its transaction is open."""

    if TYPE_CHECKING:  # nobody else makes one

        @property
        def connection(self) -> FencedConnection: ...

    def execute(self, *arguments: Any) -> FencedCursor:
        with self.connection.using():
            super().execute(*arguments)
        return self

    def executemany(self, *arguments: Any) -> FencedCursor:
        with self.connection.using():
            super().executemany(*arguments)
        return self

    def executescript(self, *_: Any) -> FencedCursor:
        raise sqlite3.ProgrammingError("executescript() commits by itself; use execute()")

    def fetchone(self) -> Any:
        with self.connection.using():
            return super().fetchone()

    def fetchmany(self, *size: Any, **named: Any) -> list[Any]:
        with self.connection.using():
            return super().fetchmany(*size, **named)

    def fetchall(self) -> list[Any]:
        with self.connection.using():
            return super().fetchall()

    def __next__(self) -> Any:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row


@functools.cache
def _fenced(factory: type) -> type:
    """Return the caller's class of cursors with our checks: a plain cursor would write after the end."""
    return factory if issubclass(factory, FencedCursor) else type(factory.__name__, (factory, FencedCursor), {})


def _no_transaction_control(action: int, *_: Any) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK
