"""The subscription that proves the life of a process and hears what is new.

A process subscribes to a channel for each of its workers, all on one connection. The server drops the subscriptions
when the connection ends, so a channel without subscribers is a free lock. A thread reads the connection, asks twice a
second for a sign of life, and subscribes again, before anything else, after it was cut.

A server that was restarted, or took the place of another, has no subscriptions yet. So a worker's row names the run of
the server that has its lock, and a lock counts only on that run. If one connection was cut, all of them may have been,
and some come back sooner than others. So a process that was cut does not look for free locks before the others had the
time to come back (`SETTLE_S`), nor while the server that it asks does not know its own subscription.

The channels are sharded: in a Cluster the server of the store's slot has them, and ends them when the slot moves.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import redis
from redis import exceptions

from holdfast.clock import SystemClock, pause
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.forks import renew_in_child
from holdfast.ids import new_id
from holdfast.stores.redis.connection import Connections

log = logging.getLogger("holdfast.stores")

LOOK_S = 0.5
SURE_S = 1.25  # an answer that is older than this proves nothing: one is late
SETTLE_S = 2.5  # how long others may need to come back after a cut
SUBSCRIBE_S = 5.0
AGAIN_S = 0.05  # between two tries to connect
_CLOCK = SystemClock()


class Locks(NamedTuple):
    """The locks of some workers, as a server knows them."""

    run: str  # of the server; empty if this user may not ask
    held: list[bool]


class LivenessSubscription:
    """See the module's docstring. `proved` is called when the lock of a worker is on another run of the server."""

    def __init__(self, db: Connections, changed: Callable[[], None], proved: Callable[[str, str], None]) -> None:
        self._db = db
        self._changed = changed
        self._proved = proved
        self.made = 0
        self._begin()
        renew_in_child(self)

    def after_fork_in_child(self) -> None:
        """Begin without the thread, the connection and the workers, which stay with the parent.

        The child closes its copy of the socket. Otherwise the subscription, and with it the lock, would outlive the
        parent for as long as the child lives.
        """
        taken = self._link.connection._sock if self._link is not None and self._link.connection is not None else None
        if taken is not None:
            os.close(taken.detach())  # and nothing more: the connection belongs to the parent
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._workers: set[str] = set()  # whose channels are ours
        self._unproved: set[str] = set()  # whose rows name an earlier run of the server
        self._own = self._db.key(f"process:{new_id()}")
        self._link: Any = None
        self._client: redis.Redis | None = None  # that the link belongs to
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._answered_at = float("-inf")
        self._since = float("-inf")  # when the connection was made again after a cut
        self._cut = False
        self._heard = False  # anything from the server on this connection

    def start(self) -> None:
        """Begin to listen, if nobody has yet."""
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                self._link = self._subscribed()
                self._thread = threading.Thread(target=self._serve, name="holdfast-liveness", daemon=True)
                self._thread.start()

    def hold(self, worker_id: str) -> str | None:
        """Subscribe for a worker; return the run of the server that has the lock, or None if it cannot be seen, and so
        proves nothing."""
        self.start()
        with self._lock:
            self._workers.add(worker_id)
            self._explained(lambda: self._link.ssubscribe(self.channel(worker_id)))
        give_up_at = _CLOCK.lease() + SUBSCRIBE_S
        while True:
            locks = self.look([worker_id])
            if locks is not None and locks.held[0]:
                return locks.run
            if _CLOCK.lease() >= give_up_at:
                return None
            pause(0.001)

    def drop(self, worker_id: str) -> None:
        """Give up the subscription of one of our workers; do nothing for others."""
        with self._lock:
            if worker_id not in self._workers:
                return
            self._workers.discard(worker_id)
            self._unproved.discard(worker_id)
            try:
                self._link.sunsubscribe(self.channel(worker_id))
            except (exceptions.RedisError, OSError):
                return  # the connection is cut, and its subscriptions with it

    def holds(self, worker_id: str) -> bool:
        """Say whether the subscription of one of our workers is surely there; True for others, who have none."""
        return worker_id not in self._workers or _CLOCK.lease() - self._answered_at < SURE_S

    def may_judge(self) -> bool:
        """Say whether this process may look for free locks now."""
        if self._thread is None or not self._cut:
            return True
        return self._answered_at > float("-inf") and _CLOCK.lease() - self._since >= SETTLE_S

    def channel(self, worker_id: str) -> str:
        return self._db.key(f"alive:{worker_id}")

    def look(self, worker_ids: Sequence[str]) -> Locks | None:
        """Return the locks of these workers; None while the server that is asked does not know this process."""
        channels = [self.channel(each) for each in worker_ids]
        info, found = self._db.send(("INFO", "server"), ("PUBSUB", "SHARDNUMSUB", self._own, *channels))
        if isinstance(found, exceptions.RedisError):
            raise self._db.explain(found) from found
        numbers = [int(number) for number in found[1::2]]
        if self._thread is not None and numbers[0] != 1:
            return None
        run = ""
        if isinstance(info, bytes):
            run = next((line[7:].decode() for line in info.splitlines() if line.startswith(b"run_id:")), "")
        return Locks(run, [number > 0 for number in numbers[1:]])

    def close(self) -> None:
        """End the connection."""
        if self._closing.is_set():
            return  # the link would connect again
        self._closing.set()
        with self._lock:
            thread, self._thread = self._thread, None
            if self._link is not None:
                try:
                    self._link.sunsubscribe()  # its answer ends the wait of the thread
                except (exceptions.RedisError, OSError):
                    log.debug("the liveness connection was cut before it was closed")
        if thread is not None:
            thread.join(5.0)
        if self._link is not None:
            self._link.close()  # if the thread had ended, the connection was opened again to take leave of the channels

    def _explained(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except exceptions.RedisError as error:
            raise self._db.explain(error) from error
        except OSError as error:
            raise StoreUnavailable(f"{self._db.options.shown}: {error}") from error

    # -------------------------------------------------------------------------------------- the thread

    def _subscribed(self) -> Any:
        """Open a connection that is subscribed to everything. The caller has the lock."""
        client = self._db.client
        link: Any = client.pubsub()  # type: ignore[no-untyped-call]
        channels = [self._db.key("hint"), self._own, *map(self.channel, self._workers)]
        self._explained(lambda: link.ssubscribe(*channels))
        self._client = client
        self._heard = False
        self._answered_at = _CLOCK.lease()
        self.made += 1
        return link

    def _serve(self) -> None:
        said = ""
        while not self._closing.is_set():
            try:
                self._listen(self._link)
            except Exception as error:
                if self._closing.is_set():
                    break
                self._cut, self._answered_at = True, float("-inf")
                cause = " ".join(str(error).split())
                if self._heard:
                    said = ""
                elif self._closing.wait(LOOK_S):  # the server refuses it, as to a user who may not subscribe
                    break
                if cause != said and self._workers:
                    log.warning("lost the liveness subscription (%s); subscribing again", cause)
                    said = cause
                self._link.close()
                self._again()
        self._link.close()

    def _again(self) -> None:
        while not self._closing.wait(AGAIN_S):
            try:
                with self._lock:
                    self._link = self._subscribed()
                    self._since = _CLOCK.lease()
                    self._unproved = set(self._workers)
                self._changed()
                return
            except StoreUnavailable:
                continue
            except Exception as error:
                log.error("the liveness thread failed unexpectedly (%s); the thread continues", error)

    def _listen(self, link: Any) -> None:
        look_at = _CLOCK.lease()
        asked_at: float | None = None
        while not self._closing.is_set():
            now = _CLOCK.lease()
            if now >= look_at:
                if asked_at is not None and now - asked_at > SUBSCRIBE_S:
                    raise StoreUnavailable("the server does not answer")
                if self._db.client is not self._client:
                    raise StoreUnavailable("another server has the store")
                if asked_at is None:
                    asked_at = now
                    with self._lock:
                        link.ping()
                self._prove()
                look_at = now + LOOK_S
            news = link.get_message(timeout=max(0.001, look_at - _CLOCK.lease()))
            if news is None:
                continue
            self._heard = True
            if news["type"] == "pong":
                self._answered_at, asked_at = asked_at if asked_at is not None else now, None
            elif news["type"] == "smessage":
                self._changed()
            elif news["type"] == "sunsubscribe" and self._is_ours(news["channel"]):
                raise StoreUnavailable("the store has moved to another server")

    def _is_ours(self, channel: bytes) -> bool:
        with self._lock:
            return channel.decode() in {self._own, *map(self.channel, self._workers)}

    def _prove(self) -> None:
        """Let the rows of our workers name the run of the server that has their locks now."""
        waiting = sorted(self._unproved)
        if not waiting:
            return
        try:
            locks = self.look(waiting)
            for worker_id, held in zip(waiting, locks.held if locks is not None else (), strict=False):
                if held and locks is not None:
                    self._proved(worker_id, locks.run)
                    self._unproved.discard(worker_id)
        except StoreError as error:
            log.debug("could not say which server has the liveness lock (%s); trying again", error)
