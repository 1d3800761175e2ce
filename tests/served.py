"""A real uvicorn in this process, over a store that may be replaced: for tests of the store behind a server."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, cast

import uvicorn

from holdfast.app import App
from holdfast.clock import Clock
from holdfast.server import Server, ServerOptions
from holdfast.server.connection import Connection
from holdfast.server.serve import listen, url_of
from holdfast.stores.protocol import Store
from holdfast.stores.remote.store import RemoteStore


class Served:
    """A context manager. `store` puts a store behind the server, and returns the one that speaks to it."""

    def __init__(self, options: ServerOptions | None = None) -> None:
        self._options = options or ServerOptions(threads=4)
        self._server: Server | None = None
        self._socket = listen("127.0.0.1", 0)
        self.url = url_of(self._socket, "").rstrip("/")
        config = uvicorn.Config(
            self._serve,
            http=Connection,
            log_config=None,
            access_log=False,
            ws="none",
            lifespan="off",
            interface="asgi3",
        )
        self._uvicorn = uvicorn.Server(config)
        self._uvicorn.config.timeout_graceful_shutdown = 1
        self._loop = config.get_loop_factory()()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._uvicorn.serve(sockets=[self._socket]))

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        assert self._server is not None
        await self._server(scope, receive, send)

    def wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def serve(self, behind: Store, clock: Clock, **options: Any) -> Server:
        """Put a store behind the server."""
        if self._server is not None:
            self.wait(self._server.close())
        app = App("memory://", clock=clock)
        app.opener = lambda: behind
        self._server = Server(app, options=self._options, **options)
        return self._server

    def store(self, behind: Store, clock: Clock) -> Store:
        """Put a store behind the server; return the one that speaks to it."""
        self.serve(behind, clock)
        return cast(Store, RemoteStore(self.url, clock=clock))

    def __enter__(self) -> Served:
        self._thread.start()
        while not self._uvicorn.started:
            threading.Event().wait(0.005)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._server is not None:
            self.wait(self._server.close())
        self._uvicorn.should_exit = True
        self._thread.join(10)
        self._socket.close()
