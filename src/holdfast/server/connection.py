"""The connections of a server that runs as a program: a request must begin with a head that is short and in time.

uvicorn has no limit for either, so strangers could fill the memory with one endless header, or take every connection
by sending nothing. `call.py` limits bodies; a host application that mounts the server has its own connections.
"""

from __future__ import annotations

import asyncio
import logging

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger("holdfast.server")

HEAD_MAX = 64 << 10  # bytes of a head, and of what follows a body
HEAD_S = 20.0
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Connection(HttpToolsProtocol):
    """One connection of a client."""

    _idle_bytes = 0  # received since the last head was complete, or since the last piece of a body
    _head_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._idle_bytes += len(data)
        super().data_received(data)
        if self._idle_bytes > HEAD_MAX and not self.transport.is_closing():
            log.warning("a request of %s was refused: its head has more than %d bytes", self.client, HEAD_MAX)
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._idle_bytes = 0
        self._head_came()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._idle_bytes = 0
        super().on_message_complete()

    def _await_head(self) -> None:
        if self._head_due is None:
            self._head_due = self.loop.call_later(HEAD_S, self._close)

    def _head_came(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
