"""The pulse: one line a second to each open page. It says that the server lives, and whether anything has changed.

A page then fetches its own live part. So a stream costs the server a line, and not a rendered page, and one thread
call a second reads the store for all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.durations import iso
from holdfast.errors import HoldfastError
from holdfast.server.call import Call
from holdfast.server.pages.snapshot import Facts, Snapshot
from holdfast.server.problems import Problem
from holdfast.server.routes import Stream

if TYPE_CHECKING:
    from holdfast.server.asgi import Server

log = logging.getLogger("holdfast.server")

BEAT_S = 1.0
CHANGE_S = 2.0  # how often a page is asked to fetch its live part again while the store changes
LEAST_S = 5.0  # and how often while it does not: leases run down, and workers beat
CHECK_S = 2.0  # how often it is checked that a stream's user still may have it
STREAMS_MAX = 500


class Pulse:
    """Beats while pages are open. For the event loop of its server."""

    def __init__(self, server: Server, snapshot: Snapshot) -> None:
        self._server = server
        self._snapshot = snapshot
        self._streams: set[asyncio.Queue[bytes]] = set()
        self._task: asyncio.Task[None] | None = None
        self._version = 0

    @property
    def streams(self) -> int:
        """Return how many pages are open."""
        return len(self._streams)

    async def stream(self, call: Call) -> Stream:
        """Answer with the pulse."""
        if len(self._streams) >= STREAMS_MAX:
            raise Problem("overloaded", f"{STREAMS_MAX} pages are open; close some, or reload this one")
        beats: asyncio.Queue[bytes] = asyncio.Queue(4)
        self._streams.add(beats)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        return Stream(self._lines(call, beats), "text/event-stream; charset=utf-8")

    async def stop(self) -> None:
        """End the thread calls."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        clock, stopping = self._server.app.clock, self._server.stopping
        seen: object = None
        told_at = float("-inf")
        while self._streams and not stopping.is_set():
            facts = await self._read()
            if facts is None:
                line = _line({"down": True, "version": self._version})
            else:
                is_news = (facts.newest, facts.counts) != seen
                if clock.lease() - told_at >= (CHANGE_S if is_news else LEAST_S):
                    seen, told_at = (facts.newest, facts.counts), clock.lease()
                    self._version += 1
                line = _line({"at": iso(facts.now.wall), "version": self._version})
            for beats in self._streams:
                with suppress(asyncio.QueueFull):  # a slow reader misses a beat, and nothing else
                    beats.put_nowait(line)
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), BEAT_S)

    async def _read(self) -> Facts | None:
        try:
            return await self._server.people.run(self._snapshot.read)
        except (HoldfastError, Problem) as error:
            log.warning("the store could not be read for open pages (%s); trying again", error)
            return None

    async def _lines(self, call: Call, beats: asyncio.Queue[bytes]) -> AsyncGenerator[bytes, None]:
        server, clock = self._server, self._server.app.clock
        checked_at = clock.lease()
        try:
            yield b": connected\nretry: 2000\n\n"
            while not server.stopping.is_set():
                with suppress(TimeoutError):
                    yield await asyncio.wait_for(beats.get(), CHECK_S)
                if clock.lease() - checked_at >= CHECK_S:
                    checked_at = clock.lease()
                    if not await server.still_admits(call):
                        return
        finally:
            self._streams.discard(beats)


def _line(data: dict[str, object]) -> bytes:
    return b"event: pulse\ndata: %s\n\n" % msgspec.json.encode(data)


async def pulse(call: Call) -> Stream:
    """Stream the pulse."""
    return await call.server.pages.pulse.stream(call)
