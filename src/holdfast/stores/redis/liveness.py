"""The subscription that proves the life of a process and hears what is new.

A process subscribes to a channel for each of its workers, all on one connection. The server drops the subscriptions
when the connection ends, so a channel without subscribers is a free lock. A thread reads the connection, asks twice a
second for a sign of life, and subscribes again, before anything else, after it was cut.

If one connection was cut, all of them may have been, and some come back sooner than others. So a process that was cut
does not look for free locks before the others had the time to come back (`SETTLE_S`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from redis import exceptions

from holdfast.clock import SystemClock, pause
from holdfast.errors import StoreUnavailable
from holdfast.stores.redis.connection import Connections

log = logging.getLogger("holdfast.stores")

LOOK_S = 0.5
SURE_S = 1.25  # an answer that is older than this proves nothing: one is late
SETTLE_S = 2.5  # how long others may need to come back after a cut
SUBSCRIBE_S = 5.0
AGAIN_S = 0.05  # between two tries to connect
_CLOCK = SystemClock()


class LivenessSubscription:
    """See the module's docstring."""

    def __init__(self, db: Connections, changed: Callable[[], None]) -> None:
        self._db = db
        self._changed = changed
        self._lock = threading.Lock()
        self._workers: set[str] = set()  # whose channels are ours
        self._link: Any = None
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._answered_at = float("-inf")
        self._since = float("-inf")  # when the connection was made again after a cut
        self._cut = False
        self.made = 0

    def start(self) -> None:
        """Begin to listen, if nobody has yet."""
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                self._link = self._subscribed()
                self._thread = threading.Thread(target=self._serve, name="holdfast-liveness", daemon=True)
                self._thread.start()

    def hold(self, worker_id: str) -> bool:
        """Subscribe for a worker; return whether the subscription can be seen, and so proves something."""
        self.start()
        with self._lock:
            self._workers.add(worker_id)
            self._explained(lambda: self._link.subscribe(self.channel(worker_id)))
        give_up_at = _CLOCK.lease() + SUBSCRIBE_S
        while not (seen := self.subscribers([worker_id])[0]) and _CLOCK.lease() < give_up_at:
            pause(0.001)
        return seen == 1

    def drop(self, worker_id: str) -> None:
        """Give up the subscription of one of our workers; do nothing for others."""
        with self._lock:
            if worker_id not in self._workers:
                return
            self._workers.discard(worker_id)
            try:
                self._link.unsubscribe(self.channel(worker_id))
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

    def subscribers(self, worker_ids: Sequence[str]) -> list[int]:
        """Return how many connections are subscribed for each of these workers."""
        channels = [self.channel(each) for each in worker_ids]
        found = self._explained(lambda: self._db.client.pubsub_numsub(*channels)) if channels else []
        return [int(number) for _, number in found]

    def close(self) -> None:
        """End the connection."""
        self._closing.set()
        with self._lock:
            thread, self._thread = self._thread, None
            if self._link is not None:
                try:
                    self._link.unsubscribe()  # its answer ends the wait of the thread
                except (exceptions.RedisError, OSError):
                    log.debug("the liveness connection was cut before it was closed")
        if thread is not None:
            thread.join(5.0)

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
        link: Any = self._db.client.pubsub()  # type: ignore[no-untyped-call]
        channels = [self._db.key("hint"), *map(self.channel, self._workers)]
        self._explained(lambda: link.subscribe(*channels))
        self._answered_at = _CLOCK.lease()
        self.made += 1
        return link

    def _serve(self) -> None:
        said = False
        while not self._closing.is_set():
            try:
                self._listen(self._link)
            except Exception as error:
                if self._closing.is_set():
                    break
                self._cut, self._answered_at = True, float("-inf")
                if not said and self._workers:
                    log.warning("lost the liveness subscription (%s); subscribing again", " ".join(str(error).split()))
                said = True
                self._link.close()
                said = not self._again() and said
        self._link.close()

    def _again(self) -> bool:
        while not self._closing.wait(AGAIN_S):
            try:
                with self._lock:
                    self._link = self._subscribed()
                    self._since = _CLOCK.lease()
                self._changed()
                return True
            except StoreUnavailable:
                continue
            except Exception as error:
                log.error("the liveness thread failed unexpectedly (%s); the thread continues", error)
        return False

    def _listen(self, link: Any) -> None:
        look_at = _CLOCK.lease()
        asked_at: float | None = None
        while not self._closing.is_set():
            now = _CLOCK.lease()
            if now >= look_at:
                if asked_at is not None and now - asked_at > SUBSCRIBE_S:
                    raise StoreUnavailable("the server does not answer")
                if asked_at is None:
                    asked_at = now
                    with self._lock:
                        link.ping()
                look_at = now + LOOK_S
            news = link.get_message(timeout=max(0.001, look_at - _CLOCK.lease()))
            if news is None:
                continue
            if news["type"] == "pong":
                self._answered_at, asked_at = asked_at if asked_at is not None else now, None
            elif news["type"] == "message":
                self._changed()
