"""Runs the server as a program: uvicorn on one event loop, stopped by signals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from holdfast.errors import UsageError
from holdfast.server.asgi import Server
from holdfast.server.connection import Connection
from holdfast.worker.signals import handle_signals

log = logging.getLogger("holdfast.server")

STOP_S = 5  # how long requests may end after a signal
BACKLOG = 2048
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _Uvicorn(uvicorn.Server):
    """uvicorn without signal handlers of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """Open the port. Raises `UsageError` if that is not possible."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        opened = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(f"cannot listen on {host!r}: {error.strerror or error}") from None
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None
    return opened


def url_of(opened: socket.socket, prefix: str) -> str:
    """Return the address of the server."""
    host, port = opened.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{prefix}/"


def run(server: Server, opened: socket.socket, started: Callable[[str], None]) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP. `started` is called once requests are answered."""
    config = uvicorn.Config(
        server,
        log_config=None,
        access_log=False,
        server_header=False,
        http=Connection,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        backlog=BACKLOG,
        timeout_graceful_shutdown=STOP_S,
        timeout_keep_alive=75,  # longer than the 60 s of most proxies: else they meet a connection that just closed
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    handle_signals(signal.SIG_DFL)  # no parent has blocked or ignored them from here on
    with contextlib.closing(opened), asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_serve(_Uvicorn(config), server, opened, started))


async def _serve(inner: _Uvicorn, server: Server, opened: socket.socket, started: Callable[[str], None]) -> None:
    def stop() -> None:
        inner.force_exit = inner.should_exit  # the second one waits for nothing
        inner.should_exit = True
        server.stop_streams()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` ignores SIGHUP
            loop.add_signal_handler(number, stop)
    serving = asyncio.ensure_future(inner.serve(sockets=[opened]))
    while not inner.started and not serving.done():
        await asyncio.sleep(0.005)
    if not serving.done():
        started(url_of(opened, server.options.prefix))
    await serving
    if not inner.started:
        raise UsageError("the server could not start; the log has the reason")
