"""`/metrics` and `/health/live` of `holdfast worker --metrics-port`: the supervisor answers for all its processes."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from holdfast.errors import UsageError
from holdfast.runtime.metrics import CONTENT_TYPE, Labels, Registry, Series, render
from holdfast.version import __version__
from holdfast.worker.measuring import add_up

log = logging.getLogger("holdfast.supervisor")

LINE_MAX = 4 << 20
REQUEST_S = 5.0  # how long one may take


class FleetMeasures:
    """The numbers of all children of a supervisor, and its own."""

    def __init__(self, tasks: list[str], store: str) -> None:
        self.registry = Registry()
        self._gauges: dict[int, dict[str, dict[Labels, float]]] = {}
        self.registry.put("holdfast_build_info", __version__, store, value=1.0)
        for task in tasks:  # a rate ignores a series that begins at 1
            for outcome in ("succeeded", "failed"):
                self.registry.inc("holdfast_attempts_total", task, outcome, by=0.0)

    def pipe(self, number: int) -> int:
        """Return a descriptor for what a child counts. Close it once the child has it."""
        reading, writing = os.pipe()
        reader = threading.Thread(target=self._read, args=(number, reading), name="holdfast-metrics", daemon=True)
        reader.start()
        return writing

    def series(self) -> Series:
        """Return all of it, with the gauges of living children added up."""
        found = self.registry.read()
        for gauges in tuple(self._gauges.values()):
            for name, each in tuple(gauges.items()):
                place = found.setdefault(name, {})
                for labels, value in tuple(each.items()):
                    before = place.get(labels, 0.0)
                    place[labels] = value + (before if isinstance(before, float) else 0.0)
        return found

    def _read(self, number: int, descriptor: int) -> None:
        own = self._gauges[number] = {}
        left = b""
        try:
            while piece := os.read(descriptor, 1 << 16):
                *lines, left = (left + piece).split(b"\n")
                for line in lines:
                    add_up(line, self.registry, own)
                if len(left) > LINE_MAX:
                    left = b""
        finally:
            os.close(descriptor)
            if self._gauges.get(number) is own:
                del self._gauges[number]


class MetricsServer:
    """Answers on one port until it is closed. `is_live`: whether the supervisor works."""

    def __init__(self, host: str, port: int, series: Callable[[], Series], is_live: Callable[[], bool]) -> None:
        answers: dict[str, Callable[[], tuple[HTTPStatus, str, str]]] = {
            "/metrics": lambda: (HTTPStatus.OK, CONTENT_TYPE, render(series())),
            "/health/live": lambda: _health(is_live()),
        }
        handler = type("Handler", (_Handler,), {"answers": answers})
        try:
            self._server = _server_class(host)((host, port), handler)
        except (OSError, OverflowError) as error:
            raise UsageError(f"cannot listen on {host}:{port}: {error}; choose another --metrics-port") from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="holdfast-metrics-http", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


def _server_class(host: str) -> type[ThreadingHTTPServer]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return type("Server", (ThreadingHTTPServer,), {"address_family": family, "daemon_threads": True})


def _health(is_live: bool) -> tuple[HTTPStatus, str, str]:
    status = HTTPStatus.OK if is_live else HTTPStatus.SERVICE_UNAVAILABLE
    return status, "text/plain; charset=utf-8", "live\n" if is_live else "the supervisor does not move\n"


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_S
    server_version = "holdfast"
    sys_version = ""
    answers: dict[str, Callable[[], tuple[HTTPStatus, str, str]]]

    def do_GET(self) -> None:
        answer = self.answers.get(self.path.partition("?")[0])
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        status, media_type, text = answer()
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)
