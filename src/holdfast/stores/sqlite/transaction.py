"""`ctx.transaction()` on SQLite: the task's own writes and its settlement in one commit.

It holds the only write lock of the file, so it has an end: after `max_s` a timer rolls it back, and from then on every
use of the connection raises. The connection refuses to begin, commit or roll back by hand, because a
commit in the middle would part the writes from the settlement.
"""

from __future__ import annotations

import sqlite3
import threading
from typing import Any

from holdfast.clock import Clock
from holdfast.core.records import Lease
from holdfast.core.verdict import Settlement
from holdfast.errors import LeaseLost, TransactionExpired
from holdfast.stores.protocol import Answer
from holdfast.stores.sqlite import batch
from holdfast.stores.sqlite.connection import Connections


class SqliteTransaction:
    """See `stores/protocol.py: Transaction`."""

    def __init__(self, db: Connections, lease: Lease, max_s: float, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._open = True
        self._ending = threading.Lock()
        self.connection = FencedConnection.open(db)
        token = {"id": lease.job_id, "fence": lease.fence, "claim_id": lease.claim_id}
        if self.connection.execute(batch.Q["transaction"], token).fetchone() is None:
            self.rollback()
            raise LeaseLost(f"job {lease.job_id}: another attempt holds the lease")
        self.connection.lend()
        why = f"ctx.transaction() was open for more than {max_s:g} s and was rolled back; keep it short and last"
        self._timer = threading.Timer(max_s, self._expire, (why,))
        self._timer.daemon = True
        self._timer.start()

    def settle(self, settlement: Settlement) -> Answer:
        self.connection.take_back()
        try:
            answer = batch.settle(self.connection, [settlement], self._clock.wall())[0]
            if answer is not Answer.REFUSED:
                self.connection.execute("COMMIT")
        finally:
            self.rollback()  # a no-op after the commit
        return answer

    def rollback(self) -> None:
        with self._ending:
            if not self._open:
                return
            self._open = False
            if hasattr(self, "_timer"):
                self._timer.cancel()
            self.connection.take_back(force=True)
            self._db.undo(self.connection)
            self._db.end(self.connection, keep=False)

    def _expire(self, why: str) -> None:
        if self.connection.expire(why):
            self.rollback()


class FencedCursor(sqlite3.Cursor):
    """A cursor that works only while its transaction is open."""

    connection: FencedConnection

    def execute(self, *arguments: Any) -> FencedCursor:
        with self.connection.guard():
            super().execute(*arguments)
        return self

    def executemany(self, *arguments: Any) -> FencedCursor:
        with self.connection.guard():
            super().executemany(*arguments)
        return self

    def executescript(self, *_: Any) -> FencedCursor:
        raise sqlite3.ProgrammingError("executescript() commits by itself; use execute() in ctx.transaction()")


class FencedConnection(sqlite3.Connection):
    """A connection lent to the user's code for one transaction."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._use = threading.RLock()
        self._expired: str | None = None
        self._lent = False

    @classmethod
    def open(cls, db: Connections) -> FencedConnection:
        """Open a connection of its own, inside a write transaction."""
        connection = db.open(cls)
        db.begin(connection=connection)
        return connection

    def lend(self) -> None:
        """Hand the connection to the user's code: no transaction control from now on."""
        self.set_authorizer(_no_transaction_control)
        self._lent = True

    def take_back(self, force: bool = False) -> None:
        """End the user's part; raises if the time is over, unless forced. The timer does nothing from now on."""
        with self._use if force else self.guard():
            self.set_authorizer(None)
            self._lent = False

    def expire(self, why: str) -> bool:
        """Refuse every further use, if the user's code still has the connection; say whether it had."""
        if not self._lent:
            return False
        self.interrupt()  # a long statement must not keep the lock
        with self._use:
            had, self._lent = self._lent, False
            if had:
                self._expired = why
            return had

    def guard(self) -> threading.RLock:
        """Return the lock under which the connection is used, or raise when its time is over."""
        if self._expired is not None:
            raise TransactionExpired(self._expired)
        return self._use

    def cursor(self, factory: Any = FencedCursor) -> Any:
        return super().cursor(factory)

    def executescript(self, *_: Any) -> sqlite3.Cursor:
        raise sqlite3.ProgrammingError("executescript() commits by itself; use execute() in ctx.transaction()")

    def commit(self) -> None:
        raise sqlite3.ProgrammingError("ctx.transaction() commits when the task returns; do not commit by hand")

    def rollback(self) -> None:
        raise sqlite3.ProgrammingError("raise an exception to roll ctx.transaction() back")


def _no_transaction_control(action: int, *_: Any) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK
