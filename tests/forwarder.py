"""A port that leads to another one, in the clear or over TLS: a server that moves, a bad network, a TLS proxy."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from pathlib import Path

from tests.servers import free_port


class Forwarder:
    """Forwards every connection to `target`, a port of this host, which may change."""

    def __init__(self, target: int, certificate: Path | None = None) -> None:
        self.target = target
        self.port = free_port()
        self._context: ssl.SSLContext | None = None
        if certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(certificate)
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=100)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End every connection; new ones lead to the target of now."""
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                visitor, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(visitor,), daemon=True).start()

    def _serve(self, visitor: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            if self._context is not None:
                visitor = self._context.wrap_socket(visitor, server_side=True)
            stack.enter_context(visitor)
            server = stack.enter_context(socket.create_connection(("127.0.0.1", self.target), timeout=60))
            server.settimeout(None)
            self._open |= {visitor, server}
            back = threading.Thread(target=self._copy, args=(server, visitor), daemon=True)
            back.start()
            self._copy(visitor, server)
            back.join()
            self._open -= {visitor, server}

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def certificate(folder: Path) -> Path:
    """Make a key and a certificate for this host, in one file; clients trust the file itself."""
    key, known, both = folder / "key.pem", folder / "cert.pem", folder / "both.pem"
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names)
    subprocess.run([*made, "-keyout", key, "-out", known], check=True, capture_output=True)
    both.write_bytes(key.read_bytes() + known.read_bytes())
    return both
