"""The journal as server-sent events: `id` is the event's `seq`, and `Last-Event-ID` resumes.

One thread call a second reads for all streams of the server; a stream is a queue that it fills. A stream ends with the
server, and with the token that opened it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import insight
from holdfast.core.records import Event, EventKind, Filter
from holdfast.errors import HoldfastError
from holdfast.server.call import Call
from holdfast.server.problems import Problem
from holdfast.server.routes import Stream

if TYPE_CHECKING:
    from holdfast.server.asgi import Server

log = logging.getLogger("holdfast.server")

LOOK_S = 0.5  # how often the journal is read while a stream is open
COMMENT_S = 15.0  # how often an idle stream says that it lives
CHECK_S = 2.0  # how often it is checked that its token still holds
PAGE = 1_000
RESUME_PAGES = 20
KNOWN_MAX = 5_000  # events that are remembered: a transaction may commit an event after others with larger numbers
STREAMS_MAX = 500
BEHIND_MAX = 10_000  # events that a slow reader may be behind

Shown = tuple[int, str, str, bytes]  # seq, queue, kind, text


class EventsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The events to send."""

    kinds: tuple[EventKind, ...] = ()


class Feed:
    """Reads new events for all streams of a server. Everything but `_read` is for its event loop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._streams: set[asyncio.Queue[Shown | None]] = set()
        self._known: OrderedDict[int, None] = OrderedDict()
        self._queues: OrderedDict[str, str] = OrderedDict()
        self._begun = False
        self._task: asyncio.Task[None] | None = None

    @property
    def streams(self) -> int:
        """Return how many streams are open."""
        return len(self._streams)

    @property
    def has_begun(self) -> bool:
        """Say whether events from now on reach the streams."""
        return self._begun and bool(self._streams)

    def is_open(self, stream: asyncio.Queue[Shown | None]) -> bool:
        """Say whether the stream gets events: one that is too far behind does not any more."""
        return stream in self._streams

    def open(self) -> asyncio.Queue[Shown | None]:
        """Begin a stream. None in it means that the reader is too slow, or that the server stops."""
        if len(self._streams) >= STREAMS_MAX:
            raise Problem("overloaded", f"{STREAMS_MAX} streams are open; try again later")
        stream: asyncio.Queue[Shown | None] = asyncio.Queue(BEHIND_MAX)
        self._streams.add(stream)
        if self._task is None or self._task.done():
            self._begun = False
            self._task = asyncio.ensure_future(self._run())
        return stream

    def close(self, stream: asyncio.Queue[Shown | None]) -> None:
        """End a stream."""
        self._streams.discard(stream)

    async def stop(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        stopping = self._server.stopping
        while self._streams and not stopping.is_set():
            try:
                found = await self._server.pool.run(self._read)
            except (HoldfastError, Problem) as error:
                log.warning("the journal could not be read for streams (%s); trying again", error)
                found = []
            for stream in tuple(self._streams):
                for shown in found:
                    try:
                        stream.put_nowait(shown)
                    except asyncio.QueueFull:
                        self._streams.discard(stream)  # it resumes where it stood
                        break
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), LOOK_S)

    def _read(self) -> list[Shown]:
        store = self._server.app.store
        fresh: list[Event] = []
        before: int | None = None
        while True:
            page = store.journal(None, (), PAGE, before=before)
            unknown = [event for event in page if event.seq not in self._known]
            fresh = unknown + fresh
            if not self._begun or len(page) < PAGE or len(unknown) < len(page) or len(fresh) >= KNOWN_MAX:
                break
            before = page[0].seq
        for event in fresh:
            self._known[event.seq] = None
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        if not self._begun:
            self._begun = True  # what was there before the first stream is not news
            return []
        return shown(self._server, fresh)


def shown(server: Server, events: list[Event]) -> list[Shown]:
    """Write events as the lines of a stream, each with the queue of its job."""
    store = server.app.store
    ids = tuple(sorted({event.job_id for event in events if event.job_id}))
    queues: dict[str, str] = {}
    for start in range(0, len(ids), 500):
        piece = ids[start : start + 500]
        queues |= {row.id: row.queue for row in store.find(Filter(ids=piece, limit=len(piece)))}
    names = insight.worker_names(store) if events else {}
    found: list[Shown] = []
    for event in events:
        data: dict[str, Any] = {"seq": event.seq, "job": event.job_id or None, **insight.event_view(event, names)}
        text = b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.kind.encode(), msgspec.json.encode(data))
        found.append((event.seq, queues.get(event.job_id, ""), event.kind, text))
    return found


async def events(call: Call) -> Stream:
    """Stream new events of the journal; with Last-Event-ID also those since then."""
    feed = call.server.feed
    since = _number(call.headers.get("last-event-id", ""))
    stream = feed.open()
    try:
        pages = [] if since is None else await call.server.pool.run(_pages_since, call.server, since)
    except BaseException:
        feed.close(stream)
        raise
    return Stream(_lines(call, stream, since or 0, pages), "text/event-stream; charset=utf-8")


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _pages_since(server: Server, since: int) -> list[int]:
    """Return where each page with events after a number ends, oldest first. The pages are read when they are sent."""
    ends: list[int] = []
    before: int | None = None
    while len(ends) < RESUME_PAGES and (page := server.app.store.journal(None, (), PAGE, before=before)):
        if page[-1].seq <= since:
            break
        ends.append(page[-1].seq + 1)
        before = page[0].seq
        if before <= since:
            break
    return ends[::-1]


def _page_since(server: Server, since: int, end: int) -> list[Shown]:
    found = server.app.store.journal(None, (), PAGE, before=end)
    return shown(server, [event for event in found if event.seq > since])


async def _lines(
    call: Call, stream: asyncio.Queue[Shown | None], since: int, pages: list[int]
) -> AsyncGenerator[bytes, None]:
    server, kinds = call.server, call.query.kinds
    clock, sent = server.app.clock, set()
    try:
        yield b": connected\nretry: 2000\n\n"
        for end in pages:
            if not await server.still_admits(call):
                return
            for each in await server.pool.run(_page_since, server, since, end):
                sent.add(each[0])
                if _is_for(call, each, kinds):
                    yield each[3]
                if server.stopping.is_set():
                    return
        said_at = checked_at = clock.lease()
        while not server.stopping.is_set() and server.feed.is_open(stream):
            with suppress(TimeoutError):
                got = await asyncio.wait_for(stream.get(), min(LOOK_S, CHECK_S))
                if got is not None and got[0] not in sent and _is_for(call, got, kinds):
                    said_at = clock.lease()
                    yield got[3]
            now = clock.lease()
            if now - checked_at >= CHECK_S:
                checked_at = now
                if not await server.still_admits(call):
                    break
            if now - said_at >= COMMENT_S:
                said_at = now
                yield b": alive\n\n"
    except (HoldfastError, Problem) as error:
        log.warning("a stream of events has ended (%s); its client resumes where it stood", error)
    finally:
        server.feed.close(stream)


def _is_for(call: Call, each: Shown, kinds: tuple[EventKind, ...]) -> bool:
    _, queue, kind, _ = each
    return (not kinds or kind in kinds) and (call.user.queues is None or call.user.sees(queue))
