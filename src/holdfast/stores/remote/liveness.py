"""Shows a server that this process lives: one open request for each worker, made again at once when it ends.

The system closes the connection when the process dies, whatever killed it. `server/liveness.py` draws the conclusion.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import threading
from collections.abc import Callable, Iterator

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.forks import renew_in_child
from holdfast.stores.remote.connection import Connections, abandon, drop

log = logging.getLogger("holdfast.remote")

SILENT_S = 40.0  # a server writes something every 15 s
AGAIN_S, AGAIN_MAX_S = 0.1, 1.0  # the pause before the next try: a death is two seconds without a connection
OPEN_S = 3.0
STOP_S = 1.0


class Alive:
    """Keeps the request of one worker open until `stop`. `beat` is called after each time that it was opened again."""

    def __init__(self, connections: Connections, clock: Clock, worker_id: str, beat: Callable[[], object]) -> None:
        self._connections = connections
        self._clock = clock
        self._worker_id = worker_id
        self._beat = beat
        self._stopping = threading.Event()
        self._connection: http.client.HTTPConnection | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-alive", daemon=True)
        renew_in_child(self)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close the request: the worker is retired, or this program leaves it to the server."""
        self._stopping.set()
        self._close()
        if self._thread is not threading.current_thread():
            self._thread.join(STOP_S)

    def after_fork_in_child(self) -> None:
        """Let go of the parent's connection: else it stays open when the parent dies."""
        self._stopping = threading.Event()  # a thread of the parent may have the lock of the old one
        self._stopping.set()
        if self._connection is not None:
            abandon(self._connection)

    def _close(self) -> None:
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(2)  # ends the read of the other thread

    def _run(self) -> None:
        pause_s, was_open = AGAIN_S, False
        while not self._stopping.is_set():
            try:
                with self._opened(again=was_open) as answer:
                    was_open, pause_s = True, AGAIN_S
                    while not self._stopping.is_set() and answer.readline():
                        pass
            except (HoldfastError, OSError, http.client.HTTPException) as error:
                log.debug("the request that shows that worker %s lives has ended: %s", self._worker_id, error)
            except Exception:
                log.exception("the request that shows that worker %s lives has failed unexpectedly", self._worker_id)
            self._clock.wait(self._stopping, pause_s)
            pause_s = min(pause_s * 1.5, AGAIN_MAX_S)

    @contextlib.contextmanager
    def _opened(self, *, again: bool) -> Iterator[http.client.HTTPResponse]:
        connection = self._connections.new(OPEN_S)
        self._connection = connection
        try:
            if self._stopping.is_set():  # `stop` came before there was something to close
                raise http.client.HTTPException("stopping")
            host, port = connection.sock.getsockname()[:2]
            headers = {**self._connections.secret.headers(), "holdfast-address": f"{host} {port}"}
            path = f"{self._connections.address.path}/v1/workers/{self._worker_id}/alive"
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            if answer.status == 401:
                self._connections.secret.refused()
            if answer.status != 200:
                answer.read()
                raise http.client.HTTPException(f"the server answered {answer.status}")
            connection.sock.settimeout(SILENT_S)
            if again:
                self._beat()
            yield answer
        finally:
            self._connection = None
            drop(connection)
