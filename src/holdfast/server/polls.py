"""Long polls for jobs: one thread of the server asks the store, however many workers wait.

Polls with the same queues and tasks form a group. When something may be due, the first of a group claims; if it got
jobs, it wakes the next. So a new job wakes one worker, not all of them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from contextlib import suppress

from holdfast.clock import Clock
from holdfast.runtime.store_backoff import StoreBackoff
from holdfast.server.call import Receive
from holdfast.stores.protocol import Store

log = logging.getLogger("holdfast.server")

LOOK_S = 1.0  # how often to look without a hint
PACE_S = 0.01  # how soon to look again while jobs are due that nobody could claim
REST_MAX_S = 0.5

Group = tuple[tuple[str, ...], tuple[str, ...]]  # queues and tasks


class Polls:
    """The polls of one server. `wait` and `more` are for its event loop."""

    def __init__(self, store: Store, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._store, self._clock, self._loop = store, clock, loop
        self._lock = threading.Lock()
        self._waiting: dict[Group, deque[asyncio.Future[None]]] = {}
        self._some = threading.Event()  # requests wait
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """Return how many requests wait."""
        with self._lock:
            return sum(map(len, self._waiting.values()))

    async def wait(self, group: Group, timeout_s: float, receive: Receive) -> bool:
        """Return when something may be due for the group, or after the time. True: the client has left."""
        turn: asyncio.Future[None] = self._loop.create_future()
        with self._lock:
            self._waiting.setdefault(group, deque()).append(turn)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-polls", daemon=True)
                self._thread.start()
        self._some.set()
        self._store.wake()  # the thread may wait for the queues of others
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({turn, leaving}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            has_left = leaving.done()
            if has_left and turn.done():
                self.more(group)  # the turn goes to the next one
            return has_left
        finally:
            leaving.cancel()
            with suppress(asyncio.CancelledError):
                await leaving
            turn.cancel()
            self._forget(group, turn)

    async def hint(self, group: Group, timeout_s: float, receive: Receive) -> bool:
        """Wait as `wait` does; say whether something may be due, and not only that the time is up."""
        give_up_at = self._clock.lease() + timeout_s
        gone = await self.wait(group, timeout_s, receive)
        return not gone and not self._stopping.is_set() and self._clock.lease() < give_up_at

    def soon(self, group: Group) -> None:
        """Do the same as `more`, from any thread."""
        self._loop.call_soon_threadsafe(self.more, group)

    def more(self, group: Group) -> None:
        """Wake the next poll of the group: there may be more."""
        with self._lock:
            turns = self._waiting.get(group, ())
            while turns:
                turn = turns.popleft()
                if not turn.done():
                    turn.set_result(None)
                    break

    def end(self) -> None:
        """End every poll."""
        self._stopping.set()
        self._some.set()
        with self._lock:
            turns = [turn for group in self._waiting.values() for turn in group]
        for turn in turns:
            _finish(turn)

    def stop(self) -> None:
        """End the thread. Not for the event loop."""
        self._stopping.set()
        self._some.set()
        self._store.wake()
        if self._thread is not None:
            self._thread.join(2 * LOOK_S)

    def _forget(self, group: Group, turn: asyncio.Future[None]) -> None:
        with self._lock:
            turns = self._waiting.get(group)
            if turns is not None:
                with suppress(ValueError):
                    turns.remove(turn)
                if not turns:
                    del self._waiting[group]
            if not self._waiting:
                self._some.clear()

    def _run(self) -> None:
        backoff = StoreBackoff(log, self._clock, "long polls wait until it is back")
        rest_s = 0.0
        while not self._stopping.is_set():
            self._some.wait()
            with self._lock:
                groups = list(self._waiting)
            try:
                due = self._look(groups)
                backoff.recovered()
                if due:
                    rest_s = min(max(PACE_S, rest_s * 2), REST_MAX_S)
                    self._stopping.wait(rest_s)
            except Exception as error:
                self._stopping.wait(backoff.failed(error))
                continue
            if not due:
                rest_s = 0.0

    def _look(self, groups: list[Group]) -> bool:
        """Wake the first poll of each group with something due. Otherwise wait for a hint, and return False."""
        left_s, found = LOOK_S, False
        for group in groups:
            due = self._store.due(*group, sleeps=True)
            if due is None:
                continue
            in_s = due - self._store.now().wall
            if in_s <= 0:
                found = True
                self._loop.call_soon_threadsafe(self.more, group)
            else:
                left_s = min(left_s, in_s)
        if not found:
            self._store.wait(max(0.001, left_s))
        return found


def _finish(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
