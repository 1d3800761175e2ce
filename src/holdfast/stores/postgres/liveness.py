"""One session for each process that proves its life and hears what is new.

It holds the liveness locks of the process's workers: advisory locks, which the server drops when the session ends,
and listens for the hint that there may be work. Its own thread looks after it twice a second, so that a session that
was cut is noticed and made again, locks first, before anybody believes in a death (see `SESSION_GRACE_S`). Where that
takes longer, because the server has no connection to spare, the worker's beats show that it lives (`holds`).

If one session was cut, all of them may have been, and some come back sooner than others. So a process whose session was
cut does not look for free locks before the others had the time to take theirs again (`SETTLE_S`).

Behind a pooler the session is not ours: the next statement may run in another. The server's process then is not the one
that the driver was told at the start; no lock is held there, and the workers are judged by their leases alone. If that
pooler was put there while they ran, their rows are told that they have no lock any more.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import psycopg
from psycopg import errors

from holdfast.clock import SystemClock
from holdfast.errors import Refused, StoreError, StoreUnavailable
from holdfast.stores.postgres.connection import SESSION_GRACE_S, Connection, Connections

log = logging.getLogger("holdfast.stores")

LOOK_S = 0.5
SURE_S = 0.75  # a look that was answered longer ago than this proves nothing: one is late
SETTLE_S = 2.5  # how long others may need to come back after a cut
TURN_S = 10.0  # the process that looks for free locks may be frozen: so the others look too, this rarely,
LOOKS_S = 2 * SESSION_GRACE_S  # for long enough to believe what they see
SAY_AFTER_S = 5.0  # how long there may be no session before that is logged
_AGAIN_S = 0.3  # the longest pause between two tries to connect
_LOOK_ANSWER_S = 5.0  # a session that does not answer for this long is given up
_ANSWER_S = 15.0
_CLOCK = SystemClock()


class LivenessSession:
    """See the module's docstring."""

    def __init__(self, db: Connections, changed: Callable[[str | None], None]) -> None:
        self._db = db
        self._changed = changed
        self._lock = threading.Lock()
        self._workers: set[str] = set()  # whose locks are ours
        self._held: set[str] = set()  # those of them that this session has
        self._unwritten: dict[str, str | None] = {}  # those whose rows do not say yet on which run of the server it is
        self._run: str | None = None  # that run, as the rows of the others name it
        self._wishes: list[_Wish] = []
        self._thread: threading.Thread | None = None
        self._closing = False
        self._watches = False
        self._cut = False  # a session of this process has ended that was not to end
        self._since = 0.0  # when the session began
        self._answered_at = float("-inf")  # when it last answered
        self._pooled = False
        self._wake_r, self._wake_w = -1, -1
        self._rest = threading.Event()

    def start(self) -> None:
        """Begin to listen, if nobody has yet."""
        with self._lock:
            if self._thread is None and not self._closing:
                self._wake_r, self._wake_w = os.pipe()
                self._thread = threading.Thread(target=self._serve, name="holdfast-liveness", daemon=True)
                self._thread.start()

    def hold(self, worker_id: str) -> str | None:
        """Take the worker's lock; return the run of the server it is on, or None where a lock would mean nothing."""
        self.start()
        if worker_id in self._workers:
            raise Refused(_ENROLLED.format(worker_id))
        found: str | None = self._ask(lambda session: self._take(session, worker_id))
        return found

    def holds(self, worker_id: str) -> bool:
        """Say whether the lock of one of our workers is surely held; True for others, which have none to lose. The
        server may have ended the session, and its word of that may be lost: so the last answer must be a recent one."""
        if worker_id not in self._workers:
            return True
        known = worker_id in self._held and worker_id not in self._unwritten
        return known and _CLOCK.lease() - self._answered_at < SURE_S

    def drop(self, worker_id: str) -> None:
        """Give the lock of one of our workers up; do nothing for others."""
        with self._lock:
            if worker_id not in self._workers:
                return
            self._workers.discard(worker_id)
            self._held.discard(worker_id)
        with suppress(StoreError):  # then the session is cut, and the lock with it
            self._ask(lambda session: session.execute(self._db["enroll_unlock"], {"id": worker_id}))

    def watches(self) -> bool:
        """Say whether it is for this process to look for free locks: one does all the time, the others now and then.
        A process without workers always does: it is a program that does not look often."""
        with self._lock:
            if self._thread is None or not self._workers:
                return True
        if self._watches or self._pooled:
            return self._watches
        try:
            return bool(self._ask(self._try_to_watch))
        except StoreError:
            return False

    def close(self) -> None:
        """End the session."""
        with self._lock:
            self._closing = True
            thread, self._thread = self._thread, None
            if thread is not None:
                self._nudge()
        if thread is None:
            return
        self._rest.set()
        thread.join(5.0)
        if not thread.is_alive():  # else the pipe stays: its numbers must not come to mean other files
            os.close(self._wake_r)
            os.close(self._wake_w)

    def forget(self) -> None:
        """Let a forked child start afresh: threads and sessions stay with the parent."""
        self._lock = threading.Lock()
        self._rest = threading.Event()
        self._workers, self._held, self._wishes, self._thread = set(), set(), [], None
        self._watches = self._cut = False

    # -------------------------------------------------------------------------------------- the thread

    def _ask(self, work: Callable[[Connection], Any]) -> Any:
        """Have the thread do something on the session, and wait for it."""
        wish = _Wish(work)
        with self._lock:
            if self._closing or self._thread is None:
                raise StoreUnavailable(f"the store {self._db.options.shown} is closed")
            self._wishes.append(wish)
            self._nudge()
        if not wish.done.wait(_ANSWER_S):
            raise StoreUnavailable(f"{self._db.options.shown}: no answer within {_ANSWER_S:g} s")
        if isinstance(wish.error, psycopg.Error):
            raise self._db.explain(wish.error) from wish.error
        if wish.error is not None:
            raise wish.error
        return wish.answer

    def _nudge(self) -> None:
        """Wake the thread. Only under the lock and before `close`: later the number may mean another file."""
        os.write(self._wake_w, b".")

    def _serve(self) -> None:
        # Not a `Service`, which is above the stores: a turn lasts as long as a session, and waits for it in `select`.
        pause_s, lost_at, said = 0.05, _CLOCK.lease(), False
        while not self._closing:
            try:
                with closing(self._db.open_pinned()) as session:
                    session.answer_s = _LOOK_ANSWER_S
                    self._set_up(session)
                    if said:
                        log.warning("the liveness session is back after %.1f s", _CLOCK.lease() - lost_at)
                    pause_s, said = 0.05, False
                    self._listen(session)
            except Exception as error:
                if pause_s == 0.05:  # it was there, or this is the first try
                    lost_at = _CLOCK.lease()
                self._cut, self._watches, self._answered_at = True, False, float("-inf")
                self._refuse_wishes(error)
                if self._rest.is_set():
                    return
                said = said or self._say(error, _CLOCK.lease() - lost_at)
                self._rest.wait(pause_s)
                pause_s = min(pause_s * 2, _AGAIN_S)

    def _say(self, error: Exception, lost_s: float) -> bool:
        """Speak up if this lasts: other threads say that the store fails, but this session alone may be refused."""
        words = " ".join(str(error).split())
        if not isinstance(error, psycopg.Error | StoreUnavailable):
            log.error("the liveness thread failed unexpectedly (%s); the thread continues", words)
        elif lost_s >= SAY_AFTER_S and self._workers:
            log.warning(
                "lost the liveness session (%s); reconnecting. Until then, this process sends a heartbeat twice a "
                "second, so that other workers see that it is alive",
                words,
            )
            return True
        return False

    def _set_up(self, session: Connection) -> None:
        self._held, self._unwritten, self._run, self._since = set(), {}, None, _CLOCK.lease()
        self._take_all(session)
        session.add_notify_handler(lambda news: self._changed(news.payload))
        session.execute(self._db["wait"])
        self._answered_at = _CLOCK.lease()
        self._changed(None)  # who knows what was said meanwhile

    def _listen(self, session: Connection) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(session, selectors.EVENT_READ)
            selector.register(self._wake_r, selectors.EVENT_READ)
            look_at = _CLOCK.lease() + LOOK_S
            while not self._closing:
                ready = [key.fileobj for key, _ in selector.select(max(0.0, look_at - _CLOCK.lease()))]
                if self._wake_r in ready:
                    os.read(self._wake_r, 4096)
                    self._grant_wishes(session)
                if ready != [self._wake_r] or _CLOCK.lease() >= look_at:  # wishes may come more often than looks
                    self._look(session)
                    self._take_all(session)
                    look_at = _CLOCK.lease() + LOOK_S

    def _look(self, session: Connection) -> None:
        """See whether the session is still there, and what it has heard. Follow the name of the server's run, which
        changes when an operator resets the server's counters: the locks that are held were taken on this run."""
        asked_at = _CLOCK.lease()
        if self._run is None:
            session.execute(self._db["wait_look"])
            self._answered_at = asked_at
            return
        run = str(self._db.row(session.execute(self._db["enroll_run"]))[0])
        self._answered_at = asked_at
        if run != self._run:
            self._run = run
            self._unwritten |= dict.fromkeys(self._held, run)

    def _take_all(self, session: Connection) -> None:
        """Take the locks that this session does not have: of all after a cut, and of those that the server still gave
        to the session before."""
        for worker_id in set(self._workers) - self._held:
            server = self._take(session, worker_id)
            if worker_id in self._held:
                self._unwritten[worker_id] = server
        with suppress(errors.ReadOnlySqlTransaction, errors.LockNotAvailable):  # then write the row later
            for worker_id, server in list(self._unwritten.items()):
                session.execute(self._db["enroll_again"], {"id": worker_id, "server": server})
                del self._unwritten[worker_id]

    def _grant_wishes(self, session: Connection) -> None:
        with self._lock:
            wishes, self._wishes = self._wishes, []
        for wish in wishes:
            wish.grant(session)
        if session.closed:
            raise psycopg.OperationalError("the session was cut")

    def _refuse_wishes(self, error: Exception) -> None:
        with self._lock:
            wishes, self._wishes = self._wishes, []
        for wish in wishes:
            wish.error = error
            wish.done.set()

    def _take(self, session: Connection, worker_id: str) -> str | None:
        told = {"id": worker_id, "told": session.info.backend_pid}
        taken, server = self._db.row(session.execute(self._db["enroll_lock"], told))
        if taken is None:
            if not self._pooled:
                self._pooled = True
                log.warning(
                    "%s is reached through a pooler: a dead worker is found when its lease ends, not sooner; "
                    "give workers an address of the server itself",
                    self._db.options.shown,
                )
            self._workers.add(worker_id)
            self._held.add(worker_id)  # there is nothing to take
            return None
        self._pooled = False
        if not taken and worker_id not in self._workers:
            raise Refused(_ENROLLED.format(worker_id))
        self._workers.add(worker_id)
        if not taken:
            return None
        self._held.add(worker_id)
        self._run = self._run or str(server)
        return str(server)

    def _try_to_watch(self, session: Connection) -> bool:
        now = _CLOCK.lease()
        if self._cut and now - self._since < SETTLE_S:
            return False
        watch = {"name": self._db.options.schema}
        self._watches = bool(self._db.row(session.execute(self._db["vanished_watch"], watch))[0])
        return self._watches or (now + os.getpid()) % TURN_S < LOOKS_S  # not all of them at once


_ENROLLED = "worker {} is enrolled already; every start of a worker has a new id"


class _Wish:
    """Something that another thread wants done on the session."""

    def __init__(self, work: Callable[[Connection], Any]) -> None:
        self._work = work
        self.done = threading.Event()
        self.answer: Any = None
        self.error: Exception | None = None

    def grant(self, session: Connection) -> None:
        try:
            self.answer = self._work(session)
        except Exception as error:
            self.error = error
        self.done.set()
