"""Requests to a server over kept connections: one try, one deadline, one error of Holdfast.

Nothing here repeats a request. The layers above do so after a pause: they know which calls are safe to repeat, and a
second loop below theirs would only hide an outage from them.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import os
import select
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from holdfast import errors
from holdfast.errors import (
    BadURL,
    FileLocked,
    FileReplaced,
    HoldfastError,
    OutcomeUnknown,
    StoreDenied,
    StoreError,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
    StoreUnsupported,
    UsageError,
)
from holdfast.forks import renew_in_child

TOKEN_VARIABLE = "HOLDFAST_TOKEN"  # noqa: S105
TOKEN_FILE_VARIABLE = "HOLDFAST_TOKEN_FILE"  # noqa: S105
KEPT_MAX = 16  # idle connections
CONNECT_S = 3.0
_OWN_FILES = (FileLocked, FileReplaced)  # about a file of the server's, which no client has open


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server. `path` is the prefix below which it answers."""

    url: str
    host: str
    port: int
    is_https: bool
    path: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read the address of a server; raise `BadURL` for one that is not safe to use."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise BadURL(f"the address of the server cannot be read: {error}") from None
        is_https = parts.scheme.lower() == "https"
        if not host:
            raise BadURL("the address of the server names no host; write https://jobs.example.org")
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise BadURL(
                "the address of a server holds no token, user, query or fragment: logs and process lists show it; "
                f"put the token into {TOKEN_VARIABLE} or a file (--token-file)"
            )
        if not is_https and not _is_loopback(host):
            raise BadURL(f"http:// is only for servers on this machine, and {host} is not one; write https://{host}")
        path = parts.path.rstrip("/")
        return cls(url, host, port or (443 if is_https else 80), is_https, path)


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Secret:
    """The token of this process: from the environment, or from a file that is read again when the server refuses it."""

    def __init__(self) -> None:
        self._read: str | None = None

    def headers(self) -> dict[str, str]:
        """Return the header that shows the token; none if there is none."""
        given = os.environ.get(TOKEN_VARIABLE, "").strip()
        if not given and (file := os.environ.get(TOKEN_FILE_VARIABLE, "")):
            if self._read is None:
                try:
                    self._read = Path(file).read_text("utf-8").strip()
                except (OSError, UnicodeDecodeError) as error:
                    raise StoreDenied(f"the token file {file} cannot be read: {error}") from None
            given = self._read
        if any(ord(each) <= 32 or ord(each) > 126 for each in given):
            raise UsageError("the token has spaces or characters that no token has: copy it again")
        return {"authorization": f"Bearer {given}"} if given else {}

    def refused(self) -> None:
        """Read the file again for the next request: the token may have been replaced."""
        self._read = None


class Connections:
    """Keeps connections to one server. Safe for threads; a forked process begins with none."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.secret = Secret()
        self._lock = threading.Lock()
        self._kept: list[http.client.HTTPConnection] = []
        self._tls = ssl.create_default_context() if address.is_https else None
        self._closed = False
        renew_in_child(self)

    def after_fork_in_child(self) -> None:
        """Let go of the connections of the parent, without a word to the server."""
        self._lock = threading.Lock()
        for each in self._kept:
            abandon(each)
        self._kept = []

    def close(self) -> None:
        """Close every idle connection; those in use are closed when their answer has come."""
        with self._lock:
            kept, self._kept, self._closed = self._kept, [], True
        for each in kept:
            drop(each)

    def new(self, timeout_s: float) -> http.client.HTTPConnection:
        """Make a connection. Raises `StoreUnavailable`."""
        at, seconds = self.address, min(timeout_s, CONNECT_S)
        made: http.client.HTTPConnection
        if self._tls is not None:
            made = http.client.HTTPSConnection(at.host, at.port, timeout=seconds, context=self._tls)
        else:
            made = http.client.HTTPConnection(at.host, at.port, timeout=seconds)
        try:
            made.connect()
        except ssl.SSLCertVerificationError as error:
            raise StoreUnavailable(f"{at.url}: its certificate cannot be trusted: {error.verify_message}") from None
        except OSError as error:
            raise StoreUnavailable(f"cannot reach {at.url}: {error.strerror or error}") from None
        return made

    def ask(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        timeout_s: float,
        *,
        changes: bool,
        pieces: int = 1,
    ) -> bytes:
        """Send a request and return the body of its answer. Raises an error of Holdfast.

        changes: the request may be carried out although its answer is lost. pieces: how many things it is about.
        """
        sent = {"content-type": "application/json", "accept": "application/json", "user-agent": _AGENT}
        sent |= headers
        sent |= self.secret.headers()
        connection = self._idle() or self.new(timeout_s)
        try:
            sock: socket.socket = connection.sock
            sock.settimeout(timeout_s)
            connection.request("POST", self.address.path + path, body, sent)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            drop(connection)
            raise self._lost(error, changes) from None
        except BaseException:
            drop(connection)
            raise
        if answer.will_close or not self._keep(connection):
            drop(connection)
        if answer.status == 200:
            return content
        if answer.status == 401:
            self.secret.refused()
        raise refusal(self.address.url, answer.status, content, pieces, changes=changes)

    def _lost(self, error: Exception, changes: bool) -> StoreUnavailable:
        what = "did not answer in time" if isinstance(error, TimeoutError) else f"closed the connection ({error})"
        if changes:
            return OutcomeUnknown(f"{self.address.url} {what}; the call may have been carried out")
        return StoreUnavailable(f"{self.address.url} {what}")

    def _idle(self) -> http.client.HTTPConnection | None:
        """Return a kept connection that the server has not closed meanwhile."""
        while True:
            with self._lock:
                if not self._kept:
                    return None
                connection = self._kept.pop()
            if not is_closed(connection.sock):
                return connection
            drop(connection)

    def _keep(self, connection: http.client.HTTPConnection) -> bool:
        with self._lock:
            if self._closed or len(self._kept) >= KEPT_MAX:
                return False
            self._kept.append(connection)
            return True


_AGENT = "holdfast"


def is_closed(sock: socket.socket | None) -> bool:
    """Say whether an idle connection has something to read: the end, or an answer that nobody waits for."""
    if sock is None:
        return True
    poller = select.poll()
    poller.register(sock, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poller.poll(0))


def drop(connection: http.client.HTTPConnection) -> None:
    """Close a connection whatever state it is in."""
    with contextlib.suppress(OSError):
        connection.close()


def abandon(connection: http.client.HTTPConnection) -> None:
    """Close only the descriptor of a connection, in a forked process.

    A thread of the parent may be reading from it. Its reader has a lock then, which nobody in this process gives back:
    a close would wait for ever.
    """
    if connection.sock is not None:
        with contextlib.suppress(OSError):
            os.close(connection.sock.detach())


class _Document(msgspec.Struct):
    """The parts of a problem document that a program reads."""

    code: str = ""
    detail: str = ""
    error: str = ""  # the class of the error in the server


def refusal(url: str, status: int, content: bytes, pieces: int, *, changes: bool) -> HoldfastError:
    """Return the error that an answer means. One without a problem document comes from a proxy."""
    try:
        said = msgspec.json.decode(content, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = _Document()
    if status == 413:
        what = f"{url}: the request is larger than the server, or a proxy before it, allows"
        return StoreTimeout(f"{what}; less of it is sent at once") if pieces > 1 else StoreError(what)
    if (known := _named(said.error)) is not None:
        return known(said.detail)
    match said.code:
        case "unauthenticated":
            return StoreDenied(f"{url}: {said.detail} (the token comes from {TOKEN_VARIABLE}, or --token-file)")
        case "forbidden" | "not_found" | "wrong_host" | "cross_site" | "rate_limited":
            return StoreDenied(f"{url}: {said.detail}")
        case "read_only":
            return StoreReadOnly(f"{url}: {said.detail}")
        case "invalid" | "not_json" | "unsupported_media":
            return StoreUnsupported(f"{url} does not understand this program: {said.detail}; upgrade the server first")
        case "internal":
            return StoreError(f"{url}: {said.detail}")
        case "overloaded" | "store_down" | "schema_stale":
            return StoreUnavailable(f"{url}: {said.detail}")
    if status in (404, 405, 501) or status < 400:
        return StoreUnavailable(f"{url} answered {status}: no Holdfast server is there, or not below this path")
    what = f"{url} answered {status}, and no Holdfast server said so: a proxy before it did"
    return OutcomeUnknown(what) if changes and status in (502, 504) else StoreUnavailable(what)


def _named(name: str) -> type[HoldfastError] | None:
    """Return the error that the server raised, if it may be raised here."""
    found: Any = getattr(errors, name, None) if name else None
    if not (isinstance(found, type) and issubclass(found, HoldfastError)):
        return None
    return StoreUnavailable if issubclass(found, _OWN_FILES) else found
