"""Reads an answer that does not end, or that is late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from tests.server.client import Client


class Listener:
    """Reads a stream of events from the application itself: httpx would wait for its end."""

    def __init__(
        self,
        client: Client,
        headers: dict[str, str],
        query: str = "",
        *,
        path: str = "/v1/events",
        method: str = "GET",
        peer: str = "127.0.0.1",
        body: bytes = b"",
    ) -> None:
        self.text = ""
        self.status: int | None = None
        self.ended = False
        self._leave = asyncio.Event()
        self._client = client
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "scheme": "http",
            "client": (peer, 1),
            "headers": [(name.encode(), value.encode()) for name, value in {"host": "localhost", **headers}.items()],
        }
        self._body: bytes | None = body
        self._work = client.submit(self._run(scope))

    async def _run(self, scope: dict[str, Any]) -> None:
        async def receive() -> dict[str, Any]:
            if self._body is not None:
                body, self._body = self._body, None
                return {"type": "http.request", "body": body}
            await self._leave.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
            self.text += message.get("body", b"").decode()

        await self._client.server(scope, receive, send)
        self.ended = True

    def until(self, condition: Callable[[Listener], bool]) -> None:
        deadline = time.monotonic() + 30
        while not condition(self):
            assert time.monotonic() < deadline, self.text
            time.sleep(0.01)

    def leave(self) -> None:
        self._client._loop.call_soon_threadsafe(self._leave.set)
        self._work.result(30)


def connected(listener: Listener) -> bool:
    """Say whether a stream of events has begun."""
    return ": connected" in listener.text and listener._client.server.feed.has_begun
