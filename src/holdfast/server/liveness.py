"""Finds dead remote workers by the request that each of them keeps open (`GET /v1/workers/{id}/alive`).

The system closes the connection of a process that dies. A closed connection is a death only if the worker does not
show itself for two more seconds: no new request, and no beat through any server on the store. This server believes it
only after five seconds of its own life, and only about workers that were connected to it directly, with no proxy
between them, and that have spoken to no other server meanwhile. In every other case the lease decides.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import HoldfastError
from holdfast.server.problems import Problem
from holdfast.server.routes import Stream

if TYPE_CHECKING:
    from holdfast.core.access import User
    from holdfast.server.asgi import Server
    from holdfast.server.call import Call

log = logging.getLogger("holdfast.server")

CONFIRM_S = 2.0  # without a connection and a beat
SETTLE_S = 0.3  # beats that were on their way when the connection closed
UP_S = 5.0  # a server that has just started believes no death
SAY_S = 15.0  # how often a stream says something, so that proxies keep it
CHECK_S = 2.0  # how often tokens are looked at
TRIES = 5
STREAMS_MAX = 10_000


@dataclass(slots=True, eq=False)
class _Open:
    """One open request."""

    worker_id: str
    call: Call
    is_direct: bool
    said_at: float
    pieces: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)


class Liveness:
    """The open requests of one server. `beaten` is for its threads, everything else for its event loop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._open: dict[str, set[_Open]] = {}
        self._beats: dict[str, int] = {}  # through this server, of workers with an open request
        self._others: dict[str, int] = {}  # beats on the row that did not come through this server
        self._task: asyncio.Task[None] | None = None
        self._judging: set[asyncio.Task[None]] = set()
        self._began_at: float | None = None

    @property
    def streams(self) -> int:
        """Return how many requests are open."""
        return sum(map(len, self._open.values()))

    def beaten(self, worker_id: str, *, counted: bool) -> None:
        """Count a beat that came through this server."""
        with self._lock:
            if counted and worker_id in self._beats:
                self._beats[worker_id] += 1

    def begin(self) -> None:
        """Note that the server is up."""
        self._began_at = asyncio.get_running_loop().time()

    async def stop(self) -> None:
        """End every request. Nobody is judged by a server that stops."""
        for task in (*self._judging, *([self._task] if self._task else [])):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def open(self, call: Call, worker_id: str, *, is_direct: bool) -> _Open:
        """Begin the request of a worker."""
        if self.streams >= STREAMS_MAX:
            raise Problem("overloaded", f"{STREAMS_MAX} workers are connected; try again later")
        opened = _Open(worker_id, call, is_direct, asyncio.get_running_loop().time())
        self._open.setdefault(worker_id, set()).add(opened)
        with self._lock:
            self._beats.setdefault(worker_id, 0)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        try:
            await self._compare(worker_id)
        except BaseException:
            self._discard(opened)
            raise
        return opened

    async def _compare(self, worker_id: str) -> None:
        """Find out how many beats on the row of a worker did not come through this server."""
        store, pool = self._server.app.store, self._server.pool
        for _ in range(TRIES):
            before = self._beats.get(worker_id, 0)
            beats = (await pool.run(store.standing, worker_id, (), None)).beats
            if beats is None:
                raise Problem("worker_gone", f"worker {worker_id} is not enrolled; enrol with a new id")
            if self._beats.get(worker_id) == before:
                self._others[worker_id] = beats - before
                return

    def close(self, opened: _Open) -> None:
        """Note that a request has ended, and judge its worker in a while."""
        self._discard(opened)
        server = self._server
        if opened.is_direct and server.judges and not server.stopping.is_set() and not self._open.get(opened.worker_id):
            task = asyncio.ensure_future(self._judge(opened.worker_id))
            self._judging.add(task)
            task.add_done_callback(self._judging.discard)
        elif not self._open.get(opened.worker_id):
            self._forget(opened.worker_id)

    def _discard(self, opened: _Open) -> None:
        known = self._open.get(opened.worker_id, set())
        known.discard(opened)
        if not known:
            self._open.pop(opened.worker_id, None)

    def _forget(self, worker_id: str) -> None:
        if worker_id not in self._open:
            self._others.pop(worker_id, None)
            with self._lock:
                self._beats.pop(worker_id, None)

    async def _judge(self, worker_id: str) -> None:
        loop, server = asyncio.get_running_loop(), self._server
        store = server.app.store
        await asyncio.sleep(SETTLE_S)
        beats = self._beats.get(worker_id, 0)
        up_at = (self._began_at or loop.time()) + UP_S
        await asyncio.sleep(max(CONFIRM_S - SETTLE_S, up_at - loop.time()))
        try:
            for _ in range(TRIES):
                if server.stopping.is_set() or worker_id in self._open or self._beats.get(worker_id) != beats:
                    return  # it lives, or its lease decides
                try:
                    found = (await server.pool.run(store.standing, worker_id, (), None)).beats
                    if found is None or found != self._others.get(worker_id, -1) + beats:
                        return  # it has spoken to another server
                    if worker_id in self._open:
                        return
                    cause = "its connection to the server closed, and it did not come back"
                    how = WorkerExit("vanished")
                    if await server.pool.run(store.retire, worker_id, cause, how=how):
                        log.warning("worker %s is dead: %s", worker_id, cause)
                    return
                except (HoldfastError, Problem) as error:  # then the worker could not show itself either
                    log.warning("worker %s cannot be judged while the store fails: %s", worker_id, error)
                    await asyncio.sleep(CONFIRM_S)
        finally:
            self._forget(worker_id)

    async def _run(self) -> None:
        """Keep the streams moving, and end those whose token has ended."""
        loop, server = asyncio.get_running_loop(), self._server
        while self._open and not server.stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(server.stopping.wait(), CHECK_S)
            every = [each for opened in self._open.values() for each in opened]
            held: dict[tuple[User, str, str | None], bool] = {}
            for each in every:
                call = each.call
                name = (call.user, call.token.sha256 if call.token is not None else "", call.cookie)
                if name not in held:
                    try:
                        held[name] = await server.still_admits(call)
                    except Problem:
                        held[name] = True  # the server is busy: look again
                if not held[name] or server.stopping.is_set():
                    each.pieces.put_nowait(None)
                elif loop.time() - each.said_at >= SAY_S:
                    each.said_at = loop.time()
                    each.pieces.put_nowait(b"\n")


async def alive(call: Call) -> Stream:
    """Keep the request of a worker open; its end tells the server that the worker may have died."""
    worker_id = call.path["id"]
    if "\0" in worker_id:
        raise Problem("not_found", f"there is no worker {worker_id!r}")
    if call.user.queues is not None:
        workers = await call.server.pool.run(call.store.workers)
        known = {worker.id: worker for worker in workers}.get(worker_id)
        if known is None or not all(call.user.sees(queue) for queue in known.queues):
            raise Problem("not_found", f"there is no worker {worker_id!r} in the queues of this token")
    opened = await call.server.liveness.open(call, worker_id, is_direct=is_direct(call))
    return Stream(_lines(call.server, opened), "text/plain; charset=utf-8")


def is_direct(call: Call) -> bool:
    """Say whether nothing lies between the worker and this server: both see the same address of the connection."""
    said = call.headers.get("holdfast-address", "").split()
    if len(said) != 2 or call.origin.is_forwarded or "via" in call.headers or call.peer is None:
        return False
    try:
        return (_plain(said[0]), int(said[1])) == (_plain(call.peer[0]), call.peer[1])
    except ValueError:
        return False


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    known = ipaddress.ip_address(address.partition("%")[0])
    return getattr(known, "ipv4_mapped", None) or known


async def _lines(server: Server, opened: _Open) -> AsyncGenerator[bytes, None]:
    try:
        yield b"\n"
        while not server.stopping.is_set():
            piece = await opened.pieces.get()
            if piece is None:
                break
            yield piece
    finally:
        server.liveness.close(opened)
