"""One request on its way to its handler: who sends it, what it asks, and how its body is read."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

from holdfast.core.access import Token, User
from holdfast.server.problems import Problem
from holdfast.server.routes import Route
from holdfast.server.security import Origin
from holdfast.stores.remote.verbs import decode_hook

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.server.asgi import Server
    from holdfast.stores.protocol import Store

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

DEPTH_MAX = 64
BODY_S = 20.0  # how long a body may take, and
BODY_RATE = 16_384  # how many bytes a second a longer one must bring
# Possessive, and it matches a string without an end, too: each byte is read once, whatever a client sends.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_PATH = re.compile(r" - at `\$?(.*)`$")


class Disconnected(Exception):
    """The client has closed the connection."""


@dataclass(slots=True)
class Call:
    """One request. Handlers get nothing else."""

    server: Server
    route: Route
    user: User
    token: Token | None  # that let the user in
    origin: Origin
    path: Mapping[str, str]
    headers: Mapping[str, str]
    receive: Receive
    request_id: str
    base: str  # where the server is mounted, as the client sees it
    scope: Scope
    cookie: str | None = None  # of the session that let the user in
    peer: tuple[str, int] | None = None  # the other end of the connection: a client, or a proxy
    query: Any = None
    body: Any = None

    @property
    def app(self) -> App:
        """Return the app whose store is served."""
        return self.server.app

    @property
    def store(self) -> Store:
        """Return the store."""
        return self.server.app.store

    def need_queue(self, queue: str, what: str) -> None:
        """Raise `not_found` if the queue is outside the scope of the user."""
        if not self.user.sees(queue):
            raise Problem("not_found", f"there is no {what} in the queues of this token")


async def read_body(receive: Receive, headers: Mapping[str, str], most: int) -> bytes:
    """Read the body, and count while reading: the announced length may be wrong. A client that dawdles is refused."""
    announced = headers.get("content-length", "")
    if announced.isdigit() and len(announced) < 20 and int(announced) > most:
        raise _too_large(most)
    pieces: list[bytes] = []
    length, began = 0, asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(began + BODY_S) as limit:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                piece = message.get("body", b"")
                length += len(piece)
                if length > most:
                    raise _too_large(most)
                pieces.append(piece)
                if not message.get("more_body", False):
                    return b"".join(pieces)
                limit.reschedule(began + BODY_S + length / BODY_RATE)
    except TimeoutError:
        detail = f"{length} bytes of the body came in time, and not the rest; send it again"
        raise Problem("too_slow", detail, headers={"connection": "close"}) from None


def _too_large(most: int) -> Problem:
    return Problem(
        "too_large", f"the body is larger than {most} bytes; send less at once", headers={"connection": "close"}
    )


def decoded(kind: Any, body: bytes, headers: Mapping[str, str], *, optional: bool) -> Any:
    """Decode a JSON body into the type that the route asks for. Raises `Problem`."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if optional and not body:
        body, media_type = b"{}", media_type or "application/json"
    if media_type != "application/json":
        raise Problem("unsupported_media", "send JSON, with the header content-type: application/json")
    _check_depth(body)
    try:
        return _decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        raise invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem("not_json", f"the body is not JSON: {error}") from None


def query_of(kind: Any, text: bytes) -> Any:
    """Convert the query string into the type that the route asks for. Raises `Problem`."""
    given: dict[str, Any] = {}
    try:
        pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, max_num_fields=40, errors="strict")
    except (ValueError, UnicodeDecodeError) as error:
        raise Problem("invalid", f"the query cannot be read: {error}") from None
    lists = _lists(kind)
    for name, value in pairs:
        if name in lists:
            given.setdefault(name, []).extend(each for each in value.split(",") if each)
        elif name in given:
            raise Problem("invalid", f"the query names {name} twice", pointer=f"?{name}")
        else:
            given[name] = value
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(str(error), "?") from None


def invalid(reason: str, before: str = "/") -> Problem:
    """Return the problem of a request that does not fit its type, with a pointer to the wrong part."""
    path = _PATH.search(reason)
    pointer = before + re.sub(r"[\[\].]+", "/", path[1]).strip("/") if path else before
    return Problem("invalid", reason, pointer=pointer)


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=decode_hook)


@functools.cache
def _lists(kind: Any) -> frozenset[str]:
    fields = msgspec.structs.fields(kind)
    return frozenset(each.encode_name for each in fields if "tuple" in str(each.type) or "list" in str(each.type))


def _check_depth(body: bytes) -> None:
    if body.count(b"[") + body.count(b"{") <= DEPTH_MAX:
        return
    brackets = _STRING.sub(b"", body).translate(_AS_SQUARE, _NO_BRACKETS)
    for _ in range(DEPTH_MAX):
        brackets = brackets.replace(b"[]", b"")  # the innermost level
    if brackets:
        raise Problem("too_large", f"the body is nested more than {DEPTH_MAX} levels deep, or a bracket has no partner")


def exact(data: Any) -> Any:
    """Return the data with integers beyond 2^53 as text: JavaScript would round them."""
    if isinstance(data, dict):
        return {key: exact(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [exact(each) for each in data]
    if isinstance(data, int) and not isinstance(data, bool) and abs(data) > 2**53:
        return str(data)
    return data
