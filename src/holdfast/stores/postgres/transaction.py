"""`ctx.transaction()` on PostgreSQL: the task's own writes and its settlement in one commit.

It has a session of its own, so that many of them never keep the beat waiting for a connection. One that was committed
is reset and used again: a new one costs the server five times as much. It has an end, because an open transaction holds
locks and keeps the server from cleaning up: after `max_s` a timer ends it, and from then on every use raises. If this
process cannot, because it is frozen or cut off, the server ends it a little later.

A commit in the middle would part the writes from the settlement: the connection refuses to commit or roll back by hand,
and one that was made in plain SQL is noticed, at once or by a mark that ends with its transaction.

No lock is held on the job's row before the settlement, which checks the fence: beats go on meanwhile. The settlement
waits a second for that row; if the row stays locked, nothing is committed and the job runs again.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGconn

from holdfast.clock import SystemClock
from holdfast.core.records import Lease, Record
from holdfast.core.settlement import Settlement
from holdfast.errors import LeaseLost, StoreError, TransactionExpired, UsageError
from holdfast.forks import refuse_if_forked
from holdfast.interrupts import shielded
from holdfast.stores.postgres import statements
from holdfast.stores.postgres.caller_connection import CallerCursor
from holdfast.stores.postgres.connection import Connections, NoAnswer, Session, is_outage
from holdfast.stores.postgres.records import write_records
from holdfast.stores.protocol import Reply

_STOP_S = 2.0  # how long to wait for a statement that was asked to stop
_RESET_S = 5.0  # a kept session that does not answer for this long is given up
_LOCK_MS = "1000"  # how long the settlement waits for a job's row that another transaction has locked
_SPARE_S = 60.0  # how long a session is kept for the next transaction
_BY_HAND = "the transaction was committed or rolled back by hand in SQL, and is over; leave that to Holdfast"
_ABORTED = (
    "a statement in the transaction failed and the task went on: PostgreSQL has undone all of it. Let the error "
    "pass, or put what may fail into a block `with db.transaction():`"
)

_ENCODING = "client_encoding was changed in the transaction; set it back to UTF8 before the transaction ends"


class PostgresTransaction:
    """See `stores/protocol.py: Transaction`."""

    def __init__(self, sessions: Sessions, lease: Lease, max_s: float, wall: Callable[[], float | None]) -> None:
        self._sessions = sessions
        self._db = db = sessions.db
        self._wall = wall
        self._job_id = lease.job_id
        self._mark = f"{lease.job_id} {lease.fence} {lease.claim_id}"
        self._ending = threading.Lock()
        self._open = True
        why = f"the transaction was open for more than {max_s:g} s and was rolled back; keep it short"
        self._timer = threading.Timer(max_s, self._expire, (why,))
        self._timer.daemon = True
        token = {"id": lease.job_id, "fence": lease.fence, "claim_id": lease.claim_id, "mark": self._mark}
        token["server_ms"] = str(round(max_s * 2_000) + 1_000)
        with shielded():
            try:
                self.connection = sessions.take()
            except psycopg.Error as error:
                raise db.explain(error) from error
            try:
                self.connection.answer_s = max_s + _RESET_S  # a commit has no timer, and must not be awaited for ever
                # Whatever the database's default is: a beat that changes the job's row meanwhile does not conflict.
                self.connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                if CallerCursor(self.connection).execute(db["transaction"], token).fetchone() is None:
                    raise LeaseLost(f"job {lease.job_id}: this attempt no longer holds the lease")
                self.connection.lend()
                self._timer.start()
            except BaseException as error:
                self.rollback()
                if isinstance(error, psycopg.Error):
                    raise db.explain(error) from error
                raise

    @property
    def outage(self) -> StoreError | None:
        last_error = self.connection.last_error
        return self._db.explain(last_error) if last_error is not None and is_outage(last_error) else None

    def hand_over(self) -> None:
        pass  # a thread never waits for a transaction that it has open itself, unless both write the same row

    def settle(self, settlement: Settlement) -> Reply:
        return self._end(lambda db: statements.settle(self._db, db, [settlement], self._wall())[0])

    def record(self, record: Record) -> Reply:
        return self._end(lambda db: write_records(self._db, db, [record], self._wall())[0])

    def _end(self, write: Callable[[CallerCursor], Reply]) -> Reply:
        with shielded():
            self._timer.cancel()
            try:
                self.connection.take_back()
                db = CallerCursor(self.connection)
                self._check_mark_and_lock(db)
                answer = write(db)
                if answer is Reply.ACCEPTED:
                    psycopg.Connection.commit(self.connection)
                    self._give_back()
            except psycopg.Error as error:
                self.connection.check()  # the time was over meanwhile
                raise self._db.explain(error) from error
            finally:
                self.rollback()  # after the commit there is nothing to roll back
        return answer

    def rollback(self) -> None:
        if self.connection.is_forked:
            return  # the session is the parent's
        with shielded(), self._ending:
            self._timer.cancel()
            if self._open:
                self._open = False
                self.connection.end()

    def _give_back(self) -> None:
        with self._ending:
            if self._open:
                self._open = False
                self._sessions.give(self.connection)

    def _expire(self, why: str) -> None:
        with self._ending:
            if self._open:
                self.connection.expire(why)

    def _check_mark_and_lock(self, db: CallerCursor) -> None:
        """Wait for the rows that the settlement changes, and hold them until the commit: the settlement itself skips
        rows that others have locked, and a success must not be reported without the task's writes."""
        if self.connection.info.transaction_status == TransactionStatus.INERROR:
            raise UsageError(_ABORTED)
        if self.connection.info.encoding != "utf-8":
            raise UsageError(_ENCODING)
        row = db.execute(self._db["transaction_mark"], {"id": self._job_id, "lock_ms": _LOCK_MS}).fetchone()
        if row is None or row[0] != self._mark:
            raise UsageError(_BY_HAND)


class Sessions:
    """The sessions of one store for transactions: opened when needed, kept for a while for the next."""

    def __init__(self, db: Connections) -> None:
        self.db = db
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._spare: list[tuple[float, PGconn]] = []  # since when; the newest last
        self._closed = False

    def take(self) -> FencedConnection:
        """Return a connection that nobody has used, inside no transaction."""
        while (session := self._spared()) is not None:
            connection = FencedConnection(session)
            try:
                if self.db.pooled:  # a pooler's session is not ours to reset, and does not keep what is prepared
                    connection.prepare_threshold = None
                else:
                    connection.autocommit = True
                    connection.execute(self.db["transaction_reset"])
                    connection.autocommit = False
                return connection
            except psycopg.Error:  # the server was restarted
                connection.close()
        return self.db.open(FencedConnection, autocommit=False)

    def give(self, connection: FencedConnection) -> None:
        """Keep the session of a connection that is done with; the connection itself is of no use any more."""
        session = connection.retire()
        now = self._clock.lease()
        with self._lock:
            if session is not None:
                self._spare.append((now, session))
            kept = [] if self._closed else self._spare[-self.db.options.pool_max :]
            kept = [each for each in kept if now - each[0] < _SPARE_S]
            dropped, self._spare = [each for each in self._spare if each not in kept], kept
        for _, old in dropped:
            old.finish()

    def close(self) -> None:
        self._closed = True
        while (session := self._spared()) is not None:
            session.finish()

    def forget(self) -> None:
        """In a forked child: the sessions are the parent's. The driver ends none that another process has opened."""
        self._lock, self._spare = threading.Lock(), []

    def _spared(self) -> PGconn | None:
        with self._lock:
            return self._spare.pop()[1] if self._spare else None


class FencedConnection(Session):
    """A connection lent to the user's code for one transaction."""

    answer_s = _RESET_S
    last_error: psycopg.Error | None = None  # how the last operation failed
    _pid = 0
    _over: tuple[type[Exception], str] | None = None
    _lent = False
    _retired = False

    def lend(self) -> None:
        """Hand the connection to the user's code: the transaction that is open is the only one from now on."""
        self._lent, self._pid = True, os.getpid()

    @property
    def is_forked(self) -> bool:
        """Say whether this is another process than the one that it was lent in."""
        return self._pid not in (0, os.getpid())

    def take_back(self) -> None:
        """End the user's part; raises if the transaction is over."""
        self.check()
        self._lent = False

    def retire(self) -> PGconn | None:
        """Return the session for another connection, if it is as clean as after our commit. Code that has kept this one
        cannot use it any more."""
        with self.lock:  # nobody is inside
            self._over = psycopg.InterfaceError, "the connection is closed: the attempt is over"
            clean = self.pgconn.transaction_status == TransactionStatus.IDLE
            if not clean:
                self.close()
            self._retired = True
        return self.pgconn if clean else None

    @property
    def closed(self) -> bool:
        return self._retired or super().closed

    def expire(self, why: str) -> None:
        """End the session; from now on every use says why."""
        self._over = TransactionExpired, why
        self.end()

    def end(self) -> None:
        """End the session; the server rolls back what was not committed. A statement that another thread waits for is
        stopped first: to close the session under the driver's feet would be the end of this process."""
        ours = self.lock.acquire(blocking=False)
        if not ours:
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=_STOP_S)
            ours = self.lock.acquire(timeout=_STOP_S)
        if not ours:
            self.last_error = NoAnswer("the server does not answer")
            with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(self.pgconn.socket)) as line:
                line.shutdown(socket.SHUT_RDWR)
            ours = self.lock.acquire(timeout=_STOP_S)
        self._lent = False
        if ours:  # else the line is cut, and the server knows
            self.close()
            self.lock.release()

    def check(self) -> None:
        """Raise if the transaction is over, or belongs to another process."""
        if self.is_forked:
            refuse_if_forked(self._pid)
        if self._over is not None:
            kind, why = self._over
            raise kind(why)

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Every operation of the driver passes here."""
        self.check()
        try:
            answer = super().wait(*arguments, **options)
        except psycopg.Error as error:
            self.check()
            self.last_error = error
            raise
        self.last_error = None
        if self._lent and self.pgconn.transaction_status == TransactionStatus.IDLE:
            self._over = UsageError, _BY_HAND
            self.check()
        return answer

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        self.check()
        return super().cursor(*arguments, **options)

    def cancel(self) -> None:
        self.check()
        super().cancel()

    def cancel_safe(self, *, timeout: float = 30.0) -> None:
        if not self._retired:
            super().cancel_safe(timeout=timeout)

    def commit(self) -> NoReturn:
        raise psycopg.ProgrammingError("Holdfast commits the transaction; do not commit by hand")

    def rollback(self) -> NoReturn:
        raise psycopg.ProgrammingError("raise an exception to roll the transaction back")

    def set_autocommit(self, value: bool) -> None:
        if not self._lent:
            return super().set_autocommit(value)
        raise psycopg.ProgrammingError("Holdfast commits the transaction; autocommit cannot be changed in it")

    def close(self) -> None:
        if self._lent:
            raise psycopg.ProgrammingError("Holdfast closes the connection; do not close it by hand")
        super().close()

    def __exit__(self, *_: object) -> None:
        """Do nothing: `with connection:` is how people commit and close, and that is not theirs to do."""
