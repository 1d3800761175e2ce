"""`ctx.transaction()` on PostgreSQL: the task's own writes and its settlement in one commit.

It has a session of its own, so that many of them never keep the beat waiting for a connection. It has an end, because
an open transaction holds locks and keeps the server from cleaning up: after `max_s` a timer ends it, and from then on
every use raises. A commit in the middle would part the writes from the settlement: the connection refuses to commit or
roll back by hand, and one that was made in plain SQL is noticed by a mark that ends with its transaction.

No lock is held on the job's row before the settlement, which checks the fence: beats go on meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NoReturn

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.core.records import Lease
from holdfast.core.verdict import Settlement
from holdfast.errors import LeaseLost, TransactionExpired, UsageError
from holdfast.shield import shielded
from holdfast.stores.postgres import batch
from holdfast.stores.postgres.connection import Connections
from holdfast.stores.protocol import Answer


class PostgresTransaction:
    """See `stores/protocol.py: Transaction`."""

    def __init__(self, db: Connections, lease: Lease, max_s: float, wall: Callable[[], float | None]) -> None:
        self._db = db
        self._wall = wall
        self._mark = f"{lease.job_id} {lease.fence} {lease.claim_id}"
        self._ending = threading.Lock()
        self._open = True
        why = f"ctx.transaction() was open for more than {max_s:g} s and was rolled back; keep it short and last"
        self._timer = threading.Timer(max_s, self._expire, (why,))
        self._timer.daemon = True
        with shielded():
            try:
                self.connection = db.open(FencedConnection, autocommit=False)
                token = {"id": lease.job_id, "fence": lease.fence, "claim_id": lease.claim_id, "mark": self._mark}
                if self.connection.execute(db["transaction"], token).fetchone() is None:
                    self.rollback()
                    raise LeaseLost(f"job {lease.job_id}: another attempt holds the lease")
                self._timer.start()
            except psycopg.Error as error:
                raise db.explain(error) from error

    def settle(self, settlement: Settlement) -> Answer:
        with shielded():
            self._timer.cancel()
            try:
                self.connection.check()
                self._check_mark()
                answer = batch.settle(self._db, self.connection.cursor(), [settlement], self._wall())[0]
                if answer is Answer.ACCEPTED:
                    psycopg.Connection.commit(self.connection)
            except psycopg.Error as error:
                self.connection.check()  # the time was over meanwhile
                raise self._db.explain(error) from error
            finally:
                self.rollback()  # after the commit it only cleans up
        return answer

    def rollback(self) -> None:
        with shielded(), self._ending:
            self._timer.cancel()
            if self._open:
                self._open = False
                self.connection.close()  # the server rolls back what was not committed

    def _expire(self, why: str) -> None:
        with self._ending:
            if self._open:
                self.connection.expire(why)

    def _check_mark(self) -> None:
        if self.connection.info.transaction_status == TransactionStatus.INERROR:
            return  # an error that the task has swallowed: the settlement says so
        row = self.connection.execute(self._db["transaction_mark"]).fetchone()
        if row is None or row[0] != self._mark:
            raise UsageError("ctx.transaction() was committed or rolled back by hand in SQL; leave that to Holdfast")


class FencedConnection(psycopg.Connection[Any]):
    """A connection lent to the user's code for one transaction."""

    expired: str | None = None

    def expire(self, why: str) -> None:
        """End the session; whatever runs in it is stopped."""
        self.expired = why
        self.cancel_safe(timeout=2.0)
        with self.lock:  # soon: the driver's thread has been told to stop
            self.close()

    def check(self) -> None:
        """Raise if the time is over."""
        if self.expired is not None:
            raise TransactionExpired(self.expired)

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Every operation of the driver passes here."""
        self.check()
        try:
            return super().wait(*arguments, **options)
        except psycopg.Error:
            self.check()
            raise

    def commit(self) -> NoReturn:
        raise psycopg.ProgrammingError("ctx.transaction() commits when the task returns; do not commit by hand")

    def rollback(self) -> NoReturn:
        raise psycopg.ProgrammingError("raise an exception to roll ctx.transaction() back")

    def set_autocommit(self, value: bool) -> None:
        raise psycopg.ProgrammingError("ctx.transaction() is one transaction; autocommit cannot be changed in it")
