"""A real HTTP server on this machine that takes alerts, and answers as a test wants."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Receiver:
    """What came in. `answers` are the statuses to give, the last one for ever; `before` runs before each answer."""

    answers: list[int] = field(default_factory=lambda: [204])
    headers: dict[str, str] = field(default_factory=dict)  # to answer with
    before: Callable[[], object] = lambda: None
    raw: Callable[[Any], object] | None = None  # writes the whole answer itself
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, _, body in self.requests]

    def take(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        self.requests.append((handler.path, dict(handler.headers), body))
        self.before()
        if self.raw is not None:
            self.raw(handler.wfile)
            return
        handler.send_response(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
        for name, value in self.headers.items():
            handler.send_header(name, value)
        handler.end_headers()


@contextmanager
def receiving(certificate: Path | None = None, **given: Any) -> Iterator[Receiver]:
    receiver = Receiver(**given)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with suppress(OSError):  # the sender had no more patience
                receiver.take(self)

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    server.handle_error = lambda *args: None  # type: ignore[method-assign]  a handshake that was broken off
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


def certificate_for(name: str, folder: Path) -> Path:
    """A certificate that says it is `name`, signed by nobody, with its key in the same file."""
    file = folder / f"{name}.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    subprocess.run([*made, "-keyout", file, "-out", folder / "cert"], check=True, capture_output=True)
    file.write_text(file.read_text() + (folder / "cert").read_text())
    return file
