"""A message as an HTTP request: signed, to an address that was checked, with bounds on time and size.

The name is resolved once, the addresses are checked, and the connection is made to one of those very addresses; asking
again could give another answer. The certificate is still checked against the name. No redirect is followed, because
the place that it leads to was not checked, and no proxy of the environment is used.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import io
import ipaddress
import socket
import ssl
from contextlib import closing
from typing import Any
from urllib.parse import unquote, urlsplit

from holdfast.alerts.channels import Sent
from holdfast.alerts.messages import Message, WebhookForm, for_slack
from holdfast.clock import Clock, SystemClock
from holdfast.errors import UsageError
from holdfast.version import __version__

CONNECT_S = 5.0
SEND_S = 15.0  # for all of it, connecting included
ANSWER_MAX = 65_536  # bytes that are read of an answer
ADDRESSES_MAX = 3  # that are tried
RETRIED = (408, 425, 429)  # and 5xx

Address = tuple[socket.AddressFamily, tuple[Any, ...]]
IP = ipaddress.IPv4Address | ipaddress.IPv6Address


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a request: HMAC-SHA256 over the timestamp, a full stop and the body, in hex."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


class Webhook:
    """Posts each message as JSON to one URL.

    https only, to public addresses only. With `private` an address of this machine or of a private network will do too,
    and there, but nowhere else, plain http. As `slack` the body is one text, as Slack and Mattermost take it.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | None = None,
        private: bool = False,
        form: WebhookForm = "json",
        clock: Clock | None = None,
    ) -> None:
        try:
            if not url.isascii() or any(char <= " " or char == "\x7f" for char in url):
                raise ValueError
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise UsageError("the webhook's address is not a URL; write https://host/path") from None
        if parts.scheme != "https" and not (private and parts.scheme == "http"):
            wanted = "a webhook's address begins with https://"
            raise UsageError(f"{wanted}; plain http only with private=True (--alert-private)")
        if not parts.hostname:
            raise UsageError("the webhook's address names no host; write https://host/path")
        if secret is not None and len(secret) < 8:
            raise UsageError("the webhook's secret is too short to be one")
        self._url = url
        self._secret = secret
        self._private = private
        self._form = form
        self._clock = clock or SystemClock()
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = port or (443 if self._tls else 80)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._login = _basic(parts.username, parts.password) if parts.username is not None else None
        self._place = parts.netloc.rpartition("@")[2]
        self.name = f"webhook {parts.scheme}://{self._place}/…"  # path and query are often what is secret

    @property
    def identity(self) -> str:
        return self._url if self._form == "json" else f"{self._form} {self._url}"

    def send(self, message: Message, url: str) -> Sent:
        body = for_slack(message, url) if self._form == "slack" else message.body(url)
        give_up_at = self._clock.lease() + SEND_S
        try:
            addresses = self._addresses()
            if not addresses:
                return Sent(False, self._refusal())
            status = self._post(addresses, body, give_up_at)
        except ssl.SSLCertVerificationError as error:
            return Sent(False, f"its certificate is not valid: {error.verify_message}")
        except socket.gaierror:
            return Sent(False, "its host name is not known here", again=True)
        except TimeoutError:
            return Sent(False, "it did not answer in time", again=True)
        except http.client.HTTPException as error:
            return Sent(False, f"its answer was not HTTP ({type(error).__name__})", again=True)
        except (OSError, UnicodeError) as error:
            return Sent(
                False, f"it cannot be reached ({getattr(error, 'strerror', None) or type(error).__name__})", True
            )
        if 200 <= status < 300:
            return Sent(True, f"answered {status}")
        if 300 <= status < 400:
            return Sent(False, f"answered {status}: it redirects, and Holdfast follows no redirect")
        return Sent(False, f"answered {status}", again=status >= 500 or status in RETRIED)

    def close(self) -> None: ...

    # ------------------------------------------------------------------------------------ the address

    def _addresses(self) -> list[Address]:
        """Resolve the name, once; return the addresses that may be connected to."""
        infos = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        found: list[Address] = [
            (family, where) for family, _, _, _, where in infos if self._may(ipaddress.ip_address(where[0]))
        ]
        return found[:ADDRESSES_MAX]

    def _may(self, address: IP) -> bool:
        if is_public(address):
            return self._tls is not None  # what is not encrypted stays at home
        return self._private and not address.is_multicast and not address.is_unspecified

    def _refusal(self) -> str:
        if self._private:
            return "refused: plain http goes to private addresses only; use https"
        return "refused: its address is private, loopback or link-local; private=True (--alert-private) allows that"

    # ------------------------------------------------------------------------------------ the request

    def _post(self, addresses: list[Address], body: bytes, give_up_at: float) -> int:
        """Send the request and return the status of the answer; its body is not read."""
        with self._connected(addresses) as plain:
            plain.settimeout(_left(self._clock, give_up_at))
            with self._tls.wrap_socket(plain, server_hostname=self._host) if self._tls else plain as sock:
                connection = http.client.HTTPConnection(self._host, self._port)
                connection.sock = _Bounded(sock, self._clock, give_up_at)
                with closing(connection):
                    connection.request("POST", self._path, body, self._headers(body))
                    return connection.getresponse().status

    def _connected(self, addresses: list[Address]) -> socket.socket:
        """Connect to the first address that answers. Raises what the last one has raised."""
        failure = OSError("there is no address")
        for family, where in addresses:
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.settimeout(CONNECT_S)
            try:
                sock.connect(where)
                return sock
            except OSError as error:
                sock.close()
                failure = error
        raise failure

    def _headers(self, body: bytes) -> dict[str, str]:
        timestamp = str(int(self._clock.wall()))
        headers = {
            "Host": self._place,
            "Content-Type": "application/json",
            "User-Agent": f"holdfast/{__version__}",
            "Connection": "close",
            "Holdfast-Timestamp": timestamp,
        }
        if self._secret is not None:
            headers["Holdfast-Signature"] = f"v1={sign(self._secret, timestamp, body)}"
        if self._login is not None:
            headers["Authorization"] = self._login
        return headers


def is_public(address: IP) -> bool:
    """Say whether the whole world reaches this address, seeing through the forms that hide another one in it."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address.sixtofour is not None:
            return is_public(address.sixtofour)
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
        if address.is_site_local or address.teredo is not None:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class _Bounded(io.RawIOBase):
    """A socket for http.client that keeps one deadline for everything and reads no more than an answer may have."""

    def __init__(self, sock: socket.socket, clock: Clock, give_up_at: float) -> None:
        self._sock = sock
        self._clock = clock
        self._give_up_at = give_up_at
        self._room = ANSWER_MAX

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(_left(self._clock, self._give_up_at))
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def close(self) -> None:
        """Do nothing: http.client closes the connection while it still reads the answer. Its opener closes it."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if self._room <= 0:
            raise http.client.LineTooLong("the answer")
        self._sock.settimeout(_left(self._clock, self._give_up_at))
        read = self._sock.recv_into(memoryview(buffer)[: self._room])
        self._room -= read
        return read


def _left(clock: Clock, give_up_at: float) -> float:
    left_s = give_up_at - clock.lease()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _basic(user: str, password: str | None) -> str:
    login = f"{unquote(user)}:{unquote(password or '')}"
    return "Basic " + base64.b64encode(login.encode()).decode()
