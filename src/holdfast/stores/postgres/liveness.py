"""One session for each process that proves its life and hears what is new.

It holds the liveness locks of the process's workers: advisory locks, which the server drops when the session ends,
and listens for the hint that there may be work. Its own thread asks twice a second for a sign of life, which costs the
server no transaction, so that a session that was cut is noticed and made again, locks first, before anybody believes in
a death (see `SESSION_GRACE_S`). Where that takes longer, because the server has no connection to spare, the worker's
beats show that it lives (`holds`).

The same session holds the roles of the fleet (`roles.py`): who looks for the dead, and who looks for what is due. More
rarely, with every `stands_by`, it asks for them and for what a process must know that stands by. A fleet shares these
questions: the more workers there are, the more rarely each of them asks, in slots that follow each other, so that a
free role is taken within a fraction of a second.

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
from psycopg import capabilities, errors

from holdfast.clock import SystemClock
from holdfast.core.records import Standby
from holdfast.errors import Refused, StoreError, StoreUnavailable
from holdfast.stores.postgres.connection import Connection, Connections, Session
from holdfast.stores.postgres.roles import Role

log = logging.getLogger("holdfast.stores")

LOOK_S = 0.5
POOLED_LOOK_S = 5.0  # the same where the session belongs to a pooler, and proves nothing
SURE_S = 0.75  # a look that was answered longer ago than this proves nothing: one is late
SETTLE_S = 2.5  # how long others may need to come back after a cut
ASK_MIN_S = 1.0  # how often a process asks for roles at most,
ASK_MAX_S = 6.0  # and at least: less than a beat, so that a process that takes over knows of every gap that matters
ASKS_PER_S = 4  # by the whole fleet
LATE_S = 1.0  # how late an answer may be before a process does not rely on others any more
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
        self.dead, self.due = Role(), Role()
        self._standby: Standby | None = None
        self._ask_at = 0.0  # when to ask for roles again
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
        if self._pooled:
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
            self._ask(lambda session: self._give_up(session, worker_id))

    def _give_up(self, session: Connection, worker_id: str) -> None:
        session.execute(self._db["enroll_unlock"], {"id": worker_id})
        if not self._workers:  # the program may go on without one, and nobody in it looks any more
            session.execute(self._db["stands_by_end"])
            self._standby = None
            for role in (self.dead, self.due):
                role.cut()
                role.is_wanted = False

    def watches(self) -> bool:
        """Say whether it is for this process to look for free locks now. A program without a thread that looks all the
        time does: a sweep, a person, a tick."""
        with self._lock:
            if self._thread is None or not self._workers:
                return True
        if self._cut and (self._answered_at == float("-inf") or _CLOCK.lease() - self._since < SETTLE_S):
            return False
        return not self._pooled and (self.dead.is_ours or not self.dead.is_wanted)

    def stands_by(self) -> Standby | None:
        """See `Store.stands_by`."""
        self._want(self.dead)
        standby = self._standby
        return None if standby is None or self.dead.is_ours or self._is_late(standby) else standby

    def is_woken(self) -> bool:
        """See `Store.is_woken`."""
        self._want(self.due)
        standby, role = self._standby, self.due
        return standby is not None and role.is_done_elsewhere and not role.is_ours and not self._is_late(standby)

    def stop_waking(self) -> None:
        """See `Store.stop_waking`. Another worker of this process that still claims asks for the role again."""
        with self._lock:
            self.due.is_wanted = False
            if self._thread is not None and not self._closing:
                self._wishes.append(_Wish(self._give_due_up))
                self._nudge()

    def _give_due_up(self, session: Connection) -> None:
        if self.due.is_held:
            session.execute(self._db["stops_waking"], {"name": self._db.options.schema})
            self.due.is_held = False

    def _want(self, role: Role) -> None:
        if not role.is_wanted:
            role.is_wanted = True
            with self._lock:
                if self._thread is not None and not self._closing:
                    self._ask_at = 0.0
                    self._nudge()

    @staticmethod
    def _is_late(standby: Standby) -> bool:
        return _CLOCK.lease() - standby.answered_at > standby.every_s + LATE_S

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
        self.dead, self.due, self._standby, self._cut = Role(), Role(), None, False

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
                self._cut, self._answered_at, self._standby = True, float("-inf"), None
                self.dead.cut()
                self.due.cut()
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
        self._ask_at = 0.0
        self._take_all(session)
        session.add_notify_handler(lambda news: self._changed(news.payload))
        session.execute(self._db["wait"])
        self._answered_at = _CLOCK.lease()
        self._changed(None)  # who knows what was said meanwhile

    def _listen(self, session: Session) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(session, selectors.EVENT_READ)
            selector.register(self._wake_r, selectors.EVENT_READ)
            look_at = _CLOCK.lease() + LOOK_S
            while not self._closing:
                next_at = min(look_at, self._ask_at) if self._workers else look_at
                ready = [key.fileobj for key, _ in selector.select(max(0.0, next_at - _CLOCK.lease()))]
                if self._wake_r in ready:
                    os.read(self._wake_r, 4096)
                    self._grant_wishes(session)
                if session in ready or _CLOCK.lease() >= look_at:  # wishes may come more often than looks
                    self._look(session)
                    self._take_all(session)
                    look_at = _CLOCK.lease() + (POOLED_LOOK_S if self._pooled else LOOK_S)
                if self._workers and _CLOCK.lease() >= self._ask_at:
                    self._ask_for_roles(session)

    def _look(self, session: Session) -> None:
        """See whether the session is still there, and what it has heard."""
        asked_at = _CLOCK.lease()
        if self._pooled or not capabilities.has_pipeline():
            session.execute(self._db["wait_look"])
        else:
            session.answers()
        self._answered_at = asked_at

    def _ask_for_roles(self, session: Session) -> None:
        """Ask for the roles that this process wants, and for what it must know while it stands by.

        Follow the name of the server's run, which changes when an operator resets the server's counters: the locks that
        are held were taken on this run.
        """
        self._ask_at = _CLOCK.lease() + ASK_MIN_S
        if self._pooled:
            return
        asked_at, worker = _CLOCK.lease(), min(self._workers)
        values = {"name": self._db.options.schema, "dead": self.dead.asks, "due": self.due.asks, "worker": worker}
        try:
            row = self._db.row(session.execute(self._db["stands_by"], values))
        except psycopg.Error as error:
            if error.sqlstate is None or session.closed:
                raise
            return  # it is read-only, or slow: then every process looks for itself, and finds out when that is over
        run, dead, looked, due, stirred, deadline, store_now, workers, before = row
        now, self._answered_at = _CLOCK.lease(), asked_at
        was_ours = self.dead.is_ours, self.due.is_ours
        self.dead.told(dead, looked, now, now + os.getpid())
        self.due.told(due, stirred, now, now + os.getpid())
        acts = (self.dead.is_ours and not self.dead.is_held) or (self.due.is_ours and not self.due.is_held)
        every_s = ASK_MIN_S if acts else min(ASK_MAX_S, max(ASK_MIN_S, workers / ASKS_PER_S))
        slot_s = every_s * (before / max(workers, 1))
        next_s = (slot_s - store_now) % every_s
        self._ask_at = now + (next_s if next_s > every_s / 4 else next_s + every_s)
        self._standby = Standby(asked_at, now, store_now, deadline, 1.25 * every_s)
        if run != self._run:
            self._run = run
            self._unwritten |= dict.fromkeys(self._held, run)
        if (self.dead.is_ours, self.due.is_ours) != was_ours:
            self._changed(None)  # there is something to do for this process now

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
        self._ask_at = 0.0
        return str(server)


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
