"""The pulse: one line a second to each open page. It says that the server lives, and whether anything has changed.

A page then fetches its own live part. So a stream costs the server a line, and not a rendered page, and one thread
call a second reads the store for all of them. `/pulse` and `/v1/pulse` are one and the same.

`version` rises when a page should fetch its live part again. `topics` says what has changed: `jobs` rises with the
counts of jobs, `journal` with the newest event. A token with queues gets versions of its own queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.access import User
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


@dataclass(slots=True)
class _Versions:
    """The versions that were told to users with the same queues."""

    user: User  # one of them
    version: int = 0
    jobs: int = 0
    journal: int = 0
    counts: object = None
    newest: int | None = None
    told_at: float = float("-inf")

    def line(self, facts: Facts | None, now: float) -> bytes:
        """Return the next line of their streams."""
        if facts is None:
            return _line({"down": True, **self._said})
        whole = self.user.queues is None
        counts = facts.counts if whole else {name: each for name, each in facts.counts.items() if self.user.sees(name)}
        newest = facts.newest if whole else None  # of any queue
        if now - self.told_at >= (CHANGE_S if (counts, newest) != (self.counts, self.newest) else LEAST_S):
            self.jobs += counts != self.counts
            self.journal += newest != self.newest
            self.counts, self.newest, self.told_at = counts, newest, now
            self.version += 1
        return _line({"at": iso(facts.now.wall), **self._said})

    @property
    def _said(self) -> dict[str, object]:
        topics = {"jobs": self.jobs} | ({"journal": self.journal} if self.user.queues is None else {})
        return {"version": self.version, "topics": topics}


class Pulse:
    """Beats while pages are open. For the event loop of its server."""

    def __init__(self, server: Server, snapshot: Snapshot) -> None:
        self._server = server
        self._snapshot = snapshot
        self._streams: dict[asyncio.Queue[bytes], frozenset[str] | None] = {}  # and the queues that its user sees
        self._task: asyncio.Task[None] | None = None
        self._versions: dict[frozenset[str] | None, _Versions] = {}

    @property
    def streams(self) -> int:
        """Return how many pages are open."""
        return len(self._streams)

    async def stream(self, call: Call) -> Stream:
        """Answer with the pulse."""
        if len(self._streams) >= STREAMS_MAX:
            raise Problem("overloaded", f"{STREAMS_MAX} pages are open; close some, or reload this one")
        beats: asyncio.Queue[bytes] = asyncio.Queue(4)
        seen = None if call.user.queues is None else frozenset(call.user.queues)
        self._streams[beats] = seen
        self._versions.setdefault(seen, _Versions(call.user))
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
        while self._streams and not stopping.is_set():
            facts = await self._read()
            self._versions = {seen: self._versions[seen] for seen in set(self._streams.values())}
            lines = {seen: each.line(facts, clock.lease()) for seen, each in self._versions.items()}
            for beats, seen in self._streams.items():
                with suppress(asyncio.QueueFull):  # a slow reader misses a beat, and nothing else
                    beats.put_nowait(lines[seen])
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
            self._streams.pop(beats, None)


def _line(data: dict[str, object]) -> bytes:
    return b"event: pulse\ndata: %s\n\n" % msgspec.json.encode(data)


async def pulse(call: Call) -> Stream:
    """Stream the pulse."""
    return await call.server.pages.pulse.stream(call)
